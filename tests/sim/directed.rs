//! Schedules that random histories rarely meet, one for each rule. Each is green, and red with the defect that
//! `mutants.rs` names for it.
//!
//! Latency is nothing unless a schedule says otherwise, so that a deadline can be met to the nanosecond.

use std::time::Duration;

use redlatch::engine::{MasterState, OpId, Outcome};
use redlatch::resp::{self, ProtocolError};
use redlatch::{AcquireError, Config, ConfigBuilder, ExtendError, Quarantine};

use crate::checker::id;
use crate::clock::{Clock, MS, SECOND, Time};
use crate::faults::Data;
use crate::network::Weather;
use crate::world::World;

/// What is wrong, if anything.
pub type Verdict = Result<(), String>;

const KEY: &[u8] = b"a";
const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Masters that have run for long, and clients without an application of their own, all connected.
fn world(masters: usize, clients: usize, settings: impl FnOnce(ConfigBuilder) -> ConfigBuilder) -> World {
    let mut world = unconnected(masters, settings);
    for _ in 0..clients {
        world.add_client(Clock::new(0, 0), 0);
    }
    world.run_for(10 * MS);
    world
}

fn unconnected(masters: usize, settings: impl FnOnce(ConfigBuilder) -> ConfigBuilder) -> World {
    let urls = (0..masters).map(|index| format!("redis://m{index}"));
    let builder = Config::builder().masters(urls).max_ttl(ms(10_000)).max_hold(ms(3_600_000));
    let config = settings(builder).build().expect("valid settings");
    let mut world = World::new(1, config);
    world.weather = Weather { delay_min: 0, delay_max: 0, cut_ppm: 0, slow_ppm: 0 };
    world.habits.ttls = vec![ms(10_000)];
    world.is_checked_always = true;
    world
}

fn trust(builder: ConfigBuilder) -> ConfigBuilder {
    builder.quarantine(Quarantine::Trust)
}

fn defaults(builder: ConfigBuilder) -> ConfigBuilder {
    builder
}

/// Asks for a lock and waits for the answer.
fn acquire(
    world: &mut World,
    client: usize,
    key: &[u8],
    ttl: Duration,
    wait: Duration,
) -> Result<Outcome, String> {
    world.submit_acquire(client, key, ttl, wait).expect("room");
    outcome(world, client)
}

fn hold(world: &mut World, client: usize, key: &[u8], ttl: Duration) -> Result<OpId, String> {
    let lock = world.submit_acquire(client, key, ttl, Duration::ZERO).expect("room");
    match outcome(world, client)? {
        Outcome::Acquire(Ok(_)) => Ok(lock),
        other => Err(format!("c{client} should hold it, but {other:?}")),
    }
}

fn extend(world: &mut World, client: usize, lock: OpId, ttl: Duration) -> Result<Outcome, String> {
    world.submit_extend(client, lock, ttl);
    outcome(world, client)
}

/// The next answer; what the checker found if it found something first.
fn outcome(world: &mut World, client: usize) -> Result<Outcome, String> {
    world.run_until(60 * SECOND, |world| !world.clients[client].outcomes.is_empty());
    let found = world.clients[client].outcomes.pop_front().map(|(_, outcome)| outcome);
    verdict(world)?;
    found.ok_or_else(|| "a request is never answered".to_owned())
}

fn is_held(world: &World, master: usize, key: &[u8]) -> bool {
    let it = &world.masters[master];
    it.model.value(it.clock.at(world.now), key).is_some()
}

fn demand(is_true: bool, what: &str) -> Verdict {
    if is_true { Ok(()) } else { Err(what.to_owned()) }
}

/// Whatever the checker found on the way.
fn verdict(world: &mut World) -> Verdict {
    world.checker.violation.take().map_or(Ok(()), Err)
}

/// A key of somebody else's is in the way on these masters.
fn occupy(world: &mut World, masters: std::ops::Range<usize>, key: &[u8]) {
    masters.for_each(|master| world.masters[master].model.put(key, b"other", None));
}

