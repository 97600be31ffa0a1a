//! Strict mode: how a master's vote comes to count, through this client's watch or another client's mark.
//! Also how each mode treats a master whose process has changed.

use std::time::{Duration, Instant};

use crate::rig::{Rig, id};
use redlatch::error::{Failure, Vote};
use redlatch::status::{MasterState, MasterStatus, Warning};
use redlatch::{ConfigBuilder, Event, Quarantine};

use crate::{granted, ms, no_quorum};

const MARK: &[u8] = b"p:redlatch:mark";

/// The quarantine of a `max_ttl` of 10 s: 1 % and 2 ms more.
const WATCH: Duration = ms(10_102);

const TICK: Duration = Duration::from_nanos(1);

fn strict(builder: ConfigBuilder) -> ConfigBuilder {
    builder.max_ttl(ms(10_000)).prefix("p:").quarantine(Quarantine::Strict)
}

fn uptime(builder: ConfigBuilder) -> ConfigBuilder {
    builder.max_ttl(ms(10_000)).prefix("p:")
}

fn shown(warnings: &[Warning]) -> String {
    warnings.iter().map(Warning::to_string).collect::<Vec<_>>().join("; ")
}

fn status(rig: &Rig) -> MasterStatus {
    rig.engine.master_status(rig.now, id(0))
}

/// Why the only master is not connected.
#[track_caller]
fn why_down(rig: &Rig) -> String {
    match status(rig).state {
        MasterState::Down(why) => why.to_string(),
        other => panic!("{other:?}"),
    }
}

/// When the only master's votes count, according to the engine.
#[track_caller]
fn quarantine_end(rig: &Rig) -> Instant {
    match status(rig).state {
        MasterState::Quarantined(left) => rig.now + left,
        other => panic!("{other:?}"),
    }
}

/// Marks written on the only master so far.
fn marks_written(rig: &Rig) -> Vec<String> {
    let writes = rig.masters[0].log.iter().filter(|args| args.len() > 2 && args[..2] == [b"SET", MARK]);
    writes.map(|args| shown_mark(&args[2])).collect()
}

/// Process and watch of a mark.
fn shown_mark(mark: &[u8]) -> String {
    let words: Vec<_> = mark.split(|byte| *byte == b' ').map(String::from_utf8_lossy).collect();
    assert_eq!(words.len(), 4, "{words:?}");
    format!("{} {}", words[0], words[3])
}

/// The first master's mark, as `shown_mark` shows it.
fn mark_at(rig: &Rig, now: Instant) -> Option<String> {
    rig.masters[0].value(now, MARK).map(shown_mark)
}

/// Whether the only master grants this lock. Releases it if so.
fn counts(rig: &mut Rig, resource: &str) -> bool {
    let lock = rig.acquire(resource, 1000, 0);
    if status(rig).state == MasterState::Ready {
        granted(rig);
        rig.release(lock, false);
        return true;
    }
    no_quorum(rig);
    false
}

/// Breaks the connection, changes the master, and waits for the next connection.
fn reconnect_after(rig: &mut Rig, change: impl FnOnce(&mut Rig)) {
    rig.refuse(0, true);
    rig.reset_conn(0);
    change(rig);
    rig.refuse(0, false);
    // Longer than any pause between two connection attempts.
    rig.run_for(redlatch::limits::BACKOFF_MAX);
}

/// A separate client of the same master, which it takes from the first client.
fn second_client(rig: &mut Rig, settings: impl FnOnce(ConfigBuilder) -> ConfigBuilder) -> Rig {
    let mut second = Rig::unconnected(1, settings);
    std::mem::swap(&mut second.masters, &mut rig.masters);
    second.jump(rig.now.saturating_duration_since(second.now));
    second
}

// ---- the watch ----

#[test]
fn a_master_counts_after_the_whole_watch_exactly() {
    // An uptime of an hour proves nothing.
    let mut rig = Rig::new(1, strict);
    rig.run_for(WATCH - TICK);
    rig.acquire("a", 1000, 0);
    let denial = no_quorum(&mut rig);
    assert_eq!(denial.report.votes[0].1, Vote::Failed(Failure::Quarantined { left: TICK, is_new: false }));
    rig.run_for(TICK);
    assert!(counts(&mut rig, "b"));
}

