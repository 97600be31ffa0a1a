//! Whether the clients' results are true, and the promises are kept.

use std::time::{Duration, Instant};

use redlatch::engine::{MasterId, MasterSet, OpId, Outcome};
use redlatch::error::{Report, Vote};
use redlatch::status::MasterState;
use redlatch::{AcquireError, ExtendError, Quarantine, limits};

use crate::checker::{Guard, Issued, id};
use crate::client::{LinkState, Pending};
use crate::clock::{MS, Time};
use crate::model::{lease_end, leases};
use crate::network::{ConnState, chance};
use crate::world::{World, hex, life_of, shown};

/// A key may be forgotten this long before its end, because of clock differences and rounding.
pub const LEFT_MAX: Time = 50 * MS;

/// A fair waiter that waited longer was parked.
const LONG_WAIT: Time = 100 * MS;
/// A fair waiter may be passed by callers that asked less than this later: round trips, a part of the lock
/// that is given back, and clock differences.
const ORDER_SLACK: Time = 300 * MS;

/// Callers have one lock each. A release waits at most for its TTL, in attempts of a millisecond. Errands
/// begin up to once a millisecond, and wait up to 200 ms for an answer.
const OPERATIONS_MAX: usize = 500;
const CLAIMS_MAX: usize = 10_000;
/// Largest number of unanswered requests to a master: a few for each claim.
const OWED_MAX: usize = 4 * CLAIMS_MAX;

impl World {
    pub fn check_outcome(&mut self, client: usize, lock: OpId, outcome: &Outcome) {
        match outcome {
            Outcome::Acquire(Ok(grant)) => {
                let Some(key) = self.clients[client].lock(lock).map(|it| it.key.clone()) else { return };
                let token = grant.token.as_bytes().to_vec();
                self.check_granted(client, &token, grant.granted);
                self.check_in_time(client, grant.valid_until, "I2: a lock was handed out after its deadline");
                if let Some(fence) = grant.fencing_token {
                    self.checker.note_issued(Issued {
                        key: key.clone(),
                        fence: fence.as_u64(),
                        token: token.clone(),
                        notified_at: self.now,
                        granted: grant.granted,
                    });
                }
                let (valid_until, counted) = (grant.valid_until, grant.granted);
                let is_shared = self.clients[client].lock(lock).is_some_and(|it| it.is_shared);
                let guard =
                    Guard { client, lock, key, token, is_shared, valid_until, counted, is_void: false };
                self.checker.guards.push(guard);
                self.checker.guard_count += 1;
                self.check_guard(client, lock);
            }
            Outcome::Acquire(Err(AcquireError::Contended(denial))) => {
                let key = self.clients[client].lock(lock).map(|it| it.key.clone()).unwrap_or_default();
                let refused = self.checker.refused(client, &key);
                self.check_refusals(client, &denial.report, |server| refused.contains(id(server)));
            }
            Outcome::Extend(result) => {
                let valid_until = self.checker.guard(client, lock).map(|guard| guard.valid_until);
                if let (Ok(_), Some(valid_until)) = (result, valid_until) {
                    self.check_in_time(client, valid_until, "I11: a lock was extended after its deadline");
                }
                self.follow_validity(client, lock);
                if result.is_ok() {
                    let token = self.checker.guard(client, lock).map(|guard| guard.token.clone());
                    let granted = self.clients[client].engine.granted(lock);
                    if let (Some(token), Some(granted)) = (token, granted) {
                        self.check_granted(client, &token, granted);
                        self.checker.count_masters(client, lock, granted);
                    }
                    self.check_guard(client, lock);
                }
                let report = match result {
                    Err(ExtendError::Lost(report) | ExtendError::NoQuorum(report)) => report,
                    _ => return,
                };
                let guard = self.checker.guard(client, lock);
                let facts = guard.and_then(|guard| self.checker.facts.get(&guard.token));
                // If the lock was never granted there, the acquisition's refusal stands.
                let key = facts.map(|facts| facts.key.clone()).unwrap_or_default();
                let refused = self.checker.refused(client, &key);
                let denied = facts.map(|facts| facts.denied).unwrap_or_default().union(refused);
                self.check_refusals(client, report, |server| denied.contains(id(server)));
            }
            Outcome::Leave(Ok(left)) => self.check_left(client, lock, left.held_until),
            Outcome::Leave(Err(_)) => self.checker.end_guard(client, lock),
            _ => {}
        }
    }

