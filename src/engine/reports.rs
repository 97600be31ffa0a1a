//! What each master said in a round, for the error that tells people.

use std::time::Instant;

use super::Engine;
use super::claim::{Claim, Release};
use crate::error::{Report, Round};
use crate::lock::{Failure, HolderTtl, MasterSet, Tally, Vote};

impl Engine {
    /// What each master said in a round of this claim, for an error.
    pub(super) fn report(&self, now: Instant, round: Round, claim: &Claim, tally: &Tally) -> Report {
        let votes = self.fleet.links().map(|link| {
            let master = link.master;
            let mut vote = if tally.refused.contains(master) {
                match claim.failure(master) {
                    Some(
                        why @ (Failure::TokenRefused(_) | Failure::OthersFirst { .. } | Failure::NotHeld),
                    ) => Vote::Failed(why.clone()),
                    _ => Vote::Refused { holder: HolderTtl::Unknown },
                }
            } else if tally.granted.contains(master) {
                Vote::Granted
            } else {
                claim.failure(master).cloned().map_or(Vote::Pending, Vote::Failed)
            };
            if let Some(at) = link.quarantined_until
                && at > now
                && matches!(vote, Vote::Granted | Vote::Pending)
                && round != Round::Release
            {
                vote = Vote::Failed(Failure::Quarantined { left: at - now });
            }
            (self.config.labels[master.index()].clone(), vote)
        });
        Report { round, votes: votes.collect() }
    }

    /// The same for a release, whose answers are kept apart.
    pub(super) fn release_report(&self, now: Instant, claim: &Claim, release: &Release) -> Report {
        let tally = Tally { granted: release.deleted, refused: release.absent, failed: MasterSet::EMPTY };
        let mut report = self.report(now, Round::Release, claim, &tally);
        for ((_, vote), link) in report.votes.iter_mut().zip(self.fleet.links()) {
            if *vote != Vote::Pending {
                continue;
            }
            *vote = Vote::Failed(match (claim.asked.contains(link.master), link.is_ready()) {
                (false, _) => Failure::NotHeld,
                (true, false) => Failure::NotConnected { why: link.why.clone() },
                (true, true) => Failure::NoAnswer { limit: claim.answer_limit },
            });
        }
        report
    }
}
