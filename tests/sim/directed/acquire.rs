//! Attempts, votes and verdicts.

use super::*;

// I1, I3
pub fn answers_that_take_long_do_not_move_the_deadline() -> Verdict {
    let mut world = world(3, 1, |b| b.answer_timeout(ms(500)));
    (0..3).for_each(|master| world.stall(0, master, false, true, 400 * MS));
    hold(&mut world, 0, KEY, ms(1000))?;
    verdict(&mut world)
}

// I2
pub fn a_quorum_heard_late_is_not_handed_out() -> Verdict {
    let mut world = world(3, 1, |b| b.answer_timeout(ms(5000)));
    let stall = |world: &mut World, time| (0..3).for_each(|m| world.stall(0, m, false, true, time));
    stall(&mut world, 100 * MS);
    world.submit_acquire(0, KEY, ms(1000), Duration::ZERO).expect("room");
    world.run_for(MS);
    // The answers arrive while the process is stopped, and are read after the lock's end.
    world.pause(0, 2 * SECOND);
    let outcome = outcome(&mut world, 0)?;
    verdict(&mut world)?;
    demand(matches!(outcome, Outcome::Acquire(Err(_))), "a lock that is over was handed out")
}

// I26
pub fn lock_survives_the_largest_clock_drift() -> Verdict {
    let mut world = unconnected(1, defaults);
    world.masters[0].clock = Clock::new(0, 9_900);
    world.masters[0].model.started = world.masters[0].clock.at(0) - Duration::from_secs(3600);
    world.add_client(Clock::new(0, 0), 0);
    world.run_for(10 * MS);
    hold(&mut world, 0, KEY, ms(10_000))?;
    verdict(&mut world)
}

// I4
pub fn two_of_five_masters_are_never_a_quorum() -> Verdict {
    let mut world = world(5, 1, defaults);
    (2..5).for_each(|master| world.kill_master(master, true));
    world.run_for(MS);
    let outcome = acquire(&mut world, 0, KEY, ms(1000), Duration::ZERO)?;
    verdict(&mut world)?;
    demand(matches!(outcome, Outcome::Acquire(Err(AcquireError::NoQuorum(_)))), "two of five granted a lock")
}

// I5
pub fn a_twice_granting_master_counts_once() -> Verdict {
    let mut world = world(3, 1, defaults);
    world.stop_master(2, 100 * MS);
    hold(&mut world, 0, KEY, ms(10_000))?;
    // The resumed master carries out the SET, loses the key, and is asked again, because it was silent.
    world.run_for(99 * MS);
    world.weather.delay_min = MS;
    world.weather.delay_max = MS;
    world.run_for(2 * MS);
    world.flush_all(2);
    world.run_for(10 * MS);
    verdict(&mut world)
}

// I6
pub fn every_attempt_has_a_value_of_its_own() -> Verdict {
    let mut world = world(3, 2, defaults);
    hold(&mut world, 0, b"a", ms(1000))?;
    hold(&mut world, 1, b"b", ms(1000))?;
    verdict(&mut world)
}

// I7
pub fn a_late_answer_serves_no_next_lock() -> Verdict {
    let mut world = world(3, 1, defaults);
    world.stall(0, 2, false, true, 3 * SECOND);
    let lock = hold(&mut world, 0, b"a", ms(300))?;
    world.submit_release(0, lock, false);
    // No key can be left, though master 2 still owes the answers.
    world.run_for(2 * SECOND);
    hold(&mut world, 0, b"b", ms(5000))?;
    world.run_for(2 * SECOND);
    verdict(&mut world)
}

// I7
pub fn a_grant_does_not_outlive_its_connection() -> Verdict {
    let mut world = world(3, 1, defaults);
    world.stall(0, 1, false, true, 10 * MS);
    world.stall(0, 2, true, true, SECOND);
    let lock = world.submit_acquire(0, KEY, ms(1000), Duration::ZERO).expect("room");
    world.run_for(MS);
    world.kill_master(0, true);
    let outcome = outcome(&mut world, 0)?;
    verdict(&mut world)?;
    demand(
        matches!(outcome, Outcome::Acquire(Err(_))),
        &format!("{lock:?} counts a vote of a lost connection"),
    )
}

