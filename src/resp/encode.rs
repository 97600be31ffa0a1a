//! Encodes commands and replies, always appending to a buffer that the caller reuses.

use memchr::memchr2;

use super::{Array, Reply};

/// Appends a command: an array of bulk strings, beginning with the name. Arguments may contain any bytes.
///
/// ```
/// let mut out = Vec::new();
/// redlatch::resp::encode_command(&mut out, &[b"GET", b"a key"]);
/// assert_eq!(out, b"*2\r\n$3\r\nGET\r\n$5\r\na key\r\n");
/// ```
pub fn encode_command(out: &mut Vec<u8>, args: &[&[u8]]) {
    encode_array_header(out, args.len());
    for arg in args {
        encode_bulk(out, arg);
    }
}

/// Appends the header of an array of `count` elements, which the caller appends next.
///
/// ```
/// use redlatch::resp::{Reply, encode_array_header, encode_reply};
///
/// let mut out = Vec::new();
/// encode_array_header(&mut out, 2);
/// encode_reply(&mut out, &Reply::Integer(7));
/// encode_reply(&mut out, &Reply::NullBulk);
/// assert_eq!(out, b"*2\r\n:7\r\n$-1\r\n");
/// ```
#[inline]
pub fn encode_array_header(out: &mut Vec<u8>, count: usize) {
    encode_header(out, b'*', count);
}

/// Appends a bulk string.
///
/// ```
/// let mut out = Vec::new();
/// redlatch::resp::encode_bulk(&mut out, b"any\r\nbytes");
/// assert_eq!(out, b"$10\r\nany\r\nbytes\r\n");
/// ```
#[inline]
pub fn encode_bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    encode_bulk_header(out, bytes.len());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// Appends the header of a bulk string of `size` bytes; the caller appends the bytes and CRLF.
#[inline]
pub(crate) fn encode_bulk_header(out: &mut Vec<u8>, size: usize) {
    encode_header(out, b'$', size);
}

/// Appends a reply as a master would send it. A decoded reply restores the bytes it was decoded from.
///
/// # Panics
///
/// If the line of a status, error, double or big number contains CR or LF, which would corrupt the stream. No
/// decoded line does.
///
/// ```
/// use redlatch::resp::{Reply, encode_reply};
///
/// let mut out = Vec::new();
/// encode_reply(&mut out, &Reply::Error(b"LOADING"));
/// assert_eq!(out, b"-LOADING\r\n");
/// ```
pub fn encode_reply(out: &mut Vec<u8>, reply: &Reply<'_>) {
    match reply {
        Reply::Simple(line) => encode_line(out, b'+', line),
        Reply::Error(line) => encode_line(out, b'-', line),
        Reply::Integer(number) => {
            out.extend_from_slice(if *number < 0 { b":-" } else { b":" });
            push_decimal(out, number.unsigned_abs());
            out.extend_from_slice(b"\r\n");
        }
        Reply::Bulk(bytes) => encode_bulk(out, bytes),
        Reply::NullBulk => out.extend_from_slice(b"$-1\r\n"),
        Reply::Array(array) => encode_elements(out, b'*', array.count, array),
        Reply::NullArray => out.extend_from_slice(b"*-1\r\n"),
        Reply::Null => out.extend_from_slice(b"_\r\n"),
        Reply::Boolean(is_true) => out.extend_from_slice(if *is_true { b"#t\r\n" } else { b"#f\r\n" }),
        Reply::Double(text) => encode_line(out, b',', text),
        Reply::BigNumber(text) => encode_line(out, b'(', text),
        Reply::BlobError(bytes) => encode_string(out, b'!', &[bytes]),
        Reply::Verbatim { format, text } => encode_string(out, b'=', &[format, b":", text]),
        Reply::Map(array) => encode_elements(out, b'%', array.count / 2, array),
        Reply::Set(array) => encode_elements(out, b'~', array.count, array),
        Reply::Push(array) => encode_elements(out, b'>', array.count, array),
    }
}

fn encode_string(out: &mut Vec<u8>, kind: u8, parts: &[&[u8]]) {
    encode_header(out, kind, parts.iter().map(|part| part.len()).sum());
    parts.iter().for_each(|part| out.extend_from_slice(part));
    out.extend_from_slice(b"\r\n");
}

/// Appends decoded elements in their only encoding.
fn encode_elements(out: &mut Vec<u8>, kind: u8, count: usize, elements: &Array<'_>) {
    encode_header(out, kind, count);
    out.extend_from_slice(elements.body);
}

