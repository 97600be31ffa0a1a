//! What callers and masters see of each operation in each state of the masters, compared with
//! `tests/golden/engine/`.
//!
//! A step shows what changed since the last step: outcomes, events, commands, the state of each master and of
//! the lock, and the next deadline. The end shows the counters. A page shows an operation in the normal state
//! in full, and in other states only the differences: `=` counts the lines of a step that are as in the
//! normal state. Tokens are left out; other random values follow from the rig's seed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use redlatch::engine::{HandleAct, MasterId, OpId, Reason, Request, Resource};
use redlatch::scripts::SCRIPTS;
use redlatch::{AcquireError, HeldLocks, Options};
use redlatch_support::{Shown, Style, assert_golden, differing, wrapped};

use crate::ms;
use crate::rig::Rig;

const SECOND: Duration = Duration::from_secs(1);
/// The callers' wall clock at the start, since 1970. The masters' clocks agree.
const WALL: Duration = Duration::from_secs(1_700_000_000);

/// A step: its heading and its lines.
type Shot = (String, Vec<String>);

struct Journal {
    rig: Rig,
    start: Instant,
    steps: Vec<Shot>,
    /// Immediate results of calls; shown before the next step's lines.
    answers: Vec<String>,
    /// The operation's lock.
    lock: Option<OpId>,
    /// Last shown state, by subject.
    shown: BTreeMap<String, String>,
    counters: BTreeMap<String, String>,
    /// Whether handshakes are shown as commands.
    shows_handshakes: bool,
}

impl Journal {
    fn new() -> Self {
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
        let (shown, counters) = (BTreeMap::new(), BTreeMap::new());
        let (steps, answers) = (Vec::new(), Vec::new());
        let mut journal =
            Self { rig, start, steps, answers, lock: None, shown, counters, shows_handshakes: false };
        // `engine_handshake_matches_its_golden_file` has the beginning of each page.
        journal.show("connected");
        journal.steps.clear();
        journal.counters = journal.count();
        journal
    }

    const fn style(&self) -> Style {
        Style { start: Some(self.start) }
    }