    /// Nobody else may get a lock that was left for a time before this time ends, because a quorum has its
    /// key.
    fn check_left(&mut self, client: usize, lock: OpId, held_until: Instant) {
        self.checker.limit_guard(client, lock, held_until);
        let Some(guard) = self.checker.guard(client, lock) else { return };
        let counted = (0..self.config.master_count()).map(id);
        let counted =
            counted.filter(|master| self.is_covered(guard, self.server(client, master.index()))).collect();
        self.checker.count_masters(client, lock, counted);
        self.check_guard(client, lock);
    }

    /// After an acquisition: a fair lock must go to waiters in the order of their requests.
    pub fn check_turn(&mut self, client: usize, lock: OpId, is_acquired: bool) {
        if !is_acquired {
            return self.checker.end_waiting(client, lock);
        }
        let Some(waited) = self.checker.note_turn(client, lock, ORDER_SLACK, self.now) else { return };
        let outcomes = &mut self.statistics.outcomes;
        *outcomes.entry("acquired fairly").or_default() += 1;
        let was_parked = waited > LONG_WAIT;
        *outcomes.entry("acquired fairly after a wait").or_default() += u64::from(was_parked);
    }

    /// Each vote against must have been an explicit refusal (I16).
    pub fn check_refusals(&mut self, client: usize, report: &Report, is_true: impl Fn(usize) -> bool) {
        for (place, (_, vote)) in report.votes.iter().enumerate() {
            let server = self.server(client, place);
            if matches!(vote, Vote::Refused { .. }) && !is_true(server) {
                self.checker.violate(format!("I16: m{server} never said no, but its vote is {vote:?}"));
            }
        }
    }

    /// The masters said to have granted must have done so (I7), and a quorum of them must be able to vote
    /// (I4, I8).
    pub fn check_granted(&mut self, client: usize, token: &[u8], granted: MasterSet) {
        let max_ttl = Time::try_from(self.config.quarantine_time().as_nanos()).expect("small") * 98 / 100;
        let turn_began = self.clients[client].turn_began;
        let mut count = 0;
        for server in granted.iter().map(|master| self.server(client, master.index())).collect::<Vec<_>>() {
            let by = self.checker.facts.get(token).and_then(|facts| facts.granted_by[server]);
            let over = self.checker.facts.get(token).and_then(|facts| facts.granted_over[server]);
            if by.is_none() {
                self.checker.violate(format!("I7: m{server} never granted this token, but counts"));
            } else if over.and_then(|conn| self.conns[conn].left_at).is_some_and(|at| at < turn_began) {
                let why = "granted over a connection that is gone, but counts";
                self.checker.violate(format!("I7: m{server} {why}"));
            }
            let it = &self.masters[server];
            let is_protected = match self.config.quarantine() {
                Quarantine::Trust => false,
                Quarantine::Strict => true,
                _ => !it.lies,
            };
            let lost_at = by.and_then(|life| it.lost_at.get(life as usize).copied().flatten());
            let is_young = lost_at.is_some_and(|at| self.now < at + max_ttl);
            count += usize::from(!is_protected || !is_young);
        }
        if granted.count() < self.checker.quorum() {
            self.checker.violate(format!("I4: {granted:?} is no quorum of {}", self.config.master_count()));
        } else if count < self.checker.quorum() && self.checker.judges_exclusion {
            self.checker.violate(format!("I8: a quorum with masters in quarantine: {granted:?}"));
        }
    }

    /// Unless the process was stopped since, a report must have been true a moment ago.
    pub fn check_in_time(&mut self, client: usize, valid_until: Instant, what: &str) {
        if self.clients[client].turn_began == self.now && self.local(client) >= valid_until {
            self.checker.violate(what);
        }
    }

