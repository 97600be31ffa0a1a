//! Clients whose peers send replies that no Redis server sends.

use std::time::Duration;

use redlatch_support::{PATIENCE, eventually};

use crate::start;

#[test]
fn unreadable_slots_are_not_busy() {
    let double = start(3);
    let [holder, client] = [(); 2].map(|()| double.config().connect().expect("an event loop"));
    let held: Vec<_> = (0..2).map(|_| holder.slots("jobs", 2).try_acquire().expect("free")).collect();
    double.masters().for_each(|master| master.refuse("EVAL", "ERR unsupported command"));
    let error = client.slots("jobs", 2).try_acquire().expect_err("both are held");
    assert!(error.is_outage() && error.to_string().contains("ERR unsupported command"), "{error}");
    drop(held);
}

/// The client reports these masters when it connects.
#[test]
fn a_client_names_masters_without_scripts() {
    let double = start(3);
    double.master(1).refuse("EVAL", "ERR unsupported command");
    let client = double.config().connect().expect("an event loop");
    eventually(PATIENCE, "all are ready", || client.stats().ready() == 3);
    let warnings = client.health().masters.iter().map(|it| it.warnings.len()).collect::<Vec<_>>();
    assert_eq!(warnings, [0, 1, 0], "{}", client.health());
    let shown = format!("{:#}", client.health());
    assert!(shown.contains("it runs no scripts, so a lock stays there until its TTL ends"), "{shown}");
    assert!(client.lock("a").ttl(Duration::from_secs(1)).try_acquire().is_ok());
}
