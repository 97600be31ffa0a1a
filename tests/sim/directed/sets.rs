//! Sets of locks.

use redlatch::compose::set_acquisition::Failed;

use super::*;
use crate::sets::SetWorker;

const A: &[u8] = b"a";
const B: &[u8] = b"b";
const C: &[u8] = b"c";

/// Clients with one set each, in a world where a message takes a millisecond.
fn world(clients: usize) -> World {
    let mut world = super::world(3, clients, |builder| builder.ask_holder(false));
    (world.weather.delay_min, world.weather.delay_max) = (MS, MS);
    for client in &mut world.clients {
        client.sets = vec![SetWorker::directed()];
    }
    world.habits.pause_max = 0;
    world
}

fn begin(world: &mut World, client: usize, names: &[&[u8]], ttl: Duration, wait: Duration) {
    world.begin_set(client, 0, names, (ttl, wait), Duration::ZERO);
}

fn is_under_way(world: &World, client: usize) -> bool {
    world.clients[client].sets[0].is_under_way()
}

/// Runs until the set is acquired or denied. Returns whether it is acquired.
fn end(world: &mut World, client: usize, limit: Time) -> Result<bool, String> {
    world.run_until(limit, |world| !is_under_way(world, client));
    verdict(world)?;
    demand(!is_under_way(world, client), "a set is neither acquired nor denied")?;
    Ok(!world.clients[client].sets[0].held.is_empty())
}

fn failure(world: &World, client: usize) -> Result<&Failed, String> {
    world.clients[client].sets[0].failed.as_ref().ok_or_else(|| "it did not fail".to_owned())
}

// I77
pub fn a_waiting_set_holds_nothing() -> Verdict {
    let mut world = world(2);
    // First refused at once, then after a wait for the first lock.
    let [first, second] = [hold(&mut world, 1, A, ms(10_000))?, hold(&mut world, 1, B, ms(10_000))?];
    begin(&mut world, 0, &[C, B, A], ms(10_000), ms(60_000));
    world.run_for(50 * MS);
    demand(!is_held(&world, 0, C), "a lock is held while another is waited for")?;
    world.submit_release(1, first, false);
    world.run_for(50 * MS);
    verdict(&mut world)?;
    demand(is_under_way(&world, 0) && !is_held(&world, 0, A), "the lock that was waited for is kept")?;
    world.submit_release(1, second, false);
    demand(end(&mut world, 0, 10 * SECOND)?, "it is denied though all are free")
}

// I77
pub fn set_releases_late_grants_at_once() -> Verdict {
    let mut world = world(2);
    hold(&mut world, 1, A, ms(10_000))?;
    // The refusals arrive first.
    (0..3).for_each(|master| world.masters[master].model.put(B, b"other", None));
    begin(&mut world, 0, &[A, B, C], ms(10_000), Duration::ZERO);
    demand(!end(&mut world, 0, 10 * SECOND)?, "two of its locks are taken")?;
    let failed = failure(&world, 0)?;
    let is_first = failed.place == 0 && matches!(failed.error, AcquireError::Contended(_));
    demand(is_first, "not the first lock by name is said to be in the way")?;
    world.run_for(50 * MS);
    demand(!is_held(&world, 0, C), "what was granted last is kept")
}

// I77
pub fn a_set_with_a_taken_lock_fails() -> Verdict {
    let mut world = world(2);
    hold(&mut world, 1, B, ms(10_000))?;
    begin(&mut world, 0, &[A, B], ms(10_000), Duration::ZERO);
    let is_whole = end(&mut world, 0, 10 * SECOND)?;
    demand(!is_whole, "a set is handed out without one of its locks")?;
    world.run_for(50 * MS);
    demand(!is_held(&world, 0, A), "a subset is kept")
}

// I77
pub fn a_set_keeps_distance_from_its_end() -> Verdict {
    let mut world = world(2);
    let lock = hold(&mut world, 1, A, ms(10_000))?;
    // The validity is 988 ms, and this much of it must be left.
    world.begin_set(0, 0, &[A, B], (ms(1000), ms(60_000)), ms(970));
    world.run_for(20 * MS);
    world.submit_release(1, lock, false);
    // It gets the awaited lock in 2 ms, and the other one 30 ms later.
    demand(world.run_until(SECOND, |world| world.clients[0].sets[0].has_waited()), "it waits no more")?;
    (world.weather.delay_min, world.weather.delay_max) = (15 * MS, 15 * MS);
    world.run_until(SECOND, |world| !world.clients[0].sets[0].has_waited());
    verdict(&mut world)?;
    demand(is_under_way(&world, 0), "less is left of its first lock than was asked for")?;
    (world.weather.delay_min, world.weather.delay_max) = (MS, MS);
    demand(end(&mut world, 0, 10 * SECOND)?, "it is denied though all are free")?;
    demand(world.set_validity(0, 0) > ms(970), "too little is left of it")
}

