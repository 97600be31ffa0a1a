//! Foreign keys at every key that a lock touches, on real servers: no command ever changes them.
//!
//! Each test puts a key of each type, with and without a TTL, under separate names. Clients use all of these
//! names, and then the test compares the bytes of `DUMP` and the expiry of each key.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use redlatch::engine::{OpId, Outcome, Request, Resource};
use redlatch::error::{Failure, Vote};
use redlatch::status::MasterState;
use redlatch::{AcquireError, Config, HeldLocks, Options, Quarantine};
use redlatch_support::{Blocking, Fleet, Master, PATIENCE, Place, Raw, valkey_9};

use crate::lock_tests::{ANSWER_TIMEOUT, TTL, drive, open, settings, state};

/// A key of each type: command, and the arguments after the key. The scores look like past and future times.
const VALUES: [(&str, &str); 6] = [
    ("SET", "theirs"),
    ("RPUSH", "x y"),
    ("SADD", "x y"),
    ("HSET", "x y"),
    ("ZADD", "1 one 2 two 9999999999999 x -inf y +inf z"),
    ("XADD", "1-1 x y"),
];
const STRING: (&str, &str) = VALUES[0];

/// TTL of locks that a test holds to its end, however busy the machine is.
const HELD: Duration = Duration::from_secs(25);
/// TTL of locks that are renewed at a third of it.
const RENEWED: Duration = Duration::from_secs(3);
/// A wait in which waiters come several times, also after their keys were replaced.
const WAIT: Duration = Duration::from_secs(4);

/// Prefix of each key that a lock touches.
const OWN: &str = "";
const FENCE: &str = "redlatch:fence:";
const QUEUE: &str = "redlatch:wait:";
const PLACES: [&str; 3] = [OWN, FENCE, QUEUE];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Fenced,
    Fair,
    Shared,
}

const KINDS: [Kind; 4] = [Kind::Plain, Kind::Fenced, Kind::Fair, Kind::Shared];

/// A foreign key, as it was put on a master.
struct Foreign {
    key: String,
    what: String,
    image: (Raw, Raw),
}

/// Content and expiry of a key, to the byte and the millisecond.
fn image(master: &mut Master, key: &str) -> (Raw, Raw) {
    (master.ask(&format!("DUMP {key}")), master.ask(&format!("PEXPIRETIME {key}")))
}

/// Puts a key in place of any other.
fn put(master: &mut Master, key: String, (command, rest): (&str, &str), has_ttl: bool) -> Foreign {
    master.ask(&format!("DEL {key}"));
    let reply = master.ask(&format!("{command} {key} {rest}"));
    assert!(!matches!(reply, Raw::Error(_)), "{command} {key}: {reply:?}");
    if has_ttl {
        assert_eq!(master.ask(&format!("PEXPIRE {key} 600000")), Raw::Integer(1));
    }
    let what = format!("{command} {rest:?} at {key}, TTL {has_ttl}");
    let image = image(master, &key);
    Foreign { key, what, image }
}

/// Panics with all keys that have changed.
#[track_caller]
fn assert_unchanged(master: &mut Master, keys: &[Foreign], after: &str) {
    let changed: Vec<_> = keys
        .iter()
        .filter(|foreign| image(master, &foreign.key) != foreign.image)
        .map(|foreign| foreign.what.as_str())
        .collect();
    assert!(changed.is_empty(), "{after}: {} of {} keys: {changed:#?}", changed.len(), keys.len());
}

/// A usual server, and one with native commands if available.
fn servers() -> impl Iterator<Item = Fleet> {
    [Some(Place::default()), valkey_9()].into_iter().flatten().map(|place| Fleet::start_at(vec![place]))
}

impl Kind {
    fn options(self) -> Options {
        let options = Options::new();
        match self {
            Self::Plain => options,
            Self::Fenced => options.fenced(),
            Self::Fair => options.fair(),
            Self::Shared => options.shared(),
        }
    }
}

/// A client that uses many locks together.
struct Worker {
    redlock: Blocking,
    outcomes: HashMap<OpId, Outcome>,
}

impl Worker {
    fn open(fleet: &Fleet) -> Self {
        Self { redlock: open(settings(&fleet.urls())), outcomes: HashMap::new() }
    }

