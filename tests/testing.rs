//! `redlatch_testing` as users meet it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;

use redlatch::{Client, HeldLocks, Quarantine};
use redlatch_support::PATIENCE;
use redlatch_testing::{Connection, Fleet, FleetError, Master, Reply, Server};

fn open(fleet: &Fleet) -> Client {
    fleet.config().connect().expect("an event loop")
}

/// Whether a process with this id exists.
fn exists(pid: u32) -> bool {
    let probe = Command::new("sh").args(["-c", &format!("kill -0 {pid} 2>&-")]).status();
    probe.expect("sh runs").success()
}

fn pids(fleet: &mut Fleet) -> Vec<u32> {
    fleet.masters().filter_map(|master| master.pid()).collect()
}

/// The directory of a fleet with Unix sockets.
fn dir_of(master: &Master) -> PathBuf {
    let url = master.unix_url();
    let socket = Path::new(url.strip_prefix("unix://").expect("a URL"));
    socket.ancestors().nth(2).expect("two directories above").to_owned()
}

#[test]
fn locks_go_on_through_stops_kills_and_restarts() {
    let mut fleet = Fleet::start(5).expect("five servers");
    let urls = fleet.urls();
    let client = open(&fleet);
    let guard = client.lock("orders:42").acquire().expect("five masters count at once");
    fleet.master(0).stop().expect("it runs");
    // Not a lock's key, which the client may restore.
    fleet.master(1).command(&["SET", "other", "value"]).expect("an answer");
    fleet.master(1).kill();
    drop(client.lock("orders:43").acquire().expect("three of five are a quorum"));
    fleet.master(0).resume().expect("it runs");
    fleet.master(1).restart().expect("its port is free");
    assert_eq!(fleet.urls(), urls);
    assert_eq!(fleet.master(1).command(&["EXISTS", "other"]).expect("an answer"), Reply::Integer(0));
    assert!(guard.is_valid());
    drop(guard);
    assert_eq!(client.drain(PATIENCE, HeldLocks::Leave), 0);
}

#[test]
fn a_fleet_leaves_neither_process_nor_file() {
    let mut fleet = Fleet::start_with(vec![Server::new().unix_socket(); 3]).expect("three servers");
    let (pids, dir) = (pids(&mut fleet), dir_of(fleet.master(0)));
    fleet.master(0).stop().expect("it runs"); // a stopped one ends, too
    assert!(dir.is_dir() && pids.iter().all(|pid| exists(*pid)));
    drop(fleet);
    assert!(!dir.exists() && !pids.iter().any(|pid| exists(*pid)));
}

#[test]
fn a_panic_ends_the_servers() {
    let mut ended = Vec::new();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let mut fleet = Fleet::start(1).expect("a server");
        ended = pids(&mut fleet);
        panic!("a test that fails");
    }));
    assert!(panicked.is_err() && ended.len() == 1 && !exists(ended[0]));
}

#[test]
fn a_master_may_outlive_its_fleet() {
    let fleet = Fleet::start_with(vec![Server::new().unix_socket(); 2]).expect("two servers");
    let mut masters = fleet.into_masters();
    let mut last = masters.pop().expect("two");
    let dir = dir_of(&last);
    drop(masters);
    last.restart().expect("its directory is there");
    drop(last);
    assert!(!dir.exists());
}

#[test]
fn a_server_that_ends_shows_its_output() {
    let error =
        Fleet::start_with([Server::new().args(["--no-such-setting", "1"])]).expect_err("a bad argument");
    assert!(matches!(error, FleetError::Ended { .. }), "{error:?}");
    assert!(error.to_string().contains("no-such-setting"), "{error}");
}

#[test]
fn a_missing_program_is_named() {
    let error = Fleet::start_with([Server::new().program(["no-such-server"])]).expect_err("no program");
    assert!(matches!(error, FleetError::NotFound { .. }), "{error:?}");
    assert!(error.to_string().contains("tried no-such-server; install one"), "{error}");
}