// I107
pub fn late_grants_add_to_the_margin() -> Verdict {
    let mut world = world(3, 1, defaults);
    world.stall(0, 2, false, true, 5 * MS);
    let lock = hold(&mut world, 0, KEY, ms(1000))?;
    world.run_for(10 * MS);
    demand(world.clients[0].engine.margin(lock) == 1, "a late grant is not in the margin")
}

// I16
pub fn error_reply_is_no_refusal() -> Verdict {
    let mut world = world(3, 1, defaults);
    refuse(&mut world, 0..2, "SET");
    let outcome = acquire(&mut world, 0, KEY, ms(1000), Duration::ZERO)?;
    verdict(&mut world)?;
    demand(
        matches!(outcome, Outcome::Acquire(Err(AcquireError::NoQuorum(_)))),
        "errors were called contention",
    )
}

/// For a polling waiter, and for a notified waiter whose pauses have grown.
// I135
pub fn retries_come_at_random_times() -> Verdict {
    for (is_notified, wait) in [(false, ms(300)), (true, ms(30_000))] {
        let mut world = world(1, 1, |b| b.ask_holder(false).wake_waiters(is_notified));
        occupy(&mut world, 0..1, KEY);
        (world.weather.delay_min, world.weather.delay_max) = (MS, MS);
        world.trace = Some(Vec::new());
        acquire(&mut world, 0, KEY, ms(1000), wait)?;
        let trace = world.trace.take().unwrap_or_default();
        let park = format!("EVALSHA {}", &crate::model::digest("park")[..8]);
        let attempts = ["SET", &park].map(|it| format!("m0 for c0: {it}"));
        let attempts = trace.iter().filter(|line| attempts.iter().any(|it| line.contains(it)));
        let times: Vec<f64> =
            attempts.filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect();
        let pauses: Vec<String> = times.windows(2).map(|pair| format!("{:.4}", pair[1] - pair[0])).collect();
        // Without the growing pauses and the last one, which the end of the wait cuts short.
        let mut different = pauses.iter().rev().skip(1).take(6).collect::<Vec<_>>();
        different.sort();
        different.dedup();
        demand(different.len() > 3, &format!("notified {is_notified}: retries come regularly: {pauses:?}"))?;
    }
    Ok(())
}

// I14, I15
pub fn a_time_out_leaves_the_order_of_replies_alone() -> Verdict {
    let mut world = world(3, 1, defaults);
    world.stall(0, 2, false, true, 200 * MS);
    world.stall(0, 1, false, true, 200 * MS);
    acquire(&mut world, 0, KEY, ms(1000), Duration::ZERO)?;
    world.run_for(SECOND);
    verdict(&mut world)?;
    hold(&mut world, 0, KEY, ms(1000))?;
    verdict(&mut world)
}

pub fn a_dead_client_leaves_nothing_beyond_its_ttl() -> Verdict {
    let mut world = world(3, 2, defaults);
    world.submit_acquire(0, KEY, ms(1000), Duration::ZERO).expect("room");
    let is_granted = |world: &mut World| (0..3).all(|master| is_held(world, master, KEY));
    world.run_until(SECOND, is_granted);
    world.crash_client(0);
    let outcome = acquire(&mut world, 1, KEY, ms(1000), Duration::ZERO)?;
    demand(matches!(outcome, Outcome::Acquire(Err(AcquireError::Contended(_)))), "its keys should stand")?;
    let outcome = acquire(&mut world, 1, KEY, ms(1000), ms(2000))?;
    verdict(&mut world)?;
    demand(matches!(outcome, Outcome::Acquire(Ok(_))), "the lock of a dead client never ends")
}

// I18
pub fn one_stopped_master_delays_nobody() -> Verdict {
    let mut world = world(5, 1, defaults);
    (world.weather.delay_min, world.weather.delay_max) = (MS, MS);
    world.stop_master(3, 2 * SECOND);
    let start = world.now;
    hold(&mut world, 0, KEY, ms(1000))?;
    demand(world.now - start <= 3 * MS, "a lock took more than a round trip and a turn")
}

