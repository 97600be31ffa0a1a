//! A forked process cannot use its clients, whatever its threads were doing: calls return errors at once, and
//! drops do nothing.
//!
//! The child has one thread, and copies of all mutexes in their state. So the program forks without a test
//! harness, and the child reports by its exit code.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::process::{self, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use fork::{Fork, fork, waitpid_nohang};
use redlatch::engine::{OpId, Outcome, Request, Resource, SubmitError};
use redlatch::error::LockReentrantError;
use redlatch::stats::Stats;
use redlatch::status::Health;
use redlatch::{
    Acquire, AcquireError, Client, Config, Drive, ExtendError, Guard, GuardSet, HeldLocks, LockEnd, Options,
    Quarantine, Redlock, ReentrantGuard, ReentrantLock, ReleaseError, RunError, Waited,
};
use redlatch_support::settle;
use redlatch_support::{Fleet, PATIENCE, Until};

const TTL: Duration = Duration::from_secs(30);

/// Number of forks of a process whose other threads lock and unlock all the time, so that a fork finds the
/// mutex locked.
const RACE_COUNT: usize = 50;

fn main() {
    let mut fleet = Fleet::start(3);
    a_client_is_refused(&mut fleet);
    a_reentrant_lock_is_refused(&fleet);
    a_redlock_is_refused(&mut fleet);
    a_waker_wakes_no_parent(&fleet);
    every_future_is_refused_at_every_stage(&mut fleet);
    work_that_forks_is_lost_in_the_child(&fleet);
    assert_eq!(fleet.master(0).key_count(), "0");
    // The fence of a leader stays.
    every_call_is_refused(&fleet);
    println!("test a_fork_is_refused_and_its_drops_do_nothing ... ok");
}

fn settings(fleet: &Fleet) -> Config {
    let config = Config::builder().masters(fleet.urls()).quarantine(Quarantine::Trust);
    // A limit that no slow answer exceeds.
    let config = config.answer_timeout(Duration::from_secs(20));
    config.build().expect("valid settings")
}

/// Runs this in a forked process, where it must neither panic nor hang.
fn in_child(what: &str, run: impl FnOnce()) {
    match fork().expect("the system forks") {
        Fork::Child => {
            let is_wrong = catch_unwind(AssertUnwindSafe(run)).is_err();
            // Exits instead of returning, because the servers belong to the parent.
            process::exit(i32::from(is_wrong));
        }
        Fork::Parent(child) => await_end(what, child),
    }
}

/// Waits for a child's end, which must be a success.
fn await_end(what: &str, child: i32) {
    let given_up = Instant::now() + PATIENCE;
    loop {
        match waitpid_nohang(child).expect("it is a child") {
            Some(status) => return assert_eq!(status, 0, "{what}: what the child says is above"),
            None if Instant::now() < given_up => thread::sleep(Duration::from_millis(1)),
            None => {
                let _ = Command::new("kill").args(["-KILL", &child.to_string()]).status();
                panic!("{what}: the child hangs");
            }
        }
    }
}

/// The parent keeps the lock, even at the end of the child's work.
fn work_that_forks_is_lost_in_the_child(fleet: &Fleet) {
    let client = Client::open(settings(fleet)).expect("an event loop");
    let worked = client.lock("work").ttl(TTL).run(|_| match fork().expect("the system forks") {
        Fork::Child => None,
        Fork::Parent(child) => Some(child),
    });
    match worked {
        Ok(Some(child)) => await_end("work", child),
        // In the child: exits instead of returning, because the servers belong to the parent.
        Err(RunError::Lost(Some(None))) => process::exit(0),
        Ok(None) => {
            eprintln!("work: the child takes the lock for its own");
            process::exit(1);
        }
        other => panic!("work: {other:?}"),
    }
    assert_eq!(settle(&client, TTL), 0);
}

