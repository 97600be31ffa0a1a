//! Requests, futures and guards that are stored, sent to other threads and spawned.

use std::task::Poll;
use std::thread;

use redlatch::error::InputError;
use redlatch::{AcquireError, Cancel, Client, Guard, LockEnd, LockRequest, LockSetRequest, Options};
use redlatch_support::settle;
use redlatch_support::stage::Fleet;
use redlatch_support::{PATIENCE, block_on, eventually};

use crate::harness::{LONG, TTL, assert_nothing_left, open, poll_once, within};

/// What a service may store.
struct Job {
    request: LockRequest<'static>,
    guard: Option<Guard>,
}

impl Job {
    fn start(&mut self) -> Result<(), AcquireError> {
        self.guard = Some(self.request.clone().try_acquire()?);
        Ok(())
    }
}

#[test]
fn a_struct_stores_a_request_and_its_guard() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    for request in [client.lock_owned("a").ttl(TTL), client.lock(String::from("a")).ttl(TTL).into_owned()] {
        let mut job = Job { request, guard: None };
        job.start().expect("free");
        let error = job.request.clone().try_acquire().expect_err("held");
        assert!(matches!(error, AcquireError::Contended(_)), "{error}");
        let guard = job.guard.take().expect("it holds the lock");
        assert_eq!((guard.resource_str(), guard.resource_owned().as_ref()), (Some("a"), b"a".as_slice()));
        guard.release().expect("confirmed");
        job.start().expect("free again");
        drop(job);
        assert_nothing_left(&client, &mut fleet);
    }
}

#[test]
fn guards_share_the_name_of_an_owned_request() {
    let fleet = Fleet::start(1);
    let client = open(&fleet.urls(), LONG);
    let name = bytes::Bytes::from(vec![b'a'; 100]);
    let guard = client.lock_owned(name.clone()).ttl(TTL).acquire().expect("free");
    assert_eq!(guard.resource().as_ptr(), name.as_ptr(), "a copy");
    assert_eq!(guard.resource_owned().as_ptr(), name.as_ptr(), "a copy");
    let lent = client.lock("lent").ttl(TTL).acquire().expect("free");
    assert_eq!((lent.resource_owned().as_ref(), lent.resource()), (b"lent".as_slice(), b"lent".as_slice()));
    drop(lent);
    let guard = client.lock_owned(vec![0xff]).ttl(TTL).acquire().expect("free");
    assert_eq!(guard.resource_str(), None);
}

#[test]
fn awaited_request_returns_its_guard() {
    let fleet = Fleet::start(1);
    let client = open(&fleet.urls(), LONG);
    let guard = block_on(async { client.lock("a").ttl(TTL).await }).expect("free");
    let refused = block_on(async { client.lock("a").ttl(TTL).wait(std::time::Duration::ZERO).await });
    assert!(refused.expect_err("held").is_contended());
    guard.release().expect("confirmed");
}

#[test]
fn an_owned_acquisition_is_spawned() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let names = (0..20).map(|index| format!("orders:{}", index % 7));
    let tasks: Vec<_> = names
        .map(|name| client.lock_owned(name).ttl(TTL).wait(PATIENCE).acquire_async())
        .map(|acquiring| {
            runtime.spawn(async move {
                let guard = acquiring.await.expect("free in time");
                guard.release_async().await.expect("confirmed");
            })
        })
        .collect();
    tasks.into_iter().for_each(|task| runtime.block_on(task).expect("no panic"));
    let prices = client.rw_lock(String::from("prices"));
    let reader = runtime.spawn(prices.read().ttl(TTL).acquire_async());
    drop(runtime.block_on(reader).expect("no panic").expect("free"));
    let set = runtime.spawn(client.lock_set(["b", "a"]).ttl(TTL).acquire_async());
    drop(runtime.block_on(set).expect("no panic").expect("free"));
    assert_nothing_left(&client, &mut fleet);
}

#[test]
fn a_set_takes_names_of_any_kind() {
    let fleet = Fleet::start(1);
    let client = open(&fleet.urls(), LONG);
    let strings = [String::from("b"), String::from("a")];
    let names = |set: LockSetRequest| {
        let set = set.ttl(TTL).acquire().expect("free");
        let names: Vec<Vec<u8>> = set.resources().map(<[u8]>::to_vec).collect();
        set.release().expect("confirmed");
        names
    };
    let sets = [
        client.lock_set(strings.clone()),
        client.lock_set(strings.to_vec()),
        client.lock_set(&strings),
        client.lock_set(["a", "b"]),
        client.lock_set(["b", "a", "b"].as_slice()),
        client.lock_set(vec![b"b".to_vec(), b"a".to_vec()]),
        client.lock_set(strings.iter().map(String::as_str)),
    ];
    for set in sets {
        assert_eq!(names(set), [b"a", b"b"]);
    }
}

