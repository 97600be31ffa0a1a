use super::*;
use crate::doctor::facts::{ClockOffset, ClockRate, PingTimes, ServerFacts, Settings};
use crate::doctor::rights::Rights;
use redlatch::record::{Record, Seen};
use redlatch::status::FleetDifference;

mod texts;

fn healthy(index: u8) -> Facts {
    Facts {
        address: Some([10, 0, 0, index].into()),
        round_trip: PingTimes { p50: Duration::from_millis(1), p99: Duration::from_millis(2), count: 100 },
        clock: Some(ClockOffset { ahead_ms: 3, error: Duration::from_millis(2) }),
        clock_rate: Some(ClockRate { ppm: 3, error_ppm: 200 }),
        server: ServerFacts {
            run_id: Some(format!("run{index}").into()),
            version: Some("7.0.15".into()),
            other_name: None,
            uptime: Some(Duration::from_secs(86_400)),
            role: Some("master".into()),
            promotion: None,
            is_cluster: Some(false),
            maxmemory: Some(256 << 20),
            used_memory: Some(1 << 20),
            maxmemory_policy: Some("noeviction".into()),
            evicted_keys: Some(0),
            pattern_count: Some(0),
            is_append_only: Some(true),
            is_disk_fine: Some(true),
        },
        settings: Settings {
            appendfsync: Some("everysec".into()),
            skips_fsync_on_rewrite: Some(false),
            backlog_ttl: Some(Duration::from_secs(3600)),
        },
        rights: Rights { user: "locker".into(), ..Rights::default() },
        native_release: None,
        certificate_left: None,
        observed: Duration::from_secs(86_400),
        record: Found::Absent,
        prefixes: Some(Vec::new()),
    }
}

fn config(count: usize, quarantine: Quarantine, prefix: &str) -> Config {
    let urls = (1..=count).map(|index| format!("redis://10.0.0.{index}"));
    Config::builder().masters(urls).quarantine(quarantine).prefix(prefix).build().expect("valid")
}

fn masters(count: u8) -> Vec<ExaminedMaster> {
    let master = |index: u8| ExaminedMaster { name: format!("m{index}").into(), facts: Ok(healthy(index)) };
    (1..=count).map(master).collect()
}

/// Findings of a fleet of three masters whose first master is changed.
fn findings(quarantine: Quarantine, prefix: &str, change: impl FnOnce(&mut Facts)) -> Vec<Finding> {
    let mut masters = masters(3);
    let mut facts = healthy(1);
    change(&mut facts);
    masters[0].facts = Ok(facts);
    judge(&config(3, quarantine, prefix), &masters)
}

fn codes(findings: &[Finding]) -> Vec<&'static str> {
    findings.iter().map(|finding| finding.problem.code()).collect()
}

#[test]
fn a_healthy_fleet_has_no_findings() {
    for quarantine in [Quarantine::Uptime, Quarantine::Strict] {
        assert_eq!(findings(quarantine, "lock:", |_| {}), [], "{quarantine:?}");
    }
    let synced = |facts: &mut Facts| facts.settings.appendfsync = Some("always".into());
    assert_eq!(findings(Quarantine::Uptime, "", synced), [], "the others may lose locks");
    let mut all = masters(5);
    for (index, master) in (1..).zip(&mut all) {
        let mut facts = healthy(index);
        synced(&mut facts);
        master.facts = Ok(facts);
    }
    assert_eq!(judge(&config(5, Quarantine::Trust, ""), &all), []);
    let found = judge(&config(5, Quarantine::Uptime, ""), &all);
    assert_eq!((codes(&found), found[0].severity), (vec!["trust-justified"], Severity::Note));
}

