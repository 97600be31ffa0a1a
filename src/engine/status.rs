//! How a master is, for people.

use std::sync::Arc;
use std::time::Duration;

/// Status of one master, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MasterStatus {
    /// URL of the master, without the login.
    pub name: Arc<str>,
    /// State of its connection.
    pub state: MasterState,
    /// Version that the server reports; `None` before it did.
    pub version: Option<Box<str>>,
    /// Identity of the server's process; `None` before it reported one.
    pub run_id: Option<Box<str>>,
    /// Command that releases locks there: `DELIFEQ`, `DELEX IFEQ` or `EVALSHA`.
    pub release_command: &'static str,
    /// Optional commands that the server refused, each with its latest error text.
    pub refused: Vec<(&'static str, Box<str>)>,
    /// Faults of the server as a master of locks, one sentence each.
    pub warnings: Vec<String>,
}

/// State of the connection to a master.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum MasterState {
    /// Not connected, for this reason.
    Down(Arc<str>),
    /// Being connected, before the first failure.
    Connecting,
    /// Connected: its votes count.
    Ready,
    /// Connected and asked; its votes count after this time.
    Quarantined(Duration),
    /// Owes an answer, and is not asked before it gives it.
    Silent,
}