#[test]
fn a_reconnect_continues_the_watch() {
    let mut rig = Rig::new(1, strict);
    let end = rig.now + WATCH;
    rig.run_for(ms(5000));
    reconnect_after(&mut rig, |_| {});
    assert_eq!(quarantine_end(&rig), end);
    rig.run_for(end - rig.now);
    assert!(counts(&mut rig, "a"));
    assert_eq!(marks_written(&rig), ["run0 10102"]);
}

#[test]
fn a_watch_may_end_while_disconnected() {
    let mut rig = Rig::new(1, strict);
    reconnect_after(&mut rig, |rig| rig.run_for(WATCH));
    assert!(counts(&mut rig, "a"));
    assert_eq!(marks_written(&rig), ["run0 10102"]);
}

#[test]
fn a_restart_starts_the_watch_anew() {
    let mut rig = Rig::new(1, strict);
    rig.run_for(WATCH);
    assert!(counts(&mut rig, "a"));
    reconnect_after(&mut rig, |rig| rig.masters[0].restart("run0b", rig.now));
    assert!(quarantine_end(&rig) > rig.now + WATCH - ms(2001));
    assert!(!counts(&mut rig, "a"));
    let left = quarantine_end(&rig) - rig.now;
    rig.run_for(left);
    assert!(counts(&mut rig, "b"));
    assert_eq!(marks_written(&rig), ["run0 10102", "run0b 10102"]);
}

// ---- the mark ----

#[test]
fn the_mark_is_written_once_after_the_watch() {
    let mut rig = Rig::new(1, strict);
    rig.run_for(WATCH - TICK);
    assert_eq!(marks_written(&rig), [""; 0]);
    let (at, _) = rig.engine.next_timeout().expect("the end of the watch");
    assert_eq!(at, rig.now + TICK, "nobody has to call before");
    rig.run_for(TICK);
    assert_eq!(marks_written(&rig), ["run0 10102"]);
    assert_eq!(rig.engine.owed_count(id(0)), 0);
    assert_eq!(mark_at(&rig, rig.now + ms(1 << 40)).as_deref(), Some("run0 10102"), "no TTL");
    let handshakes = |rig: &Rig| rig.masters[0].log.iter().filter(|args| args[0] == b"ECHO").count();
    assert_eq!(handshakes(&rig), 1);
    rig.run_for(WATCH * 3);
    reconnect_after(&mut rig, |_| {});
    rig.run_for(WATCH);
    assert_eq!((handshakes(&rig), marks_written(&rig).len()), (2, 1));
}

#[test]
fn a_busy_master_is_marked_a_second_later() {
    let mut rig = Rig::new(1, strict);
    rig.masters[0].errors.insert("GET p:redlatch:mark".into(), "BUSY Redis is busy running a script.".into());
    let end = quarantine_end(&rig);
    rig.run_for(end - rig.now + ms(500));
    assert_eq!(mark_at(&rig, rig.now), None);
    rig.masters[0].errors.clear();
    rig.run_for(ms(600));
    assert!(mark_at(&rig, rig.now).is_some());
}

#[test]
fn reply_to_the_mark_is_matched_in_order() {
    let mut rig = Rig::new(1, strict);
    rig.stall_replies(0);
    rig.run_for(WATCH);
    assert_eq!((rig.engine.owed_count(id(0)), marks_written(&rig).len()), (1, 0), "read first");
    let lock = rig.submit_acquire("a", 1000, 0);
    rig.end_stall(0);
    granted(&mut rig);
    assert_eq!((rig.engine.owed_count(id(0)), marks_written(&rig).len()), (0, 1));
    rig.release(lock, true);
}

#[test]
fn other_modes_write_no_mark_after_a_watch() {
    for (mode, reads) in [(Quarantine::Uptime, 1), (Quarantine::Trust, 0)] {
        let mut rig = Rig::new(1, |builder| uptime(builder).quarantine(mode));
        rig.run_for(WATCH * 2);
        let touched = rig.masters[0].log.iter().filter(|args| args.get(1).is_some_and(|key| key == MARK));
        let words: Vec<_> = touched.map(|args| args[0].clone()).collect();
        assert_eq!(words, vec![b"GET".to_vec(); reads], "{mode:?}");
    }
}

