//! Questions to one master, and the facts in its answers. Judges nothing.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use redlatch::mark::{Mark, key as mark_key};
use redlatch::probe::{Answer, Probe, ProbeError, each};
use redlatch::record::{Found, Seen};
use redlatch::status::Unusable;
use redlatch::words::error_text;
use redlatch::{Config, ConnectError, Quarantine};

use super::rights::{Rights, Trial, script_trials, trial_key, trials};

/// A master of the configuration, with the facts about it.
#[derive(Debug, Clone)]
pub(crate) struct ExaminedMaster {
    /// Name of the master: its URL without login.
    pub(crate) name: Arc<str>,
    /// Facts about the master, or why there are none.
    pub(crate) facts: Result<Facts, ProbeError>,
}

/// Facts about a master that answered. `None` if the login may not ask for a fact.
#[derive(Debug, Clone, Default)]
pub(crate) struct Facts {
    /// Address of the server; `None` over a Unix socket.
    pub(crate) address: Option<IpAddr>,
    /// Round trip of `PING`.
    pub(crate) round_trip: PingTimes,
    /// Difference of the master's wall clock from the clock of this machine.
    pub(crate) clock: Option<ClockOffset>,
    /// Rate of the master's clock against the clock of this machine; `None` without the time to measure it.
    pub(crate) clock_rate: Option<ClockRate>,
    /// Fields of `INFO`.
    pub(crate) server: ServerFacts,
    /// Settings that `CONFIG GET` shows.
    pub(crate) settings: Settings,
    /// Rights of the login.
    pub(crate) rights: Rights,
    /// Native command that releases a lock, as `DELIFEQ`; `None` if a script does it.
    pub(crate) native_release: Option<&'static str>,
    /// Time until the certificate of the server ends; `None` without TLS.
    pub(crate) certificate_left: Option<Duration>,
    /// Time for which the mark vouches that the process has kept its memory, in the client's mode.
    pub(crate) observed: Duration,
    /// Content of the key of the fleet's record.
    pub(crate) record: Found,
    /// Prefixes of the records on the server; `None` if the login may not search for them.
    pub(crate) prefixes: Option<Vec<Vec<u8>>>,
}

/// Round trips of `PING`s, one after another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PingTimes {
    /// Median.
    pub(crate) p50: Duration,
    /// 99th percentile, or the longest of fewer than 100.
    pub(crate) p99: Duration,
    /// Number of round trips.
    pub(crate) count: usize,
}

/// Difference of two wall clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClockOffset {
    /// Milliseconds by which the master is ahead of this machine; negative if it is behind.
    pub(crate) ahead_ms: i64,
    /// Largest error of the difference: half a round trip and 1 ms.
    pub(crate) error: Duration,
}

/// Difference of the rates of two clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClockRate {
    /// Millionths by which the master's clock is faster than this machine's; negative if it is slower.
    pub(crate) ppm: i64,
    /// Largest error of `ppm`.
    pub(crate) error_ppm: u64,
}

/// Fields of `INFO`, as the server reports them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ServerFacts {
    /// `run_id`: differs for each process.
    pub(crate) run_id: Option<Box<str>>,
    /// Version of Redis or Valkey.
    pub(crate) version: Option<Box<str>>,
    /// The server's own name, if it is neither Redis nor Valkey.
    pub(crate) other_name: Option<Box<str>>,
    /// Time since the process started, in whole seconds.
    pub(crate) uptime: Option<Duration>,
    /// `master`, or `slave` for a replica.
    pub(crate) role: Option<Box<str>>,
    /// Identifies the last promotion of the process, if there was one.
    pub(crate) promotion: Option<u64>,
    /// Whether the server is a node of a cluster.
    pub(crate) is_cluster: Option<bool>,
    /// `maxmemory` in bytes; zero means no limit.
    pub(crate) maxmemory: Option<u64>,
    /// Memory in use, in bytes.
    pub(crate) used_memory: Option<u64>,
    /// Eviction policy at the memory limit; `noeviction` is right for locks.
    pub(crate) maxmemory_policy: Option<Box<str>>,
    /// Keys evicted since the start.
    pub(crate) evicted_keys: Option<u64>,
    /// Patterns of channels to which clients subscribe (`PSUBSCRIBE`).
    pub(crate) pattern_count: Option<u64>,
    /// Whether the server writes an append-only file.
    pub(crate) is_append_only: Option<bool>,
    /// Whether the last snapshot and the last writes of the append-only file succeeded.
    pub(crate) is_disk_fine: Option<bool>,
}