/// Masters refuse commands with this first word until further notice.
fn refuse(world: &mut World, masters: std::ops::Range<usize>, command: &str) {
    for master in masters {
        world.masters[master].model.errors.insert(command.to_owned(), "OOM no".to_owned());
    }
}

pub fn answers_that_take_long_do_not_move_the_deadline() -> Verdict {
    let mut world = world(3, 1, |b| b.answer_timeout(ms(500)));
    (0..3).for_each(|master| world.stall(0, master, false, true, 400 * MS));
    hold(&mut world, 0, KEY, ms(1000))?;
    verdict(&mut world)
}

pub fn a_quorum_heard_after_the_deadline_is_not_handed_out() -> Verdict {
    let mut world = world(3, 1, |b| b.answer_timeout(ms(5000)));
    let stall = |world: &mut World, time| (0..3).for_each(|m| world.stall(0, m, false, true, time));
    stall(&mut world, 100 * MS);
    world.submit_acquire(0, KEY, ms(1000), Duration::ZERO).expect("room");
    world.run_for(MS);
    // The answers arrive while the process is stopped, and are read when the lock is over.
    world.pause(0, 2 * SECOND);
    let outcome = outcome(&mut world, 0)?;
    verdict(&mut world)?;
    demand(matches!(outcome, Outcome::Acquire(Err(_))), "a lock that is over was handed out")
}

pub fn a_masters_clock_may_be_nearly_a_hundredth_faster() -> Verdict {
    let mut world = unconnected(1, defaults);
    world.masters[0].clock = Clock::new(0, 9_900);
    world.masters[0].model.started = world.masters[0].clock.at(0) - Duration::from_secs(3600);
    world.add_client(Clock::new(0, 0), 0);
    world.run_for(10 * MS);
    hold(&mut world, 0, KEY, ms(10_000))?;
    verdict(&mut world)
}

pub fn two_of_five_are_no_quorum_whoever_is_reachable() -> Verdict {
    let mut world = world(5, 1, defaults);
    (2..5).for_each(|master| world.kill_master(master, true));
    world.run_for(MS);
    let outcome = acquire(&mut world, 0, KEY, ms(1000), Duration::ZERO)?;
    verdict(&mut world)?;
    demand(matches!(outcome, Outcome::Acquire(Err(AcquireError::NoQuorum(_)))), "two of five granted a lock")
}

pub fn a_master_that_grants_twice_is_one_in_the_margin() -> Verdict {
    let mut world = world(3, 1, defaults);
    world.stop_master(2, 100 * MS);
    hold(&mut world, 0, KEY, ms(10_000))?;
    // It carries out the SET when it goes on, loses the key, and is asked again, as it was silent.
    world.run_for(99 * MS);
    world.weather.delay_min = MS;
    world.weather.delay_max = MS;
    world.run_for(2 * MS);
    world.flush_all(2);
    world.run_for(10 * MS);
    verdict(&mut world)
}

pub fn every_attempt_has_a_value_of_its_own() -> Verdict {
    let mut world = world(3, 2, defaults);
    hold(&mut world, 0, b"a", ms(1000))?;
    hold(&mut world, 1, b"b", ms(1000))?;
    verdict(&mut world)
}

pub fn a_late_answer_does_not_count_for_the_next_lock() -> Verdict {
    let mut world = world(3, 1, defaults);
    world.stall(0, 2, false, true, 3 * SECOND);
    let lock = hold(&mut world, 0, b"a", ms(300))?;
    world.submit_release(0, lock, false);
    // Nothing of it can be left, though master 2 owes the answers still.
    world.run_for(2 * SECOND);
    hold(&mut world, 0, b"b", ms(5000))?;
    world.run_for(2 * SECOND);
    verdict(&mut world)
}

pub fn a_grant_does_not_outlive_its_connection() -> Verdict {
    let mut world = world(3, 1, defaults);
    world.stall(0, 1, false, true, 10 * MS);
    world.stall(0, 2, true, true, SECOND);
    let lock = world.submit_acquire(0, KEY, ms(1000), Duration::ZERO).expect("room");
    world.run_for(MS);
    world.kill_master(0, true);
    let outcome = outcome(&mut world, 0)?;
    verdict(&mut world)?;
    demand(
        matches!(outcome, Outcome::Acquire(Err(_))),
        &format!("{lock:?} counts a vote of a lost connection"),
    )
}

