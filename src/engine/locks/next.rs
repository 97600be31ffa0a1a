//! How an acquisition lives, and the table that decides what follows.
//!
//! ```text
//!            nobody before it             refused
//!  submit ───────────────────► Asking ──────────────► Parked: round after round
//!    │                          ▲   │ failed            │ lost its place
//!    │ others before it         │   ▼                   │
//!    └──────► Behind ───────────┤ Pausing ◄─────────────┘
//!               ▲    its turn   │   │
//!               └───────────────┴───┘ a caller of this engine has the lock; otherwise the next attempt
//!
//!  Asking, Parked ── a quorum grants in time ──► held       the last attempt failed ──► Naming ──► denied
//! ```
//!
//! An acquisition asks the masters in attempts. Each attempt is a claim with a new token (`attempt.rs`). The
//! masters' votes decide it (`acquire.rs`, `src/lock/tally.rs`): a quorum that grants in time is the lock, and
//! open votes wait for more. A connection that breaks is a failed vote (I7). Everything else that may happen
//! is a cell of the table:
//!
//! | phase | the acquisition | its time comes |
//! | --- | --- | --- |
//! | behind | stands behind other callers of this engine (`turns.rs`) | with its turn |
//! | asking | has an attempt under way: a `SET`, a script, a swap, an adoption | when the answers are due |
//! | parked | waits in the masters' queues, round after round (`rounds.rs`) | when the next round is due |
//! | pausing | lets time pass before the next attempt (`pauses.rs`) | at the end of the pause |
//! | naming | has failed; the masters that refused are asked about the holder | when the answers are due |
//!
//! | | behind | asking | parked | pausing | naming |
//! | --- | --- | --- | --- | --- | --- |
//! | its time comes | attempt¹ | unanswered votes have failed | next round¹ | attempt¹ | deny |
//! | the holder is named | – | – | – | the pause ends sooner | deny |
//! | a quorum granted, too late | – | failed | next round, once; then failed | – | – |
//! | refused | – | failed | failed | – | – |
//! | its fencing token is refused, a better one is known | – | attempt | next round | – | – |
//! | too few answers | – | failed | failed | – | – |
//!
//! ¹ Before all else: at the end of the wait, an acquisition behind others gets the error of the callers before
//! it, a parked one has failed as refused, and a pausing one is denied. Behind or pausing, it stands behind
//! others (again) while a caller of this engine has the lock, or its turn has not come.
//!
//! An attempt is a park if the acquisition wants to park and enough masters can park it. It wants to once an
//! attempt was refused or others of this engine came before it, if the lock is known as contended, and if its
//! request is fair. What follows a failed attempt; the first matching row counts:
//!
//! | failed | and | what follows |
//! | --- | --- | --- |
//! | refused | not parked, its caller waits, enough masters can park it | a park behind it |
//! | any | another attempt fits into the wait | a pause, then that attempt |
//! | any | the wait cut it short; an attempt failed before | the error of that attempt |
//! | too few answers, or too late | the wait cut it short; its caller was in a queue | the error of the callers before it |
//! | any | | its own error, once the masters that refused have named the holder |
//!
//! An attempt that the wait cut short says nothing about its masters: they still had time to answer. A ring
//! only moves a deadline, and a master that is back may get the round, too. A hand-over begins an attempt behind others or in a
//! pause (`handover.rs`), and a caller may give up in each phase (`release.rs`).

use super::op::Cause;
use super::slab::Id;
use crate::handle::LockHandle;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Behind,
    Asking,
    Parked,
    Pausing,
    Naming,
}

/// What happened to an acquisition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Input {
    /// The phase's time has come.
    Due,
    /// All masters that were asked have named the holder.
    Named,
    /// A quorum granted, with too little validity left.
    Late,
    /// Holders are in the way of a quorum.
    Refused,
    /// Masters refused the fencing token. Without their refusals, a quorum is possible.
    TokenRefused,
    /// Too many masters failed, or do not count.
    Unanswered,
}