/// Settings that `CONFIG GET` shows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Settings {
    /// `appendfsync`: when the append-only file is written to disk.
    pub(crate) appendfsync: Option<Box<str>>,
    /// Whether the file is not synced while it is rewritten (`no-appendfsync-on-rewrite`).
    pub(crate) skips_fsync_on_rewrite: Option<bool>,
    /// Time after which a master without replicas forgets that it was a replica (`repl-backlog-ttl`); zero
    /// means never.
    pub(crate) backlog_ttl: Option<Duration>,
}

impl ExaminedMaster {
    /// What a record of the fleet needs to know about the master.
    pub(super) fn seen(&self) -> Seen<'_> {
        let facts = self.facts.as_ref().ok();
        let run_id = facts.and_then(|facts| facts.server.run_id.as_deref());
        Seen { name: &self.name, found: facts.map_or(&Found::Unread, |facts| &facts.record), run_id }
    }
}

impl Facts {
    /// Returns whether every write is on disk before it is answered; `None` if unknown.
    #[must_use]
    pub(crate) fn syncs_each_write(&self) -> Option<bool> {
        match (self.server.is_append_only?, self.settings.appendfsync.as_deref()) {
            (false, _) => Some(false),
            (true, fsync) => {
                Some(fsync? == "always" && !self.settings.skips_fsync_on_rewrite.unwrap_or(false))
            }
        }
    }
}

/// Shortest limit of an examination that measures the rates of the masters' clocks, for which it reads each
/// clock twice, 5 s apart: 10 s.
pub const CLOCK_RATE_LIMIT_MIN: Duration = Duration::from_secs(10);

/// An examination scans at most 64 pages of about 1,000 keys on each master for records of other prefixes.
pub(super) const PREFIX_SCAN_COUNT_MAX: usize = 64;

/// Round trips are measured for the time limit divided by this.
const ROUND_TRIP_SHARE: u32 = 4;

/// Largest number of round trips that are measured.
const ROUND_TRIP_COUNT_MAX: usize = 100;

/// Shortest time between two readings of a master's clock from which its rate is calculated.
const CLOCK_RATE_TIME: Duration = Duration::from_secs(5);

/// Readings of a master's clock, of which the one with the shortest round trip counts.
const CLOCK_READING_COUNT: usize = 5;

/// Sections of `INFO` to ask for.
const SECTIONS: [&str; 6] = ["server", "replication", "memory", "stats", "persistence", "cluster"];

/// Asks all masters at the same time, for at most `limit`. The result has the order of the masters.
///
/// # Errors
/// As [`super::examine`].
pub(crate) fn ask_all(config: &Config, limit: Duration) -> Result<Vec<ExaminedMaster>, ConnectError> {
    let settings = config.clone();
    let time = limit / ROUND_TRIP_SHARE;
    let measures_rate = limit >= CLOCK_RATE_LIMIT_MIN;
    let answers = each(config, limit, move |probe, _| gather(probe, &settings, time, measures_rate))?;
    let names = config.names().iter().cloned();
    Ok(names.zip(answers).map(|(name, facts)| ExaminedMaster { name, facts }).collect())
}

