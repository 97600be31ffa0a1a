//! Clients after an idle time.

use std::thread;
use std::time::Duration;

use redlatch::limits;
use redlatch_support::stage::Fleet;
use redlatch_support::{PATIENCE, block_on, eventually};

use crate::harness::{LONG, TTL, await_connections, config, open};

#[test]
fn closed_idle_connections_are_made_again() {
    let Some(mut fleet) = Fleet::servers(3) else { return };
    // A long limit, so that no connection's deadline makes the client's thread look.
    let builder = config(&fleet.urls(), LONG).connect_timeout(Duration::from_secs(3600));
    let client = builder.connect().expect("an event loop");
    await_connections(&mut fleet, 1);
    for master in fleet.masters() {
        assert_eq!(master.ask("CLIENT KILL SKIPME yes").text(), "1");
    }
    await_connections(&mut fleet, 1);
    // A task does not wait for connections, so its first call after a quiet night would fail although the
    // masters are healthy.
    eventually(PATIENCE, "the connections vote", || {
        block_on(client.lock("a").ttl(TTL).wait(Duration::ZERO).acquire_async()).is_ok()
    });
}

#[test]
fn closed_idle_connections_fail_no_blocking_call() {
    let Some(mut fleet) = Fleet::servers(3) else { return };
    let client = open(&fleet.urls(), LONG);
    // A slow machine may need several tries.
    eventually(PATIENCE, "a call on healthy masters succeeds", || {
        // The client's own thread looks a second after this call.
        let _held = client.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("free");
        for master in fleet.masters() {
            assert_eq!(master.ask("CLIENT KILL SKIPME yes").text(), "1");
        }
        thread::sleep(limits::IDLE_MAX);
        client.lock("b").ttl(TTL).try_acquire().is_ok()
    });
}
