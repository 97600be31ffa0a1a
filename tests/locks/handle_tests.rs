//! Locks that pass to another client through a handle.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, SystemTime};

use redlatch::error::{AdoptError, ForeignHandle, ReleaseHandleError};
use redlatch::{AcquireError, Client, ExtendError, Guard, LockHandle, LockRequest, Mode, Options};
use redlatch_support::settle;
use redlatch_support::stage::Fleet;
use redlatch_support::{PATIENCE, block_on, eventually};

use crate::harness::{
    LONG, SHORT, TTL, assert_nothing_left, assert_nothing_left_of, await_held, config, open,
};

/// Waits until a client uses all three masters. Just after connecting, it may lack the slowest.
fn whole(client: Client) -> Client {
    eventually(PATIENCE, "all masters count", || client.health().may_fail == 1);
    client
}

fn two(fleet: &Fleet) -> [Client; 2] {
    [(); 2].map(|()| whole(open(&fleet.urls(), LONG)))
}

/// A handle sent as text, as another process gets it.
fn sent(handle: &LockHandle) -> LockHandle {
    handle.to_string().parse().expect("a handle")
}

/// Waits until each of three masters has granted the lock. A late request could otherwise reach a master
/// after the next holder's, and leave its value there for the TTL.
fn on_all_masters(guard: Guard) -> Guard {
    eventually(PATIENCE, "each master has granted it", || guard.margin() == 1);
    guard
}

fn passed(request: LockRequest<'_>) -> LockHandle {
    let guard = on_all_masters(request.acquire().expect("free"));
    sent(&guard.into_handle(TTL).expect("held"))
}

fn is_held(client: &Client, name: &str) -> bool {
    matches!(client.lock(name).try_acquire(), Err(AcquireError::Contended(_)))
}

fn wall() -> Duration {
    SystemTime::UNIX_EPOCH.elapsed().expect("after 1970")
}

/// The sum over all masters of a counter.
fn counted(fleet: &mut Fleet, section: &str, name: &str) -> u64 {
    let count = |text: String| {
        let found = text.split(&format!("{name}=")).nth(1)?.split(|it: char| !it.is_ascii_digit()).next()?;
        found.parse::<u64>().ok()
    };
    fleet.masters().filter_map(|master| count(master.counted(&format!("INFO {section}"))?)).sum()
}

// I45
#[test]
fn a_lock_passes_to_another_client() {
    for mode in [Mode::Plain, Mode::Fenced, Mode::Shared] {
        let mut fleet = Fleet::start(3);
        let first =
            config(&fleet.urls(), LONG).holder_label("first").connect().map(whole).expect("an event loop");
        let second =
            config(&fleet.urls(), LONG).holder_label("second").connect().map(whole).expect("an event loop");
        let request = || match mode {
            Mode::Fenced => first.lock("a").fenced(),
            Mode::Shared => first.lock("a").shared(),
            _ => first.lock("a"),
        };
        let handle = passed(request().ttl(Duration::from_secs(30)));
        assert_eq!((handle.resource(), handle.mode()), (b"a".as_slice(), mode));
        assert_eq!(first.stats().left, 1);
        // The first client need not live.
        drop(first);
        let guard = second.adopt(&handle).expect("it is passed on");
        assert_ne!(guard.token(), handle.token());
        assert_eq!((guard.resource(), guard.fencing_token()), (b"a".as_slice(), handle.fencing_token()));
        assert!(guard.is_valid() && guard.remaining() <= handle.ttl(), "{:?}", guard.remaining());
        assert!(is_held(&second, "a"));
        eventually(PATIENCE, "late answers count, too", || guard.margin() == 1);
        guard.release().expect("a quorum answers");
        assert_eq!(settle(&second, PATIENCE), 0);
        // Only the fence stays.
        assert!(fleet.masters().all(|master| master.ask("EXISTS a").text() == "0"));
    }
}

