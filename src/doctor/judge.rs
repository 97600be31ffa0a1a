//! From facts to findings. It asks nobody and reads no clock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::config::{Config, Quarantine};
use crate::limits;
use crate::lock::quorum;

use super::facts::{ExaminedMaster, Facts};
use super::finding::{Finding, Problem, Severity};
use super::rights::Feature;
use crate::driver::probe::ProbeError;

/// Memory in use from which it is called close to the limit, in percent.
const MEMORY_PERCENT_MAX: u64 = 80;

/// Time before the end of a certificate from which its end is called near.
const CERTIFICATE_LEFT_MIN: Duration = Duration::from_secs(14 * 24 * 3600);

/// The findings, the heaviest first.
pub(super) fn judge(config: &Config, masters: &[ExaminedMaster]) -> Vec<Finding> {
    let mut findings = Findings(Vec::new());
    findings.of_list(config, masters);
    for master in masters {
        match &master.facts {
            Ok(facts) => findings.of_master(config, &master.name, facts),
            Err(ProbeError::Unreachable(why)) => {
                findings.add(Severity::Error, &master.name, Problem::Unreachable { why: why.clone() });
            }
            Err(ProbeError::LoginRefused(why)) => {
                findings.add(Severity::Error, &master.name, Problem::LoginRefused { why: why.clone() });
            }
        }
    }
    findings.of_persistence(config, masters);
    findings.0.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings.0
}

struct Findings(Vec<Finding>);

impl Findings {
    /// Adds a finding about one master; masters with the same problem share a finding.
    fn add(&mut self, severity: Severity, master: &Arc<str>, problem: Problem) {
        let same = self.0.iter_mut().find(|it| it.severity == severity && it.problem == problem);
        match same {
            Some(finding) => finding.masters.push(master.clone()),
            None => self.add_of(severity, vec![master.clone()], problem),
        }
    }

    fn add_of(&mut self, severity: Severity, masters: Vec<Arc<str>>, problem: Problem) {
        self.0.push(Finding { severity, masters, problem });
    }

    /// Findings about all masters together.
    fn of_list(&mut self, config: &Config, masters: &[ExaminedMaster]) {
        let (count, needed) = (masters.len(), quorum(masters.len()));
        let answered = masters.iter().filter(|master| master.facts.is_ok()).count();
        if answered < needed {
            self.add_of(Severity::Error, Vec::new(), Problem::NoQuorum { answered, needed });
        }
        if count < 3 {
            self.add_of(Severity::Warning, Vec::new(), Problem::TooFewMasters { count });
        } else if count.is_multiple_of(2) {
            self.add_of(Severity::Warning, Vec::new(), Problem::EvenCount { count });
        }
        let run_id = |facts: &Facts| facts.server.run_id.clone();
        for (run_id, names) in shared_by(masters, run_id) {
            self.add_of(Severity::Error, names, Problem::SameServer { run_id });
        }
        // Addresses of one server are no news.
        let is_listed_twice = |names: &[Arc<str>], found: &Self| {
            found.0.iter().any(|it| matches!(it.problem, Problem::SameServer { .. }) && it.masters == names)
        };
        for (address, names) in shared_by(masters, |facts| facts.address) {
            if !is_listed_twice(&names, self) {
                self.add_of(Severity::Warning, names, Problem::SameHost { address });
            }
        }
        self.of_clocks(config, masters);
    }

    /// Fenced locks need clocks within half of `max_ttl`; a warning comes at half of that.
    fn of_clocks(&mut self, config: &Config, masters: &[ExaminedMaster]) {
        let offsets = masters.iter().filter_map(|master| Some((master, master.facts.as_ref().ok()?.clock?)));
        let ahead = offsets.clone().max_by_key(|(_, clock)| clock.ahead_ms);
        let behind = offsets.min_by_key(|(_, clock)| clock.ahead_ms);
        let (Some((ahead, first)), Some((behind, last))) = (ahead, behind) else { return };
        let apart = Duration::from_millis(first.ahead_ms.abs_diff(last.ahead_ms));
        // The part that the error of both readings explains is no offset.
        let offset = apart.saturating_sub(first.error + last.error);
        let limit = config.max_ttl / 2;
        let severity = if offset >= limit { Severity::Error } else { Severity::Warning };
        if offset >= limit / 2 {
            let names = vec![behind.name.clone(), ahead.name.clone()];
            self.add_of(severity, names, Problem::ClockOffset { offset: apart, limit });
        }
    }

