//! Names: every call takes all kinds of names, and keeps owned names without a copy.

use bytes::Bytes;
use redlatch::{AcquireError, Client, Guard, LockName};
use redlatch_support::block_on;
use redlatch_support::stage::Fleet;

use crate::harness::{LONG, TTL, open};

/// Passes a name of one kind to each call.
fn each_call<'n, N: Into<LockName<'n>>>(client: &Client, name: impl Fn() -> N) {
    let free = |guard: Result<Guard, AcquireError>| {
        let guard = guard.expect("free");
        assert_eq!(guard.resource(), b"a");
        guard.release().expect("confirmed");
    };
    free(client.lock(name()).ttl(TTL).acquire());
    free(client.lock_owned(name()).ttl(TTL).acquire());
    free(client.rw_lock(name()).write().ttl(TTL).acquire());
    let set = client.lock_set([name(), name()]).ttl(TTL).acquire().expect("free");
    assert!(set.resources().eq([b"a"]), "given twice, it counts once");
    set.release().expect("confirmed");
    client.lead(name()).ttl(TTL).campaign().expect("nobody leads").resign().expect("confirmed");
    let held = client.lock(name()).ttl(TTL).acquire().expect("free");
    assert!(client.inspect(name()).expect("an answer").is_held());
    assert!(block_on(client.inspect_async(name())).expect("an answer").is_held());
    assert_eq!(client.force_unlock(name()).expect("all answer").deleted(), 1);
    assert_eq!(block_on(client.force_unlock_async(name())).expect("all answer").deleted(), 0);
    held.release().expect("confirmed");
}

#[test]
fn every_call_takes_every_name() {
    let fleet = Fleet::start(1);
    let client = open(&fleet.urls(), LONG);
    let (string, bytes) = (String::from("a"), Bytes::from_static(b"a"));
    let (vector, text) = (vec![b'a'], "a");
    each_call(&client, || "a");
    each_call(&client, || &text);
    each_call(&client, || &string);
    each_call(&client, || string.clone());
    each_call(&client, || b"a");
    each_call(&client, || &b"a"[..]);
    each_call(&client, || &vector);
    each_call(&client, || vector.clone());
    each_call(&client, || &bytes);
    each_call(&client, || bytes.clone());
}

#[test]
fn owned_names_are_kept_without_a_copy() {
    let fleet = Fleet::start(1);
    let client = open(&fleet.urls(), LONG);
    let name = format!("orders:{}", 42);
    let place = name.as_ptr();
    let guard = client.lock(name).ttl(TTL).acquire().expect("free");
    assert_eq!((guard.resource().as_ptr(), guard.resource()), (place, &b"orders:42"[..]));
}

#[test]
fn a_request_shows_its_name_as_text() {
    let fleet = Fleet::start(1);
    let client = open(&fleet.urls(), LONG);
    let name = String::from("caf\u{e9}:42");
    for shown in [
        format!("{:?}", client.lock(&name)),
        format!("{:?}", client.lock_owned(&name)),
        format!("{:?}", client.lock_set([&name])),
        format!("{:?}", client.rw_lock(&name)),
    ] {
        assert!(shown.contains(r#""caf\xc3\xa9:42""#), "{shown}");
    }
}

#[test]
fn one_attempt_is_made_in_a_task() {
    let fleet = Fleet::start(1);
    let client = open(&fleet.urls(), LONG);
    let other = open(&fleet.urls(), LONG);
    let guard = block_on(client.lock("a").ttl(TTL).try_acquire_async()).expect("free");
    // `try_acquire` overrides an earlier `wait`.
    let refused = block_on(other.lock("a").ttl(TTL).wait(LONG).try_acquire_async()).expect_err("held");
    assert!(matches!(&refused, AcquireError::Contended(denial) if denial.attempts == 1), "{refused}");
    let refused = block_on(other.lock_set(["a", "b"]).wait(LONG).try_acquire_async()).expect_err("held");
    assert_eq!(refused.resource, "a");
    assert!(matches!(&refused.source, AcquireError::Contended(denial) if denial.attempts == 1), "{refused}");
    let slot = client.slots("pool", 1).ttl(TTL).try_acquire().expect("free");
    let refused = block_on(other.slots("pool", 1).wait(LONG).try_acquire_async()).expect_err("taken");
    assert!(matches!(&refused, AcquireError::Contended(denial) if denial.attempts == 1), "{refused}");
    drop(slot);
    guard.release().expect("confirmed");
    block_on(other.lock_set(["a", "b"]).try_acquire_async()).expect("free").release().expect("confirmed");
}
