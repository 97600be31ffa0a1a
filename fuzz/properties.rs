//! What must hold for the codec for any bytes.
//!
//! Shared by the fuzz targets beside this file and by `tests/codec.rs`.

use redis_protocol::resp2::{decode::decode_range, types::RangeFrame};
use redis_protocol::resp3::decode::complete::decode_range as decode_range_of_resp3;
use redlatch::resp::{
    Array, Decoded, ProtocolError, Reply, decode, encode_array_header, encode_bulk, encode_reply,
};

/// The limits, repeated here so that a change cannot go unnoticed.
const REPLY_SIZE_MAX: usize = 1024 * 1024;
const DEPTH_MAX: usize = 8;

/// A reply that owns its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tree {
    Simple(Vec<u8>),
    Error(Vec<u8>),
    Integer(i64),
    Bulk(Vec<u8>),
    NullBulk,
    Array(Vec<Tree>),
    NullArray,
    Null,
    Boolean(bool),
    /// A type of RESP3 with its text: `,` `(` `!`, and `=` with format and colon.
    Text(u8, Vec<u8>),
    /// A type of RESP3 with its elements: `%` `~` `>`.
    Group(u8, Vec<Tree>),
}

impl Tree {
    /// Copies a reply by walking over it, which checks that an array has the announced number of elements.
    pub fn of(reply: &Reply<'_>) -> Tree {
        match reply {
            Reply::Simple(line) => Tree::Simple(line.to_vec()),
            Reply::Error(line) => Tree::Error(line.to_vec()),
            Reply::Integer(number) => Tree::Integer(*number),
            Reply::Bulk(bytes) => Tree::Bulk(bytes.to_vec()),
            Reply::NullBulk => Tree::NullBulk,
            Reply::Array(array) => Tree::Array(trees(array)),
            Reply::NullArray => Tree::NullArray,
            Reply::Null => Tree::Null,
            Reply::Boolean(is_true) => Tree::Boolean(*is_true),
            Reply::Double(text) => {
                assert!(std::str::from_utf8(text).is_ok_and(|text| text.parse::<f64>().is_ok()));
                Tree::Text(b',', text.to_vec())
            }
            Reply::BigNumber(text) => Tree::Text(b'(', text.to_vec()),
            Reply::BlobError(bytes) => Tree::Text(b'!', bytes.to_vec()),
            Reply::Verbatim { format, text } => Tree::Text(b'=', [format, &b":"[..], text].concat()),
            Reply::Map(array) => {
                let elements = trees(array);
                let pairs = array.pairs().flat_map(|(key, value)| [Tree::of(&key), Tree::of(&value)]);
                assert!(pairs.eq(elements.iter().cloned()), "pairs leave something out");
                Tree::Group(b'%', elements)
            }
            Reply::Set(array) => Tree::Group(b'~', trees(array)),
            Reply::Push(array) => Tree::Group(b'>', trees(array)),
        }
    }

    /// Generates a reply within the limits from bytes, random or chosen by a fuzzer.
    pub fn grow(source: &mut dyn FnMut() -> u8) -> Tree {
        Tree::grow_within(source, 0, &mut 200)
    }

