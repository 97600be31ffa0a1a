//! Fair locks: waiters get the lock in the order of their requests, whoever is faster, gives up or dies.
//!
//! The TTL is so long that masters only ring. `parked.rs` has shorter TTLs.

use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use redlatch::engine::{OpId, Outcome};
use redlatch::{AcquireError, ConfigBuilder, limits};

use super::world;
use super::{KEY, Verdict, acquire, demand, hold, is_held, ms, occupy, outcome, verdict};
use crate::clock::{Clock, MS, SECOND, Time, WALL_US};
use crate::faults::Data;
use crate::model::{Parked, queue_key};
use crate::world::World;

pub(super) const LONG: Duration = Duration::from_secs(60);
pub(super) const TTL: Duration = Duration::from_secs(12);
/// A round trip in the schedules that have one.
pub(super) const TRIP: Time = 2 * MS;
/// Longest time between two rounds of a waiter without a ring.
const HEARTBEAT: Time = SECOND;
/// Time for a rung waiter to ask.
const RUNG: Time = 200 * MS;

pub(super) fn defaults(builder: ConfigBuilder) -> ConfigBuilder {
    builder.max_ttl(TTL)
}

pub(super) fn trust(builder: ConfigBuilder) -> ConfigBuilder {
    super::trust(builder.max_ttl(TTL))
}

/// How long an entry stays without a heartbeat.
pub(super) fn stay() -> Time {
    Time::try_from(limits::STAY.as_nanos()).expect("small")
}

/// Acquires the lock before anybody waits.
pub(super) fn hold_fairly(world: &mut World, client: usize) -> Result<OpId, String> {
    let lock = world.submit_fair(client, KEY, TTL, Duration::ZERO).expect("room");
    match outcome(world, client)? {
        Outcome::Acquire(Ok(_)) => Ok(lock),
        other => Err(format!("c{client} should hold it, but {other:?}")),
    }
}

/// Begins a client's wait, until a quorum of masters has its entry.
pub(super) fn wait_fairly(world: &mut World, client: usize) -> Result<OpId, String> {
    let quorum = world.checker.quorum();
    let before: Vec<_> = (0..world.masters.len()).map(|master| entries(world, master).len()).collect();
    let lock = world.submit_fair(client, KEY, TTL, LONG).expect("room");
    let is_parked = |world: &mut World| {
        let has_more = |master: &usize| entries(world, *master).len() > before[*master];
        (0..world.masters.len()).filter(has_more).count() >= quorum
    };
    demand(world.run_until(SECOND, is_parked), "a waiter is not parked")?;
    world.run_for(10 * MS);
    verdict(world)?;
    Ok(lock)
}

/// Each client must get the lock within this time after its predecessor's release.
pub(super) fn each_has_it(world: &mut World, order: &[usize], limit: Time) -> Verdict {
    for &client in order {
        let has_it = |world: &mut World| !world.clients[client].outcomes.is_empty();
        demand(world.run_until(limit, has_it), &format!("c{client} is not the next, or not in time"))?;
        let Some((lock, Outcome::Acquire(Ok(_)))) = world.clients[client].outcomes.pop_front() else {
            return Err(format!("c{client} is denied"));
        };
        world.run_for(MS);
        world.submit_release(client, lock, false);
        verdict(world)?;
    }
    Ok(())
}

pub(super) fn is_contended(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Acquire(Err(AcquireError::Contended(_))))
}

/// Entries of the queue on a master.
pub(super) fn entries(world: &World, master: usize) -> Vec<Parked> {
    let it = &world.masters[master];
    it.model.parked(it.clock.at(world.now), KEY)
}

pub(super) fn has_queue(world: &World, master: usize) -> bool {
    let it = &world.masters[master];
    it.model.is_taken(it.clock.at(world.now), &queue_key(KEY))
}

pub(super) fn value(world: &World, master: usize) -> Option<Vec<u8>> {
    let it = &world.masters[master];
    it.model.value(it.clock.at(world.now), KEY).map(<[u8]>::to_vec)
}

fn no_queue_is_left(world: &mut World) -> Verdict {
    world.run_for(20 * MS);
    demand(!(0..world.masters.len()).any(|master| has_queue(world, master)), "a queue is left")
}

pub(super) fn no_key_is_left(world: &mut World) -> Verdict {
    no_queue_is_left(world)?;
    demand(!(0..world.masters.len()).any(|master| is_held(world, master, KEY)), "a key is left")
}