// I77
pub fn a_set_ends_with_its_first_lock() -> Verdict {
    let mut world = world(1);
    begin(&mut world, 0, &[A, B], ms(500), Duration::ZERO);
    demand(end(&mut world, 0, SECOND)?, "both are free")?;
    let lock = world.clients[0].sets[0].held[1];
    world.submit_extend(0, lock, ms(5000));
    world.run_for(200 * MS);
    demand(!world.set_validity(0, 0).is_zero(), "it ends before its locks")?;
    world.run_for(400 * MS);
    verdict(&mut world)?;
    demand(world.set_validity(0, 0).is_zero(), "it is valid though one of its locks is over")
}

/// Runs until a set of a client that still wants one is acquired or denied. Returns the client.
fn next_to_end(world: &mut World, dined: &[usize; 3]) -> Option<usize> {
    let has_ended = |world: &World, client: &usize| dined[*client] < 3 && !is_under_way(world, *client);
    world.run_until(60 * SECOND, |world| (0..3).any(|client| has_ended(world, &client)));
    (0..3).find(|client| has_ended(world, client))
}

// I77
pub fn sets_that_overlap_in_a_circle_are_all_acquired() -> Verdict {
    let circle: [&[&[u8]]; 3] = [&[A, B], &[B, C], &[C, A]];
    for seed in 0..40 {
        let mut world = world(3);
        // The clients meet in all orders.
        world.rng = rand::SeedableRng::seed_from_u64(seed);
        (world.weather.delay_min, world.weather.delay_max) = (MS / 10, 5 * MS);
        for (client, names) in circle.iter().enumerate() {
            begin(&mut world, client, names, ms(10_000), ms(60_000));
        }
        // A caller with its locks holds them for a moment, and wants them twice more.
        let (mut dined, began) = ([0; 3], world.now);
        while dined != [3; 3] {
            let Some(client) = next_to_end(&mut world, &dined) else {
                return Err(format!("seed {seed}: sets wait for each other: {dined:?}"));
            };
            demand(end(&mut world, client, 0)?, &format!("seed {seed}: a set is denied in its wait"))?;
            world.run_for(MS);
            world.release_set(client, 0, false);
            dined[client] += 1;
            if dined[client] < 3 {
                begin(&mut world, client, circle[client], ms(10_000), ms(60_000));
            }
        }
        demand(world.now - began < 9 * SECOND, &format!("seed {seed}: it took as long as a TTL"))?;
        verdict(&mut world)?;
    }
    Ok(())
}

// I77
pub fn an_abandoned_set_leaves_no_key() -> Verdict {
    for pause in 0..40 {
        for has_tasks in [false, true] {
            let mut world = unconnected(3, |builder| builder.ask_holder(false));
            world.has_tasks = has_tasks;
            for _ in 0..2 {
                world.add_client(Clock::new(0, 0), 0);
            }
            world.run_for(10 * MS);
            (world.weather.delay_min, world.weather.delay_max) = (MS, MS);
            world.clients[0].sets = vec![SetWorker::directed()];
            world.submit_acquire(1, B, ms(10_000), Duration::ZERO).expect("room");
            world.run_for(10 * MS);
            let lock = world.clients[1].locks[0].0;
            begin(&mut world, 0, &[A, B, C], ms(10_000), ms(60_000));
            world.run_for(pause * MS / 4);
            if pause > 20 {
                world.submit_release(1, lock, false);
                world.run_for(pause * MS / 4);
            }
            if is_under_way(&world, 0) {
                world.give_up_set(0, 0);
            } else {
                world.release_set(0, 0, false);
            }
            world.run_for(300 * MS);
            verdict(&mut world)?;
            let is_left = [A, C].into_iter().any(|key| (0..3).any(|master| is_held(&world, master, key)));
            demand(!is_left, &format!("after {pause} quarters of a millisecond a key is left"))?;
        }
    }
    Ok(())
}

tests!(
    a_waiting_set_holds_nothing,
    set_releases_late_grants_at_once,
    a_set_with_a_taken_lock_fails,
    a_set_keeps_distance_from_its_end,
    a_set_ends_with_its_first_lock,
    sets_that_overlap_in_a_circle_are_all_acquired,
    an_abandoned_set_leaves_no_key,
);
