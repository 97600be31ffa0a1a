//! Fencing tokens grow from holder to holder, whatever is lost or late.

use super::*;
use crate::model::{Dialect, fence_key};

/// Acquires a fenced lock. Returns the operation and the token.
fn fenced(world: &mut World, client: usize, ttl: Duration, wait: Duration) -> Result<(OpId, u64), String> {
    let lock = world.submit_fenced(client, KEY, ttl, wait).expect("room");
    token(world, client).map(|token| (lock, token))
}

fn token(world: &mut World, client: usize) -> Result<u64, String> {
    match outcome(world, client)? {
        Outcome::Acquire(Ok(grant)) => match grant.fencing_token {
            Some(token) => Ok(token.as_u64()),
            None => Err(format!("c{client} has no fencing token")),
        },
        other => Err(format!("c{client} should hold it, but {other:?}")),
    }
}

/// Sets a client's wall clock ahead by this many microseconds.
fn set_ahead(world: &mut World, client: usize, us: i64) {
    world.clients[client].wall_us = WALL_US.saturating_add_signed(us);
}

/// A client whose wall clock is ahead acquires a fenced lock on some masters and dies; its lock expires.
fn leave_fence(world: &mut World, without: usize, ahead_us: i64) -> Result<u64, String> {
    set_ahead(world, 0, ahead_us);
    refuse(world, without..without + 1, "EVALSHA");
    let (_, token) = fenced(world, 0, ms(300), Duration::ZERO)?;
    world.crash_client(0);
    world.masters[without].model.errors.clear();
    Ok(token)
}

fn quarantine_left(world: &World, client: usize, master: usize) -> Option<Time> {
    match world.clients[client].engine.master_status(world.local(client), id(master)).state {
        MasterState::Quarantined(left) => Time::try_from(left.as_nanos()).ok(),
        _ => None,
    }
}

// I12
pub fn a_token_as_large_as_the_fence_is_refused() -> Verdict {
    let mut world = world(3, 2, defaults);
    let (lock, first) = fenced(&mut world, 0, ms(1000), Duration::ZERO)?;
    world.submit_release(0, lock, false);
    world.run_for(10 * MS);
    // The second client's clock shows what the first one's showed at its request.
    let now_us = WALL_US + world.now / 1000;
    set_ahead(&mut world, 1, first.cast_signed() - now_us.cast_signed());
    let (_, second) = fenced(&mut world, 1, ms(1000), Duration::ZERO)?;
    verdict(&mut world)?;
    demand(second > first, "two holders have the same fencing token")
}

// I12
pub fn a_release_leaves_the_fence() -> Verdict {
    let mut world = world(3, 2, defaults);
    let (lock, first) = fenced(&mut world, 0, ms(1000), Duration::ZERO)?;
    world.submit_release(0, lock, false);
    world.run_for(10 * MS);
    set_ahead(&mut world, 1, -1_000_000);
    let (_, second) = fenced(&mut world, 1, ms(1000), Duration::ZERO)?;
    verdict(&mut world)?;
    demand(second > first, "a slow clock had a smaller fencing token")
}

/// A lock that is over is released late, when somebody else has had it, or has it. A contended lock is
/// released by the script that also notifies waiters.
// I10, I12
pub fn a_late_release_spares_the_next_lock() -> Verdict {
    for (is_contended, is_held_still) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut world = world(3, 3, defaults);
        if is_contended {
            hold(&mut world, 2, KEY, ms(200))?;
        }
        let (late, first) = fenced(&mut world, 0, ms(1000), ms(5000))?;
        world.run_for(1100 * MS);
        let (next, second) = fenced(&mut world, 1, ms(5000), Duration::ZERO)?;
        demand(second > first, "tokens do not rise")?;
        if !is_held_still {
            world.submit_release(1, next, false);
            world.run_for(10 * MS);
        }
        world.submit_release(0, late, false);
        world.run_for(10 * MS);
        verdict(&mut world)?;
        for master in 0..3 {
            let it = &world.masters[master];
            demand(is_held(&world, master, KEY) == is_held_still, "it took the next one's key")?;
            let fence = it.model.fence(it.clock.at(world.now), KEY);
            demand(fence == second, &format!("it made {fence} of the fence {second}"))?;
        }
    }
    Ok(())
}

