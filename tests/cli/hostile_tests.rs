//! Administrative connections against hostile peers: each command ends in time, reads no more than its
//! bounds, leaves nothing behind, and names the peer and its fault.

use std::process::Command;
use std::time::Duration;

use redlatch::{Config, Pem, Tls};
use redlatch_cli::doctor::{Problem, examine};
use redlatch_support::{Certificates, Fleet, PATIENCE, eventually};

use crate::harness::{Finished, PATIENT, expect, finish, redlatch};
use crate::hostile::{ANY, Conduct, Hostile};
use Conduct::{Close, Drip, Endless, Say};

/// More than one connection's sockets and one exchange hold, and far less than an endless stream brings in a
/// second.
const TAKEN_SIZE_MAX: usize = 16 << 20;
/// The same bound for a page of names.
const PAGE_TAKEN_SIZE_MAX: usize = 80 << 20;

/// Bytes that no master sends, and the report of each. None of these reports needs a time limit.
const FAULTS: [(Conduct, &str); 9] = [
    (Endless(b"", b"+OK\r\n"), "is it a Redis or Valkey server?"),
    (Endless(b"+", b"never a line"), "a line of a reply is longer than 16384 bytes"),
    (Endless(b"$1000000000\r\n", b"x"), "larger than"),
    (Say(b"$1000000000\r\n"), "larger than"),
    (Say(b"*1000000000\r\n"), "replies have more than"),
    (Endless(b"*1000\r\n", b"*1\r\n"), "nested more than 8 deep"),
    (Endless(b"\r\n", b"\0"), "is it a Redis or Valkey server?"),
    (Close(b""), "the server closed the connection"),
    (Close(b"$10\r\nhalf"), "the server closed the connection"),
];

/// Replies that never end.
const STALLS: [Conduct; 3] = [Say(b""), Say(b"$100\r\nhalf"), Drip(b"+", b"one by one ")];

/// Why the only master gave no facts.
fn reason(url: &str, tls: Option<Tls>) -> String {
    let limit = Duration::from_secs(1);
    let config = Config::builder().master(url).connect_timeout(limit);
    let config = tls.into_iter().fold(config, redlatch::ConfigBuilder::tls).build().expect("valid settings");
    let findings = examine(&config, 2 * limit).expect("threads");
    let mut whys = findings.iter().filter_map(|finding| match &finding.problem {
        Problem::Unreachable { why } | Problem::LoginRefused { why } => Some(why.clone()),
        _ => None,
    });
    whys.next_back().unwrap_or_else(|| panic!("{findings:?}"))
}

/// No thread of an examination goes on reading, and each connection has read little.
#[track_caller]
fn expect_left(peer: &Hostile) {
    expect_taken(peer, TAKEN_SIZE_MAX);
}

#[track_caller]
fn expect_taken(peer: &Hostile, size_max: usize) {
    eventually(PATIENCE, "its connections are closed", || peer.open_count() == 0);
    let (size, count) = (peer.taken_size(), peer.hostile_count());
    assert!(count > 0, "it was never hostile");
    assert!(size < count * size_max, "{size} bytes were taken over {count} connections");
}

// I150
#[test]
fn an_examination_survives_any_peer() {
    let fleet = Fleet::start(1);
    let certificates = Certificates::new();
    let target = fleet.addrs()[0];
    let tls = || Tls::new().ca(Pem::File(certificates.path("ca.pem")));
    // At the first command, and at a later one.
    for command in [ANY, b"replication"] {
        for (conduct, said) in FAULTS {
            let plain = Hostile::start(target, command, conduct);
            let why = reason(&plain.url(""), None);
            assert!(why.contains(said), "{conduct:?}: {why}");
            expect_left(&plain);
            let secure = Hostile::start_with_tls(target, command, conduct, &certificates);
            let why = reason(&secure.url(""), Some(tls()));
            let cut = "the connection was cut without an end of TLS";
            assert!(why.contains(said) || why.contains(cut), "over TLS {conduct:?}: {why}");
            expect_left(&secure);
        }
    }
}

