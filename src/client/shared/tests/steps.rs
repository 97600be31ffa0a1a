//! Leadership step by step: the lead, sleeps and their ends, writes and wake-ups, shown after each step and
//! compared with `tests/golden/leading`.
//!
//! If the client is *alone*, its own thread does not exist and nothing happens by itself. Otherwise that
//! thread runs, and a step is shown once nothing moves. A sleep that ends too late shows at once, although
//! something else would end it a moment later.

mod stage;

use std::panic::resume_unwind;
use std::task::Waker;
use std::thread;
use std::time::Duration;

use redlatch_support::assert_golden;

use super::super::{Inner, OutcomeKind, Shared, Sleep};
use crate::clock;
use crate::engine::{HeldLocks, Request, Resource};
use crate::limits;
use stage::{LONG, Shown as _, Stage};

/// Nobody leads by itself, so each decision of a caller shows.
fn alone() -> String {
    let mut stage = Stage::new("Alone: a task acquires, and drops its guard", true);
    stage.hang(true);
    stage.look(true);
    stage.acquire("a");
    stage.poll("a");
    stage.poll_as("a", "another waker");
    stage.answers();
    stage.poll("a");
    stage.hang(true);
    stage.drop_guard("a");
    stage.turn();
    stage.answers();
    stage.acquire_here("here");
    stage.look(true);
    stage.page += "# Alone: calls that are dropped, before and behind their answers\n";
    stage.hang(true);
    stage.acquire("b");
    stage.forget("b");
    stage.answers();
    stage.hang(true);
    stage.acquire("c");
    stage.answers();
    stage.forget("c");
    stage.answers();
    stage.page += "# Alone: several tasks\n";
    stage.hang(true);
    for name in ["d", "e", "f"] {
        stage.acquire(name);
    }
    stage.answers();
    for name in ["d", "e", "f"] {
        stage.poll(name);
    }
    stage.hang(true);
    stage.drop_guard("e");
    let lingers = stage.shared().lock().linger_until;
    stage.drop_guard("d");
    assert_eq!(stage.shared().lock().linger_until, lingers, "a drop does not put off another one's release");
    stage.answers();
    stage.acquire_here("here too");
    stage.hang(true);
    stage.drop_guard("here");
    stage.look(false);
    stage.look(true);
    stage.shared().lock().linger_until = Some(clock::now());
    let start = clock::now();
    stage.look(true);
    assert!(clock::now() - start >= limits::BACKGROUND_STAY, "it stays for the answer");
    stage.answers();
    stage.page += "# Alone: a thread sleeps over the end of a pause\n";
    let (waker, mut inner) = (stage.waker("a thread"), stage.client.shared().enter().expect("it goes on"));
    let pause = Request::Pause { attempts: 1, took: Duration::ZERO, limit: Duration::from_millis(1) };
    let op = inner.submit(pause).expect("room");
    let completion = inner.completions.expect(op, OutcomeKind::Pause);
    inner.completions.wait_as_thread(completion, waker);
    drop(inner);
    stage.show("a pause begins");
    while stage.shared().lock().due().is_some_and(|at| clock::now() < at) {}
    stage.look(true);
    stage.page
}

/// Answers the acquisitions of `a`, `b` and `c` in turns of a drive, and then a release.
fn the_drive_serves_three(stage: &mut Stage) {
    stage.drive_turns();
    stage.answers();
    for name in ["a", "b", "c"] {
        stage.poll(name);
    }
    stage.hang(true);
    stage.drop_guard("a");
    stage.drive_turns();
    stage.answers();
}

