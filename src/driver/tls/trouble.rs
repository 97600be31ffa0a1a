//! Failures of a TLS connection, as messages that say what to do.

use std::io;

use rustls::{AlertDescription as Alert, CertificateError, Error};

/// Why a TLS connection failed or ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsTrouble {
    #[error("its certificate has expired; renew it, and check the clocks")]
    Expired,
    #[error("its certificate is not valid yet; check the clocks")]
    NotValidYet,
    #[error("its certificate is for {}, not for {wanted}; set Tls::server_name (--tls-server-name)", names(.presented))]
    WrongName { wanted: String, presented: Vec<String> },
    #[error("its certificate comes from an unknown CA; give the CA by Tls::ca (--tls-ca)")]
    UnknownCa,
    #[error("its certificate is a CA itself; give the server one that this CA has signed")]
    CaAsServer,
    #[error("its certificate is refused: {0}; replace it")]
    BadCertificate(String),
    #[error("it wants a client certificate; give one by Tls::client_certificate (--tls-cert, --tls-key)")]
    WantsCertificate,
    #[error("it refused the client certificate ({}); check its CA, its dates and its revocation", spaced(.0))]
    CertificateRefused(Alert),
    #[error("it refused the TLS handshake ({}); check its TLS versions, ciphers and client certificates", spaced(.0))]
    Refused(Alert),
    #[error("it has no TLS version or cipher in common: {0}; enable TLS 1.2 or 1.3 there")]
    Incompatible(String),
    #[error(
        "it has no TLS cipher or kind of key in common; enable ECDHE with AES-GCM, and use RSA, P-256, P-384 or Ed25519 there"
    )]
    NoCommonCipher,
    #[error("it does not answer in TLS; check the port, or write redis:// for plaintext")]
    NoTls,
    #[error("the server closed the connection in the TLS handshake; check that the port speaks TLS")]
    ClosedInHandshake,
    #[error("{0} in the TLS handshake; check that the port speaks TLS")]
    BrokenInHandshake(io::Error),
    #[error("the connection was cut without an end of TLS (close_notify); check the master and the network")]
    Truncated,
    #[error("TLS failed: {0}; check the master and the network")]
    Other(String),
}

/// Progress of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// The peer has not answered the first message.
    Hello,
    /// Both sides have agreed on a version and a cipher.
    Agreed,
    /// The handshake is done.
    Established,
}

/// Number of a certificate's names to show; there may be hundreds.
const NAME_COUNT_MAX: usize = 4;

/// The names of a certificate. rustls formats them as `DnsName("h")` and `IpAddress(10.0.0.1)`.
fn names(presented: &[String]) -> String {
    let bare = |name: &String| {
        let inside = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).unwrap_or(name);
        inside.trim_matches('"').to_owned()
    };
    let shown: Vec<String> = presented.iter().take(NAME_COUNT_MAX).map(bare).collect();
    match presented.len().saturating_sub(NAME_COUNT_MAX) {
        _ if presented.is_empty() => "no name".to_owned(),
        0 => shown.join(", "),
        rest => format!("{} and {rest} more", shown.join(", ")),
    }
}

/// Describes a rustls error, because some of its own texts are `Debug` forms.
pub(super) fn words(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(error) => certificate_words(error),
        Error::AlertReceived(alert) => format!("the other side reports {}", spaced(alert)),
        Error::PeerIncompatible(why) => spaced(why),
        Error::PeerMisbehaved(why) => format!("it breaks the protocol: {}", spaced(why)),
        Error::InvalidMessage(why) => format!("a message is malformed: {}", spaced(why)),
        Error::InconsistentKeys(why) => format!("key and certificate differ: {}", spaced(why)),
        error => {
            let text = error.to_string();
            if is_for_debugging(&text) { spaced(error) } else { text }
        }
    }
}

fn certificate_words(error: &CertificateError) -> String {
    let fixed = match error {
        CertificateError::BadEncoding => "its encoding is malformed",
        CertificateError::Revoked => "it is revoked",
        CertificateError::BadSignature => "its signature is wrong",
        CertificateError::UnhandledCriticalExtension => "it has an unknown critical extension",
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "it is not meant for this use (extended key usage)"
        }
        error => {
            let debug = format!("{error:?}");
            if debug.contains("SignatureAlgorithm") {
                return "its key or signature is not supported; use RSA, P-256, P-384 or Ed25519".to_owned();
            }
            return spaced(error);
        }
    };
    fixed.to_owned()
}

/// Whether a text looks like a `Debug` form.
fn is_for_debugging(text: &str) -> bool {
    text.contains(['{', '(', '"']) || text.contains("::")
}

/// A variant's name as words, without its fields: `HandshakeFailure` becomes `handshake failure`.
fn spaced(variant: &impl std::fmt::Debug) -> String {
    let name = format!("{variant:?}");
    let name = name.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default();
    let mut words = String::new();
    let mut was_lower = false;
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && was_lower {
            words.push(' ');
        }
        was_lower = letter.is_ascii_lowercase();
        words.push(letter.to_ascii_lowercase());
    }
    words
}

impl From<TlsTrouble> for io::Error {
    fn from(trouble: TlsTrouble) -> Self {
        Self::other(trouble)
    }
}

