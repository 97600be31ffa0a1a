//! Metrics for a recorder of the crate `metrics`; spans and events for a subscriber of the crate `tracing`.

#[cfg(feature = "metrics")]
mod recorded {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use metrics::{
        Counter, CounterFn, Gauge, GaugeFn, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    };

    use crate::engine::{Histogram, Stats};
    use crate::record_metrics;
    use crate::stats::MasterStats;

    /// The values of each counter, gauge and histogram, by its kind and its name with its labels.
    type Values = Arc<Mutex<BTreeMap<(&'static str, String), Vec<f64>>>>;

    #[derive(Default)]
    struct Recording(Values);

    /// One counter, gauge or histogram.
    struct Series {
        key: (&'static str, String),
        values: Values,
    }

    impl Recording {
        fn series(&self, kind: &'static str, key: &Key) -> Arc<Series> {
            let labels: Vec<String> =
                key.labels().map(|label| format!("{}=\"{}\"", label.key(), label.value())).collect();
            let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
            let key = (kind, format!("{}{labels}", key.name()));
            self.0.lock().expect("no panic").entry(key.clone()).or_default();
            Arc::new(Series { key, values: self.0.clone() })
        }
    }

    impl Series {
        fn change(&self, change: impl FnOnce(&mut Vec<f64>)) {
            change(self.values.lock().expect("no panic").get_mut(&self.key).expect("registered"));
        }
    }

    impl Recorder for Recording {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            Counter::from_arc(self.series("counter", key))
        }

        fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::from_arc(self.series("gauge", key))
        }

        fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> metrics::Histogram {
            metrics::Histogram::from_arc(self.series("histogram", key))
        }
    }

    impl CounterFn for Series {
        fn increment(&self, value: u64) {
            self.change(|values| values.push(f64::from(u32::try_from(value).expect("small"))));
        }

        fn absolute(&self, _: u64) {
            unreachable!("it would undo what other clients have counted");
        }
    }

    impl GaugeFn for Series {
        fn increment(&self, value: f64) {
            self.change(|values| values.push(value));
        }

        fn decrement(&self, value: f64) {
            self.change(|values| values.push(-value));
        }

        fn set(&self, value: f64) {
            self.change(|values| *values = vec![value]);
        }
    }

    impl HistogramFn for Series {
        fn record(&self, value: f64) {
            self.change(|values| values.push(value));
        }
    }

    const LONGEST: Duration = Duration::from_secs(4_600);

    fn times(unit: Duration) -> Histogram {
        let mut times = Histogram::new();
        [1, 1, 7, 150, 40_000].into_iter().for_each(|count| times.record(unit * count));
        // Above all bounds but that of the last bucket.
        times.record(LONGEST);
        times
    }

    fn master(name: &str, unit: u64) -> MasterStats {
        MasterStats {
            name: name.into(),
            is_ready: unit.is_multiple_of(2),
            granted: unit,
            late: 2 * unit,
            refused: 3 * unit,
            errors: 4 * unit,
            unanswered: 5 * unit,
            reconnects: 6 * unit,
            restarts: 7 * unit,
            credentials_failed: 8 * unit,
            fleet_differences: 9 * unit,
            quarantined: Duration::from_millis(250 * unit),
            clock_rate: None,
            round_trip: times(Duration::from_micros(3 * unit)),
        }
    }

    /// Each number is another one, and larger in a later snapshot.
    fn stats(unit: u64) -> Stats {
        let mut stats = Stats::default();
        let counters = stats.counters_mut().into_iter().map(|(_, counter)| counter);
        (1_000..).zip(counters).for_each(|(count, counter)| *counter = unit * count);
        (stats.operations, stats.claims, stats.quorum) = (17, 18, 2);
        stats.acquire_time = times(Duration::from_micros(5 * unit));
        stats.wait_time = times(Duration::from_micros(11 * unit));
        stats.hold_time = times(Duration::from_micros(13 * unit));
        stats.masters = vec![master("redis://a:6379", 2 * unit), master("redis://b:6379", 2 * unit + 1)];
        stats
    }

