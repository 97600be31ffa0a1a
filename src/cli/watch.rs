//! Repeated output of `inspect --watch`, until nobody reads it: in place on a terminal, otherwise one text
//! after another.

use std::io;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::output::{print, terminal_width};

pub(super) struct Watch {
    is_json: bool,
    /// Rows of the last text on a terminal.
    height: usize,
}

impl Watch {
    pub(super) const fn new(is_json: bool) -> Self {
        Self { is_json, height: 0 }
    }

    /// Width of the terminal on which each text replaces the last one; `None` where texts follow each other.
    pub(super) fn terminal(&self) -> Option<usize> {
        terminal_width().filter(|_| !self.is_json)
    }

    pub(super) fn show(&mut self, text: &str) -> io::Result<()> {
        let height = self.terminal().map_or(0, |width| rows(text, width));
        match std::mem::replace(&mut self.height, height) {
            0 => print(text),
            up => print(&format!("\x1b[{up}A\x1b[J{text}")),
        }
    }

    /// Waits for this time. Returns false if stdout is a pipe that nobody reads.
    pub(super) fn wait(&self, time: Duration) -> io::Result<bool> {
        let stdout = io::stdout();
        // `poll` always reports an error of the pipe, and nothing else is asked for.
        let mut pipe = [PollFd::new(&stdout, PollFlags::empty())];
        let timeout = Timespec::try_from(time).map_err(io::Error::other)?;
        match poll(&mut pipe, Some(&timeout)) {
            Ok(_) => Ok(!pipe[0].revents().intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL)),
            Err(Errno::INTR) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }
}

/// Rows that a text takes on a terminal, which breaks longer lines.
fn rows(text: &str, width: usize) -> usize {
    text.lines().map(|line| columns(line).div_ceil(width).max(1)).sum()
}

/// Columns of a line; colours take none.
fn columns(line: &str) -> usize {
    let mut parts = line.split('\x1b');
    let plain = parts.next().unwrap_or_default();
    let painted = parts.filter_map(|part| part.split_once('m'));
    [plain].into_iter().chain(painted.map(|(_, shown)| shown)).map(|part| part.chars().count()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_as_many_rows_as_it_fills() {
        for (size, count) in [(0, 1), (1, 1), (40, 1), (41, 2), (80, 2), (81, 3)] {
            let line = "x".repeat(size);
            assert_eq!(rows(&format!("{line}\n"), 40), count, "{size}");
            assert_eq!(rows(&format!("\x1b[1m{line}\x1b[0m\nnext\n"), 40), count + 1, "colours take no room");
        }
    }
}