impl TlsTrouble {
    pub(super) fn new(error: &Error, stage: Stage, has_client_certificate: bool) -> Self {
        match error {
            Error::InvalidCertificate(error) => Self::of_certificate(error),
            Error::AlertReceived(Alert::CertificateRequired) => Self::WantsCertificate,
            // No certificate has been requested at that stage.
            Error::AlertReceived(Alert::HandshakeFailure) if stage == Stage::Hello => Self::NoCommonCipher,
            // TLS 1.2 has no alert for a missing certificate.
            Error::AlertReceived(Alert::HandshakeFailure | Alert::BadCertificate)
                if !has_client_certificate && stage == Stage::Agreed =>
            {
                Self::WantsCertificate
            }
            Error::AlertReceived(
                alert @ (Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateRevoked
                | Alert::CertificateExpired
                | Alert::CertificateUnknown
                | Alert::UnknownCA
                | Alert::AccessDenied
                | Alert::DecryptError),
            ) if has_client_certificate => Self::CertificateRefused(*alert),
            Error::AlertReceived(alert) => Self::Refused(*alert),
            Error::PeerIncompatible(why) => Self::Incompatible(spaced(why)),
            Error::InvalidMessage(_) if stage != Stage::Established => Self::NoTls,
            error => Self::Other(words(error)),
        }
    }

    fn of_certificate(error: &CertificateError) -> Self {
        match error {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => Self::Expired,
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => Self::NotValidYet,
            CertificateError::NotValidForNameContext { expected, presented } => {
                Self::WrongName { wanted: expected.to_str().into_owned(), presented: presented.clone() }
            }
            CertificateError::UnknownIssuer => Self::UnknownCa,
            CertificateError::Other(other) if format!("{other:?}").contains("CaUsedAsEndEntity") => {
                Self::CaAsServer
            }
            error => Self::BadCertificate(certificate_words(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_shown_with_some_of_its_names() {
        let all = ["DnsName(\"a.example\")", "IpAddress(10.0.0.1)", "c", "DnsName(\"d\")", "e", "f"];
        for (count, shown) in [
            (0, "no name"),
            (1, "a.example"),
            (2, "a.example, 10.0.0.1"),
            (4, "a.example, 10.0.0.1, c, d"),
            (5, "a.example, 10.0.0.1, c, d and 1 more"),
            (6, "a.example, 10.0.0.1, c, d and 2 more"),
        ] {
            assert_eq!(names(&all.map(ToOwned::to_owned)[..count]), shown);
        }
    }

    #[test]
    fn no_error_is_shown_as_for_debugging() {
        use rustls::{InconsistentKeys, InvalidMessage, PeerIncompatible, PeerMisbehaved};
        for (error, said) in [
            (Error::AlertReceived(Alert::HandshakeFailure), "the other side reports handshake failure"),
            (Error::AlertReceived(Alert::UnknownCA), "the other side reports unknown ca"),
            (Error::PeerIncompatible(PeerIncompatible::NoCipherSuitesInCommon), "no cipher suites in common"),
            (
                Error::PeerMisbehaved(PeerMisbehaved::TooMuchEarlyDataReceived),
                "it breaks the protocol: too much early data received",
            ),
            (
                Error::InvalidMessage(InvalidMessage::MessageTooLarge),
                "a message is malformed: message too large",
            ),
            (Error::InconsistentKeys(InconsistentKeys::Unknown), "key and certificate differ: unknown"),
            (Error::InvalidCertificate(CertificateError::Revoked), "it is revoked"),
            (
                Error::InvalidCertificate(CertificateError::UnknownRevocationStatus),
                "unknown revocation status",
            ),
            (Error::DecryptError, "cannot decrypt peer's message"),
        ] {
            assert_eq!(words(&error), said);
            let shown = TlsTrouble::new(&error, Stage::Established, true).to_string();
            assert!(!is_for_debugging(&shown.replace("(--", "")) || shown.contains(" ("), "{shown}");
        }
    }

    // I137
    #[test]
    fn a_client_certificate_is_named_only_where_it_counts() {
        let trouble = |alert, stage, has_certificate| {
            TlsTrouble::new(&Error::AlertReceived(alert), stage, has_certificate).to_string()
        };
        let (wants, refused) = ("it wants a client certificate", "it refused the client certificate");
        let other = "it refused the TLS handshake";
        for (alert, stage, without, with) in [
            (Alert::CertificateRequired, Stage::Established, wants, wants),
            (Alert::HandshakeFailure, Stage::Hello, "kind of key in common", "kind of key in common"),
            (Alert::HandshakeFailure, Stage::Agreed, wants, other),
            (Alert::HandshakeFailure, Stage::Established, other, other),
            (Alert::BadCertificate, Stage::Agreed, wants, refused),
            (Alert::BadCertificate, Stage::Established, other, refused),
            (Alert::UnknownCA, Stage::Agreed, other, refused),
            (Alert::UnknownCA, Stage::Established, other, refused),
            (Alert::CertificateExpired, Stage::Established, other, refused),
            (Alert::CertificateRevoked, Stage::Agreed, other, refused),
            (Alert::AccessDenied, Stage::Agreed, other, refused),
            (Alert::ProtocolVersion, Stage::Hello, other, other),
        ] {
            let said = [false, true].map(|has_certificate| trouble(alert, stage, has_certificate));
            assert!(said[0].contains(without) && said[1].contains(with), "{alert:?}, {stage:?}: {said:?}");
        }
    }
}
