//! The file that contains a lock's handle, and `redlatch release --handle`, which frees the lock.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use redlatch::error::ReleaseHandleError;
use redlatch::{Client, Config, LockHandle, Mode};

use super::exit::{Exit, code};
use super::message::{Message, label};
use super::options::MasterOptions;
use super::output::say;

/// Mode of the file, which is a secret of its user.
const FILE_MODE: u32 = 0o600;

/// Release the lock of a handle, and remove its file.
///
/// `redlatch acquire --handle` or `redlatch run --handle` has written the file. The release takes one round
/// trip, and the first waiter gets the lock. A `redlatch run` that still runs loses the lock, and ends its
/// command. Without the file there is nothing to release, and that is no error.
#[derive(clap::Args)]
#[command(after_help = RELEASE_HELP)]
pub(crate) struct Args {
    /// The file of the handle, with mode 0600.
    #[arg(long, value_name = "FILE")]
    handle: PathBuf,

    #[command(flatten)]
    masters: MasterOptions,
}

const RELEASE_HELP: &str = "\
Exit codes:
  0 if a quorum of masters has no such lock any more, or there is no file, 64
  bad usage, or a file that is damaged, belongs to other masters or is readable
  by other users, 69 if fewer than a quorum answered so (the file stays), 70 if
  the operating system refused something

Example, for a unit of systemd:
  ExecStart=redlatch run --handle ${RUNTIME_DIRECTORY}/lock nightly-report -- ./report.sh
  ExecStopPost=redlatch release --handle ${RUNTIME_DIRECTORY}/lock";

pub(crate) fn release(args: &Args) -> Result<u8, Exit> {
    let file = args.handle.display();
    let Some(handle) = read(&args.handle)? else {
        say(Message::NoHandle { file: &file });
        return Ok(0);
    };
    let client = Client::open(args.masters.config()?)?;
    let lock = &label([handle.resource()]);
    match client.release_handle(&handle) {
        Ok(released) if released.was_already_gone() => say(Message::HandleGone { lock }),
        Ok(_) => say(Message::Released { lock }),
        Err(error @ ReleaseHandleError::Unconfirmed(_)) => return Err(Exit::new(code::NO_QUORUM, error)),
        Err(error @ (ReleaseHandleError::Foreign(_) | ReleaseHandleError::Input(_))) => {
            return Err(Exit::usage(error));
        }
        Err(error) => return Err(Exit::internal(error).of_lock(lock)),
    }
    remove(&args.handle, &handle);
    Ok(0)
}

/// Reads the handle in a file; `None` without the file.
fn read(path: &Path) -> Result<Option<LockHandle>, Exit> {
    let file = &path.display();
    let failed = |error: &io::Error| Exit::internal(Message::HandleFile { file, error });
    let mode = match fs::metadata(path) {
        // A pipe may never end.
        Ok(found) if !found.is_file() => {
            return Err(Exit::usage(Message::HandleFile { file, error: &"it is no regular file" }));
        }
        Ok(found) => found.permissions().mode(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(&error)),
    };
    if mode & 0o077 != 0 {
        return Err(Exit::usage(Message::HandleReadable { file }));
    }
    let bytes = fs::read(path).map_err(|error| failed(&error))?;
    let text = String::from_utf8_lossy(&bytes);
    let handle = text.parse().map_err(|error| Exit::usage(Message::HandleFile { file, error: &error }))?;
    Ok(Some(handle))
}

/// File of a handle, to be written once the lock is held.
pub(crate) struct HandleFile {
    path: PathBuf,
    config: Config,
}

impl HandleFile {
    /// Checks the place before the acquisition.
    pub(crate) fn check(path: &Path, name: &[u8], mode: Mode, config: &Config) -> Result<Self, Exit> {
        let file = Self { path: path.to_owned(), config: config.clone() };
        if let Some(found) = read(path)? {
            file.check_replaceable(&found, name, mode)?;
        }
        let tried = file.create_beside().and_then(|(_, beside)| fs::remove_file(beside));
        tried.map_err(|error| file.failed(&error))?;
        Ok(file)
    }

    /// Writes the handle completely, or not at all.
    pub(crate) fn write(&self, handle: &LockHandle) -> Result<(), Exit> {
        self.put(handle).map_err(|error| self.failed(&error))
    }

