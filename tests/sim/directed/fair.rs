//! Fair locks: who asked first has it first, whoever is faster, gives up or dies.

use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use redlatch::engine::{OpId, Outcome};
use redlatch::{AcquireError, limits};

use super::world;
use super::{KEY, Verdict, acquire, defaults, demand, hold, is_held, ms, occupy, outcome, trust, verdict};
use crate::clock::{MS, SECOND, Time};
use crate::faults::Data;
use crate::model::{heartbeats_key, tickets_key};
use crate::world::World;

const LONG: Duration = Duration::from_secs(60);
const TTL: Duration = Duration::from_secs(10);
/// A round trip in the schedules that have one.
const TRIP: Time = 2 * MS;

fn heartbeat() -> Time {
    Time::try_from(limits::FAIR_HEARTBEAT.as_nanos()).expect("small")
}

/// Holds the lock before anybody waits.
fn hold_fairly(world: &mut World, client: usize) -> Result<OpId, String> {
    let lock = world.submit_fair(client, KEY, TTL, Duration::ZERO).expect("room");
    match outcome(world, client)? {
        Outcome::Acquire(Ok(_)) => Ok(lock),
        other => Err(format!("c{client} should hold it, but {other:?}")),
    }
}

/// A client begins to wait, until its ticket stands.
fn wait_fairly(world: &mut World, client: usize) -> Result<OpId, String> {
    let lock = world.submit_fair(client, KEY, TTL, LONG).expect("room");
    let has_ticket = |world: &mut World| world.clients[client].engine.ticket(lock).is_some();
    demand(world.run_until(SECOND, has_ticket), "a waiter gets no ticket")?;
    world.run_for(10 * MS);
    verdict(world)?;
    Ok(lock)
}

/// Each client has the lock within this time after the one before released it.
fn each_has_it(world: &mut World, order: &[usize], limit: Time) -> Verdict {
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

fn is_contended(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Acquire(Err(AcquireError::Contended(_))))
}

/// Tickets on a master.
fn ticket_count(world: &World, master: usize) -> usize {
    let it = &world.masters[master];
    it.model.ticket_count(it.clock.at(world.now), KEY)
}

fn no_tickets_are_left(world: &mut World) -> Verdict {
    world.run_for(20 * MS);
    let is_empty = (0..world.masters.len()).all(|master| ticket_count(world, master) == 0);
    demand(is_empty, "a ticket is left")
}

pub fn the_first_caller_is_first_however_slow() -> Verdict {
    let mut world = world(3, 4, defaults);
    (world.weather.delay_min, world.weather.delay_max) = (TRIP / 2, TRIP / 2);
    let held = hold_fairly(&mut world, 0)?;
    for client in [2, 1] {
        wait_fairly(&mut world, client)?;
    }
    // The first one hears of the release later than another asks.
    (0..6).for_each(|place| world.stall(2, place, true, true, 50 * MS));
    world.submit_release(0, held, false);
    world.run_for(5 * MS);
    world.submit_fair(3, KEY, TTL, Duration::ZERO).expect("room");
    let refused = outcome(&mut world, 3)?;
    demand(is_contended(&refused), "one who does not wait came before those who do")?;
    each_has_it(&mut world, &[2, 1], 200 * MS)?;
    no_tickets_are_left(&mut world)
}

pub fn a_place_is_kept_however_long_the_wait_is() -> Verdict {
    let mut world = world(5, 4, defaults);
    let held = hold_fairly(&mut world, 0)?;
    for client in [3, 1, 2] {
        wait_fairly(&mut world, client)?;
        world.run_for(SECOND / 2);
    }
    world.run_for(2 * heartbeat());
    world.submit_release(0, held, false);
    each_has_it(&mut world, &[3, 1, 2], 50 * MS)?;
    no_tickets_are_left(&mut world)
}

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
    no_tickets_are_left(&mut world)
}

pub fn a_ticket_exceeds_all_earlier_ones() -> Verdict {
    let mut world = world(3, 4, defaults);
    let held = hold_fairly(&mut world, 0)?;
    // Nothing of the first two reaches master 0.
    for client in [1, 2] {
        world.stall(client, 0, true, false, 4 * SECOND);
        wait_fairly(&mut world, client)?;
    }
    // There the third is the first; so says the first answer that it has.
    world.stall(3, 2, false, true, 5 * MS);
    world.stall(3, 1, false, true, 5 * MS);
    wait_fairly(&mut world, 3)?;
    world.submit_release(0, held, false);
    each_has_it(&mut world, &[1, 2, 3], SECOND)?;
    verdict(&mut world)
}