    /// Values recorded in two steps are those that a page for Prometheus shows behind the second one.
    #[test]
    fn the_recorder_gets_each_number_of_the_page() {
        let recording = Recording::default();
        let (first, mut second) = (stats(1), stats(2));
        // Later snapshots have all times of earlier ones.
        second.acquire_time.merge(&first.acquire_time);
        second.wait_time.merge(&first.wait_time);
        second.hold_time.merge(&first.hold_time);
        for (master, before) in second.masters.iter_mut().zip(&first.masters) {
            master.round_trip.merge(&before.round_trip);
        }
        metrics::with_local_recorder(&recording, || {
            record_metrics(&first.since(&Stats::default()));
            record_metrics(&second.since(&first));
        });
        let mut values = recording.0.lock().expect("no panic").clone();
        let mut take = |kind, key: String| {
            values.remove(&(kind, key.clone())).unwrap_or_else(|| panic!("there is no {kind} {key}"))
        };
        let page = second.to_prometheus();
        for line in page.lines().filter(|line| !line.starts_with('#') && !line.contains("_bucket{")) {
            let (key, shown) = line.rsplit_once(' ').expect("a value");
            let shown: f64 = shown.parse().expect("a number");
            if key.contains("_seconds_count") {
                // It has come with the sum.
            } else if key.contains("_seconds_sum") {
                let times = take("histogram", key.replace("_seconds_sum", "_seconds"));
                assert_eq!(times.len(), 12, "{key}");
                let sum: f64 = times.iter().sum();
                assert!((sum / shown - 1.0).abs() < 0.063, "{key}: {sum}, not {shown}");
            } else if key.contains("_quarantine_seconds_total") {
                let spent: f64 = take("gauge", key.replace("_seconds_total", "_seconds")).iter().sum();
                assert!((spent - shown).abs() < 1e-9, "{key}: {spent}, not {shown}");
            } else if key.contains("_total") {
                let counted: f64 = take("counter", key.to_owned()).iter().sum();
                assert_eq!(counted, shown, "{key}");
            } else {
                assert_eq!(take("gauge", key.to_owned()), [shown], "{key}");
            }
        }
        assert!(values.is_empty(), "not on the page: {values:?}");
    }
}

#[cfg(feature = "tracing")]
mod traced {
    use std::fmt::Debug;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Metadata, Subscriber};

    use crate::error::fleet::FleetDifference;
    use crate::error::{AcquireError, CredentialsError};
    use crate::event::Event;
    use crate::trace_events;

    /// Notes each event with its level, its target and its fields in the order of their names.
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

    /// The place of a variant in the cases below. A new one does not compile before it has a place there.
    fn place(event: &Event) -> usize {
        match event {
            Event::Acquired { .. } => 0,
            Event::Denied { .. } => 1,
            Event::Released { .. } => 2,
            Event::Left { .. } => 3,
            Event::NearLoss { .. } => 4,
            Event::Lost { .. } => 5,
            Event::Connected { .. } => 6,
            Event::Disconnected { .. } => 7,
            Event::Restarted { .. } => 8,
            Event::CredentialsFailed { .. } => 9,
            Event::FleetDiffers { .. } => 10,
            Event::Quarantined { .. } => 11,
        }
    }

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn master() -> Arc<str> {
        "redis://h:6379".into()
    }

    #[test]
    fn each_event_is_traced_with_its_fields() {
        let lock = || bytes::Bytes::from_static(b"a\xff");
        let error = CredentialsError::Empty;
        let difference = FleetDifference::MasterCount { recorded: 5, ours: 3 };
        let cases = [
            (
                Event::Acquired { resource: lock(), attempts: 2, took: ms(3) },
                r#"DEBUG redlatch: attempts 2, lock "a\\xff", message lock acquired, took 3ms"#.to_owned(),
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
                Event::NearLoss { resource: lock(), left: ms(5) },
                r#"WARN redlatch: left 5ms, lock "a\\xff", message lock nearly lost"#.to_owned(),
            ),
            (
                Event::Lost { resource: lock(), held: ms(6) },
                r#"WARN redlatch: held 6ms, lock "a\\xff", message lock lost"#.to_owned(),
            ),
            (
                Event::Connected { master: master(), is_reconnect: true },
                "INFO redlatch: is_reconnect true, master redis://h:6379, message master connected"
                    .to_owned(),
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
                format!(
                    "WARN redlatch: difference {difference}, master redis://h:6379, message settings differ"
                ),
            ),
            (
                Event::Quarantined { master: master(), left: ms(7) },
                "WARN redlatch: left 7ms, master redis://h:6379, message master in quarantine".to_owned(),
            ),
        ];
        assert!(cases.iter().map(|(event, _)| place(event)).eq(0..cases.len()));
        let notes = Notes::default();
        let noted = notes.0.clone();
        let observe = trace_events();
        tracing::subscriber::with_default(notes, || cases.iter().for_each(|(event, _)| observe(event)));
        let noted = noted.lock().expect("no panic").clone();
        assert_eq!(noted, cases.map(|(_, note)| note));
    }
}
