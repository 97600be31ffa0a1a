//! Drains.

use redlatch::engine::{HeldLocks, Request, Resource, SubmitError};

use super::*;
use crate::model::queue_key;

/// Whether any master has the key.
fn is_anywhere(world: &World) -> bool {
    (0..3).any(|master| is_held(world, master, KEY))
}

// I117
pub fn a_drained_client_acquires_nothing() -> Verdict {
    let mut world = world(3, 1, defaults);
    world.submit_drain(0, HeldLocks::Leave, ms(1000));
    world.run_for(10 * MS);
    let now = world.local(0);
    let resource = Resource::new(KEY).expect("a name");
    let request = Request::Acquire { resource, options: Options::new().ttl(ms(1000)), label: None };
    let refused = world.clients[0].engine.submit(now, request);
    verdict(&mut world)?;
    demand(matches!(refused, Err(SubmitError::Stopped(_))), "a drained client acquires a lock")
}

// I117
pub fn a_drain_ends_those_who_wait() -> Verdict {
    let mut world = world(3, 2, defaults);
    hold(&mut world, 1, KEY, ms(10_000))?;
    // One caller waits for another client's lock, and one behind it in this client's queue.
    for _ in 0..2 {
        world.submit_acquire(0, KEY, ms(10_000), ms(60_000)).expect("room");
    }
    world.run_for(10 * MS);
    world.submit_drain(0, HeldLocks::Leave, ms(1000));
    world.run_for(10 * MS);
    verdict(&mut world)?;
    let engine = &world.clients[0].engine;
    demand((engine.operation_count(), engine.claim_count()) == (0, 0), "somebody waits still")
}

// I117
pub fn a_drain_leaves_locks_to_their_guards() -> Verdict {
    let mut world = world(3, 1, defaults);
    let lock = hold(&mut world, 0, KEY, ms(10_000))?;
    world.submit_drain(0, HeldLocks::Leave, ms(1000));
    world.run_for(500 * MS);
    demand((0..3).all(|master| is_held(&world, master, KEY)), "a lock is released that was to be left")?;
    demand(world.clients[0].engine.operation_count() == 2, "the drain is over before the lock")?;
    world.submit_release(0, lock, false);
    world.run_for(10 * MS);
    verdict(&mut world)?;
    demand(!is_anywhere(&world), "the guard's release is lost")?;
    demand(world.clients[0].engine.operation_count() == 0, "the drain outlasts the last lock")
}

// I117
pub fn a_drain_ends_validities_before_it_releases() -> Verdict {
    let mut world = world(3, 1, defaults);
    let lock = hold(&mut world, 0, KEY, ms(10_000))?;
    let engine = &world.clients[0].engine;
    let validity = engine.validity(lock).expect("it is held");
    let until = engine.valid_until(lock).expect("it is held");
    world.submit_drain(0, HeldLocks::Release, ms(1000));
    world.run_for(10 * MS);
    demand(!is_anywhere(&world), "the lock is not released")?;
    demand(validity.until(until) < world.local(0), "the guard of a released lock is valid")
}

// I117
pub fn slot_reuse_after_a_drain_changes_no_validity() -> Verdict {
    for is_lost in [false, true] {
        let mut world = world(3, 1, defaults);
        let lock = hold(&mut world, 0, KEY, ms(10_000))?;
        let engine = &world.clients[0].engine;
        let validity = engine.validity(lock).expect("it is held");
        let until = engine.valid_until(lock).expect("it is held");
        if is_lost {
            (0..3).for_each(|master| world.flush_all(master));
            extend(&mut world, 0, lock, ms(10_000))?;
        }
        world.submit_drain(0, HeldLocks::Release, ms(1000));
        // The inspections take the free slots.
        for _ in 0..3 {
            world.submit_inspect(0, KEY);
        }
        world.run_for(10 * MS);
        demand(validity.until(until) < world.local(0), "the guard of a released lock is valid again")?;
    }
    Ok(())
}

// I117
pub fn a_drain_waits_until_a_fair_waiter_has_left() -> Verdict {
    let mut world = world(3, 2, defaults);
    (world.weather.delay_min, world.weather.delay_max) = (MS, MS);
    hold(&mut world, 1, KEY, ms(10_000))?;
    let options = Options::new().ttl(ms(10_000)).wait(ms(60_000)).fair();
    world.submit_with(0, KEY, options).expect("room");
    // Its round waits in the masters' queues.
    world.run_for(20 * MS);
    world.submit_drain(0, HeldLocks::Release, ms(1000));
    world.run_for(MS / 2);
    demand(world.clients[0].engine.operation_count() > 0, "the drain ends before it has written anything")?;
    world.run_for(10 * MS);
    verdict(&mut world)?;
    demand(world.clients[0].engine.operation_count() == 0, "the drain does not end")?;
    let it = &world.masters[0];
    demand(!it.model.is_taken(it.clock.at(world.now), &queue_key(KEY)), "an entry is left")
}

tests!(
    a_drained_client_acquires_nothing,
    a_drain_ends_those_who_wait,
    a_drain_leaves_locks_to_their_guards,
    a_drain_ends_validities_before_it_releases,
    slot_reuse_after_a_drain_changes_no_validity,
    a_drain_waits_until_a_fair_waiter_has_left,
);
