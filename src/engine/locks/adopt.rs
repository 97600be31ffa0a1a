//! A lock that passes to another process through its handle: each master compares the handle's value, and
//! replaces it with the new holder's value and a new TTL.
//!
//! ```text
//!   A: held with token TA ── extended, then left ──► handle ──► B: claim with token TB, Acquiring
//!                                                               adopt TA → TB on each usable master ─► votes
//! ```
//!
//! # Why this is safe
//!
//! B's attempt differs from other attempts only in how a master grants it. A grant means that at one moment
//! the master had B's key and no other (for a reader: B among the readers), with its full TTL, set after B's
//! start stamp. Votes, quorum, deadline, quarantine and the release of a part apply as usual. A grant
//! replaces only TA, and A's guard gave the lock up before a handle existed that can be adopted. So an
//! adoption replaces no other holder's valid lock.
//!
//! TB is new. So if two processes adopt with one handle, at most one gets a quorum. A's commands in progress
//! (an extension, a repair, a release) find TA gone and do not touch B's key. A late `SET` of TA may leave
//! that key, until its TTL ends, on a master without B's key; B's client releases TA once it holds the lock.
//!
//! Masters in quarantine at the start of the attempt do not count for it, as for a fenced lock. `fence.rs`
//! says why the old fencing token stays right.
//!
//! # A release by a handle
//!
//! A process with the handle may release the lock, as A could. The release goes to all masters as if each had
//! parked the token: its script removes a key or an entry with the handle's value, and serves the waiters.

use std::time::{Duration, Instant};

use super::attempt;
use super::claim::Claim;
use super::mode::{self, Wanted};
use super::next::By;
use super::op::{Asked, Held, Op, OpState};
use super::release;
use super::slab::Id;
use crate::engine::core::{Core, Step};
use crate::engine::ground::Ground;
use crate::engine::masters::Masters;
use crate::engine::masters::owed::{Owed, Tag, Verb};
use crate::engine::queries::DRAINED;
use crate::engine::request::{HandleAct, SubmitError};
use crate::engine::timers::claim_timer;
use crate::engine::waiting::parking::{Parked, Place};
use crate::handle::{LockHandle, fleet_of};
use crate::lock::command::entry::name_in;
use crate::lock::command::scripts::Script;
use crate::lock::{InputError, Resource, Ttl, split_value, whole_ms};

/// Takes an adoption, whose only attempt begins at once, or a release with a handle.
#[cold]
#[inline(never)]
pub(crate) fn submit(
    core: &mut Core,
    handle: &LockHandle,
    act: HandleAct,
) -> Result<(Id, Step), SubmitError> {
    let Core { ground, locks, .. } = core;
    if locks.is_drained {
        return Err(SubmitError::Stopped(DRAINED.into()));
    }
    let resource = Resource::of_any_lock(&*handle.name)?;
    // The handle's lock may have been extended to any TTL.
    let ttl = match act {
        HandleAct::Adopt { .. } => handle.ttl(),
        HandleAct::Release { .. } => ground.config.max_ttl,
    };
    let ttl = ground.config.ttl(ttl)?;
    let max_hold = match act {
        HandleAct::Adopt { auto_extend } => auto_extend,
        HandleAct::Release { .. } => None,
    };
    if max_hold.is_some() && ground.config.max_hold.is_zero() {
        return Err(InputError::MaxHoldZero.into());
    }
    let now = ground.now;
    let Some((id, op)) = locks.ops.take(|| Op::blank(now, ttl)) else {
        return Err(ground.refuse_acquisition(resource));
    };
    op.begin(Asked { max_hold, ..Asked::of_query(now, ttl) });
    op.is_noted = true;
    if let HandleAct::Release { awaited } = act {
        return Ok((id, release_by(core, id, handle, ttl, awaited)));
    }
    op.label.extend_from_slice(ground.config.holder_label.as_deref().unwrap_or_default().as_bytes());
    op.mode = Wanted::Adopted;
    Ok((id, attempt::begin(core, id, By::Handle(handle), Some(resource))))
}

fn release_by(core: &mut Core, id: Id, handle: &LockHandle, ttl: Ttl, awaited: bool) -> Step {
    let Core { ground, masters: Masters { fleet, .. }, locks } = core;
    let now = ground.now;
    let (claim_id, claim) = release::take_claim(ground, &mut locks.claims);
    claim.begin(now, id, handle.token, ttl, fleet.answer_limit(ttl));
    claim.kind = handle.kind;
    claim.entry = handle.entry(&ground.config.prefix);
    claim.asked = fleet.all;
    // The queues may contain an entry of the lock. Its place is not known here.
    claim.parked.put(|over| {
        let mut parked = Parked::new(now, None, over, |_| Place::default());
        (parked.masters, parked.was_held) = (fleet.all, true);
        parked
    });
    let owed = Owed::round(Verb::Release, Tag::Parked, 0, claim_id).whole();
    let sent = mode::send_unpark(fleet, fleet.all, owed, claim, Script::Text);
    claim.begin_release(now, fleet.all, sent);
    ground.timers.arm(claim_timer(claim_id), now + claim.answer_limit);
    let op = locks.ops.get_mut(id);
    op.claim = claim_id;
    op.enter(OpState::Releasing);
    if !awaited {
        claim.is_owned = false;
        locks.ops.free(id);
    } else if sent.is_empty() {
        release::settle(core, claim_id);
    }
    Step::Done
}

/// Returns a handle that can only release the held lock.
pub(crate) fn handle(
    ground: &Ground,
    claim: &Claim,
    held: &Held,
    now: Instant,
    wall: Duration,
) -> LockHandle {
    let config = &ground.config;
    let (_, label) = split_value(claim.entry.value());
    let wall_ms = |at: Instant| whole_ms(wall + at.saturating_duration_since(now));
    LockHandle {
        name: bytes::Bytes::copy_from_slice(name_in(claim.entry.key(), config.prefix.len())),
        prefix: config.prefix.as_slice().into(),
        fleet: fleet_of(config),
        token: claim.token,
        label: label.map(|label| label.as_str().into()),
        kind: claim.kind,
        ttl_ms: u32::try_from(held.ttl.as_millis()).unwrap_or(u32::MAX),
        end_ms: wall_ms(held.valid_until),
        hold_until_ms: held.renewal.map(|renewal| wall_ms(renewal.hold_until)),
        is_passed: false,
    }
}