#[test]
fn an_unfit_mark_is_ignored_and_overwritten() {
    for mark in ["run1 - - 99999", "run0 - - 10101"] {
        let mut rig = Rig::unconnected(1, strict);
        rig.masters[0].put(MARK, mark.as_bytes(), None);
        rig.pump();
        assert_eq!(quarantine_end(&rig), rig.now + WATCH, "{mark}");
        assert!(!counts(&mut rig, "a"), "{mark}");
        rig.run_for(WATCH);
        assert!(counts(&mut rig, "b"), "{mark}");
        assert_eq!(marks_written(&rig), ["run0 10102"], "{mark}");
    }
}

// I29
#[test]
fn foreign_value_at_the_mark_is_kept() {
    for mark in [Some("run0"), Some("run0 - - "), Some("10102"), Some("run0 - - -10102"), Some(""), None] {
        let mut rig = Rig::unconnected(1, strict);
        match mark {
            Some(mark) => rig.masters[0].put(MARK, mark.as_bytes(), None),
            None => rig.masters[0].put_list(MARK),
        }
        rig.pump();
        assert_eq!(quarantine_end(&rig), rig.now + WATCH, "{mark:?}");
        rig.run_for(WATCH);
        assert!(counts(&mut rig, "a"), "{mark:?}");
        assert_eq!(marks_written(&rig), [""; 0], "{mark:?}");
        let refused = status(&rig).refused;
        assert!(refused.iter().any(|(_, text)| text.contains("is no mark")), "{mark:?}: {refused:?}");
    }
}

#[test]
fn a_mark_of_enough_time_counts() {
    for mark in ["run0 - - 10102", "run0 - - 604800000"] {
        let mut rig = Rig::unconnected(1, strict);
        rig.masters[0].put(MARK, mark.as_bytes(), None);
        rig.pump();
        assert!(counts(&mut rig, "a"), "{mark}");
    }
}

#[test]
fn a_snapshots_old_mark_does_not_count() {
    let mut rig = Rig::new(1, strict);
    rig.run_for(WATCH);
    assert!(counts(&mut rig, "a"));
    rig.reset_conn(0);
    rig.masters[0].restart_from_snapshot("run0b", rig.now);
    assert_eq!(mark_at(&rig, rig.now).as_deref(), Some("run0 10102"));
    rig.run_for(redlatch::limits::BACKOFF_MAX);
    assert!(!counts(&mut rig, "b"), "by the client that has written it");
    let mut second = second_client(&mut rig, strict);
    second.pump();
    assert!(!counts(&mut second, "b"));
    second.run_for(WATCH - TICK);
    assert!(!counts(&mut second, "c"));
    second.run_for(TICK);
    assert!(counts(&mut second, "d"));
}

#[test]
fn a_longer_mark_is_never_overwritten() {
    let longer = |builder| strict(builder).max_ttl(ms(30_000));
    let mut rig = Rig::new(1, strict);
    // Written by another client that needs a longer watch.
    rig.masters[0].put(MARK, b"run0 - - 30302", None);
    rig.run_for(WATCH * 2);
    assert!(counts(&mut rig, "a"));
    assert_eq!(marks_written(&rig), [""; 0]);
    // Also if this client has read that there is no mark, but not written its own.
    let mut rig = Rig::new(1, strict);
    rig.stall_replies(0);
    rig.run_for(WATCH);
    rig.masters[0].put(MARK, b"run0 - - 30302", None);
    rig.end_stall(0);
    assert_eq!(marks_written(&rig).len(), 1, "it asks the master to write its own if there is none");
    assert_eq!(mark_at(&rig, rig.now).as_deref(), Some("run0 30302"));
    // A mark with a shorter watch is replaced.
    let mut rig = Rig::unconnected(1, longer);
    rig.masters[0].put(MARK, b"run0 - - 10102", None);
    rig.pump();
    rig.run_for(ms(30_301));
    assert!(!counts(&mut rig, "a") && marks_written(&rig).is_empty());
    rig.run_for(ms(1));
    assert!(counts(&mut rig, "b"));
    assert_eq!(marks_written(&rig), ["run0 30302"]);
}

#[test]
fn an_unusable_mark_is_reported_and_locks_work() {
    for (command, text) in [("SET", "SET of the mark"), ("GET", "GET of the mark")] {
        let mut rig = Rig::unconnected(1, strict);
        rig.masters[0].errors.insert(format!("{command} p:redlatch:mark"), "NOPERM no such key".into());
        rig.pump();
        rig.run_for(WATCH);
        assert!(counts(&mut rig, "a"), "{command}");
        assert_eq!(status(&rig).refused, [(text, "NOPERM no such key".into())]);
        let before = rig.masters[0].log.len();
        rig.run_for(WATCH * 3);
        assert_eq!(rig.masters[0].log.len(), before, "{command} is not tried again");
        assert_eq!(rig.masters[0].value(rig.now, MARK), None);
    }
}