// I127
fn a_client_is_refused(fleet: &mut Fleet) {
    let client = Client::open(settings(fleet)).expect("an event loop");
    let [kept, child_extends, child_releases] =
        ["a", "b", "c"].map(|name| client.lock(name).ttl(TTL).acquire().expect("free"));
    // Gives the background thread work, so that the fork may come at any of its steps.
    let mut waiting = client.lock("a").wait(TTL).acquire_async();
    assert!(poll(&mut waiting).is_pending());
    let mut guards = Some((kept, child_extends, child_releases));
    in_child("a client", || {
        let (kept, child_extends, child_releases) = guards.take().expect("it has them");
        refused_in_child(&client, &mut waiting, kept, child_extends, child_releases);
        drop(client.clone());
    });
    // The parent still has everything.
    let (kept, child_extends, child_releases) = guards.expect("the child has copies");
    assert_eq!(fleet.master(0).key_count(), "3");
    drop(waiting);
    assert!(kept.is_valid());
    for guard in [kept, child_extends, child_releases] {
        assert!(!guard.release().expect("confirmed").was_already_gone());
    }
    assert_eq!(settle(&client, TTL), 0);
}

fn poll(acquiring: &mut Acquire<'_>) -> Poll<Result<Guard, AcquireError>> {
    Pin::new(acquiring).poll(&mut Context::from_waker(Waker::noop()))
}

fn refused_in_child(
    client: &Client,
    waiting: &mut Acquire<'_>,
    kept: Guard,
    mut extended: Guard,
    released: Guard,
) {
    assert!(matches!(client.lock("d").acquire(), Err(AcquireError::Stopped(_))));
    assert!(matches!(
        poll(&mut client.lock("d").acquire_async()),
        Poll::Ready(Err(AcquireError::Stopped(_)))
    ));
    assert!(matches!(poll(waiting), Poll::Ready(Err(AcquireError::Stopped(_)))), "polled before the fork");
    assert!(!kept.is_valid() && kept.remaining().is_zero() && kept.margin() == 0);
    assert!(matches!(extended.extend(TTL), Err(ExtendError::Stopped(_))));
    assert!(matches!(released.release(), Err(ReleaseError::Stopped(_))));
    assert!(client.masters().is_empty());
    assert_eq!(settle(client, TTL), 0);
    drop((kept, extended));
}

/// Its state has a separate mutex, which the fork may find locked by another thread.
// I127
fn a_reentrant_lock_is_refused(fleet: &Fleet) {
    let client = Client::open(settings(fleet)).expect("an event loop");
    let lock = client.lock("reentrant").ttl(TTL).reentrant();
    let [first, second] = [(); 2].map(|()| lock.lock().expect("free"));
    let mut holds = Some((first, second));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    assert_eq!(lock.hold_count(), 2);
                }
            });
        }
        let _end = Until(&is_over);
        for _ in 0..RACE_COUNT {
            in_child("a reentrant lock", || {
                let (first, second) = holds.take().expect("it has them");
                reentrant_refused_in_child(&lock, first, second);
            });
        }
    });
    let (first, second) = holds.expect("the children have copies");
    drop(first);
    assert!(!second.release().expect("confirmed").expect("the last one").was_already_gone());
    assert_eq!(settle(&client, TTL), 0);
}

fn reentrant_refused_in_child(lock: &ReentrantLock, first: ReentrantGuard, second: ReentrantGuard) {
    assert!(!first.is_valid() && !lock.is_held());
    assert_eq!((lock.hold_count(), lock.remaining()), (0, Duration::ZERO));
    let (sender, lost) = mpsc::channel();
    first.on_lost(move || sender.send(()).expect("somebody listens"));
    assert_eq!(lost.try_recv(), Ok(()), "it is called at once");
    let lost = Box::pin(first.lost()).as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert_eq!(lost, Poll::Ready(LockEnd::Lost), "nobody knows of a release");
    assert!(matches!(lock.lock(), Err(LockReentrantError::Acquire(AcquireError::Stopped(_)))));
    assert_eq!(first.release().expect("nothing is released"), None);
    drop(second);
}

