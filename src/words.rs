//! How messages show times and locks.

use std::fmt;
use std::time::Duration;

use crate::limits;
use crate::pool::LockOfPool;

/// End of each message about a peer that sends invalid replies. The simulator recognizes the peer's
/// connections by it.
pub const NO_SERVER: &str = "is it a Redis or Valkey server?";

/// A time for people, with one decimal or three digits: `4.4s`, `300ms`, `24h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rounded(pub Duration);

impl fmt::Display for Rounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const HOUR: Duration = Duration::from_secs(3600);
        let hours = self.0.as_secs() / HOUR.as_secs();
        if hours > 0 && self.0.as_nanos().is_multiple_of(HOUR.as_nanos()) {
            return write!(f, "{hours}h");
        }
        let ns = self.0.as_nanos();
        for (unit_ns, unit) in [(1_000_000_000, "s"), (1_000_000, "ms"), (1000, "µs")] {
            let tenths = (ns * 10 + unit_ns / 2) / unit_ns;
            // The unit in which the rounded time is 1 or more, so that there is no `1000ms`.
            if (ns + unit_ns / 2000) / unit_ns == 0 {
                continue;
            }
            return match (tenths / 10, tenths % 10) {
                (100.., _) => write!(f, "{}{unit}", (ns + unit_ns / 2) / unit_ns),
                (whole, 0) => write!(f, "{whole}{unit}"),
                (whole, tenth) => write!(f, "{whole}.{tenth}{unit}"),
            };
        }
        if ns == 0 { f.write_str("0s") } else { write!(f, "{ns}ns") }
    }
}

/// A lock by its name: `lock "orders:42"`, or `slot 3 of pool "migrations"`; `the lock` without a name.
#[derive(Debug, Clone, Copy)]
pub struct Named<'a>(pub &'a [u8]);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("the lock");
        }
        match LockOfPool::parse(self.0) {
            Some(LockOfPool { pool, slot: Some(slot) }) => {
                write!(f, "slot {slot} of pool \"{}\"", pool.escape_ascii())
            }
            Some(LockOfPool { pool, slot: None }) => {
                write!(f, "the door of pool \"{}\"", pool.escape_ascii())
            }
            None => write!(f, "lock \"{}\"", self.0.escape_ascii()),
        }
    }
}

/// The pool of a lock with this name: `pool "migrations"`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PoolOf<'a>(pub(crate) &'a [u8]);

impl fmt::Display for PoolOf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pool = LockOfPool::parse(self.0).map_or(self.0, |it| it.pool);
        write!(f, "pool \"{}\"", pool.escape_ascii())
    }
}

/// A lock's value for people: text unchanged, as in other libraries' values; other bytes in hexadecimal, like
/// a token.
#[derive(Debug, Clone, Copy)]
pub struct Printable<'a>(pub &'a [u8]);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.iter().all(u8::is_ascii_graphic) {
            return write!(f, "{}", self.0.escape_ascii());
        }
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Whether a character may change how the text around it looks: it controls a terminal, has no width, changes
/// the writing direction, or is white space other than a blank.
#[must_use]
pub fn is_deceptive(char: char) -> bool {
    char.is_control()
        || char.is_whitespace() && char != ' '
        || matches!(
            char,
            // Unicode's format characters, and characters that are drawn as nothing.
            '\u{ad}' | '\u{34f}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}'
            | '\u{8e2}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{2800}' | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}'
            | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
        )
}

/// Text of another client or a master, for people. Escapes deceptive characters as `\u{202e}`, and every
/// blank that does not stand alone between two words.
#[derive(Debug, Clone, Copy)]
pub struct Shown<'a>(pub &'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut chars = self.0.chars().peekable();
        // A blank at the beginning or end adjoins the surrounding text.
        let mut before = ' ';
        while let Some(char) = chars.next() {
            let is_run = char == ' ' && (before == ' ' || chars.peek().is_none_or(|next| *next == ' '));
            if is_deceptive(char) || is_run {
                write!(f, "{}", char.escape_unicode())?;
            } else {
                write!(f, "{char}")?;
            }
            before = char;
        }
        Ok(())
    }
}

/// A holder's label after what it describes: ` (web-3:4711:billing)`; empty without a label. Escapes
/// characters that would end the label, or begin a name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Labelled<'a>(pub(crate) Option<&'a str>);

impl fmt::Display for Labelled<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |label| write!(f, " ({})", Self::text(label)))
    }
}

impl Labelled<'_> {
    pub(crate) fn text(label: &str) -> String {
        let shown = Shown(label).to_string();
        shown.replace('(', "\\u{28}").replace(')', "\\u{29}").replace('"', "\\u{22}")
    }
}

/// `1 reader`, `2 readers`.
#[derive(Debug, Clone, Copy)]
pub struct Counted(pub usize, pub &'static str);

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(count, what) = self;
        write!(f, "{count} {what}{}", if *count == 1 { "" } else { "s" })
    }
}

