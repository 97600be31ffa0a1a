//! The data of a model master: keys of three types, with or without an expiry, as on a server.
//!
//! Commands and scripts change keys only through this file, so both refuse alike: keys of another type, and
//! writes when memory is full. A script is refused memory only before its first write.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use redlatch::Token;

use super::Refusal;

/// Member that marks a set of readers.
pub(super) const READERS_MARKER: &[u8] = b"redlatch:readers:1";

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
const OUT_OF_MEMORY: &str = "OOM command not allowed when used memory > 'maxmemory'.";

/// All keys, as in a snapshot.
pub type Keys = BTreeMap<Vec<u8>, Entry>;

/// Value and expiry of a key.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    pub value: Value,
    pub expires: Option<Instant>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    String(Vec<u8>),
    /// A value of another client. No command here reads it.
    List,
    SortedSet(SortedSet),
}

/// Members with scores, ordered by score, then by member.
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

    /// Members in ascending order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (f64, &[u8])> {
        self.0.iter().map(|(score, member)| (*score, member.as_slice()))
    }

    pub fn first(&self) -> Option<&[u8]> {
        self.0.first().map(|(_, member)| member.as_slice())
    }

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

/// The keys of one server, and whether the server has memory for more.
#[derive(Default)]
pub struct Data {
    pub keys: Keys,
    /// Whether the memory limit is reached, with the policy `noeviction`.
    pub is_full: bool,
    /// While a script runs: whether the script has written.
    script_has_written: Option<bool>,
}

impl Data {
    /// The entry, unless it has expired.
    pub fn entry(&self, now: Instant, key: &[u8]) -> Option<&Entry> {
        self.keys.get(key).filter(|entry| entry.expires.is_none_or(|at| now < at))
    }

    pub fn is_taken(&self, now: Instant, key: &[u8]) -> bool {
        self.entry(now, key).is_some()
    }

    pub fn string(&self, now: Instant, key: &[u8]) -> Result<Option<&[u8]>, Refusal> {
        match self.entry(now, key).map(|entry| &entry.value) {
            None => Ok(None),
            Some(Value::String(value)) => Ok(Some(value)),
            Some(_) => Refusal::says(WRONG_TYPE),
        }
    }

    pub fn sorted_set(&self, now: Instant, key: &[u8]) -> Result<Option<&SortedSet>, Refusal> {
        match self.entry(now, key).map(|entry| &entry.value) {
            None => Ok(None),
            Some(Value::SortedSet(set)) => Ok(Some(set)),
            Some(_) => Refusal::says(WRONG_TYPE),
        }
    }

    /// Milliseconds left, as `PTTL` returns them.
    pub fn time_left(&self, now: Instant, key: &[u8]) -> i64 {
        match self.entry(now, key).map(|entry| entry.expires) {
            None => -2,
            Some(None) => -1,
            Some(Some(at)) => i64::try_from((at - now).as_millis()).expect("small"),
        }
    }

    pub fn begin_script(&mut self) {
        self.script_has_written = Some(false);
    }

    pub fn end_script(&mut self) {
        self.script_has_written = None;
    }

    /// Refuses a command that may take memory, if memory is full.
    pub fn may_take_memory(&self) -> Result<(), Refusal> {
        let is_refused = self.is_full && self.script_has_written != Some(true);
        if is_refused { Refusal::says(OUT_OF_MEMORY) } else { Ok(()) }
    }

    /// Notes a command that writes, even if the command finds nothing to change.
    fn note_write(&mut self) {
        if let Some(has_written) = &mut self.script_has_written {
            *has_written = true;
        }
    }

    /// Replaces any value.
    pub fn set(&mut self, key: &[u8], value: &[u8], expires: Option<Instant>) -> Result<(), Refusal> {
        self.may_take_memory()?;
        self.note_write();
        self.put(key, Value::String(value.to_vec()), expires);
        Ok(())
    }

    /// Sets a key without a check of memory, as if another client had set it before.
    pub fn put(&mut self, key: &[u8], value: Value, expires: Option<Instant>) {
        self.keys.insert(key.to_vec(), Entry { value, expires });
    }

    /// Returns whether the key existed.
    pub fn delete(&mut self, now: Instant, key: &[u8]) -> bool {
        self.note_write();
        let was_there = self.is_taken(now, key);
        self.keys.remove(key);
        was_there
    }

    /// Changes the expiry of a key; a past expiry deletes it. Returns whether the key existed.
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

    /// Returns the number of new members.
    pub fn add(&mut self, now: Instant, key: &[u8], members: &[(f64, &[u8])]) -> Result<usize, Refusal> {
        self.may_take_memory()?;
        self.note_write();
        if self.sorted_set(now, key)?.is_none() {
            self.put(key, Value::SortedSet(SortedSet::default()), None);
        }
        let Some(Entry { value: Value::SortedSet(set), .. }) = self.keys.get_mut(key) else { return Ok(0) };
        Ok(members.iter().filter(|(score, member)| set.insert(*score, member)).count())
    }

    /// Returns whether the member existed.
    pub fn remove(&mut self, now: Instant, key: &[u8], member: &[u8]) -> Result<bool, Refusal> {
        self.retain(now, key, |_, other| other != member).map(|count| count > 0)
    }

    /// Removes the members with scores from `min` to `max`. Returns their number.
    pub fn purge(&mut self, now: Instant, key: &[u8], min: f64, max: f64) -> Result<usize, Refusal> {
        self.retain(now, key, |score, _| !(min..=max).contains(&score))
    }

    /// Deletes the key together with its last member.
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

#[derive(Debug, Clone, Copy)]
pub struct Wall {
    /// A moment at which the clock showed a whole second, and the clock's microseconds since 1970 then.
    pub epoch: Instant,
    pub epoch_us: i128,
    /// How far the clock was set ahead since this process started.
    pub step: Duration,
}

impl Wall {
    /// Time in microseconds since 1970.
    pub fn us(self, now: Instant) -> u64 {
        let now = now + self.step;
        let us = |time: Duration| i128::try_from(time.as_micros()).expect("small");
        let passed =
            us(now.saturating_duration_since(self.epoch)) - us(self.epoch.saturating_duration_since(now));
        u64::try_from((self.epoch_us + passed).max(0)).expect("small")
    }

    /// Time in milliseconds since 1970.
    pub fn ms(self, now: Instant) -> i64 {
        i64::try_from(self.us(now) / 1000).expect("small")
    }

    /// Moment at which the clock shows this many milliseconds.
    pub fn at_ms(self, ms: i64) -> Instant {
        let us = i128::from(ms) * 1000 - self.epoch_us;
        let passed = Duration::from_micros(u64::try_from(us.unsigned_abs()).unwrap_or(u64::MAX));
        let at = if us < 0 { self.epoch.checked_sub(passed) } else { self.epoch.checked_add(passed) };
        at.and_then(|at| at.checked_sub(self.step)).unwrap_or(self.epoch)
    }
}

/// Leases in the data: key, token and end. A set of readers has one lease for each reader.
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

/// Token in a lock's value, which may be followed by a label.
pub fn token_of(value: &[u8]) -> &[u8] {
    value.get(..Token::SIZE).unwrap_or(value)
}

/// End of the lease with this token, if the lease exists.
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

/// A reader's lease ends with the reader's own end or with the key, whichever is first.
fn reader_end(wall: Wall, entry: &Entry, end_ms: f64) -> Instant {
    #[allow(clippy::cast_possible_truncation, reason = "a time in this age")]
    let end = wall.at_ms(end_ms as i64);
    entry.expires.map_or(end, |at| at.min(end))
}
