//! What callers see of each call of `Redlock` in each state of one master, compared with
//! `tests/golden/redlock`.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redlatch::engine::{OpId, Outcome, Request, Resource};
use redlatch::status::MasterState;
use redlatch::{HeldLocks, Options, Redlock};
use redlatch_support::stage::Fleet;
use redlatch_support::{PATIENCE, Shown, assert_golden, eventually};

use crate::harness::{LONG, TTL, config};
use crate::trace::{STATES, STYLE, begin, counters, end, rendered};

/// A `Redlock` that holds `a`.
struct Traced {
    redlock: Redlock,
    lock: OpId,
    shown: Vec<String>,
}

impl Traced {
    fn show(&mut self, value: &impl Shown) {
        self.shown.push(value.shown(STYLE));
    }

    fn show_lock(&mut self, lock: OpId) {
        let (margin, waited) = (self.redlock.margin(lock), self.redlock.waited(lock));
        let is_valid = self.redlock.valid_until(lock).is_some_and(|until| until > Instant::now());
        self.show(&format_args!("lock: margin {margin}, valid {is_valid} {}", waited.shown(STYLE)));
    }

    fn submit(&mut self, request: Request<'_>) -> Option<OpId> {
        let result = self.redlock.submit(request);
        result.inspect_err(|error| self.shown.push(error.to_string())).ok()
    }

    /// Makes a request about its lock, and shows the outcome. A lock that is over brings no outcome.
    fn ask_of_lock(&mut self, request: Request<'_>) {
        if self.submit(request).is_some() {
            self.outcomes(self.lock);
        }
    }

    /// Shows outcomes up to this operation's.
    fn outcomes(&mut self, id: OpId) {
        loop {
            while let Some((of, outcome)) = self.redlock.poll_outcome() {
                match outcome {
                    Outcome::Inspect(inspection) => self.show(&(of == id, inspection.status())),
                    outcome => self.show(&(of == id, of == self.lock, outcome)),
                }
                if of == id {
                    return;
                }
            }
            self.redlock.turn(PATIENCE).expect("an event queue");
        }
    }
}

fn ask<'a>(name: &'a str, options: Options) -> Request<'a> {
    let resource = Resource::new(name).expect("a name");
    Request::Acquire { resource, options: options.ttl(TTL).wait(Duration::ZERO), label: None }
}

type Row = (&'static str, fn(&mut Traced));

const ROWS: &[Row] = &[
    ("acquire the same", |it| {
        let asked = it.submit(ask("a", Options::new()));
        asked.into_iter().for_each(|id| it.outcomes(id));
    }),
    ("acquire others", |it| {
        for (name, options) in [("b", Options::new()), ("c", Options::new().fenced())] {
            if let Some(lock) = it.submit(ask(name, options)) {
                it.outcomes(lock);
                it.show_lock(lock);
            }
        }
    }),
    ("extend", |it| {
        let lock = it.lock;
        for ttl in [TTL / 2, 2 * TTL] {
            it.ask_of_lock(Request::Extend { lock, ttl });
            let valid_until = it.redlock.valid_until(lock);
            let is_short = valid_until.is_some_and(|at| at <= Instant::now() + TTL / 2);
            it.show(&(is_short, it.redlock.last_failure(lock)));
        }
    }),
    ("release", |it| {
        let lock = it.lock;
        it.ask_of_lock(Request::Release { lock, awaited: true });
    }),
    ("release without an outcome", |it| {
        it.submit(Request::Release { lock: it.lock, awaited: false });
        it.show(&counters(&it.redlock.stats()));
        it.redlock.flush();
    }),
    ("leave for a time", |it| {
        let lock = it.lock;
        it.ask_of_lock(Request::LeaveFor { lock, rest: TTL / 2 });
    }),
    ("leave for too long", |it| {
        let lock = it.lock;
        it.ask_of_lock(Request::LeaveFor { lock, rest: 2 * TTL });
    }),
    ("an outcome that is ready", |it| {
        it.submit(Request::Extend { lock: it.lock, ttl: 2 * TTL });
        // The turn returns early, because an outcome has come.
        it.redlock.turn(100 * PATIENCE).expect("an event queue");
        let has_come = it.redlock.poll_outcome().is_some();
        it.show(&has_come);
    }),
    ("inspect", |it| {
        let resource = Resource::new("a").expect("a name");
        let asked = it.submit(Request::Inspect { resource });
        asked.into_iter().for_each(|id| it.outcomes(id));
    }),
];

/// The two ways to end a `Redlock`.
const ENDS: [(&str, HeldLocks); 2] = [("drain", HeldLocks::Leave), ("drain and release", HeldLocks::Release)];

#[test]
fn each_redlock_call_matches_its_golden_file() {
    let Some(mut fleet) = Fleet::servers(1) else { return };
    let mut page = String::new();
    let calls = ROWS.iter().map(|(name, run)| (*name, Some(*run), HeldLocks::Leave));
    let ends = ENDS.map(|(name, held)| (name, None, held));
    for (name, run, held) in calls.chain(ends) {
        page += &format!("# {name}\n");
        let mut usual = Vec::new();
        for state in STATES {
            let events: Arc<Mutex<Vec<String>>> = Arc::default();
            let observed = events.clone();
            let settings = config(&fleet.urls(), LONG).max_ttl(TTL);
            let settings =
                settings.on_event(move |event| observed.lock().expect("no panic").push(event.shown(STYLE)));
            let mut redlock = Redlock::open(settings.build().expect("valid")).expect("an event loop");
            let lock = redlock.submit(ask("a", Options::new())).expect("room");
            let mut it = Traced { redlock, lock, shown: Vec::new() };
            it.outcomes(lock);
            begin(&mut fleet, state);
            if state == "down" {
                eventually(PATIENCE, "the client notices it", || {
                    it.redlock.turn(Duration::ZERO).expect("an event queue");
                    matches!(it.redlock.masters()[0].state, MasterState::Down(_))
                });
            }
            match run {
                Some(run) => run(&mut it),
                None => {
                    // Locks that are left keep a drain waiting until its limit.
                    let is_released = state == "well" && held == HeldLocks::Release;
                    let limit = if is_released { PATIENCE } else { Duration::from_millis(10) };
                    // A master that refuses or has lost its keys may or may not answer within this limit.
                    let left =
                        Some(it.redlock.drain(limit, held)).filter(|_| ["well", "down"].contains(&state));
                    page += &format!("{state}: {}\n", left.shown(STYLE));
                    end(&mut fleet, state);
                    continue;
                }
            }
            it.show_lock(it.lock);
            let mut lines = it.shown;
            lines.push(format!("counters: {}", counters(&it.redlock.stats())));
            let mut events = std::mem::take(&mut *events.lock().expect("no panic"));
            events.retain(|event| !event.contains("onnected"));
            lines.push(format!("events: {}", events.join("; ")));
            page += &rendered(state, &lines, &usual);
            if state == "well" {
                usual = lines;
            }
            end(&mut fleet, state);
        }
    }
    assert_golden("redlock", &page);
}