    /// Findings about one master that answered.
    fn of_master(&mut self, config: &Config, name: &Arc<str>, facts: &Facts) {
        let server = &facts.server;
        let ttl = config.ttl(limits::TTL_DEFAULT.min(config.max_ttl));
        let p99 = facts.round_trip.p99;
        if let Some(limit) = ttl.ok().map(|ttl| config.answer_limit(ttl)).filter(|limit| p99 >= *limit) {
            self.add(Severity::Warning, name, Problem::SlowRoundTrip { p99, limit });
        }
        let is_replica = server.role.as_deref().is_some_and(|role| role != "master");
        if is_replica {
            self.add(Severity::Error, name, Problem::Replica);
        }
        if let Some(version) = server.version.as_ref().filter(|version| is_old(version)) {
            self.add(Severity::Warning, name, Problem::OldVersion { version: version.clone() });
        }
        if server.is_cluster == Some(true) {
            self.of_cluster(config, name);
        }
        if let Some(refusal) = facts.write_refusal.as_ref().filter(|_| !is_replica) {
            self.add(Severity::Error, name, Problem::WritesRefused { refusal: refusal.clone() });
        }
        if server.is_disk_fine == Some(false) {
            self.add(Severity::Error, name, Problem::DiskFailing);
        }
        if let Some(left) = facts.certificate_left.filter(|left| *left < CERTIFICATE_LEFT_MIN) {
            self.add(Severity::Warning, name, Problem::CertificateExpires { left });
        }
        self.of_memory(name, facts);
        self.of_quarantine(config, name, facts);
        self.of_rights(config, name, facts);
    }

    fn of_cluster(&mut self, config: &Config, name: &Arc<str>) {
        if has_hash_tag(&config.prefix) {
            return self.add(Severity::Warning, name, Problem::ClusterNode);
        }
        let prefix = String::from_utf8_lossy(&config.prefix);
        let tag = prefix.trim_end_matches(':');
        let prefix = if tag.is_empty() { "{lock}:".to_owned() } else { format!("{{{tag}}}:") };
        self.add(Severity::Error, name, Problem::ClusterWithoutHashTag { prefix });
    }

    fn of_memory(&mut self, name: &Arc<str>, facts: &Facts) {
        let server = &facts.server;
        if let Some(policy) = server.maxmemory_policy.as_ref().filter(|policy| &***policy != "noeviction") {
            self.add(Severity::Error, name, Problem::EvictingPolicy { policy: policy.clone() });
        }
        if let Some(count) = server.evicted_keys.filter(|count| *count > 0) {
            self.add(Severity::Warning, name, Problem::EvictedKeys { count });
        }
        match (server.maxmemory, server.used_memory) {
            (Some(0), _) => self.add(Severity::Note, name, Problem::NoMemoryLimit),
            (Some(limit), Some(used)) => {
                let percent = used.saturating_mul(100) / limit;
                if percent >= MEMORY_PERCENT_MAX {
                    self.add(Severity::Warning, name, Problem::MemoryNearLimit { percent });
                }
            }
            _ => {}
        }
    }

    fn of_quarantine(&mut self, config: &Config, name: &Arc<str>, facts: &Facts) {
        let needed = config.quarantine_time();
        match config.quarantine {
            Quarantine::Uptime => {
                // A difference of whole seconds, so up to one second of it may not have passed yet.
                let age = facts.server.uptime.map(|uptime| uptime.saturating_sub(Duration::from_secs(1)));
                if let Some(left) = age.and_then(|age| needed.checked_sub(age)).filter(|left| !left.is_zero())
                {
                    // Masters that started together share a finding.
                    let left = Duration::from_secs(left.as_secs() + 1);
                    self.add(Severity::Warning, name, Problem::Quarantined { left });
                }
            }
            Quarantine::Strict if facts.observed < needed => {
                self.add(Severity::Warning, name, Problem::Unobserved { needed });
            }
            Quarantine::Strict | Quarantine::Trust => {}
        }
    }

