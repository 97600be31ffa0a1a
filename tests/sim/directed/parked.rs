//! Locks that masters grant to parked attempts, because the TTL is short enough.

use redlatch::limits;

use super::fair::{entries, has_queue, is_contended, no_key_is_left, stay, value};
use super::*;
use crate::model::{Scope, digest, fence_key};

const TTL: Duration = Duration::from_secs(5);
const LONG: Duration = Duration::from_secs(60);
/// A round trip in the schedules that have one.
const TRIP: Time = 10 * MS;

/// Kind of lock that a caller requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Plain,
    Fenced,
    Fair,
    Shared,
}

fn submit(world: &mut World, client: usize, way: Way, ttl: Duration, wait: Duration) -> OpId {
    match way {
        Way::Plain => world.submit_acquire(client, KEY, ttl, wait),
        Way::Fenced => world.submit_fenced(client, KEY, ttl, wait),
        Way::Fair => world.submit_fair(client, KEY, ttl, wait),
        Way::Shared => world.submit_shared(client, KEY, ttl, wait),
    }
    .expect("room")
}

fn take(world: &mut World, client: usize, way: Way, ttl: Duration) -> Result<OpId, String> {
    let lock = submit(world, client, way, ttl, Duration::ZERO);
    held(world, client, lock)
}

/// Begins a client's wait, until all masters have its entry.
fn wait(world: &mut World, client: usize, way: Way, ttl: Duration) -> Result<OpId, String> {
    let before = entries(world, 0).len();
    let lock = submit(world, client, way, ttl, LONG);
    let is_parked = |world: &mut World| entries(world, 0).len() > before;
    demand(world.run_until(SECOND, is_parked), &format!("c{client} is not parked"))?;
    world.run_for(2 * TRIP);
    verdict(world)?;
    Ok(lock)
}

/// The client must get the lock within this time.
fn has_it_within(world: &mut World, client: usize, limit: Time) -> Result<OpId, String> {
    let is_answered = |world: &mut World| !world.clients[client].outcomes.is_empty();
    let is_in_time = world.run_until(limit, is_answered);
    verdict(world)?;
    demand(is_in_time, &format!("c{client} is not the next, or not in time"))?;
    match world.clients[client].outcomes.pop_front() {
        Some((lock, Outcome::Acquire(Ok(_)))) => Ok(lock),
        other => Err(format!("c{client} is denied: {other:?}")),
    }
}

fn slow(world: &mut World) {
    (world.weather.delay_min, world.weather.delay_max) = (TRIP / 2, TRIP / 2);
}

/// Measures a hand-over from the release to the next holder, another client.
fn hand_over(holder: Way, waiter: Way) -> Verdict {
    let mut world = world(3, 3, defaults);
    slow(&mut world);
    let lock = take(&mut world, 0, holder, TTL)?;
    wait(&mut world, 1, waiter, TTL)?;
    wait(&mut world, 2, waiter, TTL)?;
    world.submit_release(0, lock, false);
    let next = has_it_within(&mut world, 1, TRIP + MS).map_err(|why| format!("{holder:?}: {why}"))?;
    world.run_for(30 * MS);
    world.submit_release(1, next, false);
    let last = has_it_within(&mut world, 2, TRIP + MS).map_err(|why| format!("{holder:?}: {why}"))?;
    world.run_for(30 * MS);
    world.submit_release(2, last, false);
    world.run_for(30 * MS);
    verdict(&mut world)?;
    no_key_is_left(&mut world)
}

// I66
pub fn a_hand_over_takes_one_round_trip() -> Verdict {
    hand_over(Way::Plain, Way::Plain)?;
    hand_over(Way::Fenced, Way::Fenced)?;
    hand_over(Way::Fair, Way::Fair)
}

// I67
pub fn a_plain_release_serves_the_next() -> Verdict {
    hand_over(Way::Plain, Way::Plain)
}

// I67
pub fn a_fenced_release_serves_the_next() -> Verdict {
    hand_over(Way::Fenced, Way::Fenced)
}

