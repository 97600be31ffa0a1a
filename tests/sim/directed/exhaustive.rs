//! Small spaces that can be searched completely.

use super::*;
use crate::model::Dialect;

/// More than the bytes of a `SET` and a release.
const REQUESTS_SIZE: usize = 200;
const REPLIES_SIZE: usize = 12;

/// Acquires and releases a lock while the connection to one master ends at a given byte.
fn cut_at(requests_size: usize, replies_size: usize) -> Verdict {
    let mut world = world(3, 1, defaults);
    (world.weather.delay_min, world.weather.delay_max) = (MS, MS);
    let lock = world.submit_acquire(0, KEY, ms(1000), Duration::ZERO).expect("room");
    if replies_size == 0 {
        world.run_for(MS / 2);
    } else {
        world.run_for(3 * MS / 2);
    }
    world.cut_conn(0, 0, requests_size, replies_size);
    let granted = outcome(&mut world, 0)?;
    demand(matches!(granted, Outcome::Acquire(Ok(_))), "two of three masters were not enough")?;
    world.submit_release(0, lock, false);
    // Over the next connection, long before the TTL ends.
    world.run_for(500 * MS);
    verdict(&mut world)?;
    demand(!(0..3).any(|master| is_held(&world, master, KEY)), "a key is left")?;
    // Before the TTL ends, a command may still arrive.
    world.run_for(SECOND);
    demand(world.clients[0].engine.claim_count() == 0, "an orphan is left")
}

// I9
pub fn a_connection_may_end_inside_any_request() -> Verdict {
    (0..REQUESTS_SIZE).try_for_each(|size| cut_at(size, 0).map_err(|why| format!("byte {size}: {why}")))
}

pub fn a_connection_may_end_inside_any_reply() -> Verdict {
    (1..REPLIES_SIZE).try_for_each(|size| cut_at(0, size).map_err(|why| format!("byte {size}: {why}")))
}

/// Hands a lock over while the connection to one master ends at a given byte of a swap or later.
fn hand_over_cut_at(requests_size: usize, replies_size: usize, dialect: Dialect) -> Verdict {
    let mut world = unconnected(3, defaults);
    world.masters[0].model.dialect = dialect;
    world.add_client(Clock::new(0, 0), 0);
    world.run_for(10 * MS);
    let lock = hold(&mut world, 0, KEY, ms(10_000))?;
    let next = world.submit_acquire(0, KEY, ms(10_000), ms(60_000)).expect("room");
    (world.weather.delay_min, world.weather.delay_max) = (MS, MS);
    world.run_for(MS);
    world.submit_release(0, lock, false);
    world.run_for(if replies_size == 0 { MS / 2 } else { 3 * MS / 2 });
    world.cut_conn(0, 0, requests_size, replies_size);
    let granted = outcome(&mut world, 0)?;
    demand(matches!(granted, Outcome::Acquire(Ok(_))), "two of three masters were not enough")?;
    world.run_for(500 * MS);
    let is_there = |master| is_held(&world, master, KEY);
    demand((0..3).all(is_there), "a master was not asked again")?;
    world.submit_release(0, next, false);
    world.run_for(500 * MS);
    verdict(&mut world)?;
    demand(!(0..3).any(|master| is_held(&world, master, KEY)), "a key is left")?;
    world.run_for(11 * SECOND);
    demand(world.clients[0].engine.claim_count() == 0, "an orphan is left")
}

// I52
pub fn a_connection_may_end_inside_any_hand_over() -> Verdict {
    for dialect in Dialect::ALL {
        for size in 0..REQUESTS_SIZE {
            hand_over_cut_at(size, 0, dialect).map_err(|why| format!("request byte {size}: {why}"))?;
        }
        for size in 1..REPLIES_SIZE {
            hand_over_cut_at(0, size, dialect).map_err(|why| format!("reply byte {size}: {why}"))?;
        }
    }
    Ok(())
}

// I52
pub fn a_process_may_stop_inside_any_hand_over() -> Verdict {
    for step in 0..150 {
        let mut world = world(3, 2, defaults);
        world.weather.delay_max = MS;
        (world.pause_min, world.pause_max) = (700 * MS, 700 * MS);
        let lock = hold(&mut world, 0, KEY, ms(300))?;
        let next = world.submit_acquire(0, KEY, ms(300), ms(5000)).expect("room");
        world.submit_acquire(0, KEY, ms(300), ms(5000)).expect("room");
        world.submit_acquire(1, KEY, ms(300), ms(5000)).expect("room");
        world.pause_at_step = Some(world.step_count + step);
        world.run_for(20 * MS);
        world.submit_release(0, lock, true);
        world.run_for(20 * MS);
        world.submit_release(0, next, false);
        world.run_for(10 * SECOND);
        verdict(&mut world).map_err(|why| format!("step {step}: {why}"))?;
        let is_answered = !world.clients[1].outcomes.is_empty();
        demand(is_answered, &format!("step {step}: the other one was never answered"))?;
    }
    Ok(())
}