    fn acquire(&mut self, kind: Kind, name: &str, ttl: Duration, wait: Duration) -> OpId {
        let options = kind.options().ttl(ttl).wait(wait);
        self.submit(Request::Acquire { resource: Resource::new(name).expect("valid"), options, label: None })
    }

    fn submit(&mut self, request: Request<'_>) -> OpId {
        self.redlock.submit(request).expect("room")
    }

    /// Makes a request for each of these locks. Waits for all outcomes.
    fn submit_each(&mut self, locks: &[OpId], request: impl Fn(OpId) -> Request<'static>) -> Vec<Outcome> {
        for &lock in locks {
            self.submit(request(lock));
        }
        self.outcomes_of(locks)
    }

    /// Waits for an outcome of each of these operations.
    fn outcomes_of(&mut self, ids: &[OpId]) -> Vec<Outcome> {
        let deadline = Instant::now() + PATIENCE;
        while !ids.iter().all(|id| self.outcomes.contains_key(id)) {
            assert!(Instant::now() < deadline, "not all are answered in time");
            self.turn();
        }
        ids.iter().map(|id| self.outcomes.remove(id).expect("answered")).collect()
    }

    fn turn(&mut self) {
        self.redlock.turn(Duration::from_millis(5)).expect("the loop runs");
        while let Some((id, outcome)) = self.redlock.poll_outcome() {
            self.outcomes.insert(id, outcome);
        }
    }

    /// Waits until the masters have carried out all commands so far.
    fn wait_for_masters(&mut self) {
        let resource = Resource::new("nobody").expect("valid");
        let look = self.submit(Request::Inspect { resource });
        self.outcomes_of(&[look]);
    }

    /// Acquires all of these locks, which must be free.
    fn acquire_all(&mut self, kind: Kind, names: &[String]) -> Vec<OpId> {
        let locks: Vec<_> = names.iter().map(|name| self.acquire(kind, name, HELD, PATIENCE)).collect();
        for outcome in self.outcomes_of(&locks) {
            assert!(matches!(outcome, Outcome::Acquire(Ok(_))), "{kind:?}: {outcome:?}");
        }
        locks
    }

    fn release_all(&mut self, locks: &[OpId]) -> Vec<Outcome> {
        let outcomes = self.submit_each(locks, |lock| Request::Release { lock, awaited: true });
        self.wait_for_masters();
        outcomes
    }
}

/// Each value, with and without a TTL, at each of these places.
fn cases<'a>(places: &'a [&'a str]) -> impl Iterator<Item = (&'a str, (&'static str, &'static str), bool)> {
    places.iter().flat_map(|&place| {
        VALUES.iter().flat_map(move |&value| [(place, value, false), (place, value, true)])
    })
}

// I90
#[test]
fn no_acquisition_changes_a_foreign_key() {
    let waits = [Duration::ZERO, Duration::from_millis(30)];
    for mut fleet in servers() {
        let mut worker = Worker::open(&fleet);
        for kind in KINDS {
            let (mut foreign, mut locks) = (Vec::new(), Vec::new());
            // In half of the cases somebody holds the lock, so that there is a queue.
            let ways = [false, true].into_iter().flat_map(|is_held| waits.map(|wait| (is_held, wait)));
            for ((is_held, wait), (place, value, has_ttl)) in
                ways.flat_map(|way| cases(&PLACES).map(move |case| (way, case)))
            {
                let name = format!("{kind:?}-{}", locks.len());
                let master = fleet.master(0);
                foreign.push(put(master, format!("{place}{name}"), value, has_ttl));
                if is_held && place != OWN {
                    foreign.push(put(master, name.clone(), STRING, true));
                }
                locks.push((worker.acquire(kind, &name, TTL, wait), is_held || place == OWN));
            }
            let mut granted = Vec::new();
            for (lock, is_taken) in locks {
                let Some(Outcome::Acquire(result)) = worker.outcomes_of(&[lock]).pop() else {
                    panic!("an answer to an acquisition")
                };
                assert!(!(is_taken && result.is_ok()), "{kind:?}: {result:?}");
                granted.extend(result.is_ok().then_some(lock));
            }
            worker.wait_for_masters();
            assert_unchanged(fleet.master(0), &foreign, &format!("{kind:?}, acquisition"));
            worker.submit_each(&granted, |lock| Request::Extend { lock, ttl: TTL });
            worker.release_all(&granted);
            assert_unchanged(fleet.master(0), &foreign, &format!("{kind:?}, extension and release"));
        }
        assert_eq!(worker.redlock.drain(PATIENCE, HeldLocks::Leave), 0);
    }
}

