//! Inspections and forced deletions.

use super::*;

/// Three masters, a client that holds a lock, and a client that inspects it.
fn world(settings: impl FnOnce(ConfigBuilder) -> ConfigBuilder) -> World {
    let mut world = super::world(3, 2, settings);
    (world.weather.delay_min, world.weather.delay_max) = (MS, MS);
    world
}

// I76
pub fn an_inspection_is_no_vote() -> Verdict {
    let mut world = world(defaults);
    // All masters report the lock as free. The answers meet a new operation in the query's slot: a caller
    // that requests this lock, of which two masters never hear.
    let look = world.submit_inspect(0, KEY);
    world.run_for(6 * MS / 5);
    world.cancel_query(0, look);
    (1..3).for_each(|master| world.stall(0, master, true, false, 60 * SECOND));
    let denied = acquire(&mut world, 0, KEY, ms(10_000), Duration::ZERO)?;
    verdict(&mut world)?;
    demand(matches!(denied, Outcome::Acquire(Err(_))), "a look is taken for a vote")
}

// I75
pub fn a_forced_deletion_is_not_sent_again() -> Verdict {
    for is_cancelled in [false, true] {
        let mut world = world(|builder| builder.answer_timeout(ms(3000)));
        let query = world.submit_force_unlock(0, KEY);
        world.run_for(MS / 2);
        // The deletion is lost on the way to one master.
        world.cut_conn(0, 2, 0, 0);
        if is_cancelled {
            world.cancel_query(0, query);
        }
        hold(&mut world, 1, KEY, ms(10_000))?;
        world.run_for(5 * SECOND);
        verdict(&mut world)?;
        demand(is_held(&world, 2, KEY), "the next holder's lock is deleted over the next connection")?;
    }
    Ok(())
}

// I75
pub fn a_forced_deletion_reaches_all_masters() -> Verdict {
    let mut world = world(defaults);
    hold(&mut world, 1, KEY, ms(10_000))?;
    world.submit_force_unlock(0, KEY);
    world.run_for(10 * MS);
    demand((0..3).all(|master| !is_held(&world, master, KEY)), "the lock is there still")?;
    let next = acquire(&mut world, 0, KEY, ms(10_000), Duration::ZERO)?;
    verdict(&mut world)?;
    demand(matches!(next, Outcome::Acquire(Ok(_))), "the lock is not free")
}

// I75
pub fn a_forced_unlock_leaves_other_key_types() -> Verdict {
    let mut world = world(defaults);
    world.masters[0].model.put_list(KEY);
    world.submit_force_unlock(0, KEY);
    world.run_for(10 * MS);
    verdict(&mut world)?;
    let it = &world.masters[0];
    demand(it.model.is_taken(it.clock.at(world.now), KEY), "somebody else's key is deleted")
}

tests!(
    an_inspection_is_no_vote,
    a_forced_deletion_is_not_sent_again,
    a_forced_deletion_reaches_all_masters,
    a_forced_unlock_leaves_other_key_types,
);