#[test]
fn an_impossible_mark_ends_the_connection() {
    for (reading, reply) in [(true, b":1\r\n".as_slice()), (false, b":1\r\n"), (false, b"$2\r\nOK\r\n")] {
        let mut rig = Rig::new(1, strict);
        rig.run_for(WATCH - TICK);
        rig.stop_master(0);
        rig.refuse(0, true);
        rig.run_for(TICK);
        if !reading {
            rig.receive(0, b"$-1\r\n");
            rig.pump();
        }
        rig.receive(0, reply);
        assert!(why_down(&rig).contains("does not fit the request"), "{reading}: {}", why_down(&rig));
    }
}

#[test]
fn silence_ends_a_watched_connection_too() {
    let mut rig = Rig::unconnected(1, strict);
    rig.masters[0].put(MARK, b"run0 - - 1", None);
    rig.pump();
    rig.run_for(WATCH - ms(100));
    rig.stop_master(0);
    rig.acquire("a", 10_000, 0);
    rig.run_for(ms(200));
    assert_eq!(status(&rig).state, MasterState::Silent);
    rig.refuse(0, true);
    rig.run_for(redlatch::limits::SILENCE_MAX);
    rig.pump();
    assert!(matches!(status(&rig).state, MasterState::Down(_)));
}

// ---- what strict mode refuses ----

// I40
#[test]
fn strict_mode_refuses_unfit_masters_with_advice() {
    type Fault = fn(&mut Rig);
    let rows: [(Fault, &[&str]); 6] = [
        (|rig| rig.masters[0].role = "slave".into(), &["replica", "list its master"]),
        (|rig| rig.masters[0].maxmemory_policy = "volatile-ttl".into(), &["volatile-ttl", "set noeviction"]),
        (|rig| rig.masters[0].run_id.clear(), &["does not report its run_id,", "use a Redis"]),
        (|rig| rig.masters[0].role.clear(), &["does not report its role,", "use a Redis"]),
        (
            |rig| rig.masters[0].maxmemory_policy.clear(),
            &["does not report its maxmemory_policy,", "use a Redis"],
        ),
        (
            |rig| drop(rig.masters[0].errors.insert("INFO".into(), "NOPERM no info".into())),
            &["run_id, role, maxmemory_policy", "NOPERM no info", "+info"],
        ),
    ];
    for (fault, said) in rows {
        let mut rig = Rig::unconnected(1, strict);
        // A mark that any process would accept.
        rig.masters[0].put(MARK, b"run0 - - 99999", None);
        fault(&mut rig);
        rig.pump();
        let why = why_down(&rig);
        assert!(said.iter().all(|text| why.contains(text)), "{why}");
        rig.acquire("a", 1000, 0);
        let text = no_quorum(&mut rig).to_string();
        assert!(said.iter().all(|words| text.contains(words)), "{text}");
        // The client keeps trying, and is refused each time.
        let tried = |rig: &Rig| rig.masters[0].log.iter().filter(|args| args[0] == b"ECHO").count();
        let before = tried(&rig);
        rig.run_for(ms(60_000));
        assert!(tried(&rig) > before + 20 && marks_written(&rig).is_empty(), "{why}");
        assert!(!rig.masters[0].log.iter().any(|args| args.contains(&b"NX".to_vec())), "no lock was sent");
    }
}

#[test]
fn other_modes_warn_where_strict_refuses() {
    let mut rig = Rig::unconnected(1, uptime);
    rig.masters[0].maxmemory_policy = "allkeys-lru".into();
    rig.pump();
    let warnings = shown(&status(&rig).warnings);
    assert!(warnings.contains("allkeys-lru"), "{warnings}");
    assert!(counts(&mut rig, "a"));
}