pub fn a_new_ticket_is_larger_than_any_that_stands() -> Verdict {
    let mut world = world(3, 5, defaults);
    let held = hold_fairly(&mut world, 0)?;
    let waiting = [1, 2, 3].map(|client| wait_fairly(&mut world, client));
    let [first, second, third] = waiting;
    second?;
    let third = third?;
    world.submit_release(1, first?, false);
    world.run_for(10 * MS);
    let fourth = wait_fairly(&mut world, 4)?;
    let number = |client: usize, lock| world.clients[client].engine.ticket(lock).map(|ticket| ticket.number);
    let (third, fourth) = (number(3, third), number(4, fourth));
    demand(fourth > third, &format!("the ticket {fourth:?} behind {third:?}"))?;
    world.submit_release(0, held, false);
    each_has_it(&mut world, &[2, 3, 4], 50 * MS)?;
    no_tickets_are_left(&mut world)
}

pub fn who_gives_up_keeps_nobody_waiting() -> Verdict {
    let mut world = world(3, 4, defaults);
    let held = hold_fairly(&mut world, 0)?;
    let given_up = wait_fairly(&mut world, 1)?;
    wait_fairly(&mut world, 2)?;
    world.submit_fair(3, KEY, TTL, ms(50)).expect("room");
    let denied = outcome(&mut world, 3)?;
    demand(is_contended(&denied), "its wait is over")?;
    world.submit_release(1, given_up, false);
    world.run_for(10 * MS);
    world.submit_release(0, held, false);
    each_has_it(&mut world, &[2], 50 * MS)?;
    no_tickets_are_left(&mut world)?;
    // Also when the lock is free by then, and those behind were to wait for it.
    let held = hold_fairly(&mut world, 0)?;
    let slow = wait_fairly(&mut world, 1)?;
    wait_fairly(&mut world, 2)?;
    (3..6).for_each(|place| world.stall(1, place, false, true, 500 * MS));
    world.submit_release(0, held, false);
    world.run_for(50 * MS);
    world.submit_release(1, slow, false);
    each_has_it(&mut world, &[2], 50 * MS)?;
    no_tickets_are_left(&mut world)
}

pub fn those_who_died_cost_one_heartbeat_together() -> Verdict {
    let mut world = world(3, 6, defaults);
    let held = hold_fairly(&mut world, 0)?;
    for client in [1, 2, 3, 4, 5] {
        wait_fairly(&mut world, client)?;
    }
    (1..=4).for_each(|client| world.crash_client(client));
    world.submit_release(0, held, false);
    each_has_it(&mut world, &[5], heartbeat() * 4 / 3 + 100 * MS)?;
    no_tickets_are_left(&mut world)
}

pub fn a_queue_of_the_dead_leaves_no_key() -> Verdict {
    let mut world = world(3, 3, defaults);
    hold_fairly(&mut world, 0)?;
    wait_fairly(&mut world, 1)?;
    wait_fairly(&mut world, 2)?;
    (0..3).for_each(|client| world.crash_client(client));
    world.run_for(2 * heartbeat() - 100 * MS);
    demand(ticket_count(&world, 0) == 2, "the queue is gone before two heartbeats are over")?;
    world.run_for(100 * MS + Time::try_from(TTL.as_nanos()).expect("small"));
    for it in &world.masters {
        let now = it.clock.at(world.now);
        let left = it.model.keys().keys().find(|key| it.model.is_taken(now, key));
        demand(left.is_none(), &format!("a key of the dead is left: {left:?}"))?;
    }
    verdict(&mut world)
}

