//! Waiters of a lock whose queues are full or whose masters are slow, and entries that are not where a waiter
//! looks.

use std::time::{Duration, Instant};

use redlatch::engine::OpId;
use redlatch::{Options, limits};

use crate::model::{digest, queue_key};
use crate::parked::{KEY, OTHER, free, with_other};
use crate::rig::Rig;
use crate::{defaults, granted, ms};

/// Positions of arguments in a `park` and in an `unpark`.
const TICKET: usize = 8;
const AT: usize = 9;
const UNPARK_AT: usize = 6;

fn fair() -> Options {
    Options::new().ttl(ms(10_000)).wait(ms(600_000)).fair()
}

/// The word at this position in each call of a script on a master.
fn words(rig: &Rig, index: usize, name: &str, place: usize) -> Vec<Vec<u8>> {
    let sha = digest(name);
    let log = rig.masters[index].log.iter();
    log.filter(|words| words.get(1).is_some_and(|it| it == sha.as_bytes()))
        .map(|words| words[place].clone())
        .collect()
}

fn entry_count(rig: &Rig, index: usize) -> usize {
    rig.masters[index].parked(rig.now, KEY).len()
}

/// A waiter whose park a master has carried out, but whose answer is under way.
fn unanswered(mut rig: Rig, index: usize, options: Options) -> (Rig, OpId) {
    rig.masters.iter_mut().for_each(|master| master.load_scripts());
    rig.stall_replies(index);
    let lock = rig.acquire_with("a", options);
    assert_eq!(entry_count(&rig, index), 1);
    (rig, lock)
}

/// Fills a queue with other clients' waiters, except for this many.
fn fill(rig: &mut Rig, less: u64) {
    let (now, stay) = (rig.now, limits::STAY.as_millis());
    for master in &mut rig.masters {
        let stay_end = u128::from(master.wall_us(now)) / 1000 + stay;
        let queue = queue_key(KEY);
        let purge: [&[u8]; 4] = [b"ZREMRANGEBYSCORE", &queue, b"0", b"4096"];
        master.carry_out_over(1000, now, &purge, &mut Vec::new());
        let mut command = vec![b"ZADD".to_vec(), queue];
        for place in 0..limits::WAITER_COUNT_MAX - less {
            let head = format!("redlatch:1:{place:012}p{:08}{stay_end:013}", 1);
            let tail = format!("{:013}{:010}001c12345678value-{place:014}", 0, 1000);
            command.extend([place.to_string().into_bytes(), (head + &tail).into_bytes()]);
        }
        let command: Vec<_> = command.iter().map(Vec::as_slice).collect();
        master.carry_out_over(1000, now, &command, &mut Vec::new());
    }
}

// I71
#[test]
fn an_unanswered_wait_ends_at_its_ticket() {
    let (mut rig, lock) = unanswered(with_other(Rig::new(3, defaults)), 0, fair());
    rig.release(lock, false);
    assert_eq!(words(&rig, 0, "unpark", UNPARK_AT), words(&rig, 0, "park", TICKET));
    assert_eq!(entry_count(&rig, 0), 0);
}

// I71
#[test]
fn park_after_a_lost_answer_names_its_ticket() {
    let (mut rig, _) = unanswered(with_other(Rig::new(3, defaults)), 0, fair());
    rig.reset_conn(0);
    rig.end_stall(0);
    rig.run_for(ms(300));
    let tickets = words(&rig, 0, "park", TICKET);
    assert_eq!(tickets.len(), 2);
    assert_eq!(words(&rig, 0, "park", AT), tickets);
    assert_eq!(entry_count(&rig, 0), 1);
}

/// One master's clock is a minute ahead, so its entries sort elsewhere.
fn ahead(count: usize) -> Rig {
    let mut rig = Rig::new(count, defaults);
    let (now, us) = (rig.now, rig.masters[0].wall_us(rig.now));
    rig.masters[0].set_wall(now, us + 60_000_000);
    with_other(rig)
}

// I71
#[test]
fn an_entry_elsewhere_ends_behind_its_answer() {
    let (mut rig, lock) = unanswered(ahead(3), 0, fair());
    fill(&mut rig, limits::WAITER_COUNT_MAX - 1);
    rig.release(lock, false);
    assert_eq!(entry_count(&rig, 0), 2, "it is not where it was asked for");
    rig.end_stall(0);
    rig.run_for(ms(600));
    assert_eq!((entry_count(&rig, 0), rig.engine.claim_count()), (1, 0));
}

