//! Holds of one owner, poll by poll, compared with `tests/golden/holds`: which callers are woken, and what
//! each gets.
//!
//! The test turns the client's event loop itself, so nothing happens between two steps. No waker may find the
//! owner's state locked.
#![cfg(unix)]

use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::mpsc;
use std::thread;

use super::*;
use crate::cancel::Cancel;
use crate::client::Drive;
use crate::config::tests::of_double;
use crate::engine::Request;
use redlatch_support::{PATIENCE, assert_golden};
use redlatch_testing::Double;

/// A TTL and wait that no step waits out.
const LONG: Duration = PATIENCE.saturating_mul(10);

type Taking = Pin<Box<dyn Future<Output = Result<ReentrantGuard, LockReentrantError>> + Send>>;

/// An owner with its callers, and the owner's only master, which hangs until a step waits for an answer.
struct Stage {
    double: Double,
    client: Client,
    drive: Drive,
    lock: ReentrantLock,
    callers: Vec<Polled>,
    page: String,
}

/// A task that takes a hold.
struct Polled {
    taking: Option<Taking>,
    hold: Option<ReentrantGuard>,
    wakes: Arc<Wakes>,
    /// Number of wake-ups that the page has shown.
    shown_count: usize,
}

struct Wakes {
    count: AtomicUsize,
    owner: Arc<Owner>,
    found_locked: AtomicBool,
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.found_locked.fetch_or(self.owner.state.try_lock().is_err(), Ordering::SeqCst);
        self.count.fetch_add(1, Ordering::SeqCst);
    }
}

