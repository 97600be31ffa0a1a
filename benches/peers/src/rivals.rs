//! The participants, their settings, and how each becomes a [`Rig`].

mod fred;
mod lock_crates;
mod ours;
mod raw;
pub(crate) mod redis_rs;

use std::net::SocketAddr;
use std::time::Duration;

use rand::Rng;
use serde::{Deserialize, Serialize};

use crate::load::{AsyncLocks, AsyncRig, BlockingLocks, BlockingRig, RETRY_DELAY_MAX, Rig, TTL, Work, names};

/// Release script of the hand-made rivals, from Redis's page on distributed locks.
const RELEASE_SCRIPT: &str =
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";
/// The TTL less 1 % and 2 ms, as on that page.
const VALIDITY: Duration = Duration::from_millis(9_898);
/// With more callers, the threads of one client are not measured.
const SHARED_THREADS_MAX: usize = 128;
/// With more callers, threads with separate connections to all masters are not measured.
const THREADS_MAX: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Peer {
    Raw,
    /// A second process of the same loop, which shows the machine's scatter.
    RawAgain,
    RawQuorum,
    Redlatch,
    RedlatchPipelined,
    Client,
    ClientTasks,
    RedisRs,
    RedisRsThreads,
    Fred,
    Rslock,
    Redlock,
}

impl Peer {
    pub const ALL: [Self; 12] = [
        Self::Client,
        Self::ClientTasks,
        Self::Redlatch,
        Self::RedlatchPipelined,
        Self::RedisRs,
        Self::RedisRsThreads,
        Self::Fred,
        Self::Rslock,
        Self::Redlock,
        Self::Raw,
        Self::RawAgain,
        Self::RawQuorum,
    ];

    /// Peers on the pages; the data has all of them.
    pub fn shown() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|peer| !matches!(peer, Self::RedisRsThreads | Self::RawAgain))
    }

    /// Name in the tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw loop, waits for all",
            Self::RawAgain => "raw loop, waits for all, again",
            Self::RawQuorum => "raw loop, at the quorum",
            Self::Redlatch => "redlatch, Redlock",
            Self::Client => "redlatch, Client, threads",
            Self::ClientTasks => "redlatch, Client, tasks",
            Self::RedlatchPipelined => "redlatch, pipelined",
            Self::RedisRs => "redis-rs by hand",
            Self::RedisRsThreads => "redis-rs by hand, 2 threads",
            Self::Fred => "fred by hand",
            Self::Rslock => "rslock",
            Self::Redlock => "redlock (crate)",
        }
    }

    pub const fn is_ours(self) -> bool {
        matches!(self, Self::Redlatch | Self::RedlatchPipelined | Self::Client | Self::ClientTasks)
    }

    pub const fn is_raw(self) -> bool {
        matches!(self, Self::Raw | Self::RawAgain | Self::RawQuorum)
    }

    /// Package whose version is shown with the figures.
    pub const fn package(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Raw | Self::RawAgain | Self::RawQuorum => None,
            Self::Redlatch | Self::RedlatchPipelined | Self::Client | Self::ClientTasks => {
                Some(("redlatch", ""))
            }
            Self::RedisRs | Self::RedisRsThreads => Some(("redis", "1.")),
            Self::Fred => Some(("fred", "")),
            Self::Rslock => Some(("rslock", "")),
            Self::Redlock => Some(("redlock", "")),
        }
    }

    pub const fn settings(self) -> &'static str {
        match self {
            Self::Raw | Self::RawAgain => {
                "prepared bytes, one thread with mio, one write per master for all callers"
            }
            Self::RawQuorum => "the same, goes on when a majority has answered",
            Self::Redlatch => "one `Redlock` per thread, which waits for each outcome",
            Self::Client => {
                "blocking, one `Client`; as all forms: `Quarantine::Trust`, `answer_timeout` 500 ms, `retry_delay` at most 10 ms"
            }
            Self::ClientTasks => "tokio current-thread, one `Client`",
            Self::RedlatchPipelined => "one `Redlock`, one thread, `submit`/`turn`/`poll_outcome`",
            Self::RedisRs => {
                "tokio current-thread, one `MultiplexedConnection` per master, TCP_NODELAY, pipeline buffer 1,024, `join_all` of SET NX PX, then of EVALSHA; response timeout 500 ms"
            }
            Self::RedisRsThreads => "the same on tokio's multi-thread runtime with 2 workers",
            Self::Fred => {
                "tokio current-thread, one client per master, TCP_NODELAY, command timeout 500 ms, `join_all` as above"
            }
            Self::Rslock => "tokio current-thread, one `LockManager`, TCP_NODELAY, retry delay below 10 ms",
            Self::Redlock => {
                "blocking, one manager per thread, retry delay below 10 ms; it connects anew for each command"
            }
        }
    }

    /// Why this peer takes no part in this work.
    pub fn declines(self, work: &Work, one_stopped: bool) -> Option<&'static str> {
        match self {
            Self::Redlatch | Self::Redlock if work.callers > THREADS_MAX => {
                Some("blocking: one thread and N connections per caller")
            }
            Self::Client if work.callers > SHARED_THREADS_MAX => Some("blocking: one thread per caller"),
            Self::RawQuorum if work.callers > 1 => Some("one caller only"),
            Self::Raw | Self::RawAgain | Self::RawQuorum if work.one_key => Some("knows no contention"),
            Self::Raw | Self::RawAgain if one_stopped => Some("waits for all masters"),
            _ => None,
        }
    }

    /// Connects, while all masters answer.
    pub fn rig(self, addresses: &[SocketAddr], work: &Work) -> Box<dyn Rig> {
        let urls: Vec<String> = addresses.iter().map(|address| format!("redis://{address}")).collect();
        let urls = urls.as_slice();
        match self {
            Self::Raw | Self::RawAgain => Box::new(raw::RawRig::connect(addresses, work, false)),
            Self::RawQuorum => Box::new(raw::RawRig::connect(addresses, work, true)),
            Self::Redlatch => blocking(work, || ours::OneThread::connect(urls), ours::OneThread::settle),
            Self::RedlatchPipelined => Box::new(ours::Pipelined::connect(urls, work, names())),
            Self::Client => {
                let client = ours::Shared::connect(urls);
                blocking(work, || client.clone(), |_| {})
            }
            Self::ClientTasks => on_tokio(work, false, async || ours::Shared::connect(urls)),
            Self::RedisRs => on_tokio(work, false, async || redis_rs::RedisRs::connect(urls).await),
            Self::RedisRsThreads => on_tokio(work, true, async || redis_rs::RedisRs::connect(urls).await),
            Self::Fred => on_tokio(work, false, async || fred::Fred::connect(urls).await),
            Self::Rslock => on_tokio(work, false, async || lock_crates::Rslock::connect(urls)),
            Self::Redlock => blocking(work, || lock_crates::RedlockCrate::connect(urls), |_| {}),
        }
    }
}