/// Asks for everything. Measures round trips for at most `time`, and the rate of the clock if
/// `measures_rate`, which takes [`CLOCK_RATE_TIME`].
fn gather(
    probe: &mut Probe,
    config: &Config,
    time: Duration,
    measures_rate: bool,
) -> Result<Facts, ProbeError> {
    let (begun, reading) = (Probe::now(), read_clock(probe)?);
    let mut facts = Facts {
        clock: reading.as_ref().map(ClockReading::offset),
        address: probe.address(),
        round_trip: round_trip(probe, time)?,
        certificate_left: probe.certificate_end().map(|end| end.saturating_sub(wall_clock())),
        ..Facts::default()
    };
    let sections = SECTIONS.map(|section| vec![b"INFO".to_vec(), section.as_bytes().to_vec()]);
    let info = probe.exchange(&sections)?;
    if let Some(refusal) = info[0].error() {
        facts.rights.note_refusal("info", refusal);
    }
    facts.server = server(&info);
    let settings = ["appendfsync", "no-appendfsync-on-rewrite", "repl-backlog-ttl"];
    let questions = settings.map(|name| vec!["CONFIG", "GET", name]);
    facts.settings = read_settings(&probe.exchange(&questions)?);
    facts.rights.user = probe.user().into();
    facts.observed = observed(probe, config, &facts.server)?;
    facts.record = read_record(probe, config.prefix())?;
    facts.prefixes = find_prefixes(probe)?;
    if let Some(reading) = reading.filter(|_| measures_rate) {
        // Must precede the subscriptions: a subscribed connection takes no other commands.
        probe.pause_until(begun + CLOCK_RATE_TIME);
        facts.clock_rate = read_clock(probe)?.and_then(|later| reading.rate_to(&later));
    }
    try_native_release(probe, config, &mut facts)?;
    let scripts = script_trials(config);
    let of_scripts = probe.exchange(&commands(&scripts))?;
    let trials = trials(config);
    for (trial, answer) in trials.iter().zip(probe.exchange(&commands(&trials))?) {
        facts.rights.note(trial, &answer);
    }
    scripts.iter().zip(of_scripts).for_each(|(trial, answer)| facts.rights.note_script(trial, &answer));
    Ok(facts)
}

/// Time for which the mark vouches for this process.
fn observed(probe: &mut Probe, config: &Config, server: &ServerFacts) -> Result<Duration, ProbeError> {
    let key = mark_key(config.prefix());
    let answers = probe.exchange(&[vec![b"GET".as_slice(), &key], vec![b"TIME"]])?;
    let mark = answers[0].bytes().and_then(Mark::parse);
    let is_own = |mark: &Mark| mark.is_of(server.run_id.as_deref(), server.promotion);
    let clock_us = time_us(&answers[1]).and_then(|clock_us| u64::try_from(clock_us).ok());
    Ok(mark
        .filter(is_own)
        .and_then(|mark| match config.quarantine() {
            Quarantine::Strict => Some(mark.watched),
            _ => mark.seen_for(clock_us),
        })
        .unwrap_or_default())
}

fn commands(trials: &[Trial]) -> Vec<&Vec<Vec<u8>>> {
    trials.iter().map(|trial| &trial.command).collect()
}

/// Reads the fleet's record behind a prefix.
///
/// # Errors
/// As [`Probe::receive`].
pub(super) fn read_record(probe: &mut Probe, prefix: &[u8]) -> Result<Found, ProbeError> {
    Ok(found_in(probe.exchange(&[[b"GET".to_vec(), Found::key(prefix)]])?.remove(0)))
}

/// Interprets the answer to `GET` for the record's key.
fn found_in(answer: Answer) -> Found {
    match answer {
        Answer::Null => Found::Absent,
        Answer::Text(text) => Found::from_text(&text),
        Answer::Error(text) if text.starts_with("WRONGTYPE") => Found::Unusable(Unusable::Foreign),
        Answer::Error(text) => Found::Unusable(Unusable::Refused(text.into())),
        _ => Found::Unusable(Unusable::Foreign),
    }
}

/// Searches for records of fleets, in as many keys as a server can scan in a short time.
fn find_prefixes(probe: &mut Probe) -> Result<Option<Vec<Vec<u8>>>, ProbeError> {
    let pattern = [b"*".as_slice(), &Found::key(b"")].concat();
    prefixes_in(|cursor| {
        let command: [&[u8]; 6] = [b"SCAN", cursor, b"MATCH", &pattern, b"COUNT", b"1000"];
        probe.exchange_page(&command)
    })
}