// I57
pub fn the_first_caller_is_first_however_slow() -> Verdict {
    let mut world = world(3, 4, defaults);
    (world.weather.delay_min, world.weather.delay_max) = (TRIP / 2, TRIP / 2);
    let held = hold_fairly(&mut world, 0)?;
    for client in [2, 1] {
        wait_fairly(&mut world, client)?;
    }
    // The first waiter's ring arrives after another client has asked.
    (0..3).for_each(|place| world.stall(2, place, true, true, 50 * MS));
    world.submit_release(0, held, false);
    world.run_for(5 * MS);
    world.submit_fair(3, KEY, TTL, Duration::ZERO).expect("room");
    let refused = outcome(&mut world, 3)?;
    demand(is_contended(&refused), "one who does not wait came before those who do")?;
    each_has_it(&mut world, &[2, 1], 200 * MS)?;
    no_key_is_left(&mut world)
}

// I57, I70
pub fn waiter_keeps_its_place_without_limit() -> Verdict {
    let mut world = world(5, 4, defaults);
    let held = hold_fairly(&mut world, 0)?;
    for client in [3, 1, 2] {
        wait_fairly(&mut world, client)?;
        world.run_for(SECOND / 2);
    }
    world.run_for(2 * stay());
    demand(
        (0..5).all(|master| entries(&world, master).len() == 3),
        "an entry is gone, or there are too many",
    )?;
    world.submit_release(0, held, false);
    each_has_it(&mut world, &[3, 1, 2], 50 * MS)?;
    no_key_is_left(&mut world)
}

/// Masters with wrong clocks limit all tickets alike.
// I62
pub fn wrong_clocks_change_no_order() -> Verdict {
    let mut world = super::unconnected(5, defaults);
    for (master, seconds) in [0, 5, -5, 60, -60].into_iter().enumerate() {
        let now = world.masters[master].clock.at(0);
        let wall_us = WALL_US.checked_add_signed(seconds * 1_000_000).expect("small");
        world.masters[master].model.set_wall(now, wall_us);
    }
    for _ in 0..6 {
        world.add_client(Clock::new(0, 0), 0);
    }
    world.run_for(10 * MS);
    let held = hold_fairly(&mut world, 0)?;
    for client in [4, 2, 5, 1, 3] {
        wait_fairly(&mut world, client)?;
        world.run_for(20 * MS);
    }
    world.run_for(4 * SECOND);
    world.submit_release(0, held, false);
    each_has_it(&mut world, &[4, 2, 5, 1, 3], 50 * MS)
}

/// The client has only heard the time of masters with wrong clocks.
// I62
pub fn a_wrong_estimate_shifts_a_waiter_by_seconds() -> Verdict {
    let mut world = super::unconnected(3, defaults);
    for (master, seconds) in [0, 60, 120].into_iter().enumerate() {
        let now = world.masters[master].clock.at(0);
        world.masters[master].model.set_wall(now, WALL_US + seconds * 1_000_000);
    }
    world.add_client(Clock::new(0, 0), 0);
    world.run_for(10 * MS);
    let held = hold_fairly(&mut world, 0)?;
    world.masters[0].refuses_until = Time::MAX;
    world.add_client(Clock::new(0, 0), 0);
    world.run_for(10 * MS);
    wait_fairly(&mut world, 1)?;
    world.masters[0].refuses_until = 0;
    world.run_for(4 * SECOND);
    world.add_client(Clock::new(0, 0), 0);
    world.run_for(10 * MS);
    wait_fairly(&mut world, 2)?;
    world.submit_release(0, held, false);
    each_has_it(&mut world, &[1, 2], 100 * MS)
}

// I57
pub fn one_clients_fair_waiters_keep_their_order() -> Verdict {
    let mut world = world(3, 2, defaults);
    let held = hold_fairly(&mut world, 0)?;
    let mut waiting = Vec::new();
    for _ in 0..4 {
        waiting.push(wait_fairly(&mut world, 0)?);
        waiting.push(wait_fairly(&mut world, 1)?);
    }
    world.submit_release(0, held, false);
    for (index, expected) in waiting.into_iter().enumerate() {
        let client = index % 2;
        world.run_until(SECOND, |world| !world.clients[client].outcomes.is_empty());
        let Some((lock, Outcome::Acquire(Ok(_)))) = world.clients[client].outcomes.pop_front() else {
            return Err(format!("c{client} is not the next"));
        };
        demand(lock == expected, "another of the same client is the next")?;
        world.submit_release(client, lock, false);
    }
    verdict(&mut world)?;
    no_key_is_left(&mut world)
}

