//! Waiters are notified of releases by other clients.

use redlatch::internals::SCRIPTS;
use redlatch::limits;

use super::*;

/// A waiter without notifications waits for this long.
fn patient(builder: ConfigBuilder) -> ConfigBuilder {
    builder.ask_holder(false).retry_delay(ms(5000)..=ms(5000))
}

/// A world in which one message takes a millisecond.
fn distant(clients: usize, settings: impl FnOnce(ConfigBuilder) -> ConfigBuilder) -> World {
    let mut world = world(3, clients, settings);
    (world.weather.delay_min, world.weather.delay_max) = (MS, MS);
    world
}

/// The lock of the first client, for which each of the others waits.
fn hold_and_wait(world: &mut World) -> Result<OpId, String> {
    let lock = hold(world, 0, KEY, ms(10_000))?;
    for client in 1..world.clients.len() {
        world.submit_acquire(client, KEY, ms(10_000), ms(60_000)).expect("room");
    }
    world.run_for(100 * MS);
    Ok(lock)
}

/// Goes on until one of the clients that wait has the lock, and says which.
fn winner(world: &mut World, limit: Time) -> Result<(usize, OpId), String> {
    let count = world.clients.len();
    world.run_until(limit, |world| (0..count).any(|client| !world.clients[client].outcomes.is_empty()));
    verdict(world)?;
    let of = |client: usize| world.clients[client].outcomes.front();
    let first = (0..count).find_map(|client| of(client).map(|(lock, outcome)| (client, *lock, outcome)));
    match first {
        Some((client, lock, Outcome::Acquire(Ok(_)))) => {
            world.clients[client].outcomes.clear();
            Ok((client, lock))
        }
        other => Err(format!("nobody has it in time: {other:?}")),
    }
}

pub fn a_lock_passes_on_in_three_round_trips() -> Verdict {
    for fenced_ppm in [0, 1_000_000] {
        let mut world = distant(2, patient);
        world.habits.fenced_ppm = fenced_ppm;
        let lock = hold_and_wait(&mut world)?;
        let released = world.now;
        world.submit_release(0, lock, false);
        winner(&mut world, SECOND)?;
        let took = world.now - released;
        demand(took <= 6 * MS, &format!("it took {took} ns, and a round trip takes 2 ms"))?;
    }
    Ok(())
}

pub fn a_fenced_lock_passes_on_as_soon() -> Verdict {
    let mut world = distant(2, patient);
    let lock = world.submit_fenced(0, KEY, ms(10_000), Duration::ZERO).expect("room");
    outcome(&mut world, 0)?;
    world.submit_fenced(1, KEY, ms(10_000), ms(60_000)).expect("room");
    world.run_for(100 * MS);
    let released = world.now;
    world.submit_release(0, lock, false);
    winner(&mut world, SECOND)?;
    let took = world.now - released;
    demand(took <= 6 * MS, &format!("it took {took} ns, and a round trip takes 2 ms"))
}

pub fn a_release_before_the_subscription_is_not_missed() -> Verdict {
    let mut world = distant(2, patient);
    let lock = hold(&mut world, 0, KEY, ms(10_000))?;
    world.submit_acquire(1, KEY, ms(10_000), ms(60_000)).expect("room");
    // It is refused after 2 ms, connected 2 ms later and ready after 2 more: its SUBSCRIBE arrives after 7
    // ms.
    world.run_for(4 * MS);
    world.submit_release(0, lock, false);
    winner(&mut world, SECOND).map(|_| ())
}

pub fn a_lost_message_costs_one_pause() -> Verdict {
    let mut world = distant(3, |builder| builder.ask_holder(false));
    let lock = hold_and_wait(&mut world)?;
    world.submit_release(0, lock, false);
    let (holder, lock) = winner(&mut world, SECOND)?;
    let other = 3 - holder;
    world.run_for(100 * MS);
    (3..6).for_each(|place| world.stall(other, place, false, true, 60 * SECOND));
    world.submit_release(holder, lock, false);
    winner(&mut world, 3 * SECOND).map(|_| ())
}

/// Attempts of the second client at the first master while this time passes.
fn attempts_in(world: &mut World, time: Time) -> usize {
    world.trace = Some(Vec::new());
    world.run_for(time);
    let trace = world.trace.take().unwrap_or_default();
    trace.iter().filter(|line| line.contains(" m0 for c1") && line.contains(": SET a")).count()
}

