//! Acquisitions that fail before their wait ends, and acquisitions that outlast an outage, with each kind of
//! request: errors come at once, no request repeats without a pause, and other tasks of the thread make
//! progress.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use redlatch::error::LockReentrantError;
use redlatch::{AcquireError, Client, Config, LockRequest, Quarantine};
use redlatch_support::settle;
use redlatch_support::stage::{Fleet, Master};
use redlatch_support::{PATIENCE, block_on, eventually};

use crate::batch_tests::work;
use crate::harness::{Count, LONG, TTL, await_held, config, open, within};

/// Each caller's wait. No caller may use it up.
const FOREVER: Duration = Duration::from_secs(3600);

type Asking = Pin<Box<dyn Future<Output = Result<(), AcquireError>>>>;

/// A way to request the lock "a", as a task and as a thread.
struct Way {
    name: &'static str,
    task: fn(LockRequest<'static>) -> Asking,
    thread: fn(LockRequest<'static>) -> Result<(), AcquireError>,
}

fn source(error: LockReentrantError) -> AcquireError {
    match error {
        LockReentrantError::Acquire(error) => error,
        error => panic!("{error}"),
    }
}

const WAYS: [Way; 6] = [
    Way {
        name: "a plain lock",
        task: |request| Box::pin(async { request.acquire_async().await.map(drop) }),
        thread: |request| request.acquire().map(drop),
    },
    Way {
        name: "a fenced lock",
        task: |request| Box::pin(async { request.fenced().acquire_async().await.map(drop) }),
        thread: |request| request.fenced().acquire().map(drop),
    },
    Way {
        name: "a fair lock",
        task: |request| Box::pin(async { request.fair().acquire_async().await.map(drop) }),
        thread: |request| request.fair().acquire().map(drop),
    },
    Way {
        name: "a reader",
        task: |request| Box::pin(async { request.shared().acquire_async().await.map(drop) }),
        thread: |request| request.shared().acquire().map(drop),
    },
    Way {
        name: "a kept lock",
        task: |request| Box::pin(async { request.auto_extend(TTL).acquire_async().await.map(drop) }),
        thread: |request| request.auto_extend(TTL).acquire().map(drop),
    },
    Way {
        name: "a reentrant lock",
        task: |request| Box::pin(async { request.reentrant().lock_async().await.map(drop).map_err(source) }),
        thread: |request| request.reentrant().lock().map(drop).map_err(source),
    },
];

/// Requests as a task and as a thread; neither may hang.
fn errors_of(way: &'static Way, ask: impl Fn() -> LockRequest<'static>) -> Vec<AcquireError> {
    let (task, thread) = (ask(), ask());
    within(way.name, move || {
        [block_on((way.task)(task)), (way.thread)(thread)].map(|it| it.expect_err(way.name)).to_vec()
    })
}

fn attempts(client: &Client) -> u64 {
    let stats = client.stats();
    stats.acquired + stats.contended + stats.no_quorum + stats.expired + stats.overloaded + stats.retries
}

fn commands(fleet: &mut Fleet) -> usize {
    fleet.masters().map(|master| work(master).command_count).sum()
}

/// No lock is left. Fences stay.
fn assert_nothing_locked<const N: usize>(clients: [&Client; N], fleet: &mut Fleet) {
    assert!(clients.iter().all(|client| settle(client, PATIENCE) == 0), "locks left on some master");
    for master in fleet.masters() {
        let keys = master.keys();
        assert!(keys == "[]" || keys == "[redlatch:fence:a]", "{keys}");
    }
}

// I83
#[test]
fn max_attempts_counts_for_each_joined_caller() {
    let mut fleet = Fleet::start(3);
    let [client, other] = [(); 2].map(|()| open(&fleet.urls(), LONG));
    let held = other.lock("a").ttl(TTL).acquire().expect("free");
    await_held(&mut fleet, "a");
    // A fair waiter's place in the queues counts as one attempt until the wait ends.
    for way in WAYS.iter().filter(|way| way.name != "a fair lock") {
        let (attempts_before, commands_before) = (attempts(&client), commands(&mut fleet));
        let ask = || client.lock_owned("a").ttl(TTL).wait(FOREVER).max_attempts(1);
        for error in errors_of(way, ask) {
            assert!(matches!(error, AcquireError::Contended(_)), "{}: {error}", way.name);
        }
        let made = attempts(&client) - attempts_before;
        assert_eq!(made, 2, "{}: attempts of two callers", way.name);
        // An attempt and its release, each perhaps twice, if a master did not know the script.
        let sent = commands(&mut fleet) - commands_before;
        assert!(sent <= 2 * 3 * 6, "{}: {sent} commands", way.name);
    }
    for is_task in [false, true] {
        let before = attempts(&client);
        let request = client.lock_set(["a", "b"]).ttl(TTL).wait(FOREVER).max_attempts(1);
        let error = within("a set", move || {
            if is_task { block_on(request.acquire_async()) } else { request.acquire() }.expect_err("held")
        });
        assert!(matches!(error.source, AcquireError::Contended(_)), "{error}");
        assert_eq!(attempts(&client) - before, 2, "one for each lock of the set");
    }
    let taken = other.slots("pool", 1).ttl(TTL).acquire().expect("free");
    for is_task in [false, true] {
        let before = attempts(&client);
        let request = client.slots("pool", 1).ttl(TTL).wait(FOREVER).max_attempts(1);
        let error = within("a slot", move || {
            if is_task { block_on(request.acquire_async()) } else { request.acquire() }.expect_err("taken")
        });
        assert!(matches!(error, AcquireError::Contended(_)), "{error}");
        assert_eq!(attempts(&client) - before, 1, "attempts for a slot");
    }
    drop(taken);
    drop(held);
    assert_nothing_locked([&client, &other], &mut fleet);
}

/// A client whose masters are all in a long quarantine.
fn quarantined(fleet: &Fleet) -> Config {
    config(&fleet.urls(), LONG)
        .quarantine(Quarantine::Uptime)
        .max_ttl(2 * FOREVER)
        .build()
        .expect("valid settings")
}

// I83
#[test]
fn quarantine_beyond_the_wait_fails_at_once() {
    let mut fleet = Fleet::start(3);
    fleet.masters().for_each(Master::restart);
    let client = Client::open(quarantined(&fleet)).expect("an event loop");
    eventually(PATIENCE, "all are connected", || {
        client
            .health()
            .masters
            .iter()
            .all(|it| matches!(it.state, redlatch::status::MasterState::Quarantined(_)))
    });
    for way in &WAYS {
        let before = attempts(&client);
        for error in errors_of(way, || client.lock_owned("a").ttl(TTL).wait(FOREVER)) {
            assert!(matches!(error, AcquireError::NoQuorum(_)), "{}: {error}", way.name);
        }
        let made = attempts(&client) - before;
        assert!(made <= 4, "{}: {made} attempts of two callers", way.name);
    }
    for is_task in [false, true] {
        let before = attempts(&client);
        let request = client.lock_set(["a", "b"]).ttl(TTL).wait(FOREVER);
        let error = within("a set", move || {
            if is_task { block_on(request.acquire_async()) } else { request.acquire() }.expect_err("held")
        });
        assert!(matches!(error.source, AcquireError::NoQuorum(_)), "{error}");
        let made = attempts(&client) - before;
        assert!(made <= 4, "{made} attempts of one set");
    }
    for is_task in [false, true] {
        let before = attempts(&client);
        let request = client.slots("pool", 2).ttl(TTL).wait(FOREVER);
        let error = within("a slot", move || {
            if is_task { block_on(request.acquire_async()) } else { request.acquire() }.expect_err("held")
        });
        assert!(matches!(error, AcquireError::NoQuorum(_)), "{error}");
        let made = attempts(&client) - before;
        assert!(made <= 4, "{made} attempts for one slot");
    }
    assert_nothing_locked([&client], &mut fleet);
}

/// Polls a task that outlasts an outage, like an executor with one thread, until it has made some attempts. A
/// poll that does not return would hang.
fn goes_on_in_an_outage(name: &str, client: &Client, mut asking: Asking) {
    const ATTEMPTS: u64 = 8;
    let (begun, before) = (Instant::now(), attempts(client));
    let woken = Arc::new(Count::default());
    let waker = Waker::from(woken.clone());
    let mut polled_at = None;
    while attempts(client) - before < ATTEMPTS {
        let count = woken.get();
        if polled_at != Some(count) {
            polled_at = Some(count);
            let polled = asking.as_mut().poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending(), "{name}: {polled:?}");
        }
        // Stands for other work of this thread.
        std::thread::yield_now();
        assert!(begun.elapsed() < PATIENCE, "{name}: it does not try again");
    }
    let made = u128::from(attempts(client) - before);
    // Each pause lasts at least a millisecond. A set requests two locks at once.
    assert!(made <= 2 * (begun.elapsed().as_millis() + 2), "{name}: {made} attempts without a pause");
}

// I83
#[test]
fn waiting_task_blocks_no_other_during_outage() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    (1..3).for_each(|index| fleet.master(index).kill());
    eventually(PATIENCE, "they are missed", || {
        client.stats().masters.iter().filter(|it| it.is_ready).count() == 1
    });
    let its = client.clone();
    within("a poll", move || {
        for way in &WAYS {
            let request = its.lock_owned("a").ttl(TTL).wait(FOREVER);
            goes_on_in_an_outage(way.name, &its, (way.task)(request));
        }
        let set = its.lock_set(["a", "b"]).ttl(TTL).wait(FOREVER);
        let set = async { set.acquire_async().await.map(drop).map_err(|error| error.source) };
        goes_on_in_an_outage("a set", &its, Box::pin(set));
        let slot = its.slots("pool", 2).ttl(TTL).wait(FOREVER);
        goes_on_in_an_outage("a slot", &its, Box::pin(async { slot.acquire_async().await.map(drop) }));
        let candidate = its.lead("a").ttl(TTL);
        let campaign = candidate.campaign_async();
        goes_on_in_an_outage("a candidate", &its, Box::pin(async { campaign.await.map(drop) }));
    });
    (1..3).for_each(|index| fleet.master(index).restart());
    drop(client.lock("b").ttl(TTL).wait(PATIENCE).acquire().expect("they are back"));
    eventually(PATIENCE, "nothing is left", || client.stats().claims == 0);
}
