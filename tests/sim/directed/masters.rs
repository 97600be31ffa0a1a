//! Masters that restart, report falsely, or are other servers than they seem; strict mode.

use super::*;
use crate::model::Value;
use crate::world::Detour;

// I8
pub fn an_empty_master_does_not_vote_against_locks() -> Verdict {
    let mut world = world(3, 2, defaults);
    world.kill_master(2, true);
    world.run_for(MS);
    hold(&mut world, 0, KEY, ms(10_000))?;
    world.kill_master(1, true);
    // By now, master 2 is in the same state as master 1: it never had the lock.
    refuse(&mut world, 1..3, "EVALSHA");
    world.start_master(1, Data::Empty);
    world.start_master(2, Data::All);
    world.crash_client(0);
    let guard_ends = world.now + 9 * SECOND;
    while world.now < guard_ends {
        let outcome = acquire(&mut world, 1, KEY, ms(300), Duration::ZERO)?;
        demand(
            matches!(outcome, Outcome::Acquire(Err(_))),
            "two masters that forgot a lock granted it again",
        )?;
        world.run_for(500 * MS);
    }
    verdict(&mut world)
}

// I8
pub fn the_quarantine_lasts_to_its_last_nanosecond() -> Verdict {
    let mut world = world(1, 1, defaults);
    world.kill_master(0, true);
    world.run_for(MS);
    world.start_master(0, Data::Empty);
    let is_back = |world: &mut World| quarantine_left(world).is_some();
    world.run_until(5 * SECOND, is_back);
    let left = quarantine_left(&world).ok_or("it is not in quarantine")?;
    world.run_for(left - 1);
    let outcome = acquire(&mut world, 0, KEY, ms(1000), Duration::ZERO)?;
    demand(matches!(outcome, Outcome::Acquire(Err(_))), "it voted one nanosecond early")?;
    world.run_for(1);
    hold(&mut world, 0, KEY, ms(1000)).map(drop)
}

fn quarantine_left(world: &World) -> Option<Time> {
    match world.clients[0].engine.master_status(world.local(0), id(0)).state {
        MasterState::Quarantined(left) => Time::try_from(left.as_nanos()).ok(),
        _ => None,
    }
}

// I8
pub fn an_uptimes_last_second_may_not_count() -> Verdict {
    let mut world = unconnected(1, |b| b.max_ttl(ms(1500)));
    // Started 999 ms into a second, so two whole seconds later may be only one second and a millisecond.
    world.kill_master(0, false);
    world.run_for(999 * MS);
    world.start_master(0, Data::Empty);
    world.run_for(1001 * MS);
    world.add_client(Clock::new(0, 0), 0);
    world.run_for(MS);
    let outcome = acquire(&mut world, 0, KEY, ms(1000), Duration::ZERO)?;
    verdict(&mut world)?;
    demand(matches!(outcome, Outcome::Acquire(Err(_))), "an uptime was taken for longer than it is")
}

// I107
pub fn a_master_that_restarted_is_not_in_the_margin() -> Verdict {
    let mut world = world(3, 1, trust);
    let lock = hold(&mut world, 0, KEY, ms(10_000))?;
    refuse(&mut world, 2..3, "SET");
    world.kill_master(2, true);
    world.start_master(2, Data::Empty);
    world.run_for(SECOND);
    verdict(&mut world)?;
    demand(world.clients[0].engine.margin(lock) == 0, "a master that forgot the lock is in its margin")
}

// I21
pub fn one_server_behind_two_addresses_votes_once() -> Verdict {
    let mut world = unconnected(3, defaults);
    world.masters[1].model.run_id = world.masters[0].model.run_id.clone();
    world.kill_master(2, true);
    world.add_client(Clock::new(0, 0), 0);
    world.run_for(10 * MS);
    let outcome = acquire(&mut world, 0, KEY, ms(1000), Duration::ZERO)?;
    demand(matches!(outcome, Outcome::Acquire(Err(AcquireError::NoQuorum(_)))), "one server voted twice")
}