/// The holder's time is far away, or nobody knows it.
pub fn a_subscribed_waiter_asks_less_and_less() -> Verdict {
    for asks in [true, false] {
        let mut world = distant(2, |builder| builder.ask_holder(asks).max_ttl(ms(60_000)));
        hold(&mut world, 0, KEY, ms(60_000))?;
        world.submit_acquire(1, KEY, ms(10_000), ms(50_000)).expect("room");
        let counts = [(); 3].map(|()| attempts_in(&mut world, 5 * SECOND));
        verdict(&mut world)?;
        demand(counts[0] <= 12, &format!("{counts:?} attempts in five seconds each"))?;
        demand(counts[2] >= 2 && counts[2] <= 5, &format!("{counts:?} attempts in five seconds each"))?;
    }
    Ok(())
}

/// As of a holder that is no redlatch, or whose message is lost.
pub fn a_release_without_a_message_costs_a_bounded_pause() -> Verdict {
    let mut world = distant(1, |builder| builder.ask_holder(false));
    occupy(&mut world, 0..3, KEY);
    world.submit_acquire(0, KEY, ms(10_000), ms(60_000)).expect("room");
    world.run_for(20 * SECOND);
    world.masters.iter_mut().for_each(|master| master.model.load_keys(Default::default()));
    let released = world.now;
    winner(&mut world, 30 * SECOND)?;
    let (took, bound) = (world.now - released, u64::from(limits::QUIET_PAUSE_FACTOR_MAX) * 100 * MS);
    demand(took <= bound + 10 * MS, &format!("it took {took} ns, and the longest pause is {bound} ns"))
}

/// The masters do not notify over the next connections.
pub fn a_waiter_that_lost_its_notifications_asks_often_again() -> Verdict {
    let mut world = distant(2, |builder| builder.ask_holder(false).max_ttl(ms(60_000)));
    hold(&mut world, 0, KEY, ms(60_000))?;
    world.submit_acquire(1, KEY, ms(10_000), ms(50_000)).expect("room");
    world.run_for(15 * SECOND);
    let before = attempts_in(&mut world, 5 * SECOND);
    refuse(&mut world, 0..3, "SUBSCRIBE");
    (3..6).for_each(|place| world.break_conn(1, place));
    // The pause that was drawn before is over by then.
    world.run_for(3 * SECOND);
    let after = attempts_in(&mut world, 5 * SECOND);
    verdict(&mut world)?;
    demand(before <= 5 && after >= 25, &format!("{before} attempts in five seconds, and then {after}"))
}

pub fn a_release_wakes_few_waiters() -> Verdict {
    let mut world = distant(20, patient);
    let lock = hold_and_wait(&mut world)?;
    world.trace = Some(Vec::new());
    world.submit_release(0, lock, false);
    world.run_for(20 * MS);
    let trace = world.trace.take().unwrap_or_default();
    verdict(&mut world)?;
    let count = trace.iter().filter(|line| line.contains(" m0 for c") && line.contains(": SET a")).count();
    demand(count <= 9, &format!("{count} of 19 came"))
}

/// The first of them met nobody; the second one's release says how many wait.
pub fn a_fenced_release_wakes_few_waiters() -> Verdict {
    let mut world = distant(20, patient);
    world.habits.fenced_ppm = 1_000_000;
    let lock = hold_and_wait(&mut world)?;
    world.submit_release(0, lock, false);
    // All come for that one, and may get in each other's way at first.
    let (holder, lock) = winner(&mut world, 30 * SECOND)?;
    world.run_for(100 * MS);
    world.trace = Some(Vec::new());
    world.submit_release(holder, lock, false);
    world.run_for(20 * MS);
    let trace = world.trace.take().unwrap_or_default();
    verdict(&mut world)?;
    let acquire = SCRIPTS.iter().find(|script| script.name == "fenced_acquire").expect("a script");
    let called = format!(": EVALSHA {}", &acquire.sha[..8]);
    let is_attempt = |line: &&String| line.contains(" m0 for c") && line.contains(&called);
    let count = trace.iter().filter(is_attempt).count();
    demand(count > 0 && count <= 9, &format!("{count} of 18 came"))
}

/// Clients that have a lock one after the other, each for a moment.
struct Relay {
    /// From each release to the next acquisition.
    times: Vec<Time>,
    attempt_count: usize,
}

