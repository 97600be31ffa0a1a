//! Tests of the harness, on which other tests rely.

use redlatch_support::{Fleet, PATIENCE, Proxy, Raw, command, eventually};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// `scripts/test` does this after a test program was killed. The test runs itself with the variable set, in a
/// child that leaks its fleet, then sweeps.
#[test]
fn pid_files_find_a_killed_programs_masters() {
    const LEAK: &str = "REDLATCH_TEST_LEAK";
    if std::env::var_os(LEAK).is_some() {
        let mut fleet = Fleet::start(2);
        fleet.master(1).stop();
        std::mem::forget(fleet);
        return;
    }
    let pids = std::env::temp_dir().join(format!("redlatch-pids-{}", std::process::id()));
    std::fs::create_dir(&pids).expect("a writable temporary directory");
    let leak = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "harness_tests::pid_files_find_a_killed_programs_masters"])
        .env(LEAK, "1")
        .env("TMPDIR", &pids)
        .env("REDLATCH_TEST_PIDS", &pids)
        .stdout(Stdio::null())
        .status()
        .expect("this program starts");
    assert!(leak.success());
    let files = || {
        let entries = std::fs::read_dir(&pids).expect("the directory is there");
        entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some())
            .collect::<Vec<_>>()
    };
    let leaked: Vec<String> = files()
        .iter()
        .map(|file| std::fs::read_to_string(file).expect("a pid file").trim().to_owned())
        .collect();
    assert_eq!(leaked.len(), 2);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/masters");
    let swept = Command::new(script).args(["stop", "-d"]).arg(&pids).stderr(Stdio::null()).status();
    assert!(swept.expect("scripts/masters starts").success());
    assert!(files().is_empty());
    for pid in leaked {
        // The adopting process may not have reaped it yet; a zombie has no command line.
        assert_eq!(std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default(), b"");
    }
    std::fs::remove_dir_all(&pids).expect("our own directory");
}

