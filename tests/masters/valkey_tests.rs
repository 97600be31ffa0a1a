//! Servers with native compare-and-delete: Valkey 9 alone, and beside Redis.
//!
//! `REDLATCH_VALKEY` names a server of version 9 or later. Without it these tests are skipped, with a
//! message.

use std::thread;
use std::time::{Duration, Instant};

use redlatch::{Client, HeldLocks, Quarantine};
use redlatch_support::settle;
use redlatch_support::{Fleet, Master, PATIENCE, Place, Raw, eventually, valkey_9};

use crate::contest::{Contest, Rules};
use crate::lock_tests::{TTL, drive, open, settings};

#[test]
fn valkey_9_releases_and_extends_natively() {
    let Some(valkey) = valkey_9() else { return };
    for valkey_count in [3, 2] {
        let mut places = vec![valkey.clone(); valkey_count];
        places.resize(5, Place::default());
        let mut fleet = Fleet::start_at(places);
        let mut redlock = open(settings(&fleet.urls()));
        let commands: Vec<_> = redlock.masters().iter().map(|master| master.release_command).collect();
        let native: Vec<_> = fleet.masters().map(Native::of).collect();
        assert!(
            native[..valkey_count].iter().all(|native| native.set_if_eq && native.release == Some("delifeq")),
            "{native:?}"
        );
        for (index, (command, native)) in commands.iter().zip(&native).enumerate() {
            assert_eq!(native_name(command), native.release);
            assert_eq!(fleet.master(index).ask("CONFIG RESETSTAT").text(), "OK");
        }
        let mut lease = redlock.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("free");
        drive(&mut redlock, "all five have it", |redlock| redlock.margin(&lease) == 2);
        redlock.extend(&mut lease, TTL).expect("held");
        redlock.release(lease).expect("confirmed");
        assert_eq!(redlock.drain(PATIENCE, HeldLocks::Leave), 0);
        for (index, Native { set_if_eq, release }) in native.into_iter().enumerate() {
            let stats = fleet.master(index).ask("INFO commandstats").text();
            let calls = |command: &str| {
                let line =
                    stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
                line.and_then(|line| line.split(',').next()?.parse::<u32>().ok()).unwrap_or(0)
            };
            let [sets, scripts, whole] = ["set", "evalsha", "eval"].map(calls);
            let releases = release.map_or(0, calls);
            let swaps = u32::from(set_if_eq);
            // A lock that was held for longer is released by script, which serves waiters.
            assert!(releases <= 1, "{stats}");
            assert_eq!([sets, releases + scripts, whole], [1 + swaps, 2 - swaps, 0], "{stats}");
            assert_eq!(fleet.master(index).key_count(), "0");
        }
    }
}

/// The waiter's place in the queues outlasts a native release; a release by script serves the waiter.
// I54
#[test]
fn a_waiter_follows_each_way_of_release() {
    let Some(valkey) = valkey_9() else { return };
    let mut fleet = Fleet::start_at(vec![valkey; 3]);
    let never = Duration::from_secs(600);
    let open = |urls: &[String]| {
        let builder = Client::builder().masters(urls).quarantine(Quarantine::Trust);
        let config = builder.answer_timeout(PATIENCE / 4).retry_delay(never..=never).build();
        Client::open(config.expect("valid settings")).expect("an event loop")
    };
    let (first, second) = (open(&fleet.urls()), open(&fleet.urls()));
    for hold in [Duration::ZERO, Duration::from_millis(20)] {
        let guard = first.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("free");
        let end = Instant::now() + hold;
        let waiting = second.clone();
        let waiter = thread::spawn(move || waiting.lock("a").ttl(TTL).wait(PATIENCE).acquire());
        eventually(PATIENCE, "it was held for as long", || Instant::now() >= end);
        guard.release().expect("confirmed");
        drop(waiter.join().expect("no panic").expect("it is served, or looks"));
    }
    assert_eq!([settle(&first, PATIENCE), settle(&second, PATIENCE)], [0, 0]);
    assert!(fleet.masters().all(|master| master.key_count() == "0"));
}

