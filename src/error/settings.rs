//! Errors of a configuration, of its URLs, and of credentials that change.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::limits;
use crate::lock::InputError;
use crate::words::Rounded;

/// Error of settings that cannot work. Nothing was connected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No master, or more than 32.
    #[error("{count} masters given; give 1 to {}, best an odd number from 3 up", limits::MASTER_COUNT_MAX)]
    MasterCount {
        /// Masters given.
        count: usize,
    },
    /// A master's URL cannot be used.
    #[error("master {}: {source}", index + 1)]
    Url {
        /// Its place in the list, from 0.
        index: usize,
        /// The reason why it cannot be used.
        source: UrlError,
    },
    /// One address twice: it would vote twice.
    #[error("master {} is the same server as master {} ({address}); list each server once", index + 1, other + 1)]
    SameMaster {
        /// Its place in the list, from 0.
        index: usize,
        /// The place of the first mention.
        other: usize,
        /// The address, without the login.
        address: String,
    },
    /// A login in a URL, and a provider of credentials.
    #[error("master {}: a credentials provider and a login in the URL; remove one of them", index + 1)]
    TwoLogins {
        /// Its place in the list, from 0.
        index: usize,
    },
    /// A user without a password, and no file that has it.
    #[error("master {}: a user without a password; add it to the URL, or set REDLATCH_PASSWORD_FILE", index + 1)]
    NoPassword {
        /// Its place in the list, from 0.
        index: usize,
    },
    /// TLS settings, and no URL that wants TLS.
    #[cfg(feature = "tls")]
    #[error("TLS settings are given, but no URL begins with rediss://; write rediss://, or remove them")]
    TlsUnused,
    /// A text that cannot be the name in a certificate.
    #[cfg(feature = "tls")]
    #[error("`{name}` cannot be the name of a TLS server; give the name in its certificate")]
    TlsServerName {
        /// The host of a URL, or the server name that was given.
        name: String,
    },
    /// A prefix of more than 256 bytes.
    #[error("the prefix has {size} bytes; give at most {}", limits::PREFIX_SIZE_MAX)]
    PrefixTooLong {
        /// Bytes of the prefix.
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
        /// The setting's name.
        setting: &'static str,
        /// The value that it was set to.
        value: Duration,
        /// The least it may be.
        min: Duration,
        /// The most it may be.
        max: Duration,
    },
    /// An environment variable whose name is nearly that of a setting.
    #[error("{name} is no variable of redlatch; did you mean {known}?")]
    UnknownVariable {
        /// Name of the variable.
        name: String,
        /// Name of the setting's variable.
        known: &'static str,
    },
    /// An environment variable is missing, or its value is not accepted. No password in it is shown.
    #[error("{variable}: {reason}")]
    Variable {
        /// Name of the variable.
        variable: &'static str,
        /// The reason, and what is accepted.
        reason: String,
    },
    /// A holder label or a drift that cannot be used, or a drift and a `max_ttl` that leave no validity.
    #[error(transparent)]
    Input(#[from] InputError),
}

/// Error of a text that is not the URL of a master. It shows nothing between the scheme and the last `@`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{reason} in `{shown}`; write redis://[[user]:password@]host[:port][/db], rediss:// for TLS, or unix:///path[?db=db]"
)]
pub struct UrlError {
    pub(crate) reason: &'static str,
    pub(crate) shown: String,
}

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
    /// The file of the password cannot be used.
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
