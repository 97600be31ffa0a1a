//! `redlatch fleet replace`: replaces a master while clients go on.

use std::time::Instant;

use crate::doctor::candidates::ask_old;
use redlatch::Config;
use redlatch::founding::{Refusal, Replacement, Step};

use super::init::{ask, wait, write};
use crate::exit::{Exit, code};
use crate::message::Message;
use crate::options::AskedOptions;
use crate::output::print;

/// Replace a master by a new, empty one at another address, while clients go on.
///
/// First make OLD refuse every write for good, and start NEW, empty and without clients. The command
/// verifies both, waits for max_ttl and the drift allowance, until no lock can be held on OLD any more, and
/// then writes NEW into the fleet's record on each master. Give the clients the new list when the command has
/// ended, and not before. You may end it at any time: the next run goes on, and waits again. The login of NEW
/// needs +info, +scan, +client|list, +get, +set and +eval; the login of the other masters +info, +get, +set
/// and +eval.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// URL of the master that is replaced, as the list of masters has it; a login in it is ignored.
    old: String,

    /// URL of the new master, as the clients will have it; without a login it gets the login of OLD.
    new: String,

    /// State that OLD is off for good, where it does not answer or refuses the clients' login.
    #[arg(long)]
    is_off: bool,

    #[command(flatten)]
    asked: AskedOptions,
}

const HELP: &str = "\
Exit codes:
  0 if the master is replaced, 1 if that was refused, 64 bad usage, 69 if a
  master failed: run it again, 70 if the operating system refused something

Example:
  redlatch fleet replace redis://10.0.0.3 redis://10.0.0.4 --prefix lock: --max-ttl 30s";

pub(super) fn execute(args: &Args) -> Result<u8, Exit> {
    let refused = |why: Refusal| Exit::new(code::REFUSED, Message::NotReplaced { why: &why });
    let [old, new] = [&args.old, &args.new].map(|url| Config::builder().master(url).build());
    let replacement = Replacement::new(args.asked.masters.config()?, &old?, &new?, args.is_off);
    let mut replacement = replacement.map_err(refused)?;
    let [old, new] = replacement.names();
    let unanswered = loop {
        let answer = ask_old(&replacement.before, replacement.place, args.asked.time_limit)?;
        let now = Instant::now();
        let masters = ask(&replacement.after, args.asked.time_limit)?;
        match replacement.next(now, &answer, &masters).map_err(refused)? {
            Step::Join(change) => write(&replacement.after, args.asked.time_limit, &[change])?,
            Step::Wait(left) => wait(now + left, &old),
            Step::Name { changes, unanswered } => {
                write(&replacement.after, args.asked.time_limit, &changes)?;
                break unanswered.join(", ");
            }
        }
    };
    if !unanswered.is_empty() {
        return Err(Exit::new(code::NO_QUORUM, Message::LeftOut { masters: &unanswered }));
    }
    print(&format!("{new} replaces {old}; give the clients the new list now\n"))?;
    Ok(0)
}
