//! What can be wrong with a fleet: the kinds, and their texts.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::error::advice;
use crate::words::{Counted, Rounded};

/// Something that is wrong with a fleet, or worth knowing.
///
/// `{}` is one sentence that says what was found. [`Finding::why`] and [`Finding::advice`] say why it
/// matters, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// Weight of the finding.
    pub severity: Severity,
    /// Names of the masters that it is about; empty if it is about the list of masters.
    pub masters: Vec<Arc<str>>,
    /// Kind of the finding, with its figures.
    pub problem: Problem,
}

/// Weight of a finding. A later one is heavier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Severity {
    /// Worth knowing. Plain locks work as they are.
    Note,
    /// Locks are, or will soon be, less available or less safe than they could be.
    Warning,
    /// One master or all locks do not work, or two holders are possible.
    Error,
}

/// Kind of a finding.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// There is no connection to the master.
    Unreachable {
        /// The reason, with advice.
        why: String,
    },
    /// The master refused the login.
    LoginRefused {
        /// The reason, with advice.
        why: String,
    },
    /// Fewer than a quorum of masters answered.
    NoQuorum {
        /// Number of masters that answered.
        answered: usize,
        /// Number of masters that a lock needs.
        needed: usize,
    },
    /// Fewer than three masters are configured.
    TooFewMasters {
        /// Number of masters.
        count: usize,
    },
    /// An even number of masters is configured.
    EvenCount {
        /// Number of masters.
        count: usize,
    },
    /// Several addresses lead to one server.
    SameServer {
        /// Its `run_id`.
        run_id: Box<str>,
    },
    /// Several masters have one IP address.
    SameHost {
        /// Its address.
        address: IpAddr,
    },
    /// The masters' clocks differ too much for fenced locks.
    ClockOffset {
        /// Difference between the two clocks that differ most.
        offset: Duration,
        /// Difference up to which fenced locks work.
        limit: Duration,
    },
    /// The round trip is longer than the client waits for an answer.
    SlowRoundTrip {
        /// 99th percentile.
        p99: Duration,
        /// The client's answer limit at the default TTL.
        limit: Duration,
    },
    /// The server is a replica.
    Replica,
    /// The server is too old for some kinds of lock.
    OldVersion {
        /// Its version.
        version: Box<str>,
    },
    /// The server is a node of a cluster, and the prefix has no hash tag.
    ClusterWithoutHashTag {
        /// A prefix that puts all keys of a lock into one slot.
        prefix: String,
    },
    /// The server is a node of a cluster, and the prefix has a hash tag.
    ClusterNode,
    /// The server refuses writes.
    WritesRefused {
        /// Its error reply.
        refusal: String,
    },
    /// The server may evict locks.
    EvictingPolicy {
        /// Its `maxmemory-policy`.
        policy: Box<str>,
    },
    /// The server has evicted keys.
    EvictedKeys {
        /// Number since its start.
        count: u64,
    },
    /// The server is close to its memory limit.
    MemoryNearLimit {
        /// Memory in use, in percent of `maxmemory`.
        percent: u64,
    },
    /// The server has no memory limit.
    NoMemoryLimit,
    /// The server cannot write its data to disk.
    DiskFailing,
    /// The client trusts restarted masters, and a restart of this one loses locks.
    TrustUnsynced {
        /// What a restart or a crash loses, and the setting that causes it.
        loss: &'static str,
        /// The settings that keep each write.
        remedy: &'static str,
    },
    /// The client trusts restarted masters, and nothing shows what a restart of this one loses.
    TrustUnverified,
    /// Restarted masters could be trusted, and are not.
    TrustJustified,
    /// A restart of the master may lose all its locks; the quarantine covers it.
    RestartForgets,
    /// The master's votes do not count yet.
    Quarantined {
        /// Time until they count.
        left: Duration,
    },
    /// A new client in strict mode does not count the master: no mark says that it was observed for long
    /// enough.
    Unobserved {
        /// Time for which it must be observed.
        needed: Duration,
    },
    /// The login lacks rights.
    MissingRights {
        /// The part of the client that needs them.
        feature: &'static str,
        /// What does not work without them.
        effect: &'static str,
        /// Rights as an ACL names them: `+get`, `~lock:*`, `&lock:*`.
        rights: Vec<String>,
        /// Name of the user.
        user: Box<str>,
    },
    /// The server does not know commands that a feature needs.
    MissingCommands {
        /// The part of the client that needs them.
        feature: &'static str,
        /// What does not work without them.
        effect: &'static str,
        /// The commands.
        commands: Vec<&'static str>,
    },
    /// The login may not use the native release of the server.
    NativeDenied {
        /// The missing right.
        right: &'static str,
        /// Name of the user.
        user: Box<str>,
    },
    /// The server's certificate ends soon.
    CertificateExpires {
        /// Time until it ends.
        left: Duration,
    },
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

