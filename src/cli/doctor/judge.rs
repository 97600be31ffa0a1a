//! From facts to findings. Does no I/O and reads no clock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use redlatch::engine::quorum;
use redlatch::probe::ProbeError;
use redlatch::record::{Found, Origin};
use redlatch::status::Unusable;
use redlatch::{Config, Quarantine, limits};

use super::facts::{ClockRate, ExaminedMaster, Facts};
use super::finding::{Finding, Problem, Severity};
use super::rights::Feature;

/// Percentage of `maxmemory` in use that counts as near the limit.
const MEMORY_PERCENT_MAX: u64 = 80;

/// Time before a certificate expires from which a finding warns.
const CERTIFICATE_LEFT_MIN: Duration = Duration::from_secs(14 * 24 * 3600);

/// Returns the findings, most severe first.
#[must_use]
pub(crate) fn judge(config: &Config, masters: &[ExaminedMaster]) -> Vec<Finding> {
    let quarantine_time = longest_quarantine(config, masters);
    let mut findings = Findings { config, quarantine_time, are_new: are_new(masters), found: Vec::new() };
    findings.of_list(masters);
    for master in masters {
        match &master.facts {
            Ok(facts) => findings.of_master(&master.name, facts),
            Err(ProbeError::Unreachable(why)) => {
                findings.add(Severity::Error, &master.name, Problem::Unreachable { why: why.clone() });
            }
            Err(ProbeError::LoginRefused(why)) => {
                findings.add(Severity::Error, &master.name, Problem::LoginRefused { why: why.clone() });
            }
        }
    }
    findings.of_records(masters);
    findings.of_persistence(masters);
    let (granting, count, needed) = (granting(config, &findings.found), masters.len(), quorum(masters.len()));
    if granting < needed {
        let problem = Problem::NoQuorum { granting, count, needed };
        findings.found.insert(0, Finding { severity: Severity::Error, masters: Vec::new(), problem });
    }
    findings.found.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings.found
}

/// Number of masters that can grant a lock now, according to the findings.
#[must_use]
pub(crate) fn granting(config: &Config, findings: &[Finding]) -> usize {
    let keeps = |finding: &&Finding| keeps_from_granting(config, finding);
    // The first address of a server votes.
    let skipped = |finding: &Finding| usize::from(matches!(finding.problem, Problem::SameServer { .. }));
    let unable = findings.iter().filter(keeps).flat_map(|it| it.masters.iter().skip(skipped(it)));
    config.master_count() - unable.collect::<BTreeSet<_>>().len()
}

/// Whether this problem keeps masters from voting for a client.
fn keeps_from_granting(config: &Config, finding: &Finding) -> bool {
    let is_strict = config.quarantine() == Quarantine::Strict;
    match &finding.problem {
        Problem::Unreachable { .. }
        | Problem::LoginRefused { .. }
        | Problem::WritesRefused { .. }
        | Problem::Quarantined { .. }
        | Problem::Unobserved { .. }
        | Problem::SameServer { .. }
        | Problem::Replica => true,
        Problem::EvictingPolicy { .. } | Problem::Unreported { .. } => is_strict,
        Problem::FleetDiffers { .. } => is_strict && finding.severity == Severity::Error,
        Problem::MissingRights { rights, .. } => {
            rights.iter().any(|right| right == "+set" || right.starts_with('~'))
        }
        Problem::MissingCommands { commands, .. } | Problem::OddAnswer { commands, .. } => {
            commands.contains(&"set")
        }
        _ => false,
    }
}

/// Commands that run scripts.
const SCRIPT_RIGHTS: [&str; 2] = ["eval", "evalsha"];

/// Rights for the channels that are used without sharded channels.
const CHANNEL_RIGHTS: [&str; 2] = ["publish", "subscribe"];

struct Findings<'a> {
    config: &'a Config,
    /// Longest quarantine that a client observes.
    quarantine_time: Duration,
    /// Whether the masters look like a new fleet.
    are_new: bool,
    found: Vec<Finding>,
}

