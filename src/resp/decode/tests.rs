use ProtocolError::*;

use super::*;

/// One complete reply and its `Debug` form.
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
    (b"_\r\n", "Null"),
    (b"#t\r\n", "Boolean(true)"),
    (b"#f\r\n", "Boolean(false)"),
    (b",10\r\n", "Double(10)"),
    (b",-0\r\n", "Double(-0)"),
    (b",+1.50\r\n", "Double(+1.50)"),
    (b",1.7976931348623157E+308\r\n", "Double(1.7976931348623157E+308)"),
    (b",-5e-324\r\n", "Double(-5e-324)"),
    (b",inf\r\n", "Double(inf)"),
    (b",-inf\r\n", "Double(-inf)"),
    (b",nan\r\n", "Double(nan)"),
    // Redis before 7.2 sends its sign.
    (b",-nan\r\n", "Double(-nan)"),
    (b"(0\r\n", "BigNumber(0)"),
    (
        b"(-3492890328409238509324850943850943825024385\r\n",
        "BigNumber(-3492890328409238509324850943850943825024385)",
    ),
    (b"!0\r\n\r\n", r#"BlobError("")"#),
    (b"!7\r\nERR\r\n\0x\r\n", r#"BlobError("ERR\r\n\x00x")"#),
    (b"=15\r\ntxt:Some string\r\n", r#"Verbatim("txt:Some string")"#),
    (b"=6\r\nmkd:\r\n\r\n", r#"Verbatim("mkd:\r\n")"#),
    (b"=4\r\n:::\x3a\r\n", r#"Verbatim("::::")"#),
    (b"%0\r\n", "Map([])"),
    (b"%1\r\n$5\r\nproto\r\n:3\r\n", r#"Map([Bulk("proto"), Integer(3)])"#),
    (
        b"%2\r\n_\r\n%1\r\n#t\r\n*0\r\n~0\r\n$-1\r\n",
        "Map([Null, Map([Boolean(true), Array([])]), Set([]), NullBulk])",
    ),
    (b"~3\r\n:1\r\n:1\r\n_\r\n", "Set([Integer(1), Integer(1), Null])"),
    (b">0\r\n", "Push([])"),
    (b">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$0\r\n\r\n", r#"Push([Bulk("message"), Bulk("a"), Bulk("")])"#),
    // Attributes belong to the next reply, at any depth.
    (b"|1\r\n+ttl\r\n:9\r\n+OK\r\n", r#"Simple("OK")"#),
    (b"|0\r\n|1\r\n*1\r\n|0\r\n_\r\n~0\r\n$-1\r\n", "NullBulk"),
    (b"*2\r\n:1\r\n|1\r\n+ttl\r\n:9\r\n:2\r\n", "Array([Integer(1), Integer(2)])"),
    (b"%1\r\n|0\r\n+a\r\n|0\r\n*0\r\n", r#"Map([Simple("a"), Array([])])"#),
    (b"|0\r\n>1\r\n|0\r\n+x\r\n", r#"Push([Simple("x")])"#),
    (b":+0\r\n", "Integer(0)"),
    (b":+9223372036854775807\r\n", "Integer(9223372036854775807)"),
    (
        b">2\r\n+x\r\n%1\r\n~1\r\n,1.5\r\n*-1\r\n",
        r#"Push([Simple("x"), Map([Set([Double(1.5)]), NullArray])])"#,
    ),
];

/// The beginning of a reply, and the size from which decoding may succeed.
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
    (b"_", 2),
    (b"#", 2),
    (b"#t\r", 4),
    (b",-", 3),
    (b",1.", 4),
    (b",1e+", 5),
    (b",in", 4),
    (b"(12\r", 5),
    (b"!9\r\n", 14),
    (b"=9\r\n", 8),
    (b"=9\r\ntxt", 8),
    (b"=9\r\ntxt:", 14),
    (b"%2\r\n", 5),
    (b"%1\r\n:1\r\n", 9),
    (b"~1\r\n", 5),
    (b"|0\r\n", 5),
    (b"|1\r\n:1\r\n", 9),
    (b"*1\r\n|0\r\n$70\r\n", 84),
    (b":+", 3),
    (b">1\r\n$70\r\n", 80),
];

/// Bytes that end with the first wrong one.
const BAD: &[(&[u8], ProtocolError)] = &[
    (b"x", TypeUnknown(b'x')),
    (b"\r", TypeUnknown(b'\r')),
    (b"\n", TypeUnknown(b'\n')),
    (b"\0", TypeUnknown(0)),
    // Streamed types.
    (b";", TypeUnknown(b';')),
    (b".", TypeUnknown(b'.')),
    (b"$?", NumberInvalid),
    (b"%?", NumberInvalid),
    (b"*?", NumberInvalid),
    (b"~?", NumberInvalid),
    (b"|?", NumberInvalid),
    (b"|-", LengthNegative),
    (b"|513", ElementsTooMany),
    (b"|256\r\n|257", ElementsTooMany),
    (b"*1\r\n|0\r\n>", TypeUnknown(b'>')),
    (b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n|", NestingTooDeep),
    (b":++", NumberInvalid),
    (b":+-", NumberInvalid),
    (b":+\r", NumberInvalid),
    (b":+01", NumberInvalid),
    (b":+9223372036854775808", NumberTooLarge),
    (b"*1\r\n>", TypeUnknown(b'>')),
    (b"%1\r\n_\r\n>", TypeUnknown(b'>')),
    (b">1\r\n>", TypeUnknown(b'>')),
    (b"_x", LineBreak),
    (b"_\n", LineBreak),
    (b"_\rX", LineBreak),
    (b"#x", ValueInvalid),
    (b"#T", ValueInvalid),
    (b"#\r", ValueInvalid),
    (b"#tr", LineBreak),
    (b"#f\n", LineBreak),
    (b",\r", NumberInvalid),
    (b",.", NumberInvalid),
    (b",--", NumberInvalid),
    (b",1..", NumberInvalid),
    (b",1.\r", NumberInvalid),
    (b",1.e", NumberInvalid),
    (b",1e\r", NumberInvalid),
    (b",1e.", NumberInvalid),
    (b",1e5.", NumberInvalid),
    (b",1e5e", NumberInvalid),
    (b",1x", NumberInvalid),
    (b",1\n", LineBreak),
    (b",1\rX", LineBreak),
    (b",inf\n", LineBreak),
    (b",I", NumberInvalid),
    (b",ix", NumberInvalid),
    (b",infi", NumberInvalid),
    (b",na\r", NumberInvalid),
    (b",nan(", NumberInvalid),
    (b"(\r", NumberInvalid),
    (b"(1.", NumberInvalid),
    (b"(1e", NumberInvalid),
    (b"(i", NumberInvalid),
    (b"(n", NumberInvalid),
    (b"(-+", NumberInvalid),
    (b"!-", LengthNegative),
    (b"!01", NumberInvalid),
    (b"!2\r\nabc", BulkUnterminated),
    (b"=-", LengthNegative),
    (b"=0", ValueInvalid),
    (b"=3\r", ValueInvalid),
    (b"=3\n", LineBreak),
    (b"=4\r\ntxt.", ValueInvalid),
    (b"=900\r\ntxtt", ValueInvalid),
    (b"=5\r\ntxt:ab", BulkUnterminated),
    (b"%-", LengthNegative),
    (b"~-", LengthNegative),
    (b">-", LengthNegative),
    (b">+", NumberInvalid),
    (b"%513", ElementsTooMany),
    (b"%100\r\n%413", ElementsTooMany),
    (b"*1023\r\n%1", ElementsTooMany),
    (b"~1025", ElementsTooMany),
    (b">1025", ElementsTooMany),
    (b"!1048565\r\n", ReplyTooLarge),
    (b"=1048565\r\n", ReplyTooLarge),
    (b"=1048577", ReplyTooLarge),
    (b">1\r\n~1\r\n*1\r\n~1\r\n*1\r\n~1\r\n*1\r\n~1\r\n%", NestingTooDeep),
    (b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n~", NestingTooDeep),
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
    // Modulo 2^64 this number would be within bounds.
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
    // Reported at the type byte, so even a null array is too deep.
    (b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*", NestingTooDeep),
];

/// Malformed replies that every implementation should refuse.
const BAD_LINES: &[(&[u8], ProtocolError)] = &[
    (b"$99999999999\r\n", ReplyTooLarge),
    (b"$18446744073709551617\r\n", ReplyTooLarge),
    (b"$-2\r\n", LengthNegative),
    (b"*4294967295\r\n", ElementsTooMany),
    (b"*4294967297\r\n", ElementsTooMany),
    (b":9999999999999999999999\r\n", NumberTooLarge),
    (b"$+5\r\n", NumberInvalid),
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

/// Replies and error of a connection that reads a stream in `pieces`. It waits for `size_min` bytes
/// before it decodes again.
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

/// The four [`Fixed`] replies equal their general form.
#[test]
fn fixed_replies_are_known_by_one_look() {
    for fixed in [Fixed::Ok, Fixed::Null, Fixed::Zero, Fixed::One] {
        let is_it = |bytes: &[u8]| {
            decode_any::<REPLY_SIZE_MAX>(bytes, 0)
                == Ok(Decoded::Complete { reply: fixed.reply(), size: bytes.len() })
        };
        let (bytes, _) = GOOD.iter().find(|(bytes, _)| is_it(bytes)).expect("it is in the table");
        assert_eq!(decode_fixed(bytes), Some((fixed, bytes.len())));
    }
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
        // One reply before and one after, so that cuts also fall between replies.
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
        // Endless, ended too late, and malformed too late give the same error, the first one.
        for tail in [&b"a"[..], b"aaaa", b"a\r\n", b"a\n"] {
            assert_eq!(decode(&[&input, tail].concat()), Err(LineTooLong));
        }
    }
    for start in [&b",1"[..], b",-1", b",1.1", b",1e1", b",1.1e-1", b"(1", b"(-1"] {
        let mut input = start.to_vec();
        input.resize(1 + REPLY_LINE_SIZE_MAX, b'1');
        assert_eq!(decode(&input), Ok(Decoded::Partial { size_min: input.len() + 1 }));
        let longest = [&input, &b"\r\n"[..]].concat();
        assert_eq!(complete(&longest).1, longest.len());
        for tail in [&b"1"[..], b"1111", b"1\r\n", b"1x"] {
            assert_eq!(decode(&[&input, tail].concat()), Err(LineTooLong));
        }
    }
}

#[test]
fn a_reply_may_have_the_limit_exactly() {
    for kind in *b"$!=" {
        let largest = [&[kind], &b"1048564\r\ntxt:"[..], &vec![b'a'; 1_048_560], b"\r\n"].concat();
        assert_eq!(largest.len(), REPLY_SIZE_MAX);
        assert_eq!(complete(&largest).1, REPLY_SIZE_MAX);
        assert_eq!(decode(&[&[kind], &b"1048565\r\n"[..]].concat()), Err(ReplyTooLarge));
    }
    // The same for a reply of lines, whose size no header announces.
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
    for header in [&b"~1024\r\n"[..], b">1024\r\n", b"%512\r\n"] {
        let flat = [header, &b":1\r\n".repeat(1024)].concat();
        let (Reply::Set(array) | Reply::Push(array) | Reply::Map(array), size) = complete(&flat) else {
            panic!("no elements")
        };
        assert_eq!((array.len(), array.iter().count(), array.pairs().count()), (1024, 1024, 512));
        assert_eq!(size, flat.len());
    }
    // 2 + 511 + 2 * 255 elements; the one left is no pair.
    let nested = [&b"~2\r\n"[..], &inner, b"%255\r\n", &b":1\r\n".repeat(510)].concat();
    assert_eq!(complete(&nested).1, nested.len());
    assert_eq!(decode(&[&b"~2\r\n"[..], &inner, b"%256\r\n"].concat()), Err(ElementsTooMany));
}

#[test]
fn pairs_leave_out_a_last_element_alone() {
    let (Reply::Array(array), _) = complete(b"*3\r\n+a\r\n:1\r\n+b\r\n") else { panic!("not an array") };
    assert!(array.pairs().eq([(Reply::Simple(b"a"), Reply::Integer(1))]));
}

#[test]
fn nesting_ends_at_the_limit() {
    for header in [&b"*1\r\n"[..], b"~1\r\n", b"%1\r\n_\r\n"] {
        let nested = |depth: usize| [&header.repeat(depth)[..], b":1\r\n"].concat();
        for depth in 1..=REPLY_DEPTH_MAX {
            assert_eq!(complete(&nested(depth)).1, nested(depth).len());
        }
        for depth in [REPLY_DEPTH_MAX + 1, 100, 10_000, 100_000] {
            assert_eq!(decode(&nested(depth)), Err(NestingTooDeep));
        }
        // The outermost is a push.
        let pushed = |depth: usize| [b">1\r\n", &nested(depth)[..]].concat();
        assert!(matches!(complete(&pushed(REPLY_DEPTH_MAX - 1)).0, Reply::Push(_)));
        assert_eq!(decode(&pushed(REPLY_DEPTH_MAX)), Err(NestingTooDeep));
    }
}

#[test]
fn any_number_of_attributes_is_skipped() {
    // As many as fit; attributes do not recurse.
    let mut input = b"|0\r\n".repeat(REPLY_SIZE_MAX / 4 - 1);
    input.extend_from_slice(b":1\r\n");
    assert_eq!(complete(&input), (Reply::Integer(1), REPLY_SIZE_MAX));
    input.splice(..0, *b"|0\r\n");
    assert_eq!(decode(&input), Err(ReplyTooLarge));
}

#[test]
fn plain_replies_are_of_resp2() {
    for (input, plain) in [
        (&b"_\r\n"[..], Reply::NullBulk),
        (b"*-1\r\n", Reply::NullBulk),
        (b"$-1\r\n", Reply::NullBulk),
        (b"#t\r\n", Reply::Integer(1)),
        (b"#f\r\n", Reply::Integer(0)),
        (b",10\r\n", Reply::Integer(10)),
        (b"(-9223372036854775808\r\n", Reply::Integer(i64::MIN)),
        (b"(9223372036854775808\r\n", Reply::Bulk(b"9223372036854775808")),
        (b",1.5\r\n", Reply::Bulk(b"1.5")),
        (b",inf\r\n", Reply::Bulk(b"inf")),
        (b"!7\r\nERR a\nb\r\n", Reply::Error(b"ERR a\nb")),
        (b"=6\r\ntxt:OK\r\n", Reply::Bulk(b"OK")),
        (b"+OK\r\n", Reply::Simple(b"OK")),
    ] {
        assert_eq!(complete(input).0.plain(), plain, "{}", input.escape_ascii());
    }
    assert!(matches!(complete(b"~1\r\n_\r\n").0.plain(), Reply::Array(array) if array.len() == 1));
    // These types imply RESP3.
    assert!(matches!(complete(b"%0\r\n").0.plain(), Reply::Map(_)));
    assert!(matches!(complete(b">0\r\n").0.plain(), Reply::Push(_)));
}

#[test]
fn a_large_string_is_not_scanned_again() {
    let stream = [&b"$1000000\r\n"[..], &vec![b'a'; 1_000_000], b"\r\n"].concat();
    let (mut size_min, mut tries) = (1, 0);
    while let Ok(Decoded::Partial { size_min: wanted }) = decode(&stream[..size_min]) {
        (size_min, tries) = (wanted, tries + 1);
    }
    // Ten header bytes one at a time, the string at once, then CR and LF.
    assert_eq!((size_min, tries), (stream.len(), 11));
}