// I60
pub fn cancelled_waiter_leaves_no_entry() -> Verdict {
    let mut world = world(3, 4, defaults);
    let held = hold_fairly(&mut world, 0)?;
    let given_up = wait_fairly(&mut world, 1)?;
    wait_fairly(&mut world, 2)?;
    world.submit_fair(3, KEY, TTL, ms(50)).expect("room");
    let denied = outcome(&mut world, 3)?;
    demand(is_contended(&denied), "its wait is over")?;
    world.submit_release(1, given_up, false);
    world.run_for(10 * MS);
    demand(entries(&world, 0).len() == 1, "one that gave up stays in the queue")?;
    world.submit_release(0, held, false);
    each_has_it(&mut world, &[2], 50 * MS)?;
    no_key_is_left(&mut world)?;
    // Also if the lock is free by then, and the next waiter would have to wait for the first.
    let held = hold_fairly(&mut world, 0)?;
    let slow = wait_fairly(&mut world, 1)?;
    wait_fairly(&mut world, 2)?;
    (0..3).for_each(|place| world.stall(1, place, false, true, 500 * MS));
    world.submit_release(0, held, false);
    world.run_for(50 * MS);
    world.submit_release(1, slow, false);
    each_has_it(&mut world, &[2], 50 * MS)?;
    no_key_is_left(&mut world)
}

/// The waiter has heard nothing from one master, which carries out the park later.
pub fn an_unheard_waiter_gives_up_everywhere() -> Verdict {
    let mut world = world(3, 2, defaults);
    hold_fairly(&mut world, 0)?;
    world.stall(1, 2, true, false, 100 * MS);
    let given_up = wait_fairly(&mut world, 1)?;
    world.submit_release(1, given_up, false);
    world.run_for(120 * MS);
    verdict(&mut world)?;
    demand(!(0..3).any(|master| has_queue(&world, master)), "one that gave up stays in a queue")
}

pub fn dead_waiters_add_no_delay() -> Verdict {
    let mut world = world(3, 6, defaults);
    let held = hold_fairly(&mut world, 0)?;
    for client in [1, 2, 3, 4, 5] {
        wait_fairly(&mut world, client)?;
    }
    (1..=4).for_each(|client| world.crash_client(client));
    world.submit_release(0, held, false);
    each_has_it(&mut world, &[5], 20 * MS)?;
    no_key_is_left(&mut world)
}

pub fn paused_waiters_together_delay_one_stay() -> Verdict {
    let mut world = world(3, 6, defaults);
    let held = hold_fairly(&mut world, 0)?;
    for client in [1, 2, 3, 4, 5] {
        wait_fairly(&mut world, client)?;
    }
    (1..=4).for_each(|client| world.pause(client, 60 * SECOND));
    world.submit_release(0, held, false);
    each_has_it(&mut world, &[5], stay() + HEARTBEAT + 20 * MS)
}

// I70
pub fn paused_waiter_is_overtaken_soon() -> Verdict {
    let mut world = world(3, 3, defaults);
    let held = hold_fairly(&mut world, 0)?;
    wait_fairly(&mut world, 1)?;
    wait_fairly(&mut world, 2)?;
    world.pause(1, 60 * SECOND);
    world.submit_release(0, held, false);
    each_has_it(&mut world, &[2], RUNG + HEARTBEAT + 20 * MS)
}

// I60
pub fn a_queue_of_the_dead_leaves_no_key() -> Verdict {
    let mut world = world(3, 3, defaults);
    hold_fairly(&mut world, 0)?;
    wait_fairly(&mut world, 1)?;
    wait_fairly(&mut world, 2)?;
    (0..3).for_each(|client| world.crash_client(client));
    world.run_for(2 * stay() - 100 * MS);
    demand(has_queue(&world, 0), "the queue is gone before two stays are over")?;
    world.run_for(100 * MS + Time::try_from(TTL.as_nanos()).expect("small"));
    for it in &world.masters {
        let now = it.clock.at(world.now);
        // The fleet's record stays.
        let is_left = |key: &&Vec<u8>| **key != b"redlatch:fleet" && it.model.is_taken(now, key);
        let left = it.model.keys().keys().find(is_left);
        demand(left.is_none(), &format!("a key of the dead is left: {left:?}"))?;
    }
    verdict(&mut world)
}