/// Each fact about one master causes its finding, and nothing else.
// I153
#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn each_fact_has_its_finding_alone() {
    use Quarantine::{Strict, Trust, Uptime};
    type Change = fn(&mut Facts);
    let rows: [(Quarantine, &str, Change, &str, Severity); 27] = [
        (Uptime, "", |it| it.server.run_id = None, "unreported", Severity::Warning),
        (Strict, "", |it| it.server.run_id = None, "unreported", Severity::Error),
        (Uptime, "", |it| it.server.maxmemory_policy = None, "unreported", Severity::Warning),
        (Strict, "", |it| it.server.maxmemory_policy = None, "unreported", Severity::Error),
        (Uptime, "", |it| it.server.other_name = Some("dragonfly".into()), "not-tested", Severity::Warning),
        (Uptime, "", |it| it.server.role = Some("slave".into()), "replica", Severity::Error),
        (Uptime, "", |it| it.server.version = Some("4.0.14".into()), "old-version", Severity::Warning),
        (Uptime, "", |it| it.server.is_cluster = Some(true), "cluster-without-hash-tag", Severity::Error),
        (Uptime, "{a}:", |it| it.server.is_cluster = Some(true), "cluster-node", Severity::Warning),
        (
            Uptime,
            "",
            |it| it.rights.write_refusal = Some("MISCONF no".into()),
            "writes-refused",
            Severity::Error,
        ),
        (Uptime, "", |it| it.server.is_disk_fine = Some(false), "disk-failing", Severity::Error),
        (
            Uptime,
            "",
            |it| it.server.maxmemory_policy = Some("volatile-lru".into()),
            "evicting-policy",
            Severity::Error,
        ),
        (Uptime, "", |it| it.server.evicted_keys = Some(1), "evicted-keys", Severity::Warning),
        (Uptime, "", |it| it.server.used_memory = Some(206 << 20), "memory-near-limit", Severity::Warning),
        (Uptime, "", |it| it.server.maxmemory = Some(0), "no-memory-limit", Severity::Note),
        (Uptime, "", |it| it.server.is_append_only = Some(false), "restart-forgets", Severity::Note),
        (Uptime, "", |it| it.server.uptime = Some(Duration::from_secs(31)), "quarantined", Severity::Warning),
        (Strict, "", |it| it.observed = Duration::from_secs(30), "unobserved", Severity::Warning),
        (Uptime, "", |it| it.round_trip.p99 = Duration::from_secs(1), "slow-round-trip", Severity::Warning),
        (
            Uptime,
            "",
            |it| it.certificate_left = Some(Duration::from_secs(86_400)),
            "certificate-expires",
            Severity::Warning,
        ),
        (
            Uptime,
            "",
            |it| (it.server.promotion, it.observed) = (Some(7), Duration::from_secs(30)),
            "quarantined",
            Severity::Warning,
        ),
        (
            Uptime,
            "",
            |it| it.settings.backlog_ttl = Some(Duration::from_secs(30)),
            "short-backlog-ttl",
            Severity::Warning,
        ),
        (Uptime, "", |it| it.rights.denied = vec!["delifeq"], "native-denied", Severity::Note),
        (Uptime, "", |it| it.rights.unknown = vec!["set"], "missing-commands", Severity::Error),
        (Uptime, "", |it| it.rights.scripts_refusal = Some("ERR x".into()), "no-scripts", Severity::Error),
        (Uptime, "", |it| it.rights.odd = vec![("ERR x".into(), vec!["set"])], "odd-answer", Severity::Error),
        (
            Uptime,
            "",
            |it| (it.rights.unknown, it.server.pattern_count) = (vec!["spublish", "ssubscribe"], Some(1)),
            "pattern-subscribers",
            Severity::Warning,
        ),
    ];
    for (quarantine, prefix, change, code, severity) in rows {
        let found = findings(quarantine, prefix, change);
        assert_eq!((codes(&found), found[0].severity), (vec![code], severity));
        assert_eq!(found[0].masters, [Arc::from("m1")]);
    }
    let promoted = findings(Uptime, "", |it| it.server.promotion = Some(7));
    assert_eq!(codes(&promoted), [""; 0], "its mark says that it has had its memory for a day");
    for ttl in [0, 31] {
        let found = findings(Uptime, "", |it| it.settings.backlog_ttl = Some(Duration::from_secs(ttl)));
        assert_eq!(codes(&found), [""; 0], "{ttl}");
    }
    // No pattern receives messages to sharded channels, which need no other rights. Old servers lack them.
    let harmless: [Change; 3] = [
        |it| it.server.pattern_count = Some(1),
        |it| it.rights.denied = vec!["publish", "subscribe"],
        |it| it.rights.unknown = vec!["spublish", "ssubscribe"],
    ];
    for change in harmless {
        assert_eq!(codes(&findings(Uptime, "", change)), [""; 0]);
    }
    let left = Some(Duration::from_secs(33));
    assert_eq!(codes(&findings(Trust, "", |it| it.server.uptime = left)), ["trust-unsynced"]);
    assert_eq!(codes(&findings(Uptime, "", |it| it.server.uptime = left)), [""; 0]);
}

