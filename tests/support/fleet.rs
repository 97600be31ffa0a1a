//! The fleet of `redlatch_testing`, as our own tests use it: a failure is a panic, and no server ignores a
//! signal that the test program was started with ignoring.
//!
//! It asks the servers by the probe, whose reader of replies shares no code with the client's.
//!
//! `REDLATCH_SERVER` names another server than `redis-server`; a `Place` names another for one master. If
//! `REDLATCH_TEST_PIDS` names a directory, each process is recorded there as `PORT.PID.pid`, and
//! `scripts/masters stop -d` ends those that a killed test program left behind.

#![allow(dead_code, reason = "each program that includes this file uses the part it needs")]

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redlatch_testing::Server;
pub(crate) use redlatch_testing::{Connection, Reply as Raw};

/// How often to look again for something that is waited for.
const POLL_PAUSE: Duration = Duration::from_millis(1);
/// Advice for a server that does not start.
const ADVICE: &str = "scripts/setup.sh installs redis-server on Debian and Ubuntu";

/// N independent masters. Dropping it ends them and removes what they wrote.
pub(crate) struct Fleet {
    masters: Vec<Master>,
}

impl Fleet {
    /// Starts `size` masters that keep nothing on disk, and returns when each answers `PING`.
    pub(crate) fn start(size: usize) -> Self {
        Self::start_with(size, &[])
    }

    /// The same, with further arguments of `redis-server` (they override the default ones).
    pub(crate) fn start_with(size: usize, extra_args: &[&str]) -> Self {
        Self::launch(vec![Place::default().server(); size], extra_args)
    }

    /// The same, with a Unix socket beside each TCP port: `Master::unix_url`.
    pub(crate) fn start_with_sockets(size: usize, extra_args: &[&str]) -> Self {
        Self::launch(vec![Place::default().server().unix_socket(); size], extra_args)
    }

    /// The same, with a TLS port beside each TCP port: `Master::tls_url`. The arguments name the
    /// certificates.
    pub(crate) fn start_with_tls(size: usize, extra_args: &[&str]) -> Self {
        Self::launch(vec![Place::default().server().tls(); size], extra_args)
    }

    /// One master at each of these places.
    pub(crate) fn start_at(places: Vec<Place>) -> Self {
        Self::launch(places.iter().map(Place::server).collect(), &[])
    }

    fn launch(servers: Vec<Server>, extra_args: &[&str]) -> Self {
        let with_args = servers.iter().map(|server| server.clone().args(extra_args));
        let fleet = redlatch_testing::Fleet::start_with(with_args)
            .unwrap_or_else(|error| panic!("{error}; {ADVICE}"));
        let masters = fleet.into_masters().into_iter().zip(servers);
        Self { masters: masters.map(|(master, server)| Master { master, server }).collect() }
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        self.masters.iter().map(Master::url).collect()
    }

    pub(crate) fn addrs(&self) -> Vec<SocketAddr> {
        self.masters.iter().map(Master::addr).collect()
    }

    pub(crate) fn master(&mut self, index: usize) -> &mut Master {
        &mut self.masters[index]
    }

    pub(crate) fn masters(&mut self) -> impl Iterator<Item = &mut Master> {
        self.masters.iter_mut()
    }
}

/// By which program one master runs, and at which address.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// The program and its first arguments. It must run the server as the process that it is itself.
    pub(crate) words: Vec<String>,
    pub(crate) host: IpAddr,
}

impl Default for Place {
    fn default() -> Self {
        let words = std::env::var("REDLATCH_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
        let words = words.split_whitespace().map(str::to_owned).collect();
        Self { words, host: Ipv4Addr::LOCALHOST.into() }
    }
}

impl Place {
    fn server(&self) -> Server {
        let words = reset().iter().copied().chain(self.words.iter().map(String::as_str));
        let server = Server::new().program(words).host(self.host);
        match std::env::var_os("REDLATCH_TEST_PIDS") {
            Some(dir) => server.pid_dir(dir),
            None => server,
        }
    }
}

/// One server process and the port that stays its own over restarts.
pub(crate) struct Master {
    master: redlatch_testing::Master,
    /// Its settings without extra arguments.
    server: Server,
}

impl Master {
    pub(crate) fn port(&self) -> u16 {
        self.master.port()
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.master.addr()
    }

    pub(crate) fn url(&self) -> String {
        self.master.url()
    }

    /// `unix:///…`; there is one only after `Fleet::start_with_sockets`.
    pub(crate) fn unix_url(&self) -> String {
        self.master.unix_url()
    }

    /// `rediss://…`; there is one only after `Fleet::start_with_tls`.
    pub(crate) fn tls_url(&self) -> String {
        self.master.tls_url()
    }

    pub(crate) fn tls_addr(&self) -> SocketAddr {
        self.master.tls_addr()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.master.pid().expect("the master runs")
    }

    /// SIGSTOP: the kernel still accepts connections and bytes, nobody reads them. Returns when it has
    /// stopped.
    pub(crate) fn stop(&mut self) {
        self.master.stop().expect("the master runs");
    }

    /// SIGCONT: it goes on where `stop` stopped it.
    pub(crate) fn cont(&mut self) {
        self.master.resume().expect("the master runs");
    }

    /// SIGKILL: the kernel closes its connections, its port refuses, what it kept only in memory is gone.
    pub(crate) fn kill(&mut self) {
        self.master.kill();
    }

    /// SIGTERM: it ends as an operator would end it, and writes out what it is configured to keep.
    pub(crate) fn shutdown(&mut self) {
        self.master.shutdown().expect("the master shuts down");
    }

