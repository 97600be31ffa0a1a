//! Locks on an overloaded machine: computing threads keep all cores busy.
//!
//! Nothing here has a deadline. There must never be two holders, and nothing may be left behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Wake, Waker};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use redlatch::{AcquireError, Client, Guard};
use redlatch_support::stage::Fleet;
use redlatch_support::{PATIENCE, block_on, eventually};

use crate::harness::{LONG, TTL, assert_nothing_left, open, poll_with, within};

/// Each hold expires without a release, so that the next holder comes as early as possible.
const BRIEF: Duration = Duration::from_millis(300);

/// Threads that compute until this value is dropped, several for each core.
struct Scarcity {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Scarcity {
    fn begin() -> Self {
        let is_over = Arc::<AtomicBool>::default();
        let count = 3 * thread::available_parallelism().map_or(1, usize::from);
        let spin = |is_over: Arc<AtomicBool>| {
            while !is_over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        };
        let spinning = |_| {
            let is_over = is_over.clone();
            thread::spawn(move || spin(is_over))
        };
        let threads = (0..count).map(spinning).collect();
        Self { is_over, threads }
    }
}

impl Drop for Scarcity {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().expect("it only computes"));
    }
}

/// A slow waker, which delays the thread that leads the client's event loop.
struct Dawdling(Thread);

impl Wake for Dawdling {
    fn wake(self: Arc<Self>) {
        thread::sleep(BRIEF / 5);
        self.0.unpark();
    }
}

/// Keeps the client's loop busy with slow wakers until `is_over`.
fn dawdle(client: &Client, name: &str, is_over: &AtomicBool) {
    let waker = Waker::from(Arc::new(Dawdling(thread::current())));
    while !is_over.load(Ordering::Relaxed) {
        let mut acquiring = client.lock(name).ttl(TTL).acquire_async();
        let guard = loop {
            match poll_with(&mut acquiring, &waker) {
                Poll::Ready(result) => break result.expect("nobody else wants it"),
                Poll::Pending => thread::park_timeout(PATIENCE),
            }
        };
        guard.release().expect("confirmed");
    }
}

/// The interval in which a guard said that its lock is held.
type Hold = (Instant, Instant);

/// Uses up all of a lock's validity.
fn use_up(guard: &Guard) -> Hold {
    let begun = Instant::now();
    while guard.is_valid() {
        thread::sleep(guard.remaining());
    }
    (begun, guard.valid_until())
}

#[track_caller]
fn assert_alone(mut holds: Vec<Hold>) {
    // A lock that was fetched after its end was no hold.
    holds.retain(|(begun, ended)| begun < ended);
    assert!(!holds.is_empty(), "nobody ever held it");
    holds.sort();
    for pair in holds.windows(2) {
        let [(_, ended), (begun, _)] = pair else { unreachable!("two of them") };
        assert!(ended <= begun, "two holders for {:?}", *ended - *begun);
    }
}

#[test]
fn validities_do_not_overlap_while_cores_are_scarce() {
    let mut fleet = Fleet::start(3);
    let clients = [(); 3].map(|()| open(&fleet.urls(), LONG));
    let scarcity = Scarcity::begin();
    let is_over = Arc::<AtomicBool>::default();
    // The first client gets its answers late, and must not count a validity from their arrival.
    let dawdlers = ["b", "c", "d"].map(|name| {
        let (slow, until) = (clients[0].clone(), is_over.clone());
        thread::spawn(move || dawdle(&slow, name, &until))
    });
    let callers: Vec<_> = clients.iter().cloned().enumerate().collect();
    let callers = callers.into_iter().map(|(index, client)| {
        thread::spawn(move || {
            let hold = |_| {
                let request = client.lock("a").ttl(BRIEF).wait(PATIENCE);
                match if index == 0 { block_on(request.acquire_async()) } else { request.acquire() } {
                    Ok(guard) => Some(use_up(&guard)),
                    // The lock had expired before its caller could look.
                    Err(AcquireError::Expired(_)) => None,
                    Err(error) => panic!("{error}"),
                }
            };
            (0..6).filter_map(hold).collect::<Vec<Hold>>()
        })
    });
    let callers: Vec<_> = callers.collect();
    let holds = within("the callers", move || {
        callers.into_iter().flat_map(|caller| caller.join().expect("no panic")).collect()
    });
    is_over.store(true, Ordering::Relaxed);
    within("the tasks", move || dawdlers.map(|it| it.join().expect("no panic")));
    drop(scarcity);
    assert_alone(holds);
    clients.iter().for_each(|client| assert_nothing_left(client, &mut fleet));
    for client in &clients {
        assert_eq!(client.stats().operations, 0);
    }
}

#[test]
fn a_loss_is_reported_once_while_cores_are_scarce() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let scarcity = Scarcity::begin();
    for _ in 0..5 {
        let Ok(guard) = client.lock("a").ttl(BRIEF).wait(PATIENCE).acquire() else { continue };
        let (sender, receiver) = std::sync::mpsc::channel();
        guard.on_lost(move || sender.send(()).expect("the test waits"));
        block_on(guard.lost());
        receiver.recv_timeout(PATIENCE).expect("its callback is called");
        drop(guard);
        receiver.recv_timeout(PATIENCE).expect_err("it is called once, and then forgotten");
    }
    drop(scarcity);
    eventually(PATIENCE, "all are forgotten", || client.stats().operations == 0);
    assert_nothing_left(&client, &mut fleet);
}
