//! `redlatch fleet init`: declares new, empty masters as a fleet, so that a first lock need not wait.

use std::io::{self, IsTerminal};
use std::time::Duration;

use redlatch::Config;
use redlatch::internals::fleet::{
    Candidate, Change, Founding, Refusal, ask_candidates, found, write_records,
};
use redlatch::internals::probe::ProbeError;
use redlatch::internals::words::{Counted, Rounded};

use crate::exit::{Exit, code};
use crate::message::Message;
use crate::options::AskedOptions;
use crate::output::{print, say};

/// Declare new, empty masters as a fleet, so that a first lock need not wait.
///
/// Run it once, when you have started new masters and before any client. It writes the settings into the
/// key PREFIXredlatch:fleet of each master, and that its process started empty: all clients count it at
/// once, until it restarts. It refuses unless all masters answer, started within the last hour, have no
/// key behind the prefix, and have no client of redlatch connected. Do not run it to shorten the wait
/// after a restart: locks may still be held that the masters forgot. The login needs +info, +scan,
/// +client|list, +get, +set and +eval.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// State that the masters are new, in place of the sentence that a person types.
    #[arg(long)]
    new: bool,

    #[command(flatten)]
    asked: AskedOptions,
}

const HELP: &str = "\
Exit codes:
  0 if the fleet is declared, 1 if it was refused and nothing changed, 64 bad usage, 69 if a master failed
  halfway: run it again, 70 if the operating system refused something

Example:
  redlatch fleet init --prefix lock: --max-ttl 30s";

/// The sentence that a person types.
const SENTENCE: &str = "these masters are new";

/// Runs `fleet init`; the result is the program's exit code.
pub(super) fn execute(args: &Args) -> Result<u8, Exit> {
    let config = args.asked.masters.config()?;
    let mut founding = check(&config, args.asked.time_limit)?;
    confirm(&config, args.new, founding.is_unsure)?;
    for _phase in 0..2 {
        // A person may have taken a while, and a master may have been used or restarted between the phases.
        founding = check(&config, args.asked.time_limit)?;
        write(&config, args.asked.time_limit, &founding.changes)?;
    }
    print(&format!(
        "fleet {} declared on {}, max TTL {}; locks can be acquired now\n",
        founding.record.id(),
        Counted(config.master_count(), "master"),
        Rounded(founding.record.max_ttl())
    ))?;
    Ok(0)
}

/// Writes records.
pub(super) fn write(config: &Config, limit: Duration, changes: &[Change]) -> Result<(), Exit> {
    let part = |(master, why)| Message::WrittenInPart { master: &master, why: &why }.to_string();
    write_records(config, limit, changes)?.map_err(|failed| Exit::new(code::NO_QUORUM, part(failed)))
}

/// The facts about each master, or the reason why there are none.
pub(super) fn ask(config: &Config, limit: Duration) -> Result<Vec<Result<Candidate, ProbeError>>, Exit> {
    Ok(ask_candidates(config, limit)?.into_iter().map(|(_, answer)| answer).collect())
}

/// Asks all masters whether they may be declared.
fn check(config: &Config, limit: Duration) -> Result<Founding, Exit> {
    let refused = |why: Refusal| Exit::new(code::REFUSED, Message::NotDeclared { why: &why });
    found(config, &ask(config, limit)?).map_err(refused)
}

/// Wants the word of a person, or of a script where nothing contradicts it.
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
