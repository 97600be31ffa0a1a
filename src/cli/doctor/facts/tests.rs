use super::*;

#[test]
fn the_fields_of_all_sections_are_read() {
    let text = |text: &str| Answer::Text(text.as_bytes().to_vec());
    let found = server(&[
        text("redis_version:7.0.15\r\nredis_mode:cluster\r\nrun_id:abc\r\nuptime_in_seconds:9\r\n"),
        Answer::Error("NOPERM".to_owned()),
        text("used_memory:10\r\nmaxmemory:20\r\nmaxmemory_policy:noeviction\r\n"),
        text("evicted_keys:3\r\npubsub_patterns:2\r\n"),
        text("rdb_last_bgsave_status:ok\r\naof_enabled:1\r\naof_last_write_status:err\r\n"),
    ]);
    let expected = ServerFacts {
        run_id: Some("abc".into()),
        version: Some("7.0.15".into()),
        other_name: None,
        uptime: Some(Duration::from_secs(9)),
        role: None,
        promotion: None,
        is_cluster: Some(true),
        maxmemory: Some(20),
        used_memory: Some(10),
        maxmemory_policy: Some("noeviction".into()),
        evicted_keys: Some(3),
        pattern_count: Some(2),
        is_append_only: Some(true),
        is_disk_fine: Some(false),
    };
    assert_eq!(found, expected);
    assert_eq!(server(&[]), ServerFacts::default());
}

#[test]
fn servers_of_other_names_are_found() {
    let name = |info: &str| other_name(info.as_bytes()).map(String::from);
    for (info, expected) in [
        ("redis_version:7.0.15\r\ngcc_version:12.2.0\r\nrun_id:a\r\n", None),
        ("redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.0\r\n", None),
        ("redis_version:7.4.0\r\ndragonfly_version:df-v1.40.1\r\n", Some("dragonfly df-v1.40.1")),
        ("version:2\r\nkvrocks_version:2.9\r\nredis_version:4\r\n", Some("kvrocks 2.9")),
        ("redis_version:7.2.4\r\nserver_name:other\r\n", Some("other")),
    ] {
        assert_eq!(name(info).as_deref(), expected, "{info}");
    }
}

#[test]
fn a_cluster_is_known_by_mode_or_section() {
    let is_cluster = |text: &str| server(&[Answer::Text(text.as_bytes().to_vec())]).is_cluster;
    assert_eq!(is_cluster("cluster_enabled:1\r\n"), Some(true));
    assert_eq!(is_cluster("cluster_enabled:0\r\n"), Some(false));
    assert_eq!(is_cluster("server_mode:cluster\r\n"), Some(true));
    assert_eq!(is_cluster("redis_mode:standalone\r\ncluster_enabled:1\r\n"), Some(false));
}

#[test]
fn each_answer_says_what_record_there_is() {
    let refusal = "NOPERM No permissions to access a key";
    for (answer, found) in [
        (Answer::Null, Found::Absent),
        (Answer::Text(b"redlatch:fleet:1 x".to_vec()), Found::Unusable(Unusable::Damaged)),
        (Answer::Error("WRONGTYPE Operation".to_owned()), Found::Unusable(Unusable::Foreign)),
        (Answer::Error(refusal.to_owned()), Found::Unusable(Unusable::Refused(refusal.into()))),
        (Answer::Integer(1), Found::Unusable(Unusable::Foreign)),
    ] {
        assert_eq!(found_in(answer), found);
    }
}

#[test]
fn the_first_native_command_that_works_is_noted() {
    let error = |text: &str| Answer::Error(text.to_owned());
    let unknown = || error("ERR unknown command 'x'");
    let denied = |command: &str| error(&format!("NOPERM User a has no permissions to run the '{command}'"));
    for (answers, native, rights) in [
        ([unknown(), unknown()], None, &[][..]),
        ([Answer::Integer(0), unknown()], Some("DELIFEQ"), &[]),
        ([unknown(), Answer::Integer(0)], Some("DELEX IFEQ"), &[]),
        ([Answer::Integer(0), Answer::Integer(0)], Some("DELIFEQ"), &[]),
        ([denied("delifeq"), Answer::Integer(0)], Some("DELEX IFEQ"), &["delifeq"]),
        ([denied("delifeq"), denied("delex")], None, &["delifeq", "delex"]),
    ] {
        let mut facts = Facts::default();
        note_native_release(&answers, &mut facts);
        assert_eq!((facts.native_release, &facts.rights.denied[..]), (native, rights), "{answers:?}");
    }
}

