//! `Redlock` on real masters: its promises in the normal case, and when servers stop, die, restart or refuse.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use redlatch::engine::{Outcome, Request, Resource};
use redlatch::error::{Failure, HolderTtl, Vote};
use redlatch::scripts::SCRIPTS;
use redlatch::status::MasterState;
use redlatch::{
    AcquireError, Config, ConfigBuilder, ExtendError, HeldLocks, Options, Quarantine, ReleaseError,
};
use redlatch_support::{Blocking, Fleet, PATIENCE, assert_sooner, eventually};

use crate::rogue::Rogue;

pub(crate) const TTL: Duration = Duration::from_secs(10);
/// Longer than a slow machine delays an answer.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

pub(crate) fn settings(urls: &[String]) -> ConfigBuilder {
    Config::builder().masters(urls).quarantine(Quarantine::Trust).answer_timeout(ANSWER_TIMEOUT)
}

/// Opens a client that knows the state of each master.
pub(crate) fn open(builder: ConfigBuilder) -> Blocking {
    let mut redlock = Blocking::open(builder.build().expect("valid settings")).expect("an event loop");
    drive(&mut redlock, "each master is up or down", |redlock| {
        redlock.masters().iter().all(|master| master.state != MasterState::Connecting)
    });
    redlock
}

/// Number of masters with the key.
fn holder_count(fleet: &mut Fleet, key: &str) -> usize {
    fleet
        .masters()
        .filter_map(|master| master.try_command(&[b"GET", key.as_bytes()]).ok())
        .filter(|it| it.text().len() > 5)
        .count()
}

/// Drives the loop until a condition is true.
pub(crate) fn drive(redlock: &mut Blocking, what: &str, mut is_true: impl FnMut(&Blocking) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_true(redlock) {
        assert!(Instant::now() < deadline, "not in time: {what}");
        redlock.turn(Duration::from_millis(5)).expect("the loop runs");
    }
}

pub(crate) fn state(redlock: &Blocking, index: usize) -> MasterState {
    redlock.masters().swap_remove(index).state
}

fn failure(error: &AcquireError, index: usize) -> &Failure {
    let (AcquireError::NoQuorum(denial) | AcquireError::Contended(denial) | AcquireError::Expired(denial)) =
        error
    else {
        panic!("{error}")
    };
    match &denial.report.votes[index].1 {
        Vote::Failed(failure) => failure,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_lock_is_on_all_masters_until_released() {
    for count in [1, 3, 5] {
        let mut fleet = Fleet::start(count);
        let mut redlock = open(settings(&fleet.urls()));
        let lease = redlock.lock("orders:42").ttl(TTL).wait(PATIENCE).acquire().expect("free");
        assert!(lease.is_valid() && lease.remaining() <= Duration::from_millis(9898));
        drive(&mut redlock, "late grants are counted", |redlock| {
            redlock.margin(&lease) == count - count / 2 - 1
        });
        for master in fleet.masters() {
            assert_eq!(master.command(&[b"STRLEN", b"orders:42"]).text(), "20");
            let left: u64 = master.ask("PTTL orders:42").text().parse().expect("milliseconds");
            assert!((1..=10_000).contains(&left), "{left}");
        }
        let released = redlock.release(lease).expect("confirmed");
        assert!(released.deleted > count / 2 && !released.was_already_gone(), "{released:?}");
        drive(&mut redlock, "all keys are deleted", |_| holder_count(&mut fleet, "orders:42") == 0);
    }
}

#[test]
fn a_refused_client_learns_holder_and_time() {
    let fleet = Fleet::start(3);
    let (mut first, mut second) = (open(settings(&fleet.urls())), open(settings(&fleet.urls())));
    let lease = first.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("free");
    let error = second.lock("a").ttl(TTL).try_acquire().expect_err("held");
    let AcquireError::Contended(denial) = &error else { panic!("{error}") };
    assert!(matches!(denial.holder, HolderTtl::Left(left) if left <= TTL), "{:?}", denial.holder);
    assert!(error.to_string().contains("lock \"a\" is held by another client"), "{error}");
    first.release(lease).expect("confirmed");
    drop(second.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("free again"));
}

#[test]
fn a_dropped_lease_is_released_by_the_next_call() {
    let mut fleet = Fleet::start(3);
    let mut redlock = open(settings(&fleet.urls()));
    let lease = redlock.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("free");
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        let _held = lease;
        panic!("while the lock is held");
    }));
    assert!(panic.is_err());
    drop(redlock.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("free again"));
    drop(redlock);
    eventually(PATIENCE, "dropping the client releases too", || holder_count(&mut fleet, "a") == 0);
}

