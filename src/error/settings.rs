//! Errors of a configuration, of its URLs, and of changing credentials.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::limits;
use crate::lock::InputError;
use crate::words::Rounded;

/// Why settings are invalid. Nothing was connected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No master, or more than 32.
    #[error("{count} masters given; give 1 to {}, best an odd number from 3 up", limits::MASTER_COUNT_MAX)]
    MasterCount {
        /// Number of masters given.
        count: usize,
    },
    /// An invalid URL.
    #[error("master {}: {source}", index + 1)]
    Url {
        /// Its place in the list, from 0.
        index: usize,
        /// Why it is invalid.
        source: UrlError,
    },
    /// The same address twice, which would vote twice.
    #[error("master {} is the same server as master {} ({address}); list each server once", index + 1, other + 1)]
    SameMaster {
        /// Place of the second mention, from 0.
        index: usize,
        /// Place of the first mention, from 0.
        other: usize,
        /// The address, without the login.
        address: String,
    },
    /// Both a login in a URL and a credentials provider.
    #[error("master {}: a credentials provider and a login in the URL; remove one of them", index + 1)]
    TwoLogins {
        /// Its place in the list, from 0.
        index: usize,
    },
    /// A user without a password, and no password file.
    #[error("master {}: a user without a password; add it to the URL, or set REDLATCH_PASSWORD_FILE", index + 1)]
    NoPassword {
        /// Its place in the list, from 0.
        index: usize,
    },
    /// TLS settings, but no URL with TLS.
    #[cfg(feature = "tls")]
    #[error("TLS settings are given, but no URL begins with rediss://; write rediss://, or remove them")]
    TlsUnused,
    /// An invalid name for a certificate.
    #[cfg(feature = "tls")]
    #[error("`{name}` cannot be the name of a TLS server; give the name in its certificate")]
    TlsServerName {
        /// The URL's host, or the server name that was set.
        name: String,
    },
    /// A prefix of more than 256 bytes.
    #[error("the prefix has {size} bytes; give at most {}", limits::PREFIX_SIZE_MAX)]
    PrefixTooLong {
        /// Length of the prefix in bytes.
        size: usize,
    },
    /// A client name that is empty, or not printable ASCII without spaces.
    #[error("the client name is empty or not printable; use ASCII without spaces")]
    ClientName,
    /// An answer timeout outside 1 to 1,000,000 ppm of the TTL.
    #[error("the answer timeout is {ppm} ppm of the TTL; give 1 to 1,000,000")]
    AnswerTimeoutShare {
        /// The share asked for.
        ppm: u32,
    },
    /// A time outside its bounds.
    #[error("{setting} is {}; give {} to {}", Rounded(*value), Rounded(*min), Rounded(*max))]
    OutOfBounds {
        /// Name of the setting.
        setting: &'static str,
        /// Its value.
        value: Duration,
        /// Smallest allowed value.
        min: Duration,
        /// Largest allowed value.
        max: Duration,
    },
    /// An environment variable whose name nearly matches a setting's.
    #[error("{name} is no variable of redlatch; did you mean {known}?")]
    UnknownVariable {
        /// Name of the variable.
        name: String,
        /// Name of the setting's variable.
        known: &'static str,
    },
    /// An environment variable is missing or invalid. A password in it is not shown.
    #[error("{variable}: {reason}")]
    Variable {
        /// Name of the variable.
        variable: &'static str,
        /// The reason, and what is accepted.
        reason: String,
    },
    /// An invalid holder label or drift, or a drift and a `max_ttl` that leave no validity.
    #[error(transparent)]
    Input(#[from] InputError),
}

/// A text is no master's URL. Shows nothing between the scheme and the last `@`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{reason} in `{shown}`; write redis://[[user]:password@]host[:port][/db], rediss:// for TLS, or unix:///path[?db=db]"
)]
pub struct UrlError {
    pub(crate) reason: &'static str,
    pub(crate) shown: String,
}

/// Why a master's new credentials are missing or not in use. No text of this error contains a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialsError {
    /// [`ConfigBuilder::credentials`](crate::ConfigBuilder::credentials) was not called.
    #[error("there is no credentials provider; set one, or give the login in the URL")]
    NoProvider,
    /// The provider returned an error, which is the source of this error.
    #[error(transparent)]
    Failed(ProviderError),
    /// The provider panicked.
    #[error("the credentials provider panicked; see its panic message")]
    Panicked,
    /// The provider has not returned in time. A later answer is still used.
    #[error("the credentials provider gave no answer within {}; give it a time-out", Rounded(*.limit))]
    NoAnswer {
        /// The client's `connect_timeout`.
        limit: Duration,
    },
    /// The password file is unusable.
    #[error("the password file {file} is unusable: {why}; give one line, readable here")]
    PasswordFile {
        /// The file.
        file: String,
        /// The reason.
        why: String,
    },
    /// The provider returned an empty password.
    #[error("the credentials provider returned an empty password; check the provider")]
    Empty,
    /// The provider returned a user and a password that are too long.
    #[error("the credentials have {size} bytes; give at most {}", limits::LOGIN_SIZE_MAX)]
    TooLong {
        /// Total size of user and password, in bytes.
        size: usize,
    },
    /// The operating system refused a thread for the provider.
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
/// Neither `Display` nor `Debug` shows its text, which may contain a secret; [`Error::source`] returns it.
/// Errors with the same text are equal.
#[derive(Clone)]
pub struct ProviderError(Arc<Returned>);

struct Returned {
    error: Box<dyn Error + Send + Sync>,
    /// Formatted on the provider's thread, because formatting runs a caller's code.
    text: String,
}

impl ProviderError {
    /// Wraps this error.
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
