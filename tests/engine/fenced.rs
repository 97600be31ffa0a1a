//! Fenced locks: which refusals of a token lead to a better token, and what errors say about them.

use std::time::Duration;

use redlatch::error::{Failure, HolderTtl, TokenRefusal, Vote};
use redlatch::{AcquireError, Options};

use crate::model::fence_key;
use crate::rig::Rig;
use crate::{defaults, denied, granted, ms, no_quorum};

fn options() -> Options {
    Options::new().ttl(ms(10_000)).wait(Duration::ZERO).fenced()
}

/// Puts a fence this far ahead of the masters' clocks.
fn put_fence(rig: &mut Rig, masters: impl IntoIterator<Item = usize>, ahead: Duration) {
    let until = rig.now + ms(600_000);
    for index in masters {
        let fence = rig.masters[index].wall_us(rig.now) + u64::try_from(ahead.as_micros()).expect("short");
        rig.masters[index].put(&fence_key(b"a"), fence.to_string().as_bytes(), Some(until));
    }
}

#[test]
fn denial_names_the_refused_token() {
    let mut rig = Rig::new(3, defaults);
    // No token made from the masters' time is larger.
    put_fence(&mut rig, 0..3, Duration::from_secs(1_000_000));
    rig.acquire_with("a", options());
    let denial = no_quorum(&mut rig);
    assert_eq!(
        denial.report.votes[0].1,
        Vote::Failed(Failure::TokenRefused(TokenRefusal::Stale)),
        "{denial}"
    );
}

/// The refusals contain it, so no master is asked.
#[test]
fn a_refusal_says_how_long_the_holder_has() {
    let mut rig = Rig::new(3, |builder| builder.ask_holder(false));
    let until = rig.now + ms(5000);
    rig.masters.iter_mut().for_each(|master| master.put(b"a", b"other", Some(until)));
    rig.acquire_with("a", options());
    let AcquireError::Contended(denial) = denied(&mut rig) else { panic!("contention") };
    let holder = HolderTtl::Left(ms(5000));
    assert_eq!((denial.holder, &denial.report.votes[0].1), (holder, &Vote::Refused { holder }), "{denial}");
}

#[test]
fn minority_holder_does_not_prevent_a_larger_token() {
    let mut rig = Rig::new(3, defaults);
    rig.masters[0].put(b"a", b"other", None);
    put_fence(&mut rig, 1..3, ms(1000));
    rig.acquire_with("a", options());
    let grant = granted(&mut rig);
    assert_eq!((grant.attempts, grant.granted.count()), (2, 2));
}

/// The quarantined master's vote does not count, and another master has a holder.
#[test]
fn no_larger_token_is_tried_beside_a_quarantine() {
    let mut rig = Rig::new(3, |builder| builder.max_ttl(ms(10_000)));
    rig.reset_conn(0);
    let now = rig.now;
    rig.masters[0].restart("other", now);
    rig.run_for(ms(2500));
    rig.masters[1].put(b"a", b"other", None);
    put_fence(&mut rig, 2..3, ms(1000));
    rig.acquire_with("a", options());
    let error = denied(&mut rig);
    assert!(matches!(&error, AcquireError::Contended(denial) if denial.attempts == 1), "{error}");
}

#[test]
fn second_attempt_with_larger_token_counts_as_wait() {
    let mut rig = Rig::new(3, defaults);
    for _ in 0..redlatch::limits::TIMED_SHARE * 3 / 2 {
        let lock = rig.acquire("a", 10_000, 0);
        rig.release(lock, false);
    }
    rig.outcomes.clear();
    let before = rig.engine.stats(rig.now);
    put_fence(&mut rig, 0..3, ms(1000));
    rig.acquire_with("a", options());
    assert_eq!(granted(&mut rig).attempts, 2);
    let since = rig.engine.stats(rig.now).since(&before);
    assert_eq!((since.acquire_time.count(), since.wait_time.count()), (0, 1));
}

/// The pause between two attempts is at least 1 s, and the holder's time ends after 50 ms.
#[test]
fn polling_waiter_follows_any_holders_end() {
    let options = Options::new().ttl(ms(10_000)).wait(ms(60_000));
    for options in [options, options.fenced(), options.shared()] {
        let mut rig = Rig::new(1, |builder| builder.wake_waiters(false).retry_delay_by(|_| ms(1000)));
        let until = rig.now + ms(50);
        rig.masters[0].put(b"a", b"other", Some(until));
        rig.acquire_with("a", options);
        rig.run_for(ms(53));
        granted(&mut rig);
    }
}

/// The token belonged to no lock.
#[test]
fn a_waiter_that_gives_up_raises_no_fence() {
    let mut rig = Rig::new(3, defaults);
    rig.masters.iter_mut().for_each(|master| master.put(b"a", b"other", None));
    let lock = rig.acquire_with("a", options().wait(ms(60_000)));
    rig.run_for(ms(100));
    assert_eq!(rig.masters[0].parked(rig.now, b"a").len(), 1);
    rig.release(lock, false);
    rig.run_for(ms(20));
    assert_eq!(rig.masters[0].parked(rig.now, b"a"), []);
    assert!(rig.masters.iter().all(|master| master.fence(rig.now, b"a") == 0));
}
