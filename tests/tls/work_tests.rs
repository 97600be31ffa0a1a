//! Locks over TLS work like locks in plaintext.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use redlatch::status::MasterState;
use redlatch::{Client, Credentials, Pem, Redlock, Tls};
use redlatch_support::settle;
use redlatch_support::{Certificates, Fleet, PATIENCE, eventually};
use rustls::HandshakeKind;

use crate::front::{Conduct, Front};
use crate::{TTL, open, settings, start, start_as, tls_urls, trusting};

/// One client waits for the other's lock, and gets it at the release.
#[track_caller]
fn check_hand_over(holder: &Client, waiter: &Client) {
    let guard = holder.lock("orders:42").ttl(TTL).wait(PATIENCE).acquire().expect("free");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            waiter.lock("orders:42").ttl(TTL).wait(PATIENCE).acquire().map(redlatch::Guard::release)
        });
        let is_waiting =
            || holder.lock("orders:42").ttl(TTL).try_acquire().is_err() && !waiting.is_finished();
        assert!(is_waiting());
        guard.release().expect("confirmed");
        assert!(waiting.join().expect("no panic").expect("free in a while").is_ok());
    });
}

#[test]
fn acquire_wait_and_release_work_over_tls() {
    let (mut fleet, certificates) = start(3, "no");
    let urls = tls_urls(&mut fleet);
    let client = || open(settings(&urls).tls(trusting(&certificates)));
    let (holder, waiter) = (client(), client());
    let guard = holder.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("free");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| waiter.lock("a").ttl(TTL).wait(PATIENCE).acquire());
        for master in fleet.masters() {
            eventually(PATIENCE, "the waiter stands in each queue", || {
                master.ask("ZCARD redlatch:wait:a").text() == "1"
            });
        }
        guard.release().expect("confirmed");
        let guard = waiting.join().expect("no panic").expect("free");
        assert!(guard.release().expect("confirmed").deleted >= 2);
    });
    for master in fleet.masters() {
        // Only the harness connects in plaintext.
        let port = master.port().to_string();
        let list = master.ask("CLIENT LIST").text();
        assert_eq!(list.matches(&format!("laddr=127.0.0.1:{port} ")).count(), 1, "{list}");
        assert!(list.matches(" name=redlatch/").count() >= 2, "{list}");
    }
}

#[test]
fn a_client_certificate_lets_the_client_in() {
    let (mut fleet, certificates) = start(1, "yes");
    let by_file = |name: &str| Pem::File(certificates.path(name));
    let by_bytes = |name: &str| Pem::Bytes(certificates.read(name));
    for pem in [&by_file as &dyn Fn(&str) -> Pem, &by_bytes] {
        let tls = Tls::new().ca(pem("ca.pem")).client_certificate(pem("client.pem"), pem("client.key"));
        let client = open(settings(&tls_urls(&mut fleet)).tls(tls));
        check_hand_over(&client, &client.clone());
    }
}

#[test]
fn debug_output_of_a_client_shows_no_key() {
    let (mut fleet, certificates) = start(1, "yes");
    let pem = |file| Pem::Bytes(certificates.read(file));
    let tls = trusting(&certificates).client_certificate(pem("client.pem"), pem("client.key"));
    let config = settings(&tls_urls(&mut fleet)).tls(tls).build().expect("valid settings");
    let redlock = Redlock::open(config.clone()).expect("an event loop");
    let client = Client::open(config).expect("an event loop");
    let guard = client.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("free");
    let shown = format!("{redlock:?} {client:?} {:?} {guard:?}", client.config());
    let key = String::from_utf8(certificates.read("client.key")).expect("PEM");
    for secret in [&key, &format!("{:?}", key.as_bytes()), key.lines().nth(1).expect("a line of it")] {
        assert!(!shown.contains(secret), "{shown}");
    }
}

// I141
#[test]
fn credentials_change_over_tls() {
    let (mut fleet, certificates) = start(1, "no");
    assert_eq!(fleet.master(0).ask("ACL SETUSER app on >old ~* &* +@all").text(), "OK");
    let password = Arc::new(Mutex::new("old"));
    let its = password.clone();
    let provider = move |_: &str| {
        let password = *its.lock().expect("no panic");
        Ok(Credentials::new(password).user("app").valid_for(Duration::from_secs(1)))
    };
    let client = open(settings(&tls_urls(&mut fleet)).tls(trusting(&certificates)).credentials(provider));
    let guard = client.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("free");
    assert_eq!(fleet.master(0).ask("ACL SETUSER app resetpass >new").text(), "OK");
    *password.lock().expect("no panic") = "new";
    // One login at the connect, and one on the open connection.
    eventually(PATIENCE, "the new password is accepted", || {
        let stats = fleet.master(0).ask("INFO commandstats").text();
        stats.contains("cmdstat_auth:calls=2,")
    });
    guard.release().expect("confirmed");
    assert_eq!((client.stats().reconnects(), client.masters()[0].warnings.clone()), (0, vec![]));
}

