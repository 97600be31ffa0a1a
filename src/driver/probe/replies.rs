//! Decodes replies as their bytes arrive. Texts are kept up to a bound and cut off there, so a page of long
//! names needs no more memory than a page of short names.

use crate::config::Login;
use crate::engine::error_without_login;
use crate::engine::masters::handshake::{Replication, info_field};
use crate::engine::masters::trouble::Trouble;
use crate::limits;
use crate::resp::ProtocolError;
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
    /// The unfinished line, string and lists.
    line: Vec<u8>,
    text: Option<PartOfText>,
    lists: Vec<PartOfList>,
}

struct PartOfText {
    kept: Vec<u8>,
    size: usize,
    /// Bytes that have arrived, including the CRLF at the end.
    arrived: usize,
}

struct PartOfList {
    items: Vec<Answer>,
    missing: usize,
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
            line: Vec::new(),
            text: None,
            lists: Vec::new(),
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
        let mut rest = bytes;
        while !rest.is_empty() {
            let (value, behind) = match self.text.take() {
                Some(text) => self.read_text(text, rest)?,
                None => self.read_line(rest)?,
            };
            rest = behind;
            if let Some(value) = value {
                self.add(value)?;
            }
        }
        Ok(())
    }

    fn read_text<'b>(
        &mut self,
        mut text: PartOfText,
        bytes: &'b [u8],
    ) -> Result<(Option<Answer>, &'b [u8]), String> {
        let missing = text.size + LINE_END.len() - text.arrived;
        let (part, behind) = bytes.split_at(missing.min(bytes.len()));
        for (place, &byte) in (text.arrived..).zip(part) {
            match place.checked_sub(text.size) {
                Some(of_end) if byte != LINE_END[of_end] => {
                    return Err(no_reply(ProtocolError::BulkUnterminated));
                }
                Some(_) => {}
                None if place < self.bounds.text_size => text.kept.push(byte),
                None => {}
            }
        }
        text.arrived += part.len();
        if part.len() < missing {
            self.text = Some(text);
            return Ok((None, behind));
        }
        Ok((Some(Answer::Text(text.kept)), behind))
    }

    fn read_line<'b>(&mut self, bytes: &'b [u8]) -> Result<(Option<Answer>, &'b [u8]), String> {
        let end = memchr::memchr(b'\n', bytes);
        let (part, behind) = bytes.split_at(end.map_or(bytes.len(), |end| end + 1));
        if self.line.len() + part.len() > limits::REPLY_LINE_SIZE_MAX + LINE_END.len() {
            return Err(no_reply(ProtocolError::LineTooLong));
        }
        self.line.extend_from_slice(part);
        if let Some(&first) = self.line.first()
            && !b"+-:$*".contains(&first)
        {
            return Err(no_reply(ProtocolError::TypeUnknown(first)));
        }
        if end.is_none() {
            return Ok((None, behind));
        }
        let line = std::mem::take(&mut self.line);
        let line = line.strip_suffix(LINE_END).ok_or_else(|| no_reply(ProtocolError::LineBreak))?;
        Ok((self.take_line(line)?, behind))
    }

    /// Decodes a complete line: a value, or its beginning.
    fn take_line(&mut self, line: &[u8]) -> Result<Option<Answer>, String> {
        let (kind, rest) = line.split_at(1);
        Ok(match kind {
            b"+" => Some(Answer::Text(rest[..rest.len().min(self.bounds.text_size)].to_vec())),
            b"-" => Some(Answer::Error(error_without_login(rest, self.login).into())),
            b":" => Some(Answer::Integer(number(rest)?)),
            b"$" => match length(rest)? {
                None => Some(Answer::Null),
                Some(size) if size > self.bounds.read_size => return Err(self.too_large()),
                Some(size) => {
                    self.text = Some(PartOfText { kept: Vec::new(), size, arrived: 0 });
                    None
                }
            },
            _ => match length(rest)? {
                None => Some(Answer::Null),
                Some(0) => Some(Answer::List(Vec::new())),
                Some(_) if self.lists.len() == limits::REPLY_DEPTH_MAX => {
                    return Err(no_reply(ProtocolError::NestingTooDeep));
                }
                Some(missing) if missing > limits::PROBE_VALUE_COUNT_MAX - self.value_count => {
                    return Err(Trouble::RepliesTooMany.to_string());
                }
                Some(missing) => {
                    self.lists.push(PartOfList { items: Vec::new(), missing });
                    None
                }
            },
        })
    }

    fn too_large(&self) -> String {
        Trouble::RepliesTooLarge { size: self.bounds.read_size }.to_string()
    }

    /// Adds a value to the innermost unfinished list, or to the answers.
    fn add(&mut self, value: Answer) -> Result<(), String> {
        self.value_count += 1;
        if self.value_count > limits::PROBE_VALUE_COUNT_MAX {
            return Err(Trouble::RepliesTooMany.to_string());
        }
        let mut value = value;
        while let Some(list) = self.lists.last_mut() {
            list.items.push(value);
            list.missing -= 1;
            if list.missing > 0 {
                return Ok(());
            }
            value = Answer::List(self.lists.pop().map(|list| list.items).unwrap_or_default());
        }
        if self.answers.len() == self.owed_count {
            return Err(WireError::Unsolicited.to_string());
        }
        self.answers.push(value);
        Ok(())
    }
}

const LINE_END: &[u8] = b"\r\n";

fn no_reply(error: ProtocolError) -> String {
    WireError::from(error).to_string()
}

fn number(digits: &[u8]) -> Result<i64, String> {
    let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
    number.ok_or_else(|| no_reply(ProtocolError::NumberInvalid))
}

/// A length; `None` for a null.
fn length(digits: &[u8]) -> Result<Option<usize>, String> {
    match number(digits)? {
        -1 => Ok(None),
        length => usize::try_from(length).map(Some).map_err(|_| no_reply(ProtocolError::LengthNegative)),
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
        for piece_size in [1, 2, 7] {
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
        let longest = vec![b'x'; limits::REPLY_LINE_SIZE_MAX - 1];
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
            assert_eq!(read(9, bounds, bytes), Err(no_reply(error)), "{}", bytes.escape_ascii());
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
