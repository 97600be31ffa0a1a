//! Masters that refuse: each operation on each kind of lock either works or returns the server's reason.
//!
//! There is only one master, so its refusal decides. A table here says which refusals may stop which
//! operation, derived from the operation's commands. An operation that fails without need is as wrong as an
//! operation that hides the reason.

use std::fmt::Display;
use std::thread;
use std::time::Duration;

use redlatch::error::Failure;
use redlatch::inspection::KeyState;
use redlatch::status::MasterState;
use redlatch::{Client, Guard, LockRequest, Quarantine};
use redlatch_support::settle;
use redlatch_support::{Fleet, Master, PATIENCE, eventually};

use crate::error_tests::{end_loading, fail_snapshot, load_slowly, ok};
use crate::lock_tests::ANSWER_TIMEOUT;
use crate::valkey_tests::Native;

/// A lock held this long may have waiters, so its release serves them.
const SERVED_HOLD: Duration = Duration::from_millis(10);

/// No test here waits for a lock's expiry, however slow the machine is.
pub(crate) const TTL: Duration = Duration::from_secs(120);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain,
    Fenced,
    Fair,
    Shared,
}

pub(crate) const KINDS: [Kind; 4] = [Kind::Plain, Kind::Fenced, Kind::Fair, Kind::Shared];

impl Kind {
    pub(crate) fn request<'a>(self, client: &'a Client, name: &'a str) -> LockRequest<'a> {
        let request = client.lock(name).ttl(TTL);
        match self {
            Self::Plain => request,
            Self::Fenced => request.fenced(),
            Self::Fair => request.fair(),
            Self::Shared => request.shared(),
        }
    }

    /// Name of this kind's lock.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Fenced => "fenced",
            Self::Fair => "fair",
            Self::Shared => "shared",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Acquire(Kind),
    Extend(Kind),
    Release(Kind),
    Inspect(Kind),
    ForceUnlock(Kind),
}

/// A client with this login on this master only; it knows whether the master is up.
pub(crate) fn open(master: &Master, login: &str) -> Client {
    let url = master.url().replace("redis://", &format!("redis://{login}"));
    let config = Client::builder().master(url).prefix("lock:").quarantine(Quarantine::Trust);
    let config = config.max_ttl(TTL).answer_timeout(ANSWER_TIMEOUT).build().expect("valid settings");
    let client = Client::open(config).expect("an event loop");
    eventually(PATIENCE, "the master is up or down", || {
        client.masters().iter().all(|master| master.state != MasterState::Connecting)
    });
    client
}

/// Checks a result against the expectation. Returns the value, if any.
#[track_caller]
fn check<T, E: Display>(
    result: Result<T, E>,
    what: impl std::fmt::Debug,
    must_fail: bool,
    reasons: &[&str],
) -> Option<T> {
    match result {
        Ok(done) => {
            assert!(!must_fail, "{what:?} works");
            Some(done)
        }
        Err(error) => {
            assert!(must_fail, "{what:?}: {error}");
            let text = error.to_string();
            assert!(reasons.iter().any(|reason| text.contains(reason)), "{what:?} hides the reason: {text}");
            None
        }
    }
}

/// The only master's report, or why there is none.
pub(crate) fn inspect(client: &Client, name: &str) -> Result<(), Failure> {
    let mut states = client.inspect(name).expect("room").masters;
    match states.pop().expect("one master").1 {
        KeyState::Failed(failure) => Err(failure),
        _ => Ok(()),
    }
}

pub(crate) fn acquire(client: &Client, kind: Kind) -> Guard {
    kind.request(client, kind.name())
        .wait(PATIENCE)
        .acquire()
        .unwrap_or_else(|error| panic!("{kind:?}: {error}"))
}

