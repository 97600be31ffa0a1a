//! Records of a fleet: how clients that share masters learn of different settings, and which new masters
//! count at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use redlatch::founding::{Again, Candidate, Change, OldMaster, Redeclaration, Replacement, Step, found};
use redlatch::probe::ProbeError;
use redlatch::record::{Found, Origin, Record, Seen};
use redlatch::status::Warning;

use super::*;
use crate::world::Detour;

const RECORD: &[u8] = b"redlatch:fleet";

/// Adds a client with these settings.
fn add(world: &mut World, settings: impl FnOnce(ConfigBuilder) -> ConfigBuilder) -> usize {
    let urls = (0..world.masters.len()).map(|index| format!("redis://m{index}"));
    let builder = Config::builder().masters(urls).max_ttl(ms(10_000)).max_hold(ms(3_600_000));
    world.config = Arc::new(settings(builder).build().expect("valid settings"));
    world.add_client(Clock::new(0, 0), 0)
}

/// Number of masters whose record differs from this client.
fn difference_count(world: &World, client: usize) -> usize {
    let engine = &world.clients[client].engine;
    let differs = |warning: &Warning| matches!(warning, Warning::FleetDiffers { .. });
    let has_one = |master| engine.master_status(world.local(client), master).warnings.iter().any(differs);
    engine.masters().filter(|master| has_one(*master)).count()
}

fn record(world: &World, master: usize) -> Option<Vec<u8>> {
    let it = &world.masters[master];
    it.model.value(it.clock.at(world.now), RECORD).map(<[u8]>::to_vec)
}

// I30
pub fn a_second_clients_other_settings_are_noticed() -> Verdict {
    let mut world = world(3, 1, defaults);
    let second = add(&mut world, |builder| builder.max_ttl(ms(9000)));
    world.run_for(SECOND);
    demand(difference_count(&world, 0) == 0, "the first client differs from its own record")?;
    demand(difference_count(&world, second) == 3, "another maximum TTL is not noticed")?;
    hold(&mut world, second, KEY, ms(1000)).map(drop)
}

// I30
pub fn clients_that_start_together_notice_each_other() -> Verdict {
    for other_ms in [10_000, 9000] {
        let mut world = unconnected(3, defaults);
        // Each client has read that there is no record when the other one writes.
        world.weather = Weather { delay_min: MS, delay_max: MS, cut_ppm: 0, slow_ppm: 0 };
        let one = add(&mut world, defaults);
        let other = add(&mut world, |builder| builder.max_ttl(ms(other_ms)));
        world.run_for(SECOND);
        demand((0..3).all(|master| record(&world, master).is_some()), "there is no record")?;
        let noticed = difference_count(&world, one) + difference_count(&world, other);
        if other_ms == 10_000 {
            demand(noticed == 0, "clients with the same settings differ")?;
        } else {
            demand(noticed > 0, "nobody notices two maximum TTLs")?;
        }
    }
    Ok(())
}

/// Declares the observed records.
fn declare(world: &mut World) {
    for master in 0..world.masters.len() {
        let text = String::from_utf8(record(world, master).expect("written")).expect("ASCII");
        let declared = text.replace("observed", "declared");
        world.masters[master].model.put(RECORD, declared.as_bytes(), None);
    }
}

// I32
pub fn strict_mode_refuses_other_declared_settings() -> Verdict {
    let mut world = world(3, 1, defaults);
    declare(&mut world);
    let settings = |builder: ConfigBuilder| builder.max_ttl(ms(9000)).quarantine(Quarantine::Strict);
    let second = add(&mut world, settings);
    world.run_for(10 * MS);
    let state = world.clients[second].engine.master_status(world.local(second), id(0)).state;
    demand(matches!(state, MasterState::Down(_)), "strict mode counts a master of other settings")
}

/// A client with a shorter maximum TTL meets a master that forgot the lock.
// I33
pub fn the_larger_declared_ttl_is_the_quarantine() -> Verdict {
    let mut world = world(3, 1, defaults);
    world.run_for(SECOND);
    declare(&mut world);
    refuse(&mut world, 2..3, "SET");
    hold(&mut world, 0, KEY, ms(10_000))?;
    world.masters[2].model.errors.clear();
    world.pause(0, 20 * SECOND);
    world.kill_master(1, true);
    world.start_master(1, Data::Empty);
    world.run_for(3 * SECOND);
    let other = add(&mut world, |builder| builder.max_ttl(ms(1000)));
    world.run_for(10 * MS);
    let outcome = acquire(&mut world, other, KEY, ms(900), Duration::ZERO)?;
    demand(matches!(outcome, Outcome::Acquire(Err(_))), "it counts a master by its own shorter TTL")
}

