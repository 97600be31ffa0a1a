//! `redlatch_testing::Double` as users meet it: real clients, and model masters in this process.

mod many;
mod trials;

use std::fmt;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use redlatch::error::{Denial, Failure, HolderTtl, Vote};
use redlatch::inspection::LockStatus;
use redlatch::{AcquireError, Client, HeldLocks, Quarantine};
use redlatch_support::{Blocking, PATIENCE, eventually};
use redlatch_testing::{Double, DoubleMaster, FleetError, Reply};

/// TTL of locks whose expiry no test awaits.
const TTL: Duration = Duration::from_secs(120);
/// An answer limit that tests wait out.
const SHORT: Duration = Duration::from_millis(200);

/// A command, and its reply.
const ECHO: &[u8] = b"*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\n";
const ECHOED: [u8; 8] = *b"$2\r\nhi\r\n";

fn start(size: usize) -> Double {
    Double::start(size).expect("free ports")
}

/// A client whose answer limit no slow answer exceeds.
fn open(double: &Double) -> Client {
    double.config().max_ttl(TTL).answer_timeout(PATIENCE).connect().expect("an event loop")
}

/// Each public call that takes a time accepts the longest, and either refuses it or treats it as unlimited.
#[test]
fn longest_times_overflow_nothing() {
    let max = Duration::MAX;
    let double = start(1);
    let config = double.config().max_ttl(TTL).answer_timeout(PATIENCE).max_hold(max);
    let client = config.connect().expect("an event loop");
    for refused in [
        double.config().max_ttl(max).build(),
        double.config().answer_timeout(max).build(),
        double.config().connect_timeout(max).build(),
        double.config().retry_delay(max..=max).build(),
        double.config().spin(max).build(),
    ] {
        refused.expect_err("it is too long");
    }
    assert!(client.config().ttl(max).is_err());
    let hold = |name: &'static str| client.lock(name).ttl(TTL).wait(max).acquire().expect("free");
    client.lock("a").ttl(max).acquire().expect_err("it is too long");
    client.lock("a").min_validity(max).acquire().expect_err("it is too long");
    drop(client.lock("a").ttl(TTL).wait(max).auto_extend(max).acquire().expect("free"));
    hold("b").extend(max).expect_err("it is too long");
    hold("c").leave_for(max).expect_err("it is too long");
    drop(hold("d").into_handle(max).expect_err("it is too long"));
    drop(client.slots("pool", 2).wait(max).acquire().expect("free"));
    client
        .lock_set(["e", "f"])
        .ttl(TTL)
        .wait(max)
        .acquire()
        .expect("free")
        .extend(max)
        .expect_err("as before");
    let owner = client.lock("g").ttl(TTL).wait(max).reentrant();
    let held = owner.lock().expect("free");
    held.extend(max).expect_err("it is too long");
    drop(held);
    let mut redlock =
        Blocking::open(double.config().max_ttl(TTL).build().expect("valid")).expect("an event loop");
    let mut lease = redlock.lock("h").ttl(TTL).wait(max).acquire().expect("free");
    redlock.extend(&mut lease, max).expect_err("it is too long");
    redlock.leave_for(lease, max).expect_err("it is too long");
    assert_eq!(redlock.drain(max, HeldLocks::Release), 0);
    assert_eq!(client.drain(max, HeldLocks::Release), 0);
    // Last, because this master no longer answers.
    double.master(0).delay(max);
    let late = double
        .config()
        .max_ttl(TTL)
        .answer_timeout(SHORT)
        .connect_timeout(SHORT)
        .connect()
        .expect("an event loop");
    assert!(matches!(late.lock("i").ttl(TTL).try_acquire(), Err(AcquireError::NoQuorum(_))));
    double.master(0).delay(Duration::ZERO);
    double.master(0).restart().expect("a free port");
}

/// A client with a short answer limit, after it has connected to all masters.
fn open_impatient(double: &Double) -> Client {
    let client = double.config().max_ttl(TTL).answer_timeout(SHORT).connect().expect("an event loop");
    eventually(PATIENCE, "all are ready", || client.stats().ready() == double.masters().count());
    client
}

/// The denial of an acquisition without a quorum.
fn no_quorum<T: fmt::Debug>(result: Result<T, AcquireError>) -> Denial {
    match result {
        Err(AcquireError::NoQuorum(denial)) => *denial,
        other => panic!("no lack of a quorum: {other:?}"),
    }
}

fn contended<T: fmt::Debug>(result: Result<T, AcquireError>) -> Denial {
    match result {
        Err(AcquireError::Contended(denial)) => *denial,
        other => panic!("not contended: {other:?}"),
    }
}

fn failure_count(denial: &Denial, is_meant: impl Fn(&Failure) -> bool) -> usize {
    let votes = denial.report.votes.iter();
    votes.filter(|(_, vote)| matches!(vote, Vote::Failed(failure) if is_meant(failure))).count()
}

fn asked(master: DoubleMaster<'_>, words: &[&str]) -> String {
    master.command(words).expect("an answer").text()
}