/// Sorted prefixes of the records that a search finds. `page` returns the page at a cursor.
fn prefixes_in(
    mut page: impl FnMut(&[u8]) -> Result<Answer, ProbeError>,
) -> Result<Option<Vec<Vec<u8>>>, ProbeError> {
    let record = Found::key(b"");
    let (mut prefixes, mut cursor) = (Vec::new(), b"0".to_vec());
    for _ in 0..PREFIX_SCAN_COUNT_MAX {
        let Answer::List(parts) = page(&cursor)? else { return Ok(None) };
        let (Some(Answer::Text(next)), Some(Answer::List(keys))) = (parts.first(), parts.get(1)) else {
            return Ok(None);
        };
        let found = keys.iter().filter_map(Answer::bytes).filter_map(|key| key.strip_suffix(&*record));
        prefixes.extend(found.map(<[u8]>::to_vec));
        cursor.clone_from(next);
        if cursor == b"0" {
            break;
        }
    }
    prefixes.sort_unstable();
    prefixes.dedup();
    Ok(Some(prefixes))
}

fn round_trip(probe: &mut Probe, time: Duration) -> Result<PingTimes, ProbeError> {
    round_trips(time, Probe::now, || probe.exchange(&[["PING"]]).map(drop)).map(PingTimes::of)
}

/// Round trips that fit into `time` on this clock, at least one.
fn round_trips(
    time: Duration,
    mut clock: impl FnMut() -> Instant,
    mut ping: impl FnMut() -> Result<(), ProbeError>,
) -> Result<Vec<Duration>, ProbeError> {
    let (start, mut took) = (clock(), Vec::with_capacity(ROUND_TRIP_COUNT_MAX));
    // Warms up the connection, and does not count.
    ping()?;
    loop {
        let asked = clock();
        ping()?;
        let now = clock();
        took.push(now - asked);
        if took.len() == ROUND_TRIP_COUNT_MAX || now - start >= time {
            return Ok(took);
        }
    }
}

impl PingTimes {
    /// Percentiles of a non-empty list.
    fn of(mut took: Vec<Duration>) -> Self {
        took.sort_unstable();
        let at = |hundredths: usize| took[((took.len() * hundredths).div_ceil(100)).clamp(1, took.len()) - 1];
        Self { p50: at(50), p99: at(99), count: took.len() }
    }
}

/// Reading of a master's clock with the shortest round trip; `None` if the master does not tell its time.
fn read_clock(probe: &mut Probe) -> Result<Option<ClockReading>, ProbeError> {
    let mut best: Option<ClockReading> = None;
    for _ in 0..CLOCK_READING_COUNT {
        let (asked, wall): (Instant, Duration) = (Probe::now(), wall_clock());
        let answer = probe.exchange(&[["TIME"]])?.remove(0);
        let took = Probe::now() - asked;
        let Some(there_us) = time_us(&answer) else { return Ok(None) };
        if best.as_ref().is_none_or(|best| took < best.took) {
            best = Some(ClockReading { asked, wall, took, there_us });
        }
    }
    Ok(best)
}

/// Reading of a master's clock, taken between question and answer.
struct ClockReading {
    asked: Instant,
    /// This machine's wall clock when the question was sent.
    wall: Duration,
    /// Time until the answer.
    took: Duration,
    /// The master's clock, in microseconds since 1970.
    there_us: i64,
}

impl ClockReading {
    fn offset(&self) -> ClockOffset {
        let here = self.wall + self.took / 2;
        let error = self.took / 2 + Duration::from_millis(1);
        ClockOffset { ahead_ms: self.there_us / 1000 - signed_ms(here), error }
    }

    /// Rate between this reading and a later one.
    fn rate_to(&self, later: &Self) -> Option<ClockRate> {
        let middle = |reading: &Self| reading.asked + reading.took / 2;
        let here_us = signed_us(middle(later).saturating_duration_since(middle(self)));
        let gained_us = later.there_us.saturating_sub(self.there_us).saturating_sub(here_us);
        let error_us = signed_us(self.took / 2 + later.took / 2) + 2;
        let ppm = |us: i64| us.saturating_mul(1_000_000).checked_div(here_us);
        Some(ClockRate { ppm: ppm(gained_us)?, error_ppm: ppm(error_us)?.unsigned_abs() })
    }
}

fn signed_us(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX / 2)
}

/// The time since 1970 by the clock of this machine.
fn wall_clock() -> Duration {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()
}

fn signed_ms(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX / 2)
}