#[test]
fn clients_log_in_by_the_password_of_the_fleet() {
    let server = Server::new().password("s3:cr@t/%");
    let mut fleet = Fleet::start_with(vec![server; 3]).expect("three servers");
    drop(open(&fleet).lock("a").acquire().expect("a login"));
    assert!(!format!("{fleet:?}").contains("s3:cr"));
    let master = fleet.master(0);
    assert_eq!(master.command(&["PING"]).expect("an answer").text(), "PONG");
    let mut stranger = Connection::open(master.addr(), PATIENCE).expect("it accepts");
    assert!(stranger.command(&["PING"]).expect("an answer").text().starts_with("NOAUTH"));
}

#[test]
fn a_persistent_server_finds_its_keys_again() {
    let mut fleet = Fleet::start_with([Server::new().persistent(), Server::new()]).expect("two servers");
    for master in fleet.masters() {
        master.command(&["SET", "key", "value"]).expect("an answer");
        master.kill();
        master.restart().expect("its port is free");
    }
    let values: Vec<Reply> =
        fleet.masters().map(|master| master.command(&["GET", "key"]).expect("an answer")).collect();
    assert_eq!(values, [Reply::Text(b"value".to_vec()), Reply::Null]);
}

/// A server whose next start fails, as after a lost race for its port, if there is a directory `taken`.
fn unlucky(taken: &Path) -> Server {
    let script = r#"rmdir "$0" 2>&- && echo "Address already in use" && exit 1; exec ${REDLATCH_SERVER:-redis-server} "$@""#;
    let words = ["sh".as_ref(), "-c".as_ref(), script.as_ref(), taken.as_os_str()];
    Server::new().program(words)
}

#[test]
fn server_takes_another_port_if_its_port_is_taken() {
    let taken = std::env::temp_dir().join(format!("redlatch-taken-port-{}", std::process::id()));
    std::fs::create_dir(&taken).expect("a directory");
    let mut fleet = Fleet::start_with([unlucky(&taken)]).expect("another port");
    assert!(!taken.exists(), "the first start failed");
    assert_eq!(fleet.master(0).command(&["PING"]).expect("an answer").text(), "PONG");
}

#[test]
fn restart_waits_for_its_port() {
    let taken = std::env::temp_dir().join(format!("redlatch-kept-port-{}", std::process::id()));
    let mut fleet = Fleet::start_with([unlucky(&taken)]).expect("a server");
    let port = fleet.master(0).port();
    std::fs::create_dir(&taken).expect("a directory");
    fleet.master(0).restart().expect("the port is free soon");
    assert!(!taken.exists(), "the first start failed");
    assert_eq!(fleet.master(0).port(), port);
}

#[test]
fn signals_reach_only_a_running_server() {
    let mut fleet = Fleet::start(2).expect("two servers");
    let (pid, master) = (fleet.master(0).pid(), fleet.master(0));
    master.shutdown().expect("it ends");
    assert!(pid.is_some_and(|pid| !exists(pid)) && master.pid().is_none());
    master.kill(); // no second time
    for error in [master.stop(), master.resume(), master.shutdown()] {
        let error = error.expect_err("it does not run");
        assert!(error.to_string().ends_with("does not run; restart it first"), "{error}");
    }
    // A server that ended by itself does not run either.
    let master = fleet.master(1);
    let _ = master.command(&["SHUTDOWN", "NOSAVE"]).expect_err("it closes the connection");
    let given_up = std::time::Instant::now() + PATIENCE;
    while master.resume().is_ok() {
        assert!(std::time::Instant::now() < given_up, "it ends");
    }
    master.restart().expect("its port is free");
}

#[test]
fn the_settings_trust_fresh_servers() {
    let fleet = Fleet::start(1).expect("a server");
    assert_eq!(fleet.config().build().expect("valid settings").quarantine(), Quarantine::Trust);
}
