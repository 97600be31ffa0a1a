//! A lock that is held: its extension, and its repair.
//!
//! A repair asks masters again for a lock that they missed while they were away, so that more of them may
//! be lost without harm. Only for a lock that is valid and of which a quorum is known to have the key: then
//! it is nobody else's to take. One that masters have shown to be lost, or that was broken by force, is not
//! put back. The key that is put back ends with those of the other masters. The fence of a fenced lock is
//! set with it.

use std::time::Duration;

use super::claim::{Claim, Votes};
use super::ground::Ground;
use super::link::Link;
use super::locks::Locks;
use super::masters::Masters;
use super::mode;
use super::op::{Extension, Held, OpState};
use super::owed::{Owed, Verb};
use super::slab::Id;
use super::{Outcome, counting, defects, keep, reports, turns};
use crate::error::{ExtendError, Round};
use crate::lock::command::scripts::Script;
use crate::lock::{Failure, MasterId, MasterSet, Tally, Ttl, Verdict, Vote};
use crate::mutants::mutant;

/// Why a master was not sent an extension.
fn why_unsent(link: &Link, claim: &Claim, unsure: MasterSet, usable: MasterSet) -> Failure {
    let master = link.master;
    if !claim.asked.contains(master) {
        Failure::NotHeld
    } else if claim.doubts.twins.contains(master) {
        Failure::SameServer
    } else if !usable.contains(master) {
        link.absence()
    } else if unsure.contains(master) {
        Failure::ConnectionLost
    } else {
        Failure::QueueFull
    }
}

pub(super) fn submit_extend(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    id: Id,
    ttl: Duration,
) {
    let started = ground.config.ttl(ttl).map_err(ExtendError::Input);
    if let Err(error) = started.and_then(|ttl| start_extend(ground, masters, locks, id, ttl)) {
        ground.report_outcome(id, Outcome::Extend(Err(error)));
    } else {
        decide_extend(ground, masters, locks, id);
        locks.arm(ground, id);
    }
    // The validity may end sooner ground.now than the next waiter in the queue expects.
    turns::tend_queue_of(ground, locks, id);
}

/// Queues the extension on every usable master that may hold the key and will not cut it short
/// afterwards.
pub(super) fn start_extend(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    id: Id,
    ttl: Ttl,
) -> Result<(), ExtendError> {
    let now = ground.now;
    let max_hold = ground.config.max_hold;
    let op = locks.ops.find_mut(id).ok_or(ExtendError::NotHeld)?;
    let OpState::Held(held) = &mut op.state else { return Err(ExtendError::NotHeld) };
    let claim = locks.claims.get_mut(op.claim);
    // A renewal gives way to the caller's own.
    if held.extension.is_some_and(|extension| !extension.is_renewal) {
        return Err(ExtendError::Busy);
    }
    if now >= held.valid_until && !mutant!(ExtensionAfterDeadline) {
        return Err(ExtendError::Expired);
    }
    if (now - held.since).saturating_add(ttl.as_duration()) > max_hold {
        return Err(ExtendError::HoldLimit { max_hold });
    }
    let extended_until = now + ttl.validity();
    let answer_limit = masters.fleet.answer_limit(ttl);
    let deadline = (now + answer_limit).min(held.valid_until);
    // A shorter TTL may take effect on some masters even if the round fails, so it counts from here on.
    if extended_until < held.valid_until && !mutant!(ShorterExtensionIgnored) {
        (held.valid_until, held.ttl) = (extended_until, ttl);
        op.validity.move_to(extended_until);
    }
    held.round = held.round.wrapping_add(1);
    op.asked.ttl = ttl;
    claim.note_ttl(now, ttl, answer_limit);
    claim.failures.clear();
    let mut tally = Tally { refused: claim.absent(masters.fleet.all), ..Tally::default() };
    let unsure = claim.may_cut_short(ttl.as_millis()).union(claim.doubts.twins);
    let holders = claim.holders().intersection(masters.fleet.usable).without(unsure).without(tally.refused);
    let owed = Owed::round(Verb::Extend, claim.kind.tag(), held.round, id);
    let sent = mode::send_extend(&mut masters.fleet, holders, owed, claim, ttl, Script::Sha);
    claim.doubts.owes_extension = claim.doubts.owes_extension.union(sent);
    for link in masters.fleet.links() {
        let master = link.master;
        let is_absent = tally.refused.contains(master);
        if sent.contains(master) || (is_absent && claim.asked.contains(master)) {
            continue;
        }
        if !is_absent {
            tally.failed.insert(master);
        }
        let failure = why_unsent(link, claim, unsure, masters.fleet.usable);
        claim.failures.push((master, failure));
    }
    held.extension = Some(Extension { deadline, valid_until: extended_until, tally, is_renewal: false });
    Ok(())
}

