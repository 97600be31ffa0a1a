//! Whole clients with tasks: what they write and whom they wake, and which caller gets which answer.

use std::time::Duration;

use redlatch::Options;
use redlatch::completions::{Completions, OutcomeKind};
use redlatch::engine::{Outcome, Request, Resource};

use super::{KEY, Verdict, defaults, demand, is_held, ms, trust, unconnected, verdict};
use crate::clock::{Clock, MS, SECOND};
use crate::turn::Step;
use crate::world::World;

/// Three masters and a whole client without an application.
fn world() -> World {
    let mut world = unconnected(3, trust);
    world.has_tasks = true;
    world.add_client(Clock::new(0, 0), 0);
    world.run_for(10 * MS);
    world
}

/// Before and after the masters have granted.
// I119
pub fn an_acquisition_that_is_given_up_leaves_no_key() -> Verdict {
    for pause in [0, MS, 50 * MS] {
        let mut world = world();
        world.clients[0].tasks.as_mut().expect("a `Client`").are_away = true;
        world.weather.delay_min = MS;
        world.weather.delay_max = MS;
        let lock = world.submit_acquire(0, KEY, ms(10_000), Duration::ZERO).expect("room");
        world.run_for(pause);
        let is_there = world.clients[0].lock(lock).is_some_and(|it| it.is_held);
        demand(is_there == (pause > 10 * MS), "the answer comes at another time than was planned")?;
        world.give_up(0, lock);
        world.run_for(100 * MS);
        verdict(&mut world)?;
        demand((0..3).all(|master| !is_held(&world, master, KEY)), "a key is left")?;
        demand(world.clients[0].engine.claim_count() == 0, "a claim is left")?;
    }
    Ok(())
}

// I155
pub fn an_attempt_that_fails_at_once_is_written() -> Verdict {
    let mut world = unconnected(3, defaults);
    world.has_tasks = true;
    for master in &mut world.masters {
        master.model.started = master.clock.at(0);
    }
    world.add_client(Clock::new(0, 0), 0);
    world.run_for(10 * MS);
    // The drive is woken for the deadlines of the first attempt, which are earlier than those of the second.
    for _ in 0..2 {
        let lock = world.submit_fenced(0, KEY, ms(10_000), Duration::ZERO).expect("room");
        demand(world.clients[0].lock(lock).is_none(), "the masters should be in quarantine")?;
        world.run_for(MS);
    }
    verdict(&mut world)
}

/// With several callers, one write serves them all.
// I155
pub fn a_request_left_to_the_drive_is_written() -> Verdict {
    let mut world = world();
    world.clients[0].tasks.as_mut().expect("a `Client`").are_away = true;
    (world.weather.delay_min, world.weather.delay_max) = (5 * MS, 5 * MS);
    let submit = |world: &mut World, key| world.submit_acquire(0, key, ms(10_000), ms(0)).expect("room");
    let mut locks: Vec<_> = [KEY, b"b", b"c"].into_iter().map(|key| submit(&mut world, key)).collect();
    // The drive turns, and waits for the answers.
    world.run_for(MS);
    locks.push(submit(&mut world, b"d"));
    let is_left = world.clients[0].engine.has_queued();
    verdict(&mut world)?;
    demand(is_left, "nothing is left to the drive")?;
    world.run_for(20 * MS);
    verdict(&mut world)?;
    let is_held = |world: &mut World, lock| world.clients[0].lock(lock).is_some_and(|it| it.is_held);
    demand(locks.into_iter().all(|lock| is_held(&mut world, lock)), "a lock is not acquired")
}

/// Lets the masters answer and the engine read, but nobody takes the outcome.
fn answer(world: &mut World) {
    world.step(0, Step::Write);
    world.pause(0, SECOND);
    world.run_for(10 * MS);
    world.step(0, Step::Read);
}

/// The first caller gives up when its answer is already in the engine; the second caller's operation has the
/// same place.
// I129
pub fn an_answer_never_reaches_the_next_caller() -> Verdict {
    let mut world = super::world(3, 1, trust);
    let (now, mut completions) = (world.local(0), Completions::default());
    let engine = &mut world.clients[0].engine;
    let ttl = ms(10_000);
    let ask = |name: &'static str| Request::Acquire {
        resource: Resource::new(name).expect("valid"),
        options: Options::new().ttl(ttl).wait(Duration::ZERO),
        label: None,
    };
    let first = engine.submit(now, ask("first")).expect("room");
    let ticket = completions.expect(first, OutcomeKind::Acquire);
    answer(&mut world);
    let now = world.local(0);
    let engine = &mut world.clients[0].engine;
    demand(engine.has_outcome(), "the masters do not grant")?;
    completions.abandon(now, engine, ticket);
    let second = engine.submit(now, ask("second")).expect("room");
    let ticket = completions.expect(second, OutcomeKind::Acquire);
    completions.deliver(now, engine);
    demand(completions.take(ticket).is_none(), "the second caller gets the answer of the first one")?;
    answer(&mut world);
    let now = world.local(0);
    let engine = &mut world.clients[0].engine;
    completions.deliver(now, engine);
    let is_granted = matches!(completions.take(ticket), Some(Outcome::Acquire(Ok(_))));
    demand(is_granted && completions.kept_count() == 0, "the second caller does not get its own answer")?;
    let is_second = engine.valid_until(second).is_some();
    demand(is_second && engine.valid_until(first).is_none(), "the first lock is held still")
}

tests!(
    an_acquisition_that_is_given_up_leaves_no_key,
    an_attempt_that_fails_at_once_is_written,
    a_request_left_to_the_drive_is_written,
    an_answer_never_reaches_the_next_caller,
);