#[test]
fn trust_needs_each_write_on_disk() {
    let loss = |change: fn(&mut Facts)| {
        let found = findings(Quarantine::Trust, "", change);
        found.into_iter().find(|finding| finding.masters[0] == "m1".into()).map(|finding| finding.problem)
    };
    let unsynced = |appendfsync| Some(trust_unsynced(appendfsync));
    assert_eq!(loss(|it| it.server.is_append_only = Some(false)), unsynced(None));
    assert_eq!(loss(|_| {}), unsynced(Some("everysec")));
    assert_eq!(loss(|it| it.settings.appendfsync = Some("no".into())), unsynced(Some("no")));
    let skips = |it: &mut Facts| {
        it.settings.appendfsync = Some("always".into());
        it.settings.skips_fsync_on_rewrite = Some(true);
    };
    assert_eq!(loss(skips), unsynced(Some("always")));
    let remedy = |appendfsync| match trust_unsynced(appendfsync) {
        Problem::TrustUnsynced { remedy, .. } => remedy,
        other => panic!("{other:?}"),
    };
    assert_eq!(remedy(Some("always")), "set no-appendfsync-on-rewrite no");
    for appendfsync in [None, Some("everysec"), Some("no")] {
        assert!(remedy(appendfsync).starts_with("set appendonly yes and appendfsync always"));
    }
    assert_eq!(loss(|it| it.settings = Settings::default()), Some(Problem::TrustUnverified));
    assert_eq!(loss(|it| it.settings.appendfsync = Some("always".into())), None);
    // A server without `no-appendfsync-on-rewrite` also syncs during a rewrite.
    let without = |it: &mut Facts| {
        it.settings = Settings { appendfsync: Some("always".into()), ..Settings::default() };
    };
    assert_eq!(loss(without), None);
}

#[test]
fn the_list_of_masters_is_judged() {
    let judged = |count: u8| codes(&judge(&config(count.into(), Quarantine::Uptime, ""), &masters(count)));
    assert_eq!(judged(1), ["too-few-masters"]);
    assert_eq!(judged(2), ["too-few-masters"]);
    assert_eq!((judged(3), judged(5)), (vec![], vec![]));
    assert_eq!((judged(4), judged(6)), (vec!["even-count"], vec!["even-count"]));
    let twice =
        |it: &mut Facts| (it.server.run_id, it.address) = (healthy(2).server.run_id, healthy(2).address);
    assert_eq!(codes(&findings(Quarantine::Uptime, "", twice)), ["same-server"]);
    assert_eq!(codes(&findings(Quarantine::Uptime, "", |it| it.address = healthy(3).address)), ["same-host"]);
    let down = |count: usize| {
        let mut masters = masters(3);
        let why = "no connection".to_owned();
        masters.iter_mut().take(count).for_each(|it| it.facts = Err(ProbeError::Unreachable(why.clone())));
        judge(&config(3, Quarantine::Uptime, ""), &masters)
    };
    assert_eq!(codes(&down(1)), ["unreachable"]);
    assert_eq!(codes(&down(2)), ["no-quorum", "unreachable"]);
    assert_eq!(down(2)[1].masters.len(), 2);
}

