//! A fleet's record: who writes it, what is compared, and the effects of a damaged or foreign record.

use redlatch::status::{FleetDifference, MasterState, Unusable, Warning};
use redlatch::{ConfigBuilder, Event, Quarantine, limits};

use crate::resync::fill_outbox;
use crate::rig::{Rig, id};
use crate::stats::stats;
use crate::{denied, granted, ms};

pub(crate) const RECORD: &[u8] = b"p:redlatch:fleet";

pub(crate) fn prefixed(builder: ConfigBuilder) -> ConfigBuilder {
    builder.prefix("p:").max_ttl(ms(10_000))
}

fn observed(builder: ConfigBuilder) -> ConfigBuilder {
    prefixed(builder).on_event(|_| unreachable!("an engine does not call it"))
}

/// Records of all masters.
fn records(rig: &Rig) -> Vec<Option<String>> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("ASCII");
    rig.masters.iter().map(|master| master.value(rig.now, RECORD).map(text)).collect()
}

/// Differences that the masters' warnings name.
fn differences(rig: &Rig) -> Vec<Option<FleetDifference>> {
    let difference = |warning| match warning {
        Warning::FleetDiffers { difference } => Some(difference),
        _ => None,
    };
    let of = |master| rig.engine.master_status(rig.now, master).warnings.into_iter().find_map(difference);
    rig.engine.masters().map(of).collect()
}

fn reasons(rig: &Rig) -> Vec<Unusable> {
    let reason = |warning| match warning {
        Warning::NoFleetRecord { why } => Some(why),
        _ => None,
    };
    rig.engine.master_status(rig.now, id(0)).warnings.into_iter().filter_map(reason).collect()
}

fn has_lock(rig: &mut Rig) -> bool {
    let lock = rig.acquire("a", 1000, 0);
    granted(rig);
    rig.release(lock, false);
    true
}

/// A second client of the same masters, at the same time. [`give_back`] returns the masters.
fn second(
    rig: &mut Rig,
    urls: &[&str],
    masters: &[usize],
    settings: impl FnOnce(ConfigBuilder) -> ConfigBuilder,
) -> Rig {
    let mut second = Rig::with_urls(urls.iter().map(|url| (*url).to_owned()).collect(), settings);
    for (place, master) in masters.iter().enumerate() {
        std::mem::swap(&mut second.masters[place], &mut rig.masters[*master]);
    }
    second.jump(rig.now.saturating_duration_since(second.now));
    second.pump();
    second
}

/// Each master's answer allows a write to all masters, and some writes are already under way.
#[test]
fn each_absent_record_is_written_once() {
    let rig = Rig::new(5, prefixed);
    for master in &rig.masters {
        let is_write = |words: &&Vec<Vec<u8>>| words[0] == b"SET" && words[1] == RECORD;
        assert_eq!(master.log.iter().filter(is_write).count(), 1);
    }
}

#[test]
fn the_first_client_records_its_settings() {
    let mut rig = Rig::new(3, prefixed);
    let written = records(&rig);
    for record in &written {
        let record = record.as_ref().expect("written at once");
        assert!(
            record.starts_with("redlatch:fleet:1 observed max_ttl_ms=10000 drift_ppm=10000 own="),
            "{record}"
        );
        assert!(!record.contains("m0") && !record.contains("run0"), "{record}");
    }
    assert_eq!(rig.masters[0].value(rig.now, b"redlatch:fleet"), None, "behind the prefix only");
    let second = second(&mut rig, &["redis://m0", "redis://m1", "redis://m2"], &[0, 1, 2], prefixed);
    assert_eq!((records(&second), differences(&second)), (written, vec![None; 3]));
}

#[test]
fn unreadable_record_is_reported_as_refused() {
    let mut rig = Rig::unconnected(1, prefixed);
    rig.masters[0].errors.insert("GET p:redlatch:fleet".into(), "NOPERM x".into());
    rig.pump();
    let refused = rig.engine.master_status(rig.now, id(0)).refused;
    assert!(refused.iter().any(|(_, text)| &**text == "NOPERM x"), "{refused:?}");
}