/// Its key came through a park, so `unpark` ends it.
// I67
pub fn the_end_of_a_parked_lock_serves_the_next() -> Verdict {
    hand_over(Way::Plain, Way::Plain)
}

// I67
pub fn leaving_reader_serves_a_writer() -> Verdict {
    let mut world = world(3, 2, defaults);
    slow(&mut world);
    let lock = take(&mut world, 0, Way::Shared, TTL)?;
    wait(&mut world, 1, Way::Plain, TTL)?;
    world.submit_release(0, lock, false);
    has_it_within(&mut world, 1, TRIP + MS).map(drop)
}

// I67
pub fn a_forced_unlock_serves_the_next() -> Verdict {
    let mut world = world(3, 3, defaults);
    slow(&mut world);
    take(&mut world, 0, Way::Plain, TTL)?;
    wait(&mut world, 1, Way::Plain, TTL)?;
    world.submit_force_unlock(2, KEY);
    has_it_within(&mut world, 1, TRIP + MS).map(drop)
}

/// A caller that comes while others wait queues behind them, and a writer in between keeps its place.
// I66, I68
pub fn readers_at_the_head_come_together() -> Verdict {
    let mut world = world(3, 6, defaults);
    slow(&mut world);
    let lock = take(&mut world, 0, Way::Plain, TTL)?;
    for (client, way) in [(1, Way::Shared), (2, Way::Shared), (3, Way::Plain), (4, Way::Shared)] {
        wait(&mut world, client, way, TTL)?;
    }
    world.submit_release(0, lock, false);
    let one = has_it_within(&mut world, 1, TRIP + MS)?;
    let other = has_it_within(&mut world, 2, MS)?;
    world.run_for(100 * MS);
    demand(world.clients[3].outcomes.is_empty(), "a writer beside readers")?;
    demand(world.clients[4].outcomes.is_empty(), "a reader passed a writer")?;
    submit(&mut world, 5, Way::Shared, TTL, Duration::ZERO);
    let refused = outcome(&mut world, 5)?;
    demand(is_contended(&refused), "a reader that does not wait passed a writer")?;
    world.submit_release(1, one, false);
    world.run_for(100 * MS);
    demand(world.clients[3].outcomes.is_empty(), "a writer beside a reader")?;
    world.submit_release(2, other, false);
    let writer = has_it_within(&mut world, 3, TRIP + MS)?;
    world.run_for(100 * MS);
    demand(world.clients[4].outcomes.is_empty(), "a reader beside a writer")?;
    world.submit_release(3, writer, false);
    has_it_within(&mut world, 4, TRIP + MS)?;
    verdict(&mut world)
}

/// Both readers wait; the reader with the shorter TTL is second.
// I68
pub fn a_granted_reader_ends_nobody_elses() -> Verdict {
    let mut world = world(3, 4, defaults);
    let lock = take(&mut world, 0, Way::Plain, TTL)?;
    wait(&mut world, 1, Way::Shared, TTL)?;
    wait(&mut world, 2, Way::Shared, ms(2000))?;
    world.submit_release(0, lock, false);
    has_it_within(&mut world, 1, MS)?;
    has_it_within(&mut world, 2, MS)?;
    world.run_for(2500 * MS);
    submit(&mut world, 3, Way::Plain, TTL, Duration::ZERO);
    let refused = outcome(&mut world, 3)?;
    demand(is_contended(&refused), "a reader was cut short")
}

/// A waiter is killed when its turn comes.
// I66
pub fn dead_waiter_delays_no_grant() -> Verdict {
    let mut world = world(3, 4, defaults);
    slow(&mut world);
    let lock = take(&mut world, 0, Way::Plain, TTL)?;
    for client in 1..4 {
        wait(&mut world, client, Way::Plain, TTL)?;
    }
    (1..3).for_each(|client| world.crash_client(client));
    world.submit_release(0, lock, false);
    has_it_within(&mut world, 3, TRIP + MS).map(drop)
}

