//! The mark of strict mode: written at the end of a watch.

use std::time::Duration;

use super::Fleet;
use crate::engine::masters::mark::{self, MarkAnswer};
use crate::engine::masters::owed::{Access, Owed};
use crate::lock::{MasterId, MasterSet};
use crate::resp;

impl Fleet {
    /// This client's own watch over a master is over: looks whether a mark says so already.
    pub(super) fn read_mark(&mut self, master: MasterId) {
        let key = mark::key(&self.config.prefix);
        self.queue(MasterSet::only(master), Owed::Mark(Access::Read), |out| {
            resp::encode_command(out, &[b"GET", &key]);
        });
    }

    /// Writes the mark, unless there is one that serves all whom this client's would serve.
    pub(in crate::engine) fn handle_mark(&mut self, master: MasterId, answer: MarkAnswer) {
        let link = &mut self.links[master.index()];
        let observed = self.quarantine_time;
        let is_absent = answer == MarkAnswer::Absent;
        let longest = match answer {
            MarkAnswer::Failed(text) => return link.learnt.note_refused(mark::READING, text),
            MarkAnswer::Foreign => return link.learnt.note_refused(mark::WRITING, mark::FOREIGN.into()),
            MarkAnswer::Absent => Duration::ZERO,
            MarkAnswer::Observed(longest) => longest,
        };
        let Some(run_id) = link.learnt.run_id.as_deref().filter(|_| longest < observed) else { return };
        let key = mark::key(&self.config.prefix);
        let mark = format!("{run_id} {}", observed.as_millis());
        self.queue(MasterSet::only(master), Owed::Mark(Access::Write), |out| {
            let words: [&[u8]; 4] = [b"SET", &key, mark.as_bytes(), b"NX"];
            // Nothing that came in the meantime is overwritten either.
            resp::encode_command(out, if is_absent { &words } else { &words[..3] });
        });
    }
}