    fn submit(&mut self, request: Request<'_>) -> Option<OpId> {
        match self.rig.engine.submit(self.rig.now, request) {
            Ok(id) => Some(id),
            Err(error) => {
                self.answers.push(format!("not taken: {error}"));
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

    /// Moves bytes, and shows the differences.
    fn show(&mut self, step: &str) {
        self.rig.pump();
        let style = self.style();
        let mut lines = std::mem::take(&mut self.answers);
        for (id, outcome) in std::mem::take(&mut self.rig.outcomes) {
            let of = if Some(id) == self.lock { "" } else { "another request: " };
            lines.push(format!("{of}{}", outcome.shown(style)));
        }
        while let Some(event) = self.rig.engine.poll_event() {
            lines.push(format!("event: {}", event.shown(style)));
        }
        lines.extend(self.commands());
        let state = self.state();
        let changed = state.iter().filter(|(of, state)| self.shown.get(*of) != Some(state));
        lines.extend(changed.map(|(of, state)| format!("{of} {state}")));
        self.shown = state;
        if !lines.is_empty() {
            let (now, due) = (self.rig.now - self.start, self.rig.engine.next_timeout());
            let due = due.filter(|(_, reason)| !matches!(reason, Reason::Link(_)));
            let due = due.map_or_else(String::new, |(at, _)| format!(", due at {:?}", at - self.start));
            self.steps.push((format!("{now:?} {step}{due}"), lines));
        }
    }

    /// Commands that masters carried out; masters with the same commands share a line.
    fn commands(&mut self) -> Vec<String> {
        let mut by_log: Vec<(String, Vec<usize>)> = Vec::new();
        for (index, master) in self.rig.masters.iter_mut().enumerate() {
            let mut log: Vec<_> = master.log.drain(..).map(|words| command(&words)).collect();
            let end = log.iter().position(|command| command.contains("SUBSCRIBE"));
            if let Some(end) = end.filter(|_| !self.shows_handshakes) {
                log.splice(..=end, ["the handshake".to_owned()]);
            }
            for index in (1..log.len()).rev() {
                if log[index].strip_prefix("EVAL ") == Some(&log[index - 1]) {
                    log[index] = "EVAL".to_owned();
                }
            }
            let log = log.join("; ");
            match by_log.iter_mut().find(|(other, _)| *other == log) {
                Some((_, masters)) => masters.push(index),
                None => by_log.push((log, vec![index])),
            }
        }
        by_log.retain(|(log, _)| !log.is_empty());
        by_log.into_iter().map(|(log, masters)| format!("{} got {log}", numbers(masters))).collect()
    }

    fn state(&self) -> BTreeMap<String, String> {
        let Rig { engine, now, .. } = &self.rig;
        let mut state = BTreeMap::new();
        let health = engine.health(*now);
        for (index, status) in health.masters.iter().enumerate() {
            let refused = status.refused.iter().map(|(command, why)| format!("{command}: {why}"));
            let notes = refused.chain(status.warnings.iter().map(ToString::to_string));
            let notes = notes.filter_map(|note| note.split(", last ").next().map(str::to_owned));
            // Without advice, and without times that change all the time.
            let master = status.state.to_string();
            let shown = master.split("; ").next().and_then(|shown| shown.split(" for another ").next());
            let notes: Vec<_> = shown.map(str::to_owned).into_iter().chain(notes).collect();
            state.insert(format!("master {index}"), notes.join("; "));
        }
        if let Some(lock) = self.lock {
            let granted = engine.granted(lock).map(|set| numbers(set.iter().map(MasterId::index)));
            let held = match (engine.valid_until(lock), granted) {
                (Some(at), Some(granted)) => {
                    let (until, margin) = (at.shown(self.style()), engine.margin(lock));
                    let losing = if engine.is_losing(*now, lock) { ", losing" } else { "" };
                    format!("{until}, granted by {granted}, margin {margin}{losing}")
                }
                _ => "not held".to_owned(),
            };
            state.insert("lock".to_owned(), held);
            if let Some(waited) = engine.waited(lock).map(|waited| waited.shown(self.style())) {
                state.insert(
                    "so far".to_owned(),
                    if waited.is_empty() { "at once".to_owned() } else { waited },
                );
            }
            match engine.last_failure(*now, lock) {
                // Times and counts in its denial change all the time.
                Some(AcquireError::Contended(denial) | AcquireError::NoQuorum(denial)) => {
                    state.insert("last votes".to_owned(), denial.report.shown(self.style()));
                }
                Some(error) => _ = state.insert("last failure".to_owned(), error.to_string()),
                None => {}
            }
        }
        state
    }

    /// Counters above zero; the values of several masters side by side.
    fn count(&self) -> BTreeMap<String, String> {
        let page = self.rig.engine.stats(self.rig.now).to_prometheus();
        let mut counts: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for line in page.lines().filter(|line| !line.starts_with('#') && !line.contains("_bucket")) {
            let (name, value) = line.rsplit_once(' ').expect("a name and a value");
            let name = name.split('{').next().expect("a name").trim_start_matches("redlatch_");
            counts.entry(name.trim_end_matches("_total")).or_default().push(value.trim_end_matches("000"));
        }
        counts.retain(|_, values| values.iter().any(|value| !value.trim_matches(['0', '.']).is_empty()));
        counts.into_iter().map(|(name, values)| (name.to_owned(), values.join(" "))).collect()
    }

    /// The last step: counters that changed since the beginning.
    fn end(mut self) -> Vec<Shot> {
        let counters = self.count();
        let changed = counters.iter().filter(|(name, value)| self.counters.get(*name) != Some(value));
        let lines = changed.map(|(name, value)| format!("{name} {value}")).collect();
        self.steps.push(("counters".to_owned(), lines));
        self.steps
    }

    /// Lets time pass, and shows each moment at which something changes.
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

fn numbers(masters: impl IntoIterator<Item = usize>) -> String {
    masters.into_iter().map(|master| master.to_string()).collect::<Vec<_>>().join(" ")
}

/// All steps, or only their differences from the normal state. A step with the same lines as the last one
/// says `again`.
fn rendered(title: &str, steps: &[Shot], usual: &[Shot]) -> String {
    let mut page = format!("# {title}\n");
    let mut before: &[String] = &[];
    for (heading, lines) in steps {
        let usual = usual.iter().find(|(other, _)| other == heading).map_or(&[][..], |(_, lines)| lines);
        let (mark, other) = differing(lines, usual);
        if lines == before {
            page += &format!("{heading} again\n");
        } else if heading == "counters" && !other.is_empty() {
            page += &wrapped(0, &format!("{heading}{mark}: {}", other.join(", ")));
        } else {
            page += &format!("{heading}{mark}\n");
            other.iter().for_each(|line| page += &wrapped(2, line));
        }
        before = lines;
    }
    page
}

/// A command with scripts by name, the three keys of a lock as one word, and random arguments by length.
fn command(words: &[Vec<u8>]) -> String {
    let shown = words.iter().map(|word| {
        let text = String::from_utf8_lossy(word);
        match SCRIPTS.iter().find(|script| text == script.sha || text == script.text) {
            Some(script) => script.name.to_owned(),
            None if word.is_empty() => "\"\"".to_owned(),
            None if word.len() <= 24 && word.iter().all(u8::is_ascii_graphic) => text.into_owned(),
            None => format!("<{}>", word.len()),
        }
    });
    let shown = shown.collect::<Vec<_>>().join(" ");
    let shown = shown.replace(" 3 a redlatch:wait:a redlatch:fence:a", " a+wait+fence");
    shown.strip_prefix("EVALSHA ").map_or(shown.clone(), str::to_owned)
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

/// An operation: its name, its preparation before the masters' state, and itself.
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
        let left = left.shown(journal.style());
        journal.answers.push(left);
    }),
    ("leave for a time", hold, |journal| journal.about(|lock| Request::LeaveFor { lock, rest: ms(1500) })),
    ("adopt", hold, |journal| {
        let (lock, now) = (journal.lock.expect("asked for"), journal.rig.now);
        let handle = journal.rig.engine.pass(now, WALL + (now - journal.start), lock, ms(5000));
        let handle = match handle {
            Ok(handle) => handle,
            Err(error) => return journal.answers.push(format!("not passed: {error}")),
        };
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
fn each_engine_operation_matches_its_golden_file() {
    for (operation, prepare, run) in OPERATIONS {
        let mut page = String::new();
        let mut usual = Vec::new();
        for (state, begin, end) in STATES {
            let mut journal = Journal::new();
            prepare(&mut journal);
            journal.show("held");
            // Not at the start's exact time, and with a measured acquisition.
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
            let steps = journal.end();
            page += &rendered(state, &steps, &usual);
            if usual.is_empty() {
                usual = steps;
            }
        }
        assert_golden(&format!("engine/{}", operation.replace(' ', "-")), &page);
    }
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/engine");
    let pages = std::fs::read_dir(folder).expect("it is there").count();
    assert_eq!(pages, OPERATIONS.len() + 1, "a page of an operation that is gone");
}

/// Masters that connect, fail and return.
#[test]
fn engine_handshake_matches_its_golden_file() {
    let mut journal = Journal::new();
    journal.shows_handshakes = true;
    journal.shown.clear();
    journal.show("connected");
    break_conn(&mut journal.rig, 1);
    journal.show("one is down");
    journal.run_for(SECOND);
    journal.rig.refuse(1, false);
    journal.run_for(SECOND);
    assert_golden("engine/masters", &rendered("masters", &journal.end(), &[]));
}
