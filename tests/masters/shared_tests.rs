//! Readers and writers on real masters: through kill -9 and pauses, beside other libraries, and with few
//! rights.

use std::time::{Duration, Instant};

use redlatch::error::HolderTtl;
use redlatch::{AcquireError, ExtendError, HeldLocks};
use redlatch_support::{Blocking, Fleet, Lease, Master, PATIENCE, Raw, eventually};

use crate::contest::{Contest, Rules, TTL as CONTEST_TTL};
use crate::lock_tests::{TTL, drive, open, settings};
use crate::lockers::{Mode, Way};

fn refused(result: Result<Lease, AcquireError>) -> HolderTtl {
    match result {
        Err(AcquireError::Contended(denial)) => denial.holder,
        other => panic!("{other:?}"),
    }
}

/// Acquires a reader on all three masters.
fn everywhere(redlock: &mut Blocking) -> Lease {
    let lease = redlock.lock("a").ttl(TTL).wait(PATIENCE).shared().acquire().expect("free");
    drive(redlock, "all masters have it", |redlock| redlock.margin(&lease) == 1);
    lease
}

// I86
#[test]
fn readers_and_writers_survive_empty_restarts() {
    for way in [Way::Redlock, Way::Client] {
        let mut fleet = Fleet::start(5);
        let rules = Rules { way, mode: Mode::Shared, ..Rules::default() };
        let mut contest = Contest::start("readers and writers, kill -9", &fleet.urls(), &rules);
        contest.progress("all is well", 20);
        fleet.master(0).kill();
        contest.survives("one is dead", 20);
        fleet.master(0).restart();
        contest.survives("one is in quarantine", 20);
        contest.pass(CONTEST_TTL);
        fleet.master(1).kill();
        fleet.master(2).kill();
        contest.survives("two are dead", 20);
        fleet.master(1).restart();
        fleet.master(2).restart();
        contest.survives("two are in quarantine", 20);
        // A quorum forgets.
        contest.pass(CONTEST_TTL);
        (2..5).for_each(|index| fleet.master(index).kill());
        (2..5).for_each(|index| fleet.master(index).restart());
        contest.recovers("three came back empty");
        contest.finish(&mut fleet);
    }
}

// I86
#[test]
fn readers_and_writers_survive_masters_that_stand_still() {
    for way in [Way::Redlock, Way::Client] {
        let mut fleet = Fleet::start(5);
        let rules = Rules { way, mode: Mode::Shared, ..Rules::default() };
        let mut contest = Contest::start("readers and writers, SIGSTOP", &fleet.urls(), &rules);
        fleet.master(0).stop();
        contest.survives("one is stopped", 20);
        fleet.master(1).stop();
        contest.survives("two are stopped", 20);
        contest.pass(CONTEST_TTL.mul_f64(1.2));
        fleet.master(0).cont();
        fleet.master(1).cont();
        contest.recovers("two go on");
        (2..5).for_each(|index| fleet.master(index).stop());
        contest.fails("three are stopped", 10);
        contest.pass(CONTEST_TTL.mul_f64(1.2));
        (2..5).for_each(|index| fleet.master(index).cont());
        contest.recovers("three go on");
        contest.finish(&mut fleet);
    }
}

#[test]
fn a_redlock_reads_beside_others_and_writes_alone() {
    let mut fleet = Fleet::start(3);
    let [mut one, mut other, mut writer] = [(); 3].map(|()| open(settings(&fleet.urls())));
    let mut first = one.lock("a").ttl(TTL).wait(PATIENCE).shared().acquire().expect("free");
    let second = other.lock("a").ttl(TTL).wait(PATIENCE).shared().acquire().expect("shared");
    assert_ne!(first.token(), second.token());
    assert!(
        matches!(refused(writer.lock("a").ttl(TTL).try_acquire()), HolderTtl::Left(left) if left > TTL / 2)
    );
    assert!(matches!(refused(writer.lock("a").ttl(TTL).fenced().try_acquire()), HolderTtl::Left(_)));
    one.extend(&mut first, TTL).expect("it reads");
    assert_eq!(one.release(first).map(|released| released.was_already_gone()), Ok(false));
    refused(writer.lock("a").ttl(TTL).try_acquire());
    other.release(second).expect("confirmed");
    let mut alone = writer.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("nobody reads");
    assert!(matches!(refused(one.lock("a").ttl(TTL).shared().try_acquire()), HolderTtl::Left(_)));
    writer.extend(&mut alone, TTL).expect("held");
    writer.release(alone).expect("confirmed");
    let fenced = writer.lock("a").ttl(TTL).wait(PATIENCE).fenced().acquire().expect("free");
    refused(one.lock("a").ttl(TTL).shared().try_acquire());
    writer.release(fenced).expect("confirmed");
    drop(one.lock("a").ttl(TTL).wait(PATIENCE).shared().acquire().expect("free"));
    one.flush();
    assert_eq!(one.drain(PATIENCE, HeldLocks::Leave), 0);
    fleet.masters().for_each(|master| assert_eq!(master.ask("EXISTS a"), Raw::Integer(0)));
}