// I110
pub fn the_answer_limit_follows_the_round_trip() -> Verdict {
    // A slow network from the start, as the handshake shows.
    let mut world = unconnected(3, defaults);
    (world.weather.delay_min, world.weather.delay_max) = (40 * MS, 40 * MS);
    world.add_client(Clock::new(0, 0), 0);
    world.run_for(SECOND);
    hold(&mut world, 0, b"far", ms(10_000))?;
    verdict(&mut world)?;
    // The network becomes slower, as late answers show.
    let mut world = super::world(3, 1, defaults);
    hold(&mut world, 0, b"near", ms(10_000))?;
    (world.weather.delay_min, world.weather.delay_max) = (40 * MS, 40 * MS);
    world.run_for(SECOND);
    let first = acquire(&mut world, 0, b"first", ms(10_000), Duration::ZERO)?;
    demand(matches!(first, Outcome::Acquire(Err(AcquireError::NoQuorum(_)))), "the limit is never below")?;
    world.run_for(SECOND);
    hold(&mut world, 0, b"second", ms(10_000))?;
    // The network becomes fast again, so a hanging fleet costs only a short attempt.
    (world.weather.delay_min, world.weather.delay_max) = (0, 0);
    for _ in 0..40 {
        world.run_for(20 * MS);
        let lock = hold(&mut world, 0, b"third", ms(10_000))?;
        world.submit_release(0, lock, false);
    }
    (0..3).for_each(|master| world.stop_master(master, 5 * SECOND));
    let start = world.now;
    acquire(&mut world, 0, b"fourth", ms(10_000), Duration::ZERO)?;
    demand(world.now - start <= 55 * MS, "an attempt waits as for the slow network")?;
    verdict(&mut world)
}

// I22
pub fn without_masters_calls_end_by_their_deadline() -> Verdict {
    let mut world = world(3, 1, defaults);
    let lock = hold(&mut world, 0, b"b", ms(1000))?;
    (0..3).for_each(|master| world.kill_master(master, false));
    let acquired = acquire(&mut world, 0, KEY, ms(1000), ms(300))?;
    demand(matches!(acquired, Outcome::Acquire(Err(AcquireError::NoQuorum(_)))), "acquired from nobody")?;
    let extended = extend(&mut world, 0, lock, ms(1000))?;
    demand(matches!(extended, Outcome::Extend(Err(ExtendError::NoQuorum(_)))), "extended by nobody")?;
    world.submit_release(0, lock, true);
    demand(matches!(outcome(&mut world, 0)?, Outcome::Release(Err(_))), "released by nobody")?;
    verdict(&mut world)
}

// I84
pub fn attempts_end_with_their_number() -> Verdict {
    let mut world = world(3, 2, |b| b.wake_waiters(false));
    hold(&mut world, 1, KEY, ms(10_000))?;
    let options = Options::new().ttl(ms(10_000)).wait(ms(5000)).max_attempts(3);
    world.submit_with(0, KEY, options).expect("room");
    let refused = outcome(&mut world, 0)?;
    verdict(&mut world)?;
    match refused {
        Outcome::Acquire(Err(AcquireError::Contended(denial))) => {
            demand(denial.attempts == 3, &format!("{} attempts instead of 3", denial.attempts))
        }
        other => Err(format!("not contended: {other:?}")),
    }
}

tests!(
    attempts_end_with_their_number,
    answers_that_take_long_do_not_move_the_deadline,
    a_quorum_heard_late_is_not_handed_out,
    lock_survives_the_largest_clock_drift,
    two_of_five_masters_are_never_a_quorum,
    a_twice_granting_master_counts_once,
    every_attempt_has_a_value_of_its_own,
    a_late_answer_serves_no_next_lock,
    a_grant_does_not_outlive_its_connection,
    late_grants_add_to_the_margin,
    error_reply_is_no_refusal,
    retries_come_at_random_times,
    a_time_out_leaves_the_order_of_replies_alone,
    a_dead_client_leaves_nothing_beyond_its_ttl,
    one_stopped_master_delays_nobody,
    the_answer_limit_follows_the_round_trip,
    without_masters_calls_end_by_their_deadline,
);
