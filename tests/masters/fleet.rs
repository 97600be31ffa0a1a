//! Real `redis-server` processes on loopback, for tests and benchmarks: start, stop in mid-air, kill,
//! restart, ask.
//!
//! Owns the processes, their temporary directory and their pid files, and gives all of them back on drop.
//! Knows nothing of the crate under test: it asks the servers with a RESP reader of its own, so that a bug in
//! ours cannot hide here.
//!
//! `REDLATCH_SERVER` names another server than `redis-server`; a `Place` names another for one master. If
//! `REDLATCH_TEST_PIDS` names a directory, each process is recorded there as `PORT.PID.pid`, and
//! `scripts/masters stop -d` ends those that a killed test program left behind.

#![allow(dead_code, reason = "each program that includes this file uses the part it needs")]

use std::fs::{self, File};
use std::hash::BuildHasher;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a server may take until it answers, and until it has stopped or ended.
const START_PATIENCE: Duration = Duration::from_secs(20);
/// How long a server may take to answer a command of a test.
const COMMAND_PATIENCE: Duration = Duration::from_secs(10);
/// How often to look again for something that is waited for.
const POLL_PAUSE: Duration = Duration::from_millis(1);
/// Advice for a server that does not start.
const ADVICE: &str = "scripts/setup.sh installs redis-server on Debian and Ubuntu";
/// How many ports to try before giving up.
const PORT_ATTEMPTS_MAX: usize = 1_000;

/// N independent masters. Dropping it ends them and removes what they wrote.
pub(crate) struct Fleet {
    dir: PathBuf,
    masters: Vec<Master>,
}

impl Fleet {
    /// Starts `size` masters that keep nothing on disk, and returns when each answers `PING`.
    pub(crate) fn start(size: usize) -> Self {
        Self::launch(vec![Place::default(); size], &[], Beside::Nothing)
    }

    /// The same, with further arguments of `redis-server` (they override the default ones).
    pub(crate) fn start_with(size: usize, extra_args: &[&str]) -> Self {
        Self::launch(vec![Place::default(); size], extra_args, Beside::Nothing)
    }

    /// The same, with a Unix socket beside each TCP port: `Master::unix_url`.
    pub(crate) fn start_with_sockets(size: usize, extra_args: &[&str]) -> Self {
        Self::launch(vec![Place::default(); size], extra_args, Beside::Socket)
    }

    /// The same, with a TLS port beside each TCP port: `Master::tls_url`. The arguments name the
    /// certificates.
    pub(crate) fn start_with_tls(size: usize, extra_args: &[&str]) -> Self {
        Self::launch(vec![Place::default(); size], extra_args, Beside::Tls)
    }

    /// One master at each of these places.
    pub(crate) fn start_at(places: Vec<Place>) -> Self {
        Self::launch(places, &[], Beside::Nothing)
    }

