//! How late this machine is: a thread that sleeps again and again, and notes how much longer each sleep took.
//!
//! A call that ends late is a finding only beyond what the machine itself was late meanwhile.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const SLEEP: Duration = Duration::from_millis(5);
/// Longer than any call lasts.
const KEPT: Duration = Duration::from_secs(60);
/// Lateness that no caller notices, and that would fill the memory.
const NOTED_MIN: Duration = Duration::from_millis(5);

/// The sleeps that took longer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lateness {
    noted: Arc<Mutex<Noted>>,
}

#[derive(Debug, Default)]
struct Noted {
    /// When each ended, and how late.
    recent: VecDeque<(Instant, Duration)>,
    worst: Duration,
}

impl Lateness {
    /// Begins to measure until the load is over.
    pub(crate) fn begin(is_over: Arc<AtomicBool>) -> (Self, JoinHandle<()>) {
        let lateness = Self::default();
        let its = lateness.clone();
        let measuring = thread::spawn(move || {
            while !is_over.load(Ordering::SeqCst) {
                let begun = Instant::now();
                thread::sleep(SLEEP);
                its.note(begun);
            }
        });
        (lateness, measuring)
    }

    fn note(&self, begun: Instant) {
        let now = Instant::now();
        let late = (now - begun).saturating_sub(SLEEP);
        if late < NOTED_MIN {
            return;
        }
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        noted.worst = noted.worst.max(late);
        noted.recent.push_back((now, late));
        while noted.recent.front().is_some_and(|(at, _)| now - *at > KEPT) {
            noted.recent.pop_front();
        }
    }

    /// Time by which sleeps were late since then, all together: never more than has passed.
    pub(crate) fn since(&self, from: Instant) -> Duration {
        let noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        let late = noted.recent.iter().rev().take_while(|(at, _)| *at >= from);
        late.map(|(at, late)| (*late).min(*at - from)).sum()
    }

    /// The latest sleep of all.
    pub(crate) fn worst(&self) -> Duration {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner).worst
    }
}
