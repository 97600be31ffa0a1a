//! One seed, one history: its participants, its faults and their times, and its end.

use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use redlatch::{Config, ConfigBuilder, Quarantine, limits};

use crate::checker::id;
use crate::clock::{Clock, MS, SECOND, Time, WALL_US};
use crate::faults::Data;
use crate::model::Dialect;
use crate::network::Weather;
use crate::owners::Owner;
use crate::sets::SetWorker;
use crate::slots::{self, SlotWorker};
use crate::world::{Statistics, World};

/// Result of a history.
pub struct Report {
    pub violation: Option<String>,
    pub statistics: Statistics,
    /// The same for the same seed.
    pub digest: u64,
    pub trace: Vec<String>,
}

/// Kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    StallRequests,
    StallReplies,
    StallBoth,
    Reset,
    ResetAll,
    Stray,
    Refuse,
    Swallow,
    StopMaster,
    KillMaster(Data),
    HostDies(Data),
    RestartTwice,
    RestartUnbroken,
    PromoteReplica,
    Resync,
    FlushAll,
    FlushScripts,
    Evict,
    StepSecond,
    StepHour,
    StepBack,
    StepHourBack,
    ErrorReplies,
    Full,
    PauseClient,
    SuspendClient,
    CrashClient,
    NewCredentials,
    WrongCredentials,
}

pub const FAULTS: [(Fault, &str); 34] = [
    (Fault::StallRequests, "requests stalled"),
    (Fault::StallReplies, "replies stalled"),
    (Fault::StallBoth, "link stalled both ways"),
    (Fault::Reset, "connection reset"),
    (Fault::ResetAll, "all connections of a client reset"),
    (Fault::Stray, "connection reset, its requests arrive later"),
    (Fault::Refuse, "connections refused"),
    (Fault::Swallow, "connections black-holed"),
    (Fault::StopMaster, "master stopped"),
    (Fault::KillMaster(Data::Empty), "master restarted empty"),
    (Fault::KillMaster(Data::All), "master restarted from AOF, always"),
    (Fault::KillMaster(Data::EverySecond), "master restarted from AOF, everysec"),
    (Fault::KillMaster(Data::Snapshot), "master restarted from an old snapshot"),
    (Fault::HostDies(Data::Empty), "host died, restarted empty"),
    (Fault::HostDies(Data::All), "host died, restarted from AOF"),
    (Fault::RestartTwice, "master restarted twice"),
    (Fault::RestartUnbroken, "master restarted behind an unbroken connection"),
    (Fault::PromoteReplica, "stale replica promoted"),
    (Fault::FlushAll, "FLUSHALL"),
    (Fault::FlushScripts, "SCRIPT FLUSH"),
    (Fault::Evict, "key evicted"),
    (Fault::StepSecond, "master's clock +1 s"),
    (Fault::StepHour, "master's clock +1 h"),
    (Fault::StepBack, "master's clock -1 s"),
    (Fault::StepHourBack, "master's clock -1 h"),
    (Fault::ErrorReplies, "error replies"),
    (Fault::Full, "memory full, or free again"),
    (Fault::PauseClient, "client paused"),
    (Fault::SuspendClient, "client suspended, its clock stood still"),
    (Fault::CrashClient, "client crashed"),
    (Fault::NewCredentials, "new credentials"),
    (Fault::WrongCredentials, "new credentials, which are refused"),
    // Listed twice, because most rules are about it.
    (Fault::KillMaster(Data::Empty), "master restarted empty"),
    (Fault::Reset, "connection reset"),
];

/// Added to a part of the histories. Takes no randomness, so that other histories stay the same.
const RESYNC: (Fault, &str) = (Fault::Resync, "master resynced from an empty one and promoted");
const RESYNC_SHARE: u64 = 4;

