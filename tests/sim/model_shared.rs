//! Readers of a model master: the sorted set at a lock's key, kept as one key for each reader, and without the marker that
//! is there while a reader is.
//!
//! A set lives as long as its last reader. Faults that take a key take one reader where a server would lose the set.

use super::*;

/// What stands between a lock's key and a reader's value.
const READER: &[u8] = b"\0reader\0";

const ACQUIRE_SHA: &[u8] = b"40403f1fd78fac49640df43fa13f634f01426da0";
const EXTEND_SHA: &[u8] = b"2e31d30570819fcc1f873dcaba865981d032183f";
const RELEASE_SHA: &[u8] = b"8bcc5ea66f5e8c922d41a4d11f7b9d836536d5fe";
/// With a deliberate defect; only ever sent in full.
const BESIDE_WRITER: &[u8] = b"a reader is let in beside a writer";
const CUT_SHORT: &[u8] = b"a reader's coming cuts others short";
const PURGED_EARLY: &[u8] = b"a reader's coming removes others";
const NO_INTENT: &[u8] = b"no intent keeps a reader out";
const FOREIGN_TAKEN: &[u8] = b"a reader joins any sorted set that has an end";
const JOINS: &[u8] = b"an extension lets a reader in";
const ENDS_ALL: &[u8] = b"a reader's release ends all";

/// The key of one reader in [`Keys`].
pub fn reader_key(key: &[u8], value: &[u8]) -> Vec<u8> {
    [key, READER, value].concat()
}

/// What a script of a reader does, by its digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReaderScript {
    Acquire,
    Extend,
    Release,
}

impl ReaderScript {
    pub fn of(sha: &[u8]) -> Option<Self> {
        match sha {
            ACQUIRE_SHA | BESIDE_WRITER | CUT_SHORT | PURGED_EARLY | NO_INTENT | FOREIGN_TAKEN => {
                Some(Self::Acquire)
            }
            EXTEND_SHA | JOINS => Some(Self::Extend),
            RELEASE_SHA | ENDS_ALL => Some(Self::Release),
            _ => None,
        }
    }

    /// The same for a script by its digest or in full.
    pub fn of_word(word: &[u8]) -> Option<Self> {
        Self::of(word).or_else(|| Self::of(digest(word)?))
    }
}

/// The digest of a reader's script, if it is one.
pub(super) fn digest(script: &[u8]) -> Option<&'static [u8]> {
    let calls = |name: &[u8]| script.windows(name.len()).any(|window| window == name);
    Some(if calls(b"'zrank'") {
        // That of fair locks.
        return None;
    } else if calls(b"'zrem'") {
        if calls(b"redis.call('del',k) redis.call('zrem") { ENDS_ALL } else { RELEASE_SHA }
    } else if !calls(b"'zadd'") {
        return None;
    } else if !calls(b"'type'") {
        if calls(b"if not s") { EXTEND_SHA } else { JOINS }
    } else if calls(b"then return redis.status_reply('OK')") {
        BESIDE_WRITER
    } else if calls(b"n+ARGV[2]-1") {
        PURGED_EARLY
    } else if !calls(b"'zrange'") {
        CUT_SHORT
    } else if !calls(b"w~=-2") {
        NO_INTENT
    } else if calls(b"not redis.call('zscore',k,m)") {
        ACQUIRE_SHA
    } else {
        FOREIGN_TAKEN
    })
}

impl ModelMaster {
    /// The readers of a lock, those included whose time is over while others are there, with their ends.
    fn readers(&self, now: Instant, key: &[u8]) -> Vec<(Vec<u8>, Instant)> {
        let of_key = |(name, (value, end)): (&Vec<u8>, &(Vec<u8>, Option<Instant>))| {
            let is_own = name.strip_prefix(key).and_then(|rest| rest.strip_prefix(READER)) == Some(value);
            is_own.then(|| (value.clone(), end.expect("readers have an end")))
        };
        if !self.knows_readers {
            return Vec::new();
        }
        let readers: Vec<_> = self.keys.iter().filter_map(of_key).collect();
        if readers.iter().any(|(_, end)| now < *end) { readers } else { Vec::new() }
    }

    /// When the time of a lock's last reader ends, if there is one.
    pub(super) fn readers_end(&self, now: Instant, key: &[u8]) -> Option<Instant> {
        self.readers(now, key).into_iter().map(|(_, end)| end).max()
    }