#[test]
fn only_masters_that_can_grant_count() {
    use Quarantine::{Strict, Trust, Uptime};
    type Change = fn(&mut Facts);
    let granting = |quarantine, change: Change| {
        let (config, mut masters) = (config(3, quarantine, "lock:"), masters(3));
        masters.iter_mut().for_each(|it| it.facts.as_mut().expect("healthy").rights.denied.clear());
        change(masters[0].facts.as_mut().expect("healthy"));
        super::granting(&config, &judge(&config, &masters))
    };
    let (full, young): (Change, Change) =
        (|it| it.rights.write_refusal = Some("OOM no".into()), |it| it.server.uptime = Some(Duration::ZERO));
    for (quarantine, change, count) in [
        (Uptime, (|_| {}) as Change, 3),
        (Uptime, full, 2),
        (Trust, full, 2),
        (Uptime, young, 2),
        (Trust, young, 3),
        (Strict, |it| it.observed = Duration::ZERO, 2),
        (Uptime, |it| it.rights.lacks_keys = true, 2),
        (Uptime, |it| it.rights.denied = vec!["set"], 2),
        (Uptime, |it| it.rights.denied = vec!["info", "pexpire"], 3),
        (Uptime, |it| it.rights.unknown = vec!["set"], 2),
        (Uptime, |it| it.server.role = Some("slave".into()), 2),
        (Trust, |it| it.server.role = Some("slave".into()), 2),
        (Uptime, |it| it.server.maxmemory_policy = Some("allkeys-lru".into()), 3),
        (Strict, |it| it.server.maxmemory_policy = Some("allkeys-lru".into()), 2),
        // One server has one vote.
        (Uptime, |it| it.server.run_id = Some("run2".into()), 2),
        // Two problems of one master count once.
        (
            Uptime,
            |it| (it.rights.write_refusal, it.server.uptime) = (Some("OOM".into()), Some(Duration::ZERO)),
            2,
        ),
    ] {
        let mut facts = healthy(1);
        change(&mut facts);
        assert_eq!(granting(quarantine, change), count, "{quarantine:?}: {facts:?}");
    }
}

#[test]
fn doctor_counts_masters_that_can_grant() {
    let mut all = masters(5);
    all[0].facts = Err(ProbeError::Unreachable("no answer".into()));
    all[1].facts = Err(ProbeError::LoginRefused("WRONGPASS".into()));
    let config = config(5, Quarantine::Uptime, "");
    assert!(!codes(&judge(&config, &all)).contains(&"no-quorum"), "three are left");
    all[2].facts.as_mut().expect("healthy").rights.write_refusal = Some("OOM no".into());
    let found = judge(&config, &all);
    let Problem::NoQuorum { granting, count, needed } = found[0].problem else { panic!("{found:?}") };
    assert_eq!((granting, count, needed), (2, 5, 3));
    // A strict client refuses a server that does not identify its process.
    let mut all = masters(3);
    all.iter_mut().for_each(|it| it.facts.as_mut().expect("healthy").server.run_id = None);
    for (mode, granting) in [(Quarantine::Uptime, 3), (Quarantine::Strict, 0)] {
        let config = self::config(3, mode, "");
        assert_eq!(super::granting(&config, &judge(&config, &all)), granting);
    }
}