/// A drive leads, and the background thread leaves everything to it.
fn driven() -> String {
    let mut stage = Stage::new("Driven: a task acquires", true);
    stage.drive_begins();
    stage.look(true);
    stage.drive_turns();
    stage.hang(true);
    for name in ["a", "b", "c"] {
        stage.acquire(name);
    }
    the_drive_serves_three(&mut stage);
    stage.page += "# Driven: another one leads meanwhile\n";
    let poller = stage.shared().lock().poller.take();
    stage.drive_turns();
    stage.hang(true);
    stage.acquire("d");
    let mut inner = stage.client.shared().lock();
    inner.poller = poller;
    stage.client.shared().leave(inner);
    stage.show("the other one gives the lead back");
    stage.drive_turns();
    stage.answers();
    stage.poll("d");
    stage.page += "# Driven: the drive is dropped\n";
    stage.acquire_here("e");
    stage.drive_begins();
    stage.drive_turns();
    stage.drive = None;
    stage.show("drop of the drive");
    stage.look(true);
    stage.page += "# Driven: another drive takes over\n";
    stage.drive_begins();
    stage.drive_turns();
    let first = stage.drive.take();
    stage.drive_begins();
    stage.drive_turns();
    drop(first);
    stage.show("drop of the first drive");
    stage.page
}

/// A runtime drives while it is on time, and the background thread handles deadlines.
fn watched() -> String {
    let mut stage = Stage::new("Driven by a runtime: tasks acquire", true);
    stage.runtime_begins();
    stage.drive_turns();
    stage.shown_turn = clock::now() - limits::DRIVE_LATE;
    stage.shared().lock().last_turn = stage.shown_turn;
    stage.look(true);
    stage.hang(true);
    stage.acquire("a");
    stage.be_late(false);
    stage.look(true);
    for name in ["b", "c"] {
        stage.acquire(name);
    }
    the_drive_serves_three(&mut stage);
    stage.page += "# Driven by a runtime: it is late\n";
    stage.hang(true);
    stage.be_late(false);
    stage.acquire("d");
    stage.look(true);
    stage.be_late(true);
    stage.look_until_the_drive_turns();
    stage.drive_turns();
    stage.be_late(true);
    stage.forget("d");
    thread::sleep(limits::DROP_LINGER);
    stage.look(true);
    stage.answers();
    stage.page += "# Driven by a runtime: it ends while a task waits\n";
    stage.hang(true);
    stage.acquire("e");
    stage.drive = None;
    stage.show("drop of the drive");
    stage.answers();
    stage.poll("e");
    stage.page += "# Driven by a runtime: a loop of the user's takes over\n";
    stage.runtime_begins();
    stage.drive_turns();
    let first = stage.drive.take();
    stage.drive_begins();
    stage.drive_turns();
    let own = std::mem::replace(&mut stage.drive, first);
    stage.drive_turns();
    stage.drive = own;
    stage.show("drop of the runtime's drive");
    stage.look(true);
    stage.drive_turns();
    stage.page
}

/// A leader sleeps: what other threads make it do.
fn beside() -> String {
    let mut stage = Stage::new("Beside a leader that sleeps: writes and wake-ups", true);
    for name in ["held", "batch"] {
        stage.acquire_here(name);
    }
    stage.hang(true);
    let poller = stage.shared().lock().poller.take();
    let sleep = |stage: &mut Stage, until| {
        stage.shared().lock().sleep = Some(Sleep { until: Some(until), is_woken: false });
        stage.show("a leader sleeps");
    };
    sleep(&mut stage, clock::now() + LONG * 4);
    let mut lost = stage.guards["held"].lost();
    stage.poll_other(&mut lost, "the end of held");
    let timeout = stage.shared().lock().driver.engine.next_timeout().expect("the end of held").0;
    sleep(&mut stage, timeout);
    stage.shared().with(Inner::wake_late_leader).expect("it goes on");
    stage.show("a look at a leader that sleeps in time");
    stage.shown_turn = clock::now() - limits::LOOK_PAUSE;
    stage.shared().lock().last_turn = stage.shown_turn;
    stage.look(false);
    for (until, names) in [(clock::now() + LONG * 4, ["a", "b", "c"]), (clock::now(), ["d", "e", "f"])] {
        sleep(&mut stage, until);
        for name in names {
            stage.acquire(name);
        }
        for name in names {
            stage.forget(name);
        }
    }
    sleep(&mut stage, clock::now() + LONG * 4);
    let releases = stage.client.release_all(stage.guards.remove("batch"));
    stage.show("a release as a batch");
    let mut inner = stage.client.shared().lock();
    (inner.poller, inner.sleep) = (poller, None);
    stage.client.shared().leave(inner);
    drop(releases);
    stage.show("the leader gives the lead back");
    stage.answers();
    stage.page
}