// I66
pub fn last_dead_waiter_leaves_no_key() -> Verdict {
    for way in [Way::Plain, Way::Fenced, Way::Shared] {
        let mut world = world(3, 2, defaults);
        let lock = take(&mut world, 0, Way::Plain, TTL)?;
        wait(&mut world, 1, way, TTL)?;
        world.crash_client(1);
        world.submit_release(0, lock, false);
        no_key_is_left(&mut world).map_err(|why| format!("{way:?}: {why}"))?;
    }
    Ok(())
}

/// It has the lock without knowing, and gets its answer after the lock's end.
// I66
pub fn paused_waiter_is_never_a_second_holder() -> Verdict {
    for pause in [6 * SECOND, 9 * SECOND] {
        let mut world = world(3, 3, defaults);
        let lock = take(&mut world, 0, Way::Plain, TTL)?;
        wait(&mut world, 1, Way::Plain, TTL)?;
        wait(&mut world, 2, Way::Plain, TTL)?;
        world.pause(1, pause);
        world.submit_release(0, lock, false);
        let limit = Time::try_from(TTL.as_nanos()).expect("small") + 50 * MS;
        has_it_within(&mut world, 2, limit)?;
        world.run_for(4 * SECOND);
        verdict(&mut world)?;
        demand(world.clients[1].outcomes.is_empty(), "it holds what another has")?;
    }
    Ok(())
}

/// The grant is read shortly before its end: its validity counts from the start of the round.
// I65
pub fn a_grant_counts_from_the_start_of_its_round() -> Verdict {
    let mut world = world(3, 3, defaults);
    let lock = take(&mut world, 0, Way::Plain, TTL)?;
    wait(&mut world, 1, Way::Plain, TTL)?;
    (0..3).for_each(|place| world.stall(1, place, false, true, 700 * MS));
    world.submit_release(0, lock, false);
    world.run_for(SECOND);
    let Some((lock, Outcome::Acquire(Ok(_)))) = world.clients[1].outcomes.pop_front() else {
        return verdict(&mut world);
    };
    world.run_for(6 * SECOND);
    demand(world.clients[1].engine.valid_until(lock).is_some(), "it is held")?;
    take(&mut world, 2, Way::Plain, TTL)?;
    verdict(&mut world)
}

pub fn parked_waiter_follows_a_dead_holder() -> Verdict {
    let mut world = world(3, 3, defaults);
    take(&mut world, 0, Way::Plain, ms(1500))?;
    wait(&mut world, 1, Way::Plain, TTL)?;
    wait(&mut world, 2, Way::Plain, TTL)?;
    world.crash_client(0);
    has_it_within(&mut world, 1, 1505 * MS).map(drop)
}

/// Nobody serves waiters after another application's key has gone.
// I70
pub fn a_foreign_release_is_found_by_looking() -> Verdict {
    let mut world = world(3, 2, defaults);
    occupy(&mut world, 0..3, KEY);
    wait(&mut world, 1, Way::Plain, TTL)?;
    let heard = world.clients[1].outcomes.len();
    (0..3).for_each(|master| drop(world.masters[master].model.data.keys.remove(KEY)));
    demand(heard == 0, "it has what another has")?;
    // The first looks come after pauses of 10 ms, 20 ms and so on.
    has_it_within(&mut world, 1, 100 * MS).map(drop)
}

/// Its own entry was removed with the grant.
// I66
pub fn a_granted_entry_is_gone() -> Verdict {
    let mut world = world(3, 2, defaults);
    let lock = take(&mut world, 0, Way::Plain, TTL)?;
    wait(&mut world, 1, Way::Plain, TTL)?;
    world.submit_release(0, lock, false);
    has_it_within(&mut world, 1, MS)?;
    demand(!(0..3).any(|master| has_queue(&world, master)), "the entry of a lock that is held stays")?;
    // A forced unlock does not serve the entry again.
    world.submit_force_unlock(0, KEY);
    world.run_for(10 * MS);
    demand(!(0..3).any(|master| is_held(&world, master, KEY)), "a lock that was ended by force is back")?;
    verdict(&mut world)
}