const ERRORS: [(&str, &str); 14] = [
    ("SET", "OOM command not allowed when used memory > 'maxmemory'."),
    ("SET", "READONLY You can't write against a read only replica."),
    ("SET", "MISCONF Redis is configured to save RDB snapshots"),
    ("SET", "LOADING Redis is loading the dataset in memory"),
    ("EVALSHA", "BUSY Redis is busy running a script."),
    ("EVALSHA", "NOSCRIPT No matching script. Please use EVAL."),
    ("EVAL", "NOREPLICAS Not enough good replicas to write."),
    ("PTTL", "NOPERM this user has no permissions to run the 'pttl' command"),
    ("INFO", "NOPERM this user has no permissions to run the 'info' command"),
    ("SUBSCRIBE", "NOPERM this user has no permissions to access one of the channels used as arguments"),
    ("SSUBSCRIBE", "NOPERM this user has no permissions to access one of the channels used as arguments"),
    ("PUBLISH", "NOPERM this user has no permissions to access one of the channels used as arguments"),
    ("SPUBLISH", "NOPERM this user has no permissions to access one of the channels used as arguments"),
    ("ECHO", "MASTERDOWN Link with MASTER is down"),
];

/// Runs a history, with a trace on request.
pub fn run(seed: u64, is_traced: bool) -> Report {
    let mut world = begin(seed);
    if is_traced {
        world.trace = Some(Vec::new());
    }
    let is_lively = chaos(&mut world, seed);
    if world.checker.violation.is_none() {
        finish(&mut world, is_lively);
    }
    Report {
        violation: world.checker.violation.take(),
        statistics: world.statistics(),
        digest: world.digest.0,
        trace: world.trace.take().unwrap_or_default(),
    }
}

/// Theme of a history. Not drawn, so that adding a theme leaves other histories the same.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Theme {
    Chaos,
    /// No faults, so that the order of fair locks is judged.
    Order,
    /// Polling clients beside others, masters that refuse `HELLO`, and grants by masters beside TTLs so long
    /// that masters only ring.
    Mixture,
}

const fn theme(seed: u64) -> Theme {
    match seed % 32 {
        14 => Theme::Order,
        6 | 11 | 22 | 27 => Theme::Mixture,
        _ => Theme::Chaos,
    }
}

/// Settings of all clients.
fn config(rng: &mut StdRng, seed: u64) -> ConfigBuilder {
    let master_count = [1, 2, 3, 3, 3, 4, 5, 5, 7][rng.random_range(0..9)];
    let quarantine = match rng.random_range(0..10) {
        0 => Quarantine::Trust,
        1 => Quarantine::Strict,
        _ => Quarantine::Uptime,
    };
    let mut max_ttl = Duration::from_millis([300, 1000, 2000][rng.random_range(0..3)]);
    let mut max_hold = max_ttl * 8;
    if theme(seed) == Theme::Mixture {
        max_ttl = limits::GRANTED_TTL_MAX.mul_f64(1.1);
        max_hold = max_ttl;
    }
    let mut builder = Config::builder()
        .masters((0..master_count).map(|index| format!("redis://m{index}")))
        .quarantine(quarantine)
        .max_ttl(max_ttl)
        .max_hold(max_hold)
        .connect_timeout(Duration::from_millis(300))
        .ask_holder(rng.random())
        .wake_waiters(rng.random_range(0..4) > 0);
    if rng.random() {
        builder = builder.answer_timeout(Duration::from_millis(rng.random_range(5..=200)));
    }
    if theme(seed) == Theme::Order {
        let answer_timeout = Duration::from_millis(200);
        builder = builder.quarantine(Quarantine::Trust).answer_timeout(answer_timeout).wake_waiters(true);
    }
    builder
}