#[test]
fn extending_moves_the_deadline_and_the_keys() {
    let mut fleet = Fleet::start(3);
    let mut redlock = open(settings(&fleet.urls()).max_ttl(Duration::from_secs(100)));
    let mut lease = redlock.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("free");
    redlock.extend(&mut lease, Duration::from_secs(60)).expect("held");
    assert!(lease.remaining() > Duration::from_secs(30));
    drive(&mut redlock, "all keys live longer", |_| {
        fleet
            .masters()
            .all(|master| master.ask("PTTL a").text().parse::<u64>().expect("milliseconds") > 30_000)
    });
    for master in fleet.masters().take(2) {
        master.ask("SET a somebody-else");
    }
    let error = redlock.extend(&mut lease, TTL).expect_err("lost");
    assert!(matches!(error, ExtendError::Lost(_)), "{error}");
    drop(lease);
    redlock.turn(Duration::from_millis(50)).expect("the loop runs");
    assert_eq!(fleet.master(0).ask("GET a").text(), "somebody-else");
}

#[test]
fn a_lock_survives_a_stopped_and_killed_master() {
    let mut fleet = Fleet::start(5);
    let mut redlock = open(settings(&fleet.urls()).answer_timeout(Duration::from_secs(1)));
    fleet.master(0).stop();
    fleet.master(1).kill();
    let lease = redlock.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("three of five are up");
    drive(&mut redlock, "the killed one is noticed", |redlock| {
        matches!(state(redlock, 1), MasterState::Down(_))
    });
    redlock.release(lease).expect("confirmed");
    // The resumed master catches up. Commands that it was sent while stopped leave no key.
    fleet.master(0).cont();
    fleet.master(1).restart();
    drive(&mut redlock, "both are back", |redlock| {
        [0, 1].map(|index| state(redlock, index)) == [MasterState::Ready, MasterState::Ready]
    });
    drive(&mut redlock, "no ghost key", |_| holder_count(&mut fleet, "a") == 0);
}

#[test]
fn closed_idle_connections_cost_no_call() {
    let mut fleet = Fleet::start(3);
    let mut redlock = open(settings(&fleet.urls()));
    drop(redlock.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("free"));
    redlock.turn(Duration::from_millis(1)).expect("the loop runs");
    // The attempt after the idle time finds all connections closed, as with the servers' `timeout` setting.
    for master in fleet.masters() {
        assert_eq!(master.ask("CLIENT KILL SKIPME yes").text(), "1");
    }
    std::thread::sleep(redlatch::limits::IDLE_MAX);
    let result = redlock.lock("a").ttl(TTL).try_acquire();
    assert!(result.is_ok(), "{result:?}");
}

#[test]
fn a_restarted_masters_uptime_ends_its_quarantine() {
    let mut fleet = Fleet::start(1);
    let settings = || {
        Config::builder().masters(fleet.urls()).answer_timeout(ANSWER_TIMEOUT).max_ttl(Duration::from_secs(5))
    };
    let mut redlock = open(settings());
    let error = redlock.lock("a").ttl(Duration::from_secs(1)).try_acquire().expect_err("just started");
    assert!(
        matches!(failure(&error, 0), Failure::Quarantined { left, .. } if *left < Duration::from_millis(5053)),
        "{error}"
    );
    let lease =
        redlock.lock("a").ttl(Duration::from_secs(1)).wait(PATIENCE).acquire().expect("old enough by now");
    redlock.release(lease).expect("confirmed");
    let old_run_id = redlock.masters()[0].run_id.clone();
    fleet.master(0).kill();
    fleet.master(0).restart();
    drive(&mut redlock, "it is connected again", |redlock| {
        matches!(state(redlock, 0), MasterState::Quarantined(_))
    });
    assert_ne!(redlock.masters()[0].run_id, old_run_id);
    let error = redlock.lock("a").ttl(Duration::from_secs(1)).try_acquire().expect_err("restarted");
    assert!(matches!(failure(&error, 0), Failure::Quarantined { .. }), "{error}");
    drop(redlock.lock("a").ttl(Duration::from_secs(1)).wait(PATIENCE).acquire().expect("old enough by now"));
}

#[test]
fn our_script_digests_match_and_survive_a_flush() {
    let mut fleet = Fleet::start(1);
    let mut redlock = open(settings(&fleet.urls()));
    for script in SCRIPTS.iter().filter(|script| ["release", "extend"].contains(&script.name)) {
        let exists = format!("SCRIPT EXISTS {}", script.sha);
        assert_eq!(fleet.master(0).ask(&exists).text(), "[1]", "{}", script.name);
    }
    let mut lease = redlock.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("free");
    fleet.master(0).ask("SCRIPT FLUSH");
    redlock.extend(&mut lease, TTL).expect("held");
    fleet.master(0).ask("SCRIPT FLUSH");
    assert_eq!(redlock.release(lease).map(|released| released.deleted), Ok(1));
}

