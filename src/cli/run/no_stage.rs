//! No stage before the command: redlatch binds the command to its own life on Linux only.

use std::convert::Infallible;
use std::ffi::OsString;
use std::io;
use std::process::Command;

/// Never constructed.
#[derive(Debug)]
pub(super) struct Failure(Infallible);

impl Failure {
    pub(super) fn take(&mut self) -> Option<io::Error> {
        match self.0 {}
    }
}

/// The command itself, without a stage.
pub(super) fn command(words: &[OsString]) -> io::Result<(Command, Option<Failure>)> {
    let (program, arguments) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command.args(arguments);
    Ok((command, None))
}

/// This process is never a stage.
pub(crate) const fn enter() -> Option<u8> {
    None
}
