//! The most contended names, in fixed memory: the Space-Saving algorithm of Metwally, Agrawal and El Abbadi,
//! "Efficient Computation of Frequent and Top-k Elements in Data Streams" (2005).
//!
//! There are as many counters as names are kept. A name that has none takes over the smallest counter, with
//! its count, which is then the largest error of the new one. So a count is never too small, and a name with
//! more than one in 32 of all contended acquisitions has a counter.

use std::fmt;
use std::time::Duration;

use crate::limits::{CONTENDED_NAME_COUNT_MAX, CONTENDED_NAME_SIZE_MAX, HOLDER_LABEL_SIZE_MAX};

/// The most contended locks of a client, the most contended one first. It has at most 32
/// ([`limits::CONTENDED_NAME_COUNT_MAX`](crate::limits::CONTENDED_NAME_COUNT_MAX)), and its memory is fixed.
///
/// An acquisition is contended if others had the lock, whether it got it later or not. A lock with more than
/// one in 32 of a client's contended acquisitions is in it.
#[derive(Clone, PartialEq, Eq)]
pub struct ContendedNames(Vec<ContendedName>);

/// Contended lock, and how it was waited for since it took its place in [`ContendedNames`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ContendedName {
    name: Text<CONTENDED_NAME_SIZE_MAX>,
    holder_label: Text<HOLDER_LABEL_SIZE_MAX>,
    /// Number of contended acquisitions. It is never too small, and too large by at most `error`.
    pub count: u64,
    /// Largest error of the count. Zero if it has had its place from its first contended acquisition on.
    pub error: u64,
    /// Time that these acquisitions took, added up; without those that the error counts.
    pub waited: Duration,
    /// Longest time for which one of them waited for the same holder: an estimate, as in
    /// [`Waited`](crate::Waited).
    pub longest_hold: Duration,
}

impl ContendedName {
    /// Returns the lock's name, with bytes escaped that are no printable ASCII: the first 85 bytes of a text
    /// of more than 96, then `…` and a checksum of the name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// Returns the label of the holder that was in the way last; `None` if it is unknown.
    #[must_use]
    pub fn holder_label(&self) -> Option<&str> {
        Some(self.holder_label.as_str()).filter(|label| !label.is_empty())
    }
}

impl Default for ContendedNames {
    /// Without a name, and with room for all that there will be.
    fn default() -> Self {
        Self(Vec::with_capacity(CONTENDED_NAME_COUNT_MAX))
    }
}

impl ContendedNames {
    /// Returns the locks, the most contended one first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &ContendedName> {
        self.0.iter()
    }

    /// Returns whether no acquisition was contended, or names are not kept
    /// ([`ConfigBuilder::contended_names`](crate::ConfigBuilder::contended_names)).
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A contended acquisition of this name has ended.
    pub(crate) fn note(
        &mut self,
        name: &[u8],
        waited: Duration,
        longest_hold: Duration,
        holder: Option<&str>,
    ) {
        let name = shown_name(name);
        let place = match self.0.iter().position(|it| it.name == name) {
            Some(place) => place,
            None => self.add(name),
        };
        let found = &mut self.0[place];
        found.count += 1;
        found.waited = found.waited.saturating_add(waited);
        found.longest_hold = found.longest_hold.max(longest_hold);
        found.holder_label.set(holder.unwrap_or_default());
        // The first place with a smaller count is its own now.
        let count = found.count;
        let first = self.0.partition_point(|it| it.count > count).min(place);
        self.0[first..=place].rotate_right(1);
    }

    /// The place of a name that had none: the last one, which has the smallest counter.
    fn add(&mut self, name: Text<CONTENDED_NAME_SIZE_MAX>) -> usize {
        let smallest = if self.0.len() < CONTENDED_NAME_COUNT_MAX {
            0
        } else {
            self.0.pop().map_or(0, |smallest| smallest.count)
        };
        self.0.push(ContendedName {
            name,
            holder_label: Text::EMPTY,
            count: smallest,
            error: smallest,
            waited: Duration::ZERO,
            longest_hold: Duration::ZERO,
        });
        self.0.len() - 1
    }
}

impl fmt::Debug for ContendedNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// A name as statistics show it. Two long ones with the same beginning differ in their checksum.
fn shown_name(name: &[u8]) -> Text<CONTENDED_NAME_SIZE_MAX> {
    const MARK: &str = "…";
    const CUT_SIZE: usize = CONTENDED_NAME_SIZE_MAX - MARK.len() - 8;
    let mut text = Text::EMPTY;
    let mut escaped = name.escape_ascii();
    for byte in escaped.by_ref().take(CONTENDED_NAME_SIZE_MAX) {
        text.push(byte);
    }
    if escaped.next().is_some() {
        text.size = CUT_SIZE;
        let sum = name.iter().fold(FNV_START, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(FNV_PRIME));
        MARK.bytes().for_each(|byte| text.push(byte));
        for shift in (0..8).rev() {
            text.push(b"0123456789abcdef"[(sum >> (4 * shift)) as usize & 15]);
        }
    }
    text
}

/// The checksum is FNV-1a of 32 bits, which is the same in all processes.
const FNV_START: u32 = 0x811c_9dc5;
const FNV_PRIME: u32 = 0x0100_0193;

