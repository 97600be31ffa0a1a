//! What waits, first in first out: bytes to be written to a master, or replies that it owes.

/// At most `COUNT_MAX` items in one piece of memory, so that all that wait can be looked at, or written, at
/// once.
///
/// ```text
/// items: [ taken | waiting ........ ]
///                ^ head             ^ items.len()        head <= items.len() <= COUNT_MAX
/// ```
#[derive(Debug)]
pub(super) struct Queue<T, const COUNT_MAX: usize> {
    items: Vec<T>,
    head: usize,
}

impl<T: Copy, const COUNT_MAX: usize> Queue<T, COUNT_MAX> {
    pub(super) const fn new() -> Self {
        Self { items: Vec::new(), head: 0 }
    }

    #[inline]
    pub(super) fn clear(&mut self) {
        self.items.clear();
        self.head = 0;
    }

    /// Makes room for `count` more items, or says false if they would pass the limit.
    #[inline]
    pub(super) fn reserve(&mut self, count: usize) -> bool {
        self.items.spare_capacity_mut().len() >= count || self.make_room(count)
    }

    /// Drops what is taken once it outweighs what waits, so that each item is moved at most once on average.
    /// The memory never grows beyond the limit.
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

    /// Whether `count` more items are surely within the limit; those that are taken may still count.
    #[inline]
    pub(super) fn has_room(&self, count: usize) -> bool {
        self.items.len() <= COUNT_MAX.saturating_sub(count)
    }

    /// Adds items for which [`Queue::reserve`] has made room.
    #[inline]
    pub(super) fn append(&mut self, items: &[T]) {
        self.items.extend_from_slice(items);
    }

    /// The items that wait, the oldest first.
    #[inline]
    pub(super) fn waiting(&self) -> &[T] {
        assert!(self.head <= self.items.len(), "the head is beyond the end");
        self.items.get(self.head..).unwrap_or_default()
    }

    /// Takes out the `count` oldest items.
    #[inline]
    pub(super) fn consume(&mut self, count: usize) {
        self.keep_last(self.waiting().len().saturating_sub(count));
    }

    /// Takes out all but the `count` newest items.
    #[inline]
    pub(super) fn keep_last(&mut self, count: usize) {
        self.head = self.items.len().saturating_sub(count);
        if count == 0 {
            self.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn the_limit_counts_what_waits_and_bounds_the_memory() {
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
