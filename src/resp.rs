//! The wire format: decodes RESP2 and RESP3 replies, and encodes commands, which are RESP2.
//!
//! The decoder accepts the types of both versions ([`Reply`]), whichever was negotiated. It skips attributes
//! (`|`), as RESP3 asks of clients that do not know them. Streamed types (`$?`, `*?`, `%?`, `~?`), which no
//! server command sends, are errors. Owns the grammar and its limits; knows no commands and sockets.
//!
//! ```text
//! inbox  ──decode──▶  Complete { reply, size }   the reply borrows the inbox; drop `size` bytes and go on
//!                     Partial  { size_min }      no error: wait for `size_min` bytes
//!                     ProtocolError              the peer does not speak RESP: end the connection
//! ```
//!
//! - Decoding never allocates, copies or panics. Any split of a stream gives the same replies and error.
//! - Except for attributes and a number's plus sign, each value has exactly one encoding, so encoding a
//!   decoded reply restores its bytes. A double or big number is kept as text.
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

pub(crate) use decode::decode_large;
pub use decode::{Decoded, Fixed, decode, decode_fixed};
pub(crate) use encode::encode_bulk_header;
pub use encode::{encode_array_header, encode_bulk, encode_command, encode_reply};

use std::fmt;

use crate::limits::{REPLY_DEPTH_MAX, REPLY_ELEMENT_COUNT_MAX, REPLY_LINE_SIZE_MAX, REPLY_SIZE_MAX};

