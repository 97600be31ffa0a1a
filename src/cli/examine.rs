//! `redlatch doctor`: what is wrong with the masters and settings, why it matters, and what to do.

use std::time::Duration;

use crate::doctor::facts::{ExaminedMaster, Facts, ask_all};
use crate::doctor::judge::{granting, judge};
use crate::doctor::{Finding, Severity};
use crate::output::whole_us;
use redlatch::engine::quorum;
use redlatch::env::parse_time;
use redlatch::words::{Counted, Rounded};
use redlatch::{Config, Quarantine};
use serde_json::{Value, json};

use super::exit::{Exit, code};
use super::options::MasterOptions;
use super::output::{Colour, add_paragraph, json_line, paint, print, stdout_width};

/// Examine the masters: what is wrong, why it matters, and what to do.
///
/// It asks each master for its version, role, persistence, memory, clock and round trip, and tries the
/// login's rights. It changes no key: rights are tried with commands on an absent key. The scripts among them
/// stay in the master's script cache, and a right that the login lacks leaves an entry in its ACL log. Give
/// the options that the clients use: a finding may depend on the maximum TTL, the prefix, --trust and
/// --strict.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// Print facts and findings as one JSON object.
    #[arg(long)]
    json: bool,

    /// How long the questions to the masters may take. From 10s on it measures the rates of their clocks,
    /// which takes 5s.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_time)]
    time_limit: Duration,

    #[command(flatten)]
    masters: MasterOptions,
}

const HELP: &str = "\
Exit codes:
  0 if nothing was found but notes, 1 if there are warnings, 2 if there are
  errors, 64 bad usage, 69 if fewer than a quorum of masters can grant a lock
  now, 70 if the operating system refused something

Examples:
  redlatch doctor --prefix lock: --max-ttl 30s
  redlatch doctor --json | jq -r '.findings[] | select(.severity != \"note\") | .code'";

pub(crate) fn execute(args: &Args) -> Result<u8, Exit> {
    let config = args.masters.config()?;
    let masters = ask_all(&config, args.time_limit)?;
    let findings = judge(&config, &masters);
    print(&match args.json {
        true => json_text(&config, &masters, &findings),
        false => text(&config, &masters, &findings, stdout_width()),
    })?;
    Ok(code_of(&config, &findings))
}

fn worst(findings: &[Finding]) -> Option<Severity> {
    findings.iter().map(|finding| finding.severity).max()
}

fn code_of(config: &Config, findings: &[Finding]) -> u8 {
    match worst(findings) {
        _ if granting(config, findings) < quorum(config.master_count()) => code::NO_QUORUM,
        Some(Severity::Error) => code::ERRORS,
        Some(Severity::Warning) => code::WARNINGS,
        _ => 0,
    }
}

fn text(config: &Config, masters: &[ExaminedMaster], findings: &[Finding], width: usize) -> String {
    let mut out = String::new();
    let count = config.master_count();
    let after = Rounded(config.quarantine_time());
    let summary = match config.quarantine() {
        Quarantine::Trust => "restarted masters are trusted".to_owned(),
        Quarantine::Strict => format!("strict mode, {after} after a restart"),
        _ => format!("quarantine by uptime, {after} after a restart"),
    };
    let from = out.len();
    add_paragraph(&mut out, width, "", 2, &verdict(granting(config, findings), count));
    paint(&mut out, from, NO_LOCK, Colour::Alarm);
    add_paragraph(&mut out, width, "", 2, &summary);
    for ExaminedMaster { name, facts } in masters {
        let what = facts.as_ref().map_or_else(|why| why.in_short().to_owned(), facts_line);
        add_paragraph(&mut out, width, "", 2, &format!("{name}: {what}"));
    }
    for finding in findings {
        out.push('\n');
        let (kind, from) = (finding.severity.to_string().to_uppercase(), out.len());
        add_paragraph(&mut out, width, "", 2, &format!("{kind} {}: {finding}", finding.problem.code()));
        match finding.severity {
            Severity::Error => paint(&mut out, from, &kind, Colour::Alarm),
            Severity::Warning => paint(&mut out, from, &kind, Colour::Care),
            _ => {}
        }
        if !finding.masters.is_empty() {
            let about = if finding.masters.len() == count && count > 1 {
                format!("all {count} masters")
            } else {
                finding.masters.join(" ")
            };
            add_paragraph(&mut out, width, "  on:  ", 7, &about);
        }
        add_paragraph(&mut out, width, "  why: ", 7, &finding.why());
        add_paragraph(&mut out, width, "  do:  ", 7, &finding.advice());
    }
    let count = |severity| findings.iter().filter(|it| it.severity == severity).count();
    let counts = [(Severity::Error, "error"), (Severity::Warning, "warning"), (Severity::Note, "note")];
    let counts = counts.into_iter().filter(|(severity, _)| count(*severity) > 0);
    let counts: Vec<_> = counts.map(|(severity, name)| Counted(count(severity), name).to_string()).collect();
    let end = if counts.is_empty() { "nothing found".to_owned() } else { counts.join(", ") };
    out.push('\n');
    let from = out.len();
    add_paragraph(&mut out, width, "", 2, &end);
    paint(&mut out, from, "nothing found", Colour::Fine);
    out
}

