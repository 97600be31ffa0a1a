//! Reentrant locks.

use super::*;
use crate::owners::{CallerState, Owner};

/// Clients with one owner each, and three callers for each owner.
fn world(clients: usize) -> World {
    let mut world = super::world(3, clients, defaults);
    for client in &mut world.clients {
        client.owners = vec![Owner::directed(3)];
    }
    world
}

fn enter(world: &mut World, caller: usize) {
    world.enter(0, 0, caller, ms(1000), Duration::ZERO);
}

fn exit(world: &mut World, caller: usize) {
    world.exit(0, 0, caller);
    world.run_for(10 * MS);
}

fn state(world: &World, caller: usize) -> CallerState {
    world.clients[0].owners[0].callers[caller].state
}

fn is_locked(world: &World) -> bool {
    (0..3).all(|master| is_held(world, master, KEY))
}

/// The callers with a counted hold fetch it now.
fn fetch(world: &mut World) {
    for caller in 0..3 {
        if state(world, caller) == CallerState::Counted {
            world.fetch_hold(0, 0, caller);
        }
    }
}

// I82
pub fn a_reentrant_lock_lasts_from_first_to_last() -> Verdict {
    let mut world = world(2);
    enter(&mut world, 0);
    world.run_for(MS);
    demand(is_locked(&world), "the first hold does not lock it")?;
    enter(&mut world, 1);
    demand(state(&world, 1) == CallerState::Inside, "the owner does not get in again")?;
    exit(&mut world, 0);
    verdict(&mut world)?;
    demand(is_locked(&world), "it is released while a hold is left")?;
    let other = acquire(&mut world, 1, KEY, ms(1000), Duration::ZERO)?;
    demand(matches!(other, Outcome::Acquire(Err(_))), "another owner gets in")?;
    exit(&mut world, 1);
    demand(!is_locked(&world), "it is kept though no hold is left")?;
    // Ending one hold too many frees nobody else's lock.
    hold(&mut world, 1, KEY, ms(1000))?;
    demand(world.clients[0].owners[0].holds.end().is_none(), "a hold is ended that there was not")?;
    exit(&mut world, 1);
    verdict(&mut world)?;
    demand(is_locked(&world), "another owner's lock is freed")
}

// I82
pub fn joining_callers_have_their_own_holds() -> Verdict {
    // In some runs one of three callers leaves, and the attempt goes on for the others.
    for leaver in [None, Some(0), Some(2)] {
        let mut world = world(1);
        (world.weather.delay_min, world.weather.delay_max) = (5 * MS, 5 * MS);
        (0..3).for_each(|caller| enter(&mut world, caller));
        let all_joined = (0..3).all(|caller| matches!(state(&world, caller), CallerState::Joined(_)));
        demand(all_joined, "not all wait for one attempt")?;
        leaver.into_iter().for_each(|leaver| world.exit(0, 0, leaver));
        world.run_for(20 * MS);
        fetch(&mut world);
        let inside: Vec<usize> = (0..3).filter(|it| state(&world, *it) == CallerState::Inside).collect();
        demand(inside.len() == 3 - leaver.iter().count(), "not all who joined have it")?;
        for (ended, caller) in (1..).zip(&inside) {
            exit(&mut world, *caller);
            world.run_for(20 * MS);
            verdict(&mut world)?;
            demand(ended == inside.len() || is_locked(&world), "it is released with holds left")?;
        }
        demand(!is_locked(&world), "it is kept though no hold is left")?;
    }
    Ok(())
}

// I82
pub fn ended_reentrant_lock_admits_no_caller() -> Verdict {
    let mut world = world(2);
    enter(&mut world, 0);
    world.run_for(SECOND);
    hold(&mut world, 1, KEY, ms(10_000))?;
    enter(&mut world, 1);
    verdict(&mut world)?;
    demand(state(&world, 1) == CallerState::Outside, "an owner is let in while another one is")?;
    // After the old hold's end, the lock is requested again.
    exit(&mut world, 0);
    demand(!world.clients[0].owners[0].is_busy(), "a hold is left")?;
    demand(is_locked(&world), "the end of an old hold frees another owner's lock")
}

// I82
pub fn a_hold_fetched_after_the_end_is_void() -> Verdict {
    let mut world = world(2);
    enter(&mut world, 0);
    world.run_for(SECOND);
    demand(state(&world, 0) == CallerState::Counted, "it has been fetched")?;
    hold(&mut world, 1, KEY, ms(10_000))?;
    fetch(&mut world);
    verdict(&mut world)?;
    demand(state(&world, 0) == CallerState::Outside, "a hold of a lock that is over")?;
    demand(!world.clients[0].owners[0].is_busy(), "the hold that is none is counted still")
}

/// Callers that ask one millisecond apart, and wait for a second.
fn enter_all(world: &mut World) {
    for caller in 0..3 {
        world.enter(0, 0, caller, ms(1000), ms(1000));
        world.run_for(MS);
    }
}

// I83
pub fn a_failed_attempt_is_not_repeated_without_end() -> Verdict {
    // The request allows no more tries.
    let mut world = world(2);
    hold(&mut world, 1, KEY, ms(10_000))?;
    world.weather.delay_min = 2 * MS;
    world.weather.delay_max = 2 * MS;
    world.clients[0].owners[0].attempts_max = Some(1);
    enter_all(&mut world);
    world.run_for(100 * MS);
    verdict(&mut world)?;
    demand(!world.clients[0].owners[0].is_busy(), "it goes on after the last try")?;
    // No try would help, because all masters are in quarantine beyond the wait.
    let mut world = self::world(1);
    (0..3).for_each(|master| world.kill_master(master, true));
    world.run_for(MS);
    (0..3).for_each(|master| world.start_master(master, Data::Empty));
    world.run_for(2 * SECOND);
    enter_all(&mut world);
    verdict(&mut world)?;
    demand(!world.clients[0].owners[0].is_busy(), "it waits for the end of the quarantine")
}

// I83
pub fn a_longer_wait_outlasts_a_failed_attempt() -> Verdict {
    let mut world = world(2);
    let lock = hold(&mut world, 1, KEY, ms(10_000))?;
    world.enter(0, 0, 0, ms(1000), ms(1000));
    world.run_for(500 * MS);
    world.enter(0, 0, 1, ms(1000), ms(1000));
    world.run_for(700 * MS);
    verdict(&mut world)?;
    demand(state(&world, 0) == CallerState::Outside, "the first one waits for longer than it wants")?;
    demand(matches!(state(&world, 1), CallerState::Joined(_)), "the second one does not go on")?;
    world.submit_release(1, lock, true);
    world.run_for(290 * MS);
    fetch(&mut world);
    verdict(&mut world)?;
    demand(state(&world, 1) == CallerState::Inside, "it does not get the lock within its wait")
}

tests!(
    a_failed_attempt_is_not_repeated_without_end,
    a_longer_wait_outlasts_a_failed_attempt,
    a_reentrant_lock_lasts_from_first_to_last,
    joining_callers_have_their_own_holds,
    ended_reentrant_lock_admits_no_caller,
    a_hold_fetched_after_the_end_is_void,
);
