//! One connection's bytes: the outbox, the inbox, and the queue of owed replies.
//!
//! Owns the first-in-first-out order that matches replies to requests: an entry is pushed with its request's
//! bytes, and popped only by a parsed reply (I14, I15). Locks and sockets are unknown here. `T` is whatever
//! the owner wants to get back with a reply.
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

use std::fmt;

use crate::limits;
use crate::resp::{self, Decoded, ProtocolError, Reply};
use crate::words::NO_SERVER;

/// The bytes of one connection; cleared for a new connection.
pub(crate) struct Wire<T> {
    inbox: Inbox,
    outbox: Queue<u8, { limits::OUTBOX_SIZE_MAX }>,
    owed: Queue<T, { limits::OWED_COUNT_MAX }>,
}

/// There is no room for a request; nothing was queued.
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
    /// Omits the bytes, which may contain a password.
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

    /// Forgets everything about the ended connection, but keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.inbox.clear();
        self.outbox.clear();
        self.owed.clear();
    }

    /// Queues requests, with one tag for each reply.
    #[inline]
    pub(crate) fn request(&mut self, bytes: &[u8], tags: &[T]) -> Result<(), Full> {
        if !self.owed.reserve(tags.len()) || !self.outbox.reserve(bytes.len()) {
            return Err(Full);
        }
        self.outbox.append(bytes);
        self.owed.append(tags);
        Ok(())
    }

    /// Whether requests of this size and number are sure to fit.
    #[inline]
    pub(crate) fn has_room(&self, size: usize, count: usize) -> bool {
        self.outbox.has_room(size) && self.owed.has_room(count)
    }

    /// Whether half the outbox, and half the queue of owed replies, is free.
    pub(crate) fn is_half_empty(&self) -> bool {
        self.send_ready().len() <= limits::OUTBOX_SIZE_MAX / 2
            && self.owed_count() <= limits::OWED_COUNT_MAX / 2
    }

    pub(crate) fn owed_count(&self) -> usize {
        self.owed.waiting().len()
    }

    pub(crate) fn send_ready(&self) -> &[u8] {
        self.outbox.waiting()
    }

    /// Notes that `size` bytes of [`Wire::send_ready`] were written.
    pub(crate) fn send_done(&mut self, size: usize) {
        self.outbox.consume(size);
    }

    /// Buffer to read into, never empty.
    pub(crate) fn recv_space(&mut self) -> &mut [u8] {
        self.inbox.space()
    }

    /// Notes that `size` bytes were read into [`Wire::recv_space`].
    pub(crate) fn recv_done(&mut self, size: usize) {
        self.inbox.filled(size);
    }

    /// Takes replies while `split` recognizes them: given a request's tag and the received bytes, `split`
    /// returns the bytes after the reply. [`Wire::next_reply_or_push`] takes the others.
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

    /// Whether the inbox holds bytes.
    #[inline]
    pub(crate) fn has_received(&self) -> bool {
        !self.inbox.received().is_empty()
    }

    /// The next complete reply with its request's tag; without a tag if it `is_push`.
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
}

/// Received bytes that are not yet decoded; decoding borrows them in place.
///
/// ```text
/// bytes: [ decoded | received | free to read into ]
///                  ^ head     ^ tail               head <= tail <= bytes.len()
/// ```
///
/// Grows only when received bytes fill it, so a header that announces a large reply reserves nothing (I17).
#[derive(Debug)]
struct Inbox {
    bytes: Vec<u8>,
    head: usize,
    tail: usize,
    /// Number of received bytes below which decoding cannot succeed.
    needed: usize,
}

impl Inbox {
    const fn new() -> Self {
        Self { bytes: Vec::new(), head: 0, tail: 0, needed: 0 }
    }

    fn clear(&mut self) {
        (self.head, self.tail, self.needed) = (0, 0, 0);
    }