impl Problem {
    /// Returns the name of the kind, for programs; it does not change between versions.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Unreachable { .. } => "unreachable",
            Self::LoginRefused { .. } => "login-refused",
            Self::NoQuorum { .. } => "no-quorum",
            Self::TooFewMasters { .. } => "too-few-masters",
            Self::EvenCount { .. } => "even-count",
            Self::SameServer { .. } => "same-server",
            Self::SameHost { .. } => "same-host",
            Self::ClockOffset { .. } => "clock-offset",
            Self::SlowRoundTrip { .. } => "slow-round-trip",
            Self::Replica => "replica",
            Self::OldVersion { .. } => "old-version",
            Self::ClusterWithoutHashTag { .. } => "cluster-without-hash-tag",
            Self::ClusterNode => "cluster-node",
            Self::WritesRefused { .. } => "writes-refused",
            Self::EvictingPolicy { .. } => "evicting-policy",
            Self::EvictedKeys { .. } => "evicted-keys",
            Self::MemoryNearLimit { .. } => "memory-near-limit",
            Self::NoMemoryLimit => "no-memory-limit",
            Self::DiskFailing => "disk-failing",
            Self::TrustUnsynced { .. } => "trust-unsynced",
            Self::TrustUnverified => "trust-unverified",
            Self::TrustJustified => "trust-justified",
            Self::RestartForgets => "restart-forgets",
            Self::Quarantined { .. } => "quarantined",
            Self::Unobserved { .. } => "unobserved",
            Self::MissingRights { .. } => "missing-rights",
            Self::MissingCommands { .. } => "missing-commands",
            Self::NativeDenied { .. } => "native-denied",
            Self::CertificateExpires { .. } => "certificate-expires",
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.problem {
            Problem::Unreachable { why } => write!(f, "not connected: {why}"),
            Problem::LoginRefused { why } => f.write_str(why),
            Problem::NoQuorum { answered, needed } => {
                write!(f, "{} answered, and a lock needs {needed}", Counted(*answered, "master"))
            }
            Problem::TooFewMasters { count } => write!(f, "the list has {}", Counted(*count, "master")),
            Problem::EvenCount { count } => write!(f, "the list has {count} masters, an even number"),
            Problem::SameServer { run_id } => {
                write!(f, "these addresses lead to one server (run_id {run_id})")
            }
            Problem::SameHost { address } => write!(f, "these masters have one IP address, {address}"),
            Problem::ClockOffset { offset, .. } => write!(f, "the clocks differ by {}", Rounded(*offset)),
            Problem::SlowRoundTrip { p99, limit } => write!(
                f,
                "a round trip takes up to {} (p99), and the client waits for {}",
                Rounded(*p99),
                Rounded(*limit)
            ),
            Problem::Replica => f.write_str("the server is a replica"),
            Problem::OldVersion { version } => write!(f, "the server is version {version}"),
            Problem::ClusterWithoutHashTag { .. } => {
                f.write_str("the server is a cluster node, and the prefix has no hash tag")
            }
            Problem::ClusterNode => f.write_str("the server is a cluster node"),
            Problem::WritesRefused { refusal } => write!(f, "the server refuses writes: \"{refusal}\""),
            Problem::EvictingPolicy { policy } => write!(f, "maxmemory-policy is {policy}"),
            Problem::EvictedKeys { count } => {
                write!(f, "the server has evicted {count} keys since its start")
            }
            Problem::MemoryNearLimit { percent } => write!(f, "{percent} % of maxmemory are in use"),
            Problem::NoMemoryLimit => f.write_str("maxmemory is not set"),
            Problem::DiskFailing => f.write_str("the last write of its data to disk failed"),
            Problem::TrustUnsynced { loss, .. } => f.write_str(loss),
            Problem::TrustUnverified => f.write_str("nothing shows whether each write is synced to disk"),
            Problem::TrustJustified => f.write_str("each master syncs each write to disk"),
            Problem::RestartForgets => f.write_str("a restart may lose all locks: appendonly is no"),
            Problem::Quarantined { left } => {
                write!(f, "the master restarted lately: not counted for another {}", Rounded(*left))
            }
            Problem::Unobserved { needed } => {
                write!(
                    f,
                    "a new client in strict mode does not count it: no mark says that it was observed for {}",
                    Rounded(*needed)
                )
            }
            Problem::MissingRights { feature, rights, user, .. } => {
                write!(f, "user {user} lacks rights for {feature} ({})", rights.join(" "))
            }
            Problem::MissingCommands { feature, commands, .. } => {
                write!(f, "the server does not know commands for {feature} ({})", commands.join(" "))
            }
            Problem::NativeDenied { right, .. } => write!(f, "the login lacks the native release, {right}"),
            Problem::CertificateExpires { left } if left.is_zero() => {
                f.write_str("its certificate has expired")
            }
            Problem::CertificateExpires { left } => {
                write!(f, "its certificate ends in {}", Counted(days(*left), "day"))
            }
        }
    }
}

