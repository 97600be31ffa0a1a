//! Changing credentials, returned by a caller's function.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Login;
use crate::caught::caught;
use crate::error::{CredentialsError, ProviderError};
use crate::limits;

/// User and password for a master, from the provider set with
/// [`ConfigBuilder::credentials`](crate::ConfigBuilder::credentials). `Debug` shows neither.
///
/// ```
/// use redlatch::{Config, Credentials};
/// use std::{fs, time::Duration};
///
/// // A file that an agent of the vault replaces every hour.
/// let config = Config::builder()
///     .masters(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])
///     .credentials(|_master| {
///         let password = fs::read_to_string("/run/secrets/redis")?; // any error
///         let login = Credentials::new(password.trim()).user("locker");
///         Ok(login.valid_for(Duration::from_secs(60)))
///     })
///     .build()?;
/// # Ok::<(), redlatch::error::ConfigError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub(crate) login: Login,
    pub(crate) valid_for: Option<Duration>,
}

impl Credentials {
    /// Returns a password of the server's default user, without a limit of its validity.
    #[must_use]
    pub fn new(password: impl Into<Vec<u8>>) -> Self {
        Self { login: Login { user: None, password: password.into() }, valid_for: None }
    }

    /// Sets the user.
    #[must_use]
    pub fn user(mut self, user: impl Into<Vec<u8>>) -> Self {
        self.login.user = Some(user.into());
        self
    }

    /// Sets how long the credentials are valid from now. The provider is asked again after three quarters of
    /// this time, at most once per second ([`limits::CREDENTIALS_PAUSE_MIN`]).
    #[must_use]
    pub const fn valid_for(mut self, time: Duration) -> Self {
        self.valid_for = Some(time);
        self
    }

    /// Checks that the credentials can be sent.
    pub(crate) fn checked(self) -> Result<Self, CredentialsError> {
        let Login { user, password } = &self.login;
        let size = user.as_ref().map_or(0, Vec::len).saturating_add(password.len());
        if password.is_empty() {
            Err(CredentialsError::Empty)
        } else if size > limits::LOGIN_SIZE_MAX {
            Err(CredentialsError::TooLong { size })
        } else {
            Ok(self)
        }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("valid_for", &self.valid_for).finish_non_exhaustive()
    }
}

/// The user's function that returns a master's credentials. Its argument is the master's label.
#[derive(Clone)]
pub(crate) struct CredentialsProvider(Arc<Provide>);

type Provide = dyn Fn(&str) -> Result<Credentials, Box<dyn Error + Send + Sync>> + Send + Sync;

impl CredentialsProvider {
    pub(super) fn new(
        provide: impl Fn(&str) -> Result<Credentials, Box<dyn Error + Send + Sync>> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(provide))
    }

    /// Calls the function, which may take any time.
    pub(super) fn ask(&self, label: &str) -> Result<Credentials, CredentialsError> {
        // The panic hook has already reported a panic.
        let ask = || (self.0)(label).map_err(ProviderError::new);
        let answer = caught(ask).ok_or(CredentialsError::Panicked)?;
        answer.map_err(CredentialsError::Failed)?.checked()
    }
}

impl fmt::Debug for CredentialsProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CredentialsProvider")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::error::ConfigError;

    #[test]
    fn an_unusable_answer_of_a_provider_is_named() {
        let ask = |provider: CredentialsProvider| provider.ask("redis://h:6379");
        let long = vec![b'x'; limits::LOGIN_SIZE_MAX];
        let size = long.len() + 1;
        for (provider, error) in [
            (
                CredentialsProvider::new(|_| Err("the vault is sealed".into())),
                CredentialsError::Failed(ProviderError::new("the vault is sealed")),
            ),
            (CredentialsProvider::new(|_| Ok(Credentials::new("").user("me"))), CredentialsError::Empty),
            (
                CredentialsProvider::new(move |_| Ok(Credentials::new(long.clone()).user("u"))),
                CredentialsError::TooLong { size },
            ),
            (
                CredentialsProvider::new(|_| std::panic::resume_unwind(Box::new("s3cret"))),
                CredentialsError::Panicked,
            ),
        ] {
            assert_eq!(ask(provider), Err(error));
        }
        let provider = CredentialsProvider::new(|label| Ok(Credentials::new(label)));
        assert_eq!(ask(provider), Ok(Credentials::new("redis://h:6379")));
        let longest = Credentials::new(vec![b'x'; limits::LOGIN_SIZE_MAX]);
        assert_eq!(longest.clone().checked(), Ok(longest));
    }

    // I142
    #[test]
    fn a_providers_error_is_kept_and_not_shown() {
        let refuse = |_: &str| Err(std::io::Error::other("GET https://vault/?token=s3cret: 403").into());
        let error = CredentialsProvider::new(refuse).ask("redis://h:6379").expect_err("it fails");
        let shown = format!("{error} {error:#} {error:?} {error:#?}");
        assert!(shown.contains("provider failed") && !shown.contains("s3cret"), "{shown}");
        let source = std::error::Error::source(&error).expect("it is kept");
        assert!(source.is::<std::io::Error>() && source.to_string().contains("s3cret"), "{source}");
    }

    // I145
    #[test]
    fn debug_output_shows_no_credentials() {
        let credentials = Credentials::new("s3cret").user("locker").valid_for(Duration::from_secs(60));
        let given = credentials.clone();
        let config = Config::builder().master("redis://h").credentials(move |_| Ok(given.clone()));
        let config = config.build().expect("valid");
        for shown in [format!("{credentials:?}"), format!("{:?}", credentials.login), format!("{config:#?}")]
        {
            assert!(
                !shown.contains("s3cret") && !shown.contains("locker") && !shown.contains("115"),
                "{shown}"
            );
        }
    }

    #[test]
    fn a_login_in_a_url_beside_a_provider_is_refused() {
        let builder = Config::builder().masters(["redis://h", "redis://me:s3cret@h2"]);
        let built = builder.credentials(|_| Err("unused".into())).build();
        assert_eq!(built.err(), Some(ConfigError::TwoLogins { index: 1 }));
    }
}
