//! Queues within one client, and hand-over.

use super::*;

/// Call of a script by its digest.
fn by_digest(name: &str) -> String {
    format!("EVALSHA {}", crate::model::digest(name))
}

/// A held lock, with one more caller of the same client in line.
fn hold_with_next(world: &mut World, ttl: Duration, next_ttl: Duration) -> Result<(OpId, OpId), String> {
    let lock = hold(world, 0, KEY, ttl)?;
    let next = world.submit_acquire(0, KEY, next_ttl, ms(60_000)).expect("room");
    world.run_for(MS);
    Ok((lock, next))
}

fn held_by_next(world: &mut World) -> Verdict {
    match outcome(world, 0)? {
        Outcome::Acquire(Ok(_)) => Ok(()),
        other => Err(format!("the next in line should have it, but {other:?}")),
    }
}

fn nothing_is_left(world: &World, why: &str) -> Verdict {
    demand(!(0..world.masters.len()).any(|master| is_held(world, master, KEY)), why)
}

// I41
pub fn local_waiter_sends_no_command() -> Verdict {
    let mut world = world(3, 1, defaults);
    world.trace = Some(Vec::new());
    let lock = hold(&mut world, 0, KEY, ms(10_000))?;
    let waiting: Vec<OpId> =
        (0..3).map(|_| world.submit_acquire(0, KEY, ms(10_000), ms(60_000)).expect("room")).collect();
    world.run_for(200 * MS);
    let mut held = lock;
    for next in waiting {
        world.submit_release(0, held, false);
        held_by_next(&mut world)?;
        demand(world.clients[0].engine.valid_until(next).is_some(), "not the first in line has it")?;
        held = next;
    }
    let trace = world.trace.take().unwrap_or_default();
    let count = trace.iter().filter(|line| line.contains("m0 for c0: SET a")).count();
    verdict(&mut world)?;
    demand(count == 1, &format!("m0 was sent {count} SETs: those in line asked it"))
}

// I51
pub fn a_lost_lock_is_never_handed_over() -> Verdict {
    let mut world = world(3, 2, defaults);
    let (lock, _) = hold_with_next(&mut world, ms(10_000), ms(10_000))?;
    (0..2).for_each(|master| world.flush_all(master));
    hold(&mut world, 1, KEY, ms(10_000))?;
    world.submit_release(0, lock, false);
    world.run_for(SECOND);
    verdict(&mut world)?;
    demand(world.clients[0].outcomes.is_empty(), "it was handed over though somebody else holds it")
}

// I52
pub fn a_forgotten_swap_never_follows_a_release() -> Verdict {
    let mut world = world(1, 1, defaults);
    let (lock, next) = hold_with_next(&mut world, ms(10_000), ms(10_000))?;
    world.masters[0].model.errors.insert(by_digest("swap"), "NOSCRIPT No matching script.".to_owned());
    world.stall(0, 0, false, true, 40 * MS);
    world.submit_release(0, lock, false);
    world.run_for(5 * MS);
    world.submit_release(0, next, true);
    world.run_for(SECOND);
    verdict(&mut world)?;
    nothing_is_left(&world, "the swap came behind the release of what it sets, and the key stays")
}

// I52
pub fn a_lost_swap_is_released() -> Verdict {
    let mut world = world(3, 1, defaults);
    let (lock, next) = hold_with_next(&mut world, ms(10_000), ms(10_000))?;
    (world.weather.delay_min, world.weather.delay_max) = (MS, MS);
    world.submit_release(0, lock, false);
    world.run_for(MS / 2);
    world.cut_conn(0, 2, 0, 0);
    held_by_next(&mut world)?;
    world.run_for(SECOND);
    demand(world.clients[0].engine.margin(next) == 1, "the old key is in the way of the new one")?;
    world.submit_release(0, next, false);
    world.run_for(SECOND);
    verdict(&mut world)?;
    nothing_is_left(&world, "the key of the lock that was handed over stays")
}

