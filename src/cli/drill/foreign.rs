//! Contenders that are separate programs, so that the same witness judges the locks of other libraries.
//!
//! A program writes a line for each event, with the event's time in ns of `CLOCK_MONOTONIC`, which all
//! processes of a machine share. So a line that is read late does not look like two holders.

use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use memchr::memchr;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};

use super::contender::Record;
use super::course::{CLOSE_LIMIT, Course, LOOK_PAUSE, await_end, resource};
use crate::message::Message;
use crate::output::say;

/// Longest line. The rest of a longer line counts as another line.
const LINE_SIZE_MAX: usize = 4096;

/// Limit on the output of an ended program: more than a pipe holds.
const REST_SIZE_MAX: usize = 1 << 17;

/// How early an event may seem, because the clocks are not read at the same moment.
const CLOCK_ERROR_MAX: Duration = Duration::from_secs(1);

/// Longest validity that a library may state.
const VALIDITY_MAX: Duration = Duration::from_secs(24 * 3600);

/// A call of the program's library.
#[derive(Debug, Clone, Copy)]
enum Call {
    Acquire(Instant),
    Release(Instant),
}

/// A contending program, as its lines describe it.
pub(super) struct Foreign<'a> {
    course: &'a Course<'a>,
    number: usize,
    clock: Clock,
    call: Option<Call>,
    /// The held lock: since when, and the end of its validity as stated.
    held: Option<(Instant, Instant)>,
    record: Record,
    /// Whether the program wrote a time outside the drill.
    is_off: bool,
}

impl<'a> Foreign<'a> {
    pub(super) fn new(number: usize, clock: Clock, course: &'a Course<'a>) -> Self {
        Self { course, number, clock, call: None, held: None, record: Record::default(), is_off: false }
    }

    /// Runs the program to its end. Kills it if it outlasts the drill by two TTLs and [`CLOSE_LIMIT`].
    pub(super) fn run(mut self, command: &str) -> Record {
        let ended = self.start(command).and_then(|mut program| {
            let output = program.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
            let is_read = AtomicBool::new(false);
            let (course, mut kill_at) = (self.course, None);
            let is_late = || {
                let patience = if course.interrupt.has_come() { Duration::ZERO } else { 2 * course.args.ttl };
                let end = Instant::now() + patience + CLOSE_LIMIT;
                course.is_over() && Instant::now() >= *kill_at.get_or_insert(end)
            };
            thread::scope(|scope| {
                let ending = scope.spawn(|| await_end(program, || is_read.load(Ordering::Relaxed), is_late));
                self.read(output, || ending.is_finished());
                is_read.store(true, Ordering::Relaxed);
                ending.join().expect("the wait for a contender has panicked")
            })
        });
        let why = match ended {
            Ok(Some(status)) if status.success() || self.course.interrupt.has_come() => None,
            Ok(Some(status)) => Some(status.to_string()),
            Ok(None) => Some("it outlasted the drill, and was killed".to_owned()),
            Err(error) => Some(error.to_string()),
        };
        if let Some(why) = why {
            self.fail(&why);
            self.end_call(Instant::now());
        }
        // The program did not report a release.
        self.end_hold(Instant::now());
        self.record
    }

    fn fail(&mut self, why: &str) {
        self.record.failed += 1;
        say(Message::ContenderFailed { number: self.number + 1, why: &why });
    }

    /// Whether an event of this drill can have this time, and its validity this end.
    fn is_within(&self, at: Instant, until: Option<Instant>) -> bool {
        let (args, begun) = (self.course.args, self.course.begun);
        // Programs get two TTLs after the end, and may be late.
        let longest = args.time.saturating_add(3 * args.ttl).saturating_add(CLOSE_LIMIT);
        let is_early = |at: Instant| begun.saturating_duration_since(at) > CLOCK_ERROR_MAX;
        let is_sane =
            |until: Instant| !is_early(until) && until.saturating_duration_since(at) <= VALIDITY_MAX;
        !is_early(at) && at.saturating_duration_since(begun) <= longest && until.is_none_or(is_sane)
    }

    /// Index of the lock that the program contends for.
    const fn resource(&self) -> usize {
        self.number % self.course.args.resources
    }