pub fn late_grants_add_to_the_margin() -> Verdict {
    let mut world = world(3, 1, defaults);
    world.stall(0, 2, false, true, 5 * MS);
    let lock = hold(&mut world, 0, KEY, ms(1000))?;
    world.run_for(10 * MS);
    demand(world.clients[0].engine.margin(lock) == 1, "a late grant is not in the margin")
}

pub fn an_error_is_not_a_no() -> Verdict {
    let mut world = world(3, 1, defaults);
    refuse(&mut world, 0..2, "SET");
    let outcome = acquire(&mut world, 0, KEY, ms(1000), Duration::ZERO)?;
    verdict(&mut world)?;
    demand(
        matches!(outcome, Outcome::Acquire(Err(AcquireError::NoQuorum(_)))),
        "errors were called contention",
    )
}

pub fn a_script_that_was_flushed_between_load_and_call_is_sent_again() -> Verdict {
    let mut world = world(3, 1, defaults);
    let lock = hold(&mut world, 0, KEY, ms(1000))?;
    (0..3).for_each(|master| world.masters[master].model.flush_scripts());
    let extended = extend(&mut world, 0, lock, ms(1000))?;
    verdict(&mut world)?;
    demand(matches!(extended, Outcome::Extend(Ok(_))), "a script that is not there was taken for a no")
}

pub fn retries_come_at_random_times() -> Verdict {
    let mut world = world(1, 1, |b| b.ask_holder(false));
    occupy(&mut world, 0..1, KEY);
    (world.weather.delay_min, world.weather.delay_max) = (MS, MS);
    world.trace = Some(Vec::new());
    acquire(&mut world, 0, KEY, ms(1000), ms(300))?;
    let trace = world.trace.take().unwrap_or_default();
    let attempts = trace.iter().filter(|line| line.contains("m0 for c0: SET"));
    let times: Vec<f64> = attempts.filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect();
    let pauses: Vec<i64> = times.windows(2).map(|pair| ((pair[1] - pair[0]) * 1e4).round() as i64).collect();
    let mut different = pauses.clone();
    different.sort_unstable();
    different.dedup();
    demand(different.len() > 3, &format!("retries come regularly: {pauses:?}"))
}

pub fn a_time_out_leaves_the_order_of_replies_alone() -> Verdict {
    let mut world = world(3, 1, defaults);
    world.stall(0, 2, false, true, 200 * MS);
    world.stall(0, 1, false, true, 200 * MS);
    acquire(&mut world, 0, KEY, ms(1000), Duration::ZERO)?;
    world.run_for(SECOND);
    verdict(&mut world)?;
    hold(&mut world, 0, KEY, ms(1000))?;
    verdict(&mut world)
}

pub fn a_release_leaves_somebody_elses_key_alone() -> Verdict {
    let mut world = world(3, 2, defaults);
    let lock = hold(&mut world, 0, KEY, ms(300))?;
    world.run_for(400 * MS);
    hold(&mut world, 1, KEY, ms(5000))?;
    world.submit_release(0, lock, true);
    world.run_for(10 * MS);
    verdict(&mut world)?;
    demand(
        (0..3).all(|master| is_held(&world, master, KEY)),
        "an expired lock's release took the next one's key",
    )
}

pub fn a_master_that_has_not_answered_is_released_too() -> Verdict {
    let mut world = world(3, 1, defaults);
    occupy(&mut world, 1..3, KEY);
    world.stall(0, 0, false, true, 100 * MS);
    acquire(&mut world, 0, KEY, ms(10_000), Duration::ZERO)?;
    world.run_for(SECOND);
    verdict(&mut world)?;
    demand(!is_held(&world, 0, KEY), "a key is left where the answer was not waited for")
}

