//! Locks of redlatch and of other libraries exclude each other on the same masters, and each library frees
//! only its own.
//!
//! rslock and redlock take part themselves. redis-py's `Lock` and redsync are imitated command by command:
//!
//! | | acquire | value | release |
//! | --- | --- | --- | --- |
//! | redis-py (`redis/lock.py`, `commands/core.py`) | `SET name value PX ms NX` | `uuid1().hex`: 32 hexadecimal digits | `EVALSHA sha 1 name value` |
//! | redsync v4 (`mutex.go`, `redis/redigo/redigo.go`) | `SET name value NX PX ms` | 16 random bytes in Base64: 24 characters | `EVALSHA sha 1 name value` |
//!
//! Both answer `NOSCRIPT` with `EVAL` or `SCRIPT LOAD`. Their scripts differ in wording, but also compare and
//! delete. redis-py knows one server; here its lock is acquired on each, as redlock-py and others do.

use std::time::Duration;

use redlatch::{AcquireError, Client, Config, Guard, Quarantine};
use redlatch_support::settle;
use redlatch_support::{Fleet, Raw};

const TTL: Duration = Duration::from_secs(20);
const TTL_MS: &str = "20000";
const MASTER_COUNT: usize = 5;
const QUORUM: usize = 3;
const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end return redis.call('DEL', KEYS[1])";
/// Long enough for a loaded machine; no test waits for it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Another library, or its commands.
trait Theirs {
    type Held;

    /// One attempt, or a few in quick succession.
    fn try_acquire(&mut self, fleet: &mut Fleet, name: &str) -> Option<Self::Held>;

    fn release(&mut self, fleet: &mut Fleet, name: &str, held: Self::Held);
}

/// All steps with one other library.
fn exclude_each_other<T: Theirs>(name: &str, connect: impl FnOnce(&[String]) -> T) {
    let mut fleet = Fleet::start(MASTER_COUNT);
    let mut theirs = connect(&fleet.urls());
    let ours = ours(&fleet);

    let held = theirs.try_acquire(&mut fleet, name).expect("nobody holds it");
    assert_contended(&ours, name);
    assert_eq!(holders(&mut fleet, name), MASTER_COUNT, "a refused attempt of ours frees nothing of theirs");
    theirs.release(&mut fleet, name, held);
    assert_eq!(holders(&mut fleet, name), 0, "their release frees theirs, and we left nothing behind");

    let guard = acquire(&ours, name);
    assert!(theirs.try_acquire(&mut fleet, name).is_none(), "ours keeps theirs out");
    assert!(guard.is_valid());
    assert_eq!(holders(&mut fleet, name), MASTER_COUNT, "a refused attempt of theirs frees nothing of ours");
    guard.release().expect("the masters answer");
    assert_eq!(settle(&ours, ANSWER_TIMEOUT), 0, "all masters have released it");
    let held = theirs.try_acquire(&mut fleet, name).expect("our release frees ours for them");
    assert_contended(&ours, name);
    theirs.release(&mut fleet, name, held);
    acquire(&ours, name).release().expect("the masters answer");
}

fn ours(fleet: &Fleet) -> Client {
    let config = Config::builder().masters(fleet.urls()).quarantine(Quarantine::Trust);
    Client::open(config.answer_timeout(ANSWER_TIMEOUT).build().expect("valid settings"))
        .expect("an event loop")
}

fn acquire(ours: &Client, name: &str) -> Guard {
    ours.lock(name).ttl(TTL).try_acquire().unwrap_or_else(|error| panic!("nobody holds it: {error:#}"))
}

fn assert_contended(ours: &Client, name: &str) {
    match ours.lock(name).ttl(TTL).try_acquire() {
        Err(AcquireError::Contended(_)) => {
            assert_eq!(settle(ours, ANSWER_TIMEOUT), 0, "nothing is left to release")
        }
        Err(error) => panic!("another error than that somebody holds it: {error:#}"),
        Ok(_) => panic!("two hold the lock"),
    }
}

/// Number of masters with the key.
fn holders(fleet: &mut Fleet, name: &str) -> usize {
    fleet
        .masters()
        .filter_map(|master| (master.ask(&format!("EXISTS {name}")) == Raw::Integer(1)).then_some(()))
        .count()
}

struct Rslock {
    runtime: tokio::runtime::Runtime,
    manager: rslock::LockManager,
}

