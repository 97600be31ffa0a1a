//! TLS: `rediss://` on the TLS port of real `redis-server` processes, and on peers that break TLS.

mod broken_tests;
mod front;
mod refusal_tests;
mod work_tests;

use std::time::Duration;

use redlatch::status::MasterState;
use redlatch::{Client, Config, ConfigBuilder, Pem, Quarantine, Tls};
use redlatch_support::{Certificates, Fleet, PATIENCE};

/// TTL of locks whose expiry no test awaits.
const TTL: Duration = Duration::from_secs(30);

/// Starts masters with a TLS port and the certificate `server`. Returns this test's certificates, too.
fn start(size: usize, auth_clients: &str) -> (Fleet, Certificates) {
    let certificates = Certificates::new();
    let fleet = start_as(size, "server", &["--tls-auth-clients", auth_clients], &certificates);
    (fleet, certificates)
}

/// Like [`start`], with the certificate of this name, and more arguments.
fn start_as(size: usize, name: &str, args: &[&str], certificates: &Certificates) -> Fleet {
    let path = |file: String| certificates.path(&file).display().to_string();
    let (certificate, key) = (path(format!("{name}.pem")), path(format!("{name}.key")));
    let ca = path("ca.pem".to_owned());
    let files = ["--tls-cert-file", &certificate, "--tls-key-file", &key, "--tls-ca-cert-file", &ca];
    Fleet::start_with_tls(size, &[&files[..], args].concat())
}

fn tls_urls(fleet: &mut Fleet) -> Vec<String> {
    fleet.masters().map(|master| master.tls_url()).collect()
}

/// Settings that trust the test's CA.
fn trusting(certificates: &Certificates) -> Tls {
    Tls::new().ca(Pem::File(certificates.path("ca.pem")))
}

/// Settings whose masters vote from the start, with limits that no slow answer exceeds.
fn settings<U: AsRef<str>>(urls: &[U]) -> ConfigBuilder {
    let config = Config::builder().masters(urls).quarantine(Quarantine::Trust).max_ttl(TTL);
    let config = config.answer_timeout(Duration::from_secs(20)).connect_timeout(Duration::from_secs(20));
    config.retry_delay(Duration::from_millis(1)..=Duration::from_millis(20))
}

fn open(config: ConfigBuilder) -> Client {
    Client::open(config.build().expect("valid settings")).expect("an event loop")
}

/// Waits until the only master is down for this reason.
#[track_caller]
fn await_down(client: &Client, said: &[&str]) {
    let mut last = String::new();
    let mut is_down = || {
        if let MasterState::Down(why) = &client.masters()[0].state {
            last = why.to_string();
        }
        said.iter().all(|said| last.contains(said))
    };
    let given_up = std::time::Instant::now() + PATIENCE;
    while !is_down() {
        if std::time::Instant::now() >= given_up {
            panic!("the master is not down because of {said:?}, but: {last}");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// An acquisition must fail, and the error must contain these texts.
#[track_caller]
fn expect_refusal(client: &Client, said: &[&str]) {
    await_down(client, said);
    let error = client.lock("a").ttl(TTL).try_acquire().map(drop).expect_err("no master").to_string();
    for text in said.iter().chain(&["no quorum of masters", "rediss://127.0.0.1:"]) {
        assert!(error.contains(text), "{text:?} is not in: {error}");
    }
}
