//! Names of the locks of a pool of slots: one lock for each slot, and the door, at which waiters queue.

use bytes::Bytes;

use crate::limits;

/// Beginning of a slot's name; the number and the pool's name follow.
pub(crate) const SLOT_NAME: &[u8] = b"redlatch:slot:";

/// Beginning of a door's name; the pool's name follows.
pub(crate) const DOOR_NAME: &[u8] = b"redlatch:door:";

/// Returns the name of the lock for this slot of a pool.
#[must_use]
pub fn slot_name(pool: &[u8], slot: u32) -> Bytes {
    [SLOT_NAME, slot.to_string().as_bytes(), b":", pool].concat().into()
}

/// Returns the name of the lock that only a pool's first waiter holds.
#[must_use]
pub fn door_name(pool: &[u8]) -> Bytes {
    [DOOR_NAME, pool].concat().into()
}

/// A pool's lock, parsed from its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockOfPool<'a> {
    /// The pool's name.
    pub pool: &'a [u8],
    /// The slot's number; `None` for the door.
    pub slot: Option<u32>,
}

impl<'a> LockOfPool<'a> {
    /// Parses a name; `None` unless it is a slot's or a door's.
    #[must_use]
    pub fn parse(name: &'a [u8]) -> Option<Self> {
        if let Some(pool) = name.strip_prefix(DOOR_NAME) {
            return Some(Self { pool, slot: None });
        }
        let rest = name.strip_prefix(SLOT_NAME)?;
        let (number, pool) = rest.split_at_checked(rest.iter().position(|byte| *byte == b':')?)?;
        let slot = parse_number(number)?;
        Some(Self { pool: &pool[1..], slot: Some(slot) })
    }
}

/// A slot's number in decimal digits, without a leading zero.
pub(crate) fn parse_number(digits: &[u8]) -> Option<u32> {
    let is_plain =
        digits.iter().all(u8::is_ascii_digit) && (digits.len() == 1 || digits.first() != Some(&b'0'));
    let slot: u32 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    (is_plain && slot < limits::SLOT_COUNT_MAX).then_some(slot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_canonical_slot_names_are_slots() {
        let slot = |number: &str| {
            let name = format!("redlatch:slot:{number}:a");
            LockOfPool::parse(name.as_bytes()).and_then(|it| it.slot)
        };
        assert_eq!((slot("0"), slot("1"), slot("10")), (Some(0), Some(1), Some(10)));
        let last = limits::SLOT_COUNT_MAX - 1;
        assert_eq!((slot(&last.to_string()), slot(&limits::SLOT_COUNT_MAX.to_string())), (Some(last), None));
        for number in ["", "+1", "-1", "01", "00", "1 ", "x", "4294967297"] {
            assert_eq!(slot(number), None, "{number:?}");
        }
    }
}