pub fn a_dead_holder_is_followed_at_its_end() -> Verdict {
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

/// One that has waited stands in the queue as long as its heartbeat lasts.
pub fn a_dead_holder_that_had_waited_is_followed_at_its_end() -> Verdict {
    for ttl in [ms(700), ms(1300), ms(2900)] {
        let mut world = world(3, 3, defaults);
        let held = hold_fairly(&mut world, 0)?;
        world.submit_fair(1, KEY, ttl, LONG).expect("room");
        world.run_for(100 * MS);
        world.submit_release(0, held, false);
        let Outcome::Acquire(Ok(_)) = outcome(&mut world, 1)? else { return Err("it is denied".to_owned()) };
        wait_fairly(&mut world, 2)?;
        world.crash_client(1);
        let end = Time::try_from(ttl.as_nanos()).expect("small");
        world.run_until(end, |world| !is_held(world, 0, KEY));
        each_has_it(&mut world, &[2], 20 * MS)?;
    }
    Ok(())
}

pub fn only_the_first_fair_waiter_tries() -> Verdict {
    let mut world = world(3, 9, defaults);
    (world.weather.delay_min, world.weather.delay_max) = (TRIP / 2, TRIP / 2);
    let held = hold_fairly(&mut world, 0)?;
    for client in 1..9 {
        wait_fairly(&mut world, client)?;
    }
    world.run_for(heartbeat());
    let before = world.masters[0].model.script_count;
    let start = world.now;
    world.submit_release(0, held, false);
    each_has_it(&mut world, &[1, 2, 3, 4, 5, 6, 7, 8], 4 * TRIP)?;
    // To say that they wait is an attempt, too, which each makes once in three quarters of a second.
    let said = 8 * ((world.now - start) / (heartbeat() / 4) + 1);
    let count = world.masters[0].model.script_count - before;
    // Each has one script to come with, one to release, and one to leave.
    demand(count <= 3 * 8 + 2 + said, &format!("{count} scripts for eight to have it"))
}

pub fn a_lost_message_costs_a_part_of_a_heartbeat() -> Verdict {
    let mut world = world(3, 2, defaults);
    let held = hold_fairly(&mut world, 0)?;
    wait_fairly(&mut world, 1)?;
    for master in 0..3 {
        let errors = &mut world.masters[master].model.errors;
        errors.insert("PUBLISH".to_owned(), "NOPERM no".to_owned());
    }
    world.submit_release(0, held, false);
    each_has_it(&mut world, &[1], heartbeat() / 3 + 10 * MS)
}

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

/// The other masters have refused each attempt before this one has asked for the script.
pub fn a_master_that_answers_last_has_the_tickets_too() -> Verdict {
    let mut world = world(3, 2, defaults);
    occupy(&mut world, 0..3, KEY);
    world.submit_fair(1, KEY, TTL, LONG).expect("room");
    for _ in 0..300 {
        world.stall(1, 2, false, true, 10 * MS - 1);
        world.run_for(10 * MS);
    }
    demand(ticket_count(&world, 2) == 1, "no ticket on the slow master")
}

/// Nobody else waits there, and the lock is free there: its holder has died, and does not put it back.
pub fn a_restarted_master_regains_tickets_within_a_heartbeat() -> Verdict {
    let mut world = world(3, 2, trust);
    hold_fairly(&mut world, 0)?;
    wait_fairly(&mut world, 1)?;
    world.crash_client(0);
    world.kill_master(1, true);
    world.start_master(1, Data::Empty);
    world.run_for(heartbeat());
    demand(ticket_count(&world, 1) == 1, "no ticket on the master that restarted")
}

/// The lock is taken, so a waiter would stand in its queue.
pub fn a_queue_leaves_sets_of_others_alone() -> Verdict {
    for key in [tickets_key(KEY), heartbeats_key(KEY)] {
        let mut world = world(1, 1, defaults);
        occupy(&mut world, 0..1, KEY);
        world.masters[0].model.put_sorted_set(&key, None);
        let before = world.masters[0].model.keys().get(&key).cloned();
        world.submit_fair(0, KEY, TTL, Duration::from_secs(1)).expect("room");
        world.run_for(2 * SECOND);
        let after = world.masters[0].model.keys().get(&key).cloned();
        demand(before == after, "a waiter changed somebody else's set")?;
    }
    Ok(())
}

/// One has the lock on one master and the other on another; the third is away.
pub fn two_minorities_learn_who_is_first() -> Verdict {
    for first in [0, 1] {
        let mut world = world(3, 2, defaults);
        world.kill_master(2, true);
        world.run_for(MS);
        world.stall(first, 1, true, false, 5 * MS);
        world.stall(1 - first, 0, true, false, 5 * MS);
        world.submit_fair(first, KEY, TTL, LONG).expect("room");
        world.submit_fair(1 - first, KEY, TTL, LONG).expect("room");
        let has_one =
            |world: &mut World| world.clients.iter().position(|client| !client.outcomes.is_empty()).is_some();
        demand(world.run_until(2 * SECOND, has_one), "neither has it")?;
        let winner = usize::from(world.clients[0].outcomes.is_empty());
        each_has_it(&mut world, &[winner, 1 - winner], 2 * SECOND)?;
        world.run_for(SECOND);
        demand(!is_held(&world, 0, KEY) && !is_held(&world, 1, KEY), "a key is left")?;
    }
    Ok(())
}

pub fn fair_and_plain_locks_exclude_each_other() -> Verdict {
    let mut world = world(3, 2, defaults);
    let plain = hold(&mut world, 0, KEY, TTL)?;
    for client in [0, 1] {
        world.submit_fair(client, KEY, TTL, Duration::ZERO).expect("room");
        let refused = outcome(&mut world, client)?;
        demand(is_contended(&refused), "a plain lock is in the way")?;
    }
    // One of the same client's, too: it is held, and not handed over.
    let waiting = wait_fairly(&mut world, 0)?;
    world.submit_release(0, plain, false);
    demand(world.run_until(heartbeat(), |world| world.clients[0].outcomes.pop_front().is_some()), "free")?;
    for client in [0, 1] {
        let refused = acquire(&mut world, client, KEY, TTL, Duration::ZERO)?;
        demand(is_contended(&refused), "a fair lock is in the way")?;
    }
    // A plain waiter is notified of its release if nobody stands in the queue.
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
        no_tickets_are_left(&mut world)?;
    }
    Ok(())
}