impl Findings<'_> {
    /// Adds a finding about one master. Masters with the same problem share a finding.
    fn add(&mut self, severity: Severity, master: &Arc<str>, problem: Problem) {
        let same = self.found.iter_mut().find(|it| it.severity == severity && it.problem == problem);
        match same {
            Some(finding) => finding.masters.push(master.clone()),
            None => self.add_of(severity, vec![master.clone()], problem),
        }
    }

    fn add_of(&mut self, severity: Severity, masters: Vec<Arc<str>>, problem: Problem) {
        self.found.push(Finding { severity, masters, problem });
    }

    fn of_list(&mut self, masters: &[ExaminedMaster]) {
        let count = masters.len();
        if count < 3 {
            self.add_of(Severity::Warning, Vec::new(), Problem::TooFewMasters { count });
        } else if count.is_multiple_of(2) {
            self.add_of(Severity::Warning, Vec::new(), Problem::EvenCount { count });
        }
        let run_id = |facts: &Facts| facts.server.run_id.clone();
        for (run_id, names) in shared_by(masters, run_id) {
            self.add_of(Severity::Error, names, Problem::SameServer { run_id });
        }
        // Equal addresses of one server are no news.
        let is_same_server = |it: &Finding| matches!(it.problem, Problem::SameServer { .. });
        for (address, names) in shared_by(masters, |facts| facts.address) {
            if !self.found.iter().any(|it| is_same_server(it) && it.masters == names) {
                self.add_of(Severity::Warning, names, Problem::SameHost { address });
            }
        }
        self.of_clocks(masters);
    }

    /// Fenced locks need clocks within half of `max_ttl` of each other. Warns at half of this limit.
    fn of_clocks(&mut self, masters: &[ExaminedMaster]) {
        let offsets = answered(masters).filter_map(|(name, facts)| Some((name, facts.clock?)));
        let ahead = offsets.clone().max_by_key(|(_, clock)| clock.ahead_ms);
        let behind = offsets.min_by_key(|(_, clock)| clock.ahead_ms);
        let (Some((ahead, first)), Some((behind, last))) = (ahead, behind) else { return };
        let apart = Duration::from_millis(first.ahead_ms.abs_diff(last.ahead_ms));
        // Without the part that the errors of both readings may explain.
        let offset = apart.saturating_sub(first.error + last.error);
        let limit = self.config.max_ttl() / 2;
        let severity = if offset >= limit { Severity::Error } else { Severity::Warning };
        if offset >= limit / 2 {
            let names = vec![behind.clone(), ahead.clone()];
            self.add_of(severity, names, Problem::ClockOffset { offset: apart, limit });
        }
    }

    fn of_master(&mut self, name: &Arc<str>, facts: &Facts) {
        let server = &facts.server;
        let ttl = self.config.ttl(limits::TTL_DEFAULT.min(self.config.max_ttl()));
        let p99 = facts.round_trip.p99;
        if let Some(limit) = ttl.ok().map(|ttl| self.config.answer_limit(ttl)).filter(|limit| p99 >= *limit) {
            self.add(Severity::Warning, name, Problem::SlowRoundTrip { p99, limit });
        }
        self.of_clock_rate(name, facts);
        let is_replica = server.role.as_deref().is_some_and(|role| role != "master");
        if is_replica {
            self.add(Severity::Error, name, Problem::Replica);
        }
        if let Some(version) = server.version.as_ref().filter(|version| is_old(version)) {
            self.add(Severity::Warning, name, Problem::OldVersion { version: version.clone() });
        }
        if let Some(server) = &server.other_name {
            self.add(Severity::Warning, name, Problem::NotTested { server: server.clone() });
        }
        self.of_unreported(name, facts);
        if server.is_cluster == Some(true) {
            self.of_cluster(name);
        }
        if let Some(refusal) = facts.rights.write_refusal.as_ref().filter(|_| !is_replica) {
            self.add(Severity::Error, name, Problem::WritesRefused { refusal: refusal.clone() });
        }
        if server.is_disk_fine == Some(false) {
            self.add(Severity::Error, name, Problem::DiskFailing);
        }
        if let Some(left) = facts.certificate_left.filter(|left| *left < CERTIFICATE_LEFT_MIN) {
            self.add(Severity::Warning, name, Problem::CertificateExpires { left });
        }
        self.of_memory(name, facts);
        self.of_quarantine(name, facts);
        self.of_rights(name, facts);
    }

    /// Warns at a tenth of the difference that all clients allow.
    fn of_clock_rate(&mut self, name: &Arc<str>, facts: &Facts) {
        let Some(ClockRate { ppm, error_ppm }) = facts.clock_rate else { return };
        let (least, allowed_ppm) = (ppm.unsigned_abs().saturating_sub(error_ppm), self.config.drift_ppm());
        let severity = if least >= u64::from(allowed_ppm) { Severity::Error } else { Severity::Warning };
        if least >= u64::from(allowed_ppm / 10).max(1) {
            self.add(severity, name, Problem::ClockRate { ppm, error_ppm, allowed_ppm });
        }
    }

    /// Findings about missing fields by which a client judges the master's votes.
    fn of_unreported(&mut self, name: &Arc<str>, facts: &Facts) {
        // The missing right or command is already a finding.
        if facts.rights.denied.iter().chain(&facts.rights.unknown).any(|right| *right == "info") {
            return;
        }
        let (server, mode) = (&facts.server, self.config.quarantine());
        let reported = [
            ("run_id", server.run_id.is_some()),
            ("uptime_in_seconds", server.uptime.is_some() || mode != Quarantine::Uptime),
            ("role", server.role.is_some()),
            ("maxmemory_policy", server.maxmemory_policy.is_some()),
        ];
        let missing: Vec<_> =
            reported.into_iter().filter(|(_, is_there)| !is_there).map(|(it, _)| it).collect();
        if !missing.is_empty() {
            let severity = if mode == Quarantine::Strict { Severity::Error } else { Severity::Warning };
            self.add(severity, name, Problem::Unreported { fields: missing.join(", ") });
        }
    }

    fn of_cluster(&mut self, name: &Arc<str>) {
        if has_hash_tag(self.config.prefix()) {
            return self.add(Severity::Warning, name, Problem::ClusterNode);
        }
        let prefix = String::from_utf8_lossy(self.config.prefix());
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

    fn of_quarantine(&mut self, name: &Arc<str>, facts: &Facts) {
        let needed = self.quarantine_time;
        let is_promoted = facts.server.promotion.is_some();
        let is_short = |ttl: &Duration| !ttl.is_zero() && *ttl < needed;
        let backlog_ttl = facts.settings.backlog_ttl.filter(is_short);
        if let Some(ttl) = backlog_ttl.filter(|_| self.config.quarantine() != Quarantine::Trust) {
            self.add(Severity::Warning, name, Problem::ShortBacklogTtl { ttl, needed });
        }
        if facts.record.is_new(name, facts.server.run_id.as_deref()) && !is_promoted {
            return;
        }
        match self.config.quarantine() {
            Quarantine::Uptime => {
                // Uptime is a difference of whole seconds, so up to one second of it may not have passed.
                let uptime = facts.server.uptime.map(|uptime| uptime.saturating_sub(Duration::from_secs(1)));
                let age = if is_promoted { Some(facts.observed) } else { uptime };
                if let Some(left) = age.and_then(|age| needed.checked_sub(age)).filter(|left| !left.is_zero())
                {
                    // Whole seconds, so that masters that started together share a finding.
                    let left = Duration::from_secs(left.as_secs() + 1);
                    self.add(Severity::Warning, name, Problem::Quarantined { left, is_new: self.are_new });
                }
            }
            Quarantine::Strict if facts.observed < needed => {
                self.add(Severity::Warning, name, Problem::Unobserved { needed, is_new: self.are_new });
            }
            _ => {}
        }
    }

    fn of_rights(&mut self, master: &Arc<str>, facts: &Facts) {
        let rights = &facts.rights;
        let user = &rights.user;
        let pattern = self.config.prefix().escape_ascii();
        let lacks = |right| rights.denied.contains(right) || rights.unknown.contains(right);
        let is_sharded = !Feature::Sharded.rights().iter().any(lacks);
        for feature in Feature::ALL {
            let severity = match feature {
                Feature::Locks => Severity::Error,
                Feature::Quarantine | Feature::Waiting | Feature::Inspections => Severity::Warning,
                Feature::Sharded | Feature::Comfort | Feature::Fenced | Feature::Shared => Severity::Note,
            };
            let (name, effect, needed) = (feature.name(), feature.without(), feature.rights());
            let mut missing = Vec::new();
            if feature == Feature::Locks && rights.lacks_keys {
                missing.push(format!("~{pattern}*"));
            }
            if feature == Feature::Waiting && rights.lacks_channels && self.config.wakes_waiters() {
                missing.push(format!("&{pattern}*"));
            }
            // The finding `no-scripts` covers the rights to run scripts.
            let is_other = |right: &&&str| {
                needed.contains(right)
                    && (rights.scripts_refusal.is_none() || !SCRIPT_RIGHTS.contains(right))
                    && !(is_sharded && CHANNEL_RIGHTS.contains(right))
            };
            let denied = rights.denied.iter().filter(is_other);
            missing.extend(denied.map(|right| format!("+{right}")));
            if !missing.is_empty() {
                let (rights, user) = (missing, user.clone());
                self.add(severity, master, Problem::MissingRights { feature: name, effect, rights, user });
            }
            let unknown = rights.unknown.iter().filter(is_other);
            let commands: Vec<_> = unknown.copied().collect();
            // Servers before Redis 7.0 have no sharded channels.
            if !commands.is_empty() && feature != Feature::Sharded {
                self.add(severity, master, Problem::MissingCommands { feature: name, effect, commands });
            }
        }
        if let Some(refusal) = &rights.scripts_refusal {
            let has_native = facts.native_release.is_some();
            let severity = if has_native { Severity::Warning } else { Severity::Error };
            let denied = SCRIPT_RIGHTS.iter().filter(|right| rights.denied.contains(right));
            let missing = denied.map(|right| format!("+{right}")).collect::<Vec<_>>().join(" ");
            let advice = match &*missing {
                "" => "let it run EVALSHA and EVAL, or use another server".to_owned(),
                rights => format!("run \"ACL SETUSER {user} {rights}\", then \"ACL SAVE\""),
            };
            self.add(severity, master, Problem::NoScripts { refusal: refusal.clone(), has_native, advice });
        }
        for (answer, commands) in &rights.odd {
            let is_script = rights.scripts_refusal.is_some();
            let commands: Vec<_> = commands
                .iter()
                .filter(|right| !(is_script && SCRIPT_RIGHTS.contains(right)))
                .copied()
                .collect();
            if !commands.is_empty() {
                self.add(Severity::Error, master, Problem::OddAnswer { commands, answer: answer.clone() });
            }
        }
        if let Some(count) = facts.server.pattern_count.filter(|count| *count > 0)
            && !is_sharded
            && self.config.wakes_waiters()
        {
            self.add(Severity::Warning, master, Problem::PatternSubscribers { count });
        }
        let native = [("delifeq", "+delifeq"), ("delex", "+delex")];
        if let Some((_, right)) = native.into_iter().find(|(command, _)| rights.denied.contains(command)) {
            self.add(Severity::Note, master, Problem::NativeDenied { right, user: user.clone() });
        }
    }

    /// Findings about the fleet's record, and about prefixes that may be typing errors.
    fn of_records(&mut self, masters: &[ExaminedMaster]) {
        let seen: Vec<_> = masters.iter().map(ExaminedMaster::seen).collect();
        for (name, facts) in answered(masters) {
            match &facts.record {
                Found::Known(record) => {
                    let is_declared = record.origin() == Origin::Declared;
                    let severity = if is_declared { Severity::Error } else { Severity::Warning };
                    if let Some(difference) = record.difference(self.config, &seen) {
                        self.add(severity, name, Problem::FleetDiffers { difference });
                    }
                }
                // The missing right is a separate finding.
                Found::Unusable(Unusable::Refused(_)) | Found::Absent | Found::Unread => {}
                Found::Unusable(why) => {
                    self.add(Severity::Warning, name, Problem::NoFleetRecord { why: why.clone() });
                }
            }
            for prefix in facts.prefixes.iter().flatten().filter(|it| is_near(it, self.config.prefix())) {
                let prefix = prefix.escape_ascii().to_string();
                self.add(Severity::Warning, name, Problem::NearPrefix { prefix });
            }
        }
    }

    /// Findings about locks that a restart of a master loses, given the client's mode.
    fn of_persistence(&mut self, masters: &[ExaminedMaster]) {
        let is_trusting = self.config.quarantine() == Quarantine::Trust;
        for (name, facts) in answered(masters) {
            let is_append_only = facts.server.is_append_only == Some(true);
            match facts.syncs_each_write() {
                Some(false) if is_trusting => {
                    let appendfsync = facts.settings.appendfsync.as_deref().filter(|_| is_append_only);
                    self.add(Severity::Error, name, trust_unsynced(appendfsync));
                }
                Some(false) if !is_append_only => self.add(Severity::Note, name, Problem::RestartForgets),
                None if is_trusting => self.add(Severity::Warning, name, Problem::TrustUnverified),
                _ => {}
            }
        }
        let is_synced = |facts: &Facts| facts.syncs_each_write() == Some(true);
        if !is_trusting && masters.iter().all(|master| master.facts.as_ref().is_ok_and(is_synced)) {
            self.add_of(Severity::Note, Vec::new(), Problem::TrustJustified);
        }
    }
}