// I12
pub fn a_lost_fence_is_older_than_the_window() -> Verdict {
    let mut world = world(3, 2, defaults);
    // First as far ahead as allowed, then as far behind as the other half of the window.
    let first = leave_fence(&mut world, 2, 4_900_000)?;
    world.kill_master(1, true);
    world.start_master(1, Data::Empty);
    world.run_until(SECOND, |world| quarantine_left(world, 1, 1).is_some());
    let left = quarantine_left(&world, 1, 1).ok_or("it is not in quarantine")?;
    world.run_for(left);
    world.stop_master(0, 60 * SECOND);
    set_ahead(&mut world, 1, -9_900_000);
    let (_, second) = fenced(&mut world, 1, ms(300), ms(5000))?;
    verdict(&mut world)?;
    demand(second > first, "a master that forgot its fence took a smaller token")
}

// I13
pub fn each_vote_is_for_the_token_given() -> Verdict {
    let mut world = world(3, 2, |b| b.answer_timeout(ms(100)));
    let first = leave_fence(&mut world, 2, 1_000_000)?;
    world.run_for(400 * MS);
    // Master 2 grants. The other masters refuse the token as too small when nothing reaches master 2 any
    // more.
    (0..2).for_each(|master| world.stall(1, master, false, true, 10 * MS));
    let lock = world.submit_fenced(1, KEY, ms(1000), Duration::ZERO).expect("room");
    world.run_for(5 * MS);
    world.stall(1, 2, true, false, SECOND);
    let second = token(&mut world, 1)?;
    verdict(&mut world)?;
    let granted = world.clients[1].engine.granted(lock).unwrap_or_default();
    demand(!granted.contains(id(2)), "a vote for the old token counts for the new one")?;
    demand(second > first, "tokens do not rise")
}

// I12
pub fn a_quarantined_vote_never_counts_later() -> Verdict {
    let mut world = world(3, 2, |b| b.answer_timeout(ms(600)));
    let first = leave_fence(&mut world, 2, 4_990_000)?;
    world.kill_master(1, true);
    world.start_master(1, Data::Empty);
    world.run_until(SECOND, |world| quarantine_left(world, 1, 1).is_some());
    let left = quarantine_left(&world, 1, 1).ok_or("it is not in quarantine")?;
    world.run_for(left - 400 * MS);
    world.stop_master(0, 60 * SECOND);
    set_ahead(&mut world, 1, -4_990_000);
    // Its answer arrives after the quarantine.
    world.masters[1].model.load_scripts();
    world.stall(1, 1, false, true, 450 * MS);
    world.submit_fenced(1, KEY, ms(1000), Duration::ZERO).expect("room");
    let result = outcome(&mut world, 1)?;
    verdict(&mut world)?;
    match result {
        Outcome::Acquire(Ok(grant)) => {
            let second = grant.fencing_token.map_or(0, |token| token.as_u64());
            demand(second > first, "a vote from the quarantine made a smaller token")
        }
        _ => Ok(()),
    }
}

// I12
pub fn a_fenced_lock_is_not_handed_over() -> Verdict {
    let mut world = world(3, 1, defaults);
    let (lock, first) = fenced(&mut world, 0, ms(10_000), Duration::ZERO)?;
    world.submit_fenced(0, KEY, ms(10_000), ms(60_000)).expect("room");
    world.run_for(MS);
    world.submit_release(0, lock, false);
    let second = token(&mut world, 0)?;
    verdict(&mut world)?;
    demand(second > first, "the next in line has no larger token")
}

// I12
pub fn a_fenced_waiter_behind_plain_gets_a_token() -> Verdict {
    let mut world = world(3, 1, defaults);
    let lock = hold(&mut world, 0, KEY, ms(10_000))?;
    world.submit_fenced(0, KEY, ms(10_000), ms(60_000)).expect("room");
    world.run_for(MS);
    world.submit_release(0, lock, false);
    token(&mut world, 0)?;
    verdict(&mut world)
}

/// Like the schedule before, but the first attempt fails at once, and the second one also begins in
/// quarantine.
// I12
pub fn a_retry_does_not_count_masters_in_quarantine() -> Verdict {
    let settings = |b: ConfigBuilder| b.answer_timeout(ms(600)).retry_delay(ms(50)..=ms(60));
    let mut world = world(3, 2, settings);
    let first = leave_fence(&mut world, 2, 4_990_000)?;
    world.kill_master(1, true);
    world.start_master(1, Data::Empty);
    world.run_until(SECOND, |world| quarantine_left(world, 1, 1).is_some());
    let left = quarantine_left(&world, 1, 1).ok_or("it is not in quarantine")?;
    world.run_for(left - 400 * MS);
    refuse(&mut world, 0..1, "EVALSHA");
    set_ahead(&mut world, 1, -4_990_000);
    world.masters[1].model.load_scripts();
    world.submit_fenced(1, KEY, ms(1000), ms(5000)).expect("room");
    world.run_for(MS);
    world.stop_master(0, 60 * SECOND);
    world.stall(1, 1, false, true, 450 * MS);
    let second = token(&mut world, 1)?;
    verdict(&mut world)?;
    demand(second > first, "a vote from the quarantine made a smaller token")
}

