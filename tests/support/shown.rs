//! How golden pages show results, errors and events: in words, and only where a value differs from the normal
//! one. Times are relative to the page's start.

use std::time::{Duration, Instant};

use redlatch::engine::{Grant, Outcome, SlotLook};
use redlatch::error::{
    AdoptError, Denial, Failure, ForceUnlockError, HeldBy, HolderTtl, LeaveError, LockReentrantError,
    ReleaseHandleError, Report, SetError, Vote,
};
use redlatch::inspection::{ForceUnlocked, Inspection};
use redlatch::{AcquireError, Event, ExtendError, Left, ReleaseError, Released, RunError, Waited};

/// Whether a page shows times. Only a virtual clock repeats them.
#[derive(Clone, Copy)]
pub struct Style {
    /// The start of a page that shows times.
    pub start: Option<Instant>,
}

pub trait Shown {
    fn shown(&self, style: Style) -> String;
}

impl Style {
    fn moment(self, at: Instant) -> Option<String> {
        self.start.map(|start| format!("{:?}", at.saturating_duration_since(start)))
    }

    /// A time, unless it is zero.
    fn time(self, name: &str, time: Duration) -> Option<String> {
        (self.start.is_some() && !time.is_zero()).then(|| format!("{name} {time:?}"))
    }
}

/// Joins the parts that exist and are not empty.
fn parts(parts: impl IntoIterator<Item = Option<String>>) -> String {
    parts.into_iter().flatten().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
}

fn unless<T: PartialEq + std::fmt::Display>(usual: T, name: &str, value: T) -> Option<String> {
    (value != usual).then(|| format!("{name} {value}"))
}

fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

impl Shown for HolderTtl {
    fn shown(&self, style: Style) -> String {
        match self {
            Self::Unknown => String::new(),
            Self::Left(left) => format!("held{}", style.time(" for", *left).unwrap_or_default()),
            Self::Never => "held without a TTL".to_owned(),
            Self::Gone => "gone".to_owned(),
        }
    }
}

impl Shown for Failure {
    fn shown(&self, style: Style) -> String {
        match self {
            // On a real clock, either end may notice a broken connection first.
            Self::ConnectionLost | Self::NotConnected { .. } if style.start.is_none() => {
                "not connected".to_owned()
            }
            Self::NoAnswer { .. } if style.start.is_none() => "no answer".to_owned(),
            Self::Quarantined { .. } if style.start.is_none() => "quarantined".to_owned(),
            Self::Replied(_) if style.start.is_none() => "error reply".to_owned(),
            // Without the advice.
            _ => self.to_string().split("; ").next().expect("a first part").to_owned(),
        }
    }
}

impl Shown for Vote {
    fn shown(&self, style: Style) -> String {
        match self {
            Self::Granted => "granted".to_owned(),
            Self::Refused { holder } => match holder.shown(style) {
                holder if holder.is_empty() => "refused".to_owned(),
                holder => format!("refused ({holder})"),
            },
            Self::Failed(failure) => format!("failed ({})", failure.shown(style)),
            Self::Pending => "pending".to_owned(),
        }
    }
}

/// Votes, each with the places of the masters that gave it.
impl Shown for Report {
    fn shown(&self, style: Style) -> String {
        let mut groups: Vec<(String, Vec<String>)> = Vec::new();
        for (index, (_, vote)) in self.votes.iter().enumerate() {
            let vote = vote.shown(style);
            match groups.iter_mut().find(|(other, _)| *other == vote) {
                Some((_, masters)) => masters.push(index.to_string()),
                None => groups.push((vote, vec![index.to_string()])),
            }
        }
        groups
            .iter()
            .map(|(vote, masters)| format!("{} {vote}", masters.join(" ")))
            .collect::<Vec<_>>()
            .join("; ")
    }
}

impl Shown for Waited {
    fn shown(&self, style: Style) -> String {
        let holder = self.holder.as_ref().map(|holder| {
            let label = holder.label.as_deref().unwrap_or("somebody");
            format!("behind {label}{}", style.time(" for", holder.time).unwrap_or_default())
        });
        parts([
            style.time("waited", self.total),
            style.time("queued", self.queued),
            unless(1, "attempts", self.attempts),
            holder,
        ])
    }
}