pub fn a_release_waits_behind_its_set_on_the_same_connection() -> Verdict {
    let mut world = world(1, 1, defaults);
    // The SET is under way for half a second, longer than anybody waits for it.
    world.stall(0, 0, true, false, 500 * MS);
    acquire(&mut world, 0, KEY, ms(10_000), Duration::ZERO)?;
    world.run_for(400 * MS);
    world.run_for(SECOND);
    verdict(&mut world)?;
    demand(!is_held(&world, 0, KEY), "the release overtook its SET, and the key stays")
}

pub fn what_a_broken_connection_left_is_released_over_the_next() -> Verdict {
    let mut world = world(1, 1, defaults);
    world.stall(0, 0, false, true, 10 * SECOND);
    // The release behind it does not work.
    refuse(&mut world, 0..1, "EVALSHA");
    acquire(&mut world, 0, KEY, ms(10_000), Duration::ZERO)?;
    world.break_conn(0, 0);
    world.masters[0].model.errors.clear();
    world.run_for(3 * SECOND);
    verdict(&mut world)?;
    demand(!is_held(&world, 0, KEY), "an orphan is left to its TTL")
}

pub fn a_set_that_is_carried_out_after_its_release_is_released_again() -> Verdict {
    let mut world = world(1, 1, defaults);
    // The connection ends for the client, and the SET that it sent arrives a second later.
    world.stall(0, 0, true, false, SECOND);
    world.submit_acquire(0, KEY, ms(10_000), Duration::ZERO).expect("room");
    world.run_for(MS);
    world.break_conn(0, 0);
    outcome(&mut world, 0)?;
    world.run_for(SECOND - 100 * MS);
    demand(!is_held(&world, 0, KEY), "the SET is still under way")?;
    world.run_for(4 * SECOND);
    verdict(&mut world)?;
    demand(!is_held(&world, 0, KEY), "the SET came after the release, and the key stays")
}

pub fn a_release_that_was_refused_is_sent_again() -> Verdict {
    let mut world = world(3, 1, defaults);
    let lock = hold(&mut world, 0, KEY, ms(10_000))?;
    refuse(&mut world, 0..1, "EVALSHA");
    world.submit_release(0, lock, false);
    world.run_for(10 * MS);
    world.masters[0].model.errors.clear();
    world.run_for(SECOND);
    demand(!is_held(&world, 0, KEY), "a refused release was taken for done")
}

pub fn an_extension_counts_from_its_sending() -> Verdict {
    let mut world = world(3, 1, |b| b.answer_timeout(ms(500)));
    let lock = hold(&mut world, 0, KEY, ms(2000))?;
    (0..3).for_each(|master| world.stall(0, master, false, true, 400 * MS));
    extend(&mut world, 0, lock, ms(2000))?;
    verdict(&mut world)
}

pub fn one_master_of_three_cannot_extend() -> Verdict {
    let mut world = world(3, 1, defaults);
    let lock = hold(&mut world, 0, KEY, ms(1000))?;
    (1..3).for_each(|master| world.flush_all(master));
    let extended = extend(&mut world, 0, lock, ms(5000))?;
    verdict(&mut world)?;
    demand(matches!(extended, Outcome::Extend(Err(ExtendError::Lost(_)))), "one of three extended a lock")
}

pub fn silence_does_not_extend() -> Verdict {
    let mut world = world(3, 1, defaults);
    let lock = hold(&mut world, 0, KEY, ms(1000))?;
    (1..3).for_each(|master| world.stall(0, master, true, true, 3 * SECOND));
    let before = world.clients[0].engine.valid_until(lock);
    let extended = extend(&mut world, 0, lock, ms(5000))?;
    verdict(&mut world)?;
    demand(matches!(extended, Outcome::Extend(Err(ExtendError::NoQuorum(_)))), "silence extended a lock")?;
    demand(world.clients[0].engine.valid_until(lock) == before, "a failed extension moved the deadline")
}

pub fn a_lock_that_is_over_is_not_extended() -> Verdict {
    let mut world = world(3, 2, defaults);
    let lock = hold(&mut world, 0, KEY, ms(1000))?;
    world.run_for(995 * MS);
    let extended = extend(&mut world, 0, lock, ms(5000))?;
    verdict(&mut world)?;
    demand(
        matches!(extended, Outcome::Extend(Err(ExtendError::Expired))),
        "a lock was extended after its deadline",
    )
}

