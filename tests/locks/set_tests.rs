//! Several locks together: all or none, without deadlock, in whatever order they are named.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use redlatch::error::InputError;
use redlatch::{AcquireError, Cancel, Client, Guard, LockEnd, limits};
use redlatch_support::settle;
use redlatch_support::stage::Fleet;
use redlatch_support::{PATIENCE, block_on, eventually};

use crate::batch_tests::{assert_one_read, work};
use crate::harness::{
    LONG, SHORT, TTL, assert_nothing_left, await_subscribed, await_waiters, config, open, poll_once, within,
};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// The locks that no master holds.
fn free_names(fleet: &mut Fleet) -> Vec<&'static str> {
    let is_free = |name: &str, fleet: &mut Fleet| {
        fleet.masters().all(|master| master.ask(&format!("EXISTS {name}")).text() == "0")
    };
    NAMES.into_iter().filter(|name| is_free(name, fleet)).collect()
}

#[test]
fn a_free_set_is_one_write_per_master() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    await_subscribed(&mut fleet);
    for is_async in [false, true] {
        assert_eq!(settle(&client, PATIENCE), 0);
        let before = fleet.masters().map(work).collect::<Vec<_>>();
        // A repeated name counts once, and the names are sorted.
        let request = client.lock_set(["c", "a", "b", "a"]).ttl(TTL);
        let mut set =
            if is_async { block_on(request.acquire_async()) } else { request.acquire() }.expect("free");
        assert_one_read(&mut fleet, 3, &before, &format!("acquisition, async: {is_async}"));
        assert_eq!(set.resources().collect::<Vec<_>>(), [b"a", b"b", b"c"]);
        assert!(set.is_valid() && set.remaining() <= TTL && set.guards().len() == 3);
        let before = fleet.masters().map(work).collect::<Vec<_>>();
        if is_async { block_on(set.extend_async(TTL)) } else { set.extend(TTL) }.expect("held");
        assert_one_read(&mut fleet, 3, &before, &format!("extension, async: {is_async}"));
        let before = fleet.masters().map(work).collect::<Vec<_>>();
        let released = if is_async { block_on(set.release_async()) } else { set.release() };
        assert!(released.expect("confirmed").iter().all(|it| !it.was_already_gone()));
        assert_one_read(&mut fleet, 3, &before, &format!("release, async: {is_async}"));
    }
    assert_nothing_left(&client, &mut fleet);
}

// I77
#[test]
fn failed_set_names_the_lock_and_keeps_none() {
    let mut fleet = Fleet::start(3);
    let [client, other] = [(); 2].map(|()| open(&fleet.urls(), LONG));
    // All sets of the four locks, against each combination of locks that others hold.
    for held in 0..16_usize {
        let of = |bits: usize| (0..4).filter(move |it| bits >> it & 1 == 1).map(|it| NAMES[it]);
        let guards: Vec<_> = of(held).map(|it| other.lock(it).ttl(TTL).acquire().expect("free")).collect();
        for wanted in 1..16_usize {
            let request = client.lock_set(of(wanted)).ttl(TTL);
            let result = if wanted.is_multiple_of(2) {
                request.try_acquire()
            } else {
                block_on(request.wait(Duration::ZERO).acquire_async())
            };
            match (result, of(wanted & held).next()) {
                (Ok(set), None) => drop(set),
                (Err(error), Some(first)) => {
                    assert_eq!(error.resource, first.as_bytes());
                    assert!(matches!(error.source, AcquireError::Contended(_)), "{error}");
                }
                (result, first) => panic!("{wanted:b} of {held:b}: {result:?}, {first:?}"),
            }
            if wanted == 15 {
                assert_eq!(settle(&client, PATIENCE), 0);
                assert_eq!(free_names(&mut fleet), of(15 & !held).collect::<Vec<_>>());
            }
        }
        drop(guards);
        assert_eq!(settle(&other, PATIENCE), 0);
    }
    let too_many: Vec<String> = (0..=limits::SET_SIZE_MAX).map(|index| index.to_string()).collect();
    let error = client.lock_set(&too_many).acquire().expect_err("too many").source;
    assert_eq!(error, AcquireError::Input(InputError::SetTooLarge { count: limits::SET_SIZE_MAX + 1 }));
    let error = client.lock_set([""; 0]).acquire().expect_err("none").source;
    assert_eq!(error, AcquireError::Input(InputError::SetEmpty));
    assert!(matches!(
        client.lock_set(["a", ""]).acquire().expect_err("no name").source,
        AcquireError::Input(_)
    ));
    assert_nothing_left(&client, &mut fleet);
}

