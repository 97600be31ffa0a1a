//! Pairs over TLS: engine, event loop and rustls together, with one real server. With several servers, the
//! number of loop turns would vary from run to run.

use std::time::Duration;

use redlatch::engine::{OpId, Outcome, Request, Resource};
use redlatch::{Config, Options, Pem, Quarantine, Redlock, Tls};
use redlatch_support::Certificates;
use redlatch_testing::{Fleet, Server};

/// Longer than any answer takes, even under callgrind.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct TlsLoop {
    redlock: Redlock,
    names: Vec<String>,
    locks: Vec<OpId>,
    _fleet: Fleet,
    _certificates: Certificates,
}

impl TlsLoop {
    /// Connects for `depth` locks in flight at once.
    pub fn new(depth: usize) -> Self {
        let certificates = Certificates::new();
        let path = |file: &str| certificates.path(file).display().to_string();
        let files = [("cert", "server.pem"), ("key", "server.key"), ("ca-cert", "ca.pem")];
        let args = files.iter().flat_map(|(name, file)| [format!("--tls-{name}-file"), path(file)]);
        let args = args.chain(["--tls-auth-clients".to_owned(), "no".to_owned()]);
        let mut fleet = Fleet::start_with([Server::new().tls().args(args)]).expect("redis-server with TLS");
        let config = Config::builder().masters([fleet.master(0).tls_url()]).quarantine(Quarantine::Trust);
        let tls = Tls::new().ca(Pem::File(certificates.path("ca.pem")));
        let config = config.tls(tls).max_ttl(PATIENCE).answer_timeout(PATIENCE / 2).build();
        let redlock = Redlock::open(config.expect("valid")).expect("an event loop");
        let names = (0..depth).map(|index| format!("bench:{index}")).collect();
        let locks = Vec::with_capacity(depth);
        Self { redlock, names, locks, _fleet: fleet, _certificates: certificates }
    }

    /// Acquires and releases each lock once.
    pub fn pairs(&mut self) {
        let options = Options::new().ttl(PATIENCE).wait(Duration::ZERO);
        for name in &self.names {
            let resource = Resource::new(name).expect("valid");
            self.redlock.submit(Request::Acquire { resource, options, label: None }).expect("room");
        }
        while self.locks.len() < self.names.len() {
            match self.redlock.poll_outcome() {
                Some((lock, Outcome::Acquire(Ok(_)))) => self.locks.push(lock),
                Some(other) => panic!("{other:?}"),
                None => self.redlock.turn(PATIENCE).expect("the event loop works"),
            }
        }
        let mut released_count = 0;
        for lock in self.locks.drain(..) {
            self.redlock.submit(Request::Release { lock, awaited: true }).expect("always taken");
        }
        while released_count < self.names.len() {
            match self.redlock.poll_outcome() {
                Some((_, Outcome::Release(Ok(_)))) => released_count += 1,
                Some(other) => panic!("{other:?}"),
                None => self.redlock.turn(PATIENCE).expect("the event loop works"),
            }
        }
    }
}