/// Memory is full when the key expires, so nothing can be written.
// I66
pub fn a_grant_that_cannot_be_written_is_not_published() -> Verdict {
    let mut world = world(3, 2, defaults);
    take(&mut world, 0, Way::Plain, ms(500))?;
    wait(&mut world, 1, Way::Plain, TTL)?;
    world.crash_client(0);
    world.masters.iter_mut().for_each(|it| it.model.data.is_full = true);
    world.run_for(700 * MS);
    verdict(&mut world)?;
    demand(world.clients[1].outcomes.is_empty(), "it holds what was never written")
}

// I69
pub fn a_grant_by_message_raises_the_fence() -> Verdict {
    let mut world = world(3, 2, defaults);
    let lock = take(&mut world, 0, Way::Fenced, TTL)?;
    let fence = |world: &World, master: usize| {
        let it = &world.masters[master];
        it.model.value(it.clock.at(world.now), &fence_key(KEY)).map(<[u8]>::to_vec)
    };
    wait(&mut world, 1, Way::Fenced, TTL)?;
    let before = fence(&world, 0);
    world.submit_release(0, lock, false);
    has_it_within(&mut world, 1, MS)?;
    verdict(&mut world)?;
    demand(before < fence(&world, 0), "the fence is not that of the holder")
}

/// A waiter drew its token before another client got the lock with a larger one.
// I69
pub fn a_token_below_the_fence_is_not_granted() -> Verdict {
    let mut world = world(3, 3, defaults);
    world.clients[1].wall_us = WALL_US - 400_000;
    world.crash_client(1);
    world.start_client(1);
    world.run_for(50 * MS);
    let lock = take(&mut world, 0, Way::Plain, TTL)?;
    wait(&mut world, 1, Way::Fenced, TTL)?;
    // According to the fence, another holder had the lock meanwhile.
    let token = (WALL_US + 300_000).to_string();
    (0..3).for_each(|master| world.masters[master].model.put(&fence_key(KEY), token.as_bytes(), None));
    world.submit_release(0, lock, false);
    has_it_within(&mut world, 1, SECOND)?;
    verdict(&mut world)?;
    let it = &world.masters[0];
    let fence = it.model.value(it.clock.at(world.now), &fence_key(KEY)).map(<[u8]>::to_vec);
    demand(fence > Some(token.into_bytes()), "a token that is not larger than the fence")
}

/// On one master, the client's entry still waits when the client hands the lock over.
// I73
pub fn a_hand_over_within_a_client_ends_the_entry() -> Verdict {
    let mut world = world(3, 2, defaults);
    let lock = take(&mut world, 0, Way::Plain, TTL)?;
    let first = wait(&mut world, 1, Way::Plain, TTL)?;
    world.flush_all(2);
    occupy(&mut world, 2..3, KEY);
    world.run_for(1100 * MS);
    demand(entries(&world, 2).len() == 1, "it waits on the third master")?;
    world.submit_release(0, lock, false);
    has_it_within(&mut world, 1, 2 * SECOND)?;
    let token = value(&world, 0);
    submit(&mut world, 1, Way::Plain, TTL, LONG);
    world.run_for(10 * MS);
    world.submit_release(1, first, false);
    has_it_within(&mut world, 1, MS)?;
    world.run_for(MS);
    demand(value(&world, 0) != token, "it was not handed over")?;
    let is_there = entries(&world, 2).iter().any(|entry| Some(&entry.value) == token.as_ref());
    demand(!is_there, "the entry of a lock that was handed over stays")?;
    verdict(&mut world)
}

/// More dead entries than one call removes.
// I66
pub fn many_dead_entries_are_removed_at_once() -> Verdict {
    const DEAD: usize = 18;
    let mut world = world(3, DEAD + 2, defaults);
    slow(&mut world);
    let lock = take(&mut world, 0, Way::Plain, TTL)?;
    for client in 1..DEAD + 2 {
        submit(&mut world, client, Way::Plain, TTL, LONG);
        world.run_for(3 * TRIP);
    }
    demand(entries(&world, 0).len() == DEAD + 1, "all are parked")?;
    (1..=DEAD).for_each(|client| world.crash_client(client));
    world.submit_release(0, lock, true);
    has_it_within(&mut world, DEAD + 1, 2 * TRIP + MS).map(drop)
}

