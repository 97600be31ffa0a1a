//! The truth about tokens and locks, and whether the clients' results agree with it.
//!
//! Sees everything: the masters' data, all clocks, all faults. Judges a history only by the promises that
//! hold under its faults: losing more masters than its margin voids a lock, and clock rates that differ by
//! more than the drift allowance end all judgement of exclusion.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::time::Instant;

use redlatch::engine::{MasterId, MasterSet, OpId, quorum};

use crate::clock::Time;
use crate::model::{Keys, Wall, fence_in, lease_end, leases, token_of};
use crate::network::Conn;
use crate::parked::Parking;

/// Facts about one token.
pub struct Facts {
    /// The client that drew it, and the client's life at that time.
    pub client: usize,
    pub life: u32,
    pub key: Vec<u8>,
    /// By master: the process that last confirmed the token.
    pub granted_by: Vec<Option<u32>>,
    /// By master: the connection of that confirmation.
    pub granted_over: Vec<Option<usize>>,
    /// By master: how long its last TTL was under way.
    pub late: Vec<Time>,
    /// Masters where older data restored the token.
    pub returned: MasterSet,
    /// Masters that denied having it, when asked to extend or release it.
    pub denied: MasterSet,
    /// Masters that lost it, or will let it expire too early, without protection.
    pub lost: MasterSet,
    /// Masters that lost it in a restart, from which the quarantine protects.
    pub forgotten: MasterSet,
    /// Whether a master swapped it for another token.
    pub is_handed_over: bool,
    /// Its client left it to its TTL, or for a time.
    pub is_left: bool,
    /// For a fenced lock: the fencing token, and when a master first accepted it.
    pub fence: Option<(u64, Time)>,
    /// Masters that forgot its fence without protection.
    pub fence_lost: MasterSet,
}

/// A fencing token that was handed out.
pub struct Issued {
    pub key: Vec<u8>,
    pub fence: u64,
    pub token: Vec<u8>,
    pub notified_at: Time,
    /// The quorum of its grant.
    pub granted: MasterSet,
}

/// A lock that its holder may consider valid.
pub struct Guard {
    pub client: usize,
    pub lock: OpId,
    pub key: Vec<u8>,
    pub token: Vec<u8>,
    /// Whether other shared holders may have it, too.
    pub is_shared: bool,
    pub valid_until: Instant,
    /// Masters known to hold it when it began or was last prolonged. A restarted master stays included,
    /// because its quarantine protects the lock.
    pub counted: MasterSet,
    /// More masters lost it than its margin allows.
    pub is_void: bool,
}

/// A waiter for a fair lock.
pub struct Waiter {
    pub client: usize,
    pub lock: OpId,
    key: Vec<u8>,
    /// Time of the request.
    asked_at: Time,
}

impl Waiter {
    pub fn new(client: usize, lock: OpId, key: &[u8], asked_at: Time) -> Self {
        Self { client, lock, key: key.to_vec(), asked_at }
    }
}

/// Tokens are random, so any hash of them will do.
#[derive(Default)]
pub struct TokenHasher(u64);