/// What is known when something happens. Each fact counts in some phases only.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Facts {
    /// The wait has ended.
    pub(crate) is_over: bool,
    /// The turn has come, and no caller of this engine has the lock.
    pub(crate) may_ask: bool,
    /// The next attempt is a park.
    pub(crate) parks: bool,
    /// If refused, the attempt can park.
    pub(crate) can_park: bool,
    /// Another attempt fits into the wait.
    pub(crate) can_retry: bool,
    /// The wait ended before the answers were due.
    pub(crate) is_cut_short: bool,
    pub(crate) has_failed_before: bool,
    pub(crate) has_queued: bool,
    /// The round before was not late.
    pub(crate) is_first_late: bool,
}

/// How an attempt begins: what its token replaces on the masters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By<'a> {
    /// Nothing: the key is absent.
    Set,
    /// The last attempt's token, if it was just refused. The attempt waits in the masters' queues until the key
    /// is absent.
    Park,
    /// The last round's token, in the same place of the masters' queues. All rounds are one attempt.
    Round,
    /// The token of this claim, which gives the lock up.
    Swap(Id),
    /// The value of a handle.
    Handle(&'a LockHandle),
}

/// What follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    Stay,
    Begin(By<'static>),
    /// Count the masters without an answer as failed, and decide again.
    Count,
    /// Stand behind other callers of this engine.
    Queue,
    /// End the failed attempt, and plan another one.
    Pause(Cause),
    /// Move the planned attempt forward, to the end of the holder's time.
    Hasten,
    /// End the failed attempt, ask for the holder, then deny.
    Name(Cause),
    /// End with the error of the latest attempt that was not cut short.
    Deny,
    /// End with the error of the callers before it.
    DenyQueued,
}

pub(crate) const fn next(phase: Phase, input: Input, facts: Facts) -> Act {
    match (phase, input) {
        (Phase::Behind, Input::Due) if facts.is_over => Act::DenyQueued,
        (Phase::Pausing, Input::Due) if facts.is_over => Act::Deny,
        (Phase::Behind | Phase::Pausing, Input::Due) if !facts.may_ask => Act::Queue,
        (Phase::Behind | Phase::Pausing, Input::Due) | (Phase::Asking, Input::TokenRefused) => {
            Act::Begin(if facts.parks { By::Park } else { By::Set })
        }
        (Phase::Asking, Input::Due) => Act::Count,
        (Phase::Parked, Input::Due) if facts.is_over => failed(phase, Cause::Contended, facts),
        (Phase::Parked, Input::Late) if !facts.is_first_late => failed(phase, Cause::Expired, facts),
        (Phase::Parked, Input::Due | Input::Late | Input::TokenRefused) => Act::Begin(By::Round),
        (Phase::Asking, Input::Late) => failed(phase, Cause::Expired, facts),
        (Phase::Asking | Phase::Parked, Input::Refused) => failed(phase, Cause::Contended, facts),
        (Phase::Asking | Phase::Parked, Input::Unanswered) => failed(phase, Cause::NoQuorum, facts),
        (Phase::Naming, Input::Due | Input::Named) => Act::Deny,
        (Phase::Pausing, Input::Named) => Act::Hasten,
        (Phase::Behind | Phase::Asking | Phase::Parked, Input::Named)
        | (
            Phase::Behind | Phase::Pausing | Phase::Naming,
            Input::Late | Input::Refused | Input::TokenRefused | Input::Unanswered,
        ) => Act::Stay,
    }
}

