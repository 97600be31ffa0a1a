//! Kinds of problems of a fleet, and their texts.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use redlatch::error::advice;
use redlatch::status::{FleetDifference, Unusable};
use redlatch::words::{Counted, Rounded};

/// Something that is wrong with a fleet, or worth knowing.
///
/// `{}` is a sentence that says what was found. [`Finding::why`] says why it matters, and [`Finding::advice`]
/// what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// Severity of the finding.
    pub severity: Severity,
    /// Names of the affected masters; empty if the finding is about the list of masters.
    pub masters: Vec<Arc<str>>,
    /// Kind of the finding, with its figures.
    pub problem: Problem,
}

/// Severity of a finding, in ascending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Severity {
    /// Worth knowing. Plain locks work.
    Note,
    /// Locks are less available or less safe than they could be, or soon will be.
    Warning,
    /// One master or all locks do not work, or a lock may have two holders.
    Error,
}

/// Kind of a finding, with its figures.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// The master cannot be reached.
    Unreachable {
        /// The reason, with advice.
        why: String,
    },
    /// The master refused the login.
    LoginRefused {
        /// The reason, with advice.
        why: String,
    },
    /// Fewer than a quorum of masters can grant a lock now.
    NoQuorum {
        /// Number of masters that can grant a lock.
        granting: usize,
        /// Number of masters.
        count: usize,
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
        /// The server's `run_id`.
        run_id: Box<str>,
    },
    /// Several masters have one IP address.
    SameHost {
        /// The shared address.
        address: IpAddr,
    },
    /// The masters' clocks differ too much for fenced locks.
    ClockOffset {
        /// Difference between the two clocks that are furthest apart.
        offset: Duration,
        /// Difference from which masters may refuse fenced locks.
        limit: Duration,
    },
    /// The rate of the master's clock differs from this machine's by a tenth of the allowed difference or
    /// more, or a clock was set during the comparison.
    ClockRate {
        /// Millionths by which the master's clock is faster.
        ppm: i64,
        /// Largest error of `ppm`.
        error_ppm: u64,
        /// Allowed difference (`drift_ppm`).
        allowed_ppm: u32,
    },
    /// The round trip takes longer than the client waits for an answer.
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
        /// Version of the server.
        version: Box<str>,
    },
    /// The server calls itself neither Redis nor Valkey.
    NotTested {
        /// The server's name for itself.
        server: Box<str>,
    },
    /// The server answers `INFO`, but leaves out fields by which a client judges its votes.
    Unreported {
        /// Names of the missing fields.
        fields: String,
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
        /// Error reply of the server.
        refusal: String,
    },
    /// The server may evict locks.
    EvictingPolicy {
        /// `maxmemory-policy` of the server.
        policy: Box<str>,
    },
    /// The server has evicted keys.
    EvictedKeys {
        /// Number of evicted keys since the server's start.
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
    /// The client trusts restarted masters, but a restart of this master loses locks.
    TrustUnsynced {
        /// Locks that a restart or a crash loses, and the setting that causes it.
        loss: &'static str,
        /// Settings that keep each write.
        remedy: &'static str,
    },
    /// The client trusts restarted masters, but nothing shows what a restart of this master loses.
    TrustUnverified,
    /// Restarted masters could be trusted, but are not.
    TrustJustified,
    /// A restart of the master may lose all its locks; the quarantine covers it.
    RestartForgets,
    /// The master forgets too soon that it was a replica.
    ShortBacklogTtl {
        /// `repl-backlog-ttl` of the master.
        ttl: Duration,
        /// Time for which a promotion matters.
        needed: Duration,
    },
    /// The master's votes do not count yet.
    Quarantined {
        /// Time until they count.
        left: Duration,
        /// Whether the masters look like a new fleet.
        is_new: bool,
    },
    /// A new client in strict mode does not count the master, because no mark says that the master was
    /// observed for long enough.
    Unobserved {
        /// Time for which the master must be observed.
        needed: Duration,
        /// Whether the masters look like a new fleet.
        is_new: bool,
    },
    /// The login lacks rights.
    MissingRights {
        /// Part of the client that needs the rights.
        feature: &'static str,
        /// Effect of the missing rights.
        effect: &'static str,
        /// Rights as an ACL names them: `+get`, `~lock:*`, `&lock:*`.
        rights: Vec<String>,
        /// Name of the user.
        user: Box<str>,
    },
    /// The server does not know commands that a part of the client needs.
    MissingCommands {
        /// Part of the client that needs the commands.
        feature: &'static str,
        /// Effect of the missing commands.
        effect: &'static str,
        /// Missing commands.
        commands: Vec<&'static str>,
    },
    /// The server runs no scripts for this login.
    NoScripts {
        /// Answer of the server.
        refusal: String,
        /// Whether the server has a native command that releases plain locks.
        has_native: bool,
        /// What to do.
        advice: String,
    },
    /// The server answers commands as no Redis or Valkey does.
    OddAnswer {
        /// Commands as an ACL names them, or names of scripts.
        commands: Vec<&'static str>,
        /// Answer of the server.
        answer: String,
    },
    /// Clients subscribe to patterns of channels. They receive the messages to waiters if a pattern matches.
    PatternSubscribers {
        /// Number of patterns.
        count: u64,
    },
    /// The login may not use the server's native release.
    NativeDenied {
        /// The missing right.
        right: &'static str,
        /// Name of the user.
        user: Box<str>,
    },
    /// The master's record of the fleet's settings differs from this configuration.
    FleetDiffers {
        /// The first difference, with both values.
        difference: FleetDifference,
    },
    /// The master's record of the fleet's settings cannot be used.
    NoFleetRecord {
        /// The reason.
        why: Unusable,
    },
    /// The master has a record of a fleet whose prefix differs from this prefix by one character.
    NearPrefix {
        /// The other prefix, with unprintable bytes escaped.
        prefix: String,
    },
    /// The server's certificate expires soon.
    CertificateExpires {
        /// Time until the certificate expires.
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

/// Defines the texts of each problem: code, what was found, why it matters, and what to do.
macro_rules! texts {
    ($($pattern:pat => $code:literal, $what:expr, $why:expr, $advice:expr;)*) => {
        impl Problem {
            /// Returns the stable name of the problem's kind. It does not change between versions.
            #[must_use]
            #[allow(unused_variables, reason = "a row binds what one of its texts needs")]
            pub const fn code(&self) -> &'static str {
                match self { $($pattern => $code,)* }
            }
        }

        impl fmt::Display for Finding {
            #[allow(unused_variables, reason = "as above")]
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let what: String = match &self.problem { $($pattern => $what.into(),)* };
                f.write_str(&what)
            }
        }

        impl Finding {
            /// Returns why the finding matters.
            #[must_use]
            #[allow(unused_variables, reason = "as above")]
            pub fn why(&self) -> String {
                match &self.problem { $($pattern => $why.into(),)* }
            }

            /// Returns what to do.
            #[must_use]
            #[allow(unused_variables, reason = "as above")]
            pub fn advice(&self) -> String {
                match &self.problem { $($pattern => $advice.into(),)* }
            }
        }
    };
}

