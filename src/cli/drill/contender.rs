//! One client that locks a drill's resources again and again.

use std::thread;
use std::time::{Duration, Instant};

use rand::RngExt;
use rand::rngs::StdRng;
use redlatch::{AcquireError, Client, HeldLocks};

use super::course::{CLOSE_LIMIT, Course, resource, rng};

/// Outcomes of one contender, or of all.
#[derive(Debug, Clone, Default)]
pub(super) struct Record {
    pub(super) locked: u64,
    pub(super) contended: u64,
    pub(super) no_quorum: u64,
    pub(super) failed: u64,
    pub(super) lost: u64,
    /// Longest time by which a call exceeded its limit.
    pub(super) latest_call: Duration,
    /// Seconds of the drill, in order.
    pub(super) seconds: Vec<Second>,
    /// Locks that a master may still have.
    pub(super) unreleased: usize,
}

/// Observations of one second.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Second {
    pub(super) locked: u64,
    pub(super) is_held: bool,
    /// Smallest margin of a lock at its end: the masters above the quorum that held the lock.
    pub(super) margin: Option<usize>,
}

impl Second {
    pub(super) fn add(&mut self, other: Self) {
        self.locked += other.locked;
        self.is_held |= other.is_held;
        self.margin = self.margin.into_iter().chain(other.margin).min();
    }
}

impl Record {
    pub(super) fn add(&mut self, other: &Self) {
        self.locked += other.locked;
        self.contended += other.contended;
        self.no_quorum += other.no_quorum;
        self.failed += other.failed;
        self.lost += other.lost;
        self.latest_call = self.latest_call.max(other.latest_call);
        self.unreleased += other.unreleased;
        for (index, second) in other.seconds.iter().enumerate() {
            self.second(index).add(*second);
        }
    }

    /// Notes a held lock in each second that it lasted, and whether its holder outlasted it.
    pub(super) fn note_visit(
        &mut self,
        begun: Instant,
        from: Instant,
        until: Instant,
        valid_until: Instant,
        margin: Option<usize>,
    ) {
        let second =
            |at: Instant| usize::try_from(at.saturating_duration_since(begun).as_secs()).unwrap_or(0);
        self.locked += 1;
        self.lost += u64::from(until > valid_until);
        // Slower masters answer a moment after the grant.
        let margin = margin.filter(|_| until.saturating_duration_since(from) >= MARGIN_AFTER);
        self.second(second(until)).add(Second { margin, ..Second::default() });
        for index in second(from)..=second(until) {
            let locked = u64::from(index == second(from));
            self.second(index).add(Second { locked, is_held: true, margin: None });
        }
    }

    fn second(&mut self, index: usize) -> &mut Second {
        if self.seconds.len() <= index {
            self.seconds.resize(index + 1, Second::default());
        }
        &mut self.seconds[index]
    }
}

/// How long a lock must be held before its margin counts.
const MARGIN_AFTER: Duration = Duration::from_millis(20);

pub(super) struct Contender<'a> {
    client: Client,
    course: &'a Course<'a>,
    /// Longest wait of one round for the masters.
    answer_limit: Duration,
    rng: StdRng,
    record: Record,
}

impl<'a> Contender<'a> {
    pub(super) fn new(client: Client, course: &'a Course<'a>) -> Self {
        let (config, ttl) = (course.config, course.args.ttl);
        let answer_limit = config.ttl(ttl).map_or(ttl, |ttl| config.answer_limit(ttl));
        Self { client, course, answer_limit, rng: rng(), record: Record::default() }
    }

    pub(super) fn run(mut self) -> Record {
        while !self.course.is_over() {
            self.visit();
        }
        self.record.unreleased = self.client.drain(CLOSE_LIMIT, HeldLocks::Release);
        self.record
    }

    fn visit(&mut self) {
        let ttl = self.course.args.ttl;
        let number = self.rng.random_range(0..self.course.args.resources);
        // The last attempt may begin just before the wait ends, and may then ask for the holder's TTL.
        let limit = ttl + 2 * self.answer_limit;
        let acquired = self.timed(limit, |client| client.lock(resource(number)).ttl(ttl).wait(ttl).acquire());
        let mut guard = match acquired {
            Ok(guard) => guard,
            Err(AcquireError::Contended(_)) => return self.record.contended += 1,
            Err(AcquireError::NoQuorum(_) | AcquireError::Expired(_)) => return self.record.no_quorum += 1,
            Err(_) => {
                // It will not succeed soon.
                self.record.failed += 1;
                self.course.pause(ttl);
                return;
            }
        };
        let from = Instant::now();
        self.hold(ttl / 10);
        if self.rng.random_bool(0.2) {
            let _ = self.timed(self.answer_limit, |_| guard.extend(ttl));
            self.hold(ttl / 10);
        }
        let margin = Some(guard.margin());
        let (now, valid_until) = (Instant::now(), guard.valid_until());
        self.course.witness.note(number, from, now, valid_until, false);
        self.record.note_visit(self.course.begun, from, now, valid_until, margin);
        // Half of the locks are dropped instead, and the client releases them in the background.
        if self.rng.random_bool(0.5) {
            let _ = self.timed(self.answer_limit, |_| guard.release());
        }
    }