/// Nobody turns the loop after the adoption, yet the release of the first holder's value is written.
#[test]
fn an_adoption_leaves_nothing_to_write() {
    let Some(mut fleet) = Fleet::servers(3) else { return };
    let [first, second] = two(&fleet);
    let handle = passed(first.lock("a").ttl(TTL));
    eventually(PATIENCE, "all masters count", || second.health().may_fail == 1);
    let drive = second.drive().expect("a descriptor");
    let scripts = |fleet: &mut Fleet| counted(fleet, "commandstats", "cmdstat_eval:calls");
    let before = scripts(&mut fleet);
    let guard = second.adopt(&handle).expect("it is passed on");
    eventually(PATIENCE, "an adoption and a release on each master", || scripts(&mut fleet) == before + 6);
    drop((guard, drive));
}

// I45
#[test]
fn a_used_handle_adopts_nothing() {
    let mut fleet = Fleet::start(3);
    let [first, second] = two(&fleet);
    let handle = passed(first.lock("a").ttl(TTL));
    let guard = second.adopt(&handle).expect("it is passed on");
    for client in [&first, &second] {
        let error = client.adopt(&handle).expect_err("it was used");
        assert!(matches!(error, AdoptError::Gone(_)), "{error}");
    }
    let released = first.release_handle(&handle).expect("all answer");
    assert!(released.was_already_gone() && guard.is_valid() && is_held(&first, "a"));
    drop(guard);
    assert_nothing_left_of(&[&first, &second], &mut fleet);
    let error = second.adopt(&handle).expect_err("it was used");
    assert!(matches!(error, AdoptError::Gone(_)), "{error}");
    assert_nothing_left(&second, &mut fleet);
}

// I46
#[test]
fn an_old_handle_sends_nothing() {
    let mut fleet = Fleet::start(3);
    let [first, second] = two(&fleet);
    let guard = on_all_masters(first.lock("a").ttl(TTL).acquire().expect("free"));
    let handle = guard.into_handle(Duration::from_millis(300)).expect("held");
    eventually(PATIENCE, "its end passes", || wall() > handle.end());
    let before = counted(&mut fleet, "commandstats", "cmdstat_eval:calls");
    let error = second.adopt(&handle).expect_err("it has ended");
    assert!(matches!(error, AdoptError::TooOld { .. }), "{error}");
    assert_eq!(counted(&mut fleet, "commandstats", "cmdstat_eval:calls"), before);
}

// I49
#[test]
fn a_handle_of_another_fleet_is_refused() {
    let fleet = Fleet::start(3);
    let [first, _] = two(&fleet);
    let handle = passed(first.lock("a").ttl(TTL));
    let foreign = |client: &Client| match client.adopt(&handle) {
        Err(AdoptError::Foreign(error)) => error,
        other => panic!("{other:?}"),
    };
    let mut urls = fleet.urls();
    let other = config(&urls, LONG).prefix("p:").connect().expect("an event loop");
    assert!(matches!(foreign(&other), ForeignHandle::OtherPrefix { .. }));
    let fewer = open(&urls[..2], LONG);
    assert!(matches!(foreign(&fewer), ForeignHandle::OtherMasters { .. }));
    let error = fewer.release_handle(&handle).expect_err("other masters");
    assert!(matches!(error, ReleaseHandleError::Foreign(ForeignHandle::OtherMasters { .. })), "{error}");
    urls.reverse();
    assert!(open(&urls, LONG).adopt(&handle).is_ok(), "the order does not matter");
}

// I45
#[test]
fn a_handle_that_only_releases_adopts_nothing() {
    let fleet = Fleet::start(3);
    let [first, second] = two(&fleet);
    let guard = first.lock("a").ttl(TTL).acquire().expect("free");
    let handle = sent(&guard.to_handle().expect("held"));
    assert!(!handle.can_be_adopted());
    let error = second.adopt(&handle).expect_err("its guard goes on");
    assert!(matches!(error, AdoptError::NotPassed { .. }), "{error}");
    assert!(guard.is_valid() && is_held(&second, "a"));
}

