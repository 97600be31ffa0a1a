//! Decodes replies: a cursor that walks over one frame.
//!
//! Each step needs only bytes up to its position. When the bytes run out, it says how many are missing, and
//! the caller starts again from the front, so nothing is kept between calls.

use memchr::memchr2;

use super::{Array, ProtocolError, Reply};
use crate::limits::{
    PROBE_PAGE_SIZE_MAX, REPLY_DEPTH_MAX, REPLY_ELEMENT_COUNT_MAX, REPLY_LINE_SIZE_MAX, REPLY_SIZE_MAX,
};

/// Result of decoding the bytes that have arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decoded<'a> {
    /// The input starts with a complete reply.
    Complete {
        /// First reply of the input.
        reply: Reply<'a>,
        /// Size of the reply in bytes; the next reply starts there.
        size: usize,
    },
    /// The input is the beginning of a reply. Not an error.
    Partial {
        /// Input size below which decoding again cannot succeed: more than the input's, at most 1 MiB
        /// ([`REPLY_SIZE_MAX`]).
        size_min: usize,
    },
}

/// Decodes the first reply of `input`.
///
/// The work is proportional to the size of the reply, not of the input; nothing is allocated or copied.
///
/// # Errors
///
/// An error occurs at the first byte after which no acceptable reply is possible, and every longer input
/// gives the same error. Only size limits may be reported later: the limit of the whole reply at the first
/// header or byte beyond it, even if the missing elements could not fit earlier, and the limit of a double's
/// line at the first digit beyond it.
///
/// ```
/// use redlatch::resp::{Decoded, ProtocolError, Reply, decode};
///
/// let first = Decoded::Complete { reply: Reply::Simple(b"OK"), size: 5 };
/// assert_eq!(decode(b"+OK\r\n:7\r\n"), Ok(first));
/// // Ten bytes and the CR behind them: the 16th byte shows whether it is a CR.
/// assert_eq!(decode(b"$10\r\nabc"), Ok(Decoded::Partial { size_min: 16 }));
/// assert_eq!(decode(b":01\r\n"), Err(ProtocolError::NumberInvalid));
///
/// let bytes = b"*2\r\n$4\r\nBUSY\r\n:42\r\n";
/// let Ok(Decoded::Complete { reply: Reply::Array(array), .. }) = decode(bytes)
/// else {
///     panic!("not an array")
/// };
/// assert!(array.iter().eq([Reply::Bulk(b"BUSY"), Reply::Integer(42)]));
///
/// let bytes = b"%1\r\n+proto\r\n:3\r\n";
/// let Ok(Decoded::Complete { reply: Reply::Map(map), .. }) = decode(bytes)
/// else {
///     panic!("not a map")
/// };
/// assert!(map.pairs().eq([(Reply::Simple(b"proto"), Reply::Integer(3))]));
/// ```
#[inline]
pub fn decode(input: &[u8]) -> Result<Decoded<'_>, ProtocolError> {
    match decode_fixed(input) {
        Some((fixed, size)) => Ok(Decoded::Complete { reply: fixed.reply(), size }),
        None => decode_any::<REPLY_SIZE_MAX>(input, REPLY_ELEMENT_COUNT_MAX),
    }
}

/// As [`decode`], for replies that may have this number of elements and the size of a page of names.
#[inline]
pub(crate) fn decode_large(input: &[u8], element_count_max: usize) -> Result<Decoded<'_>, ProtocolError> {
    match decode_fixed(input) {
        Some((fixed, size)) => Ok(Decoded::Complete { reply: fixed.reply(), size }),
        None => decode_any::<PROBE_PAGE_SIZE_MAX>(input, element_count_max),
    }
}

/// One of the four replies that make up nearly all replies to a lock client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fixed {
    /// `+OK`
    Ok,
    /// `$-1`
    Null,
    /// `:0`
    Zero,
    /// `:1`
    One,
}

