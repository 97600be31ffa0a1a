//! One query: what an engine does that is no lock of its own. A look at what masters hold, a deletion by
//! force, a pause, the end of the engine's locks.
//!
//! It is asked for once, of each master that is usable, and ends when all have answered or at its deadline.

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
    /// How long answers are waited for.
    pub(crate) limit: Duration,
    /// Masters whose answer is under way.
    pub(crate) asked: MasterSet,
    work: Work,
}

#[derive(Debug)]
enum Work {
    /// Answers of each master; the value comes first, then how many readers there are, then the time.
    Inspect {
        parts: Vec<Parts>,
        states: Vec<Option<KeyState>>,
    },
    ForceUnlock {
        votes: Vec<Vote>,
    },
    Slots(FreeSlots),
    /// Nobody is asked: it ends at its deadline.
    Pause,
    /// Nobody is asked: it ends when no claim is left, or at this time. Its deadline is the next look.
    Drain {
        until: Instant,
    },
}

/// The answers of one master that come before the last one.
#[derive(Debug, Clone)]
struct Parts {
    value: Result<Box<[u8]>, Failure>,
    reader_count: usize,
}

impl Query {
    /// A look at what masters hold. `absences` has the reason for each master that is not asked.
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

    /// A deletion by force.
    pub(crate) fn force_unlock(
        now: Instant,
        limit: Duration,
        asked: MasterSet,
        absences: impl Iterator<Item = Option<Failure>>,
    ) -> Self {
        let votes = absences.map(|absence| absence.map_or(Vote::Pending, Vote::Failed)).collect();
        Self { deadline: now + limit, limit, asked, work: Work::ForceUnlock { votes } }
    }

    /// A look for free slots. `absences` has the reason for each master that is not asked.
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

    /// Whether no answer is to be waited for any more.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        let is_early = matches!(self.work, Work::Pause) && now < self.deadline;
        !is_early && self.asked.is_empty()
    }

    /// Whether a drain looks again, and later: something is left, or under way. False for any other query.
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
            // The key holds no text: this is why nothing is known of it. A text needs no count.
            (Err(failure), Err(of_value)) => *of_value = failure,
            (Err(_), Ok(_)) => {}
        }
    }

    /// The last answer to a look. A master in quarantine, for the time `left_in_quarantine`, may have
    /// forgotten a key that is absent (I8).
    pub(crate) fn note_time_left(
        &mut self,
        master: MasterId,
        left: Result<HolderTtl, Failure>,
        left_in_quarantine: Option<Duration>,
    ) {
        let none = Parts { value: Ok(Box::default()), reader_count: 0 };
        let Parts { value, reader_count: readers } = std::mem::replace(self.parts(master), none);
        let answer = match (value, left) {
            // The key holds no text, then.
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

    /// Notes the answer to a look for free slots, or why it does not count. Ends the look once it is decided.
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

    /// The answer to a deletion by force.
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

    /// No answer of this master will come.
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
                // Each is there once nobody is asked any more.
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