/// More than a release and one following look remove: the next heartbeat removes all others.
// I66
pub fn dead_entries_delay_nobody_for_long() -> Verdict {
    const DEAD: usize = 70;
    let mut world = world(3, DEAD + 2, defaults);
    let lock = take(&mut world, 0, Way::Plain, TTL)?;
    for client in 1..DEAD + 2 {
        submit(&mut world, client, Way::Plain, TTL, LONG);
        world.run_for(MS);
    }
    world.run_for(20 * MS);
    demand(entries(&world, 0).len() == DEAD + 1, "all are parked")?;
    (1..=DEAD).for_each(|client| world.crash_client(client));
    world.submit_release(0, lock, true);
    has_it_within(&mut world, DEAD + 1, 1100 * MS).map(drop)
}

/// Data of an earlier time, with entries whose connections are gone.
// I66
pub fn queue_entries_from_a_snapshot_are_never_granted() -> Verdict {
    for data in [Data::Empty, Data::Snapshot] {
        let mut world = world(3, 3, trust);
        let lock = take(&mut world, 0, Way::Plain, TTL)?;
        wait(&mut world, 1, Way::Plain, TTL)?;
        world.take_snapshots();
        world.run_for(2 * SECOND);
        world.kill_master(2, true);
        world.start_master(2, data);
        world.submit_release(0, lock, false);
        has_it_within(&mut world, 1, SECOND)?;
        world.run_for(500 * MS);
        verdict(&mut world)?;
        let token = value(&world, 0);
        demand(value(&world, 2).is_none_or(|it| Some(it) == token), "an entry of the past has the key")?;
    }
    Ok(())
}

/// A connection that carried a vote breaks before there is a quorum.
// I65
pub fn a_vote_does_not_outlive_its_connection() -> Verdict {
    let mut world = world(3, 3, defaults);
    let lock = take(&mut world, 0, Way::Plain, TTL)?;
    wait(&mut world, 1, Way::Plain, TTL)?;
    // One vote is read, then its connection breaks, and the master loses its data unnoticed.
    (1..3).for_each(|place| world.stall(1, place, false, true, 15 * MS));
    world.stall(1, 2, false, true, 100 * MS);
    world.submit_release(0, lock, false);
    world.run_for(10 * MS);
    demand(world.clients[1].outcomes.is_empty(), "one vote is no quorum")?;
    world.masters[0].swallows_until = world.now + 50 * MS;
    world.break_conn(1, 0);
    world.flush_all(0);
    world.run_for(20 * MS);
    demand(world.clients[1].outcomes.is_empty(), "a vote counts whose connection broke")?;
    world.run_for(SECOND);
    verdict(&mut world)
}

/// The message carries the mark of an attempt from the connection before.
// I65
pub fn a_message_over_the_next_connection_is_no_vote() -> Verdict {
    let mut world = world(3, 2, defaults);
    let lock = take(&mut world, 0, Way::Plain, TTL)?;
    wait(&mut world, 1, Way::Plain, TTL)?;
    let parked = entries(&world, 0).pop().ok_or("no entry")?;
    let before = world.masters[0].model.channels();
    world.break_conn(1, 0);
    let new = |world: &World| {
        world.masters[0].model.channels().into_iter().find(|channel| !before.contains(channel))
    };
    demand(world.run_until(SECOND, |world| new(world).is_some()), "no new connection")?;
    let channel = new(&world).ok_or("no channel")?;
    // One vote is true, because the release arrives at one master only.
    for place in [0, 2] {
        world.stall(0, place, true, false, SECOND);
    }
    world.submit_release(0, lock, false);
    world.run_for(MS / 10);
    world.masters[0].model.publish(Scope::Shard, &channel, &parked.vote);
    let conn = world.clients[1].conns[0].ok_or("no connection")?;
    world.serve(conn);
    world.run_for(MS / 10);
    verdict(&mut world)?;
    demand(world.clients[1].outcomes.is_empty(), "a message of another connection is a vote")
}

