//! Rounds of fair waiters: masters that disagree, late answers, broken connections.

use std::time::Duration;

use redlatch::engine::Outcome;

use super::fair::*;
use super::{KEY, Verdict, acquire, demand, extend, hold, is_held, ms, occupy, outcome, verdict, world};
use crate::clock::{Clock, MS, SECOND};
use crate::faults::Data;
use crate::world::World;

// I57, I64
pub fn two_minorities_learn_who_is_first() -> Verdict {
    for first in [0, 1] {
        let mut world = world(3, 2, defaults);
        world.kill_master(2, true);
        world.run_for(MS);
        world.stall(first, 1, true, false, 5 * MS);
        world.stall(1 - first, 0, true, false, 5 * MS);
        world.submit_fair(first, KEY, TTL, LONG).expect("room");
        world.submit_fair(1 - first, KEY, TTL, LONG).expect("room");
        let has_one =
            |world: &mut World| world.clients.iter().position(|client| !client.outcomes.is_empty()).is_some();
        demand(world.run_until(SECOND / 2, has_one), "neither has it")?;
        let winner = usize::from(world.clients[0].outcomes.is_empty());
        each_has_it(&mut world, &[winner, 1 - winner], SECOND / 2)?;
        no_key_is_left(&mut world)?;
    }
    Ok(())
}

/// A waiter with a part of the lock soon asks again, and one master has not answered the first time.
// I64
pub fn a_slow_master_gets_one_park_at_a_time() -> Verdict {
    let mut world = world(3, 2, defaults);
    let held = hold_fairly(&mut world, 0)?;
    (0..3).for_each(|master| world.masters[master].model.load_scripts());
    world.stall(1, 2, false, true, 40 * MS);
    world.trace = Some(Vec::new());
    world.submit_fair(1, KEY, TTL, LONG).expect("room");
    world.run_for(5 * MS);
    // The other masters ring it, and it asks them again.
    world.submit_release(0, held, false);
    world.run_for(5 * MS);
    let parks = |world: &World, master: usize| {
        let park = format!("m{master} for c1: EVALSHA {}", &crate::model::digest("park")[..8]);
        world.trace.iter().flatten().filter(|line| line.contains(&park)).count()
    };
    demand(parks(&world, 0) == 2, "it asks the others twice")?;
    let count = parks(&world, 2);
    demand(count == 1, &format!("{count} parks under way"))
}

/// The master restarted without its keys while another client holds the lock on the two others.
pub fn a_waiter_leaves_a_minority_to_the_holder() -> Verdict {
    let mut world = world(3, 2, trust);
    hold_fairly(&mut world, 0)?;
    wait_fairly(&mut world, 1)?;
    world.flush_all(2);
    let is_back = |world: &mut World| is_held(world, 2, KEY);
    demand(world.run_until(2 * SECOND, is_back), "the waiter does not ask there again")?;
    world.run_for(300 * MS);
    demand(!is_held(&world, 2, KEY), "a waiter keeps a minority")
}

/// The lock is acquired on two masters while the third has not answered the last round.
// I64
pub fn earlier_rounds_keys_are_released_at_once() -> Verdict {
    let mut world = world(3, 2, |builder| defaults(builder).answer_timeout(ms(2000)));
    let held = hold_fairly(&mut world, 0)?;
    world.stall(1, 2, true, false, 100 * MS);
    wait_fairly(&mut world, 1)?;
    world.submit_release(0, held, false);
    let Outcome::Acquire(Ok(_)) = outcome(&mut world, 1)? else { return Err("it is denied".to_owned()) };
    world.run_for(120 * MS);
    verdict(&mut world)?;
    let (own, left) = (value(&world, 0), value(&world, 2));
    demand(left.is_none() || left == own, "the key of an earlier round is left")?;
    demand(!has_queue(&world, 2), "an entry of an earlier round is left")
}

/// A master answers a round only during the next one, after giving its key to the earlier round.
pub fn late_answer_counts_for_no_other_round() -> Verdict {
    let mut world = world(3, 2, defaults);
    // One master has a foreign key, and another one a stalled connection.
    occupy(&mut world, 1..2, KEY);
    world.stall(0, 2, false, true, 100 * MS);
    world.submit_fair(0, KEY, TTL, LONG).expect("room");
    world.run_for(SECOND / 2);
    verdict(&mut world)
}