// I118
pub fn a_wait_shorter_than_the_quarantine_fails() -> Verdict {
    let mut world = world(3, 1, defaults);
    for master in 0..3 {
        world.kill_master(master, true);
        world.start_master(master, Data::Empty);
    }
    world.run_for(3 * SECOND);
    let begun = world.now;
    let denied = acquire(&mut world, 0, KEY, ms(1000), ms(2000))?;
    let Outcome::Acquire(Err(AcquireError::NoQuorum(denial))) = denied else {
        return Err(format!("it should fail for the quarantine: {denied:?}"));
    };
    demand(denial.to_string().contains("not counted for another"), &format!("{denial}"))?;
    demand(world.now < begun + 100 * MS, "it waited all the same")?;
    verdict(&mut world)
}

/// Also if the login may not run `INFO`: the first address shows that the lock is already on the second
/// server.
// I21
pub fn an_unnamed_server_behind_two_addresses_votes_once() -> Verdict {
    for (fenced_ppm, shared_ppm) in [(1_000_000, 0), (0, 1_000_000)] {
        let mut world = unconnected(3, trust);
        world.detours = vec![Detour { client: None, place: 1, server: 0 }];
        for master in &mut world.masters {
            master.model.errors.insert("INFO".to_owned(), "NOPERM no".to_owned());
        }
        world.add_client(Clock::new(0, 0), 0);
        world.run_for(10 * MS);
        (world.habits.fenced_ppm, world.habits.shared_ppm) = (fenced_ppm, shared_ppm);
        let what = format!("fenced {fenced_ppm}, shared {shared_ppm}");
        let lock = hold(&mut world, 0, KEY, ms(10_000))?;
        world.run_for(MS);
        demand(world.clients[0].engine.margin(lock) == 0, &format!("{what}: it is in the margin"))?;
        // The second server is gone, and the other one can neither extend the lock alone nor grant another.
        world.kill_master(2, true);
        world.run_for(MS);
        let extended = extend(&mut world, 0, lock, ms(10_000))?;
        demand(matches!(extended, Outcome::Extend(Err(_))), &format!("{what}: one server extends it"))?;
        world.submit_release(0, lock, true);
        outcome(&mut world, 0)?;
        let outcome = acquire(&mut world, 0, KEY, ms(1000), Duration::ZERO)?;
        demand(matches!(outcome, Outcome::Acquire(Err(_))), &format!("{what}: one server voted twice"))?;
        verdict(&mut world)?;
        demand(!is_held(&world, 0, KEY), &format!("{what}: a key is left"))?;
    }
    Ok(())
}

// I20
pub fn a_connection_votes_only_after_its_own_echo() -> Verdict {
    let mut world = unconnected(1, defaults);
    world.masters[0].model.has_wrong_echo = true;
    world.add_client(Clock::new(0, 0), 0);
    world.run_for(10 * MS);
    let state = world.clients[0].engine.master_status(world.local(0), id(0)).state;
    demand(matches!(state, MasterState::Down(_)), "it is ready though its echo was another's")
}

// I8
pub fn a_master_restarted_twice_counts_from_the_second() -> Verdict {
    let mut world = world(1, 2, |b| b.max_ttl(ms(2000)));
    hold(&mut world, 0, KEY, ms(2000))?;
    world.kill_master(0, true);
    world.start_master(0, Data::All);
    world.run_for(1500 * MS);
    world.kill_master(0, true);
    let second = world.now;
    world.start_master(0, Data::Empty);
    while world.now < second + 2 * SECOND {
        let outcome = acquire(&mut world, 1, KEY, ms(300), Duration::ZERO)?;
        demand(matches!(outcome, Outcome::Acquire(Err(_))), "the first restart's quarantine was enough")?;
        world.run_for(100 * MS);
    }
    verdict(&mut world)
}

pub fn jumping_minority_clocks_free_no_lock() -> Verdict {
    let mut world = world(5, 2, defaults);
    hold(&mut world, 0, KEY, ms(10_000))?;
    world.run_for(MS);
    (0..2).for_each(|master| world.step_clock(master, 3600 * SECOND.cast_signed()));
    let outcome = acquire(&mut world, 1, KEY, ms(1000), ms(500))?;
    verdict(&mut world)?;
    demand(world.checker.void_count == 0, "two of five are within the margin")?;
    demand(matches!(outcome, Outcome::Acquire(Err(_))), "two clocks freed a lock of five")
}