/// The waiter keeps its first round's ticket, though others came before its last round.
pub fn heartbeats_change_no_order() -> Verdict {
    for waited in [700 * MS, 1000 * MS, 1300 * MS, 1500 * MS, 1700 * MS, 1900 * MS] {
        let mut world = world(3, 5, defaults);
        let lock = take(&mut world, 0, Way::Plain, TTL)?;
        for client in 1..5 {
            wait(&mut world, client, Way::Plain, TTL)?;
        }
        world.run_for(waited);
        world.submit_release(0, lock, false);
        for client in 1..5 {
            let lock = has_it_within(&mut world, client, MS)?;
            world.submit_release(client, lock, false);
        }
    }
    Ok(())
}

/// Masters in quarantine may have forgotten earlier locks.
// I65
pub fn votes_in_quarantine_give_no_parked_lock() -> Verdict {
    let mut world = world(3, 3, defaults);
    let held = take(&mut world, 0, Way::Plain, TTL)?;
    wait(&mut world, 1, Way::Plain, TTL)?;
    // It restores its key nowhere.
    world.pause(0, 3 * SECOND);
    for master in 0..2 {
        world.kill_master(master, true);
        world.start_master(master, Data::Empty);
    }
    world.run_for(3 * SECOND);
    verdict(&mut world)?;
    demand(world.clients[1].outcomes.is_empty(), "two hold it")?;
    world.submit_release(0, held, false);
    Ok(())
}

/// A part of a lock is given back, and acquired again when the other master grants.
pub fn returned_part_is_asked_for_again_after_grant() -> Verdict {
    let mut world = world(3, 2, trust);
    let held = take(&mut world, 0, Way::Plain, TTL)?;
    wait(&mut world, 1, Way::Plain, TTL)?;
    world.flush_all(2);
    // Long enough to set the master aside.
    world.run_for(SECOND + 500 * MS);
    world.submit_release(0, held, false);
    has_it_within(&mut world, 1, MS)?;
    world.run_for(2 * SECOND);
    verdict(&mut world)
}

/// Like the schedule before, with the third master down: both parts are needed.
// I64
pub fn two_parts_behind_each_other_are_a_quorum() -> Verdict {
    let mut world = world(3, 2, trust);
    let held = take(&mut world, 0, Way::Plain, TTL)?;
    wait(&mut world, 1, Way::Plain, TTL)?;
    world.flush_all(2);
    // Long enough to set the master aside.
    world.run_for(SECOND + 500 * MS);
    world.kill_master(1, true);
    world.submit_release(0, held, false);
    has_it_within(&mut world, 1, 200 * MS)?;
    verdict(&mut world)
}

/// A polling client beside a parking one: both get the lock in the end.
pub fn polling_and_parked_clients_exclude_each_other() -> Verdict {
    let mut world = world(3, 2, defaults);
    world.masters.iter_mut().for_each(|it| drop(it.model.errors.insert("HELLO".into(), "ERR no".into())));
    let polling = world.add_client(Clock::new(0, 0), 0);
    world.run_for(10 * MS);
    world.masters.iter_mut().for_each(|it| it.model.errors.clear());
    let lock = take(&mut world, 0, Way::Plain, TTL)?;
    submit(&mut world, polling, Way::Plain, TTL, LONG);
    wait(&mut world, 1, Way::Plain, TTL)?;
    demand(entries(&world, 0).len() == 1, "one without RESP3 is parked")?;
    world.submit_release(0, lock, false);
    let lock = has_it_within(&mut world, 1, 300 * MS)?;
    world.run_for(50 * MS);
    world.submit_release(1, lock, false);
    has_it_within(&mut world, polling, 2 * SECOND)?;
    verdict(&mut world)
}

