//! Locks that are given up without a release: left to their TTL, or for a time.

use super::*;

fn held_on(world: &World) -> usize {
    (0..3).filter(|master| is_held(world, *master, KEY)).count()
}

// I42
pub fn a_left_lock_lives_to_the_end_of_its_ttl() -> Verdict {
    let mut world = world(3, 1, defaults);
    let lock = hold(&mut world, 0, KEY, ms(1000))?;
    world.submit_leave(0, lock, None);
    world.run_for(990 * MS);
    demand((0..3).all(|master| is_held(&world, master, KEY)), "a left lock is released")?;
    world.run_for(20 * MS);
    demand((0..3).all(|master| !is_held(&world, master, KEY)), "a left lock is renewed")?;
    verdict(&mut world)
}

// I42
pub fn a_lost_lock_is_not_left() -> Verdict {
    let mut world = world(3, 1, defaults);
    let lock = hold(&mut world, 0, KEY, ms(1000))?;
    world.run_for(995 * MS);
    let now = world.local(0);
    let left = world.clients[0].engine.leave(now, lock);
    demand(left == Err(LeaveError::Expired), "a lock whose validity has ended is called left")?;
    world.submit_release(0, lock, true);
    outcome(&mut world, 0)?;
    verdict(&mut world)
}

// I43
pub fn returning_master_gets_the_shortened_ttl() -> Verdict {
    let mut world = world(3, 1, defaults);
    let lock = hold(&mut world, 0, KEY, ms(1000))?;
    world.break_conn(0, 0);
    world.submit_leave(0, lock, Some(ms(5000)));
    outcome(&mut world, 0)?;
    world.run_for(4900 * MS);
    demand(held_on(&world) == 3, "a master that was away for a moment has the old TTL")?;
    world.run_for(200 * MS);
    demand(held_on(&world) == 0, "it goes on after its time")?;
    verdict(&mut world)
}

// I43
pub fn master_returning_late_is_released() -> Verdict {
    let mut world = world(3, 1, defaults);
    let lock = hold(&mut world, 0, KEY, ms(10_000))?;
    for master in 0..2 {
        world.break_conn(0, master);
        world.stop_master(master, 2 * SECOND);
    }
    world.submit_leave(0, lock, Some(ms(1000)));
    let Outcome::Leave(Err(LeaveError::Unconfirmed { .. })) = outcome(&mut world, 0)? else {
        return Err("silence confirms the rest".to_owned());
    };
    world.run_for(1500 * MS);
    demand(held_on(&world) == 2, "nobody has answered")?;
    world.run_for(3 * SECOND);
    demand(held_on(&world) == 0, "a master that came back after the time blocks the name")?;
    verdict(&mut world)
}

/// Also if it comes just after the client checked what is owed.
// I43
pub fn late_shortened_ttl_does_not_count() -> Verdict {
    for (late, stalled) in [(2000, 1), (1620, 1), (820, 1), (1900, 2)] {
        let mut world = world(3, 1, defaults);
        let lock = hold(&mut world, 0, KEY, ms(10_000))?;
        (0..stalled).for_each(|master| world.stall(0, master, true, false, late * MS));
        world.submit_leave(0, lock, Some(ms(3000)));
        outcome(&mut world, 0)?;
        world.run_for(late * MS);
        demand(is_held(&world, 0, KEY), "it has the rest, from now on")?;
        world.run_for((3500 - late) * MS);
        demand(
            held_on(&world) == 0,
            &format!("a master counts the rest from when it came, after {late} ms"),
        )?;
        verdict(&mut world)?;
    }
    Ok(())
}

/// The lock was restored on a master that restarted empty, and which may have voted for another before.
// I43
pub fn shortened_ttl_in_quarantine_does_not_count() -> Verdict {
    let mut world = world(3, 1, defaults);
    let lock = hold(&mut world, 0, KEY, ms(10_000))?;
    world.kill_master(2, true);
    world.start_master(2, Data::Empty);
    demand(world.run_until(SECOND, |world| is_held(world, 2, KEY)), "it is not put back")?;
    world.run_for(MS);
    world.kill_master(1, true);
    world.submit_leave(0, lock, Some(ms(5000)));
    let left = outcome(&mut world, 0)?;
    demand(matches!(left, Outcome::Leave(Err(LeaveError::Unconfirmed { .. }))), &format!("{left:?}"))
}

/// The shortest TTL is 6 ms.
// I43
pub fn tiny_remaining_time_is_not_overstated() -> Verdict {
    let mut world = world(3, 1, defaults);
    let lock = hold(&mut world, 0, KEY, ms(1000))?;
    let until = world.local(0) + Duration::from_micros(100);
    world.submit_leave(0, lock, Some(Duration::from_micros(100)));
    let Outcome::Leave(Ok(left)) = outcome(&mut world, 0)? else { return Err("it is not left".to_owned()) };
    demand(left.held_until <= until, "it is promised for longer than it was left")
}

tests!(
    tiny_remaining_time_is_not_overstated,
    shortened_ttl_in_quarantine_does_not_count,
    a_left_lock_lives_to_the_end_of_its_ttl,
    a_lost_lock_is_not_left,
    returning_master_gets_the_shortened_ttl,
    master_returning_late_is_released,
    late_shortened_ttl_does_not_count,
);
