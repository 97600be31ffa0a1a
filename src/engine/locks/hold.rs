//! A held lock: its extensions, repairs and renewals, and the report of its loss.
//!
//! A repair sends a lock again to masters that missed it while they were away, so that the lock survives more
//! failures. Only a valid lock that a quorum is known to have is repaired: no other client can take such a
//! lock. A lock that masters have shown to be lost, or that was broken by force, is not put back. The
//! repaired key ends with the other masters' keys. A repair also sets the fence of a fenced lock.
//!
//! The local clock decides when a loss is reported: a tenth of the validity before its end, whatever the
//! masters answer. The report comes at once if so many masters cannot have the key that no quorum is left.

use std::time::{Duration, Instant};

use super::Locks;
use super::claim::{Claim, Votes};
use super::mode;
use super::op::{Extension, Held, Op};
use super::renewal::{Extended, Renewal};
use super::slab::Id;
use super::{counting, reports};
use crate::engine::core::Core;
use crate::engine::ground::Ground;
use crate::engine::masters::link::Link;
use crate::engine::masters::owed::{Owed, Tag, Verb};
use crate::engine::request::Outcome;
use crate::engine::waiting::parking::Parked;
use crate::engine::waiting::turns;
use crate::error::{ExtendError, Round};
use crate::event::Event;
use crate::limits;
use crate::lock::command::scripts::Script;
use crate::lock::{Failure, MasterId, MasterSet, Tally, Ttl, Verdict, Vote, whole_ms};

/// Takes an extension request.
pub(crate) fn submit_extend(core: &mut Core, id: Id, ttl: Duration) {
    let started = core.ground.config.ttl(ttl).map_err(ExtendError::Input);
    if let Err(error) = started.and_then(|ttl| start_extend(core, id, ttl)) {
        core.ground.report_outcome(id, Outcome::Extend(Err(error)));
    } else {
        decide_extend(core, id);
        core.locks.arm(&mut core.ground, id);
    }
    // The validity may end sooner now than the next waiter expects.
    turns::tend_queue_of(&mut core.ground, &core.masters.fleet, &mut core.locks, id);
}

/// Queues the extension on every usable master that may hold the key, unless an earlier, shorter extension
/// may still reach that master.
fn start_extend(core: &mut Core, id: Id, ttl: Ttl) -> Result<(), ExtendError> {
    let Core { ground, masters, locks } = core;
    let now = ground.now;
    let max_hold = ground.config.max_hold;
    let op = locks.ops.find_mut(id).ok_or(ExtendError::NotHeld)?;
    let claim_id = op.claim;
    let held = op.held_mut().ok_or(ExtendError::NotHeld)?;
    let claim = locks.claims.get_mut(claim_id);
    // The caller's extension replaces a renewal in progress.
    if held.extension.is_some_and(|extension| !extension.is_renewal) {
        return Err(ExtendError::Busy);
    }
    if now >= held.valid_until {
        return Err(ExtendError::Expired);
    }
    if (now - held.since).saturating_add(ttl.as_duration()) > max_hold {
        return Err(ExtendError::HoldLimit { max_hold });
    }
    let extended_until = now + ttl.validity();
    let answer_limit = masters.fleet.answer_limit(ttl);
    let deadline = (now + answer_limit).min(held.valid_until);
    held.round = held.round.wrapping_add(1);
    let round = held.round;
    // Masters may apply a shorter TTL even if the round fails, so it counts at once.
    if extended_until < held.valid_until {
        held.ttl = ttl;
        op.move_validity(extended_until);
    }
    op.asked.ttl = ttl;
    claim.note_ttl(now, ttl, answer_limit);
    claim.failures.clear();
    let mut tally = Tally { refused: claim.absent(masters.fleet.all), ..Tally::default() };
    let unsure = claim.may_cut_short(ttl.as_millis()).union(claim.doubts.twins);
    let holders = claim.holders().intersection(masters.fleet.usable).without(unsure).without(tally.refused);
    let owed = Owed::round(Verb::Extend, Tag::Of(claim.kind.mode()), round, id);
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
    let extension = Extension { deadline, valid_until: extended_until, tally, is_renewal: false };
    op.held_mut().expect("it is held").extension = Some(extension);
    Ok(())
}

/// Explains why a master did not get an extension.
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

