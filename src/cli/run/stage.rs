//! The stage between `redlatch run` and its command, on Linux: this program, started again. It binds itself
//! to the life of its parent, then becomes the command.
//!
//! ```text
//!  redlatch run ──── starts ────► the stage ──── exec ────► the command
//!     │    ▲                        │ asks for KILL at its parent's end; is the parent still there?
//!     │    └── why it could not ────┘
//!     └─────── the command's stdin ─►
//! ```
//!
//! The stage's own stdin is a socket that carries the command's stdin and the error, because no other file
//! can be passed without `unsafe`. The kernel sends KILL when the parent's *thread* ends, so the main thread
//! starts the stage. Only the command gets KILL, not its descendants. The kernel drops the request at the
//! `exec` of a file that is set-user-ID or set-group-ID or has capabilities, and when the process changes its
//! effective or filesystem user or group.

use std::ffi::{OsStr, OsString};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

use crate::exit::code;

/// First argument of a stage. The parent's process id and the command line follow.
const WORD: &str = "__stage";

/// This program, even if its file has been replaced.
const PROGRAM: &str = "/proc/self/exe";

/// Receives the error of a stage that cannot become the command.
#[derive(Debug)]
pub(super) struct Failure(UnixStream);

impl Failure {
    /// Returns why the command never ran. Call it after the stage has ended.
    pub(super) fn take(&mut self) -> Option<io::Error> {
        let mut number = [0; size_of::<i32>()];
        self.0.read_exact(&mut number).ok()?;
        Some(io::Error::from_raw_os_error(i32::from_ne_bytes(number)))
    }
}

/// Prepares the command in a stage, and the receiver of the stage's error. Without `/proc` there is no stage.
pub(super) fn command(words: &[OsString]) -> io::Result<(Command, Option<Failure>)> {
    let (program, arguments) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    if !Path::new(PROGRAM).exists() {
        let mut command = Command::new(program);
        command.args(arguments);
        return Ok((command, None));
    }
    let (own, other) = UnixStream::pair()?;
    let stdin = io::stdin();
    let files = [stdin.as_fd()];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&files));
    sendmsg(&own, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL)?;
    own.set_nonblocking(true)?;
    let mut command = Command::new(PROGRAM);
    command.arg0("redlatch").arg(WORD).arg(getpid().to_string()).args(words).stdin(OwnedFd::from(other));
    Ok((command, Some(Failure(own))))
}

/// Exit code of a stage that could not become its command; `None` if this process is no stage.
pub(crate) fn enter() -> Option<u8> {
    let mut words = std::env::args_os().skip(1);
    if words.next()? != WORD {
        return None;
    }
    let (parent, program) = (words.next()?, words.next()?);
    let channel = io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from);
    let Ok(mut channel) = channel else { return Some(code::INTERNAL) };
    // Without a file on the socket, a user has typed these arguments.
    let Ok(stdin) = receive_file(&channel) else { return Some(code::INTERNAL) };
    let error = become_command(stdin, &parent, &program, words);
    let number = error.raw_os_error().unwrap_or(Errno::INVAL.raw_os_error());
    let _ = channel.write_all(&number.to_ne_bytes());
    Some(code::NOT_EXECUTABLE)
}

/// Returns only on failure.
fn become_command(
    stdin: OwnedFd,
    parent: &OsStr,
    program: &OsStr,
    arguments: impl Iterator<Item = OsString>,
) -> io::Error {
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return error.into();
    }
    // A parent that ended before the call above caused no signal.
    if getppid().is_none_or(|now| *parent != *now.to_string()) {
        return Errno::SRCH.into();
    }
    Command::new(program).args(arguments).stdin(stdin).exec()
}

fn receive_file(channel: &UnixStream) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(channel, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut files = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    files.next().ok_or_else(|| io::ErrorKind::InvalidInput.into())
}
