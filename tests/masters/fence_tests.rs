//! Fenced locks on real masters: tokens rise whatever happens to masters and holders, and late writes are too
//! old.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use redlatch::scripts::SCRIPTS;
use redlatch::status::MasterState;
use redlatch::{AcquireError, Client, Config, HeldLocks};
use redlatch_support::settle;
use redlatch_support::{Blocking, Fleet, Lease, PATIENCE, Place, Proxy, Raw, Until, eventually, valkey_9};

use crate::lock_tests::{TTL, drive, open, settings, state};

/// Times of a holder's request and answer, and its token.
struct Held {
    asked: Instant,
    granted: Instant,
    token: u64,
}

/// A caller that asked after another caller's answer must have the larger token.
fn assert_rising(mut held: Vec<Held>) {
    held.sort_by_key(|it| it.granted);
    for (index, later) in held.iter().enumerate() {
        for earlier in held[..index].iter().filter(|it| it.granted < later.asked) {
            assert!(earlier.token < later.token, "{} before {}", earlier.token, later.token);
        }
    }
}

/// Acquires the lock again and again, and sometimes keeps it beyond its TTL, like a paused process.
fn contend(urls: &[String], held: &Mutex<Vec<Held>>, is_over: &AtomicBool) {
    let config = Config::builder().masters(urls).max_ttl(Duration::from_secs(1));
    let config = config.answer_timeout(Duration::from_millis(200)).build().expect("valid");
    let mut redlock = Blocking::open(config).expect("an event loop");
    for round in 0_u32.. {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        let asked = Instant::now();
        let (ttl, wait) = (Duration::from_millis(300), Duration::from_millis(500));
        let Ok(lease) = redlock.lock("a").ttl(ttl).wait(wait).fenced().acquire() else { continue };
        let token = lease.fencing_token().expect("it is fenced");
        held.lock().expect("no panic").push(Held { asked, granted: Instant::now(), token: token.as_u64() });
        if round % 16 == 15 {
            thread::sleep(Duration::from_millis(350));
        }
        drop(lease);
        redlock.flush();
    }
}

// I12
#[test]
fn tokens_rise_through_kills_stops_and_pauses() {
    let mut fleet = Fleet::start(5);
    let urls = fleet.urls();
    let (held, is_over) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    let count = |held: &Mutex<Vec<Held>>| held.lock().expect("no panic").len();
    thread::scope(|scope| {
        let _end = Until(&is_over);
        for _ in 0..3 {
            scope.spawn(|| contend(&urls, &held, &is_over));
        }
        let more = |held: &Mutex<Vec<Held>>, what: &str| {
            let before = count(held);
            eventually(PATIENCE, what, || count(held) >= before + 10);
        };
        more(&held, "all is well");
        for round in 0..3 {
            fleet.master(round).kill();
            fleet.master((round + 1) % 5).stop();
            more(&held, "one master is dead and one is stopped");
            fleet.master((round + 1) % 5).cont();
            fleet.master(round).restart();
            more(&held, "it came back empty, and is in quarantine");
            // Masters that forget must stay fewer than a quorum.
            thread::sleep(Duration::from_millis(2_200));
        }
    });
    assert_rising(held.into_inner().expect("no panic"));
}