// I77
#[test]
fn nothing_is_held_while_a_set_waits() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    for is_async in [false, true] {
        let held = client.lock("b").ttl(TTL).acquire().expect("free");
        let its = client.clone();
        let waiting = thread::spawn(move || {
            let request = its.lock_set(["d", "c", "b", "a"]).ttl(TTL).wait(PATIENCE);
            if is_async { block_on(request.acquire_async()) } else { request.acquire() }
        });
        eventually(PATIENCE, "it waits in line", || settle(&client, Duration::ZERO) == 1);
        for _ in 0..20 {
            thread::sleep(Duration::from_millis(5));
            assert!(!waiting.is_finished());
        }
        assert_eq!(free_names(&mut fleet), ["a", "c", "d"], "async: {is_async}");
        drop(held);
        let set = waiting.join().expect("no panic").expect("all are free");
        assert_eq!(set.guards().len(), 4);
        // The lock that the set waited for was granted before the others.
        let ends: Vec<Instant> = set.guards().iter().map(Guard::valid_until).collect();
        assert!(ends.iter().min() < ends.iter().max() && ends.iter().min() == Some(&set.valid_until()));
        drop(set);
        assert_eq!(settle(&client, PATIENCE), 0);
    }
    // The wait ends in time, and the error names the lock that it waited for.
    let held = client.lock("c").ttl(TTL).acquire().expect("free");
    let begun = Instant::now();
    let error = client.lock_set(["a", "c"]).ttl(TTL).wait(SHORT).acquire().expect_err("held");
    assert!(error.resource == "c" && begun.elapsed() >= SHORT / 2 && begun.elapsed() < PATIENCE, "{error}");
    drop(held);
    assert_nothing_left(&client, &mut fleet);
}

#[test]
fn set_rounds_do_not_limit_one_locks_attempts() {
    let mut fleet = Fleet::start(3);
    let other = open(&fleet.urls(), LONG);
    // A parked attempt would not try again.
    let settings = config(&fleet.urls(), LONG).wake_waiters(false).build().expect("valid settings");
    let client = Client::open(settings).expect("an event loop");
    let held = other.lock("b").ttl(TTL).acquire().expect("free");
    let request = client.lock_set(["a", "b"]).ttl(TTL).wait(PATIENCE).max_attempts(2);
    let waiting = thread::spawn(move || request.acquire());
    eventually(PATIENCE, "it tries on", || waiting.is_finished() || client.stats().retries > 5);
    assert!(!waiting.is_finished());
    drop(held);
    assert_eq!(waiting.join().expect("no panic").expect("both are free").guards().len(), 2);
    assert_eq!(settle(&other, PATIENCE), 0);
    assert_nothing_left(&client, &mut fleet);
}

/// A pause may be longer than the rest of the wait.
#[test]
fn deadline_and_cancel_end_a_sets_pause() {
    let mut fleet = Fleet::start(3);
    let hour = Duration::from_secs(3600);
    let settings = config(&fleet.urls(), LONG).retry_delay(hour..=hour).build().expect("valid settings");
    let client = Client::open(settings).expect("an event loop");
    fleet.masters().for_each(|master| master.kill());
    eventually(PATIENCE, "all are down", || client.health().to_string().starts_with("0 of 3"));
    let request = client.lock_set(["a", "b"]).ttl(TTL).wait(SHORT);
    let error = within("the end of the wait", move || request.acquire().expect_err("no master"));
    assert!(matches!(error.source, AcquireError::NoQuorum(_)), "{error}");
    let cancel = Cancel::new();
    let request = client.lock_set(["a", "b"]).ttl(TTL).wait(hour).cancel_with(&cancel);
    let waiting = thread::spawn(move || request.acquire().expect_err("no master"));
    eventually(PATIENCE, "it pauses", || client.stats().no_quorum >= 4);
    cancel.cancel();
    let error = within("the cancel", move || waiting.join().expect("no panic"));
    assert!(matches!(error.source, AcquireError::Cancelled), "{error}");
}

