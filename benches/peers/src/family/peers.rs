//! The participants.

use std::path::PathBuf;
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::rivals::locked_version;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FamilyPeer {
    Woken,
    Fair,
    Fenced,
    Polling,
    RedisRs,
    Rslock,
    NodeRedlock,
    RedisSemaphore,
    PythonRedisLock,
}

impl FamilyPeer {
    pub const ALL: [Self; 9] = [
        Self::Woken,
        Self::Fair,
        Self::Fenced,
        Self::Polling,
        Self::RedisRs,
        Self::Rslock,
        Self::NodeRedlock,
        Self::RedisSemaphore,
        Self::PythonRedisLock,
    ];

    pub const fn id(self) -> &'static str {
        match self {
            Self::Woken => "redlatch",
            Self::Fair => "redlatch-fair",
            Self::Fenced => "redlatch-fenced",
            Self::Polling => "redlatch-polling",
            Self::RedisRs => "redis-rs",
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
            Self::Fenced => "redlatch, `fenced()`",
            Self::Polling => "redlatch, `wake_waiters(false)`",
            Self::RedisRs => "redis-rs by hand (Rust)",
            Self::Rslock => "rslock (Rust)",
            Self::NodeRedlock => "node-redlock (JavaScript)",
            Self::RedisSemaphore => "redis-semaphore, `RedlockMutex` (JavaScript)",
            Self::PythonRedisLock => "python-redis-lock (one master)",
        }
    }

    pub(super) const fn is_ours(self) -> bool {
        matches!(self, Self::Woken | Self::Fair | Self::Fenced | Self::Polling)
    }

    pub const fn waits_by(self) -> &'static str {
        match self {
            Self::Woken => "parked: a master grants or rings, and a heartbeat",
            Self::Fair => "parked, in the order of all masters together",
            Self::Fenced => "parked, as without tokens",
            Self::Polling => "polling, 1 to 100 ms",
            Self::RedisRs => "polling, 0 to 10 ms",
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
            Self::Fair | Self::Fenced | Self::Polling | Self::RedisRs => None,
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
            Self::Woken | Self::Fair | Self::Fenced | Self::Polling => {
                locked_version("redlatch", "").unwrap_or_default().to_owned()
            }
            Self::RedisRs => locked_version("redis", "1").unwrap_or_default().to_owned(),
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

    /// Number of requests, from the masters' command counts, which include commands inside scripts.
    /// `first_sets` is the number of `SET`s of a peer that begins each lock with one.
    pub(super) fn requests(self, calls: impl Fn(&str) -> u64, first_sets: u64) -> u64 {
        let sets = match self {
            Self::Fair | Self::Fenced | Self::NodeRedlock => 0,
            Self::Woken => first_sets,
            Self::Polling | Self::RedisRs | Self::Rslock | Self::RedisSemaphore | Self::PythonRedisLock => {
                calls("set")
            }
        };
        // `getrange` asks for the holder; `blpop` waits.
        sets + ["evalsha", "eval", "getrange", "blpop"].into_iter().map(calls).sum::<u64>()
    }

    /// Command of its process, without the work; or what is missing.
    pub(super) fn command(self) -> Result<Command, String> {
        let others = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("others");
        let other = |variable: &str, script: &str| {
            let program = std::env::var(variable).map_err(|_| format!("{variable} is not set"))?;
            let mut command = Command::new(program);
            command.arg(others.join(script));
            Ok::<_, String>(command)
        };
        let mut command = match self {
            Self::Woken | Self::Fair | Self::Fenced | Self::Polling | Self::RedisRs | Self::Rslock => {
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