/// A foreign key excludes readers, and readers exclude `SET NX`, as other libraries lock.
// I86
#[test]
fn readers_and_locks_of_other_libraries_exclude_each_other() {
    let mut fleet = Fleet::start(3);
    let mut redlock = open(settings(&fleet.urls()));
    let reader = everywhere(&mut redlock);
    fleet.masters().for_each(|master| assert_eq!(master.ask("SET a theirs NX PX 60000"), Raw::Null));
    redlock.release(reader).expect("confirmed");
    // A quorum has confirmed; the last master may be about to.
    fleet.masters().for_each(|master| {
        eventually(PATIENCE, "the reader is gone", || master.ask("SET a theirs NX PX 60000").text() == "OK");
    });
    assert!(matches!(refused(redlock.lock("a").ttl(TTL).shared().try_acquire()), HolderTtl::Left(_)));
    // A key of another type, or a set without an end, is not ours, and stays as it is.
    for (put, look, expected) in [
        ("RPUSH a x", "LRANGE a 0 -1", "[x]"),
        ("ZADD a 5 five 9999999999999 x", "ZRANGE a 0 -1", "[five, x]"),
    ] {
        fleet.masters().for_each(|master| {
            master.ask("DEL a");
            master.ask(put);
        });
        assert_eq!(refused(redlock.lock("a").ttl(TTL).shared().try_acquire()), HolderTtl::Never, "{put}");
        for master in fleet.masters() {
            assert_eq!(
                (master.ask(look).text().as_str(), master.ask("PTTL a")),
                (expected, Raw::Integer(-1))
            );
        }
    }
    assert_eq!(redlock.drain(PATIENCE, HeldLocks::Leave), 0);
}

/// A foreign key of each type under the lock's name. The scores of the sorted sets look like past times, or
/// are as long as a token.
const FOREIGN: [&str; 7] = [
    "SET a theirs",
    "RPUSH a x y",
    "SADD a x y",
    "HSET a x y",
    "ZADD a 1 one 2 two 9999999999999 x -inf y +inf z",
    "ZADD a 1 twenty-bytes-of-value",
    "XADD a 1-1 x y",
];

/// Content and expiry of the lock's key, to the byte and the millisecond.
fn image(master: &mut Master) -> (Raw, Raw) {
    (master.ask("DUMP a"), master.ask("PEXPIRETIME a"))
}

// I89
#[test]
fn readers_leave_every_foreign_key_as_it_is() {
    let mut fleet = Fleet::start(3);
    let mut redlock = open(settings(&fleet.urls()));
    for (put, has_ttl) in FOREIGN.into_iter().flat_map(|put| [(put, false), (put, true)]) {
        let mut lease = everywhere(&mut redlock);
        let before: Vec<_> = fleet
            .masters()
            .map(|master| {
                master.ask("DEL a");
                master.ask(put);
                if has_ttl {
                    assert_eq!(master.ask("PEXPIRE a 600000"), Raw::Integer(1), "{put}");
                }
                image(master)
            })
            .collect();
        let is_same = |fleet: &mut Fleet| fleet.masters().map(image).collect::<Vec<_>>() == before;
        let holder = refused(redlock.lock("a").ttl(TTL).shared().try_acquire());
        assert_eq!(matches!(holder, HolderTtl::Left(_)), has_ttl, "{put}: {holder:?}");
        assert!(is_same(&mut fleet), "{put}, TTL {has_ttl}: changed by an acquisition");
        assert!(matches!(redlock.extend(&mut lease, TTL), Err(ExtendError::Lost(_))), "{put}");
        assert!(is_same(&mut fleet), "{put}, TTL {has_ttl}: changed by an extension");
        assert_eq!(redlock.release(lease).map(|released| released.deleted), Ok(0), "{put}");
        assert!(is_same(&mut fleet), "{put}, TTL {has_ttl}: changed by a release");
        fleet.masters().for_each(|master| assert_eq!(master.ask("DEL a"), Raw::Integer(1), "{put}"));
    }
    assert_eq!(redlock.drain(PATIENCE, HeldLocks::Leave), 0);
}

