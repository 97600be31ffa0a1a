//! The data of a model master: keys of three types, each with or without an end, as the servers keep them.
//!
//! All that commands and scripts do to keys is done here, so both refuse alike: a key of another type, and
//! memory that is full. Within a script memory is refused only before its first write.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::lock::Token;

use super::Refusal;

/// The member by which a set of readers is known.
pub(super) const READERS_MARKER: &[u8] = b"redlatch:readers:1";

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
const OUT_OF_MEMORY: &str = "OOM command not allowed when used memory > 'maxmemory'.";

/// All keys, as a snapshot would have them.
pub type Keys = BTreeMap<Vec<u8>, Entry>;

/// The value at one key, and when it ends.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    pub value: Value,
    pub expires: Option<Instant>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    String(Vec<u8>),
    /// Somebody else's: no command here looks into it.
    List,
    SortedSet(SortedSet),
}

/// Members with their scores, in the order of both.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SortedSet(Vec<(f64, Vec<u8>)>);

impl SortedSet {
    pub fn score(&self, member: &[u8]) -> Option<f64> {
        self.0.iter().find(|(_, other)| other == member).map(|(score, _)| *score)
    }

    pub fn rank(&self, member: &[u8]) -> Option<usize> {
        self.0.iter().position(|(_, other)| other == member)
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// From the smallest score to the largest.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (f64, &[u8])> {
        self.0.iter().map(|(score, member)| (*score, member.as_slice()))
    }

    pub fn first(&self) -> Option<&[u8]> {
        self.0.first().map(|(_, member)| member.as_slice())
    }

    /// The largest score.
    pub fn last_score(&self) -> Option<f64> {
        self.0.last().map(|(score, _)| *score)
    }

    /// Returns whether the member is new.
    fn insert(&mut self, score: f64, member: &[u8]) -> bool {
        let is_new = !self.remove(member);
        let is_before = |it: &(f64, Vec<u8>)| it.0 < score || (it.0 == score && it.1.as_slice() < member);
        let place = self.0.partition_point(is_before);
        self.0.insert(place, (score, member.to_vec()));
        is_new
    }

    fn remove(&mut self, member: &[u8]) -> bool {
        let before = self.0.len();
        self.0.retain(|(_, other)| other != member);
        self.0.len() < before
    }
}

impl<'a> FromIterator<(f64, &'a [u8])> for SortedSet {
    fn from_iter<T: IntoIterator<Item = (f64, &'a [u8])>>(members: T) -> Self {
        let mut set = Self::default();
        for (score, member) in members {
            set.insert(score, member);
        }
        set
    }
}

/// The keys of one server, and whether it has memory for more.
#[derive(Default)]
pub struct Data {
    pub keys: Keys,
    /// Whether its memory is at the limit, and its policy `noeviction`.
    pub is_full: bool,
    /// While a script runs: whether it has written.
    script_has_written: Option<bool>,
}

impl Data {
    /// The entry that is there, unless its time is over.
    pub fn entry(&self, now: Instant, key: &[u8]) -> Option<&Entry> {
        self.keys.get(key).filter(|entry| entry.expires.is_none_or(|at| now < at))
    }

    pub fn is_taken(&self, now: Instant, key: &[u8]) -> bool {
        self.entry(now, key).is_some()
    }

    /// A string, or nothing.
    pub fn string(&self, now: Instant, key: &[u8]) -> Result<Option<&[u8]>, Refusal> {
        match self.entry(now, key).map(|entry| &entry.value) {
            None => Ok(None),
            Some(Value::String(value)) => Ok(Some(value)),
            Some(_) => Refusal::says(WRONG_TYPE),
        }
    }

    /// A sorted set, or nothing.
    pub fn sorted_set(&self, now: Instant, key: &[u8]) -> Result<Option<&SortedSet>, Refusal> {
        match self.entry(now, key).map(|entry| &entry.value) {
            None => Ok(None),
            Some(Value::SortedSet(set)) => Ok(Some(set)),
            Some(_) => Refusal::says(WRONG_TYPE),
        }
    }

    /// As `PTTL` returns it.
    pub fn time_left(&self, now: Instant, key: &[u8]) -> i64 {
        match self.entry(now, key).map(|entry| entry.expires) {
            None => -2,
            Some(None) => -1,
            Some(Some(at)) => i64::try_from((at - now).as_millis()).expect("small"),
        }
    }

    /// A script begins.
    pub fn begin_script(&mut self) {
        self.script_has_written = Some(false);
    }

    /// It ends, well or not.
    pub fn end_script(&mut self) {
        self.script_has_written = None;
    }

    /// Whether a command that may take memory is carried out.
    pub fn may_take_memory(&self) -> Result<(), Refusal> {
        let is_refused = self.is_full && self.script_has_written != Some(true);
        if is_refused { Refusal::says(OUT_OF_MEMORY) } else { Ok(()) }
    }

    /// A command that writes, whether or not it finds anything to change.
    fn note_write(&mut self) {
        if let Some(has_written) = &mut self.script_has_written {
            *has_written = true;
        }
    }

    /// Whatever was there before.
    pub fn set(&mut self, key: &[u8], value: &[u8], expires: Option<Instant>) -> Result<(), Refusal> {
        self.may_take_memory()?;
        self.note_write();
        self.put(key, Value::String(value.to_vec()), expires);
        Ok(())
    }

    /// The same without a question: as somebody else did it before.
    pub fn put(&mut self, key: &[u8], value: Value, expires: Option<Instant>) {
        self.keys.insert(key.to_vec(), Entry { value, expires });
    }

    /// Returns whether there was a key.
    pub fn delete(&mut self, now: Instant, key: &[u8]) -> bool {
        self.note_write();
        let was_there = self.is_taken(now, key);
        self.keys.remove(key);
        was_there
    }