    /// A loss must be reported for a held lock, and before its validity ends unless the process was stopped.
    pub fn check_loss(&mut self, client: usize, lock: OpId, valid_until: Instant) {
        let ttl = Time::try_from(self.config_max_ttl().as_nanos()).expect("small");
        let (now, it) = (self.local(client), &self.clients[client]);
        // The longest time from which a loss is predictable, and some for the clock's rate.
        let is_running = it.paused_until + ttl + ttl / 10 < self.now;
        // A lock that masters have shown to be lost ends at that moment.
        let was_over = self.checker.guard(client, lock).is_some_and(|guard| !self.is_valid(guard));
        let is_late = is_running && was_over && now >= valid_until;
        match self.clients[client].lock(lock).filter(|it| it.is_held) {
            Some(it) if is_late && it.is_watched_in_time => {
                self.checker.violate(format!("c{client} {lock:?}: its loss is reported when it is over"));
            }
            Some(it) => it.loss_notified_at = Some(now),
            None => {
                self.checker.violate(format!("c{client} {lock:?}: the loss of a released lock is reported"))
            }
        }
    }

    pub fn is_valid(&self, guard: &Guard) -> bool {
        self.local(guard.client) < guard.valid_until
    }

    /// When a guard begins or is prolonged: it must be alone, and a quorum must hold its key for all its
    /// validity.
    pub fn check_guard(&mut self, client: usize, lock: OpId) {
        let Some(guard) = self.checker.guard(client, lock) else { return };
        if !self.checker.judges_exclusion || !self.is_valid(guard) {
            return;
        }
        let covering = (0..self.masters.len()).filter(|&index| self.is_covered(guard, index)).count();
        let is_void = self.lost_too_many(guard);
        if covering < self.checker.quorum() {
            let name = shown(&guard.key);
            self.checker.violate(format!(
                "c{client} holds {name} on {covering} masters for all its validity: no quorum"
            ));
        }
        if is_void {
            self.make_void(client, lock);
        }
        self.check_alone(client, lock);
    }

    /// Whether a master holds a guard's key for all its validity, or lost the key through a fault.
    fn is_covered(&self, guard: &Guard, master: usize) -> bool {
        let Some(facts) = self.checker.facts.get(&guard.token) else { return false };
        let until = self.clients[guard.client].clock.when(guard.valid_until);
        let it = &self.masters[master];
        let is_held = |end: Option<Instant>| end.is_none_or(|at| it.clock.when(at) >= until);
        let is_excused = facts.lost.union(facts.forgotten).contains(id(master));
        is_excused || lease_end(it.model.keys(), it.model.wall, &guard.key, &guard.token).is_some_and(is_held)
    }

    pub fn check_alone(&mut self, client: usize, lock: OpId) {
        let Some(guard) = self.checker.guard(client, lock) else { return };
        if guard.is_void {
            return;
        }
        let is_rival = |it: &&Guard| {
            (it.client != client || it.lock != lock)
                && it.key == guard.key
                && !(it.is_shared && guard.is_shared)
                && !it.is_void
                && self.is_valid(it)
        };
        if let Some(rival) = self.checker.guards.iter().find(is_rival) {
            let (other, name) = (rival.client, shown(&guard.key));
            self.checker.violate(format!("EXCLUSION: c{client} and c{other} both hold {name}"));
        }
    }

    /// After a fault: voids guards that lost more masters than their margin.
    pub fn void_guards(&mut self) {
        let voided: Vec<_> = self
            .checker
            .guards
            .iter()
            .filter(|guard| !guard.is_void && self.lost_too_many(guard))
            .map(|guard| (guard.client, guard.lock))
            .collect();
        voided.into_iter().for_each(|(client, lock)| self.make_void(client, lock));
    }

    /// Whether a guard lost more of its counting masters than its margin allows.
    fn lost_too_many(&self, guard: &Guard) -> bool {
        let granted = self.clients[guard.client].engine.granted(guard.lock).unwrap_or_default();
        let lost = self.checker.facts.get(&guard.token).map(|facts| facts.lost).unwrap_or_default();
        let counted = guard.counted.union(granted);
        let has_it = |master: &MasterId| !lost.contains(id(self.server(guard.client, master.index())));
        counted.iter().filter(has_it).count() < self.checker.quorum()
    }