// I16
pub fn a_fenced_lock_recognizes_its_own_key() -> Verdict {
    let mut world = world(3, 1, defaults);
    world.masters[2].model.load_scripts();
    world.stall(0, 2, false, true, 10 * SECOND);
    let (lock, _) = fenced(&mut world, 0, ms(10_000), Duration::ZERO)?;
    // Carried out without the client's knowledge. Over the next connection the key is found.
    world.break_conn(0, 2);
    world.run_for(SECOND);
    world.submit_release(0, lock, false);
    world.run_for(MS);
    demand(!is_held(&world, 2, KEY), "the key stays where it was met again")
}

pub fn an_acquire_after_its_release_is_old() -> Verdict {
    let mut world = world(1, 2, defaults);
    // The connection ends for the client. The requested lock arrives a second later, after its release.
    world.stall(0, 0, true, false, SECOND);
    world.submit_fenced(0, KEY, ms(10_000), Duration::ZERO).expect("room");
    world.run_for(MS);
    world.break_conn(0, 0);
    outcome(&mut world, 0)?;
    world.run_for(500 * MS);
    let it = &world.masters[0];
    demand(it.model.fence(it.clock.at(world.now), KEY) > 0, "the release raised no fence")?;
    // By the plain rules, the lock would be there until the next release.
    world.run_until(550 * MS, |world| is_held(world, 0, KEY));
    demand(!is_held(&world, 0, KEY), "a lock came back after its release")?;
    verdict(&mut world)
}

// I12
pub fn a_repair_brings_the_fence_too() -> Verdict {
    let mut world = world(3, 1, defaults);
    world.kill_master(2, true);
    world.run_for(MS);
    // When the master returns, the token is far outside the window.
    let (lock, first) = fenced(&mut world, 0, ms(10_000), Duration::ZERO)?;
    world.run_for(6 * SECOND);
    world.start_master(2, Data::Empty);
    world.run_for(3 * SECOND);
    demand(world.clients[0].engine.margin(lock) == 1, "it was not asked again")?;
    let it = &world.masters[2];
    demand(it.model.fence(it.clock.at(world.now), KEY) == first, "it has the lock and no fence")?;
    verdict(&mut world)
}

// I13
pub fn a_wrong_clock_costs_one_round_and_only_once() -> Verdict {
    for ahead_us in [-3_600_000_000, 3_600_000_000, -1_700_000_000_000_000] {
        let mut world = world(5, 1, defaults);
        set_ahead(&mut world, 0, ahead_us);
        for expected in [2, 1, 1] {
            let lock = world.submit_fenced(0, KEY, ms(1000), Duration::ZERO).expect("room");
            let Outcome::Acquire(Ok(grant)) = outcome(&mut world, 0)? else {
                return Err(format!("a clock that is off by {ahead_us} us gets no lock"));
            };
            demand(grant.attempts == expected, &format!("{} attempts", grant.attempts))?;
            world.submit_release(0, lock, false);
            world.run_for(10 * MS);
        }
        verdict(&mut world)?;
    }
    Ok(())
}

pub fn one_wrong_clock_costs_one_vote() -> Verdict {
    for ahead_us in [3_600_000_000_i64, -3_600_000_000] {
        let mut world = world(3, 1, defaults);
        let it = &mut world.masters[0];
        let now = it.clock.at(world.now);
        let wall_us = it.model.wall_us(now).saturating_add_signed(ahead_us);
        it.model.set_wall(now, wall_us);
        for wall_us in [0, ahead_us, ahead_us / 2] {
            set_ahead(&mut world, 0, wall_us);
            let (lock, _) = fenced(&mut world, 0, ms(1000), ms(100))?;
            world.submit_release(0, lock, false);
            world.run_for(10 * MS);
        }
        verdict(&mut world)?;
    }
    Ok(())
}

// I13
pub fn differing_clocks_give_no_token() -> Verdict {
    let mut world = world(3, 1, defaults);
    for (master, ahead_us) in [(0, 3_600_000_000_u64), (1, 7_200_000_000)] {
        let it = &mut world.masters[master];
        let now = it.clock.at(world.now);
        let wall_us = it.model.wall_us(now) + ahead_us;
        it.model.set_wall(now, wall_us);
    }
    world.submit_fenced(0, KEY, ms(1000), ms(100)).expect("room");
    let result = outcome(&mut world, 0)?;
    verdict(&mut world)?;
    let Outcome::Acquire(Err(AcquireError::NoQuorum(denial))) = result else {
        return Err(format!("no clocks agree, but {result:?}"));
    };
    demand(denial.to_string().contains("refused the fencing token"), "it does not say why")
}

