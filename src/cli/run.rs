//! `redlatch run`: a command under a lock, like flock(1), but across masters.
//!
//! ```text
//!  main thread: waits, runs the command, sends TERM and KILL by validity      the client's thread:
//!        ▲                                            ▲                       extends the locks
//!        └──── a thread: caught signals               └──── events: why an extension failed
//! ```
//!
//! A signal ends every wait except the wait for releases.

mod acquire;
mod descendants;
pub(crate) mod elect;
mod job;
mod least;
mod locks;
pub(crate) mod pass;
mod process;
mod session;
#[cfg(target_os = "linux")]
pub(crate) mod stage;
#[cfg(not(target_os = "linux"))]
#[path = "run/no_stage.rs"]
pub(crate) mod stage;
mod supervisor;
mod terminal;
mod timeline;
mod wait;

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use redlatch::compose::slot_acquisition;
use redlatch::engine::Resource;
use redlatch::env;
use redlatch::env::parse_time;
use redlatch::error::InputError;
use redlatch::{Guard, Options, limits};

use super::exit::{Exit, code};
use super::handle::HandleFile;
use super::message::{Message, pool_label};
use super::options::MasterOptions;
use super::output;
use acquire::{Acquired, Wanted, acquire};
use job::Job;
use least::Leaving;
use process::Process;
use session::Session;
use supervisor::{End, Supervisor};
use wait::FOREVER;

/// Run a command while holding a lock.
///
/// Takes the lock on a majority of the masters, runs the command, keeps extending the lock meanwhile, and
/// releases it when the command has ended.
#[derive(clap::Args)]
#[command(after_help = "See `redlatch run --help` for exit codes, signals and examples.", after_long_help = AFTER_HELP)]
pub(crate) struct Args {
    #[command(flatten)]
    job: Job,

    /// How long to wait for the lock, or `forever`; 0 makes one attempt [default: one attempt, and 2s
    /// while too few masters can grant].
    ///
    /// Without it redlatch ends at once if another client holds the lock. If too few masters answer, some may
    /// have stalled for a moment only, so redlatch tries again for 2s. With --strict the wait for masters comes
    /// before this wait.
    #[arg(short, long, value_name = "TIME", value_parser = parse_wait)]
    wait: Option<Duration>,

    /// How long the lock is held from its acquisition, however early the command ends: for commands that run
    /// once per interval. At most --max-hold. A command that cannot be executed releases the lock.
    ///
    /// The lock then ends by itself, also if the command fails or is ended by a signal. If more than --max-ttl
    /// of this time is left when the command ends, redlatch keeps the lock until --max-ttl is left. A signal
    /// to redlatch meanwhile leaves the lock for --max-ttl. After a crash of redlatch the lock ends with its
    /// TTL. If too few masters confirm the time left, redlatch stays at most until no master can have the lock
    /// any more.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    at_least: Option<Duration>,

    /// The exit code if others hold the lock or are ahead in its queue.
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = code::CONTENDED)]
    conflict_exit_code: u8,

    /// Take the lock with a fencing token, for storage that refuses a command whose lock has passed on: the
    /// command finds it in REDLATCH_FENCING_TOKEN.
    #[arg(long, conflicts_with = "shared")]
    fenced: bool,

    /// Wait in a queue with all other --fair callers of the lock: first come, first served.
    ///
    /// Callers without --fair ignore the queue. Without --wait the first attempt succeeds only if no caller
    /// waits for the lock. The masters need HELLO 3 (Redis 6), or there is no order. Not together with
    /// --fenced, --shared or --also.
    #[arg(long, conflicts_with_all = ["fenced", "also", "shared"])]
    fair: bool,

    /// Take one of this many slots, 1 to 1024, so that at most this many commands of the name run at once. The
    /// command finds its number, from 0 on, in REDLATCH_SLOT.
    ///
    /// All users of the name must give the same number. With --wait commands start in the order in which
    /// they began to wait. Not together with --fair, --shared or --also.
    #[arg(long, value_name = "COUNT", conflicts_with_all = ["fair", "also", "shared"])]
    slots: Option<u32>,

    /// Hold the lock together with other --shared callers. They exclude callers without --shared, and those
    /// callers exclude them.
    #[arg(short, long)]
    shared: bool,

    /// One more lock, for a command that needs several: it runs once all of them are held. May be repeated.
    ///
    /// No lock is held while the command waits for another one. So commands cannot wait for each other in a
    /// circle, in whatever order they name the locks.
    #[arg(long, value_name = "NAME")]
    also: Vec<OsString>,

    /// A file for a handle of the lock, with mode 0600, while the command runs: `redlatch release --handle
    /// FILE` frees the lock of a redlatch that was killed, before its TTL ends.
    ///
    /// It is written before the command starts, and removed after the release. An older handle of the same
    /// lock is replaced once the lock is held, but not with --shared. Any other file at this place stays, and
    /// is an error. `redlatch release` of the file while redlatch runs breaks the lock: its next extension
    /// fails, and the command is ended. Not together with --also or --slots.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["also", "slots"])]
    handle: Option<PathBuf>,

    #[command(flatten)]
    masters: MasterOptions,
}

