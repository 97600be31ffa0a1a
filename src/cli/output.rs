//! All output of the program. Stderr gets messages in order and, on a terminal, one status line. Logins in
//! URLs are hidden.
//!
//! A separate thread writes, so no caller waits for a full pipe, a stopped terminal or a slow log collector:
//! a lock is extended, and its loss handled, even if nobody reads. A full queue drops its oldest text and
//! counts it.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::getpgrp;
use rustix::termios::{LocalModes, tcgetattr, tcgetpgrp, tcgetwinsize};

use super::message::Message;

/// Largest number of texts that wait for stderr. Each has at most a few lines for each master.
const TEXT_COUNT_MAX: usize = 256;

/// Longest wait at the program's end for the remaining texts.
const END_LIMIT: Duration = Duration::from_secs(1);

/// Pause between two checks for a signal.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// Longest line of another program's output that is passed on whole.
const PIECE_SIZE_MAX: u64 = 4096;

/// Clears the current line of a terminal.
const CLEAR: &str = "\r\x1b[K";

static STDERR: Stderr = Stderr { queue: Mutex::new(Queue::new()), changed: Condvar::new() };

struct Stderr {
    queue: Mutex<Queue>,
    /// Signalled when there is something to write, and when it was written.
    changed: Condvar,
}

/// Texts for the writing thread, and the status line.
struct Queue {
    texts: VecDeque<String>,
    /// Texts dropped from the front.
    dropped: usize,
    /// Status line to show.
    status: Option<String>,
    /// Status line that the terminal shows.
    shown: Option<String>,
    is_writing: bool,
    /// Whether a command may have the terminal's foreground.
    has_command: bool,
}

impl Queue {
    const fn new() -> Self {
        Self {
            texts: VecDeque::new(),
            dropped: 0,
            status: None,
            shown: None,
            is_writing: false,
            has_command: false,
        }
    }

    /// Drops the oldest text from a full queue, because the last texts say how it ends.
    fn push(&mut self, text: String) {
        if self.texts.len() >= TEXT_COUNT_MAX {
            self.texts.pop_front();
            self.dropped += 1;
        }
        self.texts.push_back(text);
    }

    fn is_left(&self) -> bool {
        self.is_writing || !self.texts.is_empty() || self.dropped > 0 || self.shown.is_some()
    }

    /// Next text to write.
    fn take(&mut self) -> Option<String> {
        let dropped = (self.dropped > 0).then(|| {
            let count = std::mem::take(&mut self.dropped);
            formatted(&Message::LinesDropped { count }.to_string(), stderr_width())
        });
        match dropped.or_else(|| self.texts.pop_front()) {
            Some(text) if self.shown.take().is_some() => Some(format!("{CLEAR}{text}")),
            Some(text) => Some(text),
            None if self.shown == self.status => None,
            None => {
                self.shown.clone_from(&self.status);
                Some(format!("{CLEAR}{}", self.shown.as_deref().unwrap_or_default()))
            }
        }
    }
}

/// The text after the program's name. With a width, lines break between words.
fn formatted(text: &str, width: Option<usize>) -> String {
    width.map_or_else(|| format!("redlatch: {text}\n"), |width| wrapped(text, width, "redlatch: "))
}

/// Each line of the text as a paragraph. The first paragraph begins with `first`.
pub(crate) fn wrapped(text: &str, width: usize, first: &str) -> String {
    let mut out = String::new();
    for (index, line) in text.lines().enumerate() {
        add_paragraph(&mut out, width, if index == 0 { first } else { "  " }, 4, line);
    }
    out
}

/// The text after the program's name, cut to one line of less than this width.
fn cut(text: &str, width: Option<usize>) -> String {
    let line = format!("redlatch: {}", text.replace('\n', " "));
    // A character outside ASCII may take two columns.
    let columns = |char: char| if char.is_ascii() { 1 } else { 2 };
    match width {
        Some(width) if line.chars().map(columns).sum::<usize>() >= width => {
            let mut left = width.saturating_sub(2);
            let fits = |char: &char| {
                let fits = columns(*char) <= left;
                left = left.saturating_sub(columns(*char));
                fits
            };
            line.chars().take_while(fits).chain(['…']).collect()
        }
        _ => line,
    }
}

fn queue() -> MutexGuard<'static, Queue> {
    STDERR.queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the writing thread. Called once, at the program's start.
pub(crate) fn start() -> io::Result<()> {
    thread::Builder::new().name("stderr".to_owned()).spawn(write_all).map(drop)
}

/// Changes the queue, and wakes the writing thread.
fn change(what: impl FnOnce(&mut Queue)) {
    what(&mut queue());
    STDERR.changed.notify_all();
}

