//! Readers that share a lock, and writers that keep new readers out.

use super::*;
use crate::model::Dialect;

/// Acquires a reader's lock.
fn read(world: &mut World, client: usize, ttl: Duration) -> Result<OpId, String> {
    let lock = world.submit_shared(client, KEY, ttl, Duration::ZERO).expect("room");
    match outcome(world, client)? {
        Outcome::Acquire(Ok(_)) => Ok(lock),
        other => Err(format!("c{client} should read, but {other:?}")),
    }
}

/// Whether a reader's single attempt is refused because of another client.
fn is_kept_out(world: &mut World, client: usize) -> Result<bool, String> {
    let lock = world.submit_shared(client, KEY, ms(1000), Duration::ZERO).expect("room");
    match outcome(world, client)? {
        Outcome::Acquire(Ok(_)) => {
            world.submit_release(client, lock, false);
            world.run_for(MS);
            Ok(false)
        }
        Outcome::Acquire(Err(AcquireError::Contended(_))) => Ok(true),
        other => Err(format!("neither yes nor no: {other:?}")),
    }
}

/// Starts a writer that keeps trying, and keeps new readers out meanwhile.
fn insist(world: &mut World, client: usize, wait: Duration) -> OpId {
    let options = Options::new().ttl(ms(1000)).wait(wait);
    world.submit_with(client, KEY, options).expect("room")
}

fn held(world: &mut World, client: usize) -> Verdict {
    match outcome(world, client)? {
        Outcome::Acquire(Ok(_)) => Ok(()),
        other => Err(format!("c{client} should have it, but {other:?}")),
    }
}

fn contended(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Acquire(Err(AcquireError::Contended(_))))
}

fn reader_count(world: &World, master: usize) -> usize {
    let it = &world.masters[master];
    it.model.reader_count(it.clock.at(world.now), KEY)
}

fn is_taken(world: &World, master: usize) -> bool {
    let it = &world.masters[master];
    it.model.is_taken(it.clock.at(world.now), KEY)
}

fn nobody_is_left(world: &World) -> Verdict {
    let is_free = |master| !is_taken(world, master);
    demand((0..world.masters.len()).all(is_free), "somebody is left on a master")
}

// I86
pub fn readers_share_a_lock_and_writers_do_not() -> Verdict {
    for dialect in Dialect::ALL {
        let mut world = world(3, 4, defaults);
        world.masters.iter_mut().for_each(|master| master.model.dialect = dialect);
        let (one, other) = (read(&mut world, 0, ms(10_000))?, read(&mut world, 1, ms(5_000))?);
        let refused = acquire(&mut world, 2, KEY, ms(1000), Duration::ZERO)?;
        demand(contended(&refused), "a plain lock beside readers")?;
        let Outcome::Acquire(Err(AcquireError::Contended(denial))) = refused else { unreachable!() };
        let is_known = matches!(denial.holder, redlatch::error::HolderTtl::Left(left) if left > ms(9_000));
        demand(is_known, &format!("it does not know the last reader's end: {:?}", denial.holder))?;
        world.submit_fenced(3, KEY, ms(1000), Duration::ZERO).expect("room");
        let refused = outcome(&mut world, 3)?;
        demand(contended(&refused), &format!("a fenced lock beside readers: {refused:?}"))?;
        world.submit_release(0, one, false);
        world.run_for(MS);
        demand(contended(&acquire(&mut world, 2, KEY, ms(1000), Duration::ZERO)?), "one reader was left")?;
        world.submit_release(1, other, false);
        world.run_for(MS);
        let writer = hold(&mut world, 2, KEY, ms(10_000))?;
        demand(is_kept_out(&mut world, 0)?, "a reader beside a writer")?;
        world.submit_release(2, writer, true);
        outcome(&mut world, 2)?;
        read(&mut world, 0, ms(1000))?;
        verdict(&mut world)?;
    }
    Ok(())
}

