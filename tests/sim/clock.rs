//! True time, and clocks that deviate from it.

use std::cell::Cell;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Nanoseconds of true time since the start of a history.
pub type Time = u64;

pub const MS: Time = 1_000_000;
pub const SECOND: Time = 1_000 * MS;

/// What clocks show at true time zero, counted from the first instant that they can show.
const ORIGIN: i64 = 100 * 3600 * SECOND.cast_signed();

/// What right wall clocks show at true time zero, in microseconds since 1970.
pub const WALL_US: u64 = 1_800_000_000_000_000;

/// A clock with its own rate, which can be stepped.
#[derive(Debug, Clone)]
pub struct Clock {
    offset: i64,
    /// Its rate above true time, in parts per million.
    ppm: i64,
    /// The last true time read, and its reading: a turn reads the same time repeatedly.
    last: Cell<Option<(Time, Instant)>>,
}

impl Clock {
    pub fn new(offset: Time, ppm: i64) -> Self {
        Self { offset: offset.cast_signed(), ppm, last: Cell::new(None) }
    }

    /// The reading at a true time.
    pub fn at(&self, time: Time) -> Instant {
        if let Some((last, shown)) = self.last.get()
            && last == time
        {
            return shown;
        }
        let shown = base() + Duration::from_nanos(self.shown_ns(time));
        self.last.set(Some((time, shown)));
        shown
    }

    fn shown_ns(&self, time: Time) -> u64 {
        let time = time.cast_signed();
        let shown = ORIGIN + self.offset + time + time * self.ppm / 1_000_000;
        u64::try_from(shown).expect("within the range of steps")
    }

    /// The first true time at which it shows at least this; zero before the start.
    pub fn when(&self, shown: Instant) -> Time {
        let shown_ns = u64::try_from((shown - base()).as_nanos()).expect("small");
        let passed = shown_ns.cast_signed() - ORIGIN - self.offset;
        // Millions and the rest are converted separately, so that no product exceeds the time itself.
        let rate = 1_000_000 + self.ppm;
        let guess = passed / rate * 1_000_000 + passed % rate * 1_000_000 / rate;
        let mut time = u64::try_from(guess.max(0)).expect("not negative");
        while self.shown_ns(time) < shown_ns {
            time += 1;
        }
        while time > 0 && self.shown_ns(time - 1) >= shown_ns {
            time -= 1;
        }
        time
    }

    /// Stops the clock from `since` until now: it goes on from its old reading.
    pub fn stand_still(&mut self, since: Time, now: Time) {
        let passed = self.shown_ns(now) - self.shown_ns(since);
        self.step(-passed.cast_signed());
    }

    pub fn step(&mut self, step: i64) {
        self.offset += step;
        self.last.set(None);
    }
}

/// A monotonic clock never goes back, however slow it is.
#[test]
fn stopped_clock_shows_the_same_time() {
    for ppm in [-1000, 0, 1000] {
        let mut clock = Clock::new(0, ppm);
        let before = clock.at(3 * SECOND);
        clock.stand_still(3 * SECOND, 5 * SECOND);
        assert_eq!(clock.at(5 * SECOND), before, "{ppm} ppm");
    }
}

/// The same for all clocks, because only differences matter.
fn base() -> Instant {
    static BASE: OnceLock<Instant> = OnceLock::new();
    *BASE.get_or_init(Instant::now)
}
