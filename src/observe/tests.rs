//! Events passed to a subscriber of the crate `tracing`.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Metadata, Subscriber};

use crate::error::fleet::FleetDifference;
use crate::error::waited::WaitedFor;
use crate::error::{AcquireError, CredentialsError, ExtendError};
use crate::event::Event;
use crate::trace_events;

/// Records each event with its level, its target and its fields, sorted by name.
#[derive(Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

impl Subscriber for Notes {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        unreachable!("events are in no span of the crate")
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut fields = Fields(Vec::new());
        event.record(&mut fields);
        fields.0.sort();
        let metadata = event.metadata();
        let note = format!("{} {}: {}", metadata.level(), metadata.target(), fields.0.join(", "));
        self.0.lock().expect("no panic").push(note);
    }
}

struct Fields(Vec<String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.push(format!("{field} {value:?}"));
    }
}

/// Index of a variant in the cases below. A new variant does not compile without an index.
fn place(event: &Event) -> usize {
    match event {
        Event::Acquired { .. } => 0,
        Event::Denied { .. } => 1,
        Event::Released { .. } => 2,
        Event::Left { .. } => 3,
        Event::NotExtended { .. } => 4,
        Event::NearLoss { .. } => 5,
        Event::Lost { .. } => 6,
        Event::Connected { .. } => 7,
        Event::Disconnected { .. } => 8,
        Event::Restarted { .. } => 9,
        Event::CredentialsFailed { .. } => 10,
        Event::FleetDiffers { .. } => 11,
        Event::NoScripts { .. } => 12,
        Event::Quarantined { .. } => 13,
    }
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn master() -> Arc<str> {
    "redis://h:6379".into()
}

fn events_of_locks() -> Vec<(Event, String)> {
    let lock = || bytes::Bytes::from_static(b"a\xff");
    let holder = Some(WaitedFor { label: Some("web-3".into()), time: ms(1) });
    vec![
        (
            Event::Acquired { resource: lock(), attempts: 2, took: ms(3), holder },
            r#"DEBUG redlatch: attempts 2, holder web-3 (1ms), lock "a\\xff", message lock acquired, took 3ms"#.to_owned(),
        ),
        (
            Event::Denied { resource: lock(), error: AcquireError::Overloaded },
            format!(
                r#"DEBUG redlatch: error {}, lock "a\\xff", message lock not acquired"#,
                AcquireError::Overloaded
            ),
        ),
        (
            Event::Released { resource: lock(), held: ms(4) },
            r#"DEBUG redlatch: held 4ms, lock "a\\xff", message lock released"#.to_owned(),
        ),
        (
            Event::Left { resource: lock(), held: ms(8) },
            r#"DEBUG redlatch: held 8ms, lock "a\\xff", message lock left to its TTL"#.to_owned(),
        ),
        (
            Event::NotExtended { resource: lock(), error: ExtendError::NotHeld },
            format!(
                r#"WARN redlatch: error {}, lock "a\\xff", message lock not extended"#,
                ExtendError::NotHeld
            ),
        ),
        (
            Event::NearLoss { resource: lock(), left: ms(5) },
            r#"WARN redlatch: left 5ms, lock "a\\xff", message lock nearly lost"#.to_owned(),
        ),
        (
            Event::Lost { resource: lock(), held: ms(6) },
            r#"WARN redlatch: held 6ms, lock "a\\xff", message lock lost"#.to_owned(),
        ),
    ]
}

fn events_of_masters() -> Vec<(Event, String)> {
    let (error, difference) =
        (CredentialsError::Empty, FleetDifference::MasterCount { recorded: 5, ours: 3 });
    vec![
        (
            Event::Connected { master: master(), is_reconnect: true },
            "INFO redlatch: is_reconnect true, master redis://h:6379, message master connected".to_owned(),
        ),
        (
            Event::Disconnected { master: master(), why: "no route".into() },
            "WARN redlatch: master redis://h:6379, message master not connected, why no route".to_owned(),
        ),
        (
            Event::Restarted { master: master() },
            "WARN redlatch: master redis://h:6379, message master restarted or replaced".to_owned(),
        ),
        (
            Event::CredentialsFailed { master: master(), error: error.clone() },
            format!(
                "WARN redlatch: error {error}, master redis://h:6379, message new credentials not in use"
            ),
        ),
        (
            Event::FleetDiffers { master: master(), difference: difference.clone() },
            format!("WARN redlatch: difference {difference}, master redis://h:6379, message settings differ"),
        ),
        (
            Event::NoScripts { master: master(), refusal: "NOPERM x".into() },
            "WARN redlatch: master redis://h:6379, message master runs no scripts, refusal NOPERM x"
                .to_owned(),
        ),
        (
            Event::Quarantined { master: master(), left: ms(7) },
            "WARN redlatch: left 7ms, master redis://h:6379, message master in quarantine".to_owned(),
        ),
    ]
}

// I133
#[test]
fn each_event_is_traced_with_its_fields() {
    let cases = [events_of_locks(), events_of_masters()].concat();
    assert!(cases.iter().map(|(event, _)| place(event)).eq(0..cases.len()));
    let notes = Notes::default();
    let noted = notes.0.clone();
    let observe = trace_events();
    tracing::subscriber::with_default(notes, || cases.iter().for_each(|(event, _)| observe(event)));
    let noted = noted.lock().expect("no panic").clone();
    assert!(noted.iter().eq(cases.iter().map(|(_, note)| note)), "{noted:#?}");
}