pub fn a_shorter_ttl_counts_though_its_round_fails() -> Verdict {
    let mut world = world(3, 2, defaults);
    let lock = hold(&mut world, 0, KEY, ms(10_000))?;
    // Two masters carry it out; their answers come too late.
    (0..2).for_each(|master| world.stall(0, master, false, true, SECOND));
    extend(&mut world, 0, lock, ms(300))?;
    world.run_for(400 * MS);
    hold(&mut world, 1, KEY, ms(1000))?;
    verdict(&mut world)
}

pub fn a_master_that_came_back_empty_does_not_vote_against_a_lock_it_forgot() -> Verdict {
    let mut world = world(3, 2, defaults);
    world.kill_master(2, true);
    world.run_for(MS);
    hold(&mut world, 0, KEY, ms(10_000))?;
    world.kill_master(1, true);
    // Master 2 is in the same state by now as master 1: it never had the lock.
    refuse(&mut world, 1..3, "EVALSHA");
    world.start_master(1, Data::Empty);
    world.start_master(2, Data::All);
    world.crash_client(0);
    let guard_ends = world.now + 9 * SECOND;
    while world.now < guard_ends {
        let outcome = acquire(&mut world, 1, KEY, ms(300), Duration::ZERO)?;
        demand(
            matches!(outcome, Outcome::Acquire(Err(_))),
            "two masters that forgot a lock granted it again",
        )?;
        world.run_for(500 * MS);
    }
    verdict(&mut world)
}

pub fn the_quarantine_lasts_to_its_last_nanosecond() -> Verdict {
    let mut world = world(1, 1, defaults);
    world.kill_master(0, true);
    world.run_for(MS);
    world.start_master(0, Data::Empty);
    let is_back = |world: &mut World| quarantine_left(world).is_some();
    world.run_until(5 * SECOND, is_back);
    let left = quarantine_left(&world).ok_or("it is not in quarantine")?;
    world.run_for(left - 1);
    let outcome = acquire(&mut world, 0, KEY, ms(1000), Duration::ZERO)?;
    demand(matches!(outcome, Outcome::Acquire(Err(_))), "it voted one nanosecond early")?;
    world.run_for(1);
    hold(&mut world, 0, KEY, ms(1000)).map(drop)
}

fn quarantine_left(world: &World) -> Option<Time> {
    match world.clients[0].engine.master_status(world.local(0), id(0)).state {
        MasterState::Quarantined(left) => Time::try_from(left.as_nanos()).ok(),
        _ => None,
    }
}

pub fn the_last_second_of_an_uptime_may_not_have_passed() -> Verdict {
    let mut world = unconnected(1, |b| b.max_ttl(ms(1500)));
    // Started 999 ms into a second: two seconds later by the whole seconds is one second and a millisecond.
    world.kill_master(0, false);
    world.run_for(999 * MS);
    world.start_master(0, Data::Empty);
    world.run_for(1001 * MS);
    world.add_client(Clock::new(0, 0), 0);
    world.run_for(MS);
    let outcome = acquire(&mut world, 0, KEY, ms(1000), Duration::ZERO)?;
    verdict(&mut world)?;
    demand(matches!(outcome, Outcome::Acquire(Err(_))), "an uptime was taken for longer than it is")
}

pub fn a_master_that_restarted_is_not_in_the_margin() -> Verdict {
    let mut world = world(3, 1, trust);
    let lock = hold(&mut world, 0, KEY, ms(10_000))?;
    refuse(&mut world, 2..3, "SET");
    world.kill_master(2, true);
    world.start_master(2, Data::Empty);
    world.run_for(SECOND);
    verdict(&mut world)?;
    demand(world.clients[0].engine.margin(lock) == 0, "a master that forgot the lock is in its margin")
}

