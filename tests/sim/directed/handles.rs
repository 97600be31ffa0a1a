//! Locks that pass to another client with a handle: at most once, and out of the first client's reach.

use redlatch::LockHandle;

use super::*;

const MODES: [fn(Options) -> Options; 3] = [|it| it, Options::fenced, Options::shared];

fn options(ttl: Duration) -> Options {
    Options::new().ttl(ttl).wait(Duration::ZERO)
}

/// The handle of a lock that the first client has given up.
fn passed(world: &mut World, options: Options) -> Result<LockHandle, String> {
    let lock = hold_with(world, 0, KEY, options)?;
    world.pass(0, lock).ok_or_else(|| "it is valid".to_owned())
}

fn adopt(world: &mut World, client: usize, handle: &LockHandle) -> Result<Outcome, String> {
    world.submit_adopt(client, handle, None).expect("room");
    outcome(world, client)
}

fn adopted(world: &mut World, client: usize, handle: &LockHandle) -> Result<OpId, String> {
    let lock = world.submit_adopt(client, handle, None).expect("room");
    held(world, client, lock)
}

fn is_gone(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Acquire(Err(AcquireError::Contended(_) | AcquireError::NoQuorum(_))))
}

/// Whether a master has the lock, for anybody, readers included.
fn is_taken(world: &World, master: usize) -> bool {
    let it = &world.masters[master];
    !it.model.holders(it.clock.at(world.now), KEY).is_empty()
}

/// First one client after the other, then both at the same moment.
// I45
pub fn a_handle_is_adopted_once() -> Verdict {
    for mode in MODES {
        let mut world = world(3, 3, defaults);
        let handle = passed(&mut world, mode(options(ms(10_000))))?;
        adopted(&mut world, 1, &handle)?;
        let again = adopt(&mut world, 2, &handle)?;
        demand(is_gone(&again), &format!("a handle is adopted twice: {again:?}"))?;
        verdict(&mut world)?;
    }
    for mode in MODES {
        let mut world = world(5, 3, defaults);
        let handle = passed(&mut world, mode(options(ms(10_000))))?;
        (world.weather.delay_min, world.weather.delay_max) = (MS / 10, MS);
        let locks = [1, 2].map(|client| world.submit_adopt(client, &handle, None).expect("room"));
        [1, 2].into_iter().try_for_each(|client| outcome(&mut world, client).map(drop))?;
        let is_held = |client: usize| world.clients[client].engine.valid_until(locks[client - 1]).is_some();
        demand(!(is_held(1) && is_held(2)), "two clients adopted one lock")?;
        verdict(&mut world)?;
    }
    Ok(())
}

/// By then, another client has the lock.
// I46
pub fn a_lock_that_ended_is_not_adopted() -> Verdict {
    for mode in MODES {
        let mut world = world(3, 3, defaults);
        let handle = passed(&mut world, mode(options(ms(500))))?;
        world.run_for(600 * MS);
        let gone = adopt(&mut world, 1, &handle)?;
        demand(is_gone(&gone), &format!("a lock that has ended is adopted: {gone:?}"))?;
        hold(&mut world, 2, KEY, ms(10_000))?;
        let gone = adopt(&mut world, 1, &handle)?;
        demand(is_gone(&gone), &format!("a lock of somebody else is adopted: {gone:?}"))?;
        verdict(&mut world)?;
    }
    Ok(())
}

/// The first holder's release, its shorter extension, and its release with a handle arrive during or after
/// the adoption.
// I45
pub fn the_first_holder_reaches_no_adopted_lock() -> Verdict {
    for mode in MODES {
        for command in 0..3 {
            let mut world = world(3, 2, |b| b.answer_timeout(ms(500)));
            let lock = hold_with(&mut world, 0, KEY, mode(options(ms(10_000))))?;
            let handle = world.handle_of(0, lock);
            (0..3).for_each(|master| world.stall(0, master, true, false, 200 * MS));
            match command {
                0 => world.submit_release(0, lock, false),
                1 => world.submit_extend(0, lock, ms(500)),
                _ => world.submit_release_by(0, &handle),
            }
            world.run_for(MS);
            // The process ends while its commands are under way.
            world.crash_client(0);
            let adopted = adopted(&mut world, 1, &handle)?;
            world.run_for(2000 * MS);
            verdict(&mut world)?;
            let on_all = (0..3).all(|master| is_taken(&world, master));
            demand(on_all, &format!("command {command} of the first holder ends the adopted lock"))?;
            world.submit_release(1, adopted, false);
            world.run_for(10 * MS);
            demand((0..3).all(|master| !is_taken(&world, master)), "it is not released")?;
        }
    }
    Ok(())
}

/// The quarantine ends before the votes are counted.
// I47
pub fn quarantined_masters_adopt_nothing() -> Verdict {
    for mode in MODES {
        let mut world = world(3, 2, |b| b.answer_timeout(ms(500)));
        let lock = hold_with(&mut world, 0, KEY, mode(options(ms(5000))).auto_extend(ms(60_000)))?;
        world.kill_master(1, true);
        world.start_master(1, Data::All);
        world.run_until(SECOND, |world| quarantine_left(world, 1, 1).is_some());
        let left = quarantine_left(&world, 1, 1).ok_or("it is not in quarantine")?;
        world.run_for(left - 50 * MS);
        let handle = world.pass(0, lock).ok_or("it is valid")?;
        world.stop_master(2, 2 * SECOND);
        let outcome = adopt(&mut world, 1, &handle)?;
        demand(is_gone(&outcome), &format!("a master in quarantine counts: {outcome:?}"))?;
        verdict(&mut world)?;
    }
    Ok(())
}

