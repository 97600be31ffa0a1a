//! Options of `redlatch drill`, and its help.

use std::time::Duration;

use redlatch::env::parse_time;

use crate::exit::Exit;
use crate::options::{MasterOptions, check_bounds, check_time};

const CONTENDER_COUNT_MAX: usize = 100;
const RESOURCE_COUNT_MAX: usize = 1000;

/// Check the promise of a lock on these masters, with faults that you allow.
///
/// Contenders, each with its own client, lock a few names again and again, while the faults that you
/// allow happen, usually to one master at a time. Shows whether a lock ever had two holders, how late calls
/// ended, and how long nobody held a lock. Its keys begin with PREFIXredlatch-drill: and with --strict its
/// clients also write PREFIXredlatch:mark. It loads the masters like a few busy services.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Stop after this time.
    #[arg(short, long, value_name = "TIME", default_value = "30s", value_parser = parse_time)]
    pub(super) time: Duration,

    /// Clients that contend.
    #[arg(long, value_name = "COUNT", default_value_t = 6)]
    pub(super) contenders: usize,

    /// Locks that they contend for.
    #[arg(long, value_name = "COUNT", default_value_t = 2)]
    pub(super) resources: usize,

    /// The locks' TTL; at most --max-ttl.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_time)]
    pub(super) ttl: Duration,

    /// Let this command of the shell contend, once for each of --contenders: a program that locks with
    /// another library, and writes a line to stdout for each event.
    ///
    /// `acquired AT UNTIL` follows an acquire, and `released AT` precedes a release. Times are in ns of
    /// CLOCK_MONOTONIC. UNTIL is the end of the validity that the library states [default: AT plus the
    /// TTL]. Without AT the time of reading counts, and a late line can look like two holders. To find late
    /// calls, write `asked AT` before an acquire, `refused AT` after a failed acquire, and `done AT` after a
    /// release. A call that takes longer than one TTL is late. Other lines are ignored.
    ///
    /// The program finds the masters in REDLATCH_MASTERS, the key to lock in REDLATCH_DRILL_NAME and its
    /// TTL in REDLATCH_DRILL_TTL_MS. It ends after REDLATCH_DRILL_TIME_MS, and is killed two TTLs and 1s
    /// later.
    #[arg(long, value_name = "COMMAND")]
    pub(super) contender: Option<String>,

    /// Allow a fault: CLIENT PAUSE, which stops all clients of a master, also of other services.
    #[arg(long)]
    pub(super) pause: bool,

    /// Allow a fault: this command of the shell. It harms a master if REDLATCH_FAULT is `begin`, and heals
    /// the master if REDLATCH_FAULT is `end`.
    ///
    /// REDLATCH_MASTER is the master's URL without the login, and REDLATCH_MASTER_NUMBER its place in the
    /// list, from 1. The call with `end` follows, also after a failed `begin`. After three failed calls with
    /// `end` no other fault begins. A call is killed after 10s. A process that the hook leaves running finds
    /// its stdout and stderr closed after the drill.
    #[arg(long, value_name = "COMMAND")]
    pub(super) hook: Option<String>,

    /// The longest time of one fault; a pause takes at most 10s, because nothing can end it earlier. Each call
    /// of a hook may take 10s more.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_time)]
    pub(super) fault_time: Duration,

    /// Print the result as one JSON object.
    #[arg(long)]
    pub(super) json: bool,

    #[command(flatten)]
    pub(super) masters: MasterOptions,
}

const AFTER_HELP: &str = "\
Exit codes:
  0 if no lock had two holders, 1 if a lock had, 2 if a hook could not heal its
  master or an allowed kind of fault never happened, 64 bad usage, 69 if too
  few masters can grant or nobody got a lock, 70 if the operating system
  refused something, 75 if another drill runs or has left keys, 130 after
  Ctrl-C, 143 after SIGTERM, both once faults are healed

Examples:
  redlatch drill --time 5min
      contention alone
  redlatch drill --pause --fault-time 5s
      masters that stand still, one at a time
  redlatch drill --hook 'ssh host$REDLATCH_MASTER_NUMBER ./fault.sh $REDLATCH_FAULT'
      faults of your own, such as restarts or cut cables
  redlatch drill --contender 'python3 ours.py'
      locks of another library";

impl Args {
    /// Refuses numbers and times that cannot work.
    pub(super) fn check(&self) -> Result<(), Exit> {
        check_bounds("--contenders", self.contenders, 2, CONTENDER_COUNT_MAX)?;
        check_bounds("--resources", self.resources, 1, RESOURCE_COUNT_MAX)?;
        check_time("--time", self.time)?;
        check_time("--fault-time", self.fault_time)
    }
}