#[test]
fn a_new_fleet_is_advised_to_be_declared() {
    let new = |facts: &mut Facts| {
        (facts.server.uptime, facts.observed) = (Some(Duration::from_secs(9)), Duration::ZERO);
    };
    let advice = |change: fn(&mut [ExaminedMaster]), quarantine| {
        let mut all = masters(3);
        all.iter_mut().for_each(|it| new(it.facts.as_mut().expect("healthy")));
        change(&mut all);
        let found = judge(&config(3, quarantine, ""), &all);
        let waits = found.iter().find(|it| ["quarantined", "unobserved"].contains(&it.problem.code()));
        waits.expect("they do not count yet").advice()
    };
    for quarantine in [Quarantine::Uptime, Quarantine::Strict] {
        assert!(advice(|_| {}, quarantine).contains("redlatch fleet init"));
        for used in [
            (|all| all[0].facts = Err(ProbeError::Unreachable("no".into()))) as fn(&mut [ExaminedMaster]),
            |all| all[0].facts.as_mut().expect("healthy").server.uptime = Some(Duration::from_secs(86_400)),
            |all| all[0].facts.as_mut().expect("healthy").server.role = Some("slave".into()),
            |all| {
                all[0].facts.as_mut().expect("healthy").record = Found::Unusable(Unusable::Damaged);
            },
        ] {
            assert!(!advice(used, quarantine).contains("fleet init"), "it may have been used");
        }
    }
}

#[test]
fn clocks_that_differ_are_found_beyond_their_error() {
    let offset = |ahead_ms: i64, error: u64| {
        let error = Duration::from_millis(error);
        let found = findings(Quarantine::Uptime, "", |it| it.clock = Some(ClockOffset { ahead_ms, error }));
        found.first().map(|finding| finding.severity)
    };
    assert_eq!((offset(7000, 2), offset(-7000, 2)), (None, None));
    assert_eq!((offset(8000, 2), offset(-8000, 2)), (Some(Severity::Warning), Some(Severity::Warning)));
    assert_eq!(offset(15_100, 2), Some(Severity::Error));
    // The other clock is 3 ms ahead, with an error of 2 ms.
    assert_eq!((offset(7506, 1), offset(7505, 1)), (Some(Severity::Warning), None));
    assert_eq!((offset(15_006, 1), offset(15_005, 1)), (Some(Severity::Error), Some(Severity::Warning)));
    assert_eq!(offset(15_100, 9000), None, "a slow answer is no difference");
}

#[test]
fn a_clock_rate_is_found_beyond_its_error() {
    let rate = |ppm, error_ppm| {
        let rate = Some(ClockRate { ppm, error_ppm });
        findings(Quarantine::Uptime, "", |it| it.clock_rate = rate).first().map(|finding| finding.severity)
    };
    assert_eq!((rate(0, 0), rate(1099, 100), rate(50_000, 50_000)), (None, None, None));
    assert_eq!((rate(1100, 100), rate(-1100, 100)), (Some(Severity::Warning), Some(Severity::Warning)));
    assert_eq!((rate(10_099, 100), rate(-10_100, 100)), (Some(Severity::Warning), Some(Severity::Error)));
}

#[test]
fn findings_begin_at_their_bounds() {
    use Quarantine::{Strict, Uptime};
    type Change = fn(&mut Facts);
    const DAYS: Duration = Duration::from_secs(14 * 24 * 3600);
    let rows: [(Quarantine, Change, &[&str]); 9] = [
        (Uptime, |it| it.server.version = Some("5.0.0".into()), &[]),
        (Uptime, |it| it.server.used_memory = Some((256 << 20) / 5 * 4), &[]),
        (
            Uptime,
            |it| (it.server.maxmemory, it.server.used_memory) = (Some(1000), Some(800)),
            &["memory-near-limit"],
        ),
        (Uptime, |it| (it.server.maxmemory, it.server.used_memory) = (Some(1000), Some(799)), &[]),
        (Uptime, |it| it.server.uptime = Some(Duration::from_secs(32)), &[]),
        (Uptime, |it| it.certificate_left = Some(DAYS), &[]),
        (Uptime, |it| it.certificate_left = Some(DAYS - Duration::from_nanos(1)), &["certificate-expires"]),
        (Strict, |it| it.observed = Duration::from_millis(30_302), &[]),
        (Strict, |it| it.observed = Duration::from_millis(30_301), &["unobserved"]),
    ];
    for (index, (quarantine, change, expected)) in rows.into_iter().enumerate() {
        assert_eq!(codes(&findings(quarantine, "", change)), expected, "row {index}");
    }
}

