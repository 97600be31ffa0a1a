//! The extension of all locks of a run, whose answers are gathered into one: the least validity, or the worst
//! error.

use std::time::Instant;

use redlatch::ExtendError;

/// What the locks gain by an extension, or why they do not.
pub(super) type Extended = Result<Instant, ExtendError>;

/// At most one extension is under way at a time.
#[derive(Debug)]
pub(super) enum Extension {
    Idle,
    UnderWay {
        /// Answers that are still to come.
        missing_count: usize,
        /// What those that are there came to; nothing before the first.
        worst: Option<Extended>,
    },
    /// Another one makes no sense.
    Over,
}

impl Extension {
    /// Begins one, of which so many answers will come.
    pub(super) fn begin(&mut self, missing_count: usize) {
        *self = Self::UnderWay { missing_count, worst: None };
    }

    pub(super) const fn is_idle(&self) -> bool {
        matches!(self, Self::Idle)
    }

    pub(super) const fn is_under_way(&self) -> bool {
        matches!(self, Self::UnderWay { .. })
    }

    pub(super) const fn is_over(&self) -> bool {
        matches!(self, Self::Over)
    }

    /// No other one, and no answer is waited for any more.
    pub(super) fn give_up(&mut self) {
        *self = Self::Over;
    }

    /// Takes one answer; returns what all of them came to if it is the last one.
    pub(super) fn gather(&mut self, result: Extended) -> Option<Extended> {
        // An answer may come after the end.
        let Self::UnderWay { missing_count, worst } = self else { return None };
        *worst = Some(match (worst.take(), result) {
            (None, result) => result,
            (Some(Ok(first)), Ok(second)) => Ok(first.min(second)),
            (Some(Err(error)), Ok(_)) | (Some(Ok(_)), Err(error)) => Err(error),
            (Some(Err(first)), Err(second)) => Err(if may_pass(&first) { second } else { first }),
        });
        *missing_count -= 1;
        if *missing_count > 0 {
            return None;
        }
        let all = worst.take();
        *self = Self::Idle;
        all
    }
}

/// Whether another extension may succeed while the validity goes on.
pub(super) const fn may_pass(error: &ExtendError) -> bool {
    matches!(error, ExtendError::NoQuorum(_) | ExtendError::Busy | ExtendError::Expired)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn nothing_is_waited_for_after_a_turn_that_failed() {
        let mut extension = Extension::Idle;
        extension.begin(2);
        assert!(extension.gather(Err(ExtendError::Busy)).is_none() && extension.is_under_way());
        extension.give_up();
        assert!(!extension.is_under_way() && extension.is_over());
        assert!(extension.gather(Err(ExtendError::Busy)).is_none() && extension.is_over());
    }

    #[test]
    fn the_least_validity_or_the_worst_error_counts() {
        let (now, later) = (Instant::now(), Instant::now() + Duration::from_secs(1));
        for (answers, all) in [
            ([Ok(later), Ok(now)], Ok(now)),
            ([Ok(later), Err(ExtendError::Busy)], Err(ExtendError::Busy)),
            ([Err(ExtendError::Busy), Err(ExtendError::NotHeld)], Err(ExtendError::NotHeld)),
            ([Err(ExtendError::NotHeld), Err(ExtendError::Busy)], Err(ExtendError::NotHeld)),
        ] {
            let mut extension = Extension::Idle;
            extension.begin(answers.len());
            let [first, last] = answers;
            assert_eq!((extension.gather(first), extension.gather(last)), (None, Some(all)));
            assert!(extension.is_idle());
        }
    }
}