// I60
pub fn fair_waiter_follows_a_dead_holder() -> Verdict {
    for ttl in [ms(500), ms(5000)] {
        let mut world = world(3, 3, defaults);
        world.submit_fair(0, KEY, ttl, LONG).expect("room");
        outcome(&mut world, 0)?;
        wait_fairly(&mut world, 1)?;
        wait_fairly(&mut world, 2)?;
        let end = Time::try_from(ttl.as_nanos()).expect("small");
        world.crash_client(0);
        world.run_until(end, |world| !is_held(world, 0, KEY));
        each_has_it(&mut world, &[1, 2], 20 * MS)?;
    }
    Ok(())
}

pub fn fair_waiter_follows_a_dead_former_waiter() -> Verdict {
    for ttl in [ms(700), ms(1300), ms(2900)] {
        let mut world = world(3, 3, defaults);
        let held = hold_fairly(&mut world, 0)?;
        world.submit_fair(1, KEY, ttl, LONG).expect("room");
        world.run_for(100 * MS);
        world.submit_release(0, held, false);
        let Outcome::Acquire(Ok(_)) = outcome(&mut world, 1)? else { return Err("it is denied".to_owned()) };
        demand(entries(&world, 0).is_empty(), "the holder stands in the queue still")?;
        wait_fairly(&mut world, 2)?;
        world.crash_client(1);
        let end = Time::try_from(ttl.as_nanos()).expect("small");
        world.run_until(end, |world| !is_held(world, 0, KEY));
        each_has_it(&mut world, &[2], 20 * MS)?;
    }
    Ok(())
}

/// A plain lock may be released without a script, so no master rings.
pub fn a_plain_release_is_found_by_looking() -> Verdict {
    let mut world = world(3, 3, defaults);
    let plain = hold(&mut world, 0, KEY, TTL)?;
    wait_fairly(&mut world, 1)?;
    wait_fairly(&mut world, 2)?;
    world.submit_release(0, plain, false);
    each_has_it(&mut world, &[1, 2], 60 * MS)
}

// I61
pub fn only_the_first_fair_waiter_tries() -> Verdict {
    let mut world = world(3, 9, defaults);
    (world.weather.delay_min, world.weather.delay_max) = (TRIP / 2, TRIP / 2);
    let held = hold_fairly(&mut world, 0)?;
    for client in 1..9 {
        wait_fairly(&mut world, client)?;
    }
    world.run_for(HEARTBEAT);
    let before = world.masters[0].model.script_count;
    let start = world.now;
    world.submit_release(0, held, false);
    each_has_it(&mut world, &[1, 2, 3, 4, 5, 6, 7, 8], 2 * TRIP)?;
    world.run_for(TRIP);
    let beats = 8 * ((world.now - start) / (HEARTBEAT * 3 / 4) + 1);
    let count = world.masters[0].model.script_count - before;
    // Each waiter needs a script when it is rung, and one for its release.
    demand(count <= 2 * 8 + 1 + beats, &format!("{count} scripts for eight to have it"))
}

/// Nobody can be rung, so a heartbeat finds the lock free.
pub fn a_refused_message_costs_a_heartbeat() -> Verdict {
    let mut world = world(3, 2, defaults);
    let held = hold_fairly(&mut world, 0)?;
    wait_fairly(&mut world, 1)?;
    for master in 0..3 {
        let errors = &mut world.masters[master].model.errors;
        errors.extend(["PUBLISH", "SPUBLISH"].map(|name| (name.to_owned(), "NOPERM no".to_owned())));
    }
    world.submit_release(0, held, false);
    each_has_it(&mut world, &[1], HEARTBEAT + 10 * MS)
}

// I57
pub fn a_minority_that_restarts_changes_no_order() -> Verdict {
    let mut world = world(3, 4, trust);
    let held = hold_fairly(&mut world, 0)?;
    for client in [2, 1] {
        wait_fairly(&mut world, client)?;
    }
    world.kill_master(1, true);
    world.start_master(1, Data::Empty);
    wait_fairly(&mut world, 3)?;
    world.submit_release(0, held, false);
    each_has_it(&mut world, &[2, 1, 3], SECOND)
}

