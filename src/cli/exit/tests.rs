//! Each error that can end the program, by its exit code.

use std::time::Duration;

use redlatch::error::{ConfigError, Denial, Report, Round};

use super::*;

#[test]
fn each_error_ends_with_its_code() {
    let denial = || Box::new(Denial::new(Report::new(Round::Acquire, "orders:42")));
    let input = || InputError::ResourceEmpty;
    let too_long = InputError::TtlTooLong { ttl: Duration::from_secs(2), max_ttl: Duration::from_secs(1) };
    let refused = || io::Error::from(io::ErrorKind::PermissionDenied);
    for (exit, expected, text) in [
        (AcquireError::Contended(denial()).into(), 75, "lock \"orders:42\" is held by another client"),
        (AcquireError::NoQuorum(denial()).into(), 69, "no quorum of masters"),
        (AcquireError::Expired(denial()).into(), 69, "expired while it was acquired"),
        (AcquireError::Input(input()).into(), 64, "give at least one byte"),
        (AcquireError::Overloaded.into(), 70, "too many locks"),
        (AcquireError::Cancelled.into(), 70, "was cancelled"),
        (AcquireError::Stopped("drained".into()).into(), 70, "cannot be used: drained"),
        (input().into(), 64, "give at least one byte"),
        (too_long.into(), 64, "--ttl is 2s, above the maximum TTL of 1s"),
        (ConfigError::ClientName.into(), 64, "use ASCII"),
        (ConnectError::Config(ConfigError::ClientName).into(), 64, "use ASCII"),
        (ConnectError::Io(refused()).into(), 70, "permission denied"),
        (refused().into(), 70, "permission denied"),
        (
            Exit::no_quorum(1, 3, vec!["a: down".to_owned(), "b: down".to_owned()]),
            69,
            "1 of 3 masters count, 2 needed; repair the others\n  a: down\n  b: down",
        ),
        (Exit::internal("a").of_lock("lock \"b\""), 70, "lock \"b\": a"),
    ] {
        let exit: Exit = exit;
        assert_eq!(exit.code, expected, "{}", exit.why);
        assert!(exit.why.contains(text), "{text:?} is not in {:?}", exit.why);
    }
}

#[test]
fn the_codes_are_those_of_the_manual() {
    let codes = [
        code::WARNINGS,
        code::ERRORS,
        code::REFUSED,
        code::TWO_HOLDERS,
        code::FAULTS,
        code::USAGE,
        code::NO_QUORUM,
        code::INTERNAL,
        code::CONTENDED,
        code::LOST,
        code::PANIC,
        code::NOT_EXECUTABLE,
        code::NOT_FOUND,
    ];
    assert_eq!(codes, [1, 2, 1, 1, 2, 64, 69, 70, 75, 76, 101, 126, 127]);
    assert_eq!(
        [2, 9, 15, 127, 128, 255, 256, -1].map(|signal: i32| code::of_signal(signal)),
        [130, 137, 143, 255, 255, 255, 255, 255]
    );
}
