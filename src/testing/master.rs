//! One server process.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use super::connection::Connection;
use super::error::FleetError;
use super::port::{PORT_ATTEMPTS_MAX, free_port_at};
use super::server::{Server, socket_path};
use super::{COMMAND_PATIENCE, Directory, Reply};

/// Time limit for a server to answer after its start, and to end. A busy machine is slower.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time limit of one check of a starting server.
const LOOK_PATIENCE: Duration = Duration::from_secs(1);
/// Pause between two checks.
const LOOK_PAUSE: Duration = Duration::from_millis(1);

/// One server of a [`Fleet`](super::Fleet). Its port stays the same across restarts. A drop kills the server.
#[derive(Debug)]
pub struct Master {
    dir: PathBuf,
    server: Server,
    port: u16,
    tls_port: u16,
    /// `None` after a kill. Nobody else waits for the child, so its process id cannot be reused.
    child: Option<Child>,
    pid_file: Option<PathBuf>,
    /// Connection to the current process; closed when the process ends.
    connection: Option<Connection>,
    /// Dropped last.
    _fleet_dir: Arc<Directory>,
}

/// State of a server that is starting.
enum Start {
    Ready,
    /// The server ended because another process has the port.
    PortTaken,
}

impl Master {
    /// Starts the process without waiting for it.
    pub(super) fn spawn(fleet_dir: Arc<Directory>, index: usize, server: Server) -> Result<Self, FleetError> {
        let dir = fleet_dir.path().join(index.to_string());
        fs::create_dir(&dir).map_err(|error| FleetError::io("cannot create", &dir, error))?;
        let mut master = Self {
            dir,
            server,
            port: 0,
            tls_port: 0,
            child: None,
            pid_file: None,
            connection: None,
            _fleet_dir: fleet_dir,
        };
        master.draw_ports()?;
        master.restart_unready()?;
        Ok(master)
    }

    /// Waits until a new server answers. Takes another port if another process has this one.
    pub(super) fn await_first_start(&mut self) -> Result<(), FleetError> {
        for _ in 0..PORT_ATTEMPTS_MAX {
            match self.await_start()? {
                Start::Ready => return Ok(()),
                Start::PortTaken => {
                    self.draw_ports()?;
                    self.restart_unready()?;
                }
            }
        }
        Err(FleetError::NoPort)
    }