/// What follows a failed attempt.
const fn failed(phase: Phase, cause: Cause, facts: Facts) -> Act {
    match (phase, cause, facts) {
        (Phase::Asking, Cause::Contended, Facts { can_park: true, .. }) => Act::Begin(By::Park),
        (_, _, Facts { can_retry: true, .. }) => Act::Pause(cause),
        (_, _, Facts { is_cut_short: true, has_failed_before: true, .. }) => Act::Deny,
        (_, Cause::NoQuorum | Cause::Expired, Facts { is_cut_short: true, has_queued: true, .. }) => {
            Act::DenyQueued
        }
        (_, Cause::Contended | Cause::NoQuorum | Cause::Expired, _) => Act::Name(cause),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PHASES: [Phase; 5] = [Phase::Behind, Phase::Asking, Phase::Parked, Phase::Pausing, Phase::Naming];
    const NONE: Facts = Facts {
        is_over: false,
        may_ask: false,
        parks: false,
        can_park: false,
        can_retry: false,
        is_cut_short: false,
        has_failed_before: false,
        has_queued: false,
        is_first_late: false,
    };
    const CONTENDED: Act = Act::Name(Cause::Contended);
    const NO_QUORUM: Act = Act::Name(Cause::NoQuorum);
    const EXPIRED: Act = Act::Name(Cause::Expired);

    /// Compares rows of the table: an input, the facts, and the act in each phase.
    fn check(rows: &[(Input, Facts, [Act; 5])]) {
        for (input, facts, acts) in rows {
            let found = PHASES.map(|phase| next(phase, *input, *facts));
            assert_eq!(&found, acts, "{input:?}, {facts:?}");
        }
    }

    #[test]
    fn each_cell_is_as_in_the_table() {
        let [set, park, round] = [By::Set, By::Park, By::Round].map(Act::Begin);
        let (stay, queue, deny) = (Act::Stay, Act::Queue, Act::Deny);
        let (over, turn) = (Facts { is_over: true, ..NONE }, Facts { may_ask: true, ..NONE });
        let first_late = Facts { is_first_late: true, ..NONE };
        check(&[
            (Input::Due, NONE, [queue, Act::Count, round, queue, deny]),
            (Input::Due, turn, [set, Act::Count, round, set, deny]),
            (Input::Due, Facts { parks: true, ..turn }, [park, Act::Count, round, park, deny]),
            (Input::Due, over, [Act::DenyQueued, Act::Count, CONTENDED, deny, deny]),
            (
                Input::Due,
                Facts { is_over: true, ..turn },
                [Act::DenyQueued, Act::Count, CONTENDED, deny, deny],
            ),
            (Input::Named, NONE, [stay, stay, stay, Act::Hasten, deny]),
            (Input::Late, NONE, [stay, EXPIRED, EXPIRED, stay, stay]),
            (Input::Late, first_late, [stay, EXPIRED, round, stay, stay]),
            (Input::Refused, NONE, [stay, CONTENDED, CONTENDED, stay, stay]),
            (Input::TokenRefused, NONE, [stay, set, round, stay, stay]),
            (Input::TokenRefused, Facts { parks: true, ..NONE }, [stay, park, round, stay, stay]),
            (Input::Unanswered, NONE, [stay, NO_QUORUM, NO_QUORUM, stay, stay]),
        ]);
    }

    #[test]
    fn each_failed_attempt_is_followed_as_in_the_table() {
        let pause = [Cause::Contended, Cause::NoQuorum, Cause::Expired].map(Act::Pause);
        let name = [CONTENDED, NO_QUORUM, EXPIRED];
        let (park, deny, queued) = (Act::Begin(By::Park), Act::Deny, Act::DenyQueued);
        let (can_park, can_retry) = (Facts { can_park: true, ..NONE }, Facts { can_retry: true, ..NONE });
        let cut_short = Facts { is_cut_short: true, ..NONE };
        let both = Facts { has_failed_before: true, has_queued: true, ..NONE };
        for (facts, acts) in [
            (can_park, [park, NO_QUORUM, EXPIRED]),
            (Facts { can_retry: true, ..can_park }, [park, pause[1], pause[2]]),
            (Facts { can_retry: true, is_cut_short: true, ..both }, pause),
            (can_retry, pause),
            (Facts { is_cut_short: true, ..both }, [deny; 3]),
            (Facts { has_failed_before: true, ..cut_short }, [deny; 3]),
            (Facts { has_queued: true, ..cut_short }, [CONTENDED, queued, queued]),
            (cut_short, name),
            (both, name),
            (NONE, name),
        ] {
            let inputs = [Input::Refused, Input::Unanswered, Input::Late];
            assert_eq!(inputs.map(|input| next(Phase::Asking, input, facts)), acts, "{facts:?}");
            let parked = inputs.map(|input| next(Phase::Parked, input, facts));
            // A parked attempt does not park again.
            let refused = if acts[0] == park {
                next(Phase::Parked, Input::Refused, Facts { can_park: false, ..facts })
            } else {
                acts[0]
            };
            assert_eq!(parked, [refused, acts[1], acts[2]], "{facts:?}");
        }
    }
}