impl Fixed {
    /// Returns the reply in its general form.
    #[must_use]
    pub const fn reply(self) -> Reply<'static> {
        match self {
            Fixed::Ok => Reply::Simple(b"OK"),
            Fixed::Null => Reply::NullBulk,
            Fixed::Zero => Reply::Integer(0),
            Fixed::One => Reply::Integer(1),
        }
    }
}

/// Returns the reply at the front of `input` and its size, if it is complete and one of [`Fixed`]. For other
/// replies use [`decode`].
///
/// One comparison of four bytes distinguishes the four (`benches/codec.rs`, `decode/fixed`).
///
/// ```
/// use redlatch::resp::{Fixed, decode_fixed};
/// assert_eq!(decode_fixed(b"+OK\r\n:1\r\n"), Some((Fixed::Ok, 5)));
/// assert_eq!(decode_fixed(b":10\r\n"), None);
/// ```
#[inline]
#[must_use]
pub fn decode_fixed(input: &[u8]) -> Option<(Fixed, usize)> {
    match u32::from_le_bytes(*input.first_chunk()?) {
        ONE => Some((Fixed::One, 4)),
        ZERO => Some((Fixed::Zero, 4)),
        OK_HEAD if input.get(4) == Some(&b'\n') => Some((Fixed::Ok, 5)),
        NULL_HEAD if input.get(4) == Some(&b'\n') => Some((Fixed::Null, 5)),
        _ => None,
    }
}

const ONE: u32 = u32::from_le_bytes(*b":1\r\n");
const ZERO: u32 = u32::from_le_bytes(*b":0\r\n");
/// `+OK\r\n` and `$-1\r\n` without their last byte.
const OK_HEAD: u32 = u32::from_le_bytes(*b"+OK\r");
const NULL_HEAD: u32 = u32::from_le_bytes(*b"$-1\r");

/// Decodes any reply. Not inlined, so that the fast path above stays small where it is inlined.
#[inline(never)]
fn decode_any<const SIZE_MAX: usize>(
    input: &[u8],
    elements_left: usize,
) -> Result<Decoded<'_>, ProtocolError> {
    // Bytes beyond the limit never matter: a frame that needs them is refused below.
    let frame = input.get(..SIZE_MAX).unwrap_or(input);
    let mut cursor = Cursor::<SIZE_MAX> { frame_size: frame.len(), rest: frame, elements_left };
    match cursor.reply(0) {
        Ok(reply) => Ok(Decoded::Complete { reply, size: cursor.position() }),
        Err(Stop::Wrong(error)) => Err(error),
        Err(Stop::Short { missing }) => {
            let size_min = frame.len().saturating_add(missing);
            if size_min > SIZE_MAX {
                return Err(ProtocolError::ReplyTooLarge);
            }
            Ok(Decoded::Partial { size_min })
        }
    }
}

/// A walk over one frame.
///
/// ```text
///  0            position()                     frame_size ≤ SIZE_MAX
///  ├── read ────────┼────────── rest ──────────────┤
/// ```
struct Cursor<'a, const SIZE_MAX: usize> {
    frame_size: usize,
    rest: &'a [u8],
    /// Number of elements that later headers of this frame may announce.
    elements_left: usize,
}

/// Why a walk ended before the reply did.
enum Stop {
    /// The bytes ran out; fewer than `missing` more of them change nothing.
    Short {
        missing: usize,
    },
    Wrong(ProtocolError),
}

impl From<ProtocolError> for Stop {
    fn from(error: ProtocolError) -> Stop {
        Stop::Wrong(error)
    }
}

impl<'a, const SIZE_MAX: usize> Cursor<'a, SIZE_MAX> {
    fn position(&self) -> usize {
        self.frame_size.saturating_sub(self.rest.len())
    }

