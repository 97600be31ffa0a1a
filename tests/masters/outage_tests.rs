//! Masters that hang or die while many locks are held, and connections that are cut inside a pipeline.

use std::time::{Duration, Instant};

use redlatch::Options;
use redlatch::engine::{OpId, Outcome, Request, Resource};
use redlatch::status::MasterState;
use redlatch_support::{Blocking, Fleet, PATIENCE};

use crate::contest::{Contest, Rules, TTL};
use crate::lock_tests::{drive, open, settings};
use crate::lockers::{Mode, Way};

#[test]
fn masters_stopped_beyond_the_ttl_harm_nobody() {
    stand_still(&Rules::default());
}

#[test]
fn stopped_masters_harm_no_sharing_caller() {
    stand_still(&Rules { way: Way::Client, ..Rules::default() });
}

#[test]
fn stopped_masters_harm_no_fair_waiter() {
    stand_still(&Rules { mode: Mode::Fair, ..Rules::default() });
}

#[test]
fn stopped_masters_harm_no_fenced_lock() {
    stand_still(&Rules { mode: Mode::Fenced, ..Rules::default() });
}

fn stand_still(rules: &Rules) {
    let mut fleet = Fleet::start_with(5, &["--enable-debug-command", "yes"]);
    let mut contest = Contest::start("SIGSTOP, DEBUG SLEEP, CLIENT PAUSE", &fleet.urls(), rules);
    fleet.master(0).stop();
    contest.survives("one is stopped", 10);
    contest.pass(TTL);
    fleet.master(1).stop();
    contest.survives("two are stopped", 10);
    contest.pass(TTL.mul_f64(1.2));
    fleet.master(0).cont();
    fleet.master(1).cont();
    contest.recovers("two go on");
    for index in [2, 3, 4] {
        fleet.master(index).stop();
    }
    contest.fails("three are stopped", 10);
    contest.pass(TTL.mul_f64(1.2));
    for index in [2, 3, 4] {
        fleet.master(index).cont();
    }
    contest.recovers("three go on");
    // The test does not wait for this reply, and the server serves nobody meanwhile.
    let _sleep = fleet.master(0).send(&[b"DEBUG", b"SLEEP", b"1.2"]);
    assert_eq!(fleet.master(1).ask("CLIENT PAUSE 1200 ALL").text(), "OK");
    contest.survives("one sleeps and one has paused its clients", 10);
    contest.recovers("both go on");
    contest.finish(&mut fleet);
}

#[test]
fn ten_thousand_locks_survive_a_masters_restart() {
    const COUNT: usize = 10_000;
    let ttl = Duration::from_secs(60);
    let mut fleet = Fleet::start(5);
    let mut holder = open(settings(&fleet.urls()).max_ttl(ttl).answer_timeout(PATIENCE));
    let mut rival = open(settings(&fleet.urls()).max_ttl(ttl).answer_timeout(PATIENCE).ask_holder(false));
    let names: Vec<String> = (0..COUNT).map(|index| format!("many:{index}")).collect();
    let (granted, refused) = acquire_all(&mut holder, &names, ttl);
    assert_eq!((granted.len(), refused), (COUNT, 0));
    fleet.master(0).kill();
    let (won, refused) = acquire_all(&mut rival, &names, ttl);
    assert_eq!((won.len(), refused), (0, COUNT), "while it is dead");
    let ttl_asked = ttl;
    for &lock in &granted {
        holder.submit(Request::Extend { lock, ttl: ttl_asked }).expect("always taken");
    }
    for _ in 0..COUNT {
        let outcome = next_outcome(&mut holder);
        assert!(matches!(outcome, (_, Outcome::Extend(Ok(_)))), "{outcome:?}");
    }
    fleet.master(0).restart();
    for redlock in [&mut holder, &mut rival] {
        drive(redlock, "it is back", |it| it.masters()[0].state == MasterState::Ready);
    }
    let (won, refused) = acquire_all(&mut rival, &names, ttl);
    assert_eq!((won.len(), refused), (0, COUNT), "when it is back, and has forgotten all");
    for lock in granted {
        holder.submit(Request::Release { lock, awaited: true }).expect("always taken");
    }
    for _ in 0..COUNT {
        let outcome = next_outcome(&mut holder);
        assert!(matches!(&outcome, (_, Outcome::Release(Ok(it))) if it.deleted >= 2), "{outcome:?}");
    }
    rival.flush();
    no_key_is_left(&mut fleet, &mut holder);
}

#[test]
fn killed_connections_lose_no_outcome() {
    const COUNT: usize = 3_000;
    let mut fleet = Fleet::start(3);
    let ttl = Duration::from_secs(60);
    let mut redlock = open(settings(&fleet.urls()).max_ttl(ttl).answer_timeout(PATIENCE));
    for round in 0..6 {
        drive(&mut redlock, "all are connected", |it| {
            it.masters().iter().all(|master| master.state == MasterState::Ready)
        });
        let names: Vec<String> = (0..COUNT).map(|index| format!("{round}:{index}")).collect();
        submit_all(&mut redlock, &names, ttl);
        redlock.flush();
        assert_eq!(fleet.master(round % 3).ask("CLIENT KILL SKIPME yes").text(), "1");
        let mut granted = Vec::new();
        for _ in 0..COUNT {
            match next_outcome(&mut redlock) {
                (lock, Outcome::Acquire(Ok(_))) => granted.push(lock),
                (_, outcome) => panic!("two of three stay connected: {outcome:?}"),
            }
        }
        for lock in granted {
            redlock.submit(Request::Release { lock, awaited: false }).expect("always taken");
        }
    }
    no_key_is_left(&mut fleet, &mut redlock);
}

fn submit_all(redlock: &mut Blocking, names: &[String], ttl: Duration) {
    let (ttl, wait) = (ttl, Duration::ZERO);
    for name in names {
        let resource = Resource::new(name).expect("valid");
        redlock
            .submit(Request::Acquire { resource, options: Options::new().ttl(ttl).wait(wait), label: None })
            .expect("room");
    }
}

/// The granted locks, and the number of locks that others hold.
fn acquire_all(redlock: &mut Blocking, names: &[String], ttl: Duration) -> (Vec<OpId>, usize) {
    submit_all(redlock, names, ttl);
    let (mut granted, mut refused) = (Vec::new(), 0);
    for _ in names {
        match next_outcome(redlock) {
            (lock, Outcome::Acquire(Ok(_))) => granted.push(lock),
            (_, Outcome::Acquire(Err(redlatch::AcquireError::Contended(_)))) => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    (granted, refused)
}

fn next_outcome(redlock: &mut Blocking) -> (OpId, Outcome) {
    let given_up = Instant::now() + PATIENCE;
    loop {
        if let Some(next) = redlock.poll_outcome() {
            return next;
        }
        assert!(Instant::now() < given_up, "no outcome");
        redlock.turn(Duration::from_millis(5)).expect("the loop runs");
    }
}

/// Long before any TTL ends.
fn no_key_is_left(fleet: &mut Fleet, redlock: &mut Blocking) {
    drive(redlock, "all keys are deleted", |_| fleet.masters().all(|master| master.key_count() == "0"));
}