#[test]
fn the_handshake_has_one_command_more() {
    let rig = Rig::new(1, prefixed);
    let of_record = rig.masters[0].log.iter().filter(|args| args.len() > 1 && args[1] == RECORD);
    let names: Vec<_> = of_record.map(|args| String::from_utf8_lossy(&args[0]).into_owned()).collect();
    assert_eq!(names, ["GET", "SET", "GET"], "read, written where there was none, and read");
}

// I30
#[test]
fn a_second_maximum_ttl_is_noticed_at_once() {
    let mut rig = Rig::new(3, prefixed);
    let urls = ["redis://m0", "redis://m1", "redis://m2"];
    let before = records(&rig);
    let mut second = second(&mut rig, &urls, &[0, 1, 2], |builder| observed(builder).max_ttl(ms(9000)));
    let difference = FleetDifference::MaxTtl { recorded: ms(10_000), ours: ms(9000) };
    assert_eq!(differences(&second), vec![Some(difference.clone()); 3]);
    let events: Vec<_> = std::iter::from_fn(|| second.engine.poll_event())
        .filter(|event| matches!(event, Event::FleetDiffers { .. }))
        .collect();
    let event = |index: usize| Event::FleetDiffers {
        master: format!("redis://m{index}:6379").into(),
        difference: difference.clone(),
    };
    assert_eq!(events, [event(0), event(1), event(2)], "once for each master");
    assert_eq!(stats(&second).masters.iter().map(|it| it.fleet_differences).collect::<Vec<_>>(), [1, 1, 1]);
    assert_eq!(records(&second), before, "nothing is overwritten");
    assert!(has_lock(&mut second), "exclusion and ordinary use go on");
    // A reconnect that finds the same difference reports nothing.
    second.reset_conn(0);
    second.run_for(limits::BACKOFF_MAX);
    assert_eq!(stats(&second).masters[0].fleet_differences, 1);
}

#[test]
fn another_drift_and_count_are_noticed() {
    let mut rig = Rig::new(3, prefixed);
    let urls = ["redis://m0", "redis://m1", "redis://m2"];
    let mut other = second(&mut rig, &urls, &[0, 1, 2], |builder| prefixed(builder).drift_ppm(20_000));
    let drift = FleetDifference::DriftPpm { recorded: 10_000, ours: 20_000 };
    assert_eq!(differences(&other), vec![Some(drift); 3]);
    let fewer = second(&mut other, &urls[..2], &[0, 1], prefixed);
    assert_eq!(differences(&fewer), vec![Some(FleetDifference::MasterCount { recorded: 3, ours: 2 }); 2]);
}

// I30
#[test]
fn two_lists_that_share_a_master_are_noticed() {
    let mut rig = Rig::new(3, prefixed);
    // The middle master belongs to the other fleet; the others are new.
    let mut second =
        Rig::with_urls(["redis://m8", "redis://m1", "redis://m9"].map(str::to_owned).to_vec(), prefixed);
    second.masters[0].run_id = "other8".to_owned();
    second.masters[2].run_id = "other9".to_owned();
    std::mem::swap(&mut second.masters[1], &mut rig.masters[1]);
    second.jump(rig.now.saturating_duration_since(second.now));
    second.pump();
    let found = differences(&second);
    assert!(
        matches!(&found[1], Some(FleetDifference::Masters { missing, .. }) if &**missing == "redis://m8:6379"),
        "{found:?}"
    );
    assert_eq!(records(&second)[0], None, "who finds a difference writes nothing");
    assert!(has_lock(&mut second));
}

#[test]
fn a_restart_without_data_is_no_difference() {
    let mut rig = Rig::new(3, |builder| prefixed(builder).quarantine(Quarantine::Trust));
    rig.refuse(1, true);
    rig.reset_conn(1);
    let now = rig.now;
    rig.masters[1].restart("another", now);
    rig.refuse(1, false);
    rig.run_for(limits::BACKOFF_MAX);
    assert_eq!(differences(&rig), vec![None; 3]);
    assert!(records(&rig)[1].is_some(), "it has a record again");
    let urls = ["redis://m0", "redis://m1", "redis://m2"];
    let second = second(&mut rig, &urls, &[0, 1, 2], prefixed);
    assert_eq!(differences(&second), vec![None; 3]);
}