#[test]
fn a_master_declared_new_has_no_quarantine() {
    let seen = [Seen { name: "m1", found: &Found::Absent, run_id: Some("run1") }];
    let record =
        Record::of_fleet(&config(1, Quarantine::Strict, ""), &seen, Origin::Declared).expect("known");
    let record = record[0].clone().with_new("run1");
    for quarantine in [Quarantine::Uptime, Quarantine::Strict] {
        let found = findings(quarantine, "", |it| {
            it.record = Found::Known(record.clone());
            (it.server.uptime, it.observed) = (Some(Duration::ZERO), Duration::ZERO);
        });
        let codes = codes(&found);
        assert!(!codes.contains(&"quarantined") && !codes.contains(&"unobserved"), "{codes:?}");
    }
}

#[test]
fn fields_are_unreported_only_where_info_answers() {
    let silent = |it: &mut Facts| {
        (it.server.run_id, it.server.role, it.server.maxmemory_policy) = (None, None, None);
        it.server.uptime = None;
    };
    let shown = |mode| findings(mode, "", silent).iter().map(ToString::to_string).collect::<Vec<_>>();
    let uptime = "INFO does not report run_id, uptime_in_seconds, role, maxmemory_policy";
    assert_eq!(shown(Quarantine::Uptime), [uptime]);
    assert_eq!(shown(Quarantine::Strict), ["INFO does not report run_id, role, maxmemory_policy"]);
    let found = findings(Quarantine::Strict, "", |it| {
        silent(it);
        it.rights.denied = vec!["info"];
    });
    assert_eq!(codes(&found), ["missing-rights"], "the right is the cause");
}

#[test]
fn missing_rights_come_with_the_acl_line() {
    let lacking = |it: &mut Facts| {
        it.rights.denied = vec!["get", "info", "publish", "spublish", "time", "zcard", "type"];
        (it.rights.lacks_keys, it.rights.lacks_channels) = (true, true);
    };
    let found = findings(Quarantine::Uptime, "lock:", lacking);
    let line = |feature: Feature| {
        let mut it = found.iter().filter(
            |it| matches!(&it.problem, Problem::MissingRights { feature: other, .. } if *other == feature.name()),
        );
        it.next().map(|it| (it.severity, it.advice())).expect("a finding")
    };
    let advice = |rights: &str| format!("run \"ACL SETUSER locker {rights}\", then \"ACL SAVE\"");
    assert_eq!(line(Feature::Locks), (Severity::Error, advice("~lock:* +get")));
    assert_eq!(line(Feature::Quarantine), (Severity::Warning, advice("+info")));
    assert_eq!(line(Feature::Waiting), (Severity::Warning, advice("&lock:* +publish +time +zcard")));
    assert_eq!(line(Feature::Shared), (Severity::Note, advice("+time +type")));
}

#[test]
fn channels_are_needed_by_waiters_only() {
    let lacking = || {
        let mut masters = masters(3);
        masters.iter_mut().for_each(|it| it.facts.as_mut().expect("healthy").rights.lacks_channels = true);
        masters
    };
    let urls = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"];
    for (waits, found) in [(true, vec!["missing-rights"]), (false, Vec::new())] {
        let config = Config::builder().masters(urls).wake_waiters(waits).build().expect("valid");
        assert_eq!(codes(&judge(&config, &lacking())), found);
    }
}

#[test]
fn a_refused_write_comes_with_its_usual_advice() {
    let refused = |text: &str| {
        let found = findings(Quarantine::Uptime, "", |it| it.rights.write_refusal = Some(text.to_owned()));
        found[0].advice()
    };
    assert_eq!(refused("OOM no"), "out of memory; raise maxmemory; keep the policy noeviction");
    assert_eq!(refused("ODD no"), "read the server's log");
}

