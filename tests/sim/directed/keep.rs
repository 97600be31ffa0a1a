//! Kept locks, and reports of their loss.

use super::*;

/// Acquires a lock that is kept and watched.
fn keep(world: &mut World, ttl: Duration, max_hold: Duration) -> Result<OpId, String> {
    let options = Options::new().ttl(ttl).wait(Duration::ZERO).auto_extend(max_hold);
    let lock = hold_with(world, 0, KEY, options)?;
    world.submit_watch(0, lock);
    Ok(lock)
}

fn validity_left(world: &World, lock: OpId) -> Duration {
    let valid_until = world.clients[0].engine.valid_until(lock).expect("held");
    valid_until.saturating_duration_since(world.local(0))
}

// I95
pub fn a_kept_lock_lives_while_held() -> Verdict {
    let mut world = world(3, 1, defaults);
    let lock = keep(&mut world, ms(300), ms(60_000))?;
    for _ in 0..20 {
        world.run_for(100 * MS);
        demand(validity_left(&world, lock) > ms(100), "a kept lock was let run out")?;
    }
    demand(world.clients[0].outcomes.is_empty(), "a renewal, or no loss, was reported")?;
    world.submit_release(0, lock, true);
    world.run_for(10 * MS);
    demand((0..3).all(|master| !is_held(&world, master, KEY)), "a released lock is kept")?;
    world.run_for(SECOND);
    verdict(&mut world)?;
    demand((0..3).all(|master| !is_held(&world, master, KEY)), "a released lock came back")
}

// I95
pub fn a_kept_lock_ends_with_its_longest_hold() -> Verdict {
    let mut world = world(3, 1, defaults);
    let lock = keep(&mut world, ms(300), ms(1000))?;
    world.run_for(950 * MS);
    demand(!validity_left(&world, lock).is_zero(), "it ended long before its longest hold")?;
    world.run_for(60 * MS);
    verdict(&mut world)?;
    demand(validity_left(&world, lock).is_zero(), "it is held for longer than its longest hold")
}

// I95
pub fn the_loss_is_reported_before_the_end() -> Verdict {
    let mut world = world(3, 1, defaults);
    keep(&mut world, ms(1000), ms(60_000))?;
    (0..3).for_each(|master| world.stall(0, master, true, true, 10 * SECOND));
    match outcome(&mut world, 0)? {
        Outcome::Lost(valid_until) => {
            let left = valid_until.saturating_duration_since(world.local(0));
            demand(left >= ms(90), "the loss was reported too late")
        }
        other => Err(format!("not a loss: {other:?}")),
    }
}

// I95
pub fn a_lock_reported_lost_is_not_renewed() -> Verdict {
    let mut world = world(3, 1, defaults);
    let lock = keep(&mut world, ms(1000), ms(60_000))?;
    refuse(&mut world, 0..3, "EVALSHA");
    outcome(&mut world, 0)?;
    (0..3).for_each(|master| world.masters[master].model.errors.clear());
    world.run_for(200 * MS);
    verdict(&mut world)?;
    demand(validity_left(&world, lock).is_zero(), "a holder whose loss was reported holds it again")
}

/// With an awaited or unawaited release, while the lock is renewed, when it is nearly over, and with another
/// caller in line.
// I95
pub fn a_released_locks_loss_is_not_reported() -> Verdict {
    for (awaited, pause, has_next) in
        [(true, 10, false), (false, 10, false), (true, 101, true), (false, 950, true)]
    {
        let mut world = world(3, 1, defaults);
        (world.weather.delay_min, world.weather.delay_max) = (MS, MS);
        let options = Options::new().ttl(ms(1000)).wait(Duration::ZERO);
        // A lock that is not kept comes near its end.
        let options = if pause < 900 { options.auto_extend(ms(60_000)) } else { options };
        let lock = hold_with(&mut world, 0, KEY, options)?;
        if has_next {
            world.submit_acquire(0, KEY, ms(1000), ms(5000)).expect("room");
        }
        world.run_for(pause * MS);
        world.submit_watch(0, lock);
        world.submit_release(0, lock, awaited);
        world.run_for(3 * SECOND);
        verdict(&mut world)?;
        let mut outcome = world.clients[0].outcomes.iter();
        demand(
            !outcome.any(|(_, it)| matches!(it, Outcome::Lost(_))),
            "the loss of a released lock is reported",
        )?;
    }
    Ok(())
}

// I95
pub fn a_loss_is_reported_a_tenth_early() -> Verdict {
    for (ttl, extended_ttl) in [(1000, 10_000), (10_000, 1000)] {
        let mut world = world(3, 1, defaults);
        let lock = hold(&mut world, 0, KEY, ms(ttl))?;
        world.submit_watch(0, lock);
        extend(&mut world, 0, lock, ms(extended_ttl))?;
        match outcome(&mut world, 0)? {
            Outcome::Lost(valid_until) => {
                let left = valid_until.saturating_duration_since(world.local(0));
                let lead = left.as_millis().abs_diff(u128::from(extended_ttl) / 10);
                demand(
                    lead < u128::from(extended_ttl) / 100,
                    &format!("it is reported {left:?} before the end"),
                )?;
            }
            other => return Err(format!("not a loss: {other:?}")),
        }
    }
    Ok(())
}

// I95
pub fn a_renewal_is_tried_again_while_masters_stand_still() -> Verdict {
    let mut world = world(3, 1, |b| b.answer_timeout(ms(100)));
    let lock = keep(&mut world, ms(9000), ms(60_000))?;
    (0..2).for_each(|master| world.stop_master(master, 6 * SECOND));
    world.trace = Some(Vec::new());
    world.run_for(5 * SECOND);
    let trace = world.trace.take().unwrap_or_default();
    let count = trace.iter().filter(|line| line.contains("m2 for c0: EVALSHA")).count();
    demand(count > 1, &format!("the third master was asked {count} times"))?;
    world.run_for(2 * SECOND);
    verdict(&mut world)?;
    demand(validity_left(&world, lock) > ms(7000), "no renewal followed when the masters went on")
}

// I97
pub fn a_failed_renewal_of_a_long_lock_is_tried_again_soon() -> Verdict {
    let mut world = world(3, 1, |b| b.max_ttl(ms(60_000)));
    keep(&mut world, ms(60_000), ms(600_000))?;
    refuse(&mut world, 0..2, "EVALSHA");
    let failed = |world: &World| world.clients[0].engine.stats(world.local(0)).extensions_failed;
    world.run_until(60 * SECOND, |world| failed(world) == 1);
    for count in 2..=4 {
        let failed_at = world.now;
        // An attempt takes some milliseconds.
        world.run_until(1100 * MS, |world| failed(world) == count);
        let pause = (world.now - failed_at) / MS;
        demand(failed(&world) == count, &format!("the next one has not failed {pause} ms later"))?;
    }
    Ok(())
}

tests!(
    a_failed_renewal_of_a_long_lock_is_tried_again_soon,
    a_loss_is_reported_a_tenth_early,
    a_renewal_is_tried_again_while_masters_stand_still,
    a_kept_lock_lives_while_held,
    a_kept_lock_ends_with_its_longest_hold,
    the_loss_is_reported_before_the_end,
    a_lock_reported_lost_is_not_renewed,
    a_released_locks_loss_is_not_reported,
);
