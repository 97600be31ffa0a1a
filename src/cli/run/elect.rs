//! `redlatch elect`: `run` in a loop, for a leader.
//!
//! ```text
//!   campaign ──► lead: the command runs ──► the command ends, or the lock is lost ──► pause ──► campaign
//!   A signal ends any of these steps, and the program.
//! ```

use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use redlatch::engine::Resource;

use super::acquire::{Wanted, acquire};
use super::hold;
use super::job::Job;
use super::session::{Session, Voice, sleep};
use super::supervisor::End;
use super::wait::FOREVER;
use crate::exit::{Exit, code};
use crate::message::Message;
use crate::options::MasterOptions;
use crate::output::say;

/// Shortest and longest pause. The pause doubles after each command that ran for less than [`SOON`].
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// A command that ran at least this long is followed by the shortest pause.
const SOON: Duration = PAUSE_MAX;

/// Run a command as the leader, one at a time over all machines, again and again.
///
/// Campaigns for the lock without a limit, runs the command while it is held, and keeps extending it. When the
/// command has ended, or the lock is lost, which ends the command, it pauses and campaigns again. TERM or INT
/// ends the command, releases the lock and ends redlatch.
#[derive(clap::Args)]
#[command(after_help = "See `redlatch elect --help` for exit codes, signals and examples.", after_long_help = AFTER_HELP)]
pub(crate) struct Args {
    #[command(flatten)]
    job: Job,

    #[command(flatten)]
    masters: MasterOptions,
}

const AFTER_HELP: &str = "\
Exit codes:
  It ends by a signal or an error, never by the command's own end. After TERM,
  INT, HUP or QUIT the code is the command's own; 128+N if signal N ended the
  command, or came while no command ran. Others:
   64  bad usage: the message says what is wrong
   70  the operating system refused something
   76  the lock was lost while the command ended by the signal, or redlatch may
       not end a process of the command
  126  the command cannot be executed
  127  the command was not found
  Lost locks, other holders and unreachable masters do not end it. To run a
  command once, see `redlatch run`.

Environment of the command:
  The same as with `redlatch run --fenced`. REDLATCH_FENCING_TOKEN is the term,
  a number larger than the term of each earlier leader. Give it to the storage,
  which refuses an older term. Candidates of the library (Client::lead) take
  part, too.

Pause:
  1s after the command's end, so that another candidate can lead. The pause
  doubles with each command that ends within 30s, up to 30s.

Loss, processes, signals, terminal:
  The same as with `redlatch run`; its --help says more. A leader also ends at
  --max-hold: raise it for a leader that must go on. A signal that asks redlatch
  to end goes on to the command's group, and redlatch waits for the command's
  end. HUP is such a signal: to reload a command, send HUP to it directly.

Examples:
  redlatch elect -m redis://a,redis://b,redis://c scheduler -- ./scheduler
  redlatch elect --ttl 5s scheduler -- sh -c 'exec ./scheduler --term $REDLATCH_FENCING_TOKEN'";

pub(crate) fn execute(args: &Args) -> Result<u8, Exit> {
    let Args { job, masters } = args;
    let name = Resource::new(job.resource.as_bytes())?;
    let mut session = job.open(masters, &[name], job.options().fenced())?;
    let ended = session.wait_if_strict().and_then(|()| lead_again(&mut session, job, name));
    session.close();
    ended.and_then(End::exit_code)
}

/// Leads until a signal or a fatal error. Returns the end of the last command.
fn lead_again(session: &mut Session, job: &Job, name: Resource<'_>) -> Result<End, Exit> {
    let mut pause = None;
    loop {
        announce(session, Message::Campaigning { lock: &session.label });
        let won = acquire(session, Wanted::All(&[name]), Some(FOREVER));
        let began = Instant::now();
        let led = won.and_then(|acquired| {
            let term = acquired.guards[0].fencing_token().expect("the lock is fenced");
            announce(session, Message::Leading { lock: &session.label, term: &term });
            hold(session, job, None, &[name], acquired)
        });
        let why = match after(led) {
            ControlFlow::Continue(why) => why,
            ControlFlow::Break(ended) => return ended,
        };
        let now = next_pause(pause, began.elapsed());
        announce(session, Message::NotLeading { lock: &session.label, why: &why, pause: now });
        rest(session, now)?;
        pause = Some(now);
    }
}

