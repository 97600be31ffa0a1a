//! A master is replaced while clients go on, so two lists of masters are in use: docs/change.md, "Replace a
//! master".

use super::*;
use crate::world::Detour;

const OLD: usize = 2;

/// A client with the old list extends its lock on the first and the old master as long as it can, while a
/// client with the new list tries to get the lock. Returns whether it ever succeeded.
fn replace(is_old_stopped: bool) -> Result<bool, String> {
    let mut world = world(3, 1, defaults);
    let new = world.add_server();
    world.kill_master(new, false);
    refuse(&mut world, 1..2, "SET");
    let lock = hold(&mut world, 0, KEY, ms(10_000))?;
    if is_old_stopped {
        world.kill_master(OLD, true);
    }
    world.start_master(new, Data::Empty);
    world.detours.push(Detour { client: Some(1), place: OLD, server: new });
    world.add_client(Clock::new(0, 0), 0);
    let mut was_granted = false;
    for _ in 0..30 {
        extend(&mut world, 0, lock, ms(10_000))?;
        world.run_for(250 * MS);
        world.masters[1].model.errors.clear();
        let other = world.submit_acquire(1, KEY, ms(300), Duration::ZERO).expect("room");
        if let Outcome::Acquire(Ok(_)) = outcome(&mut world, 1)? {
            was_granted = true;
            world.submit_release(1, other, true);
            outcome(&mut world, 1)?;
        }
        refuse(&mut world, 1..2, "SET");
        world.run_for(250 * MS);
    }
    verdict(&mut world)?;
    world.masters[1].model.errors.clear();
    take_turns(&mut world, new).map(|()| was_granted)
}

/// With both lists in use, a majority of one excludes a majority of the other.
fn take_turns(world: &mut World, new: usize) -> Verdict {
    world.run_for(10 * SECOND);
    for (holder, other, away) in [(0, 1, OLD), (1, 0, 0), (1, 0, new)] {
        // The holder has the lock without this server.
        refuse(world, away..away + 1, "SET");
        let lock = hold(world, holder, KEY, ms(10_000))?;
        world.masters[away].model.errors.clear();
        let refused = acquire(world, other, KEY, ms(1000), Duration::ZERO)?;
        demand(matches!(refused, Outcome::Acquire(Err(_))), "two lists gave one lock twice")?;
        world.submit_release(holder, lock, true);
        outcome(world, holder)?;
        world.run_for(SECOND);
    }
    verdict(world)
}

// I27
pub fn replacing_a_stopped_master_keeps_exclusion() -> Verdict {
    demand(replace(true)?, "the new master never counted")
}

/// Not a rule but its reason: the fault that the documented order prevents.
// I27
pub fn a_replaced_master_that_runs_gives_two_holders() -> Verdict {
    match replace(false) {
        Err(why) if why.starts_with("EXCLUSION") => Ok(()),
        other => Err(format!("two majorities should meet nowhere, but {other:?}")),
    }
}

tests!(replacing_a_stopped_master_keeps_exclusion, a_replaced_master_that_runs_gives_two_holders);