/// Waits until each master holds the lock, so that nothing of the acquisition is under way.
fn await_held(double: &Double, name: &str) {
    for master in double.masters() {
        eventually(PATIENCE, "it is on each master", || asked(master, &["EXISTS", name]) == "1");
    }
}

#[test]
fn new_masters_count_at_once_by_default() {
    let double = start(5);
    let client = Client::builder().masters(double.urls()).answer_timeout(PATIENCE).connect();
    let client = client.expect("an event loop");
    assert_eq!(client.config().quarantine(), Quarantine::Uptime);
    let guard = client.lock("orders:42").try_acquire().expect("no quarantine");
    await_held(&double, "orders:42");
    guard.release().expect("confirmed");
    let stats = client.stats();
    assert_eq!((stats.acquired, stats.released, stats.retries), (1, 1, 0));
    assert!(client.masters().iter().all(|master| master.warnings.is_empty()), "{:?}", client.masters());
}

#[test]
fn killed_and_hanging_minority_delays_nobody() {
    let double = start(5);
    let client = open(&double);
    double.master(0).stop().expect("it runs");
    double.master(1).kill();
    let start = Instant::now();
    for number in 0..10 {
        drop(client.lock(format!("orders:{number}")).try_acquire().expect("three of five are a quorum"));
    }
    // Any wait for a master would have lasted the whole answer limit.
    assert!(start.elapsed() < PATIENCE);
    double.master(0).resume().expect("it runs");
    eventually(PATIENCE, "the queued commands are answered", || client.stats().operations == 0);
    assert_eq!(asked(double.master(0), &["EXISTS", "orders:1"]), "0");
}

#[test]
fn a_killed_majority_is_reported_as_not_connected() {
    let double = start(3);
    let client = open_impatient(&double);
    double.master(0).kill();
    double.master(1).kill();
    eventually(PATIENCE, "the client notices", || !client.health().has_quorum);
    let denial = no_quorum(client.lock("a").ttl(SHORT).try_acquire());
    assert!(failure_count(&denial, |it| matches!(it, Failure::NotConnected { .. })) >= 2, "{denial:#}");
    assert!(
        matches!(double.master(0).stop(), Err(FleetError::NotRunning { port }) if port == double.master(0).port())
    );
    double.master(0).connect().expect_err("its port refuses");
}

#[test]
fn a_hanging_majority_is_reported_as_no_answer() {
    let double = start(3);
    let client = open_impatient(&double);
    double.master(1).stop().expect("it runs");
    double.master(2).stop().expect("it runs");
    let denial = no_quorum(client.lock("a").wait(Duration::ZERO).acquire());
    assert!(failure_count(&denial, |it| matches!(it, Failure::NoAnswer { .. })) >= 2, "{denial:#}");
    double.master(1).resume().expect("it runs");
    drop(client.lock("a").wait(PATIENCE).acquire().expect("two of three answer"));
}

#[test]
fn a_resumed_master_answers_what_came_meanwhile() {
    let double = start(2);
    let connect = || TcpStream::connect(double.master(0).addr()).expect("it accepts");
    let echoed = |mut connection: &TcpStream| {
        connection.set_read_timeout(Some(PATIENCE)).expect("a limit");
        let mut reply = [0; ECHOED.len()];
        connection.read_exact(&mut reply).expect("it answers");
        assert_eq!(reply, ECHOED);
    };
    let old = connect();
    (&old).write_all(ECHO).expect("open");
    echoed(&old);
    double.master(0).stop().expect("it runs");
    let new = connect();
    for mut connection in [&old, &new] {
        connection.write_all(ECHO).expect("open");
    }
    // By now the double has read the other bytes.
    assert_eq!(asked(double.master(1), &["PING"]), "PONG");
    double.master(0).resume().expect("it runs");
    echoed(&old);
    echoed(&new);
}

#[test]
fn a_delayed_majority_answers_too_late() {
    let double = start(3);
    let client = open_impatient(&double);
    for master in double.masters().skip(1) {
        master.delay(10 * PATIENCE);
    }
    let denial = no_quorum(client.lock("a").wait(Duration::ZERO).acquire());
    assert!(failure_count(&denial, |it| matches!(it, Failure::NoAnswer { .. })) >= 2, "{denial:#}");
}

#[test]
fn a_delayed_answer_arrives_late() {
    let double = start(1);
    let client = open(&double);
    let master = double.master(0);
    master.delay(SHORT);
    let start = Instant::now();
    drop(client.lock("a").ttl(TTL).acquire().expect("late, and not too late"));
    assert!(start.elapsed() >= SHORT);
}

