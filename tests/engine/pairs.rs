//! Each kind of waiting lock, with each fault of one master and each end: the waiter gets the lock in time,
//! and nothing stays on any master.

use std::fmt;

use redlatch::engine::{OpId, Outcome, Request};
use redlatch::{HeldLocks, Options, limits};

use crate::model::queue_key;
use crate::parked::{KEY, OTHER, free, with_other};
use crate::rig::{Rig, id};
use crate::{defaults, denied, granted, ms};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Plain,
    /// With a TTL for which masters only ring.
    Long,
    Fenced,
    Shared,
    Fair,
}

/// What happens to the first master during the wait.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Trouble {
    None,
    /// It speaks only RESP2 from the start.
    CannotPark,
    /// It speaks only RESP2 from its next connection on.
    LosesPush,
    Restarts,
    Breaks,
    ForgetsScripts,
    /// Its answers are late.
    IsLate,
    /// It answers again after the lock's end.
    Stops,
    /// Its answers arrive after the lock's end.
    Stalls,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Ending {
    Released,
    Dropped,
    Extended,
    Left,
    /// The wait ends before the lock is free.
    Late,
    /// The caller leaves before the lock is free.
    Gone,
    Drained,
}

const KINDS: [Kind; 5] = [Kind::Plain, Kind::Long, Kind::Fenced, Kind::Shared, Kind::Fair];
const TROUBLES: [Trouble; 9] = [
    Trouble::None,
    Trouble::CannotPark,
    Trouble::LosesPush,
    Trouble::Restarts,
    Trouble::Breaks,
    Trouble::ForgetsScripts,
    Trouble::IsLate,
    Trouble::Stops,
    Trouble::Stalls,
];
const ENDINGS: [Ending; 7] = [
    Ending::Released,
    Ending::Dropped,
    Ending::Extended,
    Ending::Left,
    Ending::Late,
    Ending::Gone,
    Ending::Drained,
];

struct Case {
    kind: Kind,
    trouble: Trouble,
    ending: Ending,
    rig: Rig,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, {:?}, {:?}", self.kind, self.trouble, self.ending)
    }
}

fn refuse_push(rig: &mut Rig) {
    let error = "NOPROTO unsupported protocol version".to_owned();
    rig.masters[0].errors.insert("HELLO".to_owned(), error);
}

impl Case {
    fn new(kind: Kind, trouble: Trouble, ending: Ending) -> Self {
        let mut rig = Rig::unconnected(5, defaults);
        if trouble == Trouble::CannotPark {
            refuse_push(&mut rig);
        }
        rig.pump();
        Self { kind, trouble, ending, rig: with_other(rig) }
    }

    fn options(&self) -> Options {
        let ttl = if self.kind == Kind::Long { ms(12_000) } else { ms(9_000) };
        let wait = if self.ending == Ending::Late { ms(7_000) } else { ms(60_000) };
        let options = Options::new().ttl(ttl).wait(wait);
        match self.kind {
            Kind::Plain | Kind::Long => options,
            Kind::Fenced => options.fenced(),
            Kind::Shared => options.shared(),
            Kind::Fair => options.fair(),
        }
    }

    fn run(&mut self) {
        let lock = self.rig.acquire_with("a", self.options());
        // After the first check of what masters report, so that a second round runs.
        self.rig.run_for(ms(1_200));
        self.trouble();
        self.rig.run_for(ms(1_500));
        if self.trouble == Trouble::IsLate {
            self.rig.end_stall(0);
        }
        self.rig.run_for(ms(100));
        assert_eq!(self.parked()[1..], [1; 4], "{self}");
        let stands_at_first = match self.trouble {
            Trouble::None | Trouble::Breaks | Trouble::ForgetsScripts | Trouble::IsLate => Some(1),
            // A master that may have forgotten locks is in quarantine.
            Trouble::CannotPark | Trouble::LosesPush | Trouble::Restarts => Some(0),
            // The test cannot reach its queue.
            Trouble::Stops | Trouble::Stalls => None,
        };
        if let Some(count) = stands_at_first {
            assert_eq!(self.parked()[0], count, "{self}");
        }
        // Two masters are no quorum, but give the waiter a part of the lock.
        free(&mut self.rig, 0);
        free(&mut self.rig, 1);
        self.rig.run_for(ms(4_000));
        assert_eq!(self.rig.outcome(), None, "{self}: another client has it");
        assert_eq!(self.parked(), [0, 0, 1, 1, 1], "{self}: a part is given back, and its masters set aside");
        match self.ending {
            Ending::Late => {
                self.rig.run_for(ms(400));
                let denial = denied(&mut self.rig);
                assert!(denial.is_contended(), "{self}: {denial}");
            }
            Ending::Gone => self.rig.release(lock, false),
            Ending::Drained => {
                let request = Request::Drain { held: HeldLocks::Release, limit: ms(1_000) };
                self.rig.engine.submit(self.rig.now, request).expect("room");
                self.rig.run_for(ms(1_100));
                denied(&mut self.rig);
                let outcome = self.rig.outcome();
                assert!(matches!(outcome, Some(Outcome::Drained(_))), "{self}: {outcome:?}");
            }
            _ => self.hold(lock),
        }
        self.check_nothing_left();
    }

