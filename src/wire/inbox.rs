//! Bytes that were read from one master and not yet decoded.

use crate::limits;
use crate::mutants::mutant;
use crate::resp::{self, Decoded, ProtocolError, Reply};

/// A buffer that replies are decoded from in place.
///
/// ```text
/// bytes: [ decoded | received | free to read into ]
///                  ^ head     ^ tail               head <= tail <= bytes.len()
/// ```
///
/// It grows only when what was received fills it, so a header that promises a large reply reserves nothing
/// (I17).
#[derive(Debug)]
pub(super) struct Inbox {
    bytes: Vec<u8>,
    head: usize,
    tail: usize,
    /// Received bytes needed before decoding again can succeed.
    needed: usize,
}

impl Inbox {
    pub(super) const fn new() -> Self {
        Self { bytes: Vec::new(), head: 0, tail: 0, needed: 0 }
    }

    pub(super) fn clear(&mut self) {
        (self.head, self.tail, self.needed) = (0, 0, 0);
    }

    /// Room to read into: at least half of [`limits::READ_SIZE`] bytes.
    #[inline]
    pub(super) fn space(&mut self) -> &mut [u8] {
        if self.head == self.tail {
            (self.head, self.tail) = (0, 0);
        }
        if self.bytes.len().saturating_sub(self.tail) < limits::READ_SIZE / 2 || mutant!(AllocationByHeader) {
            self.make_space();
        }
        self.bytes.get_mut(self.tail..).unwrap_or_default()
    }

    #[cold]
    fn make_space(&mut self) {
        self.bytes.copy_within(self.head..self.tail, 0);
        self.tail = self.tail.saturating_sub(self.head);
        self.head = 0;
        if self.bytes.len().saturating_sub(self.tail) < limits::READ_SIZE / 2 || mutant!(AllocationByHeader) {
            let announced = if mutant!(AllocationByHeader) { self.needed } else { 0 };
            self.bytes.resize(self.tail.saturating_mul(2).max(limits::READ_SIZE).max(announced), 0);
        }
    }

    pub(super) fn filled(&mut self, size: usize) {
        self.tail = self.tail.saturating_add(size).min(self.bytes.len());
    }

    /// What was received and not yet taken out.
    #[inline]
    pub(super) fn received(&self) -> &[u8] {
        assert!(self.head <= self.tail && self.tail <= self.bytes.len(), "the cursors are out of order");
        self.bytes.get(self.head..self.tail).unwrap_or_default()
    }

    /// Takes out all but the last `size` bytes; what goes is whole replies.
    #[inline]
    pub(super) fn keep_last(&mut self, size: usize) {
        let head = self.tail.saturating_sub(size);
        if self.head != head {
            (self.head, self.needed) = (head, 0);
        }
    }

    /// Decodes the next reply and takes it out. Half a reply is `None`.
    pub(super) fn next_reply(&mut self) -> Result<Option<Reply<'_>>, ProtocolError> {
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
