//! Clients that contend for a few locks while a test harms the masters, and one more server as a witness.
//!
//! Each contestant is a thread with a `Redlock`, or with half of a `Client` ([`Way`]). It acquires a lock,
//! holds it for a random time, and sometimes extends it, forgets it or lets it expire. Holders write their
//! entry and exit to the witness. Meanwhile the test's thread harms and heals masters. [`Contest::finish`]
//! judges the result.
//!
//! The test's thread waits only for things that must happen, so a slow machine only takes longer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redlatch::status::MasterState;
use redlatch::{AcquireError, Config, ExtendError, Quarantine, ReleaseError, limits};
use redlatch_support::judge::{self, Visit, VisitName};
use redlatch_support::{Blocking, Connection, Fleet, PATIENCE, Raw, assert_sooner, eventually};

use crate::lockers::{Held, Locker, Mode, Way};

/// TTL of each lock, and the fleet's `max_ttl`.
pub(crate) const TTL: Duration = Duration::from_secs(1);
/// Well above a round trip, so that masters do not look silent on a busy machine.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(300);
const RESOURCES: [&str; 2] = ["orders:1", "orders:2"];
const CLIENT_COUNT: usize = 4;
/// How much a busy machine may exceed a deadline.
const SLACK: Duration = Duration::from_secs(5);
/// Validity needed to enter, and left at a planned exit.
const RESERVE: Duration = Duration::from_millis(200);

pub(crate) struct Contest {
    name: &'static str,
    shared: Arc<Shared>,
    clients: Vec<JoinHandle<Record>>,
    checker: Fleet,
    phase_count: usize,
    begun: Instant,
}

/// Settings of a contest, and the number of masters that it needs to begin.
pub(crate) struct Rules {
    pub(crate) quarantine: Quarantine,
    /// All masters by default.
    pub(crate) ready_count: Option<usize>,
    pub(crate) way: Way,
    /// Half of the locks are plain if the mode is shared.
    pub(crate) mode: Mode,
}

impl Default for Rules {
    fn default() -> Self {
        Self { quarantine: Quarantine::Uptime, ready_count: None, way: Way::Redlock, mode: Mode::Plain }
    }
}

/// State that the clients share with the test's thread.
#[derive(Default)]
struct Shared {
    is_over: AtomicBool,
    /// Whether each client sees enough masters ready.
    are_ready: [AtomicBool; CLIENT_COUNT],
    entry_counts: [AtomicUsize; RESOURCES.len()],
    outage_count: AtomicUsize,
}

impl Contest {
    /// Returns once each client counts enough masters' votes.
    pub(crate) fn start(name: &'static str, urls: &[String], rules: &Rules) -> Self {
        Self::start_with_lists(name, &vec![urls.to_vec(); CLIENT_COUNT], rules)
    }

    /// Like [`Self::start`], with a separate list of masters for each client. Different lists can give a lock
    /// to two holders, as a test of the contest needs.
    pub(crate) fn start_with_lists(name: &'static str, lists: &[Vec<String>], rules: &Rules) -> Self {
        let checker = Fleet::start(1);
        let shared = Arc::new(Shared::default());
        let mut contest =
            Self { name, shared, clients: Vec::new(), checker, phase_count: 0, begun: Instant::now() };
        let mut shared_client = None;
        for (index, urls) in lists.iter().enumerate() {
            let config = Config::builder()
                .masters(urls)
                .max_ttl(TTL)
                .answer_timeout(ANSWER_TIMEOUT)
                .retry_delay(Duration::from_millis(1)..=Duration::from_millis(20))
                .quarantine(rules.quarantine);
            let ready_count = rules.ready_count.unwrap_or(urls.len());
            let config = config.build().expect("valid settings");
            if rules.way == Way::Client && index % 2 == 0 {
                shared_client = Some(redlatch::Client::open(config.clone()).expect("an event loop"));
            }
            let (shared, checker) = (Arc::clone(&contest.shared), contest.checker.addrs()[0]);
            let (client, mode) = (shared_client.clone(), rules.mode);
            contest.clients.push(std::thread::spawn(move || {
                let locker = match client {
                    None => Locker::Redlock(Box::new(Blocking::open(config).expect("an event loop"))),
                    Some(client) if index % 2 == 0 => Locker::Thread(client),
                    Some(client) => Locker::Task(client),
                };
                let mut client = Client::open(index, locker, ready_count, shared, checker);
                client.mode = mode;
                client.run()
            }));
        }
        contest.wait("the clients count the masters' votes", Shared::are_all_ready);
        contest
    }

