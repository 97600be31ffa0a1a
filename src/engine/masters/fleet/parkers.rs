//! Which masters park attempts and run scripts, and the masters' clocks.

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
    pub(in crate::engine) fn can_park(&self) -> bool {
        self.parkers.intersection(self.usable).has(self.quorum)
    }

    /// A master refused a park. If it lacks the right or the script, it is polled from now on.
    pub(in crate::engine) fn note_park_refused(&mut self, master: MasterId, failure: &Failure) {
        if let Failure::Replied(text) = failure
            && Learnt::is_parking_refused(text.as_bytes())
        {
            self.stop_parking(master, text.clone());
        }
    }

    /// A master refused a release script. Returns true if it has native commands, which it gets from now on.
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

    pub(super) fn subscribe(&mut self, master: MasterId) {
        let learnt = &self.link(master).learnt;
        let (command, channel) = (learnt.subscribe(), learnt.channel.clone());
        self.queue(MasterSet::only(master), Owed::Subscription, |out| {
            resp::encode_command(out, &[command.as_bytes(), &channel]);
        });
    }

    /// A master refused the subscription. After a sharded channel an ordinary one is tried; if that is
    /// refused too, the master cannot park.
    pub(in crate::engine) fn note_channel_refused(&mut self, master: MasterId, why: Box<str>) {
        let learnt = &mut self.link_mut(master).learnt;
        if !learnt.is_sharded() {
            return self.stop_parking(master, why);
        }
        learnt.note_refused(learnt.subscribe(), why);
        learnt.channel = learnt.channel.strip_suffix(&[SHARDED]).unwrap_or_default().into();
        self.subscribe(master);
    }

    /// Marks a master as unable to park until its next connection.
    pub(in crate::engine) fn stop_parking(&mut self, master: MasterId, why: Box<str>) {
        self.parkers.remove(master);
        self.link_mut(master).learnt.note_refused(PARKING, why);
    }

    /// Takes a master's time. Each answer was delayed on its way, so the reading that yields the latest time
    /// is the best one. It is replaced after [`limits::CLOCK_KEPT`]: rates differ, and clocks are set back.
    pub(in crate::engine) fn note_clock(&mut self, now: Instant, master: MasterId, clock_us: u64) {
        let link = self.link_mut(master);
        let is_better = |(then, known_us): (Instant, u64)| {
            now - then >= limits::CLOCK_KEPT || clock_us >= shifted(known_us, then, now)
        };
        if link.clock.is_none_or(is_better) {
            link.clock = Some((now, clock_us));
        }
    }

    /// Median of the masters' clocks at that moment, in microseconds since 1970. Zero if none is known.
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

/// Whether an error says that a script could not run or lacks a right. The error of a script that did run
/// names the script, and temporary refusals have their own codes: `BUSY`, `OOM`.
fn is_script_refused(text: &str) -> bool {
    let has_run = text.contains("@user_script") || text.starts_with("ERR Error running script");
    Learnt::is_parking_refused(text.as_bytes()) || (text.starts_with("ERR") && !has_run)
}

/// The clock's time at `at`, from a reading at `read`.
fn shifted(clock_us: u64, read: Instant, at: Instant) -> u64 {
    let (later, earlier) = (at.saturating_duration_since(read), read.saturating_duration_since(at));
    clock_us.saturating_add(whole_us(later)).saturating_sub(whole_us(earlier))
}
