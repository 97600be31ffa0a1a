//! TLS settings. The driver reads the files that they name.

use std::fmt;
use std::path::PathBuf;

use rustls::pki_types::ServerName;

use super::{Address, MasterUrl};
use crate::error::ConfigError;

/// TLS settings of a client, for all its `rediss://` masters.
///
/// By default the server's certificate must come from a CA that the platform trusts, and must name the URL's
/// host. The client uses TLS 1.2 or 1.3, resumes sessions, and never falls back to plaintext.
///
/// The client reads the files when it is opened. New files need a new client.
///
/// ```
/// use redlatch::{Config, Pem, Tls};
///
/// let tls = Tls::new()
///     .ca(Pem::File("/etc/redlatch/ca.pem".into()))
///     .client_certificate(
///         Pem::File("/etc/redlatch/client.pem".into()),
///         Pem::File("/etc/redlatch/client.key".into()),
///     )
///     .server_name("locks.internal");
/// let config = Config::builder().master("rediss://10.0.0.1").tls(tls).build()?;
/// # Ok::<(), redlatch::error::ConfigError>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Tls {
    pub(crate) ca: Option<Pem>,
    pub(crate) identity: Option<ClientCertificate>,
    server_name: Option<String>,
}

#[derive(Debug, Clone)]
pub(crate) struct ClientCertificate {
    pub(crate) certificate: Pem,
    pub(crate) key: Pem,
}

/// Certificates or a key in PEM form. `Debug` shows the path, and never the bytes.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pem {
    /// The path of a file.
    File(PathBuf),
    /// The PEM text.
    Bytes(Vec<u8>),
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Bytes(_) => f.debug_tuple("Bytes").finish_non_exhaustive(),
        }
    }
}

impl Tls {
    /// Returns the default settings.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets one or more CA certificates, which alone are trusted in place of the platform's.
    #[must_use]
    pub fn ca(mut self, ca: Pem) -> Self {
        self.ca = Some(ca);
        self
    }

    /// Sets the certificate that the client presents, and its private key. The certificate comes first;
    /// certificates of intermediate CAs may follow.
    #[must_use]
    pub fn client_certificate(mut self, certificate: Pem, key: Pem) -> Self {
        self.identity = Some(ClientCertificate { certificate, key });
        self
    }

    /// Sets the name that each master's certificate must contain in place of the URL's host: a DNS name or an
    /// IP address.
    #[must_use]
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }
}

/// The name that a master's certificate must contain; `None` for a master without TLS.
pub(crate) fn server_name(
    tls: Option<&Tls>,
    address: &Address,
) -> Result<Option<ServerName<'static>>, ConfigError> {
    let Address::Tls { host, .. } = address else { return Ok(None) };
    // The zone of an address is only a local name of a network.
    let host = host.split('%').next().unwrap_or_default();
    let name = tls.and_then(|tls| tls.server_name.as_deref()).unwrap_or(host);
    match ServerName::try_from(name.to_owned()) {
        Ok(name) => Ok(Some(name)),
        Err(_) => Err(ConfigError::TlsServerName { name: name.to_owned() }),
    }
}

/// Checks the settings against the masters' URLs.
pub(super) fn check(tls: Option<&Tls>, masters: &[MasterUrl]) -> Result<(), ConfigError> {
    let mut has_tls = false;
    for MasterUrl { address, .. } in masters {
        has_tls |= server_name(tls, address)?.is_some();
    }
    if tls.is_some() && !has_tls { Err(ConfigError::TlsUnused) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    // I145
    #[test]
    fn debug_output_shows_no_key() {
        let bytes = || Pem::Bytes(b"s3cret".to_vec());
        let tls = Tls::new().ca(Pem::File("/etc/ca.pem".into())).client_certificate(bytes(), bytes());
        let config = Config::builder().master("rediss://h").tls(tls.clone()).build().expect("valid");
        for shown in [format!("{tls:?}"), format!("{tls:#?}"), format!("{config:?}")] {
            assert!(shown.contains("/etc/ca.pem"), "{shown}");
            assert!(!shown.contains("s3cret") && !shown.contains("115"), "{shown}");
        }
    }

    // I136
    #[test]
    fn tls_settings_without_a_tls_master_are_refused() {
        let plain = Config::builder().masters(["redis://h", "unix:///run/x"]).tls(Tls::new());
        assert_eq!(plain.clone().build().err(), Some(ConfigError::TlsUnused));
        assert!(plain.master("rediss://h2").build().is_ok(), "masters may change over one by one");
        let first = Config::builder().masters(["rediss://h", "redis://h2"]).tls(Tls::new());
        assert!(first.build().is_ok(), "in any order");
    }

    #[test]
    fn server_names_are_hosts_or_as_given() {
        let name = |url: &str, given: Option<&str>| {
            let tls = given.map(|name| Tls::new().server_name(name));
            let url: MasterUrl = url.parse().expect("valid");
            server_name(tls.as_ref(), &url.address).map(|name| name.map(|name| name.to_str().into_owned()))
        };
        let some = |name: &str| Ok(Some(name.to_owned()));
        assert_eq!(name("rediss://h.example:1", None), some("h.example"));
        assert_eq!(name("rediss://[::1]", None), some("::1"));
        assert_eq!(name("rediss://[fe80::1%25eth0]", None), some("fe80::1"));
        assert_eq!(name("rediss://10.0.0.1", Some("h")), some("h"));
        assert_eq!(name("rediss://h", Some("10.0.0.1")), some("10.0.0.1"));
        assert_eq!(name("redis://h", Some("x")), Ok(None));
        for (url, given) in [("rediss://-", None), ("rediss://h", Some("")), ("rediss://h", Some("a b"))] {
            let bad = given.unwrap_or("-").to_owned();
            assert_eq!(name(url, given), Err(ConfigError::TlsServerName { name: bad }));
        }
    }

    #[test]
    fn one_port_with_and_without_tls_is_one_master() {
        let twice = Config::builder().masters(["redis://h", "rediss://h"]).build();
        assert!(matches!(twice, Err(ConfigError::SameMaster { index: 1, other: 0, .. })), "{twice:?}");
    }
}
