//! Servers with native compare-and-delete: Valkey 9 alone, and beside Redis.
//!
//! `REDLATCH_VALKEY` names a Valkey server of version 9 or later; without one these tests are skipped, and
//! say so.

use std::thread;
use std::time::Duration;

use redlatch::internals::settle;
use redlatch::status::MasterState;
use redlatch::{Client, HeldLocks, Quarantine};

use crate::contest::{Contest, Rules};
use crate::fleet::{Fleet, Master, Place, Raw, command, eventually};
use crate::lock_tests::{PATIENCE, TTL, drive, open, settings};

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
            native[..valkey_count].iter().all(|native| native.set_if_eq && native.del_if_eq),
            "{native:?}"
        );
        for (index, (command, native)) in commands.iter().zip(&native).enumerate() {
            assert_eq!(*command, if native.del_if_eq { "DELIFEQ" } else { "EVALSHA" });
            assert_eq!(fleet.master(index).ask("CONFIG RESETSTAT").text(), "OK");
        }
        let mut lease = redlock.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("free");
        drive(&mut redlock, "all five have it", |redlock| redlock.margin(&lease) == 2);
        redlock.extend(&mut lease, TTL).expect("held");
        redlock.release(lease).expect("confirmed");
        assert_eq!(redlock.drain(PATIENCE, HeldLocks::Leave), 0);
        for (index, Native { set_if_eq, del_if_eq }) in native.into_iter().enumerate() {
            let stats = fleet.master(index).ask("INFO commandstats").text();
            let calls = |command: &str| {
                let line =
                    stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
                line.and_then(|line| line.split(',').next()?.parse::<u32>().ok()).unwrap_or(0)
            };
            let seen = ["set", "delifeq", "evalsha", "eval"].map(calls);
            let [swaps, releases] = [set_if_eq, del_if_eq].map(u32::from);
            assert_eq!(seen, [1 + swaps, releases, 2 - swaps - releases, 0], "{stats}");
            assert_eq!(fleet.master(index).ask("DBSIZE").text(), "0");
        }
    }
}

/// A waiter does not try again by itself for ten minutes: it is notified, by a message behind the native
/// release of one who met nobody, and by the script of one who did.
#[test]
fn a_native_release_notifies_other_clients() {
    let Some(valkey) = valkey_9() else { return };
    let mut fleet = Fleet::start_at(vec![valkey; 3]);
    let never = Duration::from_secs(600);
    let open = |urls: &[String]| {
        let builder = Client::builder().masters(urls).quarantine(Quarantine::Trust);
        let config =
            builder.answer_timeout(PATIENCE / 4).ask_holder(false).retry_delay(never..=never).build();
        Client::open(config.expect("valid settings")).expect("an event loop")
    };
    let (first, second) = (open(&fleet.urls()), open(&fleet.urls()));
    for client in [&first, &second] {
        eventually(PATIENCE, "all handshakes are over", || {
            client.masters().iter().all(|master| master.state == MasterState::Ready)
        });
    }
    fleet.masters().for_each(|master| assert_eq!(master.ask("CONFIG RESETSTAT").text(), "OK"));
    let guard = first.lock("a").ttl(TTL).try_acquire().expect("free");
    let waiter = thread::spawn(move || second.lock("a").ttl(TTL).wait(PATIENCE).acquire());
    for index in 0..3 {
        eventually(PATIENCE, "it subscribes", || {
            fleet.master(index).ask("PUBSUB NUMSUB a").text().contains(" 1]")
        });
    }
    guard.release().expect("confirmed");
    let guard = waiter.join().expect("no panic").expect("it is told");
    assert_eq!(settle(&first, PATIENCE), 0);
    // An attempt that came between two masters' releases is taken back natively, and reported to nobody.
    assert_eq!(calls_of(&mut fleet, ["publish", "evalsha"]), [[1, 0]; 3]);
    assert!(calls_of(&mut fleet, ["delifeq"]).iter().all(|[count]| *count >= 1));
    let second = guard.client().clone();
    guard.release().expect("confirmed");
    assert_eq!(settle(&second, PATIENCE), 0);
    // One master notifies, and looks through all groups: nobody waits. Others release natively.
    let mut counts = calls_of(&mut fleet, ["publish", "evalsha"]);
    counts.sort_unstable();
    assert_eq!(counts, [[1, 0], [1, 0], [2 + redlatch::limits::WAKE_GROUP_COUNT, 1]]);
}

/// How often each master carried these commands out.
fn calls_of<const N: usize>(fleet: &mut Fleet, commands: [&str; N]) -> Vec<[u32; N]> {
    let calls = |stats: &str, command: &str| {
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
        line.and_then(|line| line.split(',').next()?.parse::<u32>().ok()).unwrap_or(0)
    };
    fleet
        .masters()
        .map(|master| {
            let stats = master.ask("INFO commandstats").text();
            commands.map(|command| calls(&stats, command))
        })
        .collect()
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

/// Which native commands a server has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Native {
    pub(crate) set_if_eq: bool,
    pub(crate) del_if_eq: bool,
}

impl Native {
    /// By asking it for them; a key of this name is none of the tests'.
    pub(crate) fn of(master: &mut Master) -> Self {
        Self {
            set_if_eq: master.ask("SET no-such-key x IFEQ x PX 1") == Raw::Null,
            del_if_eq: master.ask("DELIFEQ no-such-key x") == Raw::Integer(0),
        }
    }
}

pub(crate) fn valkey_9() -> Option<Place> {
    let found = std::env::var("REDLATCH_VALKEY").ok().filter(|program| {
        let output = command(program).arg("--version").output();
        let version =
            output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        let major = version.split("v=").nth(1).and_then(|rest| rest.split('.').next()?.parse::<u32>().ok());
        version.starts_with("Valkey") && major.is_some_and(|major| major >= 9)
    });
    if found.is_none() {
        println!("skipped: REDLATCH_VALKEY names no Valkey 9 server");
    }
    found.map(|program| Place { words: vec![program], ..Place::default() })
}
