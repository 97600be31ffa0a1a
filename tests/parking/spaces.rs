//! The rules themselves: spaces without a violation, and waiters that can each be served.

use std::time::{Duration, Instant};

use crate::defect::Defect;
use crate::model::{Kind, Model, Order, Setting};
use crate::search::{Explored, Limit, search};
use crate::serving::{Served, serves_each};
use crate::state::Faults;

pub const NONE: Faults = Setting::PLAIN.faults;
pub const A_BREAK: Faults = Faults { breaks: 1, ..NONE };
pub const TWO_ROUNDS: Setting = Setting::PLAIN;
pub const ONE_ROUND: Setting = Setting { rounds: 1, ..Setting::PLAIN };
/// Rounds without end, for the question whether waiters are served.
const ENDLESS: Setting = Setting { rounds: 0, calm: true, order: Order::SameTickets, ..Setting::PLAIN };
/// Two masters are left, which order the waiters differently: votes split.
const SPLIT: Setting = Setting { is_one_dead: true, order: Order::OwnTickets, ..ENDLESS };

/// A test that takes longer has too large a space.
pub const LIMIT: Limit =
    Limit { states: if cfg!(debug_assertions) { 20_000 } else { 5_000_000 }, time: Duration::from_secs(600) };

pub const fn with(setting: Setting, faults: Faults) -> Setting {
    Setting { faults, ..setting }
}

/// Without optimisation a part of a space is enough.
pub fn assert_whole(explored: &Explored) {
    assert!(explored.is_whole || cfg!(debug_assertions), "{explored}");
}

/// Explores the whole space of a setting.
fn holds<const C: usize>(setting: Setting) {
    match search(&Model::<C>::new(setting, None), LIMIT) {
        Ok(explored) => {
            println!("{explored}");
            assert_whole(&explored);
        }
        Err(violation) => panic!("{violation}"),
    }
}

#[test]
fn two_rounds_of_two_clients() {
    holds::<2>(TWO_ROUNDS);
}

#[test]
fn first_attempts_by_set() {
    holds::<2>(Setting { sets: true, native: true, ..ONE_ROUND });
}

#[test]
fn three_clients_on_two_masters() {
    holds::<3>(Setting { is_one_dead: true, ..ONE_ROUND });
}

#[test]
fn a_client_that_polls() {
    holds::<2>(Setting { polls: true, ..TWO_ROUNDS });
}

#[test]
fn a_restart_without_data() {
    holds::<2>(with(ONE_ROUND, Faults { restarts: 1, ..NONE }));
}

#[test]
fn a_break() {
    holds::<2>(with(ONE_ROUND, A_BREAK));
}

#[test]
fn faults_of_one_client() {
    let faults = Faults { breaks: 1, restarts: 1, saves: 1, cancels: 1, ..NONE };
    holds::<1>(with(TWO_ROUNDS, faults));
}

#[test]
fn writes_that_fail() {
    holds::<2>(with(ONE_ROUND, Faults { full: 1, cancels: 1, ..NONE }));
}

#[test]
fn a_crash() {
    holds::<2>(with(ONE_ROUND, Faults { crashes: 1, ..NONE }));
}

#[test]
fn a_forced_deletion() {
    holds::<2>(with(ONE_ROUND, Faults { forces: 2, ..NONE }));
}

#[test]
fn stays_that_end() {
    holds::<2>(with(ONE_ROUND, Faults { stays: 1, cancels: 1, ..NONE }));
}

#[test]
fn rings_only() {
    holds::<2>(Setting { rings_only: true, ..ONE_ROUND });
}

/// Whether each waiter can be served by steps up to a kind.
fn serving<const C: usize>(setting: Setting, up_to: Kind, defect: Option<Defect>) -> Result<(), String> {
    let limit = Limit { states: LIMIT.states.max(150_000), ..LIMIT };
    match serves_each(&Model::<C>::new(setting, defect), limit, up_to) {
        Served::Each(explored) => {
            println!("{explored}");
            Ok(())
        }
        Served::Unknown(part) => {
            assert_whole(&part);
            Ok(())
        }
        Served::Stuck(stuck) => Err(format!("{stuck}")),
        Served::Violation(violation) => panic!("{violation}"),
    }
}

#[test]
fn split_votes_are_resolved_before_keys_expire() {
    let yields = Setting { yields: true, ..SPLIT };
    assert_eq!(serving::<2>(yields, Kind::Timer, None), Ok(()));
    let stuck = serving::<2>(SPLIT, Kind::Timer, None).expect_err("nobody lets others pass");
    println!("where nobody lets others pass: {stuck}");
}

#[test]
fn a_waiter_is_served_after_faults() {
    let faults = Faults { breaks: 1, restarts: 1, stays: 1, ..NONE };
    assert_eq!(serving::<1>(with(ENDLESS, faults), Kind::Clock, None), Ok(()));
}

