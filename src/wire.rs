//! One connection's bytes: what waits to be written, what was read, and which replies are owed.
//!
//! Owns the first-in-first-out order that ties replies to requests: an entry is pushed with the bytes of its
//! request and popped by a parsed reply, by nothing else (I14, I15). Knows nothing of locks or of sockets;
//! `T` is whatever the owner wants to find again beside a reply.
//!
//! ```text
//!  request(bytes, tag) ──► outbox ──► send_ready / send_done          (driver writes)
//!                    └───► owed  ─┐
//!  next_reply ◄── (tag, reply) ◄──┴── inbox ◄── recv_space / recv_done (driver reads)
//! ```

#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

mod inbox;
mod queue;

use std::fmt;

use crate::limits;
use crate::resp::{ProtocolError, Reply};
use crate::words::NO_SERVER;
use inbox::Inbox;
use queue::Queue;

/// The bytes of one connection. A new connection gets a cleared one.
pub(crate) struct Wire<T> {
    inbox: Inbox,
    outbox: Queue<u8, { limits::OUTBOX_SIZE_MAX }>,
    owed: Queue<T, { limits::OWED_COUNT_MAX }>,
}

/// No room for another request; nothing was queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full;

/// The peer broke the protocol; the connection must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WireError {
    #[error("{0}; {NO_SERVER}")]
    Protocol(#[from] ProtocolError),
    #[error("a reply without a request; {NO_SERVER}")]
    Unsolicited,
}

impl<T: Copy> fmt::Debug for Wire<T> {
    /// Without the bytes: a password may wait among them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire")
            .field("send_ready_size", &self.send_ready().len())
            .field("owed_count", &self.owed_count())
            .finish_non_exhaustive()
    }
}

impl<T: Copy> Wire<T> {
    pub(crate) const fn new() -> Self {
        Self { inbox: Inbox::new(), outbox: Queue::new(), owed: Queue::new() }
    }