// I7
pub fn a_swaps_grant_dies_with_its_connection() -> Verdict {
    let mut world = world(3, 1, |b| b.answer_timeout(ms(500)));
    let (lock, next) = hold_with_next(&mut world, ms(10_000), ms(10_000))?;
    (1..3).for_each(|master| world.stall(0, master, false, true, 10 * MS));
    world.stall(0, 2, false, true, 10 * SECOND);
    world.submit_release(0, lock, false);
    world.run_for(MS);
    world.break_conn(0, 0);
    world.run_for(100 * MS);
    verdict(&mut world)?;
    let is_held = world.clients[0].engine.valid_until(next).is_some();
    demand(!is_held, "a grant counts though its connection is gone, and one more is no quorum")
}

// I52
pub fn a_swap_that_comes_late_leaves_no_key() -> Verdict {
    let mut world = world(1, 1, defaults);
    let (lock, next) = hold_with_next(&mut world, ms(10_000), ms(10_000))?;
    // The connection ends for the client, and the swap that it sent arrives a second later. Releases fail at
    // first. The first successful release is for the new token, before the swap; the next is for the old token,
    // after the swap.
    for release in ["release", "release_serve"] {
        world.masters[0].model.errors.insert(by_digest(release), "OOM no".to_owned());
    }
    world.stall(0, 0, true, false, SECOND);
    world.submit_release(0, lock, false);
    world.run_for(20 * MS);
    world.break_conn(0, 0);
    world.run_for(MS);
    world.submit_release(0, next, false);
    world.run_for(789 * MS);
    world.masters[0].model.errors.clear();
    world.run_for(100 * MS);
    demand(is_held(&world, 0, KEY), "the old token should be there still")?;
    world.run_for(4 * SECOND);
    verdict(&mut world)?;
    nothing_is_left(&world, "the swap came after the release of what it sets, and the key stays")
}

// I51
pub fn a_handed_over_validity_counts_from_the_release() -> Verdict {
    let mut world = world(3, 1, |b| b.answer_timeout(ms(500)));
    let (lock, _) = hold_with_next(&mut world, ms(10_000), ms(1000))?;
    (0..3).for_each(|master| world.stall(0, master, false, true, 400 * MS));
    world.submit_release(0, lock, false);
    held_by_next(&mut world)?;
    verdict(&mut world)
}

// I53
pub fn other_clients_get_their_turn() -> Verdict {
    let mut world = world(3, 2, defaults);
    (world.weather.delay_min, world.weather.delay_max) = (MS / 10, MS / 5);
    let mut held = hold(&mut world, 0, KEY, ms(10_000))?;
    world.submit_acquire(1, KEY, ms(10_000), ms(60_000)).expect("room");
    let begin = world.now;
    while world.clients[1].outcomes.is_empty() && world.now < begin + 10 * SECOND {
        // Another caller is always waiting.
        let next = world.submit_acquire(0, KEY, ms(10_000), ms(60_000)).expect("room");
        world.run_for(MS);
        world.submit_release(0, held, false);
        let is_answered = |world: &mut World| !(0..2).all(|it| world.clients[it].outcomes.is_empty());
        world.run_until(10 * SECOND, is_answered);
        held = next;
        world.clients[0].outcomes.clear();
    }
    verdict(&mut world)?;
    demand(!world.clients[1].outcomes.is_empty(), "one client has the lock for ten seconds in a row")
}

// I50
pub fn a_holder_that_expires_delays_nobody() -> Verdict {
    let mut world = world(3, 1, defaults);
    hold(&mut world, 0, KEY, ms(1000))?;
    let next = acquire(&mut world, 0, KEY, ms(1000), ms(1500))?;
    verdict(&mut world)?;
    demand(matches!(next, Outcome::Acquire(Ok(_))), "nobody asked the masters when the lock had expired")
}

tests!(
    a_swaps_grant_dies_with_its_connection,
    local_waiter_sends_no_command,
    a_lost_lock_is_never_handed_over,
    a_forgotten_swap_never_follows_a_release,
    a_lost_swap_is_released,
    a_swap_that_comes_late_leaves_no_key,
    a_handed_over_validity_counts_from_the_release,
    other_clients_get_their_turn,
    a_holder_that_expires_delays_nobody,
);
