//! Participants, and the part that the Rust libraries play.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redlatch::{Client, Config, Quarantine, Redlock};
use serde::{Deserialize, Serialize};

use crate::rivals::locked_version;

const TTL: Duration = Duration::from_secs(10);
/// Nobody gives up.
const PATIENCE: Duration = Duration::from_secs(600);
/// Until all are connected.
const START: Duration = Duration::from_millis(500);
/// While the keys are counted.
const COUNTING: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FamilyPeer {
    Woken,
    Fair,
    Polling,
    Rslock,
    NodeRedlock,
    RedisSemaphore,
    PythonRedisLock,
}

impl FamilyPeer {
    pub const ALL: [Self; 7] = [
        Self::Woken,
        Self::Fair,
        Self::Polling,
        Self::Rslock,
        Self::NodeRedlock,
        Self::RedisSemaphore,
        Self::PythonRedisLock,
    ];

    pub const fn id(self) -> &'static str {
        match self {
            Self::Woken => "redlatch",
            Self::Fair => "redlatch-fair",
            Self::Polling => "redlatch-polling",
            Self::Rslock => "rslock",
            Self::NodeRedlock => "node-redlock",
            Self::RedisSemaphore => "redis-semaphore",
            Self::PythonRedisLock => "python-redis-lock",
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Woken => "redlatch",
            Self::Fair => "redlatch, `fair()`",
            Self::Polling => "redlatch, `wake_waiters(false)`",
            Self::Rslock => "rslock (Rust)",
            Self::NodeRedlock => "node-redlock (JavaScript)",
            Self::RedisSemaphore => "redis-semaphore, `RedlockMutex` (JavaScript)",
            Self::PythonRedisLock => "python-redis-lock (one master)",
        }
    }

    pub const fn waits_by(self) -> &'static str {
        match self {
            Self::Woken => "parked: a master grants or rings, and a heartbeat",
            Self::Fair => "parked, in the order of all masters together",
            Self::Polling => "polling, 1 to 100 ms",
            Self::Rslock => "polling, 0 to 200 ms",
            Self::NodeRedlock => "polling, 100 to 300 ms",
            Self::RedisSemaphore => "polling, 10 ms",
            Self::PythonRedisLock => "`BLPOP` of a list",
        }
    }

    pub const fn keeps_by(self) -> Option<&'static str> {
        match self {
            Self::Woken => {
                Some("`auto_extend`: about a quarter to a third of the TTL, a write per master for all")
            }
            Self::Fair | Self::Polling => None,
            Self::Rslock => Some("`using`: 0.5 s before the end"),
            Self::NodeRedlock => Some("`using`: 0.5 s before the end"),
            Self::RedisSemaphore => Some("a timer for each lock at 0.8 of the TTL"),
            Self::PythonRedisLock => Some("a thread for each lock at two thirds of the TTL"),
        }
    }

    pub fn version(self) -> String {
        let pinned = |file: &str, name: &str| {
            let line = file.lines().find(|line| line.trim_start_matches([' ', '"']).starts_with(name));
            line.map_or_else(String::new, |line| {
                line.chars()
                    .skip_while(|letter| !letter.is_ascii_digit())
                    .take_while(|letter| !"\",".contains(*letter))
                    .collect()
            })
        };
        match self {
            Self::Woken | Self::Fair | Self::Polling => {
                locked_version("redlatch", "").unwrap_or_default().to_owned()
            }
            Self::Rslock => locked_version("rslock", "").unwrap_or_default().to_owned(),
            Self::NodeRedlock => pinned(include_str!("../../others/package.json"), "redlock"),
            Self::RedisSemaphore => pinned(include_str!("../../others/package.json"), "redis-semaphore"),
            Self::PythonRedisLock => {
                pinned(include_str!("../../others/requirements.txt"), "python-redis-lock")
            }
        }
    }

    pub const fn master_count(self) -> usize {
        if matches!(self, Self::PythonRedisLock) { 1 } else { 5 }
    }

    /// Where a script sets the key: how many more scripts each lock has, for its release. Else it is a `SET`
    /// by itself.
    pub(super) const fn scripts_of_release(self) -> Option<u64> {
        match self {
            Self::Fair => Some(2),
            Self::NodeRedlock => Some(1),
            _ => None,
        }
    }

    /// Its process, but for the work; or what is missing.
    pub(super) fn command(self) -> Result<Command, String> {
        let others = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("others");
        let other = |variable: &str, script: &str| {
            let program = std::env::var(variable).map_err(|_| format!("{variable} is not set"))?;
            let mut command = Command::new(program);
            command.arg(others.join(script));
            Ok::<_, String>(command)
        };
        let mut command = match self {
            Self::Woken | Self::Fair | Self::Polling | Self::Rslock => {
                let mut command = Command::new(std::env::current_exe().map_err(|error| error.to_string())?);
                command.arg("play");
                command
            }
            Self::NodeRedlock | Self::RedisSemaphore => other("REDLATCH_PEERS_NODE", "locks.cjs")?,
            Self::PythonRedisLock => other("REDLATCH_PEERS_PYTHON", "locks.py")?,
        };
        command.arg(self.id());
        Ok(command)
    }
}