// I86
pub fn a_reader_of_a_shorter_ttl_ends_nobody_elses() -> Verdict {
    let mut world = world(3, 3, defaults);
    let long = read(&mut world, 0, ms(10_000))?;
    let short = read(&mut world, 1, ms(300))?;
    world.run_for(400 * MS);
    demand(contended(&acquire(&mut world, 2, KEY, ms(1000), Duration::ZERO)?), "a reader was cut short")?;
    // In the other order: the reader with the longer TTL leaves, and the key expires with the other one.
    read(&mut world, 1, ms(500))?;
    world.submit_release(1, short, false);
    world.submit_release(0, long, false);
    world.run_for(400 * MS);
    demand(contended(&acquire(&mut world, 2, KEY, ms(1000), Duration::ZERO)?), "a reader went with another")?;
    world.run_for(150 * MS);
    hold(&mut world, 2, KEY, ms(1000))?;
    verdict(&mut world)
}

// I86
pub fn a_new_reader_leaves_valid_readers() -> Verdict {
    let mut world = world(3, 3, defaults);
    read(&mut world, 0, ms(5_000))?;
    read(&mut world, 1, ms(10_000))?;
    verdict(&mut world)?;
    demand(reader_count(&world, 0) == 2, "the first one is gone")
}

/// Checks bounds of the key's remaining time.
fn ends_within(world: &World, least: i64, most: i64) -> Verdict {
    for (index, it) in world.masters.iter().enumerate() {
        let left = it.model.data.time_left(it.clock.at(world.now), KEY);
        demand((least..=most).contains(&left), &format!("m{index} keeps the key for {left} ms"))?;
    }
    Ok(())
}

// I86
pub fn an_extended_reader_leaves_the_others_their_time() -> Verdict {
    let mut world = world(3, 3, defaults);
    let short = read(&mut world, 0, ms(1000))?;
    read(&mut world, 1, ms(10_000))?;
    extend(&mut world, 0, short, ms(2000))?;
    world.run_for(MS);
    ends_within(&world, 9_990, 10_001)?;
    // Also if the last reader is extended, even to a shorter time.
    let long = read(&mut world, 2, ms(10_000))?;
    world.run_for(SECOND);
    extend(&mut world, 2, long, ms(3000))?;
    world.run_for(MS);
    ends_within(&world, 8_990, 9_001)?;
    verdict(&mut world)
}

// I87
pub fn a_writer_follows_the_last_reader() -> Verdict {
    let mut world = world(3, 3, defaults);
    let long = read(&mut world, 0, ms(10_000))?;
    read(&mut world, 1, ms(1000))?;
    world.submit_release(0, long, false);
    world.run_for(MS);
    ends_within(&world, 990, 1001)?;
    // The other reader dies.
    world.crash_client(1);
    world.run_for(1001 * MS);
    hold(&mut world, 2, KEY, ms(1000))?;
    verdict(&mut world)
}

/// A reader's first request may arrive late, over an ended connection.
// I86
pub fn a_late_reader_request_cuts_no_extension() -> Verdict {
    let mut world = world(3, 1, defaults);
    world.stall(0, 2, true, false, SECOND);
    let lock = read(&mut world, 0, ms(2000))?;
    world.break_conn(0, 2);
    // The next connection sets it.
    world.run_for(500 * MS);
    demand(reader_count(&world, 2) == 1, "the master was not asked again")?;
    extend(&mut world, 0, lock, ms(10_000))?;
    world.run_for(SECOND);
    ends_within(&world, 8_900, 10_001)?;
    verdict(&mut world)
}

