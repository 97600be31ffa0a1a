//! A lock ends according to the clock that counts the machine's sleep.
//!
//! A test cannot suspend the machine, but can imitate what a process sees: after entering a time namespace
//! with another `CLOCK_BOOTTIME`, this clock is further ahead of `CLOCK_MONOTONIC`, as after a sleep. This
//! needs Linux, the right to create namespaces (usually root), `unshare` of util-linux 2.36, and a process
//! with one thread, so there is no test harness.

use std::process::ExitCode;

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    println!("skipped: there are time namespaces on Linux only");
    ExitCode::SUCCESS
}

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    // A request for the list of tests gets an empty list.
    if std::env::args().any(|arg| arg == "--list") {
        return ExitCode::SUCCESS;
    }
    match linux::Sleep::prepare() {
        Ok(sleep) => {
            linux::a_sleep_before_the_start_is_no_matter();
            linux::a_lock_does_not_outlive_a_sleep(&sleep); // the last one: there is no way back
        }
        Err(why) => println!("skipped: no time namespace here: {why}"),
    }
    ExitCode::SUCCESS
}

#[cfg(target_os = "linux")]
mod linux {
    use std::fs::File;
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use redlatch::engine::{OpId, Outcome, Request, Resource};
    use redlatch::{Config, ExtendError, Options, Quarantine, Redlock};
    use redlatch_support::{Fleet, command};
    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

    const SLEEP: Duration = Duration::from_secs(3_600);
    /// Longer than any test, and shorter than the sleep.
    const TTL: Duration = Duration::from_secs(1_800);
    /// Longer than the sleep.
    const LONG_TTL: Duration = Duration::from_secs(7_200);

    // I111
    pub(super) fn a_lock_does_not_outlive_a_sleep(sleep: &Sleep) {
        let fleet = Fleet::start(3);
        let config = Config::builder().masters(fleet.urls()).quarantine(Quarantine::Trust).max_ttl(LONG_TTL);
        let config = config.answer_timeout(Duration::from_secs(3)).build().expect("valid settings");
        let mut redlock = Redlock::open(config).expect("an event loop");
        let [(short, _), (long, of_std)] =
            [("short", TTL), ("long", LONG_TTL)].map(|(name, ttl)| acquire(&mut redlock, name, ttl));
        let is_valid =
            |redlock: &Redlock, lock| redlock.valid_until(lock).is_some_and(|it| it > Instant::now());
        assert!(is_valid(&redlock, short) && of_std > Instant::now() + SLEEP);
        assert!(redlock.suspended() < Duration::from_secs(1));

        sleep.fall_asleep();

        assert!(!is_valid(&redlock, short));
        redlock.submit(Request::Extend { lock: short, ttl: TTL }).expect("room");
        let extended = outcome_of(&mut redlock, short);
        assert!(matches!(extended, Outcome::Extend(Err(ExtendError::Expired))), "{extended:?}");
        // The other lock has lost as much time.
        let until = redlock.valid_until(long).expect("it is held");
        assert!(until > Instant::now() && until < Instant::now() + LONG_TTL - SLEEP);
        let slept = of_std - until;
        assert!(redlock.suspended().abs_diff(slept) < Duration::from_secs(1));
        assert!(slept.abs_diff(SLEEP) < Duration::from_secs(1), "{slept:?}");
        // The masters have not slept, so they still refuse, until the release.
        redlock.submit(Request::Release { lock: short, awaited: true }).expect("room");
        assert!(matches!(outcome_of(&mut redlock, short), Outcome::Release(Ok(_))));
        let (lock, until) = acquire(&mut redlock, "short", TTL);
        assert!(until > Instant::now() && until <= Instant::now() + TTL);
        redlock.submit(Request::Extend { lock, ttl: TTL }).expect("room");
        let Outcome::Extend(Ok(until)) = outcome_of(&mut redlock, lock) else { panic!("it is held") };
        assert!(until > Instant::now() && until <= Instant::now() + TTL);
        redlock.submit(Request::LeaveFor { lock, rest: TTL }).expect("room");
        let Outcome::Leave(Ok(left)) = outcome_of(&mut redlock, lock) else { panic!("it is held") };
        assert!(left.held_until > Instant::now() && left.held_until <= Instant::now() + TTL);
        println!("a_lock_does_not_outlive_a_sleep: ok, {slept:.3?} slept");
    }

    /// A lock, and its end according to the outcome.
    fn acquire(redlock: &mut Redlock, resource: &str, ttl: Duration) -> (OpId, Instant) {
        let request = Request::Acquire {
            resource: Resource::new(resource).expect("a valid name"),
            options: Options::new().ttl(ttl).wait(Duration::ZERO),
            label: None,
        };
        let lock = redlock.submit(request).expect("room");
        match outcome_of(redlock, lock) {
            Outcome::Acquire(result) => (lock, result.expect("free").valid_until),
            other => panic!("{other:?}"),
        }
    }

    fn outcome_of(redlock: &mut Redlock, lock: OpId) -> Outcome {
        loop {
            match redlock.poll_outcome() {
                Some((id, outcome)) if id == lock => return outcome,
                _ => redlock.turn(Duration::from_millis(10)).expect("the loop runs"),
            }
        }
    }

    /// The command line on a machine that slept before the start.
    pub(super) fn a_sleep_before_the_start_is_no_matter() {
        let fleet = Fleet::start(3);
        let ran = unshare()
            .arg(env!("CARGO_BIN_EXE_redlatch"))
            .args(["run", "--trust", "--answer-timeout", "3s", "r", "--", "echo", "locked"])
            .env("REDLATCH_MASTERS", fleet.urls().join(","))
            .output()
            .expect("it ran before");
        assert_eq!((ran.status.code(), ran.stdout.as_slice()), (Some(0), b"locked\n".as_slice()), "{ran:?}");
        println!("a_sleep_before_the_start_is_no_matter: ok");
    }

    /// Runs the program of the following arguments on a machine that has slept.
    fn unshare() -> Command {
        let mut command = command("unshare");
        command.args(["--time", "--boottime", &SLEEP.as_secs().to_string(), "--fork"]);
        command
    }

    /// A time namespace that is an hour ahead, kept alive by a process.
    pub(super) struct Sleep {
        background: Child,
        namespace: File,
    }

    impl Sleep {
        pub(super) fn prepare() -> Result<Self, String> {
            let mut background = unshare()
                .args(["sh", "-c", "echo $$; read -r line"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .map_err(|error| format!("unshare: {error}"))?;
            let mut line = String::new();
            let stdout = background.stdout.take().expect("piped");
            let namespace = BufReader::new(stdout).read_line(&mut line).and_then(|_| {
                let pid = line.trim();
                File::open(format!("/proc/{pid}/ns/time"))
            });
            match namespace {
                Ok(namespace) => Ok(Self { background, namespace }),
                Err(error) => {
                    drop(background.stdin.take());
                    background.wait().map_err(|error| error.to_string())?;
                    Err(error.to_string())
                }
            }
        }

        pub(super) fn fall_asleep(&self) {
            use std::os::fd::AsFd;
            let entered = move_into_link_name_space(self.namespace.as_fd(), Some(LinkNameSpaceType::Time));
            entered.expect("a process of one thread may enter the namespace that it has made");
        }
    }

    impl Drop for Sleep {
        fn drop(&mut self) {
            drop(self.background.stdin.take()); // which ends its shell
            self.background.wait().ok();
        }
    }
}