/// The record of a master that has just started, which declares its process as the new one at this URL.
fn new_record(world: &World, url: &str, settings: impl FnOnce(ConfigBuilder) -> ConfigBuilder) -> Vec<u8> {
    let run_id = &world.masters[0].model.run_id;
    let config = settings(Config::builder().master(url).max_ttl(ms(10_000)));
    let config = config.build().expect("valid settings");
    let seen = [Seen { name: url, found: &Found::Absent, run_id: Some(run_id) }];
    let record = Record::of_fleet(&config, &seen, Origin::Declared).expect("it is known").remove(0);
    record.with_new(run_id).to_string().into_bytes()
}

/// A master that has just started, with this record under this key.
fn newly_started(key: &[u8], settings: fn(ConfigBuilder) -> ConfigBuilder) -> World {
    let mut world = restarted(settings);
    let text = new_record(&world, "redis://m0:6379", settings);
    world.masters[0].model.put(key, &text, None);
    note_new(&mut world, 0);
    world
}

/// A master that has just started without its data.
fn restarted(settings: fn(ConfigBuilder) -> ConfigBuilder) -> World {
    let mut world = unconnected(1, settings);
    world.kill_master(0, true);
    world.run_for(MS);
    world.start_master(0, Data::Empty);
    world
}

/// Tells the checker that this process has nothing that it could have forgotten.
fn note_new(world: &mut World, master: usize) {
    let it = &mut world.masters[master];
    it.lost_at[it.life as usize] = None;
}

fn prefixed(builder: ConfigBuilder) -> ConfigBuilder {
    builder.prefix("p:")
}

fn strict(builder: ConfigBuilder) -> ConfigBuilder {
    builder.quarantine(Quarantine::Strict)
}

/// The first attempt of a new client.
fn first_attempt(world: &mut World) -> Result<Outcome, String> {
    world.add_client(Clock::new(0, 0), 0);
    world.run_for(10 * MS);
    acquire(world, 0, KEY, ms(1000), Duration::ZERO)
}

// I34
pub fn the_record_of_another_prefix_is_not_believed() -> Verdict {
    let outcome = first_attempt(&mut newly_started(RECORD, prefixed))?;
    demand(matches!(outcome, Outcome::Acquire(Err(_))), "it votes by the record of another prefix")?;
    // The simulator's checker knows only keys without a prefix, so nothing is locked.
    let mut world = newly_started(b"p:redlatch:fleet", prefixed);
    world.add_client(Clock::new(0, 0), 0);
    world.run_for(10 * MS);
    let state = world.clients[0].engine.master_status(world.local(0), id(0)).state;
    demand(state == MasterState::Ready, "a new master does not count")
}

// I34
pub fn a_new_process_that_restarts_is_quarantined() -> Verdict {
    for settings in [defaults, strict] {
        let outcome = first_attempt(&mut newly_started(RECORD, settings))?;
        demand(matches!(outcome, Outcome::Acquire(Ok(_))), "a new fleet's first lock has to wait")?;
        // The master returns with its record, but without the lock that it granted.
        let mut world = newly_started(RECORD, settings);
        world.kill_master(0, true);
        world.run_for(MS);
        world.start_master(0, Data::All);
        let outcome = first_attempt(&mut world)?;
        demand(matches!(outcome, Outcome::Acquire(Err(_))), "it votes though it restarted")?;
    }
    Ok(())
}

/// The process replaced the only master of this fleet, whose locks it never had.
// I34
pub fn a_process_new_for_another_fleet_is_quarantined() -> Verdict {
    for settings in [defaults, strict] {
        let mut world = restarted(settings);
        let text = new_record(&world, "redis://other:6379", settings);
        world.masters[0].model.put(RECORD, &text, None);
        let outcome = first_attempt(&mut world)?;
        demand(matches!(outcome, Outcome::Acquire(Err(_))), "it votes by the record of another fleet")?;
    }
    Ok(())
}

/// Facts about a server, from its answers.
fn candidate(world: &World, server: usize) -> Result<Candidate, ProbeError> {
    let master = &world.masters[server];
    let here = master.clock.at(world.now);
    let key_count = master.model.keys().keys().filter(|key| key.as_slice() != RECORD).count();
    master.is_up.then_some(()).ok_or_else(|| ProbeError::Unreachable("it is down".to_owned()))?;
    Ok(Candidate {
        run_id: Some(master.model.run_id.clone()),
        uptime: Some(here.saturating_duration_since(master.model.started)),
        is_master: true,
        found: record(world, server).map_or(Found::Absent, |text| Found::from_text(&text)),
        key_count: Some(key_count),
        clients: Some(BTreeMap::new()),
    })
}