#[test]
fn a_master_restarted_empty_does_not_vote() {
    let double = start(3);
    let client = open(&double);
    let guard = client.lock("a").ttl(TTL).acquire().expect("free");
    await_held(&double, "a");
    let port = double.master(0).port();
    double.master(0).restart().expect("its port is free");
    double.master(1).kill();
    double.master(1).restart().expect("its port is free");
    assert_eq!(double.master(0).port(), port);
    let other = open(&double);
    let denial = no_quorum(other.lock("b").try_acquire());
    assert_eq!(failure_count(&denial, |it| matches!(it, Failure::Quarantined { .. })), 2, "{denial:#}");
    drop(guard);
    let trusting = double.config().quarantine(Quarantine::Trust).connect().expect("an event loop");
    drop(trusting.lock("b").try_acquire().expect("it counts them at once"));
}

#[test]
fn a_restart_forgets_and_a_stop_does_not() {
    let double = start(2);
    for master in double.masters() {
        assert_eq!(asked(master, &["SET", "key", "value"]), "OK");
    }
    double.master(0).stop().expect("it runs");
    double.master(0).resume().expect("it runs");
    double.master(1).restart().expect("its port is free");
    let found = double.masters().map(|master| asked(master, &["GET", "key"])).collect::<Vec<_>>();
    assert_eq!(found[0], "value");
    assert_eq!(double.master(1).command(&["GET", "key"]).expect("an answer"), Reply::Null);
}

#[test]
fn a_refused_command_is_reported_with_its_error() {
    let double = start(3);
    let client = open(&double);
    double.masters().skip(1).for_each(|master| master.refuse("set", "OOM command not allowed"));
    let denial = no_quorum(client.lock("a").ttl(SHORT).try_acquire());
    let is_full = |it: &Failure| matches!(it, Failure::Replied(text) if text.starts_with("OOM "));
    assert_eq!(failure_count(&denial, is_full), 2, "{denial:#}");
    double.masters().for_each(|master| master.allow("SET"));
    drop(client.lock("a").try_acquire().expect("they carry it out again"));
}

#[test]
fn refusal_has_the_holders_label_and_time() {
    let double = start(3);
    let other = double.config().max_ttl(TTL).holder_label("billing").connect().expect("an event loop");
    let held = other.lock("a").ttl(TTL).acquire().expect("free");
    await_held(&double, "a");
    let client = open(&double);
    let denial = contended(client.lock("a").try_acquire());
    assert_eq!(denial.holder_label.as_deref(), Some("billing"));
    assert!(matches!(denial.holder, HolderTtl::Left(left) if left <= TTL), "{denial:#}");
    let inspection = client.inspect("a").expect("masters answer");
    assert_eq!((inspection.status(), inspection.holder_label()), (LockStatus::Held, Some("billing")));
    held.release().expect("confirmed");
    client.lock("a").wait(PATIENCE).acquire().expect("it is free").release().expect("confirmed");
}

#[test]
fn a_message_reaches_its_subscriber() {
    let double = start(1);
    let master = double.master(0);
    let mut subscriber = TcpStream::connect(master.addr()).expect("it listens");
    subscriber.set_read_timeout(Some(PATIENCE)).expect("a limit");
    subscriber.write_all(b"*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\nc\r\n").expect("open");
    let mut confirmed = [0; 30];
    subscriber.read_exact(&mut confirmed).expect("a confirmation");
    assert_eq!(&confirmed, b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n");
    assert_eq!(asked(master, &["PUBLISH", "c", "hi"]), "1");
    let mut message = [0; 32];
    subscriber.read_exact(&mut message).expect("the message");
    assert_eq!(&message, b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n");
}

#[test]
fn garbage_ends_only_its_own_connection() {
    let double = start(1);
    let client = open(&double);
    let master = double.master(0);
    for garbage in [
        "GET / HTTP/1.1\r\n\r\n",
        "*0\r\n",
        "*1\r\n+\r\n",
        "*1\r\n$9999999999\r\n",
        "*x\r\n",
        "*1\r\n$1\r\nabc",
    ] {
        let mut connection = TcpStream::connect(master.addr()).expect("it listens");
        connection.write_all(garbage.as_bytes()).expect("open");
        connection.set_read_timeout(Some(PATIENCE)).expect("a limit");
        assert_eq!(connection.read(&mut [0; 8]).expect("an end"), 0, "{garbage:?}");
    }
    assert!(asked(master, &["FLUSHALL"]).starts_with("ERR unknown command 'FLUSHALL'"));
    assert!(asked(master, &["EVAL", "return 1", "0"]).starts_with("ERR the model runs no scripts but"));
    drop(client.lock("a").acquire().expect("the master goes on"));
}

#[test]
fn a_double_ends_with_its_drop() {
    let double = start(2);
    let client = open_impatient(&double);
    let (urls, addrs) = (double.urls(), double.masters().map(DoubleMaster::addr).collect::<Vec<_>>());
    assert_eq!(urls, addrs.iter().map(|addr| format!("redis://{addr}")).collect::<Vec<_>>());
    double.master(0).stop().expect("it runs");
    drop(double);
    addrs.iter().for_each(|addr| drop(TcpStream::connect(addr).expect_err("its port is closed")));
    no_quorum(client.lock("a").ttl(SHORT).try_acquire());
    assert_eq!(client.drain(PATIENCE, HeldLocks::Release), 0);
}
