//! Which caller gets which answer when a completion table stands between callers and engine.

use std::time::Duration;

use redlatch::Options;
use redlatch::completions::{Completions, OutcomeKind};
use redlatch::engine::{Outcome, Request, Resource};

use super::{KEY, Verdict, demand, is_held, ms, trust, unconnected, verdict};
use crate::clock::{Clock, MS, SECOND};
use crate::turn::Step;
use crate::world::World;

/// Three masters and a client with a completion table and no application.
fn world() -> World {
    let mut world = unconnected(3, trust);
    world.has_desks = true;
    world.add_client(Clock::new(0, 0), 0);
    world.run_for(10 * MS);
    world
}

/// Before and after the masters have granted.
// I119
pub fn an_acquisition_that_is_given_up_leaves_no_key() -> Verdict {
    for pause in [0, MS, 50 * MS] {
        let mut world = world();
        world.clients[0].callers.as_mut().expect("a completion table").are_away = true;
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

tests!(an_acquisition_that_is_given_up_leaves_no_key, an_answer_never_reaches_the_next_caller,);
