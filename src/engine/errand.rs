//! Errands: what an engine does that is no lock of its own: a look at what masters hold, a deletion by force, a pause.
//!
//! An errand is an operation without a claim: it is asked for once, of each master that is usable, and ends when all have
//! answered or at its deadline. It stands in no line. Keeps that no answer to it is a vote for anything, and that nothing
//! else sends the deletion that does not compare (I10).

use std::time::{Duration, Instant};

use super::inspection::{ForceUnlocked, Inspection, Told};
use super::link::Owed;
use super::op::OpState;
use super::slab::Id;
use super::{Engine, OpId, Outcome, SubmitError};
use crate::error::{Report, Round};
use crate::lock::command::{self, ReleaseAnswer};
use crate::lock::{Failure, HolderTtl, MasterId, MasterSet, Resource, Vote};
use crate::mutants::mutant;

#[derive(Debug)]
pub(super) struct Errand {
    deadline: Instant,
    /// How long answers are waited for.
    limit: Duration,
    /// Masters whose answer is under way.
    asked: MasterSet,
    work: Work,
}

#[derive(Debug)]
enum Work {
    /// What each master has told; the value comes first, then how many readers there are, then the time.
    Inspect {
        values: Vec<Result<Box<[u8]>, Failure>>,
        reader_counts: Vec<usize>,
        told: Vec<Option<Told>>,
    },
    ForceUnlock {
        votes: Vec<Vote>,
    },
    /// Nobody is asked: it ends at its deadline.
    Pause,
}

impl Errand {
    pub(super) const fn deadline(&self) -> Instant {
        self.deadline
    }
}

impl Engine {
    pub(super) fn submit_inspect(
        &mut self,
        now: Instant,
        resource: Resource<'_>,
    ) -> Result<OpId, SubmitError> {
        let (id, limit) = self.begin_errand(now, Some(resource))?;
        let op = self.ops.op(id);
        let usable = self.fleet.usable();
        let valued = self.fleet.send(usable, Owed::Value(id), |out| command::encode_value(out, &op.key));
        // Whoever had room for the first only has its answer ignored.
        let counted = self.fleet.send(valued, Owed::ReaderCount(id), |out| {
            command::encode_reader_count(out, &op.key);
        });
        let asked = self.fleet.send(counted, Owed::TimeLeft(id), |out| command::encode_pttl(out, &op.key));
        let values = vec![Ok(Box::default()); self.fleet.count()];
        let reader_counts = vec![0; self.fleet.count()];
        let told = self.absences(asked).into_iter().map(|absence| absence.map(Told::Failed)).collect();
        self.start_errand(now, id, limit, asked, Work::Inspect { values, reader_counts, told });
        Ok(OpId(id))
    }

    pub(super) fn submit_force_unlock(
        &mut self,
        now: Instant,
        resource: Resource<'_>,
    ) -> Result<OpId, SubmitError> {
        let (id, limit) = self.begin_errand(now, Some(resource))?;
        let op = self.ops.op(id);
        let asked = self.fleet.send(self.fleet.usable(), Owed::ForcedDelete(id), |out| {
            command::encode_forced_delete(out, &op.key);
        });
        let votes =
            self.absences(asked).into_iter().map(|it| it.map_or(Vote::Pending, Vote::Failed)).collect();
        self.start_errand(now, id, limit, asked, Work::ForceUnlock { votes });
        Ok(OpId(id))
    }

    pub(super) fn submit_pause(
        &mut self,
        now: Instant,
        attempts: u32,
        took: Duration,
    ) -> Result<OpId, SubmitError> {
        let (id, _) = self.begin_errand(now, None)?;
        let limit = self.draw_pause(took, attempts);
        self.start_errand(now, id, limit, MasterSet::EMPTY, Work::Pause);
        Ok(OpId(id))
    }