    pub fn make_void(&mut self, client: usize, lock: OpId) {
        if let Some(guard) = self.checker.guards.iter_mut().find(|it| it.client == client && it.lock == lock)
        {
            guard.is_void = true;
            self.checker.void_count += 1;
        }
    }

    /// After a turn: nothing may be overdue, and counts must agree.
    pub fn check_client(&mut self, client: usize) {
        let it = &self.clients[client];
        let now = it.clock.at(it.turn_began);
        // Number of owed replies up to which a release waits no longer.
        let is_behind = |master| it.engine.owed_count(id(master)) > 100;
        if (0..self.config.master_count()).any(is_behind) {
            let later = now + self.release_limit();
            for (_, it) in &mut self.clients[client].locks {
                if let Some((Pending::Release, deadline)) = &mut it.pending {
                    *deadline = (*deadline).max(later);
                }
            }
        }
        let overdue = self.clients[client].locks.iter().find_map(|(lock, it)| {
            let (pending, deadline) = it.pending?;
            (now > deadline + Duration::from_millis(1)).then_some((*lock, pending))
        });
        if let Some((lock, pending)) = overdue {
            self.checker.violate(format!("I22: c{client}: {pending:?} of {lock:?} is overdue"));
        }
        let overdue =
            self.clients[client].queries.iter().find(|it| now > it.deadline + Duration::from_millis(1));
        if let Some(op) = overdue.map(|it| it.op) {
            self.checker.violate(format!("I22: c{client}: the errand {op:?} is overdue"));
        }
        self.check_tasks(client);
        self.check_sets(client);
        self.check_owners(client);
        if !self.is_checked_always && !chance(&mut self.rng, 100_000) {
            return;
        }
        let engine = &self.clients[client].engine;
        if engine.operation_count() > OPERATIONS_MAX || engine.claim_count() > CLAIMS_MAX {
            self.checker.violate(format!("c{client} keeps more in hand than its callers can have asked for"));
        }
        for master in 0..self.config.master_count() {
            let state = self.clients[client].engine.master_state(self.local(client), id(master));
            self.check_owed(client, master, &state);
            self.count_link(client, master, &state);
        }
        self.check_margins(client);
        self.check_keys(client);
        self.check_entries(client);
        self.check_counters(client);
    }

    /// Each accepted acquisition ends in one counter, and each lock in another. Everything else is under way.
    fn check_counters(&mut self, client: usize) {
        let it = &self.clients[client];
        let stats = it.engine.stats(self.local(client));
        let denied = stats.contended + stats.no_quorum + stats.expired + stats.overloaded + stats.abandoned;
        let ended = denied + stats.released + stats.left + stats.lost;
        let under_way = it.engine.operation_count() as u64;
        // A lock that is lost but not released has ended, yet is under way.
        let is_kept = stats.released + stats.left + stats.lost <= stats.acquired
            && stats.acquired + denied <= it.taken_count
            && it.taken_count <= ended + under_way
            && (under_way > 0 || it.taken_count == ended);
        let votes: u64 = stats.masters.iter().map(|master| master.granted).sum();
        let has_votes = stats.masters.iter().all(|master| master.late <= master.granted)
            && votes >= stats.acquired * stats.quorum as u64;
        let timed = stats.acquire_time.count();
        let has_times = timed <= stats.acquired && stats.hold_time.count() <= timed;
        if !is_kept || !has_votes || !has_times {
            let taken = it.taken_count;
            self.checker.violate(format!("c{client} took {taken}, has {under_way} and counts {stats:?}"));
        }
    }

