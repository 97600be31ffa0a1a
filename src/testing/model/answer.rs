//! Replies to commands, and how each version of the protocol writes them.

use redlatch::resp::{self, Reply};

/// Version of the protocol on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Resp2,
    /// After `HELLO 3`.
    Resp3,
}

/// Reply to a command.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    Nil,
    Integer(i64),
    /// A score. A string in RESP2 and for scripts.
    Double(f64),
    Bulk(Vec<u8>),
    /// A text for people. A string in RESP2.
    Verbatim(Vec<u8>),
    Status(Vec<u8>),
    Error(Vec<u8>),
    Array(Vec<Answer>),
    /// Members with scores. A flat list in RESP2 and for scripts.
    Scored(Vec<(Vec<u8>, f64)>),
    /// Fields with values. A flat list in RESP2.
    Map(Vec<(&'static str, Answer)>),
    /// Messages, which are not replies. Arrays in RESP2.
    Pushes(Vec<Vec<Answer>>),
}

impl Answer {
    pub fn ok() -> Self {
        Self::Status(b"OK".to_vec())
    }

    pub fn count(count: usize) -> Self {
        Self::Integer(i64::try_from(count).expect("small"))
    }

    pub fn numbers(numbers: &[i64]) -> Self {
        Self::Array(numbers.iter().map(|number| Self::Integer(*number)).collect())
    }

    pub fn bulk(bytes: Option<&[u8]>) -> Self {
        bytes.map_or(Self::Nil, |bytes| Self::Bulk(bytes.to_vec()))
    }

    pub fn encode(&self, protocol: Protocol, out: &mut Vec<u8>) {
        let is_new = protocol == Protocol::Resp3;
        let text;
        let reply = match self {
            Self::Nil if is_new => Reply::Null,
            Self::Nil => Reply::NullBulk,
            Self::Integer(number) => Reply::Integer(*number),
            Self::Double(score) => {
                text = shown(*score);
                if is_new { Reply::Double(&text) } else { Reply::Bulk(&text) }
            }
            Self::Verbatim(text) if is_new => Reply::Verbatim { format: *b"txt", text },
            Self::Bulk(bytes) | Self::Verbatim(bytes) => Reply::Bulk(bytes),
            Self::Status(text) => Reply::Simple(text),
            Self::Error(text) => Reply::Error(text),
            Self::Array(elements) => {
                resp::encode_array_header(out, elements.len());
                return elements.iter().for_each(|element| element.encode(protocol, out));
            }
            Self::Scored(members) => {
                resp::encode_array_header(out, members.len() * if is_new { 1 } else { 2 });
                return members.iter().for_each(|(member, score)| {
                    if is_new {
                        resp::encode_array_header(out, 2);
                    }
                    resp::encode_bulk(out, member);
                    Self::Double(*score).encode(protocol, out);
                });
            }
            Self::Map(fields) => {
                encode_count(
                    out,
                    if is_new { b'%' } else { b'*' },
                    fields.len() * if is_new { 1 } else { 2 },
                );
                return fields.iter().for_each(|(name, value)| {
                    resp::encode_bulk(out, name.as_bytes());
                    value.encode(protocol, out);
                });
            }
            Self::Pushes(messages) => {
                return messages.iter().for_each(|message| {
                    encode_count(out, if is_new { b'>' } else { b'*' }, message.len());
                    message.iter().for_each(|element| element.encode(protocol, out));
                });
            }
        };
        resp::encode_reply(out, &reply);
    }
}

fn encode_count(out: &mut Vec<u8>, kind: u8, count: usize) {
    out.extend_from_slice(&[&[kind], count.to_string().as_bytes(), b"\r\n"].concat());
}

/// A score in the servers' notation.
pub(super) fn shown(score: f64) -> Vec<u8> {
    let text = if score.is_infinite() {
        if score > 0.0 { "inf".to_owned() } else { "-inf".to_owned() }
    } else if score.fract() == 0.0 && score.abs() < 1e17 {
        format!("{score:.0}")
    } else {
        format!("{score:?}")
    };
    text.into_bytes()
}
