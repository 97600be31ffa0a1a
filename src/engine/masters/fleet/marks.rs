//! Writes marks: at the first sight of a promoted process, and at the end of a watch in strict mode.

use std::time::{Duration, Instant};

use super::Fleet;
use crate::config::Quarantine;
use crate::engine::ground::Ground;
use crate::engine::masters::mark::{self, Mark, MarkFound};
use crate::engine::masters::owed::{Access, Owed};
use crate::limits;
use crate::lock::command;
use crate::lock::command::scripts::RELEASE;
use crate::lock::{MasterId, MasterSet};
use crate::resp;

impl Fleet {
    /// A promoted master was connected: writes a mark with the time of this first sight, unless one exists.
    pub(super) fn mark_promotion(&mut self, master: MasterId) {
        let learnt = &self.link(master).learnt;
        let is_marked = learnt.own_mark().is_some_and(|mark| mark.seen_for(learnt.clock_us).is_some());
        let is_to_mark = learnt.replication.promotion.is_some() && learnt.clock_us.is_some();
        if is_to_mark && !is_marked && self.config.quarantine != Quarantine::Trust {
            self.write_mark(master, learnt.clock_us, Duration::ZERO);
        }
    }

    /// This client's watch over a master is over: reads the mark, which may already show a watch of that
    /// length.
    pub(super) fn read_mark(&mut self, now: Instant, master: MasterId) {
        let key = mark::key(&self.config.prefix);
        let sent = self.queue(MasterSet::only(master), Owed::Mark(Access::Read), |out| {
            resp::encode_command(out, &[b"GET", &key]);
        });
        if sent.is_empty() {
            self.link_mut(master).mark_due_at = Some(now + limits::PAUSE_UNANSWERED);
        }
    }

    /// Writes a mark, unless the found mark shows a watch that is at least as long.
    pub(in crate::engine) fn handle_mark(&mut self, ground: &mut Ground, master: MasterId, found: MarkFound) {
        if matches!(&found, MarkFound::Refused(text) if command::answer::is_passing(text.as_bytes())) {
            self.link_mut(master).mark_due_at = Some(ground.now + limits::PAUSE_UNANSWERED);
            return self.arm(ground, master);
        }
        let watched = self.quarantine_time;
        let link = self.link_mut(master);
        link.learnt.mark = found;
        let first_seen_us = link.learnt.own_mark().and_then(|mark| mark.first_seen_us);
        let first_seen_us = first_seen_us.or_else(|| link.first_seen_us());
        if link.learnt.observed() < watched {
            self.write_mark(master, first_seen_us, watched);
        }
    }

    /// Replaces the mark that was read last. A mark written since then stays.
    fn write_mark(&mut self, master: MasterId, first_seen_us: Option<u64>, watched: Duration) {
        let (to, key) = (MasterSet::only(master), mark::key(&self.config.prefix));
        let learnt = &mut self.link_mut(master).learnt;
        let old = match &learnt.mark {
            MarkFound::Absent => None,
            MarkFound::Known(mark) => Some(mark.to_string()),
            MarkFound::Foreign => return learnt.note_refused(mark::WRITING, mark::FOREIGN.into()),
            MarkFound::Refused(text) => {
                let text = text.clone();
                return learnt.note_refused(mark::READING, text);
            }
            MarkFound::Unread => return,
        };
        let Some(run_id) = learnt.run_id.clone() else { return };
        let mark = Mark { run_id, promotion: learnt.replication.promotion, first_seen_us, watched };
        if let Some(old) = old {
            let words: [&[u8]; 5] = [b"EVAL", RELEASE.text.as_bytes(), b"1", &key, old.as_bytes()];
            self.queue(to, Owed::Ignored, |out| resp::encode_command(out, &words));
        }
        let mark = mark.to_string();
        let words: [&[u8]; 4] = [b"SET", &key, mark.as_bytes(), b"NX"];
        self.queue(to, Owed::Mark(Access::Write), |out| resp::encode_command(out, &words));
    }
}
