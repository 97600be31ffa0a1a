//! Why a master has no new credentials.

use std::time::Duration;

use crate::limits;
use crate::words::Rounded;

/// Reason why the new credentials of a master could not be had, or are not in use. No variant has a password
/// or a user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialsError {
    /// The provider returned this error.
    #[error("the credentials provider failed: {0}")]
    Failed(&'static str),
    /// The provider panicked.
    #[error("the credentials provider panicked; see its panic message")]
    Panicked,
    /// The provider has not returned in time. Its later answer is used.
    #[error("the credentials provider gave no answer within {}; give it a time-out", Rounded(*.limit))]
    NoAnswer {
        /// The `connect_timeout` of the client.
        limit: Duration,
    },
    /// The provider returned an empty password.
    #[error("the credentials provider returned an empty password; check the provider")]
    Empty,
    /// The provider returned a user and a password that are too long.
    #[error("the credentials have {size} bytes; give at most {}", limits::LOGIN_SIZE_MAX)]
    TooLong {
        /// Bytes of user and password.
        size: usize,
    },
    /// The operating system refused the thread that asks the provider.
    #[error("no thread for the credentials provider; check the limits of this process")]
    NoThread,
    /// The server refused the credentials on an open connection, which stays as it is.
    #[error("the server refused the new credentials, and keeps the old: {refusal}")]
    Refused {
        /// Its error reply.
        refusal: Box<str>,
    },
}
