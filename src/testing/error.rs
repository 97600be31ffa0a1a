//! Errors of fleets and their servers.

use std::io;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

/// Error of a [`Fleet`](super::Fleet) or one of its masters.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FleetError {
    /// No server program exists under any of these names.
    #[error("no server program: tried {tried}; install one, or name it in REDLATCH_SERVER")]
    NotFound {
        /// Names that were tried.
        tried: String,
    },
    /// The system did not start the program.
    #[error("cannot start {program}: {source}")]
    NotStarted {
        /// Name of the program.
        program: String,
        /// Answer of the system.
        source: io::Error,
    },
    /// The server ended before it answered.
    #[error("the server on port {port} ended before it answered ({status}); its output:\n{log}")]
    Ended {
        /// Port of the server.
        port: u16,
        /// Exit status of the server.
        status: ExitStatus,
        /// Output of the server.
        log: String,
    },
    /// The server runs but does not answer.
    #[error("the server on port {port} did not answer within {limit:?}; its output:\n{log}")]
    Silent {
        /// Port of the server.
        port: u16,
        /// Time that the fleet waited.
        limit: Duration,
        /// Output of the server.
        log: String,
    },
    /// The server did not end after SIGTERM.
    #[error("the server on port {port} did not end within {limit:?}; its output:\n{log}")]
    NotEnded {
        /// Port of the server.
        port: u16,
        /// Time that the fleet waited.
        limit: Duration,
        /// Output of the server.
        log: String,
    },
    /// All tried ports are taken.
    #[error("the ports that were tried are taken")]
    NoPort,
    /// The server does not run: it was killed, or ended by itself.
    #[error("the server on port {port} does not run; restart it first")]
    NotRunning {
        /// Port of the server.
        port: u16,
    },
    /// The system refused something else.
    #[error("{what}: {source}")]
    Io {
        /// What was attempted.
        what: String,
        /// Answer of the system.
        source: io::Error,
    },
}

impl FleetError {
    pub(super) fn io(what: &str, path: &Path, source: io::Error) -> Self {
        Self::Io { what: format!("{what} {}", path.display()), source }
    }
}