    /// Returns the port of the server.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Returns the address of the server.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        SocketAddr::new(self.server.host, self.port)
    }

    /// Returns `redis://HOST:PORT`, with the password if there is one.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}{}", self.login(), self.addr())
    }

    /// Returns `unix:///PATH`, with the password if there is one.
    ///
    /// # Panics
    /// Without [`Server::unix_socket`].
    #[must_use]
    pub fn unix_url(&self) -> String {
        assert!(self.server.has_socket, "this server has no Unix socket: Server::unix_socket adds one");
        format!("unix://{}{}", self.login(), socket_path(&self.dir).display())
    }

    /// Returns `rediss://HOST:PORT`, with the password if there is one.
    ///
    /// # Panics
    /// Without [`Server::tls`].
    #[must_use]
    pub fn tls_url(&self) -> String {
        format!("rediss://{}{}", self.login(), self.tls_addr())
    }

    /// Returns the address of the port for TLS.
    ///
    /// # Panics
    /// Without [`Server::tls`].
    #[must_use]
    pub const fn tls_addr(&self) -> SocketAddr {
        assert!(self.server.has_tls, "this server has no port for TLS: Server::tls adds one");
        SocketAddr::new(self.server.host, self.tls_port)
    }

    /// Returns the process id; `None` if the server was killed.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Returns the server's output since its last start.
    #[must_use]
    pub fn log(&self) -> String {
        let bytes = fs::read(self.dir.join("log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Stops the process (SIGSTOP), and returns when it has stopped. The kernel still accepts connections and
    /// bytes for the process, but nothing answers.
    ///
    /// # Errors
    /// If the server does not run.
    pub fn stop(&mut self) -> Result<(), FleetError> {
        self.signal(Signal::STOP)?;
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let pid = self.running()?;
        retry_on_intr(|| waitid(WaitId::Pid(pid), stopped)).map_err(|error| self.refused("stop", error))?;
        self.running().map(drop)
    }

    /// Continues a stopped process (SIGCONT).
    ///
    /// # Errors
    /// If the server does not run.
    pub fn resume(&mut self) -> Result<(), FleetError> {
        self.signal(Signal::CONT)
    }

    /// Kills the process (SIGKILL), even if it is stopped. Connections are closed, the port refuses, and all
    /// data that was only in memory is gone. Does nothing if the server does not run.
    pub fn kill(&mut self) {
        self.connection = None;
        if let Some(mut child) = self.child.take() {
            // Both fail only if somebody else has waited for the child.
            let _ = child.kill();
            let _ = child.wait();
        }
        if let Some(file) = self.pid_file.take() {
            // A file that cannot be removed names a process that no longer exists.
            let _ = fs::remove_file(file);
        }
    }

    /// Ends the process like an operator does (SIGTERM), and returns when it has ended.
    ///
    /// # Errors
    /// If the server does not run, or has not ended within a minute.
    pub fn shutdown(&mut self) -> Result<(), FleetError> {
        self.signal(Signal::TERM)?;
        self.signal(Signal::CONT).or_else(|error| match error {
            FleetError::NotRunning { .. } => Ok(()), // it was fast
            error => Err(error),
        })?;
        let given_up = Instant::now() + PATIENCE;
        while self.exit_status()?.is_none() {
            if Instant::now() >= given_up {
                return Err(FleetError::NotEnded { port: self.port, limit: PATIENCE, log: self.log() });
            }
            thread::sleep(LOOK_PAUSE);
        }
        self.kill();
        Ok(())
    }

    /// Starts the server again on the same port, and returns when the server answers. Kills a running server
    /// first. With [`Server::persistent`] the server finds its data, otherwise nothing.
    ///
    /// # Errors
    /// See [`FleetError`].
    pub fn restart(&mut self) -> Result<(), FleetError> {
        self.restart_unready()?;
        let given_up = Instant::now() + PATIENCE;
        while let Start::PortTaken = self.await_start()? {
            if Instant::now() >= given_up {
                return Err(FleetError::NoPort);
            }
            thread::sleep(LOOK_PAUSE);
            self.restart_unready()?;
        }
        Ok(())
    }

    /// Restarts like [`Master::restart`] but does not wait: the server may still be starting, or loading its
    /// data.
    ///
    /// # Errors
    /// See [`FleetError`].
    pub fn restart_unready(&mut self) -> Result<(), FleetError> {
        self.kill();
        let child = self.server.spawn(&self.dir, self.port, self.tls_port)?;
        let pid = child.id();
        self.child = Some(child);
        if let Some(dir) = &self.server.pid_dir {
            let file = dir.join(format!("{}.{pid}.pid", self.port));
            fs::write(&file, format!("{pid}\n"))
                .map_err(|error| FleetError::io("cannot write", &file, error))?;
            self.pid_file = Some(file);
        }
        Ok(())
    }

    /// Sets other settings for the next restart. URLs and logins use them at once.
    pub fn configure(&mut self, server: Server) {
        self.server = server;
    }

    /// Sends one command over a separate connection, which logs in with [`Server::password`], and reads the
    /// reply.
    ///
    /// # Errors
    /// If the server does not answer.
    pub fn command<A: AsRef<[u8]>>(&mut self, args: &[A]) -> io::Result<Reply> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect()?,
        };
        let reply = connection.command(args)?;
        self.connection = Some(connection); // after an error its place in the stream would be unknown
        Ok(reply)
    }

    /// Opens a connection, and logs in with [`Server::password`].
    ///
    /// # Errors
    /// If the server does not answer.
    pub fn connect(&self) -> io::Result<Connection> {
        self.connect_within(COMMAND_PATIENCE)
    }

    fn connect_within(&self, limit: Duration) -> io::Result<Connection> {
        let mut connection = Connection::open(self.addr(), limit)?;
        if let Some(password) = &self.server.password {
            connection.command(&["AUTH", password])?;
        }
        Ok(connection)
    }

    fn draw_ports(&mut self) -> Result<(), FleetError> {
        let draw = || free_port_at(self.server.host).ok_or(FleetError::NoPort);
        (self.port, self.tls_port) = (draw()?, draw()?);
        Ok(())
    }

    fn login(&self) -> String {
        let Some(password) = &self.server.password else { return String::new() };
        let encoded: String = password.bytes().map(|byte| format!("%{byte:02X}")).collect();
        format!(":{encoded}@")
    }

    fn signal(&mut self, signal: Signal) -> Result<(), FleetError> {
        let pid = self.running()?;
        kill_process(pid, signal).map_err(|error| self.refused("signal", error))
    }

    fn refused(&self, what: &str, error: rustix::io::Errno) -> FleetError {
        FleetError::Io {
            what: format!("cannot {what} the server on port {}", self.port),
            source: error.into(),
        }
    }

    /// Returns the process if it runs.
    fn running(&mut self) -> Result<Pid, FleetError> {
        let port = self.port;
        if self.exit_status()?.is_some() {
            return Err(FleetError::NotRunning { port });
        }
        self.child.as_ref().map(Pid::from_child).ok_or(FleetError::NotRunning { port })
    }

    fn exit_status(&mut self) -> Result<Option<ExitStatus>, FleetError> {
        let Some(child) = &mut self.child else { return Ok(None) };
        let what = || format!("cannot wait for the server on port {}", self.port);
        child.try_wait().map_err(|source| FleetError::Io { what: what(), source })
    }

    fn await_start(&mut self) -> Result<Start, FleetError> {
        let (port, limit) = (self.port, PATIENCE);
        let given_up = Instant::now() + limit;
        loop {
            if self.is_ready() {
                return Ok(Start::Ready);
            }
            if let Some(status) = self.exit_status()? {
                let log = self.log();
                if log.to_lowercase().contains("address already in use") {
                    return Ok(Start::PortTaken);
                }
                return Err(FleetError::Ended { port, status, log });
            }
            if Instant::now() >= given_up {
                return Err(FleetError::Silent { port, limit, log: self.log() });
            }
            thread::sleep(LOOK_PAUSE);
        }
    }

    /// Whether this very process answers: `INFO` contains the process id, so another process on the same
    /// port does not pass for it. If the server refuses `INFO`, the log shows whether it is ready.
    fn is_ready(&self) -> bool {
        let Ok(mut connection) = self.connect_within(LOOK_PATIENCE) else { return false };
        let Some(pid) = self.pid() else { return false };
        let is_ready_by_log = || self.log().contains("eady to accept connections");
        match connection.command(&["PING"]) {
            Ok(Reply::Text(pong)) if pong == b"PONG" => {}
            Ok(Reply::Error(error)) if error.starts_with("LOADING") => return false,
            Ok(Reply::Error(_)) => return is_ready_by_log(),
            _ => return false,
        }
        match connection.command(&["INFO", "server"]) {
            Ok(Reply::Error(error)) => !error.starts_with("LOADING") && is_ready_by_log(),
            Ok(info) => info.text().contains(&format!("process_id:{pid}\r\n")),
            Err(_) => false,
        }
    }
}

impl Drop for Master {
    fn drop(&mut self) {
        self.kill();
    }
}