const AFTER_HELP: &str = "\
Exit codes:
  The command's own; 128+N if signal N ended it or the wait for the lock.
  Others:
   64  bad usage: the message says what is wrong
   69  too few masters could grant the lock, within 2s or within the --wait:
       unreachable, in error, or restarted lately
   70  the operating system refused something
   75  another client holds the lock, readers share it, or --fair waiters are
       ahead (another code: --conflict-exit-code)
   76  the lock was lost, or could not be extended: before the command, while
       it ran, or before its --at-least time
  126  the command cannot be executed
  127  the command was not found

Environment of the command:
  REDLATCH_RESOURCE   the lock's name; with several locks a line for each, here
                      and in the next two
  REDLATCH_TOKEN      the token that the lock's value on the masters starts
                      with, in hexadecimal
  REDLATCH_FENCING_TOKEN
                      with --fenced: a number that is larger than the number of
                      each earlier --fenced holder
  REDLATCH_SLOT       with --slots: the slot's number, from 0 on, which no
                      other command has at the same time
  REDLATCH_TTL_MS     the TTL in milliseconds
  REDLATCH_VALID_MS   the validity left at the start, in milliseconds;
                      extensions renew it

When the lock is lost:
  An extension that too few masters answer is tried again. If none has
  succeeded after two thirds of the TTL, or the masters say that the lock is
  gone, the command gets TERM, and KILL when the grace has passed. With a
  --grace below a quarter of the TTL the TERM may come later. Even with a
  longer grace, KILL comes when a twentieth of the validity (at most 1s) is
  left, or up to a sixth where the machine ran redlatch late before. It goes to
  the command's group first, then to the other descendants as they are found.
  If the machine does not run redlatch until the validity has ended, KILL comes
  as soon as redlatch runs. Only fenced storage refuses the late work of such a
  command.

Processes:
  The command leads its own process group. A lost lock ends the group and,
  on Linux, all descendants of the command that it may signal, wherever they
  went (setsid, daemons); redlatch exits when none of these is left. When the
  command ends by itself redlatch releases or leaves the lock and exits.
  Processes that the command left in the background go on without the lock: let
  the command wait for processes that need the lock. If redlatch itself gets
  KILL (also from a system that is out of memory), the command gets KILL, too,
  on Linux with /proc. Its descendants do not get KILL, and go on without the
  lock. So does a command whose file is set-user-ID or set-group-ID or has
  capabilities, or that changes its user or group (sudo, setpriv, gosu, chpst
  -u). Run redlatch itself as the final user: setpriv ... redlatch run ... On
  other systems the command and its descendants go on.

Output:
  Messages do not delay redlatch while the command runs: if nobody reads
  stderr, the oldest are dropped and counted, and its end waits at most 1s for
  a reader.

Signals:
  TERM, INT, HUP and QUIT to redlatch go on to the whole group, USR1 and USR2
  to the command. TERM, INT, HUP or QUIT that was ignored when redlatch started
  stays ignored (nohup, background jobs of scripts).

In a terminal:
  The command has the terminal's foreground, as under a shell, so keys reach
  the command only. In a pipeline it gets the foreground when it reads from the
  terminal. If Ctrl-C ends the command, redlatch passes it on to its own job.
  Ctrl-Z stops the command's group, on Linux its other descendants, and
  redlatch, so nothing extends the lock. After `fg` or `bg` the command goes on
  if TERM is not due by then. Else it gets TERM, or with next to no validity
  KILL at once. STOP to the command alone leaves it its lock. Under `stty
  tostop` redlatch says what happened when the command has ended, and as a
  background job nothing.

