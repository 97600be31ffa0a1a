//! Labels of holders: in values, in inspections, errors and statistics.

use std::time::Duration;

use redlatch::error::{ConfigError, HeldBy, InputError};
use redlatch::{AcquireError, Client, LockRequest};
use redlatch_support::stage::Fleet;
use redlatch_support::{PATIENCE, block_on, eventually};

use crate::harness::{LONG, TTL, assert_nothing_left, await_no_keys, config, open};

const LABEL: &str = "web-3:4711:billing";

fn labelled(fleet: &Fleet) -> Client {
    let config = config(&fleet.urls(), LONG).holder_label(LABEL).build().expect("valid settings");
    Client::open(config).expect("an event loop")
}

fn refusal(request: LockRequest<'_>) -> redlatch::error::Denial {
    match request.ttl(TTL).try_acquire() {
        Err(AcquireError::Contended(denial)) => *denial,
        other => panic!("{other:?}"),
    }
}

// I74
#[test]
fn a_label_follows_the_token_in_the_value() {
    let mut fleet = Fleet::start(3);
    let (client, bare) = (labelled(&fleet), open(&fleet.urls(), LONG));
    let mut one = |request: LockRequest<'_>, label: Option<&str>| {
        let guard = request.ttl(TTL).acquire().expect("free");
        // The third master's `SET` may still be under way.
        let inspection = eventually_held(&client);
        assert_eq!(inspection.holder(), Some(guard.token().as_bytes().as_slice()));
        assert_eq!(inspection.holder_label(), label);
        let shown = format!("{inspection:#}");
        let expected =
            label.map_or_else(|| guard.token().to_string(), |it| format!("{} ({it})", guard.token()));
        assert!(shown.contains(&expected), "{shown}");
        assert!(!guard.release().expect("confirmed").was_already_gone());
        // Both kinds of release, native and by script, compare the whole value.
        for master in fleet.masters() {
            eventually(PATIENCE, "the key is released", || master.ask("EXISTS a").text() == "0");
        }
    };
    one(client.lock("a"), Some(LABEL));
    one(client.lock("a").fenced(), Some(LABEL));
    one(client.lock("a").fair(), Some(LABEL));
    one(client.lock("a").holder_label("job 7"), Some("job 7"));
    one(client.lock_owned("a").holder_label(String::from("job 8")), Some("job 8"));
    one(bare.lock("a"), None);
    assert_eq!(client.stats().holder_label.as_deref(), Some(LABEL));
    assert!(
        client
            .stats()
            .to_prometheus()
            .contains("redlatch_client_info{holder_label=\"web-3:4711:billing\"} 1")
    );
}

fn eventually_held(client: &Client) -> redlatch::inspection::Inspection {
    let mut found = None;
    eventually(PATIENCE, "all masters have it", || {
        let inspection = client.inspect("a").expect("an answer");
        let is_everywhere = inspection.masters.iter().all(|(_, state)| state.value().is_some());
        found = is_everywhere.then_some(inspection);
        is_everywhere
    });
    found.expect("it was found")
}

// I74
#[test]
fn a_refusal_names_the_holder() {
    let mut fleet = Fleet::start(3);
    let (client, other) = (labelled(&fleet), open(&fleet.urls(), LONG));
    for request in [client.lock("a"), client.lock("a").fenced(), client.lock("a").fair()] {
        let guard = request.ttl(TTL).acquire().expect("free");
        let denial = refusal(other.lock("a"));
        assert_eq!(denial.holder_label.as_deref(), Some(LABEL));
        let shown = AcquireError::Contended(Box::new(denial)).to_string();
        assert!(shown.contains("held by another client (web-3:4711:billing)"), "{shown}");
        // A waiting caller gets the label, too, although its last attempt may have no time to ask for it.
        let waited = other.lock("a").ttl(TTL).wait(Duration::from_millis(200)).acquire();
        let Err(AcquireError::Contended(denial)) = waited else { panic!("{waited:?}") };
        assert_eq!(denial.holder_label.as_deref(), Some(LABEL));
        guard.release().expect("confirmed");
        // A master that deletes the key late would refuse the next caller.
        fleet.masters().for_each(|master| drop(master.ask("DEL redlatch:fence:a")));
        await_no_keys(&mut fleet);
    }
    let guard = other.lock("a").ttl(TTL).acquire().expect("free");
    assert_eq!(refusal(client.lock("a")).holder_label, None, "it has none");
    guard.release().expect("confirmed");
    await_no_keys(&mut fleet);
    let reader = client.lock("a").shared().ttl(TTL).acquire().expect("free");
    let denial = refusal(other.lock("a"));
    assert_eq!((denial.held_by, denial.holder_label), (HeldBy::Readers(1), None), "readers are counted");
    reader.release().expect("confirmed");
}

