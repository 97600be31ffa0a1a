//! Extension and release.

use super::*;
use crate::model::Dialect;

// I16
pub fn a_flushed_script_is_sent_again() -> Verdict {
    let mut world = world(3, 1, defaults);
    let lock = hold(&mut world, 0, KEY, ms(1000))?;
    (0..3).for_each(|master| world.masters[master].model.flush_scripts());
    let extended = extend(&mut world, 0, lock, ms(1000))?;
    verdict(&mut world)?;
    demand(matches!(extended, Outcome::Extend(Ok(_))), "a script that is not there was taken for a no")
}

// I10
pub fn a_release_leaves_somebody_elses_key_alone() -> Verdict {
    let mut world = world(3, 2, defaults);
    let lock = hold(&mut world, 0, KEY, ms(300))?;
    world.run_for(400 * MS);
    hold(&mut world, 1, KEY, ms(5000))?;
    world.submit_release(0, lock, true);
    world.run_for(10 * MS);
    verdict(&mut world)?;
    demand(
        (0..3).all(|master| is_held(&world, master, KEY)),
        "an expired lock's release took the next one's key",
    )
}

/// Each mode of a lock in turn, with and without a label.
// I74
pub fn a_labelled_lock_is_released_at_once() -> Verdict {
    let mut world = world(3, 2, defaults);
    let plain = Options::new().ttl(ms(10_000)).wait(ms(1000));
    for options in [plain, plain.fenced(), plain.fair(), plain.shared()] {
        for label_ppm in [1_000_000, 0] {
            world.habits.label_ppm = label_ppm;
            let lock = hold_with(&mut world, 0, KEY, options)?;
            // The other client is refused, or is also a reader.
            world.habits.label_ppm = 1_000_000 - label_ppm;
            hold(&mut world, 1, b"b", ms(10_000)).and_then(|other| {
                let refused = acquire(&mut world, 1, KEY, ms(1000), Duration::ZERO)?;
                let is_refused = matches!(refused, Outcome::Acquire(Err(AcquireError::Contended(_))));
                demand(is_refused, "a lock with a label and one without exclude each other")?;
                world.submit_release(1, other, true);
                outcome(&mut world, 1)
            })?;
            extend(&mut world, 0, lock, ms(10_000))?;
            world.submit_release(0, lock, true);
            let Outcome::Release(Ok(released)) = outcome(&mut world, 0)? else {
                return Err("the release is not confirmed".to_owned());
            };
            demand(!released.was_already_gone(), "a released lock is left to its TTL")?;
        }
    }
    verdict(&mut world)
}

// I10
pub fn an_extension_leaves_somebody_elses_key_alone() -> Verdict {
    let mut world = world(3, 2, defaults);
    let lock = hold(&mut world, 0, KEY, ms(10_000))?;
    (0..3).for_each(|master| world.flush_all(master));
    hold(&mut world, 1, KEY, ms(1000))?;
    let extended = extend(&mut world, 0, lock, ms(10_000))?;
    demand(
        matches!(extended, Outcome::Extend(Err(ExtendError::Lost(_)))),
        "a lock that was lost is extended",
    )?;
    world.run_for(SECOND);
    let is_over = (0..3).all(|master| !is_held(&world, master, KEY));
    demand(is_over, "the extension of a lost lock gave the next one's key more time")?;
    verdict(&mut world)
}

// I9
pub fn a_master_that_has_not_answered_is_released_too() -> Verdict {
    let mut world = world(3, 1, defaults);
    occupy(&mut world, 1..3, KEY);
    world.stall(0, 0, false, true, 100 * MS);
    acquire(&mut world, 0, KEY, ms(10_000), Duration::ZERO)?;
    world.run_for(SECOND);
    verdict(&mut world)?;
    demand(!is_held(&world, 0, KEY), "a key is left where the answer was not waited for")
}

// I9
pub fn a_release_follows_its_set() -> Verdict {
    let mut world = world(1, 1, defaults);
    // The SET is under way for half a second, longer than the answer limit.
    world.stall(0, 0, true, false, 500 * MS);
    acquire(&mut world, 0, KEY, ms(10_000), Duration::ZERO)?;
    world.run_for(400 * MS);
    world.run_for(SECOND);
    verdict(&mut world)?;
    demand(!is_held(&world, 0, KEY), "the release overtook its SET, and the key stays")
}

