//! `redlatch drill`: whether these masters keep the promise of a lock, under faults that the user allows.
//!
//! Contenders, each a client of its own, lock a few resources again and again. A witness notes who was inside
//! when. All names begin with [`NAMES`], and a lock among them keeps a second drill away.

mod contender;
mod faults;
mod report;
mod witness;
#[cfg(test)]
mod witness_tests;

use std::thread;
use std::time::{Duration, Instant};

use redlatch::inspection::KeyState;
use redlatch::internals::env::parse_time;
use redlatch::{AcquireError, Client, Config, Guard, HeldLocks, Redlock};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use super::exit::{Exit, code};
use super::interrupt::Interrupt;
use super::message::Message;
use super::options::{self, Enough, MasterOptions, check_bounds, check_time};
use super::output::{self, say};
use contender::{Contender, Record};
use faults::Faults;
use report::Report;
use witness::Witness;

/// Check the promise of a lock on these masters, with faults that you allow.
///
/// Contenders lock a few resources again and again, each as a client of its own, while the faults that you
/// allow happen, as a rule to one master at a time. Shows whether a lock ever had two holders, how late calls
/// ended, and how long nobody held a lock. Its keys begin with PREFIXredlatch-drill: and with --strict its
/// clients also write PREFIXredlatch:mark. It loads the masters like a few busy services.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Stop after this time.
    #[arg(short, long, value_name = "TIME", default_value = "30s", value_parser = parse_time)]
    time: Duration,

    /// Clients that contend.
    #[arg(long, value_name = "COUNT", default_value_t = 6)]
    contenders: usize,

    /// Locks that they contend for.
    #[arg(long, value_name = "COUNT", default_value_t = 2)]
    resources: usize,

    /// The locks' TTL; at most --max-ttl.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_time)]
    ttl: Duration,

    /// Allow a fault: CLIENT PAUSE, which stops all clients of a master, also those of other services.
    #[arg(long)]
    pause: bool,

    /// Allow a fault: this command of the shell. It harms a master if REDLATCH_FAULT is `begin`, and heals it
    /// if that is `end`.
    ///
    /// REDLATCH_MASTER is the master's URL without the login, and REDLATCH_MASTER_NUMBER its place in the
    /// list, from 1. The call with `end` follows, also if `begin` failed; if it fails three times, no other
    /// fault begins. A call is killed after 10s. A process that the hook leaves running finds its stdout and
    /// stderr closed after the drill.
    #[arg(long, value_name = "COMMAND")]
    hook: Option<String>,

    /// The longest time of one fault; a pause takes 10s at the most, as nothing can end it before. Each call
    /// of a hook may take 10s more.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_time)]
    fault_time: Duration,

    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    masters: MasterOptions,
}

const AFTER_HELP: &str = "\
Exit codes:
  0 if no lock had two holders, 1 if one had, 2 if a hook could not heal its master, 64 bad usage,
  69 if too few masters can grant or nobody got a lock, 70 if the operating system refused something, 75 if another drill runs or has left keys,
  130 after Ctrl-C, 143 after SIGTERM, both once faults are healed

Examples:
  redlatch drill --time 5min                              contention alone
  redlatch drill --pause --fault-time 5s                  masters that stand still, one at a time
  redlatch drill --hook 'ssh host$REDLATCH_MASTER_NUMBER ./fault.sh $REDLATCH_FAULT'
                                                          faults of your own, such as restarts or cut cables";

/// The names of all locks of a drill begin with this, behind the configured prefix.
const NAMES: &str = "redlatch-drill:";
/// The end of the name of the lock that one drill holds at a time.
const OWN_LOCK: &str = "own";
const CONTENDER_COUNT_MAX: usize = 100;
const RESOURCE_COUNT_MAX: usize = 1000;
/// How long the end waits for releases that are under way.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);
/// How long masters are waited for that another client counts already.
const COUNT_LIMIT: Duration = Duration::from_secs(3);
/// How often to look whether the time is over.
const LOOK_PAUSE: Duration = Duration::from_millis(20);
/// How often progress is shown: after a tenth of the time, within these bounds.
const PROGRESS_EVERY: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];

/// State that contenders and faults share.
struct Drill {
    witness: Witness,
    begun: Instant,
    until: Instant,
    interrupt: Interrupt,
}

impl Drill {
    fn is_over(&self) -> bool {
        self.interrupt.has_come() || Instant::now() >= self.until
    }

    /// Sleeps at most that long; whether the drill goes on.
    fn pause(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        while !self.is_over() && Instant::now() < until {
            thread::sleep(LOOK_PAUSE.min(until.saturating_duration_since(Instant::now())));
        }
        !self.is_over()
    }
}

