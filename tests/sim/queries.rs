//! Requests of clients that are not locks: inspections, forced deletions, pauses.

use std::time::{Duration, Instant};

use rand::RngExt;
use redlatch::Quarantine;
use redlatch::completions::OutcomeKind;
use redlatch::engine::{HeldLocks, OpId, Outcome, Request, Resource};
use redlatch::inspection::{Inspection, KeyState};
use redlatch::simulated::Call;

use crate::checker::id;
use crate::clock::{MS, Time};
use crate::model::token_of;
use crate::network::chance;
use crate::world::{World, hex, note, shown};

/// Longer than any pause.
const LONG: Duration = Duration::from_secs(3600);

/// A request under way.
pub struct Query {
    pub op: OpId,
    question: OutcomeKind,
    key: Vec<u8>,
    submitted: Time,
    /// On the client's clock.
    pub deadline: Instant,
    /// When it is given up; never unless its caller is impatient.
    cancel_at: Time,
}

/// Whether an outcome belongs to such a request.
pub const fn is_answer(outcome: &Outcome) -> bool {
    matches!(
        outcome,
        Outcome::Inspect(_)
            | Outcome::FreeSlots(_)
            | Outcome::ForceUnlock(_)
            | Outcome::Paused
            | Outcome::Drained(_)
    )
}

impl World {
    pub fn submit_inspect(&mut self, client: usize, key: &[u8]) -> OpId {
        let resource = Resource::new(key).expect("a valid name");
        self.submit_query(client, key, Request::Inspect { resource }, OutcomeKind::Inspect)
    }

    pub fn submit_force_unlock(&mut self, client: usize, key: &[u8]) -> OpId {
        let resource = Resource::new(key).expect("a valid name");
        for master in 0..self.masters.len() {
            *self.checker.forced.entry((client, master, key.to_vec())).or_default() += 1;
        }
        self.submit_query(client, key, Request::ForceUnlock { resource }, OutcomeKind::ForceUnlock)
    }

    pub fn submit_pause(&mut self, client: usize, attempts: u32, took: Duration, limit: Duration) -> OpId {
        self.submit_query(client, b"", Request::Pause { attempts, took, limit }, OutcomeKind::Pause)
    }

    pub fn submit_drain(&mut self, client: usize, held: HeldLocks, limit: Duration) -> OpId {
        self.submit_query(client, b"", Request::Drain { held, limit }, OutcomeKind::Drain)
    }

    fn submit_query(
        &mut self,
        client: usize,
        key: &[u8],
        request: Request<'_>,
        question: OutcomeKind,
    ) -> OpId {
        self.try_submit_query(client, key, request, question).expect("room")
    }

    /// `None` if the engine refuses it.
    pub fn try_submit_query(
        &mut self,
        client: usize,
        key: &[u8],
        request: Request<'_>,
        question: OutcomeKind,
    ) -> Option<OpId> {
        self.deliver(client);
        let now = self.local(client);
        let op = match self.clients[client].tasks {
            None => self.clients[client].engine.submit(now, request).ok()?,
            Some(_) => self.begin_call(client, question, |it| Call::errand(it, &request))?,
        };
        note!(self, "c{client} {question:?} of {} as {op:?}", shown(key));
        let limit = self.config.answer_limit(self.config.ttl(self.config_max_ttl()).expect("valid"));
        // A pause's bound is random, and a drain has its own limit.
        let has_own_limit = matches!(question, OutcomeKind::Pause | OutcomeKind::Drain);
        let limit = if has_own_limit { Duration::from_secs(60) } else { limit };
        let query = Query {
            op,
            question,
            key: key.to_vec(),
            submitted: self.now,
            deadline: now + limit,
            cancel_at: Time::MAX,
        };
        self.clients[client].queries.push(query);
        self.deliver(client);
        self.wake(client, self.now);
        Some(op)
    }

    /// The caller no longer waits.
    pub fn cancel_query(&mut self, client: usize, op: OpId) {
        let is_there = self.clients[client].queries.iter().any(|it| it.op == op);
        if is_there && !self.abandon_query(client, op) {
            let now = self.local(client);
            let request = Request::Release { lock: op, awaited: false };
            self.clients[client].engine.submit(now, request).expect("always taken");
        }
        self.clients[client].queries.retain(|it| it.op != op);
        note!(self, "c{client} cancels {op:?}");
        self.wake(client, self.now);
    }