/// Tries each operation while a master refuses writes, or everything. Afterwards everything works.
fn refuse(master: &mut Master, reason: &str, refused: Refused, begin: fn(&mut Master), end: fn(&mut Master)) {
    let [holder, other] = [(); 2].map(|()| open(master, ""));
    let guards = KINDS.map(|kind| (kind, acquire(&holder, kind)));
    begin(master);
    if refused == Refused::Everything {
        for client in [&holder, &other] {
            eventually(PATIENCE, "the client knows", || {
                let state = client.masters().remove(0).state;
                matches!(state, MasterState::Down(why) if why.contains(reason))
            });
        }
    }
    for kind in KINDS {
        let free = format!("free {}", kind.name());
        let acquired = kind.request(&other, &free).try_acquire();
        check(acquired, Operation::Acquire(kind), true, &[reason]);
        let inspected = inspect(&other, kind.name());
        check(inspected, Operation::Inspect(kind), refused == Refused::Everything, &[reason]);
        check(other.force_unlock(kind.name()), Operation::ForceUnlock(kind), true, &[reason]);
    }
    for (kind, mut guard) in guards {
        check(guard.extend(TTL), Operation::Extend(kind), true, &[reason]);
        assert!(guard.is_valid(), "{kind:?}: a refusal is no loss");
        check(guard.release(), Operation::Release(kind), true, &[reason]);
    }
    end(master);
    // Refused releases go on in the background.
    for kind in KINDS {
        acquire(&other, kind).release().unwrap_or_else(|error| panic!("{kind:?}: {error}"));
    }
    assert_eq!([settle(&holder, PATIENCE), settle(&other, PATIENCE)], [0, 0]);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refused {
    Writes,
    Everything,
}

// I108
#[test]
fn a_replica_refuses_each_write_by_name() {
    let mut fleet = Fleet::start(1);
    let begin = |it: &mut Master| {
        ok(it, "REPLICAOF 127.0.0.1 1");
        it.ask("CLIENT KILL SKIPME yes");
    };
    let end = |it: &mut Master| ok(it, "REPLICAOF NO ONE");
    refuse(fleet.master(0), "it is a replica", Refused::Everything, begin, end);
}

// I108
#[test]
fn a_failed_snapshot_refuses_each_write_by_name() {
    let mut fleet = Fleet::start_with(1, &["--enable-protected-configs", "yes"]);
    let end = |it: &mut Master| ok(it, "CONFIG SET stop-writes-on-bgsave-error no");
    refuse(fleet.master(0), "MISCONF", Refused::Writes, fail_snapshot, end);
}

// I108
#[test]
fn a_loading_master_refuses_each_operation_by_name() {
    let mut fleet = Fleet::start_with(1, &["--enable-debug-command", "yes"]);
    refuse(fleet.master(0), "LOADING", Refused::Everything, load_slowly, end_loading);
}

/// The rights of docs/rights.md for all kinds of locks, and its optional rights.
pub(crate) const RIGHTS: [&str; 33] = [
    "set",
    "get",
    "del",
    "pexpire",
    "pttl",
    "evalsha",
    "script|load",
    "eval",
    "getrange",
    "zcard",
    "zrevrank",
    "info",
    "client|setname",
    "publish",
    "subscribe",
    "spublish",
    "ssubscribe",
    "time",
    "type",
    "pexpireat",
    "zadd",
    "zrem",
    "zrange",
    "zscore",
    "zremrangebyscore",
    "exists",
    "zrangebyscore",
    "delifeq",
    "delex",
    "&",
    "select",
    "~",
    "echo",
];

/// The rights that an operation on an uncontended lock cannot do without.
fn needed(operation: Operation, native: Native) -> Vec<&'static str> {
    let mut rights: Vec<&str> = match operation {
        Operation::Acquire(Kind::Plain) => vec!["set"],
        // Scripts are not loaded in advance: they are sent in full once a master does not know them.
        Operation::Acquire(Kind::Fenced) => vec!["evalsha", "eval", "time", "get", "set"],
        // Without scripts, TIME or EXISTS the master has no queue, and a fair lock is acquired like a plain
        // one.
        Operation::Acquire(Kind::Fair) => vec!["zrange", "set"],
        Operation::Acquire(Kind::Shared) => {
            vec![
                "evalsha",
                "eval",
                "type",
                "pttl",
                "time",
                "zremrangebyscore",
                "zscore",
                "zadd",
                "zrange",
                "pexpireat",
            ]
        }
        Operation::Extend(Kind::Shared) => {
            vec!["evalsha", "time", "zscore", "zremrangebyscore", "zadd", "zrange", "pexpireat"]
        }
        Operation::Release(Kind::Shared) => vec!["evalsha", "zrem", "time"],
        Operation::Extend(_) if native.set_if_eq => vec![],
        Operation::Extend(_) => vec!["evalsha", "get", "pexpire"],
        Operation::Release(Kind::Plain | Kind::Fair) if native.release.is_some() => vec![],
        Operation::Release(_) => vec!["evalsha", "get", "del"],
        Operation::Inspect(Kind::Shared) => vec!["zrevrank", "pttl"],
        Operation::Inspect(_) => vec!["getrange", "pttl"],
        Operation::ForceUnlock(Kind::Shared) => vec!["eval", "get", "zscore", "del"],
        Operation::ForceUnlock(_) => vec!["eval", "get", "del"],
    };
    rights.extend(["~", "echo"]);
    if matches!(operation, Operation::ForceUnlock(_)) && native.release.is_some() {
        // Without it the master counts as refusing scripts, and `GETDEL` replaces them.
        rights.push("evalsha");
    }
    rights
}