pub fn a_process_may_be_stopped_before_any_step() -> Verdict {
    for step in 0..150 {
        let mut world = world(3, 2, defaults);
        world.weather.delay_max = MS;
        (world.pause_min, world.pause_max) = (700 * MS, 700 * MS);
        world.pause_at_step = Some(world.step_count + step);
        // The other client wants the lock all the time, and gets it when the first one's time ends.
        world.submit_acquire(1, KEY, ms(300), ms(5000)).expect("room");
        let lock = world.submit_acquire(0, KEY, ms(300), ms(5000)).expect("room");
        world.run_for(200 * MS);
        if world.clients[0].lock(lock).is_some_and(|it| it.is_held) {
            world.submit_extend(0, lock, ms(300));
        }
        world.run_for(300 * MS);
        world.submit_release(0, lock, true);
        world.run_for(10 * SECOND);
        verdict(&mut world).map_err(|why| format!("step {step}: {why}"))?;
        let is_answered = !world.clients[1].outcomes.is_empty();
        demand(is_answered, &format!("step {step}: the other one was never answered"))?;
    }
    Ok(())
}

const COMMANDS: [&str; 11] =
    ["SET", "EVALSHA", "EVAL", "PTTL", "INFO", "ECHO", "CLIENT", "SCRIPT", "DELIFEQ", "DELEX", "GET"];

const ERRORS: [&str; 15] = [
    "NOSCRIPT No matching script. Please use EVAL.",
    "LOADING Redis is loading the dataset in memory",
    "OOM command not allowed when used memory > 'maxmemory'.",
    "READONLY You can't write against a read only replica.",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
    "BUSY Redis is busy running a script.",
    "NOREPLICAS Not enough good replicas to write.",
    "NOAUTH Authentication required.",
    "WRONGPASS invalid username-password pair or user is disabled.",
    "NOPERM this user has no permissions to run this command",
    "CLUSTERDOWN The cluster is down",
    "MOVED 3999 127.0.0.1:6381",
    "ERR max number of clients reached",
    "",
];

/// One such master costs only its vote, and three cost only the lock.
// I16
pub fn any_error_costs_at_most_one_vote() -> Verdict {
    for command in COMMANDS {
        for error in ERRORS {
            for dialect in Dialect::ALL {
                one_bad_master(command, error, dialect)
                    .and_then(|()| bad_masters(command, error, dialect))
                    .map_err(|why| format!("{command}, {error}: {why}"))?;
            }
        }
    }
    Ok(())
}

fn one_bad_master(command: &str, error: &str, dialect: Dialect) -> Verdict {
    let mut world = unconnected(3, defaults);
    world.masters.iter_mut().for_each(|master| master.model.dialect = dialect);
    world.masters[1].model.errors.insert(command.to_owned(), error.to_owned());
    world.add_client(Clock::new(0, 0), 0);
    world.run_for(10 * MS);
    let lock = hold(&mut world, 0, KEY, ms(1000))?;
    let extended = extend(&mut world, 0, lock, ms(1000))?;
    demand(matches!(extended, Outcome::Extend(Ok(_))), "two good masters did not extend")?;
    let next = world.submit_acquire(0, KEY, ms(1000), ms(5000)).expect("room");
    world.submit_release(0, lock, false);
    let handed_over = outcome(&mut world, 0)?;
    demand(matches!(handed_over, Outcome::Acquire(Ok(_))), "two good masters did not hand over")?;
    world.submit_release(0, next, true);
    let released = outcome(&mut world, 0)?;
    demand(matches!(released, Outcome::Release(Ok(_))), "two good masters did not release")?;
    world.run_for(5 * SECOND);
    demand(!(0..3).any(|master| is_held(&world, master, KEY)), "a key outlived its TTL")?;
    demand(world.clients[0].engine.claim_count() == 0, "a claim outlived its TTL")
}

fn bad_masters(command: &str, error: &str, dialect: Dialect) -> Verdict {
    let mut world = world(3, 1, defaults);
    for master in &mut world.masters {
        master.model.dialect = dialect;
        master.model.errors.insert(command.to_owned(), error.to_owned());
    }
    let lock = world.submit_acquire(0, KEY, ms(1000), Duration::ZERO).expect("room");
    let acquired = outcome(&mut world, 0)?;
    if command == "SET" {
        let is_outage = matches!(acquired, Outcome::Acquire(Err(AcquireError::NoQuorum(_))));
        return demand(is_outage, "three errors are not an outage");
    }
    extend(&mut world, 0, lock, ms(1000))?;
    world.submit_release(0, lock, true);
    outcome(&mut world, 0)?;
    world.run_for(5 * SECOND);
    demand(!(0..3).any(|master| is_held(&world, master, KEY)), "a key outlived its TTL")
}

tests!(
    a_connection_may_end_inside_any_request,
    a_connection_may_end_inside_any_reply,
    a_connection_may_end_inside_any_hand_over,
    a_process_may_stop_inside_any_hand_over,
    a_process_may_be_stopped_before_any_step,
    any_error_costs_at_most_one_vote,
);