// I71
#[test]
fn ending_a_wait_grants_nothing() {
    let (mut rig, lock) = unanswered(ahead(3), 0, fair());
    let now = rig.now;
    rig.masters[0].carry_out_over(1000, now, &[b"DEL", KEY], &mut Vec::new());
    rig.release(lock, false);
    assert_eq!((rig.masters[0].value(now, KEY), entry_count(&rig, 0)), (None, 0));
}

// I71
#[test]
fn swap_beside_an_entry_removes_the_entry_later() {
    let waiting = Options::new().ttl(ms(10_000)).wait(ms(60_000));
    let (mut rig, first) = unanswered(ahead(3), 0, waiting);
    (1..3).for_each(|index| free(&mut rig, index));
    rig.pump();
    granted(&mut rig);
    rig.acquire_with("a", waiting);
    rig.release(first, false);
    assert_eq!(entry_count(&rig, 0), 1, "it is not where it was asked for");
    rig.end_stall(0);
    granted(&mut rig);
    rig.run_for(ms(600));
    assert_eq!(entry_count(&rig, 0), 0);
}

// I72
#[test]
fn heartbeat_in_full_queue_keeps_its_place() {
    let mut rig = with_other(Rig::new(1, defaults));
    rig.acquire_with("a", fair());
    for _ in 0..2 {
        fill(&mut rig, 1);
        rig.run_for(ms(2000));
        assert_eq!(words(&rig, 0, "unpark", UNPARK_AT), [b""; 0], "it gave its place up");
    }
    assert!(words(&rig, 0, "park", TICKET).len() >= 5);
}

/// Times between a waiter's parks in two minutes.
fn pauses(rig: &mut Rig) -> Vec<Duration> {
    let (start, mut seen): (_, Vec<Instant>) = (rig.now, Vec::new());
    while rig.now < start + ms(120_000) {
        rig.run_for(ms(50));
        seen.resize(words(rig, 0, "park", TICKET).len(), rig.now);
    }
    seen.windows(2).map(|times| times[1] - times[0]).collect()
}

// I72
#[test]
fn refused_waiter_retries_a_full_queue_less_often() {
    for is_fair in [false, true] {
        let mut rig = with_other(Rig::new(3, defaults));
        let full = "ERR too many wait for this lock script: 567376a0, on @user_script:1.";
        rig.masters.iter_mut().for_each(|it| drop(it.errors.insert("EVALSHA".into(), full.into())));
        let options = Options::new().ttl(ms(10_000)).wait(ms(600_000));
        rig.acquire_with("a", if is_fair { options.fair() } else { options });
        let pauses = pauses(&mut rig);
        assert!((12..=30).contains(&pauses.len()), "{pauses:?}");
        assert!(pauses[..2].iter().all(|it| *it <= ms(2200)), "{pauses:?}");
        assert!(pauses[4..].iter().all(|it| (ms(5000)..=ms(10_100)).contains(it)), "{pauses:?}");
        assert!(pauses[4..].windows(2).any(|two| two[0] != two[1]), "{pauses:?}");
    }
}

/// Answers take up to this time. A waiter sends less to slow masters, never more.
// I72
#[test]
fn waiter_sends_less_to_slower_masters() {
    let sent = [0, 700, 1500, 3000].map(|delay| {
        let mut rig = Rig::new(3, defaults);
        rig.masters.iter_mut().for_each(|master| master.put(KEY, OTHER, None));
        rig.acquire_with("a", fair());
        let end = rig.now + ms(300_000);
        while rig.now < end {
            (0..3).for_each(|index| rig.stall_replies(index));
            rig.run_for(ms(delay.max(100)));
            rig.end_stalls();
        }
        let count = |name| words(&rig, 0, name, TICKET - 2).len();
        count("park") + count("unpark")
    });
    let [prompt, slow @ ..] = sent;
    assert!(slow.iter().all(|sent| *sent <= prompt) && slow[2] < prompt / 2, "{sent:?} in five minutes");
}
