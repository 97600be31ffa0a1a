//! `redlatch bench`: its figures, and its behaviour without a quorum.

use std::time::Instant;

use redlatch_support::{Fleet, PATIENCE, eventually};

use crate::harness::{Running, expect, finish, redlatch, trusting};

#[test]
fn bench_prints_one_json_object_with_its_figures() {
    let mut fleet = Fleet::start(3);
    for (depth, more) in [(1, &[][..]), (16, &["--no-await-release"][..]), (4, &["--fair"][..])] {
        let command = &mut trusting(&fleet, "bench");
        command.args(["--json", "--pairs", "500", "--depth", &depth.to_string()]).args(more);
        command.args(["--keys", "1234", "--ttl", "7s"]);
        let bench = finish(command);
        expect(&bench, 0, &[]);
        // Only fair locks have a queue.
        assert_eq!(fleet.master(0).calls("zrange") > 0, more == ["--fair"], "{more:?}");
        let json: serde_json::Value = serde_json::from_str(&bench.stdout).expect("JSON and nothing else");
        for (field, value) in [
            ("masters", 3),
            ("masters_ready", 3),
            ("quorum", 2),
            ("depth", depth),
            ("pairs", 500),
            ("keys", 1234),
            ("ttl_ms", 7000),
        ] {
            assert_eq!(json[field], value, "{field} in {json}");
        }
        assert_eq!(json["await_release"], more != ["--no-await-release"], "{json}");
        let figures = |name: &str| {
            ["mean", "p50", "p99", "p99_9", "max"]
                .map(|figure| json[name][figure].as_f64().expect("a number"))
        };
        assert!(figures("acquire_us")[1..].is_sorted() && figures("acquire_us")[0] > 1.0, "{json}");
        assert_eq!(json["fair"], more == ["--fair"], "{json}");
        if more != ["--no-await-release"] {
            assert!(figures("release_us")[1..].is_sorted(), "{json}");
        } else {
            assert!(json["release_us"].is_null(), "{json}");
        }
        let rate = json["pairs"].as_f64().expect("a number") / json["elapsed_s"].as_f64().expect("a number");
        assert!((rate - json["pairs_per_s"].as_f64().expect("a number")).abs() < 1.0, "{json}");
        for of in ["one", "all"] {
            assert!(json["round_trip_us"][of].as_f64() > Some(0.0), "{json}");
        }
        assert_eq!(json["errors"].as_array().map(Vec::len), Some(0), "{json}");
    }
}

#[test]
fn bench_waits_visibly_for_masters_in_quarantine() {
    let mut fleet = Fleet::start(3);
    let mut command = redlatch(&fleet.urls());
    let bench =
        finish(command.args(["bench", "--ttl", "1s", "--max-ttl", "1s", "--time", "200ms", "--depth", "4"]));
    expect(&bench, 0, &["waiting", "may have restarted", "--trust"]);
    assert_eq!(bench.stderr.matches("waiting").count(), 1, "once, as this is no terminal: {}", bench.stderr);
    assert!(bench.stdout.contains("pairs/s") && bench.stdout.contains("p99.9"), "{}", bench.stdout);
    for master in fleet.masters() {
        assert_eq!(master.key_count(), "0");
    }
}

#[test]
fn bench_lists_errors_by_their_kind() {
    let mut fleet = Fleet::start(1);
    fleet.master(0).ask("CONFIG SET min-replicas-to-write 1");
    let bench = finish(trusting(&fleet, "bench").args(["--json", "--pairs", "3"]));
    let json: serde_json::Value = serde_json::from_str(&bench.stdout).expect("JSON and nothing else");
    assert_eq!(json["errors"].as_array().map(Vec::len), Some(1), "{json}");
    let error = &json["errors"][0];
    assert_eq!((&error["kind"], &error["count"]), (&"no quorum".into(), &3.into()), "{json}");
    assert!(error["first"].as_str().is_some_and(|text| text.contains("NOREPLICAS")), "{json}");
}

