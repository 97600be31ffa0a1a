//! What follows a failed attempt: a decision without effects. The first matching row counts.
//!
//! | attempt | and | what follows |
//! | --- | --- | --- |
//! | refused | its caller waits, it never parked, enough masters can park it | a park behind it |
//! | any | another attempt fits into the wait | a pause, then that attempt |
//! | any | the wait cut it short; an attempt failed before | the error of that attempt |
//! | too few answers, or too late | the wait cut it short; its caller was in a queue | the error of the callers before it |
//! | any | | its own error, once the masters that refused have named the holder |
//!
//! An attempt that the wait cut short says nothing about its masters: they still had time to answer.

use super::op::Cause;

/// What is known about a failed attempt.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Facts {
    pub(crate) can_park: bool,
    pub(crate) can_retry: bool,
    pub(crate) is_cut_short: bool,
    pub(crate) has_failed_before: bool,
    pub(crate) has_queued: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    Park,
    Pause,
    DenyAsBefore,
    DenyAsQueued,
    Deny,
}

pub(crate) const fn next(cause: Cause, facts: Facts) -> Next {
    match (cause, facts) {
        (Cause::Contended, Facts { can_park: true, .. }) => Next::Park,
        (_, Facts { can_retry: true, .. }) => Next::Pause,
        (_, Facts { is_cut_short: true, has_failed_before: true, .. }) => Next::DenyAsBefore,
        (Cause::NoQuorum | Cause::Expired, Facts { is_cut_short: true, has_queued: true, .. }) => {
            Next::DenyAsQueued
        }
        (Cause::Contended | Cause::NoQuorum | Cause::Expired, _) => Next::Deny,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failed_attempt_is_followed_as_in_the_table() {
        let [contended, no_quorum, expired] = [Cause::Contended, Cause::NoQuorum, Cause::Expired];
        let none = Facts::default();
        let (can_park, can_retry) = (Facts { can_park: true, ..none }, Facts { can_retry: true, ..none });
        let cut_short = Facts { is_cut_short: true, ..none };
        let both = Facts { has_failed_before: true, has_queued: true, ..none };
        for (facts, [refused, unanswered]) in [
            (can_park, [Next::Park, Next::Deny]),
            (Facts { can_retry: true, ..can_park }, [Next::Park, Next::Pause]),
            (Facts { can_retry: true, is_cut_short: true, ..both }, [Next::Pause, Next::Pause]),
            (can_retry, [Next::Pause, Next::Pause]),
            (Facts { is_cut_short: true, ..both }, [Next::DenyAsBefore, Next::DenyAsBefore]),
            (Facts { has_failed_before: true, ..cut_short }, [Next::DenyAsBefore, Next::DenyAsBefore]),
            (Facts { has_queued: true, ..cut_short }, [Next::Deny, Next::DenyAsQueued]),
            (cut_short, [Next::Deny, Next::Deny]),
            (both, [Next::Deny, Next::Deny]),
            (none, [Next::Deny, Next::Deny]),
        ] {
            let found = [contended, no_quorum, expired].map(|cause| next(cause, facts));
            assert_eq!(found, [refused, unanswered, unanswered], "{facts:?}");
        }
    }
}
