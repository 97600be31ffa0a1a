//! Bytes that wait to be written to one master.

use crate::limits;

/// A queue of bytes in one piece of memory, so that all that is pending goes out in one write.
///
/// ```text
/// bytes: [ written | waiting ........ ]
///                  ^ head             ^ bytes.len()        head <= bytes.len()
/// ```
#[derive(Debug)]
pub(super) struct Outbox {
    bytes: Vec<u8>,
    head: usize,
}

impl Outbox {
    pub(super) const fn new() -> Self {
        Self { bytes: Vec::new(), head: 0 }
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.head = 0;
    }

    /// Appends all of `bytes`, or nothing if the limit would be passed.
    #[inline]
    pub(super) fn append(&mut self, bytes: &[u8]) -> bool {
        if self.bytes.len().saturating_add(bytes.len()) > self.bytes.capacity()
            && !self.make_room(bytes.len())
        {
            return false;
        }
        self.bytes.extend_from_slice(bytes);
        true
    }

    /// Drops what is written once it outweighs what waits, so that each byte is moved at most once on average. False if
    /// the limit would be passed; the memory never grows beyond it.
    #[cold]
    fn make_room(&mut self, size: usize) -> bool {
        let waiting = self.ready().len();
        if waiting.saturating_add(size) > limits::OUTBOX_SIZE_MAX {
            return false;
        }
        if self.head > waiting || self.bytes.len().saturating_add(size) > limits::OUTBOX_SIZE_MAX {
            self.bytes.drain(..self.head);
            self.head = 0;
        }
        let size_needed = self.bytes.len().saturating_add(size);
        let doubled = self.bytes.capacity().saturating_mul(2).clamp(4096, limits::OUTBOX_SIZE_MAX);
        if size_needed > self.bytes.capacity() {
            self.bytes.reserve_exact(doubled.max(size_needed).saturating_sub(self.bytes.len()));
        }
        true
    }

    #[inline]
    pub(super) fn ready(&self) -> &[u8] {
        self.bytes.get(self.head..).unwrap_or_default()
    }

    #[inline]
    pub(super) fn consume(&mut self, size: usize) {
        self.head = self.head.saturating_add(size).min(self.bytes.len());
        if self.head == self.bytes.len() {
            self.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_leave_in_the_order_in_which_they_came_in_any_portions() {
        let (mut outbox, mut seen) = (Outbox::new(), Vec::new());
        for round in 0..1000_usize {
            let byte = u8::try_from(round % 251).expect("below 251");
            assert!(outbox.append(&vec![byte; round % 7]));
            let size = (round * 3 % 5).min(outbox.ready().len());
            seen.extend_from_slice(&outbox.ready()[..size]);
            outbox.consume(size);
        }
        seen.extend_from_slice(outbox.ready());
        let sent: Vec<u8> = (0..1000_usize)
            .flat_map(|round| vec![u8::try_from(round % 251).expect("below 251"); round % 7])
            .collect();
        assert!(seen == sent);
    }
}
