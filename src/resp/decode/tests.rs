use ProtocolError::*;

use super::*;

/// One whole reply and how it is shown.
const GOOD: &[(&[u8], &str)] = &[
    (b"+OK\r\n", r#"Simple("OK")"#),
    (b"+\r\n", r#"Simple("")"#),
    (b"+OKAY\r\n", r#"Simple("OKAY")"#),
    (b"+\0\xff:$*\r\n", r#"Simple("\x00\xff:$*")"#),
    (b"-ERR unknown command\r\n", r#"Error("ERR unknown command")"#),
    (b"-\r\n", r#"Error("")"#),
    (b":0\r\n", "Integer(0)"),
    (b":1\r\n", "Integer(1)"),
    (b":-1\r\n", "Integer(-1)"),
    (b":10\r\n", "Integer(10)"),
    (b":9223372036854775807\r\n", "Integer(9223372036854775807)"),
    (b":-9223372036854775808\r\n", "Integer(-9223372036854775808)"),
    (b"$0\r\n\r\n", r#"Bulk("")"#),
    (b"$1\r\n1\r\n", r#"Bulk("1")"#),
    (b"$2\r\n\r\n\r\n", r#"Bulk("\r\n")"#),
    (b"$11\r\n:0\r\n+OK\r\n\0\xff\r\n", r#"Bulk(":0\r\n+OK\r\n\x00\xff")"#),
    (b"$-1\r\n", "NullBulk"),
    (b"*-1\r\n", "NullArray"),
    (b"*0\r\n", "Array([])"),
    (b"*2\r\n$4\r\nBUSY\r\n:42\r\n", r#"Array([Bulk("BUSY"), Integer(42)])"#),
    (b"*4\r\n+OK\r\n$-1\r\n*-1\r\n-NO\r\n", r#"Array([Simple("OK"), NullBulk, NullArray, Error("NO")])"#),
    (
        b"*3\r\n*2\r\n:1\r\n*0\r\n:2\r\n*1\r\n:3\r\n",
        "Array([Array([Integer(1), Array([])]), Integer(2), Array([Integer(3)])])",
    ),
    (
        b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:8\r\n",
        "Array([Array([Array([Array([Array([Array([Array([Array([Integer(8)])])])])])])])])",
    ),
];

/// The beginning of a reply and the size from which on more may be known.
const PARTIAL: &[(&[u8], usize)] = &[
    (b"", 1),
    (b"+", 2),
    (b"+OK", 4),
    (b"+OK\r", 5),
    (b"-ERR", 5),
    (b":", 2),
    (b":-", 3),
    (b":1", 3),
    (b":1\r", 4),
    (b"$", 2),
    (b"$-", 3),
    (b"$-1\r", 5),
    (b"$3", 3),
    (b"$3\r\n", 8),
    (b"$3\r\nab", 8),
    (b"$3\r\nabc", 8),
    (b"$3\r\nabc\r", 9),
    (b"$100000\r\nabc", 100_010),
    (b"*2\r\n", 5),
    (b"*2\r\n:1\r\n", 9),
    (b"*2\r\n:1\r\n$70\r\n", 84),
    (b"*1\r\n*1\r\n", 9),
];

/// Bytes that end in the very one that makes them wrong.
const BAD: &[(&[u8], ProtocolError)] = &[
    (b"x", TypeUnknown(b'x')),
    (b"\r", TypeUnknown(b'\r')),
    (b"\n", TypeUnknown(b'\n')),
    (b"\0", TypeUnknown(0)),
    // RESP3 is never asked for.
    (b"_", TypeUnknown(b'_')),
    (b"%", TypeUnknown(b'%')),
    (b"*2\r\n:1\r\nx", TypeUnknown(b'x')),
    (b"+OK\n", LineBreak),
    (b"+OK\rX", LineBreak),
    (b"+OK\r\r", LineBreak),
    (b"-ERR\n", LineBreak),
    (b":1\n", LineBreak),
    (b":0\n", LineBreak),
    (b":1\rX", LineBreak),
    (b"$3\n", LineBreak),
    (b"$-1\n", LineBreak),
    (b"$-1\rX", LineBreak),
    (b"*1\rX", LineBreak),
    (b":\r", NumberInvalid),
    (b":\n", NumberInvalid),
    (b":+", NumberInvalid),
    (b":-\r", NumberInvalid),
    (b":--", NumberInvalid),
    (b":-0", NumberInvalid),
    (b":00", NumberInvalid),
    (b":01", NumberInvalid),
    (b":1 ", NumberInvalid),
    (b":1.", NumberInvalid),
    (b":1-", NumberInvalid),
    (b": ", NumberInvalid),
    (b":\xb2", NumberInvalid),
    (b"$\r", NumberInvalid),
    (b"$+", NumberInvalid),
    (b"$03", NumberInvalid),
    (b"$-0", NumberInvalid),
    (b"$-x", NumberInvalid),
    (b"$-1x", NumberInvalid),
    (b"$?", NumberInvalid),
    (b"*\r", NumberInvalid),
    (b"*+", NumberInvalid),
    (b"*01", NumberInvalid),
    (b"*-0", NumberInvalid),
    (b":9223372036854775808", NumberTooLarge),
    (b":-9223372036854775809", NumberTooLarge),
    (b":92233720368547758070", NumberTooLarge),
    // Modulo 2^64 this would be a number within bounds.
    (b":20000000000000000000", NumberTooLarge),
    (b"$-2", LengthNegative),
    (b"$-10", LengthNegative),
    (b"*-2", LengthNegative),
    (b"*-11", LengthNegative),
    (b"$3\r\nabcd", BulkUnterminated),
    (b"$3\r\nabc\rX", BulkUnterminated),
    (b"$3\r\nabc\n", BulkUnterminated),
    (b"$0\r\n+", BulkUnterminated),
    (b"$1048577", ReplyTooLarge),
    (b"$9999999", ReplyTooLarge),
    // A string of exactly the limit leaves no room for its own header.
    (b"$1048576\r\n", ReplyTooLarge),
    (b"$1048565\r\n", ReplyTooLarge),
    (b"*1025", ElementsTooMany),
    (b"*4294", ElementsTooMany),
    (b"*1024\r\n*1", ElementsTooMany),
    (b"*1000\r\n*24\r\n*1", ElementsTooMany),
    // Said at the type byte, so a null array is as much too deep as any other.
    (b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*", NestingTooDeep),
];

/// Whole lines of the list of bad replies that every implementation should know.
const BAD_LINES: &[(&[u8], ProtocolError)] = &[
    (b"$99999999999\r\n", ReplyTooLarge),
    (b"$18446744073709551617\r\n", ReplyTooLarge),
    (b"$-2\r\n", LengthNegative),
    (b"*4294967295\r\n", ElementsTooMany),
    (b"*4294967297\r\n", ElementsTooMany),
    (b":9999999999999999999999\r\n", NumberTooLarge),
    (b":+5\r\n", NumberInvalid),
    (b":007\r\n", NumberInvalid),
    (b":5\r:6\r\n", LineBreak),
    (b"+OK\n+OK\r\n", LineBreak),
    (b"$2\r\nOK:1\r\n", BulkUnterminated),
    (b"HTTP/1.1 400 Bad Request\r\n", TypeUnknown(b'H')),
];

fn rows() -> impl Iterator<Item = &'static [u8]> {
    let bad = BAD.iter().chain(BAD_LINES).map(|row| row.0);
    GOOD.iter().map(|row| row.0).chain(PARTIAL.iter().map(|row| row.0)).chain(bad)
}

fn complete(input: &[u8]) -> (Reply<'_>, usize) {
    match decode(input) {
        Ok(Decoded::Complete { reply, size }) => (reply, size),
        other => panic!("{}: {other:?}", input.escape_ascii()),
    }
}

/// Replies, and the error, that a connection decodes from a stream in `pieces`. It waits for `size_min` bytes
/// before a second try.
fn receive<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<String>, Option<ProtocolError>) {
    let (mut inbox, mut size_min, mut replies) = (Vec::new(), 0, Vec::new());
    for piece in pieces {
        inbox.extend_from_slice(piece);
        while inbox.len() >= size_min {
            match decode(&inbox) {
                Ok(Decoded::Complete { reply, size }) => {
                    replies.push(format!("{reply:?}"));
                    inbox.drain(..size);
                    size_min = 1;
                }
                Ok(Decoded::Partial { size_min: wanted }) => size_min = wanted,
                Err(error) => return (replies, Some(error)),
            }
        }
    }
    (replies, None)
}

#[test]
fn good_replies_are_decoded_and_leave_what_follows() {
    for (input, shown) in GOOD {
        for tail in [&b""[..], b"+", b":1\r\n", b"garbage", b"\r\n"] {
            let stream = [input, tail].concat();
            let (reply, size) = complete(&stream);
            assert_eq!((format!("{reply:?}").as_str(), size), (*shown, input.len()));
        }
    }
}

#[test]
fn every_prefix_of_a_good_reply_is_partial() {
    for (input, _) in GOOD {
        for size in 0..input.len() {
            match decode(&input[..size]) {
                Ok(Decoded::Partial { size_min }) => assert!(size < size_min && size_min <= input.len()),
                other => panic!("{}: {other:?}", input[..size].escape_ascii()),
            }
        }
    }
}

#[test]
fn partial_gives_the_next_useful_size() {
    for &(input, size_min) in PARTIAL {
        assert_eq!(decode(input), Ok(Decoded::Partial { size_min }), "{}", input.escape_ascii());
    }
}

#[test]
fn bad_bytes_fail_at_the_first_wrong_one() {
    for (input, error) in BAD {
        let before = &input[..input.len() - 1];
        assert!(matches!(decode(before), Ok(Decoded::Partial { .. })), "{}", before.escape_ascii());
        for tail in [&b""[..], b"\r\n", b"0\r\n", b"+OK\r\n"] {
            let stream = [input, tail].concat();
            assert_eq!(decode(&stream), Err(*error), "{}", stream.escape_ascii());
        }
    }
    for (input, error) in BAD_LINES {
        assert_eq!(decode(input), Err(*error), "{}", input.escape_ascii());
    }
}

#[test]
fn any_split_decodes_like_one_piece() {
    for row in rows() {
        // A reply before and one behind, so that cuts fall on borders between replies too.
        let stream = [b"+OK\r\n", row, b":1\r\n"].concat();
        let whole = receive([&stream[..]]);
        assert_eq!(receive(stream.chunks(1)), whole, "{} by bytes", stream.escape_ascii());
        for first in 0..stream.len() {
            for second in first..stream.len() {
                let pieces = [&stream[..first], &stream[first..second], &stream[second..]];
                assert_eq!(receive(pieces), whole, "{} at {first}, {second}", stream.escape_ascii());
            }
        }
    }
}

#[test]
fn a_line_may_have_the_limit_exactly() {
    for kind in *b"+-" {
        let mut input = vec![b'a'; 1 + REPLY_LINE_SIZE_MAX];
        input[0] = kind;
        assert_eq!(decode(&input), Ok(Decoded::Partial { size_min: input.len() + 1 }));
        let longest = [&input, &b"\r\n"[..]].concat();
        assert_eq!(complete(&longest).1, longest.len());
        // Endless, ended too late, and broken too late are the same error: the first to come.
        for tail in [&b"a"[..], b"aaaa", b"a\r\n", b"a\n"] {
            assert_eq!(decode(&[&input, tail].concat()), Err(LineTooLong));
        }
    }
}

#[test]
fn a_reply_may_have_the_limit_exactly() {
    let largest = [&b"$1048564\r\n"[..], &vec![b'a'; 1_048_564], b"\r\n"].concat();
    assert_eq!(largest.len(), REPLY_SIZE_MAX);
    assert_eq!(complete(&largest).1, REPLY_SIZE_MAX);
    assert_eq!(decode(b"$1048565\r\n"), Err(ReplyTooLarge));
    // The same with the reply filled by lines, where no header says how large it will become.
    let line = [&b"+"[..], &[b'a'; 16_000], b"\r\n"].concat();
    let mut lines = [&b"*1024\r\n"[..], &line.repeat(65)].concat();
    lines.resize(REPLY_SIZE_MAX - 1, b'+');
    assert_eq!(decode(&lines), Ok(Decoded::Partial { size_min: REPLY_SIZE_MAX }));
    lines.push(b'+');
    assert_eq!(decode(&lines), Err(ReplyTooLarge));
    lines.extend_from_slice(b"\r\n");
    assert_eq!(decode(&lines), Err(ReplyTooLarge));
}

#[test]
fn elements_of_all_arrays_are_counted_together() {
    let flat = [&b"*1024\r\n"[..], &b":1\r\n".repeat(1024)].concat();
    let (Reply::Array(array), size) = complete(&flat) else { panic!("not an array") };
    assert_eq!((array.len(), array.iter().count(), size), (1024, 1024, flat.len()));
    // 2 + 511 + 511 elements.
    let inner = [&b"*511\r\n"[..], &b":1\r\n".repeat(511)].concat();
    let nested = [&b"*2\r\n"[..], &inner, &inner].concat();
    assert_eq!(complete(&nested).1, nested.len());
    assert_eq!(decode(&[&b"*2\r\n"[..], &inner, b"*512\r\n"].concat()), Err(ElementsTooMany));
}

#[test]
fn nesting_ends_at_the_limit() {
    let nested = |depth: usize| [&b"*1\r\n".repeat(depth)[..], b":1\r\n"].concat();
    for depth in 1..=REPLY_DEPTH_MAX {
        assert_eq!(complete(&nested(depth)).1, nested(depth).len());
    }
    for depth in [REPLY_DEPTH_MAX + 1, 100, 10_000, 200_000] {
        assert_eq!(decode(&nested(depth)), Err(NestingTooDeep));
    }
}

#[test]
fn a_large_string_is_not_scanned_again() {
    let stream = [&b"$1000000\r\n"[..], &vec![b'a'; 1_000_000], b"\r\n"].concat();
    let (mut size_min, mut tries) = (1, 0);
    while let Ok(Decoded::Partial { size_min: wanted }) = decode(&stream[..size_min]) {
        (size_min, tries) = (wanted, tries + 1);
    }
    // Ten bytes of header one at a time, the string at once, CR and LF.
    assert_eq!((size_min, tries), (stream.len(), 11));
}