/// Gives the user all rights but this one.
fn grant_all_but(master: &mut Master, right: &str) {
    let native = Native::of(master);
    let mut rule = "ACL SETUSER locker reset on >pw -@all".to_owned();
    for &each in RIGHTS.iter().filter(|&&each| each != right) {
        match each {
            "~" => rule.push_str(" ~lock:*"),
            "&" => rule.push_str(" &lock:*"),
            "delifeq" | "delex" if native.release != Some(each) => {}
            command => rule.push_str(&format!(" +{command}")),
        }
    }
    ok(master, &rule);
}

// I108
#[test]
fn missing_right_is_named_where_needed() {
    const REASONS: [&str; 2] = ["NOPERM", "the ACL user lacks"];
    let mut fleet = Fleet::start(1);
    let native = Native::of(fleet.master(0));
    let holder = open(fleet.master(0), "");
    for right in RIGHTS {
        let master = fleet.master(0);
        ok(master, "SCRIPT FLUSH");
        grant_all_but(master, right);
        let client = open(master, "locker:pw@");
        let is_needed = |operation| needed(operation, native).contains(&right);
        let said = |operation| (operation, format!("without {right}"));
        let mut guards = Vec::new();
        for kind in KINDS {
            let operation = Operation::Acquire(kind);
            let acquired = kind.request(&client, kind.name()).try_acquire();
            let guard = check(acquired, said(operation), is_needed(operation), &REASONS);
            guards.push((kind, guard));
        }
        // A lock that needs the right for its acquisition gets it for a moment.
        for (kind, guard) in &mut guards {
            if guard.is_none() {
                grant_all_but(master, "");
                *guard = Some(acquire(&client, *kind));
                grant_all_but(master, right);
            }
        }
        if right != "echo" {
            for (kind, guard) in guards {
                let mut guard = guard.expect("acquired by now");
                let operation = Operation::Extend(kind);
                check(guard.extend(TTL), said(operation), is_needed(operation), &REASONS);
                let operation = Operation::Release(kind);
                // A release then uses the script, even where there is a native command.
                thread::sleep(SERVED_HOLD);
                check(guard.release(), said(operation), is_needed(operation), &REASONS);
            }
        }
        drop(client);
        ok(master, "FLUSHALL");
        let client = open(master, "locker:pw@");
        for kind in [Kind::Plain, Kind::Shared] {
            let held = acquire(&holder, kind);
            let operation = Operation::Inspect(kind);
            check(inspect(&client, kind.name()), said(operation), is_needed(operation), &REASONS);
            let operation = Operation::ForceUnlock(kind);
            check(client.force_unlock(kind.name()), said(operation), is_needed(operation), &REASONS);
            drop(held);
            assert_eq!(settle(&holder, PATIENCE), 0);
        }
    }
}
