//! Reads certificates and keys, once per client, and sets up rustls.

use std::fs;
use std::io;
use std::sync::Arc;

use rustls::client::danger::ServerCertVerifier;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, Error, RootCertStore};
use rustls_platform_verifier::Verifier;

use super::{TlsMaster, trouble};
use crate::config::{Config, Pem, Tls, server_name};
use crate::driver::ConnectError;
use crate::error::ConfigError;

/// Largest number of sessions kept for each master, for resumption.
const SESSION_COUNT_MAX: usize = 4;

/// Returns the shared part of each master's connections; `None` for a master without TLS. Reads no file if no
/// master uses TLS.
pub(in crate::driver) fn masters(config: &Config) -> Result<Vec<Option<TlsMaster>>, ConnectError> {
    let names: Result<Vec<_>, ConfigError> =
        config.masters.iter().map(|url| server_name(config.tls.as_ref(), &url.address)).collect();
    let names = names?;
    if names.iter().all(Option::is_none) {
        return Ok(names.iter().map(|_| None).collect());
    }
    let shared = client_config(config.tls.as_ref().unwrap_or(&Tls::new()))?;
    let master = |server_name| {
        // A master's tickets are useless to others, even under the same name.
        let mut config = shared.clone();
        config.resumption = Resumption::in_memory_sessions(SESSION_COUNT_MAX);
        TlsMaster { config: Arc::new(config), server_name }
    };
    Ok(names.into_iter().map(|name| name.map(master)).collect())
}

fn client_config(tls: &Tls) -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let verifier = verifier(tls.ca.as_ref(), provider.clone())?;
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| TlsError::Setup { why: error.to_string() })?;
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    let Some(identity) = &tls.identity else { return Ok(builder.with_no_client_auth()) };
    let certificate = Source { what: "the client certificate", pem: &identity.certificate };
    let key = Source { what: "the client key", pem: &identity.key };
    builder.with_client_auth_cert(certificate.certificates()?, key.private_key()?).map_err(
        |error| match error {
            Error::InconsistentKeys(_) => {
                TlsError::KeyMismatch { key: key.place(), certificate: certificate.place() }
            }
            Error::General(_) => key.unusable(SUPPORTED_KEY, &key.why_no_key()),
            error => certificate.unusable("a certificate", &trouble::words(&error)),
        },
    )
}

fn verifier(
    ca: Option<&Pem>,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ServerCertVerifier>, TlsError> {
    let Some(pem) = ca else {
        let verifier = Verifier::new(provider);
        return Ok(Arc::new(verifier.map_err(|error| TlsError::Platform { why: error.to_string() })?));
    };
    let source = Source { what: "the CA", pem };
    let mut roots = RootCertStore::empty();
    for certificate in source.certificates()? {
        roots
            .add(certificate)
            .map_err(|error| source.unusable("a CA certificate", &trouble::words(&error)))?;
    }
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
    Ok(verifier.map_err(|error| source.unusable("a CA certificate", &error))?)
}

/// A certificate or key, with its name for messages.
struct Source<'a> {
    what: &'static str,
    pem: &'a Pem,
}

impl Source<'_> {
    /// All certificates, at least one.
    fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let bytes = self.read()?;
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
        let certificates =
            certificates.map_err(|error| self.unusable("a certificate", &why_no_pem(&error)))?;
        if certificates.is_empty() {
            return Err(self.unusable("a certificate", &form(&bytes).unwrap_or("it holds none")));
        }
        Ok(certificates)
    }

    fn private_key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        let bytes = self.read()?;
        if contains(&bytes, "ENCRYPTED") {
            return Err(self.unusable("a private key without one", &"it has a passphrase"));
        }
        PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| match error {
            pem::Error::NoItemsFound => {
                self.unusable("a private key", &form(&bytes).unwrap_or("it holds none"))
            }
            error => self.unusable("a private key", &why_no_pem(&error)),
        })
    }

    /// Why a key in PEM form is unusable: names its curve if that is unsupported.
    fn why_no_key(&self) -> String {
        let der = self.private_key().map(|key| key.secret_der().to_vec()).unwrap_or_default();
        let curve = CURVES.iter().find(|(id, _)| memchr::memmem::find(&der, id).is_some());
        curve.map_or_else(
            || "its algorithm is not supported".to_owned(),
            |(_, name)| format!("its curve {name} is not supported"),
        )
    }

    #[expect(clippy::disallowed_methods, reason = "reads a file")]
    fn read(&self) -> Result<Vec<u8>, TlsError> {
        match self.pem {
            Pem::Bytes(bytes) => Ok(bytes.clone()),
            Pem::File(path) => fs::read(path).map_err(|source| TlsError::Unreadable {
                what: self.what,
                place: self.place(),
                source,
            }),
        }
    }

    fn place(&self) -> String {
        match self.pem {
            Pem::File(path) => path.display().to_string(),
            Pem::Bytes(_) => "(given as bytes)".to_owned(),
        }
    }

    fn unusable(&self, wanted: &'static str, why: &dyn std::fmt::Display) -> TlsError {
        TlsError::Unusable { what: self.what, place: self.place(), why: why.to_string(), wanted }
    }
}

