//! Settings of one server.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::error::FleetError;

/// Environment variable that names the server program.
const PROGRAM_VARIABLE: &str = "REDLATCH_SERVER";
/// Programs to try without the variable.
const PROGRAMS: [&str; 2] = ["redis-server", "valkey-server"];

/// Settings of one server of a [`Fleet`](super::Fleet).
#[derive(Clone)]
pub struct Server {
    words: Vec<OsString>,
    pub(super) host: IpAddr,
    args: Vec<OsString>,
    pub(super) password: Option<String>,
    pub(super) has_socket: bool,
    pub(super) has_tls: bool,
    pub(super) pid_dir: Option<PathBuf>,
}

impl fmt::Debug for Server {
    /// Without password and arguments, which may contain one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("words", &self.words).field("host", &self.host).finish_non_exhaustive()
    }
}

impl Default for Server {
    fn default() -> Self {
        Self::new()
    }
}

impl Server {
    /// Returns the default settings: nothing on disk, no password, on 127.0.0.1.
    #[must_use]
    pub fn new() -> Self {
        let host = Ipv4Addr::LOCALHOST.into();
        Self {
            words: Vec::new(),
            host,
            args: Vec::new(),
            password: None,
            has_socket: false,
            has_tls: false,
            pid_dir: None,
        }
    }

    /// Sets the program and its first arguments, such as `["taskset", "-c", "1", "redis-server"]`. By
    /// default, the words of the environment variable `REDLATCH_SERVER`, otherwise `redis-server` or
    /// `valkey-server`.
    ///
    /// The program must run the server as its own process, not as a child: use `exec` in a script.
    #[must_use]
    pub fn program<W: Into<OsString>>(mut self, words: impl IntoIterator<Item = W>) -> Self {
        self.words = words.into_iter().map(Into::into).collect();
        self
    }

    /// Adds arguments of the server, such as `["--maxmemory", "1mb"]`. They override the default arguments.
    #[must_use]
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets the password of the default user (`requirepass`). The URLs of the fleet contain it.
    #[must_use]
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Makes the server write each change to disk before it answers, so a restart finds all keys again. The
    /// data is removed with the fleet.
    #[must_use]
    pub fn persistent(self) -> Self {
        self.args(["--appendonly", "yes", "--appendfsync", "always"])
    }

    /// Sets the address that the server listens on; 127.0.0.1 by default.
    #[must_use]
    pub const fn host(mut self, host: IpAddr) -> Self {
        self.host = host;
        self
    }

    /// Adds a Unix socket, for [`Master::unix_url`](super::Master::unix_url).
    #[must_use]
    pub const fn unix_socket(mut self) -> Self {
        self.has_socket = true;
        self
    }

    /// Adds a port for TLS, for [`Master::tls_url`](super::Master::tls_url). Name the certificates with
    /// [`Server::args`]: `--tls-cert-file`, `--tls-key-file` and `--tls-ca-cert-file`.
    #[must_use]
    pub const fn tls(mut self) -> Self {
        self.has_tls = true;
        self
    }

    /// Records each running server in this directory, as a file `PORT.PID.pid` that contains the process
    /// number. A CI job can use the files to find servers that a killed test program left behind.
    #[must_use]
    pub fn pid_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.pid_dir = Some(dir.into());
        self
    }

    /// Starts a process with these settings in this directory. Its output goes to the file `log`.
    pub(super) fn spawn(&self, dir: &Path, port: u16, tls_port: u16) -> Result<Child, FleetError> {
        let named = std::env::var_os(PROGRAM_VARIABLE).filter(|words| !words.is_empty());
        let candidates: Vec<Vec<OsString>> = match (&self.words[..], named) {
            ([], Some(named)) => vec![words_of(&named)],
            ([], None) => PROGRAMS.map(|program| vec![program.into()]).into(),
            (words, _) => vec![words.to_vec()],
        };
        for words in &candidates {
            let Some((program, first_args)) = words.split_first() else { continue };
            let log = dir.join("log");
            let file = File::create(&log).map_err(|error| FleetError::io("cannot create", &log, error))?;
            let copy = file.try_clone().map_err(|error| FleetError::io("cannot open", &log, error))?;
            let mut command = Command::new(program);
            command.args(first_args).stdin(Stdio::null()).stdout(copy).stderr(file);
            self.add_args(&mut command, dir, port, tls_port);
            match command.spawn() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => {
                    return Err(FleetError::NotStarted { program: program.display().to_string(), source });
                }
                Ok(child) => return Ok(child),
            }
        }
        let tried = candidates.iter().filter_map(|words| Some(words.first()?.display().to_string()));
        Err(FleetError::NotFound { tried: tried.collect::<Vec<_>>().join(" and ") })
    }

    fn add_args(&self, command: &mut Command, dir: &Path, port: u16, tls_port: u16) {
        command.args(["--port", &port.to_string(), "--bind", &self.host.to_string()]);
        command.args(["--daemonize", "no", "--save", "", "--appendonly", "no", "--dir"]).arg(dir);
        if let Some(password) = &self.password {
            command.args(["--requirepass", password]);
        }
        if self.has_socket {
            command.arg("--unixsocket").arg(socket_path(dir));
        }
        if self.has_tls {
            command.args(["--tls-port", &tls_port.to_string()]);
        }
        command.args(&self.args);
    }
}

/// Path of the Unix socket of the server in this directory.
pub(super) fn socket_path(dir: &Path) -> PathBuf {
    dir.join("sock")
}

/// Words between blanks, or the whole text if it is not valid UTF-8.
fn words_of(text: &OsStr) -> Vec<OsString> {
    match text.to_str() {
        Some(text) => text.split_whitespace().map(Into::into).collect(),
        None => vec![text.to_owned()],
    }
}