/// Says whether locks can be acquired, and how many more masters may fail.
fn verdict(granting: usize, count: usize) -> String {
    let needed = quorum(count);
    let follows = match granting.checked_sub(needed) {
        None => NO_LOCK.to_owned(),
        Some(0) => "none of them may fail".to_owned(),
        Some(more) => format!("{more} more may fail"),
    };
    let are = if needed == 1 { "is" } else { "are" };
    format!("{granting} of {count} masters can grant a lock, {needed} {are} needed: {follows}")
}

const NO_LOCK: &str = "no lock can be acquired now";

/// Facts about a master, in one line.
fn facts_line(facts: &Facts) -> String {
    let server = &facts.server;
    let mut parts = Vec::new();
    parts.extend(server.version.as_ref().map(|version| format!("version {version}")));
    parts.extend(server.role.as_ref().map(|role| role.to_string()));
    parts.extend(server.uptime.map(|uptime| format!("up {}", up(uptime))));
    let round_trip = facts.round_trip;
    parts.push(format!("round trip {}, p99 {}", Rounded(round_trip.p50), Rounded(round_trip.p99)));
    parts.extend(facts.clock.map(|clock| format!("clock {:+}ms", clock.ahead_ms)));
    if let (Some(used), Some(limit)) = (server.used_memory, server.maxmemory) {
        let limit = if limit == 0 { "unlimited".to_owned() } else { mib(limit) };
        parts.push(format!("memory {} of {limit}", mib(used)));
    }
    parts.extend(server.maxmemory_policy.as_ref().map(|policy| policy.to_string()));
    parts.extend(server.is_append_only.map(|is_on| match (is_on, &facts.settings.appendfsync) {
        (false, _) => "appendonly no".to_owned(),
        (true, Some(fsync)) => format!("appendfsync {fsync}"),
        (true, None) => "appendonly yes".to_owned(),
    }));
    if let Some(record) = facts.record.record() {
        parts.push(format!("fleet {} ({})", record.id(), record.origin()));
    }
    parts.extend(facts.prefixes.as_ref().filter(|found| found.len() > 1).map(|found| {
        let shown: Vec<_> = found.iter().map(|prefix| format!("\"{}\"", prefix.escape_ascii())).collect();
        format!("prefixes {}", shown.join(" "))
    }));
    parts.push(format!("release by {}", facts.native_release.unwrap_or("script")));
    parts.extend(
        facts.certificate_left.map(|left| format!("certificate for {} days", left.as_secs() / 86_400)),
    );
    parts.join(", ")
}

/// A run time in its largest whole unit.
fn up(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}min", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

fn json_text(config: &Config, masters: &[ExaminedMaster], findings: &[Finding]) -> String {
    let granting = granting(config, findings);
    let masters: Vec<Value> = masters.iter().map(master_json).collect();
    let worst = worst(findings).map(|severity| severity.to_string());
    let findings: Vec<Value> = findings.iter().map(finding_json).collect();
    json_line(
        &json!({ "granting": granting, "quorum": quorum(config.master_count()), "worst": worst, "masters": masters, "findings": findings }),
    )
}

fn finding_json(finding: &Finding) -> Value {
    let masters: Vec<&str> = finding.masters.iter().map(AsRef::as_ref).collect();
    json!({
        "severity": finding.severity.to_string(), "code": finding.problem.code(), "masters": masters,
        "what": finding.to_string(), "why": finding.why(), "advice": finding.advice(),
    })
}

fn master_json(master: &ExaminedMaster) -> Value {
    let facts = match &master.facts {
        Ok(facts) => facts,
        Err(why) => return json!({ "name": *master.name, "answered": false, "why": why.to_string() }),
    };
    let server = &facts.server;
    json!({
        "name": *master.name,
        "answered": true,
        "address": facts.address.map(|address| address.to_string()),
        "round_trip_us": { "p50": whole_us(facts.round_trip.p50), "p99": whole_us(facts.round_trip.p99), "count": facts.round_trip.count },
        "clock_ahead_ms": facts.clock.map(|clock| clock.ahead_ms),
        "clock_rate_ppm": facts.clock_rate.map(|rate| rate.ppm),
        "run_id": server.run_id.as_deref(),
        "version": server.version.as_deref(),
        "role": server.role.as_deref(),
        "uptime_s": server.uptime.map(|uptime| uptime.as_secs()),
        "is_cluster": server.is_cluster,
        "maxmemory": server.maxmemory,
        "used_memory": server.used_memory,
        "maxmemory_policy": server.maxmemory_policy.as_deref(),
        "evicted_keys": server.evicted_keys,
        "is_append_only": server.is_append_only,
        "appendfsync": facts.settings.appendfsync.as_deref(),
        "syncs_each_write": facts.syncs_each_write(),
        "user": *facts.rights.user,
        "denied": facts.rights.denied,
        "native_release": facts.native_release,
        "fleet": facts.record.record().map(|record| record.id().to_string()),
        "prefixes": facts.prefixes.as_ref().map(|found| {
            found.iter().map(|prefix| prefix.escape_ascii().to_string()).collect::<Vec<_>>()
        }),
        "certificate_left_s": facts.certificate_left.map(|left| left.as_secs()),
    })
}

#[cfg(test)]
mod tests;
