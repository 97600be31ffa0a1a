//! Slots.

use std::collections::BTreeSet;

use rand::SeedableRng;
use rand::rngs::StdRng;
use redlatch::error::HeldBy;
use redlatch::limits;
use redlatch::pool::{door_name, slot_name};

use super::*;
use crate::slots::{POOL, SlotWorker};

/// More slots than the first waiter queues for.
const MANY: u32 = limits::SLOT_STAND_MAX + 4;

/// Clients with one worker each, in a world where a message takes a millisecond.
fn world(clients: usize) -> World {
    world_of(3, clients)
}

fn world_of(masters: usize, clients: usize) -> World {
    world_with(masters, clients, defaults)
}

fn world_with(
    masters: usize,
    clients: usize,
    settings: impl FnOnce(ConfigBuilder) -> ConfigBuilder,
) -> World {
    let mut world = super::world(masters, clients, |builder| settings(builder.ask_holder(false)));
    (world.weather.delay_min, world.weather.delay_max) = (MS, MS);
    for client in &mut world.clients {
        client.slots = vec![SlotWorker::directed()];
    }
    world.habits.pause_max = 0;
    world
}

fn options(wait: Duration) -> Options {
    Options::new().ttl(ms(10_000)).wait(wait)
}

fn begin(world: &mut World, client: usize, count: u32, wait: Duration) {
    world.begin_slot(client, 0, count, options(wait));
}

/// Runs until the slot is acquired or denied. Returns its number.
fn end(world: &mut World, client: usize, limit: Time) -> Result<Option<u32>, String> {
    world.run_until(limit, |world| !world.clients[client].slots[0].is_under_way());
    verdict(world)?;
    demand(!world.clients[client].slots[0].is_under_way(), "a slot is neither acquired nor denied")?;
    Ok(world.clients[client].slots[0].held.map(|(slot, _)| slot))
}

/// The last client acquires all slots of the pool but these, by their names.
fn take_slots(world: &mut World, count: u32, but: &[u32]) -> Result<Vec<OpId>, String> {
    let client = world.clients.len() - 1;
    let slots = (0..count).filter(|slot| !but.contains(slot));
    let taken = slots.map(|slot| hold(world, client, &slot_name(POOL, slot), ms(10_000)));
    taken.collect()
}

// I78
pub fn a_free_slot_is_found_in_two_round_trips() -> Verdict {
    for count in [limits::SLOT_COUNT_MAX, MANY] {
        let mut world = world(2);
        let free = count - 3;
        (0..count)
            .filter(|slot| *slot != free)
            .for_each(|slot| occupy(&mut world, 0..3, &slot_name(POOL, slot)));
        let begun = world.now;
        begin(&mut world, 0, count, Duration::ZERO);
        demand(end(&mut world, 0, SECOND)? == Some(free), "the only free slot is not found")?;
        // Each round trip takes two milliseconds, and a client's turn a little.
        demand(world.now - begun < 5 * MS, "it takes longer than two round trips")?;
    }
    Ok(())
}

// I78
pub fn a_slot_has_the_number_of_its_lock() -> Verdict {
    let mut world = world(2);
    take_slots(&mut world, MANY, &[7])?;
    begin(&mut world, 0, MANY, Duration::ZERO);
    demand(end(&mut world, 0, SECOND)? == Some(7), "the only free slot is not found")
}

// I78
pub fn slot_free_on_one_master_counts_as_taken() -> Verdict {
    let mut world = world(2);
    take_slots(&mut world, MANY, &[])?;
    // The other masters remember everything.
    for slot in 0..MANY {
        world.masters[0].model.data.keys.remove(&slot_name(POOL, slot).to_vec());
    }
    let before = world.clients[0].taken_count;
    begin(&mut world, 0, MANY, Duration::ZERO);
    demand(end(&mut world, 0, SECOND)?.is_none(), "a slot is held twice")?;
    demand(world.clients[0].taken_count - before == 1, "a slot that two masters know is tried")
}

/// Nobody waits, and all ask at the same moment, so the votes for some slots are split.
// I79
pub fn callers_that_come_together_fill_the_pool() -> Verdict {
    let mut refused_count = 0;
    for seed in 0..60 {
        for (masters, callers, count) in [(3, 4, 3), (3, 6, 2), (5, 12, 12), (5, 10, 1)] {
            let mut world = world_of(masters, callers);
            world.weather.delay_max = 4 * MS;
            world.rng = StdRng::seed_from_u64(seed);
            (0..callers).for_each(|client| begin(&mut world, client, count, Duration::ZERO));
            let mut numbers = BTreeSet::new();
            for client in 0..callers {
                if let Some(number) = end(&mut world, client, 2 * SECOND)? {
                    demand(numbers.insert(number), "two have a slot")?;
                    continue;
                }
                let failed = &world.clients[client].slots[0].failed;
                let Some(AcquireError::Contended(denial)) = failed else {
                    return Err(format!("seed {seed}, {callers} for {count}: {failed:?}"));
                };
                refused_count += 1;
                demand(denial.held_by == HeldBy::Slots(count), "it is refused although a slot may be free")?;
            }
            let text = format!("seed {seed}: {callers} of {masters} masters take {numbers:?} of {count}");
            demand(numbers.len() == callers.min(count as usize), &text)?;
        }
    }
    demand(refused_count == 60 * (1 + 4 + 9), "another number than those for whom there is no slot")
}