/// The client's own thread runs.
fn together() -> String {
    let mut stage = Stage::new("Together: a task acquires", false);
    stage.hang(true);
    stage.acquire("a");
    stage.finish("a");
    stage.page += "# Together: two threads and a task wait for a master that hangs\n";
    stage.hang(true);
    stage.block("b");
    stage.block("c");
    stage.acquire("d");
    stage.hang(false);
    stage.join(&["b", "c"]);
    stage.finish("d");
    stage.page += "# Together: a thread waits, and nothing else\n";
    for name in ["a", "b", "c", "d"] {
        stage.guards.remove(name);
    }
    stage.shared().flush_at_end();
    drop(stage.await_that("all releases", |inner| inner.driver.engine.claim_count() == 0));
    stage.show("all guards are dropped");
    stage.hang(true);
    stage.block("e");
    stage.hang(false);
    stage.join(&["e"]);
    stage.page += "# Together: a drive begins while a task waits, and is dropped\n";
    stage.hang(true);
    stage.acquire("f");
    stage.drive = Some(stage.client.drive().expect("a descriptor"));
    drop(stage.await_that("the lead", |inner| inner.poller.is_some()));
    stage.drive_turns();
    stage.drive = None;
    stage.show("drop of the drive");
    stage.finish("f");
    stage.page
}

/// Ends of locks are awaited, and several calls share one write.
fn losses_and_batches() -> String {
    let mut stage = Stage::new("Alone: ends that are awaited", true);
    for name in ["a", "b", "c"] {
        stage.acquire_here(name);
    }
    let (mut first, mut second) = (stage.guards["a"].lost(), stage.guards["a"].lost());
    for waker in ["the first", "the first, moved"] {
        stage.poll_other(&mut first, waker);
    }
    stage.poll_other(&mut second, "the second");
    let mut third = stage.guards["a"].lost();
    stage.poll_other(&mut third, "the third");
    drop(second);
    stage.hang(true);
    stage.drop_guard("a");
    stage.poll_other(&mut first, "the first");
    stage.answers();
    stage.page += "# Alone: a batch\n";
    stage.hang(true);
    let both = [stage.guards.remove("b"), stage.guards.remove("c")].into_iter().flatten();
    let mut releases = stage.client.release_all(both);
    stage.show("two releases");
    stage.poll_other(&mut releases[1], "the second release");
    drop(releases.remove(0));
    stage.show("drop of the first release");
    stage.answers();
    stage.poll_other(&mut releases[0], "the second release");
    stage.page += "# Alone: a task waits for releases before a thread does\n";
    for is_inside in [true, false] {
        stage.acquire_here("b");
        stage.hang(true);
        let mut releasing = stage.guards.remove("b").expect("it is held").release_async();
        stage.poll_other(&mut releasing, "a task");
        stage.hang(false);
        let shared = stage.shared().clone();
        let answer = if is_inside { shared.waking.run(|| releasing.block()) } else { releasing.block() };
        let place = if is_inside { " in a waker" } else { "" };
        stage.show(&format!("a thread waits{place}: {}", answer.shown()));
        stage.answers();
    }
    stage.page += "# Alone: a call behind an idle time turns first\n";
    stage.acquire_here("d");
    stage.hang(true);
    stage.drop_guard("d");
    for (kind, is_idle) in [
        (OutcomeKind::Acquire, false),
        (OutcomeKind::Release, true),
        (OutcomeKind::Drain, true),
        (OutcomeKind::Acquire, true),
    ] {
        let now = clock::now();
        stage.shown_turn = if is_idle { now - limits::IDLE_MAX } else { now + LONG };
        stage.shared().lock().last_turn = stage.shown_turn;
        stage.shared().wait(kind, None, |_| None).expect("it goes on");
        stage.show(&format!("{kind:?}, {}", if is_idle { "idle before" } else { "busy before" }));
    }
    stage.page
}