// I150
#[test]
fn examination_of_stalling_peer_ends_in_time() {
    let fleet = Fleet::start(1);
    let target = fleet.addrs()[0];
    for (command, said) in [
        (ANY, "no answer to the handshake within 1s; check the master"),
        (b"replication", "no answer within 1s; check the master"),
    ] {
        let peers = STALLS.map(|conduct| Hostile::start(target, command, conduct));
        std::thread::scope(|scope| {
            for (peer, conduct) in peers.iter().zip(STALLS) {
                scope.spawn(move || {
                    let why = reason(&peer.url(""), None);
                    assert!(why.contains(said), "{conduct:?}: {why}");
                    expect_left(peer);
                });
            }
        });
    }
    // TLS handshakes that never end.
    let certificates = Certificates::new();
    for conduct in STALLS {
        let peer = Hostile::start(target, b"", conduct);
        let why = reason(&peer.tls_url(), Some(Tls::new().ca(Pem::File(certificates.path("ca.pem")))));
        let said = [
            "no connection within 1s; check name service, address, firewall, and that the port speaks TLS",
            "does not answer in TLS",
        ];
        assert!(said.iter().any(|said| why.contains(said)), "{conduct:?}: {why}");
        expect_left(&peer);
    }
}

// I150
#[test]
fn an_examination_outlasts_no_provider() {
    let fleet = Fleet::start(1);
    let (provider, released) = std::sync::mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    let config = Config::builder().masters(fleet.urls()).connect_timeout(Duration::from_millis(200));
    let config = config.credentials(move |_| {
        // Hangs until the test ends.
        let _ = released.lock().expect("one call").recv();
        Err("too late".into())
    });
    let findings =
        examine(&config.build().expect("valid settings"), Duration::from_secs(9)).expect("threads");
    let says_why = |problem: &Problem| match problem {
        Problem::LoginRefused { why } => why.contains("gave no answer within 200ms"),
        _ => false,
    };
    assert!(findings.iter().any(|finding| says_why(&finding.problem)), "{findings:?}");
    drop(provider);
}

/// Three masters with a lock, and a user with a password.
fn start() -> Fleet {
    let mut fleet = Fleet::start(3);
    for master in fleet.masters() {
        master.ask("ACL SETUSER me on >s3cret ~* &* +@all");
        master.ask("SET orders:42 somebody PX 600000");
    }
    fleet
}

/// A peer that is hostile instead of the third master's answer to `command`, and the URLs with the peer.
fn replace(fleet: &Fleet, command: &'static [u8], conduct: Conduct) -> (Hostile, Vec<String>) {
    let peer = Hostile::start(fleet.addrs()[2], command, conduct);
    let urls = vec![fleet.urls()[0].clone(), fleet.urls()[1].clone(), peer.url("me:s3cret@")];
    (peer, urls)
}

fn patient(urls: &[String], subcommand: &str) -> Command {
    let mut command = redlatch(urls);
    command.arg(subcommand).args(PATIENT);
    command
}

/// All output of the program.
fn shown(finished: &Finished) -> String {
    let text = format!("{}{}", finished.stdout, finished.stderr);
    assert!(!text.contains("s3cret"), "a password is shown: {text}");
    text
}