#[test]
fn a_master_may_change_its_address() {
    let mut rig = Rig::new(3, prefixed);
    let urls = ["redis://m0", "redis://n1", "redis://n2"];
    let second = second(&mut rig, &urls, &[0, 1, 2], prefixed);
    assert_eq!(differences(&second), vec![None; 3]);
}

/// This version cannot compare a later version's record.
#[test]
fn newer_record_prevents_all_writes() {
    let mut rig = Rig::unconnected(3, prefixed);
    rig.masters[0].put(RECORD, b"redlatch:fleet:2 of a later version", None);
    rig.pump();
    rig.run_for(ms(121_000));
    assert_eq!((&reasons(&rig)[..], &records(&rig)[1..]), (&[Unusable::Newer][..], &[None, None][..]));
}

// I31
#[test]
fn no_part_of_a_list_is_written() {
    let urls = ["redis://m0", "redis://m1", "redis://m2"];
    let mut one = Rig::unconnected(3, prefixed);
    one.stop_master(2);
    one.pump();
    assert_eq!(records(&one), [None, None, None]);
    let other = second(&mut one, &urls, &[0, 1, 2], prefixed);
    let written = records(&other);
    let mut one = second_back(one, other);
    one.resume_master(2);
    one.pump();
    assert_eq!((records(&one), differences(&one)), (written, vec![None; 3]));
}

/// The first client with the second client's masters.
fn second_back(mut one: Rig, mut other: Rig) -> Rig {
    std::mem::swap(&mut one.masters, &mut other.masters);
    one
}

// I31
#[test]
fn no_record_is_written_before_all_masters_count() {
    let mut rig = Rig::unconnected(3, prefixed);
    // Two masters restarted, one of them later.
    let now = rig.now;
    rig.masters[1].restart("one", now);
    rig.masters[2].restart("two", now + ms(2_000));
    rig.now += ms(2_000);
    rig.pump();
    let left = [1, 2].map(|index| match rig.engine.master_status(rig.now, id(index)).state {
        MasterState::Quarantined(left) => left,
        state => panic!("it has just started: {state:?}"),
    });
    assert!(left[0] < left[1], "{left:?}");
    rig.run_for(left[1] - ms(1));
    assert_eq!(records(&rig), [None, None, None]);
    rig.run_for(ms(60_000));
    assert!(records(&rig).iter().all(Option::is_some));
}

/// Puts a declared record with these settings on these masters.
fn put_declared(rig: &mut Rig, masters: &[usize], from: &str, to: &str) {
    for master in masters {
        let record = records(rig)[*master].clone().expect("written");
        let declared = record.replace("observed", "declared").replace(from, to);
        rig.masters[*master].put(RECORD, declared.as_bytes(), None);
    }
}

fn quarantine(rig: &Rig, master: usize) -> Option<std::time::Duration> {
    match rig.engine.master_status(rig.now, id(master)).state {
        MasterState::Quarantined(left) => Some(left),
        _ => None,
    }
}

// I33
#[test]
fn declared_shorter_ttl_shortens_no_quarantine() {
    let mut rig = Rig::new(3, prefixed);
    put_declared(&mut rig, &[0, 1, 2], "max_ttl_ms=10000", "max_ttl_ms=900");
    let now = rig.now;
    rig.masters[1].restart("again", now);
    rig.now += ms(2000);
    let other = second(&mut rig, &["redis://m0", "redis://m1", "redis://m2"], &[0, 1, 2], prefixed);
    assert_eq!(quarantine(&other, 1), Some(ms(9102)));
}

