//! The masters of tests about locks. `REDLATCH_STAGE=servers` starts real servers; by default, the masters are
//! the double's, in the test's own process.

use std::net::SocketAddr;
use std::sync::Arc;

use redlatch_testing::{Connection, Double, DoubleMaster, Reply};

/// N independent masters. Dropping it ends them.
pub struct Fleet {
    masters: Vec<Master>,
}

impl Fleet {
    pub fn start(size: usize) -> Self {
        if is_real() {
            return Self::real(crate::Fleet::start(size));
        }
        let double = Arc::new(Double::start(size).expect("free ports"));
        Self { masters: (0..size).map(|index| Master(Kind::Model(double.clone(), index))).collect() }
    }

    /// Real servers; `None` where the stage has none.
    pub fn servers(size: usize) -> Option<Self> {
        Self::servers_with(size, &[])
    }

    /// Like [`Self::servers`], with more arguments.
    pub fn servers_with(size: usize, args: &[&str]) -> Option<Self> {
        if !is_real() {
            println!("skipped: it needs servers, and REDLATCH_STAGE=servers");
            return None;
        }
        Some(Self::real(crate::Fleet::start_with(size, args)))
    }

    fn real(fleet: crate::Fleet) -> Self {
        Self {
            masters: fleet
                .into_masters()
                .into_iter()
                .map(|master| Master(Kind::Server(Box::new(master))))
                .collect(),
        }
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

fn is_real() -> bool {
    match std::env::var("REDLATCH_STAGE").as_deref() {
        Ok("servers") => true,
        Ok("double") | Err(_) => false,
        Ok(other) => panic!("REDLATCH_STAGE is \"double\" or \"servers\", not {other:?}"),
    }
}

/// One master, as [`crate::Master`].
pub struct Master(Kind);

enum Kind {
    Model(Arc<Double>, usize),
    Server(Box<crate::Master>),
}

/// Does the same with a master of either kind.
macro_rules! on {
    ($self:ident, $model:ident => $of_model:expr, $server:ident => $of_server:expr) => {
        match &mut $self.0 {
            Kind::Model(double, index) => {
                let $model: DoubleMaster<'_> = double.master(*index);
                $of_model
            }
            Kind::Server($server) => $of_server,
        }
    };
}

impl Master {
    pub fn addr(&self) -> SocketAddr {
        match &self.0 {
            Kind::Model(double, index) => double.master(*index).addr(),
            Kind::Server(server) => server.addr(),
        }
    }

    pub fn url(&self) -> String {
        match &self.0 {
            Kind::Model(double, index) => double.master(*index).url(),
            Kind::Server(server) => server.url(),
        }
    }

    /// Makes it hang: the kernel accepts connections and bytes, and nobody answers.
    pub fn stop(&mut self) {
        on!(self, model => model.stop().expect("it runs"), server => server.stop());
    }

    pub fn cont(&mut self) {
        on!(self, model => model.resume().expect("it runs"), server => server.cont());
    }

    /// Ends it with its connections and keys.
    pub fn kill(&mut self) {
        on!(self, model => model.kill(), server => server.kill());
    }

    /// Starts it again without keys.
    pub fn restart(&mut self) {
        on!(self, model => model.restart().expect("its port is free"), server => server.restart());
    }

    /// Panics without an answer.
    pub fn command(&mut self, args: &[&[u8]]) -> Reply {
        on!(self, model => model.command(args).expect("an answer"), server => server.command(args))
    }

    /// Like [`Self::command`], with a line of words: `ask("GET orders:42")`.
    pub fn ask(&mut self, line: &str) -> Reply {
        let args: Vec<&[u8]> = line.split_whitespace().map(str::as_bytes).collect();
        self.command(&args)
    }

    /// Sends a command over a new connection, and returns the connection.
    pub fn send(&mut self, args: &[&[u8]]) -> Connection {
        on!(self, model => {
            let mut connection = model.connect().expect("it accepts");
            connection.send(args).expect("it reads");
            connection
        }, server => server.send(args))
    }

    /// Names of all keys but records, as `[a, b]`.
    pub fn keys(&mut self) -> String {
        on!(self, model => {
            let names = model.keys().into_iter().filter(|name| !name.ends_with("redlatch:fleet"));
            format!("[{}]", names.collect::<Vec<_>>().join(", "))
        }, server => server.keys())
    }

    /// Number of all keys but records.
    pub fn key_count(&mut self) -> String {
        match self.keys().as_str() {
            "[]" => "0".to_owned(),
            keys => keys.split(", ").count().to_string(),
        }
    }

    /// What a server counts and lists about its commands and clients; the double counts nothing.
    pub fn counted(&mut self, line: &str) -> Option<String> {
        match &mut self.0 {
            Kind::Model(..) => None,
            Kind::Server(server) => Some(server.ask(line).text()),
        }
    }
}
