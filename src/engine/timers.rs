//! Deadlines of connections, logins, operations and claims: at most one for each id, earliest first.

use std::time::Instant;

use super::locks::slab::Id;
use crate::limits;
use crate::lock::MasterId;

/// An indexed binary heap of deadlines. An id has at most one, so the heap never outgrows the tables.
///
/// A deadline that is too early costs only one needless wake-up: the woken part checks its own state and sets
/// the next deadline. So a deadline is moved later only when it fires, and a lock acquired and released
/// within its answer limit does not touch the heap, once its slot has been used.
#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: Vec<(Instant, u32)>,
    /// Place of each id in `heap`, or `NOWHERE`.
    place: Vec<u32>,
}

const NOWHERE: u32 = u32::MAX;

impl Timers {
    /// Makes `id` fire at `at` or earlier.
    #[inline(always)]
    pub(super) fn arm(&mut self, id: u32, at: Instant) {
        if let Some(&place) = self.place.get(id as usize)
            && let Some((armed, _)) = self.heap.get(place as usize)
            && *armed <= at
        {
            return;
        }
        self.arm_earlier(id, at);
    }

    #[cold]
    fn arm_earlier(&mut self, id: u32, at: Instant) {
        let index = id as usize;
        if index >= self.place.len() {
            self.place.resize(index + 1, NOWHERE);
        }
        match self.place[index] {
            NOWHERE => {
                self.heap.push((at, id));
                self.sift_up(self.heap.len() - 1);
            }
            place if at < self.heap[place as usize].0 => {
                self.heap[place as usize].0 = at;
                self.sift_up(place as usize);
            }
            _ => {}
        }
    }

    pub(super) fn armed_at(&self, id: u32) -> Option<Instant> {
        let place = self.place.get(id as usize).filter(|place| **place != NOWHERE)?;
        Some(self.heap[*place as usize].0)
    }

    pub(super) fn next(&self) -> Option<(Instant, u32)> {
        self.heap.first().copied()
    }

    /// Removes and returns a due id.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<u32> {
        let (at, id) = *self.heap.first()?;
        if at > now {
            return None;
        }
        self.place[id as usize] = NOWHERE;
        let last = self.heap.pop()?;
        if last.1 != id {
            self.heap[0] = last;
            self.sift_down(0);
        }
        Some(id)
    }

    fn sift_up(&mut self, mut at: usize) {
        while at > 0 && self.heap[at].0 < self.heap[(at - 1) / 2].0 {
            self.heap.swap(at, (at - 1) / 2);
            self.note(at);
            at = (at - 1) / 2;
        }
        self.note(at);
    }

    fn sift_down(&mut self, mut at: usize) {
        loop {
            let mut child = 2 * at + 1;
            if child + 1 < self.heap.len() && self.heap[child + 1].0 < self.heap[child].0 {
                child += 1;
            }
            if child >= self.heap.len() || self.heap[at].0 <= self.heap[child].0 {
                break;
            }
            self.heap.swap(at, child);
            self.note(at);
            at = child;
        }
        self.note(at);
    }

    /// Heap indexes fit 32 bits: ids do, and each has at most one entry.
    #[expect(clippy::cast_possible_truncation, reason = "a heap index is below the number of 32-bit ids")]
    fn note(&mut self, at: usize) {
        let id = self.heap[at].1;
        self.place[id as usize] = at as u32;
    }
}

/// What a timer id belongs to.
pub(super) enum Timer {
    Master(MasterId),
    Login(MasterId),
    Op(u32),
    Claim(u32),
}

/// Timer ids: masters, then their logins, then alternating operations and claims.
const MASTER_TIMERS: u32 = 32;
const _: () = assert!(MASTER_TIMERS as usize == limits::MASTER_COUNT_MAX);
const LINK_TIMERS: u32 = 2 * MASTER_TIMERS;

#[expect(clippy::cast_possible_truncation, reason = "a master's index is below 32")]
pub(super) const fn master_timer(master: MasterId) -> u32 {
    master.index() as u32
}

pub(super) const fn login_timer(master: MasterId) -> u32 {
    MASTER_TIMERS + master_timer(master)
}

pub(super) const fn op_timer(id: Id) -> u32 {
    LINK_TIMERS + id.index * 2
}

pub(super) const fn claim_timer(id: Id) -> u32 {
    LINK_TIMERS + id.index * 2 + 1
}

pub(super) fn timer_of(id: u32) -> Timer {
    let master = |index: u32| MasterId::new(index as usize).expect("below the number of master timers");
    match id.checked_sub(LINK_TIMERS) {
        None if id < MASTER_TIMERS => Timer::Master(master(id)),
        None => Timer::Login(master(id - MASTER_TIMERS)),
        Some(index) if index % 2 == 0 => Timer::Op(index / 2),
        Some(index) => Timer::Claim(index / 2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::time::Duration;

    #[test]
    fn fires_in_order_like_a_sorted_map() {
        let start = Instant::now();
        let (mut timers, mut oracle) = (Timers::default(), BTreeMap::<u32, Instant>::new());
        let mut random = 1_u64;
        for round in 0..20_000_u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (id, ms) = (u32::try_from(random >> 33).expect("31 bits") % 64, round + (random >> 20) % 500);
            let at = start + Duration::from_millis(ms);
            timers.arm(id, at);
            let entry = oracle.entry(id).or_insert(at);
            *entry = at.min(*entry);
            assert_eq!(timers.next().map(|(at, _)| at), oracle.values().min().copied());
            if random.is_multiple_of(3) {
                let now = start + Duration::from_millis(round + 50);
                while let Some(id) = timers.pop_due(now) {
                    let at = oracle.remove(&id).expect("armed");
                    assert!(at <= now && oracle.values().all(|other| *other >= at));
                }
                assert!(oracle.values().all(|at| *at > now));
            }
        }
        assert!(timers.heap.len() <= 64);
    }
}