    /// Forgets everything of the connection that ended and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.inbox.clear();
        self.outbox.clear();
        self.owed.clear();
    }

    /// Queues the bytes of requests and the tags under which their replies are handed out, one for each.
    #[inline]
    pub(crate) fn request(&mut self, bytes: &[u8], tags: &[T]) -> Result<(), Full> {
        if !self.owed.reserve(tags.len()) || !self.outbox.reserve(bytes.len()) {
            return Err(Full);
        }
        self.outbox.append(bytes);
        self.owed.append(tags);
        Ok(())
    }

    /// Whether requests of this size and number can surely be queued.
    #[inline]
    pub(crate) fn has_room(&self, size: usize, count: usize) -> bool {
        self.outbox.has_room(size) && self.owed.has_room(count)
    }

    /// How many replies are owed.
    pub(crate) fn owed_count(&self) -> usize {
        self.owed.waiting().len()
    }

    /// Bytes that wait to be written.
    pub(crate) fn send_ready(&self) -> &[u8] {
        self.outbox.waiting()
    }

    /// `size` bytes of [`Wire::send_ready`] were written.
    pub(crate) fn send_done(&mut self, size: usize) {
        self.outbox.consume(size);
    }

    /// Room to read into, never empty.
    pub(crate) fn recv_space(&mut self) -> &mut [u8] {
        self.inbox.space()
    }

    /// `size` bytes were read into [`Wire::recv_space`].
    pub(crate) fn recv_done(&mut self, size: usize) {
        self.inbox.filled(size);
    }

    /// Takes out replies as long as `split` knows them: from a request's tag and what was received, it says
    /// what follows the reply. The rest is for [`Wire::next_reply`].
    #[inline]
    pub(crate) fn take_known(&mut self, mut split: impl for<'a> FnMut(&T, &'a [u8]) -> Option<&'a [u8]>) {
        let (mut tags, mut rest) = (self.owed.waiting().iter(), self.inbox.received());
        while let Some(tag) = tags.as_slice().first()
            && let Some(behind) = split(tag, rest)
        {
            tags.next();
            rest = behind;
        }
        let (owed_count, rest_size) = (tags.len(), rest.len());
        self.owed.keep_last(owed_count);
        self.inbox.keep_last(rest_size);
    }

    /// Breaks the one rule of the queue of owed replies.
    #[cfg(redlatch_mutants)]
    pub(crate) fn forget_owed(&mut self) {
        self.owed.consume(1);
    }

    #[cfg(not(redlatch_mutants))]
    pub(crate) fn forget_owed(&mut self) {}

    /// Whether there are bytes that no reply was taken from.
    #[inline]
    pub(crate) fn has_received(&self) -> bool {
        !self.inbox.received().is_empty()
    }

    /// The next whole reply with the tag of its request; without one if it `is_push`, a reply to nothing.
    pub(crate) fn next_reply_or_push(
        &mut self,
        is_push: impl Fn(&Reply<'_>) -> bool,
    ) -> Result<Option<(Option<T>, Reply<'_>)>, WireError> {
        let Some(reply) = self.inbox.next_reply()? else { return Ok(None) };
        if is_push(&reply) {
            return Ok(Some((None, reply)));
        }
        let tag = *self.owed.waiting().first().ok_or(WireError::Unsolicited)?;
        self.owed.consume(1);
        Ok(Some((Some(tag), reply)))
    }

    /// The next whole reply with the tag of its request.
    pub(crate) fn next_reply(&mut self) -> Result<Option<(T, Reply<'_>)>, WireError> {
        let Some(reply) = self.inbox.next_reply()? else { return Ok(None) };
        let tag = *self.owed.waiting().first().ok_or(WireError::Unsolicited)?;
        self.owed.consume(1);
        Ok(Some((tag, reply)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive(wire: &mut Wire<u8>, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let space = wire.recv_space();
            let size = space.len().min(rest.len());
            space[..size].copy_from_slice(&rest[..size]);
            wire.recv_done(size);
            rest = &rest[size..];
        }
    }

    #[test]
    fn replies_meet_their_requests_in_order() {
        let mut wire = Wire::new();
        for tag in 0..3 {
            wire.request(b"x", &[tag]).expect("room");
        }
        receive(&mut wire, b"+OK\r\n:1");
        assert_eq!(wire.next_reply(), Ok(Some((0, Reply::Simple(b"OK")))));
        assert_eq!(wire.next_reply(), Ok(None));
        assert_eq!(wire.owed_count(), 2, "half a reply pops nothing");
        receive(&mut wire, b"\r\n$-1\r\n");
        assert_eq!(wire.next_reply(), Ok(Some((1, Reply::Integer(1)))));
        assert_eq!(wire.next_reply(), Ok(Some((2, Reply::NullBulk))));
        assert_eq!(wire.owed_count(), 0);
    }

    #[test]
    fn a_push_between_replies_meets_no_request() {
        let mut wire = Wire::new();
        wire.request(b"x", &[7]).expect("room");
        receive(&mut wire, b"*0\r\n:1\r\n*0\r\n");
        let is_push = |reply: &Reply<'_>| matches!(reply, Reply::Array(_));
        assert!(matches!(wire.next_reply_or_push(is_push), Ok(Some((None, Reply::Array(_))))));
        assert_eq!(wire.next_reply_or_push(is_push), Ok(Some((Some(7), Reply::Integer(1)))));
        assert!(matches!(wire.next_reply_or_push(is_push), Ok(Some((None, _)))));
    }

    #[test]
    fn a_reply_to_no_request_is_an_error() {
        let mut wire = Wire::<u8>::new();
        receive(&mut wire, b"-ERR max number of clients reached\r\n");
        assert_eq!(wire.next_reply(), Err(WireError::Unsolicited));
    }

    #[test]
    fn a_full_outbox_queues_neither_bytes_nor_entry() {
        let mut wire = Wire::new();
        let bytes = vec![0; limits::OUTBOX_SIZE_MAX];
        assert_eq!(wire.request(&bytes, &[0]), Ok(()));
        assert_eq!(wire.request(b"x", &[1]), Err(Full));
        assert_eq!((wire.owed_count(), wire.send_ready().len()), (1, limits::OUTBOX_SIZE_MAX));
        wire.send_done(1);
        assert_eq!(wire.request(b"x", &[1]), Ok(()));
    }

    #[test]
    fn clear_forgets_the_connection() {
        let mut wire = Wire::new();
        wire.request(b"x", &[0]).expect("room");
        receive(&mut wire, b"+O");
        wire.clear();
        assert_eq!((wire.owed_count(), wire.send_ready()), (0, b"".as_slice()));
        wire.request(b"x", &[1]).expect("room");
        receive(&mut wire, b":0\r\n");
        assert_eq!(wire.next_reply(), Ok(Some((1, Reply::Integer(0)))));
    }
}