#[test]
fn contention_at_a_waits_end_is_no_outage() {
    let mut fleet = Fleet::start(3);
    let [client, other] = [(); 2].map(|()| open(&fleet.urls(), LONG));
    let held = other.lock("c").ttl(TTL).acquire().expect("free");
    for wait_us in (0..8000).step_by(50) {
        let request = client.lock_set(["a", "c"]).ttl(TTL).wait(Duration::from_micros(wait_us));
        let error = request.acquire().expect_err("held");
        assert!(matches!(error.source, AcquireError::Contended(_)) && error.resource == "c", "{error}");
    }
    drop(held);
    assert_eq!(settle(&other, PATIENCE), 0);
    assert_nothing_left(&client, &mut fleet);
}

#[test]
fn failed_leave_names_the_first_lock() {
    let fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let set = client.lock_set(["b", "a", "c"]).ttl(Duration::from_millis(300)).acquire().expect("free");
    thread::sleep(Duration::from_millis(400));
    assert_eq!(set.leave().expect_err("they have expired").resource, "a");
}

#[test]
fn one_lost_lock_loses_the_set_once() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let ttl = Duration::from_millis(2700);
    let mut set = client.lock_set(["a", "b"]).ttl(ttl).auto_extend(PATIENCE * 10).acquire().expect("free");
    let notified_count = Arc::new(AtomicUsize::new(0));
    let count = notified_count.clone();
    set.on_lost(move || {
        count.fetch_add(1, Ordering::SeqCst);
    });
    assert!(set.is_valid());
    fleet.masters().for_each(|master| drop(master.ask("SET b somebody-else")));
    block_on(set.lost());
    eventually(PATIENCE, "it is over", || !set.is_valid());
    eventually(PATIENCE, "the callback", || notified_count.load(Ordering::SeqCst) == 1);
    assert_eq!(set.remaining(), Duration::ZERO);
    let error = set.extend(ttl).expect_err("one is lost");
    assert_eq!(error.resource, "b");
    drop(set);
    fleet.masters().for_each(|master| drop(master.ask("DEL b")));
    assert_eq!(notified_count.load(Ordering::SeqCst), 1);
    assert_nothing_left(&client, &mut fleet);
}

#[test]
fn set_margin_is_its_weakest_locks() {
    let mut fleet = Fleet::start(3);
    assert_eq!(fleet.master(2).ask("SET b foreign PX 600000").text(), "OK");
    let client = open(&fleet.urls(), LONG);
    let set = client.lock_set(["a", "b", "c"]).ttl(TTL).acquire().expect("free on a quorum");
    for place in [0, 2] {
        eventually(PATIENCE, "all masters have it", || set.guards()[place].margin() == 1);
    }
    assert_eq!(set.margin(), 0);
}

/// As docs/faq.md says: clients that name the keys of both prefixes exclude clients of the old and of the new
/// prefix.
#[test]
fn a_prefix_changes_without_a_stop() {
    let mut fleet = Fleet::start(3);
    let with = |prefix: &str| config(&fleet.urls(), LONG).prefix(prefix).connect().expect("an event loop");
    let [old, between, new] = ["old:", "", "new:"].map(with);
    let both = || between.lock_set(["old:a", "new:a"]).ttl(TTL).wait(Duration::ZERO).acquire();
    for one in [&old, &new] {
        let held = one.lock("a").ttl(TTL).try_acquire().expect("free");
        assert!(matches!(both().expect_err("held").source, AcquireError::Contended(_)));
        held.release().expect("confirmed");
        let held = both().expect("free");
        assert!(matches!(one.lock("a").ttl(TTL).try_acquire(), Err(AcquireError::Contended(_))));
        held.release().expect("confirmed");
    }
    let waits = thread::scope(|scope| {
        let held = both().expect("free");
        let waiter = scope.spawn(|| new.lock("a").ttl(TTL).wait(PATIENCE).acquire().is_ok());
        eventually(PATIENCE, "the waiter asked", || {
            new.stats().retries > 0
                || new.stats().notified > 0
                || fleet.master(0).ask("EXISTS new:redlatch:wait:a").text() == "1"
        });
        held.release().expect("confirmed");
        waiter.join().expect("no panic")
    });
    assert!(waits, "it gets the lock that the set releases");
}