// I150
#[test]
fn a_list_of_locks_survives_any_peer() {
    let fleet = start();
    for (conduct, said) in FAULTS {
        let (peer, urls) = replace(&fleet, b"SCAN", conduct);
        let list = finish(&mut patient(&urls, "ls"));
        expect(&list, 0, &[&format!("{}: ", peer.url("")), said]);
        // Only the search for names met the fault.
        assert!(shown(&list).contains("orders:42"), "{conduct:?}");
        expect_taken(&peer, PAGE_TAKEN_SIZE_MAX);
    }
    // After the search for names.
    for (command, conduct) in [(b"ZCARD".as_slice(), FAULTS[0].0), (b"GETRANGE", Say(b""))] {
        let (peer, urls) = replace(&fleet, command, conduct);
        let list = finish(&mut patient(&urls, "ls"));
        expect(&list, 0, &[&format!("{}: ", peer.url(""))]);
        assert!(shown(&list).contains("orders:42"), "{conduct:?}");
        expect_left(&peer);
    }
    // A list without a quorum of its locks is no success.
    let (peer, urls) = replace(&fleet, b"GETRANGE", Close(b""));
    let list = finish(&mut patient(&urls[2..], "ls"));
    expect(&list, 69, &[&format!("{}: ", peer.url(""))]);
    assert!(shown(&list).contains("unknown 0/1"), "{}", list.stdout);
    expect_left(&peer);
}

#[test]
fn the_status_of_a_fleet_survives_any_peer() {
    let fleet = start();
    for command in [b"INFO".as_slice(), b"LIST"] {
        for (conduct, said) in FAULTS {
            let (peer, urls) = replace(&fleet, command, conduct);
            let mut status = redlatch(&urls);
            let status = finish(status.args(["fleet", "status", "--connect-timeout", "20s"]));
            expect(&status, 69, &[]);
            let text = shown(&status).split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(text.contains(&format!("{}: no answer: ", peer.url(""))), "{conduct:?}: {text}");
            assert!(text.contains(said), "{conduct:?}: {text}");
            expect_left(&peer);
        }
    }
}

// I150
#[test]
fn an_inspection_survives_any_peer() {
    let fleet = start();
    for command in [b"INFO".as_slice(), b"GETRANGE"] {
        for (conduct, _) in FAULTS {
            let (peer, urls) = replace(&fleet, command, conduct);
            let inspection = finish(patient(&urls, "inspect").arg("orders:42"));
            expect(&inspection, 75, &[]);
            assert!(shown(&inspection).starts_with("held on 2 of 3 masters"), "{conduct:?}");
            expect_left(&peer);
        }
    }
}

// I149
#[test]
fn a_stalling_peer_is_named_with_its_limit() {
    let fleet = start();
    for conduct in STALLS {
        let (peer, urls) = replace(&fleet, b"GETRANGE", conduct);
        let inspection =
            finish(redlatch(&urls).args(["inspect", "--trust", "--connect-timeout", "20s", "orders:42"]));
        assert_eq!(inspection.code, Some(75), "{}", shown(&inspection));
        let text = shown(&inspection);
        assert!(text.contains(&format!("{}: no answer within 1s", peer.url(""))), "{conduct:?}: {text}");
        expect_left(&peer);
    }
    let (peer, urls) = replace(&fleet, b"SCAN", Say(b""));
    let list =
        finish(redlatch(&urls).args(["ls", "--trust", "--connect-timeout", "5s", "--time-limit", "60s"]));
    expect(&list, 0, &[&format!("{}: no answer within 5s", peer.url(""))]);
    expect_left(&peer);
    let (peer, urls) = replace(&fleet, b"SCAN", Say(b""));
    let list =
        finish(redlatch(&urls).args(["ls", "--trust", "--connect-timeout", "60s", "--time-limit", "5s"]));
    expect(&list, 0, &[&format!("{}: not finished within 5s; give more time", peer.url(""))]);
    expect_left(&peer);
}

// I149
#[test]
fn a_slow_master_is_waited_for() {
    let fleet = start();
    let (peer, urls) = replace(&fleet, ANY, Conduct::Late(Duration::from_millis(100)));
    // On a busy machine, even a healthy master may sometimes take longer.
    eventually(PATIENCE, "all masters answer", || {
        let inspection = finish(redlatch(&urls).args(["inspect", "--trust", "orders:42"]));
        let list = finish(redlatch(&urls).args(["ls", "--trust"]));
        inspection.stdout.starts_with("held on 3 of 3 masters") && list.stdout.contains("\nheld    3/3 ")
    });
    eventually(PATIENCE, "its connections are closed", || peer.open_count() == 0);
}

