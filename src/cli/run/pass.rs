//! `redlatch acquire`: a lock that outlives the program. A file contains its handle.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use redlatch::engine::Resource;
use redlatch::env::parse_time;
use redlatch::{FencingToken, Options};

use super::acquire::{Wanted, acquire};
use super::job::holder_label;
use super::session::{Session, Voice, observed};
use super::{in_mode, parse_wait};
use crate::exit::{Exit, code};
use crate::handle::HandleFile;
use crate::message::Message;
use crate::options::MasterOptions;
use crate::output::{print_until, say};

/// Acquire a lock, and leave it held under a handle in a file.
///
/// For scripts in several steps: `redlatch release --handle FILE` releases the lock in a later step. Nothing
/// extends the lock, so it ends by itself after its TTL. A program can adopt the lock through the library, with
/// the line in the file.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// The file for the handle, which is written with mode 0600. An older handle of the same lock is replaced
    /// once the lock is held, but not with --shared. Any other file at this place stays, and is an error.
    #[arg(long, value_name = "FILE")]
    handle: PathBuf,

    /// How long the lock lasts unless it is released or adopted earlier [default: --max-ttl].
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    ttl: Option<Duration>,

    /// How long to wait for the lock, or `forever`; 0 makes one attempt [default: one attempt, and 2s
    /// while too few masters can grant].
    #[arg(short, long, value_name = "TIME", value_parser = parse_wait)]
    wait: Option<Duration>,

    /// Take the lock with a fencing token, which is printed on stdout.
    #[arg(long, conflicts_with = "shared")]
    fenced: bool,

    /// Wait in a queue with all other --fair callers of the lock: first come, first served.
    #[arg(long, conflicts_with_all = ["fenced", "shared"])]
    fair: bool,

    /// Hold the lock together with other --shared callers.
    #[arg(short, long)]
    shared: bool,

    /// Text by which others see who holds the lock: 1 to 64 bytes, or empty for none [default:
    /// HOST:PID:redlatch].
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,

    /// Report on stderr what happens to the lock.
    #[arg(short, long)]
    verbose: bool,

    /// Print nothing but errors.
    #[arg(short, long, conflicts_with = "verbose")]
    quiet: bool,

    /// The lock's name: nearly any text of 1 to 1024 bytes.
    #[arg(value_name = "NAME")]
    resource: OsString,

    #[command(flatten)]
    masters: MasterOptions,
}

const AFTER_HELP: &str = "\
Exit codes:
  0 if the lock is held, 64 bad usage or another file at the place, 69 too few
  masters could grant the lock, 70 the operating system refused something (the
  lock is released), 75 another client holds the lock, 76 the lock ended before
  its file and its token were written, 128+N if signal N ended the wait

The file is a secret: a user that can read it can release the lock.

Example:
  redlatch acquire --wait 1min --ttl 20s --handle /run/user/1000/deploy.lock deploy:web && ./deploy.sh
  redlatch release --handle /run/user/1000/deploy.lock";

pub(crate) fn execute(args: &Args) -> Result<u8, Exit> {
    let names = [Resource::new(args.resource.as_bytes())?];
    let options = in_mode(Options::new(), args.fenced, args.fair, args.shared);
    // The lock is extended once, for its handle. A limit on the hold would refuse a longer TTL.
    let mut builder = args.masters.builder()?.max_hold(Duration::MAX);
    if let Some(label) = holder_label(args.label.as_deref(), &["redlatch".into()]) {
        builder = builder.holder_label(label);
    }
    let (config, failures) = observed(builder)?;
    let ttl = config.ttl(args.ttl.unwrap_or_else(|| config.max_ttl()))?;
    let options = options.ttl(ttl.as_duration());
    let file = HandleFile::check(&args.handle, names[0].as_bytes(), options.mode, &config)?;
    let voice = Voice::new(args.quiet, args.verbose);
    let mut session = Session::open((config, failures), ttl, &names, options, voice)?;
    let result = leave(&mut session, &names, args, &file);
    session.close();
    result.map(|()| 0)
}

/// Prints the token. If nobody reads it, a signal or the lock's end ends the wait.
fn print_token(session: &Session, token: FencingToken, valid_until: Instant) -> Result<(), Exit> {
    let mut ended = None;
    print_until(format!("{token}\n"), || {
        ended = ended.take().or_else(|| session.interrupted());
        ended.is_some() || Instant::now() >= valid_until
    })?;
    ended.map_or(Ok(()), Err)
}

/// Acquires the lock, writes its handle to the file, and leaves the lock held.
fn leave(session: &mut Session, names: &[Resource<'_>], args: &Args, file: &HandleFile) -> Result<(), Exit> {
    session.wait_if_strict()?;
    let mut acquired = acquire(session, Wanted::All(names), args.wait)?;
    let guard = acquired.guards.remove(0);
    if let Some(exit) = session.interrupted() {
        session.release(vec![guard]);
        return Err(exit);
    }
    // A lower bound: making the handle extends the lock.
    let (valid_until, fencing_token) = (guard.valid_until(), guard.fencing_token());
    let passed = guard.into_handle(session.ttl.as_duration());
    let handle = passed.map_err(|error| {
        let exit = Exit::new(code::LOST, error.reason()).of_lock(&session.label);
        session.release(vec![error.into_guard()]);
        exit
    })?;
    if let Err(exit) = file.write(&handle) {
        let _ = session.client.release_handle(&handle);
        return Err(exit);
    }
    if let Some(token) = fencing_token
        && let Err(exit) = print_token(session, token, valid_until)
    {
        let _ = session.client.release_handle(&handle);
        file.remove(&handle);
        return Err(exit);
    }
    // The disk or the token's reader may have been slow.
    let left = valid_until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        let _ = session.client.release_handle(&handle);
        file.remove(&handle);
        return Err(Exit::new(code::LOST, Message::HandleGone { lock: &session.label }));
    }
    if session.voice != Voice::Quiet {
        say(Message::Passed { lock: &session.label, left, file: &args.handle.display() });
    }
    Ok(())
}