    fn grow_within(source: &mut dyn FnMut() -> u8, depth: usize, elements_left: &mut usize) -> Tree {
        let kind = source();
        // Below 200, a byte still selects the RESP2 type of earlier versions, for saved inputs.
        match if kind < 200 { kind % 10 } else { 10 + kind % 10 } {
            0 | 1 => {
                Tree::Simple(grow_bytes(source).into_iter().filter(|byte| !b"\r\n".contains(byte)).collect())
            }
            2 => Tree::Error(grow_bytes(source).into_iter().filter(|byte| !b"\r\n".contains(byte)).collect()),
            3 | 4 => {
                let number = i64::from_le_bytes(std::array::from_fn(|_| source()));
                // Numbers of every length, not only long ones.
                Tree::Integer(number >> (source() % 64))
            }
            5 => Tree::NullBulk,
            // A null array counts towards the depth limit, because only its type byte is known when the limit
            // is checked.
            6 if depth < DEPTH_MAX => Tree::NullArray,
            7 if depth < DEPTH_MAX => Tree::Array(Tree::grow_many(1, source, depth, elements_left)),
            10 => Tree::Null,
            11 => Tree::Boolean(source() & 1 == 0),
            12 => {
                let double = f64::from_le_bytes(std::array::from_fn(|_| source()));
                Tree::Text(b',', format!("{double:?}").to_lowercase().into_bytes())
            }
            13 => {
                let [high, low] = [0; 2].map(|_: u8| u64::from_le_bytes(std::array::from_fn(|_| source())));
                Tree::Text(b'(', format!("-{high}{low}").into_bytes())
            }
            14 => Tree::Text(b'!', grow_bytes(source)),
            15 => Tree::Text(b'=', [&b"txt:"[..], &grow_bytes(source)].concat()),
            16 | 17 if depth < DEPTH_MAX => {
                Tree::Group(b'%', Tree::grow_many(2, source, depth, elements_left))
            }
            18 if depth < DEPTH_MAX => Tree::Group(b'~', Tree::grow_many(1, source, depth, elements_left)),
            19 if depth == 0 => Tree::Group(b'>', Tree::grow_many(1, source, depth, elements_left)),
            _ => Tree::Bulk(grow_bytes(source)),
        }
    }

    /// Generates the elements of a reply at this depth, a multiple of `step`.
    fn grow_many(
        step: usize,
        source: &mut dyn FnMut() -> u8,
        depth: usize,
        elements_left: &mut usize,
    ) -> Vec<Tree> {
        let count = usize::from(source() % 12).min(*elements_left) / step * step;
        *elements_left -= count;
        (0..count).map(|_| Tree::grow_within(source, depth + 1, elements_left)).collect()
    }

    /// Appends the reply with the functions under test.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Tree::Simple(line) => encode_reply(out, &Reply::Simple(line)),
            Tree::Error(line) => encode_reply(out, &Reply::Error(line)),
            Tree::Integer(number) => encode_reply(out, &Reply::Integer(*number)),
            Tree::Bulk(bytes) => encode_bulk(out, bytes),
            Tree::NullBulk => encode_reply(out, &Reply::NullBulk),
            Tree::Array(elements) => {
                encode_array_header(out, elements.len());
                elements.iter().for_each(|element| element.encode(out));
            }
            Tree::NullArray => encode_reply(out, &Reply::NullArray),
            Tree::Null => encode_reply(out, &Reply::Null),
            Tree::Boolean(is_true) => encode_reply(out, &Reply::Boolean(*is_true)),
            Tree::Text(b',', text) => encode_reply(out, &Reply::Double(text)),
            Tree::Text(b'(', text) => encode_reply(out, &Reply::BigNumber(text)),
            Tree::Text(b'!', bytes) => encode_reply(out, &Reply::BlobError(bytes)),
            Tree::Text(_, bytes) => {
                let (format, text) = bytes.split_first_chunk().expect("a format");
                encode_reply(out, &Reply::Verbatim { format: *format, text: &text[1..] });
            }
            Tree::Group(kind, elements) => {
                let count = elements.len() / if *kind == b'%' { 2 } else { 1 };
                out.extend([&[*kind], count.to_string().as_bytes(), b"\r\n"].concat());
                elements.iter().for_each(|element| element.encode(out));
            }
        }
    }
}

fn trees(array: &Array<'_>) -> Vec<Tree> {
    let elements: Vec<Tree> = array.iter().map(|element| Tree::of(&element)).collect();
    assert_eq!(elements.len(), array.len());
    assert_eq!(elements.is_empty(), array.is_empty());
    elements
}

fn grow_bytes(source: &mut dyn FnMut() -> u8) -> Vec<u8> {
    let size = match source() {
        size @ 0..=199 => usize::from(size % 24),
        size => usize::from(size) * 3,
    };
    (0..size).map(|_| source()).collect()
}

