//! The questions for the masters' time by which the rates of their clocks are measured.

use std::time::Instant;

use super::Fleet;
use crate::engine::masters::owed::Owed;
use crate::limits;
use crate::lock::MasterId;
use crate::resp;

impl Fleet {
    /// An acquisition is about to be sent: asks the masters' time in the same write, once in a while. A
    /// master that refused to say its time in the handshake is not asked.
    #[cold]
    pub(in crate::engine) fn ask_clocks(&mut self, now: Instant) {
        if now < self.clocks_due_at {
            return;
        }
        self.clocks_due_at = now + limits::CLOCK_RATE_PAUSE;
        let asked = self.usable.iter().filter(|master| {
            let link = self.link(*master);
            link.clock.is_some() && link.clock_asked_at.is_none()
        });
        let sent = self.queue(asked.collect(), Owed::Clock, |out| resp::encode_command(out, &[b"TIME"]));
        sent.iter().for_each(|master| self.link_mut(master).clock_asked_at = Some(now));
    }

    /// A master said its time.
    pub(in crate::engine) fn note_clock_rate(
        &mut self,
        now: Instant,
        master: MasterId,
        clock_us: Option<u64>,
    ) {
        let link = self.link_mut(master);
        let asked_at = link.clock_asked_at.take();
        if let (Some(asked_at), Some(clock_us)) = (asked_at, clock_us) {
            link.clock_rate.note(asked_at, now, clock_us);
        }
    }
}
