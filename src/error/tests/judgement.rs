//! Complete errors: texts, class and source.

use super::*;
#[cfg(feature = "tls")]
use redlatch_support::assert_golden;

/// Class and source of an error.
pub(super) trait Judged {
    fn judgement(&self) -> String;
}

/// Other messages have neither.
pub(super) trait Unjudged {
    fn judgement(&self) -> String {
        String::new()
    }
}

impl<T> Unjudged for &T {}

macro_rules! judged {
    ($($type:ty),* $(,)?) => {$(
        impl Judged for $type {
            fn judgement(&self) -> String {
                let marks = [(self.is_contended(), "contended"), (self.is_outage(), "outage"), (self.is_retryable(), "retryable")];
                let marks: String = marks.iter().filter(|(is, _)| *is).map(|(_, mark)| format!(", {mark}")).collect();
                let source = std::error::Error::source(self).map(|source| format!("; source: {source}"));
                format!("{:?}{marks}: {}{}", self.class(), self.public_message(), source.unwrap_or_default())
            }
        }
    )*};
}

judged!(
    AcquireError,
    ExtendError,
    ReleaseError,
    LeaveError,
    InspectError,
    ForceUnlockError,
    SubmitError,
    LockReentrantError,
    RunError,
    AdoptError,
    ReleaseHandleError,
    ForeignHandle,
    SetError<AcquireError>,
    SetError<ExtendError>,
    SetError<ReleaseError>,
    SetError<LeaveError>,
);

macro_rules! sources {
    ($($type:ty),*) => {$(
        impl Judged for $type {
            fn judgement(&self) -> String {
                std::error::Error::source(self).map_or_else(String::new, |source| format!("source: {source}"))
            }
        }
    )*};
}

sources!(ConfigError, ConnectError, CredentialsError, InputError, ParseHandleError);

/// Only with TLS: without it some messages are missing.
#[cfg(feature = "tls")]
#[test]
fn each_error_matches_its_golden_file() {
    let mut page = String::new();
    for Sample { texts: [line, lines], judgement, .. } in samples() {
        page += &line;
        page.push('\n');
        if lines != line {
            page += &format!("    {}\n", lines.replace('\n', "\n    "));
        }
        if !judgement.is_empty() {
            page += &format!("    [{judgement}]\n");
        }
    }
    assert_golden("errors", &page);
}