// I80
pub fn waiters_get_slots_in_their_order() -> Verdict {
    for count in [2, MANY] {
        let mut world = world(5);
        let mut taken = take_slots(&mut world, count, &[])?;
        for client in 0..4 {
            begin(&mut world, client, count, ms(60_000));
            world.run_for(50 * MS);
        }
        for client in 0..4 {
            let (holder, lock) = match taken.pop().filter(|_| client < 2) {
                Some(lock) => (4, lock),
                None => (client - 1, world.clients[client - 1].slots[0].held.expect("it has one").1),
            };
            world.submit_release(holder, lock, false);
            demand(end(&mut world, client, SECOND)?.is_some(), "another waiter was faster")?;
            demand(world.clients[client + 1..4].iter().all(|it| it.slots[0].is_under_way()), "two have it")?;
        }
    }
    Ok(())
}

/// After the release: for few slots a hand-over; for many a pause, a search and an attempt.
// I80
pub fn a_released_slot_is_found_in_time() -> Verdict {
    let pause = Time::try_from(limits::SLOT_LOOK_PAUSE_MAX.as_nanos()).expect("small");
    for (count, limit) in [(3, 4 * MS), (limits::SLOT_STAND_MAX, 4 * MS), (MANY, pause + 6 * MS)] {
        for released in [0, count as usize - 1] {
            let mut world = world(2);
            let taken = take_slots(&mut world, count, &[])?;
            begin(&mut world, 0, count, ms(60_000));
            world.run_for(5 * SECOND);
            demand(world.clients[0].slots[0].is_under_way(), "it does not wait")?;
            let at = world.now;
            world.submit_release(1, taken[released], false);
            demand(end(&mut world, 0, SECOND)?.is_some(), "it is denied a free slot")?;
            demand(world.now - at <= limit, "it sleeps beside a free slot")?;
        }
    }
    Ok(())
}

// I80
pub fn the_next_waiter_gets_the_door_at_once() -> Verdict {
    for count in [2, MANY] {
        let mut world = world(3);
        let taken = take_slots(&mut world, count, &[])?;
        for client in 0..2 {
            begin(&mut world, client, count, ms(60_000));
            world.run_for(50 * MS);
        }
        demand(world.clients[1].slots[0].is_at_door(), "the second one is inside")?;
        world.submit_release(2, taken[0], false);
        demand(end(&mut world, 0, SECOND)?.is_some(), "the first one is denied a free slot")?;
        world.run_for(10 * MS);
        demand(!world.clients[1].slots[0].is_at_door(), "the door is kept")?;
        world.submit_release(2, taken[1], false);
        demand(end(&mut world, 1, SECOND)?.is_some(), "the second one is denied a free slot")?;
        world.run_for(10 * MS);
        demand((0..3).all(|master| !is_held(&world, master, &door_name(POOL))), "the door stays locked")?;
    }
    Ok(())
}

// I80
pub fn only_one_waiter_looks() -> Verdict {
    let mut world = world(4);
    take_slots(&mut world, MANY, &[])?;
    for client in 0..3 {
        begin(&mut world, client, MANY, ms(3_000));
        world.run_for(50 * MS);
    }
    world.run_for(SECOND);
    let looks: Vec<u64> = world.clients[..3].iter().map(|it| it.slots[0].look_count).collect();
    demand(looks[0] > 10 && looks[1..] == [1, 1], &format!("the clients look {looks:?} times"))
}

// I80
pub fn a_killed_first_waiter_costs_the_doors_ttl() -> Verdict {
    for count in [2, MANY] {
        let mut world = world(3);
        let taken = take_slots(&mut world, count, &[])?;
        for client in 0..2 {
            begin(&mut world, client, count, ms(60_000));
            world.run_for(50 * MS);
        }
        world.crash_client(0);
        let at = world.now;
        world.submit_release(2, taken[0], false);
        demand(end(&mut world, 1, 3 * SECOND)?.is_some(), "the second one is denied a free slot")?;
        let ttl = Time::try_from(limits::DOOR_TTL.as_nanos()).expect("small");
        demand(world.now - at <= ttl + 100 * MS, "it waits for the dead for longer than the door's TTL")?;
    }
    Ok(())
}

