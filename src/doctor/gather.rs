//! The questions to one master, and the facts in its answers.

use std::time::{Duration, Instant};

use crate::clock;
use crate::config::{Config, Quarantine};
use crate::driver::probe::{Answer, Probe, ProbeError};
use crate::engine::{info_field, mark_key, observed_by_mark};
use crate::lock::command::answer::error_text;

use super::facts::{ClockOffset, Facts, RoundTrip, Server, Settings};
use super::rights::{Trial, trial_key, trials};

/// Number of round trips that are measured, if there is time.
const ROUND_TRIP_COUNT_MAX: usize = 100;

/// Number of readings of a master's clock; the one with the shortest round trip counts.
const CLOCK_READING_COUNT: usize = 5;

/// The sections of `INFO` that are asked for.
const SECTIONS: [&str; 6] = ["server", "replication", "memory", "stats", "persistence", "cluster"];

/// Asks for everything. Round trips are measured for `time` at most.
pub(super) fn gather(probe: &mut Probe, config: &Config, time: Duration) -> Result<Facts, ProbeError> {
    let mut facts = Facts {
        address: probe.address(),
        round_trip: round_trip(probe, time)?,
        clock: clock_offset(probe)?,
        certificate_left: probe.certificate_end().map(|end| end.saturating_sub(clock::wall())),
        ..Facts::default()
    };
    let sections = SECTIONS.map(|section| vec![b"INFO".to_vec(), section.as_bytes().to_vec()]);
    let info = probe.exchange(&sections)?;
    facts.rights.note("info", &info[0]);
    facts.server = server(&info);
    let settings = ["appendfsync", "no-appendfsync-on-rewrite"];
    let questions = settings.map(|name| vec!["CONFIG", "GET", name]);
    facts.settings = read_settings(&probe.exchange(&questions)?);
    facts.rights.user = probe.user().into();
    if config.quarantine() == Quarantine::Strict {
        let mark = probe.exchange(&[[b"GET".to_vec(), mark_key(&config.prefix)]])?.remove(0);
        let mark = mark.text().unwrap_or_default();
        facts.observed = observed_by_mark(mark, facts.server.run_id.as_deref());
    }
    let (native_release, denied) = native_release(probe, config)?;
    facts.native_release = native_release;
    facts.rights.denied.extend(denied);
    let trials = trials(config);
    let commands: Vec<_> = trials.iter().map(|Trial { command, .. }| command).collect();
    for (Trial { right, .. }, answer) in trials.iter().zip(probe.exchange(&commands)?) {
        facts.rights.note(right, &answer);
        if *right == "set" {
            let text = answer.error().filter(|text| !text.starts_with("NOPERM") && !text.starts_with("ERR"));
            facts.write_refusal = text.map(str::to_owned);
        }
    }
    Ok(facts)
}

fn round_trip(probe: &mut Probe, time: Duration) -> Result<RoundTrip, ProbeError> {
    let (start, mut took) = (clock::now(), Vec::with_capacity(ROUND_TRIP_COUNT_MAX));
    // The first one warms up the connection, and does not count.
    probe.exchange(&[["PING"]])?;
    loop {
        let asked = clock::now();
        probe.exchange(&[["PING"]])?;
        let now = clock::now();
        took.push(now - asked);
        if took.len() == ROUND_TRIP_COUNT_MAX || now - start >= time {
            break;
        }
    }
    took.sort_unstable();
    let at = |hundredths: usize| took[((took.len() * hundredths).div_ceil(100)).clamp(1, took.len()) - 1];
    Ok(RoundTrip { p50: at(50), p99: at(99), count: took.len() })
}

/// The master's clock was read somewhere between question and answer.
fn clock_offset(probe: &mut Probe) -> Result<Option<ClockOffset>, ProbeError> {
    let mut best: Option<(Duration, i64)> = None;
    for _ in 0..CLOCK_READING_COUNT {
        let (asked, wall): (Instant, Duration) = (clock::now(), clock::wall());
        let answer = probe.exchange(&[["TIME"]])?.remove(0);
        let took = clock::now() - asked;
        let Some(there) = wall_clock(&answer) else { return Ok(None) };
        let here = wall + took / 2;
        if best.is_none_or(|(shortest, _)| took < shortest) {
            best = Some((took, signed_ms(there) - signed_ms(here)));
        }
    }
    let offset = |(took, ahead_ms)| ClockOffset { ahead_ms, error: took / 2 + Duration::from_millis(1) };
    Ok(best.map(offset))
}

fn signed_ms(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX / 2)
}

/// `TIME`: seconds and microseconds.
fn wall_clock(answer: &Answer) -> Option<Duration> {
    let Answer::List(parts) = answer else { return None };
    let number = |index: usize| parse::<u64>(parts.get(index)?.text()?);
    Some(Duration::from_secs(number(0)?) + Duration::from_micros(number(1)?))
}

