//! A client without masters: what its threads do, and what they leave to each other.

use std::future::poll_fn;

use super::super::background::BackgroundAct;
use super::*;

/// A client without a connection, where nothing happens by itself.
fn alone() -> Arc<Shared> {
    let ((driver, poller), _) = observed();
    Shared::start_by(driver, poller, |_, _| Ok(thread::spawn(|| ()))).expect("it starts")
}

/// Takes the lead, like a leader that sleeps for ever.
fn sleep_for_ever(inner: &mut Inner) -> Option<Poller> {
    inner.sleep = Some(Sleep { until: None, is_woken: false });
    inner.poller.take()
}

/// An acquisition with a long wait.
fn acquisition(inner: &mut Inner, name: &str) -> CompletionToken {
    let resource = Resource::new(name).expect("a valid name");
    let request = Request::Acquire { resource, options: Options::new().wait(LONG), label: None };
    let op = inner.submit(request).expect("room");
    inner.completions.expect(op, OutcomeKind::Acquire)
}

#[test]
fn many_requests_of_tasks_do_not_wait_for_the_leader() {
    let shared = alone();
    let poller = sleep_for_ever(&mut shared.lock());
    let mut inner = shared.lock();
    // With two expected outcomes, a write is left to the leader.
    for name in ["a", "b"] {
        let _ = acquisition(&mut inner, name);
    }
    inner.unsent_count = EARLY_WRITE_COUNT * inner.driver.engine.config().masters.len() - 2;
    inner.write_for_task();
    assert_ne!(inner.unsent_count, 0, "the leader is to write");
    // This leader knows of no deadline, but the waits have ends.
    inner.sleep = Some(Sleep { until: None, is_woken: false });
    inner.write_for_task();
    assert_eq!(inner.unsent_count, 0, "it is written");
    assert!(inner.sleep.take().is_some_and(|sleep| sleep.is_woken));
    drop(inner);
    drop(poller);
}

#[test]
fn blocked_thread_wakes_no_other_between_answers() {
    let shared = alone();
    let pause = |inner: &mut Inner, took| {
        let op = inner.submit(Request::Pause { attempts: 0, took, limit: took }).expect("room");
        inner.completions.expect(op, OutcomeKind::Pause)
    };
    let mut tokens = Vec::new();
    let both = poll_fn(|context| {
        if tokens.is_empty() {
            for ms in [1, 5] {
                let ask = |inner: &mut Inner| {
                    tokens.push(pause(inner, Duration::from_millis(ms)));
                    tokens.last().copied()
                };
                assert!(shared.poll(context.waker(), true, ask).is_pending());
            }
            // The background thread sleeps from here on, and knows the deadlines.
            shared.background.sleep(Some(clock::now()));
            shared.lock().background.sleeps_until = Some(Some(clock::now()));
            return Poll::Pending;
        }
        assert!(!shared.background.sleep(Some(clock::now())), "this thread leads again");
        tokens.retain(|token| shared.poll(context.waker(), false, |_| Some(*token)).is_pending());
        if tokens.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    });
    shared.block_on(both).expect("no waker");
}

#[test]
fn ready_answer_is_taken_without_a_sleep() {
    for is_led in [false, true] {
        let shared = alone();
        let turn = shared.lock().last_turn;
        let poller = is_led.then(|| sleep_for_ever(&mut shared.lock()));
        let its = shared.clone();
        let answer = within("an answer that is there", move || {
            // A call of this kind does not turn the loop first without a quorum.
            its.wait(OutcomeKind::Extend, None, |inner| {
                let op = denied(&mut inner.driver);
                Some(inner.completions.expect(op, OutcomeKind::Acquire))
            })
        });
        assert!(matches!(answer, Ok(Some(Outcome::Acquire(Err(_))))), "{answer:?}");
        assert_eq!(shared.lock().last_turn, turn, "no turn is needed");
        drop(poller);
    }
}

