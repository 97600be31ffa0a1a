//! Fencing tokens: numbers that grow from one holder of a lock to the next, so that storage can refuse late
//! writes.

use std::fmt;
use std::num::NonZeroU64;
use std::time::Duration;

use super::ttl::{whole_ms, whole_us};

/// Number larger than the number of every earlier fenced holder of the same lock, whatever pauses and delays
/// happen.
///
/// Send it to the storage with each write. The storage remembers the largest token seen and refuses smaller
/// ones, so a paused holder cannot overwrite what a later holder has written. Source: Kleppmann, "How to do
/// distributed locking" (2016).
///
/// A token has at most 53 bits, so a double holds it exactly. It follows the masters' clocks in microseconds
/// since 1970, so no counter can be lost. The difference between two tokens means nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(NonZeroU64);

impl FencingToken {
    /// Largest token: the scripts' numbers are exact up to here.
    const MAX: u64 = (1 << 53) - 1;

    /// The token nearest to this number.
    pub(crate) const fn near(number: u64) -> Self {
        let number = if number > Self::MAX { Self::MAX } else { number };
        match NonZeroU64::new(number) {
            Some(number) => Self(number),
            None => Self(NonZeroU64::MIN),
        }
    }

    /// Returns the number.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0.get()
    }
}

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> Self {
        token.as_u64()
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Which tokens a master accepts, and how long it remembers the last.
///
/// ```text
///              half          half
///         ├─────────────┼─────────────┤
///   ──────o─────────────┼─────────────●──────────► tokens, microseconds
///    older: PAST   the master's TIME   newer: FUTURE
/// ```
///
/// The window is `max_ttl` long. A master that forgot its fences is in quarantine for longer, so every token
/// accepted before is older than any token accepted after. So a lost fence does no harm, and a fence may
/// expire once its token has left the window. It is kept longer, in case the master's clock is set back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) half_us: u64,
    pub(crate) life_ms: u64,
}

impl Window {
    /// A fence lives three times as long as the window.
    const LIFE: u32 = 3;

    pub(crate) fn new(max_ttl: Duration) -> Self {
        let life = max_ttl * Self::LIFE;
        // `max_ttl` is at most a week, so neither value overflows.
        Self { half_us: whole_us(max_ttl / 2), life_ms: whole_ms(life).max(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // I12
    #[test]
    fn the_window_fits_the_quarantine() {
        for max_ttl_us in [1_000, 1_001, 300_000, 30_000_000, 604_800_000_000] {
            let window = Window::new(Duration::from_micros(max_ttl_us));
            assert!(2 * window.half_us <= max_ttl_us);
            assert!(window.life_ms * 1000 > 2 * window.half_us + 1000);
        }
    }

    #[test]
    fn a_token_is_exact_in_a_double() {
        assert_eq!(FencingToken::near(0).as_u64(), 1);
        assert_eq!(FencingToken::near(u64::MAX).as_u64(), 9_007_199_254_740_991);
        assert!(FencingToken::near(7) < FencingToken::near(8));
        assert_eq!(format!("{0} {0:?}", FencingToken::near(7)), "7 7");
    }
}
