//! How `redlatch run` acquires one lock, several locks, or a slot.

use std::time::{Duration, Instant};

use redlatch::engine::Resource;
use redlatch::error::SetError;
use redlatch::pool::slot_name;
use redlatch::{Acquire, AcquireSet, AcquireSlot, Guard};

use super::session::Session;
use super::wait::Wait;
use crate::exit::{Exit, code};
use crate::message::{Message, label};

/// Without `--wait`, how long to try again while too few masters can grant: a short stall must not end a
/// nightly job.
const OUTAGE_GRACE: Duration = Duration::from_secs(2);

#[derive(Clone, Copy)]
pub(super) enum Wanted<'a> {
    All(&'a [Resource<'a>]),
    /// One slot of the named pool, with the pool's size.
    Slot(Resource<'a>, u32),
}

/// Acquired locks in the given order, or one slot with its number.
pub(super) struct Acquired {
    pub(super) guards: Vec<Guard>,
    pub(super) slot: Option<u32>,
    /// Start of the validity that began last.
    pub(super) since: Option<Instant>,
}

/// Acquires the locks, and reports why it waits. A signal ends the wait. Without `wait` it makes one attempt,
/// and tries again for [`OUTAGE_GRACE`] while too few masters can grant.
pub(super) fn acquire(
    session: &mut Session,
    wanted: Wanted<'_>,
    wait: Option<Duration>,
) -> Result<Acquired, Exit> {
    let start = Instant::now();
    session.forget_failures();
    let first = wait.unwrap_or_default();
    let mut result = attempt(Wait::new(session, start, first, false), wanted, first);
    let grace = OUTAGE_GRACE.saturating_sub(start.elapsed());
    let is_outage = result.as_ref().is_err_and(|exit| exit.code == code::NO_QUORUM);
    if is_outage && wait.is_none() && !grace.is_zero() {
        result = attempt(Wait::new(session, start, OUTAGE_GRACE, true), wanted, grace);
    }
    let (guards, slot) = result?;
    let validity = session.ttl.validity();
    let since = guards.iter().filter_map(|guard| guard.valid_until().checked_sub(validity)).max();
    let waited = start.elapsed();
    if let (Wanted::Slot(pool, count), Some(slot)) = (wanted, slot) {
        session.label = label([&*slot_name(pool.as_bytes(), slot)]);
        session.report(Message::SlotAcquired { slot, count });
    }
    for guard in &guards {
        session.report(describe_grant(session, guard, waited));
    }
    Ok(Acquired { guards, slot, since })
}

/// Tries for this time; zero makes one attempt.
fn attempt(mut its: Wait<'_>, wanted: Wanted<'_>, wait: Duration) -> Result<(Vec<Guard>, Option<u32>), Exit> {
    let (client, options) = (its.session.client.clone(), its.session.options.wait(wait));
    match wanted {
        Wanted::Slot(pool, count) => {
            let request = client.slots(pool.as_bytes(), count).options(options);
            let acquired = its.follow(request.acquire_async(), AcquireSlot::last_failure)?;
            let slot = acquired.map_err(|error| its.failed(error))?;
            let number = slot.slot();
            Ok((vec![slot.into_guard()], Some(number)))
        }
        Wanted::All([name]) => {
            let request = client.lock(name.as_bytes()).options(options);
            let acquired = its.follow(request.acquire_async(), Acquire::last_failure)?;
            Ok((vec![acquired.map_err(|error| its.failed(error))?], None))
        }
        Wanted::All(names) => {
            let request = client.lock_set(names.iter().map(Resource::as_bytes)).options(options);
            let acquired = its.follow(request.acquire_async(), AcquireSet::last_failure)?;
            let set = acquired.map_err(|SetError { source, .. }| its.failed(source))?;
            let mut guards = set.into_guards();
            guards.sort_by_key(|guard| names.iter().position(|name| name.as_bytes() == guard.resource()));
            Ok((guards, None))
        }
    }
}

fn describe_grant(session: &Session, guard: &Guard, waited: Duration) -> String {
    let left = guard.remaining();
    // The validity counts from the start of the successful attempt.
    let took = session.ttl.validity().saturating_sub(left);
    let attempts = guard.waited().attempts;
    let later = (attempts > 1).then_some((attempts, waited));
    let masters = session.client.masters();
    let names: Vec<&str> = guard.granted().iter().map(|master| &*masters[master.index()].name).collect();
    let rest = masters.len() - names.len();
    let names =
        if rest == 0 && names.len() > 1 { format!("all {} masters", names.len()) } else { names.join(", ") };
    let lock = &label([guard.resource()]);
    let acquired = Message::Acquired { lock, took, later, left }.to_string();
    format!("{acquired}\n  {}", Message::GrantedBy { masters: &names, rest })
}