#[test]
fn local_waiter_gets_its_own_label() {
    let fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let guard = client.lock("a").holder_label("job 7").ttl(TTL).acquire().expect("free");
    let waited = client.lock("a").ttl(TTL).wait(Duration::from_millis(50)).acquire();
    let Err(AcquireError::Contended(denial)) = waited else { panic!("{waited:?}") };
    assert_eq!((denial.held_by, denial.holder_label.as_deref()), (HeldBy::ThisClient, Some("job 7")));
    drop(guard);
}

#[test]
fn a_guard_says_for_whom_it_waited() {
    let mut fleet = Fleet::start(3);
    let (client, other) = (labelled(&fleet), open(&fleet.urls(), LONG));
    let first = client.lock("a").ttl(TTL).acquire().expect("free");
    assert_eq!((first.waited().attempts, first.waited().total), (1, Duration::ZERO), "at once");
    std::thread::scope(|scope| {
        let second = scope.spawn(|| other.lock("a").fenced().ttl(TTL).wait(PATIENCE).acquire());
        for master in fleet.masters() {
            eventually(PATIENCE, "it waits", || master.ask("ZCARD redlatch:wait:a").text() == "1");
        }
        // All masters have answered the client.
        eventually(PATIENCE, "all have answered", || {
            other.stats().masters.iter().all(|master| master.refused >= 2)
        });
        first.release().expect("confirmed");
        let guard = second.join().expect("no panic").expect("it gets it");
        let waited = guard.waited();
        let holder = waited.holder.as_ref().expect("it was reported");
        assert_eq!((holder.label.as_deref(), waited.attempts), (Some(LABEL), 2), "{waited:?}");
        assert!(waited.total >= waited.queued && waited.queued >= holder.time, "{waited:?}");
    });
}

/// A key as earlier versions and other libraries set it.
// I74
#[test]
fn labelled_and_bare_values_exclude_each_other() {
    let mut fleet = Fleet::start(3);
    let client = labelled(&fleet);
    fleet.masters().for_each(|master| drop(master.ask("SET a 01234567890123456789 NX PX 30000")));
    for request in
        [client.lock("a"), client.lock("a").fenced(), client.lock("a").fair(), client.lock("a").shared()]
    {
        refusal(request);
    }
    for master in fleet.masters() {
        assert_eq!(master.ask("GET a").text(), "01234567890123456789");
        master.ask("DEL a");
    }
    let guard = client.lock("a").ttl(TTL).acquire().expect("free");
    for master in fleet.masters() {
        eventually(PATIENCE, "it has the key", || master.ask("EXISTS a").text() == "1");
        assert_eq!(master.ask("SET a 01234567890123456789 NX PX 30000").text(), "nil");
    }
    guard.release().expect("confirmed");
    fleet.masters().for_each(|master| drop(master.ask("DEL redlatch:fence:a")));
    assert_nothing_left(&client, &mut fleet);
}

// I74
#[test]
fn bad_label_is_refused_before_sending() {
    let fleet = Fleet::start(1);
    let client = open(&fleet.urls(), LONG);
    let long = "x".repeat(65);
    for (label, expected) in [
        ("", InputError::LabelEmpty),
        (long.as_str(), InputError::LabelTooLong { size: 65 }),
        ("two\nlines", InputError::LabelUnprintable),
    ] {
        let result = client.lock("a").holder_label(label).acquire();
        assert_eq!(result.expect_err("a bad label"), AcquireError::Input(expected.clone()));
        let result = block_on(client.lock_owned("a").holder_label(label.to_owned()).acquire_async());
        assert_eq!(result.expect_err("a bad label"), AcquireError::Input(expected.clone()));
        let result = client.lock_set(["a", "b"]).holder_label(label.to_owned()).acquire();
        assert_eq!(result.expect_err("a bad label").source, AcquireError::Input(expected.clone()));
        let built = config(&fleet.urls(), LONG).holder_label(label).build();
        assert_eq!(built.expect_err("a bad label"), ConfigError::Input(expected));
    }
    assert_eq!(client.stats().acquired, 0);
    assert_eq!(client.inspect("a").expect("an answer").holder(), None);
}

#[test]
fn sets_and_reentrant_locks_have_labels() {
    let fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let set = client.lock_set(["a", "b"]).holder_label("job 7").ttl(TTL).acquire().expect("free");
    for name in ["a", "b"] {
        assert_eq!(client.inspect(name).expect("an answer").holder_label(), Some("job 7"));
    }
    set.release().expect("confirmed");
    let lock = client.lock("a").holder_label("job 8").ttl(TTL).reentrant();
    for _ in 0..2 {
        let guard = lock.lock().expect("free");
        assert_eq!(client.inspect("a").expect("an answer").holder_label(), Some("job 8"));
        guard.release().expect("confirmed");
    }
}