    /// Takes an operation that has the key with it, and tells how long answers are waited for.
    fn begin_errand(
        &mut self,
        now: Instant,
        resource: Option<Resource<'_>>,
    ) -> Result<(Id, Duration), SubmitError> {
        let ttl = self.config.ttl(self.config.max_ttl)?;
        let (id, op) = self.ops.take(now, ttl).ok_or(SubmitError::Overloaded)?;
        op.begin(now, ttl, Duration::ZERO, None);
        // Whoever had the slot before may have left a claim that lives on: it is none of this one's.
        op.claim = Id::NOBODY;
        if let Some(resource) = resource {
            command::encode_key(&mut op.key, &self.config.prefix, resource.as_bytes());
        }
        Ok((id, self.config.answer_limit(ttl)))
    }

    /// Why each master that is not asked is not.
    fn absences(&self, asked: MasterSet) -> Vec<Option<Failure>> {
        let absence = |master| (!asked.contains(master)).then(|| self.fleet.why_unasked(master));
        self.fleet.all().iter().map(absence).collect()
    }

    fn start_errand(&mut self, now: Instant, id: Id, limit: Duration, asked: MasterSet, work: Work) {
        let op = self.ops.op_mut(id);
        op.state = OpState::Errand(Box::new(Errand { deadline: now + limit, limit, asked, work }));
        self.arm_op(id);
        self.check_errand(now, id);
    }

    /// The errand of this operation, if this master's answer to it is still wanted.
    fn errand_at(&mut self, master: MasterId, id: Id) -> Option<&mut Errand> {
        match &mut self.ops.find_mut(id)?.state {
            OpState::Errand(errand) if errand.asked.contains(master) => Some(errand),
            _ => None,
        }
    }

    pub(super) fn handle_value(&mut self, master: MasterId, id: Id, value: Result<Box<[u8]>, Failure>) {
        if let Some(Errand { work: Work::Inspect { values, .. }, .. }) = self.errand_at(master, id) {
            values[master.index()] = value;
        }
    }

    pub(super) fn handle_reader_count(&mut self, master: MasterId, id: Id, count: Result<usize, Failure>) {
        let Some(Errand { work: Work::Inspect { values, reader_counts, .. }, .. }) =
            self.errand_at(master, id)
        else {
            return;
        };
        match (count, &mut values[master.index()]) {
            (Ok(count), _) => reader_counts[master.index()] = count,
            // The key holds no text: this is why nothing is known of it. A text needs no count.
            (Err(failure), Err(of_value)) => *of_value = failure,
            (Err(_), Ok(_)) => {}
        }
    }

    pub(super) fn handle_time_left(
        &mut self,
        now: Instant,
        master: MasterId,
        id: Id,
        left: Result<HolderTtl, Failure>,
    ) {
        // A key that is absent may have been forgotten, if the master may have forgotten a lock (I8).
        let is_quarantined = self.fleet.quarantined(now).contains(master);
        let quarantined_until = self.fleet.link(master).quarantined_until;
        if mutant!(LookIsVote) && left == Ok(HolderTtl::Gone) {
            let next = self.ops.occupant(id.index).and_then(|id| self.ops.find(id));
            let claim = next.map_or(Id::NOBODY, |op| op.claim);
            return self.handle_acquire_vote(now, master, claim, Vote::Granted);
        }
        let Some(errand) = self.errand_at(master, id) else { return };
        let Work::Inspect { values, reader_counts, told } = &mut errand.work else {
            unreachable!("only a look asks for times")
        };
        let readers = reader_counts[master.index()];
        let value = std::mem::replace(&mut values[master.index()], Ok(Box::default()));
        told[master.index()] = Some(match (value, left) {
            // The key holds no text, then.
            (_, Ok(left @ (HolderTtl::Left(_) | HolderTtl::Never))) if readers > 0 => {
                Told::Shared { readers, left }
            }
            (_, Err(failure)) | (Err(failure), _) => Told::Failed(failure),
            (_, Ok(HolderTtl::Gone)) if is_quarantined => {
                let left = quarantined_until.map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
                Told::Failed(Failure::Quarantined { left })
            }
            (_, Ok(HolderTtl::Gone)) => Told::Absent,
            (Ok(value), Ok(left)) => Told::Holds { value, left },
        });
        errand.asked.remove(master);
        self.check_errand(now, id);
    }