fn server(sections: &[Answer]) -> Server {
    let field = |name: &str| sections.iter().filter_map(Answer::text).find_map(|info| info_field(info, name));
    let text = |name: &str| field(name).map(error_text);
    let number = |name: &str| field(name).and_then(parse::<u64>);
    let is_cluster = field("redis_mode")
        .or_else(|| field("server_mode"))
        .map(|mode| mode == b"cluster")
        .or_else(|| number("cluster_enabled").map(|enabled| enabled == 1));
    let fine =
        ["rdb_last_bgsave_status", "aof_last_write_status"].map(|name| field(name).map(|it| it == b"ok"));
    Server {
        run_id: text("run_id"),
        version: text("valkey_version").or_else(|| text("redis_version")),
        uptime: number("uptime_in_seconds").map(Duration::from_secs),
        role: text("role"),
        is_cluster,
        maxmemory: number("maxmemory"),
        used_memory: number("used_memory"),
        maxmemory_policy: text("maxmemory_policy"),
        evicted_keys: number("evicted_keys"),
        is_append_only: number("aof_enabled").map(|enabled| enabled == 1),
        is_disk_fine: fine.into_iter().flatten().reduce(|one, other| one && other),
    }
}

/// Each answer is a list of names and values.
fn read_settings(answers: &[Answer]) -> Settings {
    let value = |answer: &Answer| match answer {
        Answer::List(pair) => pair.get(1).and_then(Answer::text).map(error_text),
        _ => None,
    };
    let value = |index: usize| answers.get(index).and_then(value);
    let rewrite: Option<Box<str>> = value(1);
    Settings { appendfsync: value(0), skips_fsync_on_rewrite: rewrite.map(|value| &*value == "yes") }
}

/// Tries the native commands on a key that does not exist. Returns the one that works, and those that the
/// login may not run.
fn native_release(
    probe: &mut Probe,
    config: &Config,
) -> Result<(Option<&'static str>, Vec<&'static str>), ProbeError> {
    let key = trial_key(config);
    let key = key.as_slice();
    let trials: [&[&[u8]]; 2] = [&[b"DELIFEQ", key, b"none"], &[b"DELEX", key, b"IFEQ", b"none"]];
    let (mut works, mut denied) = (None, Vec::new());
    for (answer, (name, right)) in
        probe.exchange(&trials)?.iter().zip([("DELIFEQ", "delifeq"), ("DELEX IFEQ", "delex")])
    {
        if answer.integer() == Some(0) {
            works = works.or(Some(name));
        } else if answer.error().is_some_and(|text| text.contains("run the '")) {
            denied.push(right);
        }
    }
    Ok((works, denied))
}

fn parse<N: std::str::FromStr>(digits: &[u8]) -> Option<N> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_of_all_sections_are_read() {
        let text = |text: &str| Answer::Text(text.as_bytes().to_vec());
        let found = server(&[
            text("redis_version:7.0.15\r\nredis_mode:cluster\r\nrun_id:abc\r\nuptime_in_seconds:9\r\n"),
            Answer::Error("NOPERM".to_owned()),
            text("used_memory:10\r\nmaxmemory:20\r\nmaxmemory_policy:noeviction\r\n"),
            text("evicted_keys:3\r\n"),
            text("rdb_last_bgsave_status:ok\r\naof_enabled:1\r\naof_last_write_status:err\r\n"),
        ]);
        let expected = Server {
            run_id: Some("abc".into()),
            version: Some("7.0.15".into()),
            uptime: Some(Duration::from_secs(9)),
            role: None,
            is_cluster: Some(true),
            maxmemory: Some(20),
            used_memory: Some(10),
            maxmemory_policy: Some("noeviction".into()),
            evicted_keys: Some(3),
            is_append_only: Some(true),
            is_disk_fine: Some(false),
        };
        assert_eq!(found, expected);
        assert_eq!(server(&[]), Server::default());
    }

    #[test]
    fn answers_of_another_shape_are_no_facts() {
        let text = |text: &str| Answer::Text(text.as_bytes().to_vec());
        let time = |parts: &[&str]| wall_clock(&Answer::List(parts.iter().map(|it| text(it)).collect()));
        assert_eq!(time(&["5", "7"]), Some(Duration::from_micros(5_000_007)));
        assert_eq!((time(&["5"]), time(&["-5", "7"]), wall_clock(&Answer::Null)), (None, None, None));
        let pair = Answer::List(vec![text("appendfsync"), text("always")]);
        let read = read_settings(&[pair, Answer::List(Vec::new())]);
        let expected = Settings { appendfsync: Some("always".into()), skips_fsync_on_rewrite: None };
        assert_eq!(read, expected);
    }
}
