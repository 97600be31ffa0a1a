//! The texts of an examination, from fixed facts.

use crate::doctor::facts::{ClockOffset, ClockRate};
use redlatch::probe::ProbeError;
use redlatch::record::{Found, Origin, Record, Seen};
use redlatch_support::assert_golden;

use super::*;

fn config(quarantine: Quarantine, count: usize) -> Config {
    let urls = (1..=count).map(|index| format!("redis://10.0.0.{index}"));
    Config::builder().masters(urls).prefix("lock:").quarantine(quarantine).build().expect("valid")
}

/// Facts of which each has a distinct value.
fn all_known(index: u8, record: Found) -> Facts {
    let mut facts = Facts { address: Some([10, 0, 0, index].into()), ..Facts::default() };
    facts.round_trip.p50 = Duration::from_micros(211);
    facts.round_trip.p99 = Duration::from_micros(933);
    facts.round_trip.count = 97;
    facts.clock = Some(ClockOffset { ahead_ms: 17, error: Duration::from_millis(2) });
    facts.clock_rate = Some(ClockRate { ppm: 7, error_ppm: 4 });
    facts.server.run_id = Some(format!("run{index}").into());
    facts.server.version = Some("7.2.4".into());
    facts.server.uptime = Some(Duration::from_secs(3 * 86_400));
    facts.server.role = Some("master".into());
    facts.server.is_cluster = Some(false);
    facts.server.maxmemory = Some(256 << 20);
    facts.server.used_memory = Some((3 << 20) + 1);
    facts.server.maxmemory_policy = Some("noeviction".into());
    facts.server.evicted_keys = Some(0);
    facts.server.is_append_only = Some(true);
    facts.server.is_disk_fine = Some(true);
    facts.settings.appendfsync = Some("everysec".into());
    facts.settings.skips_fsync_on_rewrite = Some(false);
    facts.rights.user = "locker".into();
    facts.native_release = Some("DELIFEQ");
    facts.certificate_left = Some(Duration::from_secs(40 * 86_400 + 5));
    facts.observed = Duration::from_secs(86_400);
    facts.record = record;
    facts.prefixes = Some(vec![b"lock:".to_vec(), b"a\n:".to_vec()]);
    facts
}

fn examined(facts: Vec<Result<Facts, ProbeError>>) -> Vec<ExaminedMaster> {
    let named =
        |(index, facts)| ExaminedMaster { name: format!("redis://10.0.0.{index}:6379").into(), facts };
    (1..).zip(facts).map(named).collect()
}

/// Exit code, text and JSON.
fn page(title: &str, width: usize, quarantine: Quarantine, facts: Vec<Result<Facts, ProbeError>>) -> String {
    let config = config(quarantine, facts.len());
    let masters = examined(facts);
    let findings = judge(&config, &masters);
    format!(
        "# {title}: {}\n\n{}\n{}\n",
        code_of(&config, &findings),
        text(&config, &masters, &findings, width),
        json_text(&config, &masters, &findings)
    )
}

#[test]
fn doctor_report_matches_its_golden_file() {
    let seen = [Seen { name: "redis://10.0.0.1", found: &Found::Absent, run_id: Some("run1") }];
    let record =
        Record::of_fleet(&config(Quarantine::Uptime, 1), &seen, Origin::Declared).expect("known").remove(0);
    let known = || (1..=3).map(|index| Ok(all_known(index, Found::Absent))).collect::<Vec<_>>();
    let bare = || Ok(Facts::default());
    let down = || Err(ProbeError::Unreachable("Connection refused (os error 111)".to_owned()));
    let changed = |change: fn(&mut Facts)| {
        let mut all = known();
        change(all[1].as_mut().expect("it answered"));
        all
    };
    let pages = [
        page("all is well", 110, Quarantine::Uptime, known()),
        page("one note", 110, Quarantine::Uptime, changed(|it| it.server.maxmemory = Some(0))),
        page("little is known", 110, Quarantine::Uptime, vec![bare(), bare(), bare()]),
        page(
            "a record, and one master",
            110,
            Quarantine::Strict,
            vec![Ok(all_known(1, Found::Known(record)))],
        ),
        page(
            "no file, trusted",
            110,
            Quarantine::Trust,
            changed(|it| it.server.is_append_only = Some(false)),
        ),
        page(
            "a file of unknown rhythm",
            110,
            Quarantine::Trust,
            changed(|it| it.settings.appendfsync = None),
        ),
        page("warnings", 110, Quarantine::Uptime, {
            let mut all = changed(|it| {
                it.server.uptime = Some(Duration::from_secs(7));
                it.rights.denied = vec!["publish", "spublish", "delifeq"];
                it.server.pattern_count = Some(2);
                it.rights.unknown = vec!["time"];
                it.certificate_left = Some(Duration::from_secs(86_400));
            });
            all.push(down());
            all
        }),
        page(
            "errors",
            40,
            Quarantine::Uptime,
            changed(|it| it.rights.write_refusal = Some("MISCONF no".to_owned())),
        ),
        page(
            "no quorum",
            110,
            Quarantine::Uptime,
            vec![
                Ok(all_known(1, Found::Absent)),
                down(),
                Err(ProbeError::LoginRefused("WRONGPASS".to_owned())),
            ],
        ),
    ];
    assert_golden("doctor", &pages.concat());
}

#[test]
fn a_run_time_has_its_largest_whole_unit() {
    let shown = [0, 119, 120, 7199, 7200, 172_799, 172_800].map(|seconds| up(Duration::from_secs(seconds)));
    assert_eq!(shown, ["0s", "119s", "2min", "119min", "2h", "47h", "2 days"]);
    assert_eq!([0, 1, 1 << 20, (1 << 20) + 1].map(mib), ["0 MiB", "1 MiB", "1 MiB", "2 MiB"]);
}