    /// How many readers a lock has whose time is not over.
    pub fn reader_count(&self, now: Instant, key: &[u8]) -> usize {
        self.readers(now, key).iter().filter(|(_, end)| now < *end).count()
    }

    /// As `ZREVRANK` tells the marker's rank.
    pub(super) fn member_count(&self, now: Instant, key: &[u8]) -> usize {
        self.readers(now, key).len()
    }

    /// Something else takes the key's place.
    pub(super) fn remove_readers(&mut self, key: &[u8]) {
        if self.knows_readers {
            let prefix = [key, READER].concat();
            self.keys.retain(|name, _| !name.starts_with(&prefix));
        }
    }

    /// The end of a TTL that begins now: at the next millisecond of the wall clock.
    fn reader_end(&self, now: Instant, ttl: &[u8]) -> Instant {
        now + millis(ttl) + Duration::from_micros(1000 - self.wall_us(now) % 1000)
    }

    pub(super) fn acquire_shared(
        &mut self,
        now: Instant,
        sha: &[u8],
        [lock, intent]: [&[u8]; 2],
        [value, ttl]: [&[u8]; 2],
    ) -> Result<Vec<u8>, Refusal> {
        let mut reply = Vec::new();
        if sha == FOREIGN_TAKEN && self.sorted_sets.remove(lock) {
            self.keys.remove(lock);
        }
        let in_the_way = self.value(now, lock).is_some().then(|| self.time_left(now, lock));
        if let Some(left) = in_the_way {
            let left = if sha == BESIDE_WRITER { OK } else { Reply::Integer(left) };
            resp::encode_reply(&mut reply, &left);
            return Ok(reply);
        }
        let end = self.reader_end(now, ttl);
        let own = reader_key(lock, value);
        let before = self.value(now, &own).is_some().then(|| self.keys[&own].1).flatten();
        let left = self.time_left(now, intent);
        if before.is_none() && left != -2 && sha != NO_INTENT {
            resp::encode_reply(&mut reply, &Reply::Integer(left));
            return Ok(reply);
        }
        self.refuse_if_full()?;
        let early = if sha == PURGED_EARLY { millis(ttl) } else { Duration::ZERO };
        for (other, at) in self.readers(now, lock) {
            if at <= now + early {
                self.keys.remove(&reader_key(lock, &other));
            } else if sha == CUT_SHORT {
                self.keys.insert(reader_key(lock, &other), (other, Some(at.min(end))));
            }
        }
        let end = before.map_or(end, |before| before.max(end));
        self.knows_readers = true;
        self.keys.insert(own, (value.to_vec(), Some(end)));
        resp::encode_reply(&mut reply, &if before.is_some() { Reply::Simple(b"OWN") } else { OK });
        Ok(reply)
    }

    pub(super) fn extend_shared(
        &mut self,
        now: Instant,
        sha: &[u8],
        lock: &[u8],
        [value, ttl]: [&[u8]; 2],
    ) -> Result<i64, Refusal> {
        if self.is_no_sorted_set(now, lock) {
            return refuse(WRONG_TYPE);
        }
        let own = reader_key(lock, value);
        let is_there = self.value(now, &own).is_some() || sha == JOINS;
        if is_there {
            let end = self.reader_end(now, ttl);
            self.knows_readers = true;
            for (other, _) in self.readers(now, lock).into_iter().filter(|(_, end)| *end <= now) {
                self.keys.remove(&reader_key(lock, &other));
            }
            self.keys.insert(own, (value.to_vec(), Some(end)));
        }
        Ok(i64::from(is_there))
    }

    pub(super) fn release_shared(
        &mut self,
        now: Instant,
        sha: &[u8],
        lock: &[u8],
        [value, tells]: [&[u8]; 2],
    ) -> Result<i64, Refusal> {
        if self.is_no_sorted_set(now, lock) {
            return refuse(WRONG_TYPE);
        }
        let readers = self.readers(now, lock);
        if !readers.iter().any(|(other, _)| other == value) {
            return Ok(0);
        }
        for (other, end) in readers {
            if other == value || end <= now || sha == ENDS_ALL {
                self.keys.remove(&reader_key(lock, &other));
            }
        }
        if tells == b"1" && self.readers_end(now, lock).is_none() {
            self.tell(lock);
        }
        Ok(1)
    }
}