    /// Starts it again on the same port, with whatever it kept on disk (nothing, unless its arguments say
    /// so), and returns when it answers `PING`. Kills it first if it runs.
    pub(crate) fn restart(&mut self) {
        self.master.restart().unwrap_or_else(|error| panic!("{error}"));
    }

    /// The same with other extra arguments, which stay for later restarts.
    pub(crate) fn restart_with(&mut self, extra_args: &[&str]) {
        self.configure(extra_args);
        self.restart();
    }

    /// Other extra arguments from the next restart on.
    pub(crate) fn configure(&mut self, extra_args: &[&str]) {
        self.master.configure(self.server.clone().args(extra_args));
    }

    /// The same as `restart` without waiting: it may still be starting, or loading what it kept.
    pub(crate) fn restart_unready(&mut self) {
        self.master.restart_unready().unwrap_or_else(|error| panic!("{error}"));
    }

    /// Asks this server, over a connection of the harness's own. Panics if it does not answer.
    pub(crate) fn command(&mut self, args: &[&[u8]]) -> Raw {
        self.try_command(args).unwrap_or_else(|error| {
            let shown: Vec<_> = args.iter().map(|arg| String::from_utf8_lossy(arg)).collect();
            panic!("master on port {}: {}: {error}", self.port(), shown.join(" "))
        })
    }

    /// The same with a line of words: `ask("GET orders:42")`.
    pub(crate) fn ask(&mut self, line: &str) -> Raw {
        let args: Vec<&[u8]> = line.split_whitespace().map(str::as_bytes).collect();
        self.command(&args)
    }

    /// Names of its keys without those of records, as `[a, b]`.
    pub(crate) fn keys(&mut self) -> String {
        let Raw::List(keys) = self.ask("KEYS *") else { panic!("a list of keys") };
        let is_record = |name: &String| name.ends_with("redlatch:fleet");
        let names: Vec<_> = keys.iter().map(Raw::text).filter(|name| !is_record(name)).collect();
        format!("[{}]", names.join(", "))
    }

    /// The number of its keys without those of records.
    pub(crate) fn key_count(&mut self) -> String {
        let Raw::List(records) = self.ask("KEYS *redlatch:fleet") else { panic!("a list of keys") };
        let Raw::Integer(count) = self.ask("DBSIZE") else { panic!("a number") };
        (count - i64::try_from(records.len()).expect("small")).to_string()
    }

    /// How often it has carried out this command since its start, or its last `CONFIG RESETSTAT`.
    pub(crate) fn calls(&mut self, command: &str) -> u32 {
        let stats = self.ask("INFO commandstats").text();
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
        line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
    }

    /// The same as [`Self::command`], for a server that may not answer.
    pub(crate) fn try_command(&mut self, args: &[&[u8]]) -> io::Result<Raw> {
        self.master.command(args)
    }

    /// Sends one command over a connection of its own, which is returned: the reply may be a long time
    /// coming.
    pub(crate) fn send(&mut self, args: &[&[u8]]) -> Connection {
        let mut connection = self.master.connect().expect("the master accepts connections");
        connection.send(args).expect("the master reads");
        connection
    }

    /// What the server printed since its last start.
    pub(crate) fn log(&self) -> String {
        self.master.log()
    }
}

/// A program whose process ignores no signal, though this one may: its starter was `nohup`, or a script with
/// `&`. Where `env` cannot set that right, the process inherits what this one ignores.
pub(crate) fn command(program: &str) -> Command {
    let Some((first, words)) = reset().split_first() else { return Command::new(program) };
    let mut command = Command::new(first);
    command.args(words).arg(program);
    command
}

/// The words in front of such a program; none where `env` cannot do it.
fn reset() -> &'static [&'static str] {
    static RESET: [&str; 2] = ["env", "--default-signal"];
    static CAN_RESET: LazyLock<bool> = LazyLock::new(|| {
        let tried = Command::new(RESET[0]).args([RESET[1], "true"]).stderr(Stdio::null()).status();
        tried.is_ok_and(|status| status.success())
    });
    if *CAN_RESET { &RESET } else { &[] }
}

/// At its end the flag is true, also if that is a panic: a scope waits for threads that look at it.
pub(crate) struct Until<'a>(pub(crate) &'a AtomicBool);

impl Drop for Until<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Fails where something took as long as only a fault takes: the reason says how long that is. A test has no
/// other upper bound on real time, since a machine may be slow.
#[track_caller]
pub(crate) fn assert_sooner(since: Instant, bound: Duration, reason: &str) {
    let took = since.elapsed();
    assert!(took < bound, "{took:?}: {reason}");
}

/// Waits for something to become true; panics with `what` if it does not within `patience`.
#[track_caller]
pub(crate) fn eventually(patience: Duration, what: &str, mut is_true: impl FnMut() -> bool) {
    let given_up = Instant::now() + patience;
    while !is_true() {
        assert!(Instant::now() < given_up, "not within {patience:?}: {what}");
        std::thread::sleep(POLL_PAUSE);
    }
}

/// A loopback port that nobody listens on just now.
pub(crate) fn free_port() -> u16 {
    redlatch_testing::free_port().expect("a free port")
}

/// The server that `REDLATCH_VALKEY` names, if it is a Valkey of version 9 or later.
pub(crate) fn valkey_9() -> Option<Place> {
    let found = std::env::var("REDLATCH_VALKEY").ok().filter(|program| {
        let output = command(program).arg("--version").output();
        let version =
            output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        let major = version.split("v=").nth(1).and_then(|rest| rest.split('.').next()?.parse::<u32>().ok());
        version.starts_with("Valkey") && major.is_some_and(|major| major >= 9)
    });
    if found.is_none() {
        println!("skipped: REDLATCH_VALKEY names no Valkey 9 server");
    }
    found.map(|program| Place { words: vec![program], ..Place::default() })
}