// I33
#[test]
fn record_is_read_again_once_a_minute() {
    let mut rig = Rig::new(3, prefixed);
    let now = rig.now;
    rig.reset_conn(2);
    rig.masters[2].restart("again", now);
    rig.run_for(ms(11_000));
    assert_eq!(quarantine(&rig, 2), None);
    put_declared(&mut rig, &[0], "max_ttl_ms=10000", "max_ttl_ms=100000");
    rig.run_for(ms(60_000));
    let difference = FleetDifference::MaxTtl { recorded: ms(100_000), ours: ms(10_000) };
    assert_eq!(differences(&rig)[0], Some(difference));
    // Counted from the first sight of the process, not from now.
    let left = quarantine(&rig, 2).expect("locks of 100 s may be forgotten");
    assert!(left < ms(40_000), "{left:?}");
    put_declared(&mut rig, &[0], "max_ttl_ms=100000", "max_ttl_ms=10000");
    rig.run_for(ms(61_000));
    assert_eq!((differences(&rig), quarantine(&rig, 2)), (vec![None; 3], None));
}

/// A long script may run on the master when it is asked.
#[test]
fn record_that_is_not_answered_is_kept() {
    let mut rig = Rig::new(3, prefixed);
    put_declared(&mut rig, &[0, 1], "max_ttl_ms=10000", "max_ttl_ms=300000");
    rig.run_for(ms(60_000));
    let now = rig.now;
    rig.reset_conn(2);
    rig.masters[2].restart("again", now);
    rig.run_for(limits::BACKOFF_MAX);
    let before = quarantine(&rig, 2).expect("it forgot locks of 300 s");
    for master in &mut rig.masters[..2] {
        master.errors.insert("GET p:redlatch:fleet".into(), "BUSY Redis is busy running a script.".into());
    }
    rig.run_for(ms(61_000));
    assert_eq!(quarantine(&rig, 2), Some(before - ms(61_000)));
}

#[test]
fn record_without_room_is_read_later() {
    let mut rig = Rig::new(3, prefixed);
    rig.run_for(ms(59_995));
    fill_outbox(&mut rig, 0);
    rig.jump(ms(6));
    rig.engine.handle_timeout(rig.now);
    rig.pump();
    put_declared(&mut rig, &[0], "max_ttl_ms=10000", "max_ttl_ms=100000");
    rig.run_for(ms(61_000));
    assert!(differences(&rig)[0].is_some());
}

/// The other masters were declared anew less than a minute ago.
// I33
#[test]
fn restarted_master_has_the_other_records_read() {
    let mut rig = Rig::new(3, prefixed);
    put_declared(&mut rig, &[0, 2], "max_ttl_ms=10000", "max_ttl_ms=20000");
    let now = rig.now;
    rig.reset_conn(1);
    rig.masters[1].restart("again", now);
    rig.run_for(limits::BACKOFF_MAX);
    assert!(quarantine(&rig, 1).is_some_and(|left| left > ms(15_000)));
}

/// The client knows the other masters only by their labels.
// I31
#[test]
fn client_behind_a_port_keeps_labels_and_addresses() {
    let mut rig = Rig::new(3, |builder| prefixed(builder).quarantine(Quarantine::Trust));
    let before = records(&rig);
    rig.masters[1].data.delete(rig.now, RECORD);
    let urls = ["redis://port:1", "redis://port:2", "redis://port:3"];
    let other = second(&mut rig, &urls, &[0, 1, 2], prefixed);
    assert_eq!(records(&other), before);
}

// I32
#[test]
fn strict_client_stays_where_settings_are_declared_anew() {
    let mut rig = Rig::new(3, |builder| prefixed(builder).quarantine(Quarantine::Strict));
    rig.run_for(ms(71_000));
    put_declared(&mut rig, &[0, 1, 2], "max_ttl_ms=10000", "max_ttl_ms=9000");
    rig.run_for(ms(61_000));
    let difference = FleetDifference::MaxTtl { recorded: ms(9000), ours: ms(10_000) };
    assert_eq!(differences(&rig), vec![Some(difference); 3]);
    assert!(has_lock(&mut rig), "over the connections that it has");
    rig.reset_conn(0);
    rig.run_for(limits::BACKOFF_MAX);
    assert!(matches!(rig.engine.master_status(rig.now, id(0)).state, MasterState::Down(_)));
    assert!(has_lock(&mut rig), "the others stay");
}