fn days(time: Duration) -> usize {
    usize::try_from(time.as_secs() / (24 * 3600)).unwrap_or(usize::MAX)
}

impl Finding {
    /// Returns why the finding matters.
    #[must_use]
    pub fn why(&self) -> String {
        let fixed = match &self.problem {
            Problem::Unreachable { .. } | Problem::LoginRefused { .. } => {
                "it grants nothing, and the fleet tolerates one failure less"
            }
            Problem::NoQuorum { .. } => "a client here may get no lock",
            Problem::TooFewMasters { count: 1 } => {
                "while this master is down or in quarantine, there are no locks"
            }
            Problem::TooFewMasters { .. } => "the failure of any master stops all locks",
            Problem::EvenCount { .. } => "it tolerates no more failures than one master less would",
            Problem::SameServer { .. } => {
                "one server would vote several times; a client refuses the later addresses"
            }
            Problem::SameHost { .. } => {
                "they may fail together, so the fleet tolerates fewer failures than it seems"
            }
            Problem::ClockOffset { limit, .. } => {
                return format!(
                    "masters may refuse fenced locks from a difference of {}; plain locks need no wall clock",
                    Rounded(*limit)
                );
            }
            Problem::SlowRoundTrip { .. } => "a client may then skip the master until it has answered",
            Problem::Replica => "a replica should grant nothing, and its master may already be in the list",
            Problem::OldVersion { .. } => "fenced, fair and shared locks need Redis 5 or later",
            Problem::ClusterWithoutHashTag { .. } => {
                "fenced, fair and shared locks use several keys, which fail with CROSSSLOT"
            }
            Problem::ClusterNode => "a failover there may lose locks, and a moved slot refuses them",
            Problem::WritesRefused { .. } => "it grants no lock",
            Problem::EvictingPolicy { .. } => "at its memory limit it may delete locks that are held",
            Problem::EvictedKeys { .. } => "some of these keys may have been locks that were held",
            Problem::MemoryNearLimit { .. } => {
                "a full master extends and releases locks, and grants no new one"
            }
            Problem::NoMemoryLimit => "the system may end a server that takes all memory",
            Problem::DiskFailing => {
                "the server may refuse writes now, and a restart loses what is not on disk"
            }
            Problem::TrustUnsynced { .. } => {
                "the client counts it at once after a restart, so two may hold one lock"
            }
            Problem::TrustUnverified => "Trust is right only with appendonly yes and appendfsync always",
            Problem::TrustJustified => "Quarantine::Trust is justified, and saves the wait after a restart",
            Problem::RestartForgets => {
                "the quarantine covers it; locks that are held lose one master of their margin"
            }
            Problem::Quarantined { .. } => "until then its votes do not count: it may have forgotten locks",
            Problem::Unobserved { .. } => {
                "its votes do not count until a client has observed it for that time"
            }
            Problem::MissingRights { effect, .. } | Problem::MissingCommands { effect, .. } => effect,
            Problem::NativeDenied { .. } => "releases run as scripts, which cost the master more",
            Problem::CertificateExpires { .. } => "after its end no client connects to this master",
        };
        fixed.to_owned()
    }