// I9, I23
pub fn a_broken_connection_is_released_over_the_next() -> Verdict {
    let mut world = world(1, 1, defaults);
    world.stall(0, 0, false, true, 10 * SECOND);
    // The release behind it fails.
    refuse(&mut world, 0..1, "EVALSHA");
    acquire(&mut world, 0, KEY, ms(10_000), Duration::ZERO)?;
    world.break_conn(0, 0);
    world.masters[0].model.errors.clear();
    world.run_for(3 * SECOND);
    verdict(&mut world)?;
    demand(!is_held(&world, 0, KEY), "an orphan is left to its TTL")
}

// I9
pub fn late_set_is_released_again() -> Verdict {
    let mut world = world(1, 1, defaults);
    // The connection ends for the client, and its SET arrives a second later.
    world.stall(0, 0, true, false, SECOND);
    world.submit_acquire(0, KEY, ms(10_000), Duration::ZERO).expect("room");
    world.run_for(MS);
    world.break_conn(0, 0);
    outcome(&mut world, 0)?;
    world.run_for(SECOND - 100 * MS);
    demand(!is_held(&world, 0, KEY), "the SET is still under way")?;
    world.run_for(4 * SECOND);
    verdict(&mut world)?;
    demand(!is_held(&world, 0, KEY), "the SET came after the release, and the key stays")
}

// I9
pub fn late_first_set_is_released_after_a_repair() -> Verdict {
    let mut world = world(3, 1, defaults);
    world.stall(0, 2, true, false, SECOND);
    let lock = hold(&mut world, 0, KEY, ms(10_000))?;
    // The connection ends for the client. The next connection sets the key.
    world.break_conn(0, 2);
    world.run_for(500 * MS);
    demand(world.clients[0].engine.margin(lock) == 1, "the key was not put back")?;
    world.submit_release(0, lock, false);
    world.run_for(100 * MS);
    demand(!is_held(&world, 2, KEY), "the first SET is still under way")?;
    world.run_for(4 * SECOND);
    verdict(&mut world)?;
    demand(!is_held(&world, 2, KEY), "the first SET came after the release, and the key stays")
}

// I9
pub fn late_set_without_run_id_is_released() -> Verdict {
    let mut world = unconnected(1, trust);
    refuse(&mut world, 0..1, "INFO");
    world.add_client(Clock::new(0, 0), 0);
    world.run_for(10 * MS);
    world.stall(0, 0, true, false, SECOND);
    world.submit_acquire(0, KEY, ms(10_000), Duration::ZERO).expect("room");
    world.run_for(MS);
    world.break_conn(0, 0);
    outcome(&mut world, 0)?;
    world.run_for(4 * SECOND);
    verdict(&mut world)?;
    demand(!is_held(&world, 0, KEY), "the SET came after the release, and the key stays")
}

// I9
pub fn a_release_that_was_refused_is_sent_again() -> Verdict {
    let mut world = world(3, 1, defaults);
    let lock = hold(&mut world, 0, KEY, ms(10_000))?;
    refuse(&mut world, 0..1, "EVALSHA");
    world.submit_release(0, lock, false);
    world.run_for(10 * MS);
    world.masters[0].model.errors.clear();
    world.run_for(SECOND);
    demand(!is_held(&world, 0, KEY), "a refused release was taken for done")
}

// I1, I3
pub fn an_extension_counts_from_its_sending() -> Verdict {
    let mut world = world(3, 1, |b| b.answer_timeout(ms(500)));
    let lock = hold(&mut world, 0, KEY, ms(2000))?;
    (0..3).for_each(|master| world.stall(0, master, false, true, 400 * MS));
    extend(&mut world, 0, lock, ms(2000))?;
    verdict(&mut world)
}

// I104
pub fn one_master_of_three_cannot_extend() -> Verdict {
    let mut world = world(3, 1, defaults);
    let lock = hold(&mut world, 0, KEY, ms(1000))?;
    (1..3).for_each(|master| world.flush_all(master));
    let extended = extend(&mut world, 0, lock, ms(5000))?;
    verdict(&mut world)?;
    demand(matches!(extended, Outcome::Extend(Err(ExtendError::Lost(_)))), "one of three extended a lock")
}