#[test]
fn a_hash_tag_is_recognized_as_servers_do() {
    for (prefix, is_tag) in [
        ("{a}:", true),
        ("x{a}", true),
        ("{}:", false),
        ("{a", false),
        ("a}", false),
        ("", false),
        ("{}{a}", false),
    ] {
        assert_eq!(has_hash_tag(prefix.as_bytes()), is_tag, "{prefix}");
    }
    let cluster = |prefix| findings(Quarantine::Uptime, prefix, |it| it.server.is_cluster = Some(true));
    assert!(cluster("").remove(0).advice().contains("\"{lock}:\""));
    assert!(cluster("pay:").remove(0).advice().contains("\"{pay}:\""));
}

#[test]
fn the_heaviest_findings_are_first() {
    // A warning about the list precedes the masters, whose errors follow.
    let found = judge(&config(4, Quarantine::Trust, ""), &masters(4));
    let severities: Vec<Severity> = found.iter().map(|finding| finding.severity).collect();
    assert!(severities.is_sorted_by(|one, next| one >= next), "{severities:?}");
    assert_eq!((severities.first(), severities.last()), (Some(&Severity::Error), Some(&Severity::Warning)));
}

#[test]
fn a_record_of_other_settings_is_a_finding() {
    let recorded = Config::builder().masters(["redis://10.0.0.1"]).max_ttl(Duration::from_secs(9));
    let recorded = recorded.build().expect("valid");
    let seen = [Seen { name: "m1", found: &Found::Absent, run_id: Some("run1") }];
    for (origin, severity) in [(Origin::Observed, Severity::Warning), (Origin::Declared, Severity::Error)] {
        let record = Record::of_fleet(&recorded, &seen, origin).expect("known").remove(0);
        let found = findings(Quarantine::Uptime, "", |facts| facts.record = Found::Known(record));
        assert_eq!((codes(&found), found[0].severity), (vec!["fleet-differs"], severity));
        assert_eq!(&*found[0].masters[0], "m1");
    }
    let all: Vec<_> = masters(3);
    let seen: Vec<_> = all.iter().map(ExaminedMaster::seen).collect();
    let same = config(3, Quarantine::Uptime, "");
    let record = Record::of_fleet(&same, &seen, Origin::Observed).expect("known").remove(0);
    assert_eq!(findings(Quarantine::Uptime, "", |facts| facts.record = Found::Known(record)), []);
    let damaged = |facts: &mut Facts| facts.record = Found::Unusable(Unusable::Damaged);
    assert_eq!(codes(&findings(Quarantine::Uptime, "", damaged)), ["no-fleet-record"]);
}

#[test]
fn near_misses_of_the_prefix_are_named() {
    let rows: [(&str, &[&str]); 5] = [
        ("lock:", &["lok:", "lock", "lock::", "Lock:", "clock:", "lock;"]),
        ("", &[":", "a"]),
        (":", &[""]),
        ("aa", &["a", "aaa", "ab"]),
        ("lock:", &["loc:", "lock:a"]),
    ];
    for (prefix, near) in rows {
        for other in near {
            let found = findings(Quarantine::Uptime, prefix, |it| it.prefixes = Some(vec![(*other).into()]));
            assert_eq!(codes(&found), ["near-prefix"], "{other} beside {prefix}");
        }
    }
    for other in ["lock:", "jobs:", "kcol:", "lock:ab", ""] {
        let found = findings(Quarantine::Uptime, "lock:", |it| it.prefixes = Some(vec![other.into()]));
        assert_eq!(codes(&found), [] as [&str; 0], "{other}");
    }
}