#[test]
fn a_minority_of_masters_may_be_down() {
    let mut fleet = Fleet::start(3);
    let [first, second] = two(&fleet);
    let handle = passed(first.lock("a").ttl(TTL));
    await_held(&mut fleet, "a");
    fleet.master(0).kill();
    let guard = second.adopt(&handle).expect("two of three have it");
    guard.release().expect("two of three answer");
    // Both remaining masters have granted the lock.
    let guard = first.lock("b").ttl(TTL).acquire().expect("free");
    let handle = sent(&guard.into_handle(TTL).expect("held"));
    fleet.master(1).kill();
    let short = open(&fleet.urls(), SHORT);
    let error = short.adopt(&handle).expect_err("one of three has it");
    assert!(matches!(error, AdoptError::NoQuorum(_)), "{error}");
    let error = short.release_handle(&handle).expect_err("one of three answers");
    assert!(matches!(error, ReleaseHandleError::Unconfirmed(_)), "{error}");
}

#[test]
fn adopted_lock_keeps_its_renewal() {
    let fleet = Fleet::start(3);
    let [first, second] = two(&fleet);
    let hold = Duration::from_secs(600);
    let handle = passed(first.lock("a").ttl(Duration::from_secs(5)).auto_extend(hold));
    let hold_until = handle.hold_until().expect("it is renewed");
    assert!(hold_until <= wall() + hold && hold_until > wall() + hold - PATIENCE, "{hold_until:?}");
    let guard = second.adopt(&handle).expect("it is passed on");
    eventually(PATIENCE, "it is renewed", || second.stats().extended >= 2);
    assert!(guard.is_valid());
    assert_eq!(second.stats().lost, 0);
}

#[test]
fn adoption_ignores_an_exhausted_renewal() {
    let fleet = Fleet::start(3);
    let first = whole(open(&fleet.urls(), LONG));
    let second = config(&fleet.urls(), LONG).max_hold(Duration::ZERO).connect().expect("an event loop");
    let hold = Duration::from_millis(300);
    let handle = passed(first.lock("a").ttl(TTL).auto_extend(hold));
    thread::sleep(hold);
    // This client gets no renewal.
    let guard = second.adopt(&handle).expect("it is passed on, and lasts for its TTL");
    assert!(guard.is_valid());
}

#[test]
fn adopting_a_renewable_handle_needs_max_hold() {
    let fleet = Fleet::start(3);
    let first = whole(open(&fleet.urls(), LONG));
    let second = config(&fleet.urls(), LONG).max_hold(Duration::ZERO).connect().expect("an event loop");
    let handle = passed(first.lock("a").ttl(TTL).auto_extend(TTL));
    let error = second.adopt(&handle).expect_err("it may not renew").to_string();
    assert!(error.contains("max_hold"), "{error}");
    drop(first.adopt(&handle).expect("it is as it was"));
}

#[test]
fn release_by_handle_takes_one_round_trip() {
    let Some(mut fleet) = Fleet::servers(3) else { return };
    let [first, second] = two(&fleet);
    for mode in [Mode::Plain, Mode::Fenced, Mode::Shared] {
        let options = Options::new().ttl(TTL);
        let request = match mode {
            Mode::Fenced => first.lock("a").options(options).fenced(),
            Mode::Shared => first.lock("a").options(options).shared(),
            _ => first.lock("a").options(options),
        };
        let mut guard = on_all_masters(request.acquire().expect("free"));
        let handle = guard.to_handle().expect("held");
        fleet.masters().for_each(|master| drop(master.ask("CONFIG RESETSTAT")));
        let released = second.release_handle(&handle).expect("all answer");
        assert!(released.deleted >= 2, "{released:?}");
        assert_eq!(settle(&second, PATIENCE), 0);
        // No master got the script in full.
        assert_eq!(counted(&mut fleet, "commandstats", "cmdstat_eval:calls"), 3);
        assert_eq!(counted(&mut fleet, "commandstats", "cmdstat_evalsha:calls"), 0);
        let error = guard.extend(TTL).expect_err("its lock is broken");
        assert!(matches!(error, ExtendError::Lost(_)), "{error}");
        drop(guard);
        assert_eq!(settle(&first, PATIENCE), 0, "its release counts for the next kind of lock otherwise");
    }
}