/// Writes records on these servers.
fn write(world: &mut World, servers: &[usize], changes: Vec<Change>) {
    for Change { place, to, .. } in changes {
        world.masters[servers[place]].model.put(RECORD, to.to_string().as_bytes(), None);
    }
}

/// Declares the masters as a new fleet if that is allowed. Returns whether it was.
fn declare_new(world: &mut World) -> bool {
    let servers: Vec<_> = (0..world.masters.len()).collect();
    loop {
        let candidates: Vec<_> = servers.iter().map(|server| candidate(world, *server)).collect();
        let Ok(founding) = found(&world.config, &candidates) else { return false };
        if founding.changes.is_empty() {
            break;
        }
        write(world, &servers, founding.changes);
    }
    servers.into_iter().for_each(|server| note_new(world, server));
    true
}

/// The third master has a lock that the other two forgot.
// I36
pub fn fleet_with_a_missing_master_is_not_declared() -> Verdict {
    let mut world = unconnected(3, defaults);
    for master in 0..2 {
        world.kill_master(master, true);
        world.start_master(master, Data::Empty);
    }
    world.run_for(SECOND);
    demand(!declare_new(&mut world), "a master that has run for an hour is new")?;
    world.kill_master(2, true);
    demand(!declare_new(&mut world), "a fleet without one of its masters is declared")?;
    world.start_master(2, Data::Empty);
    demand(declare_new(&mut world), "new masters are not declared")?;
    world.add_client(Clock::new(0, 0), 0);
    world.run_for(10 * MS);
    hold(&mut world, 0, KEY, ms(1000)).map(drop)
}

/// All clients with the longer maximum TTL are gone, but a lock of theirs is not.
// I35
pub fn a_shorter_ttl_is_declared_after_the_longer_one() -> Verdict {
    let mut world = world(3, 1, defaults);
    world.run_for(SECOND);
    declare(&mut world);
    refuse(&mut world, 2..3, "SET");
    hold(&mut world, 0, KEY, ms(10_000))?;
    world.masters[2].model.errors.clear();
    world.pause(0, 60 * SECOND);
    world.kill_master(1, true);
    world.start_master(1, Data::Empty);
    world.run_for(2 * SECOND);
    let short = Config::builder().masters((0..3).map(|index| format!("redis://m{index}"))).max_ttl(ms(1000));
    let mut again = Redeclaration::new(short.build().expect("valid settings"));
    loop {
        let candidates: Vec<_> = (0..3).map(|server| candidate(&world, server)).collect();
        let now = world.masters[0].clock.at(world.now);
        match again.next(now, &candidates).map_err(|why| why.to_string())? {
            Again::Wait(left) => world.run_for(Time::try_from(left.as_nanos()).expect("short")),
            Again::Write(changes) => write(&mut world, &[0, 1, 2], changes),
            Again::Declared(_) => break,
        }
    }
    let other = add(&mut world, |builder| builder.max_ttl(ms(1000)));
    world.run_for(10 * MS);
    let lock = acquire(&mut world, other, KEY, ms(900), Duration::ZERO)?;
    demand(matches!(lock, Outcome::Acquire(Ok(_))), "masters that were watched do not count")?;
    verdict(&mut world)
}

/// Servers of the lists before and after a replacement.
const BEFORE: [usize; 3] = [0, 1, 2];
const AFTER: [usize; 3] = [0, 1, 3];

/// A client holds a lock on the first and the third master, and then the third dies. The fourth has run for
/// an hour, and replaces it.
fn to_be_replaced() -> Result<(World, Replacement), String> {
    let mut world = world(3, 1, defaults);
    world.add_server();
    let one = |url: &str| Config::builder().master(url).build().expect("valid settings");
    let config = Config::clone(&world.config);
    let replacement = Replacement::new(config, &one("redis://m2"), &one("redis://m3"), true);
    refuse(&mut world, 1..2, "SET");
    hold(&mut world, 0, KEY, ms(10_000))?;
    world.kill_master(BEFORE[2], true);
    world.masters[1].model.errors.clear();
    Ok((world, replacement.expect("it is in the list")))
}