pub fn a_fair_lock_survives_any_lost_byte() -> Verdict {
    (0..320).try_for_each(|size| {
        let mut world = world(3, 2, defaults);
        (world.weather.delay_min, world.weather.delay_max) = (MS, MS);
        let held = hold_fairly(&mut world, 0)?;
        world.submit_fair(1, KEY, TTL, LONG).expect("room");
        world.run_for(if size < 280 { MS / 2 } else { 3 * MS / 2 });
        if size < 280 {
            world.cut_conn(1, 0, size, 0);
        } else {
            world.cut_conn(1, 0, 0, size - 280);
        }
        world.run_for(100 * MS);
        world.submit_release(0, held, false);
        each_has_it(&mut world, &[1], SECOND).map_err(|why| format!("byte {size}: {why}"))?;
        world.run_for(SECOND);
        demand(!(0..3).any(|master| is_held(&world, master, KEY)), "a key is left")?;
        verdict(&mut world)
    })
}

/// Each asks again as soon as it has released, over links of different speed: no message is missed for which
/// it would have to wait until its heartbeat.
pub fn the_next_waiter_needs_no_heartbeat() -> Verdict {
    for seed in 0..100 {
        let (masters, clients) = [(3, 2), (3, 3), (5, 2), (5, 4)][usize::try_from(seed % 4).expect("small")];
        let mut world = world(masters, clients, defaults);
        world.rng = StdRng::seed_from_u64(seed);
        (world.weather.delay_min, world.weather.delay_max) = (MS / 10, 3 * MS);
        let mut changed_at = world.now;
        for client in 0..clients {
            world.submit_fair(client, KEY, TTL, LONG).expect("room");
        }
        for _ in 0..100 {
            let next = |world: &mut World| world.clients.iter().position(|it| !it.outcomes.is_empty());
            world.run_until(SECOND, |world| next(world).is_some());
            verdict(&mut world)?;
            let Some(client) = next(&mut world) else { return Err(format!("seed {seed}: nobody has it")) };
            let Some((lock, Outcome::Acquire(Ok(_)))) = world.clients[client].outcomes.pop_front() else {
                return Err(format!("seed {seed}: c{client} is denied"));
            };
            let took = world.now - changed_at;
            demand(
                took < heartbeat() / 5,
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
    a_place_is_kept_however_long_the_wait_is,
    one_clients_fair_waiters_keep_their_order,
    a_ticket_exceeds_all_earlier_ones,
    a_new_ticket_is_larger_than_any_that_stands,
    who_gives_up_keeps_nobody_waiting,
    those_who_died_cost_one_heartbeat_together,
    a_queue_of_the_dead_leaves_no_key,
    a_dead_holder_is_followed_at_its_end,
    a_dead_holder_that_had_waited_is_followed_at_its_end,
    only_the_first_fair_waiter_tries,
    a_lost_message_costs_a_part_of_a_heartbeat,
    a_minority_that_restarts_changes_no_order,
    a_queue_leaves_sets_of_others_alone,
    a_master_that_answers_last_has_the_tickets_too,
    a_restarted_master_regains_tickets_within_a_heartbeat,
    two_minorities_learn_who_is_first,
    fair_and_plain_locks_exclude_each_other,
    a_fair_script_that_was_flushed_is_sent_again,
    a_fair_lock_survives_any_lost_byte,
);