/// A foreign key has replaced the lock's key, which is lost.
// I90
#[test]
fn no_command_changes_a_foreign_key() {
    for mut fleet in servers() {
        let mut worker = Worker::open(&fleet);
        for kind in KINDS {
            let names: Vec<_> =
                (0..cases(&PLACES).count()).map(|index| format!("{kind:?}-{index}")).collect();
            let locks = worker.acquire_all(kind, &names);
            let foreign: Vec<_> = cases(&PLACES)
                .zip(&names)
                .map(|((place, value, has_ttl), name)| {
                    put(fleet.master(0), format!("{place}{name}"), value, has_ttl)
                })
                .collect();
            let extended = worker.submit_each(&locks, |lock| Request::Extend { lock, ttl: TTL });
            for ((place, ..), outcome) in cases(&PLACES).zip(extended) {
                let Outcome::Extend(result) = outcome else { panic!("an answer to an extension") };
                assert_eq!(result.is_err(), place == OWN, "{kind:?} at {place:?}: {result:?}");
            }
            assert_unchanged(fleet.master(0), &foreign, &format!("{kind:?}, extension"));
            // A waiter stands in line for each lock.
            let wait = Duration::from_millis(100);
            let next: Vec<_> = names.iter().map(|name| worker.acquire(kind, name, TTL, wait)).collect();
            worker.release_all(&locks);
            assert_unchanged(fleet.master(0), &foreign, &format!("{kind:?}, release"));
            let granted = worker
                .outcomes_of(&next)
                .into_iter()
                .zip(next)
                .filter_map(|(outcome, lock)| matches!(outcome, Outcome::Acquire(Ok(_))).then_some(lock));
            let granted: Vec<_> = granted.collect();
            worker.release_all(&granted);
            assert_unchanged(fleet.master(0), &foreign, &format!("{kind:?}, hand-over"));
            assert_eq!(fleet.master(0).ask("FLUSHALL").text(), "OK");
        }
        assert_eq!(worker.redlock.drain(PATIENCE, HeldLocks::Leave), 0);
    }
}

// I90
#[test]
fn no_renewal_changes_a_foreign_key() {
    for mut fleet in servers() {
        let mut worker = Worker::open(&fleet);
        let rows: Vec<_> =
            KINDS.iter().flat_map(|&kind| cases(&[OWN]).map(move |case| (kind, case))).collect();
        let names: Vec<_> = (0..rows.len()).map(|index| format!("name-{index}")).collect();
        let acquire = |(kind, name): (Kind, &String)| {
            let options = kind.options().ttl(RENEWED).wait(PATIENCE).auto_extend(PATIENCE);
            worker.submit(Request::Acquire {
                resource: Resource::new(name).expect("valid"),
                options,
                label: None,
            })
        };
        let locks: Vec<_> = rows.iter().map(|(kind, _)| *kind).zip(&names).map(acquire).collect();
        worker.outcomes_of(&locks);
        for &lock in &locks {
            worker.submit(Request::NotifyLoss { lock });
        }
        let put = |((_, (_, value, has_ttl)), name)| put(fleet.master(0), name, value, has_ttl);
        let foreign: Vec<_> = rows.iter().copied().zip(names).map(put).collect();
        for ((kind, _), outcome) in rows.iter().zip(worker.outcomes_of(&locks)) {
            assert!(matches!(outcome, Outcome::Lost(_)), "{kind:?}: {outcome:?}");
        }
        worker.release_all(&locks);
        assert_unchanged(fleet.master(0), &foreign, "renewal");
        assert_eq!(worker.redlock.drain(PATIENCE, HeldLocks::Leave), 0);
    }
}