#[test]
fn a_formerly_unfit_server_is_watched_again() {
    for is_replica in [true, false] {
        let mut rig = Rig::new(1, strict);
        rig.run_for(WATCH);
        assert!(counts(&mut rig, "a"));
        reconnect_after(&mut rig, |rig| {
            if is_replica {
                rig.masters[0].role = "slave".into();
            } else {
                rig.masters[0].maxmemory_policy = "allkeys-lru".into();
            }
        });
        assert!(why_down(&rig).contains(if is_replica { "a replica" } else { "strict mode refuses" }));
        rig.run_for(ms(60_000));
        rig.masters[0].role = "master".into();
        rig.masters[0].maxmemory_policy = "noeviction".into();
        let fit_since = rig.now;
        rig.run_for(redlatch::limits::BACKOFF_MAX);
        let end = quarantine_end(&rig);
        assert!(end >= fit_since + WATCH);
        rig.run_for(end - rig.now);
        assert!(counts(&mut rig, "b"));
    }
}

#[test]
fn unfit_successor_adds_no_margin() {
    let mut rig = Rig::unconnected(3, strict);
    for (index, master) in rig.masters.iter_mut().enumerate() {
        master.put(MARK, format!("run{index} - - 10102").as_bytes(), None);
    }
    rig.pump();
    let lock = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    assert_eq!(rig.engine.margin(lock), 1);
    rig.reset_conn(2);
    rig.masters[2].restart_from_snapshot("promoted", rig.now);
    rig.masters[2].role = "slave".to_owned();
    rig.run_for(redlatch::limits::BACKOFF_MAX);
    assert_eq!(rig.engine.margin(lock), 0);
}

#[test]
fn one_server_twice_is_refused_with_both_names() {
    let mut rig = Rig::unconnected(2, strict);
    rig.masters[1].run_id = "run0".to_owned();
    rig.pump();
    let MasterState::Down(why) = rig.engine.master_status(rig.now, id(1)).state else { panic!("refused") };
    assert!(why.contains("same server as redis://m0") && why.contains("list each server once"), "{why}");
}

// I131
#[test]
fn unfit_masters_restart_is_counted_and_reported() {
    let mut rig = Rig::new(1, |builder| strict(builder).on_event(|_| unreachable!("an engine calls none")));
    reconnect_after(&mut rig, |rig| {
        rig.masters[0].restart("run0b", rig.now);
        rig.masters[0].role = "slave".into();
    });
    assert!(why_down(&rig).contains("it is a replica"), "{}", why_down(&rig));
    let events: Vec<_> = std::iter::from_fn(|| rig.engine.poll_event()).collect();
    let is_restart = |event: &&Event| matches!(event, Event::Restarted { .. });
    assert_eq!(rig.engine.stats(rig.now).restarts(), 1);
    assert_eq!(events.iter().filter(is_restart).count(), 1, "{events:?}");
}

// ---- another server in place of the old one ----