/// As under `nohup` or a script's `&`: the test runs itself with signals ignored.
#[test]
fn servers_and_children_of_tests_ignore_no_signal() {
    const IGNORING: &str = "REDLATCH_TEST_IGNORING";
    /// Bits of INT, QUIT, USR1 and TERM. A Redis server itself ignores HUP and PIPE.
    const SIGNALS: u64 = 1 << 1 | 1 << 2 | 1 << 9 | 1 << 14;
    let ignored_in = |status: &str| {
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("a line of that name");
        u64::from_str_radix(mask.trim(), 16).expect("a hexadecimal mask") & SIGNALS
    };
    let Ok(own) = std::fs::read_to_string("/proc/self/status") else {
        return println!("skipped: no /proc shows which signals a process ignores");
    };
    if std::env::var_os(IGNORING).is_some() {
        assert_eq!(ignored_in(&own), SIGNALS, "or this test proves nothing");
        let mut fleet = Fleet::start(1);
        let of_server = std::fs::read_to_string(format!("/proc/{}/status", fleet.master(0).pid()));
        assert_eq!(ignored_in(&of_server.expect("it runs")), 0);
        let of_child = command("cat").arg("/proc/self/status").output().expect("it runs");
        assert_eq!(ignored_in(&String::from_utf8_lossy(&of_child.stdout)), 0);
        return;
    }
    let ignoring = Command::new("sh")
        .args(["-c", "trap '' HUP INT QUIT USR1 TERM; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().expect("this program"))
        .args(["--exact", "harness_tests::servers_and_children_of_tests_ignore_no_signal"])
        .env(IGNORING, "1")
        .output()
        .expect("a shell");
    assert!(ignoring.status.success(), "{}", String::from_utf8_lossy(&ignoring.stdout));
}

#[test]
fn a_stalled_proxy_keeps_order() {
    let mut fleet = Fleet::start(1);
    let proxy = Proxy::start(fleet.master(0).addr());
    let mut stream = connect(proxy.addr());
    ping(&mut stream);
    proxy.stall(true);
    stream.write_all(b"INCR n\r\nINCR n\r\n").expect("the proxy reads");
    assert_eq!(read_within(&mut stream, Duration::from_millis(50)), None);
    assert_eq!(fleet.master(0).ask("GET n"), Raw::Null);
    let mut late = connect(proxy.addr()); // a new connection is accepted, and as deaf
    late.write_all(b"PING\r\n").expect("the proxy reads");
    assert_eq!(read_within(&mut late, Duration::from_millis(50)), None);
    proxy.stall(false);
    let mut counted = [0; 8];
    stream.read_exact(&mut counted).expect("the proxy goes on");
    assert_eq!(&counted, b":1\r\n:2\r\n");
    assert_eq!(read_within(&mut late, PATIENCE).as_deref(), Some(&b"+PONG\r\n"[..]));
}

#[test]
fn stalled_replies_still_let_requests_take_effect() {
    let mut fleet = Fleet::start(1);
    let proxy = Proxy::start(fleet.master(0).addr());
    let mut stream = connect(proxy.addr());
    proxy.stall_replies(true);
    stream.write_all(b"SET key value\r\n").expect("the proxy reads");
    eventually(PATIENCE, "the master has the key", || fleet.master(0).ask("GET key").text() == "value");
    assert_eq!(read_within(&mut stream, Duration::from_millis(20)), None);
    proxy.drop_connections();
    assert_eq!(stream.read(&mut [0; 8]).expect_err("reset").kind(), ErrorKind::ConnectionReset);
}

/// Number of unnamed connections at the first master: the asking one, and the test's. Clients of other tests
/// have names; one may retry a port that belonged to its dead master.
fn unnamed_count(fleet: &mut Fleet) -> usize {
    fleet.master(0).ask("CLIENT LIST").text().matches(" name= ").count()
}

#[test]
fn dropped_connections_are_reset_and_new_ones_pass() {
    let mut fleet = Fleet::start(1);
    let proxy = Proxy::start(fleet.master(0).addr());
    let mut streams: Vec<_> = (0..3).map(|_| connect(proxy.addr())).collect();
    for stream in &mut streams {
        ping(stream);
    }
    eventually(PATIENCE, "the master sees them", || unnamed_count(&mut fleet) == 4);
    proxy.delay(Duration::from_secs(3600)); // nothing under way keeps it from closing at once
    streams[0].write_all(b"PING\r\n").expect("the proxy reads");
    proxy.drop_connections();
    for mut stream in streams {
        assert_eq!(stream.read(&mut [0; 8]).expect_err("reset").kind(), ErrorKind::ConnectionReset);
    }
    eventually(PATIENCE, "the master sees them gone", || unnamed_count(&mut fleet) == 1);
    proxy.delay(Duration::ZERO);
    ping(&mut connect(proxy.addr()));
    assert_eq!(proxy.accepted_count(), 4);
}

#[test]
fn a_reset_comes_after_the_given_bytes() {
    let mut fleet = Fleet::start(1);
    let proxy = Proxy::start(fleet.master(0).addr());
    for count in 1..7 {
        let mut stream = connect(proxy.addr());
        ping(&mut stream);
        proxy.reset_after_reply_bytes(7 + count);
        ping(&mut stream);
        assert!(proxy.is_reset_due());
        stream.write_all(b"PING\r\n").expect("the proxy reads");
        let mut part = vec![0; count];
        stream.read_exact(&mut part).expect("so much of the reply passes");
        assert_eq!(part, b"+PONG\r\n"[..count]);
        assert_eq!(stream.read(&mut [0; 8]).expect_err("reset").kind(), ErrorKind::ConnectionReset);
        assert!(!proxy.is_reset_due());
    }
    let mut stream = connect(proxy.addr());
    proxy.reset_after_request_bytes(10); // the first INCR, and two bytes of the second
    stream.write_all(b"INCR n\r\nINCR n\r\n").expect("the proxy reads");
    eventually(
        PATIENCE,
        "the connection is reset",
        || matches!(stream.read(&mut [0; 8]), Err(error) if error.kind() == ErrorKind::ConnectionReset),
    );
    eventually(PATIENCE, "the master sees all gone", || unnamed_count(&mut fleet) == 1);
    assert_ne!(fleet.master(0).ask("GET n").text(), "2");
    ping(&mut connect(proxy.addr()));
}

#[test]
fn an_isolated_proxy_accepts_without_answering() {
    let mut fleet = Fleet::start(1);
    let proxy = Proxy::start(fleet.master(0).addr());
    let mut stream = connect(proxy.addr());
    ping(&mut stream);
    proxy.isolate(true);
    stream.write_all(b"INCR n\r\n").expect("the proxy reads");
    let mut late = connect(proxy.addr());
    late.write_all(b"INCR n\r\n").expect("the kernel takes it");
    assert_eq!(read_within(&mut late, Duration::from_millis(50)), None);
    assert_eq!(read_within(&mut stream, Duration::from_millis(1)), None);
    eventually(PATIENCE, "the new one is accepted", || proxy.accepted_count() == 2);
    proxy.isolate(false);
    assert_eq!(read_within(&mut stream, PATIENCE).as_deref(), Some(&b":1\r\n"[..]));
    assert_eq!(late.read(&mut [0; 8]).expect_err("reset").kind(), ErrorKind::ConnectionReset);
    ping(&mut connect(proxy.addr()));
}

#[test]
#[should_panic(expected = "not within 5ms: pigs fly")]
fn harness_names_the_missing_event() {
    eventually(Duration::from_millis(5), "pigs fly", || false);
}

fn connect(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).expect("somebody listens");
    stream.set_nodelay(true).expect("a TCP socket");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout of more than nothing");
    stream
}

fn ping(stream: &mut TcpStream) -> Duration {
    let begun = Instant::now();
    stream.write_all(b"PING\r\n").expect("the other side reads");
    let mut pong = [0; 7];
    stream.read_exact(&mut pong).expect("the other side answers");
    assert_eq!(&pong, b"+PONG\r\n");
    begun.elapsed()
}

/// Bytes of one read within this time, or `None`.
fn read_within(stream: &mut TcpStream, patience: Duration) -> Option<Vec<u8>> {
    stream.set_read_timeout(Some(patience)).expect("a timeout of more than nothing");
    let mut bytes = vec![0; 4096];
    let size = stream.read(&mut bytes).ok();
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout of more than nothing");
    bytes.truncate(size?);
    Some(bytes)
}