#[test]
fn user_password_database_and_unix_socket_work() {
    let mut fleet = Fleet::start_with_sockets(1, &["--requirepass", "s3cret"]);
    let open_url = |url: String| open(settings(&[url]));
    let with_login = |fleet: &mut Fleet, login: &str, tail: &str| {
        format!("{}{tail}", fleet.master(0).url().replace("redis://", &format!("redis://{login}@")))
    };
    let url = fleet.master(0).url();
    let error = open_url(url).lock("a").ttl(TTL).try_acquire().expect_err("no password");
    let said =
        "NOAUTH Authentication required. (it needs a password; put user and password into this master's URL)";
    assert!(error.to_string().contains(said), "{error}");
    let url = with_login(&mut fleet, ":wrong-pw", "");
    let error = open_url(url).lock("a").ttl(TTL).try_acquire().expect_err("wrong password");
    assert!(error.to_string().contains("WRONGPASS") && !error.to_string().contains("wrong-pw"), "{error}");
    let url = with_login(&mut fleet, "default:s3cret", "/3");
    let mut redlock = open_url(url);
    let lease = redlock.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("logged in");
    assert!(!format!("{redlock:?} {lease:?} {:?}", redlock.config()).contains("s3cret"));
    let unix_url = fleet.master(0).unix_url().replace("unix://", "unix://:s3cret@");
    drop(open_url(unix_url).lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("database 0 is another one"));
}

#[test]
fn least_privileges_suffice_and_refusals_are_shown() {
    let mut fleet = Fleet::start(1);
    // The rights of docs/rights.md for plain locks, without the optional ones.
    let rules = "ACL SETUSER locker on >pw resetkeys ~lock:* resetchannels -@all +set +get +del +pexpire +pttl \
                 +evalsha +script|load +eval +info +echo";
    assert_eq!(fleet.master(0).ask(rules).text(), "OK");
    let url = fleet.master(0).url().replace("redis://", "redis://locker:pw@");
    let mut redlock = open(settings(std::slice::from_ref(&url)).prefix("lock:"));
    let mut lease = redlock.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("allowed");
    redlock.extend(&mut lease, TTL).expect("allowed");
    fleet.master(0).ask("SCRIPT FLUSH");
    assert_eq!(redlock.release(lease).map(|released| released.deleted), Ok(1));
    let refused: Vec<_> = redlock.masters()[0].refused.iter().map(|(name, _)| *name).collect();
    // A server with native commands refuses these, too, and releases by script.
    assert!(refused.contains(&"CLIENT SETNAME"), "{refused:?}");
    let error = open(settings(&[url])).lock("a").ttl(TTL).try_acquire().expect_err("no such key pattern");
    assert!(
        error.to_string().contains("NOPERM") && error.to_string().contains("lacks the keys ~PREFIX*"),
        "{error}"
    );
}

#[test]
fn errors_of_servers_are_no_refusals() {
    let mut fleet = Fleet::start(3);
    let mut redlock = open(settings(&fleet.urls()));
    // A full master and a replica: two of three cannot grant.
    let primary = fleet.master(2).port();
    assert_eq!(fleet.master(0).ask("CONFIG SET maxmemory 1").text(), "OK");
    assert_eq!(fleet.master(1).ask(&format!("REPLICAOF 127.0.0.1 {primary}")).text(), "OK");
    let error = redlock.lock("a").ttl(TTL).try_acquire().expect_err("one of three");
    let text = error.to_string();
    assert!(matches!(error, AcquireError::NoQuorum(_)), "{text}");
    assert!(text.contains("raise maxmemory") && text.contains("list its master"), "{text}");
    assert_eq!(fleet.master(0).ask("CONFIG SET maxmemory 0").text(), "OK");
    // An error of a minority only shows in the report.
    let lease = redlock.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("two of three");
    redlock.release(lease).expect("confirmed");
    drop(redlock);
    let redlock = open(settings(&fleet.urls()));
    let state = &redlock.masters()[1].state;
    assert!(matches!(state, MasterState::Down(why) if why.contains("it is a replica")), "{state:?}");
}

#[test]
fn a_server_full_of_clients_is_named() {
    let mut fleet = Fleet::start(1);
    let _first = open(settings(&fleet.urls()));
    assert_eq!(fleet.master(0).ask("CONFIG SET maxclients 1").text(), "OK");
    let mut second = open(settings(&fleet.urls()));
    let error = second.lock("a").ttl(TTL).try_acquire().expect_err("full");
    assert!(error.to_string().contains("max number of clients reached"), "{error}");
    // Also as the answer to a login.
    let url = fleet.urls()[0].replace("redis://", "redis://:pw@");
    let mut third = open(settings(&[url]));
    let error = third.lock("a").ttl(TTL).try_acquire().expect_err("full").to_string();
    assert!(error.contains("clients reached\" (raise maxclients") && !error.contains("login"), "{error}");
}