// I104
pub fn silence_does_not_extend() -> Verdict {
    let mut world = world(3, 1, defaults);
    let lock = hold(&mut world, 0, KEY, ms(1000))?;
    (1..3).for_each(|master| world.stall(0, master, true, true, 3 * SECOND));
    let before = world.clients[0].engine.valid_until(lock);
    let extended = extend(&mut world, 0, lock, ms(5000))?;
    verdict(&mut world)?;
    demand(matches!(extended, Outcome::Extend(Err(ExtendError::NoQuorum(_)))), "silence extended a lock")?;
    demand(world.clients[0].engine.valid_until(lock) == before, "a failed extension moved the deadline")
}

// I11
pub fn a_lock_that_is_over_is_not_extended() -> Verdict {
    let mut world = world(3, 2, defaults);
    let lock = hold(&mut world, 0, KEY, ms(1000))?;
    world.run_for(995 * MS);
    let extended = extend(&mut world, 0, lock, ms(5000))?;
    verdict(&mut world)?;
    demand(
        matches!(extended, Outcome::Extend(Err(ExtendError::Expired))),
        "a lock was extended after its deadline",
    )
}

// I104
pub fn a_shorter_ttl_counts_though_its_round_fails() -> Verdict {
    let mut world = world(3, 2, defaults);
    let lock = hold(&mut world, 0, KEY, ms(10_000))?;
    // Two masters carry out the extension, but their answers come too late.
    (0..2).for_each(|master| world.stall(0, master, false, true, SECOND));
    extend(&mut world, 0, lock, ms(300))?;
    world.run_for(400 * MS);
    hold(&mut world, 1, KEY, ms(1000))?;
    verdict(&mut world)
}

// I16
pub fn own_key_found_again_counts_as_ours() -> Verdict {
    let mut world = world(3, 1, defaults);
    world.stall(0, 2, false, true, 10 * SECOND);
    let lock = hold(&mut world, 0, KEY, ms(10_000))?;
    // Carried out without the client's knowledge. Over the next connection the key is found.
    world.break_conn(0, 2);
    world.run_for(SECOND);
    world.submit_release(0, lock, false);
    world.run_for(MS);
    demand(!is_held(&world, 2, KEY), "the key stays where it was met again")
}

// I107
pub fn the_margin_counts_extended_masters_only() -> Verdict {
    let mut world = world(3, 1, defaults);
    let lock = hold(&mut world, 0, KEY, ms(1000))?;
    world.stop_master(0, 5 * SECOND);
    extend(&mut world, 0, lock, ms(5000))?;
    demand(world.clients[0].engine.margin(lock) == 0, "a master that was not extended is in the margin")
}

// I107
pub fn a_late_set_is_void_after_an_extension() -> Verdict {
    let mut world = world(3, 1, defaults);
    world.stop_master(0, SECOND);
    let lock = hold(&mut world, 0, KEY, ms(2000))?;
    // The extension skips this master, because it owes an answer.
    world.run_for(500 * MS);
    extend(&mut world, 0, lock, ms(5000))?;
    world.run_for(SECOND);
    demand(world.clients[0].engine.margin(lock) == 0, "a key that ends too early is in the margin")
}

// I104
pub fn a_broken_shorter_extension_cuts_nothing() -> Verdict {
    let mut world = world(1, 2, |b| b.answer_timeout(ms(500)));
    let lock = hold(&mut world, 0, KEY, ms(5000))?;
    // The connection ends for the client, and its extension arrives a second later.
    world.stall(0, 0, true, false, SECOND);
    world.submit_extend(0, lock, ms(1500));
    world.run_for(MS);
    world.break_conn(0, 0);
    outcome(&mut world, 0)?;
    world.run_for(300 * MS);
    extend(&mut world, 0, lock, ms(5000))?;
    world.run_for(3 * SECOND);
    acquire(&mut world, 1, KEY, ms(1000), Duration::ZERO)?;
    verdict(&mut world)
}

