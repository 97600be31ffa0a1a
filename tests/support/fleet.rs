//! The fleet of `redlatch_testing` as our own tests use it: a failure panics, and servers do not inherit
//! ignored signals from the test program.
//!
//! Asks servers through the probe.
//!
//! `REDLATCH_SERVER` replaces `redis-server`; a `Place` replaces it for one master. If `REDLATCH_TEST_PIDS`
//! names a directory, each process is recorded there as `PORT.PID.pid`, and `scripts/masters stop -d` ends
//! the servers that a killed test program left behind.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use redlatch_testing::Server;
pub use redlatch_testing::{Connection, Reply as Raw};

/// Advice if a server does not start.
const ADVICE: &str = "scripts/setup.sh installs redis-server on Debian and Ubuntu";

/// N independent masters. Dropping it ends them and removes their files.
pub struct Fleet {
    masters: Vec<Master>,
}

impl Fleet {
    /// Starts `size` masters that keep nothing on disk, and returns when each answers `PING`.
    pub fn start(size: usize) -> Self {
        Self::start_with(size, &[])
    }

    /// Like [`Self::start`], with more `redis-server` arguments, which override the default ones.
    pub fn start_with(size: usize, extra_args: &[&str]) -> Self {
        Self::launch(vec![Place::default().server(); size], extra_args)
    }

    /// Like [`Self::start_with`], with a Unix socket beside each TCP port: [`Master::unix_url`].
    pub fn start_with_sockets(size: usize, extra_args: &[&str]) -> Self {
        Self::launch(vec![Place::default().server().unix_socket(); size], extra_args)
    }

    /// Like [`Self::start_with`], with a TLS port beside each TCP port: [`Master::tls_url`]. The arguments
    /// name the certificates.
    pub fn start_with_tls(size: usize, extra_args: &[&str]) -> Self {
        Self::launch(vec![Place::default().server().tls(); size], extra_args)
    }

    /// Starts one master at each of these places.
    pub fn start_at(places: Vec<Place>) -> Self {
        Self::launch(places.iter().map(Place::server).collect(), &[])
    }

    fn launch(servers: Vec<Server>, extra_args: &[&str]) -> Self {
        let with_args = servers.iter().map(|server| server.clone().args(extra_args));
        let fleet = redlatch_testing::Fleet::start_with(with_args)
            .unwrap_or_else(|error| panic!("{error}; {ADVICE}"));
        let masters = fleet.into_masters().into_iter().zip(servers);
        Self { masters: masters.map(|(master, server)| Master { master, server }).collect() }
    }

    pub fn into_masters(self) -> Vec<Master> {
        self.masters
    }

    pub fn urls(&self) -> Vec<String> {
        self.masters.iter().map(Master::url).collect()
    }

    pub fn addrs(&self) -> Vec<SocketAddr> {
        self.masters.iter().map(Master::addr).collect()
    }

    pub fn master(&mut self, index: usize) -> &mut Master {
        &mut self.masters[index]
    }

    pub fn masters(&mut self) -> impl Iterator<Item = &mut Master> {
        self.masters.iter_mut()
    }
}

/// Program and address of one master.
#[derive(Debug, Clone)]
pub struct Place {
    /// The program and its first arguments. The server must run in this same process, not in a child.
    pub words: Vec<String>,
    pub host: IpAddr,
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

/// One server process. Its port stays reserved over restarts.
pub struct Master {
    master: redlatch_testing::Master,
    /// The settings, without extra arguments.
    server: Server,
}

impl Master {
    pub fn port(&self) -> u16 {
        self.master.port()
    }

    pub fn addr(&self) -> SocketAddr {
        self.master.addr()
    }

    pub fn url(&self) -> String {
        self.master.url()
    }

    /// `unix:///…`; exists only after [`Fleet::start_with_sockets`].
    pub fn unix_url(&self) -> String {
        self.master.unix_url()
    }

    /// `rediss://…`; exists only after [`Fleet::start_with_tls`].
    pub fn tls_url(&self) -> String {
        self.master.tls_url()
    }

    pub fn tls_addr(&self) -> SocketAddr {
        self.master.tls_addr()
    }

    pub fn pid(&self) -> u32 {
        self.master.pid().expect("the master runs")
    }

    /// SIGSTOP: the kernel still accepts connections and bytes, but nobody reads them. Returns once the
    /// process has stopped.
    pub fn stop(&mut self) {
        self.master.stop().expect("the master runs");
    }

    /// SIGCONT: the process goes on where `stop` stopped it.
    pub fn cont(&mut self) {
        self.master.resume().expect("the master runs");
    }

