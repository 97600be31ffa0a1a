//! All that callers and masters see of each operation in each state of the masters, held to
//! `tests/golden/engine/`.
//!
//! A step shows what differs since the step before: outcomes and events with all their fields, commands to
//! the masters with their arguments, counters, the state of each master and of the lock, and the deadline.
//! Tokens are left out; other random values follow from the seed of the rig.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use redlatch::engine::{HandleAct, OpId, Reason, Request, Resource};
use redlatch::internals::SCRIPTS;
use redlatch::{Event, HeldLocks, Options};

use crate::golden::assert_golden;
use crate::ms;
use crate::rig::{Rig, id};

const SECOND: Duration = Duration::from_secs(1);
/// The callers' wall clock at the beginning, as the time since 1970; that of the masters agrees.
const WALL: Duration = Duration::from_secs(1_700_000_000);

struct Journal {
    rig: Rig,
    start: Instant,
    page: String,
    /// The lock that the operation is about.
    lock: Option<OpId>,
    /// State as it was shown last, by what it is the state of.
    shown: BTreeMap<String, String>,
}

impl Journal {
    fn new(title: &str) -> Self {
        let mut rig = Rig::unconnected(3, |builder| {
            builder
                .on_event(|_| {})
                .answer_timeout(ms(50))
                .retry_delay(ms(40)..=ms(40))
                .holder_label("web-3")
                .client_name("client")
        });
        let start = rig.now;
        let wall_us = u64::try_from(WALL.as_micros()).expect("small");
        rig.masters.iter_mut().for_each(|master| master.set_wall(start, wall_us));
        rig.engine.handle_wall_clock(start, WALL);
        rig.pump();
        let mut journal =
            Self { rig, start, page: format!("# {title}\n"), lock: None, shown: BTreeMap::new() };
        // The beginning is that of each page: `an_engine_connects_as_it_did` has it.
        let page = std::mem::take(&mut journal.page);
        journal.show("connected");
        journal.page = page;
        journal
    }

    fn submit(&mut self, request: Request<'_>) -> Option<OpId> {
        match self.rig.engine.submit(self.rig.now, request) {
            Ok(id) => Some(id),
            Err(error) => {
                self.page += &format!("  not taken: {error:?}\n");
                None
            }
        }
    }

    fn acquire(&mut self, name: &str, options: Options) {
        let resource = Resource::of_any_lock(name.as_bytes()).expect("valid");
        self.lock = self.submit(Request::Acquire { resource, options, label: None });
    }

    fn about(&mut self, request: impl FnOnce(OpId) -> Request<'static>) {
        let lock = self.lock.expect("a lock");
        self.submit(request(lock));
    }

    /// Moves what can move now, and shows what differs.
    fn show(&mut self, step: &str) {
        self.rig.pump();
        let mut lines = Vec::new();
        for (id, outcome) in std::mem::take(&mut self.rig.outcomes) {
            let of = if Some(id) == self.lock { "" } else { " of another request" };
            lines.push(format!("outcome{of}: {}", self.masked(&format!("{outcome:?}"))));
        }
        while let Some(event) = self.rig.engine.poll_event() {
            // Its error is that of the outcome.
            let shown = match event {
                Event::Denied { resource, .. } => format!("Denied {{ resource: {resource:?} }}"),
                event => self.masked(&format!("{event:?}")),
            };
            lines.push(format!("event: {shown}"));
        }
        lines.extend(self.commands());
        let state = self.state();
        let changed = state.iter().filter(|(of, state)| self.shown.get(*of) != Some(state));
        let changed: Vec<_> = changed.map(|(of, state)| format!("{of} {state}")).collect();
        if !changed.is_empty() {
            lines.push(format!("now: {}", changed.join("; ")));
        }
        self.shown = state;
        if !lines.is_empty() {
            let (now, due) = (self.rig.now - self.start, self.rig.engine.next_timeout());
            let due = due.filter(|(_, reason)| !matches!(reason, Reason::Link(_)));
            let due = due.map_or_else(String::new, |(at, reason)| {
                format!("; {reason:?} due at {:?}", at - self.start)
            });
            self.page += &format!("{now:?} {step}{due}\n");
            lines.iter().for_each(|line| self.page += &format!("  {line}\n"));
        }
    }

