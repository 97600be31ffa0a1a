//! Holders of the locks for which callers of this engine wait, as reports named them one after another.
//!
//! All waiters of one lock share what is known of its holders: the head of a wait queue learns it from the
//! masters, and the others read it when their wait ends. Memory is bounded by names and by changes; what gave
//! way is not known any more.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::limits;

#[derive(Debug, Default)]
pub(crate) struct Sightings {
    names: Vec<Sighted>,
}

/// Holders of one lock.
#[derive(Debug)]
struct Sighted {
    hash: u32,
    key: Vec<u8>,
    spans: VecDeque<Span>,
    touched: Instant,
}

/// Time from the first report of a holder to the first report of the next one.
#[derive(Debug)]
struct Span {
    /// `None` for a holder whose label is unknown.
    label: Option<Arc<str>>,
    since: Instant,
    /// The last report that named it.
    confirmed: Instant,
}

impl Sightings {
    /// A report names the holder of a key: `label` makes its label where another one held it before.
    pub(crate) fn see(
        &mut self,
        now: Instant,
        hash: u32,
        key: &[u8],
        label: Option<&str>,
        make: impl FnOnce() -> Option<Arc<str>>,
    ) {
        let sighted = self.of_mut(now, hash, key);
        match sighted.spans.back_mut().filter(|span| span.label.as_deref() == label) {
            Some(span) => span.confirmed = now,
            None => {
                if sighted.spans.len() >= limits::SPAN_COUNT_MAX {
                    sighted.spans.pop_front();
                }
                sighted.spans.push_back(Span { label: make(), since: now, confirmed: now });
            }
        }
    }

    /// Somebody follows the holder of a key: the one that was reported last is there still.
    pub(crate) fn confirm(&mut self, now: Instant, hash: u32, key: &[u8]) {
        if let Some(span) = self.of_mut(now, hash, key).spans.back_mut() {
            span.confirmed = now;
        }
    }

    /// The holders between two times, and how long each of them was there. One that no report named since
    /// `from` is none of them: nobody followed it.
    pub(crate) fn between(
        &self,
        hash: u32,
        key: &[u8],
        from: Instant,
        to: Instant,
    ) -> impl Iterator<Item = (Option<&Arc<str>>, Duration)> {
        let spans = self.find(hash, key).map(|sighted| &sighted.spans);
        let ends = spans.into_iter().flatten().skip(1).map(|next| next.since).chain([to]);
        spans.into_iter().flatten().zip(ends).filter(move |(span, _)| span.confirmed >= from).map(
            move |(span, end)| (span.label.as_ref(), end.saturating_duration_since(span.since.max(from))),
        )
    }

    /// The holder that was reported last.
    pub(crate) fn last(&self, hash: u32, key: &[u8]) -> Option<&Arc<str>> {
        self.find(hash, key)?.spans.back()?.label.as_ref()
    }

    fn find(&self, hash: u32, key: &[u8]) -> Option<&Sighted> {
        self.names.iter().find(|it| it.hash == hash && it.key == key)
    }

    fn of_mut(&mut self, now: Instant, hash: u32, key: &[u8]) -> &mut Sighted {
        let names = &mut self.names;
        let place = match names.iter().position(|it| it.hash == hash && it.key == key) {
            Some(place) => place,
            None if names.len() < limits::SIGHTED_NAME_COUNT_MAX => {
                names.push(Sighted { hash, key: key.to_vec(), spans: VecDeque::new(), touched: now });
                names.len() - 1
            }
            None => {
                let oldest = names.iter().enumerate().min_by_key(|(_, it)| it.touched);
                let place = oldest.expect("there are names").0;
                let sighted = &mut names[place];
                sighted.hash = hash;
                sighted.key.clear();
                sighted.key.extend_from_slice(key);
                sighted.spans.clear();
                place
            }
        };
        names[place].touched = now;
        &mut names[place]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn see(sightings: &mut Sightings, now: Instant, key: &[u8], label: Option<&str>) {
        sightings.see(now, 7, key, label, || label.map(Arc::from));
    }

    fn between(sightings: &Sightings, key: &[u8], from: Instant, to: Instant) -> Vec<(String, u64)> {
        let held = sightings.between(7, key, from, to);
        let text = |label: Option<&Arc<str>>| label.map_or("unknown", |label| label).to_owned();
        held.map(|(label, time)| (text(label), u64::try_from(time.as_millis()).expect("short"))).collect()
    }

    #[test]
    fn a_holder_counts_from_report_to_report() {
        let (mut sightings, start) = (Sightings::default(), Instant::now());
        for (at, label) in [(10, Some("a")), (20, Some("a")), (30, None), (50, Some("b"))] {
            see(&mut sightings, start + ms(at), b"key", label);
        }
        // Another key of the same hash.
        see(&mut sightings, start + ms(40), b"other", Some("x"));
        let all = between(&sightings, b"key", start, start + ms(60));
        assert_eq!(all, [("a".into(), 20), ("unknown".into(), 20), ("b".into(), 10)]);
        assert_eq!(sightings.last(7, b"key").map(|label| &**label), Some("b"));
        // A waiter that came at 15 while `a` was followed, and one that came after all reports.
        assert_eq!(between(&sightings, b"key", start + ms(15), start + ms(55))[0], ("a".into(), 15));
        assert_eq!(between(&sightings, b"key", start + ms(51), start + ms(60)), []);
        sightings.confirm(start + ms(52), 7, b"key");
        assert_eq!(between(&sightings, b"key", start + ms(51), start + ms(60)), [("b".into(), 9)]);
    }

    #[test]
    fn names_and_changes_are_bounded() {
        let (mut sightings, start) = (Sightings::default(), Instant::now());
        for index in 0..1000_u64 {
            see(&mut sightings, start + ms(index), &index.to_le_bytes(), None);
            see(&mut sightings, start + ms(index), b"key", Some(&index.to_string()));
        }
        assert_eq!(sightings.names.len(), limits::SIGHTED_NAME_COUNT_MAX);
        let held = between(&sightings, b"key", start, start + ms(1000));
        assert_eq!(held.len(), limits::SPAN_COUNT_MAX);
        assert_eq!(held.last(), Some(&("999".to_owned(), 1)), "the oldest gave way");
    }

    #[test]
    fn a_new_name_takes_the_place_of_the_oldest() {
        let (mut sightings, start) = (Sightings::default(), Instant::now());
        let mut see = |at: u64, name: u32, label: &str| {
            let label = Some(label);
            sightings.see(start + ms(at), name, &name.to_le_bytes(), label, || label.map(Arc::from));
        };
        let count = u32::try_from(limits::SIGHTED_NAME_COUNT_MAX).expect("few");
        (0..count).for_each(|name| see(u64::from(name), name, "old"));
        // The second name is the oldest then.
        see(2000, 0, "old");
        see(3000, count, "new");
        let last = |name: u32| sightings.last(name, &name.to_le_bytes()).map(|label| &**label);
        assert_eq!([last(0), last(1), last(2), last(count)], [Some("old"), None, Some("old"), Some("new")]);
        let key = count.to_le_bytes();
        let held = sightings.between(count, &key, start, start + ms(3500));
        assert_eq!(held.map(|(_, time)| time).collect::<Vec<_>>(), [ms(500)], "it inherits no holder");
    }
}
