//! One query: an inspection, a forced unlock, a search for free slots, a pause, or a drain.
//!
//! Each usable master is asked once. The query ends when all have answered, or at its deadline.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::free_slots::FreeSlots;
use super::inspection::{ForceUnlocked, Inspection, KeyState};
use crate::engine::request::Outcome;
use crate::error::{Report, Round};
use crate::limits;
use crate::lock::command::answer::ReleaseAnswer;
use crate::lock::command::slots::SlotMark;
use crate::lock::{Failure, HolderTtl, MasterId, MasterSet, Vote};

#[derive(Debug)]
pub(crate) struct Query {
    pub(crate) deadline: Instant,
    /// Longest wait for the answers.
    pub(crate) limit: Duration,
    /// Masters that owe an answer.
    pub(crate) asked: MasterSet,
    work: Work,
}

#[derive(Debug)]
enum Work {
    /// Each master's answers: first the value, then the number of readers, then the time left.
    Inspect {
        parts: Vec<Parts>,
        states: Vec<Option<KeyState>>,
    },
    ForceUnlock {
        votes: Vec<Vote>,
    },
    Slots(FreeSlots),
    /// Asks nobody; ends at its deadline.
    Pause,
    /// Asks nobody; ends when no claim is left, or at `until`. The deadline is the next check.
    Drain {
        until: Instant,
    },
}

/// A master's answers to an inspection, except the last one.
#[derive(Debug, Clone)]
struct Parts {
    value: Result<Box<[u8]>, Failure>,
    reader_count: usize,
}

impl Query {
    /// An inspection. `absences` gives the reason for each master that is not asked.
    pub(crate) fn inspect(
        now: Instant,
        limit: Duration,
        asked: MasterSet,
        absences: impl Iterator<Item = Option<Failure>>,
    ) -> Self {
        let states: Vec<_> = absences.map(|absence| absence.map(KeyState::Failed)).collect();
        let parts = vec![Parts { value: Ok(Box::default()), reader_count: 0 }; states.len()];
        Self { deadline: now + limit, limit, asked, work: Work::Inspect { parts, states } }
    }

    pub(crate) fn force_unlock(
        now: Instant,
        limit: Duration,
        asked: MasterSet,
        absences: impl Iterator<Item = Option<Failure>>,
    ) -> Self {
        let votes = absences.map(|absence| absence.map_or(Vote::Pending, Vote::Failed)).collect();
        Self { deadline: now + limit, limit, asked, work: Work::ForceUnlock { votes } }
    }

    /// A search for free slots. `absences` gives the reason for each master that is not asked.
    pub(crate) fn free_slots(
        now: Instant,
        limit: Duration,
        asked: MasterSet,
        mut slots: FreeSlots,
        absences: impl Iterator<Item = Option<Failure>>,
    ) -> Self {
        let absent = absences.enumerate().filter_map(|(index, why)| Some((MasterId::new(index)?, why?)));
        absent.for_each(|(master, why)| slots.fail(master, why));
        let work = Work::Slots(slots);
        Self { deadline: now + limit, limit, asked, work }
    }

    pub(crate) fn pause(now: Instant, time: Duration) -> Self {
        Self { deadline: now + time, limit: time, asked: MasterSet::EMPTY, work: Work::Pause }
    }

    pub(crate) fn drain(now: Instant, limit: Duration) -> Self {
        let until = now.checked_add(limit).unwrap_or(now + limits::FOREVER);
        Self { deadline: now, limit, asked: MasterSet::EMPTY, work: Work::Drain { until } }
    }

