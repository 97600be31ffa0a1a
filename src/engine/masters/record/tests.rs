use super::*;
use crate::engine::masters::handshake::Learnt;

fn config(count: usize) -> Config {
    let urls = (0..count).map(|index| format!("redis://m{index}"));
    Config::builder().masters(urls).build().expect("valid")
}

/// Masters without records, with these numbers in their URLs and these `run_id`s.
fn seen<'a>(names: &'a [String], run_ids: &'a [&'a str]) -> Vec<Seen<'a>> {
    let blank =
        |(name, run_id): (&'a String, &&'a str)| Seen { name, found: &Found::Absent, run_id: Some(run_id) };
    names.iter().zip(run_ids).map(blank).collect()
}

fn names(numbers: &[usize]) -> Vec<String> {
    numbers.iter().map(|number| format!("redis://m{number}:6379")).collect()
}

fn records(config: &Config, seen: &[Seen<'_>]) -> Vec<Record> {
    Record::of_fleet(config, seen, Origin::Observed).expect("each is known")
}

#[test]
fn a_record_is_read_as_it_was_written() {
    let (config, names) = (config(3), names(&[0, 1, 2]));
    for record in records(&config, &seen(&names, &["a", "b", "c"])) {
        let declared = Record { origin: Origin::Declared, ..record.clone() };
        let joining = declared.of_joining(declared.members[0]);
        for record in [record.clone(), declared.clone(), joining, declared.with_new("run-0")] {
            let text = record.to_string();
            assert!(text.is_ascii() && !text.contains("redis"), "{text}");
            assert_eq!(Found::from_text(text.as_bytes()), Found::Known(record));
        }
    }
}

#[test]
fn the_longest_record_fits_its_limit() {
    let config = Config::builder()
        .masters((0..32).map(|index| format!("redis://m{index}")))
        .max_ttl(crate::limits::MAX_TTL_MAX)
        .drift_ppm(crate::limits::DRIFT_PPM_MAX)
        .build()
        .expect("valid");
    let names = names(&(0..32).collect::<Vec<_>>());
    let record = records(&config, &seen(&names, &["a"; 32])).remove(0).with_new(&"f".repeat(40));
    let text = record.to_string();
    assert_eq!(Found::from_text(text.as_bytes()), Found::Known(record));
    // The last word, a `run_id`, may be longer.
    for (size, is_taken) in [(RECORD_SIZE_MAX, true), (RECORD_SIZE_MAX + 1, false)] {
        let found = Found::from_text(format!("{text:f<size$}").as_bytes());
        assert_eq!(found.record().is_some(), is_taken, "{size} bytes");
        assert_eq!(found == Found::Unusable(Unusable::Damaged), !is_taken);
    }
}

#[test]
fn unreadable_record_is_named() {
    let (config, names) = (config(1), names(&[0]));
    let whole = records(&config, &seen(&names, &["a"])).remove(0).to_string();
    for (text, why) in [
        ("", Unusable::Foreign),
        ("7", Unusable::Foreign),
        ("redlatch:fleet:2x observed", Unusable::Foreign),
        ("redlatch:fleet:", Unusable::Foreign),
        ("redlatch:fleet:x observed", Unusable::Foreign),
        ("redlatch:fleet:2 anything else", Unusable::Newer),
        ("redlatch:fleet:1 ", Unusable::Damaged),
        (&whole[..whole.len() - 1], Unusable::Damaged),
        (&format!("{whole} "), Unusable::Damaged),
        (&format!("{whole} new="), Unusable::Damaged),
        (&format!("{whole} new=a b"), Unusable::Damaged),
        (&format!("{whole} joining new=a"), Unusable::Damaged),
        (&whole.replace("=30000", "=+30000"), Unusable::Damaged),
        (&whole.replace("=30000", "="), Unusable::Damaged),
        (&whole.replace("=10000", "=99999999999"), Unusable::Damaged),
        (&whole.replace("observed", "Observed"), Unusable::Damaged),
        (&whole.replace("own=", "own=0"), Unusable::Damaged),
    ] {
        assert_eq!(Found::from_text(text.as_bytes()), Found::Unusable(why), "{text}");
    }
    let other = whole.replacen(&whole[whole.find("own=").expect("there")..][..20], "own=0000000000000000", 1);
    let damaged = Found::Unusable(Unusable::Damaged);
    assert_eq!(Found::from_text(other.as_bytes()), damaged, "its own label is in its list");
    assert_eq!(Found::from_text(b"redlatch:fleet:1 \xff"), Found::Unusable(Unusable::Foreign));
    let reply = |reply| Found::from_reply(&reply);
    assert_eq!(reply(Reply::NullBulk), Ok(Found::Absent));
    assert_eq!(reply(Reply::Error(b"WRONGTYPE Operation")), Ok(Found::Unusable(Unusable::Foreign)));
    assert_eq!(reply(Reply::Error(b"NOPERM no")), Ok(Found::Unusable(Unusable::Refused("NOPERM no".into()))));
    assert_eq!(reply(Reply::Integer(1)), Err(WrongShape));
}

// I31
#[test]
fn clients_with_one_list_write_the_same() {
    let (first, second) = (names(&[0, 1, 2]), names(&[2, 0, 1]));
    let mut one = records(&config(3), &seen(&first, &["a", "b", "c"]));
    let mut other = records(&config(3), &seen(&second, &["c", "a", "b"]));
    one.sort_by_key(|record| record.own);
    other.sort_by_key(|record| record.own);
    assert_eq!(one, other);
}

#[test]
fn each_shared_setting_is_compared() {
    let names = names(&[0, 1, 2]);
    let masters = seen(&names, &["a", "b", "c"]);
    let record = records(&config(3), &masters).remove(0);
    let with = |builder: crate::ConfigBuilder| builder.masters(&names).build().expect("valid");
    let secs = Duration::from_secs;
    assert_eq!(record.difference(&config(3), &masters), None);
    assert_eq!(
        record.difference(&with(Config::builder().max_ttl(secs(10))), &masters),
        Some(FleetDifference::MaxTtl { recorded: secs(30), ours: secs(10) })
    );
    assert_eq!(
        record.difference(&with(Config::builder().drift_ppm(20_000)), &masters),
        Some(FleetDifference::DriftPpm { recorded: 10_000, ours: 20_000 })
    );
    assert_eq!(
        record.difference(&config(2), &masters[..2]),
        Some(FleetDifference::MasterCount { recorded: 3, ours: 2 })
    );
}

// I31
#[test]
fn a_master_is_known_by_label_or_address() {
    let config = config(3);
    let (old, run_ids) = (names(&[0, 1, 2]), ["a", "b", "c"]);
    let written: Vec<_> = records(&config, &seen(&old, &run_ids)).into_iter().map(Found::Known).collect();
    let difference = |names: &[String], found: [&Found; 3], run_ids: [&str; 3]| {
        let seen: Vec<_> = (0..3)
            .map(|place| Seen { name: &names[place], found: found[place], run_id: Some(run_ids[place]) })
            .collect();
        written[0].record().expect("written").difference(&config, &seen)
    };
    let [a, b, c] = [&written[0], &written[1], &written[2]];
    assert_eq!(difference(&old, [a, b, c], ["a", "x", "y"]), None, "processes change");
    assert_eq!(difference(&names(&[0, 8, 9]), [a, b, c], run_ids), None, "addresses change");
    assert_eq!(difference(&old, [a, b, &Found::Absent], ["a", "b", "y"]), None, "it restarted empty");
    let moved = names(&[0, 1, 9]);
    let missing = |found| difference(&moved, [a, b, found], ["a", "b", "y"]);
    let id = written[0].record().expect("written").id();
    let other = Some(FleetDifference::Masters { recorded: id, missing: (*moved[2]).into() });
    assert_eq!(missing(&Found::Absent), other, "another master");
    let theirs = names(&[9, 7, 8]);
    let theirs = Found::Known(records(&config, &seen(&theirs, &["y", "w", "z"])).remove(0));
    assert_eq!(missing(&theirs), other, "a master of another fleet");
    assert_eq!(missing(a), other, "a copy of the first one in place of the third");
    let new = &Found::Absent;
    assert_eq!(
        difference(&old, [b, new, c], ["x", "y", "c"]),
        None,
        "the second one moved, and the first is gone"
    );
    let unknown: Vec<_> =
        (0..3).map(|place| Seen { name: &moved[place], found: &Found::Unread, run_id: None }).collect();
    assert_eq!(written[0].record().expect("written").difference(&config, &unknown), None, "not known yet");
}

// I34
#[test]
fn a_new_process_is_the_one_that_is_named() {
    let (config, names) = (config(1), names(&[0]));
    let record = records(&config, &seen(&names, &["a"])).remove(0);
    assert!(!Found::Known(record.clone()).is_new(&names[0], Some("a")));
    let new = Found::Known(record.with_new("a"));
    let is_new = |run_id| new.is_new(&names[0], run_id);
    assert_eq!([Some("a"), Some("b"), None].map(is_new), [true, false, false]);
    assert!(!new.is_new("redis://m1:6379", Some("a")), "it is a master of another list");
    let name = names[0].as_str().into();
    let mut learnt = Learnt { name, record: new, run_id: Some("a".into()), ..Learnt::default() };
    assert!(learnt.is_new());
    learnt.replication.promotion = Some(7);
    assert!(!learnt.is_new(), "it lost what it had before it was promoted");
}