/// Participants, drawn from the seed.
fn begin(seed: u64) -> World {
    let mut rng = StdRng::seed_from_u64(seed ^ 0x9e37_79b9_7f4a_7c15);
    let config = config(&mut rng, seed);
    let mut world = World::new(seed, config.clone().build().expect("valid settings"));
    let max_ttl = world.config.max_ttl();
    // Not drawn, so that histories of one way do not depend on the other.
    world.has_tasks = seed % 2 == 1;
    let way = if world.has_tasks { "history of whole clients" } else { "history of engines" };
    world.statistics.calls.insert(way, 1);
    begin_weather(&mut rng, &mut world);
    world.habits.keys = (0..rng.random_range(1..=2)).map(|index| vec![b'a' + index]).collect();
    world.habits.ttls = vec![max_ttl, max_ttl / 2, Duration::from_millis(rng.random_range(50..=300))];
    world.habits.wait_max = rng.random_range(MS..=2 * SECOND);
    world.habits.pause_max = rng.random_range(MS..=300 * MS);
    world.habits.fenced_ppm = [0, 200_000, 600_000, 1_000_000][rng.random_range(0..4)];
    // Not drawn either.
    world.habits.fair_ppm = [0, 0, 1_000_000, 500_000][usize::try_from(seed % 4).expect("small")];
    world.habits.shared_ppm = [0, 0, 300_000, 700_000][rng.random_range(0..4)];
    world.habits.label_ppm = [0, 500_000][usize::try_from(seed / 4 % 2).expect("small")];
    world.habits.handle_ppm = [0, 400_000][usize::try_from(seed / 8 % 2).expect("small")];
    // Clocks mostly differ by less than the allowance of one in a hundred.
    let is_beyond = rng.random_range(0..20) == 0;
    let ppm_max = if is_beyond { 50_000 } else { 4_500 };
    world.checker.judges_exclusion = !is_beyond;
    world.checker.judges_fences = !is_beyond;
    begin_masters(&mut rng, &mut world, ppm_max);
    let mut mixture = (theme(seed) == Theme::Mixture).then(|| Mixture::begin(seed, config, &mut world));
    for _ in 0..rng.random_range(1..=4) {
        if let Some(mixture) = &mut mixture {
            world.config = mixture.next_config();
        }
        let clock = Clock::new(rng.random_range(0..=3600 * SECOND), rng.random_range(-ppm_max..=ppm_max));
        // Several workers of a client want the same lock, so that it is handed over.
        let worker_count = [1, 1, 2, 3, 4][rng.random_range(0..5)];
        let client = world.add_client(clock, worker_count);
        world.clients[client].wall_us = wall_of(&mut rng, max_ttl);
    }
    begin_families(seed, &mut world);
    if theme(seed) == Theme::Order {
        world.pause_ppm = 0;
        world.weather.slow_ppm = 0;
        world.habits.shared_ppm = 0;
        world.checker.judge_order(SECOND);
    }
    world
}

/// Delays of bytes, and how often processes pause.
fn begin_weather(rng: &mut StdRng, world: &mut World) {
    let delay_min = rng.random_range(MS / 50..=3 * MS);
    world.weather = Weather {
        delay_min,
        delay_max: delay_min + rng.random_range(0..=4 * MS),
        cut_ppm: [0, 100_000, 500_000][rng.random_range(0..3)],
        slow_ppm: [0, 1_000, 50_000][rng.random_range(0..3)],
    };
    world.pause_ppm = [0, 0, 1_000, 10_000][rng.random_range(0..4)];
    world.pause_max = [10 * MS, 300 * MS, 3 * SECOND][rng.random_range(0..3)];
    world.short_write_ppm = [0, 100_000][rng.random_range(0..2)];
}

/// Draws from a separate generator what only a mixture has.
struct Mixture {
    rng: StdRng,
    config: ConfigBuilder,
}

impl Mixture {
    fn begin(seed: u64, config: ConfigBuilder, world: &mut World) -> Self {
        let mut rng = StdRng::seed_from_u64(seed ^ 0x1405_7b7e_f767_814f);
        world.statistics.calls.insert("history of a mixture", 1);
        let around = [limits::GRANTED_TTL_MAX, Duration::from_secs(2)];
        let ms = |ms| Duration::from_millis(ms);
        world.habits.ttls = around.iter().flat_map(|ttl| [*ttl + ms(1), *ttl, *ttl - ms(500)]).collect();
        world.habits.wait_max *= rng.random_range(1..=6);
        for master in &mut world.masters {
            if rng.random_range(0..4) == 0 {
                master.model.errors.insert("HELLO".to_owned(), "ERR unknown command 'HELLO'".to_owned());
            }
        }
        Self { rng, config }
    }

    fn next_config(&mut self) -> Arc<Config> {
        let config = self.config.clone().wake_waiters(self.rng.random());
        Arc::new(config.build().expect("valid settings"))
    }
}