/// The waiters' keys exist when foreign keys replace them, and the waiters come again and again.
// I90
#[test]
fn no_waiter_changes_a_foreign_key() {
    for mut fleet in servers() {
        let mut worker = Worker::open(&fleet);
        let rows: Vec<_> = KINDS
            .into_iter()
            .flat_map(|kind| cases(&[QUEUE]).map(move |case| (kind, case)))
            .enumerate()
            .map(|(index, (kind, case))| (kind, case, format!("{kind:?}-{index}")))
            .collect();
        let mut foreign = Vec::new();
        let mut waiters = Vec::new();
        for (kind, (place, ..), name) in &rows {
            foreign.push(put(fleet.master(0), name.clone(), STRING, false));
            waiters.push((worker.acquire(*kind, name, TTL, WAIT), format!("{place}{name}")));
        }
        let deadline = Instant::now() + PATIENCE;
        for (_, key) in &waiters {
            while fleet.master(0).ask(&format!("EXISTS {key}")) != Raw::Integer(1) {
                assert!(Instant::now() < deadline && worker.outcomes.is_empty(), "not there: {key}");
                worker.turn();
            }
        }
        for (_, (place, value, has_ttl), name) in &rows {
            foreign.push(put(fleet.master(0), format!("{place}{name}"), *value, *has_ttl));
        }
        let ids: Vec<_> = waiters.into_iter().map(|(id, _)| id).collect();
        for outcome in worker.outcomes_of(&ids) {
            assert!(matches!(outcome, Outcome::Acquire(Err(_))), "{outcome:?}");
        }
        worker.wait_for_masters();
        assert_unchanged(fleet.master(0), &foreign, "waiting");
        assert_eq!(worker.redlock.drain(PATIENCE, HeldLocks::Leave), 0);
    }
}

// I90
#[test]
fn no_repair_changes_a_foreign_key() {
    let mut fleet = Fleet::start(3);
    let mut worker = Worker::open(&fleet);
    let is_up = |redlock: &Blocking| state(redlock, 2) == MasterState::Ready;
    fleet.master(2).kill();
    drive(&mut worker.redlock, "it is known to be down", |redlock| !is_up(redlock));
    let (mut locks, mut places) = (Vec::new(), Vec::new());
    for kind in KINDS {
        // One more lock, whose keys are free.
        let names: Vec<_> = (0..=cases(&PLACES).count()).map(|index| format!("{kind:?}-{index}")).collect();
        locks.extend(worker.acquire_all(kind, &names));
        places.extend(
            cases(&PLACES)
                .zip(names)
                .map(|((place, value, has_ttl), name)| (format!("{place}{name}"), value, has_ttl)),
        );
    }
    // The client does nothing between calls, so it connects only after the keys are there.
    fleet.master(2).restart();
    let foreign: Vec<_> =
        places.into_iter().map(|(key, value, has_ttl)| put(fleet.master(2), key, value, has_ttl)).collect();
    drive(&mut worker.redlock, "it is back", is_up);
    let free: Vec<_> = KINDS.map(|kind| format!("{kind:?}-{}", cases(&PLACES).count())).into();
    drive(&mut worker.redlock, "the free ones are put back", |_| {
        free.iter().all(|name| fleet.master(2).ask(&format!("EXISTS {name}")) == Raw::Integer(1))
    });
    worker.wait_for_masters();
    assert_unchanged(fleet.master(2), &foreign, "repair");
    worker.release_all(&locks);
    assert_unchanged(fleet.master(2), &foreign, "release");
    assert_eq!(worker.redlock.drain(PATIENCE, HeldLocks::Leave), 0);
}

// I29
#[test]
fn mark_overwrites_no_foreign_key() {
    let mut fleet = Fleet::start(1);
    let rows: Vec<_> = cases(&[OWN]).enumerate().collect();
    let foreign: Vec<_> = rows
        .iter()
        .map(|(index, (_, value, has_ttl))| {
            put(fleet.master(0), format!("{index}:redlatch:mark"), *value, *has_ttl)
        })
        .collect();
    let mut workers: Vec<_> = rows
        .iter()
        .map(|(index, _)| {
            let config = Config::builder().masters(fleet.urls()).quarantine(Quarantine::Strict);
            let config = config.max_ttl(Duration::from_millis(500)).answer_timeout(ANSWER_TIMEOUT);
            Worker { redlock: open(config.prefix(format!("{index}:"))), outcomes: HashMap::new() }
        })
        .collect();
    for worker in &mut workers {
        drive(&mut worker.redlock, "it was watched", |redlock| state(redlock, 0) == MasterState::Ready);
        // The question about the mark is answered, and so is its consequence.
        (0..2).for_each(|_| worker.wait_for_masters());
    }
    assert_unchanged(fleet.master(0), &foreign, "the end of a watch");
    for worker in &workers {
        let refused = worker.redlock.masters().swap_remove(0).refused;
        assert!(
            refused.iter().any(|(_, text)| text.contains("is no mark; choose another prefix")),
            "{refused:?}"
        );
    }
}