/// Every waiter that asks behind a stopped waiter rings it.
// I70
pub fn rings_prolong_no_stay() -> Verdict {
    const WAITING: usize = 14;
    let ttl = limits::GRANTED_TTL_MAX + ms(1000);
    let mut world = world(3, WAITING + 1, |builder| builder.max_ttl(ttl));
    let lock = take(&mut world, 0, Way::Plain, ttl)?;
    for client in 1..=WAITING {
        wait(&mut world, client, Way::Plain, ttl)?;
        world.run_for(50 * MS);
    }
    world.pause(1, 60 * SECOND);
    world.submit_release(0, lock, false);
    has_it_within(&mut world, 2, 700 * MS).map(drop)
}

/// The entry is served on the third master after the holder's extension, and the message is under way.
// I105
pub fn an_entry_that_waits_proves_no_loss() -> Verdict {
    let ttl = ms(5000);
    let mut world = world(3, 2, defaults);
    let held = take(&mut world, 0, Way::Plain, ttl)?;
    wait(&mut world, 1, Way::Plain, ttl)?;
    world.run_for(20 * MS);
    world.stall(0, 2, true, false, 100 * MS);
    world.submit_release(0, held, false);
    let lock = has_it_within(&mut world, 1, 50 * MS)?;
    extend(&mut world, 1, lock, ttl)?;
    world.run_for(MS);
    world.stall(1, 2, false, true, SECOND / 2);
    let is_served = |world: &mut World| is_held(world, 2, KEY) && entries(world, 2).is_empty();
    demand(world.run_until(200 * MS, is_served), "its entry is not served")?;
    world.flush_all(0);
    let extended = extend(&mut world, 1, lock, ttl)?;
    let is_lost = matches!(extended, Outcome::Extend(Err(ExtendError::Lost(_))));
    demand(!is_lost, &format!("two masters have it: {extended:?}"))
}

/// A round begins with a park of each script, which a master may have forgotten.
pub fn flushed_scripts_cost_no_queue_place() -> Verdict {
    let mut world = world(3, 2, defaults);
    let lock = take(&mut world, 0, Way::Plain, TTL)?;
    wait(&mut world, 1, Way::Plain, TTL)?;
    (0..3).for_each(|master| world.masters[master].model.flush_scripts());
    world.submit_release(0, lock, false);
    has_it_within(&mut world, 1, stay())?;
    demand(!digest("park").is_empty(), "it has a digest")?;
    verdict(&mut world)
}

tests!(
    a_hand_over_takes_one_round_trip,
    a_plain_release_serves_the_next,
    a_fenced_release_serves_the_next,
    the_end_of_a_parked_lock_serves_the_next,
    leaving_reader_serves_a_writer,
    a_forced_unlock_serves_the_next,
    readers_at_the_head_come_together,
    a_granted_reader_ends_nobody_elses,
    dead_waiter_delays_no_grant,
    last_dead_waiter_leaves_no_key,
    paused_waiter_is_never_a_second_holder,
    a_grant_counts_from_the_start_of_its_round,
    parked_waiter_follows_a_dead_holder,
    a_foreign_release_is_found_by_looking,
    a_granted_entry_is_gone,
    a_grant_that_cannot_be_written_is_not_published,
    a_grant_by_message_raises_the_fence,
    a_token_below_the_fence_is_not_granted,
    a_hand_over_within_a_client_ends_the_entry,
    many_dead_entries_are_removed_at_once,
    dead_entries_delay_nobody_for_long,
    queue_entries_from_a_snapshot_are_never_granted,
    a_vote_does_not_outlive_its_connection,
    a_message_over_the_next_connection_is_no_vote,
    heartbeats_change_no_order,
    votes_in_quarantine_give_no_parked_lock,
    returned_part_is_asked_for_again_after_grant,
    polling_and_parked_clients_exclude_each_other,
    rings_prolong_no_stay,
    flushed_scripts_cost_no_queue_place,
    an_entry_that_waits_proves_no_loss,
    two_parts_behind_each_other_are_a_quorum,
);