#[test]
fn mixed_fleets_give_no_lock_twice() {
    let Some(valkey) = valkey_9() else { return };
    let redis = Place::default();
    let mut fleet = Fleet::start_at(vec![valkey.clone(), valkey, redis.clone(), redis.clone(), redis]);
    let mut contest = Contest::start("two Valkey 9, three Redis", &fleet.urls(), &Rules::default());
    contest.progress("all is well", 20);
    fleet.master(0).stop();
    fleet.master(2).kill();
    contest.survives("one of each kind is away", 10);
    fleet.master(0).cont();
    fleet.master(2).restart();
    fleet.master(1).kill();
    contest.survives("the other Valkey is dead", 10);
    fleet.master(1).restart();
    contest.recovers("it came back");
    contest.finish(&mut fleet);
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

/// A server that refuses scripts, because their commands are renamed away.
fn without_scripts(mut place: Place) -> Place {
    for command in ["EVALSHA", "EVAL"] {
        place.words.extend(["--rename-command", command, ""].map(str::to_owned));
    }
    place
}

#[test]
fn lock_released_without_scripts_is_free_at_once() {
    let Some(valkey) = valkey_9() else { return };
    for is_right_missing in [false, true] {
        let place = if is_right_missing { valkey.clone() } else { without_scripts(valkey.clone()) };
        let mut fleet = Fleet::start_at(vec![place; 3]);
        let rule = "ACL SETUSER locker on >pw ~* &* +@all -evalsha -eval";
        fleet.masters().for_each(|master| assert_eq!(master.ask(rule).text(), "OK"));
        let login = |url: String| url.replace("redis://", "redis://locker:pw@");
        let urls: Vec<_> = fleet.urls().into_iter().map(login).collect();
        let mut redlock = open(settings(&urls));
        for _ in 0..3 {
            let lease = redlock.lock("a").ttl(TTL).acquire().expect("free");
            thread::sleep(Duration::from_millis(20));
            redlock.release(lease).expect("confirmed");
        }
        assert_eq!(redlock.drain(PATIENCE, HeldLocks::Leave), 0);
        assert!(fleet.masters().all(|master| master.key_count() == "0"));
    }
}

#[test]
fn masters_without_scripts_give_no_lock_twice() {
    let Some(valkey) = valkey_9() else { return };
    let mut fleet = Fleet::start_at(vec![without_scripts(valkey); 3]);
    let mut contest = Contest::start("three masters without scripts", &fleet.urls(), &Rules::default());
    contest.progress("all is well", 20);
    fleet.master(0).kill();
    contest.survives("one of them is dead", 10);
    fleet.master(0).restart();
    contest.recovers("it came back");
    contest.finish(&mut fleet);
}

/// The native commands of a server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Native {
    pub(crate) set_if_eq: bool,
    /// Name in `INFO commandstats`.
    pub(crate) release: Option<&'static str>,
}

impl Native {
    /// Asks the server for the commands, with a key that tests do not use.
    pub(crate) fn of(master: &mut Master) -> Self {
        Self {
            set_if_eq: master.ask("SET no-such-key x IFEQ x PX 1") == Raw::Null,
            release: [("delifeq", "DELIFEQ no-such-key x"), ("delex", "DELEX no-such-key IFEQ x")]
                .into_iter()
                .find_map(|(name, trial)| (master.ask(trial) == Raw::Integer(0)).then_some(name)),
        }
    }
}

/// Name in `INFO commandstats` of the native release command in a master's status.
fn native_name(command: &str) -> Option<&'static str> {
    match command {
        "DELIFEQ" => Some("delifeq"),
        "DELEX IFEQ" => Some("delex"),
        _ => None,
    }
}
