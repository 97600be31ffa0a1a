//! How a master is, for people.

use std::sync::Arc;
use std::time::Duration;

/// What is known of one master.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MasterStatus {
    /// Its URL without the login.
    pub name: Arc<str>,
    /// The state of its connection.
    pub state: MasterState,
    /// The version that it reports.
    pub version: Option<Box<str>>,
    /// The identity of the process behind it.
    pub run_id: Option<Box<str>>,
    /// The command by which locks are released there.
    pub release_command: &'static str,
    /// Optional commands that it refused, with its words; the last ones, if one was refused repeatedly.
    pub refused: Vec<(&'static str, Box<str>)>,
    /// What is wrong with it as a master of locks, in words.
    pub warnings: Vec<String>,
}

/// The state of a master's connection.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum MasterState {
    /// Not connected, and why.
    Down(Arc<str>),
    /// Being connected, for the reason before if there was one.
    Connecting,
    /// Its votes count.
    Ready,
    /// It is sent commands, and its votes count after this time.
    Quarantined(Duration),
    /// It owes an answer and is skipped until it gives it.
    Silent,
}