/// The client ends, or a thread ends that has dropped a guard.
fn ends() -> String {
    let mut stage = Stage::new("Beside a leader that sleeps: ends", true);
    stage.acquire_here("a");
    stage.hang(true);
    stage.drop_guard("a");
    let poller = stage.shared().lock().poller.take();
    let sleep = |stage: &mut Stage, until| {
        stage.shared().lock().sleep = Some(Sleep { until: Some(until), is_woken: false });
        stage.show("a leader sleeps");
    };
    sleep(&mut stage, clock::now() + LONG * 4);
    let shared = stage.shared().clone();
    thread::spawn(move || shared.flush_at_end()).join().expect("no panic");
    stage.show("the end of a thread");
    sleep(&mut stage, clock::now());
    let start = clock::now();
    stage.shared().close();
    assert!(clock::now() - start >= limits::CLOSE_WAIT, "it waits for its thread");
    stage.show("the client is closed");
    (stage.shared().lock().poller, stage.shared().lock().sleep) = (poller, None);
    let start = clock::now();
    stage.look(true);
    assert!(clock::now() - start >= limits::CLOSE_WAIT, "it waits for the master");
    stage.shared().run_background();
    assert!(stage.shared().ended.sleep(Some(clock::now())), "the end of its thread is awaited");
    let mut stages = vec![stage.page];

    let mut stage = Stage::new("Driven: the client is closed", true);
    stage.drive_begins();
    stage.drive_turns();
    stage.shared().close();
    stage.show("the client is closed");
    stage.drive_turns();
    stages.push(stage.page);

    let mut stage = Stage::new("Alone: the client is drained while a task waits", true);
    stage.hang(true);
    stage.acquire("a");
    let count = stage.client.drain(Duration::ZERO, HeldLocks::Leave);
    stage.show(&format!("a drain, which leaves {count}"));
    stage.poll("a");
    stages.push(stage.page);
    stages.join("\n")
}

/// Each call of a thread calls due wakers, and wakes a background thread that sleeps too long.
fn calls() -> String {
    let mut stage = Stage::new("Alone: calls that find a background thread asleep for ever", true);
    let ask = |inner: &mut Inner| {
        let name = Resource::new("a").expect("a valid name");
        let op = inner.submit(Request::Inspect { resource: name }).expect("room");
        Some(inner.completions.expect(op, OutcomeKind::Inspect))
    };
    type Call<'a> = &'a dyn Fn(&Shared);
    let calls: [(&str, Call<'_>); 4] = [
        ("with", &|shared| shared.with(|_| ()).expect("it goes on")),
        ("a wait for nothing", &|shared| drop(shared.wait(OutcomeKind::Release, None, |_| None))),
        ("a poll for nothing", &|shared| drop(shared.poll(Waker::noop(), true, |_| None))),
        ("a wait for an answer", &|shared| drop(shared.wait(OutcomeKind::Inspect, None, ask))),
    ];
    for (step, call) in calls {
        let waker = stage.waker("left over");
        let mut inner = stage.shared().lock();
        inner.background.sleeps_until = Some(None);
        inner.background.is_favoured = true;
        inner.completions.wake_too(waker);
        drop(inner);
        call(stage.shared());
        stage.show(step);
    }
    stage.page
}

/// All waiting callers are woken, and find out why.
fn stopped() -> String {
    let mut stage = Stage::new("Driven: the client is stopped", true);
    stage.drive_begins();
    stage.acquire_here("a");
    let mut lost = stage.guards["a"].lost();
    stage.poll_other(&mut lost, "the end of a");
    stage.acquire("answered");
    stage.answers();
    stage.hang(true);
    stage.acquire("waiting");
    stage.drive_turns();
    let shared = stage.shared().clone();
    let struck = thread::spawn(move || shared.with(|_| resume_unwind(Box::new("struck"))));
    drop(struck.join());
    // Before anybody takes the mutex that the panic has poisoned.
    assert!(stage.is_woken("waiting"), "the thread that panics stops the client");
    stage.show("a thread panics with the lock held");
    for name in ["answered", "waiting"] {
        stage.poll(name);
    }
    stage.poll_other(&mut lost, "the end of a");
    stage.look(true);
    drop(lost);
    stage.page
}

// I124, I143
#[test]
fn leads_sleeps_writes_and_wake_ups() {
    let pages = [
        alone(),
        driven(),
        watched(),
        beside(),
        together(),
        losses_and_batches(),
        ends(),
        calls(),
        stopped(),
    ];
    assert_golden("leading", &pages.join("\n"));
}