// I86
pub fn a_late_shorter_reader_extension_cuts_nothing() -> Verdict {
    let mut world = world(1, 2, |b| b.answer_timeout(ms(500)));
    let lock = read(&mut world, 0, ms(5000))?;
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

// I86
pub fn a_reader_that_goes_leaves_the_others() -> Verdict {
    let mut world = world(3, 3, defaults);
    let (lock, _) = (read(&mut world, 0, ms(10_000))?, read(&mut world, 1, ms(10_000))?);
    world.submit_release(0, lock, false);
    world.run_for(MS);
    demand(contended(&acquire(&mut world, 2, KEY, ms(1000), Duration::ZERO)?), "the other one is gone, too")?;
    verdict(&mut world)
}

// I88
pub fn a_reader_is_extended_only_where_it_is() -> Verdict {
    let mut world = world(3, 2, defaults);
    let lock = read(&mut world, 0, ms(10_000))?;
    (0..2).for_each(|master| world.flush_all(master));
    let extended = extend(&mut world, 0, lock, ms(10_000))?;
    demand(
        matches!(extended, Outcome::Extend(Err(ExtendError::Lost(_)))),
        &format!("lost, but {extended:?}"),
    )?;
    // The same with a writer there, whose key has another type.
    let lock = read(&mut world, 0, ms(10_000))?;
    (0..3).for_each(|master| world.flush_all(master));
    hold(&mut world, 1, KEY, ms(10_000))?;
    let extended = extend(&mut world, 0, lock, ms(10_000))?;
    demand(
        matches!(extended, Outcome::Extend(Err(ExtendError::Lost(_)))),
        &format!("lost, but {extended:?}"),
    )?;
    verdict(&mut world)
}

// I88
pub fn a_writers_commands_spare_readers() -> Verdict {
    for dialect in Dialect::ALL {
        let mut world = world(3, 2, defaults);
        world.masters.iter_mut().for_each(|master| master.model.dialect = dialect);
        let lock = hold(&mut world, 0, KEY, ms(10_000))?;
        (0..3).for_each(|master| world.flush_all(master));
        let reader = read(&mut world, 1, ms(10_000))?;
        let extended = extend(&mut world, 0, lock, ms(10_000))?;
        let is_lost = matches!(extended, Outcome::Extend(Err(ExtendError::Lost(_))));
        demand(is_lost, &format!("lost, but {extended:?}"))?;
        world.submit_release(0, lock, true);
        let released = outcome(&mut world, 0)?;
        let is_gone = matches!(&released, Outcome::Release(Ok(it)) if it.was_already_gone());
        demand(is_gone, &format!("nothing was there to release, but {released:?}"))?;
        demand(world.clients[0].engine.claim_count() == 0, "an orphan that nothing can end")?;
        demand((0..3).all(|master| reader_count(&world, master) == 1), "the reader is gone")?;
        world.submit_release(1, reader, false);
        world.run_for(MS);
        verdict(&mut world)?;
    }
    Ok(())
}

// I91
pub fn one_clients_readers_do_not_wait() -> Verdict {
    let mut world = world(3, 1, defaults);
    for _ in 0..3 {
        world.submit_shared(0, KEY, ms(10_000), ms(2000)).expect("room");
    }
    (0..3).try_for_each(|_| held(&mut world, 0))?;
    verdict(&mut world)?;
    demand(world.now < 100 * MS, "one waited for another")
}

// I91
pub fn a_reader_that_writes_waits_for_itself() -> Verdict {
    let mut world = world(3, 1, defaults);
    let reader = read(&mut world, 0, ms(10_000))?;
    let writer = insist(&mut world, 0, ms(500));
    let refused = outcome(&mut world, 0)?;
    demand(contended(&refused), &format!("it reads still, but {refused:?}"))?;
    demand(world.clients[0].engine.valid_until(reader).is_some(), "it does not read any more")?;
    demand(world.clients[0].engine.valid_until(writer).is_none(), "it writes")?;
    world.submit_release(0, reader, false);
    world.run_for(MS);
    hold(&mut world, 0, KEY, ms(1000))?;
    verdict(&mut world)
}

/// Two clients read in turn, so that there is always a reader, while a third client wants to write.
// I68
pub fn passing_readers_keep_no_writer_waiting() -> Verdict {
    let mut world = world(3, 3, |builder| builder.ask_holder(false));
    (world.weather.delay_min, world.weather.delay_max) = (MS / 10, MS / 10);
    let mut locks = [Some(read(&mut world, 0, ms(1000))?), None];
    let writer = insist(&mut world, 2, ms(4000));
    for turn in 0..400 {
        let (next, last) = ((turn + 1) % 2, turn % 2);
        // One of many arriving readers is let in.
        locks[next] = None;
        let lock = world.submit_shared(next, KEY, ms(1000), Duration::ZERO).expect("room");
        if matches!(outcome(&mut world, next)?, Outcome::Acquire(Ok(_))) {
            locks[next] = Some(lock);
        }
        world.run_for(5 * MS);
        if let Some(lock) = locks[last].take() {
            world.submit_release(last, lock, false);
        }
        world.run_for(5 * MS);
        if world.clients[2].engine.valid_until(writer).is_some() {
            break;
        }
    }
    verdict(&mut world)?;
    demand(world.clients[2].engine.valid_until(writer).is_some(), "readers that come and go kept it waiting")
}

pub fn a_writer_giving_up_admits_readers() -> Verdict {
    let mut world = world(3, 3, defaults);
    read(&mut world, 0, ms(10_000))?;
    insist(&mut world, 1, ms(300));
    world.run_for(10 * MS);
    demand(is_kept_out(&mut world, 2)?, "a reader came though a writer waits")?;
    demand(contended(&outcome(&mut world, 1)?), "readers are there")?;
    world.run_for(MS);
    demand(!is_kept_out(&mut world, 2)?, "readers stay out though nobody wants to write")?;
    // Cancelled in the middle of an attempt.
    let lock = insist(&mut world, 1, ms(5000));
    world.run_for(10 * MS);
    (0..3).for_each(|master| world.stall(1, master, false, true, 400 * MS));
    world.run_for(600 * MS);
    world.submit_release(1, lock, false);
    world.run_for(MS);
    demand(!is_kept_out(&mut world, 2)?, "readers stay out for one that was cancelled")?;
    verdict(&mut world)
}

pub fn waiting_readers_notice_a_writer_giving_up() -> Verdict {
    let mut world = world(3, 3, |builder| builder.ask_holder(false).retry_delay(ms(5000)..=ms(5000)));
    read(&mut world, 0, ms(10_000))?;
    insist(&mut world, 1, ms(700));
    world.run_for(10 * MS);
    world.submit_shared(2, KEY, ms(1000), ms(10_000)).expect("room");
    demand(contended(&outcome(&mut world, 1)?), "readers are there")?;
    let gave_up = world.now;
    held(&mut world, 2)?;
    verdict(&mut world)?;
    demand(world.now - gave_up < 50 * MS, "the reader was not notified")
}

pub fn a_waiting_writer_keeps_readers_out() -> Verdict {
    let mut world = world(3, 3, |builder| builder.retry_delay(ms(5000)..=ms(5000)));
    let reader = read(&mut world, 0, ms(10_000))?;
    insist(&mut world, 1, ms(9000));
    for _ in 0..80 {
        world.run_for(100 * MS);
        demand(is_kept_out(&mut world, 2)?, "a reader came in between")?;
    }
    world.submit_release(0, reader, false);
    held(&mut world, 1)?;
    verdict(&mut world)
}

pub fn several_preferring_writers_all_get_turns() -> Verdict {
    let mut world = world(3, 4, defaults);
    let reader = read(&mut world, 0, ms(10_000))?;
    for client in 1..4 {
        insist(&mut world, client, ms(9000));
    }
    world.run_for(100 * MS);
    world.submit_release(0, reader, false);
    for _ in 1..4 {
        world.run_until(9 * SECOND, |world| (1..4).any(|client| !world.clients[client].outcomes.is_empty()));
        let client =
            (1..4).find(|client| !world.clients[*client].outcomes.is_empty()).ok_or("nobody writes")?;
        let lock = world.clients[client].outcomes.front().map(|(lock, _)| *lock).ok_or("none")?;
        held(&mut world, client)?;
        world.run_for(50 * MS);
        world.submit_release(client, lock, false);
    }
    // The last refused writer has removed everything that the writers left.
    world.run_for(1200 * MS);
    demand(!is_kept_out(&mut world, 0)?, "readers stay out though all have written")?;
    verdict(&mut world)
}

// I91
pub fn readers_and_writers_wake_each_other() -> Verdict {
    let mut world = world(3, 12, |builder| builder.ask_holder(false).retry_delay(ms(5000)..=ms(5000)));
    (world.weather.delay_min, world.weather.delay_max) = (MS, MS);
    let writer = hold(&mut world, 0, KEY, ms(10_000))?;
    // Two readers of one client share a subscription.
    let mut readers: Vec<_> = (1..11)
        .map(|client| (client, world.submit_shared(client, KEY, ms(10_000), ms(60_000)).expect("room")))
        .collect();
    readers.push((1, world.submit_shared(1, KEY, ms(10_000), ms(60_000)).expect("room")));
    world.run_for(100 * MS);
    world.submit_release(0, writer, false);
    world.run_for(10 * MS);
    verdict(&mut world)?;
    for (client, lock) in &readers {
        let is_reading = world.clients[*client].engine.valid_until(*lock).is_some();
        demand(is_reading, &format!("c{client} does not read after five round trips"))?;
    }
    let writer = world.submit_acquire(11, KEY, ms(10_000), ms(60_000)).expect("room");
    world.run_for(100 * MS);
    for (client, lock) in readers {
        demand(world.clients[11].engine.valid_until(writer).is_none(), "it writes beside readers")?;
        world.submit_release(client, lock, false);
        world.run_for(MS / 2);
    }
    world.run_for(7 * MS);
    verdict(&mut world)?;
    demand(world.clients[11].engine.valid_until(writer).is_some(), "the writer was not notified")
}

// I88
pub fn an_unheard_reader_is_released_too() -> Verdict {
    let mut world = world(3, 1, defaults);
    // The master knows its script.
    let lock = read(&mut world, 0, ms(1000))?;
    world.submit_release(0, lock, false);
    world.run_for(MS);
    occupy(&mut world, 1..3, KEY);
    world.stall(0, 0, false, true, 100 * MS);
    world.submit_shared(0, KEY, ms(10_000), Duration::ZERO).expect("room");
    demand(contended(&outcome(&mut world, 0)?), "a quorum is somebody else's")?;
    world.run_for(SECOND);
    verdict(&mut world)?;
    demand(reader_count(&world, 0) == 0, "a reader is left where the answer was not waited for")
}

// I88
pub fn a_readers_broken_connection_is_released_over_the_next() -> Verdict {
    let mut world = world(1, 1, defaults);
    // The master knows its script.
    let lock = read(&mut world, 0, ms(1000))?;
    world.submit_release(0, lock, false);
    world.run_for(MS);
    // It arrives after its connection's end, and its release arrives before it, over the next connection.
    world.stall(0, 0, true, false, SECOND);
    world.submit_shared(0, KEY, ms(10_000), Duration::ZERO).expect("room");
    world.run_for(MS);
    world.break_conn(0, 0);
    outcome(&mut world, 0)?;
    world.run_for(SECOND - 100 * MS);
    demand(reader_count(&world, 0) == 0, "the reader's request is still under way")?;
    world.run_for(4 * SECOND);
    verdict(&mut world)?;
    demand(reader_count(&world, 0) == 0, "it came after its release, and stays")
}

// I88
pub fn a_master_that_missed_a_reader_gets_it() -> Verdict {
    let mut world = world(3, 2, defaults);
    world.kill_master(2, true);
    world.run_for(10 * MS);
    let lock = read(&mut world, 0, ms(10_000))?;
    world.start_master(2, Data::All);
    world.run_for(3 * SECOND);
    verdict(&mut world)?;
    demand(reader_count(&world, 2) == 1, "the master was not asked again")?;
    demand(world.clients[0].engine.margin(lock) == 1, "it is not in the margin")?;
    world.kill_master(2, true);
    world.run_for(10 * MS);
    world.start_master(2, Data::Empty);
    world.masters[2].model.put(KEY, b"other", None);
    world.run_for(3 * SECOND);
    demand(reader_count(&world, 2) == 0, "a reader beside somebody else's key")?;
    demand(world.clients[0].engine.margin(lock) == 0, "a master that refused is in the margin")?;
    verdict(&mut world)
}

// I89
pub fn a_reader_leaves_a_sorted_set_of_others_alone() -> Verdict {
    let mut world = world(3, 1, defaults);
    for master in &mut world.masters {
        let end = master.clock.at(world.now) + ms(60_000);
        master.model.put_sorted_set(KEY, Some(end));
    }
    demand(is_kept_out(&mut world, 0)?, "a reader is let in")?;
    demand((0..3).all(|master| is_taken(&world, master)), "the set is gone")?;
    verdict(&mut world)
}

// I88
pub fn unknown_reader_scripts_are_sent_in_full() -> Verdict {
    let mut world = world(3, 1, defaults);
    for _ in 0..2 {
        (0..3).for_each(|master| world.masters[master].model.flush_scripts());
        let lock = read(&mut world, 0, ms(10_000))?;
        (0..3).for_each(|master| world.masters[master].model.flush_scripts());
        let extended = extend(&mut world, 0, lock, ms(10_000))?;
        demand(matches!(extended, Outcome::Extend(Ok(_))), &format!("not extended: {extended:?}"))?;
        (0..3).for_each(|master| world.masters[master].model.flush_scripts());
        world.submit_release(0, lock, true);
        let released = outcome(&mut world, 0)?;
        demand(matches!(released, Outcome::Release(Ok(it)) if it.deleted >= 2), "it was not released")?;
        world.run_for(MS);
        nobody_is_left(&world)?;
    }
    verdict(&mut world)
}

/// Also before the master knows the scripts, so that they come in full over the next connection.
// I88
pub fn a_reader_may_lose_a_connection_at_any_byte() -> Verdict {
    for is_known in [true, false] {
        (0..320).try_for_each(|size| {
            let mut world = world(3, 1, defaults);
            if is_known {
                let lock = read(&mut world, 0, ms(1000))?;
                world.submit_release(0, lock, true);
                outcome(&mut world, 0)?;
            }
            (world.weather.delay_min, world.weather.delay_max) = (MS, MS);
            let lock = world.submit_shared(0, KEY, ms(1000), Duration::ZERO).expect("room");
            world.run_for(if size < 300 { MS / 2 } else { 3 * MS / 2 });
            if size < 300 {
                world.cut_conn(0, 0, size, 0)
            } else {
                world.cut_conn(0, 0, 0, size - 300)
            }
            held(&mut world, 0)?;
            world.submit_release(0, lock, false);
            world.run_for(500 * MS);
            verdict(&mut world).map_err(|why| format!("byte {size}: {why}"))?;
            nobody_is_left(&world).map_err(|why| format!("byte {size}: {why}"))?;
            world.run_for(SECOND);
            demand(world.clients[0].engine.claim_count() == 0, "an orphan is left")
        })?;
    }
    Ok(())
}

tests!(
    readers_share_a_lock_and_writers_do_not,
    a_reader_of_a_shorter_ttl_ends_nobody_elses,
    a_new_reader_leaves_valid_readers,
    an_extended_reader_leaves_the_others_their_time,
    a_writer_follows_the_last_reader,
    a_late_reader_request_cuts_no_extension,
    a_late_shorter_reader_extension_cuts_nothing,
    a_reader_that_goes_leaves_the_others,
    a_reader_is_extended_only_where_it_is,
    a_writers_commands_spare_readers,
    one_clients_readers_do_not_wait,
    a_reader_that_writes_waits_for_itself,
    passing_readers_keep_no_writer_waiting,
    a_writer_giving_up_admits_readers,
    waiting_readers_notice_a_writer_giving_up,
    a_waiting_writer_keeps_readers_out,
    several_preferring_writers_all_get_turns,
    readers_and_writers_wake_each_other,
    an_unheard_reader_is_released_too,
    a_readers_broken_connection_is_released_over_the_next,
    a_master_that_missed_a_reader_gets_it,
    a_reader_leaves_a_sorted_set_of_others_alone,
    unknown_reader_scripts_are_sent_in_full,
    a_reader_may_lose_a_connection_at_any_byte,
);