    pub(super) fn handle_forced_delete(
        &mut self,
        now: Instant,
        master: MasterId,
        id: Id,
        answer: ReleaseAnswer,
    ) {
        let Some(errand) = self.errand_at(master, id) else { return };
        let Work::ForceUnlock { votes } = &mut errand.work else {
            unreachable!("only a forced unlock deletes by force")
        };
        votes[master.index()] = match answer {
            ReleaseAnswer::Deleted => Vote::Granted,
            ReleaseAnswer::Absent => Vote::Refused { holder: HolderTtl::Gone },
            ReleaseAnswer::Failed(failure) => Vote::Failed(failure),
        };
        errand.asked.remove(master);
        self.check_errand(now, id);
    }

    /// The errand's time is over: who has not answered has failed.
    pub(super) fn miss_errand(&mut self, now: Instant, id: Id) {
        let OpState::Errand(errand) = &self.ops.op(id).state else { unreachable!("an errand was due") };
        let (limit, missing) = (errand.limit, errand.asked);
        for master in missing.iter() {
            self.fail_errand_at(master, id, Failure::NoAnswer { limit });
            self.fleet.note_missed(now, master, limit, &mut self.timers);
        }
        self.check_errand(now, id);
    }

    /// A connection broke on which errands may have something under way.
    pub(super) fn lose_errands(&mut self, now: Instant, master: MasterId) {
        if mutant!(ForcedDeletionAgain) {
            return;
        }
        for id in self.ops.ids() {
            if self.errand_at(master, id).is_some() {
                self.fail_errand_at(master, id, Failure::ConnectionLost);
                self.check_errand(now, id);
            }
        }
    }

    /// With [`Mutant::ForcedDeletionAgain`](crate::mutants::Mutant) only: what the connection before has lost.
    #[cfg(redlatch_mutants)]
    pub(super) fn repeat_errands(&mut self, master: MasterId) {
        for id in self.ops.ids() {
            if mutant!(ForcedDeletionAgain) && self.errand_at(master, id).is_some() {
                let op = self.ops.op(id);
                let only = MasterSet::only(master);
                self.fleet.send(only, Owed::ForcedDelete(id), |out| {
                    command::encode_forced_delete(out, &op.key);
                });
            }
        }
    }

    fn fail_errand_at(&mut self, master: MasterId, id: Id, failure: Failure) {
        let Some(errand) = self.errand_at(master, id) else { return };
        match &mut errand.work {
            Work::Inspect { told, .. } => told[master.index()] = Some(Told::Failed(failure)),
            Work::ForceUnlock { votes } => votes[master.index()] = Vote::Failed(failure),
            Work::Pause => {}
        }
        errand.asked.remove(master);
    }

    /// Ends an errand for which no answer is to be waited for any more.
    fn check_errand(&mut self, now: Instant, id: Id) {
        let op = self.ops.op_mut(id);
        let OpState::Errand(errand) = &op.state else { unreachable!("it is an errand") };
        let is_early = matches!(errand.work, Work::Pause) && now < errand.deadline;
        if is_early || !errand.asked.is_empty() {
            return;
        }
        let OpState::Errand(errand) = std::mem::replace(&mut op.state, OpState::Releasing) else {
            unreachable!("it is an errand")
        };
        self.ops.free(id);
        let labels = self.config.labels.iter().cloned();
        let outcome = match errand.work {
            Work::Pause => Outcome::Paused,
            Work::Inspect { told, .. } => {
                // Each is there once nobody is asked any more.
                let told = told.into_iter().map(|it| it.unwrap_or(Told::Absent));
                Outcome::Inspect(Inspection { masters: labels.zip(told).collect() })
            }
            Work::ForceUnlock { votes } => {
                let report = Report { round: Round::Release, votes: labels.zip(votes).collect() };
                Outcome::ForceUnlock(ForceUnlocked { report })
            }
        };
        self.outcomes.push_back((OpId(id), outcome));
    }
}
