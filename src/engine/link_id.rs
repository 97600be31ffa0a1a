//! Names of connections, and what is to be done about them.

use crate::limits;
use crate::lock::MasterId;

/// Name of a connection. Each master has one for commands, and a second one while callers wait for locks.
///
/// It is exhaustive: an event loop has to serve each kind of connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LinkId {
    /// The connection that acquires and releases locks; a [`MasterId`] alone names it, too.
    Commands(MasterId),
    /// The connection that brings release notifications. It takes no part in any vote.
    Subscription(MasterId),
}

impl LinkId {
    /// Largest number of connections of one engine: 64. Each [`LinkId::index`] is below it.
    pub const COUNT_MAX: usize = 2 * limits::MASTER_COUNT_MAX;

    /// Returns the master that the connection leads to.
    #[must_use]
    pub const fn master(self) -> MasterId {
        match self {
            Self::Commands(master) | Self::Subscription(master) => master,
        }
    }

    /// Returns a small number that no other connection of the engine has.
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Self::Commands(master) => master.index(),
            Self::Subscription(master) => limits::MASTER_COUNT_MAX + master.index(),
        }
    }

    /// Returns the connection with this [`LinkId::index`].
    #[must_use]
    pub fn from_index(index: usize) -> Option<Self> {
        match index.checked_sub(limits::MASTER_COUNT_MAX) {
            None => MasterId::new(index).map(Self::Commands),
            Some(index) => MasterId::new(index).map(Self::Subscription),
        }
    }
}

impl From<MasterId> for LinkId {
    fn from(master: MasterId) -> Self {
        Self::Commands(master)
    }
}

/// Task of the event loop for one connection, or for one master.
///
/// It is exhaustive: an event loop has to carry out each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkRequest {
    /// Open it, and report the result.
    Connect(LinkId),
    /// Close it, or end the attempt to open it; report nothing about it any more.
    Close(LinkId),
    /// Ask the provider of the configuration for the credentials of this master, by
    /// [`Config::ask_credentials`](crate::Config::ask_credentials) on another thread, and hand the answer to
    /// [`Engine::handle_credentials`](super::Engine::handle_credentials). It comes only with a provider, and
    /// not again before that answer.
    Credentials(MasterId),
}

/// Reason of a deadline that [`Engine::next_timeout`](super::Engine::next_timeout) returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// A master is due to be connected, gives no answer in its handshake, or has been silent for too long; or
    /// its credentials are to be renewed.
    Link(MasterId),
    /// An operation's votes are due, or its next attempt.
    Operation,
    /// A release is due, or to be sent again, or its lock has expired.
    Claim,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_index_names_one_connection() {
        for index in 0..LinkId::COUNT_MAX {
            assert_eq!(LinkId::from_index(index).map(LinkId::index), Some(index));
        }
        assert_eq!(LinkId::from_index(LinkId::COUNT_MAX), None);
    }
}
