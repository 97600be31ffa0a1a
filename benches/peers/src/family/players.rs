//! The Rust libraries' parts, each in a separate process.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redlatch::{Client, Config, Quarantine};
use redlatch_support::Blocking;

use super::{FamilyPeer, Pace, READY};
use crate::rivals::redis_rs::RedisRs;

const TTL: Duration = Duration::from_secs(10);
/// Nobody gives up.
const PATIENCE: Duration = Duration::from_secs(600);
/// Time until all are connected.
const START: Duration = Duration::from_millis(500);
/// Time for counting the keys.
const COUNTING: Duration = Duration::from_millis(500);

/// Plays a Rust library's part; `words` follow `play` on the command line.
///
/// # Panics
/// If the words are malformed, or a lock cannot be acquired.
pub fn play(words: &[String]) {
    let [peer, what, count, seconds, millis, pause_ms, addresses @ ..] = words else {
        panic!("too few words: {words:?}")
    };
    let peer = FamilyPeer::ALL.into_iter().find(|it| it.id() == peer).expect("a known peer");
    let number = |text: &String| text.parse().expect("a number");
    let (count, seconds, millis, pause_ms) =
        (number(count), number(seconds), number(millis), number(pause_ms));
    let urls: Vec<String> = addresses.iter().map(|address| format!("redis://{address}")).collect();
    let (time, millis) = (Duration::from_secs(seconds), Duration::from_millis(millis));
    let pace = Pace { time, hold: millis, pause: Duration::from_millis(pause_ms) };
    let count = usize::try_from(count).expect("few");
    match (what.as_str(), peer) {
        ("contend", FamilyPeer::Rslock) => {
            contend_in_tasks(count, pace, async || rslock::LockManager::new(urls.clone()), rslock_once);
        }
        ("contend", FamilyPeer::RedisRs) => {
            contend_in_tasks(count, pace, async || RedisRs::connect(&urls).await, redis_rs_once);
        }
        ("contend", _) => contend(peer, &urls, count, pace),
        ("keep", FamilyPeer::Rslock) => keep_rslock(&urls, count, time, millis),
        ("keep", _) => keep(&urls, count, time, millis),
        (other, _) => panic!("{other} is no work"),
    }
}

type Events = Arc<Mutex<Vec<(usize, [u128; 3])>>>;

fn now_us() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros()
}

fn report(events: &Events) {
    for (who, [asked, acquired, released]) in events.lock().expect("no panic").iter() {
        println!("{who} {asked} {acquired} {released}");
    }
}

fn config(peer: FamilyPeer, urls: &[String]) -> Config {
    let builder = Config::builder().masters(urls).quarantine(Quarantine::Trust);
    builder.wake_waiters(peer != FamilyPeer::Polling).build().expect("valid settings")
}

/// Contenders that are threads with a `Redlock` each.
fn contend(peer: FamilyPeer, urls: &[String], count: usize, pace: Pace) {
    let (events, start) = (Events::default(), Barrier::new(count + 1));
    std::thread::scope(|scope| {
        for who in 0..count {
            let (events, start) = (events.clone(), &start);
            scope.spawn(move || {
                let mut redlock = Blocking::open(config(peer, urls)).expect("an event loop");
                std::thread::sleep(START);
                start.wait();
                let end = Instant::now() + pace.time;
                while Instant::now() < end {
                    let asked = now_us();
                    let request = redlock.lock("family").ttl(TTL).wait(PATIENCE);
                    let result = match peer {
                        FamilyPeer::Fair => request.fair().acquire(),
                        FamilyPeer::Fenced => request.fenced().acquire(),
                        _ => request.acquire(),
                    };
                    let lease = result.expect("nobody keeps it");
                    let acquired = now_us();
                    std::thread::sleep(pace.hold);
                    events.lock().expect("no panic").push((who, [asked, acquired, now_us()]));
                    redlock.release(lease).expect("the masters answer");
                    std::thread::sleep(pace.pause);
                }
            });
        }
        start.wait();
        println!("{READY}");
    });
    report(&events);
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Contenders that are tasks of one thread.
fn contend_in_tasks<L: 'static>(
    count: usize,
    pace: Pace,
    connect: impl AsyncFn() -> L,
    once: impl AsyncFn(&L, Duration) -> [u128; 3] + Copy + 'static,
) {
    let events = Events::default();
    runtime().block_on(async {
        let mut locks = Vec::new();
        for _ in 0..count {
            locks.push(connect().await);
        }
        tokio::time::sleep(START).await;
        println!("{READY}");
        let end = Instant::now() + pace.time;
        let contenders = tokio::task::LocalSet::new();
        for (who, lock) in locks.into_iter().enumerate() {
            let events = events.clone();
            contenders.spawn_local(async move {
                while Instant::now() < end {
                    let times = once(&lock, pace.hold).await;
                    events.lock().expect("no panic").push((who, times));
                    pause(pace.pause).await;
                }
            });
        }
        contenders.await;
    });
    report(&events);
}