/// Awaits the future. Returns the panic of the next poll.
fn polled_again(future: impl Future) -> String {
    let mut future = pin!(future);
    drop(block_on(future.as_mut()));
    let again = catch_unwind(AssertUnwindSafe(|| poll_once(&mut future).is_ready()));
    let why = again.expect_err("there is no other answer");
    (*why.downcast_ref::<&str>().expect("a message")).to_owned()
}

#[test]
fn acquisition_is_answered_once() {
    let fleet = Fleet::start(3);
    let [client, other] = [open(&fleet.urls(), LONG), open(&fleet.urls(), LONG)];
    for is_held in [false, true] {
        let _held = is_held.then(|| {
            let slot = other.slots("pool", 1).ttl(TTL).wait(PATIENCE).acquire().expect("it is free soon");
            let set = other.lock_set(["a", "b"]).ttl(TTL).wait(PATIENCE).acquire();
            (slot, set.expect("they are free soon"))
        });
        let lock = polled_again(client.lock("a").ttl(TTL).try_acquire_async());
        let set = polled_again(client.lock_set(["a", "b"]).ttl(TTL).try_acquire_async());
        let slot = polled_again(client.slots("pool", 1).ttl(TTL).try_acquire_async());
        assert_eq!([lock, set, slot], ["polled after it was ready"; 3], "{is_held}");
    }
}

#[test]
fn cancel_ends_a_sets_wait() {
    let mut fleet = Fleet::start(3);
    let [client, other] = [open(&fleet.urls(), LONG), open(&fleet.urls(), LONG)];
    let _held = other.lock("b").ttl(TTL).acquire().expect("free");
    for is_async in [false, true] {
        let cancel = Cancel::new();
        let request = client.lock_set(["a", "b"]).ttl(TTL).wait(PATIENCE * 10).cancel_with(&cancel);
        let waiting = thread::spawn(move || {
            let result = if is_async { block_on(request.acquire_async()) } else { request.acquire() };
            result.expect_err("held")
        });
        await_waiters(&mut fleet, 0..3, "b", 1);
        cancel.cancel();
        let error = within("the cancel", move || waiting.join().expect("no panic"));
        assert!(matches!(error.source, AcquireError::Cancelled), "{error}");
        await_waiters(&mut fleet, 0..3, "b", 0);
    }
}

#[test]
fn a_set_ends_with_its_first_lock() {
    let fleet = Fleet::start(1);
    let client = open(&fleet.urls(), LONG);
    let set = client.lock_set(["a", "b"]).ttl(TTL).acquire().expect("both are free");
    let mut lost = set.lost();
    assert!(poll_once(&mut lost).is_pending());
    let mut guards = set.into_guards();
    guards.pop().expect("two").release().expect("confirmed");
    assert_eq!(poll_once(&mut lost), Poll::Ready(LockEnd::Released));
}

#[test]
fn one_lost_lock_makes_the_set_lost() {
    let mut fleet = Fleet::start(1);
    let client = open(&fleet.urls(), LONG);
    for lost in [0, 1] {
        let set = client.lock_set(["a", "b"]).ttl(TTL).acquire().expect("both are free");
        let mut end = set.lost();
        assert!(poll_once(&mut end).is_pending());
        let mut guards = set.into_guards();
        let released = guards.remove(1 - lost);
        let mut lost = guards.remove(0);
        fleet.master(0).ask(&format!("DEL {}", lost.resource_str().expect("text")));
        lost.extend(TTL).expect_err("it is lost");
        released.release().expect("confirmed");
        assert_eq!(poll_once(&mut end), Poll::Ready(LockEnd::Lost), "{lost:?}");
    }
}

#[test]
fn the_largest_set_is_acquired() {
    let fleet = Fleet::start(1);
    let names = (0..limits::SET_SIZE_MAX).map(|number| format!("lock {number}"));
    let set = open(&fleet.urls(), LONG).lock_set(names).ttl(TTL).try_acquire().expect("all are free");
    assert_eq!(set.guards().len(), limits::SET_SIZE_MAX);
}