    /// The commands that masters carried out, with those that had the same on one line.
    fn commands(&mut self) -> Vec<String> {
        let mut by_log: Vec<(String, Vec<usize>)> = Vec::new();
        for (index, master) in self.rig.masters.iter_mut().enumerate() {
            let log: Vec<_> = master.log.drain(..).map(|words| command(&words)).collect();
            let log = log.join("; ");
            match by_log.iter_mut().find(|(other, _)| *other == log) {
                Some((_, masters)) => masters.push(index),
                None => by_log.push((log, vec![index])),
            }
        }
        by_log.retain(|(log, _)| !log.is_empty());
        by_log.into_iter().map(|(log, masters)| format!("masters {masters:?} got: {log}")).collect()
    }

    fn state(&self) -> BTreeMap<String, String> {
        let Rig { engine, now, .. } = &self.rig;
        let mut state = BTreeMap::new();
        let mut note = |of: &str, what: String| _ = state.insert(of.to_owned(), what);
        for (index, status) in engine.health(*now).masters.into_iter().enumerate() {
            let (state, refused, warnings) = (status.state, status.refused, status.warnings);
            note(&format!("master {index}"), format!("{state}{refused:?}{warnings:?}").replace("[]", ""));
        }
        let health = engine.health(*now);
        note("health", format!("has_quorum {}, may_fail {}", health.has_quorum, health.may_fail));
        if let Some(lock) = self.lock {
            let valid_until = engine.valid_until(lock).map(|at| at.saturating_duration_since(self.start));
            note("valid_until", format!("{valid_until:?}"));
            note("granted", format!("{:?}, margin {}", engine.granted(lock), engine.margin(lock)));
            note("is_losing", engine.is_losing(*now, lock).to_string());
            note("waited", format!("{:?}", engine.waited(lock)));
            note("last_failure", format!("{:?}", engine.last_failure(*now, lock)));
        }
        let owed = [0, 1, 2].map(|index| engine.owed_count(id(index)));
        note("owed", format!("{owed:?}"));
        let page = engine.stats(*now).to_prometheus();
        let mut counts: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for line in page.lines().filter(|line| !line.starts_with('#') && !line.contains("_bucket")) {
            let (name, value) = line.rsplit_once(' ').expect("a name and a value");
            let name = name.split('{').next().expect("a name").trim_start_matches("redlatch_");
            counts.entry(name.trim_end_matches("_total")).or_default().push(value);
        }
        counts.into_iter().for_each(|(name, values)| note(name, values.join(" ")));
        state
    }

    /// Moments as times since the start, and tokens by their length.
    fn masked(&self, text: &str) -> String {
        let origin = moment(&format!("{:?}", self.start)).expect("a moment").0;
        let mut shown = String::new();
        let mut rest = text;
        while let Some(at) = rest.find("Instant {") {
            let (at_ns, size) = moment(&rest[at..]).expect("a moment");
            let since = Duration::from_nanos(u64::try_from(at_ns.saturating_sub(origin)).expect("soon"));
            shown += &format!("{}{since:?}", &rest[..at]);
            rest = &rest[at + size..];
        }
        shown += rest;
        let words = shown.split_inclusive(|char: char| !char.is_ascii_hexdigit());
        words
            .map(|word| if word.len() > 40 { format!("TOKEN{}", &word[40..]) } else { word.to_owned() })
            .collect()
    }

    /// Lets time pass, and shows each moment at which something differs.
    fn run_for(&mut self, time: Duration) {
        let end = self.rig.now + time;
        while self.rig.now < end {
            let next = self.rig.engine.next_timeout().map_or(end, |(at, _)| at.clamp(self.rig.now, end));
            let step = next.saturating_duration_since(self.rig.now).max(Duration::from_micros(1));
            self.rig.run_for(step);
            self.show("…");
        }
    }
}

/// The nanoseconds of the first moment in a text, and the length of its part.
fn moment(text: &str) -> Option<(u128, usize)> {
    let end = text.find('}')? + 1;
    let mut numbers = text[..end].split(|char: char| !char.is_ascii_digit()).filter(|part| !part.is_empty());
    let seconds: u128 = numbers.next()?.parse().ok()?;
    Some((seconds * 1_000_000_000 + numbers.next()?.parse::<u128>().ok()?, end))
}

