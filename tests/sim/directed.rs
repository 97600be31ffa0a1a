//! Schedules that random histories rarely meet, one for each rule. Each passes, and fails with the defect
//! that `mutants.rs` lists for it.
//!
//! Latency is zero unless a schedule says otherwise, so that a deadline can be met to the nanosecond.

use std::time::Duration;

use redlatch::engine::{OpId, Outcome};
use redlatch::error::LeaveError;
use redlatch::resp::{self, ProtocolError};
use redlatch::status::MasterState;
use redlatch::{AcquireError, Config, ConfigBuilder, ExtendError, Options, Quarantine};

use crate::checker::id;
use crate::clock::{Clock, MS, SECOND, Time, WALL_US};
use crate::faults::Data;
use crate::network::Weather;
use crate::world::World;

pub mod acquire;
pub mod bytes;
pub mod drain;
pub mod exhaustive;
pub mod fair;
pub mod fence;
pub mod fleet;
pub mod handles;
pub mod handover;
pub mod hold;
pub mod keep;
pub mod leave;
pub mod lists;
pub mod login;
pub mod masters;
pub mod owners;
pub mod parked;
pub mod queries;
pub mod rounds;
pub mod sets;
pub mod sharing;
pub mod slots;
pub mod tasks;

/// The fault, if any.
pub type Verdict = Result<(), String>;

const KEY: &[u8] = b"a";
const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Masters that have run for long, and connected clients without an application.
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

/// Requests a lock, and waits for the answer.
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
    held(world, client, lock)
}

/// Like [`hold`], with these options.
fn hold_with(world: &mut World, client: usize, key: &[u8], options: Options) -> Result<OpId, String> {
    let lock = world.submit_with(client, key, options).expect("room");
    held(world, client, lock)
}

fn held(world: &mut World, client: usize, lock: OpId) -> Result<OpId, String> {
    match outcome(world, client)? {
        Outcome::Acquire(Ok(_)) => Ok(lock),
        other => Err(format!("c{client} should hold it, but {other:?}")),
    }
}

fn extend(world: &mut World, client: usize, lock: OpId, ttl: Duration) -> Result<Outcome, String> {
    world.submit_extend(client, lock, ttl);
    outcome(world, client)
}

/// The next answer, or the checker's earlier finding.
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

/// The checker's finding so far.
fn verdict(world: &mut World) -> Verdict {
    world.checker.violation.take().map_or(Ok(()), Err)
}

/// Puts a foreign key on these masters.
fn occupy(world: &mut World, masters: std::ops::Range<usize>, key: &[u8]) {
    masters.for_each(|master| world.masters[master].model.put(key, b"other", None));
}

/// Makes masters refuse commands that begin with this word.
fn refuse(world: &mut World, masters: std::ops::Range<usize>, command: &str) {
    for master in masters {
        world.masters[master].model.errors.insert(command.to_owned(), "OOM no".to_owned());
    }
}