/// More wakers than are taken at once with the mutex held.
const WAKER_COUNT: usize = 100;

/// Queues the wakers of [`WAKER_COUNT`] tasks.
fn wake_many(inner: &mut Inner) -> Arc<Count> {
    let count = Arc::<Count>::default();
    (0..WAKER_COUNT).for_each(|_| inner.completions.wake_too(Waker::from(count.clone())));
    count
}

#[test]
fn departing_leader_wakes_all_tasks() {
    let shared = alone();
    let mut inner = shared.lock();
    let count = wake_many(&mut inner);
    shared.leave(inner);
    assert_eq!(count.get(), WAKER_COUNT);
}

#[test]
fn a_leader_wakes_all_before_it_sleeps() {
    let shared = alone();
    let mut inner = shared.lock();
    let count = wake_many(&mut inner);
    let poller = inner.poller.take().expect("nobody leads");
    drop(inner);
    let (its, its_count) = (shared.clone(), count.clone());
    within("a lead", move || {
        let limit = Some(clock::now() + Duration::from_millis(20));
        drop(its.lead(its.lock(), poller, limit, |_| its_count.get() == WAKER_COUNT).expect("it goes on"));
    });
    assert_eq!(count.get(), WAKER_COUNT);
}

/// A task that makes another request whenever it is woken, and whose answers need no master. Counts its wake-ups.
struct Asks(Weak<Shared>, Arc<Count>);

impl Asks {
    fn ask(self: &Arc<Self>, inner: &mut Inner) {
        let op = denied(&mut inner.driver);
        let completion = inner.completions.expect(op, OutcomeKind::Acquire);
        assert!(inner.completions.wait_as_task(completion, &Waker::from(self.clone())).is_none());
        inner.gathering.remove_one();
        inner.write_for_task();
        // Like each leaving caller. Otherwise the leader wakes the next task of this thread 1 ms later.
        inner.completions.end_relay();
    }
}

impl Wake for Asks {
    fn wake(self: Arc<Self>) {
        self.1.wake_by_ref();
        if let Some(shared) = self.0.upgrade() {
            self.ask(&mut shared.lock());
        }
    }
}

// I125
#[test]
fn leader_that_gathers_still_reads_sockets() {
    let shared = alone();
    let task = Arc::new(Asks(Arc::downgrade(&shared), Arc::default()));
    let mut inner = shared.lock();
    task.ask(&mut inner);
    let poller = inner.poller.take().expect("nobody leads");
    drop(inner);
    let its = shared.clone();
    within("a lead", move || {
        let limit = Some(clock::now() + Duration::from_millis(20));
        drop(its.lead(its.lock(), poller, limit, |_| false).expect("it goes on"));
    });
    assert!(task.1.get() > 1);
}

// I125
#[test]
fn leader_expects_each_answered_caller_once() {
    let shared = alone();
    let answer_a_task = |inner: &mut Inner| {
        let op = denied(&mut inner.driver);
        let completion = inner.completions.expect(op, OutcomeKind::Acquire);
        inner.completions.wait_as_task(completion, Waker::noop());
        inner.deliver();
    };
    let is_expected = |inner: &mut Inner| inner.begin_gathering().is_some();
    for _ in 0..2 {
        answer_a_task(&mut shared.lock());
    }
    assert!(is_expected(&mut shared.lock()));
    let waited = shared.wait(OutcomeKind::Extend, None, |_| None);
    assert!(matches!(waited, Ok(None)));
    assert!(is_expected(&mut shared.lock()), "one of two has returned");
    let pending = shared.poll(Waker::noop(), true, |inner| Some(acquisition(inner, "a")));
    assert!(pending.is_pending());
    assert!(!is_expected(&mut shared.lock()), "both have returned");
}