fn relay(waiter_count: usize, is_native: bool) -> Result<Relay, String> {
    let mut world = unconnected(3, defaults);
    world.masters.iter_mut().for_each(|master| master.model.is_native = is_native);
    for _ in 0..=waiter_count {
        world.add_client(Clock::new(0, 0), 0);
    }
    world.run_for(10 * MS);
    world.is_checked_always = false;
    // A round trip takes a millisecond on average.
    (world.weather.delay_min, world.weather.delay_max) = (2 * MS / 5, 3 * MS / 5);
    let (mut holder, mut lock) = (0, hold_and_wait(&mut world)?);
    let (mut times, mut attempt_count) = (Vec::new(), 0);
    for _ in 0..waiter_count {
        world.run_for(10 * MS);
        world.trace = Some(Vec::new());
        let released = world.now;
        world.submit_release(holder, lock, false);
        (holder, lock) = winner(&mut world, 10 * SECOND)?;
        times.push(world.now - released);
        world.run_for(10 * MS);
        let trace = world.trace.take().unwrap_or_default();
        let is_attempt = |line: &&String| line.contains(" m0 for c") && line.contains(": SET a");
        attempt_count += trace.iter().filter(is_attempt).count();
    }
    times.sort_unstable();
    Ok(Relay { times, attempt_count })
}

/// With the pauses alone it takes some tens of round trips, and each of a hundred asks a hundred times.
pub fn any_crowd_passes_on_in_three_round_trips() -> Verdict {
    let rows = [(1, 3), (10, 5), (100, 8)].into_iter();
    for (is_native, (count, attempts_max)) in rows.flat_map(|row| [(false, row), (true, row)]) {
        let Relay { times, attempt_count } = relay(count, is_native)?;
        let (median, slow) = (times[count / 2], times[count * 9 / 10]);
        println!(
            "{count} waiting, native commands {is_native}: hand-over in {:.2} ms at the median, {:.2} ms for one in ten; {:.1} attempts each",
            Duration::from_nanos(median).as_secs_f64() * 1e3,
            Duration::from_nanos(slow).as_secs_f64() * 1e3,
            f64::from(u32::try_from(attempt_count).expect("few"))
                / f64::from(u32::try_from(count).expect("few")),
        );
        demand(median <= 3 * MS, &format!("{count} waiting: {median} ns, and a round trip takes 1 ms"))?;
        demand(attempt_count <= attempts_max * count, &format!("{count} waiting: {attempt_count} attempts"))?;
    }
    Ok(())
}

pub fn nobody_listens_for_what_nobody_waits_for() -> Verdict {
    let mut world = distant(2, patient);
    let lock = hold(&mut world, 0, KEY, ms(10_000))?;
    acquire(&mut world, 1, KEY, ms(10_000), Duration::ZERO)?;
    let is_open = |world: &World| world.clients[1].engine.subscription_links().count() > 0;
    demand(!is_open(&world), "one that does not wait has opened connections")?;
    world.submit_acquire(1, KEY, ms(10_000), ms(1000)).expect("room");
    world.run_for(100 * MS);
    demand(is_open(&world), "one that waits has opened no connection")?;
    world.submit_release(0, lock, false);
    winner(&mut world, SECOND)?;
    world.run_for(6 * SECOND);
    verdict(&mut world)?;
    demand(!is_open(&world), "the connections stay though nobody waits")
}

pub fn masters_without_notifications_are_waited_for() -> Verdict {
    for command in ["SUBSCRIBE", "PUBLISH"] {
        for count in 1..=3 {
            let mut world = distant(2, defaults);
            refuse(&mut world, 0..count, command);
            let lock = hold_and_wait(&mut world)?;
            world.submit_release(0, lock, false);
            winner(&mut world, 3 * SECOND)?;
            let now = world.local(1);
            let warnings = world.clients[1].engine.master_status(now, id(0)).warnings;
            let is_said = warnings.iter().any(|warning| warning.to_string().contains("OOM no"));
            demand(is_said || command == "PUBLISH", &format!("{command}: no word of it"))?;
        }
    }
    Ok(())
}

/// The lock of a client that has waited for it, so that one master publishes its release to groups. Each
/// other client but the first waits for it.
fn contended(world: &mut World) -> Result<(usize, OpId), String> {
    let lock = hold_and_wait(world)?;
    world.submit_release(0, lock, false);
    let held = winner(world, 30 * SECOND)?;
    world.run_for(100 * MS);
    Ok(held)
}

/// One master alone publishes the release of a client that has waited. Where it does not answer, the others
/// publish; a lost connection shows that at once, a silent master at the answer limit.
pub fn a_lost_publisher_costs_one_answer_limit() -> Verdict {
    for (master, fault) in (0..3).flat_map(|master| (0..3).map(move |fault| (master, fault))) {
        let mut world = distant(3, patient);
        let (holder, lock) = contended(&mut world)?;
        match fault {
            0 => world.stop_master(master, 60 * SECOND),
            1 => world.kill_master(master, true),
            // It answers, and has no key to release.
            _ => world.flush_all(master),
        }
        world.submit_release(holder, lock, false);
        winner(&mut world, SECOND).map_err(|why| format!("fault {fault} at m{master}: {why}"))?;
    }
    Ok(())
}

