//! Faults that the user allows, on one master at a time.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rand::RngExt;
use rand::rngs::StdRng;
use redlatch::probe;
use redlatch::probe::{Answer, Probe};
use redlatch::words::Rounded;

use super::course::{Course, await_end, rng};
use crate::message::Message;
use crate::output::{self, say};

const HOOK_LIMIT: Duration = Duration::from_secs(10);
/// Attempts to end a fault.
const HEAL_COUNT_MAX: usize = 3;
/// Longest pause of a master. Nothing can end a pause early.
const PAUSE_TIME_MAX: Duration = Duration::from_secs(10);
/// Time limit for connecting to a master and pausing it.
const PAUSE_LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Default)]
pub(super) struct Counts {
    pub(super) pauses: u64,
    /// Hooks that succeeded with `begin`.
    pub(super) hooks: u64,
    /// Calls that failed.
    pub(super) failed: u64,
    /// Master whose fault could not be ended.
    pub(super) unhealed: Option<String>,
}

pub(super) struct Faults<'a> {
    course: &'a Course<'a>,
    /// Names of the masters, without logins.
    masters: Vec<String>,
    kinds: Vec<Kind<'a>>,
    rng: StdRng,
    counts: Counts,
}

/// Whether a master is paused.
#[derive(Debug, PartialEq, Eq)]
enum Paused {
    Yes,
    /// The master refused the command.
    No(String),
    /// No answer came in time. The command may have arrived, or may still arrive.
    Unknown(String),
}

impl Paused {
    fn of(answered: Result<Vec<Answer>, String>) -> Self {
        match answered {
            Ok(answers) => {
                answers.iter().find_map(Answer::error).map_or(Self::Yes, |why| Self::No(why.into()))
            }
            Err(why) => Self::Unknown(why),
        }
    }

    /// Whether the master may be paused. Then no other master may get a fault.
    const fn may_stand(&self) -> bool {
        !matches!(self, Self::No(_))
    }
}

#[derive(Debug, Clone, Copy)]
enum Kind<'a> {
    Pause,
    Hook(&'a str),
}

impl<'a> Faults<'a> {
    pub(super) fn new(course: &'a Course<'a>, masters: Vec<String>) -> Self {
        let args = course.args;
        let pause = args.pause.then_some(Kind::Pause);
        let kinds = pause.into_iter().chain(args.hook.as_deref().map(Kind::Hook)).collect();
        Self { course, masters, kinds, rng: rng(), counts: Counts::default() }
    }

    /// Causes one fault after another, each kind in turn, until the drill is over or a master cannot be
    /// healed. Ends each fault that it began.
    pub(super) fn run(mut self) -> Counts {
        let longest = self.course.args.fault_time;
        for turn in 0.. {
            let pause = longest.mul_f64(self.rng.random_range(0.0..1.0));
            if self.kinds.is_empty() || self.counts.unhealed.is_some() || !self.course.pause(pause) {
                break;
            }
            let master = self.rng.random_range(0..self.masters.len());
            let time = longest.mul_f64(self.rng.random_range(0.0..1.0));
            match self.kinds[turn % self.kinds.len()] {
                Kind::Pause => self.pause(master, time.min(PAUSE_TIME_MAX)),
                Kind::Hook(command) => self.hook(command, master, time),
            }
        }
        self.counts
    }

    fn hook(&mut self, command: &str, master: usize, time: Duration) {
        self.counts.hooks += u64::from(self.call(command, master, "begin"));
        self.course.pause(time);
        // Even if `begin` failed, as it may have done harm.
        let is_healed = (0..HEAL_COUNT_MAX).any(|_| self.call(command, master, "end"));
        if !is_healed {
            self.counts.unhealed = Some(self.masters[master].clone());
        }
    }

    /// Returns when the pause is over: a paused server takes no command that could end it.
    fn pause(&mut self, master: usize, time: Duration) {
        let command = ["CLIENT".to_owned(), "PAUSE".to_owned(), time.as_millis().to_string()];
        let pause = move |mut probe: Probe, _| probe.exchange(&[&command]);
        let answered =
            probe::some(self.course.config, [master], PAUSE_LIMIT, pause).map(|mut it| it.remove(0));
        let answered = answered.map_err(|error| error.to_string());
        let paused = Paused::of(answered.and_then(|it| it.map_err(|error| error.to_string())));
        match &paused {
            Paused::Yes => self.counts.pauses += 1,
            Paused::No(why) | Paused::Unknown(why) => {
                self.counts.failed += 1;
                say(Message::FaultFailed { what: &"CLIENT PAUSE", master: &self.masters[master], why });
            }
        }
        if paused.may_stand() {
            thread::sleep(time);
        }
    }

    /// Calls the hook. Returns whether the hook succeeded.
    fn call(&mut self, command: &str, master: usize, fault: &str) -> bool {
        let start = || {
            // Stdout is for the report. The hook must heal its master even if nobody reads stderr.
            let (reader, writer) = io::pipe()?;
            output::relay(reader)?;
            // A separate group: Ctrl-C at the terminal is meant for the drill, which then heals the master.
            Command::new("sh")
                .process_group(0)
                .stdout(writer.try_clone()?)
                .stderr(writer)
                .args(["-c", command])
                .env("REDLATCH_FAULT", fault)
                .env("REDLATCH_MASTER", &self.masters[master])
                .env("REDLATCH_MASTER_NUMBER", (master + 1).to_string())
                .stdin(Stdio::null())
                .spawn()
        };
        let until = Instant::now() + HOOK_LIMIT;
        let why = match start().and_then(|hook| await_end(hook, || true, || Instant::now() >= until)) {
            Ok(Some(status)) if status.success() => return true,
            Ok(Some(status)) => status.to_string(),
            Ok(None) => format!("it did not end within {}", Rounded(HOOK_LIMIT)),
            Err(error) => error.to_string(),
        };
        self.counts.failed += 1;
        let what = format!("the hook with REDLATCH_FAULT={fault}");
        say(Message::FaultFailed { what: &what, master: &self.masters[master], why: &why });
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unanswered_pause_may_be_in_force() {
        let refused = Answer::Error("NOPERM no".into());
        for (answered, may_stand) in [
            (Ok(vec![Answer::Text(b"OK".to_vec())]), true),
            (Ok(vec![refused]), false),
            (Err("no answer within 5s".to_owned()), true),
        ] {
            let paused = Paused::of(answered);
            assert_eq!(paused.may_stand(), may_stand, "{paused:?}");
        }
    }
}
