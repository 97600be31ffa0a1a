//! Error of a question to one master, outside of any lock.

/// Why a master could not be asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// There is no connection, or no answer on it.
    #[error("{0}")]
    Unreachable(String),
    /// The server refused the login.
    #[error("{0}")]
    LoginRefused(String),
}

impl ProbeError {
    /// Returns the reason in two words, for a line of an overview.
    #[must_use]
    pub const fn in_short(&self) -> &'static str {
        match self {
            Self::Unreachable(_) => "no answer",
            Self::LoginRefused(_) => "login refused",
        }
    }
}