// I12
#[test]
fn an_acquire_after_its_release_is_stale() {
    let mut fleet = Fleet::start(3);
    // A client's first attempt loads the scripts.
    let mut first = open(settings(&fleet.urls()));
    let lease = first.lock("b").ttl(TTL).wait(PATIENCE).fenced().acquire().expect("free");
    drive(&mut first, "all three have it", |first| first.margin(&lease) == 1);
    first.release(lease).expect("confirmed");
    assert_eq!(first.drain(PATIENCE, HeldLocks::Leave), 0);
    let mut redlock = open(settings(&fleet.urls()));
    fleet.masters().for_each(|master| assert_eq!(master.ask("CONFIG RESETSTAT").text(), "OK"));
    let lease = redlock.lock("a").ttl(TTL).wait(PATIENCE).fenced().acquire().expect("free");
    let (token, value) = (lease.fencing_token().expect("asked for").as_u64(), *lease.token().as_bytes());
    drive(&mut redlock, "all three have it", |redlock| redlock.margin(&lease) == 1);
    redlock.release(lease).expect("confirmed");
    assert_eq!(redlock.drain(PATIENCE, HeldLocks::Leave), 0);
    for master in fleet.masters() {
        let stats = master.ask("INFO commandstats").text();
        assert!(stats.contains("cmdstat_evalsha:calls=2,"), "one to acquire and one to release: {stats}");
        assert!(!stats.contains("cmdstat_eval:"), "a digest is unknown: {stats}");
        assert_eq!(master.ask("GET redlatch:fence:a").text(), token.to_string());
        assert_eq!(master.ask("EXISTS a").text(), "0");
        // The same command again, as if the network had delayed it.
        let token = token.to_string();
        let acquire = SCRIPTS.iter().find(|script| script.name == "fenced_acquire").expect("a script");
        let late: [&[u8]; 11] = [
            b"EVALSHA",
            acquire.sha.as_bytes(),
            b"2",
            b"a",
            b"redlatch:fence:a",
            &value,
            b"10000",
            token.as_bytes(),
            b"15000000",
            b"15000000",
            b"90000",
        ];
        let Raw::List(reply) = master.command(&late) else { panic!("it was carried out") };
        assert_eq!((reply[0].text(), reply[1].text()), ("1".to_owned(), token));
        assert_eq!(master.ask("EXISTS a").text(), "0");
    }
}

#[test]
fn only_fenced_locks_have_tokens() {
    let mut fleet = Fleet::start(3);
    let client = Client::open(settings(&fleet.urls()).build().expect("valid")).expect("an event loop");
    assert_eq!(client.lock("a").acquire().expect("free").fencing_token(), None);
    let mut before = None;
    for _ in 0..20 {
        let mut guard = client.lock("a").wait(PATIENCE).fenced().acquire().expect("free");
        assert!(guard.fencing_token() > before, "{:?} after {before:?}", guard.fencing_token());
        before = guard.fencing_token();
        let denied = client.lock("a").try_acquire().expect_err("held");
        assert!(matches!(denied, AcquireError::Contended(_)), "{denied}");
        guard.extend(TTL).expect("held");
        guard.release().expect("confirmed");
    }
    fleet.masters().for_each(|master| assert_eq!(master.ask("SCRIPT FLUSH").text(), "OK"));
    let guard = client.lock("a").wait(PATIENCE).fenced().acquire().expect("free");
    assert!(guard.fencing_token() > before);
    fleet.masters().for_each(|master| assert_eq!(master.ask("SCRIPT FLUSH").text(), "OK"));
    // A master that never got the script has nothing to delete.
    guard.release().expect("confirmed");
    assert_eq!(settle(&client, PATIENCE), 0);
    fleet.masters().for_each(|master| assert_eq!(master.keys(), "[redlatch:fence:a]"));
}

/// Callers of one client want the same lock. The masters are asked for each, and each token is larger.
#[test]
fn threads_of_one_client_have_rising_tokens() {
    let fleet = Fleet::start(3);
    let client = Client::open(settings(&fleet.urls()).build().expect("valid")).expect("an event loop");
    let (held, left) = (Mutex::new(Vec::new()), AtomicU32::new(60));
    let take_turns = || {
        while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
            let asked = Instant::now();
            let guard = client.lock("a").ttl(TTL).wait(PATIENCE).fenced().acquire().expect("in turn");
            let token = guard.fencing_token().expect("asked for").as_u64();
            held.lock().expect("no panic").push(Held { asked, granted: Instant::now(), token });
            guard.release().expect("confirmed");
        }
    };
    thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(take_turns))));
    let mut held = held.into_inner().expect("no panic");
    held.sort_by_key(|it| it.granted);
    assert!(held.is_sorted_by(|one, next| one.token < next.token), "each had it after the other");
    assert_rising(held);
}

