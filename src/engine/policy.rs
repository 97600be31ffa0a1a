//! The waiting policy: how a refused attempt waits for the next one.

use super::fair::Queuing;

#[derive(Debug)]
pub(super) enum Policy {
    /// At random, and until a message says that the lock was released; in the engine's own queue before that.
    Notified,
    /// In a queue on each master.
    Queue(Box<Queuing>),
}

impl Policy {
    /// The place in the masters' queues.
    #[inline]
    pub(super) const fn queuing(&self) -> Option<&Queuing> {
        match self {
            Self::Notified => None,
            Self::Queue(queuing) => Some(queuing),
        }
    }

    #[inline]
    pub(super) const fn queuing_mut(&mut self) -> Option<&mut Queuing> {
        match self {
            Self::Notified => None,
            Self::Queue(queuing) => Some(queuing),
        }
    }

    /// Gives up the place in the masters' queues.
    #[inline]
    pub(super) fn take_queuing(&mut self) -> Option<Box<Queuing>> {
        match std::mem::replace(self, Self::Notified) {
            Self::Notified => None,
            Self::Queue(queuing) => Some(queuing),
        }
    }
}
