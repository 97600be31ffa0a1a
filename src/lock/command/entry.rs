//! Common parts of most commands: key and value of a lock, and its TTL, encoded once for all masters.

use memchr::memchr;

use crate::lock::label::{encode_label, label_part_size};
use crate::lock::token::Token;
use crate::resp;

const CRLF: &[u8] = b"\r\n";
const NX_PX: &[u8] = b"$2\r\nNX\r\n$2\r\nPX\r\n";
const TOKEN_HEAD: &[u8] = b"$20\r\n";

/// Key and value of a lock on a master, as two encoded bulk strings: the form in which most commands have
/// them. The value is the token, and behind it the holder's label if there is one.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    pub(super) bytes: Vec<u8>,
    /// Bytes of the key as an encoded bulk string.
    key_size: usize,
}

impl Entry {
    pub(crate) const EMPTY: Self = Self { bytes: Vec::new(), key_size: 0 };

    /// Becomes the entry of a lock named `name`, in the memory that there is.
    #[inline(always)]
    pub(crate) fn set(&mut self, prefix: &[u8], name: &[u8], token: &Token) {
        self.bytes.clear();
        resp::encode_bulk_header(&mut self.bytes, prefix.len() + name.len());
        self.bytes.extend_from_slice(prefix);
        self.bytes.extend_from_slice(name);
        self.key_size = self.bytes.len() + CRLF.len();
        self.bytes.extend_from_slice(&end_of_entry(token));
    }

    /// Becomes the entry of the lock whose [`Entry::key`] is given.
    pub(crate) fn set_key(&mut self, key: &[u8], token: &Token) {
        self.bytes.clear();
        self.bytes.extend_from_slice(key);
        self.key_size = self.bytes.len();
        self.bytes.extend_from_slice(&end_of_entry(token)[CRLF.len()..]);
    }

    /// Puts the holder's label behind the token, which is all of the value.
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

    /// The value.
    pub(crate) fn value(&self) -> &[u8] {
        key_bytes(self.parts().1)
    }

    /// Key and value, as encoded bulk strings.
    pub(super) fn parts(&self) -> (&[u8], &[u8]) {
        self.bytes.split_at(self.key_size)
    }
}

/// The key of a lock named `name` as an encoded bulk string, which is [`Entry::key`] of all its entries.
pub(crate) fn encode_key(out: &mut Vec<u8>, prefix: &[u8], name: &[u8]) {
    resp::encode_bulk_header(out, prefix.len() + name.len());
    out.extend_from_slice(prefix);
    out.extend_from_slice(name);
    out.extend_from_slice(CRLF);
}

const TOKEN_BULK_SIZE: usize = TOKEN_HEAD.len() + Token::SIZE + CRLF.len();

/// The CRLF behind the name, and the token as an encoded bulk string.
#[inline]
fn end_of_entry(token: &Token) -> [u8; CRLF.len() + TOKEN_BULK_SIZE] {
    let mut end = *b"\r\n$20\r\n....................\r\n";
    end[CRLF.len() + TOKEN_HEAD.len()..][..Token::SIZE].copy_from_slice(token.as_bytes());
    end
}

/// The text behind the entry in [`super::encode_acquire`]: `NX PX ttl`. It is encoded anew only when the TTL
/// changes.
#[derive(Debug, Default)]
pub(crate) struct AcquireTail(pub(super) Vec<u8>);

impl AcquireTail {
    pub(crate) const EMPTY: Self = Self(Vec::new());

    pub(crate) fn set(&mut self, ttl_ms: u64) {
        self.0.clear();
        self.0.extend_from_slice(NX_PX);
        encode_decimal_bulk(&mut self.0, ttl_ms);
    }
}

/// The key of something beside a lock, behind the same prefix, as an encoded bulk string like the lock's own.
pub(super) fn encode_beside(out: &mut Vec<u8>, key: &[u8], prefix_size: usize, what: &[u8]) {
    let (prefix, name) = key_bytes(key).split_at_checked(prefix_size).unwrap_or_default();
    encode_joined(out, &[prefix, what, name]);
}

/// The name of the lock whose key is given as an encoded bulk string.
pub(crate) fn name_in(key: &[u8], prefix_size: usize) -> &[u8] {
    key_bytes(key).get(prefix_size..).unwrap_or_default()
}

/// The content of an encoded bulk string.
pub(super) fn key_bytes(key: &[u8]) -> &[u8] {
    let start = memchr(b'\n', key).map_or(0, |end| end + 1);
    key.get(start..key.len().saturating_sub(CRLF.len())).unwrap_or_default()
}

/// A bulk string of several parts.
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

/// The last decimal digit.
pub(super) const fn digit(number: u64) -> u8 {
    b'0' + (number % 10) as u8
}