// I30
#[test]
fn unusable_records_are_named_and_stay() {
    for (text, why) in [
        (b"theirs".as_slice(), Unusable::Foreign),
        (b"redlatch:fleet:1 observed", Unusable::Damaged),
        (b"redlatch:fleet:2 whatever comes", Unusable::Newer),
    ] {
        let mut rig = Rig::unconnected(1, prefixed);
        rig.masters[0].put(RECORD, text, None);
        rig.pump();
        assert_eq!(reasons(&rig), [why]);
        assert_eq!(records(&rig), [Some(String::from_utf8_lossy(text).into_owned())]);
        assert!(has_lock(&mut rig));
    }
    let mut rig = Rig::unconnected(1, prefixed);
    rig.masters[0].put_list(RECORD);
    rig.pump();
    assert_eq!(reasons(&rig), [Unusable::Foreign]);
    assert!(has_lock(&mut rig));
}

// I30
#[test]
fn a_login_without_rights_locks_all_the_same() {
    let mut rig = Rig::unconnected(1, prefixed);
    let refusal = "NOPERM No permissions to access a key";
    rig.masters[0].errors.insert("GET p:redlatch:fleet".to_owned(), refusal.to_owned());
    rig.pump();
    assert_eq!(reasons(&rig), [Unusable::Refused(refusal.into())]);
    assert!(has_lock(&mut rig));
    let mut rig = Rig::unconnected(1, prefixed);
    rig.masters[0].errors.insert("SET p:redlatch:fleet".to_owned(), refusal.to_owned());
    rig.pump();
    assert_eq!((records(&rig), reasons(&rig)), (vec![None], vec![]));
    assert!(has_lock(&mut rig));
    let asked = rig.masters[0].log.len();
    rig.run_for(ms(59_000));
    assert_eq!(rig.masters[0].log.len(), asked, "it is not tried again at once");
    rig.masters[0].errors.clear();
    rig.run_for(ms(1000));
    assert!(records(&rig)[0].is_some());
}

#[test]
fn a_record_that_was_corrected_ends_the_warning() {
    let mut rig = Rig::new(1, prefixed);
    let settings = |builder| prefixed(builder).max_ttl(ms(9000));
    let mut second = second(&mut rig, &["redis://m0"], &[0], settings);
    assert!(differences(&second)[0].is_some());
    second.masters[0].data.delete(second.now, RECORD);
    second.run_for(ms(60_000));
    assert_eq!(differences(&second), [None]);
    let record = records(&second)[0].clone().expect("it is written anew");
    assert!(record.contains("max_ttl_ms=9000"), "{record}");
}

/// Declares each existing record.
fn declare(rig: &mut Rig) {
    for (index, record) in records(rig).into_iter().enumerate() {
        let declared = record.expect("written").replace("observed", "declared");
        rig.masters[index].put(RECORD, declared.as_bytes(), None);
    }
}

#[test]
fn strict_mode_refuses_newly_declared_settings() {
    let mut rig = Rig::new(3, |builder| prefixed(builder).quarantine(Quarantine::Strict));
    rig.run_for(ms(61_000));
    let declared = records(&rig)[0].clone().expect("written").replace("observed", "declared");
    // Each master has a record, which is read again after a minute.
    for master in &mut rig.masters {
        master.put(RECORD, b"redlatch:fleet:1 observed", None);
    }
    (0..3).for_each(|index| drop(rig.break_conn(index)));
    rig.run_for(ms(1000));
    assert!(has_lock(&mut rig), "they count");
    let text = declared.replace("max_ttl_ms=10000", "max_ttl_ms=9000");
    rig.masters[2].put(RECORD, text.as_bytes(), None);
    rig.run_for(ms(61_000));
    let state = rig.engine.master_status(rig.now, id(2)).state;
    assert!(matches!(state, MasterState::Down(_)), "{state:?}");
    assert!(has_lock(&mut rig), "the others count");
}