/// The connection breaks behind a round's park, which arrives late, when a later round waits there.
// I64
pub fn a_late_park_leaves_the_later_entry() -> Verdict {
    let mut world = world(3, 2, defaults);
    hold_fairly(&mut world, 0)?;
    world.stall(1, 2, true, false, 500 * MS);
    wait_fairly(&mut world, 1)?;
    world.break_conn(1, 2);
    let is_there = |world: &mut World| !entries(world, 2).is_empty();
    demand(world.run_until(400 * MS, is_there), "it does not wait there again")?;
    let before: Vec<_> = entries(&world, 2).into_iter().map(|entry| entry.value).collect();
    let at = 520 * MS;
    world.run_until(at, |_| false);
    let after: Vec<_> = entries(&world, 2).into_iter().map(|entry| entry.value).collect();
    verdict(&mut world)?;
    demand(before == after, "a late park took the place of a later one")
}

/// The lock is acquired on two masters while the park for the third may arrive late.
// I73
pub fn lock_is_not_restored_beside_a_waiting_entry() -> Verdict {
    let mut world = world(3, 2, defaults);
    let held = hold_fairly(&mut world, 0)?;
    world.stall(1, 2, true, false, 50 * MS);
    wait_fairly(&mut world, 1)?;
    world.run_for(50 * MS);
    demand(entries(&world, 2).len() == 1, "it waits on each master")?;
    // It does not hear the ring there, nor can it ask.
    world.stall(1, 2, true, true, 200 * MS);
    world.submit_release(0, held, false);
    let Outcome::Acquire(Ok(_)) = outcome(&mut world, 1)? else { return Err("it is denied".to_owned()) };
    world.reset_conn(1, 2);
    world.run_until(SECOND, |world| world.is_connected(1, 2));
    world.run_for(SECOND / 2);
    verdict(&mut world)?;
    demand(value(&world, 2).is_none(), "the lock is put back where its entry may wait")
}

/// The waiter crashes, or its connections break, at any byte of a round.
pub fn a_broken_round_leaves_nothing() -> Verdict {
    for at in 0..12 {
        let mut world = world(3, 3, defaults);
        (world.weather.delay_min, world.weather.delay_max) = (TRIP / 2, TRIP / 2);
        let held = hold_fairly(&mut world, 0)?;
        wait_fairly(&mut world, 1)?;
        wait_fairly(&mut world, 2)?;
        world.submit_release(0, held, false);
        world.run_for(at * TRIP / 4);
        (0..2).for_each(|master| world.reset_conn(1, master));
        let has_it = |world: &mut World| {
            let position = world.clients.iter().position(|client| !client.outcomes.is_empty());
            position.is_some()
        };
        demand(world.run_until(SECOND, has_it), "neither has it")?;
        let winner = if world.clients[1].outcomes.is_empty() { 2 } else { 1 };
        each_has_it(&mut world, &[winner, 3 - winner], SECOND).map_err(|why| format!("{at}: {why}"))?;
        world.run_for(SECOND);
        no_key_is_left(&mut world)?;
    }
    Ok(())
}

/// The empty master's quarantine prevents a second holder.
pub fn an_empty_master_gives_no_second_holder() -> Verdict {
    let mut world = world(3, 3, defaults);
    let held = hold_fairly(&mut world, 0)?;
    wait_fairly(&mut world, 1)?;
    world.kill_master(0, true);
    world.start_master(0, Data::Empty);
    wait_fairly(&mut world, 2)?;
    world.run_for(2 * SECOND);
    demand(world.clients[1].outcomes.is_empty() && world.clients[2].outcomes.is_empty(), "two hold it")?;
    world.submit_release(0, held, false);
    each_has_it(&mut world, &[1, 2], SECOND)
}

/// A master answers the park of a wait that ended without a quorum, after the next wait has begun.
// I64
pub fn a_late_answer_sends_no_second_park() -> Verdict {
    let mut world = world(3, 2, defaults);
    let held = hold(&mut world, 0, KEY, ms(8000))?;
    world.stall(1, 1, false, true, SECOND);
    world.stall(1, 2, false, true, 2 * SECOND);
    let lock = world.submit_fair(1, KEY, ms(8000), LONG).expect("room");
    world.run_for(1990 * MS);
    (0..2).for_each(|master| world.stall(0, master, true, false, 20 * MS));
    world.submit_release(0, held, false);
    let Outcome::Acquire(Ok(_)) = outcome(&mut world, 1)? else { return Err("it is denied".to_owned()) };
    world.run_for(50 * MS);
    let now = world.local(1);
    let extended = extend(&mut world, 1, lock, ms(8000))?;
    demand(matches!(extended, Outcome::Extend(Ok(_))), &format!("{extended:?}"))?;
    let margin = world.clients[1].engine.margin(lock);
    demand(margin == 1, &format!("{margin} after {now:?}: one that was asked twice counts as another's twin"))
}