/// A text of at most so many bytes, without memory of its own.
#[derive(Clone, Copy)]
struct Text<const SIZE: usize> {
    bytes: [u8; SIZE],
    size: usize,
}

impl<const SIZE: usize> Text<SIZE> {
    const EMPTY: Self = Self { bytes: [0; SIZE], size: 0 };

    /// Becomes this text, which is short enough; else nothing.
    fn set(&mut self, text: &str) {
        self.size = 0;
        if let Some(bytes) = self.bytes.get_mut(..text.len()) {
            bytes.copy_from_slice(text.as_bytes());
            self.size = text.len();
        }
    }

    fn push(&mut self, byte: u8) {
        self.bytes[self.size] = byte;
        self.size += 1;
    }

    fn as_str(&self) -> &str {
        str::from_utf8(&self.bytes[..self.size]).unwrap_or_default()
    }
}

impl<const SIZE: usize> PartialEq for Text<SIZE> {
    fn eq(&self, other: &Self) -> bool {
        self.bytes[..self.size] == other.bytes[..other.size]
    }
}

impl<const SIZE: usize> Eq for Text<SIZE> {}

impl<const SIZE: usize> fmt::Debug for Text<SIZE> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    fn note(names: &mut ContendedNames, name: &str) {
        names.note(name.as_bytes(), Duration::from_millis(2), Duration::from_millis(1), Some("worker"));
    }

    /// Checks what the algorithm guarantees of the names that were noted so often.
    fn check(names: &ContendedNames, truth: &HashMap<String, u64>) {
        let all: u64 = truth.values().sum();
        assert!(names.iter().len() <= CONTENDED_NAME_COUNT_MAX);
        assert!(names.iter().is_sorted_by(|one, other| one.count >= other.count), "the largest first");
        assert_eq!(names.iter().map(|it| it.count).sum::<u64>(), all, "each is counted once");
        for it in names.iter() {
            let count = truth[it.name()];
            assert!(it.count - it.error <= count && count <= it.count, "{it:?} is {count}");
            assert_eq!(
                it.waited,
                Duration::from_millis(2) * u32::try_from(it.count - it.error).expect("few")
            );
        }
        let share = CONTENDED_NAME_COUNT_MAX as u64;
        for (name, _) in truth.iter().filter(|(_, count)| **count * share > all) {
            assert!(names.iter().any(|it| it.name() == name), "{name} is missing");
        }
    }

    #[test]
    fn counts_are_right_within_their_errors() {
        for seed in 0..200 {
            let mut rng = StdRng::seed_from_u64(seed);
            let (mut names, mut truth) = (ContendedNames::default(), HashMap::new());
            let (distinct, skew) = (rng.random_range(1..200_u32), rng.random_range(1..4));
            for round in 0..rng.random_range(1..3000) {
                // The more they are multiplied, the more are small numbers.
                let draw = (0..skew).fold(1.0, |product, _| product * rng.random_range(0.0..1.0));
                let name = format!("lock {}", (f64::from(distinct) * draw).floor());
                note(&mut names, &name);
                *truth.entry(name).or_default() += 1;
                if round % 100 == 0 {
                    check(&names, &truth);
                }
            }
            check(&names, &truth);
        }
    }

    #[test]
    fn memory_is_fixed() {
        let mut names = ContendedNames::default();
        let memory = (names.0.as_ptr(), names.0.capacity());
        for number in 0..1000 {
            note(&mut names, &number.to_string());
        }
        assert_eq!((names.0.as_ptr(), names.0.capacity()), memory);
    }

    #[test]
    fn long_names_are_cut_and_stay_different() {
        let long = "orders:".repeat(100);
        let other = format!("{long}x");
        let mut names = ContendedNames::default();
        for name in [&long, &other, &long] {
            note(&mut names, name);
        }
        let [first, second] = [0, 1].map(|place| names.iter().nth(place).expect("two"));
        assert_eq!((first.count, second.count), (2, 1));
        assert!(first.name().starts_with(&long[..85]) && first.name() != second.name(), "{first:?}");
        assert!(first.name()[85..].starts_with('…') && first.name().len() <= CONTENDED_NAME_SIZE_MAX);
        assert_eq!(first.name().len(), 85 + '…'.len_utf8() + 8);
        let longest = "x".repeat(CONTENDED_NAME_SIZE_MAX);
        assert_eq!(shown_name(longest.as_bytes()).as_str(), longest, "nothing is cut");
        assert_eq!(shown_name(b"a\n\xff\"").as_str(), "a\\n\\xff\\\"");
    }

    #[test]
    fn the_latest_holder_is_shown_if_its_label_is_short_enough() {
        let mut names = ContendedNames::default();
        let longest = "x".repeat(HOLDER_LABEL_SIZE_MAX);
        let long = format!("{longest}x");
        for (label, shown) in [(Some(&longest), Some(&longest)), (Some(&long), None)] {
            names.note(b"a", Duration::ZERO, Duration::ZERO, label.map(|label| &**label));
            let first = names.iter().next().expect("one");
            assert_eq!(first.holder_label(), shown.map(|label| &**label));
        }
    }
}