fn blocking<B: BlockingLocks + 'static>(
    work: &Work,
    connect: impl Fn() -> B,
    settle: fn(&mut B),
) -> Box<dyn Rig> {
    let clients = (0..work.callers).map(|_| connect()).collect();
    Box::new(BlockingRig { clients, work: work.clone(), names: names(), settle })
}

fn on_tokio<L: AsyncLocks>(work: &Work, threads: bool, connect: impl AsyncFnOnce() -> L) -> Box<dyn Rig> {
    let mut builder = if threads {
        tokio::runtime::Builder::new_multi_thread()
    } else {
        tokio::runtime::Builder::new_current_thread()
    };
    let runtime = builder.worker_threads(2).enable_all().build().expect("an event loop");
    let locks = runtime.block_on(connect());
    Box::new(AsyncRig { runtime, locks, work: work.clone(), names: names() })
}

/// A value like each library's: 20 random bytes.
fn new_token() -> [u8; 20] {
    let mut token = [0; 20];
    rand::rng().fill_bytes(&mut token);
    token
}

const fn quorum(master_count: usize) -> usize {
    master_count / 2 + 1
}

/// `REDLATCH_PEERS_RETRY_MS` served to find [`RETRY_DELAY_MAX`].
fn retry_delay() -> Duration {
    let wanted = std::env::var("REDLATCH_PEERS_RETRY_MS").ok().and_then(|text| text.parse().ok());
    wanted.map_or(RETRY_DELAY_MAX, Duration::from_millis)
}

const _: () = assert!(VALIDITY.as_millis() == TTL.as_millis() - TTL.as_millis() / 100 - 2);

/// Version of a package in this crate's lock file; of several, the one that begins with `prefix`.
pub fn locked_version(package: &str, prefix: &str) -> Option<&'static str> {
    let lock = include_str!("../Cargo.lock");
    let name = format!("name = \"{package}\"");
    let mut lines = lock.lines();
    while let Some(line) = lines.next() {
        if line == name {
            let version = lines.next()?.strip_prefix("version = \"")?.strip_suffix('"')?;
            if version.starts_with(prefix) {
                return Some(version);
            }
        }
    }
    None
}