    fn launch(places: Vec<Place>, extra_args: &[&str], beside: Beside) -> Self {
        let dir = fresh_dir();
        let extra_args: Vec<String> = extra_args.iter().map(|&arg| arg.to_owned()).collect();
        let mut fleet = Self { dir, masters: Vec::with_capacity(places.len()) };
        for (index, place) in places.into_iter().enumerate() {
            let dir = fleet.dir.join(index.to_string());
            let mut master = Master::new(dir, place, beside, extra_args.clone());
            master.spawn();
            fleet.masters.push(master);
        }
        for master in &mut fleet.masters {
            master.wait_ready_on_any_port();
        }
        fleet
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

impl Drop for Fleet {
    fn drop(&mut self) {
        self.masters.clear();
        if let Err(error) = fs::remove_dir_all(&self.dir) {
            eprintln!("fleet: cannot remove {}: {error}", self.dir.display());
        }
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

/// Where a master listens in addition to its port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    Socket,
    Tls,
}

/// One server process and the port that stays its own over restarts.
pub(crate) struct Master {
    dir: PathBuf,
    place: Place,
    port: u16,
    beside: Beside,
    /// The port for TLS, if there is one.
    tls_port: u16,
    extra_args: Vec<String>,
    child: Option<Child>,
    pid_file: Option<PathBuf>,
    /// To this process only; closed when it ends.
    connection: Option<BufReader<TcpStream>>,
}

impl Master {
    fn new(dir: PathBuf, place: Place, beside: Beside, extra_args: Vec<String>) -> Self {
        fs::create_dir(&dir).unwrap_or_else(|error| panic!("cannot create {}: {error}", dir.display()));
        let (port, tls_port) = (free_port(), free_port());
        Self { dir, place, port, beside, tls_port, extra_args, child: None, pid_file: None, connection: None }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        SocketAddr::from((self.place.host, self.port))
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.addr())
    }

    /// `unix:///…`; there is one only after `Fleet::start_with_sockets`.
    pub(crate) fn unix_url(&self) -> String {
        assert!(self.beside == Beside::Socket, "this fleet listens on no Unix sockets");
        format!("unix://{}", self.socket_path().display())
    }

    /// `rediss://…`; there is one only after `Fleet::start_with_tls`.
    pub(crate) fn tls_url(&self) -> String {
        format!("rediss://{}", self.tls_addr())
    }

    pub(crate) fn tls_addr(&self) -> SocketAddr {
        assert!(self.beside == Beside::Tls, "this fleet has no TLS ports");
        SocketAddr::from((self.place.host, self.tls_port))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().expect("the master runs").id()
    }

    /// SIGSTOP: the kernel still accepts connections and bytes, nobody reads them. Returns when it has
    /// stopped.
    pub(crate) fn stop(&mut self) {
        self.signal("STOP");
        let stat = format!("/proc/{}/stat", self.pid());
        if !Path::new(&stat).exists() {
            return; // no /proc on this system: the signal was sent, which has to do
        }
        eventually(START_PATIENCE, "the master stops", || {
            let stat = fs::read_to_string(&stat).unwrap_or_default();
            stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
        });
    }

    /// SIGCONT: it goes on where `stop` stopped it.
    pub(crate) fn cont(&mut self) {
        self.signal("CONT");
    }

    /// SIGKILL: the kernel closes its connections, its port refuses, what it kept only in memory is gone.
    pub(crate) fn kill(&mut self) {
        self.connection = None;
        if let Some(mut child) = self.child.take() {
            child.kill().expect("a child of this process can be killed");
            child.wait().expect("a child of this process can be waited for");
        }
        if let Some(file) = self.pid_file.take() {
            fs::remove_file(file).ok();
        }
    }

    /// SIGTERM: it ends as an operator would end it, and writes out what it is configured to keep.
    pub(crate) fn shutdown(&mut self) {
        self.signal("TERM");
        let mut child = self.child.take().expect("signalled just now");
        eventually(START_PATIENCE, "the master shuts down", || {
            child.try_wait().expect("a child of this process can be waited for").is_some()
        });
        self.kill();
    }

    /// Starts it again on the same port, with whatever it kept on disk (nothing, unless its arguments say
    /// so), and returns when it answers `PING`. Kills it first if it runs.
    pub(crate) fn restart(&mut self) {
        self.restart_unready();
        let given_up = Instant::now() + START_PATIENCE;
        while self.wait_ready() == Readiness::PortTaken {
            assert!(Instant::now() < given_up, "port {} stays taken by somebody else", self.port);
            self.restart_unready();
        }
    }

    /// The same with other extra arguments, which stay for later restarts.
    pub(crate) fn restart_with(&mut self, extra_args: &[&str]) {
        self.configure(extra_args);
        self.restart();
    }

    /// Other extra arguments from the next restart on.
    pub(crate) fn configure(&mut self, extra_args: &[&str]) {
        self.extra_args = extra_args.iter().map(|&arg| arg.to_owned()).collect();
    }

    /// The same without waiting: it may still be starting, or loading what it kept.
    pub(crate) fn restart_unready(&mut self) {
        self.kill();
        self.spawn();
    }

    /// Asks this server, over a connection of the harness's own. Panics if it does not answer.
    pub(crate) fn command(&mut self, args: &[&[u8]]) -> Raw {
        self.try_command(args).unwrap_or_else(|error| {
            let shown: Vec<_> = args.iter().map(|arg| String::from_utf8_lossy(arg)).collect();
            panic!("master on port {}: {}: {error}", self.port, shown.join(" "))
        })
    }

    /// The same with a line of words: `ask("GET orders:42")`.
    pub(crate) fn ask(&mut self, line: &str) -> Raw {
        let args: Vec<&[u8]> = line.split_whitespace().map(str::as_bytes).collect();
        self.command(&args)
    }

    /// The same, for a server that may not answer.
    pub(crate) fn try_command(&mut self, args: &[&[u8]]) -> io::Result<Raw> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => open(self.addr(), COMMAND_PATIENCE)?,
        };
        let reply = exchange(&mut connection, args)?;
        self.connection = Some(connection); // after an error its place in the stream would be unknown
        Ok(reply)
    }