// I106
pub fn full_masters_still_extend() -> Verdict {
    for dialect in Dialect::ALL {
        let mut world = unconnected(3, defaults);
        world.masters.iter_mut().for_each(|master| master.model.dialect = dialect);
        world.add_client(Clock::new(0, 0), 0);
        world.run_for(10 * MS);
        let lock = hold(&mut world, 0, KEY, ms(10_000))?;
        world.masters.iter_mut().for_each(|master| master.model.data.is_full = true);
        for _ in 0..2 {
            let extended = extend(&mut world, 0, lock, ms(10_000))?;
            demand(matches!(extended, Outcome::Extend(Ok(_))), &format!("not extended: {extended:?}"))?;
        }
        world.run_for(MS);
        demand(world.clients[0].engine.margin(lock) == 1, "a full master is not in the margin")?;
        verdict(&mut world)?;
    }
    Ok(())
}

// I94, I104
pub fn a_lock_that_masters_prove_lost_is_over() -> Verdict {
    let mut world = world(3, 1, defaults);
    let lock = hold(&mut world, 0, KEY, ms(10_000))?;
    (0..2).for_each(|master| world.flush_all(master));
    let extended = extend(&mut world, 0, lock, ms(10_000))?;
    demand(matches!(extended, Outcome::Extend(Err(ExtendError::Lost(_)))), "the loss was not proven")?;
    let valid_until = world.clients[0].engine.valid_until(lock).ok_or("its caller has not released it")?;
    demand(valid_until <= world.local(0), "a lock that is lost is valid still")
}

// I9
pub fn an_awaited_release_is_sent_again_after_a_reconnect() -> Verdict {
    let mut world = world(3, 1, |b| b.answer_timeout(ms(3000)));
    let lock = hold(&mut world, 0, KEY, ms(10_000))?;
    // Two connections break while the release is under way, and the third master does not answer.
    (world.weather.delay_min, world.weather.delay_max) = (MS, MS);
    world.stall(0, 2, false, true, 5 * SECOND);
    world.submit_release(0, lock, true);
    world.run_for(MS / 2);
    (0..2).for_each(|master| world.cut_conn(0, master, 0, 0));
    let released = outcome(&mut world, 0)?;
    demand(matches!(released, Outcome::Release(Ok(_))), &format!("it was not sent again: {released:?}"))?;
    world.run_for(10 * MS);
    demand((0..3).all(|master| !is_held(&world, master, KEY)), "a key is left")
}

/// Many releases whose answers come 10 ms after their limit of 50 ms, and one with an earlier answer.
// I22
pub fn releases_behind_many_others_are_awaited() -> Verdict {
    let mut world = world(3, 1, defaults);
    let (first, locks) = hold_many(&mut world)?;
    (world.weather.delay_min, world.weather.delay_max) = (30 * MS, 30 * MS);
    world.submit_release(0, first, true);
    world.run_for(40 * MS);
    locks.iter().for_each(|lock| world.submit_release(0, *lock, true));
    outcome(&mut world, 0)?;
    locks.iter().try_for_each(|_| {
        let released = outcome(&mut world, 0)?;
        demand(matches!(released, Outcome::Release(Ok(_))), &format!("it was not awaited: {released:?}"))
    })
}

// I22
pub fn masters_that_fall_silent_are_not_awaited_for_their_backlog() -> Verdict {
    let mut world = world(3, 1, defaults);
    let (_, locks) = hold_many(&mut world)?;
    world.run_for(10 * MS);
    (0..3).for_each(|master| world.stall(0, master, false, true, SECOND));
    locks.iter().for_each(|lock| world.submit_release(0, *lock, true));
    world.run_for(51 * MS);
    demand(world.clients[0].outcomes.len() == locks.len(), "releases end after their limit")
}

/// One lock, and 300 others.
fn hold_many(world: &mut World) -> Result<(OpId, Vec<OpId>), String> {
    let mut locks = (0..301).map(|index: usize| hold(world, 0, format!("{index}").as_bytes(), ms(5000)));
    let first = locks.next().expect("the first of many")?;
    Ok((first, locks.collect::<Result<_, _>>()?))
}

