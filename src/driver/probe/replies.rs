//! Collects the replies of one exchange, decoded by [`resp`](crate::resp). Texts are kept up to a bound and cut off
//! there.

use crate::config::Login;
use crate::engine::error_without_login;
use crate::engine::masters::handshake::{Replication, info_field};
use crate::engine::masters::trouble::Trouble;
use crate::limits;
use crate::resp::{Decoded, ProtocolError, Reply, decode_large};
use crate::wire::WireError;

/// A server's reply, with its own memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// A status line, such as `OK`, or a string, cut off at the bound of its exchange.
    Text(Vec<u8>),
    /// An error line, beginning with its code, without the password that was sent. Cut off at 160 bytes.
    Error(String),
    /// A number.
    Integer(i64),
    /// A list of replies.
    List(Vec<Answer>),
    /// A null string or list.
    Null,
}

impl Answer {
    /// Returns the reply as text for assertions: `OK`, `ERR no such key`, `7`, a string, `nil`, `[a, b]`.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Text(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Self::Error(text) => text.clone(),
            Self::Integer(number) => number.to_string(),
            Self::List(items) => {
                format!("[{}]", items.iter().map(Self::text).collect::<Vec<_>>().join(", "))
            }
            Self::Null => "nil".to_owned(),
        }
    }

    /// Returns the bytes of a status line or a string.
    #[must_use]
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the error line.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        match self {
            Self::Error(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the value of a field, if this is the text of `INFO`.
    #[must_use]
    pub fn info_field(&self, name: &str) -> Option<&[u8]> {
        self.bytes().and_then(|info| info_field(info, name))
    }

    /// Returns the identity of the process's last promotion, if this is the text of `INFO replication`; `None` if the
    /// process remembers no time as a replica.
    #[must_use]
    pub fn promotion(&self) -> Option<u64> {
        self.bytes().and_then(|info| Replication::of_info(info).promotion)
    }

    /// Returns the number.
    #[must_use]
    pub fn integer(&self) -> Option<i64> {
        match self {
            Self::Integer(number) => Some(*number),
            _ => None,
        }
    }
}

/// Bounds of all replies of one exchange together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Bytes to read.
    read_size: usize,
    /// Bytes to keep of each text.
    text_size: usize,
}

impl Bounds {
    pub(super) const SMALL: Self =
        Self { read_size: limits::REPLY_SIZE_MAX, text_size: limits::PROBE_TEXT_SIZE_MAX };

    /// For a test's server, which is trusted.
    pub(super) const WIDE: Self =
        Self { read_size: limits::PROBE_PAGE_SIZE_MAX, text_size: limits::PROBE_PAGE_SIZE_MAX };

    pub(super) const PAGE: Self =
        Self { read_size: limits::PROBE_PAGE_SIZE_MAX, text_size: limits::PROBE_NAME_SIZE_MAX };

    pub(super) const LIST: Self =
        Self { read_size: limits::PROBE_PAGE_SIZE_MAX, text_size: limits::PROBE_LIST_SIZE_MAX };
}

pub(super) struct Replies<'a> {
    bounds: Bounds,
    /// The login that no error may show.
    login: Option<&'a Login>,
    owed_count: usize,
    answers: Vec<Answer>,
    read_size: usize,
    value_count: usize,
    /// Bytes of the unfinished reply, and their number below which it stays unfinished.
    unread: Vec<u8>,
    size_min: usize,
}

impl<'a> Replies<'a> {
    pub(super) const fn new(owed_count: usize, bounds: Bounds, login: Option<&'a Login>) -> Self {
        Self {
            bounds,
            login,
            owed_count,
            answers: Vec::new(),
            read_size: 0,
            value_count: 0,
            unread: Vec::new(),
            size_min: 0,
        }
    }

    pub(super) const fn are_complete(&self) -> bool {
        self.answers.len() == self.owed_count
    }

    pub(super) fn take(self) -> Vec<Answer> {
        self.answers
    }