#[test]
fn a_server_that_talks_garbage_or_nothing_harms_nobody() {
    let fleet = Fleet::start(3);
    // Each connection gets this greeting, so the next one must not be mistaken for a silent server.
    let rogues = [Rogue::start(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()), Rogue::start(Vec::new())];
    let mut urls = fleet.urls();
    urls.extend(rogues.iter().map(Rogue::url));
    let mut redlock = open(settings(&urls));
    let (garbage, mute) = (state(&redlock, 3), state(&redlock, 4));
    assert!(matches!(&garbage, MasterState::Down(why) if why.contains("is it a Redis")), "{garbage:?}");
    assert!(
        matches!(&mute, MasterState::Down(why) if why.contains("no answer to the handshake")),
        "{mute:?}"
    );
    let lease = redlock.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("three of five are sane");
    redlock.release(lease).expect("confirmed");
}

#[test]
fn two_never_hold_one_lock_at_a_time() {
    let fleet = Fleet::start(3);
    let (is_held, entry_count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (urls, is_held, entry_count) = (fleet.urls(), is_held.clone(), entry_count.clone());
            std::thread::spawn(move || {
                let mut redlock = open(settings(&urls).max_ttl(Duration::from_secs(60)));
                for _ in 0..25 {
                    let lease = redlock
                        .lock("a")
                        .ttl(Duration::from_secs(60))
                        .wait(Duration::from_secs(60))
                        .acquire()
                        .expect("in turn");
                    assert!(!is_held.swap(true, Ordering::SeqCst), "held by two");
                    entry_count.fetch_add(1, Ordering::SeqCst);
                    is_held.store(false, Ordering::SeqCst);
                    redlock.release(lease).expect("confirmed");
                }
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().expect("no overlap"));
    assert_eq!(entry_count.load(Ordering::SeqCst), 100);
}

#[test]
fn many_locks_are_pipelined_at_once() {
    let mut fleet = Fleet::start(3);
    let mut redlock = open(settings(&fleet.urls()));
    let ttl = TTL;
    let wait = Duration::ZERO;
    for index in 0..1000 {
        let name = format!("many:{index}");
        let resource = Resource::new(&name).expect("valid");
        redlock
            .submit(Request::Acquire { resource, options: Options::new().ttl(ttl).wait(wait), label: None })
            .expect("room");
    }
    let mut locks = Vec::new();
    while locks.len() < 1000 {
        redlock.turn(Duration::from_millis(100)).expect("the loop runs");
        while let Some((lock, outcome)) = redlock.poll_outcome() {
            assert!(matches!(outcome, Outcome::Acquire(Ok(_))), "{outcome:?}");
            locks.push(lock);
        }
    }
    for lock in locks {
        redlock.submit(Request::Release { lock, awaited: false }).expect("always taken");
    }
    assert_eq!(redlock.drain(PATIENCE, HeldLocks::Leave), 0, "all are released everywhere");
    assert!(fleet.masters().all(|master| master.key_count() == "0"));
}

#[test]
fn a_release_nobody_confirms_is_reported() {
    let mut fleet = Fleet::start(3);
    let mut redlock = open(settings(&fleet.urls()).answer_timeout(Duration::from_secs(1)));
    let lease = redlock.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("free");
    fleet.masters().for_each(|master| master.stop());
    let error = redlock.release(lease).expect_err("all stand still");
    assert!(
        matches!(error, ReleaseError::Unconfirmed(_)) && error.to_string().contains("no answer within"),
        "{error}"
    );
    fleet.masters().for_each(|master| master.cont());
    drive(&mut redlock, "they release in order when they go on", |_| holder_count(&mut fleet, "a") == 0);
}

#[test]
fn a_waker_ends_a_turn_from_another_thread() {
    let fleet = Fleet::start(1);
    let mut redlock = open(settings(&fleet.urls()));
    let waker = redlock.waker();
    let started = Instant::now();
    // A turn may end for another reason.
    for _ in 0..200 {
        let (is_woken, before_turn) = (AtomicBool::new(false), Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                before_turn.wait();
                is_woken.store(true, Ordering::Release);
                waker.wake_by_ref();
            });
            before_turn.wait();
            redlock.turn(PATIENCE).expect("the loop runs");
            while !is_woken.load(Ordering::Acquire) {
                redlock.turn(PATIENCE).expect("the loop runs");
            }
        });
        assert_sooner(started, PATIENCE, "a turn that nothing wakes lasts that long");
    }
}