/// The marker neither keeps the key alive nor counts as a reader.
// I89
#[test]
fn a_set_of_readers_goes_with_its_last_reader() {
    let mut fleet = Fleet::start(1);
    let [mut one, mut other] = [(); 2].map(|()| open(settings(&fleet.urls())));
    let first = one.lock("a").ttl(TTL).wait(PATIENCE).shared().acquire().expect("free");
    let second = other.lock("a").ttl(TTL).wait(PATIENCE).shared().acquire().expect("shared");
    assert_eq!(fleet.master(0).ask("ZREVRANK a redlatch:readers:1"), Raw::Integer(2));
    one.release(first).expect("confirmed");
    assert_eq!(fleet.master(0).ask("ZREVRANK a redlatch:readers:1"), Raw::Integer(1));
    other.release(second).expect("confirmed");
    assert_eq!(fleet.master(0).ask("EXISTS a"), Raw::Integer(0));
}

/// Another reader may be extended, be released or join meanwhile.
// I87
#[test]
fn the_key_ends_with_the_last_reader() {
    let mut fleet = Fleet::start(1);
    let [mut one, mut other] = [(); 2].map(|()| open(settings(&fleet.urls()).max_ttl(60 * TTL)));
    let mut ends_after = |ttl: Duration, how: &str| {
        let master = fleet.master(0);
        let last = master.ask("ZRANGE a -1 -1 WITHSCORES").text();
        let (_, score) = last.trim_end_matches(']').rsplit_once(", ").expect("a member and its score");
        assert_eq!(master.ask("PEXPIRETIME a").text(), score, "{how}");
        let left = Duration::from_millis(master.ask("PTTL a").text().parse().expect("a number"));
        assert!(left <= ttl + Duration::from_millis(2) && left > ttl / 2, "{how}: {left:?} of {ttl:?}");
    };
    let mut first = one.lock("a").ttl(8 * TTL).wait(PATIENCE).shared().acquire().expect("free");
    let mut second = other.lock("a").ttl(TTL).wait(PATIENCE).shared().acquire().expect("shared");
    ends_after(8 * TTL, "a reader with a shorter time has come");
    other.extend(&mut second, 2 * TTL).expect("it reads");
    ends_after(8 * TTL, "it was extended");
    other.extend(&mut second, 32 * TTL).expect("it reads");
    ends_after(32 * TTL, "it was extended beyond the other one");
    one.extend(&mut first, 4 * TTL).expect("it reads");
    ends_after(32 * TTL, "the other one was extended");
    other.release(second).expect("confirmed");
    ends_after(4 * TTL, "the one that had the longest time has gone");
    one.release(first).expect("confirmed");
}

// I86
#[test]
fn readers_end_by_their_own_ttl() {
    let mut fleet = Fleet::start(3);
    let mut redlock = open(settings(&fleet.urls()));
    let (long, short) = (Duration::from_millis(1500), Duration::from_millis(300));
    // Loads the scripts, so that no command is under way for long.
    let warm = everywhere(&mut redlock);
    redlock.release(warm).expect("confirmed");
    let begun = Instant::now();
    let first = redlock.lock("a").ttl(long).wait(PATIENCE).shared().acquire().expect("free");
    drive(&mut redlock, "all masters have it", |redlock| {
        redlock.margin(&first) == 1 || begun.elapsed() > long
    });
    let mut second = redlock.lock("a").ttl(short).wait(PATIENCE).shared().acquire().expect("shared");
    let left = |master: &mut Master| master.ask("PTTL a").text().parse().unwrap_or(0_i64);
    fleet.masters().for_each(|master| assert!(left(master) > 300 || begun.elapsed() > long / 2, "cut short"));
    eventually(PATIENCE, "its time is over", || !second.is_valid());
    assert!(matches!(redlock.extend(&mut second, long), Err(ExtendError::Expired)));
    let valid_until = first.valid_until();
    std::mem::forget(first);
    // Nobody releases the lock, and no writer gets it before its validity ends.
    let alone = redlock.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("in the end");
    assert!(Instant::now() >= valid_until, "a writer came too early");
    redlock.release(alone).expect("confirmed");
    redlock.release(second).expect("gone long ago");
}

#[test]
fn a_reader_whose_masters_lost_it_is_not_extended() {
    let mut fleet = Fleet::start(3);
    let [mut reader, mut writer] = [(); 2].map(|()| open(settings(&fleet.urls())));
    let mut lease = everywhere(&mut reader);
    fleet.masters().for_each(|master| assert_eq!(master.ask("FLUSHALL").text(), "OK"));
    assert!(matches!(reader.extend(&mut lease, TTL), Err(ExtendError::Lost(_))));
    let mut lease = everywhere(&mut reader);
    fleet.masters().for_each(|master| assert_eq!(master.ask("FLUSHALL").text(), "OK"));
    let alone = writer.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("free");
    assert!(matches!(reader.extend(&mut lease, TTL), Err(ExtendError::Lost(_))), "a writer is there");
    assert_eq!(reader.release(lease).map(|released| released.was_already_gone()), Ok(true));
    assert_eq!(writer.release(alone).map(|released| released.deleted >= 2), Ok(true));
}