    fn trouble(&mut self) {
        let now = self.rig.now;
        match self.trouble {
            Trouble::None | Trouble::CannotPark => {}
            Trouble::Restarts => {
                self.rig.masters[0].restart("another", now);
                self.rig.reset_conn(0);
            }
            Trouble::Breaks => self.rig.reset_conn(0),
            Trouble::LosesPush => {
                refuse_push(&mut self.rig);
                self.rig.reset_conn(0);
            }
            Trouble::ForgetsScripts => self.rig.masters[0].flush_scripts(),
            Trouble::Stops => self.rig.stop_master(0),
            Trouble::Stalls | Trouble::IsLate => self.rig.stall_replies(0),
        }
    }

    /// The other client releases the remaining masters. The waiter gets the lock, and ends it as the case
    /// requires.
    fn hold(&mut self, lock: OpId) {
        (2..5).for_each(|index| free(&mut self.rig, index));
        self.rig.run_for(ms(1_000));
        let grant = granted(&mut self.rig);
        assert_eq!(grant.fencing_token.is_some(), self.kind == Kind::Fenced, "{self}");
        let taken = self.taken();
        assert!(taken.len() >= 3, "{self}: it has {taken:?}");
        match self.ending {
            Ending::Left => drop(self.rig.engine.leave(self.rig.now, lock).expect("it is held")),
            Ending::Dropped => self.rig.release(lock, false),
            _ => {
                if self.ending == Ending::Extended {
                    self.rig.extend(lock, 9_000);
                    self.rig.run_for(ms(1_000));
                    let outcome = self.rig.outcome();
                    assert!(matches!(outcome, Some(Outcome::Extend(Ok(_)))), "{self}: {outcome:?}");
                }
                self.rig.release(lock, true);
                self.rig.run_for(ms(1_000));
                let outcome = self.rig.outcome();
                assert!(matches!(outcome, Some(Outcome::Release(Ok(_)))), "{self}: {outcome:?}");
            }
        }
    }

    /// Masters with the key.
    fn taken(&self) -> Vec<usize> {
        (0..5).filter(|index| self.rig.masters[*index].is_taken(self.rig.now, KEY)).collect()
    }

    /// Number of waiters in each master's queue.
    fn parked(&self) -> Vec<usize> {
        self.rig.masters.iter().map(|master| master.parked(self.rig.now, KEY).len()).collect()
    }

    fn check_nothing_left(&mut self) {
        self.rig.run_for(ms(100));
        assert_eq!(self.parked()[1..], [0; 4], "{self}: entries stay in queues");
        if self.ending == Ending::Left {
            self.rig.run_for(self.options().ttl.expect("set"));
        }
        // A waiter left in a queue would now get the lock.
        for index in 0..5 {
            let has_other = self.rig.masters[index].value(self.rig.now, KEY) == Some(OTHER);
            if has_other {
                free(&mut self.rig, index);
            }
        }
        self.rig.run_for(ms(10));
        // A master that does not answer is released when it resumes.
        let is_late = matches!(self.trouble, Trouble::Stops | Trouble::Stalls);
        let taken = self.taken();
        assert!(taken.iter().all(|index| is_late && *index == 0), "{self}: masters {taken:?} keep it");
        self.rig.resume_master(0);
        self.rig.end_stall(0);
        self.rig.run_for(ms(2_000));
        assert_eq!(self.taken(), [0; 0], "{self}: masters keep it");
        // Bytes of a broken connection may arrive until no attempt for the lock can be alive.
        self.rig.run_for(limits::STAY + self.options().ttl.expect("set"));
        assert_eq!((self.taken(), self.parked()), (vec![], vec![0; 5]), "{self}");
        let counts = (self.rig.engine.operation_count(), self.rig.engine.claim_count());
        assert_eq!((counts, self.rig.engine.owed_count(id(0))), ((0, 0), 0), "{self}");
        assert_eq!(self.rig.outcome(), None, "{self}");
    }
}

#[test]
fn whoever_waits_gets_the_lock_and_leaves_nothing() {
    let queue = queue_key(KEY);
    for kind in KINDS {
        for trouble in TROUBLES {
            for ending in ENDINGS {
                let mut case = Case::new(kind, trouble, ending);
                case.run();
                let sent = case.rig.masters[1].log.iter();
                let count =
                    sent.filter(|words| words.iter().any(|word| *word == KEY || *word == queue)).count();
                assert!(count < 40, "{case}: {count} commands for one lock");
            }
        }
    }
}