/// The masters' clocks, uptimes and initial data.
fn begin_masters(rng: &mut StdRng, world: &mut World, ppm_max: i64) {
    let max_ttl = world.config.max_ttl();
    for master in &mut world.masters {
        master.clock = Clock::new(rng.random_range(0..=SECOND), rng.random_range(-ppm_max..=ppm_max));
        let uptime = Duration::from_millis(if rng.random_range(0..8) == 0 {
            rng.random_range(0..4000)
        } else {
            3_600_000
        });
        let wall_us = wall_of(rng, max_ttl);
        master.model.set_wall(master.clock.at(0), wall_us);
        master.model.started = master.clock.at(0) - uptime;
        if world.config.quarantine() == Quarantine::Strict && rng.random_range(0..3) > 0 {
            let watched_ms = world.config.quarantine_time().as_millis();
            let mark = format!("{} - - {watched_ms}", master.model.run_id);
            master.model.put(b"redlatch:mark", mark.as_bytes(), None);
        }
        master.model.dialect = match rng.random_range(0..6) {
            0 => Dialect::Valkey9,
            1 => Dialect::Redis8,
            _ => Dialect::Redis7,
        };
    }
}

/// The clients' other activities, from a separate generator, so that the rest does not depend on them.
fn begin_families(seed: u64, world: &mut World) {
    let mut rng = StdRng::seed_from_u64(seed ^ 0x2545_f491_4f6c_dd1d);
    let [has_sets, has_owners, has_queries] = std::array::from_fn(|_| rng.random_range(0..3) == 0);
    if has_sets {
        // Sets of two locks overlap in three ways.
        world.habits.keys.push(b"s".to_vec());
    }
    for client in &mut world.clients {
        let set_count = if has_sets { rng.random_range(0..=2) } else { 0 };
        client.sets = (0..set_count).map(|_| SetWorker::default()).collect();
        let owner_count = if has_owners { rng.random_range(0..=2) } else { 0 };
        client.owners = (0..owner_count).map(|_| Owner::new(rng.random_range(1..=3))).collect();
        if has_queries && rng.random() {
            client.query_due = 0;
        }
    }
    // The first waiter queues for few slots, but searches among many.
    if rng.random_range(0..3) == 0 {
        world.habits.slot_count = *[1, 2, 9].choose(&mut rng).expect("not empty");
        for client in &mut world.clients {
            let worker_count = rng.random_range(0..=2);
            client.slots = (0..worker_count).map(|_| SlotWorker::of_pool(world.habits.slot_count)).collect();
        }
    }
}

/// A wall clock at the start: mostly about right, sometimes off by as much as the window of tokens, or by an
/// hour.
fn wall_of(rng: &mut StdRng, max_ttl: Duration) -> u64 {
    const HOUR_US: u64 = 3_600_000_000;
    let max_ttl_us = u64::try_from(max_ttl.as_micros()).expect("small");
    let off_us =
        [max_ttl_us / 20, max_ttl_us / 20, max_ttl_us / 2, 2 * max_ttl_us, HOUR_US][rng.random_range(0..5)];
    WALL_US - off_us + rng.random_range(0..=2 * off_us)
}

/// Whether a quorum's clocks agree well enough for fenced locks.
fn clocks_agree(world: &World) -> bool {
    let mut times: Vec<u64> =
        world.masters.iter().map(|it| it.model.wall_us(it.clock.at(world.now))).collect();
    times.sort_unstable();
    let limit = world.config.quarantine_time().as_micros() / 4;
    times.windows(world.checker.quorum()).any(|it| u128::from(it[it.len() - 1] - it[0]) < limit)
}