#[test]
fn a_set_cannot_be_fair() {
    let fleet = Fleet::start(1);
    let client = open(&fleet.urls(), LONG);
    let error = client.lock_set(["a", "b"]).options(Options::new().fair()).acquire().expect_err("refused");
    assert_eq!(error.source, AcquireError::Input(InputError::SetFair));
}

#[test]
fn a_release_ends_the_wait_for_a_loss() {
    let fleet = Fleet::start(1);
    let client = open(&fleet.urls(), LONG);
    let release: [fn(Guard); 2] = [drop, |guard| assert!(guard.release().is_ok())];
    for release in release {
        let guard = client.lock("a").ttl(TTL).acquire().expect("free");
        let set = client.lock_set(["b", "c"]).ttl(TTL).acquire().expect("free");
        let (lost, set_lost) = (guard.lost(), set.lost());
        let late = guard.lost();
        let watching = [thread::spawn(|| block_on(lost)), thread::spawn(|| block_on(set_lost))];
        release(guard);
        drop(set);
        for watching in watching {
            assert_eq!(watching.join().expect("no panic"), LockEnd::Released);
        }
        assert_eq!(block_on(late), LockEnd::Released, "it was first polled after the release");
    }
}

/// A request for a lock that is held.
fn wait_for_held(client: &Client) -> (Guard, LockRequest<'static>) {
    let held = client.lock("a").ttl(TTL).acquire().expect("free");
    (held, client.lock_owned("a").ttl(TTL).wait(PATIENCE * 10))
}

#[test]
fn another_thread_cancels_an_acquisition() {
    let mut fleet = Fleet::start(3);
    let clients = [open(&fleet.urls(), LONG), open(&fleet.urls(), LONG)];
    for client in &clients {
        // Cancelled in the queue inside the same client, and in the masters' queues.
        let held = clients[0].lock("a").ttl(TTL).acquire().expect("free");
        let cancel = Cancel::new();
        let request = client.lock_owned("a").ttl(TTL).wait(PATIENCE * 10).cancel_with(&cancel);
        let set = client.lock_set(["a", "b"]).ttl(TTL).wait(PATIENCE * 10).cancel_with(&cancel);
        let waiting = [
            thread::spawn({
                let request = request.clone();
                move || request.acquire().map(drop)
            }),
            thread::spawn({
                let request = request.clone();
                move || block_on(request.acquire_async()).map(drop)
            }),
            thread::spawn(move || set.acquire().map(drop).map_err(|error| error.source)),
        ];
        let are_waiting =
            || (3..9).any(|count| format!("{cancel:?}").contains(&format!("waiting_count: {count}")));
        eventually(PATIENCE, "all three wait", are_waiting);
        cancel.cancel();
        for waiting in waiting {
            let result = within("a cancelled wait", move || waiting.join()).expect("no panic");
            assert_eq!(result, Err(AcquireError::Cancelled));
        }
        assert_eq!(request.try_acquire().map(drop), Err(AcquireError::Cancelled), "it stays cancelled");
        assert!(cancel.is_cancelled() && held.is_valid());
        drop(held);
        eventually(PATIENCE, "nothing is left of them", || settle(client, PATIENCE) == 0);
    }
    assert_nothing_left(&clients[0], &mut fleet);
}

/// The future may be dropped much later.
#[test]
fn cancel_gives_up_although_future_is_kept() {
    let fleet = Fleet::start(3);
    let (client, other) = (open(&fleet.urls(), LONG), open(&fleet.urls(), LONG));
    let held = other.lock("a").ttl(TTL).acquire().expect("free");
    let cancel = Cancel::new();
    let mut waiting = client.lock("a").ttl(TTL).wait(PATIENCE).cancel_with(&cancel).acquire_async();
    assert!(poll_once(&mut waiting).is_pending());
    cancel.cancel();
    assert!(matches!(poll_once(&mut waiting), Poll::Ready(Err(AcquireError::Cancelled))));
    eventually(PATIENCE, "it waits no longer", || client.stats().operations == 0);
    held.release().expect("confirmed");
    drop(waiting);
}

#[test]
fn an_uncancelled_handle_changes_nothing() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let cancel = Cancel::new();
    let guard = client.lock("b").ttl(TTL).cancel_with(&cancel).acquire().expect("free");
    let (held, request) = wait_for_held(&client);
    let waiting = thread::spawn({
        let request = request.cancel_with(&cancel);
        move || request.acquire()
    });
    drop(held);
    let passed_on = within("a wait", move || waiting.join()).expect("no panic").expect("free");
    cancel.cancel();
    assert!(guard.is_valid() && passed_on.is_valid(), "a lock that was handed out is not affected");
    drop((guard, passed_on));
    assert_nothing_left(&client, &mut fleet);
}