/// Lines about `count` masters, joined if their text is the same: `all 5 masters: not connected`.
pub fn grouped<'a>(lines: impl IntoIterator<Item = (&'a str, String)>, count: usize) -> Vec<String> {
    let mut groups: Vec<(Vec<&str>, String)> = Vec::new();
    for (master, text) in lines {
        match groups.iter_mut().find(|(_, other)| *other == text) {
            Some((masters, _)) => masters.push(master),
            None => groups.push((vec![master], text)),
        }
    }
    let lines = groups.into_iter().map(|(masters, text)| match masters.len() {
        all @ 2.. if all == count => format!("all {all} masters: {text}"),
        _ => format!("{}: {text}", masters.join(", ")),
    });
    lines.collect()
}

/// An error reply as text for display: bounded, and without characters that could upset a terminal or a log.
#[must_use]
pub fn error_text(text: &[u8]) -> Box<str> {
    let shown = text.get(..limits::ERROR_TEXT_SIZE_MAX).unwrap_or(text);
    String::from_utf8_lossy(shown).chars().map(|c| if is_deceptive(c) { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_few_digits() {
        for (ns, shown) in [
            (0, "0s"),
            (999, "999ns"),
            (1_000, "1µs"),
            (999_400, "999µs"),
            (999_999, "1ms"),
            (1_250_000, "1.3ms"),
            (50_000_000, "50ms"),
            (123_456_789, "123ms"),
            (999_600_000, "1s"),
            (4_408_173_216, "4.4s"),
            (4_960_000_000, "5s"),
            (29_950_000_001, "30s"),
            (30_000_000_000, "30s"),
            (99_960_000_000, "100s"),
            (100_400_000_000, "100s"),
            (3_600_000_000_000, "1h"),
            (3_600_000_000_001, "3600s"),
            (86_400_000_000_000, "24h"),
        ] {
            assert_eq!(Rounded(Duration::from_nanos(ns)).to_string(), shown, "{ns} ns");
        }
        assert_eq!(Rounded(Duration::MAX).to_string(), "18446744073709551616s");
    }

    // I147
    #[test]
    fn text_of_others_is_shown_without_deception() {
        for (text, shown) in [
            ("web-3:4711:nightly report", "web-3:4711:nightly report"),
            ("Zoë, 東京", "Zoë, 東京"),
            ("a\u{202e}b", "a\\u{202e}b"),
            ("a\u{200b}\u{2066}\u{feff}", "a\\u{200b}\\u{2066}\\u{feff}"),
            ("a\u{a0}b\u{3000}c", "a\\u{a0}b\\u{3000}c"),
            ("a\u{1b}[31m\n", "a\\u{1b}[31m\\u{a}"),
            ("a  b", "a\\u{20}\\u{20}b"),
            (" a ", "\\u{20}a\\u{20}"),
            ("a b", "a b"),
            ("", ""),
        ] {
            assert_eq!(Shown(text).to_string(), shown);
            assert!(!Shown(text).to_string().contains(is_deceptive));
        }
        assert_eq!(Labelled(Some("a\u{202e}")).to_string(), " (a\\u{202e})");
        let forged = Labelled(Some("x), for at most 24h (y\"")).to_string();
        assert_eq!(forged, " (x\\u{29}, for at most 24h \\u{28}y\\u{22})");
    }

    #[test]
    fn names_are_printable_and_quoted() {
        assert_eq!(Named(b"orders:42").to_string(), "lock \"orders:42\"");
        assert_eq!(Named(b"a\n\"").to_string(), "lock \"a\\n\\\"\"");
        assert_eq!(Named(b"").to_string(), "the lock");
        assert_eq!(Named(b"redlatch:slot:3:a\"").to_string(), "slot 3 of pool \"a\\\"\"");
        assert_eq!(Named(b"redlatch:door:a").to_string(), "the door of pool \"a\"");
    }

    #[test]
    fn equal_lines_about_masters_are_joined() {
        let lines = |texts: &[&str]| {
            let lines =
                ["a", "b", "c"].into_iter().zip(texts).map(|(master, text)| (master, (*text).to_owned()));
            grouped(lines, texts.len())
        };
        assert_eq!(lines(&["down"]), ["a: down"]);
        assert_eq!(lines(&["down", "down"]), ["all 2 masters: down"]);
        assert_eq!(lines(&["down"; 3]), ["all 3 masters: down"]);
        assert_eq!(lines(&["down", "up", "down"]), ["a, c: down", "b: up"]);
    }

    // I147
    #[test]
    fn error_texts_are_bounded_and_printable() {
        let text = error_text(&[b'\x1b'; 4096]);
        assert_eq!(text.len(), limits::ERROR_TEXT_SIZE_MAX);
        assert!(text.chars().all(|c| c == '?'));
        assert_eq!(&*error_text("ERR a\u{202e}b\u{2028}c".as_bytes()), "ERR a?b?c");
    }
}