    pub(super) fn last(&self) -> Option<&Answer> {
        self.answers.last()
    }

    /// Decodes more bytes. After an error, later bytes are meaningless.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.read_size = self.read_size.saturating_add(bytes.len());
        if self.read_size > self.bounds.read_size {
            return Err(self.too_large());
        }
        self.unread.extend_from_slice(bytes);
        if self.unread.len() < self.size_min {
            return Ok(());
        }
        let unread = std::mem::take(&mut self.unread);
        let mut rest = unread.as_slice();
        self.size_min = 0;
        while !rest.is_empty() {
            let values_left = limits::PROBE_VALUE_COUNT_MAX - self.value_count;
            match decode_large(rest, values_left).map_err(|error| self.refused(error))? {
                Decoded::Complete { reply, size } => {
                    rest = &rest[size..];
                    let answer = self.answer(reply)?;
                    if self.are_complete() {
                        return Err(WireError::Unsolicited.to_string());
                    }
                    self.answers.push(answer);
                }
                Decoded::Partial { size_min } => {
                    if self.read_size - rest.len() + size_min > self.bounds.read_size {
                        return Err(self.too_large());
                    }
                    self.size_min = size_min;
                    break;
                }
            }
        }
        self.unread = rest.to_vec();
        Ok(())
    }

    fn answer(&mut self, reply: Reply<'_>) -> Result<Answer, String> {
        self.value_count += 1;
        if self.value_count > limits::PROBE_VALUE_COUNT_MAX {
            return Err(Trouble::RepliesTooMany.to_string());
        }
        let text_size = self.bounds.text_size;
        Ok(match reply {
            Reply::Simple(text) | Reply::Bulk(text) => {
                Answer::Text(text[..text.len().min(text_size)].to_vec())
            }
            Reply::Error(text) => Answer::Error(error_without_login(text, self.login).into()),
            Reply::Integer(number) => Answer::Integer(number),
            Reply::NullBulk | Reply::NullArray => Answer::Null,
            Reply::Array(items) => {
                Answer::List(items.iter().map(|item| self.answer(item)).collect::<Result<_, _>>()?)
            }
            // RESP3, for which no probe asks.
            _ => return Err(WireError::Unsolicited.to_string()),
        })
    }

    fn refused(&self, error: ProtocolError) -> String {
        match error {
            ProtocolError::ReplyTooLarge => self.too_large(),
            ProtocolError::ElementsTooMany => Trouble::RepliesTooMany.to_string(),
            other => WireError::from(other).to_string(),
        }
    }

    fn too_large(&self) -> String {
        Trouble::RepliesTooLarge { size: self.bounds.read_size }.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers or error, after checking that they do not depend on how the bytes are split.
    fn read(owed_count: usize, bounds: Bounds, bytes: &[u8]) -> Result<Option<Vec<Answer>>, String> {
        let read = |piece_size: usize| {
            let mut replies = Replies::new(owed_count, bounds, None);
            bytes.chunks(piece_size).try_for_each(|piece| replies.read(piece))?;
            Ok(replies.are_complete().then(|| replies.take()))
        };
        let whole = read(bytes.len().max(1));
        // Each piece of a large list is decoded from the list's beginning.
        for piece_size in [1, 2, 7].map(|size| if bytes.len() < 4096 { size } else { size * 4096 }) {
            assert_eq!(read(piece_size), whole, "{}", bytes.escape_ascii());
        }
        whole
    }

    fn text(text: &str) -> Answer {
        Answer::Text(text.into())
    }

    #[test]
    fn replies_are_taken_apart_wherever_they_are_cut() {
        let bytes =
            b"+OK\r\n-ERR no\r\n:-7\r\n$4\r\na\r\nb\r\n$-1\r\n*2\r\n*1\r\n:1\r\n*0\r\n*-1\r\n$0\r\n\r\n";
        let list = Answer::List(vec![Answer::List(vec![Answer::Integer(1)]), Answer::List(Vec::new())]);
        let error = Answer::Error("ERR no".to_owned());
        let expected = vec![
            text("OK"),
            error,
            Answer::Integer(-7),
            text("a\r\nb"),
            Answer::Null,
            list,
            Answer::Null,
            text(""),
        ];
        let words: Vec<String> = expected.iter().map(Answer::text).collect();
        assert_eq!(words, ["OK", "ERR no", "-7", "a\r\nb", "nil", "[[1], []]", "nil", ""]);
        assert_eq!(read(8, Bounds::SMALL, bytes), Ok(Some(expected)));
        assert_eq!(read(9, Bounds::SMALL, bytes), Ok(None));
        assert_eq!(read(7, Bounds::SMALL, bytes), Err(WireError::Unsolicited.to_string()));
    }

    // I150
    #[test]
    fn long_texts_are_cut_and_long_replies_refused() {
        let bounds = Bounds { read_size: 40, text_size: 3 };
        let expected = Answer::List(vec![text("abc"), text("de")]);
        assert_eq!(read(1, bounds, b"*2\r\n$6\r\nabcdef\r\n$2\r\nde\r\n"), Ok(Some(vec![expected])));
        assert_eq!(read(1, bounds, b"+abcdef\r\n"), Ok(Some(vec![text("abc")])));
        let too_large = Err(Trouble::RepliesTooLarge { size: 40 }.to_string());
        assert_eq!(read(1, bounds, b"$41\r\n"), too_large);
        assert_eq!(read(99, bounds, &b":1\r\n".repeat(10)), Ok(None), "of the bound");
        assert_eq!(read(99, bounds, &b":1\r\n".repeat(11)), too_large);
    }

    // I150
    #[test]
    fn bytes_that_are_no_replies_are_refused() {
        let longest = vec![b'x'; limits::REPLY_LINE_SIZE_MAX];
        let text = Answer::Text(longest.as_slice().into());
        let whole = [b"+".as_slice(), &longest, b"\r\n"].concat();
        assert_eq!(
            read(1, Bounds { read_size: usize::MAX, text_size: usize::MAX }, &whole),
            Ok(Some(vec![text]))
        );
        let line = [b"+".as_slice(), &longest, b"xxx"].concat();
        let many = [b"*9999\r\n".as_slice(), &b":1\r\n".repeat(9999)].concat();
        let many = many.repeat(2);
        let bounds = Bounds { read_size: usize::MAX, text_size: 3 };
        for (bytes, error) in [
            (b"?".as_slice(), ProtocolError::TypeUnknown(b'?')),
            (b"\r\n", ProtocolError::TypeUnknown(b'\r')),
            (b"+OK\n", ProtocolError::LineBreak),
            (b"+\n", ProtocolError::LineBreak),
            (&line, ProtocolError::LineTooLong),
            (b":\r\n", ProtocolError::NumberInvalid),
            (b"$x\r\n", ProtocolError::NumberInvalid),
            (b"*-2\r\n", ProtocolError::LengthNegative),
            (b"$2\r\nabc\r\n", ProtocolError::BulkUnterminated),
            (&b"*1\r\n".repeat(9), ProtocolError::NestingTooDeep),
        ] {
            assert_eq!(
                read(9, bounds, bytes),
                Err(WireError::from(error).to_string()),
                "{}",
                bytes.escape_ascii()
            );
        }
        let promised = [b":1\r\n".repeat(10_000).as_slice(), b"*9999\r\n"].concat();
        for bytes in [b"*1000000000\r\n", many.as_slice(), &promised] {
            assert_eq!(read(99_999, bounds, bytes), Err(Trouble::RepliesTooMany.to_string()));
        }
        let most = limits::PROBE_VALUE_COUNT_MAX;
        for (count, is_read) in [(most, true), (most + 1, false)] {
            assert_eq!(read(count, bounds, &b":1\r\n".repeat(count)).is_ok(), is_read, "{count} values");
        }
    }
}
