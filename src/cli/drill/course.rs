//! What the contenders and faults of a drill share.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::process::{Child, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::StdRng;
use redlatch::Config;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::args::Args;
use super::witness::Witness;
use crate::interrupt::Interrupt;

/// The names of all locks of a drill begin with this text, after the configured prefix.
pub(super) const NAMES: &str = "redlatch-drill:";
/// Longest wait at the end for releases under way.
pub(super) const CLOSE_LIMIT: Duration = Duration::from_secs(1);
/// Pause between two checks whether something is over.
pub(super) const LOOK_PAUSE: Duration = Duration::from_millis(20);

pub(super) struct Course<'a> {
    pub(super) args: &'a Args,
    pub(super) config: &'a Config,
    pub(super) witness: Witness,
    pub(super) begun: Instant,
    pub(super) interrupt: Interrupt,
}

impl Course<'_> {
    pub(super) fn is_over(&self) -> bool {
        self.interrupt.has_come() || self.begun.elapsed() >= self.args.time
    }

    /// Sleeps for at most this time. Returns whether the drill goes on.
    pub(super) fn pause(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        while !self.is_over() && Instant::now() < until {
            thread::sleep(LOOK_PAUSE.min(until.saturating_duration_since(Instant::now())));
        }
        !self.is_over()
    }
}

/// Waits until a program has ended and `is_done`. Kills it once `is_late`, and returns `None`.
pub(super) fn await_end(
    mut program: Child,
    is_done: impl Fn() -> bool,
    mut is_late: impl FnMut() -> bool,
) -> io::Result<Option<ExitStatus>> {
    let pid = Pid::from_child(&program);
    // Until the program is reaped, no other group can get its number.
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    loop {
        if is_done() && waitid(WaitId::Pid(pid), look)?.is_some() {
            return program.wait().map(Some);
        }
        if is_late() {
            // The whole group: a contender's child may keep the output open, and a hook's late `begin` must
            // not harm a master that was healed.
            kill_process_group(pid, Signal::KILL)?;
            program.wait()?;
            return Ok(None);
        }
        thread::sleep(LOOK_PAUSE);
    }
}

/// A new seed in each call: drills need not be repeatable.
pub(super) fn rng() -> StdRng {
    StdRng::seed_from_u64(RandomState::new().hash_one(0))
}

pub(super) fn resource(number: usize) -> String {
    format!("{NAMES}{}", number + 1)
}

/// A drill with these options that begins now, for tests.
#[cfg(test)]
pub(super) fn course_of<T>(options: &[&str], test: impl FnOnce(&Course<'_>) -> T) -> T {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }
    let words = ["redlatch", "-m", "unix:///nowhere"].iter().chain(options);
    let args = <Line as clap::Parser>::parse_from(words).args;
    let config = args.masters.config().expect("valid");
    let begun = Instant::now();
    let interrupt = Interrupt::catch(&[]).expect("nothing to catch");
    test(&Course { args: &args, config: &config, witness: Witness::new(args.resources), begun, interrupt })
}
