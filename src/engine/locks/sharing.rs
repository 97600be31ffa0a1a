//! Shared locks: readers, who have a lock together.
//!
//! A writer is whoever has the lock alone, by any other request: nothing about it is different. A reader's
//! attempt, extension and release are a writer's but for the commands (`lock/command/shared.rs`), and for
//! the wait queues of this engine: readers are in none.
//!
//! # Why readers and a writer exclude each other
//!
//! Readers stand in a set at the lock's own key. A quorum that granted a reader and one that granted a writer
//! share a master. If that one took the writer first, its key was there, with the writer's value, until the
//! writer's validity was over or the writer had released it: a reader is refused there, a swap or an
//! extension compares. If it took the reader first, the set was there until the last of the readers' ends,
//! which no request but a release by one of them brings forward, and that to the last end of the others: `SET
//! NX` is refused. A reader's end is its TTL after the master's vote, by that master's clock, its deadline
//! TTL minus drift after the attempt's beginning; so whatever is said of deadlines, drift, quarantine,
//! orphans and margins holds for readers, too. That a read quorum and a write quorum share a member is the
//! idea of Gifford, "Weighted Voting for Replicated Data" (1979); here both are majorities.
//!
//! # Whose turn it is
//!
//! Readers and writers that wait stand in one queue on each master (`parking.rs`). A reader that does not
//! wait is refused while somebody stands there, so that readers which come and go keep no writer waiting.

use std::time::Instant;

use super::claim::{Claim, Votes};
use super::obstacle::Obstacle;
use crate::lock::{Failure, MasterId, Vote};

/// The vote in the answer to a reader's attempt. A refusal reports how long the key in the way still lives.
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
