//! The wire format: RESP2 and RESP3 bytes to replies, and commands, which are RESP2, to bytes.
//!
//! The decoder takes the types of both versions, whichever was agreed upon: [`Reply`] lists them. It skips
//! attributes (`|`), as RESP3 asks of a client that does not know them. It does not support the streamed
//! types of RESP3 (`$?`, `*?`, `%?`, `~?`), which no command of a server sends: they are errors.
//!
//! This module owns the grammar and its limits. It does not know what a command means, which reply belongs
//! to which request, and where the bytes come from or go to.
//!
//! ```text
//! inbox  ──decode──▶  Complete { reply, size }   the reply borrows the inbox; drop `size` bytes and go on
//!                     Partial  { size_min }      no error: wait for `size_min` bytes
//!                     ProtocolError              the peer does not speak RESP: end the connection
//! ```
//!
//! Invariants:
//! - Decoding allocates nothing, copies nothing and never panics, whatever the bytes.
//! - It reads from left to right and decides on bytes already read alone, so any split of a stream gives the
//!   same replies and error as one piece.
//! - It is strict: but for attributes and the plus of a number, each value has exactly one encoding, so
//!   encoding a decoded reply gives back the very bytes. The value of a double or a big number is its text.
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
/// It is exhaustive. The types from [`Null`](Reply::Null) on are from RESP3: a server sends them only after
/// `HELLO 3`. None of them stands for a type of RESP2, so a reply that RESP2 does not have is never mistaken
/// for one that it has.
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
    /// `_`: no value.
    Null,
    /// `#t` or `#f`.
    Boolean(bool),
    /// `,1.5`: the text of a double, which `str::parse::<f64>` accepts. It is no `f64`, as that has no `Eq`
    /// and does not give back the bytes.
    Double(&'a [u8]),
    /// `(123`: the text of a whole number of any size.
    BigNumber(&'a [u8]),
    /// `!5 ERR x`: an error of any bytes.
    BlobError(&'a [u8]),
    /// `=7 txt:abc`: a text to be shown as it is.
    Verbatim {
        /// `txt` for plain text, `mkd` for Markdown. Others are accepted.
        format: [u8; 3],
        /// Any bytes; format and colon are left out.
        text: &'a [u8],
    },
    /// `%1 …`: keys and values in turn, for [`Array::pairs`].
    Map(Array<'a>),
    /// `~2 …`: replies without an order. Repeated ones are not removed.
    Set(Array<'a>),
    /// `>2 …`: a message that is no reply to a request, the kind of it first. It never stands inside a reply.
    Push(Array<'a>),
}

impl Reply<'_> {
    /// Returns the reply as RESP2 has it, so that a command has one form of each answer: a null string for
    /// each null, a number for a boolean and for a double or a big number that is one, an error, a string or
    /// an array for a blob error, a verbatim string or a set. A map and a push stay: where they come, they
    /// mean RESP3. Elements stay as they are.
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

    /// Returns whether the reply is in a form that RESP2 has, as nearly all are.
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

    /// Returns the number that the [plain](Reply::plain) reply is, if it is one.
    #[inline]
    pub(crate) fn number(self) -> Option<i64> {
        // Looked at first: with all numbers made plain, a park costs 2.5 % more instructions.
        if let Reply::Integer(number) = self {
            return Some(number);
        }
        match self.plain() {
            Reply::Integer(number) => Some(number),
            _ => None,
        }
    }
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

/// Elements of an array, a map, a set or a push.
///
/// They were all checked when the reply was decoded, and [`iter`](Array::iter) decodes them a second time, so
/// an array needs no memory of its own. Two arrays are equal if their elements are, with their attributes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Array<'a> {
    /// Number of elements; those of inner arrays do not count. A pair of a map is two.
    count: usize,
    /// Exactly `count` encoded replies that passed the decoder.
    body: &'a [u8],
}

impl<'a> Array<'a> {
    /// Returns the number of elements, at most 1,024 ([`REPLY_ELEMENT_COUNT_MAX`]). A pair of a map is two.
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

    /// Returns the elements two by two: the keys of a map with their values, in order. It serves
    /// [`Reply::Array`], too, as a server sends a map in RESP2. A last element without a partner is left out;
    /// a [`Reply::Map`] has none.
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

/// Reason why bytes are not RESP within the [limits](crate::limits). The rest of the stream cannot be
/// trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A reply starts with a byte that is no type of [`Reply`] or an attribute, or a push stands inside a
    /// reply.
    #[error("a reply starts with the unknown type byte '{}'", .0.escape_ascii())]
    TypeUnknown(u8),
    /// A line holds a CR without LF or an LF without CR, or a number is followed by one of them alone.
    #[error("a line of a reply is not ended by CR LF")]
    LineBreak,
    /// A line goes on beyond 16 KiB ([`REPLY_LINE_SIZE_MAX`]).
    #[error("a line of a reply is longer than {REPLY_LINE_SIZE_MAX} bytes")]
    LineTooLong,
    /// A number is empty, has a leading zero or a byte that is no digit, or is `-0`; or a length has a plus.
    /// Doubles and big numbers may have leading zeros, and doubles have a grammar of their own. A streamed
    /// type has a `?` for its length.
    #[error("a number in a reply is not written in plain decimal digits")]
    NumberInvalid,
    /// A number does not fit in 64 bits with sign.
    #[error("a number in a reply does not fit in 64 bits")]
    NumberTooLarge,
    /// A length is negative and not the -1 of a null bulk string or a null array.
    #[error("a length in a reply is negative")]
    LengthNegative,
    /// A boolean is neither `t` nor `f`, or a verbatim string has no format of three bytes and a colon.
    #[error("a boolean or a verbatim string in a reply is malformed")]
    ValueInvalid,
    /// The bytes of a bulk string, a blob error or a verbatim string are not followed by CR LF.
    #[error("a bulk string in a reply is not ended by CR LF")]
    BulkUnterminated,
    /// A reply is, or announces to be, larger than 1 MiB ([`REPLY_SIZE_MAX`]).
    #[error("a reply is larger than {REPLY_SIZE_MAX} bytes")]
    ReplyTooLarge,
    /// The arrays, maps and so on of one reply announce more than 1,024 elements together
    /// ([`REPLY_ELEMENT_COUNT_MAX`]).
    #[error("a reply has more than {REPLY_ELEMENT_COUNT_MAX} elements")]
    ElementsTooMany,
    /// An array, be it null or empty, a map or a set stands inside 8 others ([`REPLY_DEPTH_MAX`]).
    #[error("the arrays of a reply are nested more than {REPLY_DEPTH_MAX} deep")]
    NestingTooDeep,
}