/// One master gets a subscription only when the others have confirmed it. The lock is released before, and
/// one of the masters is the publisher.
pub fn a_late_confirmation_misses_no_release() -> Verdict {
    for master in 0..3 {
        let mut world = distant(3, patient);
        let lock = hold(&mut world, 0, KEY, ms(10_000))?;
        let other = hold(&mut world, 0, b"b", ms(10_000))?;
        world.submit_acquire(1, KEY, ms(10_000), ms(60_000)).expect("room");
        // This opens the connections of the third client.
        world.submit_acquire(2, b"b", ms(10_000), ms(50)).expect("room");
        world.run_for(100 * MS);
        world.clients[2].outcomes.clear();
        world.submit_release(0, other, false);
        world.submit_release(0, lock, false);
        let (holder, lock) = winner(&mut world, SECOND)?;
        world.stall(2, 3 + master, true, false, 50 * MS);
        world.submit_acquire(2, KEY, ms(10_000), ms(60_000)).expect("room");
        world.run_for(20 * MS);
        world.submit_release(holder, lock, false);
        winner(&mut world, SECOND).map_err(|why| format!("m{master}: {why}"))?;
    }
    Ok(())
}

/// The message is lost: the next attempt is made after a pause, long before the end of the holder's time. One
/// of the masters is the publisher.
pub fn a_lost_wake_up_costs_a_bounded_pause() -> Verdict {
    let bound = u64::from(limits::QUIET_PAUSE_FACTOR_MAX) * 100 * MS + 10 * MS;
    for master in 0..3 {
        let mut world = distant(4, |builder| builder.ask_holder(false));
        let (holder, lock) = contended(&mut world)?;
        let others = (1..4).filter(|client| *client != holder);
        others.for_each(|other| world.stall(other, 3 + master, false, true, 60 * SECOND));
        let released = world.now;
        world.submit_release(holder, lock, false);
        winner(&mut world, 9 * SECOND)?;
        let took = world.now - released;
        demand(took <= bound, &format!("m{master}: {took} ns, and the bound is {bound} ns"))?;
    }
    Ok(())
}

/// Its process stands still, and the masters take it for a subscriber. Two groups are notified.
pub fn a_waiter_that_stands_still_delays_nobody() -> Verdict {
    let bound = 10 * MS;
    for waiter in 1..5 {
        let mut world = distant(5, patient);
        let (holder, lock) = contended(&mut world)?;
        if waiter == holder {
            continue;
        }
        (0..6).for_each(|link| world.stall(waiter, link, false, true, 60 * SECOND));
        let released = world.now;
        world.submit_release(holder, lock, false);
        winner(&mut world, 9 * SECOND)?;
        let took = world.now - released;
        demand(took <= bound, &format!("c{waiter}: {took} ns, and the bound is {bound} ns"))?;
    }
    Ok(())
}

/// What masters are sent of this release, and how many of them notify waiters.
fn released(world: &mut World, client: usize, lock: OpId) -> Result<[usize; 2], String> {
    world.trace = Some(Vec::new());
    world.submit_release(client, lock, false);
    world.run_for(20 * MS);
    let trace = world.trace.take().unwrap_or_default();
    world.clients.iter_mut().for_each(|client| client.outcomes.clear());
    verdict(world)?;
    let of_client = format!(" for c{client}");
    let called = ["release_wake", "release_notify"].map(|name| {
        let script = SCRIPTS.iter().find(|script| script.name == name).expect("a script");
        format!(": EVALSHA {}", &script.sha[..8])
    });
    let count = |words: &[&str]| {
        let is_one = |line: &&String| line.contains(&of_client) && words.iter().any(|it| line.contains(it));
        trace.iter().filter(is_one).count()
    };
    Ok([count(&[&called[0]]), count(&[&called[1], ": PUBLISH"])])
}

/// As a client that has waited has the lock, and once more when it has it without waiting.
pub fn one_master_publishes_to_a_group() -> Verdict {
    for is_native in [false, true] {
        let mut world = distant(3, patient);
        world.masters.iter_mut().for_each(|master| master.model.is_native = is_native);
        let (holder, lock) = contended(&mut world)?;
        let counts = released(&mut world, holder, lock)?;
        demand(counts == [1, 0], &format!("native {is_native}: {counts:?} of 3 masters publish"))?;
        let lock = hold(&mut world, holder, b"b", ms(10_000))?;
        let counts = released(&mut world, holder, lock)?;
        demand(
            counts == [1, 0],
            &format!("native {is_native}, first attempt: {counts:?} of 3 masters publish"),
        )?;
    }
    Ok(())
}

