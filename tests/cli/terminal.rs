//! A terminal for a test, as the controlling terminal of a session: what is typed, and what is shown.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use redlatch_support::{PATIENCE, eventually};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::harness::{Leftovers, command};

/// A shell script with a terminal, which ends with the test.
pub(crate) struct Session {
    keyboard: File,
    screen: Arc<Mutex<String>>,
    reader: thread::JoinHandle<()>,
    child: Child,
    _leftovers: Leftovers,
}

impl Session {
    /// Starts `sh -c` in a new session, in the foreground of a new terminal. In the script, `$REDLATCH` is
    /// the program. Returns `None`, with a message, if `setsid` of util-linux is missing.
    pub(crate) fn start(urls: &[String], script: &str) -> Option<Self> {
        Self::start_with_width(urls, script, 0)
    }

    /// Like [`Self::start`], on a terminal with this many columns; zero means unknown.
    pub(crate) fn start_with_width(urls: &[String], script: &str, columns: u16) -> Option<Self> {
        let tool = Command::new("setsid").arg("--version").output();
        if !tool.is_ok_and(|tool| String::from_utf8_lossy(&tool.stdout).contains("util-linux")) {
            let why = "no setsid of util-linux, which makes a controlling terminal";
            // Not `eprintln`, which the test harness hides.
            writeln!(std::io::stderr(), "skipped: a test in a terminal: {why}").ok();
            return None;
        }
        let keyboard = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo-terminal");
        grantpt(&keyboard).and_then(|()| unlockpt(&keyboard)).expect("a pseudo-terminal");
        let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&keyboard, size).expect("a pseudo-terminal");
        let path = ptsname(&keyboard, Vec::new()).expect("it has a name");
        let path = std::ffi::OsStr::from_bytes(path.as_bytes());
        // This process must not take it as its controlling terminal.
        let open = || -> Stdio {
            let mut options = OpenOptions::new();
            std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, NOCTTY);
            options.read(true).write(true).open(path).expect("a pseudo-terminal").into()
        };
        let mut setsid = command("setsid");
        // `setsid` would fork if it led a group, as `command` makes it do.
        setsid.args(["--ctty", "--wait", "sh", "-c", script]);
        setsid.env("REDLATCH_MASTERS", urls.join(",")).env("REDLATCH", env!("CARGO_BIN_EXE_redlatch"));
        setsid.stdin(open()).stdout(open()).stderr(open());
        let leftovers = Leftovers::of(&mut setsid);
        let child = setsid.spawn().expect("it ran before");
        let keyboard = File::from(keyboard);
        let screen = Arc::new(Mutex::new(String::new()));
        let (mut shown, to) = (keyboard.try_clone().expect("an open file can be duplicated"), screen.clone());
        let reader = thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The read fails once the last process has closed the terminal.
            while let Ok(size @ 1..) = shown.read(&mut bytes) {
                to.lock().expect("nobody panics with it").push_str(&String::from_utf8_lossy(&bytes[..size]));
            }
        });
        Some(Self { keyboard, screen, reader, child, _leftovers: leftovers })
    }

    pub(crate) fn screen(&self) -> String {
        self.screen.lock().expect("nobody panics with it").clone()
    }

    /// Waits for a complete line that begins with this text. Returns the rest of the line.
    pub(crate) fn wait_for(&self, text: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let screen = self.screen();
            let (complete, _) = screen.rsplit_once('\n').unwrap_or_default();
            // A line may be cleared, and a terminal echoes control keys at the beginning of the next line.
            let lines = complete.lines().filter_map(|line| line.rsplit(CLEAR).next());
            let mut lines = lines.map(|line| line.trim_start_matches(CONTROL_KEYS));
            if let Some(rest) = lines.find_map(|line| line.strip_prefix(text)) {
                return rest.trim().to_owned();
            }
            assert!(Instant::now() < deadline, "{text:?} is not shown within {PATIENCE:?}: {screen}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn type_in(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("a terminal takes keys");
    }

    /// Waits for the script's end. Returns its exit code and all output.
    pub(crate) fn finish(mut self) -> (Option<i32>, String) {
        let mut status = None;
        eventually(PATIENCE, "the script ends", || {
            status = self.child.try_wait().expect("a child can be waited for");
            status.is_some()
        });
        eventually(PATIENCE, "all that was shown is read", || self.reader.is_finished());
        (status.and_then(|status| status.code()), self.screen())
    }
}

/// Clears the line.
const CLEAR: &str = "\r\x1b[K";

/// `^C` and `^Z`.
const CONTROL_KEYS: [char; 3] = ['^', 'C', 'Z'];

/// `O_NOCTTY` for `OpenOptionsExt`.
#[expect(clippy::cast_possible_wrap, reason = "a bit of a flag word")]
const NOCTTY: i32 = rustix::fs::OFlags::NOCTTY.bits() as i32;