    /// Reads a reply inside `depth` others. Recurses through [`Cursor::array`], at most [`REPLY_DEPTH_MAX`]
    /// deep.
    fn reply(&mut self, depth: usize) -> Result<Reply<'a>, Stop> {
        match self.byte()? {
            b'+' => Ok(Reply::Simple(self.line()?)),
            b'-' => Ok(Reply::Error(self.line()?)),
            b':' => Ok(Reply::Integer(self.integer()?)),
            b'$' => match self.length(SIZE_MAX, ProtocolError::ReplyTooLarge)? {
                Some(size) => Ok(Reply::Bulk(self.bulk(size)?)),
                None => Ok(Reply::NullBulk),
            },
            b'*' if depth >= REPLY_DEPTH_MAX => Err(ProtocolError::NestingTooDeep.into()),
            b'*' => match self.length(self.elements_left, ProtocolError::ElementsTooMany)? {
                Some(count) => Ok(Reply::Array(self.array(count, depth)?)),
                None => Ok(Reply::NullArray),
            },
            kind => self.reply_of_resp3(kind, depth),
        }
    }

    /// Reads a reply of a RESP3 type. Not inlined, and with its own check of the depth: with the check in
    /// [`Cursor::reply`], RESP2 arrays take 3 % more instructions.
    #[inline(never)]
    fn reply_of_resp3(&mut self, kind: u8, depth: usize) -> Result<Reply<'a>, Stop> {
        match kind {
            b'%' | b'~' | b'|' if depth >= REPLY_DEPTH_MAX => Err(ProtocolError::NestingTooDeep.into()),
            b'|' => {
                self.skip_attributes(depth)?;
                self.reply(depth)
            }
            b'_' => self.expect(b"\r\n", ProtocolError::LineBreak).map(|()| Reply::Null),
            b'#' => Ok(Reply::Boolean(self.boolean()?)),
            b',' => Ok(Reply::Double(self.number_text(true)?)),
            b'(' => Ok(Reply::BigNumber(self.number_text(false)?)),
            b'!' => {
                let size = self.size(SIZE_MAX, ProtocolError::ReplyTooLarge)?;
                Ok(Reply::BlobError(self.bulk(size)?))
            }
            b'=' => self.verbatim(),
            b'%' => {
                let pair_count = self.size(self.elements_left / 2, ProtocolError::ElementsTooMany)?;
                Ok(Reply::Map(self.array(pair_count.saturating_mul(2), depth)?))
            }
            b'~' => {
                let count = self.size(self.elements_left, ProtocolError::ElementsTooMany)?;
                Ok(Reply::Set(self.array(count, depth)?))
            }
            // Servers push between replies, never inside one.
            b'>' if depth == 0 => {
                let count = self.size(self.elements_left, ProtocolError::ElementsTooMany)?;
                Ok(Reply::Push(self.array(count, depth)?))
            }
            other => Err(ProtocolError::TypeUnknown(other).into()),
        }
    }

    /// Skips attributes, after the type byte of the first. They describe the reply after them, and a client
    /// that does not know them must continue. A loop, because any number of attributes may follow each other.
    fn skip_attributes(&mut self, depth: usize) -> Result<(), Stop> {
        loop {
            let pair_count = self.size(self.elements_left / 2, ProtocolError::ElementsTooMany)?;
            self.array(pair_count.saturating_mul(2), depth)?;
            if !self.skip(b"|")? {
                return Ok(());
            }
        }
    }

    fn byte(&mut self) -> Result<u8, Stop> {
        let (&byte, rest) = self.rest.split_first().ok_or(Stop::Short { missing: 1 })?;
        self.rest = rest;
        Ok(byte)
    }

    /// Reads a line with its CRLF, and returns it without.
    fn line(&mut self) -> Result<&'a [u8], Stop> {
        // The longest allowed line and its CR. A longer line is refused whatever it contains.
        let window = self.rest.get(..=REPLY_LINE_SIZE_MAX).unwrap_or(self.rest);
        let Some(size) = memchr2(b'\r', b'\n', window) else {
            if window.len() > REPLY_LINE_SIZE_MAX {
                return Err(ProtocolError::LineTooLong.into());
            }
            return Err(Stop::Short { missing: 1 });
        };
        let (line, rest) = self.rest.split_at(size);
        self.rest = rest;
        self.expect(b"\r\n", ProtocolError::LineBreak)?;
        Ok(line)
    }

    fn expect<const SIZE: usize>(
        &mut self,
        bytes: &[u8; SIZE],
        otherwise: ProtocolError,
    ) -> Result<(), Stop> {
        for &expected in bytes {
            if self.byte()? != expected {
                return Err(otherwise.into());
            }
        }
        Ok(())
    }

    fn integer(&mut self) -> Result<i64, Stop> {
        let too_large = ProtocolError::NumberTooLarge;
        let integer = match self.byte()? {
            b'-' => 0i64.checked_sub_unsigned(self.negative(i64::MIN.unsigned_abs(), too_large)?),
            first => {
                let first = if first == b'+' { self.byte()? } else { first };
                0i64.checked_add_unsigned(self.number(first, i64::MAX.unsigned_abs(), too_large)?)
            }
        };
        Ok(integer.ok_or(too_large)?)
    }

    /// Reads the length of a bulk string or array; `None` for a null. A length above `max` gives `too_large`.
    fn length(&mut self, max: usize, too_large: ProtocolError) -> Result<Option<usize>, Stop> {
        match self.byte()? {
            b'-' => {
                self.negative(1, ProtocolError::LengthNegative)?;
                Ok(None)
            }
            first => Ok(Some(self.size_from(first, max, too_large)?)),
        }
    }

    /// Reads the length of a type without a null form.
    fn size(&mut self, max: usize, too_large: ProtocolError) -> Result<usize, Stop> {
        match self.byte()? {
            b'-' => Err(ProtocolError::LengthNegative.into()),
            first => self.size_from(first, max, too_large),
        }
    }

    fn size_from(&mut self, first: u8, max: usize, too_large: ProtocolError) -> Result<usize, Stop> {
        let max = u64::try_from(max).unwrap_or(u64::MAX);
        let size = self.number(first, max, too_large)?;
        Ok(usize::try_from(size).map_err(|_| too_large)?)
    }

    /// Reads the number after a minus sign. Minus zero is invalid.
    fn negative(&mut self, max: u64, too_large: ProtocolError) -> Result<u64, Stop> {
        match self.byte()? {
            b'0' => Err(ProtocolError::NumberInvalid.into()),
            first => self.number(first, max, too_large),
        }
    }

    /// Reads decimal digits, the first of which is given, and their CRLF. Gives `too_large` at the first
    /// digit that exceeds `max`, so a number cannot be an endless line.
    fn number(&mut self, first: u8, max: u64, too_large: ProtocolError) -> Result<u64, Stop> {
        let mut number = digit(first)?;
        if number > max {
            return Err(too_large.into());
        }
        loop {
            match self.byte()? {
                b'\r' => break,
                b'\n' => return Err(ProtocolError::LineBreak.into()),
                // No digits may follow a leading zero.
                _ if number == 0 => return Err(ProtocolError::NumberInvalid.into()),
                byte => {
                    // All limits are far below `u64::MAX`, so a saturated number exceeds them.
                    number = number.saturating_mul(10).saturating_add(digit(byte)?);
                    if number > max {
                        return Err(too_large.into());
                    }
                }
            }
        }
        match self.byte()? {
            b'\n' => Ok(number),
            _ => Err(ProtocolError::LineBreak.into()),
        }
    }

    fn boolean(&mut self) -> Result<bool, Stop> {
        let is_true = match self.byte()? {
            b't' => true,
            b'f' => false,
            _ => return Err(ProtocolError::ValueInvalid.into()),
        };
        self.expect(b"\r\n", ProtocolError::LineBreak)?;
        Ok(is_true)
    }

    /// Reads a double, such as `-1.5e-7`, `inf` or `nan`, or a big number, and returns its text.
    fn number_text(&mut self, is_double: bool) -> Result<&'a [u8], Stop> {
        let line = self.rest;
        let behind_min = line.len().saturating_sub(REPLY_LINE_SIZE_MAX);
        self.skip(b"+-")?;
        if is_double && self.skip(b"i")? {
            self.expect(b"nf", ProtocolError::NumberInvalid)?;
        } else if is_double && self.skip(b"n")? {
            self.expect(b"an", ProtocolError::NumberInvalid)?;
        } else {
            self.digits(behind_min)?;
            if is_double && self.skip(b".")? {
                self.digits(behind_min)?;
            }
            if is_double && self.skip(b"eE")? {
                self.skip(b"+-")?;
                self.digits(behind_min)?;
            }
        }
        let size = line.len().saturating_sub(self.rest.len());
        let otherwise = match self.rest.first() {
            Some(b'\r' | b'\n') => ProtocolError::LineBreak,
            _ => ProtocolError::NumberInvalid,
        };
        self.expect(b"\r\n", otherwise)?;
        Ok(line.get(..size).unwrap_or_default())
    }

    /// Reads one or more digits. The line is too long if fewer than `behind_min` bytes follow a digit.
    fn digits(&mut self, behind_min: usize) -> Result<(), Stop> {
        digit(self.byte()?)?;
        loop {
            if self.rest.len() < behind_min {
                return Err(ProtocolError::LineTooLong.into());
            }
            if !self.skip(b"0123456789")? {
                return Ok(());
            }
        }
    }

    /// Reads the next byte if it is one of `bytes`. Returns whether it is.
    fn skip(&mut self, bytes: &[u8]) -> Result<bool, Stop> {
        let (next, rest) = self.rest.split_first().ok_or(Stop::Short { missing: 1 })?;
        let is_one = bytes.contains(next);
        if is_one {
            self.rest = rest;
        }
        Ok(is_one)
    }

    /// Reads the length of a verbatim string, its format, a colon, and the text with its CRLF.
    fn verbatim(&mut self) -> Result<Reply<'a>, Stop> {
        // A length too small for the format is refused at the byte that ends it.
        if let [b'0', ..] | [b'1'..=b'3', b'\r', ..] = self.rest {
            return Err(ProtocolError::ValueInvalid.into());
        }
        let size = self.size(SIZE_MAX, ProtocolError::ReplyTooLarge)?;
        self.check_room(size)?;
        let Some((&[a, b, c, colon], behind)) = self.rest.split_first_chunk() else {
            return Err(Stop::Short { missing: b"txt:".len().saturating_sub(self.rest.len()) });
        };
        if colon != b':' {
            return Err(ProtocolError::ValueInvalid.into());
        }
        self.rest = behind;
        let text = self.bulk(size.saturating_sub(b"txt:".len()))?;
        Ok(Reply::Verbatim { format: [a, b, c], text })
    }

    /// Refuses a too large string at its header, so that the inbox never grows for it.
    fn check_room(&self, size: usize) -> Result<(), ProtocolError> {
        let end = self.position().saturating_add(size).saturating_add(b"\r\n".len());
        if end > SIZE_MAX { Err(ProtocolError::ReplyTooLarge) } else { Ok(()) }
    }

    /// Reads the `size` bytes of a bulk string and their CRLF.
    fn bulk(&mut self, size: usize) -> Result<&'a [u8], Stop> {
        self.check_room(size)?;
        let Some((bytes, rest)) = self.rest.split_at_checked(size) else {
            // Waits for the byte after the string too, which may already be wrong.
            let missing = size.saturating_sub(self.rest.len()).saturating_add(1);
            return Err(Stop::Short { missing });
        };
        self.rest = rest;
        self.expect(b"\r\n", ProtocolError::BulkUnterminated)?;
        Ok(bytes)
    }

    /// Checks the `count` elements of a reply inside `depth` others.
    fn array(&mut self, count: usize, depth: usize) -> Result<Array<'a>, Stop> {
        self.elements_left = self.elements_left.saturating_sub(count);
        let elements = self.rest;
        for _ in 0..count {
            self.reply(depth.saturating_add(1))?;
        }
        let size = elements.len().saturating_sub(self.rest.len());
        Ok(Array { count, body: elements.get(..size).unwrap_or_default() })
    }
}

fn digit(byte: u8) -> Result<u64, ProtocolError> {
    match byte {
        b'0'..=b'9' => Ok(u64::from(byte.wrapping_sub(b'0'))),
        _ => Err(ProtocolError::NumberInvalid),
    }
}

#[cfg(test)]
mod tests;