/// Waker that does this work.
struct Does(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Wake for Does {
    fn wake(self: Arc<Self>) {
        let work = self.0.lock().expect("no panic").take();
        work.expect("it is woken once")();
    }
}

fn name(caller: usize) -> char {
    ["A", "B", "C", "D"][caller].chars().next().expect("one letter")
}

impl Polled {
    fn waker(&self) -> Waker {
        Waker::from(self.wakes.clone())
    }

    fn poll(&mut self) -> String {
        let waker = self.waker();
        let taking = self.taking.as_mut().expect("it has no answer yet");
        let Poll::Ready(result) = taking.as_mut().poll(&mut Context::from_waker(&waker)) else {
            return "pending".to_owned();
        };
        self.taking = None;
        match result {
            Ok(hold) => {
                self.hold = Some(hold);
                "a hold".to_owned()
            }
            Err(LockReentrantError::Acquire(AcquireError::Contended(_))) => "contended".to_owned(),
            Err(error) => error.to_string(),
        }
    }
}

impl Stage {
    /// A client of one master, and the lock of an owner without holds.
    fn new(title: &str, request: impl FnOnce(LockRequest<'static>) -> LockRequest<'static>) -> Self {
        let double = Double::start(1).expect("a free port");
        let client =
            of_double(&double).max_ttl(LONG).answer_timeout(PATIENCE).connect().expect("an event loop");
        let drive = client.drive().expect("a descriptor");
        let lock = request(client.lock_owned("a").ttl(LONG).wait(LONG)).reentrant();
        Self { double, client, drive, lock, callers: Vec::new(), page: format!("# {title}\n") }
    }

    /// Adds this many tasks that want a hold, then makes the master hang.
    fn with_callers(mut self, count: usize) -> Self {
        self.callers.extend((0..count).map(|_| {
            let (lock, owner) = (self.lock.clone(), self.lock.owner.clone());
            let wakes = Wakes { count: AtomicUsize::new(0), owner, found_locked: AtomicBool::new(false) };
            let taking: Taking = Box::pin(async move { lock.lock_async().await });
            Polled { taking: Some(taking), hold: None, wakes: Arc::new(wakes), shown_count: 0 }
        }));
        self.double.master(0).stop().expect("it runs");
        self
    }

    /// Adds a line: the step, the tasks that it has woken, and the number of holds afterwards.
    fn note(&mut self, step: &str) {
        write!(self.page, "{step}; woken:").expect("a text takes it");
        for (caller, polled) in self.callers.iter_mut().enumerate() {
            let count = polled.wakes.count.load(Ordering::SeqCst);
            for _ in std::mem::replace(&mut polled.shown_count, count)..count {
                write!(self.page, " {}", name(caller)).expect("a text takes it");
            }
            assert!(!polled.wakes.found_locked.load(Ordering::SeqCst), "{}: woken under the lock", self.page);
        }
        writeln!(self.page, "; holds: {}", self.lock.hold_count()).expect("a text takes it");
    }

    /// Leaves the wake-ups so far out of the page.
    fn skip_wakes(&mut self) {
        for polled in &mut self.callers {
            polled.shown_count = polled.wakes.count.load(Ordering::SeqCst);
        }
    }

    fn poll(&mut self, caller: usize) {
        let shown = self.callers[caller].poll();
        self.note(&format!("poll {}: {shown}", name(caller)));
        // Makes the wait of the next caller end later.
        let now = clock::now();
        while clock::now() == now {}
    }

    /// Drops the future, and the hold.
    fn drop(&mut self, caller: usize) {
        let polled = &mut self.callers[caller];
        drop((polled.taking.take(), polled.hold.take()));
        self.note(&format!("drop {}", name(caller)));
    }

    /// Turns the event loop until the waker of this caller is called.
    fn answer(&mut self, woken: usize) {
        self.double.master(0).resume().expect("it runs");
        let polled = &self.callers[woken];
        let start = clock::now();
        while polled.wakes.count.load(Ordering::SeqCst) == polled.shown_count {
            assert!(clock::now() - start < PATIENCE, "{}: {} is not woken", self.page, name(woken));
            self.drive.turn(Waker::noop()).expect("the client lives");
        }
        self.note("answer");
    }

    /// Does this work while the next poll asks the client.
    fn do_within_poll(&self, work: impl FnOnce() + Send + 'static) {
        let waker = Waker::from(Arc::new(Does(Mutex::new(Some(Box::new(work))))));
        self.client.shared().peek(|inner| inner.completions.wake_too(waker));
    }

    fn end(self) -> String {
        let stats = self.client.stats();
        let (acquired, contended, abandoned) = (stats.acquired, stats.contended, stats.abandoned);
        self.page + &format!("acquired {acquired}, contended {contended}, abandoned {abandoned}\n")
    }
}

/// Callers that come before the answer share it. A later caller asks nobody.
fn a_grant() -> String {
    let mut stage = Stage::new("a grant", |request| request).with_callers(4);
    [0, 1, 0, 2].into_iter().for_each(|caller| stage.poll(caller));
    stage.drop(2);
    // The first caller is not polled again, yet delays nobody.
    stage.poll(1);
    stage.answer(1);
    [1, 0, 3].into_iter().for_each(|caller| stage.poll(caller));
    stage.drop(1);
    let last = stage.callers[0].hold.take().expect("a hold");
    let (mut lost, waker) = (Box::pin(last.lost()), stage.callers[3].waker());
    let mut context = Context::from_waker(&waker);
    assert!(lost.as_mut().poll(&mut context).is_pending());
    assert_eq!(stage.callers[3].hold.take().expect("a hold").release(), Ok(None));
    stage.note("release D");
    // A blocking call turns the loop itself.
    assert!(last.release().expect("confirmed").is_some());
    stage.note("release A");
    assert_eq!(lost.as_mut().poll(&mut context), Poll::Ready(LockEnd::Released));
    stage.end()
}

/// A failed attempt answers the caller with the shortest wait; the others go on.
fn a_failure() -> String {
    let mut page = String::new();
    for (title, polls) in [("a failure", [0, 1]), ("a failure that another one fetches", [1, 0])] {
        let stage = Stage::new(title, |request| request.max_attempts(1));
        let other =
            of_double(&stage.double).max_ttl(LONG).answer_timeout(PATIENCE).connect().expect("a loop");
        let _held = other.lock("a").ttl(LONG).acquire().expect("free");
        let mut stage = stage.with_callers(3);
        stage.poll(0);
        stage.poll(1);
        stage.answer(0);
        polls.into_iter().for_each(|caller| stage.poll(caller));
        stage.answer(1);
        stage.poll(1);
        stage.poll(2);
        stage.drop(2);
        page += &stage.end();
    }
    page
}

/// The drop of a caller whose answer has come ends its hold. The drop of the last caller gives up the
/// attempt.
fn drops() -> String {
    let mut stage = Stage::new("drops", |request| request).with_callers(4);
    [0, 1, 2].into_iter().for_each(|caller| stage.poll(caller));
    stage.drop(0);
    [1, 2].into_iter().for_each(|caller| stage.poll(caller));
    stage.answer(1);
    stage.poll(1);
    stage.drop(2);
    stage.drop(1);
    stage.double.master(0).stop().expect("it runs");
    stage.poll(3);
    // This drop wakes a task, too, and the task finds the owner's state unlocked.
    let waker = stage.callers[0].waker();
    stage.client.shared().peek(|inner| inner.completions.wake_too(waker));
    stage.drop(3);
    stage.end()
}

/// The driving task is not polled again, so the task that joined within its poll must be woken.
fn a_cancel_within_a_poll() -> String {
    let cancel = Cancel::new();
    let title = "a cancel within a poll";
    let mut stage = Stage::new(title, |request| request.cancel_with(&cancel)).with_callers(2);
    let (sender, receiver) = mpsc::channel();
    let (waker, mut taking) = (stage.callers[1].waker(), stage.callers[1].taking.take().expect("new"));
    stage.do_within_poll(move || {
        cancel.cancel();
        let polled = taking.as_mut().poll(&mut Context::from_waker(&waker)).is_pending();
        let _ = sender.send((polled, taking));
    });
    stage.poll(0);
    let (is_pending, taking) = receiver.try_recv().expect("the poll asked the client");
    assert!(is_pending);
    stage.callers[1].taking = Some(taking);
    stage.poll(1);
    stage.poll(0);
    stage.end()
}

/// Nobody turns the event loop, so a thread that joined within a poll leads as soon as the poll is over.
fn a_thread_within_a_poll() -> String {
    let mut stage = Stage::new("a thread within a poll", |request| request).with_callers(1);
    let (sender, receiver) = mpsc::channel();
    let its = stage.lock.clone();
    stage.do_within_poll(move || {
        let (lock, owner) = (its.clone(), its.owner.clone());
        thread::spawn(move || sender.send(lock.lock()));
        let waker_count = || match &*owner.state().expect("no fork") {
            OwnerHolds::Acquiring { attempt, .. } => attempt.attempts.wakers.lock().expect("no panic").len(),
            _ => 0,
        };
        while waker_count() < 2 {
            thread::yield_now();
        }
    });
    stage.poll(0);
    stage.double.master(0).resume().expect("it runs");
    let hold = receiver.recv_timeout(PATIENCE).expect("the thread leads").expect("free");
    // The thread may wake A more than once, as both run at the same time.
    stage.skip_wakes();
    stage.note("a hold of the thread");
    stage.poll(0);
    drop(hold);
    stage.drop(0);
    stage.end()
}

/// The error of this thread is no answer for the other callers.
fn a_thread_in_a_waker() -> String {
    let mut stage = Stage::new("a thread in a waker", |request| request).with_callers(1);
    stage.poll(0);
    let refused =
        stage.client.shared().waking.run(|| stage.lock.lock()).map(drop).expect_err("it would never end");
    stage.note(&format!("a thread in a waker: {refused}"));
    stage.answer(0);
    stage.poll(0);
    stage.drop(0);
    stage.end()
}

/// A caller fetches its hold after the lock is over.
fn a_lost_lock() -> String {
    let mut stage = Stage::new("a lost lock", |request| request).with_callers(4);
    stage.poll(0);
    stage.poll(1);
    stage.answer(0);
    stage.poll(0);
    let mut lost = Box::pin(stage.callers[0].hold.as_ref().expect("a hold").lost());
    let waker = stage.callers[3].waker();
    assert!(lost.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    // Released behind the guard's back, as a drain does.
    let lock = stage.lock.owner.look(Guard::lock).expect("held");
    let released =
        stage.client.shared().with(|inner| inner.submit(Request::Release { lock, awaited: false }).is_ok());
    assert!(released.expect("it goes on") && !stage.lock.is_held());
    stage.poll(2);
    stage.drop(0);
    // The end of this hold drops the guard, and wakes the task that waits for the loss.
    stage.poll(1);
    stage.poll(3);
    stage.end()
}

#[test]
fn each_hold_poll_matches_its_golden_file() {
    let pages = [
        a_grant(),
        a_failure(),
        drops(),
        a_cancel_within_a_poll(),
        a_thread_within_a_poll(),
        a_thread_in_a_waker(),
        a_lost_lock(),
    ];
    assert_golden("holds", &pages.concat());
}