// I125
#[test]
fn drive_never_gathers() {
    let shared = alone();
    let mut inner = shared.lock();
    inner.gathering.add(1);
    inner.background.drive = Some(Driving::new(false));
    assert!(inner.begin_gathering().is_none());
    inner.background.drive = None;
    assert!(inner.begin_gathering().is_some());
}

// I143
#[test]
fn late_drive_keeps_no_thread_busy_beside_a_leader() {
    let shared = alone();
    let mut inner = shared.lock();
    let completion = acquisition(&mut inner, "a");
    let _ = inner.completions.wait_as_task(completion, Waker::noop());
    let late_at = Some(clock::now() - limits::DRIVE_LATE);
    inner.background.drive = Some(Driving { late_at, ..Driving::new(true) });
    let _poller = sleep_for_ever(&mut inner);
    drop(inner);
    let now = clock::now();
    match shared.next_act(true, &mut 0).expect("it goes on") {
        BackgroundAct::Sleep(until) => assert!(until.is_none_or(|until| until > now), "it wakes at once"),
        _ => panic!("somebody else leads"),
    }
}

#[test]
fn drive_writes_once_for_returning_callers() {
    let shared = alone();
    let mut drive = shared.drive(false).expect("a descriptor");
    let mut is_left_to_the_drive = |returning_count| {
        shared.lock().gathering.add(returning_count);
        let pending = shared.poll(Waker::noop(), true, |inner| Some(acquisition(inner, "a")));
        assert!(pending.is_pending());
        let is_left = shared.lock().unsent_count > 0;
        drive.turn(Waker::noop()).expect("it goes on");
        shared.lock().completions = Completions::default();
        is_left
    };
    assert!(is_left_to_the_drive(2), "another caller returns");
    assert!(!is_left_to_the_drive(0), "nobody returns so late");
    assert!(!is_left_to_the_drive(1), "nobody else returns");
}

#[test]
fn long_write_rereads_the_clock() {
    let shared = alone();
    let mut inner = shared.lock();
    let start = inner.now();
    while clock::now() == start {
        thread::yield_now();
    }
    inner.write_batch(start);
    assert!(inner.now() > start);
}

#[test]
fn woken_thread_may_lead() {
    let shared = alone();
    let poller = sleep_for_ever(&mut shared.lock());
    shared.thread_waker().wake();
    assert!(shared.lock().sleep.as_ref().is_some_and(|sleep| sleep.is_woken));
    assert!(Sleeper::own().0.sleep(Some(clock::now())), "it may sleep beside a leader");
    drop(poller);
}

/// Notes whether the client's mutex is held when it is dropped.
struct Dropped(Arc<Shared>, mpsc::Sender<bool>);