/// Two masters grant the lock before the third has asked for the script.
pub fn a_master_that_answers_last_learns_the_scripts() -> Verdict {
    let (mut world, mut is_granted) = (world(3, 2, defaults), false);
    for _ in 0..20 {
        world.stall(1, 2, false, true, 20 * MS - 1);
        let held = hold_fairly(&mut world, 1)?;
        is_granted = is_held(&world, 2, KEY);
        world.submit_release(1, held, false);
        world.run_for(20 * MS);
    }
    demand(is_granted, "the slow master never grants")?;
    demand(world.masters[2].model.script_count > 10, "the slow master runs no script")
}

/// The lock and its queue are free on the restarted master, because the holder has died and cannot restore
/// the lock.
pub fn a_restarted_master_regains_entries_soon() -> Verdict {
    let mut world = world(3, 2, trust);
    hold_fairly(&mut world, 0)?;
    wait_fairly(&mut world, 1)?;
    world.crash_client(0);
    world.kill_master(1, true);
    world.start_master(1, Data::Empty);
    let is_back = |world: &mut World| world.is_connected(1, 1);
    demand(world.run_until(SECOND / 4, is_back), "it does not connect again")?;
    // The key is free there, so the waiter's attempt gets it.
    let is_there = |world: &mut World| !entries(world, 1).is_empty() || is_held(world, 1, KEY);
    demand(world.run_until(120 * MS, is_there), "it does not wait on the master that restarted")
}

// I90
pub fn a_queue_leaves_sets_of_others_alone() -> Verdict {
    let mut world = world(3, 1, defaults);
    occupy(&mut world, 0..3, KEY);
    world.masters[0].model.put_sorted_set(&queue_key(KEY), None);
    let before = world.masters[0].model.keys().get(&queue_key(KEY)).cloned();
    world.submit_fair(0, KEY, TTL, Duration::from_secs(1)).expect("room");
    world.run_for(2 * SECOND);
    let after = world.masters[0].model.keys().get(&queue_key(KEY)).cloned();
    demand(before == after, "a waiter changed somebody else's set")?;
    // Nor does any parked waiter have the lock there.
    for master in 0..3 {
        world.masters[master].model.load_keys(crate::model::Keys::new());
    }
    world.masters[0].model.put_sorted_set(&queue_key(KEY), None);
    world.clients[0].outcomes.clear();
    hold_fairly(&mut world, 0)?;
    demand(!is_held(&world, 0, KEY), "a park got the lock beside a foreign queue")
}

// I70
pub fn fair_and_plain_locks_exclude_each_other() -> Verdict {
    let mut world = world(3, 2, defaults);
    let plain = hold(&mut world, 0, KEY, TTL)?;
    for client in [0, 1] {
        world.submit_fair(client, KEY, TTL, Duration::ZERO).expect("room");
        let refused = outcome(&mut world, client)?;
        demand(is_contended(&refused), "a plain lock is in the way")?;
        demand(!has_queue(&world, 0), "one that does not wait stays in the queue")?;
    }
    // The same client's waiter, too, gets the lock from the masters, and not through a hand-over.
    let waiting = wait_fairly(&mut world, 0)?;
    world.submit_release(0, plain, false);
    demand(world.run_until(HEARTBEAT, |world| world.clients[0].outcomes.pop_front().is_some()), "free")?;
    for client in [0, 1] {
        let refused = acquire(&mut world, client, KEY, TTL, Duration::ZERO)?;
        demand(is_contended(&refused), "a fair lock is in the way")?;
    }
    world.submit_acquire(1, KEY, TTL, LONG).expect("room");
    world.run_for(100 * MS);
    world.submit_release(0, waiting, false);
    let answer = outcome(&mut world, 1)?;
    demand(matches!(answer, Outcome::Acquire(Ok(_))), "the plain one has it then")?;
    verdict(&mut world)
}

pub fn a_fair_script_that_was_flushed_is_sent_again() -> Verdict {
    let mut world = world(3, 2, defaults);
    for _ in 0..2 {
        (0..3).for_each(|master| world.masters[master].model.flush_scripts());
        let held = hold_fairly(&mut world, 0)?;
        (0..3).for_each(|master| world.masters[master].model.flush_scripts());
        wait_fairly(&mut world, 1)?;
        world.submit_release(0, held, false);
        each_has_it(&mut world, &[1], 50 * MS)?;
        no_key_is_left(&mut world)?;
    }
    Ok(())
}