/// Disconnects, lets `away` pass, and reconnects to a process that reports this uptime in seconds. Returns
/// the time for which the new process must be watched.
fn left_for_a_successor_of_uptime(away: Duration, uptime_s: u64) -> Duration {
    let mut rig = Rig::new(1, uptime);
    // Whole seconds since the model's start, so that the reported uptime is exact.
    rig.run_for(ms(1000));
    rig.acquire("a", 1000, 0);
    granted(&mut rig);
    rig.refuse(0, true);
    rig.reset_conn(0);
    rig.jump(away);
    let started = rig.now - Duration::from_secs(uptime_s);
    rig.masters[0].restart("other", started);
    rig.refuse(0, false);
    rig.pump();
    match status(&rig).state {
        MasterState::Quarantined(left) => left,
        MasterState::Ready => Duration::ZERO,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_running_replacements_uptime_is_worthless() {
    let left = left_for_a_successor_of_uptime;
    // The reported uptime may be up to a second too long, and up to 1.1 s may have passed since.
    assert_eq!(left(ms(5100), 4), WATCH - ms(3000), "it has started since the old one was last heard");
    assert_eq!(left(ms(5100) - TICK, 4), WATCH, "it may have run before");
    assert_eq!(left(ms(3000), 5), WATCH);
    assert_eq!(left(ms(3000), 3600), WATCH, "a replica that was promoted");
    assert_eq!(left(ms(20_000), 15), ms(0), "a restart that is long past");
}

#[test]
fn a_reconnect_validates_no_replacements_uptime() {
    let mut rig = Rig::new(1, uptime);
    reconnect_after(&mut rig, |rig| rig.masters[0].run_id = "promoted".to_owned());
    let end = quarantine_end(&rig);
    assert!(end > rig.now + WATCH - ms(2001));
    reconnect_after(&mut rig, |_| {});
    assert_eq!(quarantine_end(&rig), end);
    rig.run_for(end - rig.now - TICK);
    assert!(!counts(&mut rig, "a"));
    rig.run_for(TICK);
    assert!(counts(&mut rig, "b"));
}

#[test]
fn connection_without_info_validates_no_uptime() {
    let mut rig = Rig::new(1, uptime);
    reconnect_after(&mut rig, |rig| {
        rig.masters[0].run_id = "promoted".to_owned();
        rig.masters[0].errors.insert("INFO".into(), "NOPERM no".into());
    });
    reconnect_after(&mut rig, |rig| rig.masters[0].errors.clear());
    assert!(quarantine_end(&rig) > rig.now + WATCH - ms(2001), "its uptime counts");
}

#[test]
fn unfinished_handshake_does_not_prove_uptime() {
    let mut rig = Rig::new(1, uptime);
    rig.run_for(ms(1000));
    let heard_at = rig.now;
    rig.acquire("a", 1000, 0);
    granted(&mut rig);
    rig.refuse(0, true);
    rig.reset_conn(0);
    rig.run_for(ms(1000));
    rig.masters[0].restart("other", rig.now);
    rig.stall_replies(0);
    rig.refuse(0, false);
    rig.run_for(ms(6000));
    rig.end_stall(0);
    rig.run_for(ms(2500));
    // Restarted one second after the old process was heard, the new one may use its uptime, less two seconds.
    // The handshake that asks for it may take one more.
    assert!(quarantine_end(&rig) < heard_at + ms(1000) + WATCH + ms(3000));
}

#[test]
fn a_mark_on_a_running_replacement_is_worthless() {
    // According to the mark, the old process was already gone: the new one has replaced it.
    for (away, is_ready) in [(WATCH, true), (WATCH - TICK, false)] {
        let mut rig = Rig::new(1, strict);
        rig.masters[0].put(MARK, b"other - - 10102", None);
        rig.refuse(0, true);
        rig.reset_conn(0);
        rig.jump(away);
        rig.masters[0].restart_from_snapshot("other", rig.now);
        rig.refuse(0, false);
        rig.pump();
        assert_eq!(status(&rig).state == MasterState::Ready, is_ready, "{away:?}");
    }
}

// ---- restarts are reported ----

#[test]
fn a_changed_process_is_reported_in_all_modes() {
    for mode in [Quarantine::Uptime, Quarantine::Strict, Quarantine::Trust] {
        let mut rig = Rig::new(1, |builder| builder.quarantine(mode));
        reconnect_after(&mut rig, |_| {});
        assert_eq!(status(&rig).warnings, [], "the same process");
        reconnect_after(&mut rig, |rig| rig.masters[0].restart("second", rig.now));
        let text = |rig: &Rig| shown(&status(rig).warnings);
        assert!(text(&rig).contains("restarted or was replaced once, last "), "{mode:?}");
        rig.reset_conn(0);
        rig.masters[0].restart("third", rig.now);
        while !matches!(status(&rig).state, MasterState::Ready | MasterState::Quarantined(_)) {
            rig.run_for(ms(1));
        }
        rig.run_for(ms(12_000));
        assert_eq!(
            text(&rig),
            "it restarted or was replaced 2 times, last 12s ago; find out why",
            "{mode:?}"
        );
    }
}

#[test]
fn missing_info_fields_are_named() {
    let warnings = |fault: fn(&mut Rig)| {
        let mut rig = Rig::unconnected(1, |builder| builder.quarantine(Quarantine::Trust));
        fault(&mut rig);
        rig.pump();
        let warnings = rig.engine.master_status(rig.now, id(0)).warnings;
        warnings.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(
        warnings(|rig| rig.masters[0].maxmemory_policy.clear()),
        ["it does not report its maxmemory_policy; use a Redis or Valkey server"]
    );
    assert_eq!(
        warnings(|rig| drop(rig.masters[0].errors.insert("INFO".into(), "NOPERM no".into()))),
        ["it does not report its run_id, role, maxmemory_policy, so each reconnect counts as a restart; \
          grant +info (INFO was refused: NOPERM no)"]
    );
    assert_eq!(warnings(|_| {}), [""; 0]);
}
