//! Bounds of options, and the problems of masters.

use redlatch::Client;
use redlatch::status::Warning;

use super::*;

#[test]
fn bounds_are_part_of_what_is_allowed() {
    for (value, is_allowed) in [(1, false), (2, true), (9, true), (10, false)] {
        assert_eq!(check_bounds("--depth", value, 2, 9).is_ok(), is_allowed, "{value}");
    }
    let exit = check_bounds("--depth", 1, 2, 9).expect_err("too small");
    assert_eq!((exit.code, &*exit.why), (64, "--depth is 1; give 2 to 9"));
    let (ns, max) = (Duration::from_nanos(1), limits::TIME_LIMIT_MAX);
    for (time, is_allowed) in [(Duration::ZERO, false), (ns, true), (max, true), (max + ns, false)] {
        assert_eq!(check_time("--time", time).is_ok(), is_allowed, "{time:?}");
    }
    let exit = check_time("--time", Duration::ZERO).expect_err("no time");
    assert_eq!((exit.code, &*exit.why), (64, "--time is 0s; give more than 0 to 24h"));
}

#[test]
fn each_variable_has_its_option() {
    let shown: String =
        env::variables().map(|variable| format!("{variable} {}\n", option_of(variable))).collect();
    redlatch_support::assert_golden("variables", &shown);
}

#[test]
fn doubts_name_each_master_that_does_not_count() {
    let urls = (1..=5).map(|number| format!("unix:///nowhere/{number}"));
    let client =
        Client::open(Config::builder().masters(urls).build().expect("valid")).expect("an event loop");
    let mut masters = client.masters();
    let quarantined = |seconds| MasterState::Quarantined(Duration::from_secs(seconds));
    let states =
        [MasterState::Ready, quarantined(7), quarantined(9), MasterState::Silent, MasterState::Connecting];
    masters.iter_mut().zip(states).for_each(|(master, state)| master.state = state);
    assert_eq!(
        doubts(&masters),
        [
            "unix:///nowhere/2, unix:///nowhere/3: not counted for another 9s: it may have restarted and forgotten a lock",
            "unix:///nowhere/4: not asked, as it still owes an earlier answer; check the master, or raise answer_timeout",
            "unix:///nowhere/5: not connected: still connecting",
        ]
    );
    masters.iter_mut().for_each(|master| master.state = MasterState::Down("gone".into()));
    assert_eq!(doubts(&masters), ["all 5 masters: not connected: gone"]);
    masters.iter_mut().for_each(|master| master.state = MasterState::Ready);
    assert_eq!(doubts(&masters), [""; 0]);
    // A warning does not depend on the state.
    let evicting = Warning::Evicting { policy: "allkeys-lru".into() };
    let unreported = Warning::Unreported { fields: "run_id".into(), info_refusal: None };
    masters[1].warnings = vec![unreported.clone(), evicting.clone()];
    masters[2].state = MasterState::Silent;
    masters[2].warnings = vec![evicting.clone()];
    assert_eq!(
        doubts(&masters),
        [
            format!("unix:///nowhere/2: {unreported}"),
            format!("unix:///nowhere/2, unix:///nowhere/3: {evicting}"),
            format!("unix:///nowhere/3: {}", Failure::Silent),
        ]
    );
}

#[test]
fn master_without_scripts_is_reported_once() {
    let config = Config::builder().master("unix:///nowhere/1").build().expect("valid");
    let mut masters = Client::open(config).expect("an event loop").masters();
    masters[0].state = MasterState::Ready;
    let no_scripts = Warning::NoScripts { refusal: "ERR unsupported command".into() };
    masters[0].warnings = vec![Warning::Evicting { policy: "allkeys-lru".into() }, no_scripts.clone()];
    let mut contradictions = Contradictions::default();
    assert_eq!(contradictions.new_lines(&masters), [format!("unix:///nowhere/1: {no_scripts}")]);
    assert_eq!(contradictions.new_lines(&masters), [""; 0]);
}

#[test]
fn inspection_waits_one_second_by_default() {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        masters: MasterOptions,
    }
    for (options, limit) in
        [(&[][..], 1000), (&["--answer-timeout", "300ms"], 300), (&["--answer-timeout", ""], 1000)]
    {
        let line = <Line as clap::Parser>::parse_from(["redlatch", "-m", "redis://h"].iter().chain(options));
        let config = line.masters.query_config().expect("valid");
        let ttl = config.ttl(Duration::from_secs(10)).expect("valid");
        assert_eq!(config.answer_limit(ttl), Duration::from_millis(limit), "{options:?}");
    }
}