/// Problem of a client that trusts a master with this `appendfsync`; `None` without an append-only file.
fn trust_unsynced(appendfsync: Option<&str>) -> Problem {
    let loss = match appendfsync {
        None => "a restart may lose all locks: appendonly is no",
        Some("always") => "a crash during a rewrite may lose locks: no-appendfsync-on-rewrite is yes",
        Some("everysec") => "a crash loses up to 2s of locks: appendfsync is everysec",
        Some(_) => "a crash may lose half a minute of locks or more: appendfsync is no",
    };
    let remedy = match appendfsync {
        Some("always") => "set no-appendfsync-on-rewrite no",
        _ => "set appendonly yes and appendfsync always, or use Quarantine::Uptime",
    };
    Problem::TrustUnsynced { loss, remedy }
}

/// Whether two prefixes differ in one byte, or one has one more byte.
fn is_near(one: &[u8], other: &[u8]) -> bool {
    let (short, long) = if one.len() <= other.len() { (one, other) } else { (other, one) };
    let same = short.iter().zip(long).take_while(|(a, b)| a == b).count();
    match long.len() - short.len() {
        0 => same < short.len() && short[same + 1..] == long[same + 1..],
        1 => short[same..] == long[same + 1..],
        _ => false,
    }
}

/// Longest quarantine: from the client's settings, or from declared settings.
fn longest_quarantine(config: &Config, masters: &[ExaminedMaster]) -> Duration {
    let records = answered(masters).filter_map(|(_, facts)| facts.record.record());
    let declared = records.filter(|it| it.origin() == Origin::Declared);
    let times = declared.map(|it| it.quarantine_time(config));
    times.fold(config.quarantine_time(), Duration::max)
}

