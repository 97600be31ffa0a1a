//! Which thread leads after a leader leaves, and which thread finishes the leader's remaining work.
//!
//! A fault here only delays work: the client's thread would find it [`limits::LOOK_PAUSE`] after the last
//! turn. So each test repeats a step many times, and the total must stay far below that many pauses.

use std::sync::Arc;
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use redlatch::{Client, limits};
use redlatch_support::stage::Fleet;
use redlatch_support::{PATIENCE, block_on, eventually};

use crate::harness::{
    Count, LONG, TTL, assert_nothing_left, assert_nothing_left_of, await_held, await_no_keys, await_waiters,
    config, open, poll_with, within,
};

const ROUNDS: u32 = 30;

/// Repeats a step that returns its duration. The total must be less than half of the pauses that would hide a
/// fault.
fn far_from_looking(what: &str, mut round: impl FnMut() -> Duration) {
    let mut took = Duration::ZERO;
    for count in 1..=ROUNDS {
        took += round();
        assert!(took < limits::LOOK_PAUSE * ROUNDS / 2, "{what}: {took:?} after {count} rounds");
    }
}

/// A caller that waits beside the present or the next leader.
#[derive(Debug, Clone, Copy)]
enum Other {
    Thread,
    Task,
    /// A task that was waiting before the leader came.
    EarlierTask,
}

/// Waits for a lock, as a thread or a task, and returns when it had the lock.
fn wait_for(client: &Client, name: &str, is_task: bool) -> Instant {
    let request = client.lock(name).ttl(TTL).wait(PATIENCE);
    let acquired = if is_task { block_on(request.acquire_async()) } else { request.acquire() };
    let now = Instant::now();
    drop(acquired.expect("released"));
    now
}

/// A thread leads while another thread or task waits beside it. The leader leaves with its lock, and the
/// other caller must still get its own.
fn served_after_the_leader_left(fleet: &mut Fleet, [holder, client]: [&Client; 2], other: Other) -> Duration {
    let [first, second] = ["a", "b"].map(|name| holder.lock(name).ttl(TTL).try_acquire().expect("free"));
    ["a", "b"].into_iter().for_each(|name| await_held(fleet, name));
    thread::scope(|scope| {
        let wait_for_first = || client.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("released");
        let (leader, other) = match other {
            Other::Thread | Other::Task => {
                let leader = scope.spawn(wait_for_first);
                await_waiters(fleet, 0..3, "a", 1);
                let is_task = matches!(other, Other::Task);
                (leader, scope.spawn(move || wait_for(client, "b", is_task)))
            }
            Other::EarlierTask => {
                let other = scope.spawn(|| wait_for(client, "b", true));
                await_waiters(fleet, 0..3, "b", 1);
                (scope.spawn(wait_for_first), other)
            }
        };
        ["a", "b"].into_iter().for_each(|name| await_waiters(fleet, 0..3, name, 1));
        first.release().expect("confirmed");
        // Kept, because the drop of the guard would drive the loop for the other caller.
        let kept = leader.join().expect("no panic");
        second.release().expect("confirmed");
        let released = Instant::now();
        let served = other.join().expect("no panic");
        drop(kept);
        served.saturating_duration_since(released)
    })
}

#[test]
fn a_follower_notices_that_the_leader_left() {
    for other in [Other::Thread, Other::Task, Other::EarlierTask] {
        within("the other one is told", move || {
            let mut fleet = Fleet::start(3);
            // Each waiter asks ever less often, so that no deadline makes anybody lead.
            let never = Duration::from_secs(600);
            let [holder, client] = [(); 2].map(|()| {
                let builder = config(&fleet.urls(), LONG).ask_holder(false).retry_delay(never..=never);
                let builder = builder.connect_timeout(Duration::from_secs(3600));
                builder.connect().expect("an event loop")
            });
            far_from_looking(&format!("{other:?}"), || {
                let took = served_after_the_leader_left(&mut fleet, [&holder, &client], other);
                await_no_keys(&mut fleet);
                took
            });
            assert_nothing_left_of(&[&holder, &client], &mut fleet);
        });
    }
}

#[test]
fn dropped_guard_is_released_without_another_call() {
    within("its key is gone", || {
        let mut fleet = Fleet::start(3);
        let client = open(&fleet.urls(), LONG);
        far_from_looking("its release", || {
            let guard = client.lock("a").ttl(TTL).try_acquire().expect("free");
            let dropped = Instant::now();
            drop(guard);
            for master in fleet.masters() {
                eventually(PATIENCE, "the key is gone", || master.ask("EXISTS a").text() == "0");
            }
            dropped.elapsed()
        });
        assert_nothing_left(&client, &mut fleet);
    });
}

/// The leader leaves the wake-ups of tasks to the first woken task, which may never be polled again.
// I93
#[test]
fn unpolled_task_delays_no_other() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    far_from_looking("tasks behind one that is not polled", || tasks_are_woken(&mut fleet, &client));
    // For this further task the client's thread goes on leading, with nothing to do before the holder's end.
    let held = client.lock("held").ttl(TTL).try_acquire().expect("free");
    let mut waiting = client.lock("held").ttl(TTL).wait(TTL).acquire_async();
    assert!(poll_with(&mut waiting, Waker::noop()).is_pending());
    far_from_looking("the same beside one that waits", || tasks_are_woken(&mut fleet, &client));
    drop((waiting, held));
}

fn tasks_are_woken(fleet: &mut Fleet, client: &Client) -> Duration {
    fleet.masters().for_each(|master| master.stop());
    let counts = [(); 8].map(|()| Arc::<Count>::default());
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let mut batch = client.acquire_all(names.map(|name| client.lock(name).ttl(TTL)));
    for (acquiring, count) in batch.iter_mut().zip(&counts) {
        assert!(poll_with(acquiring, &Waker::from(count.clone())).is_pending());
    }
    fleet.masters().for_each(|master| master.cont());
    let start = Instant::now();
    eventually(PATIENCE, "all tasks are woken", || counts.iter().all(|count| count.get() == 1));
    let took = start.elapsed();
    for acquiring in batch {
        block_on(acquiring).expect("free").release().expect("confirmed");
    }
    took
}