    /// Makes a call, and notes by how much the call exceeds this limit.
    fn timed<T>(&mut self, limit: Duration, call: impl FnOnce(&Client) -> T) -> T {
        let begun = Instant::now();
        let result = call(&self.client);
        self.record.latest_call = self.record.latest_call.max(begun.elapsed().saturating_sub(limit));
        result
    }

    fn hold(&mut self, longest: Duration) {
        thread::sleep(draw_hold(&mut self.rng, longest));
    }
}

/// Mostly short times, and some long ones.
fn draw_hold(rng: &mut StdRng, longest: Duration) -> Duration {
    let share = if rng.random_bool(0.8) { 0.05 } else { 1.0 };
    longest.mul_f64(rng.random_range(0.0..share))
}

#[cfg(test)]
mod tests {
    use redlatch::Config;

    use super::super::course::course_of;
    use super::*;

    #[test]
    fn a_visit_counts_in_each_second_that_it_lasts() {
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let mut record = Record::default();
        for (from, until, margin) in [
            (100, 200, Some(2)),
            (900, 3100, Some(1)),
            (3000, 3999, None),
            (3200, 3300, Some(3)),
            (5000, 5000, None),
        ] {
            record.note_visit(begun, at(from), at(until), at(3300), margin);
        }
        assert_eq!((record.locked, record.lost), (5, 2));
        let shown = |record: &Record| {
            let seconds = record.seconds.iter();
            seconds.map(|it| (it.locked, it.is_held, it.margin)).collect::<Vec<_>>()
        };
        let (held, empty) = ((0, true, None), (0, false, None));
        let alone = [(2, true, Some(2)), held, held, (2, true, Some(1)), empty, (1, true, None)];
        assert_eq!(shown(&record), alone);
        // A sum has as many seconds as the longer record.
        let mut sum = Record::default();
        sum.note_visit(begun, at(4500), at(4600), at(4600), Some(7));
        sum.add(&record);
        let mut both = alone;
        both[4] = (1, true, Some(7));
        assert_eq!(shown(&sum), both);
    }

    #[test]
    fn a_margin_counts_once_slower_masters_may_have_granted() {
        let begun = Instant::now();
        for (held_ms, margin) in [(19, None), (20, Some(0))] {
            let (until, mut record) = (begun + Duration::from_millis(held_ms), Record::default());
            record.note_visit(begun, begun, until, until, Some(0));
            assert_eq!(record.seconds[0].margin, margin, "{held_ms} ms");
        }
    }

    #[test]
    fn a_call_is_late_by_what_it_took_beyond_its_limit() {
        course_of(&[], |course| {
            let client = Client::open(course.config.clone()).expect("an event loop");
            let mut contender = Contender::new(client, course);
            let ms = Duration::from_millis;
            contender.timed(Duration::MAX, |_| thread::sleep(ms(30)));
            assert_eq!(contender.record.latest_call, Duration::ZERO);
            for limit in [ms(10), ms(25)] {
                contender.timed(limit, |_| thread::sleep(ms(30)));
                assert!(contender.record.latest_call >= ms(20), "{:?}", contender.record.latest_call);
            }
        });
    }

    #[test]
    fn a_visit_without_a_lock_counts_once() {
        let ms = Duration::from_millis;
        course_of(&["--ttl", "20ms"], |course| {
            // A TTL above `max_ttl` is refused at once.
            for (max_ttl_ms, counts) in [(19, (0, 0, 0, 1)), (20, (0, 0, 1, 0))] {
                let config = Config::builder().masters(["unix:///nowhere"]).max_ttl(ms(max_ttl_ms));
                let client = Client::open(config.build().expect("valid")).expect("an event loop");
                let (mut contender, begun) = (Contender::new(client, course), Instant::now());
                contender.visit();
                let Record { locked, contended, no_quorum, failed, .. } = contender.record;
                assert_eq!((locked, contended, no_quorum, failed), counts, "{max_ttl_ms} ms");
                assert!(failed == 0 || begun.elapsed() >= ms(20), "it pauses");
            }
        });
    }

    #[test]
    fn a_visit_holds_its_lock_before_and_after_an_extension() {
        use rand::SeedableRng;
        use redlatch_testing::Double;
        let longest = Duration::from_millis(100);
        let double = Double::start(1).expect("a port");
        course_of(&["--ttl", "1s"], |course| {
            let client = Client::open(double.config().build().expect("valid")).expect("an event loop");
            let mut contender = Contender::new(client, course);
            for seed in 0..100 {
                let mut rng = StdRng::seed_from_u64(seed);
                let _ = rng.random_range(0..course.args.resources);
                let first = draw_hold(&mut rng, longest);
                let second = if rng.random_bool(0.2) { draw_hold(&mut rng, longest) } else { Duration::ZERO };
                contender.rng = StdRng::seed_from_u64(seed);
                let (begun, before) = (Instant::now(), contender.record.locked);
                contender.visit();
                // A busy machine may be too late for the lock.
                if contender.record.locked > before {
                    assert!(
                        begun.elapsed() >= first + second,
                        "{:?}: {first:?} + {second:?}",
                        begun.elapsed()
                    );
                }
            }
            assert!(contender.record.locked > 0);
        });
    }
}