    /// Sends one command over a connection of its own, which is returned: the reply may be a long time
    /// coming.
    pub(crate) fn send(&mut self, args: &[&[u8]]) -> TcpStream {
        let mut connection = open(self.addr(), COMMAND_PATIENCE).expect("the master accepts connections");
        send(&mut connection, args).expect("the master reads");
        connection.into_inner()
    }

    /// What the server printed since its last start.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    fn socket_path(&self) -> PathBuf {
        self.dir.join("sock")
    }

    /// Through the shell, whose `kill` is built in: signals need `libc` or unsafe code otherwise.
    fn signal(&self, name: &str) {
        let status = command("sh").args(["-c", &format!("kill -{name} {}", self.pid())]).status();
        assert!(status.as_ref().is_ok_and(|status| status.success()), "kill -{name}: {status:?}");
    }

    fn spawn(&mut self) {
        let log = File::create(self.dir.join("log")).expect("the harness's own directory is writable");
        let (program, words) = self.place.words.split_first().expect("REDLATCH_SERVER names a program");
        let mut command = command(program);
        command.args(words).args(["--port", &self.port.to_string(), "--bind", &self.place.host.to_string()]);
        command.args(["--daemonize", "no", "--save", "", "--appendonly", "no", "--dir"]).arg(&self.dir);
        match self.beside {
            Beside::Nothing => {}
            Beside::Socket => {
                command.arg("--unixsocket").arg(self.socket_path());
            }
            Beside::Tls => {
                command.args(["--tls-port", &self.tls_port.to_string()]);
            }
        }
        command.args(&self.extra_args).stdin(Stdio::null());
        command.stdout(log.try_clone().expect("an open file can be duplicated")).stderr(log);
        let child =
            command.spawn().unwrap_or_else(|error| panic!("cannot start {program}: {error}; {ADVICE}"));
        if let Some(pids) = std::env::var_os("REDLATCH_TEST_PIDS") {
            let file = Path::new(&pids).join(format!("{}.{}.pid", self.port, child.id()));
            fs::write(&file, format!("{}\n", child.id()))
                .unwrap_or_else(|error| panic!("REDLATCH_TEST_PIDS: {}: {error}", file.display()));
            self.pid_file = Some(file);
        }
        self.child = Some(child);
    }

    /// For the first start, where the port does not matter yet.
    fn wait_ready_on_any_port(&mut self) {
        for _ in 0..PORT_ATTEMPTS_MAX {
            if self.wait_ready() == Readiness::Ready {
                return;
            }
            (self.port, self.tls_port) = (free_port(), free_port());
            self.restart_unready();
        }
        panic!("no free port in {PORT_ATTEMPTS_MAX} attempts");
    }

    fn wait_ready(&mut self) -> Readiness {
        let given_up = Instant::now() + START_PATIENCE;
        loop {
            if self.is_ready() {
                return Readiness::Ready;
            }
            let child = self.child.as_mut().expect("spawned before it is waited for");
            if let Some(status) = child.try_wait().expect("a child of this process can be waited for") {
                let log = self.log();
                assert!(
                    log.to_lowercase().contains("address already in use"),
                    "the server ended, {status}; {ADVICE}; its log:\n{log}"
                );
                return Readiness::PortTaken;
            }
            assert!(Instant::now() < given_up, "port {}: no PONG; its log:\n{}", self.port, self.log());
            std::thread::sleep(POLL_PAUSE);
        }
    }

    /// Does this very process answer? `INFO` names it, so a stranger that was faster on the same port is not
    /// taken for ours. A server that wants a password says so; then its log says so.
    fn is_ready(&self) -> bool {
        let Ok(mut connection) = open(self.addr(), Duration::from_secs(1)) else { return false };
        match exchange(&mut connection, &[b"PING"]) {
            Ok(Raw::Error(error)) if error.starts_with("NOAUTH") => {
                return self.log().contains("eady to accept connections");
            }
            Ok(Raw::Simple(pong)) if pong == "PONG" => {}
            _ => return false,
        }
        let wanted = format!("process_id:{}\r\n", self.pid());
        exchange(&mut connection, &[b"INFO", b"server"]).is_ok_and(|info| info.text().contains(&wanted))
    }
}