    /// Whether no more answers are awaited.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        let is_early = matches!(self.work, Work::Pause) && now < self.deadline;
        !is_early && self.asked.is_empty()
    }

    /// Whether a drain must check again because something is left. Sets the time of the next check. False for
    /// other queries.
    pub(crate) fn looks_again(&mut self, now: Instant, is_drained: bool) -> bool {
        let Work::Drain { until } = self.work else { return false };
        self.deadline = until.min(now + limits::DRAIN_LOOK_PAUSE);
        now < until && !is_drained
    }

    pub(crate) fn note_value(&mut self, master: MasterId, value: Result<Box<[u8]>, Failure>) {
        self.parts(master).value = value;
    }

    pub(crate) fn note_reader_count(&mut self, master: MasterId, count: Result<usize, Failure>) {
        let parts = self.parts(master);
        match (count, &mut parts.value) {
            (Ok(count), _) => parts.reader_count = count,
            // The key is no string, so this error is the reason. A string needs no count.
            (Err(failure), Err(of_value)) => *of_value = failure,
            (Err(_), Ok(_)) => {}
        }
    }

    /// Takes the last answer of an inspection. A master in quarantine (for `left_in_quarantine`) may have
    /// forgotten an absent key (I8).
    pub(crate) fn note_time_left(
        &mut self,
        master: MasterId,
        left: Result<HolderTtl, Failure>,
        left_in_quarantine: Option<Duration>,
    ) {
        let none = Parts { value: Ok(Box::default()), reader_count: 0 };
        let Parts { value, reader_count: readers } = std::mem::replace(self.parts(master), none);
        let answer = match (value, left) {
            // A key with readers is no string, so its value was an error.
            (_, Ok(left @ (HolderTtl::Left(_) | HolderTtl::Never))) if readers > 0 => {
                KeyState::Shared { readers, left }
            }
            (_, Err(failure)) | (Err(failure), _) => KeyState::Failed(failure),
            (_, Ok(HolderTtl::Gone)) => match left_in_quarantine {
                Some(left) => KeyState::Failed(Failure::Quarantined { left, is_new: false }),
                None => KeyState::Absent,
            },
            (Ok(value), Ok(left)) => KeyState::Holds { value, left },
        };
        self.end_at(master, answer);
    }

    /// Takes a report of slots, or why there is none. Ends the search once it is decided.
    pub(crate) fn note_free_slots(&mut self, master: MasterId, report: Result<Vec<SlotMark>, Failure>) {
        let Work::Slots(free) = &mut self.work else { unreachable!("only a look for slots is given some") };
        self.asked.remove(master);
        match report {
            Ok(report) => free.add(report),
            Err(failure) => free.fail(master, failure),
        }
        if free.is_decided(self.asked.count()) {
            self.asked = MasterSet::EMPTY;
        }
    }

    pub(crate) fn note_deletion(&mut self, master: MasterId, answer: ReleaseAnswer) {
        let Work::ForceUnlock { votes } = &mut self.work else {
            unreachable!("only a forced unlock deletes by force")
        };
        votes[master.index()] = match answer {
            ReleaseAnswer::Deleted => Vote::Granted,
            ReleaseAnswer::Absent => Vote::Refused { holder: HolderTtl::Gone },
            ReleaseAnswer::Failed(failure) => Vote::Failed(failure),
        };
        self.asked.remove(master);
    }

    /// Notes that a master will not answer.
    pub(crate) fn fail_at(&mut self, master: MasterId, failure: Failure) {
        match &mut self.work {
            Work::Inspect { .. } => self.end_at(master, KeyState::Failed(failure)),
            Work::ForceUnlock { votes } => votes[master.index()] = Vote::Failed(failure),
            Work::Slots(_) => return self.note_free_slots(master, Err(failure)),
            Work::Pause | Work::Drain { .. } => {}
        }
        self.asked.remove(master);
    }

    pub(crate) fn into_outcome(self, labels: &[Arc<str>], resource: &[u8], claim_count: usize) -> Outcome {
        if let Work::Slots(free) = self.work {
            return Outcome::FreeSlots(free.look(labels));
        }
        let labels = labels.iter().cloned();
        match self.work {
            Work::Pause | Work::Slots(_) => Outcome::Paused,
            Work::Drain { .. } => Outcome::Drained(claim_count),
            Work::Inspect { states, .. } => {
                // All states are known once no question is open.
                let states = states.into_iter().map(|it| it.unwrap_or(KeyState::Absent));
                Outcome::Inspect(Inspection { masters: labels.zip(states).collect() })
            }
            Work::ForceUnlock { votes } => {
                let votes = labels.zip(votes).collect();
                let report =
                    Report { round: Round::Release, resource: Bytes::copy_from_slice(resource), votes };
                Outcome::ForceUnlock(ForceUnlocked { report })
            }
        }
    }

    fn parts(&mut self, master: MasterId) -> &mut Parts {
        let Work::Inspect { parts, .. } = &mut self.work else { unreachable!("only a look asks for values") };
        &mut parts[master.index()]
    }

    fn end_at(&mut self, master: MasterId, answer: KeyState) {
        let Work::Inspect { states, .. } = &mut self.work else {
            unreachable!("only a look is given a time")
        };
        states[master.index()] = Some(answer);
        self.asked.remove(master);
    }
}
