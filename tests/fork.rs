//! A fork of a process cannot use its clients, whatever its threads were doing: calls are errors at once, drops do nothing.
//!
//! The child has one thread and copies of all locks as they were, so the program forks from its only thread but the
//! keeper's, with no test harness around; the child says by its exit code how it went.

#[path = "masters/fleet.rs"]
mod fleet;

use std::panic::catch_unwind;
use std::pin::Pin;
use std::process;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fleet::Fleet;
use fork::{Fork, fork, waitpid};
use redlatch::{Acquire, AcquireError, Client, Config, ExtendError, Guard, Quarantine, ReleaseError};

const TTL: Duration = Duration::from_secs(30);

fn main() {
    let mut fleet = Fleet::start(3);
    let config = Config::builder().masters(fleet.urls()).quarantine(Quarantine::Trust);
    let client = Client::open(config.build().expect("valid settings")).expect("an event loop");
    let [kept, child_extends, child_releases] =
        ["a", "b", "c"].map(|name| client.lock(name).ttl(TTL).acquire().expect("free"));
    // The keeper has something to do, at any of whose steps the fork may come.
    let mut waiting = client.lock("a").wait(TTL).acquire_async();
    assert!(poll(&mut waiting).is_pending());
    match fork().expect("the system forks") {
        Fork::Child => {
            let is_refused = catch_unwind(std::panic::AssertUnwindSafe(|| {
                refused_in_child(&client, waiting, kept, child_extends, child_releases);
            }));
            drop(client);
            // Not by returning: the servers are the parent's to end.
            process::exit(i32::from(is_refused.is_err()));
        }
        Fork::Parent(child) => {
            let status = waitpid(child).expect("the child ends");
            assert_eq!(status, 0, "what the child says is above");
        }
    }
    // The parent has all it had.
    assert_eq!(fleet.master(0).ask("DBSIZE").text(), "3");
    drop(waiting);
    assert!(kept.is_valid());
    for guard in [kept, child_extends, child_releases] {
        assert!(!guard.release().expect("confirmed").was_already_gone());
    }
    assert_eq!(client.settle(TTL), 0);
    println!("test a_fork_is_refused_and_its_drops_do_nothing ... ok");
}

fn poll(acquiring: &mut Acquire<'_>) -> Poll<Result<Guard, AcquireError>> {
    Pin::new(acquiring).poll(&mut Context::from_waker(Waker::noop()))
}

fn refused_in_child(
    client: &Client,
    mut waiting: Acquire<'_>,
    kept: Guard,
    mut extended: Guard,
    released: Guard,
) {
    assert!(matches!(client.lock("d").acquire(), Err(AcquireError::Stopped(_))));
    assert!(matches!(
        poll(&mut client.lock("d").acquire_async()),
        Poll::Ready(Err(AcquireError::Stopped(_)))
    ));
    assert!(
        matches!(poll(&mut waiting), Poll::Ready(Err(AcquireError::Stopped(_)))),
        "polled before the fork"
    );
    assert!(!kept.is_valid() && kept.remaining().is_zero() && kept.margin() == 0);
    assert!(matches!(extended.extend(TTL), Err(ExtendError::Stopped(_))));
    assert!(matches!(released.release(), Err(ReleaseError::Stopped(_))));
    assert!(client.masters().is_empty());
    assert_eq!(client.settle(TTL), 0);
    drop((kept, extended, waiting));
    drop(client.clone());
}