    /// Buffer to read into: at least half of [`limits::READ_SIZE`] bytes.
    #[inline]
    fn space(&mut self) -> &mut [u8] {
        if self.head == self.tail {
            (self.head, self.tail) = (0, 0);
        }
        if self.bytes.len().saturating_sub(self.tail) < limits::READ_SIZE / 2 {
            self.make_space();
        }
        self.bytes.get_mut(self.tail..).unwrap_or_default()
    }

    #[cold]
    fn make_space(&mut self) {
        self.bytes.copy_within(self.head..self.tail, 0);
        self.tail = self.tail.saturating_sub(self.head);
        self.head = 0;
        if self.bytes.len().saturating_sub(self.tail) < limits::READ_SIZE / 2 {
            let size = self.tail.saturating_mul(2).max(limits::READ_SIZE);
            self.bytes.resize(size, 0);
        }
    }

    fn filled(&mut self, size: usize) {
        self.tail = self.tail.saturating_add(size).min(self.bytes.len());
    }

    /// Received bytes not yet taken.
    #[inline]
    fn received(&self) -> &[u8] {
        assert!(self.head <= self.tail && self.tail <= self.bytes.len(), "the cursors are out of order");
        self.bytes.get(self.head..self.tail).unwrap_or_default()
    }

    /// Takes all but the last `size` bytes; the taken bytes are complete replies.
    #[inline]
    fn keep_last(&mut self, size: usize) {
        let head = self.tail.saturating_sub(size);
        if self.head != head {
            (self.head, self.needed) = (head, 0);
        }
    }

    /// Decodes and takes the next reply; `None` if it is incomplete.
    fn next_reply(&mut self) -> Result<Option<Reply<'_>>, ProtocolError> {
        let received = self.bytes.get(self.head..self.tail).unwrap_or_default();
        if received.is_empty() || received.len() < self.needed {
            return Ok(None);
        }
        match resp::decode(received)? {
            Decoded::Complete { reply, size } => {
                self.head = self.head.saturating_add(size);
                self.needed = 0;
                Ok(Some(reply))
            }
            Decoded::Partial { size_min } => {
                self.needed = size_min;
                Ok(None)
            }
        }
    }
}

/// A first-in-first-out queue of bytes to write or of owed replies. Its at most `COUNT_MAX` items are
/// contiguous, so that all of them can be viewed, or written, at once.
///
/// ```text
/// items: [ taken | waiting ........ ]
///                ^ head             ^ items.len()        head <= items.len() <= COUNT_MAX
/// ```
#[derive(Debug)]
struct Queue<T, const COUNT_MAX: usize> {
    items: Vec<T>,
    head: usize,
}

impl<T: Copy, const COUNT_MAX: usize> Queue<T, COUNT_MAX> {
    const fn new() -> Self {
        Self { items: Vec::new(), head: 0 }
    }

    #[inline]
    fn clear(&mut self) {
        self.items.clear();
        self.head = 0;
    }

    /// Makes room for `count` more items. False if they would exceed the limit.
    #[inline]
    fn reserve(&mut self, count: usize) -> bool {
        self.items.spare_capacity_mut().len() >= count || self.make_room(count)
    }

    /// Drops taken items once they outnumber the waiting items, so that each item moves at most once on
    /// average. The memory never exceeds the limit.
    #[cold]
    fn make_room(&mut self, count: usize) -> bool {
        let waiting = self.waiting().len();
        if waiting.saturating_add(count) > COUNT_MAX {
            return false;
        }
        if self.head > waiting || self.items.len().saturating_add(count) > COUNT_MAX {
            self.items.drain(..self.head);
            self.head = 0;
        }
        let needed = self.items.len().saturating_add(count);
        if needed > self.items.capacity() {
            let doubled = self.items.capacity().saturating_mul(2).max(256).min(COUNT_MAX);
            self.items.reserve_exact(doubled.max(needed).saturating_sub(self.items.len()));
        }
        true
    }

    /// Whether `count` more items are sure to fit; taken items may still count.
    #[inline]
    fn has_room(&self, count: usize) -> bool {
        self.items.len() <= COUNT_MAX.saturating_sub(count)
    }

