//! All that callers see of each call of `Redlock` in each state of one master, held to
//! `tests/golden/redlock`.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redlatch::engine::{OpId, Outcome, Request, Resource};
use redlatch::status::MasterState;
use redlatch::{Cancel, HeldLocks, Lease, Options, Redlock};

use crate::fleet::{Fleet, eventually};
use crate::golden::assert_golden;
use crate::harness::{LONG, PATIENCE, TTL, config};
use crate::shown::Shown;
use crate::trace::{STATES, STYLE, begin, counters, end, rendered};

/// A `Redlock` with a lease of `a`, and one of `b` of the pipelined form.
struct Blocking {
    redlock: Redlock,
    lease: Option<Lease>,
    lock: OpId,
    shown: Vec<String>,
}

impl Blocking {
    fn show(&mut self, value: &impl Shown) {
        self.shown.push(value.shown(STYLE));
    }

    fn show_lease(&mut self, lease: &Lease) {
        let (margin, waited) = (self.redlock.margin(lease), self.redlock.waited(lease));
        let has_time =
            [lease.is_valid(), lease.remaining() > Duration::ZERO, lease.valid_until() > Instant::now()];
        let has_time = has_time.map(|it| it.to_string()).join(" ");
        let fenced = if lease.fencing_token().is_some() { ", fenced" } else { "" };
        let waited = waited.shown(STYLE);
        self.show(&format_args!("lease: margin {margin}, valid {has_time}{fenced} {waited}"));
    }

    fn lease(&mut self) -> Lease {
        self.lease.take().expect("held before")
    }

    fn submit(&mut self, request: Request<'_>) -> Option<OpId> {
        let result = self.redlock.submit(request);
        result.inspect_err(|error| self.shown.push(error.to_string())).ok()
    }

    /// The outcomes of the pipelined form until this one's.
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

type BlockingRow = (&'static str, fn(&mut Blocking));

const BLOCKING: &[BlockingRow] = &[
    ("acquire the same", |it| {
        let result = it.redlock.lock("a").ttl(TTL).try_acquire().map(drop);
        it.show(&result);
    }),
    ("acquire another", |it| match it.redlock.lock("c").ttl(TTL).wait(Duration::ZERO).fenced().acquire() {
        Ok(lease) => it.show_lease(&lease),
        Err(error) => it.show(&error),
    }),
    ("acquire with a bad name", |it| {
        let result = it.redlock.lock("").try_acquire().map(drop);
        it.show(&result);
        let result = it.redlock.lock("c").holder_label("").try_acquire().map(drop);
        it.show(&result);
    }),
    ("acquire, cancelled before", |it| {
        let cancel = Cancel::new();
        cancel.cancel();
        let result = it.redlock.lock("c").cancel_with(&cancel).acquire().map(drop);
        it.show(&result);
    }),
    ("extend", |it| {
        let mut lease = it.lease();
        let result = it.redlock.extend(&mut lease, TTL / 2);
        it.show(&(result, lease.remaining() <= TTL / 2));
        let result = it.redlock.extend(&mut lease, 2 * TTL);
        it.show(&(result, lease.remaining() <= TTL / 2));
        it.show_lease(&lease);
    }),
    ("release", |it| {
        let lease = it.lease();
        let result = it.redlock.release(lease);
        it.show(&result);
    }),
    ("leave", |it| {
        let lease = it.lease();
        let result = it.redlock.leave(lease);
        it.show(&(result, it.redlock.stats().operations));
    }),
    ("leave for a time", |it| {
        let lease = it.lease();
        let result = it.redlock.leave_for(lease, TTL / 2);
        it.show(&result);
        let lease = it.redlock.lock("c").ttl(TTL).try_acquire();
        let result = lease.map(|lease| it.redlock.leave_for(lease, 2 * TTL));
        it.show(&result);
        it.redlock.flush();
    }),
    ("drop and flush", |it| {
        drop(it.lease());
        it.show(&counters(&it.redlock.stats()));
        it.redlock.flush();
    }),
    ("drop and submit", |it| {
        drop(it.lease());
        let asked = it.submit(ask("a", Options::new()));
        asked.into_iter().for_each(|id| it.outcomes(id));
    }),
    ("pipelined", |it| {
        let asked: Vec<_> =
            ["c", "d", "b"].iter().filter_map(|name| it.submit(ask(name, Options::new()))).collect();
        // A blocking call between, which comes across their outcomes.
        let lease = it.redlock.lock("e").ttl(TTL).try_acquire().map(drop);
        it.show(&lease);
        asked.into_iter().for_each(|id| it.outcomes(id));
    }),
    ("extend, pipelined", |it| {
        let lock = it.lock;
        it.submit(Request::Extend { lock, ttl: TTL / 2 });
        it.outcomes(lock);
        let valid_until = it.redlock.valid_until(lock);
        it.show(&(
            valid_until.is_some_and(|at| at <= Instant::now() + TTL / 2),
            it.redlock.last_failure(lock),
        ));
    }),
    ("release, pipelined", |it| {
        let lock = it.lock;
        it.submit(Request::Release { lock, awaited: true });
        it.outcomes(lock);
        it.show(&it.redlock.valid_until(lock));
    }),
    ("pass on", |it| {
        let handle = it.redlock.handle(it.lock).map(|handle| handle.can_be_adopted());
        let passed = it.redlock.pass(it.lock, TTL / 2).map(|handle| handle.can_be_adopted());
        let again = it.redlock.pass(it.lock, TTL / 2).map(|handle| handle.can_be_adopted());
        it.show(&(handle, passed, again, it.redlock.valid_until(it.lock)));
    }),
    ("an outcome that is ready", |it| {
        it.submit(Request::Extend { lock: it.lock, ttl: 2 * TTL });
        // It does not wait, though this is longer than the test may take.
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

/// The ends of a `Redlock`, which take it.
const ENDS: [(&str, HeldLocks); 2] = [("drain", HeldLocks::Leave), ("drain and release", HeldLocks::Release)];

#[test]
fn each_call_of_a_redlock_is_seen_as_it_was() {
    let mut fleet = Fleet::start(1);
    let mut page = String::new();
    let calls = BLOCKING.iter().map(|(name, run)| (*name, Some(*run), HeldLocks::Leave));
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
            let lease = Some(redlock.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("free"));
            let lock = redlock.submit(ask("b", Options::new())).expect("room");
            let mut it = Blocking { redlock, lease, lock, shown: Vec::new() };
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
                    // Locks that are left keep a drain waiting.
                    let is_released = state == "well" && held == HeldLocks::Release;
                    let limit = if is_released { PATIENCE } else { Duration::from_millis(10) };
                    let lease = it.lease();
                    // Whether a master that lost keys, or refuses, answers in so short a time is open.
                    let left =
                        Some(it.redlock.drain(limit, held)).filter(|_| ["well", "down"].contains(&state));
                    page += &format!("{state}: {}, valid {}\n", left.shown(STYLE), lease.is_valid());
                    end(&mut fleet, state);
                    continue;
                }
            }
            if let Some(lease) = it.lease.take() {
                it.show_lease(&lease);
            }
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