    /// Gives a key another end, which may have been before; returns whether there is one.
    pub fn expire(&mut self, now: Instant, key: &[u8], at: Instant) -> bool {
        self.note_write();
        if !self.is_taken(now, key) {
            return false;
        }
        if at <= now {
            self.keys.remove(key);
        } else if let Some(entry) = self.keys.get_mut(key) {
            entry.expires = Some(at);
        }
        true
    }

    /// Returns how many members are new.
    pub fn add(&mut self, now: Instant, key: &[u8], members: &[(f64, &[u8])]) -> Result<usize, Refusal> {
        self.may_take_memory()?;
        self.note_write();
        if self.sorted_set(now, key)?.is_none() {
            self.put(key, Value::SortedSet(SortedSet::default()), None);
        }
        let Some(Entry { value: Value::SortedSet(set), .. }) = self.keys.get_mut(key) else { return Ok(0) };
        Ok(members.iter().filter(|(score, member)| set.insert(*score, member)).count())
    }

    /// Returns whether the member was there.
    pub fn remove(&mut self, now: Instant, key: &[u8], member: &[u8]) -> Result<bool, Refusal> {
        self.retain(now, key, |_, other| other != member).map(|count| count > 0)
    }

    /// Removes the members whose score is from `min` to `max`; returns how many there were.
    pub fn purge(&mut self, now: Instant, key: &[u8], min: f64, max: f64) -> Result<usize, Refusal> {
        self.retain(now, key, |score, _| !(min..=max).contains(&score))
    }

    /// The key goes with its last member.
    fn retain(
        &mut self,
        now: Instant,
        key: &[u8],
        is_kept: impl Fn(f64, &[u8]) -> bool,
    ) -> Result<usize, Refusal> {
        self.note_write();
        if self.sorted_set(now, key)?.is_none() {
            return Ok(0);
        }
        let Some(Entry { value: Value::SortedSet(set), .. }) = self.keys.get_mut(key) else { return Ok(0) };
        let before = set.count();
        set.0.retain(|(score, member)| is_kept(*score, member));
        let removed = before - set.count();
        if set.count() == 0 {
            self.keys.remove(key);
        }
        Ok(removed)
    }
}

/// A server's wall clock.
#[derive(Debug, Clone, Copy)]
pub struct Wall {
    /// A whole second of it, and what it showed then, in microseconds since 1970.
    pub epoch: Instant,
    pub epoch_us: i128,
    /// By how much it was set ahead since this process started.
    pub step: Duration,
}

impl Wall {
    /// The time that it shows, in microseconds since 1970.
    pub fn us(self, now: Instant) -> u64 {
        let now = now + self.step;
        let us = |time: Duration| i128::try_from(time.as_micros()).expect("small");
        let passed =
            us(now.saturating_duration_since(self.epoch)) - us(self.epoch.saturating_duration_since(now));
        u64::try_from((self.epoch_us + passed).max(0)).expect("small")
    }

    /// The same in milliseconds.
    pub fn ms(self, now: Instant) -> i64 {
        i64::try_from(self.us(now) / 1000).expect("small")
    }

    /// When it shows this many milliseconds.
    pub fn at_ms(self, ms: i64) -> Instant {
        let us = i128::from(ms) * 1000 - self.epoch_us;
        let passed = Duration::from_micros(u64::try_from(us.unsigned_abs()).unwrap_or(u64::MAX));
        let at = if us < 0 { self.epoch.checked_sub(passed) } else { self.epoch.checked_add(passed) };
        at.and_then(|at| at.checked_sub(self.step)).unwrap_or(self.epoch)
    }
}

/// Keys of locks, and values with their ends: those of strings, and each reader's in a set of readers.
pub fn leases(keys: &Keys, wall: Wall) -> impl Iterator<Item = (&[u8], &[u8], Option<Instant>)> {
    keys.iter().flat_map(move |(key, entry)| {
        let (string, readers) = match &entry.value {
            Value::String(value) => (Some((value.as_slice(), entry.expires)), None),
            Value::SortedSet(set) if set.score(READERS_MARKER).is_some() => (None, Some(set)),
            _ => (None, None),
        };
        let readers = readers.into_iter().flat_map(SortedSet::iter);
        let readers = readers.filter(|(_, value)| *value != READERS_MARKER);
        let readers = readers.map(move |(end_ms, value)| (value, Some(reader_end(wall, entry, end_ms))));
        string.into_iter().chain(readers).map(move |(value, end)| (key.as_slice(), token_of(value), end))
    })
}

/// The token in a lock's value, which a label may follow.
pub fn token_of(value: &[u8]) -> &[u8] {
    value.get(..Token::SIZE).unwrap_or(value)
}

/// When the value with this token at a lock's key ends, if it is there.
pub fn lease_end(keys: &Keys, wall: Wall, key: &[u8], token: &[u8]) -> Option<Option<Instant>> {
    let entry = keys.get(key)?;
    match &entry.value {
        Value::String(value) => (token_of(value) == token).then_some(entry.expires),
        Value::SortedSet(set) => {
            let reader = set.iter().find(|(_, value)| token_of(value) == token);
            reader.map(|(end_ms, _)| Some(reader_end(wall, entry, end_ms)))
        }
        Value::List => None,
    }
}

/// A reader is there as long as its own end and that of the key have not come.
fn reader_end(wall: Wall, entry: &Entry, end_ms: f64) -> Instant {
    #[allow(clippy::cast_possible_truncation, reason = "a time in this age")]
    let end = wall.at_ms(end_ms as i64);
    entry.expires.map_or(end, |at| at.min(end))
}