/// Clock in a reply to `TIME`, in microseconds since 1970.
fn time_us(answer: &Answer) -> Option<i64> {
    let Answer::List(parts) = answer else { return None };
    let number = |index: usize| parse::<u64>(parts.get(index)?.bytes()?);
    i64::try_from(number(0)?.checked_mul(1_000_000)?.checked_add(number(1)?)?).ok()
}

/// Name that a server gives itself in the section "server" of `INFO`; `None` for Redis and Valkey. Every
/// server has a field with its version.
fn other_name(info: &[u8]) -> Option<Box<str>> {
    let text = String::from_utf8_lossy(info);
    let name = |line: &str| match line.trim_end().split_once(':')? {
        ("server_name", name) => Some((name.to_owned(), name.to_owned())),
        (field, version) => {
            field.strip_suffix("_version").map(|name| (name.to_owned(), format!("{name} {version}")))
        }
    };
    let mut names = text.lines().filter_map(name);
    let (_, other) = names.find(|(name, _)| !["redis", "valkey", "gcc"].contains(&&**name))?;
    Some(error_text(other.as_bytes()))
}

pub(super) fn server(sections: &[Answer]) -> ServerFacts {
    let field = |name: &str| sections.iter().find_map(|info| info.info_field(name));
    let text = |name: &str| field(name).map(error_text);
    let number = |name: &str| field(name).and_then(parse::<u64>);
    let is_cluster = field("redis_mode")
        .or_else(|| field("server_mode"))
        .map(|mode| mode == b"cluster")
        .or_else(|| number("cluster_enabled").map(|enabled| enabled == 1));
    let fine =
        ["rdb_last_bgsave_status", "aof_last_write_status"].map(|name| field(name).map(|it| it == b"ok"));
    ServerFacts {
        run_id: text("run_id"),
        version: text("valkey_version").or_else(|| text("redis_version")),
        other_name: sections.first().and_then(Answer::bytes).and_then(other_name),
        uptime: number("uptime_in_seconds").map(Duration::from_secs),
        role: text("role"),
        promotion: sections.iter().find_map(Answer::promotion),
        is_cluster,
        maxmemory: number("maxmemory"),
        used_memory: number("used_memory"),
        maxmemory_policy: text("maxmemory_policy"),
        evicted_keys: number("evicted_keys"),
        pattern_count: number("pubsub_patterns"),
        is_append_only: number("aof_enabled").map(|enabled| enabled == 1),
        is_disk_fine: fine.into_iter().flatten().reduce(|one, other| one && other),
    }
}

/// Each answer is a list of a name and a value.
fn read_settings(answers: &[Answer]) -> Settings {
    let value = |answer: &Answer| match answer {
        Answer::List(pair) => pair.get(1).and_then(Answer::bytes).map(error_text),
        _ => None,
    };
    let value = |index: usize| answers.get(index).and_then(value);
    let rewrite: Option<Box<str>> = value(1);
    let backlog_ttl = value(2).and_then(|value| parse(value.as_bytes())).map(Duration::from_secs);
    Settings {
        appendfsync: value(0),
        skips_fsync_on_rewrite: rewrite.map(|value| &*value == "yes"),
        backlog_ttl,
    }
}

/// Tries the native commands on a key that does not exist. Notes the command that works, and commands that
/// the login may not run.
fn try_native_release(probe: &mut Probe, config: &Config, facts: &mut Facts) -> Result<(), ProbeError> {
    let key = trial_key(config);
    let key = key.as_slice();
    let trials: [&[&[u8]]; 2] = [&[b"DELIFEQ", key, b"none"], &[b"DELEX", key, b"IFEQ", b"none"]];
    note_native_release(&probe.exchange(&trials)?, facts);
    Ok(())
}

/// Notes the first command that works, and each command that the login may not run.
fn note_native_release(answers: &[Answer], facts: &mut Facts) {
    for (answer, (name, right)) in answers.iter().zip([("DELIFEQ", "delifeq"), ("DELEX IFEQ", "delex")]) {
        if answer.integer() == Some(0) {
            facts.native_release = facts.native_release.or(Some(name));
        } else if answer.error().is_some_and(|text| text.contains("run the '")) {
            facts.rights.denied.push(right);
        }
    }
}

fn parse<N: std::str::FromStr>(digits: &[u8]) -> Option<N> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests;
