//! Texts of warnings about a master, and of the reasons why it is not connected.

use std::time::Duration;

use crate::error::fleet::{FleetDifference, Unusable};
use crate::error::{CredentialsError, advice};
use crate::limits;
use crate::words::{self, NO_SERVER, Rounded};

/// Fault of a server as a lock master. `{}` is one sentence with advice.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Warning {
    /// The process has changed.
    #[error("it restarted or was replaced {}, last {} ago; find out why", times(*count), Rounded(*ago))]
    Changed {
        /// How often.
        count: u32,
        /// Time since the last change.
        ago: Duration,
    },
    /// It may evict locks.
    #[error("its maxmemory-policy is {policy}, which may evict locks; set noeviction")]
    Evicting {
        /// Its `maxmemory-policy`.
        policy: Box<str>,
    },
    /// It pushes no messages for this login, so waiters may learn late that they have a lock.
    #[error("it sends no messages for this login, so waiters may learn late of a lock: {}", with_advice(.refusal))]
    NotPublishing {
        /// Its error reply.
        refusal: Box<str>,
    },
    /// It parks no waiters, so this client's waiters may retry at random times there.
    #[error("it parks no waiters, so they may retry at random: {}", with_advice(.refusal))]
    NotParking {
        /// Its error reply.
        refusal: Box<str>,
    },
    /// It runs no scripts and has no native command that releases, so a lock stays there until its TTL ends.
    #[error("it runs no scripts, so a lock stays there until its TTL ends: {}", with_advice(.refusal))]
    NoScripts {
        /// Its error reply.
        refusal: Box<str>,
    },
    /// Its open connection keeps old credentials, which may expire.
    #[error("its connections keep their old credentials: {error}")]
    CredentialsFailed {
        /// Why there are no newer credentials.
        error: CredentialsError,
    },
    /// It does not report facts on which its vote depends. Without a `run_id`, each reconnect counts as a
    /// restart.
    #[error(
        "it does not report its {fields}{}; {}",
        if .fields.contains("run_id") { ", so each reconnect counts as a restart" } else { "" },
        unreported(.info_refusal.as_deref())
    )]
    Unreported {
        /// Names of the missing fields of `INFO`.
        fields: Box<str>,
        /// Its error reply to `INFO`.
        info_refusal: Option<Box<str>>,
    },
    /// Its record of the fleet's settings differs from this client.
    #[error("{difference}")]
    FleetDiffers {
        /// The first difference, with both values.
        difference: FleetDifference,
    },
    /// Its record of the fleet's settings is unusable, so this client compares nothing there.
    #[error("{why}")]
    NoFleetRecord {
        /// The reason.
        why: Unusable,
    },
}

/// Why a connection ended or could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Trouble<'a> {
    #[error("still connecting")]
    UnderWay,
    #[error("no connection within {}; check name service, address and firewall", Rounded(*.0))]
    NoConnection(Duration),
    #[error("no connection within {}; check name service, address, firewall, and that the port speaks TLS", Rounded(*.0))]
    NoTlsConnection(Duration),
    #[error("no answer to the handshake within {}; check the master", Rounded(*.0))]
    NoHandshake(Duration),
    #[error("no answer within {}; check the master", Rounded(*.0))]
    NoAnswer(Duration),
    #[error("not finished within {}; give more time, or ask for less", Rounded(*.0))]
    NotFinished(Duration),
    #[error("its name was not resolved within {}; check the name and the name server", Rounded(*.0))]
    NoAddress(Duration),
    #[error(
        "its replies are larger than {size} bytes; check its keys, and that it is a Redis or Valkey server"
    )]
    RepliesTooLarge { size: usize },
    #[error("its replies have more than {} values; {NO_SERVER}", limits::PROBE_VALUE_COUNT_MAX)]
    RepliesTooMany,
    #[error("no answer for {}; check the master", Rounded(limits::SILENCE_MAX))]
    Silent,
    #[error("{LOGIN_REFUSED}: {}", with_advice(.refusal))]
    NoLogin { refusal: &'a str },
    #[error("{step} was refused: {}", with_advice(.refusal))]
    StepRefused { step: &'static str, refusal: &'a str },
    #[error("its answer to {step} is no reply to that; {NO_SERVER}")]
    WrongStep { step: &'static str },
    #[error("its reply does not fit the request; {NO_SERVER}")]
    WrongShape,
    #[error("{why}, after \"{refusal}\"{}", advice_behind(.refusal))]
    ClosedAfter { why: &'a str, refusal: &'a str },
    #[error("{LISTED_TWICE} {other} (run_id {run_id}); list each server once")]
    ListedTwice { other: &'a str, run_id: &'a str },
    #[error("it is a replica; list its master instead")]
    Replica,
    #[error("it was a replica since it was asked last, so it may have lost locks")]
    Promoted,
    #[error("it refused a command: {}", with_advice(.refusal))]
    Elsewhere { refusal: &'a str },
    #[error("its maxmemory-policy is {policy}, which strict mode refuses; set noeviction")]
    StrictEvicting { policy: &'a str },
    #[error("it does not report its {fields}, which strict mode needs; {}", unreported(*.info_refusal))]
    StrictUnreported { fields: String, info_refusal: Option<&'a str> },
    #[error("{difference}: strict mode refuses a master with other declared settings")]
    StrictDeclared { difference: &'a FleetDifference },
}

/// Whether the reason lies in this client's settings, so that waiting does not help.
pub(super) fn is_of_settings(why: &str) -> bool {
    [LOGIN_REFUSED, LISTED_TWICE].iter().any(|beginning| why.starts_with(beginning))
}

const LOGIN_REFUSED: &str = "the login was refused";
const LISTED_TWICE: &str = "it is the same server as";

fn times(count: u32) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}

fn with_advice(refusal: &str) -> String {
    format!("{refusal}{}", advice_behind(refusal))
}

fn advice_behind(refusal: &str) -> String {
    advice(refusal).map(|advice| format!(" ({advice})")).unwrap_or_default()
}

/// Advice for a server that does not report a field, from its refusal of `INFO`.
fn unreported(info_refusal: Option<&str>) -> String {
    info_refusal.map_or_else(
        || "use a Redis or Valkey server".to_owned(),
        |words| format!("grant +info (INFO was refused: {words})"),
    )
}

/// Why no connection was opened in time.
pub(crate) fn no_connection(limit: Duration, is_tls: bool, awaits_login: bool) -> String {
    match (awaits_login, is_tls) {
        (true, _) => CredentialsError::NoAnswer { limit }.to_string(),
        (false, true) => Trouble::NoTlsConnection(limit).to_string(),
        (false, false) => Trouble::NoConnection(limit).to_string(),
    }
}

/// Reason for a connection that the server ended.
pub(crate) const CLOSED: &str = "the server closed the connection";

/// Whether a server is at its connection limit. It says so in place of its first reply.
pub(crate) fn is_full(refusal: &str) -> bool {
    refusal.starts_with("ERR max number of clients")
}

/// Why a mandatory step of the handshake was refused.
pub(crate) fn step_refused(step: &'static str, refusal: &[u8]) -> String {
    let refusal = &words::error_text(refusal);
    let is_login = step == "AUTH" || refusal.starts_with("NOAUTH");
    if is_full(refusal) {
        return Trouble::ClosedAfter { why: CLOSED, refusal }.to_string();
    }
    let why = if is_login { Trouble::NoLogin { refusal } } else { Trouble::StepRefused { step, refusal } };
    why.to_string()
}
