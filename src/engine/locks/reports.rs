//! Reports for people: what each master answered in a round.

use std::time::Instant;

use bytes::Bytes;

use super::claim::{Claim, Release};
use crate::engine::masters::fleet::Fleet;
use crate::error::{Report, Round};
use crate::lock::command;
use crate::lock::{Failure, HolderTtl, MasterSet, Tally, Vote};

/// Reports each master's answer in a round of this claim, for an error.
pub(crate) fn report(fleet: &Fleet, now: Instant, round: Round, claim: &Claim, tally: &Tally) -> Report {
    let votes = fleet.links().map(|link| {
        let master = link.master;
        let mut vote = if tally.refused.contains(master) {
            match claim.failure(master) {
                Some(why @ (Failure::TokenRefused(_) | Failure::NotHeld)) => Vote::Failed(why.clone()),
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
            && !matches!(round, Round::Release | Round::Leave)
        {
            vote = Vote::Failed(Failure::Quarantined { left: at - now, is_new: link.may_be_new() });
        }
        (fleet.config.labels[master.index()].clone(), vote)
    });
    let resource =
        Bytes::copy_from_slice(command::entry::name_in(claim.entry.key(), fleet.config.prefix.len()));
    Report { round, resource, votes: votes.collect() }
}

/// Reports each master's answer to a release, or to the rest of a lock left for a time: `release` stores
/// these answers.
pub(crate) fn release_report(fleet: &Fleet, now: Instant, claim: &Claim, release: &Release) -> Report {
    let tally = Tally { granted: release.deleted, refused: release.absent, failed: MasterSet::EMPTY };
    let round = if claim.leaving().is_some() { Round::Leave } else { Round::Release };
    let mut report = report(fleet, now, round, claim, &tally);
    for ((_, vote), link) in report.votes.iter_mut().zip(fleet.links()) {
        if *vote != Vote::Pending {
            continue;
        }
        *vote = Vote::Failed(match (claim.asked.contains(link.master), link.connection.is_ready()) {
            (false, _) => Failure::NotHeld,
            (true, false) => Failure::NotConnected { why: link.why.clone() },
            // Its answer cannot change the outcome.
            (true, true) if now < release.started + claim.answer_limit => continue,
            (true, true) => Failure::NoAnswer { limit: claim.answer_limit },
        });
    }
    report
}