#[test]
fn a_failed_pass_returns_the_guard() {
    let mut fleet = Fleet::start(3);
    let client = whole(open(&fleet.urls(), LONG));
    let guard = client.lock("a").ttl(TTL).acquire().expect("free");
    let error = guard.into_handle(2 * TTL).expect_err("above max_ttl");
    assert!(matches!(error.reason(), ExtendError::Input(_)), "{error}");
    let guard = on_all_masters(error.into_guard());
    assert!(guard.is_valid() && is_held(&client, "a"));
    let handle = guard.into_handle(TTL).expect("held");
    client.release_handle(&handle).expect("all answer");
    let guard = client.lock("a").ttl(TTL).acquire().expect("free");
    drop(guard.into_handle(2 * TTL).expect_err("above max_ttl"));
    assert_nothing_left(&client, &mut fleet);
}

#[test]
fn tasks_pass_locks_on() {
    let mut fleet = Fleet::start(3);
    let [first, second] = two(&fleet);
    block_on(async {
        let guard = on_all_masters(first.lock("a").ttl(TTL).acquire_async().await.expect("free"));
        let handle = guard.into_handle_async(TTL).await.expect("held");
        let guard = on_all_masters(second.adopt_async(&handle).await.expect("passed on"));
        let handle = guard.into_handle_async(TTL).await.expect("held");
        first.release_handle_async(&handle).await.expect("all answer");
        // Dropping the future half-way releases the lock.
        let guard = first.lock("a").ttl(TTL).acquire_async().await.expect("free");
        drop(guard.into_handle_async(TTL));
    });
    assert_nothing_left_of(&[&first, &second], &mut fleet);
}

#[test]
fn a_slot_passes_as_any_lock_does() {
    let mut fleet = Fleet::start(3);
    let [first, second] = two(&fleet);
    let slot = first.slots("pool", 1).try_acquire().expect("free");
    let handle = sent(&on_all_masters(slot.into_guard()).into_handle(TTL).expect("held"));
    let guard = second.adopt(&handle).expect("it was passed");
    let handle = sent(&guard.to_handle().expect("held"));
    assert!(first.slots("pool", 1).try_acquire().is_err(), "it is held");
    assert!(!first.release_handle(&handle).expect("confirmed").was_already_gone());
    drop(first.slots("pool", 1).try_acquire().expect("free"));
    drop(guard);
    assert_nothing_left_of(&[&first, &second], &mut fleet);
}

#[test]
fn an_adoption_fetched_too_late_is_none() {
    let fleet = Fleet::start(3);
    let [first, second] = two(&fleet);
    let brief = || first.lock("a").ttl(SHORT).wait(PATIENCE).acquire();
    // On a slow machine, the answer comes too late.
    let guard = std::iter::repeat_with(brief).find_map(Result::ok).expect("free");
    let handle = guard.into_handle(TTL).expect("extended");
    let mut adopting = pin!(second.adopt_async(&handle));
    let mut poll = || adopting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(poll().is_pending());
    thread::sleep(SHORT);
    let mut adopted = poll();
    eventually(PATIENCE, "it is answered", || {
        if adopted.is_pending() {
            adopted = poll();
        }
        adopted.is_ready()
    });
    assert!(matches!(adopted, Poll::Ready(Err(_))), "{adopted:?}");
}