fn write_all() {
    let mut queue = queue();
    loop {
        let next = if queue.has_command && stops_writers() { None } else { queue.take() };
        let Some(text) = next else {
            queue = STDERR.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        queue.is_writing = true;
        drop(queue);
        write(&text);
        queue = self::queue();
        queue.is_writing = false;
        STDERR.changed.notify_all();
    }
}

/// Writes a text, unless the terminal would stop the program for it (`stty tostop`, with another group in the
/// foreground): a lock must be extended, and its loss handled.
fn write(text: &str) {
    let stderr = io::stderr();
    let would_be_stopped =
        tcgetpgrp(&stderr).is_ok_and(|foreground| foreground != getpgrp()) && stops_writers();
    if !would_be_stopped {
        // If stderr is gone, there is nowhere to complain.
        let _ = stderr.lock().write_all(text.as_bytes());
    }
}

/// Whether stderr is a terminal that stops background programs when they write.
fn stops_writers() -> bool {
    tcgetattr(io::stderr()).is_ok_and(|settings| settings.local_modes.contains(LocalModes::TOSTOP))
}

/// The time in which a command may have the terminal's foreground. A terminal that stops writers gets the
/// texts afterwards, because the foreground may move between a check and a write.
pub(crate) struct BesideCommand(());

impl BesideCommand {
    /// Waits up to [`END_LIMIT`] for the texts that a terminal which stops writers has still to get.
    pub(crate) fn begin() -> Self {
        let mut queue = queue();
        if stops_writers() {
            queue = wait_until_written(queue);
        }
        queue.has_command = true;
        Self(())
    }
}

impl Drop for BesideCommand {
    fn drop(&mut self) {
        change(|queue| queue.has_command = false);
    }
}

fn wait_until_written(queue: MutexGuard<'static, Queue>) -> MutexGuard<'static, Queue> {
    let waited = STDERR.changed.wait_timeout_while(queue, END_LIMIT, |queue| queue.is_left());
    waited.unwrap_or_else(PoisonError::into_inner).0
}

/// Queues a message for stderr. Never waits.
pub(crate) fn say(text: impl fmt::Display) {
    let text = formatted(&without_logins(&format!("{text:#}")), stderr_width());
    change(|queue| queue.push(text));
}

/// Sets the terminal's status line. Never waits.
pub(crate) fn show(text: &str) {
    let line = cut(&without_logins(text), stderr_width());
    change(|queue| queue.status = Some(line));
}

/// Shows progress: in the status line on a terminal, otherwise as a message.
pub(crate) fn show_progress(text: &str) {
    if stderr_is_terminal() { show(text) } else { say(text) }
}

/// Removes the status line.
pub(crate) fn clear() {
    change(|queue| queue.status = None);
}

/// Passes on another program's output until its end. That program never waits for a reader of this stderr.
pub(crate) fn relay(from: impl Read + Send + 'static) -> io::Result<()> {
    let mut from = BufReader::new(from);
    let relay = move || {
        while let Some(piece) = next_piece(&mut from) {
            change(|queue| queue.push(piece));
        }
    };
    thread::Builder::new().name("relay".to_owned()).spawn(relay).map(drop)
}

/// Next line, joined with all whole lines that have arrived with it: many short texts would fill the queue.
fn next_piece(from: &mut BufReader<impl Read>) -> Option<String> {
    let mut piece = Vec::new();
    let size = from.by_ref().take(PIECE_SIZE_MAX).read_until(b'\n', &mut piece).ok()?;
    let more = from.buffer();
    let more_size = more.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
    piece.extend_from_slice(&more[..more_size]);
    from.consume(more_size);
    (size > 0).then(|| String::from_utf8_lossy(&piece).into_owned())
}

/// Waits up to [`END_LIMIT`] for all texts to be written, at the program's end.
pub(crate) fn finish() {
    drop(wait_until_written(queue()));
}

pub(crate) fn stderr_is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// A wait shown in one line: it counts down on a terminal, and is printed once otherwise.
#[derive(Default)]
pub(crate) struct Countdown {
    is_said: bool,
}

impl Countdown {
    pub(crate) fn show(&mut self, message: &Message<'_>) {
        if stderr_is_terminal() {
            show(&message.to_string());
        } else if !self.is_said {
            say(message);
        }
        self.is_said = true;
    }
}

impl Drop for Countdown {
    /// Clears the line: the next message says how the wait ended.
    fn drop(&mut self) {
        clear();
    }
}

/// Prints a result to stdout. A closed pipe is no error: its reader does not want the rest.
pub(crate) fn print(text: &str) -> io::Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

/// Prints a text for a program that catches signals. Once `is_over` returns true, waits [`END_LIMIT`] more
/// for the reader of stdout.
pub(crate) fn print_until(text: String, mut is_over: impl FnMut() -> bool) -> io::Result<()> {
    let (sender, printed) = mpsc::channel();
    thread::Builder::new().name("stdout".to_owned()).spawn(move || sender.send(print(&text)))?;
    loop {
        let is_last = is_over();
        match printed.recv_timeout(if is_last { END_LIMIT } else { LOOK_PAUSE }) {
            Ok(result) => return result,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(io::Error::other("the thread for stdout ended"));
            }
            Err(RecvTimeoutError::Timeout) if is_last => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// Hides logins: the text from each `://` to the last `@` before the next `://` or the end of the line. This
/// hides too much rather than too little. Three texts contain no login, and are shown: a master's answer
/// after its name, the form of a URL in the library's errors, and ` on @user_script:1.`, with which servers
/// end an error.
fn without_logins(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let mut parts = line.split("://");
        shown.push_str(parts.next().unwrap_or_default());
        for part in parts {
            let is_named = names_master(part, shown.ends_with("unix"));
            let is_script = |at: usize| part[..at].ends_with(' ') && part[at..].starts_with("@user_script:");
            let end = part.rmatch_indices('@').map(|(at, _)| at).find(|at| !is_script(*at));
            shown.push_str("://");
            match end.map(|at| part.split_at(at)) {
                Some((login, place)) if !is_named && login != "[[user]:password" => {
                    shown.push('…');
                    shown.push_str(place);
                }
                _ => shown.push_str(part),
            }
        }
    }
    shown
}

/// Whether a text begins with the name of a master, which has no login: `10.0.0.1:6379/1: ` or
/// `/run/redis@1.sock: `.
fn names_master(text: &str, is_unix: bool) -> bool {
    let Some((name, _)) = text.split_once(": ") else { return false };
    if is_unix {
        return name.starts_with('/') && !name.contains(':');
    }
    let (address, _) = name.split_once('/').unwrap_or((name, ""));
    let Some((host, port)) = address.rsplit_once(':') else { return false };
    !host.is_empty() && !name.contains(['@', ' ']) && port.parse::<u16>().is_ok()
}

/// Width of lines if stdout is no terminal.
const WIDTH_DEFAULT: usize = 80;

/// Lines longer than this are hard to read, however wide the screen is.
const WIDTH_MAX: usize = 110;

pub(crate) fn stdout_width() -> usize {
    terminal_width().map_or(WIDTH_DEFAULT, |width| width.min(WIDTH_MAX))
}

pub(crate) fn terminal_width() -> Option<usize> {
    width_of(io::stdout())
}

pub(crate) fn stderr_width() -> Option<usize> {
    width_of(io::stderr())
}

fn width_of(stream: impl AsFd) -> Option<usize> {
    let size = tcgetwinsize(stream).ok()?;
    // A terminal that does not know its size reports zero.
    Some(usize::from(size.ws_col)).filter(|width| *width > 0)
}

/// Colour of a word, by its meaning.
#[derive(Clone, Copy)]
pub(crate) enum Colour {
    /// Red: act.
    Alarm,
    /// Yellow: look.
    Care,
    /// Green: nothing to do.
    Fine,
}

/// Colours the word at `from` if stdout is a terminal that shows colours: `NO_COLOR` is unset or empty, and
/// `TERM` is not `dumb`. Lines must be padded before.
pub(crate) fn paint(out: &mut String, from: usize, word: &str, colour: Colour) {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
    if !io::stdout().is_terminal() || is_set("NO_COLOR") || is_dumb || !out[from..].starts_with(word) {
        return;
    }
    let code = match colour {
        Colour::Alarm => 31,
        Colour::Care => 33,
        Colour::Fine => 32,
    };
    out.replace_range(from..from + word.len(), &format!("\x1b[1;{code}m{word}\x1b[0m"));
}

/// A value as one line of JSON in ASCII. Escapes keep foreign text whole and harmless.
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

/// Adds a paragraph: lines of at most `width` characters, as far as the words allow. The first line begins
/// with `first`, the others with `indent` spaces.
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

/// The time in whole milliseconds, rounded down.
pub(crate) fn whole_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The time in whole microseconds, rounded down.
pub(crate) fn whole_us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(queue: &mut Queue) -> Vec<String> {
        std::iter::from_fn(|| queue.take()).collect()
    }

    // I98
    #[test]
    fn the_oldest_lines_give_way_and_are_counted() {
        let mut queue = Queue::new();
        (0..TEXT_COUNT_MAX + 3).for_each(|number| queue.push(number.to_string()));
        let texts = all(&mut queue);
        let (dropped, rest) = texts.split_first().expect("texts");
        assert!(dropped.starts_with("redlatch: 3 messages were dropped"), "{dropped}");
        assert_eq!(rest.len(), TEXT_COUNT_MAX);
        assert!(rest.iter().zip(3..).all(|(text, number)| *text == number.to_string()), "{rest:?}");
        queue.push("later".to_owned());
        assert_eq!(all(&mut queue), ["later"]);
    }

    #[test]
    fn lines_that_come_together_are_one_text() {
        let long = "x".repeat(5000);
        let text = format!("one\ntwo\nthr{long}\nfour");
        let mut from = BufReader::with_capacity(11, text.as_bytes());
        let pieces: Vec<_> = std::iter::from_fn(|| next_piece(&mut from)).collect();
        assert_eq!(pieces.concat(), text);
        assert_eq!(pieces[0], "one\ntwo\n");
        assert_eq!(pieces[1].len(), 4096);
        assert_eq!(pieces.last().map(String::as_str), Some("four"));
    }

    #[test]
    fn a_status_gives_way_to_texts_and_returns() {
        let mut queue = Queue::new();
        queue.status = Some("one".to_owned());
        assert_eq!(all(&mut queue), ["\r\x1b[Kone"]);
        queue.push("text\n".to_owned());
        assert_eq!(all(&mut queue), ["\r\x1b[Ktext\n", "\r\x1b[Kone"]);
        queue.status = Some("two".to_owned());
        queue.status = Some("three".to_owned());
        assert_eq!(all(&mut queue), ["\r\x1b[Kthree"], "only the present one");
        queue.status = None;
        assert_eq!(all(&mut queue), ["\r\x1b[K"]);
    }

    #[test]
    fn messages_break_between_words() {
        let text = "lock \"orders:42\" is held by another client (web-3:4711:tar), for at most 4.4s\n  all 3 masters: refused";
        assert_eq!(formatted(text, None), format!("redlatch: {text}\n"));
        for width in [20, 40, 80] {
            let out = formatted(text, Some(width));
            let words: Vec<&str> = text.split_whitespace().collect();
            assert_eq!(out.split_whitespace().skip(1).collect::<Vec<_>>(), words);
            let is_one_word =
                |line: &str| line.trim_start_matches("redlatch:").split_whitespace().count() == 1;
            assert!(
                out.lines().all(|line| line.chars().count() <= width || is_one_word(line)),
                "{width}: {out}"
            );
            assert!(cut(text, Some(width)).chars().count() < width);
        }
        let wide = "東京".repeat(40);
        assert_eq!(cut(&wide, Some(20)), "redlatch: 東京東京…");
        assert_eq!(cut("東京", Some(16)), "redlatch: 東京");
        // The last column stays free.
        assert_eq!((&*cut("ab", Some(13)), &*cut("ab", Some(12))), ("redlatch: ab", "redlatch: …"));
    }

    // I147
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

    #[test]
    fn logins_are_not_shown() {
        for (text, shown) in [
            ("plain text", "plain text"),
            ("mail a@b", "mail a@b"),
            ("redis://h:1", "redis://h:1"),
            ("unexpected argument 'redis://me:s3@h' found", "unexpected argument 'redis://…@h' found"),
            ("'redis://me:s3 s3@h' found", "'redis://…@h' found"),
            ("redis://me:a@b@h,redis://:s3@h2\nredis://h3", "redis://…@h,redis://…@h2\nredis://h3"),
            ("redis://h\nmail a@b", "redis://h\nmail a@b"),
            ("want redis://[[user]:password@]host", "want redis://[[user]:password@]host"),
            ("redis://me:s3@h:1: b@c", "redis://…@c"),
            ("redis://[::1]:1: on @user_script:1.", "redis://[::1]:1: on @user_script:1."),
            ("redis://h:1: User a@b may not\nx", "redis://h:1: User a@b may not\nx"),
            ("redis://h:1, redis://h:2: a@b", "redis://h:1, redis://h:2: a@b"),
            ("redis://h:1/2: a@b", "redis://h:1/2: a@b"),
            ("redis://:1: s3@h", "redis://…@h"),
            (
                "redis://h, as far as known: on @user_script:1.",
                "redis://h, as far as known: on @user_script:1.",
            ),
            ("unix:///run/r@1.sock: a@b", "unix:///run/r@1.sock: a@b"),
            ("unix:///me:s3@/run/r.sock: no such file", "unix://…@/run/r.sock: no such file"),
            ("redis:///me:s3@h", "redis://…@h"),
            ("redis://me:s3: s3@h", "redis://…@h"),
            ("redis://me:s3@user_script:1", "redis://…@user_script:1"),
        ] {
            assert_eq!(without_logins(text), shown);
        }
    }
}