// I8
pub fn a_replaced_server_is_no_restart() -> Verdict {
    let mut world = world(1, 1, defaults);
    world.promote_stale_replica(0);
    world.run_for(SECOND);
    let outcome = acquire(&mut world, 0, KEY, ms(1000), Duration::ZERO)?;
    demand(
        matches!(outcome, Outcome::Acquire(Err(_))),
        "a replica without the locks voted for its hour of uptime",
    )
}

// I37
pub fn a_resynced_quorum_gives_no_lock_twice() -> Verdict {
    for settings in [defaults, strict] {
        let mut world = world(3, 2, settings);
        world.run_for(11 * SECOND);
        hold(&mut world, 0, KEY, ms(10_000))?;
        world.crash_client(0);
        (0..3).for_each(|master| world.resync_master(master, true));
        let guard_ends = world.now + 9 * SECOND;
        while world.now < guard_ends {
            let outcome = acquire(&mut world, 1, KEY, ms(300), Duration::ZERO)?;
            demand(matches!(outcome, Outcome::Acquire(Err(_))), "three copies of nothing granted it again")?;
            world.run_for(500 * MS);
        }
        world.run_for(3 * SECOND);
        hold(&mut world, 1, KEY, ms(1000))?;
        verdict(&mut world)?;
    }
    Ok(())
}

/// Nor does its uptime of an hour, for a client that comes then.
// I37
pub fn a_promoted_masters_uptime_proves_nothing() -> Verdict {
    let mut world = unconnected(1, defaults);
    world.resync_master(0, true);
    world.add_client(Clock::new(0, 0), 0);
    world.run_for(10 * MS);
    let outcome = acquire(&mut world, 0, KEY, ms(1000), Duration::ZERO)?;
    demand(matches!(outcome, Outcome::Acquire(Err(_))), "it voted for its uptime")?;
    // Short-lived clients need not wait for ever, because the first sight is recorded on the master.
    for client in 1..=10 {
        world.run_for(SECOND);
        world.crash_client(client - 1);
        world.add_client(Clock::new(0, 0), 0);
        world.run_for(10 * MS);
        let outcome = acquire(&mut world, client, KEY, ms(1000), Duration::ZERO)?;
        let is_granted = matches!(outcome, Outcome::Acquire(Ok(_)));
        demand(is_granted == (client > 9), &format!("second {client}: granted {is_granted}"))?;
    }
    verdict(&mut world)
}

// I29
pub fn a_mark_from_before_a_failover_counts_for_nothing() -> Verdict {
    let mut world = world(1, 1, strict);
    world.run_for(11 * SECOND);
    demand(is_held(&world, 0, b"redlatch:mark"), "there is no mark after the watch")?;
    // Replaced and restored within one process, with all data of that moment.
    let keys = world.masters[0].model.keys().clone();
    world.masters[0].model.resync(keys);
    world.add_client(Clock::new(0, 0), 0);
    world.run_for(10 * MS);
    let outcome = acquire(&mut world, 1, KEY, ms(1000), Duration::ZERO)?;
    demand(matches!(outcome, Outcome::Acquire(Err(_))), "it voted for a mark from before")
}

// I38
pub fn an_open_connection_asks_again() -> Verdict {
    let mut world = world(1, 1, defaults);
    world.resync_master(0, false);
    world.run_for(61 * SECOND);
    let left = quarantine_left(&world);
    demand(left.is_some_and(|left| left > 7 * SECOND), "nobody notices a resync while a connection stands")
}

/// After a failover, its name leads to another server.
// I39
pub fn demoted_master_is_disconnected() -> Verdict {
    let mut world = world(1, 1, trust);
    let error = "READONLY You can't write against a read only replica.";
    world.masters[0].model.errors.insert("SET".to_owned(), error.to_owned());
    let outcome = acquire(&mut world, 0, KEY, ms(1000), Duration::ZERO)?;
    demand(matches!(outcome, Outcome::Acquire(Err(_))), "it granted a lock")?;
    let state = world.clients[0].engine.master_status(world.local(0), id(0)).state;
    demand(matches!(state, MasterState::Down(_)), "its connection is kept")?;
    world.masters[0].model.errors.clear();
    world.run_for(3 * SECOND);
    hold(&mut world, 0, KEY, ms(1000)).map(drop)
}

fn strict(builder: ConfigBuilder) -> ConfigBuilder {
    builder.quarantine(Quarantine::Strict)
}

