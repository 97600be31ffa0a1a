//! Threads that wait for futures. A drive that never turns takes the place of the client's thread, so these
//! threads must lead by themselves.
#![cfg(unix)]

use std::future::{poll_fn, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::mpsc;
use std::task::Waker;
use std::thread;

use super::*;
use crate::client::{Count, Drive, Guard};
use crate::clock;
use crate::config::tests::of_double;
use redlatch_support::PATIENCE;
use redlatch_testing::Double;

const LONG: Duration = PATIENCE.saturating_mul(10);

struct Stage {
    _double: Double,
    client: Client,
    /// Never turns by itself.
    drive: Drive,
}

impl Stage {
    fn new() -> Self {
        let double = Double::start(3).expect("free ports");
        let client =
            of_double(&double).max_ttl(LONG).answer_timeout(PATIENCE).connect().expect("an event loop");
        let drive = client.drive().expect("a descriptor");
        Self { _double: double, client, drive }
    }
}

/// Runs this on a thread that must end.
fn within<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(run()));
    receiver.recv_timeout(PATIENCE).expect("it ends")
}

fn acquire(client: &Client, name: &str) -> Result<Guard, AcquireError> {
    client.block_on(client.lock(name).wait(LONG).acquire_async())?
}

/// Waits until a thread leads, and sleeps.
fn await_leader(client: &Client) {
    let start = clock::now();
    while client.shared().peek(|inner| inner.is_led_asleep()) != Some(true) {
        assert!(clock::now() - start < PATIENCE, "nobody leads");
        thread::yield_now();
    }
}

#[test]
fn blocked_thread_leads() {
    let stage = Stage::new();
    let its = stage.client.clone();
    within(move || {
        let guard = acquire(&its, "a").expect("free");
        its.block_on(guard.release_async()).expect("no waker").expect("confirmed");
        its.block_on(its.pause(Duration::from_millis(1))).expect("no waker").expect("it is over");
    });
}

#[test]
fn blocked_threads_hand_the_lead_on() {
    let stage = Stage::new();
    let threads: Vec<_> = (0..8)
        .map(|thread| {
            let its = stage.client.clone();
            let name = if thread < 4 { "shared".to_owned() } else { format!("own {thread}") };
            move || {
                for round in 0..50 {
                    // Some wait as plain threads do.
                    let guard = match (thread + round) % 4 {
                        0 => its.lock(&name).wait(LONG).acquire(),
                        _ => acquire(&its, &name),
                    };
                    drop(guard.expect("it comes"));
                }
            }
        })
        .collect();
    let threads: Vec<_> = threads.into_iter().map(thread::spawn).collect();
    within(move || threads.into_iter().for_each(|thread| thread.join().expect("no panic")));
}

#[test]
fn another_thread_wakes_a_blocked_leader() {
    let stage = Stage::new();
    let (cancel, its) = (Cancel::new(), stage.client.clone());
    let handle = cancel.clone();
    let blocked = thread::spawn(move || {
        its.block_on(async { its.pause(LONG).cancel_with(&handle).await }).expect("no waker")
    });
    await_leader(&stage.client);
    cancel.cancel();
    let sleeps = stage.client.shared().peek(|inner| inner.is_led_asleep());
    assert_eq!(sleeps, Some(false), "nothing else wakes it");
    assert_eq!(within(|| blocked.join().expect("no panic")), Err(AcquireError::Cancelled));
}

#[test]
fn future_that_wakes_itself_is_answered() {
    let stage = Stage::new();
    let its = stage.client.clone();
    within(move || {
        let mut acquiring = pin!(its.lock("a").wait(LONG).acquire_async());
        let waking = poll_fn(|context| {
            context.waker().wake_by_ref();
            acquiring.as_mut().poll(context)
        });
        drop(its.block_on(waking).expect("no waker").expect("free"));
    });
}

#[test]
fn blocked_thread_leads_though_a_task_waits() {
    let double = Double::start(3).expect("free ports");
    let client = of_double(&double).max_ttl(LONG).answer_timeout(PATIENCE).connect().expect("an event loop");
    let mut waiting = pin!(client.pause(LONG));
    assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    await_leader(&client);
    let favours = |inner: &mut Inner| inner.favours_background();
    assert_eq!(client.shared().peek(favours), Some(true));
    drop(acquire(&client, "a").expect("free"));
    assert_eq!(client.shared().peek(favours), Some(false));
}

#[test]
fn drive_learns_of_deadlines_while_a_thread_polls() {
    let mut stage = Stage::new();
    let wakes = Arc::new(Count::default());
    stage.drive.turn(&wakes.clone().into()).expect("the client goes on");
    let client = &stage.client;
    let counted = client.block_on(async {
        let guard = client.lock("a").auto_extend(LONG).await.expect("free");
        (wakes.get(), guard)
    });
    assert!(counted.expect("no waker").0 > 0, "the drive sleeps through the renewal");
}

#[test]
fn waker_cannot_block() {
    let stage = Stage::new();
    let refused = stage.client.shared().waking.run(|| stage.client.block_on(ready(())));
    assert!(matches!(refused, Err(AcquireError::Stopped(_))), "{refused:?}");
}

#[test]
fn panic_of_a_future_harms_no_other_caller() {
    let stage = Stage::new();
    let its = &stage.client;
    let mut acquiring = pin!(its.lock("a").wait(LONG).acquire_async());
    let struck = catch_unwind(AssertUnwindSafe(|| {
        its.block_on(poll_fn(|context| {
            let _ = acquiring.as_mut().poll(context);
            panic!("struck");
            #[allow(unreachable_code)]
            Poll::Ready(())
        }))
    }));
    assert!(struck.is_err());
    assert_eq!(its.unsent_size(), 0, "the request is sent all the same");
    drop(its.block_on(acquiring).expect("no waker").expect("free"));
}

#[test]
fn batch_writes_once() {
    let stage = Stage::new();
    let client = &stage.client;
    let mut acquiring = [pin!(client.lock("a").acquire_async()), pin!(client.lock("b").acquire_async())];
    let mut looking = pin!(client.free_slots("pool", 3, 0));
    let context = &mut Context::from_waker(Waker::noop());
    client.batch(|| {
        let mut before = 0;
        for acquiring in &mut acquiring {
            assert!(acquiring.as_mut().poll(context).is_pending());
            assert!(client.unsent_size() > before, "it is written with the others");
            before = client.unsent_size();
        }
        assert!(looking.as_mut().poll(context).is_pending());
    });
    assert_eq!(client.unsent_size(), 0);
    let mut later = pin!(client.free_slots("pool", 3, 0));
    client.batch(|| {
        assert!(client.batch(|| later.as_mut().poll(context)).is_pending());
        assert!(client.unsent_size() > 0, "the batch around it writes");
    });
    assert_eq!(client.unsent_size(), 0);
    let [first, second] = acquiring;
    for acquiring in [first, second] {
        drop(client.block_on(acquiring).expect("no waker").expect("free"));
    }
    assert!(matches!(client.block_on(looking), Ok(Ok(crate::engine::SlotLook::Free(_)))));
}

#[test]
fn pause_lasts_its_time() {
    let stage = Stage::new();
    let (start, time) = (clock::now(), Duration::from_millis(20));
    stage.client.pause(time).block().expect("it is over");
    assert!(clock::now() - start >= time);
    let mut endless = pin!(stage.client.pause(Duration::MAX));
    assert!(endless.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
}