texts! {
    Problem::Unreachable { why } => "unreachable",
        format!("not connected: {why}"),
        "it grants no lock",
        "follow the reason. If the master is gone for good: redlatch fleet replace";
    Problem::LoginRefused { why } => "login-refused",
        why.as_str(),
        "it grants no lock",
        "correct user and password: in its URL, in REDLATCH_PASSWORD_FILE, or in the provider of credentials";
    Problem::NoQuorum { granting, count, needed } => "no-quorum",
        format!("{granting} of {count} masters can grant a lock, {needed} are needed"),
        "no lock can be acquired now",
        "follow the findings about the other masters";
    Problem::TooFewMasters { count } => "too-few-masters",
        format!("the list has {}", Counted(*count, "master")),
        if *count == 1 {
            "while this master is down or in quarantine, there are no locks"
        } else {
            "the failure of any master stops all locks"
        },
        "use three or five masters on independent machines";
    Problem::EvenCount { count } => "even-count",
        format!("the list has {count} masters, an even number"),
        "it tolerates no more failures than a list with one master less",
        "add a master, or remove one";
    Problem::SameServer { run_id } => "same-server",
        format!("these addresses lead to one server (run_id {run_id})"),
        "one server would vote several times; a client refuses the later addresses",
        "list each server once";
    Problem::SameHost { address } => "same-host",
        format!("these masters have one IP address, {address}"),
        "they may fail together, so the fleet tolerates fewer failures than it seems",
        "move them to machines in different failure zones";
    Problem::ClockOffset { offset, limit } => "clock-offset",
        format!("the clocks differ by {}", Rounded(*offset)),
        format!(
            "masters may refuse fenced locks from a difference of {}; plain locks need no wall clock",
            Rounded(*limit)
        ),
        "synchronize the clocks of all masters (chrony, ntpd)";
    Problem::ClockRate { ppm, error_ppm, allowed_ppm } => "clock-rate",
        format!("its clock is {ppm} ppm (±{error_ppm}) off this machine's"),
        format!("two clients may hold one lock if clock rates differ by more than {allowed_ppm} ppm"),
        "examine again, as a clock that was set looks the same; then check both clocks";
    Problem::SlowRoundTrip { p99, limit } => "slow-round-trip",
        format!(
            "a round trip takes up to {} (p99), and the client waits for {}",
            Rounded(*p99),
            Rounded(*limit)
        ),
        "a client may then skip the master until it has answered",
        format!("raise answer_timeout above {} (--answer-timeout)", Rounded(*p99 * 2));
    Problem::Replica => "replica",
        "the server is a replica",
        "a replica should grant nothing, and its master may already be in the list",
        "list its master instead, or end the replication (REPLICAOF NO ONE)";
    Problem::OldVersion { version } => "old-version",
        format!("the server is version {version}"),
        "waiters' queues, fenced and shared locks need Redis 5 or later",
        "upgrade the server";
    Problem::NotTested { server } => "not-tested",
        format!("the server calls itself {server}"),
        "redlatch is tested with Redis and Valkey only",
        "use a Redis or Valkey server, or test this one: redlatch drill";
    Problem::Unreported { fields } => "unreported",
        format!("INFO does not report {fields}"),
        "strict mode refuses it; the other modes may count each reconnect as a restart, or miss an eviction",
        "use a Redis or Valkey server";
    Problem::ClusterWithoutHashTag { prefix } => "cluster-without-hash-tag",
        "the server is a cluster node, and the prefix has no hash tag",
        "waiters' queues, fenced and shared locks use several keys, which fail with CROSSSLOT",
        format!("use independent masters; or give all clients the prefix \"{prefix}\"");
    Problem::ClusterNode => "cluster-node",
        "the server is a cluster node",
        "a failover there may lose locks, and a moved slot refuses them",
        "use independent masters with cluster-enabled no";
    Problem::WritesRefused { refusal } => "writes-refused",
        format!("the server refuses writes: \"{refusal}\""),
        "it grants no lock",
        advice(refusal).unwrap_or("read the server's log".into());
    Problem::EvictingPolicy { policy } => "evicting-policy",
        format!("maxmemory-policy is {policy}"),
        "at its memory limit it may delete locks that are held",
        "CONFIG SET maxmemory-policy noeviction, and write it to redis.conf";
    Problem::EvictedKeys { count } => "evicted-keys",
        format!("the server has evicted {} since its start", Counted(usize::try_from(*count).unwrap_or(usize::MAX), "key")),
        "some of these keys may have been locks that were held",
        "set noeviction, raise maxmemory; CONFIG RESETSTAT clears the count";
    Problem::MemoryNearLimit { percent } => "memory-near-limit",
        format!("{percent}% of maxmemory is in use"),
        "a full master still extends, releases and hands over locks, but grants no others",
        "raise maxmemory, or move other data elsewhere";
    Problem::NoMemoryLimit => "no-memory-limit",
        "maxmemory is not set",
        "the system may kill a server that uses all memory",
        "set maxmemory, with the policy noeviction";
    Problem::DiskFailing => "disk-failing",
        "the last write of its data to disk failed",
        "the server may refuse writes now, and a restart loses what is not on disk",
        "check its log and its disk";
    Problem::TrustUnsynced { loss, remedy } => "trust-unsynced",
        *loss,
        "the client counts it after a restart at once; then two clients may hold one lock",
        *remedy;
    Problem::TrustUnverified => "trust-unverified",
        "nothing shows whether each write is synced to disk",
        "Trust is right only with appendonly yes and appendfsync always",
        "grant +config|get and +info to the login that runs doctor";
    Problem::TrustJustified => "trust-justified",
        "each master syncs each write to disk",
        "Quarantine::Trust is justified, and saves the wait after a restart",
        "keep the quarantine, or set Trust if the wait costs more";
    Problem::RestartForgets => "restart-forgets",
        "a restart may lose all locks: appendonly is no",
        "the quarantine covers it; a restart takes one master from the margin of held locks",
        "nothing; or set appendonly yes to keep the margin";
    Problem::ShortBacklogTtl { ttl, needed } => "short-backlog-ttl",
        format!("it forgets after {} that it was a replica: repl-backlog-ttl is shorter than {}", Rounded(*ttl), Rounded(*needed)),
        "it may count after a resync that lost locks, so two clients may hold one",
        "set repl-backlog-ttl 3600, or 0 for never";
    Problem::Quarantined { left, is_new } => "quarantined",
        format!("the master restarted or was promoted lately: not counted for another {}", Rounded(*left)),
        "until then its votes do not count: it may have forgotten locks",
        if *is_new { INIT } else { "wait, or set a shorter max_ttl on all clients" };
    Problem::Unobserved { needed, is_new } => "unobserved",
        format!("a new client in strict mode does not count it: no mark says that it was observed for {}", Rounded(*needed)),
        "its votes do not count until a client has observed it for that time",
        if *is_new { INIT } else { "let one client with --strict stay connected for that time" };
    Problem::MissingRights { feature, effect, rights, user } => "missing-rights",
        format!("user {user} lacks rights for {feature} ({})", rights.join(" ")),
        *effect,
        format!("run \"ACL SETUSER {user} {}\", then \"ACL SAVE\"", rights.join(" "));
    Problem::MissingCommands { feature, effect, commands } => "missing-commands",
        format!("the server does not know commands for {feature} ({})", commands.join(" ")),
        *effect,
        "remove rename-command from redis.conf, or use another server";
    Problem::NoScripts { refusal, has_native, advice } => "no-scripts",
        format!("the server runs no scripts: \"{refusal}\""),
        if *has_native {
            "plain locks work; fenced and shared locks fail there, and nobody waits in a queue"
        } else {
            "each lock stays there until its TTL ends, as nothing else can release it"
        },
        advice.as_str();
    Problem::OddAnswer { commands, answer } => "odd-answer",
        format!("the server answers {} with \"{answer}\", unlike Redis", commands.join(", ")),
        "locks may fail there, or stay until their TTL ends",
        "use a Redis or Valkey server, without a proxy that refuses these commands";
    Problem::PatternSubscribers { count } => "pattern-subscribers",
        format!("clients subscribe to {} of channels (PSUBSCRIBE)", Counted(usize::try_from(*count).unwrap_or(usize::MAX), "pattern")),
        "a dead waiter may look alive: it then blocks its lock for up to 10 s",
        "end that subscription (psub in CLIENT LIST), or use Redis 7.0 with +spublish +ssubscribe";
    Problem::NativeDenied { right, user } => "native-denied",
        format!("the login lacks the native release, {right}"),
        "releases run as scripts, which cost the master more",
        format!("run \"ACL SETUSER {user} {right}\", then \"ACL SAVE\"");
    Problem::FleetDiffers { difference } => "fleet-differs",
        difference.to_string(),
        "clients whose settings differ may hold one lock at the same time",
        "correct this client; or, for a new value, see docs/operating.md (The fleet's record)";
    Problem::NoFleetRecord { why } => "no-fleet-record",
        why.to_string(),
        "clients compare no settings there, so a difference stays unnoticed",
        "follow the reason; locks still work";
    Problem::NearPrefix { prefix } => "near-prefix",
        format!("clients with the prefix \"{prefix}\" use this master, too"),
        "it differs by one character: with another prefix clients lock other keys, and do not exclude each other",
        "correct the wrong prefix, then delete its key redlatch:fleet; ignore it if both are meant";
    Problem::CertificateExpires { left } => "certificate-expires",
        if left.is_zero() {
            "its certificate has expired".to_owned()
        } else {
            format!("its certificate ends in {}", Counted(days(*left), "day"))
        },
        "after its end no client can connect to this master",
        "replace its certificate; docs/operating.md says how, without a restart";
}

/// Advice for masters that may be new.
const INIT: &str = "if these masters are new and empty: redlatch fleet init. Otherwise wait";

fn days(time: Duration) -> usize {
    usize::try_from(time.as_secs() / (24 * 3600)).unwrap_or(usize::MAX)
}
