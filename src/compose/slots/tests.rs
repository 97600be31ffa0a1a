//! Answers about slots that have arrived together when a task is polled.
//!
//! The test turns the client's event loop itself, and polls a task only after it was woken.
#![cfg(unix)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use super::*;
use crate::Drive;
use crate::config::tests::of_double;
use redlatch_support::PATIENCE;
use redlatch_testing::Double;

/// A TTL and wait that no step waits out.
const LONG: Duration = PATIENCE.saturating_mul(10);

#[derive(Default)]
struct IsWoken(AtomicBool);

impl Wake for IsWoken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A client whose loop the test turns, and another client, which holds the only slots of a pool.
struct Stage {
    double: Double,
    client: Client,
    drive: Drive,
    held: Vec<SlotGuard>,
    is_woken: Arc<IsWoken>,
}

fn connect(double: &Double) -> Client {
    of_double(double).max_ttl(LONG).answer_timeout(PATIENCE).connect().expect("an event loop")
}

fn slots(client: &Client) -> SlotsRequest {
    client.slots("pool", 2).ttl(LONG).wait(LONG)
}

impl Stage {
    fn new() -> Self {
        let double = Double::start(1).expect("a free port");
        let [client, other] = [connect(&double), connect(&double)];
        let held = [(); 2].map(|()| slots(&other).acquire().expect("one is free")).into();
        let drive = client.drive().expect("a descriptor");
        Self { double, client, drive, held, is_woken: Arc::default() }
    }

    fn poll(&self, task: &mut AcquireSlot) -> Poll<Result<SlotGuard, AcquireError>> {
        self.is_woken.0.store(false, Ordering::SeqCst);
        let waker = Waker::from(self.is_woken.clone());
        Pin::new(task).poll(&mut Context::from_waker(&waker))
    }

    fn turn_until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let start = clock::now();
        while !is_so(self) {
            assert!(clock::now() - start < PATIENCE, "never: {what}");
            self.drive.turn(Waker::noop()).expect("the client lives");
        }
    }

    /// Whether all requests have their answers.
    fn is_answered(&self) -> bool {
        self.client.waiting_count() == 0
    }

    /// Number of waiters in the master's queues for both slots.
    fn waiter_count(&self) -> usize {
        let count = |slot| {
            let queue = format!("redlatch:wait:redlatch:slot:{slot}:pool");
            self.double.master(0).command(&["ZCARD", &queue]).expect("an answer").text()
        };
        [0, 1].map(count).iter().filter(|count| *count == "1").count()
    }

    /// Polls the task whenever it is woken, until it stands in the queues of both slots.
    fn stand(&mut self, task: &mut AcquireSlot) {
        assert!(self.poll(task).is_pending());
        let start = clock::now();
        while self.waiter_count() < 2 {
            assert!(clock::now() - start < PATIENCE, "it never stands there");
            self.drive.turn(Waker::noop()).expect("the client lives");
            if self.is_woken.0.load(Ordering::SeqCst) {
                assert!(self.poll(task).is_pending());
            }
        }
    }

    fn await_nothing_left(&mut self) {
        self.turn_until("nothing is left", |stage| {
            let stats = stage.client.stats();
            (stats.claims, stats.operations, stage.waiter_count()) == (0, 0, 0)
        });
    }
}

#[test]
fn the_first_of_several_granted_slots_is_handed_out() {
    let mut stage = Stage::new();
    let mut task = slots(&stage.client).acquire_async();
    stage.stand(&mut task);
    for slot in stage.held.drain(..) {
        slot.release().expect("confirmed");
    }
    stage.turn_until("both are granted", Stage::is_answered);
    let Poll::Ready(Ok(slot)) = stage.poll(&mut task) else { panic!("it was granted") };
    assert_eq!(slot.slot(), 0);
    assert_eq!(stage.client.unsent_size(), 0, "the release of the door is not left to a turn");
    // The task has given everything back, although its future is not dropped.
    assert_eq!(slots(&stage.client).try_acquire().expect("it was given back").slot(), 1);
    slot.release().expect("confirmed");
    stage.await_nothing_left();
    drop(task);
}

#[test]
fn a_granted_slot_needs_no_look() {
    let mut stage = Stage::new();
    stage.held.clear();
    for _ in 0..4 {
        let mut task = slots(&stage.client).holder_label("job 7").acquire_async();
        assert!(stage.poll(&mut task).is_pending());
        stage.turn_until("both have come", Stage::is_answered);
        match stage.poll(&mut task) {
            Poll::Ready(slot) => {
                let slot = slot.expect("one is free");
                let value =
                    stage.double.master(0).command(&["GET", &format!("redlatch:slot:{}:pool", slot.slot())]);
                assert!(value.expect("an answer").text().ends_with("job 7"));
            }
            // The other client may not have released the tried slot before this poll.
            Poll::Pending => {}
        }
        drop(task);
        stage.await_nothing_left();
    }
}

#[test]
fn a_try_goes_on_behind_the_answer_to_its_look() {
    let mut stage = Stage::new();
    let mut task = slots(&stage.client).acquire_async();
    let Ok(SlotStep::Try { slot, from }) = task.begin() else { panic!("it begins with a try") };
    // The other client holds this slot, so the try waits.
    let (slots, look) = ([task.request.slot(slot, LONG)], Some(task.request.look(from)));
    let Asking::Slots(mut asking) = AskingSlots::begin(slots, look) else { panic!("slots are asked for") };
    let acquisition = task.acquisition.as_mut().expect("it has begun");
    let mut poll = |asking: &mut AskingSlots| {
        asking.resolve(acquisition, &stage.client, &mut Context::from_waker(Waker::noop()))
    };
    assert!(poll(&mut asking).is_pending());
    assert_eq!(stage.client.waiting_count(), 2);
    let drive = &mut stage.drive;
    let start = clock::now();
    while stage.client.waiting_count() != 1 {
        assert!(clock::now() - start < PATIENCE, "the look has no answer");
        drive.turn(Waker::noop()).expect("the client lives");
    }
    for _ in 0..2 {
        assert!(poll(&mut asking).is_pending());
    }
    drop((asking, task));
    stage.await_nothing_left();
}

#[test]
fn a_cancel_wakes_a_task_in_each_queue() {
    let mut stage = Stage::new();
    let cancel = Cancel::new();
    let mut task = slots(&stage.client).cancel_with(&cancel).acquire_async();
    stage.stand(&mut task);
    cancel.cancel();
    assert!(stage.is_woken.0.load(Ordering::SeqCst));
    assert!(matches!(stage.poll(&mut task), Poll::Ready(Err(AcquireError::Cancelled))));
    stage.await_nothing_left();
    drop(task);
}

/// Only a caller that waits for a slot takes the door, which is a separate lock.
#[test]
fn a_try_stands_at_no_door() {
    let mut stage = Stage::new();
    let error = slots(&stage.client).try_acquire().expect_err("both are taken");
    assert!(matches!(error, AcquireError::Contended(_)), "{error}");
    let mut task = Box::pin(slots(&stage.client).try_acquire_async());
    let waker = Waker::from(stage.is_woken.clone());
    let error = loop {
        stage.is_woken.0.store(false, Ordering::SeqCst);
        match task.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => break result.expect_err("both are taken"),
            Poll::Pending => stage.turn_until("it is woken", |stage| stage.is_woken.0.load(Ordering::SeqCst)),
        }
    };
    assert!(matches!(error, AcquireError::Contended(_)), "{error}");
    assert_eq!(stage.client.stats().acquired, 0, "a door is a lock that it acquires");
    stage.await_nothing_left();
}