// I127
fn a_redlock_is_refused(fleet: &mut Fleet) {
    let mut redlock = Redlock::open(settings(fleet)).expect("an event loop");
    let mut submit = |name: &str| redlock.submit(acquisition(&name)).expect("there is room");
    let (held, queued) = (submit("a"), submit("g"));
    for lock in [held, queued] {
        let granted = next_outcome(&mut redlock);
        assert!(matches!(granted, (of, Outcome::Acquire(Ok(_))) if of == lock), "{granted:?}");
    }
    let waiting = redlock.submit(acquisition(&"d")).expect("there is room");
    redlock.flush();
    redlock.submit(Request::Release { lock: queued, awaited: false }).expect("it is always taken");
    let mut owned = Some(redlock);
    in_child("a Redlock", || redlock_refused_in_child(owned.take().expect("it has it"), held));
    in_child("a panic in the child", || {
        let redlock = owned.take().expect("it has it");
        let unwound = catch_unwind(AssertUnwindSafe(move || {
            let _owned = redlock;
            std::panic::resume_unwind(Box::new("the child panics"));
        }));
        assert!(unwound.is_err());
    });
    let left = fleet.masters().map(|master| master.ask("EXISTS g").text()).filter(|it| it == "1");
    assert!(left.count() >= 2, "a fork releases a lock of its parent");
    // The parent still has everything, and gets each answer.
    let mut redlock = owned.expect("the child has a copy");
    let outcome = next_outcome(&mut redlock);
    assert!(matches!(outcome, (lock, Outcome::Acquire(Ok(_))) if lock == waiting), "{outcome:?}");
    for lock in [held, waiting] {
        assert!(redlock.valid_until(lock).is_some_and(|until| until > Instant::now()));
        redlock.submit(Request::Extend { lock, ttl: TTL }).expect("there is room");
        assert!(matches!(next_outcome(&mut redlock), (_, Outcome::Extend(Ok(_)))));
        redlock.submit(Request::Release { lock, awaited: true }).expect("it is always taken");
        let released = next_outcome(&mut redlock);
        let is_whole = matches!(&released, (_, Outcome::Release(Ok(it))) if !it.was_already_gone());
        assert!(is_whole, "{released:?}");
    }
    assert_eq!(redlock.drain(TTL, HeldLocks::Leave), 0);
}

/// The event queue belongs to the parent, too.
fn a_waker_wakes_no_parent(fleet: &Fleet) {
    let mut redlock = Redlock::open(settings(fleet)).expect("an event loop");
    let waker = redlock.waker();
    let limit = Duration::from_millis(20);
    // Something else may end some of the sleeps, but not all.
    let sleeps = (0..20).any(|_| {
        in_child("a waker", || waker.wake_by_ref());
        let begun = Instant::now();
        redlock.turn(limit).expect("an event queue");
        begun.elapsed() >= limit
    });
    assert!(sleeps, "a fork ends the sleep of its parent");
}

/// Whether an answer has arrived.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

type Asked<'a> = (&'static str, Pin<Box<dyn Future<Output = Result<(), String>> + 'a>>);

/// One of each kind, with what it needs: the fork comes before it is polled, while the masters are silent,
/// and when its answer has come and nobody has fetched it.
// I127
fn every_future_is_refused_at_every_stage(fleet: &mut Fleet) {
    let client = Client::open(settings(fleet)).expect("an event loop");
    let held = |name: &str| client.lock(name).ttl(TTL).acquire().expect("free");
    let set = |names: [&str; 2]| client.lock_set(names.as_slice()).ttl(TTL).acquire().expect("free");
    let [mut extended, released, watched, read] = ["a", "b", "c", "d"].map(held);
    let [mut extended_set, released_set, watched_set] = [["e", "f"], ["g", "h"], ["i", "j"]].map(set);
    let reentrant = client.lock("k").ttl(TTL).reentrant();
    let hold = reentrant.lock().expect("free");
    let other = client.lock("l").ttl(TTL).reentrant();
    let drive = client.drive().expect("a descriptor");
    let mut asked = asked_of_locks(&client, &mut extended, released, &watched);
    asked.extend(asked_of_sets(&client, &mut extended_set, released_set, &watched_set));
    asked.push(("lock again", Box::pin(async { other.lock_async().await.map(drop).map_err(wrong) })));
    let mut beside = Some((hold, read, drive));
    all_refused_in_child("not polled", &mut asked, &mut beside);
    fleet.masters().for_each(|master| master.stop());
    let mut answered: Vec<(&str, Arc<Woken>)> = Vec::new();
    for (name, future) in &mut asked {
        let woken = Arc::<Woken>::default();
        let waker = Waker::from(woken.clone());
        let is_pending = future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending();
        assert!(is_pending, "{name}: the masters are stopped");
        if !name.starts_with("lost") {
            answered.push((name, woken));
        }
    }
    all_refused_in_child("under way", &mut asked, &mut beside);
    fleet.masters().for_each(|master| master.cont());
    let (hold, read, mut drive) = beside.take().expect("the children have copies");
    let given_up = Instant::now() + PATIENCE;
    while !answered.is_empty() {
        assert!(
            Instant::now() < given_up,
            "no answer: {:?}",
            answered.iter().map(|it| it.0).collect::<Vec<_>>()
        );
        drive.turn(Waker::noop()).expect("the client lives");
        answered.retain(|(_, woken)| !woken.0.load(Ordering::SeqCst));
    }
    all_refused_in_child("answered", &mut asked, &mut Some((hold, read, drive)));
    drop(asked);
    drop((watched, watched_set, extended, extended_set));
    assert_eq!(settle(&client, TTL), 0);
}