#[test]
fn refused_release_is_counted_separately() {
    let mut fleet = Fleet::start(3);
    // The commands that delete one holder's key; some servers lack some of them.
    for right in ["evalsha", "eval", "delifeq", "delex"] {
        fleet.masters().for_each(|master| drop(master.ask(&format!("ACL SETUSER default -{right}"))));
    }
    let bench = finish(trusting(&fleet, "bench").args(["--json", "--pairs", "3"]));
    let json: serde_json::Value = serde_json::from_str(&bench.stdout).expect("JSON and nothing else");
    let error = &json["errors"][0];
    assert_eq!((&error["kind"], &error["count"]), (&"release unconfirmed".into(), &3.into()), "{json}");
    assert!(error["first"].as_str().is_some_and(|text| text.contains("NOPERM")), "{json}");
    assert_eq!((&json["pairs"], &json["release_us"]), (&0.into(), &serde_json::Value::Null), "{json}");
    assert!(fleet.master(0).calls("set") > 100, "it got warm before");
}

#[test]
fn bench_without_a_quorum_gives_69() {
    let mut fleet = Fleet::start(3);
    let begun = Instant::now();
    let mut run = Running::start(trusting(&fleet, "bench").args(["--time", "1h"]));
    let progress = run.wait_for_stderr("pairs");
    assert!(progress.starts_with("redlatch: 0%, "), "of an hour: {progress}");
    run.signal("INT");
    let finished = run.finish();
    expect(&finished, 130, &[]);
    assert!(finished.stdout.contains("pairs/s"), "{}", finished.stdout);
    let said = 1 + finished.stderr.matches(" pairs\n").count();
    assert!(said as u64 <= begun.elapsed().as_secs(), "one a second: {}", finished.stderr);
    fleet.master(0).kill();
    fleet.master(1).kill();
    expect(&finish(&mut trusting(&fleet, "bench")), 69, &["1 of 3 masters count, 2 needed", "not connected"]);
}

#[test]
fn a_bench_pauses_after_each_refusal() {
    let mut fleet = Fleet::start(1);
    fleet.master(0).ask("CONFIG SET min-replicas-to-write 1");
    eventually(PATIENCE, "no pause is much longer", || {
        let bench = finish(trusting(&fleet, "bench").args(["--json", "--time", "300ms"]));
        let json: serde_json::Value = serde_json::from_str(&bench.stdout).expect("JSON and nothing else");
        let (count, took) = (json["errors"][0]["count"].as_f64(), json["elapsed_s"].as_f64());
        let (count, took) = (count.expect("a number"), took.expect("a number"));
        // A pair takes at least 10 ms, and longer on a slow machine.
        assert!(count <= took / 0.01 + 1.0, "{json}");
        count > took / 0.03
    });
}

#[test]
fn a_master_that_ends_is_not_waited_for() {
    let mut fleet = Fleet::start(1);
    let mut command = redlatch(&fleet.urls());
    let mut run = Running::start(command.args(["bench", "--max-ttl", "1h"]));
    run.wait_for_stderr("waiting");
    fleet.master(0).kill();
    expect(&run.finish(), 69, &["0 of 1 masters count, 1 needed", "not connected"]);
}

#[test]
fn signal_ends_the_wait_for_quarantined_masters() {
    let mut fleet = Fleet::start(3);
    for subcommand in ["bench", "drill"] {
        let mut command = redlatch(&fleet.urls());
        let mut run = Running::start(command.args([subcommand, "--max-ttl", "1h"]));
        run.wait_for_stderr("waiting");
        run.signal("INT");
        let finished = run.finish();
        expect(&finished, 130, &[]);
        assert_eq!(finished.stdout, "", "nothing was measured");
        assert!(fleet.masters().all(|master| master.key_count() == "0"));
    }
}

#[test]
fn releases_that_a_hanging_master_owes_are_counted() {
    let mut fleet = Fleet::start(3);
    let mut run = Running::start(trusting(&fleet, "bench").args(["--time", "1h"]));
    run.wait_for_stderr("pairs");
    fleet.master(0).stop();
    // On a busy machine, a command may happen not to be under way.
    let before = fleet.master(1).calls("set");
    eventually(PATIENCE, "it asks the others again", || fleet.master(1).calls("set") > before + 1);
    run.signal("INT");
    let finished = run.finish();
    fleet.master(0).cont();
    expect(&finished, 130, &["not confirmed by all masters"]);
}
