//! Locks that are kept, and whose loss is told.

use std::time::Duration;

use crate::rig::{Rig, id};
use redlatch::Options;
use redlatch::engine::{OpId, Outcome, Request};

use crate::{defaults, granted, ms};

/// Acquires a lock that is kept for at most `max_hold`.
fn keep(rig: &mut Rig, ttl_ms: u64, max_hold: Duration) -> OpId {
    let options = Options::new().ttl(ms(ttl_ms)).wait(Duration::ZERO).auto_extend(max_hold);
    let lock = rig.acquire_with("a", options);
    granted(rig);
    lock
}

fn watch(rig: &mut Rig, lock: OpId) {
    rig.engine.submit(rig.now, Request::Watch { lock }).expect("always taken");
}

fn extension_count(rig: &Rig) -> usize {
    rig.masters[0].log.iter().filter(|args| args[0] == b"EVALSHA").count()
}

#[test]
fn an_extension_to_a_much_longer_ttl_does_not_tell_of_a_loss() {
    for is_answered in [true, false] {
        let mut rig = Rig::new(3, defaults);
        let lock = rig.acquire("a", 1000, 0);
        let valid_until = granted(&mut rig).valid_until;
        watch(&mut rig, lock);
        rig.advance(ms(100));
        // A tenth of the new validity is more than all that is left of the old one.
        (0..3).for_each(|index| rig.hold(index));
        rig.extend(lock, 30_000);
        rig.advance(ms(5));
        assert_eq!(rig.outcome(), None);
        assert!(!rig.engine.is_losing(rig.now, lock));
        if is_answered {
            (0..3).for_each(|index| rig.deliver(index));
            assert!(matches!(rig.outcome(), Some(Outcome::Extend(Ok(_)))));
            rig.advance(ms(20_000));
            assert_eq!(rig.outcome(), None);
        } else {
            rig.advance(ms(100));
            assert!(matches!(rig.outcome(), Some(Outcome::Extend(Err(_)))));
            rig.advance(valid_until - rig.now - ms(99));
            assert_eq!(rig.outcome(), None, "the old validity lasts, and its tenth counts");
            rig.advance(ms(1));
            assert_eq!(rig.outcome(), Some(Outcome::Lost(valid_until)));
        }
    }
}

#[test]
fn a_kept_lock_that_was_extended_to_a_shorter_ttl_is_still_kept() {
    for is_answered in [true, false] {
        let mut rig = Rig::new(3, defaults);
        let lock = keep(&mut rig, 10_000, ms(600_000));
        (0..3).for_each(|index| rig.hold(index));
        rig.extend(lock, 500);
        if !is_answered {
            rig.advance(ms(51));
        }
        (0..3).for_each(|index| rig.deliver(index));
        let outcome = rig.outcome();
        assert!(
            matches!(outcome, Some(Outcome::Extend(result)) if result.is_ok() == is_answered),
            "one answer"
        );
        rig.advance(ms(60_000));
        assert!(rig.engine.valid_until(lock).is_some_and(|until| until > rig.now), "{is_answered}");
    }
}

#[test]
fn a_lock_of_the_shortest_ttl_is_not_renewed_more_often_than_its_validity_asks_for() {
    for ttl in [100, 40, 20, 6] {
        let mut rig = Rig::new(1, defaults);
        let lock = keep(&mut rig, ttl, ms(600_000));
        rig.hold(0);
        for _ in 0..10_000 {
            rig.advance(Duration::from_micros(97));
            // An answer, `:1`, takes some time.
            if rig.engine.owed_count(id(0)) > 0 {
                rig.deliver_some(0, 4);
            }
        }
        assert!(rig.engine.valid_until(lock).is_some_and(|until| until > rig.now), "{ttl}");
        let count = extension_count(&rig);
        let limit = usize::try_from(6 * 1000 / ttl).expect("few");
        assert!(count <= limit + 1, "{count} renewals of {ttl} ms in a second");
    }
}

#[test]
fn the_longest_hold_may_be_without_end() {
    let mut rig = Rig::new(3, |builder| builder.max_hold(Duration::MAX));
    let lock = keep(&mut rig, 10_000, Duration::MAX);
    rig.advance(ms(60_000));
    assert!(rig.engine.valid_until(lock).is_some_and(|until| until > rig.now));
}

#[test]
fn the_longest_hold_is_reached_in_few_renewals() {
    let mut rig = Rig::new(3, defaults);
    let start = rig.now;
    let lock = keep(&mut rig, 10_000, ms(11_000));
    rig.advance(ms(20_000));
    let until = rig.engine.valid_until(lock).expect("it is not released");
    assert!(until <= start + ms(11_000) && until >= start + ms(10_897), "{:?}", until - start);
    assert!(extension_count(&rig) <= 2, "{}", extension_count(&rig));
}

#[test]
fn a_script_that_was_forgotten_is_not_sent_for_a_renewal_that_gave_way() {
    let mut rig = Rig::new(1, defaults);
    let lock = keep(&mut rig, 10_000, ms(600_000));
    rig.masters[0].flush_scripts();
    rig.hold(0);
    while rig.engine.owed_count(id(0)) == 0 {
        rig.advance(ms(1));
    }
    rig.extend(lock, 20_000);
    drop(rig.masters[0].take_log());
    rig.deliver(0);
    assert!(matches!(rig.outcome(), Some(Outcome::Extend(Ok(_)))));
    assert_eq!(rig.masters[0].take_log().iter().filter(|name| *name == "EVAL").count(), 1);
}