impl Shown for Denial {
    fn shown(&self, style: Style) -> String {
        let by = match self.held_by {
            HeldBy::AnotherClient => None,
            HeldBy::ThisClient => Some("held by this client".to_owned()),
            HeldBy::Readers(count) => Some(format!("{count} readers")),
            HeldBy::Slots(count) => Some(format!("{count} slots taken")),
            HeldBy::SlotRivals(count) => Some(format!("{count} slots contested")),
            _ => Some("another kind of holder".to_owned()),
        };
        let slots = self.slots.iter().map(|slot| {
            let holder = parts([slot.label.as_deref().map(str::to_owned), Some(slot.ttl.shown(style))]);
            Some(format!("slot {}: {holder}", slot.slot))
        });
        let took = (self.took != self.waited.total).then(|| style.time("took", self.took)).flatten();
        let first = [
            unless(self.waited.attempts, "attempts of the denial", self.attempts),
            took,
            Some(self.holder.shown(style)),
            by,
            self.holder_label.as_deref().map(|label| format!("label {label}")),
        ];
        let rest = [Some(self.waited.shown(style)), Some(format!("votes: {}", self.report.shown(style)))];
        parts(first.into_iter().chain(slots).chain(rest))
    }
}

/// Shows an error's class and its contents if its variant is listed; otherwise its text.
macro_rules! errors {
    ($($error:ty { $($variant:pat => $name:literal, $carried:expr;)* })*) => {$(
        impl Shown for $error {
            fn shown(&self, style: Style) -> String {
                match self {
                    $($variant => format!("{}: {}", $name, $carried.shown(style)),)*
                    other => other.to_string(),
                }
            }
        }
    )*};
}

errors! {
    LockReentrantError {
        Self::Acquire(error) => "not acquired", error;
        Self::Lost { .. } => "lost", ();
    }
    AcquireError {
        Self::Contended(denial) => "contended", denial;
        Self::NoQuorum(denial) => "no quorum", denial;
        Self::Expired(denial) => "expired", denial;
    }
    ExtendError {
        Self::Lost(report) => "lost", report;
        Self::NoQuorum(report) => "no quorum", report;
    }
    ReleaseError { Self::Unconfirmed(report) => "unconfirmed", report; }
    LeaveError {
        Self::Lost(report) => "lost", report;
        Self::Unconfirmed { report, .. } => "unconfirmed", report;
    }
    AdoptError {
        Self::Gone(report) => "gone", report;
        Self::NoQuorum(report) => "no quorum", report;
        Self::Expired(report) => "expired", report;
    }
    ReleaseHandleError { Self::Unconfirmed(report) => "unconfirmed", report; }
    ForceUnlockError { Self::Unconfirmed(report) => "unconfirmed", report; }
}

impl<T: Shown> Shown for RunError<T> {
    fn shown(&self, style: Style) -> String {
        match self {
            Self::Acquire(error) => format!("not acquired: {}", error.shown(style)),
            other => other.to_string(),
        }
    }
}

impl Shown for [u8] {
    fn shown(&self, _: Style) -> String {
        text(self)
    }
}

impl Shown for Inspection {
    fn shown(&self, _: Style) -> String {
        self.status().to_string()
    }
}

impl Shown for ForceUnlocked {
    fn shown(&self, style: Style) -> String {
        format!("deleted: {}", self.report.shown(style))
    }
}

impl<E: Shown> Shown for SetError<E> {
    fn shown(&self, style: Style) -> String {
        format!("{}: {}", text(&self.resource), self.source.shown(style))
    }
}

impl<T: Shown, E: Shown> Shown for Result<T, E> {
    fn shown(&self, style: Style) -> String {
        match self {
            Ok(value) => match value.shown(style) {
                value if value.is_empty() => "done".to_owned(),
                value => value,
            },
            Err(error) => format!("error, {}", error.shown(style)),
        }
    }
}

impl<T: Shown> Shown for Option<T> {
    fn shown(&self, style: Style) -> String {
        self.as_ref().map_or_else(|| "none".to_owned(), |value| value.shown(style))
    }
}

impl<T: Shown + ?Sized> Shown for &T {
    fn shown(&self, style: Style) -> String {
        (**self).shown(style)
    }
}

impl<T: Shown> Shown for Box<T> {
    fn shown(&self, style: Style) -> String {
        (**self).shown(style)
    }
}

impl<T: Shown> Shown for Vec<T> {
    fn shown(&self, style: Style) -> String {
        let items: Vec<_> = self.iter().map(|item| item.shown(style)).collect();
        if items.is_empty() { "nothing".to_owned() } else { items.join(" | ") }
    }
}

impl Shown for () {
    fn shown(&self, _: Style) -> String {
        String::new()
    }
}

impl Shown for Instant {
    fn shown(&self, style: Style) -> String {
        style.moment(*self).map_or_else(String::new, |at| format!("until {at}"))
    }
}