    fn start(&self, command: &str) -> io::Result<Child> {
        let args = self.course.args;
        let name = resource(self.resource());
        let mut key = args.masters.prefix().to_vec();
        key.extend_from_slice(name.as_bytes());
        let left = args.time.saturating_sub(self.course.begun.elapsed());
        Command::new("sh")
            .process_group(0)
            .args(["-c", command])
            .env("REDLATCH_MASTERS", args.masters.urls())
            .env("REDLATCH_DRILL_NAME", String::from_utf8_lossy(&key).into_owned())
            .env("REDLATCH_DRILL_TTL_MS", args.ttl.as_millis().to_string())
            .env("REDLATCH_DRILL_TIME_MS", left.as_millis().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
    }

    /// Handles the program's output until its end. Once `is_over`, handles only the output that is already
    /// there: a process outside the program's group may keep the output open.
    fn read(&mut self, output: impl Read + AsFd, is_over: impl Fn() -> bool) {
        let mut output = BufReader::new(output);
        let (mut line, mut rest) = (Vec::new(), REST_SIZE_MAX);
        while rest > 0 {
            let is_last = is_over();
            let limit = if is_last { Duration::ZERO } else { LOOK_PAUSE };
            if output.buffer().is_empty() && !is_readable(output.get_ref(), limit) {
                if is_last {
                    return;
                }
                continue;
            }
            let Ok(bytes @ [_, ..]) = output.fill_buf() else { break };
            let bytes = &bytes[..bytes.len().min(LINE_SIZE_MAX - line.len())];
            let size = memchr(b'\n', bytes).map_or(bytes.len(), |at| at + 1);
            line.extend_from_slice(&bytes[..size]);
            output.consume(size);
            if is_last {
                rest = rest.saturating_sub(size);
            }
            if line.ends_with(b"\n") || line.len() == LINE_SIZE_MAX {
                self.handle(&String::from_utf8_lossy(&line), Instant::now());
                line.clear();
            }
        }
        self.handle(&String::from_utf8_lossy(&line), Instant::now());
    }

    /// Handles one line. A missing time is the time of reading. A time outside of the drill comes from
    /// another clock: the first such line is a failure, and all are ignored.
    fn handle(&mut self, line: &str, read_at: Instant) {
        let mut words = line.split_whitespace();
        let word = words.next();
        let mut time = || words.next().and_then(|word| word.parse().ok()).map(|ns| self.clock.instant(ns));
        let (at, until) = (time().unwrap_or(read_at), time());
        let is_event = matches!(word, Some("asked" | "acquired" | "refused" | "released" | "done"));
        if is_event && !self.is_within(at, until) {
            if !std::mem::replace(&mut self.is_off, true) {
                self.fail("it wrote a time outside of the drill; write ns of CLOCK_MONOTONIC");
            }
            return;
        }
        match word {
            Some("asked") => self.call = Some(Call::Acquire(at)),
            Some("acquired") => {
                self.end_acquire(at);
                self.end_hold(at);
                self.held = Some((at, until.unwrap_or(at + self.course.args.ttl)));
                self.course.witness.begin(self.resource(), at);
            }
            Some("refused") => {
                self.end_acquire(at);
                self.record.contended += 1;
            }
            Some("released") => {
                self.end_hold(at);
                self.call = Some(Call::Release(at));
            }
            Some("done") => self.end_call(at),
            // A library may print anything.
            _ => {}
        }
    }

    /// Ends the call to acquire, if the program announced it.
    fn end_acquire(&mut self, at: Instant) {
        if matches!(self.call, Some(Call::Acquire(_))) {
            self.end_call(at);
        }
    }

    /// Ends a call. Each call may take one TTL: an acquire may wait that long, and a later release frees
    /// nothing.
    fn end_call(&mut self, at: Instant) {
        if let Some(Call::Acquire(begun) | Call::Release(begun)) = self.call.take() {
            let late = at.saturating_duration_since(begun).saturating_sub(self.course.args.ttl);
            self.record.latest_call = self.record.latest_call.max(late);
        }
    }

    fn end_hold(&mut self, at: Instant) {
        let Some((from, valid_until)) = self.held.take() else { return };
        let course = self.course;
        course.witness.note(self.resource(), from, at, valid_until, false);
        self.record.note_visit(course.begun, from, at, valid_until, None);
    }
}

/// Whether the pipe becomes readable within this time.
fn is_readable(pipe: impl AsFd, limit: Duration) -> bool {
    let limit = Timespec::try_from(limit).expect("a short time");
    matches!(poll(&mut [PollFd::new(&pipe, PollFlags::IN)], Some(&limit)), Ok(1..))
}

/// The same moment on this process's clock and on the clock in the contenders' lines. All contenders share
/// the value, so the delay between the two readings shifts all lines alike.
#[derive(Clone, Copy)]
pub(super) struct Clock {
    now: Instant,
    ns: u64,
}

impl Clock {
    pub(super) fn new() -> Self {
        let time = clock_gettime(ClockId::Monotonic);
        let since = Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0));
        Self { now: Instant::now(), ns: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX) }
    }

    fn instant(&self, ns: u64) -> Instant {
        let difference = Duration::from_nanos(ns.abs_diff(self.ns));
        let moved =
            if ns >= self.ns { self.now.checked_add(difference) } else { self.now.checked_sub(difference) };
        // A time that this clock cannot express is outside the drill.
        moved.unwrap_or(self.now + 2 * VALIDITY_MAX)
    }
}

#[cfg(test)]
mod tests;