/// Adds faults for a while. Returns whether everything can recover afterwards.
fn chaos(world: &mut World, seed: u64) -> bool {
    // A few kinds in each history, so that some go far without meeting others.
    let mut kinds: Vec<_> = FAULTS.iter().filter(|_| world.rng.random_range(0..4) == 0).collect();
    if seed.is_multiple_of(RESYNC_SHARE) {
        kinds.push(&RESYNC);
    }
    if theme(seed) == Theme::Order {
        kinds.clear();
    }
    let interval = world.rng.random_range(30 * MS..=800 * MS);
    let end = world.rng.random_range(SECOND..=6 * SECOND);
    let mut is_lively = true;
    while world.now < end && world.checker.violation.is_none() {
        let pause = world.rng.random_range(MS..=2 * interval);
        world.run_for(pause);
        world.take_snapshots();
        if kinds.is_empty() {
            continue;
        }
        let (fault, name) = kinds[world.rng.random_range(0..kinds.len())];
        world.count_fault(name);
        inject(world, *fault);
        is_lively &= !matches!(fault, Fault::StepBack | Fault::StepHourBack);
    }
    is_lively
}

fn inject(world: &mut World, fault: Fault) {
    let master = world.rng.random_range(0..world.masters.len());
    let client = world.rng.random_range(0..world.clients.len());
    // Which of a client's connections.
    let place = world.rng.random_range(0..world.masters.len());
    let scale = [10 * MS, 200 * MS, 2 * SECOND, 8 * SECOND][world.rng.random_range(0..4)];
    let time = world.rng.random_range(MS..=scale);
    match fault {
        Fault::StallRequests => world.stall(client, place, true, false, time),
        Fault::StallReplies => world.stall(client, place, false, true, time),
        Fault::StallBoth => world.stall(client, place, true, true, time),
        Fault::Reset => world.reset_conn(client, place),
        Fault::ResetAll => {
            (0..world.masters.len()).for_each(|place| world.reset_conn(client, place));
        }
        Fault::Stray => {
            world.stall(client, place, true, false, time);
            let pause = world.rng.random_range(0..=20 * MS);
            world.run_for(pause);
            world.break_conn(client, place);
        }
        Fault::Refuse => world.masters[master].refuses_until = world.now + time,
        Fault::Swallow => world.masters[master].swallows_until = world.now + time,
        Fault::StopMaster => world.stop_master(master, time),
        Fault::KillMaster(data) => restart(world, master, data, true),
        Fault::HostDies(data) => restart(world, master, data, false),
        Fault::RestartTwice => {
            restart(world, master, Data::EverySecond, true);
            world.run_for(time.min(SECOND));
            restart(world, master, Data::Empty, true);
        }
        Fault::RestartUnbroken => {
            if world.masters[master].is_up {
                world.restart_unbroken(master);
            }
        }
        Fault::PromoteReplica => world.promote_stale_replica(master),
        Fault::Resync => {
            let is_noticed = world.rng.random_range(0..4) > 0;
            world.resync_master(master, is_noticed);
        }
        Fault::FlushAll => world.flush_all(master),
        Fault::FlushScripts => world.masters[master].model.flush_scripts(),
        Fault::Evict => world.evict(master),
        Fault::StepSecond => world.step_clock(master, SECOND.cast_signed()),
        Fault::StepHour => world.step_clock(master, 3600 * SECOND.cast_signed()),
        Fault::StepBack => world.step_clock(master, -SECOND.cast_signed()),
        Fault::StepHourBack => world.step_clock(master, -3600 * SECOND.cast_signed()),
        Fault::ErrorReplies => {
            let (command, text) = ERRORS[world.rng.random_range(0..ERRORS.len())];
            let errors = &mut world.masters[master].model.errors;
            // The refusals come and go.
            if errors.remove(command).is_none() {
                errors.insert(command.to_owned(), text.to_owned());
            }
        }
        Fault::Full => world.masters[master].model.data.is_full ^= true,
        Fault::PauseClient => world.pause(client, time),
        Fault::SuspendClient => world.suspend(client, time),
        Fault::CrashClient => {
            world.crash_client(client);
            world.run_for(time.min(SECOND));
            world.start_client(client);
        }
        Fault::NewCredentials => world.change_credentials(client, master, true),
        Fault::WrongCredentials => world.change_credentials(client, master, false),
    }
}

fn restart(world: &mut World, master: usize, data: Data, is_noticed: bool) {
    // With `Trust`, the promise needs masters that write before they answer.
    world.kill_master(master, is_noticed);
    let down = world.rng.random_range(0..=300 * MS);
    world.run_for(down);
    world.start_master(master, data);
}