macro_rules! plain {
    ($($type:ty)*) => {$(
        impl Shown for $type {
            fn shown(&self, _: Style) -> String {
                self.to_string()
            }
        }
    )*};
}
plain!(bool u32 u64 usize str String std::fmt::Arguments<'_>);
plain!(redlatch::error::InputError redlatch::engine::SubmitError redlatch::error::InspectError redlatch::inspection::LockStatus);

macro_rules! tuples {
    ($($name:ident)+) => {
        impl<$($name: Shown),+> Shown for ($($name,)+) {
            #[expect(non_snake_case, reason = "a name for the type and its value")]
            fn shown(&self, style: Style) -> String {
                let ($($name,)+) = self;
                [$($name.shown(style)),+].join(", ")
            }
        }
    };
}
tuples!(A);
tuples!(A B);
tuples!(A B C);
tuples!(A B C D);

impl Shown for Grant {
    fn shown(&self, style: Style) -> String {
        let masters: Vec<_> = self.granted.iter().map(|master| master.index().to_string()).collect();
        parts([
            Some(format!("granted by {}", masters.join(" "))),
            style.moment(self.valid_until).map(|at| format!("valid until {at}")),
            self.fencing_token.map(|token| match style.start {
                Some(_) => format!("fencing token {token}"),
                None => "fenced".to_owned(),
            }),
            unless(1, "attempts", self.attempts),
        ])
    }
}

impl Shown for Released {
    fn shown(&self, _: Style) -> String {
        let Self { deleted, absent, unanswered, .. } = *self;
        parts([
            Some(format!("released on {deleted}")),
            unless(0, "absent on", absent),
            unless(0, "open on", unanswered),
        ])
    }
}

impl Shown for Left {
    fn shown(&self, style: Style) -> String {
        parts([
            Some("left".to_owned()),
            style.moment(self.held_until).map(|at| format!("held until {at}")),
            style.moment(self.latest_end).map(|at| format!("gone by {at}")),
            unless(0, "open on", self.unanswered),
        ])
    }
}

impl Shown for SlotLook {
    fn shown(&self, _: Style) -> String {
        match self {
            Self::Free(slots) => {
                let slots: Vec<_> = slots.iter().map(u32::to_string).collect();
                format!("free: {}", slots.join(" "))
            }
            Self::Taken => "all taken".to_owned(),
            Self::Contested => "contested".to_owned(),
            Self::Unknown(_) => "unknown".to_owned(),
        }
    }
}

impl Shown for Outcome {
    fn shown(&self, style: Style) -> String {
        match self {
            Self::Acquire(result) => result.shown(style),
            Self::Extend(result) => format!("extended: {}", result.shown(style)),
            Self::Lost(at) => format!("lost {}", at.shown(style)),
            Self::Release(result) => result.shown(style),
            Self::Leave(result) => result.shown(style),
            Self::Paused => "paused".to_owned(),
            Self::Inspect(inspection) => inspection.to_string().replace('\n', "; "),
            Self::FreeSlots(look) => look.shown(style),
            Self::ForceUnlock(unlocked) => unlocked.shown(style),
            Self::Drained(count) => format!("drained, {count} not released"),
            _ => "another outcome".to_owned(),
        }
    }
}

impl Shown for Event {
    fn shown(&self, style: Style) -> String {
        let lock = |name: &str, resource: &[u8], rest: Option<String>| {
            parts([Some(format!("{name} {}", text(resource))), rest])
        };
        match self {
            Self::Acquired { resource, attempts, took, .. } => {
                let rest = parts([unless(1, "attempts", *attempts), style.time("took", *took)]);
                lock("acquired", resource, Some(rest))
            }
            Self::Denied { resource, .. } => lock("denied", resource, None),
            Self::Released { resource, held } => lock("released", resource, style.time("held", *held)),
            Self::Left { resource, held } => lock("left", resource, style.time("held", *held)),
            Self::NotExtended { resource, error } => lock("not extended", resource, Some(error.to_string())),
            Self::NearLoss { resource, left } => lock("near loss of", resource, style.time("left", *left)),
            Self::Lost { resource, held } => lock("lost", resource, style.time("held", *held)),
            Self::Connected { is_reconnect, .. } => {
                if *is_reconnect {
                    "reconnected".to_owned()
                } else {
                    "connected".to_owned()
                }
            }
            Self::Disconnected { why, .. } => format!("disconnected: {why}"),
            Self::Restarted { .. } => "restarted".to_owned(),
            Self::CredentialsFailed { error, .. } => format!("credentials failed: {error}"),
            Self::FleetDiffers { difference, .. } => format!("fleet differs: {difference}"),
            Self::Quarantined { left, .. } => {
                parts([Some("quarantined".to_owned()), style.time("for", *left)])
            }
            _ => "another event".to_owned(),
        }
    }
}