    /// Waits until this many more locks were acquired, at least one of each resource. Needs a quorum.
    pub(crate) fn progress(&self, what: &str, count: usize) {
        let before = self.shared.entry_counts();
        self.wait(&format!("acquisitions while {what}"), |shared| {
            let now = shared.entry_counts();
            now.iter().sum::<usize>() >= before.iter().sum::<usize>() + count
                && now.iter().zip(&before).all(|(now, before)| now > before)
        });
    }

    /// Begins a phase with a fault, and waits until locks are acquired despite it.
    pub(crate) fn survives(&mut self, fault: &str, count: usize) {
        self.phase_count += 1;
        self.progress(fault, count);
    }

    /// Begins a phase with a fault that leaves no quorum, and waits until calls report it.
    pub(crate) fn fails(&mut self, fault: &str, count: usize) {
        self.phase_count += 1;
        let before = self.shared.outage_count.load(Ordering::SeqCst);
        self.wait(&format!("outages are reported while {fault}"), |shared| {
            shared.outage_count.load(Ordering::SeqCst) >= before + count
        });
    }

    /// Waits until each resource was acquired again, after the last fault was healed. Takes at most the old
    /// lock's time, the quarantine and a pause between connection attempts.
    pub(crate) fn recovers(&self, from: &str) {
        let before = self.shared.entry_counts();
        let limit = TTL + TTL.mul_f64(1.01) + limits::BACKOFF_MAX + 3 * SLACK;
        let healed = Instant::now();
        // Two acquisitions, because one may have been under way.
        self.wait(&format!("acquisitions after {from}"), |shared| {
            shared.entry_counts().iter().zip(&before).all(|(now, before)| now >= &(before + 2))
        });
        assert_sooner(healed, limit, &format!("{}: longer means a lock that stays, after {from}", self.name));
    }

    /// Lets the clients go on for this long.
    pub(crate) fn pass(&self, time: Duration) {
        std::thread::sleep(time);
        self.check_clients();
    }

    /// Ends the contest, once all masters are healed and each client has noticed. No key may be left, no lock
    /// may have had two holders, and fencing tokens must rise.
    pub(crate) fn finish(self, fleet: &mut Fleet) {
        let name = self.name;
        let wrong = self.judge(fleet);
        assert!(
            wrong.is_empty(),
            "{name}: {} times held by two, or a token that does not rise: {wrong:#?}",
            wrong.len()
        );
    }

    /// Like [`Self::finish`], but returns locks with two holders and tokens that do not rise.
    pub(crate) fn judge(mut self, fleet: &mut Fleet) -> Vec<String> {
        self.wait("the clients count all masters' votes again", Shared::are_all_ready);
        self.shared.is_over.store(true, Ordering::SeqCst);
        eventually(PATIENCE, "the clients close", || self.clients.iter().all(JoinHandle::is_finished));
        let clients = std::mem::take(&mut self.clients);
        let records: Vec<Record> = clients
            .into_iter()
            .map(|it| it.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect();
        self.check_keys(fleet, records.iter().map(|record| record.closing_time).max().unwrap_or_default());
        let visits: Vec<Visit> = records.iter().flat_map(|record| record.visits.clone()).collect();
        let mut wrong = judge::overlaps(&visits);
        wrong.extend(judge::token_disorders(&visits));
        for (index, name) in RESOURCES.iter().enumerate() {
            let log = match self.checker.master(0).ask(&format!("LRANGE {name} 0 -1")) {
                Raw::List(items) => items.iter().map(Raw::text).collect::<Vec<_>>(),
                other => panic!("{other:?}"),
            };
            wrong.extend(judge::disorders(index, &log, &visits));
        }
        let sum = |count: fn(&Record) -> usize| records.iter().map(count).sum::<usize>();
        let late = records.iter().map(|record| record.late).max().unwrap_or_default();
        println!(
            "contest {}: {:.1?}, {} phases with faults; {} acquired ({} by readers, {} seen by the checker), {} contended, {} without quorum, \
             {} expired; {} extended, {} not; {} releases confirmed, {} not; latest call {:?} after its deadline ({})",
            self.name,
            self.begun.elapsed(),
            self.phase_count,
            visits.len(),
            visits.iter().filter(|visit| visit.is_shared).count(),
            visits.iter().filter(|visit| visit.is_witnessed).count(),
            sum(|it| it.contended_count),
            sum(|it| it.outage_count),
            sum(|it| it.expired_count),
            sum(|it| it.extended_count),
            sum(|it| it.unextended_count),
            sum(|it| it.released_count),
            sum(|it| it.unreleased_count),
            late.0,
            late.1,
        );
        assert!(late.0 < SLACK, "{}: {} came back {:?} after its deadline", self.name, late.1, late.0);
        assert_eq!(sum(|it| it.leak_count), 0, "{}: locks not released everywhere", self.name);
        wrong
    }

    /// All locks are released. A client that took long to close waited for answers until its keys should have
    /// expired. Only a `SET` that was stuck on its way may leave a key for another TTL.
    fn check_keys(&self, fleet: &mut Fleet, closing_time: Duration) {
        for (index, master) in fleet.masters().enumerate() {
            let keys = master.keys();
            // A fence outlives its lock, and the entry of a cut-off waiter lasts for its stay.
            let passes =
                |name: &str| name.starts_with("redlatch:wait:") || name.starts_with("redlatch:fence:");
            let mut names = keys.trim_matches(['[', ']']).split(", ").filter(|name| !name.is_empty());
            assert!(
                names.all(passes) || closing_time > TTL / 2,
                "{}: {keys} left on master {index}, closed in {closing_time:?}",
                self.name
            );
            for name in RESOURCES {
                let left_ms: i128 = master.ask(&format!("PTTL {name}")).text().parse().expect("a number");
                assert!(
                    left_ms == -2 || (0..=TTL.as_millis().cast_signed()).contains(&left_ms),
                    "{}: {name} lives on",
                    self.name
                );
            }
            eventually(PATIENCE, "keys expire", || master.key_count() == "0");
        }
    }

    fn wait(&self, what: &str, mut is_true: impl FnMut(&Shared) -> bool) {
        eventually(PATIENCE, &format!("{}: {what}", self.name), || {
            self.check_clients();
            is_true(&self.shared)
        });
    }

    fn check_clients(&self) {
        assert!(
            !self.clients.iter().any(JoinHandle::is_finished),
            "{}: a client has panicked; see above",
            self.name
        );
    }
}

impl Drop for Contest {
    /// Ends the clients, also if the test's thread panics.
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
    }
}