/// Returns the reason for a new campaign, or the end of the election.
fn after(led: Result<End, Exit>) -> ControlFlow<Result<End, Exit>, String> {
    match led {
        // A process of the old command that runs on and a new command would be two leaders.
        Ok(end) if end.is_signalled || end.is_left => ControlFlow::Break(Ok(end)),
        Ok(End { is_lost: true, .. }) => ControlFlow::Continue(Message::LockLost.to_string()),
        Ok(End { code: Ok(code), .. }) => ControlFlow::Continue(Message::CommandEnded { code }.to_string()),
        Err(Exit { code: code::CONTENDED | code::NO_QUORUM | code::LOST, why }) => ControlFlow::Continue(why),
        Ok(End { code: Err(exit), .. }) | Err(exit) => ControlFlow::Break(Err(exit)),
    }
}

/// Pause after a command that ran for this time, given the pause before it.
fn next_pause(last: Option<Duration>, ran: Duration) -> Duration {
    last.filter(|_| ran < SOON).map_or(PAUSE_MIN, |last| (last * 2).min(PAUSE_MAX))
}

/// Pauses. A signal ends the pause and the program.
fn rest(session: &Session, pause: Duration) -> Result<(), Exit> {
    let until = Instant::now() + pause;
    loop {
        if let Some(exit) = session.interrupted() {
            return Err(exit);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        sleep(left);
    }
}

/// Says who leads, except with `--quiet`.
fn announce(session: &Session, what: Message<'_>) {
    if session.voice != Voice::Quiet {
        say(what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_election_outlasts_the_end_of_each_lock() {
        let exit = |code| Exit::new(code, "of the masters");
        let end = |code, is_lost, is_signalled, is_left| Ok(End { code, is_lost, is_signalled, is_left });
        for (led, reason) in [
            (end(Ok(3), false, false, false), Ok("the command ended with code 3")),
            (end(Ok(3), true, false, false), Ok("the lock was lost")),
            (end(Err(exit(code::INTERNAL)), true, false, false), Ok("the lock was lost")),
            (Err(exit(code::CONTENDED)), Ok("of the masters")),
            (Err(exit(code::NO_QUORUM)), Ok("of the masters")),
            (Err(exit(code::LOST)), Ok("of the masters")),
            (end(Ok(3), false, true, false), Err(3)),
            (end(Ok(3), true, true, false), Err(code::LOST)),
            (end(Ok(3), true, false, true), Err(code::LOST)),
            (end(Err(exit(code::NOT_FOUND)), false, false, false), Err(code::NOT_FOUND)),
            (end(Err(exit(code::NOT_FOUND)), false, true, false), Err(code::NOT_FOUND)),
            (Err(exit(code::INTERNAL)), Err(code::INTERNAL)),
        ] {
            let shown = format!("{led:?}");
            let code =
                |ended: Result<End, Exit>| ended.and_then(End::exit_code).unwrap_or_else(|exit| exit.code);
            match after(led) {
                ControlFlow::Continue(why) => assert_eq!(Ok(&*why), reason, "{shown}"),
                ControlFlow::Break(ended) => assert_eq!(Err(code(ended)), reason, "{shown}"),
            }
        }
    }

    #[test]
    fn the_pause_doubles_until_a_command_ran_for_long() {
        let ran = |seconds| Duration::from_secs(seconds);
        let mut last = None;
        let mut pauses = |times: &[Duration]| -> Vec<u64> {
            let next = |ran: &Duration| last.insert(next_pause(last, *ran)).as_secs();
            times.iter().map(next).collect()
        };
        assert_eq!(pauses(&[ran(29); 7]), [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(pauses(&[ran(30), ran(0), ran(29), ran(300), ran(0)]), [1, 2, 4, 1, 2]);
    }
}