fn quarantine_left(world: &World, client: usize, master: usize) -> Option<Time> {
    match world.clients[client].engine.master_status(world.local(client), id(master)).state {
        MasterState::Quarantined(left) => Time::try_from(left.as_nanos()).ok(),
        _ => None,
    }
}

/// A late command restored the value after another holder, whose token is larger.
// I48
pub fn a_fenced_lock_is_not_adopted_below_the_fence() -> Verdict {
    let mut world = world(3, 3, defaults);
    let handle = passed(&mut world, options(ms(10_000)).fenced())?;
    let values: Vec<_> = world.masters[0].model.holders(world.masters[0].clock.at(world.now), KEY);
    world.submit_release_by(1, &handle);
    world.run_for(10 * MS);
    let next = hold_with(&mut world, 2, KEY, options(ms(10_000)).fenced())?;
    world.submit_release(2, next, false);
    world.run_for(10 * MS);
    for master in 0..3 {
        let end = world.masters[master].clock.at(world.now + 5 * SECOND);
        world.masters[master].model.put(KEY, &values[0], Some(end));
    }
    let outcome = adopt(&mut world, 1, &handle)?;
    demand(is_gone(&outcome), &format!("a fencing token comes behind a larger one: {outcome:?}"))?;
    verdict(&mut world)
}

/// Also from a client whose clock is behind.
// I48
pub fn a_release_by_a_handle_raises_the_fence() -> Verdict {
    let mut world = world(3, 2, defaults);
    let handle = passed(&mut world, options(ms(10_000)).fenced())?;
    let token = handle.fencing_token().map_or(0, u64::from);
    // The masters lost the fence, as through an expiry.
    (0..3).for_each(|master| world.masters[master].model.put(&crate::model::fence_key(KEY), b"1", None));
    world.submit_release_by(1, &handle);
    world.run_for(10 * MS);
    demand((0..3).all(|master| !is_taken(&world, master)), "it is not released")?;
    for master in 0..3 {
        let it = &world.masters[master];
        let fence = it.model.fence(it.clock.at(world.now), KEY);
        demand(fence == token, &format!("the release leaves the fence at {fence}"))?;
    }
    verdict(&mut world)
}

/// A waiter is served by the release of an adopted lock, and by a release with a handle.
// I45
pub fn waiters_are_served_behind_a_handle() -> Verdict {
    for is_adopted in [true, false] {
        let mut world = world(3, 3, defaults);
        let handle = passed(&mut world, options(ms(10_000)))?;
        let waiter = world.submit_acquire(2, KEY, ms(5000), ms(60_000)).expect("room");
        world.run_for(50 * MS);
        if is_adopted {
            let lock = adopted(&mut world, 1, &handle)?;
            // The release of a short hold may serve nobody.
            world.run_for(20 * MS);
            world.submit_release(1, lock, false);
        } else {
            world.submit_release_by(1, &handle);
        }
        world.run_for(5 * MS);
        let is_served = world.clients[2].engine.valid_until(waiter).is_some();
        demand(is_served, &format!("the waiter is not served, adopted: {is_adopted}"))?;
        verdict(&mut world)?;
    }
    Ok(())
}

/// Masters that are away at the adoption keep the handle's value until they return.
// I45
pub fn an_adopted_lock_goes_on_by_renewals() -> Verdict {
    let mut world = world(3, 2, defaults);
    let handle = passed(&mut world, options(ms(1000)))?;
    let lock = world.submit_adopt(1, &handle, Some(ms(5000))).expect("room");
    held(&mut world, 1, lock)?;
    world.run_for(4500 * MS);
    demand((0..3).all(|master| is_taken(&world, master)), "it is not renewed")?;
    world.run_for(2000 * MS);
    verdict(&mut world)?;
    demand((0..3).all(|master| !is_taken(&world, master)), "it is renewed without end")
}

/// Two of three masters are away, so the third master's replaced value must be released.
// I45
pub fn an_adoption_without_a_quorum_leaves_no_part() -> Verdict {
    let mut world = world(3, 2, defaults);
    let handle = passed(&mut world, options(ms(10_000)))?;
    (1..3).for_each(|master| world.stop_master(master, 2 * SECOND));
    let failed = adopt(&mut world, 1, &handle)?;
    demand(matches!(failed, Outcome::Acquire(Err(AcquireError::NoQuorum(_)))), &format!("{failed:?}"))?;
    world.run_for(5 * SECOND);
    let held: Vec<_> = (0..3).filter(|master| is_taken(&world, *master)).collect();
    demand(held.is_empty(), &format!("a part of an adoption is not released: {held:?}"))?;
    verdict(&mut world)
}

tests!(
    a_handle_is_adopted_once,
    a_lock_that_ended_is_not_adopted,
    the_first_holder_reaches_no_adopted_lock,
    quarantined_masters_adopt_nothing,
    a_fenced_lock_is_not_adopted_below_the_fence,
    a_release_by_a_handle_raises_the_fence,
    waiters_are_served_behind_a_handle,
    an_adopted_lock_goes_on_by_renewals,
    an_adoption_without_a_quorum_leaves_no_part,
);