// I149
#[test]
fn a_stopped_master_is_named_with_its_limit() {
    let mut fleet = start();
    fleet.master(2).stop();
    let said = format!("{}: not connected: no answer to the handshake within 1s", fleet.urls()[2]);
    // On a busy machine, an answer limit may end before a connect limit of the same length.
    let answers = ["--answer-timeout", "5s"];
    let inspection = finish(redlatch(&fleet.urls()).args(["inspect", "--trust", "orders:42"]).args(answers));
    assert!(inspection.stdout.contains(&said), "{}", inspection.stdout);
    let doctor = finish(redlatch(&fleet.urls()).args(["doctor", "--trust", "--json"]));
    let json: serde_json::Value = serde_json::from_str(&doctor.stdout).expect("JSON");
    let findings = json["findings"].as_array().expect("a list");
    let found = findings.iter().find(|it| it["code"] == "unreachable").expect("a finding");
    assert_eq!(found["masters"], serde_json::json!([fleet.urls()[2]]));
    assert!(
        found["what"].as_str().is_some_and(|what| what.contains("no answer to the handshake within 1s")),
        "{found}"
    );
}

// I150
#[test]
fn a_fault_of_a_drill_survives_any_peer() {
    let fleet = start();
    for (conduct, said) in FAULTS {
        let (peer, urls) = replace(&fleet, b"PAUSE", conduct);
        let mut drill = patient(&urls[2..], "drill");
        drill.args(["--time", "1s", "--ttl", "1s", "--pause", "--fault-time", "50ms", "--contenders", "2"]);
        let drill = finish(&mut drill);
        expect(&drill, 2, &["CLIENT PAUSE on redis://", said]);
        shown(&drill);
        expect_left(&peer);
    }
}

// I150
#[test]
fn bench_survives_any_peer() {
    let fleet = start();
    let faults = FAULTS.into_iter().map(|(conduct, _)| conduct).chain(STALLS);
    for conduct in faults.chain([Drip(b"", b"-ERR one by one ")]) {
        let (peer, urls) = replace(&fleet, b"PING", conduct);
        // Alone: a quorum of other masters would not wait for the peer, and only ready masters are asked.
        let mut bench = patient(&urls[2..], "bench");
        let bench = finish(bench.args(["--pairs", "10"]));
        assert_eq!(bench.code, Some(0), "{conduct:?}: {}", shown(&bench));
        shown(&bench);
        expect_left(&peer);
        if let Drip(..) = conduct {
            expect(&bench, 0, &["the round trip was not measured: no answer to the handshake within 1"]);
            // The program waits for a slow line no longer than a second.
            assert!(peer.taken_size() < 400, "{}", peer.taken_size());
        }
    }
}

// I150
#[test]
fn no_password_that_a_peer_repeats_is_shown() {
    let fleet = start();
    let repeats = Say(b"-ERR you sent s3cret, with s3cret\r\n");
    for (place, subcommand) in [
        (b"AUTH".as_slice(), "doctor"),
        (b"SELECT", "doctor"),
        (b"SCAN", "ls"),
        (b"AUTH", "ls"),
        (b"AUTH", "inspect"),
        (b"AUTH", "bench"),
        (b"PAUSE", "drill"),
    ] {
        let (peer, urls) = replace(&fleet, place, repeats);
        let urls = if place == b"SELECT" { vec![format!("{}/1", urls[2])] } else { urls[2..].to_vec() };
        let mut command = redlatch(&urls);
        command.args([subcommand, "--trust", "--connect-timeout", "1s"]);
        match subcommand {
            "inspect" => _ = command.arg("orders:42"),
            "bench" => _ = command.args(["--pairs", "1"]),
            "drill" => _ = command.args(["--time", "1s", "--ttl", "1s", "--pause", "--fault-time", "50ms"]),
            _ => {}
        }
        shown(&finish(&mut command));
        assert!(peer.hostile_count() > 0, "{subcommand} never came to its place");
    }
}