/// As exact as a thread's sleep, because tokio's timer counts whole milliseconds.
async fn pause(time: Duration) {
    if !time.is_zero() {
        tokio::task::spawn_blocking(move || std::thread::sleep(time)).await.expect("it sleeps");
    }
}

async fn rslock_once(manager: &rslock::LockManager, hold: Duration) -> [u128; 3] {
    let asked = now_us();
    let guard = manager.acquire(b"family", TTL).await.expect("it tries until it has it");
    let acquired = now_us();
    pause(hold).await;
    let released = now_us();
    guard.release().await;
    [asked, acquired, released]
}

async fn redis_rs_once(locks: &RedisRs, hold: Duration) -> [u128; 3] {
    let asked = now_us();
    let token = locks.acquire("family", PATIENCE).await.expect("it tries until it has it");
    let acquired = now_us();
    pause(hold).await;
    let released = now_us();
    locks.release("family", &token).await;
    [asked, acquired, released]
}

fn keep(urls: &[String], count: usize, time: Duration, ttl: Duration) {
    let client = Client::open(config(FamilyPeer::Woken, urls)).expect("an event loop");
    let guards: Vec<_> = (0..count)
        .map(|index| {
            let name = format!("kept:{index}");
            let request = client.lock(&name).ttl(ttl).wait(PATIENCE).auto_extend(PATIENCE);
            request.acquire().expect("nobody else wants it")
        })
        .collect();
    println!("held");
    std::thread::sleep(time);
    println!("kept {}", guards.iter().filter(|guard| !guard.is_valid()).count());
    std::thread::sleep(COUNTING);
    guards.into_iter().for_each(|guard| drop(guard.release()));
}

fn keep_rslock(urls: &[String], count: usize, time: Duration, ttl: Duration) {
    let manager = rslock::LockManager::new(urls.to_vec());
    let held = Arc::new(AtomicUsize::new(0));
    let (over, is_over) = tokio::sync::watch::channel(false);
    runtime().block_on(async {
        let keepers: Vec<_> = (0..count)
            .map(|index| {
                let (manager, held, mut is_over) = (manager.clone(), held.clone(), is_over.clone());
                tokio::spawn(async move {
                    let name = format!("kept:{index}");
                    let routine = async || {
                        held.fetch_add(1, Ordering::SeqCst);
                        let _ = is_over.wait_for(|over| *over).await;
                    };
                    manager.using(name.as_bytes(), ttl, routine).await.is_ok()
                })
            })
            .collect();
        while held.load(Ordering::SeqCst) < count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        println!("held");
        tokio::time::sleep(time).await;
        // A keeper that has ended early has lost its lock.
        println!("kept {}", keepers.iter().filter(|background| background.is_finished()).count());
        tokio::time::sleep(COUNTING).await;
        let _ = over.send(true);
        for background in keepers {
            let _ = background.await;
        }
    });
}