/// A command: scripts by their names, and arguments with random bytes by their length.
fn command(words: &[Vec<u8>]) -> String {
    let shown = words.iter().map(|word| {
        let text = String::from_utf8_lossy(word);
        match SCRIPTS.iter().find(|script| text == script.sha || text == script.text) {
            Some(script) => script.name.to_owned(),
            None if word.len() <= 24 && word.iter().all(u8::is_ascii_graphic) => text.into_owned(),
            None => format!("<{}>", word.len()),
        }
    });
    shown.collect::<Vec<_>>().join(" ")
}

/// A state of the masters: its name, its beginning and its end.
type State = (&'static str, fn(&mut Rig), fn(&mut Rig));

fn break_conn(rig: &mut Rig, index: usize) {
    rig.refuse(index, true);
    rig.reset_conn(index);
}

fn all_refuse(rig: &mut Rig, text: &str) {
    for command in ["SET", "EVAL", "EVALSHA", "DELEX", "DELIFEQ", "PTTL"] {
        rig.masters.iter_mut().for_each(|master| drop(master.errors.insert(command.into(), text.into())));
    }
}

const STATES: &[State] = &[
    ("all are well", |_| {}, |_| {}),
    ("one is silent", |rig| rig.stop_master(0), |rig| rig.resume_master(0)),
    (
        "two are silent",
        |rig| (0..2).for_each(|index| rig.stop_master(index)),
        |rig| (0..2).for_each(|index| rig.resume_master(index)),
    ),
    ("one is down", |rig| break_conn(rig, 2), |rig| rig.refuse(2, false)),
    (
        "two are down",
        |rig| (1..3).for_each(|index| break_conn(rig, index)),
        |rig| (1..3).for_each(|index| rig.refuse(index, false)),
    ),
    (
        "one has restarted",
        |rig| {
            let now = rig.now;
            rig.masters[1].restart("other", now);
            rig.reset_conn(1);
        },
        |_| {},
    ),
    (
        "all refuse",
        |rig| all_refuse(rig, "OOM no"),
        |rig| rig.masters.iter_mut().for_each(|master| master.errors.clear()),
    ),
    (
        "another has it",
        |rig| {
            let until = rig.now + 3 * SECOND;
            rig.masters.iter_mut().for_each(|it| it.put(b"a", b"twenty-bytes-of-tok.\tdb-1", Some(until)));
        },
        |_| {},
    ),
    ("it is gone", |rig| rig.masters.iter_mut().for_each(|it| it.load_keys(Default::default())), |_| {}),
    ("answers are late", |rig| (0..3).for_each(|index| rig.stall_replies(index)), |rig| rig.end_stalls()),
];

/// An operation: its name, what comes before the state of the masters, and itself.
type Operation = (&'static str, fn(&mut Journal), fn(&mut Journal));

const fn options(wait_ms: u64) -> Options {
    let mut options = Options::new();
    (options.ttl, options.wait) = (Some(ms(10_000)), Some(ms(wait_ms)));
    options
}

fn hold(journal: &mut Journal) {
    journal.acquire("a", options(0));
}

fn kept(journal: &mut Journal) {
    journal.acquire("a", options(0).auto_extend(15 * SECOND));
    journal.show("acquired");
    journal.about(|lock| Request::ReportRenewals { lock });
    journal.about(|lock| Request::NotifyLoss { lock });
}

fn resource() -> Resource<'static> {
    Resource::new("a").expect("valid")
}

const OPERATIONS: &[Operation] = &[
    ("acquire", |_| {}, hold),
    ("acquire fenced", |_| {}, |journal| journal.acquire("a", options(0).fenced())),
    ("acquire shared", |_| {}, |journal| journal.acquire("a", options(0).shared())),
    ("acquire fair", |_| {}, |journal| journal.acquire("a", options(0).fair())),
    ("wait", |_| {}, |journal| journal.acquire("a", options(200))),
    ("wait fair", |_| {}, |journal| journal.acquire("a", options(4000).fair())),
    (
        "give up",
        |_| {},
        |journal| {
            journal.acquire("a", options(4000));
            journal.show("asked");
            journal.about(|lock| Request::Release { lock, awaited: true });
        },
    ),
    ("extend", hold, |journal| journal.about(|lock| Request::Extend { lock, ttl: ms(8000) })),
    ("extend for longer than allowed", hold, |journal| {
        journal.about(|lock| Request::Extend { lock, ttl: ms(31_000) });
        journal.about(|lock| Request::Extend { lock, ttl: ms(9000) });
        journal.about(|lock| Request::Extend { lock, ttl: ms(9000) });
    }),
    ("keep", kept, |_| {}),
    ("release", hold, |journal| journal.about(|lock| Request::Release { lock, awaited: true })),
    ("release unawaited", hold, |journal| journal.about(|lock| Request::Release { lock, awaited: false })),
    ("release for the next caller", hold, |journal| {
        let first = journal.lock.expect("held");
        journal.acquire("a", options(2000));
        journal.show("another caller waits");
        journal.submit(Request::Release { lock: first, awaited: true });
    }),
    ("leave", hold, |journal| {
        let left = journal.rig.engine.leave(journal.rig.now, journal.lock.expect("asked for"));
        journal.page += &format!("  left: {}\n", journal.masked(&format!("{left:?}")));
    }),
    ("leave for a time", hold, |journal| journal.about(|lock| Request::LeaveFor { lock, rest: ms(1500) })),
    ("adopt", hold, |journal| {
        let (lock, now) = (journal.lock.expect("asked for"), journal.rig.now);
        let handle = journal.rig.engine.pass(now, WALL + (now - journal.start), lock, ms(5000));
        let Ok(handle) = handle else { return journal.page += &format!("  not passed: {handle:?}\n") };
        let act = HandleAct::Adopt { auto_extend: None };
        journal.lock = journal.submit(Request::ByHandle { handle: &handle, act });
    }),
    ("release by a handle", hold, |journal| {
        let (lock, now) = (journal.lock.expect("asked for"), journal.rig.now);
        let Some(handle) = journal.rig.engine.handle(now, WALL + (now - journal.start), lock) else { return };
        let act = HandleAct::Release { awaited: true };
        journal.submit(Request::ByHandle { handle: &handle, act });
    }),
    ("inspect", hold, |journal| _ = journal.submit(Request::Inspect { resource: resource() })),
    ("force unlock", hold, |journal| _ = journal.submit(Request::ForceUnlock { resource: resource() })),
    (
        "look for free slots",
        |journal| journal.acquire("redlatch:slot:1:a", options(0)),
        |journal| {
            journal.submit(Request::FreeSlots { pool: resource(), count: 3, from: 1 });
        },
    ),
    ("drain", hold, |journal| {
        journal.submit(Request::Drain { held: HeldLocks::Leave, limit: ms(300) });
    }),
    ("drain and release", hold, |journal| {
        journal.submit(Request::Drain { held: HeldLocks::Release, limit: ms(300) });
        journal.acquire("b", options(0));
    }),
];

#[test]
fn each_operation_is_seen_as_it_was() {
    for (operation, prepare, run) in OPERATIONS {
        let mut page = String::new();
        for (state, begin, end) in STATES {
            let mut journal = Journal::new(&format!("{operation}: {state}"));
            prepare(&mut journal);
            journal.show("held");
            // Another time than that of the beginning, and a counted one.
            journal.run_for(ms(7));
            begin(&mut journal.rig);
            journal.show("the state of the masters begins");
            run(&mut journal);
            journal.show(operation);
            journal.run_for(ms(400));
            end(&mut journal.rig);
            journal.show("the state of the masters ends");
            journal.run_for(2 * SECOND);
            if let Some(lock) = journal.lock {
                journal.submit(Request::Release { lock, awaited: false });
                journal.show("given up");
            }
            journal.run_for(12 * SECOND);
            page += &journal.page;
        }
        assert_golden(&format!("engine/{}", operation.replace(' ', "-")), &page);
    }
}

/// Masters that connect, fail and return.
#[test]
fn an_engine_connects_as_it_did() {
    let mut journal = Journal::new("masters");
    journal.shown.clear();
    journal.show("connected");
    break_conn(&mut journal.rig, 1);
    journal.show("one is down");
    journal.run_for(SECOND);
    journal.rig.refuse(1, false);
    journal.run_for(SECOND);
    assert_golden("engine/masters", &journal.page);
}