fn encode_line(out: &mut Vec<u8>, kind: u8, line: &[u8]) {
    assert!(memchr2(b'\r', b'\n', line).is_none(), "a line of a reply holds a line break");
    out.push(kind);
    out.extend_from_slice(line);
    out.extend_from_slice(b"\r\n");
}

#[inline(always)]
fn encode_header(out: &mut Vec<u8>, kind: u8, length: usize) {
    // One or two digits, as nearly all lengths of a lock command have, are appended in one piece.
    match u8::try_from(length) {
        Ok(length @ 0..=9) => out.extend_from_slice(&[kind, ascii(length), b'\r', b'\n']),
        Ok(length @ 10..=99) => {
            out.extend_from_slice(&[kind, ascii(length / 10), ascii(length % 10), b'\r', b'\n']);
        }
        _ => {
            out.push(kind);
            push_decimal(out, u64::try_from(length).unwrap_or(u64::MAX));
            out.extend_from_slice(b"\r\n");
        }
    }
}

fn push_decimal(out: &mut Vec<u8>, mut number: u64) {
    // Filled from the back. `u64::MAX` has 20 digits.
    let mut digits = [0; 20];
    let mut unused = digits.len();
    for digit in digits.iter_mut().rev() {
        *digit = ascii(u8::try_from(number % 10).unwrap_or_default());
        unused = unused.saturating_sub(1);
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(digits.get(unused..).unwrap_or_default());
}

#[inline]
fn ascii(digit: u8) -> u8 {
    b'0'.wrapping_add(digit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::{Decoded, decode};

    fn decimal(number: u64) -> String {
        let mut out = Vec::new();
        push_decimal(&mut out, number);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn numbers_are_written_as_the_standard_library_does() {
        for exponent in 0..20 {
            let power = 10u64.pow(exponent);
            for number in [power - 1, power, power + 1] {
                assert_eq!(decimal(number), number.to_string());
            }
        }
        assert_eq!(decimal(u64::MAX), u64::MAX.to_string());
    }

    #[test]
    fn lengths_of_every_number_of_digits_are_written() {
        for length in (0..1100).chain([9_999, 10_000, 123_456]) {
            let mut out = b"kept".to_vec();
            encode_array_header(&mut out, length);
            assert_eq!(out, format!("kept*{length}\r\n").into_bytes());
            out.clear();
            encode_bulk(&mut out, &vec![b'a'; length]);
            assert_eq!(out, format!("${length}\r\n{}\r\n", "a".repeat(length)).into_bytes());
        }
    }

    #[test]
    fn a_command_is_an_array_of_any_bytes() {
        let mut out = Vec::new();
        encode_command(&mut out, &[b"SET", b"a\r\nkey\0", b"", b"NX", b"PX", b"30000"]);
        assert_eq!(
            out,
            b"*6\r\n$3\r\nSET\r\n$7\r\na\r\nkey\0\r\n$0\r\n\r\n$2\r\nNX\r\n$2\r\nPX\r\n$5\r\n30000\r\n"
        );
    }

    #[test]
    fn an_encoded_reply_decodes_to_itself() {
        let inner = decode(b"*2\r\n*1\r\n:-5\r\n$-1\r\n");
        let Ok(Decoded::Complete { reply: nested @ Reply::Array(array), .. }) = inner else {
            panic!("{inner:?}")
        };
        for reply in [
            Reply::Simple(b"OK"),
            Reply::Simple(b""),
            Reply::Error(b"ERR no such key"),
            Reply::Integer(0),
            Reply::Integer(-1),
            Reply::Integer(i64::MAX),
            Reply::Integer(i64::MIN),
            Reply::Bulk(b""),
            Reply::Bulk(b"\r\n\0\xff"),
            Reply::NullBulk,
            Reply::NullArray,
            nested,
            Reply::Null,
            Reply::Boolean(true),
            Reply::Boolean(false),
            Reply::Double(b"-1.50e+7"),
            Reply::BigNumber(b"-0123456789012345678901234567890"),
            Reply::BlobError(b"ERR\r\n\0\xff"),
            Reply::Verbatim { format: *b"txt", text: b"" },
            Reply::Verbatim { format: *b":\r\n", text: b"\r\n\0\xff" },
            Reply::Map(array),
            Reply::Set(array),
            Reply::Push(array),
        ] {
            let mut out = Vec::new();
            encode_reply(&mut out, &reply);
            assert_eq!(decode(&out), Ok(Decoded::Complete { reply, size: out.len() }));
        }
    }

    #[test]
    #[should_panic(expected = "line break")]
    fn a_line_break_in_a_status_panics() {
        encode_reply(&mut Vec::new(), &Reply::Simple(b"OK\r\n+OK"));
    }
}