impl Drop for Master {
    fn drop(&mut self) {
        self.kill(); // SIGKILL also ends a stopped process
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Readiness {
    Ready,
    PortTaken,
}

/// A reply as the server sent it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Raw {
    Simple(String),
    Error(String),
    Int(i64),
    Bulk(Vec<u8>),
    Array(Vec<Raw>),
    /// A null bulk string or a null array.
    Nil,
}

impl Raw {
    /// The reply in words, for assertions: `OK`, `ERR no such key`, `7`, a bulk string, `nil`, `[a, b]`.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Simple(text) | Self::Error(text) => text.clone(),
            Self::Int(number) => number.to_string(),
            Self::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Self::Array(items) => {
                format!("[{}]", items.iter().map(Self::text).collect::<Vec<_>>().join(", "))
            }
            Self::Nil => "nil".to_owned(),
        }
    }
}

/// A program whose process ignores no signal, though this one may: its starter was `nohup`, or a script with
/// `&`. Where `env` cannot set that right, the process inherits what this one ignores.
pub(crate) fn command(program: &str) -> Command {
    static RESET: [&str; 2] = ["env", "--default-signal"];
    static CAN_RESET: LazyLock<bool> = LazyLock::new(|| {
        let tried = Command::new(RESET[0]).args([RESET[1], "true"]).stderr(Stdio::null()).status();
        tried.is_ok_and(|status| status.success())
    });
    if !*CAN_RESET {
        return Command::new(program);
    }
    let mut command = Command::new(RESET[0]);
    command.args([RESET[1], program]);
    command
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

/// A loopback port that nobody listens on just now, below the ephemeral ones: a client that retries a dead
/// port among those may be given the same port as its own, and so connect to itself.
pub(crate) fn free_port() -> u16 {
    const FIRST: u16 = 10_000;
    const LAST: u16 = 32_767;
    static DRAWN: AtomicU64 = AtomicU64::new(0);
    let seed = std::hash::RandomState::new();
    for _ in 0..PORT_ATTEMPTS_MAX {
        let random = seed.hash_one(DRAWN.fetch_add(1, Ordering::Relaxed)) % u64::from(LAST - FIRST + 1);
        let port = FIRST + u16::try_from(random).expect("smaller than a port");
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("no free port in {PORT_ATTEMPTS_MAX} attempts");
}

fn fresh_dir() -> PathBuf {
    let seed = std::hash::RandomState::new();
    let name = format!("redlatch-fleet-{}-{:08x}", std::process::id(), seed.hash_one(0) & 0xffff_ffff);
    let dir = std::env::temp_dir().join(name);
    fs::create_dir(&dir).unwrap_or_else(|error| panic!("cannot create {}: {error}", dir.display()));
    dir
}

pub(crate) fn open(addr: SocketAddr, patience: Duration) -> io::Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect_timeout(&addr, patience)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    Ok(BufReader::new(stream))
}

/// Sends one command and reads its reply.
pub(crate) fn exchange(connection: &mut BufReader<TcpStream>, args: &[&[u8]]) -> io::Result<Raw> {
    send(connection, args)?;
    read_raw(connection)
}

fn send(connection: &mut BufReader<TcpStream>, args: &[&[u8]]) -> io::Result<()> {
    let mut request = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        request.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        request.extend_from_slice(arg);
        request.extend_from_slice(b"\r\n");
    }
    connection.get_mut().write_all(&request)
}

fn read_raw(connection: &mut BufReader<TcpStream>) -> io::Result<Raw> {
    let mut line = String::new();
    connection.read_line(&mut line)?;
    let Some(line) = line.strip_suffix("\r\n") else { return Err(io::ErrorKind::UnexpectedEof.into()) };
    let (kind, rest) = line.split_at_checked(1).ok_or_else(|| malformed(line))?;
    let number = || rest.parse::<i64>().map_err(|_| malformed(line));
    Ok(match kind {
        "+" => Raw::Simple(rest.to_owned()),
        "-" => Raw::Error(rest.to_owned()),
        ":" => Raw::Int(number()?),
        "$" | "*" if number()? < 0 => Raw::Nil,
        "$" => {
            let size = usize::try_from(number()?).map_err(|_| malformed(line))?;
            let mut bytes = vec![0; size + 2];
            connection.read_exact(&mut bytes)?;
            bytes.truncate(size);
            Raw::Bulk(bytes)
        }
        "*" => Raw::Array((0..number()?).map(|_| read_raw(connection)).collect::<io::Result<_>>()?),
        _ => return Err(malformed(line)),
    })
}

fn malformed(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not a RESP2 reply: {line:?}"))
}
