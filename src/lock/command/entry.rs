//! The parts of most commands: a lock's key, value and TTL, encoded once for all masters.

use memchr::memchr;

use super::scripts::WAIT_NAME;
use crate::lock::label::{encode_label, label_part_size};
use crate::lock::token::Token;
use crate::resp;

const CRLF: &[u8] = b"\r\n";
const NX_PX: &[u8] = b"$2\r\nNX\r\n$2\r\nPX\r\n";
const TOKEN_HEAD: &[u8] = b"$20\r\n";

/// A lock's key and value as two encoded bulk strings, the form in most commands. The value is the token,
/// followed by the holder's label if there is one.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    pub(super) bytes: Vec<u8>,
    /// Size of the encoded key, in bytes.
    key_size: usize,
}

impl Entry {
    pub(crate) const EMPTY: Self = Self { bytes: Vec::new(), key_size: 0 };

    /// Replaces the entry, reusing its memory.
    #[inline(always)]
    pub(crate) fn set(&mut self, prefix: &[u8], name: &[u8], token: &Token) {
        self.bytes.clear();
        resp::encode_bulk_header(&mut self.bytes, prefix.len() + name.len());
        self.bytes.extend_from_slice(prefix);
        self.bytes.extend_from_slice(name);
        self.key_size = self.bytes.len() + CRLF.len();
        self.bytes.extend_from_slice(&end_of_entry(token));
    }

    /// Like [`Entry::set`], but with an encoded key from [`Entry::key`].
    pub(crate) fn set_key(&mut self, key: &[u8], token: &Token) {
        self.bytes.clear();
        self.bytes.extend_from_slice(key);
        self.key_size = self.bytes.len();
        self.bytes.extend_from_slice(&end_of_entry(token)[CRLF.len()..]);
    }

    /// Appends the holder's label to a value that is only the token.
    pub(crate) fn add_label(&mut self, token: &Token, label: &[u8]) {
        self.bytes.truncate(self.key_size);
        resp::encode_bulk_header(&mut self.bytes, Token::SIZE + label_part_size(label));
        self.bytes.extend_from_slice(token.as_bytes());
        encode_label(&mut self.bytes, label);
        self.bytes.extend_from_slice(CRLF);
    }

    /// The key as an encoded bulk string.
    pub(crate) fn key(&self) -> &[u8] {
        self.parts().0
    }

    pub(crate) fn value(&self) -> &[u8] {
        key_bytes(self.parts().1)
    }

    /// Key and value, each as an encoded bulk string.
    pub(super) fn parts(&self) -> (&[u8], &[u8]) {
        self.bytes.split_at(self.key_size)
    }
}

/// Encodes the key of the lock named `name`, as [`Entry::key`] returns it.
pub(crate) fn encode_key(out: &mut Vec<u8>, prefix: &[u8], name: &[u8]) {
    resp::encode_bulk_header(out, prefix.len() + name.len());
    out.extend_from_slice(prefix);
    out.extend_from_slice(name);
    out.extend_from_slice(CRLF);
}

const TOKEN_BULK_SIZE: usize = TOKEN_HEAD.len() + Token::SIZE + CRLF.len();

/// The CRLF after the name, and the token as an encoded bulk string.
#[inline]
fn end_of_entry(token: &Token) -> [u8; CRLF.len() + TOKEN_BULK_SIZE] {
    let mut end = *b"\r\n$20\r\n....................\r\n";
    end[CRLF.len() + TOKEN_HEAD.len()..][..Token::SIZE].copy_from_slice(token.as_bytes());
    end
}

/// The end of [`super::encode_acquire`]: `NX PX ttl`. Encoded again only when the TTL changes.
#[derive(Debug, Default)]
pub(crate) struct AcquireTail(pub(super) Vec<u8>);

impl AcquireTail {
    pub(crate) const EMPTY: Self = Self(Vec::new());

    pub(crate) fn set(&mut self, ttl_ms: u64) {
        self.0.clear();
        encode_tail(&mut self.0, ttl_ms);
    }
}

/// `NX PX ttl`
pub(super) fn encode_tail(out: &mut Vec<u8>, ttl_ms: u64) {
    out.extend_from_slice(NX_PX);
    encode_decimal_bulk(out, ttl_ms);
}

/// Encodes another key of a lock, such as its queue, with the lock's prefix and name.
pub(super) fn encode_beside(out: &mut Vec<u8>, key: &[u8], prefix_size: usize, what: &[u8]) {
    let (prefix, name) = key_bytes(key).split_at_checked(prefix_size).unwrap_or_default();
    encode_joined(out, &[prefix, what, name]);
}

/// Encodes the keys of a lock and of its queue.
pub(super) fn encode_lock_and_queue(out: &mut Vec<u8>, key: &[u8], prefix_size: usize) {
    out.extend_from_slice(key);
    encode_beside(out, key, prefix_size, WAIT_NAME);
}

/// The name of the lock with this encoded key.
pub(crate) fn name_in(key: &[u8], prefix_size: usize) -> &[u8] {
    key_bytes(key).get(prefix_size..).unwrap_or_default()
}

/// The content of an encoded bulk string.
pub(super) fn key_bytes(key: &[u8]) -> &[u8] {
    let start = memchr(b'\n', key).map_or(0, |end| end + 1);
    key.get(start..key.len().saturating_sub(CRLF.len())).unwrap_or_default()
}

/// Encodes the concatenated parts as one bulk string.
pub(super) fn encode_joined(out: &mut Vec<u8>, parts: &[&[u8]]) {
    resp::encode_bulk_header(out, parts.iter().map(|part| part.len()).sum());
    parts.iter().for_each(|part| out.extend_from_slice(part));
    out.extend_from_slice(CRLF);
}

pub(super) fn encode_decimal_bulk(out: &mut Vec<u8>, number: u64) {
    out.push(b'$');
    encode_decimal(out, u64::from(number.checked_ilog10().unwrap_or(0)) + 1);
    out.extend_from_slice(CRLF);
    encode_decimal(out, number);
    out.extend_from_slice(CRLF);
}

#[inline]
pub(super) fn encode_decimal(out: &mut Vec<u8>, number: u64) {
    // Most lengths have one or two digits.
    if number < 10 {
        out.push(digit(number));
    } else if number < 100 {
        out.extend_from_slice(&[digit(number / 10), digit(number)]);
    } else {
        encode_decimal(out, number / 100);
        out.extend_from_slice(&[digit(number / 10), digit(number)]);
    }
}

pub(super) const fn digit(number: u64) -> u8 {
    b'0' + (number % 10) as u8
}
