//! The holder's label, which follows the token in the lock's value.
//!
//! ```text
//!   20 bytes of token │ 0x09 │ 1 to 64 bytes of label
//! ```
//!
//! Every command and script compares whole values, so a label does not affect exclusion: clients of earlier
//! versions and of other libraries see a foreign value.

use super::input_error::InputError;
use super::token::Token;
use crate::limits;

/// Separator of token and label. Other libraries' values hardly ever have a tab there.
const SEPARATOR: u8 = b'\t';

/// Label of a holder, such as `host:pid:job`: 1 to 64 bytes ([`limits::HOLDER_LABEL_SIZE_MAX`]) of text
/// without control characters.
///
/// ```
/// use redlatch::engine::HolderLabel;
/// assert!(HolderLabel::new("web-3:4711:billing").is_ok());
/// assert!(HolderLabel::new("two\nlines").is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HolderLabel<'a>(&'a str);

impl<'a> HolderLabel<'a> {
    /// Checks a label.
    ///
    /// # Errors
    /// [`InputError`] if the label is empty, longer than 64 bytes, or contains a control character.
    pub fn new(label: &'a str) -> Result<Self, InputError> {
        match label.len() {
            0 => Err(InputError::LabelEmpty),
            1..=limits::HOLDER_LABEL_SIZE_MAX if label.chars().any(char::is_control) => {
                Err(InputError::LabelUnprintable)
            }
            1..=limits::HOLDER_LABEL_SIZE_MAX => Ok(Self(label)),
            size => Err(InputError::LabelTooLong { size }),
        }
    }

    /// Returns the text.
    #[must_use]
    pub const fn as_str(&self) -> &'a str {
        self.0
    }
}

/// Appends the separator and the label, which follow the token in a lock's value.
pub(crate) fn encode_label(out: &mut Vec<u8>, label: &[u8]) {
    out.push(SEPARATOR);
    out.extend_from_slice(label);
}

/// Size of label and separator in bytes.
pub(crate) const fn label_part_size(label: &[u8]) -> usize {
    1 + label.len()
}

/// Splits a lock's value into token and label. A value of another form is returned whole, without a label.
pub(crate) fn split_value(value: &[u8]) -> (&[u8], Option<HolderLabel<'_>>) {
    let parts = value.split_at_checked(Token::SIZE);
    let labelled = parts.and_then(|(token, rest)| label_in(rest).map(|label| (token, label)));
    labelled.map_or((value, None), |(token, label)| (token, Some(label)))
}

/// The label in `part`, the bytes after the token; `None` unless they are the separator and a valid label.
pub(crate) fn label_in(part: &[u8]) -> Option<HolderLabel<'_>> {
    let label = std::str::from_utf8(part.strip_prefix(&[SEPARATOR])?).ok()?;
    HolderLabel::new(label).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_short_printable_text() {
        let longest = "é".repeat(limits::HOLDER_LABEL_SIZE_MAX / 2);
        for label in ["a", "web-3:4711:nightly report", &longest] {
            assert_eq!(HolderLabel::new(label).map(|label| label.as_str()), Ok(label));
        }
        assert_eq!(HolderLabel::new(""), Err(InputError::LabelEmpty));
        let size = longest.len() + 1;
        assert_eq!(HolderLabel::new(&(longest + "x")), Err(InputError::LabelTooLong { size }));
        for label in ["a\n", "\0", "a\tb", "\x1b[31m", "\u{85}", "\x7f"] {
            assert_eq!(HolderLabel::new(label), Err(InputError::LabelUnprintable), "{label:?}");
        }
    }

    // I74
    #[test]
    fn only_values_of_our_form_have_a_label() {
        let token = [b'\t'; Token::SIZE];
        let value = |label: &[u8]| {
            let mut value = token.to_vec();
            encode_label(&mut value, label);
            assert_eq!(value.len(), Token::SIZE + label_part_size(label));
            value
        };
        let labelled = value(b"web-3");
        let (bare, label) = split_value(&labelled);
        assert_eq!((bare, label.map(|it| it.as_str())), (token.as_slice(), Some("web-3")));
        let too_long = [b'x'; limits::HOLDER_LABEL_SIZE_MAX + 1];
        let foreign = [
            Vec::new(),
            token.to_vec(),
            value(b""),
            value(b"a\n"),
            value(b"\xff"),
            value(&too_long),
            b"0b2c6d2e-9f5c-4a33-8a4e-6a6f3c0f4c11".to_vec(),
        ];
        for value in foreign {
            assert_eq!(split_value(&value), (value.as_slice(), None), "{}", value.escape_ascii());
        }
    }
}
