//! `redlatch drill`: whether these masters keep the promise of a lock, under faults that the user allows.
//!
//! Contenders, each with its own client, lock a few resources again and again. A witness notes who held which
//! lock when. A separate lock keeps a second drill away.

mod args;
mod contender;
mod course;
mod faults;
mod foreign;
mod report;
mod witness;
#[cfg(test)]
mod witness_tests;

use std::thread;
use std::time::{Duration, Instant};

use redlatch::inspection::KeyState;
use redlatch::{AcquireError, Client, Guard, HeldLocks, Redlock};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use super::exit::{Exit, code};
use super::interrupt::Interrupt;
use super::message::Message;
use super::options::{self, Contradictions};
use super::output::{self, say};
pub(crate) use args::Args;
use contender::{Contender, Record};
use course::{CLOSE_LIMIT, Course, LOOK_PAUSE, NAMES, resource};
use faults::{Counts, Faults};
use foreign::{Clock, Foreign};
use report::Report;
use witness::Witness;

/// End of the name of the lock that only one drill holds at a time.
const OWN_LOCK: &str = "own";
/// How long to wait for masters that an earlier client counts already.
const COUNT_LIMIT: Duration = Duration::from_secs(3);
/// Interval of progress reports: a tenth of the drill within these bounds, or the first bound on a terminal.
const PROGRESS_EVERY: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];

pub(crate) fn execute(args: &Args) -> Result<u8, Exit> {
    args.check()?;
    // The lock that keeps other drills away is extended until the drill ends.
    let config = args.masters.builder()?.max_hold(Duration::MAX).build()?;
    config.ttl(args.ttl)?;
    let interrupt = Interrupt::catch(&[SIGHUP, SIGINT, SIGQUIT, SIGTERM])?;
    let mut redlock = Redlock::open(config.clone())?;
    Contradictions::default().look(&redlock.masters());
    options::wait_for_all(&mut redlock, || interrupt.has_come())?;
    if let Some(code) = interrupt.code() {
        return Ok(code);
    }
    drop(redlock);
    let client = Client::open(config.clone())?;
    let guard = claim(&client, args)?;
    let witness = Witness::new(args.resources);
    let course = Course { args, config: &config, witness, begun: Instant::now(), interrupt };
    let (record, faults) = run(&course, &client)?;
    let report = Report::new(&course, record, faults);
    // An unconfirmed release goes on in the background, or the TTL ends the lock.
    let _ = guard.release();
    let unreleased = client.drain(CLOSE_LIMIT, HeldLocks::Release);
    if unreleased > 0 {
        say(Message::ReleasesUnconfirmed { left: unreleased });
    }
    if let Some(missing) = report.missing_faults() {
        say(Message::NoFaults { missing: &missing });
    }
    let text = if args.json { report.json() } else { report.text() };
    output::print_until(text, || course.interrupt.has_come())?;
    Ok(report.code(course.interrupt.code()))
}

/// Takes the lock that keeps other drills away, and checks that nobody else uses the drill's names.
fn claim(client: &Client, args: &Args) -> Result<Guard, Exit> {
    let name = format!("{NAMES}{OWN_LOCK}");
    // Masters report uptime in whole seconds, so this client may count a master later than the first client.
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
        let is_free = |state: &KeyState| matches!(state, KeyState::Absent | KeyState::Failed(_));
        if !inspection.masters.iter().all(|(_, state)| is_free(state)) {
            return Err(Exit::new(code::CONTENDED, Message::DrillKeysThere { name: &name }));
        }
    }
    Ok(guard)
}

/// Runs contenders and faults until the time is over. Returns the outcomes of all contenders and faults.
fn run(course: &Course<'_>, client: &Client) -> Result<(Record, Counts), Exit> {
    let args = course.args;
    let names = client.masters().iter().map(|master| master.name.to_string()).collect();
    let contender_count = if args.contender.is_none() { args.contenders } else { 0 };
    let clients: Result<Vec<_>, _> =
        (0..contender_count).map(|_| Client::open(course.config.clone())).collect();
    let clients = clients?;
    let faults = Faults::new(course, names);
    let clock = Clock::new();
    thread::scope(|scope| {
        let contending: Vec<_> = match &args.contender {
            None => clients
                .into_iter()
                .map(|client| scope.spawn(move || Contender::new(client, course).run()))
                .collect(),
            Some(command) => (0..args.contenders)
                .map(|number| scope.spawn(move || Foreign::new(number, clock, course).run(command)))
                .collect(),
        };
        let harming = scope.spawn(move || faults.run());
        let [shortest, longest] = PROGRESS_EVERY;
        let is_terminal = output::stderr_is_terminal();
        let every = if is_terminal { shortest } else { (args.time / 10).clamp(shortest, longest) };
        let mut said_at = Instant::now();
        while !course.is_over() {
            thread::sleep(LOOK_PAUSE);
            if said_at.elapsed() >= every {
                said_at = Instant::now();
                let found = course.witness.found();
                let (locks, two_holders) = (found.visit_count, found.overlap_count);
                let (elapsed, time) = (course.begun.elapsed(), args.time);
                output::show_progress(
                    &Message::DrillProgress { elapsed, time, locks, two_holders }.to_string(),
                );
            }
        }
        output::clear();
        let mut sum = Record::default();
        contending.into_iter().for_each(|it| sum.add(&it.join().expect("a contender has panicked")));
        Ok((sum, harming.join().expect("the faults have panicked")))
    })
}
