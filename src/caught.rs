//! Calls of users' code whose panic must not end the caller.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls the function and returns its result, or `None` if it panics. The panic hook has reported the panic.
///
/// Forgets the panic's payload: it may be of any type, and dropping it may panic again.
pub(crate) fn caught<T>(call: impl FnOnce() -> T) -> Option<T> {
    let result = catch_unwind(AssertUnwindSafe(call));
    result.map_err(std::mem::forget).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct PanicsAgain;

    impl Drop for PanicsAgain {
        fn drop(&mut self) {
            std::panic::resume_unwind(Box::new("the payload panics, too"));
        }
    }

    #[test]
    fn a_payload_that_panics_harms_nobody() {
        assert_eq!(caught(|| 7), Some(7));
        assert_eq!(caught(|| -> u32 { std::panic::resume_unwind(Box::new(PanicsAgain)) }), None);
    }
}