pub(super) fn handle_extend_vote(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    master: MasterId,
    id: Id,
    round: u32,
    vote: Vote,
) {
    let Some(op) = locks.ops.find_mut(id) else { return };
    let OpState::Held(held) = &mut op.state else { return };
    let claim = locks.claims.get_mut(op.claim);
    let is_twin = vote == Vote::Granted && claim.doubts.twins.contains(master);
    let vote = if is_twin { Vote::Failed(Failure::SameServer) } else { vote };
    match vote {
        // Whichever round it answers: this master no longer holds the key.
        Vote::Refused { .. } => claim.note_gone(master),
        // Also after the verdict: this master holds it for as long as the others.
        Vote::Granted if held.round == round => claim.tally.granted.insert(master),
        _ => {}
    }
    if held.round != round {
        return;
    }
    claim.doubts.owes_extension.remove(master);
    let Some(extension) = held.extension.as_mut() else {
        if matches!(vote, Vote::Refused { .. }) {
            repair_op(ground, masters, locks, master, id);
            check_loss(ground, masters, locks, id);
        }
        return;
    };
    match vote {
        Vote::Granted => extension.tally.granted.insert(master),
        Vote::Refused { .. } => extension.tally.refused.insert(master),
        Vote::Failed(failure) => {
            extension.tally.granted.remove(master);
            extension.tally.failed.insert(master);
            claim.failures.push((master, failure));
        }
        Vote::Pending => {}
    }
    decide_extend(ground, masters, locks, id);
}

pub(super) fn decide_extend(ground: &mut Ground, masters: &mut Masters, locks: &mut Locks, id: Id) {
    let now = ground.now;
    let quarantined = masters.fleet.quarantined(now);
    let op = locks.ops.get_mut(id);
    let OpState::Held(held) = &mut op.state else { unreachable!("only a held lock is extended") };
    let Extension { valid_until: extended_until, tally, is_renewal, .. } =
        held.extension.expect("an extension is under way");
    let verdict = match tally.verdict(masters.fleet.count(), quarantined) {
        Verdict::NoQuorum | Verdict::Contended
            if mutant!(ExtensionOnMinority) && !tally.granted.is_empty() =>
        {
            Verdict::Granted
        }
        Verdict::NoQuorum if mutant!(ExtensionOnUnknown) => Verdict::Granted,
        verdict => verdict,
    };
    let spare = masters.fleet.spare();
    // Only masters that cannot have the key prove that no quorum can be left; silence does not (I16).
    let is_lost = tally.refused.count() > spare;
    // An answer that is still to come may prove it.
    let may_be_lost = masters.fleet.all.without(tally.granted.union(tally.failed)).count() > spare;
    let is_complete = tally.heard() == masters.fleet.all;
    if verdict == Verdict::Open || (verdict != Verdict::Granted && !is_lost && may_be_lost && !is_complete) {
        return;
    }
    held.extension = None;
    let before = (held.valid_until, held.ttl);
    // The lock must be valid still: one that was called lost never comes back (I11).
    let is_valid = now < held.valid_until || mutant!(ExtensionAfterDeadline);
    let result = if verdict == Verdict::Granted && is_valid && now < extended_until {
        held.valid_until = extended_until;
        if mutant!(ExtensionFromReply) {
            held.valid_until = now + op.asked.ttl.validity();
        }
        op.validity.move_to(held.valid_until);
        if !mutant!(LossReportsOldTtl) {
            held.ttl = op.asked.ttl;
        }
        Ok(held.valid_until)
    } else {
        let claim = locks.claims.get(op.claim);
        let report = reports::report(&masters.fleet, ground.now, Round::Extend, claim, &tally);
        Err(match verdict {
            Verdict::Granted => ExtendError::Expired,
            _ if is_lost => ExtendError::Lost(report),
            Verdict::Contended | Verdict::NoQuorum | Verdict::Open => ExtendError::NoQuorum(report),
        })
    };
    if is_renewal {
        keep::report_renewal(ground, locks, id, &result);
    }
    match &result {
        Ok(_) => {
            counting::count_extension(ground, locks, id, before);
            settle_extension(ground, masters, locks, id, &tally);
        }
        Err(error) => {
            ground.stats.extensions_failed += 1;
            if let ExtendError::Lost(_) = error {
                end_validity(ground, locks, id);
            }
        }
    }
    keep::follow_extension(ground, locks, id, result.is_ok());
    if !is_renewal {
        ground.report_outcome(id, Outcome::Extend(result));
    }
}

/// An answer came after its round: ends the validity if it proves that the lock is lost.
fn check_loss(ground: &mut Ground, masters: &mut Masters, locks: &mut Locks, id: Id) {
    let op = locks.ops.get(id);
    let claim = locks.claims.get(op.claim);
    let absent = claim.absent(masters.fleet.all);
    if absent.count() > masters.fleet.spare() {
        if op.held().is_some_and(|held| ground.now < held.valid_until) {
            let granted = claim.tally.granted.without(absent);
            let tally = Tally { granted, refused: absent, ..Tally::default() };
            let report = reports::report(&masters.fleet, ground.now, Round::Extend, claim, &tally);
            keep::report_renewal(ground, locks, id, &Err(ExtendError::Lost(report)));
        }
        end_validity(ground, locks, id);
        keep::follow_extension(ground, locks, id, false);
    }
}