// I29
pub fn strict_mode_believes_no_uptime() -> Verdict {
    let mut world = world(1, 1, strict);
    let outcome = acquire(&mut world, 0, KEY, ms(1000), Duration::ZERO)?;
    demand(matches!(outcome, Outcome::Acquire(Err(_))), "it voted for its uptime")
}

// I29
pub fn a_mark_speaks_for_the_process_that_it_names() -> Verdict {
    let mut world = unconnected(1, strict);
    world.masters[0].model.put(b"redlatch:mark", b"other - - 1000000", None);
    world.add_client(Clock::new(0, 0), 0);
    world.run_for(10 * MS);
    let outcome = acquire(&mut world, 0, KEY, ms(1000), Duration::ZERO)?;
    demand(matches!(outcome, Outcome::Acquire(Err(_))), "it voted for another's mark")
}

// I29
pub fn a_key_that_is_no_mark_is_not_overwritten() -> Verdict {
    for is_text in [true, false] {
        let mut world = unconnected(1, strict);
        let model = &mut world.masters[0].model;
        if is_text {
            model.put(b"redlatch:mark", b"theirs", None);
        } else {
            model.put_list(b"redlatch:mark");
        }
        world.add_client(Clock::new(0, 0), 0);
        world.run_for(11 * SECOND);
        hold(&mut world, 0, KEY, ms(1000))?;
        let value = &world.masters[0].model.keys()[b"redlatch:mark".as_slice()].value;
        let is_there = *value == if is_text { Value::String(b"theirs".to_vec()) } else { Value::List };
        demand(is_there, "a mark is written over somebody else's key")?;
    }
    Ok(())
}

// I29
pub fn a_mark_is_written_after_the_watch() -> Verdict {
    let mut world = world(1, 1, strict);
    world.run_for(10 * SECOND);
    demand(!is_held(&world, 0, b"redlatch:mark"), "the mark is there before the watch is over")?;
    world.run_for(SECOND);
    demand(is_held(&world, 0, b"redlatch:mark"), "there is no mark after the watch")?;
    // A new client need not watch.
    world.add_client(Clock::new(0, 0), 0);
    world.run_for(10 * MS);
    hold(&mut world, 1, KEY, ms(1000)).map(drop)
}

// I39
pub fn no_mode_takes_a_replica() -> Verdict {
    for settings in [defaults, strict, trust] {
        let mut world = unconnected(1, settings);
        world.masters[0].model.role = "slave".to_owned();
        world.add_client(Clock::new(0, 0), 0);
        world.run_for(10 * MS);
        let state = world.clients[0].engine.master_status(world.local(0), id(0)).state;
        demand(matches!(state, MasterState::Down(_)), "a replica is taken for a master")?;
    }
    Ok(())
}

// I40
pub fn strict_mode_takes_no_evicting_master() -> Verdict {
    let mut world = unconnected(1, strict);
    world.masters[0].model.maxmemory_policy = "allkeys-lru".to_owned();
    world.add_client(Clock::new(0, 0), 0);
    world.run_for(10 * MS);
    let state = world.clients[0].engine.master_status(world.local(0), id(0)).state;
    demand(matches!(state, MasterState::Down(_)), "a master that evicts is taken")
}

tests!(
    an_empty_master_does_not_vote_against_locks,
    the_quarantine_lasts_to_its_last_nanosecond,
    an_uptimes_last_second_may_not_count,
    a_master_that_restarted_is_not_in_the_margin,
    a_wait_shorter_than_the_quarantine_fails,
    one_server_behind_two_addresses_votes_once,
    an_unnamed_server_behind_two_addresses_votes_once,
    a_connection_votes_only_after_its_own_echo,
    a_master_restarted_twice_counts_from_the_second,
    jumping_minority_clocks_free_no_lock,
    a_replaced_server_is_no_restart,
    strict_mode_believes_no_uptime,
    a_mark_speaks_for_the_process_that_it_names,
    a_key_that_is_no_mark_is_not_overwritten,
    a_mark_is_written_after_the_watch,
    no_mode_takes_a_replica,
    strict_mode_takes_no_evicting_master,
    a_resynced_quorum_gives_no_lock_twice,
    a_promoted_masters_uptime_proves_nothing,
    a_mark_from_before_a_failover_counts_for_nothing,
    an_open_connection_asks_again,
    demoted_master_is_disconnected,
);