impl Theirs for Rslock {
    type Held = rslock::Lock;

    fn try_acquire(&mut self, _: &mut Fleet, name: &str) -> Option<rslock::Lock> {
        match self.runtime.block_on(self.manager.lock(name, TTL)) {
            Ok(lock) => Some(lock),
            Err(rslock::LockError::Unavailable) => None,
            Err(error) => panic!("rslock: {error}"),
        }
    }

    fn release(&mut self, _: &mut Fleet, _: &str, held: rslock::Lock) {
        self.runtime.block_on(held.release());
    }
}

#[test]
fn rslock_and_redlatch_exclude_each_other() {
    exclude_each_other("interop:rslock", |urls| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let mut manager = rslock::LockManager::new(urls.to_vec());
        manager.set_retry(2, Duration::from_millis(2));
        Rslock { runtime: runtime.expect("an event loop"), manager }
    });
}

struct Redlock(redlock::RedLock);

impl Theirs for Redlock {
    /// The value only, because the library's lock borrows the manager.
    type Held = Vec<u8>;

    fn try_acquire(&mut self, _: &mut Fleet, name: &str) -> Option<Vec<u8>> {
        let ttl_ms = TTL_MS.parse().expect("a number");
        self.0.lock(name.as_bytes(), ttl_ms).expect("the masters answer").map(|lock| lock.val)
    }

    fn release(&mut self, _: &mut Fleet, name: &str, held: Vec<u8>) {
        let resource = name.as_bytes().to_vec();
        self.0.unlock(&redlock::Lock { resource, val: held, validity_time: 0, lock_manager: &self.0 });
    }
}

#[test]
fn the_crate_redlock_and_redlatch_exclude_each_other() {
    exclude_each_other("interop:redlock", |urls| {
        let mut manager = redlock::RedLock::new(urls.to_vec());
        manager.set_retry(2, 2);
        Redlock(manager)
    });
}

/// A library of another language, as masters see it.
struct Wire {
    /// A new value, from random bytes.
    value: fn([u8; 16]) -> String,
    /// Words after `SET name value`.
    options: [&'static str; 3],
}

impl Theirs for Wire {
    type Held = String;

    fn try_acquire(&mut self, fleet: &mut Fleet, name: &str) -> Option<String> {
        let value = (self.value)(rand::random());
        let [first, second, third] = self.options;
        let set = ["SET", name, value.as_str(), first, second, third].map(str::as_bytes);
        let granted =
            fleet.masters().filter_map(|master| (master.command(&set).text() == "OK").then_some(())).count();
        if granted >= QUORUM {
            return Some(value);
        }
        self.release(fleet, name, value);
        None
    }

    fn release(&mut self, fleet: &mut Fleet, name: &str, value: String) {
        for master in fleet.masters() {
            let sha = master.command(&["SCRIPT", "LOAD", COMPARE_AND_DELETE].map(str::as_bytes)).text();
            let reply = master.command(&["EVALSHA", &sha, "1", name, &value].map(str::as_bytes));
            assert!(matches!(reply, Raw::Integer(0 | 1)), "{reply:?}");
        }
    }
}

/// `str(uuid.uuid1().hex)`: 32 hexadecimal digits.
fn hexadecimal(bytes: [u8; 16]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `base64.StdEncoding`: with `+`, `/` and `=`.
fn base64(bytes: [u8; 16]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let number =
            (0..3).fold(0_usize, |sum, index| sum << 8 | usize::from(*group.get(index).unwrap_or(&0)));
        for digit in 0..4 {
            let is_there = digit <= group.len();
            text.push(if is_there { DIGITS[number >> (18 - 6 * digit) & 63] as char } else { '=' });
        }
    }
    text
}

#[test]
fn base64_is_as_its_definition_has_it() {
    assert_eq!(base64(*b"Man is distingui"), "TWFuIGlzIGRpc3Rpbmd1aQ==");
}

#[test]
fn redis_py_s_lock_and_redlatch_exclude_each_other() {
    exclude_each_other("interop:redis-py", |_| Wire { value: hexadecimal, options: ["PX", TTL_MS, "NX"] });
}

#[test]
fn redsync_and_redlatch_exclude_each_other() {
    exclude_each_other("interop:redsync", |_| Wire { value: base64, options: ["NX", "PX", TTL_MS] });
}