#[test]
fn the_server_name_may_be_given() {
    let certificates = Certificates::new();
    let mut fleet = start_as(1, "named", &["--tls-auth-clients", "no"], &certificates);
    let tls = trusting(&certificates).server_name("locks.example");
    let client = open(settings(&tls_urls(&mut fleet)).tls(tls));
    client.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("free").release().expect("confirmed");
    let mut local = start_as(1, "server", &["--tls-auth-clients", "no"], &certificates);
    let url = local.master(0).tls_url().replace("127.0.0.1", "localhost");
    let client = open(settings(&[url]).tls(trusting(&certificates)));
    client.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("free").release().expect("confirmed");
}

#[test]
fn a_reconnect_resumes_the_session() {
    let (certificates, fleet) = (Certificates::new(), Fleet::start(1));
    let front = Front::start(fleet.addrs()[0], &certificates, &[Conduct::Pass("server")]);
    let client = open(settings(&[front.url()]).tls(trusting(&certificates)));
    client.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("free").release().expect("confirmed");
    assert_eq!(front.handshakes(), [HandshakeKind::Full]);
    front.drop_connections();
    eventually(PATIENCE, "the client comes back", || front.handshakes().len() == 2);
    client.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("free").release().expect("confirmed");
    assert_eq!(front.handshakes(), [HandshakeKind::Full, HandshakeKind::Resumed]);
}

// I138
#[test]
fn new_keys_in_mid_connection_are_followed() {
    let (certificates, fleet) = (Certificates::new(), Fleet::start(1));
    let front = Front::start(fleet.addrs()[0], &certificates, &[Conduct::NewKeys]);
    let client = open(settings(&[front.url()]).tls(trusting(&certificates)));
    for _ in 0..20 {
        client.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("free").release().expect("confirmed");
    }
    assert_eq!(front.accepted_count(), 1);
}

// I138
#[test]
fn many_small_records_are_read_without_another_event() {
    let (certificates, fleet) = (Certificates::new(), Fleet::start(1));
    let front = Front::start(fleet.addrs()[0], &certificates, &[Conduct::SmallRecords]);
    let client = open(settings(&[front.url()]).tls(trusting(&certificates)));
    // The reply to INFO alone takes more records than one read.
    assert_eq!(client.masters()[0].state, MasterState::Ready);
    client.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("free").release().expect("confirmed");
    assert_eq!(front.accepted_count(), 1);
}

/// The writes have two sizes: more than the TLS session takes at once, and more than the socket takes at
/// once.
// I138
#[test]
fn a_large_write_goes_out_without_a_reply() {
    let (certificates, mut fleet) = (Certificates::new(), Fleet::start(1));
    for count in [200, 5000] {
        // Each request is longer than its name.
        let withhold = Conduct::Withhold { request_size: count * 1000 };
        let front = Front::start(fleet.addrs()[0], &certificates, &[withhold]);
        let client = open(settings(&[front.url()]).tls(trusting(&certificates)));
        let names: Vec<String> = (0..count).map(|index| format!("{index}:{}", "x".repeat(1000))).collect();
        let requests = names.iter().map(|name| client.lock(name).ttl(TTL));
        let guards: Vec<_> = client.acquire_all(requests).into_iter().map(redlatch::Acquire::block).collect();
        let failed = guards.iter().find(|guard| guard.is_err());
        assert!(failed.is_none(), "{count} at once: {failed:?}");
        assert_eq!(fleet.master(0).key_count(), count.to_string());
        drop(guards);
        assert_eq!(settle(&client, PATIENCE), 0);
        assert_eq!(fleet.master(0).key_count(), "0");
    }
}

#[test]
fn masters_with_and_without_tls_make_one_quorum() {
    let (mut fleet, certificates) = start(3, "no");
    let urls = [fleet.master(0).tls_url(), fleet.master(1).url(), fleet.master(2).tls_url()];
    let client = open(settings(&urls).tls(trusting(&certificates)));
    eventually(PATIENCE, "all are ready", || {
        client.masters().iter().all(|master| master.state == MasterState::Ready)
    });
    let guard = client.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("free");
    assert!(guard.release().expect("confirmed").deleted >= 2);
}
