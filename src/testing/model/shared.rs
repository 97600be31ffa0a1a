//! Readers of a model master: the sorted set at a lock's key, with a marker as long as there is a reader.

use std::time::Instant;

use super::data::READERS_MARKER;
use super::{ModelMaster, Refusal, SortedSet, integer};

impl ModelMaster {
    /// Number of live readers of a lock.
    pub fn reader_count(&self, now: Instant, key: &[u8]) -> usize {
        let Ok(Some(set)) = self.data.sorted_set(now, key) else { return 0 };
        let now_ms = score(self.wall.ms(now));
        set.iter().filter(|(end, member)| *member != READERS_MARKER && *end > now_ms).count()
    }

    pub(super) fn extend_shared(
        &mut self,
        now: Instant,
        lock: &[u8],
        value: &[u8],
        ttl: &[u8],
    ) -> Result<bool, Refusal> {
        let now_ms = self.wall.ms(now);
        let before = self.data.sorted_set(now, lock)?.and_then(|set| set.score(value));
        if before.is_none_or(|end| end <= score(now_ms)) {
            return Ok(false);
        }
        self.data.purge(now, lock, 0.0, score(now_ms))?;
        self.data.add(now, lock, &[(score(now_ms + 1 + integer(ttl)?), value)])?;
        self.end_with_last_reader(now, lock)?;
        Ok(true)
    }

    /// Makes the key expire with its last reader, if there is one.
    fn end_with_last_reader(&mut self, now: Instant, lock: &[u8]) -> Result<bool, Refusal> {
        let last = self.data.sorted_set(now, lock)?.and_then(SortedSet::last_score);
        let Some(last) = last.filter(|last| last.is_finite()) else { return Ok(false) };
        #[allow(clippy::cast_possible_truncation, reason = "a time in this age")]
        let end = self.wall.at_ms(last as i64);
        self.data.expire(now, lock, end);
        Ok(true)
    }
}

/// A time as a score.
#[allow(clippy::cast_precision_loss, reason = "below 2^53")]
pub(super) fn score(ms: i64) -> f64 {
    ms as f64
}