// I75
#[test]
fn force_deletes_only_what_can_be_locks() {
    for mut fleet in servers() {
        let mut worker = Worker::open(&fleet);
        let rows: Vec<_> =
            cases(&PLACES).enumerate().map(|(index, case)| (case, format!("name-{index}"))).collect();
        let mut foreign = Vec::new();
        for ((place, value, has_ttl), name) in &rows {
            foreign.push(put(fleet.master(0), format!("{place}{name}"), *value, *has_ttl));
        }
        let ask = |worker: &mut Worker, request: for<'a> fn(Resource<'a>) -> Request<'a>| {
            let names = rows.iter().map(|(_, name)| Resource::new(name).expect("valid"));
            let ids: Vec<_> = names.map(|resource| worker.submit(request(resource))).collect();
            worker.outcomes_of(&ids)
        };
        ask(&mut worker, |resource| Request::Inspect { resource });
        assert_unchanged(fleet.master(0), &foreign, "a look");
        let answers = ask(&mut worker, |resource| Request::ForceUnlock { resource });
        for (((place, value, _), name), answer) in rows.iter().zip(answers) {
            let Outcome::ForceUnlock(done) = answer else { panic!("an answer to a forced unlock") };
            let vote = &done.report.votes[0].1;
            match (*place == OWN, *value == STRING) {
                // The key is, or may be, another library's lock.
                (true, true) => assert_eq!(*vote, Vote::Granted, "{name}"),
                (true, false) => {
                    let Vote::Failed(Failure::Replied(text)) = vote else { panic!("{value:?}: {vote:?}") };
                    assert!(text.contains("another type") && text.contains("nothing was deleted"), "{text}");
                }
                (false, _) => assert!(matches!(vote, Vote::Refused { .. }), "{name}: {vote:?}"),
            }
        }
        let is_left =
            |foreign: &Foreign| !(foreign.key.starts_with("name-") && foreign.what.starts_with(STRING.0));
        foreign.retain(is_left);
        assert_unchanged(fleet.master(0), &foreign, "a forced unlock");
        assert_eq!(worker.redlock.drain(PATIENCE, HeldLocks::Leave), 0);
    }
}

/// Text is not read as a fence unless it is written like one, whatever Lua's `tonumber` accepts.
// I90
#[test]
fn no_text_is_taken_for_a_fence() {
    for mut fleet in servers() {
        let mut worker = Worker::open(&fleet);
        let texts = ["theirs", "nan", "-nan", "inf", "-5", "+5", "1.5", "1e3", "0x10", "5x"];
        let mut foreign = Vec::new();
        for (text, has_ttl) in texts.into_iter().flat_map(|text| [(text, false), (text, true)]) {
            let name = format!("name-{}", foreign.len());
            let held = worker.acquire_all(Kind::Fenced, std::slice::from_ref(&name));
            foreign.push(put(fleet.master(0), format!("{FENCE}{name}"), ("SET", text), has_ttl));
            worker.release_all(&held);
            assert_unchanged(fleet.master(0), &foreign, "release");
            let next = worker.acquire(Kind::Fenced, &name, TTL, Duration::ZERO);
            let Some(Outcome::Acquire(Err(error))) = worker.outcomes_of(&[next]).pop() else {
                panic!("{text}: refused")
            };
            let is_said = error.to_string().contains("the fence is no number");
            assert!(matches!(error, AcquireError::NoQuorum(_)) && is_said, "{text}: {error}");
            assert_unchanged(fleet.master(0), &foreign, "acquisition");
        }
        assert_eq!(worker.redlock.drain(PATIENCE, HeldLocks::Leave), 0);
    }
}