fn wrong(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn asked_of_locks<'a>(
    client: &'a Client,
    extended: &'a mut Guard,
    released: Guard,
    watched: &'a Guard,
) -> Vec<Asked<'a>> {
    vec![
        (
            "acquire",
            Box::pin(async move { client.lock("m").ttl(TTL).acquire_async().await.map(drop).map_err(wrong) }),
        ),
        (
            "read",
            Box::pin(async move {
                let lock = client.rw_lock("n");
                lock.read().ttl(TTL).acquire_async().await.map(drop).map_err(wrong)
            }),
        ),
        ("extend", Box::pin(async move { extended.extend_async(TTL).await.map_err(wrong) })),
        ("release", Box::pin(async move { released.release_async().await.map(drop).map_err(wrong) })),
        ("inspect", Box::pin(async move { client.inspect_async("d").await.map(drop).map_err(wrong) })),
        ("force", Box::pin(async move { client.force_unlock_async("q").await.map(drop).map_err(wrong) })),
        (
            "lost",
            Box::pin(async move {
                watched.lost().await;
                Err("a fork".to_owned())
            }),
        ),
    ]
}

fn asked_of_sets<'a>(
    client: &'a Client,
    extended: &'a mut GuardSet,
    released: GuardSet,
    watched: &'a GuardSet,
) -> Vec<Asked<'a>> {
    vec![
        (
            "acquire a set",
            Box::pin(async move {
                let set = client.lock_set(["o", "p"].as_slice()).ttl(TTL).acquire_async();
                set.await.map(drop).map_err(|error| wrong(&error.source))
            }),
        ),
        (
            "extend a set",
            Box::pin(async move { extended.extend_async(TTL).await.map_err(|error| format!("{error:?}")) }),
        ),
        (
            "release a set",
            Box::pin(async move {
                released.release_async().await.map(drop).map_err(|error| format!("{error:?}"))
            }),
        ),
        (
            "lost set",
            Box::pin(async move {
                watched.lost().await;
                Err("a fork".to_owned())
            }),
        ),
    ]
}

fn all_refused_in_child(
    stage: &str,
    asked: &mut Vec<Asked<'_>>,
    beside: &mut Option<(ReentrantGuard, Guard, Drive)>,
) {
    in_child(stage, || {
        for (name, future) in asked.iter_mut() {
            match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Err(why)) if why.contains("fork") => {}
                other => panic!("{stage}, {name}: {other:?}"),
            }
        }
        asked.clear();
        let (hold, read, mut drive) = beside.take().expect("it has them");
        assert_eq!(hold.release().expect("nothing is released"), None);
        assert!(!read.is_valid());
        assert!(drive.turn(Waker::noop()).is_err(), "the drive of a fork has ended");
    });
}

