//! Why a master has no new credentials.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::limits;
use crate::words::Rounded;

/// Reason why the new credentials of a master could not be had, or are not in use. No text of them shows a
/// password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialsError {
    /// No function was given to [`ConfigBuilder::credentials`](crate::ConfigBuilder::credentials).
    #[error("there is no credentials provider; set one, or give the login in the URL")]
    NoProvider,
    /// The provider returned an error, which is the source of this one.
    #[error(transparent)]
    Failed(ProviderError),
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

/// Error that a credentials provider returned.
///
/// Neither `Display` nor `Debug` shows its text, which may have a secret: [`Error::source`] returns it. Two
/// of them are equal if their texts are.
#[derive(Clone)]
pub struct ProviderError(Arc<Returned>);

struct Returned {
    error: Box<dyn Error + Send + Sync>,
    /// Taken on the provider's thread, as it is a caller's own function that makes it.
    text: String,
}

impl ProviderError {
    /// Keeps this error.
    pub fn new(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        let error = error.into();
        let text = error.to_string();
        Self(Arc::new(Returned { error, text }))
    }
}

impl Error for ProviderError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.0.error)
    }
}

impl fmt::Display for ProviderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the credentials provider failed; see Event::CredentialsFailed for its own error")
    }
}

impl fmt::Debug for ProviderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProviderError")
    }
}

impl PartialEq for ProviderError {
    fn eq(&self, other: &Self) -> bool {
        self.0.text == other.0.text
    }
}

impl Eq for ProviderError {}