/// The door ends with `max_hold`, so the next waiter comes inside, and both get slots.
// I80
pub fn a_waiter_outlives_its_door() -> Verdict {
    for count in [2, MANY] {
        let mut world = world_with(3, 3, |builder| builder.max_hold(ms(2_000)));
        let taken = take_slots(&mut world, count, &[])?;
        for client in 0..2 {
            begin(&mut world, client, count, ms(60_000));
            world.run_for(50 * MS);
        }
        demand(world.clients[1].slots[0].is_at_door(), "the second one is inside at once")?;
        world.run_for(3 * SECOND);
        demand(!world.clients[1].slots[0].is_at_door(), "the door does not end")?;
        (0..2).for_each(|slot| world.submit_release(2, taken[slot], false));
        for client in 0..2 {
            demand(end(&mut world, client, SECOND)?.is_some(), "a waiter does not outlive the door")?;
        }
    }
    Ok(())
}

// I81
pub fn a_slot_that_is_given_up_leaves_nothing() -> Verdict {
    for count in [2, MANY] {
        // At each stage: during a try, at the door, inside.
        for (wait, is_second) in [(MS / 2, false), (3 * MS, false), (20 * MS, true), (200 * MS, false)] {
            let mut world = world(3);
            take_slots(&mut world, count, &[])?;
            if is_second {
                begin(&mut world, 1, count, ms(60_000));
                world.run_for(50 * MS);
            }
            begin(&mut world, 0, count, ms(60_000));
            world.run_for(wait);
            world.give_up_slot(0, 0);
            world.run_for(50 * MS);
            verdict(&mut world)?;
            let engine = &world.clients[0].engine;
            demand(engine.operation_count() == 0 && engine.claim_count() == 0, "something is left")?;
            demand(is_second || !is_held(&world, 0, &door_name(POOL)), "the door stays locked")?;
        }
    }
    Ok(())
}

// I81
pub fn a_drain_ends_a_wait_for_slots() -> Verdict {
    for count in [2, MANY] {
        let mut world = world(2);
        take_slots(&mut world, count, &[])?;
        begin(&mut world, 0, count, ms(60_000));
        world.run_for(5 * SECOND);
        let at = world.now;
        world.submit_drain(0, redlatch::HeldLocks::Leave, ms(10_000));
        demand(end(&mut world, 0, SECOND)?.is_none(), "a drained client has a slot")?;
        let is_stopped = matches!(world.clients[0].slots[0].failed, Some(AcquireError::Stopped(_)));
        demand(is_stopped, "the error does not say that the client is drained")?;
        demand(world.now - at <= 60 * MS, "a drained client waits on")?;
    }
    Ok(())
}

// I81
pub fn a_wait_ends_with_the_slots_that_were_taken() -> Verdict {
    for count in [2, MANY] {
        let mut world = world(3);
        take_slots(&mut world, count, &[])?;
        for client in 0..2 {
            begin(&mut world, client, count, ms(400));
        }
        let at = world.now;
        for client in 0..2 {
            demand(end(&mut world, client, SECOND)?.is_none(), "a slot is held twice")?;
            let Some(AcquireError::Contended(denial)) = &world.clients[client].slots[0].failed else {
                return Err("it is not contended".to_owned());
            };
            let is_slot = denial.report.resource.starts_with(b"redlatch:slot:");
            demand(is_slot, "the error names no slot")?;
        }
        demand((350 * MS..420 * MS).contains(&(world.now - at)), "it does not wait for its time")?;
    }
    Ok(())
}

// I80
pub fn failure_in_one_slots_queue_keeps_the_others() -> Verdict {
    let mut world = world(2);
    let taken = take_slots(&mut world, 2, &[])?;
    begin(&mut world, 0, 2, ms(60_000));
    world.run_for(SECOND);
    // The masters' answers about one slot are no answers about another.
    let (_, first) = world.clients[0].slots[0].asked()[0];
    let error = AcquireError::NoQuorum(Box::new(redlatch::error::Denial::new(redlatch::error::Report::new(
        redlatch::error::Round::Acquire,
        "x",
    ))));
    world.submit_release(0, first, false);
    world.notify_slot(0, first, &Outcome::Acquire(Err(error)));
    demand(world.clients[0].slots[0].is_under_way(), "it gives up though another slot may be had")?;
    world.submit_release(1, taken[1], false);
    world.submit_release(1, taken[0], false);
    demand(end(&mut world, 0, SECOND)?.is_some(), "it is denied a free slot")
}

tests! {
    a_free_slot_is_found_in_two_round_trips,
    a_slot_has_the_number_of_its_lock,
    slot_free_on_one_master_counts_as_taken,
    callers_that_come_together_fill_the_pool,
    waiters_get_slots_in_their_order,
    a_released_slot_is_found_in_time,
    the_next_waiter_gets_the_door_at_once,
    only_one_waiter_looks,
    a_killed_first_waiter_costs_the_doors_ttl,
    a_waiter_outlives_its_door,
    a_slot_that_is_given_up_leaves_nothing,
    a_drain_ends_a_wait_for_slots,
    a_wait_ends_with_the_slots_that_were_taken,
    failure_in_one_slots_queue_keeps_the_others,
}
