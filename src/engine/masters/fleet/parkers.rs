//! Which masters park attempts and run scripts, and what time they have.

use std::time::Instant;

use super::Fleet;
use crate::engine::masters::handshake::{Learnt, PARKING, SCRIPTS};
use crate::engine::masters::link::Link;
use crate::engine::masters::owed::Owed;
use crate::limits;
use crate::lock::command::park::SHARDED;
use crate::lock::{Failure, MasterId, MasterSet, whole_us};
use crate::resp;

impl Fleet {
    /// Whether a quorum can park attempts now.
    pub(in crate::engine) fn can_park(&self) -> bool {
        self.parkers.intersection(self.usable).has(self.quorum)
    }

    /// A master refused a park. Without the right or the script it is polled from now on.
    pub(in crate::engine) fn note_park_refused(&mut self, master: MasterId, failure: &Failure) {
        if let Failure::Replied(text) = failure
            && Learnt::is_parking_refused(text.as_bytes())
        {
            self.stop_parking(master, text.clone());
        }
    }

    /// A master refused the script of a release: it is sent native commands from now on, if it has any.
    /// Returns whether that is so.
    pub(in crate::engine) fn note_script_refused(&mut self, master: MasterId, failure: &Failure) -> bool {
        let learnt = &mut self.link_mut(master).learnt;
        let Failure::Replied(text) = failure else { return false };
        if !learnt.has_native_release() || !is_script_refused(text) {
            return false;
        }
        learnt.note_refused(SCRIPTS, text.clone());
        self.parkers.remove(master);
        self.native_only.insert(master);
        true
    }

    /// Subscribes to the channel of a master's connection.
    pub(super) fn subscribe(&mut self, master: MasterId) {
        let learnt = &self.link(master).learnt;
        let (command, channel) = (learnt.subscribe(), learnt.channel.clone());
        self.queue(MasterSet::only(master), Owed::Subscription, |out| {
            resp::encode_command(out, &[command.as_bytes(), &channel]);
        });
    }

    /// A master refused the subscription to the channel. A channel that is not sharded takes the place of a
    /// sharded one; without it the master cannot park.
    pub(in crate::engine) fn note_channel_refused(&mut self, master: MasterId, why: Box<str>) {
        let learnt = &mut self.link_mut(master).learnt;
        if !learnt.is_sharded() {
            return self.stop_parking(master, why);
        }
        learnt.note_refused(learnt.subscribe(), why);
        learnt.channel = learnt.channel.strip_suffix(&[SHARDED]).unwrap_or_default().into();
        self.subscribe(master);
    }

    /// A master cannot park, for this reason, until the next connection.
    pub(in crate::engine) fn stop_parking(&mut self, master: MasterId, why: Box<str>) {
        self.parkers.remove(master);
        self.link_mut(master).learnt.note_refused(PARKING, why);
    }

    /// A master said its time. An answer was under way for a while, so of several the one counts by which it
    /// is the latest, until that is old: rates differ, and a clock may be set back.
    pub(in crate::engine) fn note_clock(&mut self, now: Instant, master: MasterId, clock_us: u64) {
        let link = self.link_mut(master);
        let is_better = |(then, known_us): (Instant, u64)| {
            now - then >= limits::CLOCK_KEPT || clock_us >= shifted(known_us, then, now)
        };
        if link.clock.is_none_or(is_better) {
            link.clock = Some((now, clock_us));
        }
    }

    /// The time by the masters' clocks at that moment: that of the one in the middle. Zero if nobody said it.
    pub(in crate::engine) fn masters_us(&self, at: Instant) -> u64 {
        let clock = |link: &Link| link.clock.map(|(then, clock_us)| shifted(clock_us, then, at));
        let mut clocks = [0; limits::MASTER_COUNT_MAX];
        let mut count = 0;
        for clock_us in self.links.iter().filter_map(clock) {
            clocks[count] = clock_us;
            count += 1;
        }
        let clocks = &mut clocks[..count];
        clocks.sort_unstable();
        clocks.get(count / 2).copied().unwrap_or(0)
    }
}

/// Whether an error says that a script did not run, in whatever words, or lacks a right. The error of a script
/// that ran names it, and passing refusals have a code: `BUSY`, `OOM`.
fn is_script_refused(text: &str) -> bool {
    let has_run = text.contains("@user_script") || text.starts_with("ERR Error running script");
    Learnt::is_parking_refused(text.as_bytes()) || (text.starts_with("ERR") && !has_run)
}

/// The time of a clock at another moment than the one at which it was read.
fn shifted(clock_us: u64, read: Instant, at: Instant) -> u64 {
    let (later, earlier) = (at.saturating_duration_since(read), read.saturating_duration_since(at));
    clock_us.saturating_add(whole_us(later)).saturating_sub(whole_us(earlier))
}