/// Keys that the crypto provider supports.
const SUPPORTED_KEY: &str = "an RSA, P-256, P-384 or Ed25519 key";

/// Object identifiers, in DER, of curves that the crypto provider does not support.
const CURVES: [(&[u8], &str); 5] = [
    (&[0x2b, 0x81, 0x04, 0x00, 0x23], "P-521"),
    (&[0x2b, 0x81, 0x04, 0x00, 0x21], "P-224"),
    (&[0x2b, 0x81, 0x04, 0x00, 0x0a], "secp256k1"),
    (&[0x2b, 0x24, 0x03, 0x03, 0x02, 0x08, 0x01, 0x01], "of Brainpool"),
    (&[0x2b, 0x65, 0x71], "Ed448"),
];

/// Apparent form of the bytes, if nothing usable was found.
fn form(bytes: &[u8]) -> Option<&'static str> {
    [
        ("BEGIN OPENSSH PRIVATE KEY", "it is in the form of OpenSSH"),
        ("BEGIN CERTIFICATE REQUEST", "it holds a request for a certificate"),
        ("BEGIN CERTIFICATE", "it holds a certificate"),
        ("PRIVATE KEY", "it holds a key"),
        ("BEGIN PUBLIC KEY", "it holds a public key"),
    ]
    .into_iter()
    .find(|(mark, _)| contains(bytes, mark))
    .map(|(_, form)| form)
    .or_else(|| (bytes.first() == Some(&DER_SEQUENCE)).then_some("it is in binary form (DER or PKCS #12)"))
}

/// First byte of a certificate or key in binary form.
const DER_SEQUENCE: u8 = 0x30;

fn contains(bytes: &[u8], text: &str) -> bool {
    memchr::memmem::find(bytes, text.as_bytes()).is_some()
}

/// Why something is not in PEM form. The error's own text may show part of the key.
const fn why_no_pem(error: &pem::Error) -> &'static str {
    match error {
        pem::Error::MissingSectionEnd { .. } => "a section has no END line of its own",
        pem::Error::IllegalSectionStart { .. } => "a BEGIN line is malformed",
        pem::Error::Base64Decode(_) => "its base64 is broken",
        pem::Error::SectionTooLarge => "it is too large",
        _ => "it is not in PEM form",
    }
}

/// Why certificates or a key are unusable. Nothing was connected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{what} {place} cannot be read: {source}; check the path and its permissions")]
    Unreadable {
        /// Purpose of the file, such as `the CA`.
        what: &'static str,
        /// The file.
        place: String,
        /// The error.
        source: io::Error,
    },
    /// A file or the given bytes lack the expected content.
    #[error("{what} {place} is unusable: {why}; give {wanted} in PEM form")]
    Unusable {
        /// Purpose of the file or bytes, such as `the CA`.
        what: &'static str,
        /// The file, or `(given as bytes)`.
        place: String,
        /// Why it is unusable.
        why: String,
        /// Content that it must have instead, such as `a private key`.
        wanted: &'static str,
    },
    /// The private key belongs to another certificate.
    #[error(
        "the client key {key} does not fit the client certificate {certificate}; give the two that belong together"
    )]
    KeyMismatch {
        /// The key's file, or `(given as bytes)`.
        key: String,
        /// The certificate's file, or `(given as bytes)`.
        certificate: String,
    },
    /// The platform offers no trusted CA.
    #[error("the CAs of this system cannot be used: {why}; install them, or give a CA by Tls::ca (--tls-ca)")]
    Platform {
        /// The platform's reason.
        why: String,
    },
    /// The crypto provider refuses the settings.
    #[error("TLS cannot be set up: {why}; check the certificates")]
    Setup {
        /// Its reason.
        why: String,
    },
}
