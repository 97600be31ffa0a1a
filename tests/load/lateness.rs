//! Measures how late this machine is: a thread sleeps again and again, and notes how much longer each sleep
//! took.
//!
//! A late call is a fault only beyond the machine's own lateness.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const SLEEP: Duration = Duration::from_millis(5);
/// Longer than any call.
const KEPT: Duration = Duration::from_secs(60);
/// Smaller lateness is ignored: no caller notices it, and it would fill the memory.
const NOTED_MIN: Duration = Duration::from_millis(5);

/// Sleeps that took longer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lateness {
    noted: Arc<Mutex<Noted>>,
}

#[derive(Debug, Default)]
struct Noted {
    /// End of each late sleep, and its lateness.
    recent: VecDeque<(Instant, Duration)>,
    worst: Duration,
}

impl Lateness {
    /// Starts measuring until the load ends.
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

    /// Total lateness of sleeps since then, at most the time that has passed.
    pub(crate) fn since(&self, from: Instant) -> Duration {
        let noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        let late = noted.recent.iter().rev().take_while(|(at, _)| *at >= from);
        late.map(|(at, late)| (*late).min(*at - from)).sum()
    }

    /// The largest lateness of all.
    pub(crate) fn worst(&self) -> Duration {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner).worst
    }
}