/// No input panics, every result keeps its bounds, an encoded reply gives back its bytes (except attributes
/// and a number's plus sign), and the oracle agrees.
pub fn decoding_is_sound(input: &[u8]) {
    let mut rest = input;
    loop {
        let decoded = decode(rest);
        agrees_with_the_oracle(rest, &decoded);
        match decoded {
            Ok(Decoded::Complete { reply, size }) => {
                assert!(0 < size && size <= rest.len() && size <= REPLY_SIZE_MAX);
                let (consumed, behind) = rest.split_at(size);
                for encoded in [
                    encoded_by(|out| encode_reply(out, &reply)),
                    encoded_by(|out| Tree::of(&reply).encode(out)),
                ] {
                    let is_lossy = consumed.iter().any(|byte| b"|+".contains(byte));
                    if is_lossy {
                        assert!(encoded.len() <= size);
                        assert_eq!(Tree::of(&decode_whole(&encoded)), Tree::of(&reply));
                    } else {
                        assert_eq!(encoded, consumed, "one value, two encodings: {reply:?}");
                    }
                }
                // Bytes after a reply do not affect it.
                assert_eq!(decode(consumed), Ok(Decoded::Complete { reply, size }));
                rest = behind;
            }
            Ok(Decoded::Partial { size_min }) => {
                assert!(rest.len() < size_min && size_min <= REPLY_SIZE_MAX);
                return;
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                return;
            }
        }
    }
}

fn decode_whole(encoded: &[u8]) -> Reply<'_> {
    match decode(encoded) {
        Ok(Decoded::Complete { reply, size }) if size == encoded.len() => reply,
        other => panic!("{} became {other:?}", encoded.escape_ascii()),
    }
}

fn encoded_by(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out);
    out
}

fn agrees_with_the_oracle(input: &[u8], decoded: &Result<Decoded<'_>, ProtocolError>) {
    let expected = oracle(input, 0);
    match decoded {
        Ok(Decoded::Complete { reply, size }) => assert_eq!(Some((Tree::of(reply), *size)), expected),
        // The oracle has no limit except depth.
        Err(ProtocolError::LineTooLong | ProtocolError::ReplyTooLarge | ProtocolError::ElementsTooMany) => {}
        Ok(Decoded::Partial { .. }) | Err(_) => assert_eq!(None, expected, "{}", input.escape_ascii()),
    }
}

/// The plainest form of the grammar: the first reply inside `depth` arrays, and its size.
fn oracle(input: &[u8], depth: usize) -> Option<(Tree, usize)> {
    let size = input.windows(2).position(|two| two == b"\r\n")?;
    let (kind, line) = input[..size].split_first()?;
    if line.iter().any(|byte| b"\r\n".contains(byte)) {
        return None;
    }
    let behind = size + 2;
    let canonical = |text: &str| text.parse::<i64>().ok().filter(|number| number.to_string() == text);
    let number = std::str::from_utf8(line).ok().and_then(canonical);
    match (kind, number) {
        (b'+', _) => Some((Tree::Simple(line.to_vec()), behind)),
        (b'-', _) => Some((Tree::Error(line.to_vec()), behind)),
        (b':', Some(number)) => Some((Tree::Integer(number), behind)),
        (b':', None) if line.first() == Some(&b'+') => {
            let number = canonical(std::str::from_utf8(&line[1..]).ok()?)?;
            (number >= 0).then_some((Tree::Integer(number), behind))
        }
        (b'$', Some(-1)) => Some((Tree::NullBulk, behind)),
        (b'$' | b'!' | b'=', Some(length)) => {
            let end = behind.checked_add(usize::try_from(length).ok()?)?;
            let bytes = input.get(behind..end)?.to_vec();
            if !input[end..].starts_with(b"\r\n") || *kind == b'=' && bytes.get(3) != Some(&b':') {
                return None;
            }
            Some((if *kind == b'$' { Tree::Bulk(bytes) } else { Tree::Text(*kind, bytes) }, end + 2))
        }
        (b'*' | b'%' | b'~' | b'|', _) if depth == DEPTH_MAX => None,
        // Attributes, and then their reply.
        (b'|', Some(count)) => {
            let mut end = behind;
            for _ in 0..usize::try_from(count).ok()?.checked_mul(2)? {
                end += oracle(&input[end..], depth + 1)?.1;
            }
            let (reply, size) = oracle(&input[end..], depth)?;
            Some((reply, end + size))
        }
        (b'>', _) if depth > 0 => None,
        (b'*', Some(-1)) => Some((Tree::NullArray, behind)),
        (b'*' | b'%' | b'~' | b'>', Some(count)) => {
            let (mut elements, mut end) = (Vec::new(), behind);
            for _ in 0..usize::try_from(count).ok()?.checked_mul(if *kind == b'%' { 2 } else { 1 })? {
                let (element, size) = oracle(&input[end..], depth + 1)?;
                elements.push(element);
                end += size;
            }
            Some((if *kind == b'*' { Tree::Array(elements) } else { Tree::Group(*kind, elements) }, end))
        }
        (b'_', _) if line.is_empty() => Some((Tree::Null, behind)),
        (b'#', _) if line == b"t" || line == b"f" => Some((Tree::Boolean(line == b"t"), behind)),
        (b',' | b'(', _) if is_number(*kind, line) => Some((Tree::Text(*kind, line.to_vec()), behind)),
        _ => None,
    }
}