#[test]
fn a_rung_waiter_is_served() {
    let rings = Setting { rings_only: true, ..ENDLESS };
    assert_eq!(serving::<1>(rings, Kind::Timer, None), Ok(()));
    let stuck = serving::<1>(rings, Kind::Clock, Some(Defect::OwnEntryRung)).expect_err("its own park rings");
    println!("{:?}: {stuck}", Defect::OwnEntryRung);
}

/// A step of one waiter may serve another one; both are served before keys expire.
fn two_waiters_are_served() {
    assert_eq!(serving::<2>(ENDLESS, Kind::Timer, None), Ok(()));
}

/// Spaces that take too long for each change.
const LARGE: &[(&str, Setting)] = &[
    ("one round, each answer under way", Setting { prompt: false, ..ONE_ROUND }),
    (
        "one round of two ticks, a restart",
        Setting { ttl: 2, ..with(ONE_ROUND, Faults { restarts: 1, ..NONE }) },
    ),
    ("one round, a snapshot", with(ONE_ROUND, Faults { restarts: 1, saves: 1, ..NONE })),
    ("two rounds, a cancel", with(TWO_ROUNDS, Faults { cancels: 1, ..NONE })),
    ("two rounds, first attempts by SET", Setting { sets: true, native: true, ..TWO_ROUNDS }),
    ("two locks of each client", Setting { locks: 2, ..ONE_ROUND }),
    ("two rounds of two ticks", Setting { ttl: 2, ..TWO_ROUNDS }),
    ("two rounds, two forced deletions", with(TWO_ROUNDS, Faults { forces: 2, ..NONE })),
    ("two rounds, a crash", with(TWO_ROUNDS, Faults { crashes: 1, ..NONE })),
    ("two rounds, an error, a cancel", with(TWO_ROUNDS, Faults { rejections: 1, cancels: 1, ..NONE })),
    ("two rounds that leave keys to others", Setting { yields: true, aside: true, ..TWO_ROUNDS }),
    ("one round, a break, a repair", with(ONE_ROUND, Faults { repairs: 1, ..A_BREAK })),
    ("one round, a break, a cancel", with(ONE_ROUND, Faults { cancels: 1, ..A_BREAK })),
    ("one round, a break, a restart", with(ONE_ROUND, Faults { restarts: 1, ..A_BREAK })),
    ("two rounds that only ring", Setting { rings_only: true, ..TWO_ROUNDS }),
    (
        "two rounds, a client that polls, a cancel",
        Setting { polls: true, ..with(TWO_ROUNDS, Faults { cancels: 1, ..NONE }) },
    ),
    ("one round, a client that polls, a break", Setting { polls: true, ..with(ONE_ROUND, A_BREAK) }),
    ("two rounds, a break", with(TWO_ROUNDS, A_BREAK)),
    ("two rounds, each answer under way", Setting { prompt: false, ..TWO_ROUNDS }),
];

/// Each of the two looks at the quarantine would do, so neither is found alone.
const ENOUGH: [Defect; 2] = [Defect::QuarantineWhenSent, Defect::QuarantineAtDecision];

/// `scripts/soak` sets the time; otherwise there is nothing to do. A space that takes longer than its share
/// is searched in part, and a line says so. `REDLATCH_PARKING_SPACE` chooses spaces by a part of their names.
#[test]
fn soak() {
    let Ok(seconds) = std::env::var("REDLATCH_PARKING_SECONDS") else { return };
    let seconds: u64 = seconds.parse().expect("REDLATCH_PARKING_SECONDS is a number");
    let end = Instant::now() + Duration::from_secs(seconds);
    two_waiters_are_served();
    let restart = Setting { ttl: 2, ..with(ONE_ROUND, Faults { restarts: 1, ..NONE }) };
    let enough = ENOUGH.map(|defect| ("one look at the quarantine", restart, Some(defect), 2));
    let three = [
        ("three clients on two masters, two rounds", Setting { is_one_dead: true, ..TWO_ROUNDS }, None, 3),
        ("three clients, one round", ONE_ROUND, None, 3),
    ];
    let large = LARGE.iter().map(|(name, setting)| (*name, *setting, None, 2));
    let wanted = std::env::var("REDLATCH_PARKING_SPACE").unwrap_or_default();
    let all = large.chain(enough).chain(three).filter(|(name, ..)| name.contains(&wanted));
    let all: Vec<_> = all.collect();
    for (place, (name, setting, defect, clients)) in all.iter().enumerate() {
        let left = end.saturating_duration_since(Instant::now());
        let time = left / u32::try_from(all.len() - place).expect("few settings");
        println!("== {name}, at most {} s", time.as_secs());
        let limit = Limit { states: 60_000_000, time };
        let found = match clients {
            3 => search(&Model::<3>::new(*setting, *defect), limit),
            _ => search(&Model::<2>::new(*setting, *defect), limit),
        };
        match found {
            Ok(explored) => println!("{explored}"),
            Err(violation) => panic!("{violation}"),
        }
    }
}