    fn of_rights(&mut self, config: &Config, name: &Arc<str>, facts: &Facts) {
        let rights = &facts.rights;
        let user = &rights.user;
        let pattern = config.prefix.escape_ascii();
        for feature in Feature::ALL {
            let severity = match feature {
                Feature::Locks => Severity::Error,
                Feature::Quarantine | Feature::Waiting | Feature::Inspections => Severity::Warning,
                Feature::Comfort | Feature::Fenced | Feature::Shared => Severity::Note,
            };
            let of_feature = |rights: &[&'static str]| -> Vec<&'static str> {
                rights.iter().filter(|right| feature.rights().contains(right)).copied().collect()
            };
            let mut missing: Vec<String> =
                of_feature(&rights.denied).iter().map(|right| format!("+{right}")).collect();
            if feature == Feature::Locks && rights.lacks_keys {
                missing.insert(0, format!("~{pattern}*"));
            }
            if feature == Feature::Waiting && rights.lacks_channels && config.wakes_waiters {
                missing.insert(0, format!("&{pattern}*"));
            }
            if !missing.is_empty() {
                let (feature, effect) = (feature.name(), feature.without());
                let problem = Problem::MissingRights { feature, effect, rights: missing, user: user.clone() };
                self.add(severity, name, problem);
            }
            let commands = of_feature(&rights.unknown);
            if !commands.is_empty() {
                let (feature, effect) = (feature.name(), feature.without());
                self.add(severity, name, Problem::MissingCommands { feature, effect, commands });
            }
        }
        let native = [("delifeq", "+delifeq"), ("delex", "+delex")];
        if let Some((_, right)) = native.into_iter().find(|(command, _)| rights.denied.contains(command)) {
            self.add(Severity::Note, name, Problem::NativeDenied { right, user: user.clone() });
        }
    }

    /// Locks that a restart of each master loses, held against the mode of the client.
    fn of_persistence(&mut self, config: &Config, masters: &[ExaminedMaster]) {
        let is_trusting = config.quarantine == Quarantine::Trust;
        let answered =
            || masters.iter().filter_map(|master| Some((&master.name, master.facts.as_ref().ok()?)));
        for (name, facts) in answered() {
            match (facts.syncs_each_write(), restart_loss(facts)) {
                (Some(false), Some(loss)) if is_trusting => {
                    self.add(Severity::Error, name, loss.problem());
                }
                (Some(false), Some(RestartLoss::All)) => {
                    self.add(Severity::Note, name, Problem::RestartForgets);
                }
                (None, _) if is_trusting => self.add(Severity::Warning, name, Problem::TrustUnverified),
                _ => {}
            }
        }
        let is_synced = |(_, facts): (_, &Facts)| facts.syncs_each_write() == Some(true);
        if !is_trusting && answered().count() == masters.len() && answered().all(is_synced) {
            self.add_of(Severity::Note, Vec::new(), Problem::TrustJustified);
        }
    }
}

/// Locks that a restart of a master loses, by its persistence.
#[derive(Clone, Copy)]
enum RestartLoss {
    /// It has no append-only file: everything since the last snapshot, or everything.
    All,
    /// The append-only file is synced each second: up to two seconds of locks.
    Seconds,
    /// The operating system syncs the append-only file when it likes: half a minute of locks or more.
    Unknown,
    /// The append-only file is not synced while it is rewritten.
    DuringRewrite,
}

impl RestartLoss {
    /// The problem of a client that trusts the master.
    const fn problem(self) -> Problem {
        let loss = match self {
            Self::All => "a restart may lose all locks: appendonly is no",
            Self::Seconds => "a crash loses up to 2s of locks: appendfsync is everysec",
            Self::Unknown => "a crash may lose half a minute of locks or more: appendfsync is no",
            Self::DuringRewrite => {
                "a crash during a rewrite may lose locks: no-appendfsync-on-rewrite is yes"
            }
        };
        let remedy = match self {
            Self::DuringRewrite => "set no-appendfsync-on-rewrite no",
            Self::All | Self::Seconds | Self::Unknown => {
                "set appendonly yes and appendfsync always, or use Quarantine::Uptime"
            }
        };
        Problem::TrustUnsynced { loss, remedy }
    }
}

/// Locks that a restart of this master loses; `None` if that is unknown.
fn restart_loss(facts: &Facts) -> Option<RestartLoss> {
    if !facts.server.is_append_only? {
        return Some(RestartLoss::All);
    }
    Some(match facts.settings.appendfsync.as_deref()? {
        "always" => RestartLoss::DuringRewrite,
        "everysec" => RestartLoss::Seconds,
        _ => RestartLoss::Unknown,
    })
}

/// The masters that share a fact, for each fact that several have.
fn shared_by<K: Ord>(
    masters: &[ExaminedMaster],
    fact: impl Fn(&Facts) -> Option<K>,
) -> Vec<(K, Vec<Arc<str>>)> {
    let mut groups: BTreeMap<K, Vec<Arc<str>>> = BTreeMap::new();
    for master in masters {
        if let Some(key) = master.facts.as_ref().ok().and_then(&fact) {
            groups.entry(key).or_default().push(master.name.clone());
        }
    }
    groups.into_iter().filter(|(_, names)| names.len() > 1).collect()
}

/// Whether some kinds of lock need a later version.
fn is_old(version: &str) -> bool {
    version.split('.').next().and_then(|major| major.parse::<u32>().ok()).is_some_and(|major| major < 5)
}

/// Whether all keys with this prefix are in one slot: the first `{` is followed by a text and a `}`.
fn has_hash_tag(prefix: &[u8]) -> bool {
    let behind = prefix.iter().position(|byte| *byte == b'{').and_then(|at| prefix.get(at + 1..));
    behind.and_then(|behind| behind.iter().position(|byte| *byte == b'}')).is_some_and(|size| size > 0)
}

#[cfg(test)]
mod tests;
