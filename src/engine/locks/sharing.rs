//! Shared locks: readers that hold a lock together.
//!
//! A writer holds the lock alone, through any other request, which works as without readers. A reader differs
//! only in the commands of its attempt, extension and release (`lock/command/shared.rs`), and stands in no
//! wait queue of this engine.
//!
//! # Why readers and a writer exclude each other
//!
//! Readers stand in a set at the lock's key. A quorum that granted a reader and a quorum that granted a
//! writer share a master. If this master granted the writer first, the writer's value stayed at the key until
//! the writer's validity was over or the writer had released the lock. Meanwhile a reader is refused, and a
//! swap or an extension compares the value. If the master granted the reader first, the set stayed until the
//! last reader's end, and `SET NX` is refused. Only the release by a reader brings that end forward, to the
//! last end of the remaining readers. A reader's end is one TTL after the master's vote, by that master's
//! clock. The reader's deadline is the TTL minus the drift after the start of the attempt. So everything
//! about deadlines, drift, quarantine, orphans and margins holds for readers, too. Overlapping read and write
//! quorums come from Gifford, "Weighted Voting for Replicated Data" (1979); here both are majorities.
//!
//! # Whose turn it is
//!
//! Waiting readers and writers share one queue on each master (`parking.rs`). An attempt by a reader that is
//! not parked is refused while a live entry is first in that queue, so that short-lived readers do not starve
//! a writer.

use std::time::Instant;

use super::claim::{Claim, Votes};
use super::obstacle::Obstacle;
use crate::lock::{Failure, MasterId, Vote};

/// Returns the vote in the answer to a reader's attempt. A refusal reports the key's time left.
pub(crate) fn vote(
    vote: Vote,
    master: MasterId,
    claim: &mut Claim,
    obstacle: Option<(Instant, &mut Obstacle)>,
) -> Option<Vote> {
    if vote == Vote::Failed(Failure::SameServer) {
        claim.note_twin(master);
    }
    if claim.votes == Votes::Void {
        return None;
    }
    if let (Vote::Refused { holder }, Some((now, obstacle))) = (&vote, obstacle) {
        obstacle.note(now, master, *holder);
    }
    Some(vote)
}