/// Whether the masters look like a new fleet that `redlatch fleet init` would accept.
fn are_new(masters: &[ExaminedMaster]) -> bool {
    let is_new = |facts: &Facts| {
        let is_young = facts.server.uptime.is_some_and(|uptime| uptime < limits::FOUNDING_UPTIME_MAX);
        is_young && facts.record == Found::Absent && facts.server.role.as_deref() == Some("master")
    };
    masters.iter().all(|master| master.facts.as_ref().is_ok_and(is_new))
}

fn answered(masters: &[ExaminedMaster]) -> impl Iterator<Item = (&Arc<str>, &Facts)> + Clone {
    masters.iter().filter_map(|master| Some((&master.name, master.facts.as_ref().ok()?)))
}

/// Facts that several masters share, each with these masters.
fn shared_by<K: Ord>(
    masters: &[ExaminedMaster],
    fact: impl Fn(&Facts) -> Option<K>,
) -> Vec<(K, Vec<Arc<str>>)> {
    let mut groups: BTreeMap<K, Vec<Arc<str>>> = BTreeMap::new();
    for (name, facts) in answered(masters) {
        if let Some(key) = fact(facts) {
            groups.entry(key).or_default().push(name.clone());
        }
    }
    groups.into_iter().filter(|(_, names)| names.len() > 1).collect()
}

/// Whether some kinds of lock need a later version.
fn is_old(version: &str) -> bool {
    version.split('.').next().and_then(|major| major.parse::<u32>().ok()).is_some_and(|major| major < 5)
}

/// Whether all keys with this prefix are in one slot: a non-empty text and a `}` follow the first `{`.
fn has_hash_tag(prefix: &[u8]) -> bool {
    let behind = prefix.iter().position(|byte| *byte == b'{').and_then(|at| prefix.get(at + 1..));
    behind.and_then(|behind| behind.iter().position(|byte| *byte == b'}')).is_some_and(|size| size > 0)
}

#[cfg(test)]
mod tests;