    /// Takes the answer to a request.
    pub fn take_query(&mut self, client: usize, op: OpId, outcome: &Outcome) {
        let queries = &mut self.clients[client].queries;
        let Some(index) = queries.iter().position(|it| it.op == op) else {
            // A search is given up with the attempt beside it, which may have been answered in the same turn.
            if matches!(outcome, Outcome::FreeSlots(_)) {
                return;
            }
            return self.checker.violate("an errand is answered that nobody waits for");
        };
        let query = queries.swap_remove(index);
        let name = match (query.question, outcome) {
            (OutcomeKind::Inspect, Outcome::Inspect(inspection)) => {
                self.check_inspection(client, &query, inspection);
                "inspected"
            }
            (OutcomeKind::FreeSlots, Outcome::FreeSlots(_)) => "looked for slots",
            (OutcomeKind::ForceUnlock, Outcome::ForceUnlock(_)) => "unlocked by force",
            (OutcomeKind::Pause, Outcome::Paused) => "paused",
            (OutcomeKind::Drain, Outcome::Drained(_)) => "drained",
            other => return self.checker.violate(format!("another answer than was asked for: {other:?}")),
        };
        *self.statistics.outcomes.entry(name).or_default() += 1;
        self.digest.add(self.now, name.as_bytes());
        note!(self, "c{client} {op:?} {name}");
        self.notify_family(client, op, outcome);
    }

    /// A reported holder must have been granted the lock there, and a lock reported as free must not be
    /// forgotten (I8).
    fn check_inspection(&mut self, client: usize, query: &Query, inspection: &Inspection) {
        let max_ttl = Time::try_from(self.config.quarantine_time().as_nanos()).expect("small") * 98 / 100;
        for (master, (_, state)) in inspection.masters.iter().enumerate() {
            let it = &self.masters[master];
            match state {
                KeyState::Holds { value, .. } => {
                    let facts = self.checker.facts.get(token_of(value));
                    let is_known = facts.is_some_and(|it| it.key == query.key);
                    let was_granted = facts.is_some_and(|it| it.granted_by[master].is_some());
                    let was_copied = facts.is_some_and(|it| it.returned.contains(id(master)));
                    // The value and the remaining time are asked for one after the other, so the key may
                    // appear in between.
                    if !value.is_empty() && !(is_known && (was_granted || was_copied)) {
                        let value = hex(&value[..value.len().min(3)]);
                        let why = format!("m{master} is said to hold {value}, which it never granted");
                        self.checker.violate(why);
                    }
                }
                KeyState::Shared { .. } => {
                    let mut of_key = self.checker.facts.values().filter(|it| it.key == query.key);
                    if !of_key.any(|it| it.granted_by[master].is_some() || it.returned.contains(id(master))) {
                        self.checker
                            .violate(format!("m{master} is said to have readers, and never granted one"));
                    }
                }
                KeyState::Absent => {
                    let lost_at = it.lost_at.get(it.life as usize).copied().flatten();
                    let is_young = lost_at.is_some_and(|at| at < query.submitted && self.now < at + max_ttl);
                    let is_judged = self.checker.judges_exclusion
                        && self.clients[client].suspended_at.is_none()
                        && match self.config.quarantine() {
                            Quarantine::Trust => false,
                            Quarantine::Strict => true,
                            _ => !it.lies,
                        };
                    if is_young && is_judged {
                        let why = format!("I8: m{master} is called free, and may have forgotten");
                        self.checker.violate(why);
                    }
                }
                _ => {}
            }
        }
    }

    /// Random requests: mostly inspections, sometimes a forced deletion.
    pub fn run_queries(&mut self, client: usize) {
        let due: Vec<OpId> = self.clients[client]
            .queries
            .iter()
            .filter(|it| it.cancel_at <= self.now)
            .map(|it| it.op)
            .collect();
        due.into_iter().for_each(|op| self.cancel_query(client, op));
        if self.clients[client].query_due > self.now || self.habits.is_closing {
            return;
        }
        let key = self.habits.keys[self.rng.random_range(0..self.habits.keys.len())].clone();
        let op = match self.rng.random_range(0..10) {
            0..=6 => self.submit_inspect(client, &key),
            7 => {
                self.count_fault("lock broken by force");
                self.submit_force_unlock(client, &key)
            }
            _ => {
                let took = Duration::from_millis(self.rng.random_range(0..20));
                self.submit_pause(client, 1, took, LONG)
            }
        };
        let cancel_at = self.now + self.rng.random_range(0..=5 * MS);
        let is_impatient = chance(&mut self.rng, 250_000);
        if let Some(query) = self.clients[client].queries.iter_mut().find(|it| it.op == op && is_impatient) {
            query.cancel_at = cancel_at;
        }
        self.clients[client].query_due = self.now + self.rng.random_range(0..=2 * self.habits.pause_max);
    }

    /// When a client must next do something about its requests.
    pub fn next_query(&self, client: usize) -> Time {
        let it = &self.clients[client];
        let due = if self.habits.is_closing { Time::MAX } else { it.query_due };
        it.queries.iter().map(|query| query.cancel_at).min().unwrap_or(Time::MAX).min(due)
    }
}