/// Takes a master's vote on an extension, also after the round.
pub(crate) fn handle_vote(core: &mut Core, master: MasterId, id: Id, round: u32, vote: Vote) {
    let Some(op) = core.locks.ops.find_mut(id) else { return };
    let claim_id = op.claim;
    let Some(held) = op.held_mut() else { return };
    let claim = core.locks.claims.get_mut(claim_id);
    let is_twin = vote == Vote::Granted && claim.doubts.twins.contains(master);
    let vote = if is_twin { Vote::Failed(Failure::SameServer) } else { vote };
    match vote {
        // Whatever round this answers, the master no longer holds the key.
        Vote::Refused { .. } => claim.note_gone(core.ground.now, master, core.ground.config.drift),
        // This also counts after the verdict: the master's key lives as long as the others'.
        Vote::Granted if held.round == round => claim.tally.granted.insert(master),
        _ => {}
    }
    if held.round != round {
        return;
    }
    claim.doubts.owes_extension.remove(master);
    let Some(extension) = held.extension.as_mut() else {
        if matches!(vote, Vote::Refused { .. }) {
            repair_op(core, master, id);
            check_loss(core, id);
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
        Vote::Pending => unreachable!("it is the vote of a reply"),
    }
    decide_extend(core, id);
}

/// Decides the extension in progress, if the votes suffice.
fn decide_extend(core: &mut Core, id: Id) {
    let now = core.ground.now;
    let quarantined = core.masters.fleet.quarantined(now);
    let op = core.locks.ops.get_mut(id);
    let (claim_id, ttl) = (op.claim, op.asked.ttl);
    let held = op.held_mut().expect("only a held lock is extended");
    let Extension { valid_until, tally, is_renewal, .. } = held.extension.expect("an extension is under way");
    let verdict = tally.verdict(core.masters.fleet.count(), quarantined);
    let spare = core.masters.fleet.spare();
    // Only masters that cannot have the key prove the loss; silence does not (I16).
    let is_lost = tally.refused.count() > spare;
    // A missing answer may prove the loss.
    let may_be_lost = core.masters.fleet.all.without(tally.granted.union(tally.failed)).count() > spare;
    let is_complete = tally.heard() == core.masters.fleet.all;
    if verdict == Verdict::Open || (verdict != Verdict::Granted && !is_lost && may_be_lost && !is_complete) {
        return;
    }
    held.extension = None;
    let before = (held.valid_until, held.ttl);
    // A lock once called lost never becomes valid again (I11).
    let is_valid = now < held.valid_until;
    let result = if verdict == Verdict::Granted && is_valid && now < valid_until {
        held.ttl = ttl;
        op.move_validity(valid_until);
        Ok(valid_until)
    } else {
        let claim = core.locks.claims.get(claim_id);
        let report = reports::report(&core.masters.fleet, now, Round::Extend, claim, &tally);
        Err(match verdict {
            Verdict::Granted => ExtendError::Expired,
            _ if is_lost => ExtendError::Lost(report),
            Verdict::Contended | Verdict::NoQuorum | Verdict::Open => ExtendError::NoQuorum(report),
        })
    };
    match &result {
        Ok(_) => {
            counting::count_extension(&mut core.ground, &mut core.locks, id, before);
            settle_extension(core, id, &tally);
        }
        Err(error) => {
            core.ground.stats.extensions_failed += 1;
            if is_renewal {
                note_failed_renewal(&mut core.ground, &core.locks, id, error);
            }
            if let ExtendError::Lost(_) = error {
                end_validity(core, id);
            }
        }
    }
    follow_extension(&mut core.ground, &mut core.locks, id, result.is_ok());
    if !is_renewal {
        core.ground.report_outcome(id, Outcome::Extend(result));
    }
}

/// Takes an answer that came after its round. Ends the validity if the answer proves the loss.
fn check_loss(core: &mut Core, id: Id) {
    let Core { ground, masters, locks } = core;
    let op = locks.ops.get(id);
    let claim = locks.claims.get(op.claim);
    let absent = claim.absent(masters.fleet.all);
    if absent.count() > masters.fleet.spare() {
        if op.held().is_some_and(|held| ground.now < held.valid_until) {
            let granted = claim.tally.granted.without(absent);
            let tally = Tally { granted, refused: absent, ..Tally::default() };
            let report = reports::report(&masters.fleet, ground.now, Round::Extend, claim, &tally);
            note_failed_renewal(ground, locks, id, &ExtendError::Lost(report));
        }
        end_validity(core, id);
        follow_extension(&mut core.ground, &mut core.locks, id, false);
    }
}

/// The lock is lost: ends its validity, and counts and reports the loss.
fn end_validity(core: &mut Core, id: Id) {
    let Core { ground, masters, locks } = core;
    let op = locks.ops.get_mut(id);
    let held = op.held().expect("only a held lock has a validity");
    op.move_validity(ground.now.min(held.valid_until));
    counting::note_lost(ground, locks, id);
    report_loss(ground, locks, id);
    turns::tend_queue_of(ground, &masters.fleet, locks, id);
}

/// Only extended masters hold the lock for all of its new validity. Repairs the masters without the key.
fn settle_extension(core: &mut Core, id: Id, tally: &Tally) {
    let claim = core.locks.claims.get_mut(core.locks.ops.get(id).claim);
    claim.tally.granted = tally.granted;
    claim.votes = Votes::Void;
    let gone = tally.refused.without(claim.refused());
    gone.iter().for_each(|master| repair_op(core, master, id));
}

/// The extension's time is over: every master without an answer has failed.
fn miss_extend(core: &mut Core, id: Id) {
    let op = core.locks.ops.get_mut(id);
    let (claim_id, ttl) = (op.claim, op.asked.ttl);
    let extension =
        op.held_mut().and_then(|held| held.extension.as_mut()).expect("an extension is under way");
    let started = extension.valid_until - ttl.validity();
    let claim = core.locks.claims.get_mut(claim_id);
    let limit = claim.answer_limit;
    let missing = core.masters.fleet.all.without(extension.tally.heard());
    for master in missing.iter() {
        extension.tally.failed.insert(master);
        claim.failures.push((master, Failure::NoAnswer { limit }));
    }
    if core.ground.now - started >= limit {
        missing.iter().for_each(|master| core.masters.fleet.note_missed(&mut core.ground, master, limit));
    }
    decide_extend(core, id);
}

/// Does what is due for a held lock.
pub(crate) fn handle_timeout(core: &mut Core, id: Id) {
    let now = core.ground.now;
    let held = core.locks.held(id);
    if held.extension.is_some_and(|extension| extension.deadline <= now) {
        miss_extend(core, id);
    }
    if core.locks.held(id).warn_at().is_some_and(|at| at <= now) {
        report_loss(&mut core.ground, &mut core.locks, id);
    }
    let held = core.locks.held(id);
    let is_due = held.renewal.and_then(|renewal| renewal.renew_at).is_some_and(|at| at <= now);
    if is_due && held.extension.is_none() {
        renew(core, id);
    }
}

/// Renews a lock: sends an extension without an outcome. A failure is an event, and the renewal is repeated
/// until the validity ends.
fn renew(core: &mut Core, id: Id) {
    let op = core.locks.ops.get_mut(id);
    let Some(Held { renewal: Some(renewal), valid_until, .. }) = op.held_mut() else {
        unreachable!("only a held lock that is kept is renewed")
    };
    let Some(ttl) =
        renewal.next_ttl(core.ground.now, *valid_until, core.ground.config.drift, core.ground.config.max_ttl)
    else {
        return note_renewals_end(&mut core.ground, &core.locks, id);
    };
    extend_as_renewal(core, id, ttl);
}

/// Sends an extension as a renewal.
fn extend_as_renewal(core: &mut Core, id: Id, ttl: Ttl) {
    if let Err(error) = start_extend(core, id, ttl) {
        // The validity is over, or the longest hold would be exceeded.
        return note_failed_renewal(&mut core.ground, &core.locks, id, &error);
    }
    if let Some(Held { extension: Some(extension), .. }) = core.locks.ops.get_mut(id).held_mut() {
        extension.is_renewal = true;
    }
    decide_extend(core, id);
}

/// A connection that carried an extension broke. Even a grant is void, because a restart may have removed the
/// key.
pub(crate) fn lose_vote(core: &mut Core, master: MasterId, id: Id) {
    let held = core.locks.held(id);
    let round = held.round;
    let Some(extension) = held.extension else { return };
    if !extension.tally.refused.union(extension.tally.failed).contains(master) {
        handle_vote(core, master, id, round, Vote::Failed(Failure::ConnectionLost));
    }
}

/// Repairs all locks on a master that is reachable again, over a new connection or after a silence.
pub(crate) fn repair(core: &mut Core, master: MasterId) {
    for id in core.locks.ops.ids() {
        repair_op(core, master, id);
    }
}

/// Sends a lock's `SET` to a master that is not known to hold the lock for all of its validity.
pub(crate) fn repair_op(core: &mut Core, master: MasterId, id: Id) {
    let Core { ground, masters, locks } = core;
    let op = locks.ops.get(id);
    let Some(&Held { valid_until, extension, round, .. }) = op.held() else { return };
    let claim = locks.claims.get_mut(op.claim);
    let is_known = claim.tally.granted.union(claim.tally.refused).union(claim.doubts.twins).contains(master);
    // The master may still serve the entry, or get a late park.
    let is_served = |parked: &Parked| parked.may_be_served(ground.now, master, ground.config.drift);
    let is_parked = claim.parked.as_ref().is_some_and(is_served);
    // Without a proven quorum, another client may have the lock, or may have had it.
    let is_proven = claim.tally.granted.has(masters.fleet.quorum);
    if ground.now >= valid_until
        || is_known
        || is_parked
        || !is_proven
        || !masters.fleet.usable.contains(master)
    {
        return;
    }
    // The extension in progress may succeed or fail. The key must live long enough for both cases.
    let end = extension.map_or(valid_until, |extension| extension.valid_until.max(valid_until));
    let left = end + ground.config.drift.of(op.asked.ttl.as_duration()) - ground.now;
    let left_ms = whole_ms(left);
    if claim.may_cut_short(left_ms).contains(master) {
        return;
    }
    let (only, owed) =
        (MasterSet::only(master), Owed::round(Verb::Repair, Tag::Of(claim.kind.mode()), round, id));
    let sent = mode::send_attempt(&mut masters.fleet, only, owed, claim, left_ms, Script::Text);
    claim.note_repair(sent);
}

/// Takes the answer to a repair. Only a grant counts: the key in the way may be this lock's, from a `SET`
/// whose answer was lost with its connection. An extension sent later has a separate answer.
pub(crate) fn handle_repair_vote(core: &mut Core, master: MasterId, id: Id, round: u32, vote: &Vote) {
    let Core { ground, locks, .. } = core;
    let Some(op) = locks.ops.find(id) else { return };
    let Some(held) = op.held() else { return };
    let claim = locks.claims.get_mut(op.claim);
    claim.doubts.owes_repair.remove(master);
    if held.round != round {
        return;
    }
    if *vote == Vote::Granted {
        claim.record(master, vote.clone());
        ground.stats.repairs += 1;
    }
}

/// Renews a held lock from now on, for at most `max_hold` after `since`.
pub(crate) fn begin_renewal(
    ground: &mut Ground,
    locks: &mut Locks,
    id: Id,
    since: Instant,
    max_hold: Duration,
) {
    let held = locks.ops.get_mut(id).held_mut().expect("a lock that is kept is held");
    let max_hold = max_hold.min(ground.config.max_hold);
    let hold_until = since.checked_add(max_hold).unwrap_or(since + limits::FOREVER);
    let renewal = held.renewal.insert(Renewal::new(held.ttl, hold_until));
    renewal.plan(ground.now, since, held.ttl, ground.ticks, &mut ground.rng);
    locks.arm(ground, id);
}

/// Takes the request to report the loss of a held lock once.
pub(crate) fn submit_notify_loss(ground: &mut Ground, locks: &mut Locks, id: Id) {
    if let Some(held) = locks.ops.find_mut(id).and_then(Op::held_mut) {
        held.notifies_loss = true;
        locks.arm(ground, id);
    }
}

/// Plans the next renewal after the verdict of an extension.
fn follow_extension(ground: &mut Ground, locks: &mut Locks, id: Id, is_extended: bool) {
    let op = locks.ops.get_mut(id);
    let ttl = op.asked.ttl;
    let held = op.held_mut().expect("it was held to be extended");
    let (valid_until, held_ttl) = (held.valid_until, held.ttl);
    let Some(renewal) = &mut held.renewal else { return };
    let extended = Extended { valid_until, ttl, held_ttl, is_extended };
    renewal.follow(ground.now, extended, ground.config.drift, ground.ticks, &mut ground.rng);
    if ground.now < valid_until {
        note_renewals_end(ground, locks, id);
    }
    locks.arm(ground, id);
}

/// Reports a failed renewal, or the end of renewals.
#[cold]
fn note_failed_renewal(ground: &mut Ground, locks: &Locks, id: Id, error: &ExtendError) {
    if ground.events.is_observed && locks.held(id).renewal.is_some() {
        let (resource, error) = (locks.name_of(&ground.config, id), error.clone());
        ground.events.push(|| Event::NotExtended { resource, error });
    }
}

/// Reports the longest hold, if no renewal follows.
fn note_renewals_end(ground: &mut Ground, locks: &Locks, id: Id) {
    if let Held { renewal: Some(renewal), since, .. } = locks.held(id)
        && renewal.renew_at.is_none()
    {
        let limit = ExtendError::HoldLimit { max_hold: renewal.hold_until - *since };
        note_failed_renewal(ground, locks, id, &limit);
    }
}

/// Reports once that a lock is lost or about to be, and ends its renewals.
fn report_loss(ground: &mut Ground, locks: &mut Locks, id: Id) {
    let Some(held) = locks.ops.get_mut(id).held_mut() else { return };
    let valid_until = held.valid_until;
    if std::mem::take(&mut held.notifies_loss) {
        held.renewal = None;
        ground.report_outcome(id, Outcome::Lost(valid_until));
        counting::note_near_loss(ground, locks, id, valid_until.saturating_duration_since(ground.now));
    }
}
