//! Text for a screen of any width.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::termios::tcgetwinsize;

/// Width of lines where stdout is no terminal.
const WIDTH_DEFAULT: usize = 80;

/// Lines longer than this are hard to read, however wide the screen is.
const WIDTH_MAX: usize = 110;

/// Width of a line on stdout.
pub(crate) fn stdout_width() -> usize {
    terminal_width().map_or(WIDTH_DEFAULT, |width| width.min(WIDTH_MAX))
}

/// Width of the terminal that stdout is; `None` if it is none.
pub(crate) fn terminal_width() -> Option<usize> {
    width_of(io::stdout())
}

/// Width of the terminal that stderr is; `None` if it is none.
pub(crate) fn stderr_width() -> Option<usize> {
    width_of(io::stderr())
}

fn width_of(stream: impl AsFd) -> Option<usize> {
    let size = tcgetwinsize(stream).ok()?;
    // Zero is a terminal that does not know its size.
    Some(usize::from(size.ws_col)).filter(|width| *width > 0)
}

/// A value as one line of JSON in ASCII: text of others stays whole, and looks like nothing else.
pub(crate) fn json_line(value: &serde_json::Value) -> String {
    let mut line = String::new();
    for char in value.to_string().chars() {
        if matches!(char, ' '..='~') {
            line.push(char);
        } else {
            let units = char
                .encode_utf16(&mut [0; 2])
                .iter()
                .map(|unit| format!("\\u{unit:04x}"))
                .collect::<String>();
            line.push_str(&units);
        }
    }
    line.push('\n');
    line
}

/// A time in whole milliseconds.
pub(crate) fn whole_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Adds a paragraph to a text: lines of at most `width` characters, where words allow that. The first line
/// begins with `first`, the others with as many spaces as `indent` says.
pub(crate) fn add_paragraph(out: &mut String, width: usize, first: &str, indent: usize, text: &str) {
    let mut line = first.to_owned();
    let mut is_empty = true;
    for word in text.split_whitespace() {
        let needed = line.chars().count() + usize::from(!is_empty) + word.chars().count();
        if !is_empty && needed > width {
            out.push_str(line.trim_end());
            out.push('\n');
            line = " ".repeat(indent);
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    out.push_str(line.trim_end());
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_keeps_text_and_shows_ascii_only() {
        let value = serde_json::json!({ "name": "a\u{202e}b \u{7f}\n\"é𝄞" });
        let line = json_line(&value);
        assert!(
            line.ends_with("}\n") && line.trim_end().chars().all(|char| matches!(char, ' '..='~')),
            "{line}"
        );
        assert_eq!(serde_json::from_str::<serde_json::Value>(&line).expect("JSON"), value);
    }

    #[test]
    fn paragraphs_fit_into_their_width() {
        let text = "a server that takes all memory may be ended by the system, whatever it holds";
        for width in [1, 8, 20, 40, 80] {
            let mut out = String::new();
            add_paragraph(&mut out, width, "why: ", 5, text);
            let words: Vec<&str> = out.split_whitespace().skip(1).collect();
            assert_eq!(words.join(" "), text);
            for line in out.lines() {
                let is_one_word = line.trim_start_matches("why:").split_whitespace().count() == 1;
                assert!(line.chars().count() <= width || is_one_word, "{width}: {line:?}");
            }
        }
    }
}