pub fn one_server_behind_two_addresses_votes_once() -> Verdict {
    let mut world = unconnected(3, defaults);
    world.masters[1].model.run_id = world.masters[0].model.run_id.clone();
    world.kill_master(2, true);
    world.add_client(Clock::new(0, 0), 0);
    world.run_for(10 * MS);
    let outcome = acquire(&mut world, 0, KEY, ms(1000), Duration::ZERO)?;
    demand(matches!(outcome, Outcome::Acquire(Err(AcquireError::NoQuorum(_)))), "one server voted twice")
}

pub fn a_connection_votes_only_after_its_own_echo() -> Verdict {
    let mut world = unconnected(1, defaults);
    world.masters[0].model.has_wrong_echo = true;
    world.add_client(Clock::new(0, 0), 0);
    world.run_for(10 * MS);
    let state = world.clients[0].engine.master_status(world.local(0), id(0)).state;
    demand(matches!(state, MasterState::Down(_)), "it is ready though its echo was another's")
}

pub fn the_own_key_met_again_is_not_somebody_elses() -> Verdict {
    let mut world = world(3, 1, defaults);
    world.stall(0, 2, false, true, 10 * SECOND);
    let lock = hold(&mut world, 0, KEY, ms(10_000))?;
    // Carried out, and nobody knows; over the next connection the key is found.
    world.break_conn(0, 2);
    world.run_for(SECOND);
    world.submit_release(0, lock, false);
    world.run_for(MS);
    demand(!is_held(&world, 2, KEY), "the key stays where it was met again")
}

pub fn a_client_that_dies_between_quorum_and_return_leaves_nothing_beyond_its_ttl() -> Verdict {
    let mut world = world(3, 2, defaults);
    world.submit_acquire(0, KEY, ms(1000), Duration::ZERO).expect("room");
    let is_granted = |world: &mut World| (0..3).all(|master| is_held(world, master, KEY));
    world.run_until(SECOND, is_granted);
    world.crash_client(0);
    let outcome = acquire(&mut world, 1, KEY, ms(1000), Duration::ZERO)?;
    demand(matches!(outcome, Outcome::Acquire(Err(AcquireError::Contended(_)))), "its keys should stand")?;
    let outcome = acquire(&mut world, 1, KEY, ms(1000), ms(2000))?;
    verdict(&mut world)?;
    demand(matches!(outcome, Outcome::Acquire(Ok(_))), "the lock of a dead client never ends")
}

pub fn a_master_that_restarts_twice_within_a_ttl_is_counted_from_the_second() -> Verdict {
    let mut world = world(1, 2, |b| b.max_ttl(ms(2000)));
    hold(&mut world, 0, KEY, ms(2000))?;
    world.kill_master(0, true);
    world.start_master(0, Data::All);
    world.run_for(1500 * MS);
    world.kill_master(0, true);
    let second = world.now;
    world.start_master(0, Data::Empty);
    while world.now < second + 2 * SECOND {
        let outcome = acquire(&mut world, 1, KEY, ms(300), Duration::ZERO)?;
        demand(matches!(outcome, Outcome::Acquire(Err(_))), "the first restart's quarantine was enough")?;
        world.run_for(100 * MS);
    }
    verdict(&mut world)
}

pub fn clocks_that_jump_on_a_majority_less_one_free_no_lock() -> Verdict {
    let mut world = world(5, 2, defaults);
    hold(&mut world, 0, KEY, ms(10_000))?;
    world.run_for(MS);
    (0..2).for_each(|master| world.step_clock(master, 3600 * SECOND as i64));
    let outcome = acquire(&mut world, 1, KEY, ms(1000), ms(500))?;
    verdict(&mut world)?;
    demand(world.checker.void_count == 0, "two of five are within the margin")?;
    demand(matches!(outcome, Outcome::Acquire(Err(_))), "two clocks freed a lock of five")
}

pub fn one_stopped_master_delays_nobody() -> Verdict {
    let mut world = world(5, 1, defaults);
    (world.weather.delay_min, world.weather.delay_max) = (MS, MS);
    world.stop_master(3, 2 * SECOND);
    let start = world.now;
    hold(&mut world, 0, KEY, ms(1000))?;
    demand(world.now - start <= 3 * MS, "a lock took more than a round trip and a turn")
}

