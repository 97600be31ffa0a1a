//! Ends of the program: exit codes, and the code for each error.

use std::fmt;
use std::io;

use redlatch::engine::quorum;
use redlatch::error::InputError;
use redlatch::{AcquireError, ConnectError};

use super::message::{self, Message};

/// The program's own exit codes: 64 to 76 as in sysexits(3), 126 and 127 as in the shell.
pub(crate) mod code {
    /// `doctor` found warnings and no errors.
    pub(crate) const WARNINGS: u8 = 1;
    /// `doctor` found errors.
    pub(crate) const ERRORS: u8 = 2;
    /// `fleet` refused a change: masters may have been in use.
    pub(crate) const REFUSED: u8 = 1;
    /// A drill found two holders of one lock.
    pub(crate) const TWO_HOLDERS: u8 = 1;
    /// A drill could not end a fault, or an allowed fault never happened.
    pub(crate) const FAULTS: u8 = 2;
    /// Invalid arguments or settings. Nothing was sent.
    pub(crate) const USAGE: u8 = 64;
    /// Too few masters could grant.
    pub(crate) const NO_QUORUM: u8 = 69;
    /// The operating system refused something that the program needs.
    pub(crate) const INTERNAL: u8 = 70;
    /// Somebody else holds the lock.
    pub(crate) const CONTENDED: u8 = 75;
    /// The lock was lost while the command ran.
    pub(crate) const LOST: u8 = 76;
    /// A bug: Rust's exit code for a panic.
    pub(crate) const PANIC: u8 = 101;
    /// The command exists but cannot be executed.
    pub(crate) const NOT_EXECUTABLE: u8 = 126;
    /// The command does not exist.
    pub(crate) const NOT_FOUND: u8 = 127;
    /// Added to the number of the signal that ended the command.
    const SIGNAL_BASE: u8 = 128;

    /// Exit code of a program that this signal ended.
    pub(crate) fn of_signal(signal: impl TryInto<u8>) -> u8 {
        signal.try_into().map_or(u8::MAX, |signal| SIGNAL_BASE.saturating_add(signal))
    }
}

/// Why the program ends without success, and the exit code.
#[derive(Debug)]
pub(crate) struct Exit {
    pub(crate) code: u8,
    pub(crate) why: String,
}

impl Exit {
    pub(crate) fn new(code: u8, why: impl fmt::Display) -> Self {
        Self { code, why: format!("{why:#}") }
    }

    pub(crate) fn usage(why: impl fmt::Display) -> Self {
        Self::new(code::USAGE, why)
    }

    /// The operating system refused something, or the program has a bug.
    pub(crate) fn internal(why: impl fmt::Display) -> Self {
        Self::new(code::INTERNAL, why)
    }

    /// Fewer than a quorum of `count` masters are ready, for these reasons.
    pub(crate) fn no_quorum(ready: usize, count: usize, why: Vec<String>) -> Self {
        let what = Message::TooFewMasters { ready, count, needed: quorum(count) }.to_string();
        Self { code: code::NO_QUORUM, why: [vec![what], why].concat().join("\n  ") }
    }

    /// Adds the lock's name, unless the text has one.
    pub(crate) fn of_lock(self, lock: &str) -> Self {
        Self { why: message::with_lock(lock, self.why), ..self }
    }
}

impl From<InputError> for Exit {
    fn from(error: InputError) -> Self {
        match error {
            // The program does not raise `max_ttl` itself, because other users of the fleet would not know of
            // it.
            InputError::TtlTooLong { ttl, max_ttl } => Self::usage(Message::TtlTooLong { ttl, max_ttl }),
            error => Self::usage(error),
        }
    }
}

impl From<ConnectError> for Exit {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Config(error) => error.into(),
            ConnectError::Tls(error) => Self::usage(error),
            error => Self::internal(error),
        }
    }
}

impl From<io::Error> for Exit {
    fn from(error: io::Error) -> Self {
        Self::internal(error)
    }
}

impl From<AcquireError> for Exit {
    fn from(error: AcquireError) -> Self {
        let code = match &error {
            AcquireError::Contended(_) => code::CONTENDED,
            AcquireError::NoQuorum(_) | AcquireError::Expired(_) => code::NO_QUORUM,
            AcquireError::Input(_) => code::USAGE,
            _ => code::INTERNAL,
        };
        Self::new(code, error)
    }
}

#[cfg(test)]
mod tests;