impl Shared {
    fn are_all_ready(&self) -> bool {
        self.are_ready.iter().all(|it| it.load(Ordering::SeqCst))
    }

    fn entry_counts(&self) -> [usize; RESOURCES.len()] {
        self.entry_counts.each_ref().map(|count| count.load(Ordering::SeqCst))
    }
}

/// Results of one client.
#[derive(Default)]
struct Record {
    visits: Vec<Visit>,
    contended_count: usize,
    outage_count: usize,
    expired_count: usize,
    extended_count: usize,
    unextended_count: usize,
    released_count: usize,
    unreleased_count: usize,
    /// Number of locks not known to be released everywhere when the client closed.
    leak_count: usize,
    closing_time: Duration,
    /// The largest excess over a deadline, and its call.
    late: (Duration, &'static str),
}

struct Client {
    index: usize,
    locker: Locker,
    checker: Connection,
    shared: Arc<Shared>,
    /// Number of masters that it must see ready.
    ready_count: usize,
    mode: Mode,
    rng: StdRng,
    record: Record,
}

impl Client {
    fn open(
        index: usize,
        locker: Locker,
        ready_count: usize,
        shared: Arc<Shared>,
        checker: SocketAddr,
    ) -> Self {
        let checker = Connection::open(checker, PATIENCE).expect("the checker runs");
        let rng = StdRng::try_from_rng(&mut rand::rngs::SysRng).expect("the system gives randomness");
        let record = Record::default();
        Self { index, locker, checker, shared, ready_count, mode: Mode::Plain, rng, record }
    }

    fn run(mut self) -> Record {
        while !self.note_ready() && !self.shared.is_over.load(Ordering::SeqCst) {
            self.locker.turn(Duration::from_millis(5));
        }
        while !self.shared.is_over.load(Ordering::SeqCst) {
            self.contend();
            self.note_ready();
        }
        let begun = Instant::now();
        self.record.leak_count = self.locker.close(PATIENCE);
        self.record.closing_time = begun.elapsed();
        self.record
    }

    fn note_ready(&self) -> bool {
        let masters = self.locker.masters();
        let count = masters.iter().filter(|master| master.state == MasterState::Ready).count();
        self.shared.are_ready[self.index].store(count >= self.ready_count, Ordering::SeqCst);
        count >= self.ready_count
    }