pub fn with_no_master_up_every_call_ends_by_its_deadline() -> Verdict {
    let mut world = world(3, 1, defaults);
    let lock = hold(&mut world, 0, b"b", ms(1000))?;
    (0..3).for_each(|master| world.kill_master(master, false));
    let acquired = acquire(&mut world, 0, KEY, ms(1000), ms(300))?;
    demand(matches!(acquired, Outcome::Acquire(Err(AcquireError::NoQuorum(_)))), "acquired from nobody")?;
    let extended = extend(&mut world, 0, lock, ms(1000))?;
    demand(matches!(extended, Outcome::Extend(Err(ExtendError::NoQuorum(_)))), "extended by nobody")?;
    world.submit_release(0, lock, true);
    demand(matches!(outcome(&mut world, 0)?, Outcome::Release(Err(_))), "released by nobody")?;
    verdict(&mut world)
}

pub fn the_margin_after_an_extension_is_of_masters_that_were_extended() -> Verdict {
    let mut world = world(3, 1, defaults);
    let lock = hold(&mut world, 0, KEY, ms(1000))?;
    world.stop_master(0, 5 * SECOND);
    extend(&mut world, 0, lock, ms(5000))?;
    demand(world.clients[0].engine.margin(lock) == 0, "a master that was not extended is in the margin")
}

pub fn a_late_answer_to_the_set_says_nothing_once_the_lock_is_extended() -> Verdict {
    let mut world = world(3, 1, defaults);
    world.stop_master(0, SECOND);
    let lock = hold(&mut world, 0, KEY, ms(2000))?;
    // Skipped by the extension, as it owes an answer.
    world.run_for(500 * MS);
    extend(&mut world, 0, lock, ms(5000))?;
    world.run_for(SECOND);
    demand(world.clients[0].engine.margin(lock) == 0, "a key that ends too early is in the margin")
}

pub fn another_server_in_a_masters_place_is_not_taken_for_a_restart() -> Verdict {
    let mut world = world(1, 1, defaults);
    world.promote_stale_replica(0);
    world.run_for(SECOND);
    let outcome = acquire(&mut world, 0, KEY, ms(1000), Duration::ZERO)?;
    demand(
        matches!(outcome, Outcome::Acquire(Err(_))),
        "a replica without the locks voted for its hour of uptime",
    )
}

fn strict(builder: ConfigBuilder) -> ConfigBuilder {
    builder.quarantine(Quarantine::Strict)
}

pub fn strict_mode_believes_no_uptime() -> Verdict {
    let mut world = world(1, 1, strict);
    let outcome = acquire(&mut world, 0, KEY, ms(1000), Duration::ZERO)?;
    demand(matches!(outcome, Outcome::Acquire(Err(_))), "it voted for its uptime")
}

pub fn a_mark_speaks_for_the_process_that_it_names() -> Verdict {
    let mut world = unconnected(1, strict);
    world.masters[0].model.put(b"redlatch:mark", b"other 1000000", None);
    world.add_client(Clock::new(0, 0), 0);
    world.run_for(10 * MS);
    let outcome = acquire(&mut world, 0, KEY, ms(1000), Duration::ZERO)?;
    demand(matches!(outcome, Outcome::Acquire(Err(_))), "it voted for another's mark")
}

pub fn a_mark_is_written_at_the_end_of_the_watch() -> Verdict {
    let mut world = world(1, 1, strict);
    world.run_for(10 * SECOND);
    demand(!is_held(&world, 0, b"redlatch:mark"), "the mark is there before the watch is over")?;
    world.run_for(SECOND);
    demand(is_held(&world, 0, b"redlatch:mark"), "there is no mark after the watch")?;
    // Whoever comes now need not watch.
    world.add_client(Clock::new(0, 0), 0);
    world.run_for(10 * MS);
    hold(&mut world, 1, KEY, ms(1000)).map(drop)
}