#[test]
fn a_malformed_fence_costs_a_vote() {
    let mut fleet = Fleet::start(3);
    assert_eq!(fleet.master(0).ask("SET redlatch:fence:a x").text(), "OK");
    fleet.master(1).ask("RPUSH redlatch:fence:b x");
    let mut redlock = open(settings(&fleet.urls()));
    for name in ["a", "b"] {
        let lease = redlock.lock(name).ttl(TTL).wait(PATIENCE).fenced().acquire().expect("two of three");
        assert!(lease.fencing_token().is_some());
        redlock.release(lease).expect("confirmed");
    }
    fleet.master(1).ask("SET redlatch:fence:a x");
    let error = redlock.lock("a").ttl(TTL).fenced().try_acquire().expect_err("one of three");
    assert!(error.to_string().contains("the fence is no number"), "{error}");
}

#[test]
fn valkey_and_redis_give_rising_tokens_together() {
    let Some(valkey) = valkey_9() else { return };
    let places = vec![valkey.clone(), Place::default(), valkey];
    let fleet = Fleet::start_at(places);
    let mut redlock = open(settings(&fleet.urls()));
    let mut before = None;
    for _ in 0..20 {
        let mut lease = redlock.lock("a").ttl(TTL).wait(PATIENCE).fenced().acquire().expect("free");
        assert!(lease.fencing_token() > before);
        before = lease.fencing_token();
        redlock.extend(&mut lease, TTL).expect("held");
        assert!(redlock.release(lease).expect("confirmed").deleted >= 2);
    }
}

/// A proxy gives the first server a second address. The login may not run `INFO`, so no `run_id` shows it.
// I21
#[test]
fn one_server_behind_two_addresses_votes_once_without_info() {
    type Acquire = fn(&mut Blocking) -> Result<Lease, AcquireError>;
    let kinds: [(&str, Acquire); 4] = [
        ("plain", |redlock| redlock.lock("a").ttl(TTL).try_acquire()),
        ("fenced", |redlock| redlock.lock("a").ttl(TTL).fenced().try_acquire()),
        ("fair", |redlock| redlock.lock("a").ttl(TTL).fair().try_acquire()),
        ("shared", |redlock| redlock.lock("a").ttl(TTL).shared().try_acquire()),
    ];
    let mut fleet = Fleet::start(2);
    let proxy = Proxy::start(fleet.master(0).addr());
    let rules = "ACL SETUSER locker on >pw ~* &* +@all -info";
    fleet.masters().for_each(|master| assert_eq!(master.ask(rules).text(), "OK"));
    let addresses = [fleet.urls(), vec![proxy.url()]].concat();
    let urls: Vec<_> = addresses.iter().map(|url| url.replace("redis://", "redis://locker:pw@")).collect();
    let mut redlock = open(settings(&urls));
    for (kind, acquire) in kinds {
        let lease = acquire(&mut redlock).unwrap_or_else(|error| panic!("{kind}: {error}"));
        redlock.release(lease).expect("confirmed");
    }
    fleet.master(1).kill();
    drive(&mut redlock, "one is down", |redlock| matches!(state(redlock, 1), MasterState::Down(_)));
    for (kind, acquire) in kinds {
        let error = acquire(&mut redlock).expect_err(kind);
        let is_said = error.to_string().contains("the same server as another master");
        assert_eq!(is_said, matches!(kind, "fenced" | "fair" | "shared"), "{kind}: {error}");
        drive(&mut redlock, kind, |_| fleet.master(0).ask("EXISTS a") == Raw::Integer(0));
    }
    assert_eq!(redlock.drain(PATIENCE, HeldLocks::Leave), 0);
}