/// Each other call of a client and of its values.
fn every_call_is_refused(fleet: &Fleet) {
    let client = Client::open(settings(fleet)).expect("an event loop");
    let held = |name: &str| client.lock(name).ttl(TTL).acquire().expect("free");
    let guards = ["a", "b", "c", "d", "e", "f"].map(held);
    let set = client.lock_set(["g", "h"]).ttl(TTL).acquire().expect("free");
    let slot = client.slots("pool", 1).ttl(TTL).acquire().expect("free");
    let leadership = client.lead("i").ttl(TTL).campaign().expect("free");
    let handle = guards[0].to_handle().expect("held");
    let mut all = Some((guards, set, slot, leadership));
    in_child("each call", || {
        let ([mut extended, released, left, left_for, passed, kept], set, slot, leadership) =
            all.take().expect("it has them");
        let refused = |what: &str, result: Result<(), String>| match result {
            Err(why) if why.contains("fork") => {}
            other => panic!("{what}: {other:?}"),
        };
        refused("try_acquire", client.lock("x").try_acquire().map(drop).map_err(wrong));
        for pending in client.acquire_all([client.lock("x"), client.lock("y")]) {
            refused("acquire_all", pending.block().map(drop).map_err(wrong));
        }
        for pending in client.extend_all([&mut extended], TTL) {
            refused("extend_all", pending.block().map_err(wrong));
        }
        for pending in client.release_all([released]) {
            refused("release_all", pending.block().map(drop).map_err(wrong));
        }
        refused("write", client.rw_lock("x").write().acquire().map(drop).map_err(wrong));
        refused("lock_set", client.lock_set(["x"]).acquire().map(drop).map_err(wrong));
        refused("slots", client.slots("x", 2).acquire().map(drop).map_err(wrong));
        refused("campaign", client.lead("x").campaign().map(drop).map_err(wrong));
        refused("lead", client.lead("x").run(|_| std::ops::ControlFlow::Break(())).map_err(wrong));
        refused("run", client.lock("x").run(|_| ()).map_err(wrong));
        refused("inspect", client.inspect("x").map(drop).map_err(wrong));
        refused("force_unlock", client.force_unlock("x").map(drop).map_err(wrong));
        refused("adopt", client.adopt(&handle).map(drop).map_err(wrong));
        refused("release_handle", client.release_handle(&handle).map(drop).map_err(wrong));
        refused("leave", left.leave().map_err(wrong));
        refused("leave_for", left_for.leave_for(TTL).map(drop).map_err(wrong));
        refused("into_handle", passed.into_handle(TTL).map(drop).map_err(|error| wrong(error.reason())));
        refused("release of a slot", slot.release().map(drop).map_err(wrong));
        refused("resign", leadership.resign().map(drop).map_err(wrong));
        refused("leave of a set", set.leave().map_err(wrong));
        refused("drive", client.drive().map(drop).map_err(wrong));
        assert_eq!((kept.margin(), kept.waited(), kept.to_handle().is_none()), (0, Waited::default(), true));
        assert_eq!(kept.resource_str(), Some("f"));
        assert_eq!((client.health(), client.stats()), (Health::default(), Stats::default()));
        assert_eq!(client.drain(TTL, HeldLocks::Release), 0);
    });
    drop(all);
    assert_eq!(settle(&client, TTL), 0);
}

fn acquisition<'a>(name: &'a &str) -> Request<'a> {
    let resource = Resource::new(name).expect("a name");
    Request::Acquire { resource, options: Options::new().ttl(TTL).wait(Duration::ZERO), label: None }
}

fn next_outcome(redlock: &mut Redlock) -> (OpId, Outcome) {
    loop {
        match redlock.poll_outcome() {
            Some(outcome) => return outcome,
            None => redlock.turn(PATIENCE).expect("an event queue"),
        }
    }
}

fn redlock_refused_in_child(mut redlock: Redlock, held: OpId) {
    let request = acquisition(&"x");
    assert!(matches!(redlock.submit(request), Err(SubmitError::Stopped(_))));
    redlock.turn(PATIENCE).expect_err("it would read the parent's replies");
    redlock.flush();
    assert!(redlock.poll_outcome().is_none());
    assert!(redlock.masters().is_empty());
    assert_eq!((redlock.health(), redlock.stats()), (Health::default(), Stats::default()));
    assert_eq!((redlock.margin(held), redlock.waited(held)), (0, Waited::default()));
    assert_eq!((redlock.valid_until(held), redlock.last_failure(held)), (None, None));
    assert_eq!(redlock.drain(TTL, HeldLocks::Leave), 0);
}