/// Nothing that was queued for this master would ever be answered.
#[test]
fn a_refused_master_is_sent_nothing() {
    let mut rig = Rig::new(3, |builder| prefixed(builder).quarantine(Quarantine::Strict));
    rig.run_for(ms(61_000));
    rig.masters.iter_mut().for_each(|master| master.put(b"p:a", b"other", None));
    rig.stop_master(2);
    rig.break_conn(2);
    rig.acquire("a", 10_000, 60_000);
    let text = records(&rig)[2].clone().expect("written").replace("observed", "declared");
    let text = text.replace("max_ttl_ms=10000", "max_ttl_ms=9000");
    rig.masters[2].put(RECORD, text.as_bytes(), None);
    rig.resume_master(2);
    rig.run_for(limits::BACKOFF_MAX);
    let state = rig.engine.master_status(rig.now, id(2)).state;
    assert!(matches!(state, MasterState::Down(_)), "{state:?}");
    assert_eq!(rig.engine.owed_count(id(2)), 0, "the attempt of the caller that waits");
}

// I32
#[test]
fn strict_mode_refuses_another_declared_list() {
    let mut rig = Rig::new(3, prefixed);
    declare(&mut rig);
    let urls = ["redis://m0", "redis://m8", "redis://m9"];
    let mut second = Rig::with_urls(urls.map(str::to_owned).to_vec(), |builder| {
        prefixed(builder).quarantine(Quarantine::Strict)
    });
    second.masters[1].run_id = "other8".to_owned();
    second.masters[2].run_id = "other9".to_owned();
    std::mem::swap(&mut second.masters[0], &mut rig.masters[0]);
    second.jump(rig.now.saturating_duration_since(second.now));
    // The shared master comes first, and shows the difference only together with another master.
    second.stop_master(1);
    second.stop_master(2);
    second.pump();
    assert!(matches!(second.engine.master_status(second.now, id(0)).state, MasterState::Quarantined(_)));
    second.resume_master(1);
    second.pump();
    let MasterState::Down(why) = second.engine.master_status(second.now, id(0)).state else {
        panic!("it is counted")
    };
    assert!(why.contains("other masters"), "{why}");
}

#[test]
fn only_new_masters_are_offered_a_declaration() {
    let advice = "For new, empty masters: redlatch fleet init";
    let text = |rig: &mut Rig| {
        rig.acquire("a", 1000, 0);
        denied(rig).to_string()
    };
    let fresh = || {
        let mut rig = Rig::unconnected(3, prefixed);
        let now = rig.now;
        (0..3).for_each(|index| rig.masters[index].restart(&format!("new{index}"), now));
        rig
    };
    let mut rig = fresh();
    rig.pump();
    assert!(text(&mut rig).contains(advice));
    // A master with a record was in use, and so was a master that restarted while this client watched.
    let mut used = fresh();
    used.masters[1].put(RECORD, b"anything", None);
    used.pump();
    assert!(!text(&mut used).contains(advice));
    let mut copied = fresh();
    copied.masters[1].role = "slave".to_owned();
    copied.pump();
    assert!(!text(&mut copied).contains(advice), "nor is a replica new");
    rig.reset_conn(2);
    let now = rig.now;
    rig.masters[2].restart("again", now);
    rig.run_for(limits::BACKOFF_MAX);
    assert!(!text(&mut rig).contains(advice));
}

/// The master's record is read again after a minute.
#[test]
fn silent_master_is_closed_before_reading_its_record() {
    let mut rig = Rig::unconnected(1, prefixed);
    rig.masters[0].put(RECORD, b"theirs", None);
    rig.pump();
    rig.stop_master(0);
    rig.acquire("a", 10_000, 0);
    rig.run_for(ms(100));
    denied(&mut rig);
    rig.refuse(0, true);
    rig.run_for(limits::SILENCE_MAX);
    let state = rig.engine.master_status(rig.now, id(0)).state;
    assert!(matches!(state, MasterState::Down(_)), "{state:?}");
}