/// Whether this is a double (`,`) or a big number.
fn is_number(kind: u8, line: &[u8]) -> bool {
    let unsigned = |text: &[u8]| text.strip_prefix(b"+").or(text.strip_prefix(b"-")).unwrap_or(text).to_vec();
    let is_digits = |text: &[u8]| !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let number = unsigned(line);
    if kind == b'(' {
        return is_digits(&number);
    }
    let mut parts = number.splitn(2, |byte| b"eE".contains(byte));
    let (mantissa, exponent) = (parts.next().unwrap_or_default(), parts.next());
    number == b"inf"
        || number == b"nan"
        || mantissa.splitn(2, |byte| *byte == b'.').all(is_digits)
            && exponent.is_none_or(|exponent| is_digits(&unsigned(exponent)))
}

/// A reply generated from the bytes of `input` survives a round trip.
pub fn grown_reply_round_trips(input: &[u8]) {
    let mut bytes = input.iter().copied();
    round_trips(&Tree::grow(&mut || bytes.next().unwrap_or_default()));
}

/// A reply must be the same after encoding and decoding.
pub fn round_trips(tree: &Tree) {
    let encoded = encoded_by(|out| tree.encode(out));
    match decode(&encoded) {
        Ok(Decoded::Complete { reply, size }) => assert_eq!((&Tree::of(&reply), size), (tree, encoded.len())),
        other => panic!("{tree:?} became {other:?}"),
    }
}

/// Result of a stream on a connection: the replies, then the error or the number of remaining bytes.
type Received = (Vec<Tree>, Result<usize, ProtocolError>);

/// Receives `input` in pieces. `cut` says how many of the remaining bytes come next; the last piece is the
/// rest.
fn receive(input: &[u8], mut cut: impl FnMut(usize) -> usize) -> Received {
    let (mut inbox, mut size_min, mut replies) = (Vec::new(), 1, Vec::new());
    let mut rest = input;
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(cut(rest.len()).clamp(1, rest.len()));
        rest = behind;
        inbox.extend_from_slice(piece);
        // Like a connection: no new attempt before the required bytes are there.
        while inbox.len() >= size_min {
            match decode(&inbox) {
                Ok(Decoded::Complete { reply, size }) => {
                    replies.push(Tree::of(&reply));
                    inbox.drain(..size);
                    size_min = 1;
                }
                Ok(Decoded::Partial { size_min: wanted }) => size_min = wanted,
                Err(error) => return (replies, Err(error)),
            }
        }
    }
    (replies, Ok(inbox.len()))
}