impl Wake for Dropped {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Dropped {
    fn drop(&mut self) {
        let _ = self.1.send(self.0.is_locked());
    }
}

#[test]
fn thread_drops_wakers_outside_the_mutex() {
    let shared = alone();
    let poller = sleep_for_ever(&mut shared.lock());
    let (sender, dropped) = mpsc::channel();
    let waiter = Waker::from(Arc::new(Dropped(shared.clone(), sender)));
    let mut inner = shared.lock();
    let completion = unanswered(&mut inner);
    assert!(inner.completions.wait_as_task(completion, &waiter).is_none());
    drop(inner);
    drop(waiter);
    let its = shared.clone();
    let waiting = thread::spawn(move || its.wait(OutcomeKind::Acquire, None, |_| Some(completion)).is_err());
    let start = clock::now();
    while shared.lock().completions.thread_count() == 0 {
        assert!(clock::now() - start < PATIENCE, "it does not wait");
        thread::yield_now();
    }
    assert_eq!(shared.lock().completions.task_count(), 0);
    shared.stop("it was stopped");
    assert!(within("the thread", move || waiting.join()).expect("no panic"));
    assert_eq!(dropped.try_recv(), Ok(false));
    drop(poller);
}

/// An acquisition without an answer, and the token of its outcome.
fn unanswered(inner: &mut Inner) -> CompletionToken {
    let resource = Resource::new("a").expect("a valid name");
    let request = Request::Acquire { resource, options: Options::new().wait(LONG), label: None };
    let op = inner.submit(request).expect("room");
    inner.completions.expect(op, OutcomeKind::Acquire)
}

/// The answer and the end come before the thread wakes.
#[test]
fn ready_answers_outlive_only_a_drain() {
    for (is_drained, is_answered) in [(false, false), (false, true), (true, false), (true, true)] {
        let shared = alone();
        let poller = sleep_for_ever(&mut shared.lock());
        let completion = unanswered(&mut shared.lock());
        let its = shared.clone();
        let waiting = thread::spawn(move || its.wait(OutcomeKind::Extend, None, |_| Some(completion)));
        let start = clock::now();
        while shared.lock().completions.thread_count() == 0 {
            assert!(clock::now() - start < PATIENCE, "it does not wait");
            thread::yield_now();
        }
        let mut inner = shared.lock();
        if is_answered {
            let drain = Request::Drain { held: HeldLocks::Leave, limit: Duration::ZERO };
            inner.submit(drain).expect("room");
            inner.deliver();
        }
        (inner.is_drained, inner.stopped) = (is_drained, Some("it has ended".into()));
        inner.completions.give_up();
        shared.leave(inner);
        let answer = within("the thread", move || waiting.join()).expect("no panic");
        assert_eq!(answer.is_ok(), is_drained && is_answered, "{is_drained}, {is_answered}: {answer:?}");
        drop(poller);
    }
}

/// Otherwise the leader would leave the wake-up to another task of the same thread, which does not come.
#[test]
fn leader_wakes_an_entered_task_again() {
    let shared = alone();
    for _ in 0..2 {
        let mut inner = shared.lock();
        let resource = Resource::new("a").expect("a valid name");
        let request =
            Request::Acquire { resource, options: Options::new().wait(Duration::ZERO), label: None };
        let op = inner.submit(request).expect("room");
        let completion = inner.completions.expect(op, OutcomeKind::Acquire);
        assert!(inner.completions.wait_as_task(completion, Waker::noop()).is_none());
        inner.deliver();
        assert!(!inner.pop_woken_as_leader().is_empty());
        shared.leave(inner);
    }
}

/// The drain ends the acquisitions under way, and so makes room for its own request.
#[test]
fn a_drain_ends_a_client_that_has_no_room() {
    let client = client();
    let resource = Resource::new("a").expect("a name");
    let filled = client.shared().with(|inner| {
        let options = Options::new().wait(LONG);
        let mut submit = || inner.submit(Request::Acquire { resource, options, label: None });
        while submit().is_ok() {}
    });
    filled.expect("it goes on");
    assert!(!client.health().masters.is_empty());
    assert_eq!(client.drain(Duration::ZERO, HeldLocks::Leave), 0);
    assert!(client.health().masters.is_empty(), "it has stopped");
}

/// A thread may end while another one, which holds the mutex, exits the process. It must not wait.
#[test]
fn ending_thread_gives_up_on_a_busy_mutex() {
    let client = client();
    let inner = client.shared().lock();
    let shared = client.shared().clone();
    within("the end of a thread", move || shared.flush_at_end());
    drop(inner);
}

#[test]
fn ending_thread_waits_briefly_for_the_mutex() {
    let shared = alone();
    let mut inner = shared.lock();
    inner.linger_until = Some(clock::now() + LONG);
    let its = shared.clone();
    let ending = thread::spawn(move || its.flush_at_end());
    thread::sleep(limits::DROP_LINGER * 5);
    drop(inner);
    ending.join().expect("no panic");
    assert_eq!(shared.lock().linger_until, None, "what lingered is written");
}

#[test]
fn abandoned_answer_frees_its_place_once() {
    let shared = alone();
    let mut inner = shared.lock();
    let expect = |inner: &mut Inner| {
        let op = denied(&mut inner.driver);
        let token = inner.completions.expect(op, OutcomeKind::Acquire);
        inner.deliver();
        token
    };
    let token = expect(&mut inner);
    for _ in 0..2 {
        let Inner { driver, completions, .. } = &mut *inner;
        assert!(completions.abandon(clock::now(), &mut driver.engine, token).is_none());
    }
    let _two = [expect(&mut inner), expect(&mut inner)];
    assert_eq!(inner.completions.kept_count(), 2);
}

#[test]
fn background_thread_skips_a_busy_mutex() {
    let client = client();
    let (inner, start) = (client.shared().lock(), clock::now());
    let shared = client.shared().clone();
    let act = within("its next act", move || shared.next_act(false, &mut 0));
    let is_sleep =
        matches!(act, Ok(BackgroundAct::Sleep(Some(until))) if until >= start + limits::DROP_LINGER);
    assert!(is_sleep, "{act:?}, behind {start:?}");
    drop(inner);
}

#[test]
fn an_idle_client_looks_rarely_unless_it_connects() {
    let shared = alone();
    let inner = shared.lock();
    let look = inner.look_at(inner.last_turn) - inner.last_turn;
    assert!(!inner.driver.engine.is_connecting() && look == limits::LOOK_PAUSE, "{look:?}");
    drop(inner);
    let mut inner = shared.lock();
    inner.driver.engine.handle_timeout(clock::now());
    let look = inner.look_at(inner.last_turn) - inner.last_turn;
    assert!(inner.driver.engine.is_connecting() && look == limits::CONNECT_LOOK_PAUSE, "{look:?}");
}

/// How long a close takes on the thread that the client considers its own.
fn closing_time() -> Duration {
    let ((driver, poller), _) = observed();
    let (closing, closed) = mpsc::channel::<Arc<Shared>>();
    let (sender, took) = mpsc::channel();
    let own = Mutex::new(Some(move || {
        let shared = closed.recv().expect("the client");
        let begun = clock::now();
        shared.close();
        let _ = sender.send(clock::now() - begun);
    }));
    let started = Shared::start_by(driver, poller, |name, _| match name {
        "redlatch" => Ok(thread::spawn(own.lock().expect("no panic").take().expect("one thread"))),
        _ => Ok(thread::spawn(|| ())),
    });
    closing.send(started.expect("it starts")).expect("it waits for this");
    took.recv_timeout(PATIENCE).expect("it ends")
}

/// A slow machine may need several tries.
#[test]
fn the_clients_own_thread_does_not_wait_for_its_end() {
    let start = clock::now();
    while closing_time() >= limits::CLOSE_WAIT {
        assert!(clock::now() - start < PATIENCE, "it waits each time");
    }
}

#[test]
fn a_thread_that_waits_beside_a_leader_sleeps() {
    let shared = alone();
    let mut inner = shared.lock();
    let _poller = sleep_for_ever(&mut inner);
    // With two expected outcomes, each look of a thread makes the leader write.
    let _other = unanswered(&mut inner);
    drop(inner);
    let its = shared.clone();
    let waiting =
        thread::spawn(move || its.wait(OutcomeKind::Release, None, |inner| Some(unanswered(inner))).is_err());
    let start = clock::now();
    while shared.lock().completions.thread_count() == 0 {
        assert!(clock::now() - start < PATIENCE, "it never waits");
        thread::yield_now();
    }
    let is_woken = || shared.lock().sleep.as_ref().is_some_and(|sleep| sleep.is_woken);
    let looks = (0..20).filter(|_| {
        sleep_for_ever(&mut shared.lock());
        thread::sleep(BRIEF / 20);
        is_woken()
    });
    // On its way to sleep, the thread may look once or twice.
    assert!(looks.count() <= 2, "it looks again and again");
    shared.stop("the end");
    assert!(waiting.join().expect("no panic"));
}