/// Ends all faults. Everything held is released, nothing is left, and each lock can be acquired again.
fn finish(world: &mut World, is_lively: bool) {
    world.heal();
    world.habits.is_closing = true;
    if !is_lively {
        return world.run_for(100 * MS);
    }
    let max_ttl = world.config.quarantine_time();
    let ns = |time: Duration| Time::try_from(time.as_nanos()).expect("small");
    // A dead host's silence, the longest pause before a reconnect, the quarantine, and a late key.
    let settled = ns(limits::SILENCE_MAX + limits::BACKOFF_MAX + max_ttl * 2) + 2 * SECOND;
    // And the heartbeat of dead waiters.
    let heartbeats = if world.habits.fair_ppm > 0 { 2 } else { 0 };
    let settled = settled + ns(limits::STAY) * heartbeats;
    let keys = all_keys(world);
    let ttl = world.habits.ttls[0];
    // A door is extended without end.
    for index in 0..world.clients[0].slots.len() {
        world.end_slot(0, index);
    }
    let first = &mut world.clients[0];
    first.workers.clear();
    first.sets.clear();
    first.slots.clear();
    first.owners.clear();
    // Locks of its workers are forgotten with them, and expire.
    world.run_for(50 * MS);
    // Clocks with very different rates do not agree for long.
    if !world.checker.judges_fences || !clocks_agree(world) {
        world.habits.fenced_ppm = 0;
    }
    for key in &keys {
        world.count_fault("waiter after the heal");
        let Some(lock) = world.submit_acquire(0, key, ttl, Duration::from_nanos(settled)) else {
            return world.checker.violate("I23: a waiter is refused for overload");
        };
        let is_held = |world: &mut World| world.clients[0].lock(lock).is_some_and(|it| it.is_held);
        if !world.run_until(settled + SECOND, is_held) && world.checker.violation.is_none() {
            return world.checker.violate("I23: a waiter got nothing in the time after the last fault");
        }
        world.submit_release(0, lock, false);
    }
    world.run_for(settled);
    for client in 0..world.clients.len() {
        let count = world.clients[client].engine.woken_count();
        *world.statistics.outcomes.entry("woken by a message").or_default() += count;
    }
    check_leftovers(world);
}

/// Keys of all locks: named locks, and the pool's.
fn all_keys(world: &World) -> Vec<Vec<u8>> {
    let count = world.habits.slot_count;
    let of_pool = slots::names(count).filter(|_| count > 0);
    world.habits.keys.iter().cloned().chain(of_pool).collect()
}

/// Checks that nothing is owed or under way, and that no key outlives its lock (I9).
fn check_leftovers(world: &mut World) {
    for client in 0..world.clients.len() {
        world.check_no_tasks(client);
        let it = &world.clients[client];
        let held = it.locks.iter().filter(|(_, lock)| lock.is_held).count();
        let is_under_way = it.sets.iter().any(SetWorker::is_under_way)
            || it.slots.iter().any(SlotWorker::is_under_way)
            || it.owners.iter().any(Owner::is_busy);
        if is_under_way || !it.queries.is_empty() {
            let why = format!("I22: c{client} ends with a set, an owner or an errand that is under way");
            return world.checker.violate(why);
        }
        let it = &world.clients[client];
        let claims = it.engine.claim_count();
        // An idle client need not know that a host died; TCP's keepalive notices it in time.
        let owed: usize = (0..world.masters.len())
            .filter(|&master| world.is_connected(client, master))
            .map(|master| it.engine.owed_count(id(master)))
            .sum();
        if client != 0 && (held > 0 || claims > 0) || owed > 0 {
            world.checker.violate(format!(
                "I9: c{client} ends with {held} locks, {claims} claims, {owed} replies owed"
            ));
        }
    }
    for master in 0..world.masters.len() {
        let now = world.masters[master].clock.at(world.now);
        for key in all_keys(world) {
            if world.masters[master].model.is_taken(now, &key) {
                world.checker.violate(format!("I9: m{master} still holds a key long after the end"));
            }
        }
    }
}