#[test]
fn offset_and_rate_of_a_clock_have_errors() {
    let (ms, start) = (Duration::from_millis, Instant::now());
    let reading = |at, took, there_ms: i64| ClockReading {
        asked: start + ms(at),
        wall: ms(1000 + at),
        took: ms(took),
        there_us: there_ms * 1000,
    };
    let first = reading(0, 10, 1105);
    assert_eq!(first.offset(), ClockOffset { ahead_ms: 100, error: ms(6) });
    assert_eq!(reading(2000, 40, 3000).offset(), ClockOffset { ahead_ms: -20, error: ms(21) });
    let rate = |there_ms| first.rate_to(&reading(5000, 10, there_ms)).map(|it| (it.ppm, it.error_ppm));
    assert_eq!((rate(6105), rate(6115)), (Some((0, 2000)), Some((2000, 2000))));
    assert_eq!(rate(6095), Some((-2000, 2000)));
    assert_eq!(first.rate_to(&first), None);
}

#[test]
fn percentiles_are_times_that_were_measured() {
    let ms = Duration::from_millis;
    let times = |count: u64| PingTimes::of((1..=count).rev().map(ms).collect());
    assert_eq!(times(100), PingTimes { p50: ms(50), p99: ms(99), count: 100 });
    assert_eq!(times(10), PingTimes { p50: ms(5), p99: ms(10), count: 10 });
    assert_eq!(times(1), PingTimes { p50: ms(1), p99: ms(1), count: 1 });
}

#[test]
fn round_trips_are_measured_for_a_time_or_a_number() {
    let (start, step) = (Probe::now(), Duration::from_millis(10));
    let measured = |time: Duration| {
        // Each reading of the clock is 10 ms later than the one before.
        let (mut now, mut ping_count) = (start, 0);
        let clock = || {
            now += step;
            now
        };
        let ping = || {
            ping_count += 1;
            Ok(())
        };
        let took = round_trips(time, clock, ping).expect("it answers");
        assert!(took.iter().all(|it| *it == step));
        (took.len(), ping_count)
    };
    assert_eq!(measured(Duration::ZERO), (1, 2));
    assert_eq!(measured(step * 20), (10, 11));
    assert_eq!(measured(Duration::MAX), (ROUND_TRIP_COUNT_MAX, ROUND_TRIP_COUNT_MAX + 1));
    let failed = ProbeError::Unreachable("gone".to_owned());
    assert_eq!(round_trips(step, Probe::now, || Err(failed.clone())), Err(failed));
}

#[test]
fn a_search_for_prefixes_ends_and_is_in_order() {
    let text = |text: &str| Answer::Text(text.as_bytes().to_vec());
    let key = |prefix: &str| Answer::Text([prefix.as_bytes(), &Found::key(b"")].concat());
    let page = |next: &str, keys: Vec<Answer>| Ok(Answer::List(vec![text(next), Answer::List(keys)]));
    let found = prefixes_in(|cursor| match cursor {
        b"0" => page("7", vec![key("b:"), key("")]),
        b"7" => page("9", vec![key("a:"), text("other"), key("b:")]),
        _ => page("0", Vec::new()),
    });
    let expected = ["", "a:", "b:"].map(|prefix| prefix.as_bytes().to_vec());
    assert_eq!(found, Ok(Some(expected.to_vec())));
    let mut page_count = 0;
    let one_page = prefixes_in(|_| {
        page_count += 1;
        page("0", vec![key("a:")])
    });
    assert_eq!((one_page, page_count), (Ok(Some(vec![b"a:".to_vec()])), 1));
    assert_eq!(prefixes_in(|_| Ok(Answer::Error("NOPERM".to_owned()))), Ok(None));
}

#[test]
fn answers_of_another_shape_are_no_facts() {
    let text = |text: &str| Answer::Text(text.as_bytes().to_vec());
    let time = |parts: &[&str]| time_us(&Answer::List(parts.iter().map(|it| text(it)).collect()));
    assert_eq!(time(&["5", "7"]), Some(5_000_007));
    assert_eq!((time(&["5"]), time(&["-5", "7"]), time_us(&Answer::Null)), (None, None, None));
    assert_eq!(time(&["18446744073709551615", "1000000"]), None, "no server has such a clock");
    let pair = Answer::List(vec![text("appendfsync"), text("always")]);
    let read = read_settings(&[pair, Answer::List(Vec::new())]);
    let expected = Settings { appendfsync: Some("always".into()), ..Settings::default() };
    assert_eq!(read, expected);
    let pair = |value: &str| Answer::List(vec![text("a setting"), text(value)]);
    for (answers, expected) in [(["everysec", "yes"], true), (["everysec", "no"], false)] {
        let read = read_settings(&answers.map(pair));
        assert_eq!(
            (read.appendfsync.as_deref(), read.skips_fsync_on_rewrite),
            (Some("everysec"), Some(expected))
        );
    }
}
