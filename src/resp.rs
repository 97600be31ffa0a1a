//! The RESP2 wire format: bytes to replies and commands to bytes.
//!
//! This module owns the grammar and its limits. It does not know what a command means, which reply belongs
//! to which request, and where the bytes come from or go to.
//!
//! ```text
//! inbox  ──decode──▶  Complete { reply, size }   the reply borrows the inbox; drop `size` bytes and go on
//!                     Partial  { size_min }      no error: wait for `size_min` bytes
//!                     ProtocolError              the peer does not speak RESP2: end the connection
//! ```
//!
//! Invariants:
//! - Decoding allocates nothing, copies nothing and never panics, whatever the bytes.
//! - It reads from left to right and decides on bytes already read alone, so any split of a stream gives the
//!   same replies and error as one piece.
//! - It is strict: each value has exactly one encoding, so encoding a decoded reply gives back the very
//!   bytes.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::string_slice,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]

mod decode;
mod encode;

pub use decode::{Decoded, Fixed, decode, decode_fixed};
pub(crate) use encode::encode_bulk_header;
pub use encode::{encode_array_header, encode_bulk, encode_command, encode_reply};

use std::fmt;

use crate::limits::{REPLY_DEPTH_MAX, REPLY_ELEMENT_COUNT_MAX, REPLY_LINE_SIZE_MAX, REPLY_SIZE_MAX};

/// One reply of a master; it borrows the bytes it was decoded from.
///
/// It is exhaustive: RESP2 has no other types.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Reply<'a> {
    /// `+OK`: a status line, without its type byte and CRLF.
    Simple(&'a [u8]),
    /// `-ERR …`: an error line, without its type byte and CRLF.
    Error(&'a [u8]),
    /// `:1`: a signed number.
    Integer(i64),
    /// `$3 abc`: any bytes.
    Bulk(&'a [u8]),
    /// `$-1`: no string, which is not the empty string.
    NullBulk,
    /// `*2 …`: replies one after another.
    Array(Array<'a>),
    /// `*-1`: no array, which is not the empty array.
    NullArray,
}

/// Shows bytes as an escaped string: replies are text most of the time.
impl fmt::Debug for Reply<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reply::Simple(line) => write!(f, "Simple(\"{}\")", line.escape_ascii()),
            Reply::Error(line) => write!(f, "Error(\"{}\")", line.escape_ascii()),
            Reply::Integer(number) => write!(f, "Integer({number})"),
            Reply::Bulk(bytes) => write!(f, "Bulk(\"{}\")", bytes.escape_ascii()),
            Reply::NullBulk => f.write_str("NullBulk"),
            Reply::Array(array) => f.debug_tuple("Array").field(array).finish(),
            Reply::NullArray => f.write_str("NullArray"),
        }
    }
}

/// Elements of an array reply.
///
/// They were all checked when the reply was decoded, and [`iter`](Array::iter) decodes them a second time, so
/// an array needs no memory of its own. Two arrays are equal if their elements are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Array<'a> {
    /// Number of elements; those of inner arrays do not count.
    count: usize,
    /// Exactly `count` encoded replies that passed the decoder.
    body: &'a [u8],
}

impl<'a> Array<'a> {
    /// Returns the number of elements, at most 1,024 ([`REPLY_ELEMENT_COUNT_MAX`]).
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the elements in order.
    pub fn iter(&self) -> Elements<'a> {
        Elements { left: self.count, rest: self.body }
    }
}

impl<'a> IntoIterator for Array<'a> {
    type Item = Reply<'a>;
    type IntoIter = Elements<'a>;

    fn into_iter(self) -> Elements<'a> {
        self.iter()
    }
}

impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Iterator over the elements of an [`Array`].
#[derive(Debug, Clone)]
pub struct Elements<'a> {
    left: usize,
    rest: &'a [u8],
}

impl<'a> Iterator for Elements<'a> {
    type Item = Reply<'a>;

    fn next(&mut self) -> Option<Reply<'a>> {
        self.left = self.left.checked_sub(1)?;
        // An element that passed inside its frame passes alone: every limit is counted from the start of the
        // frame.
        let decoded = decode(self.rest);
        let Ok(Decoded::Complete { reply, size }) = decoded else {
            debug_assert!(false, "a checked element does not decode: {decoded:?}");
            self.left = 0;
            return None;
        };
        self.rest = self.rest.get(size..).unwrap_or_default();
        Some(reply)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Elements<'_> {}

/// Reason why bytes are not RESP2 within the [limits](crate::limits). The rest of the stream cannot be
/// trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A reply starts with a byte that is none of `+ - : $ *`.
    #[error("a reply starts with the unknown type byte '{}'", .0.escape_ascii())]
    TypeUnknown(u8),
    /// A line holds a CR without LF or an LF without CR, or a number is followed by one of them alone.
    #[error("a line of a reply is not ended by CR LF")]
    LineBreak,
    /// A line goes on beyond 16 KiB ([`REPLY_LINE_SIZE_MAX`]).
    #[error("a line of a reply is longer than {REPLY_LINE_SIZE_MAX} bytes")]
    LineTooLong,
    /// A number is empty, has a `+`, a leading zero or a byte that is no digit, or is `-0`.
    #[error("a number in a reply is not written in plain decimal digits")]
    NumberInvalid,
    /// A number does not fit in 64 bits with sign.
    #[error("a number in a reply does not fit in 64 bits")]
    NumberTooLarge,
    /// The length of a bulk string or an array is negative and not the -1 of a null.
    #[error("a length in a reply is negative")]
    LengthNegative,
    /// The bytes of a bulk string are not followed by CR LF.
    #[error("a bulk string in a reply is not ended by CR LF")]
    BulkUnterminated,
    /// A reply is, or announces to be, larger than 1 MiB ([`REPLY_SIZE_MAX`]).
    #[error("a reply is larger than {REPLY_SIZE_MAX} bytes")]
    ReplyTooLarge,
    /// The arrays of one reply announce more than 1,024 elements together ([`REPLY_ELEMENT_COUNT_MAX`]).
    #[error("a reply has more than {REPLY_ELEMENT_COUNT_MAX} elements")]
    ElementsTooMany,
    /// An array, be it null or empty, stands inside 8 others ([`REPLY_DEPTH_MAX`]).
    #[error("the arrays of a reply are nested more than {REPLY_DEPTH_MAX} deep")]
    NestingTooDeep,
}
