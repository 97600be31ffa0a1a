//! Traces of parked attempts on a model master: the entries of a queue, and the holders of a lock's key.

use std::time::Instant;

use super::data::READERS_MARKER;
use super::shared::score;
use super::{ModelMaster, Value, WITHOUT_LIKENESS, integer, script};

/// Entry of a lock's queue, as `queue.lua` writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parked {
    pub id: Vec<u8>,
    pub mode: u8,
    /// End of the stay, in milliseconds of the master's clock.
    pub stay_end_ms: i64,
    pub channel: Vec<u8>,
    pub vote: Vec<u8>,
    pub value: Vec<u8>,
}

const MARK: &[u8] = b"redlatch:1:";
const QUEUE_PREFIX: &[u8] = b"redlatch:wait:";
/// Size of all fields before the channel.
const HEAD_SIZE: usize = 71;
const VOTE_SIZE: usize = 8;
/// Size of a fenced waiter's token, window and fence TTL.
const FENCED_SIZE: usize = 38;

impl Parked {
    fn new(member: &[u8]) -> Option<Self> {
        let (head, rest) = member.split_at_checked(HEAD_SIZE)?;
        let number = |from: usize, to: usize| integer(&head[from..to]).ok();
        let (channel, rest) = rest.split_at_checked(usize::try_from(number(68, 71)?).ok()?)?;
        let (vote, rest) = rest.split_at_checked(VOTE_SIZE)?;
        let mode = head[23];
        let value = if mode == b'f' { rest.get(FENCED_SIZE..)? } else { rest };
        head.starts_with(MARK).then_some(Self {
            id: head[11..23].to_vec(),
            mode,
            stay_end_ms: number(32, 45)?,
            channel: channel.to_vec(),
            vote: vote.to_vec(),
            value: value.to_vec(),
        })
    }
}

/// Key of a lock's queue, without a prefix.
pub fn queue_key(key: &[u8]) -> Vec<u8> {
    [QUEUE_PREFIX, key].concat()
}

/// Name of the script that a command runs, if the script serves parked attempts.
pub fn parking_script(words: &[&[u8]]) -> Option<&'static str> {
    let [b"EVALSHA" | b"EVAL", word, ..] = words else { return None };
    script(word).map(|script| script.name).filter(|name| WITHOUT_LIKENESS.contains(name))
}

impl ModelMaster {
    /// Values that hold a lock: the string, or the live readers.
    pub fn holders(&self, now: Instant, key: &[u8]) -> Vec<Vec<u8>> {
        let now_ms = score(self.wall.ms(now));
        match self.data.entry(now, key).map(|entry| &entry.value) {
            Some(Value::String(value)) => vec![value.clone()],
            Some(Value::SortedSet(set)) if set.score(READERS_MARKER).is_some() => {
                let live = set.iter().filter(|(end, member)| *member != READERS_MARKER && *end > now_ms);
                live.map(|(_, member)| member.to_vec()).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Live entries of a lock's queue, in the order of their tickets.
    pub fn parked(&self, now: Instant, key: &[u8]) -> Vec<Parked> {
        let Ok(Some(set)) = self.data.sorted_set(now, &queue_key(key)) else { return Vec::new() };
        let entries = set.iter().filter_map(|(_, member)| Parked::new(member));
        entries.filter(|entry| entry.stay_end_ms > self.wall.ms(now)).collect()
    }

    /// Keys of the locks with a queue.
    pub fn queued_keys(&self) -> impl Iterator<Item = &[u8]> {
        let behind = self.data.keys.range(QUEUE_PREFIX.to_vec()..);
        behind.map_while(|(key, _)| key.strip_prefix(QUEUE_PREFIX))
    }
}