    fn contend(&mut self) {
        let resource = self.rng.random_range(0..RESOURCES.len());
        let wait = Duration::from_millis(self.rng.random_range(0..400_u64).saturating_sub(100));
        let is_writer = self.mode == Mode::Shared && self.rng.random();
        let mode = if is_writer { Mode::Plain } else { self.mode };
        let asked = Instant::now();
        let result = self.locker.acquire(RESOURCES[resource], TTL, wait, mode);
        let entered = Instant::now();
        self.note_time("acquire", asked, wait + 2 * ANSWER_TIMEOUT + limits::REVIVE_MAX);
        match result {
            Ok(lease) => {
                let name = VisitName { resource, client: self.index, number: self.record.visits.len() };
                self.shared.entry_counts[resource].fetch_add(1, Ordering::SeqCst);
                let is_shared = mode == Mode::Shared;
                let fencing_token = lease.fencing_token();
                let (from, until, is_witnessed) = (entered, entered, false);
                let visit = Visit { name, is_shared, from, until, is_witnessed, fencing_token };
                self.visit(visit, lease);
            }
            Err(AcquireError::Contended(_)) => self.record.contended_count += 1,
            Err(AcquireError::Expired(_)) => self.record.expired_count += 1,
            Err(AcquireError::NoQuorum(_)) => {
                self.record.outage_count += 1;
                self.shared.outage_count.fetch_add(1, Ordering::SeqCst);
                self.locker.turn(Duration::from_millis(10));
            }
            Err(error) => panic!("client {}: {error:#}", self.index),
        }
    }

    fn visit(&mut self, mut visit: Visit, mut lease: Held) {
        if lease.remaining() > 2 * RESERVE {
            self.record_visit('+', &visit);
            match self.rng.random_range(0..40_u64) {
                0 => {
                    self.hold_long(&lease);
                    self.extend(&mut lease);
                    self.hold_long(&lease);
                }
                1 => self.extend(&mut lease),
                2..6 => self.hold_long(&lease),
                short => self.hold(Duration::from_millis(short % 8)),
            }
            self.record_visit('-', &visit);
            visit.is_witnessed = lease.is_valid();
        }
        let ending = self.rng.random_range(0..40);
        if ending == 0 {
            std::thread::sleep(lease.remaining()); // its holder forgot it; it has to end by itself, and not before
        }
        visit.until = Instant::now().min(lease.valid_until());
        self.record.visits.push(visit);
        if ending < 15 {
            drop(lease);
        } else {
            let asked = Instant::now();
            let result = self.locker.release(lease);
            self.note_time("release", asked, ANSWER_TIMEOUT);
            match result {
                Ok(_) => self.record.released_count += 1,
                Err(ReleaseError::Unconfirmed(_)) => self.record.unreleased_count += 1,
                Err(error) => panic!("client {}: {error:#}", self.index),
            }
        }
    }

    fn extend(&mut self, lease: &mut Held) {
        let asked = Instant::now();
        let result = self.locker.extend(lease, TTL);
        self.note_time("extend", asked, ANSWER_TIMEOUT);
        match result {
            Ok(()) => self.record.extended_count += 1,
            Err(ExtendError::Expired | ExtendError::Lost(_) | ExtendError::NoQuorum(_)) => {
                self.record.unextended_count += 1;
            }
            Err(error) => panic!("client {}: {error:#}", self.index),
        }
    }

    /// Holds the lock for up to its validity, less the reserve.
    fn hold_long(&mut self, lease: &Held) {
        let longest = lease.remaining().saturating_sub(RESERVE);
        let time = longest.mul_f64(self.rng.random_range(0.1..1.0));
        self.hold(time);
    }

    /// A holder may be busy with its work, or drive the loop and so receive late answers.
    fn hold(&mut self, time: Duration) {
        let until = Instant::now() + time;
        if self.rng.random_bool(0.5) {
            std::thread::sleep(time);
        }
        while Instant::now() < until {
            self.locker.turn(until - Instant::now());
        }
    }

    fn record_visit(&mut self, kind: char, visit: &Visit) {
        let (list, event) = (RESOURCES[visit.name.resource], format!("{kind}{}", visit.name));
        self.checker.command(&[b"RPUSH", list.as_bytes(), event.as_bytes()]).expect("an answer");
    }

    fn note_time(&mut self, call: &'static str, asked: Instant, limit: Duration) {
        let late = asked.elapsed().saturating_sub(limit);
        self.record.late = (late, call).max(self.record.late);
    }
}

#[test]
#[should_panic(expected = "times held by two, or a token")]
fn a_contest_sees_two_holders() {
    let mut fleet = Fleet::start(5);
    // The halves' lists share no master, so nothing excludes them from each other.
    let urls = fleet.urls();
    let lists: Vec<_> = (0..CLIENT_COUNT)
        .map(|index| if index % 2 == 0 { &urls[..2] } else { &urls[3..] }.to_vec())
        .collect();
    let rules = Rules { quarantine: Quarantine::Trust, ..Rules::default() };
    let contest = Contest::start_with_lists("other lists", &lists, &rules);
    contest.progress("half of the clients have other lists", 60);
    contest.finish(&mut fleet);
}