pub fn fenced_and_plain_locks_exclude_each_other() -> Verdict {
    let mut world = world(3, 2, defaults);
    let lock = hold(&mut world, 0, KEY, ms(1000))?;
    world.submit_fenced(1, KEY, ms(1000), Duration::ZERO).expect("room");
    let refused = outcome(&mut world, 1)?;
    demand(
        matches!(refused, Outcome::Acquire(Err(AcquireError::Contended(_)))),
        "a plain lock is in the way",
    )?;
    world.submit_release(0, lock, false);
    world.run_for(MS);
    fenced(&mut world, 1, ms(1000), Duration::ZERO)?;
    let refused = acquire(&mut world, 0, KEY, ms(1000), Duration::ZERO)?;
    demand(
        matches!(refused, Outcome::Acquire(Err(AcquireError::Contended(_)))),
        "a fenced lock is in the way",
    )?;
    verdict(&mut world)
}

// I16
pub fn a_fenced_script_that_was_flushed_is_sent_again() -> Verdict {
    let mut world = world(3, 1, defaults);
    world.masters[0].model.dialect = Dialect::Valkey9;
    for _ in 0..2 {
        (0..3).for_each(|master| world.masters[master].model.flush_scripts());
        let (lock, _) = fenced(&mut world, 0, ms(10_000), Duration::ZERO)?;
        (0..3).for_each(|master| world.masters[master].model.flush_scripts());
        world.submit_release(0, lock, true);
        let released = outcome(&mut world, 0)?;
        demand(matches!(released, Outcome::Release(Ok(it)) if it.deleted >= 2), "it was not released")?;
        world.run_for(MS);
        demand(!(0..3).any(|master| is_held(&world, master, KEY)), "a key is left")?;
    }
    verdict(&mut world)
}

pub fn a_fenced_lock_survives_any_lost_byte() -> Verdict {
    (0..330).try_for_each(|size| {
        let mut world = world(3, 1, defaults);
        (world.weather.delay_min, world.weather.delay_max) = (MS, MS);
        let lock = world.submit_fenced(0, KEY, ms(1000), Duration::ZERO).expect("room");
        world.run_for(if size < 300 { MS / 2 } else { 3 * MS / 2 });
        if size < 300 {
            world.cut_conn(0, 0, size, 0)
        } else {
            world.cut_conn(0, 0, 0, size - 300)
        }
        token(&mut world, 0)?;
        world.submit_release(0, lock, false);
        world.run_for(500 * MS);
        verdict(&mut world).map_err(|why| format!("byte {size}: {why}"))?;
        demand(!(0..3).any(|master| is_held(&world, master, KEY)), "a key is left")?;
        world.run_for(SECOND);
        demand(world.clients[0].engine.claim_count() == 0, "an orphan is left")
    })
}

// I90
pub fn a_text_is_not_taken_for_a_fence() -> Verdict {
    let mut world = world(1, 1, defaults);
    let fence = fence_key(KEY);
    world.masters[0].model.put(&fence, b"0x10", None);
    world.submit_fenced(0, KEY, ms(1000), Duration::ZERO).expect("room");
    world.run_for(SECOND);
    let it = &world.masters[0];
    let is_there = it.model.value(it.clock.at(world.now), &fence) == Some(b"0x10");
    demand(is_there, "a fence took the place of somebody else's key")
}

tests!(
    a_text_is_not_taken_for_a_fence,
    a_fenced_waiter_behind_plain_gets_a_token,
    a_retry_does_not_count_masters_in_quarantine,
    a_token_as_large_as_the_fence_is_refused,
    a_release_leaves_the_fence,
    a_late_release_spares_the_next_lock,
    a_lost_fence_is_older_than_the_window,
    each_vote_is_for_the_token_given,
    a_quarantined_vote_never_counts_later,
    a_fenced_lock_is_not_handed_over,
    a_fenced_lock_recognizes_its_own_key,
    an_acquire_after_its_release_is_old,
    a_repair_brings_the_fence_too,
    a_wrong_clock_costs_one_round_and_only_once,
    one_wrong_clock_costs_one_vote,
    differing_clocks_give_no_token,
    fenced_and_plain_locks_exclude_each_other,
    a_fenced_script_that_was_flushed_is_sent_again,
    a_fenced_lock_survives_any_lost_byte,
);