pub fn strict_mode_takes_no_replica() -> Verdict {
    let mut world = unconnected(1, strict);
    world.masters[0].model.role = "slave".to_owned();
    world.add_client(Clock::new(0, 0), 0);
    world.run_for(10 * MS);
    let state = world.clients[0].engine.master_status(world.local(0), id(0)).state;
    demand(matches!(state, MasterState::Down(_)), "a replica is taken for a master")
}

pub fn a_header_reserves_no_memory() -> Verdict {
    let mut world = world(1, 1, defaults);
    let now = world.local(0);
    let engine = &mut world.clients[0].engine;
    let text = b"$1000000\r\nabc";
    engine.recv_space(id(0))[..text.len()].copy_from_slice(text);
    engine.recv_done(now, id(0), text.len());
    let size = engine.recv_space(id(0)).len();
    demand(size <= 2 * redlatch::limits::READ_SIZE, &format!("{size} bytes were reserved for a promise"))
}

pub fn arrays_are_nested_to_the_limit_only() -> Verdict {
    let input = [&b"*1\r\n".repeat(redlatch::limits::REPLY_DEPTH_MAX + 1)[..], b":1\r\n"].concat();
    let is_refused = matches!(resp::decode(&input), Err(ProtocolError::NestingTooDeep));
    demand(is_refused, "a deeper nesting was taken")
}

/// Each as a test of its own.
macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        mod tests {
            $(#[test] fn $name() { assert_eq!(super::$name(), Ok(())); })*
        }
    };
}

tests!(
    answers_that_take_long_do_not_move_the_deadline,
    a_quorum_heard_after_the_deadline_is_not_handed_out,
    a_masters_clock_may_be_nearly_a_hundredth_faster,
    two_of_five_are_no_quorum_whoever_is_reachable,
    a_master_that_grants_twice_is_one_in_the_margin,
    every_attempt_has_a_value_of_its_own,
    a_late_answer_does_not_count_for_the_next_lock,
    a_grant_does_not_outlive_its_connection,
    late_grants_add_to_the_margin,
    an_error_is_not_a_no,
    a_script_that_was_flushed_between_load_and_call_is_sent_again,
    retries_come_at_random_times,
    a_time_out_leaves_the_order_of_replies_alone,
    a_release_leaves_somebody_elses_key_alone,
    a_master_that_has_not_answered_is_released_too,
    a_release_waits_behind_its_set_on_the_same_connection,
    what_a_broken_connection_left_is_released_over_the_next,
    a_set_that_is_carried_out_after_its_release_is_released_again,
    a_release_that_was_refused_is_sent_again,
    an_extension_counts_from_its_sending,
    one_master_of_three_cannot_extend,
    silence_does_not_extend,
    a_lock_that_is_over_is_not_extended,
    a_shorter_ttl_counts_though_its_round_fails,
    a_master_that_came_back_empty_does_not_vote_against_a_lock_it_forgot,
    the_quarantine_lasts_to_its_last_nanosecond,
    the_last_second_of_an_uptime_may_not_have_passed,
    a_master_that_restarted_is_not_in_the_margin,
    one_server_behind_two_addresses_votes_once,
    a_connection_votes_only_after_its_own_echo,
    the_own_key_met_again_is_not_somebody_elses,
    a_client_that_dies_between_quorum_and_return_leaves_nothing_beyond_its_ttl,
    a_master_that_restarts_twice_within_a_ttl_is_counted_from_the_second,
    clocks_that_jump_on_a_majority_less_one_free_no_lock,
    one_stopped_master_delays_nobody,
    with_no_master_up_every_call_ends_by_its_deadline,
    the_margin_after_an_extension_is_of_masters_that_were_extended,
    a_late_answer_to_the_set_says_nothing_once_the_lock_is_extended,
    another_server_in_a_masters_place_is_not_taken_for_a_restart,
    strict_mode_believes_no_uptime,
    a_mark_speaks_for_the_process_that_it_names,
    a_mark_is_written_at_the_end_of_the_watch,
    strict_mode_takes_no_replica,
    a_header_reserves_no_memory,
    arrays_are_nested_to_the_limit_only,
);