    /// SIGKILL: the kernel closes connections, the port refuses new ones, and data in memory is lost.
    pub fn kill(&mut self) {
        self.master.kill();
    }

    /// SIGTERM: the server shuts down as for an operator, and saves what it is configured to save.
    pub fn shutdown(&mut self) {
        self.master.shutdown().expect("the master shuts down");
    }

    /// Restarts it on the same port with the data that it saved (none, unless the arguments say so). Returns
    /// when it answers `PING`. Kills a running process first.
    pub fn restart(&mut self) {
        self.master.restart().unwrap_or_else(|error| panic!("{error}"));
    }

    /// Like [`Self::restart`], with other extra arguments, also for later restarts.
    pub fn restart_with(&mut self, extra_args: &[&str]) {
        self.configure(extra_args);
        self.restart();
    }

    /// Sets the extra arguments from the next restart on.
    pub fn configure(&mut self, extra_args: &[&str]) {
        self.master.configure(self.server.clone().args(extra_args));
    }

    /// Like [`Self::restart`], without waiting: the server may still be starting, or loading data.
    pub fn restart_unready(&mut self) {
        self.master.restart_unready().unwrap_or_else(|error| panic!("{error}"));
    }

    /// Sends a command over the harness's own connection. Panics without an answer.
    pub fn command(&mut self, args: &[&[u8]]) -> Raw {
        self.try_command(args).unwrap_or_else(|error| {
            let shown: Vec<_> = args.iter().map(|arg| String::from_utf8_lossy(arg)).collect();
            panic!("master on port {}: {}: {error}", self.port(), shown.join(" "))
        })
    }

    /// Like [`Self::command`], with a line of words: `ask("GET orders:42")`.
    pub fn ask(&mut self, line: &str) -> Raw {
        let args: Vec<&[u8]> = line.split_whitespace().map(str::as_bytes).collect();
        self.command(&args)
    }

    /// Names of all keys but records, as `[a, b]`.
    pub fn keys(&mut self) -> String {
        let Raw::List(keys) = self.ask("KEYS *") else { panic!("a list of keys") };
        let is_record = |name: &String| name.ends_with("redlatch:fleet");
        let names: Vec<_> = keys.iter().map(Raw::text).filter(|name| !is_record(name)).collect();
        format!("[{}]", names.join(", "))
    }

    /// Number of all keys but records.
    pub fn key_count(&mut self) -> String {
        let Raw::List(records) = self.ask("KEYS *redlatch:fleet") else { panic!("a list of keys") };
        let Raw::Integer(count) = self.ask("DBSIZE") else { panic!("a number") };
        (count - i64::try_from(records.len()).expect("small")).to_string()
    }

    /// How often the server has run this command since its start or the last `CONFIG RESETSTAT`.
    pub fn calls(&mut self, command: &str) -> u32 {
        let stats = self.ask("INFO commandstats").text();
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
        line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
    }

    /// Like [`Self::command`], for a server that may not answer.
    pub fn try_command(&mut self, args: &[&[u8]]) -> io::Result<Raw> {
        self.master.command(args)
    }

    /// Sends a command over a new connection, and returns the connection: the reply may take long.
    pub fn send(&mut self, args: &[&[u8]]) -> Connection {
        let mut connection = self.master.connect().expect("the master accepts connections");
        connection.send(args).expect("the master reads");
        connection
    }

    /// Output of the server since its last start.
    pub fn log(&self) -> String {
        self.master.log()
    }
}

/// Command for a process that ignores no signal. This process may ignore some, if `nohup` or a script's `&`
/// started it. Where `env` cannot reset signals, the child inherits them.
pub fn command(program: &str) -> Command {
    let Some((first, words)) = reset().split_first() else { return Command::new(program) };
    let mut command = Command::new(first);
    command.args(words).arg(program);
    command
}

/// Words to put in front of a program; none where `env` cannot reset signals.
fn reset() -> &'static [&'static str] {
    static RESET: [&str; 2] = ["env", "--default-signal"];
    static CAN_RESET: LazyLock<bool> = LazyLock::new(|| {
        let tried = Command::new(RESET[0]).args([RESET[1], "true"]).stderr(Stdio::null()).status();
        tried.is_ok_and(|status| status.success())
    });
    if *CAN_RESET { &RESET } else { &[] }
}

/// A loopback port on which nobody listens at the moment.
pub fn free_port() -> u16 {
    redlatch_testing::free_port().expect("a free port")
}

/// The server of `REDLATCH_VALKEY`, if it is Valkey 9 or later.
pub fn valkey_9() -> Option<Place> {
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