/// Runs the subcommand; the result is the program's exit code.
pub(crate) fn execute(args: &Args) -> Result<u8, Exit> {
    check(args)?;
    let config = args.masters.config(|builder| builder)?;
    config.ttl(args.ttl)?;
    let interrupt = Interrupt::catch(&[SIGHUP, SIGINT, SIGQUIT, SIGTERM])?;
    let mut first = Redlock::open(config.clone())?;
    options::wait_for_masters(&mut first, Enough::All, true, || interrupt.has_come())?;
    if let Some(code) = interrupt.code() {
        return Ok(code);
    }
    let client = Client::open(config.clone())?;
    let guard = claim(&client, args)?;
    let begun = Instant::now();
    let drill = Drill { witness: Witness::new(args.resources), begun, until: begun + args.time, interrupt };
    let (records, faults) = run(args, &config, &drill, first)?;
    let report = Report::new(args, &drill, &records, faults, config.master_count());
    // An unconfirmed release goes on in the background, or ends with the TTL.
    let _ = guard.release();
    let unreleased = client.drain(CLOSE_LIMIT, HeldLocks::Release);
    if unreleased > 0 {
        say(Message::ReleasesUnconfirmed { left: unreleased });
    }
    let text = if args.json { report.json() } else { report.text() };
    output::print_until(text, &drill.interrupt)?;
    Ok(match report.lock_count() {
        _ if report.has_two_holders() => code::TWO_HOLDERS,
        _ if report.has_unhealed() => code::UNHEALED,
        count => drill.interrupt.code().unwrap_or(if count > 0 { 0 } else { code::NO_QUORUM }),
    })
}

fn check(args: &Args) -> Result<(), Exit> {
    check_bounds("--contenders", args.contenders, 2, CONTENDER_COUNT_MAX)?;
    check_bounds("--resources", args.resources, 1, RESOURCE_COUNT_MAX)?;
    check_time("--time", args.time)?;
    check_time("--fault-time", args.fault_time)
}

/// Takes the lock that keeps other drills away, and looks whether somebody else uses the names.
fn claim(client: &Client, args: &Args) -> Result<Guard, Exit> {
    let name = format!("{NAMES}{OWN_LOCK}");
    // The masters' uptime is in whole seconds: this client may count them later than the first one.
    let until = Instant::now() + COUNT_LIMIT;
    while !client.health().has_quorum && Instant::now() < until {
        thread::sleep(LOOK_PAUSE);
    }
    let request = client.lock(&name).ttl(args.ttl).auto_extend(Duration::MAX);
    let guard = request.try_acquire().map_err(|error| match error {
        AcquireError::Contended(_) => Exit::new(code::CONTENDED, Message::DrillRuns),
        error => error.into(),
    })?;
    for number in 0..args.resources {
        let name = resource(number);
        let inspection = client.inspect(&name).map_err(Exit::internal)?;
        if inspection
            .masters
            .iter()
            .any(|(_, state)| !matches!(state, KeyState::Absent | KeyState::Failed(_)))
        {
            return Err(Exit::new(code::CONTENDED, Message::DrillKeysThere { name: &name }));
        }
    }
    Ok(guard)
}

/// Another one in each call: no drill need be the same as another.
fn seed() -> u64 {
    use std::hash::BuildHasher;
    std::hash::RandomState::new().hash_one(0)
}

fn resource(number: usize) -> String {
    format!("{NAMES}{}", number + 1)
}

/// Contends until the time is over.
fn run(
    args: &Args,
    config: &Config,
    drill: &Drill,
    first: Redlock,
) -> Result<(Vec<Record>, faults::Counts), Exit> {
    let names = first.masters().iter().map(|master| master.name.to_string()).collect();
    let mut clients = vec![first];
    while clients.len() < args.contenders {
        clients.push(Redlock::open(config.clone())?);
    }
    let mut faults = Faults::new(args, config, names);
    thread::scope(|scope| {
        let contending: Vec<_> = clients
            .into_iter()
            .map(|redlock| scope.spawn(move || Contender::new(redlock, args, drill).run()))
            .collect();
        let harming = scope.spawn(move || faults.run(drill));
        let [shortest, longest] = PROGRESS_EVERY;
        let every = (args.time / 10).clamp(shortest, longest);
        let mut said_at = Instant::now();
        while !drill.is_over() {
            thread::sleep(LOOK_PAUSE);
            if said_at.elapsed() >= every {
                said_at = Instant::now();
                let found = drill.witness.found();
                let (locks, two_holders) = (found.visit_count, found.overlap_count);
                say(Message::DrillProgress {
                    elapsed: drill.begun.elapsed(),
                    time: args.time,
                    locks,
                    two_holders,
                });
            }
        }
        let records = contending.into_iter().map(|it| it.join().expect("a contender has panicked")).collect();
        Ok((records, harming.join().expect("the faults have panicked")))
    })
}
