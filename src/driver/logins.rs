//! A master's credentials for a connect, from the caller's provider or from a file.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::config::{Config, Credentials, Login};
use crate::error::CredentialsError;
use crate::limits;
use crate::lock::MasterId;

/// Asks for a master's credentials. May block.
pub(super) fn ask(config: &Config, master: MasterId) -> Result<Credentials, CredentialsError> {
    match &config.password_file {
        Some(file) => read_password(file, config.masters[master.index()].login.as_ref()),
        None => config.ask_credentials(master),
    }
}

/// The URL's login; without a password there, its user with the password from the file.
fn read_password(file: &Path, login: Option<&Login>) -> Result<Credentials, CredentialsError> {
    if let Some(login) = login.filter(|login| !login.password.is_empty()) {
        return Ok(Credentials { login: login.clone(), valid_for: None });
    }
    let unusable = |why: String| CredentialsError::PasswordFile { file: file.display().to_string(), why };
    // Reads one byte more than allowed, so that a longer password is refused rather than cut.
    let (mut password, size_max) = (Vec::new(), limits::LOGIN_SIZE_MAX + "\r\n".len() + 1);
    let read = File::open(file).and_then(|it| it.take(size_max as u64).read_to_end(&mut password));
    read.map_err(|error| unusable(error.to_string()))?;
    if password.last() == Some(&b'\n') {
        password.pop();
    }
    if password.last() == Some(&b'\r') {
        password.pop();
    }
    if password.is_empty() {
        return Err(unusable("it is empty".to_owned()));
    }
    let user = login.and_then(|login| login.user.clone());
    Credentials { login: Login { user, password }, valid_for: None }.checked()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::error::ConfigError;

    #[test]
    fn a_password_file_is_for_urls_without_one() {
        let path = std::env::temp_dir().join(format!("redlatch-password-{}", std::process::id()));
        let file = path.to_str().expect("a path of text");
        let list = "redis://a,redis://me@b,redis://you:pw@c";
        let config =
            Config::builder().masters(list.split(',')).password_file(file).build().expect("valid settings");
        let asked = |index| {
            let master = MasterId::new(index).expect("small");
            ask(&config, master).map(|it| (it.login.user, it.login.password))
        };
        let login = |user: Option<&str>, password: &str| Ok((user.map(Into::into), password.into()));
        for (content, password) in [("s3", "s3"), ("s4\n", "s4"), ("s5\r\n", "s5"), (" s6\n\n", " s6\n")] {
            fs::write(&path, content).expect("a directory for temporary files");
            assert_eq!(asked(0), login(None, password));
            assert_eq!(asked(1), login(Some("me"), password));
            assert_eq!(asked(2), login(Some("you"), "pw"), "its own one counts");
        }
        for content in ["", "\n"] {
            fs::write(&path, content).expect("as before");
            let said = asked(0).expect_err("it is empty").to_string();
            assert_eq!(
                said,
                format!("the password file {file} is unusable: it is empty; give one line, readable here")
            );
        }
        fs::write(&path, vec![b'x'; 1 << 20]).expect("as before");
        assert!(matches!(asked(0), Err(CredentialsError::TooLong { .. })));
        fs::remove_file(&path).expect("it is there");
        assert!(matches!(asked(1), Err(CredentialsError::PasswordFile { .. })));
        assert!(asked(2).is_ok());
        let without = Config::builder().masters(list.split(',')).build();
        assert_eq!(without.err(), Some(ConfigError::NoPassword { index: 1 }));
    }
}