impl Hasher for TokenHasher {
    fn write(&mut self, bytes: &[u8]) {
        for word in bytes.as_chunks::<8>().0 {
            self.0 = (self.0.rotate_left(5) ^ u64::from_le_bytes(*word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
    }

    /// All tokens have the same size.
    fn write_usize(&mut self, _size: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

pub struct Checker {
    /// Number of masters in each client's list, and of all servers.
    master_count: usize,
    pub server_count: usize,
    pub facts: HashMap<Vec<u8>, Facts, BuildHasherDefault<TokenHasher>>,
    /// By token and master: all attempts that were ever parked.
    pub parkings: HashMap<Vec<u8>, BTreeMap<usize, Parking>, BuildHasherDefault<TokenHasher>>,
    pub guards: Vec<Guard>,
    /// By client and key: all masters that ever refused it.
    refused: Vec<(usize, Vec<u8>, MasterSet)>,
    /// The first fault found.
    pub violation: Option<String>,
    /// Whether exclusion is promised: clock rates differ by less than the drift allowance.
    pub judges_exclusion: bool,
    /// Whether the order of fencing tokens is promised, as far as the masters' clock rates matter.
    pub judges_fences: bool,
    pub issued: Vec<Issued>,
    /// Forced deletions that a client has requested and a master has not carried out.
    pub forced: BTreeMap<(usize, usize, Vec<u8>), u32>,
    /// In the order of their requests.
    pub waiters: Vec<Waiter>,
    /// The order is promised to waiters who ask later than this.
    disturbed_until: Time,
    pub guard_count: u64,
    pub void_count: u64,
}

impl Checker {
    pub fn new(master_count: usize) -> Self {
        Self {
            master_count,
            server_count: master_count,
            facts: HashMap::default(),
            parkings: HashMap::default(),
            guards: Vec::new(),
            refused: Vec::new(),
            violation: None,
            judges_exclusion: true,
            judges_fences: true,
            issued: Vec::new(),
            forced: BTreeMap::new(),
            waiters: Vec::new(),
            disturbed_until: Time::MAX,
            guard_count: 0,
            void_count: 0,
        }
    }

    pub fn violate(&mut self, what: impl Into<String>) {
        if self.violation.is_none() {
            self.violation = Some(what.into());
        }
    }

    pub fn quorum(&self) -> usize {
        quorum(self.master_count)
    }

    /// A master accepted a `SET` or an extension.
    pub fn note_granted(&mut self, index: usize, conn: &Conn, key: &[u8], value: &[u8], late: Time) {
        let token = token_of(value);
        let (count, client, life) = (self.server_count, conn.client, conn.client_life);
        let facts = self.facts.entry(token.to_vec()).or_insert_with(|| Facts {
            client,
            life,
            key: key.to_vec(),
            granted_by: vec![None; count],
            granted_over: vec![None; count],
            late: vec![0; count],
            returned: MasterSet::EMPTY,
            denied: MasterSet::EMPTY,
            lost: MasterSet::EMPTY,
            forgotten: MasterSet::EMPTY,
            is_handed_over: false,
            is_left: false,
            fence: None,
            fence_lost: MasterSet::EMPTY,
        });
        facts.granted_by[conn.master] = Some(conn.master_life);
        // A late command of a broken connection does not replace a command of the next connection.
        if conn.left_at.is_none() || facts.granted_over[conn.master].is_none() {
            facts.granted_over[conn.master] = Some(index);
        }
        facts.late[conn.master] = late;
        // The master has the key now, whatever it lost before.
        facts.lost.remove(id(conn.master));
        facts.forgotten.remove(id(conn.master));
        if facts.client != client || facts.life != life || facts.key != key {
            self.violate(format!("I6: one value was used for two locks, of client {client} and another"));
        }
    }

    /// A master accepted a fencing token.
    pub fn note_fenced(&mut self, value: &[u8], fence: u64, now: Time) {
        if let Some(facts) = self.facts.get_mut(token_of(value)) {
            let (before, _) = *facts.fence.get_or_insert((fence, now));
            if before != fence {
                self.violate("I13: one lock has two fencing tokens");
            }
        }
    }

    /// An unprotected fault changed a master's data. Fences that are lower now count as lost there.
    pub fn note_fences_lost(&mut self, master: usize, now: Instant, before: &Keys, after: &Keys) {
        for facts in self.facts.values_mut() {
            let (had, has) = (fence_in(before, now, &facts.key), fence_in(after, now, &facts.key));
            if has < had && facts.fence.is_some_and(|(fence, _)| has < fence) {
                facts.fence_lost.insert(id(master));
            }
        }
    }

    /// A master's clock was set back, which opens its window again for tokens whose fences it has lost.
    pub fn note_set_back(&mut self, master: usize, now: Instant, keys: &Keys) {
        for facts in self.facts.values_mut() {
            if facts.fence.is_some_and(|(fence, _)| fence_in(keys, now, &facts.key) < fence) {
                facts.fence_lost.insert(id(master));
            }
        }
    }

    /// A holder gets its fencing token. It must exceed all tokens handed out before a master first accepted
    /// this one, as far as masters of both quorums remember (I12).
    pub fn note_issued(&mut self, issued: Issued) {
        let began = self.facts.get(&issued.token).and_then(|facts| facts.fence);
        let Some((_, began)) = began else {
            return self.violate("I13: a fencing token that no master ever took");
        };
        let is_out_of_order = |before: &&Issued| {
            let lost = self.facts.get(&before.token).map(|facts| facts.fence_lost).unwrap_or_default();
            before.key == issued.key
                && before.fence >= issued.fence
                && before.notified_at < began
                && !before.granted.intersection(issued.granted).without(lost).is_empty()
        };
        if let Some(before) = self.issued.iter().find(is_out_of_order).filter(|_| self.judges_fences) {
            let text = format!("I12: fencing token {} after {}", issued.fence, before.fence);
            self.violate(text);
        }
        self.issued.push(issued);
    }

    /// A waiter stops waiting.
    pub fn end_waiting(&mut self, client: usize, lock: OpId) {
        self.waiters.retain(|it| it.client != client || it.lock != lock);
    }

    /// Judges the order of fair waiters from this time on, if nothing goes wrong.
    pub const fn judge_order(&mut self, from: Time) {
        self.disturbed_until = from;
    }

    /// A waiter gets the lock. In undisturbed time, nobody may be waiting who asked more than `slack`
    /// earlier. Returns a fair waiter's waiting time.
    pub fn note_turn(&mut self, client: usize, lock: OpId, slack: Time, now: Time) -> Option<Time> {
        let place = self.waiters.iter().position(|it| it.client == client && it.lock == lock)?;
        let it = self.waiters.remove(place);
        let is_passed = |other: &&Waiter| {
            other.key == it.key
                && other.asked_at > self.disturbed_until
                && other.asked_at + slack < it.asked_at
        };
        if let Some(other) = self.waiters.iter().find(is_passed) {
            let by = it.asked_at - other.asked_at;
            let text =
                format!("FAIR: c{client} {lock:?} passes c{} {:?}, {by} ns older", other.client, other.lock);
            self.violate(text);
        }
        Some(now - it.asked_at)
    }

    /// A master refused a key to a client.
    pub fn note_refused(&mut self, client: usize, key: &[u8], master: usize) {
        let known = self.refused.iter_mut().find(|it| it.0 == client && it.1 == key);
        match known {
            Some((_, _, masters)) => masters.insert(id(master)),
            None => self.refused.push((client, key.to_vec(), [id(master)].into_iter().collect())),
        }
    }

    /// Masters that ever refused a key to a client.
    pub fn refused(&self, client: usize, key: &[u8]) -> MasterSet {
        let known = self.refused.iter().find(|it| it.0 == client && it.1 == key);
        known.map(|it| it.2).unwrap_or_default()
    }

    pub fn note_swapped(&mut self, value: &[u8]) {
        if let Some(facts) = self.facts.get_mut(token_of(value)) {
            facts.is_handed_over = true;
        }
    }

    /// A lock passed to another client, with its fencing token.
    pub fn note_adopted(&mut self, old: &[u8], new: &[u8]) {
        let fence = self.facts.get(token_of(old)).and_then(|facts| facts.fence);
        if let Some(facts) = self.facts.get_mut(token_of(new)) {
            facts.fence = facts.fence.or(fence);
        }
    }

    pub fn note_denied(&mut self, master: usize, value: &[u8]) {
        if let Some(facts) = self.facts.get_mut(token_of(value)) {
            facts.denied.insert(id(master));
        }
    }

    /// A fault changed a master's data. Keys that are gone, or will expire earlier, are lost there.
    pub fn note_loss(&mut self, master: usize, wall: Wall, [before, after]: [&Keys; 2], is_protected: bool) {
        for (key, token, end) in leases(before, wall) {
            if lease_end(after, wall, key, token).is_some_and(|at| at >= end) {
                continue;
            }
            if let Some(facts) = self.facts.get_mut(token) {
                if is_protected { &mut facts.forgotten } else { &mut facts.lost }.insert(id(master));
            }
        }
    }

    /// A key was deleted by force: its holder has lost it there.
    pub fn note_forced(&mut self, client: usize, master: usize, key: &[u8]) {
        let count = self.forced.entry((client, master, key.to_vec())).or_default();
        match count.checked_sub(1) {
            Some(left) => *count = left,
            None => return self.violate("I10: a key was deleted without a look at its value"),
        }
        for facts in self.facts.values_mut().filter(|it| it.key == key && it.granted_by[master].is_some()) {
            facts.lost.insert(id(master));
        }
    }

    /// Older data replaced a master's data, and may restore keys.
    pub fn note_return(&mut self, master: usize, wall: Wall, [before, after]: [&Keys; 2]) {
        for (key, token, end) in leases(after, wall) {
            let is_known = lease_end(before, wall, key, token).is_some_and(|at| at >= end);
            if !is_known && let Some(facts) = self.facts.get_mut(token) {
                facts.returned.insert(id(master));
            }
        }
    }

    /// This master's uptime is false, so its quarantine protects nothing any more.
    pub fn note_unprotected(&mut self, master: usize) {
        for facts in self.facts.values_mut() {
            if facts.forgotten.contains(id(master)) {
                facts.lost.insert(id(master));
            }
        }
    }

    /// Only these masters were extended.
    pub fn count_masters(&mut self, client: usize, lock: OpId, granted: MasterSet) {
        self.guards
            .iter_mut()
            .filter(|guard| guard.client == client && guard.lock == lock)
            .for_each(|guard| guard.counted = granted);
    }

    pub fn guard(&self, client: usize, lock: OpId) -> Option<&Guard> {
        self.guards.iter().find(|guard| guard.client == client && guard.lock == lock)
    }

    /// Shortens a guard to this time; which masters count for it becomes known later.
    pub fn limit_guard(&mut self, client: usize, lock: OpId, until: Instant) {
        let guard = self.guards.iter_mut().find(|guard| guard.client == client && guard.lock == lock);
        if let Some(guard) = guard {
            guard.valid_until = until;
        }
    }

    /// The holder no longer relies on the lock.
    pub fn end_guard(&mut self, client: usize, lock: OpId) {
        self.guards.retain(|guard| guard.client != client || guard.lock != lock);
    }
}

pub fn id(master: usize) -> MasterId {
    MasterId::new(master).expect("below the limit")
}