Examples:
  redlatch run -m redis://a,redis://b,redis://c nightly-report -- ./report.sh
  redlatch run --ttl 30s --wait 5min deploy:web -- sh -c 'make build && make deploy'
  redlatch run --fair --wait 10min printer -- lp report.ps
      first come, first served
  redlatch run --fenced backup -- ./backup.sh
      with REDLATCH_FENCING_TOKEN
  redlatch run --shared prices -- ./report.sh
      together with other readers
  redlatch run --slots 3 --wait 1h migration -- ./migrate.sh
      three at once, with REDLATCH_SLOT
  redlatch run account:1 --also account:2 -- ./transfer.sh
      both locks, or none
  redlatch run --handle /run/report.lock report -- ./report.sh
      redlatch release --handle frees it after a KILL
  redlatch run --at-least 5min report -- ./report.sh
      once, whichever machines start it within 5 minutes
  redlatch run backup -- tar cf /backup/home.tar /home || [ $? -eq 75 ]
      fine if another machine does it";

pub(crate) fn execute(args: &Args) -> Result<u8, Exit> {
    let names = names(args)?;
    let Job { max_hold, quiet, .. } = args.job;
    let options = in_mode(args.job.options(), args.fenced, args.fair, args.shared);
    let wanted = match args.slots {
        Some(count) => {
            slot_acquisition::check(count, &options)?;
            Wanted::Slot(names[0], count)
        }
        None => Wanted::All(&names),
    };
    if let Some(at_least) = args.at_least.filter(|at_least| *at_least > max_hold) {
        return Err(Exit::new(code::USAGE, Message::LeastTimeTooLong { at_least, max_hold }));
    }
    let mode = options.mode;
    let mut session = args.job.open(&args.masters, &names, options)?;
    let config = session.client.config();
    let file = args.handle.as_deref().map(|path| HandleFile::check(path, names[0].as_bytes(), mode, config));
    let file = file.transpose()?;
    if let Wanted::Slot(pool, _) = wanted {
        session.label = pool_label(pool.as_bytes());
    }
    let result = session
        .wait_if_strict()
        .and_then(|()| acquire(&mut session, wanted, args.wait))
        .and_then(|acquired| hold_with_handle(&mut session, args, &names, acquired, file.as_ref()))
        .and_then(End::exit_code);
    session.close();
    result.or_else(|exit| match exit.code {
        code::CONTENDED if quiet => Ok(args.conflict_exit_code),
        code::CONTENDED => Err(Exit { code: args.conflict_exit_code, ..exit }),
        _ => Err(exit),
    })
}

fn in_mode(options: Options, is_fenced: bool, is_fair: bool, is_shared: bool) -> Options {
    let mut options = options;
    options = if is_fenced { options.fenced() } else { options };
    options = if is_fair { options.fair() } else { options };
    options = if is_shared { options.shared() } else { options };
    options
}

/// Names in the given order, without duplicates.
fn names(args: &Args) -> Result<Vec<Resource<'_>>, InputError> {
    let mut names = Vec::with_capacity(1 + args.also.len());
    for resource in std::iter::once(&args.job.resource).chain(&args.also) {
        let name = Resource::new(resource.as_bytes())?;
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let count = names.len();
    if count > limits::SET_SIZE_MAX { Err(InputError::SetTooLarge { count }) } else { Ok(names) }
}

fn parse_wait(text: &str) -> Result<Duration, &'static str> {
    match text {
        "forever" => Ok(FOREVER),
        text => parse_time(text).map_err(|_| "give a time such as 500ms, 30s, 5min or 2h 30min, or forever"),
    }
}