/// A stream in pieces gives the same replies and the same error as in one piece.
pub fn splits_like_one_piece(input: &[u8], cut: impl FnMut(usize) -> usize) {
    assert_eq!(receive(input, cut), receive(input, |left| left), "{}", input.escape_ascii());
}

/// redis-protocol, an independent decoder, must read the first reply of `input` in the same way.
///
/// The deliberate differences: it accepts `+5`, leading zeros and `-0` as numbers, a lone CR or LF inside a
/// line, and any two bytes at the end of a bulk string; it has no limits, and makes no difference between the
/// two nulls. So inputs with these errors are not compared. An unknown type, a negative length and a number
/// beyond 64 bits must be errors for it, too.
///
/// It returns attributes as replies, so inputs with possible attributes are not compared. Its RESP2 decoder
/// must refuse RESP3's types. Its RESP3 decoder refuses some replies, with RESP2 nulls or with unknown
/// formats or keys; sizes of accepted replies must agree.
pub fn agrees_with_redis_protocol(input: &[u8]) {
    let decoded = decode(input);
    // It would recurse as deep as the input demands.
    if decoded == Err(ProtocolError::NestingTooDeep) || input.contains(&b'|') {
        return;
    }
    let theirs = decode_range(input);
    match decoded {
        Ok(Decoded::Complete { reply, size }) if is_of_resp3(&reply) => {
            assert!(theirs.is_err(), "{}: {theirs:?}", input.escape_ascii());
            let theirs = decode_range_of_resp3(input).map(|it| it.map(|(_, their_size)| their_size));
            assert!(matches!(theirs, Err(_) | Ok(Some(_))), "{}: {theirs:?}", input.escape_ascii());
            theirs.into_iter().flatten().for_each(|their_size| assert_eq!(their_size, size));
        }
        Ok(Decoded::Complete { reply, size }) => match theirs {
            Ok(Some((frame, their_size))) => {
                assert_eq!(their_size, size);
                assert!(is_same(&reply, &frame, input), "{reply:?} is {frame:?}");
            }
            other => panic!("{}: {reply:?}, {other:?}", input.escape_ascii()),
        },
        Ok(Decoded::Partial { .. }) => {
            let is_open = matches!(theirs, Ok(None))
                || theirs.is_err() && input.iter().any(|byte| b"_#,(!=%~>".contains(byte));
            assert!(is_open, "{}: {theirs:?}", input.escape_ascii());
        }
        Err(
            ProtocolError::TypeUnknown(_) | ProtocolError::LengthNegative | ProtocolError::NumberTooLarge,
        ) => {
            assert!(!matches!(theirs, Ok(Some(_))), "{}: {theirs:?}", input.escape_ascii());
        }
        Err(_) => {}
    }
}

fn is_of_resp3(reply: &Reply<'_>) -> bool {
    match reply {
        Reply::Array(array) => array.iter().any(|element| is_of_resp3(&element)),
        _ => matches!(Tree::of(reply), Tree::Null | Tree::Boolean(_) | Tree::Text(..) | Tree::Group(..)),
    }
}

fn is_same(reply: &Reply<'_>, frame: &RangeFrame, input: &[u8]) -> bool {
    match (reply, frame) {
        (Reply::Simple(bytes), RangeFrame::SimpleString((start, end)))
        | (Reply::Error(bytes), RangeFrame::Error((start, end)))
        | (Reply::Bulk(bytes), RangeFrame::BulkString((start, end))) => {
            input.get(*start..*end) == Some(bytes)
        }
        (Reply::Integer(ours), RangeFrame::Integer(theirs)) => ours == theirs,
        (Reply::NullBulk | Reply::NullArray, RangeFrame::Null) => true,
        (Reply::Array(ours), RangeFrame::Array(theirs)) => {
            ours.len() == theirs.len()
                && ours.iter().zip(theirs).all(|(reply, frame)| is_same(&reply, frame, input))
        }
        _ => false,
    }
}