/// A master's reply; borrows the bytes it was decoded from.
///
/// Exhaustive. The types from [`Null`](Reply::Null) on belong to RESP3: a server sends them only after
/// `HELLO 3`. None of them represents a type of RESP2, so no RESP3 reply is mistaken for a RESP2 reply.
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
    /// `$-1`: a null string, which differs from the empty string.
    NullBulk,
    /// `*2 …`: a list of replies.
    Array(Array<'a>),
    /// `*-1`: a null array, which differs from the empty array.
    NullArray,
    /// `_`: no value.
    Null,
    /// `#t` or `#f`.
    Boolean(bool),
    /// `,1.5`: the text of a double, which `str::parse::<f64>` accepts. Not an `f64`, which lacks `Eq` and
    /// does not restore the bytes.
    Double(&'a [u8]),
    /// `(123`: the text of an integer of any size.
    BigNumber(&'a [u8]),
    /// `!5 ERR x`: an error of any bytes.
    BlobError(&'a [u8]),
    /// `=7 txt:abc`: a text to display unchanged.
    Verbatim {
        /// `txt` for plain text, `mkd` for Markdown; other formats are accepted.
        format: [u8; 3],
        /// Any bytes, without format and colon.
        text: &'a [u8],
    },
    /// `%1 …`: alternating keys and values, for [`Array::pairs`].
    Map(Array<'a>),
    /// `~2 …`: unordered replies. Duplicates are kept.
    Set(Array<'a>),
    /// `>2 …`: a message that answers no request, beginning with its kind. Never part of another reply.
    Push(Array<'a>),
}

impl Reply<'_> {
    /// Returns the RESP2 form of the reply, so that each answer has one form: a null string for any null; a
    /// number for a boolean, and for a double or big number that fits; an error, string or array for a blob
    /// error, verbatim string or set. Maps and pushes stay, because they imply RESP3. Elements stay as they
    /// are.
    #[cold]
    #[must_use]
    pub(crate) fn plain(self) -> Self {
        let number = |text| std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
        match self {
            Reply::NullArray | Reply::Null => Reply::NullBulk,
            Reply::Boolean(is_true) => Reply::Integer(is_true.into()),
            Reply::Double(text) | Reply::BigNumber(text) => {
                number(text).map_or(Reply::Bulk(text), Reply::Integer)
            }
            Reply::BlobError(text) => Reply::Error(text),
            Reply::Verbatim { text, .. } => Reply::Bulk(text),
            Reply::Set(array) => Reply::Array(array),
            other => other,
        }
    }

    /// Whether the reply has a RESP2 form, as nearly all have.
    pub(crate) const fn is_plain(&self) -> bool {
        matches!(
            self,
            Reply::Simple(_)
                | Reply::Error(_)
                | Reply::Integer(_)
                | Reply::Bulk(_)
                | Reply::NullBulk
                | Reply::Array(_)
        )
    }

    /// The number in a [plain](Reply::plain) reply.
    #[inline]
    pub(crate) fn number(self) -> Option<i64> {
        // Checked first: converting all numbers costs a park 2.5 % more instructions.
        if let Reply::Integer(number) = self {
            return Some(number);
        }
        match self.plain() {
            Reply::Integer(number) => Some(number),
            _ => None,
        }
    }
}

/// Shows bytes as an escaped string, since most replies are text.
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
            Reply::Null => f.write_str("Null"),
            Reply::Boolean(is_true) => write!(f, "Boolean({is_true})"),
            Reply::Double(text) => write!(f, "Double({})", text.escape_ascii()),
            Reply::BigNumber(text) => write!(f, "BigNumber({})", text.escape_ascii()),
            Reply::BlobError(bytes) => write!(f, "BlobError(\"{}\")", bytes.escape_ascii()),
            Reply::Verbatim { format, text } => {
                write!(f, "Verbatim(\"{}:{}\")", format.escape_ascii(), text.escape_ascii())
            }
            Reply::Map(array) => f.debug_tuple("Map").field(array).finish(),
            Reply::Set(array) => f.debug_tuple("Set").field(array).finish(),
            Reply::Push(array) => f.debug_tuple("Push").field(array).finish(),
        }
    }
}

/// Elements of an array, map, set or push.
///
/// Decoding has checked them, and [`iter`](Array::iter) decodes them again, so an array needs no memory of
/// its own. Arrays are equal if their elements and attributes are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Array<'a> {
    /// Number of elements, without the elements of inner arrays. A map's pair counts as two.
    count: usize,
    /// Exactly `count` encoded replies that the decoder has accepted.
    body: &'a [u8],
}

impl<'a> Array<'a> {
    /// Returns the number of elements, at most 1,024 ([`REPLY_ELEMENT_COUNT_MAX`]). A map's pair counts as
    /// two.
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

    /// Returns pairs of elements: a map's keys and values, in order. Also for a [`Reply::Array`], which is a
    /// map's form in RESP2. An odd last element is left out; a [`Reply::Map`] has none.
    pub fn pairs(&self) -> impl Iterator<Item = (Reply<'a>, Reply<'a>)> + use<'a> {
        let mut elements = self.iter();
        std::iter::from_fn(move || Some((elements.next()?, elements.next()?)))
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
        // An element accepted inside its frame is accepted alone: each limit counts from the start of the
        // frame. The frame may be a large one.
        let decoded = decode_large(self.rest, usize::MAX);
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

/// Why bytes are not RESP within the [limits](crate::limits). The rest of the stream is unusable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A reply starts with an unknown type byte, or contains a push.
    #[error("a reply starts with the unknown type byte '{}'", .0.escape_ascii())]
    TypeUnknown(u8),
    /// A line contains CR without LF or LF without CR, or a number is followed by only one of them.
    #[error("a line of a reply is not ended by CR LF")]
    LineBreak,
    /// A line exceeds 16 KiB ([`REPLY_LINE_SIZE_MAX`]).
    #[error("a line of a reply is longer than {REPLY_LINE_SIZE_MAX} bytes")]
    LineTooLong,
    /// A number is empty, is `-0`, or has a leading zero or a non-digit; or a length has a plus sign. Doubles
    /// have their own grammar; doubles and big numbers may have leading zeros. A streamed type has `?` as its
    /// length.
    #[error("a number in a reply is not written in plain decimal digits")]
    NumberInvalid,
    /// A number does not fit in a signed 64-bit integer.
    #[error("a number in a reply does not fit in 64 bits")]
    NumberTooLarge,
    /// A length is negative, and not the -1 of a null bulk string or null array.
    #[error("a length in a reply is negative")]
    LengthNegative,
    /// A boolean is neither `t` nor `f`, or a verbatim string lacks its format of three bytes and a colon.
    #[error("a boolean or a verbatim string in a reply is malformed")]
    ValueInvalid,
    /// The bytes of a bulk string, blob error or verbatim string are not followed by CRLF.
    #[error("a bulk string in a reply is not ended by CR LF")]
    BulkUnterminated,
    /// A reply is, or announces to be, larger than 1 MiB ([`REPLY_SIZE_MAX`]).
    #[error("a reply is larger than {REPLY_SIZE_MAX} bytes")]
    ReplyTooLarge,
    /// The headers of one reply announce more than 1,024 elements in total ([`REPLY_ELEMENT_COUNT_MAX`]).
    #[error("a reply has more than {REPLY_ELEMENT_COUNT_MAX} elements")]
    ElementsTooMany,
    /// An array, even a null or empty one, a map or a set is inside 8 others ([`REPLY_DEPTH_MAX`]).
    #[error("the arrays of a reply are nested more than {REPLY_DEPTH_MAX} deep")]
    NestingTooDeep,
}