/// The lock is lost.
fn end_validity(ground: &mut Ground, locks: &mut Locks, id: Id) {
    let op = locks.ops.get_mut(id);
    let OpState::Held(held) = &mut op.state else { unreachable!("only a held lock has a validity") };
    if !mutant!(ProvenLossStaysValid) {
        held.valid_until = ground.now.min(held.valid_until);
        if !mutant!(LossUnpublished) {
            op.validity.move_to(held.valid_until);
        }
    }
    counting::note_lost(ground, locks, id);
    keep::report_loss(ground, locks, id);
    turns::tend_queue_of(ground, locks, id);
}

/// Only masters that were extended hold the lock for all of its new validity. Where the key was gone it
/// is put back.
fn settle_extension(ground: &mut Ground, masters: &mut Masters, locks: &mut Locks, id: Id, tally: &Tally) {
    let claim = locks.claims.get_mut(locks.ops.get(id).claim);
    if !mutant!(MarginKeptByExtension) {
        claim.tally.granted = tally.granted;
    }
    if !mutant!(LateSetAfterExtension) {
        claim.votes = Votes::Void;
    }
    let gone = tally.refused.without(claim.refused());
    gone.iter().for_each(|master| repair_op(ground, masters, locks, master, id));
}

/// The extension's time is over: who has not answered has failed.
pub(super) fn miss_extend(ground: &mut Ground, masters: &mut Masters, locks: &mut Locks, id: Id) {
    let op = locks.ops.get_mut(id);
    let OpState::Held(Held { extension: Some(extension), .. }) = &mut op.state else {
        unreachable!("an extension is under way")
    };
    let started = extension.valid_until - op.asked.ttl.validity();
    let claim = locks.claims.get_mut(op.claim);
    let limit = claim.answer_limit;
    let missing = masters.fleet.all.without(extension.tally.heard());
    for master in missing.iter() {
        extension.tally.failed.insert(master);
        claim.failures.push((master, Failure::NoAnswer { limit }));
    }
    if ground.now - started >= limit {
        missing.iter().for_each(|master| masters.fleet.note_missed(ground, master, limit));
    }
    decide_extend(ground, masters, locks, id);
}

/// A master can be asked again, over a new connection or after a silence.
pub(super) fn repair(ground: &mut Ground, masters: &mut Masters, locks: &mut Locks, master: MasterId) {
    if mutant!(ForcedDeletionAgain) {
        defects::repeat_forced_deletions(masters, locks, master);
    }
    for id in locks.ops.ids() {
        repair_op(ground, masters, locks, master, id);
    }
}

/// Sends the `SET` of a lock to a master that is not known to hold it for all of its validity.
pub(super) fn repair_op(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    master: MasterId,
    id: Id,
) {
    let op = locks.ops.get(id);
    let Some(&Held { valid_until, extension, round, .. }) = op.held() else { return };
    let claim = locks.claims.get_mut(op.claim);
    let is_known = claim.tally.granted.union(claim.tally.refused).union(claim.doubts.twins).contains(master);
    // Once masters have shown that the quorum is gone, somebody may have had the lock since, or has it.
    let is_proven = claim.tally.granted.has(masters.fleet.quorum) || mutant!(RepairUnproven);
    if ground.now >= valid_until || is_known || !is_proven || !masters.fleet.usable.contains(master) {
        return;
    }
    // An extension under way may succeed or fail: the grant is to be true in either case.
    let end = extension.map_or(valid_until, |extension| extension.valid_until.max(valid_until));
    let left = end + ground.config.drift.of(op.asked.ttl.as_duration()) - ground.now;
    let Some(left_ms) = whole_ms(left).filter(|ms| !claim.may_cut_short(*ms).contains(master)) else {
        return;
    };
    let (only, owed) = (MasterSet::only(master), Owed::round(Verb::Repair, claim.kind.tag(), round, id));
    let sent = mode::send_repair(&mut masters.fleet, only, owed, claim, left_ms);
    claim.note_repair(sent);
}

/// The answer to a `SET` that was sent again. Only a grant says anything: a key in the way may be this
/// lock's own, from a `SET` whose answer was lost with its connection. An extension sent since has an
/// answer of its own.
pub(super) fn handle_repair_vote(
    ground: &mut Ground,
    locks: &mut Locks,
    master: MasterId,
    id: Id,
    round: u32,
    vote: &Vote,
) {
    let Some(op) = locks.ops.find(id) else { return };
    let Some(held) = op.held() else { return };
    let claim = locks.claims.get_mut(op.claim);
    claim.doubts.owes_repair.remove(master);
    if held.round != round {
        return;
    }
    if *vote == Vote::Granted || mutant!(OwnKeyIsBusy) {
        claim.record(master, vote.clone());
        ground.stats.repairs += 1;
    }
}

fn whole_ms(time: Duration) -> Option<u64> {
    u64::try_from(time.as_millis()).ok().filter(|ms| *ms > 0)
}
