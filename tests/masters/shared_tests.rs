//! Readers and writers on real masters: through kill -9 and pauses, and beside other libraries.

use redlatch::error::HolderTtl;
use redlatch::{AcquireError, HeldLocks};
use redlatch_support::{Blocking, Fleet, Lease, PATIENCE, Raw, eventually};

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

/// A foreign key excludes readers, and readers exclude `SET NX`, as other libraries lock.
// I86
#[test]
fn readers_and_other_libraries_exclude_each_other() {
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