/// Runs the command while the lock's handle is in its file.
fn hold_with_handle(
    session: &mut Session,
    args: &Args,
    names: &[Resource<'_>],
    acquired: Acquired,
    file: Option<&HandleFile>,
) -> Result<End, Exit> {
    let handle = file.and_then(|file| Some((file, acquired.guards[0].to_handle()?)));
    if let Some((file, handle)) = &handle
        && let Err(exit) = file.write(handle)
    {
        session.release(acquired.guards);
        return Err(exit);
    }
    let result = hold(session, &args.job, args.at_least, names, acquired);
    if let Some((file, handle)) = &handle {
        file.remove(handle);
    }
    result
}

/// Runs the command, then releases the locks or leaves them until `at_least` has passed.
fn hold(
    session: &mut Session,
    job: &Job,
    at_least: Option<Duration>,
    names: &[Resource<'_>],
    acquired: Acquired,
) -> Result<End, Exit> {
    let end = match run_command(session, job, names, &acquired) {
        Ok(end) => end,
        Err(exit) => {
            session.release(acquired.guards);
            return Err(exit);
        }
    };
    if let Ok(code) = end.code
        && !end.is_left
    {
        session.report(Message::CommandEnded { code });
    }
    let Acquired { guards, since, .. } = acquired;
    let until = since.zip(at_least).and_then(|(since, at_least)| since.checked_add(at_least));
    let was_held = match until {
        Some(until) if !end.is_lost => {
            Leaving { session, is_signalled: end.is_signalled }.leave_until(guards, until)
        }
        // A process of the command runs on, so the lock is left to its TTL.
        _ if end.is_left => {
            guards.into_iter().map(Guard::leave).for_each(drop);
            false
        }
        _ => session.release(guards),
    };
    Ok(End { is_lost: end.is_lost || !was_held, ..end })
}

/// Runs the command to its end. Fails if the command never ran.
fn run_command(
    session: &mut Session,
    job: &Job,
    names: &[Resource<'_>],
    Acquired { guards, slot, .. }: &Acquired,
) -> Result<End, Exit> {
    let Some(left) = time_left(guards.iter().map(|guard| guard.remaining())) else {
        return Err(Exit::new(code::LOST, Message::OverBeforeStart { lock: &session.label }));
    };
    if let Some(exit) = session.interrupted() {
        return Err(exit);
    }
    let lines = |of: &dyn Fn(&Guard) -> Option<String>| {
        guards.iter().map(of).collect::<Option<Vec<_>>>().map(|lines| lines.join("\n").into())
    };
    let names: Vec<&[u8]> = names.iter().map(Resource::as_bytes).collect();
    let variables = [
        ("REDLATCH_RESOURCE", Some(OsString::from_vec(names.join(&b'\n')))),
        ("REDLATCH_TOKEN", lines(&|guard| Some(guard.token().to_string()))),
        // Removed without a token: an outer `redlatch run` may have set the variable.
        ("REDLATCH_FENCING_TOKEN", lines(&|guard| Some(guard.fencing_token()?.to_string()))),
        ("REDLATCH_SLOT", slot.map(|slot| slot.to_string().into())),
        ("REDLATCH_TTL_MS", Some(session.ttl.as_millis().to_string().into())),
        ("REDLATCH_VALID_MS", Some(left.as_millis().to_string().into())),
        // If the command locks, it uses its own login.
        (env::PASSWORD_FILE, None),
    ];
    let _beside_command = output::BesideCommand::begin();
    let process = Process::spawn(&job.command, variables)?;
    Supervisor::new(session, process, guards, job.grace).supervise()
}

/// Shortest remaining validity. `None` if a validity has ended: no command may start then.
fn time_left(each: impl Iterator<Item = Duration>) -> Option<Duration> {
    each.min().filter(|left| !left.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_needs_all_of_its_locks_at_its_start() {
        let [none, second, hour] = [0, 1, 3600].map(Duration::from_secs);
        let left = |each: &[Duration]| time_left(each.iter().copied());
        assert_eq!((left(&[hour, second]), left(&[second, hour])), (Some(second), Some(second)));
        assert_eq!((left(&[hour, none]), left(&[none, hour])), (None, None));
    }

    /// The first validity lasts, but the masters have lost the lock.
    #[test]
    fn lock_lost_before_the_start_starts_no_command() {
        use clap::Parser;
        use redlatch_testing::Double;

        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            job: Job,
        }

        let double = Double::start(1).expect("a port");
        let started = std::env::temp_dir().join(format!("redlatch-started-{}", std::process::id()));
        let line = ["run", "--quiet", "a", "--", "touch"].map(OsString::from);
        let Line { job } = Line::parse_from(line.into_iter().chain([started.clone().into()]));
        let name = Resource::new("a").expect("a name");
        let observed = session::observed(double.config()).expect("valid settings");
        let ttl = observed.0.ttl(job.ttl).expect("a valid TTL");
        let voice = session::Voice::Quiet;
        let mut session = Session::open(observed, ttl, &[name], job.options(), voice).expect("a client");
        let acquired = acquire(&mut session, Wanted::All(&[name]), None).expect("it is free");
        double.master(0).command(&["DEL", "a"]).expect("it runs");
        while acquired.guards[0].is_valid() {
            std::thread::yield_now();
        }
        let refused = run_command(&mut session, &job, &[name], &acquired).expect_err("the lock is lost");
        assert_eq!(refused.code, code::LOST);
        assert!(!started.exists());
    }
}