#[test]
fn the_rest_of_a_quarantine_is_in_whole_seconds() {
    let uptime = |uptime_s| {
        let found = findings(Quarantine::Uptime, "", |it| {
            it.server.uptime = Some(Duration::from_secs(uptime_s));
        });
        found.into_iter().map(|finding| finding.problem).collect::<Vec<_>>()
    };
    let left = |left_s| vec![Problem::Quarantined { left: Duration::from_secs(left_s), is_new: false }];
    // The quarantine is 30.302 s, and up to one second of the uptime may not have passed.
    assert_eq!((uptime(0), uptime(1), uptime(31)), (left(31), left(31), left(1)));
    // A quarantine of whole seconds.
    let urls = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"];
    let config = Config::builder().masters(urls).max_ttl(Duration::from_millis(4998)).drift_ppm(0);
    let config = config.build().expect("valid");
    assert_eq!(config.quarantine_time(), Duration::from_secs(5));
    for (uptime_s, expected) in [(5, vec!["quarantined"]), (6, Vec::new())] {
        let mut masters = masters(3);
        let facts = masters[0].facts.as_mut().expect("healthy");
        facts.server.uptime = Some(Duration::from_secs(uptime_s));
        assert_eq!(codes(&judge(&config, &masters)), expected, "{uptime_s}");
    }
}

/// The client waits for the larger `max_ttl`.
#[test]
fn declared_longer_ttl_lengthens_the_quarantine() {
    let declared = "redlatch:fleet:1 declared max_ttl_ms=60000 drift_ppm=0 own=0000000000000001 of=0000000000000001-0000000000000002";
    let mut all = masters(3);
    all[1].facts.as_mut().expect("healthy").record = Found::from_text(declared.as_bytes());
    all[0].facts.as_mut().expect("healthy").server.uptime = Some(Duration::from_secs(40));
    let found = judge(&config(3, Quarantine::Uptime, ""), &all);
    let left = Duration::from_secs(22);
    assert!(found.iter().any(|it| it.problem == Problem::Quarantined { left, is_new: false }), "{found:?}");
    assert_eq!(super::granting(&config(3, Quarantine::Uptime, ""), &found), 2);
}

#[test]
fn slow_round_trip_finding_depends_on_max_ttl() {
    let urls = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"];
    let config = Config::builder().masters(urls).max_ttl(Duration::from_secs(2)).build().expect("valid");
    for (p99_ms, expected) in [(399, Vec::new()), (400, vec!["slow-round-trip"])] {
        let mut masters = masters(3);
        masters[0].facts.as_mut().expect("healthy").round_trip.p99 = Duration::from_millis(p99_ms);
        assert_eq!(codes(&judge(&config, &masters)), expected, "{p99_ms}");
    }
}

#[test]
fn one_server_twice_hides_no_other_pair_on_one_host() {
    let mut masters = masters(5);
    for (place, other) in [(1, 1), (3, 3)] {
        let address = healthy(other).address;
        masters[place].facts.as_mut().expect("healthy").address = address;
    }
    masters[1].facts.as_mut().expect("healthy").server.run_id = healthy(1).server.run_id;
    let found = judge(&config(5, Quarantine::Uptime, ""), &masters);
    assert_eq!(codes(&found), ["same-server", "same-host"]);
    let names = |finding: &Finding| finding.masters.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!([names(&found[0]), names(&found[1])], [["m1", "m2"], ["m3", "m4"]]);
}

#[test]
fn one_problem_of_two_severities_is_two_findings() {
    let recorded = Config::builder().masters(["redis://10.0.0.1"]).max_ttl(Duration::from_secs(9));
    let recorded = recorded.build().expect("valid");
    let seen = [Seen { name: "m1", found: &Found::Absent, run_id: Some("run1") }];
    let mut masters = masters(3);
    for (master, origin) in masters.iter_mut().zip([Origin::Observed, Origin::Declared]) {
        let record = Record::of_fleet(&recorded, &seen, origin).expect("known").remove(0);
        master.facts.as_mut().expect("healthy").record = Found::Known(record);
    }
    let found = judge(&config(3, Quarantine::Uptime, ""), &masters);
    let found: Vec<_> = found.iter().map(|it| (it.problem.code(), it.severity, &*it.masters[0])).collect();
    let code = "fleet-differs";
    assert_eq!(found, [(code, Severity::Error, "m2"), (code, Severity::Warning, "m1")]);
}