    /// A client without a lock or an orphan must have left no key, except keys of late commands (I9).
    pub fn check_keys(&mut self, client: usize) {
        if self.clients[client].engine.claim_count() > 0 || !self.checker.judges_exclusion {
            return;
        }
        for master in 0..self.masters.len() {
            let it = &self.masters[master];
            if it.keeps_longer {
                continue;
            }
            let is_left = |(_, token, end): &(&[u8], &[u8], Option<Instant>)| {
                self.checker.facts.get(*token).is_some_and(|facts| {
                    let left = end.map_or(Time::MAX, |at| it.clock.when(at)).saturating_sub(self.now);
                    let is_own = facts.client == client && facts.life == self.clients[client].life;
                    is_own
                        && !facts.is_left
                        && !facts.returned.contains(id(master))
                        && left > facts.late[master].saturating_add(LEFT_MAX)
                })
            };
            if let Some((_, token, _)) = leases(it.model.keys(), it.model.wall).find(is_left) {
                let token = hex(&token[..3]);
                self.checker.violate(format!("I9: c{client} forgot the key with {token} that m{master} has"));
            }
        }
    }

    /// When nothing is under way, no reply may be owed (I14).
    fn check_owed(&mut self, client: usize, master: usize, state: &MasterState) {
        let server = self.server(client, master);
        let it = &mut self.clients[client];
        let owed = it.engine.owed_count(id(master));
        if owed > OWED_MAX || it.engine.send_ready(id(master)).len() > limits::OUTBOX_SIZE_MAX {
            self.checker.violate(format!("I17: the queues of m{master} grow without bound"));
        }
        let is_quiet = match it.conns[master] {
            None => true,
            Some(index) => {
                let conn = &self.conns[index];
                let has_output = !it.engine.send_ready(id(master)).is_empty();
                let is_empty = conn.to_master.is_empty() && conn.to_client.is_empty();
                let is_read = conn.master_input.is_empty() && conn.client_input.is_empty();
                conn.state == ConnState::Open
                    && !has_output
                    && is_empty
                    && is_read
                    && self.masters[server].is_up
                    && conn.master_life == self.masters[server].life
            }
        };
        if owed == 0 && *state == MasterState::Silent {
            self.checker.violate(format!("c{client} waits for m{master} to speak, which owes nothing"));
        }
        if is_quiet && owed != 0 {
            self.checker
                .violate(format!("I14: c{client} expects {owed} replies of m{master}, none is under way"));
        }
    }

    /// A master in a margin must hold the key for all its validity, and must not be known as another process
    /// than the one that granted it.
    pub fn check_margins(&mut self, client: usize) {
        let now = self.local(client);
        for index in 0..self.checker.guards.len() {
            let guard = &self.checker.guards[index];
            if guard.client != client {
                continue;
            }
            let Some(granted) = self.clients[client].engine.granted(guard.lock) else { continue };
            for master in granted.iter() {
                let server = self.server(client, master.index());
                let facts = self.checker.facts.get(&guard.token);
                let Some(life) = facts.and_then(|it| it.granted_by.get(server).copied().flatten()) else {
                    return self.checker.violate(format!("m{server} never granted, but is in the margin"));
                };
                let guard = &self.checker.guards[index];
                let is_judged = self.checker.judges_exclusion && self.is_valid(guard);
                if is_judged && !self.is_covered(guard, server) {
                    let why = "lets the key go before the lock ends, but is in the margin";
                    return self.checker.violate(format!("m{server} {why}"));
                }
                let status = self.clients[client].engine.master_status(now, master);
                let is_ready = matches!(status.state, MasterState::Ready | MasterState::Quarantined(_));
                let known = status.run_id.as_deref().and_then(life_of);
                if is_ready && known.is_some_and(|known| known > life) {
                    return self.checker.violate(format!(
                        "m{server} restarted since, but is in the margin of {}",
                        crate::world::hex(&guard.token[..3])
                    ));
                }
            }
        }
    }

    fn count_link(&mut self, client: usize, master: usize, state: &MasterState) {
        let state = match state {
            MasterState::Down(_) => LinkState::Down,
            MasterState::Connecting => LinkState::Connecting,
            MasterState::Ready => LinkState::Ready,
            MasterState::Quarantined(_) => LinkState::Quarantined,
            MasterState::Silent => LinkState::Silent,
            _ => LinkState::Other,
        };
        let before = std::mem::replace(&mut self.clients[client].link_states[master], state);
        self.link_steps[before as usize][state as usize] += 1;
    }
}