/// Of 18 that wait in 16 groups.
pub fn a_group_of_waiters_is_small() -> Verdict {
    let mut world = distant(20, patient);
    let (mut holder, mut lock) = contended(&mut world)?;
    let mut attempt_count = 0;
    for _ in 0..10 {
        world.trace = Some(Vec::new());
        world.submit_release(holder, lock, false);
        (holder, lock) = winner(&mut world, SECOND)?;
        world.run_for(20 * MS);
        let trace = world.trace.take().unwrap_or_default();
        let is_attempt = |line: &&String| line.contains(" m0 for c") && line.contains(": SET a");
        attempt_count += trace.iter().filter(is_attempt).count();
    }
    verdict(&mut world)?;
    demand(attempt_count <= 30, &format!("{attempt_count} attempts for ten locks"))
}

/// Behind a holder that has waited, so that it notifies groups.
pub fn each_reader_is_notified_of_each_release() -> Verdict {
    let mut world = distant(6, patient);
    let lock = hold(&mut world, 0, KEY, ms(10_000))?;
    world.submit_acquire(1, KEY, ms(10_000), ms(60_000)).expect("room");
    world.run_for(100 * MS);
    world.submit_release(0, lock, false);
    let (holder, lock) = winner(&mut world, SECOND)?;
    for reader in 2..6 {
        world.submit_shared(reader, KEY, ms(10_000), ms(60_000)).expect("room");
    }
    world.run_for(100 * MS);
    world.submit_release(holder, lock, false);
    world.run_for(20 * MS);
    let is_in = |client: &usize| {
        world.clients[*client].outcomes.iter().any(|it| matches!(it.1, Outcome::Acquire(Ok(_))))
    };
    let count = (2..6).filter(is_in).count();
    verdict(&mut world)?;
    demand(count == 4, &format!("{count} of 4 readers are in"))
}

/// Whether the holder goes on or dies: the waiter asks for its time with the attempt behind the next pause.
pub fn an_attempt_behind_a_release_asks_no_time() -> Verdict {
    let mut world = distant(3, defaults);
    let lock = hold_and_wait(&mut world)?;
    world.trace = Some(Vec::new());
    world.submit_release(0, lock, false);
    let (holder, _) = winner(&mut world, SECOND)?;
    world.run_for(20 * MS);
    let other = 3 - holder;
    let trace = world.trace.take().unwrap_or_default();
    let count_of = |trace: &[String], command: &str| {
        let of_other = format!(" m0 for c{other}");
        trace.iter().filter(|line| line.contains(&of_other) && line.contains(command)).count()
    };
    demand(count_of(&trace, ": SET a") > 0, "the other waiter does not try")?;
    demand(count_of(&trace, ": PTTL") == 0, "it asks for the time of a holder that came just now")?;
    world.crash_client(holder);
    world.trace = Some(Vec::new());
    let crashed = world.now;
    winner(&mut world, 20 * SECOND)?;
    let trace = world.trace.take().unwrap_or_default();
    let took = world.now - crashed;
    demand(count_of(&trace, ": PTTL") > 0, "it never asks for the holder's time")?;
    demand(took <= 10 * SECOND + 10 * MS, &format!("it took {took} ns, and the TTL is 10 s"))
}

tests!(
    a_lock_passes_on_in_three_round_trips,
    a_fenced_lock_passes_on_as_soon,
    a_release_before_the_subscription_is_not_missed,
    a_lost_message_costs_one_pause,
    a_subscribed_waiter_asks_less_and_less,
    a_release_without_a_message_costs_a_bounded_pause,
    a_waiter_that_lost_its_notifications_asks_often_again,
    a_release_wakes_few_waiters,
    a_fenced_release_wakes_few_waiters,
    any_crowd_passes_on_in_three_round_trips,
    an_attempt_behind_a_release_asks_no_time,
    a_lost_publisher_costs_one_answer_limit,
    a_late_confirmation_misses_no_release,
    a_waiter_that_stands_still_delays_nobody,
    a_lost_wake_up_costs_a_bounded_pause,
    one_master_publishes_to_a_group,
    a_group_of_waiters_is_small,
    each_reader_is_notified_of_each_release,
    nobody_listens_for_what_nobody_waits_for,
    masters_without_notifications_are_waited_for,
);
