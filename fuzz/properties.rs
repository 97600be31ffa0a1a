//! What holds for the codec whatever the bytes.
//!
//! Written once and included by the fuzz targets beside this file and by `tests/codec.rs`, so that both mean
//! the same.

use redis_protocol::resp2::{decode::decode_range, types::RangeFrame};
use redlatch::resp::{Decoded, ProtocolError, Reply, decode, encode_array_header, encode_bulk, encode_reply};

/// The limits, written out again: changing one must not go unnoticed.
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
}

impl Tree {
    /// Copies a reply by walking over it, which checks on the way that an array has as many elements as it
    /// says.
    pub fn of(reply: &Reply<'_>) -> Tree {
        match reply {
            Reply::Simple(line) => Tree::Simple(line.to_vec()),
            Reply::Error(line) => Tree::Error(line.to_vec()),
            Reply::Integer(number) => Tree::Integer(*number),
            Reply::Bulk(bytes) => Tree::Bulk(bytes.to_vec()),
            Reply::NullBulk => Tree::NullBulk,
            Reply::Array(array) => {
                let elements: Vec<Tree> = array.iter().map(|element| Tree::of(&element)).collect();
                assert_eq!(elements.len(), array.len());
                assert_eq!(elements.is_empty(), array.is_empty());
                Tree::Array(elements)
            }
            Reply::NullArray => Tree::NullArray,
        }
    }

    /// Grows a reply within the limits out of bytes, which may be random or chosen by a fuzzer.
    pub fn grow(source: &mut dyn FnMut() -> u8) -> Tree {
        Tree::grow_within(source, 0, &mut 200)
    }

    fn grow_within(source: &mut dyn FnMut() -> u8, depth: usize, elements_left: &mut usize) -> Tree {
        match source() % 10 {
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
            // A null array is an array to the depth limit, as its type byte is all that is known when it is
            // enforced.
            6 if depth < DEPTH_MAX => Tree::NullArray,
            7 if depth < DEPTH_MAX => {
                let count = usize::from(source() % 12).min(*elements_left);
                *elements_left -= count;
                Tree::Array((0..count).map(|_| Tree::grow_within(source, depth + 1, elements_left)).collect())
            }
            _ => Tree::Bulk(grow_bytes(source)),
        }
    }

    /// Appends the reply by the functions under test.
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
        }
    }
}

fn grow_bytes(source: &mut dyn FnMut() -> u8) -> Vec<u8> {
    let size = match source() {
        size @ 0..=199 => usize::from(size % 24),
        size => usize::from(size) * 3,
    };
    (0..size).map(|_| source()).collect()
}

/// No input panics, every answer keeps its bounds, an encoded reply gives back its bytes, and the oracle
/// agrees.
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
                    assert_eq!(encoded, consumed, "one value, two encodings: {reply:?}");
                }
                // What follows a reply has no part in it.
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

fn encoded_by(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out);
    out
}

fn agrees_with_the_oracle(input: &[u8], decoded: &Result<Decoded<'_>, ProtocolError>) {
    let expected = oracle(input, 0);
    match decoded {
        Ok(Decoded::Complete { reply, size }) => assert_eq!(Some((Tree::of(reply), *size)), expected),
        // The oracle knows no limit but the depth.
        Err(ProtocolError::LineTooLong | ProtocolError::ReplyTooLarge | ProtocolError::ElementsTooMany) => {}
        Ok(Decoded::Partial { .. }) | Err(_) => assert_eq!(None, expected, "{}", input.escape_ascii()),
    }
}

/// The grammar as plainly as it can be written: the first reply, which stands inside `depth` arrays, and its
/// size.
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
        (b'$', Some(-1)) => Some((Tree::NullBulk, behind)),
        (b'$', Some(length)) => {
            let end = behind.checked_add(usize::try_from(length).ok()?)?;
            let bytes = input.get(behind..end)?;
            input[end..].starts_with(b"\r\n").then(|| (Tree::Bulk(bytes.to_vec()), end + 2))
        }
        (b'*', _) if depth == DEPTH_MAX => None,
        (b'*', Some(-1)) => Some((Tree::NullArray, behind)),
        (b'*', Some(count)) => {
            let (mut elements, mut end) = (Vec::new(), behind);
            for _ in 0..usize::try_from(count).ok()? {
                let (element, size) = oracle(&input[end..], depth + 1)?;
                elements.push(element);
                end += size;
            }
            Some((Tree::Array(elements), end))
        }
        _ => None,
    }
}

/// A reply grown out of the bytes of `input` survives the round trip.
pub fn grown_reply_round_trips(input: &[u8]) {
    let mut bytes = input.iter().copied();
    round_trips(&Tree::grow(&mut || bytes.next().unwrap_or_default()));
}

/// A reply that is encoded and decoded is the same one.
pub fn round_trips(tree: &Tree) {
    let encoded = encoded_by(|out| tree.encode(out));
    match decode(&encoded) {
        Ok(Decoded::Complete { reply, size }) => assert_eq!((&Tree::of(&reply), size), (tree, encoded.len())),
        other => panic!("{tree:?} became {other:?}"),
    }
}

/// What a connection makes of a stream: the replies, then the error or the number of bytes left over.
type Received = (Vec<Tree>, Result<usize, ProtocolError>);

/// Receives `input` in pieces. `cut` says how many of the bytes that are left come next; the last piece is
/// all of them.
fn receive(input: &[u8], mut cut: impl FnMut(usize) -> usize) -> Received {
    let (mut inbox, mut size_min, mut replies) = (Vec::new(), 1, Vec::new());
    let mut rest = input;
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(cut(rest.len()).clamp(1, rest.len()));
        rest = behind;
        inbox.extend_from_slice(piece);
        // As a connection does it: no second try before the bytes are there that it was to wait for.
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

/// A stream in pieces gives the same replies and the same error as in one.
pub fn splits_like_one_piece(input: &[u8], cut: impl FnMut(usize) -> usize) {
    assert_eq!(receive(input, cut), receive(input, |left| left), "{}", input.escape_ascii());
}

/// redis-protocol, written by others, takes the first reply of `input` for the same.
///
/// The differences are deliberate, and all of one kind: it accepts what a strict decoder refuses. It takes
/// `+5`, leading zeros and `-0` for numbers, a lone CR or LF for a part of a line, any two bytes for the end
/// of a bulk string, and it has no limits. Both nulls are one to it. So nothing is asked of it where this
/// decoder reports one of those errors; an unknown type, a negative length and a number beyond 64 bits must
/// be no replies to it either.
pub fn agrees_with_redis_protocol(input: &[u8]) {
    let decoded = decode(input);
    if decoded == Err(ProtocolError::NestingTooDeep) {
        // It would recurse as deep as the input asks for.
        return;
    }
    let theirs = decode_range(input);
    match decoded {
        Ok(Decoded::Complete { reply, size }) => match theirs {
            Ok(Some((frame, their_size))) => {
                assert_eq!(their_size, size);
                assert!(is_same(&reply, &frame, input), "{reply:?} is {frame:?}");
            }
            other => panic!("{}: {reply:?}, {other:?}", input.escape_ascii()),
        },
        Ok(Decoded::Partial { .. }) => {
            assert!(matches!(theirs, Ok(None)), "{}: {theirs:?}", input.escape_ascii())
        }
        Err(
            ProtocolError::TypeUnknown(_) | ProtocolError::LengthNegative | ProtocolError::NumberTooLarge,
        ) => {
            assert!(!matches!(theirs, Ok(Some(_))), "{}: {theirs:?}", input.escape_ascii());
        }
        Err(_) => {}
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