    /// Returns what to do about it.
    #[must_use]
    pub fn advice(&self) -> String {
        let fixed = match &self.problem {
            Problem::Unreachable { .. } => "follow the reason; else take the master out of all lists",
            Problem::LoginRefused { .. } => "correct user and password in this master's URL",
            Problem::NoQuorum { .. } => "repair the masters that did not answer",
            Problem::TooFewMasters { .. } => "take three masters, or five, on independent machines",
            Problem::EvenCount { .. } => "take one master more, or one less",
            Problem::SameServer { .. } => "list each server once",
            Problem::SameHost { .. } => "move them to machines in different failure zones",
            Problem::ClockOffset { .. } => "synchronize the clocks of all masters (chrony, ntpd)",
            Problem::SlowRoundTrip { p99, .. } => {
                return format!("raise answer_timeout above {} (--answer-timeout)", Rounded(*p99 * 2));
            }
            Problem::Replica => "list its master instead, or end the replication (REPLICAOF NO ONE)",
            Problem::OldVersion { .. } => "upgrade the server",
            Problem::ClusterWithoutHashTag { prefix } => {
                return format!("take independent masters; else let all clients use the prefix \"{prefix}\"");
            }
            Problem::ClusterNode => "take independent masters with cluster-enabled no",
            Problem::WritesRefused { refusal } => {
                return advice(refusal).map_or_else(|| "read the server's log".to_owned(), Into::into);
            }
            Problem::EvictingPolicy { .. } => {
                "CONFIG SET maxmemory-policy noeviction, and write it to redis.conf"
            }
            Problem::EvictedKeys { .. } => {
                "set noeviction, raise maxmemory; CONFIG RESETSTAT clears the count"
            }
            Problem::MemoryNearLimit { .. } => "raise maxmemory, or move other data elsewhere",
            Problem::NoMemoryLimit => "set maxmemory, with the policy noeviction",
            Problem::DiskFailing => "look at its log and its disk",
            Problem::TrustUnsynced { remedy, .. } => remedy,
            Problem::TrustUnverified => "grant +config|get and +info to the login of the examination",
            Problem::TrustJustified => "keep the quarantine, or set Trust if the wait costs more",
            Problem::RestartForgets => "nothing; or set appendonly yes to keep the margin",
            Problem::Quarantined { .. } => "wait, or set a shorter max_ttl on all clients",
            Problem::Unobserved { .. } => "let one client with --strict stay connected for that time",
            Problem::MissingRights { rights, user, .. } => {
                return format!("run \"ACL SETUSER {user} {}\", then \"ACL SAVE\"", rights.join(" "));
            }
            Problem::MissingCommands { .. } => {
                "remove rename-command from redis.conf, or take another server"
            }
            Problem::NativeDenied { right, user } => {
                return format!("run \"ACL SETUSER {user} {right}\", then \"ACL SAVE\"");
            }
            Problem::CertificateExpires { .. } => {
                "replace its certificate; docs/operating.md says how, without a restart"
            }
        };
        fixed.to_owned()
    }
}