/// An operator's next step. Returns the wait after it, or `None` after the last.
fn step(world: &mut World, replacement: &mut Replacement) -> Result<Option<Time>, String> {
    let now = world.masters[0].clock.at(world.now);
    let off = OldMaster::Unknown("it is down".to_owned());
    let masters: Vec<_> = AFTER.into_iter().map(|server| candidate(world, server)).collect();
    let step = replacement.next(now, &off, &masters).map_err(|why| why.to_string())?;
    match step {
        Step::Join(change) => write(world, &AFTER, vec![change]),
        Step::Wait(left) => return Ok(Some(Time::try_from(left.as_nanos()).expect("short"))),
        Step::Name { changes, .. } => {
            write(world, &AFTER, changes);
            return Ok(None);
        }
    }
    Ok(Some(0))
}

/// A client with the new list.
fn add_with_new_list(world: &mut World, settings: fn(ConfigBuilder) -> ConfigBuilder) -> usize {
    let urls = AFTER.map(|server| format!("redis://m{server}"));
    let builder = Config::builder().masters(urls).max_ttl(ms(10_000)).max_hold(ms(3_600_000));
    world.config = Arc::new(settings(builder).build().expect("valid settings"));
    let client = world.clients.len();
    world.detours.push(Detour { client: Some(client), place: 2, server: AFTER[2] });
    world.add_client(Clock::new(0, 0), 0)
}

/// Whether a client gets the lock within this time.
fn is_granted(world: &mut World, client: usize, time: Time) -> Result<bool, String> {
    let end = world.now + time;
    while world.now < end {
        if let Outcome::Acquire(Ok(_)) = acquire(world, client, KEY, ms(300), Duration::ZERO)? {
            return Ok(true);
        }
        world.run_for(250 * MS);
    }
    Ok(false)
}

// I27
pub fn a_replacement_waits_for_locks_on_the_old_master() -> Verdict {
    let (mut world, mut replacement) = to_be_replaced()?;
    let mut lock = None;
    while let Some(wait) = step(&mut world, &mut replacement)? {
        world.run_for(wait);
        if wait > 0 {
            // The client with the old list goes on, and gets its lock from masters of both lists.
            lock = Some(hold(&mut world, 0, KEY, ms(10_000))?);
        }
    }
    let other = add_with_new_list(&mut world, defaults);
    world.run_for(10 * MS);
    let state = world.clients[other].engine.master_status(world.local(other), id(2)).state;
    demand(state == MasterState::Ready, "the new master does not count")?;
    demand(difference_count(&world, other) == 0, "a record has the old list")?;
    demand(!is_granted(&mut world, other, SECOND)?, "two lists gave one lock twice")?;
    world.submit_release(0, lock.ok_or("nobody waited")?, true);
    outcome(&mut world, 0)?;
    demand(is_granted(&mut world, other, SECOND)?, "it is never granted")
}

/// A client gets the new list too early.
// I27
pub fn a_joining_master_counts_by_no_uptime() -> Verdict {
    for settings in [defaults, trust] {
        let (mut world, mut replacement) = to_be_replaced()?;
        step(&mut world, &mut replacement)?;
        let other = add_with_new_list(&mut world, settings);
        demand(!is_granted(&mut world, other, 9 * SECOND)?, "it counts while the old one has locks")?;
        demand(is_granted(&mut world, other, 3 * SECOND)?, "it is never granted")?;
    }
    Ok(())
}

/// A client that got the new list too early may have had a lock on a process that is gone.
// I27
pub fn a_new_master_that_changes_takes_no_place() -> Verdict {
    for is_deleted in [true, false] {
        let (mut world, mut replacement) = to_be_replaced()?;
        step(&mut world, &mut replacement)?;
        let Some(wait) = step(&mut world, &mut replacement)? else {
            return Err("it does not wait".to_owned());
        };
        world.run_for(wait);
        if is_deleted {
            let here = world.masters[AFTER[2]].clock.at(world.now);
            world.masters[AFTER[2]].model.data.delete(here, RECORD);
        } else {
            world.kill_master(AFTER[2], true);
            world.start_master(AFTER[2], Data::Empty);
        }
        demand(step(&mut world, &mut replacement).is_err(), "it goes on with another process")?;
    }
    Ok(())
}

tests!(
    a_new_master_that_changes_takes_no_place,
    a_replacement_waits_for_locks_on_the_old_master,
    a_joining_master_counts_by_no_uptime,
    fleet_with_a_missing_master_is_not_declared,
    a_second_clients_other_settings_are_noticed,
    clients_that_start_together_notice_each_other,
    strict_mode_refuses_other_declared_settings,
    the_larger_declared_ttl_is_the_quarantine,
    a_shorter_ttl_is_declared_after_the_longer_one,
    the_record_of_another_prefix_is_not_believed,
    a_new_process_that_restarts_is_quarantined,
    a_process_new_for_another_fleet_is_quarantined,
);