    fn put(&self, handle: &LockHandle) -> io::Result<()> {
        let (mut file, beside) = self.create_beside()?;
        let written = file.write_all(format!("{handle}\n").as_bytes()).and_then(|()| file.sync_all());
        // A hard link never replaces a file. The lock's last holder may have written its file since the
        // check.
        let is_replaceable = || {
            let found = read(&self.path).ok().flatten();
            found.is_some_and(|it| self.check_replaceable(&it, handle.resource(), handle.mode()).is_ok())
        };
        let placed = written.and_then(|()| match fs::hard_link(&beside, &self.path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && is_replaceable() => {
                fs::rename(&beside, &self.path)
            }
            placed => placed,
        });
        // It is already gone after a rename.
        let _ = fs::remove_file(&beside);
        placed
    }

    fn create_beside(&self) -> io::Result<(File, PathBuf)> {
        let beside = beside(&self.path);
        let file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&beside)?;
        Ok((file, beside))
    }

    fn failed(&self, error: &io::Error) -> Exit {
        Exit::internal(Message::HandleFile { file: &self.path.display(), error })
    }

    /// Removes the file of a released lock, unless the file contains another handle.
    pub(crate) fn remove(&self, handle: &LockHandle) {
        remove(&self.path, handle);
    }

    /// Fails unless a handle of this lock may replace the found one. An older handle of the lock is over when
    /// the lock is acquired again. Readers hold a lock together, so no reader replaces another reader's
    /// handle.
    fn check_replaceable(&self, found: &LockHandle, name: &[u8], mode: Mode) -> Result<(), Exit> {
        let file = &self.path.display();
        if found.resource() != name || mode == Mode::Shared {
            return Err(Exit::usage(Message::HandleThere { file }));
        }
        let checked = found.check_fleet(&self.config);
        checked.map_err(|error| Exit::usage(Message::HandleForeign { file, error: &error }))
    }
}

/// New name in the same folder.
fn beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(format!(".{:016x}", RandomState::new().hash_one(0)));
    name.into()
}

/// Removes the file of this handle. The next holder may replace the file at any time, so the file is moved
/// away, checked again, and put back if it is another holder's.
fn remove(path: &Path, handle: &LockHandle) {
    let text = handle.to_string();
    if !has(path, &text) {
        return;
    }
    // Another process may have removed the file.
    if let Err(error) = take_away(path, &text)
        && error.kind() != ErrorKind::NotFound
    {
        say(Message::HandleFile { file: &path.display(), error: &error });
    }
}

fn take_away(path: &Path, text: &str) -> io::Result<()> {
    let taken = beside(path);
    fs::rename(path, &taken)?;
    if !has(&taken, text) {
        // If a third holder has written a file, that file stays.
        match fs::hard_link(&taken, path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return fs::rename(&taken, path),
            _ => {}
        }
    }
    fs::remove_file(&taken)
}

fn has(path: &Path, text: &str) -> bool {
    fs::read_to_string(path).is_ok_and(|found| found.trim() == text)
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::thread;

    use super::*;

    #[test]
    fn handle_file_of_another_lock_is_put_back() {
        let folder = std::env::temp_dir().join(format!("redlatch-taken-{}", std::process::id()));
        fs::create_dir(&folder).expect("a folder");
        let path = folder.join("lock");
        fs::write(&path, "next\n").expect("a file");
        take_away(&path, "own").expect("a folder of its own");
        assert_eq!(fs::read_to_string(&path).expect("it is back"), "next\n");
        assert_eq!(fs::read_dir(&folder).expect("a folder").count(), 1, "nothing is left beside");
        take_away(&path, "next").expect("a folder of its own");
        // A folder cannot be hard-linked.
        fs::create_dir(&path).expect("a folder of its own");
        take_away(&path, "own").expect("a folder of its own");
        fs::remove_dir(&path).expect("it is back");
        // A third file appears while the second one is being checked.
        assert!(Command::new("mkfifo").arg(&path).status().is_ok_and(|status| status.success()));
        thread::scope(|scope| {
            scope.spawn(|| {
                while path.exists() {
                    thread::yield_now();
                }
                fs::write(&path, "third").expect("a folder of its own");
                let mut files = fs::read_dir(&folder).expect("a folder").flatten().map(|file| file.path());
                fs::write(files.find(|file| *file != path).expect("it is taken"), "next").expect("a pipe");
            });
            take_away(&path, "own").expect("a folder of its own");
        });
        assert_eq!(fs::read_to_string(&path).expect("it stays"), "third");
        fs::remove_file(&path).expect("it is there");
        // Fails unless the folder is empty.
        fs::remove_dir(&folder).expect("a folder of its own");
    }
}