/// The first attempt follows one for another lock. Later a master that cannot park answers again within a round, after
/// an attempt for another lock.
// I1, I3
pub fn a_late_attempt_of_a_round_has_its_own_ttl() -> Verdict {
    let mut world = world(3, 1, defaults);
    world.masters[2].model.errors.insert("HELLO".into(), "ERR no".into());
    let waiter = world.add_client(Clock::new(0, 0), 0);
    world.run_for(10 * MS);
    acquire(&mut world, waiter, b"another", ms(20), Duration::ZERO)?;
    hold_fairly(&mut world, 0)?;
    world.trace = Some(Vec::new());
    world.submit_acquire(waiter, KEY, TTL, LONG).expect("room");
    world.run_for(100 * MS);
    world.stall(waiter, 2, true, true, 2 * SECOND);
    world.run_for(2 * SECOND - MS);
    demand(world.clients[waiter].outcomes.is_empty(), "two hold it")?;
    acquire(&mut world, waiter, b"another", ms(20), Duration::ZERO)?;
    world.flush_all(2);
    world.run_for(20 * MS);
    let sent = format!("m2 for c{waiter}: SET a ");
    let attempts: Vec<_> = world.trace.iter().flatten().filter(|line| line.contains(&sent)).collect();
    demand(attempts.len() > 1, "it does not ask the master that it hears again")?;
    let ttl = format!(" PX {} ", TTL.as_millis());
    demand(attempts.iter().all(|line| line.contains(&ttl)), &format!("another TTL: {attempts:?}"))
}

/// Another library's holders follow one another without serving the queue, and then one of them stays. A
/// waiter that had a part of the lock leaves that master to them, and its looks have become rare.
// I70
pub fn looks_stay_frequent_behind_unserving_holders() -> Verdict {
    for has_part in [false, true] {
        let mut world = world(3, 1, defaults);
        let occupy = |world: &mut World, holder: usize| {
            let value = format!("holder-{holder}").into_bytes();
            world.masters.iter_mut().for_each(|it| it.model.put(KEY, &value, None));
        };
        occupy(&mut world, 0);
        wait_fairly(&mut world, 0)?;
        if has_part {
            world.masters[2].model.data.keys.remove(KEY);
            world.run_for(5 * SECOND);
            demand(!has_queue(&world, 2), "it does not leave its part to others")?;
        }
        // Number of scripts within half a second, of which one may be a round.
        let count = |world: &mut World, holder: usize| {
            let before = world.masters[0].model.script_count;
            for part in 0..2 {
                occupy(world, holder + part);
                world.run_for(SECOND / 4);
            }
            world.masters[0].model.script_count - before
        };
        for holder in 1..8 {
            count(&mut world, 2 * holder);
        }
        let frequent = count(&mut world, 20);
        demand((8..30).contains(&frequent), &format!("{frequent} looks at changing holders"))?;
        occupy(&mut world, 30);
        world.run_for(40 * SECOND);
        demand(world.clients[0].outcomes.is_empty(), "it still waits")?;
        let before = world.masters[0].model.script_count;
        world.run_for(4 * SECOND);
        let seldom = world.masters[0].model.script_count - before;
        demand(seldom <= 10, &format!("{seldom} looks and rounds in 4 s behind a holder that stays"))?;
    }
    Ok(())
}

tests!(
    two_minorities_learn_who_is_first,
    a_slow_master_gets_one_park_at_a_time,
    a_waiter_leaves_a_minority_to_the_holder,
    earlier_rounds_keys_are_released_at_once,
    late_answer_counts_for_no_other_round,
    a_late_park_leaves_the_later_entry,
    lock_is_not_restored_beside_a_waiting_entry,
    a_broken_round_leaves_nothing,
    an_empty_master_gives_no_second_holder,
    a_late_attempt_of_a_round_has_its_own_ttl,
    a_late_answer_sends_no_second_park,
    looks_stay_frequent_behind_unserving_holders,
);
