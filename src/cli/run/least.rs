//! The least time of a run's locks (`--at-least`), which its command did not use up.
//!
//! A rest within the maximum TTL is a matter of the release: it sets the TTL of the keys, which outlives this
//! program. Before that, the program stays and goes on extending the locks.

use std::time::{Duration, Instant};

use redlatch::ExtendError;
use redlatch::engine::Outcome;

use super::{Run, TURN_LIMIT};
use crate::cli::message::Message;
use crate::cli::options::say;

impl Run {
    /// Stays until the time left fits into one TTL. A signal ends that, and shortens the time. Returns
    /// whether it stayed at all: a lock that is lost then did not harm the command.
    pub(super) fn stay(&mut self, until: Instant, max_ttl: Duration, mut is_signalled: bool) -> bool {
        let left = |now: Instant| until.saturating_duration_since(now);
        let all = left(Instant::now());
        let stays = all > max_ttl && !is_signalled;
        if stays {
            self.tell(|run| Message::Staying { lock: &run.label, left: all }.to_string());
        }
        while left(Instant::now()) > max_ttl {
            if is_signalled {
                say(Message::LeastTimeCut { lock: &self.label, left: max_ttl });
                return stays;
            }
            if self.redlock.turn(TURN_LIMIT).is_err() {
                return stays;
            }
            while let Some((_, outcome)) = self.redlock.poll_outcome() {
                if let Outcome::Renewal(Err(ExtendError::Lost(_))) = outcome {
                    // The release says so.
                    return stays;
                }
            }
            is_signalled = self.signals.take().is_some();
        }
        stays
    }
}