/// Plays the part of a Rust library: the words are those behind `play`.
///
/// # Panics
/// If the words are not as the parent writes them, or a lock cannot be had.
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
        ("contend", FamilyPeer::Rslock) => contend_rslock(&urls, count, pace),
        ("contend", _) => contend(peer, &urls, count, pace),
        ("keep", FamilyPeer::Rslock) => keep_rslock(&urls, count, time, millis),
        ("keep", _) => keep(&urls, count, time, millis),
        (other, _) => panic!("{other} is no work"),
    }
}

/// How long contenders go on, keep a lock, and pause before the next.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    pub time: Duration,
    pub hold: Duration,
    pub pause: Duration,
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

fn contend(peer: FamilyPeer, urls: &[String], count: usize, pace: Pace) {
    let events = Events::default();
    let end = Instant::now() + START + pace.time;
    std::thread::scope(|scope| {
        for who in 0..count {
            let events = events.clone();
            scope.spawn(move || {
                let mut redlock = Redlock::open(config(peer, urls)).expect("an event loop");
                std::thread::sleep(START);
                while Instant::now() < end {
                    let asked = now_us();
                    let result = match peer {
                        FamilyPeer::Fair => redlock.lock("family").ttl(TTL).wait(PATIENCE).fair().acquire(),
                        _ => redlock.lock("family").ttl(TTL).wait(PATIENCE).acquire(),
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
    });
    report(&events);
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn contend_rslock(urls: &[String], count: usize, pace: Pace) {
    let (events, end) = (Events::default(), Instant::now() + START + pace.time);
    runtime().block_on(async {
        let contenders: Vec<_> = (0..count)
            .map(|who| {
                let (manager, events) = (rslock::LockManager::new(urls.to_vec()), events.clone());
                tokio::spawn(async move {
                    tokio::time::sleep(START).await;
                    while Instant::now() < end {
                        let asked = now_us();
                        let guard = manager.acquire(b"family", TTL).await.expect("it tries until it has it");
                        let acquired = now_us();
                        tokio::time::sleep(pace.hold).await;
                        events.lock().expect("no panic").push((who, [asked, acquired, now_us()]));
                        guard.release().await;
                        tokio::time::sleep(pace.pause).await;
                    }
                })
            })
            .collect();
        for contender in contenders {
            contender.await.expect("a contender does not panic");
        }
    });
    report(&events);
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
        // One that has ended before its time has lost its lock.
        println!("kept {}", keepers.iter().filter(|background| background.is_finished()).count());
        tokio::time::sleep(COUNTING).await;
        let _ = over.send(true);
        for background in keepers {
            let _ = background.await;
        }
    });
}
