//! A client whose event loop is hit by a foreign panic: all waiters get an error, and nothing hangs.

use std::sync::Arc;
use std::task::{Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use redlatch::{AcquireError, Client, ExtendError, ReleaseError};
use redlatch_support::settle;
use redlatch_support::stage::Fleet;
use redlatch_support::{PATIENCE, block_on, eventually};

use crate::harness::{Count, LONG, TTL, open, poll_once, poll_with, within};

/// A waker that panics without a message.
struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        std::panic::resume_unwind(Box::new("a waker panics"));
    }
}

fn assert_stopped(client: &Client) {
    assert!(matches!(client.lock("later").acquire(), Err(AcquireError::Stopped(_))));
    assert!(matches!(block_on(client.lock("later").acquire_async()), Err(AcquireError::Stopped(_))));
    let batch = client.acquire_all([client.lock("later"), client.lock("too")]);
    assert!(batch.into_iter().all(|it| matches!(it.block(), Err(AcquireError::Stopped(_)))));
    assert_eq!(client.masters().len(), 3);
}

// I119
#[test]
fn panicking_wakers_on_the_background_thread_stop_all() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let [mut extended, released, held] =
        ["x", "y", "held"].map(|name| client.lock(name).ttl(TTL).acquire().expect("free"));
    let its = client.clone();
    let blocked = thread::spawn(move || its.lock("held").wait(LONG).acquire().map(drop));
    let counts = [(); 4].map(|()| Arc::<Count>::default());
    let wakers = counts.each_ref().map(|count| Waker::from(count.clone()));
    let mut waiting = client.lock("held").wait(LONG).acquire_async();
    assert!(poll_with(&mut waiting, &wakers[0]).is_pending());
    // The outcomes of a batch arrive together, and so their wakers are called together.
    fleet.masters().for_each(|master| master.stop());
    let mut batch = client.acquire_all(["a", "b", "c", "d", "e"].map(|name| client.lock(name).ttl(TTL)));
    let bad = Waker::from(Arc::new(Panics));
    for (acquiring, waker) in batch.iter_mut().zip([&bad, &wakers[1], &bad, &wakers[2], &bad]) {
        assert!(poll_with(acquiring, waker).is_pending());
    }
    let mut extending = extended.extend_async(TTL);
    assert!(poll_with(&mut extending, &wakers[3]).is_pending());
    fleet.masters().for_each(|master| master.cont());
    for (index, count) in counts.iter().enumerate() {
        eventually(PATIENCE, &format!("task {index} is woken"), || count.get() > 0);
    }
    let blocked = within("a blocked caller", move || blocked.join().expect("no panic"));
    assert!(matches!(blocked, Err(AcquireError::Stopped(_))), "{blocked:?}");
    assert!(matches!(poll_once(&mut waiting), Poll::Ready(Err(AcquireError::Stopped(_)))));
    for mut acquiring in batch {
        assert!(matches!(poll_once(&mut acquiring), Poll::Ready(Err(AcquireError::Stopped(_)))));
    }
    assert!(matches!(poll_once(&mut extending), Poll::Ready(Err(ExtendError::Stopped(_)))));
    drop(extending);
    assert!(matches!(block_on(released.release_async()), Err(ReleaseError::Stopped(_))));
    assert_stopped(&client);
    // A held lock still counts as held, and ends with its TTL.
    assert!(held.is_valid());
    assert!(settle(&client, Duration::from_secs(1)) > 0);
}

#[test]
fn a_panicking_waker_on_a_caller_stops_all() {
    let fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let other = open(&fleet.urls(), LONG);
    let held = other.lock("held").ttl(TTL).acquire().expect("free");
    let blocked: Vec<_> = (0..3)
        .map(|_| {
            let its = client.clone();
            thread::spawn(move || its.lock("held").wait(LONG).acquire().map(drop))
        })
        .collect();
    let count = Arc::<Count>::default();
    let mut waiting = client.lock("held").wait(LONG).acquire_async();
    assert!(poll_with(&mut waiting, &Waker::from(count.clone())).is_pending());
    let mut acquiring = client.lock("a").ttl(TTL).acquire_async();
    assert!(poll_with(&mut acquiring, &Waker::from(Arc::new(Panics))).is_pending());
    for blocked in blocked {
        let result = within("a blocked caller", move || blocked.join().expect("the panic is not its own"));
        assert!(matches!(result, Err(AcquireError::Stopped(_))), "{result:?}");
    }
    eventually(PATIENCE, "the task is woken", || count.get() > 0);
    assert!(matches!(poll_once(&mut waiting), Poll::Ready(Err(AcquireError::Stopped(_)))));
    assert!(matches!(poll_once(&mut acquiring), Poll::Ready(Err(AcquireError::Stopped(_)))));
    assert_stopped(&client);
    drop(held);
}

#[test]
fn dropping_guards_of_a_stopped_client_does_nothing() {
    let fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let guard = client.lock("a").ttl(TTL).acquire().expect("free");
    let mut acquiring = client.lock("b").ttl(TTL).acquire_async();
    assert!(poll_with(&mut acquiring, &Waker::from(Arc::new(Panics))).is_pending());
    eventually(PATIENCE, "the client stops", || {
        matches!(client.lock("c").try_acquire(), Err(AcquireError::Stopped(_)))
    });
    within("a stopped client", {
        let client = client.clone();
        move || drop((guard, client))
    });
    drop(acquiring);
    drop(client);
}