    /// Adds items for which [`Queue::reserve`] has made room.
    #[inline]
    fn append(&mut self, items: &[T]) {
        self.items.extend_from_slice(items);
    }

    /// The waiting items, oldest first.
    #[inline]
    fn waiting(&self) -> &[T] {
        assert!(self.head <= self.items.len(), "the head is beyond the end");
        self.items.get(self.head..).unwrap_or_default()
    }

    /// Takes the `count` oldest items.
    #[inline]
    fn consume(&mut self, count: usize) {
        self.keep_last(self.waiting().len().saturating_sub(count));
    }

    /// Takes all but the `count` newest items.
    #[inline]
    fn keep_last(&mut self, count: usize) {
        self.head = self.items.len().saturating_sub(count);
        if count == 0 {
            self.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl<T: Copy> Wire<T> {
        /// The next complete reply, with its request's tag.
        fn next_reply(&mut self) -> Result<Option<(T, Reply<'_>)>, WireError> {
            let next = self.next_reply_or_push(|_| false)?;
            Ok(next.map(|(tag, reply)| (tag.expect("it is no push"), reply)))
        }
    }

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

    // I14, I15
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
    fn room_is_what_the_limits_leave() {
        let (size_max, count_max) = (limits::OUTBOX_SIZE_MAX, limits::OWED_COUNT_MAX);
        for (size, count) in
            [(0, 0), (1, 1), (size_max / 2, 1), (1, count_max / 2), (size_max - 1, count_max - 1)]
        {
            let mut wire = Wire::new();
            wire.request(&vec![0; size], &vec![0; count]).expect("room");
            let (size_left, count_left) = (size_max - size, count_max - count);
            assert!(wire.has_room(size_left, count_left) && wire.has_room(0, 0), "{size} {count}");
            if size > 0 {
                assert!(
                    !wire.has_room(size_left + 1, 0) && !wire.has_room(0, count_left + 1),
                    "{size} {count}"
                );
            }
            let is_half_empty = size <= size_max / 2 && count <= count_max / 2;
            assert_eq!(wire.is_half_empty(), is_half_empty, "{size} {count}");
            assert_eq!(wire.request(b"", &vec![0; count_left + 1]), Err(Full));
            assert_eq!(wire.request(&vec![0; size_left + 1], &[]), Err(Full));
            assert_eq!((wire.send_ready().len(), wire.owed_count()), (size, count), "nothing was queued");
            wire.send_done(size);
            receive(&mut wire, &b":1\r\n".repeat(count.min(9)));
            while wire.next_reply().expect("RESP").is_some() {}
            assert!(
                wire.has_room(size_max, if count <= 9 { count_max } else { 0 }),
                "{size} {count}: all is done"
            );
        }
        for (size, count) in [(size_max / 2 + 1, 0), (0, count_max / 2 + 1)] {
            let mut wire = Wire::new();
            wire.request(&vec![0; size], &vec![0; count]).expect("room");
            assert!(!wire.is_half_empty());
        }
    }

    #[test]
    fn known_replies_are_consumed_until_another_comes() {
        // Known replies, received bytes, and the tags and bytes that remain.
        for (known, received, owed_count, rest) in [
            (3, &b""[..], 3, &b""[..]),
            (3, b"+", 3, b"+"),
            (3, b"++", 3, b"++"),
            (3, b"+OK", 3, b"+OK"),
            (3, b"+.", 2, b""),
            (3, b"+.+.+", 1, b"+"),
            (3, b"+.+.+.", 0, b""),
            (3, b"+.+.+.+.", 0, b"+."),
            (1, b"+.+.+.", 2, b"+.+."),
            (3, b"+.-.+.", 2, b"-.+."),
        ] {
            let mut wire = Wire::new();
            wire.request(b"", &[1, 2, 3]).expect("room");
            receive(&mut wire, received);
            wire.take_known(|tag, bytes| if *tag <= known { bytes.strip_prefix(b"+.") } else { None });
            assert_eq!(
                (wire.owed_count(), wire.inbox.received()),
                (owed_count, rest),
                "{known} {received:?}"
            );
            assert_eq!(wire.has_received(), !rest.is_empty());
        }
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

    fn fill(inbox: &mut Inbox, bytes: &[u8]) {
        let space = inbox.space();
        space[..bytes.len()].copy_from_slice(bytes);
        inbox.filled(bytes.len());
    }

    #[test]
    fn a_promised_bulk_reserves_nothing_ahead_of_its_bytes() {
        let mut inbox = Inbox::new();
        fill(&mut inbox, b"$1000000\r\nabc");
        assert_eq!(inbox.next_reply(), Ok(None));
        assert_eq!(inbox.space().len() + inbox.tail, limits::READ_SIZE);
    }

    #[test]
    fn the_largest_reply_fits_and_memory_stays_bounded() {
        let (mut inbox, mut frame) = (Inbox::new(), Vec::new());
        resp::encode_bulk(&mut frame, &vec![7; limits::REPLY_SIZE_MAX - 16]);
        for _ in 0..3 {
            for piece in frame.chunks(5000) {
                assert_eq!(inbox.next_reply(), Ok(None));
                fill(&mut inbox, piece);
            }
            assert!(matches!(inbox.next_reply(), Ok(Some(Reply::Bulk(body))) if body.len() > 1_000_000));
        }
        assert!(inbox.bytes.len() <= 2 * (limits::REPLY_SIZE_MAX + limits::READ_SIZE));
    }

    #[test]
    fn replies_of_any_size_come_in_any_portions() {
        for portion in [1, 7, 5000, limits::READ_SIZE] {
            let (mut wire, mut sent, mut count) = (Wire::new(), Vec::new(), 0);
            // A large reply before small ones; reads end inside them.
            for (index, size) in
                [3, 40_000, 1, 20_000, 0, 7, 100_000, 2].into_iter().cycle().take(24).enumerate()
            {
                let byte = u8::try_from(index).expect("small");
                resp::encode_bulk(&mut sent, &vec![byte; size]);
                wire.request(b"x", &[byte]).expect("room");
            }
            for piece in sent.chunks(portion) {
                receive(&mut wire, piece);
                while let Some((tag, reply)) = wire.next_reply().expect("RESP") {
                    let Reply::Bulk(body) = reply else { panic!("{reply:?}") };
                    assert!(tag == count && body.iter().all(|byte| *byte == tag), "{portion}: {tag}");
                    count += 1;
                }
            }
            assert_eq!((count, wire.owed_count(), wire.has_received()), (24, 0, false), "{portion}");
        }
    }

    #[test]
    fn items_leave_in_order_in_any_portions() {
        let (mut queue, mut seen) = (Queue::<u8, 1000>::new(), Vec::new());
        for round in 0..1000_usize {
            let byte = u8::try_from(round % 251).expect("below 251");
            assert!(queue.reserve(round % 7));
            queue.append(&vec![byte; round % 7]);
            let size = (round * 3 % 8).min(queue.waiting().len());
            seen.extend_from_slice(&queue.waiting()[..size]);
            queue.consume(size);
        }
        seen.extend_from_slice(queue.waiting());
        let sent: Vec<u8> = (0..1000_usize)
            .flat_map(|round| vec![u8::try_from(round % 251).expect("below 251"); round % 7])
            .collect();
        assert!(seen == sent);
    }

    #[test]
    fn outbox_limit_counts_unsent_bytes_and_bounds_memory() {
        let mut queue = Queue::<u32, 5000>::new();
        for number in 0..5000 {
            assert!(queue.reserve(1));
            queue.append(&[number]);
        }
        assert!(!queue.reserve(1));
        queue.consume(2);
        assert!(queue.reserve(2) && !queue.reserve(3));
        assert_eq!((queue.waiting().len(), queue.items.capacity()), (4998, 5000));
    }
}