pub fn a_fair_lock_survives_any_lost_byte() -> Verdict {
    const PARK_SIZE: usize = 480;
    (0..PARK_SIZE + 120).try_for_each(|size| {
        let mut world = world(3, 2, defaults);
        (0..3).for_each(|master| world.masters[master].model.load_scripts());
        (world.weather.delay_min, world.weather.delay_max) = (MS, MS);
        let held = hold_fairly(&mut world, 0)?;
        world.submit_fair(1, KEY, TTL, LONG).expect("room");
        world.run_for(if size < PARK_SIZE { MS / 2 } else { 3 * MS / 2 });
        if size < PARK_SIZE {
            world.cut_conn(1, 0, size, 0);
        } else {
            world.cut_conn(1, 0, 0, size - PARK_SIZE);
        }
        world.run_for(100 * MS);
        world.submit_release(0, held, false);
        each_has_it(&mut world, &[1], SECOND).map_err(|why| format!("byte {size}: {why}"))?;
        world.run_for(SECOND);
        no_key_is_left(&mut world).map_err(|why| format!("byte {size}: {why}"))?;
        verdict(&mut world)
    })
}

/// Each client asks again right after its release, over links of different speeds. No ring may be lost, which
/// would cost a wait until the next heartbeat.
// I60
pub fn the_next_waiter_needs_no_heartbeat() -> Verdict {
    for seed in 0..40 {
        let (masters, clients) = [(3, 2), (3, 3), (5, 2), (5, 4)][usize::try_from(seed % 4).expect("small")];
        let mut world = world(masters, clients, defaults);
        world.rng = StdRng::seed_from_u64(seed);
        (world.weather.delay_min, world.weather.delay_max) = (MS / 10, 3 * MS);
        let mut changed_at = world.now;
        for client in 0..clients {
            world.submit_fair(client, KEY, TTL, LONG).expect("room");
        }
        for _ in 0..50 {
            let next = |world: &mut World| world.clients.iter().position(|it| !it.outcomes.is_empty());
            world.run_until(SECOND, |world| next(world).is_some());
            verdict(&mut world)?;
            let Some(client) = next(&mut world) else { return Err(format!("seed {seed}: nobody has it")) };
            let Some((lock, Outcome::Acquire(Ok(_)))) = world.clients[client].outcomes.pop_front() else {
                return Err(format!("seed {seed}: c{client} is denied"));
            };
            let took = world.now - changed_at;
            demand(
                took < HEARTBEAT / 2,
                &format!("seed {seed}: c{client} had it {took} ns after the other"),
            )?;
            world.run_for(MS);
            world.submit_release(client, lock, true);
            world.run_until(SECOND, |world| !world.clients[client].outcomes.is_empty());
            world.clients[client].outcomes.clear();
            changed_at = world.now;
            world.submit_fair(client, KEY, TTL, LONG).expect("room");
        }
    }
    Ok(())
}

tests!(
    the_next_waiter_needs_no_heartbeat,
    the_first_caller_is_first_however_slow,
    waiter_keeps_its_place_without_limit,
    wrong_clocks_change_no_order,
    a_wrong_estimate_shifts_a_waiter_by_seconds,
    one_clients_fair_waiters_keep_their_order,
    cancelled_waiter_leaves_no_entry,
    an_unheard_waiter_gives_up_everywhere,
    dead_waiters_add_no_delay,
    paused_waiters_together_delay_one_stay,
    paused_waiter_is_overtaken_soon,
    a_queue_of_the_dead_leaves_no_key,
    fair_waiter_follows_a_dead_holder,
    fair_waiter_follows_a_dead_former_waiter,
    a_plain_release_is_found_by_looking,
    only_the_first_fair_waiter_tries,
    a_refused_message_costs_a_heartbeat,
    a_minority_that_restarts_changes_no_order,
    a_queue_leaves_sets_of_others_alone,
    a_master_that_answers_last_learns_the_scripts,
    a_restarted_master_regains_entries_soon,
    fair_and_plain_locks_exclude_each_other,
    a_fair_script_that_was_flushed_is_sent_again,
    a_fair_lock_survives_any_lost_byte,
);