// I9
pub fn a_release_after_the_end_frees_its_place() -> Verdict {
    let mut world = world(3, 1, defaults);
    for _ in 0..3 {
        let lock = hold(&mut world, 0, KEY, ms(300))?;
        world.run_for(400 * MS);
        world.submit_release(0, lock, false);
    }
    world.run_for(10 * MS);
    verdict(&mut world)?;
    let count = world.clients[0].engine.operation_count();
    demand(count == 0, &format!("{count} locks that are over have a place still"))
}

// I105
pub fn unasked_masters_prove_a_loss() -> Verdict {
    let mut world = world(5, 1, defaults);
    (3..5).for_each(|master| world.kill_master(master, true));
    world.run_for(10 * MS);
    let lock = hold(&mut world, 0, KEY, ms(10_000))?;
    world.flush_all(0);
    let extended = extend(&mut world, 0, lock, ms(10_000))?;
    demand(
        matches!(extended, Outcome::Extend(Err(ExtendError::Lost(_)))),
        &format!("two of five may hold it: {extended:?}"),
    )?;
    verdict(&mut world)
}

// I85
pub fn a_lock_without_a_quorum_is_not_put_back() -> Verdict {
    let mut world = world(5, 1, defaults);
    (3..5).for_each(|master| world.kill_master(master, true));
    world.run_for(10 * MS);
    hold(&mut world, 0, KEY, ms(10_000))?;
    world.kill_master(0, true);
    world.start_master(0, Data::Empty);
    world.run_until(3 * SECOND, |world| world.is_connected(0, 0));
    world.run_for(100 * MS);
    verdict(&mut world)?;
    demand(!is_held(&world, 0, KEY), "a lock that two of five have is put back")
}

/// The checker compares the counters with the requests and with what is under way.
// I131
pub fn each_lock_ends_in_one_counter() -> Verdict {
    let mut world = world(3, 1, defaults);
    let lost = hold(&mut world, 0, b"b", ms(300))?;
    world.run_for(400 * MS);
    world.submit_release(0, lost, false);
    let first = hold(&mut world, 0, KEY, ms(5000))?;
    let second = world.submit_acquire(0, KEY, ms(5000), ms(5000)).expect("room");
    world.run_for(10 * MS);
    world.submit_release(0, first, false);
    world.run_for(10 * MS);
    world.submit_release(0, second, false);
    let given_up = world.submit_acquire(0, KEY, ms(5000), ms(5000)).expect("room");
    world.submit_release(0, given_up, false);
    world.run_for(10 * MS);
    verdict(&mut world)?;
    let stats = world.clients[0].engine.stats(world.local(0));
    let ends = (stats.acquired, stats.released, stats.lost, stats.hand_overs, stats.abandoned);
    demand(ends == (3, 2, 1, 1, 1), &format!("{ends:?}"))
}

tests!(
    each_lock_ends_in_one_counter,
    a_lock_without_a_quorum_is_not_put_back,
    a_lock_that_masters_prove_lost_is_over,
    an_awaited_release_is_sent_again_after_a_reconnect,
    a_release_after_the_end_frees_its_place,
    releases_behind_many_others_are_awaited,
    masters_that_fall_silent_are_not_awaited_for_their_backlog,
    unasked_masters_prove_a_loss,
    full_masters_still_extend,
    a_flushed_script_is_sent_again,
    a_release_leaves_somebody_elses_key_alone,
    an_extension_leaves_somebody_elses_key_alone,
    a_master_that_has_not_answered_is_released_too,
    a_release_follows_its_set,
    a_broken_connection_is_released_over_the_next,
    late_set_is_released_again,
    late_first_set_is_released_after_a_repair,
    late_set_without_run_id_is_released,
    a_release_that_was_refused_is_sent_again,
    an_extension_counts_from_its_sending,
    one_master_of_three_cannot_extend,
    silence_does_not_extend,
    a_lock_that_is_over_is_not_extended,
    a_shorter_ttl_counts_though_its_round_fails,
    a_labelled_lock_is_released_at_once,
    own_key_found_again_counts_as_ours,
    the_margin_counts_extended_masters_only,
    a_late_set_is_void_after_an_extension,
    a_broken_shorter_extension_cuts_nothing,
);
