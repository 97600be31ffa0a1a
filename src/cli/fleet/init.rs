//! `redlatch fleet init`: declares new, empty masters as a fleet, so that a first lock need not wait.

use std::io::{self, IsTerminal};
use std::thread;
use std::time::{Duration, Instant};

use crate::doctor::candidates::{ask_candidates, write_records};
use redlatch::Config;
use redlatch::founding::{Again, Candidate, Change, Founding, Redeclaration, Refusal, found};
use redlatch::probe::ProbeError;
use redlatch::record::Record;
use redlatch::words::{Counted, Rounded};

use crate::exit::{Exit, code};
use crate::message::Message;
use crate::options::AskedOptions;
use crate::output::{Countdown, print, say};

/// Declare new, empty masters as a fleet, so that a first lock need not wait.
///
/// Run it once, when you have started new masters and before any client. Into the key
/// PREFIXredlatch:fleet of each master it writes the settings, and that the master's process started empty:
/// all clients count the master at once, until it restarts. It refuses unless all masters answer, started
/// within the last hour, have no key behind the prefix, and have no client of redlatch connected. Do not run
/// it to shorten the wait after a restart: the masters may have forgotten locks that are still held. The
/// login needs +info, +scan, +client|list, +get, +set and +eval.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// State that the masters are new, without a question at the terminal.
    #[arg(long)]
    new: bool,

    /// Declare masters in use once more, for another max_ttl or drift allowance, while clients go on.
    ///
    /// Before it runs, no client may ask for a TTL above the smaller max_ttl any more. The command waits for
    /// the larger max_ttl, and refuses if a master restarts meanwhile. Give the recorded list of masters.
    #[arg(long, conflicts_with = "new")]
    again: bool,

    #[command(flatten)]
    asked: AskedOptions,
}

const HELP: &str = "\
Exit codes:
  0 if the fleet is declared, 1 if it was refused and nothing changed, 64 bad
  usage, 69 if a master failed halfway: run it again, 70 if the operating
  system refused something

Examples:
  redlatch fleet init --prefix lock: --max-ttl 30s
  redlatch fleet init --prefix lock: --max-ttl 60s --again
      another max_ttl for masters in use";

/// Pause between updates of the countdown.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// Sentence that a person must type.
const SENTENCE: &str = "these masters are new";

pub(super) fn execute(args: &Args) -> Result<u8, Exit> {
    let config = args.asked.masters.config()?;
    if args.again {
        return declare_again(config, args.asked.time_limit);
    }
    let mut founding = check(&config, args.asked.time_limit)?;
    confirm(&config, args.new, founding.is_unsure)?;
    for _phase in 0..2 {
        // A master may have been used or restarted while a person typed, or between the phases.
        founding = check(&config, args.asked.time_limit)?;
        write(&config, args.asked.time_limit, &founding.changes)?;
    }
    say_declared(&founding.record, "locks can be acquired now")?;
    Ok(0)
}

/// Declares masters in use.
fn declare_again(config: Config, limit: Duration) -> Result<u8, Exit> {
    let mut again = Redeclaration::new(config.clone());
    loop {
        let masters = ask(&config, limit)?;
        let now = Instant::now();
        match again.next(now, &masters).map_err(refused)? {
            Again::Wait(left) => wait(now + left, "these masters by earlier settings"),
            Again::Write(changes) => write(&config, limit, &changes)?,
            Again::Declared(record) => {
                say_declared(&record, "clients read it within a minute")?;
                return Ok(0);
            }
        }
    }
}

fn say_declared(record: &Record, effect: &str) -> io::Result<()> {
    print(&format!(
        "fleet {} declared on {}, max TTL {}; {effect}\n",
        record.id(),
        Counted(record.master_count(), "master"),
        Rounded(record.max_ttl())
    ))
}

pub(super) fn write(config: &Config, limit: Duration, changes: &[Change]) -> Result<(), Exit> {
    let part = |(master, why)| Message::WrittenInPart { master: &master, why: &why }.to_string();
    write_records(config, limit, changes)?.map_err(|failed| Exit::new(code::NO_QUORUM, part(failed)))
}

/// Waits until locks on the old master, or with old settings, have ended.
pub(super) fn wait(end: Instant, old: &str) {
    let mut countdown = Countdown::default();
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        countdown.show(&Message::AwaitingLocks { left, old: &old });
        thread::sleep(left.min(LOOK_PAUSE));
    }
}

/// Facts about each master, or the reason why there are none.
pub(super) fn ask(config: &Config, limit: Duration) -> Result<Vec<Result<Candidate, ProbeError>>, Exit> {
    Ok(ask_candidates(config, limit)?.into_iter().map(|(_, answer)| answer).collect())
}

/// Asks whether all masters may be declared.
fn check(config: &Config, limit: Duration) -> Result<Founding, Exit> {
    found(config, &ask(config, limit)?).map_err(refused)
}

fn refused(why: Refusal) -> Exit {
    Exit::new(code::REFUSED, Message::NotDeclared { why: &why })
}

/// Asks a person to confirm, unless a script gave `--new` and nothing contradicts it.
fn confirm(config: &Config, is_new: bool, is_unsure: bool) -> Result<(), Exit> {
    if is_new && !is_unsure {
        return Ok(());
    }
    if !io::stdin().is_terminal() {
        return Err(Exit::usage(if is_new { Message::ClientsUnknown } else { Message::NotSaidNew }));
    }
    let count = config.master_count();
    say(Message::AskWhetherNew { count, sentence: SENTENCE, is_unsure });
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    if line.trim() == SENTENCE { Ok(()) } else { Err(Exit::new(code::REFUSED, Message::SentenceNotTyped)) }
}
