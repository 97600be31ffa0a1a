//! `redlatch ls --watch`: the locks for which callers wait.

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use redlatch::{Client, Quarantine};

use crate::fleet::{Fleet, Until, eventually};
use crate::harness::{FOREVER, PATIENCE, PATIENT, Running, expect, finish, redlatch, trusting};
use crate::terminal::Session;

/// A watch. A line that does not come ends it.
fn watch(fleet: &Fleet) -> Command {
    let mut command = crate::harness::command("timeout");
    command.arg((PATIENCE * 10).as_secs().to_string()).arg(env!("CARGO_BIN_EXE_redlatch"));
    command.arg("ls").args(PATIENT).env("REDLATCH_MASTERS", fleet.urls().join(","));
    command.args(["--prefix", "p[1]:", "--watch"]);
    command
}

fn run(fleet: &Fleet, args: &[&str], script: &str) -> Running {
    let mut command = trusting(fleet, "run");
    command.args(["--prefix", "p[1]:", "--ttl", "5s", "--wait", "300s"]).args(args);
    Running::start(command.args(["--", "sh", "-c", script]))
}

/// A run that has the lock.
fn holder(fleet: &Fleet, args: &[&str]) -> Running {
    let mut run = run(fleet, args, &format!("echo inside; {FOREVER}"));
    assert_eq!(run.line(), "inside");
    run
}

/// The waits of the next look of a watch with `--json`, by name, holder, waiters, in their order.
fn look(watch: &mut Running) -> Vec<(String, String, u64)> {
    let line: serde_json::Value = serde_json::from_str(&watch.line()).expect("JSON");
    assert_eq!((line["masters"].as_u64(), line["is_cut"].as_bool()), (Some(3), Some(false)));
    let waits = line["waits"].as_array().expect("a list").iter().map(|wait| {
        assert!(wait["oldest_wait_ms"].as_u64().is_some_and(|ms| ms < 600_000), "{wait}");
        let readers = wait["readers"].as_u64().map(|count| format!("{count} readers"));
        let holder = wait["holder_label"].as_str().map(str::to_owned).or(readers);
        let name = wait["name"].as_str().expect("a name").to_owned();
        (name, holder.unwrap_or_default(), wait["waiters"].as_u64().expect("a number"))
    });
    waits.collect()
}

/// Waits until a look has these waits.
#[track_caller]
fn wait_for(watch: &mut Running, expected: &[(&str, &str, u64)]) {
    let expected: Vec<_> =
        expected.iter().map(|(name, holder, count)| ((*name).into(), (*holder).into(), *count)).collect();
    let mut last = Vec::new();
    eventually(PATIENCE, "the waits are shown", || {
        last = look(watch);
        last == expected
    });
}

#[test]
fn waits_are_watched_the_longest_first() {
    let mut fleet = Fleet::start(3);
    let mut by_lines = Running::start(watch(&fleet).arg("--json"));
    assert_eq!(look(&mut by_lines), [], "nobody waits, which is said once");
    let _holders = [
        holder(&fleet, &["--label", "host 7", "plain"]),
        holder(&fleet, &["--label", "host 8", "zero"]),
        holder(&fleet, &["--shared", "readers"]),
        holder(&fleet, &["--label", "host 9", "idle"]),
    ];
    let mut waiters = Vec::new();
    let mut expected = Vec::new();
    // One behind another, so that the order of asking is known.
    for (args, wait) in [
        (["zero", "--quiet"], ("zero", "host 8", 1)),
        (["plain", "--fenced"], ("plain", "host 7", 1)),
        (["readers", "--quiet"], ("readers", "1 readers", 1)),
    ] {
        waiters.push(run(&fleet, &args, "true"));
        expected.push(wait);
        wait_for(&mut by_lines, &expected);
    }
    // A younger waiter of the first lock does not change the order.
    waiters.push(run(&fleet, &["zero", "--fair"], "true"));
    expected[0].2 = 2;
    wait_for(&mut by_lines, &expected);
    // One master that hangs up is named, and the others are a quorum.
    fleet.master(2).kill();
    let mut text = Running::start(&mut watch(&fleet));
    assert_eq!(text.line(), "OLDEST WAITERS NAME by HOLDER");
    let lines = [text.line(), text.line(), text.line(), text.line()];
    assert!(lines[0].ends_with(" 2 zero by host 8"), "{lines:?}");
    assert!(lines[1].ends_with(" 1 plain by host 7"), "{lines:?}");
    assert!(lines[2].ends_with(" 1 readers by 1 reader"), "{lines:?}");
    let said = format!("{}: Connection refused", fleet.urls()[2]);
    assert!(lines[3].starts_with(&said), "{lines:?}");
    assert_eq!(text.line(), "OLDEST WAITERS NAME by HOLDER", "the next look follows");
    for master in [0, 1] {
        fleet.master(master).kill();
    }
    // A watch goes on without a quorum, and does not begin.
    eventually(PATIENCE, "all are named", || text.line().starts_with("all 3 masters: "));
    for watch in [by_lines, text] {
        watch.signal("TERM");
        watch.finish();
    }
    expect(&finish(&mut watch(&fleet)), 69, &["0 of 3 masters count, 2 needed", "Connection refused"]);
}

#[test]
fn a_fleet_where_nobody_waits_is_shown_once_also_without_a_master() {
    let mut fleet = Fleet::start(3);
    fleet.master(2).kill();
    // A key of another application is no queue.
    (0..2).for_each(|index| drop(fleet.master(index).ask("SET p[1]:redlatch:wait:x y")));
    let begun = Instant::now();
    let mut watch = Running::start(&mut watch(&fleet));
    assert_eq!(watch.line(), "nobody waits");
    eventually(PATIENCE, "it looks again and again", || fleet.master(0).calls("scan") >= 3);
    let count = u64::from(fleet.master(0).calls("scan"));
    assert!(count <= 1 + begun.elapsed().as_secs(), "{count}: one page, each second");
    watch.signal("TERM");
    let rest = watch.finish().stdout;
    assert!(rest.contains("Connection refused") && !rest.contains("nobody waits"), "{rest}");
}

#[test]
fn a_pattern_chooses_what_is_watched() {
    let fleet = Fleet::start(1);
    let _holders = [holder(&fleet, &["orders:1"]), holder(&fleet, &["other"])];
    let _waiters = [run(&fleet, &["orders:1"], "true"), run(&fleet, &["other"], "true")];
    let mut all = Running::start(watch(&fleet).arg("orders:*"));
    let mut line = String::new();
    eventually(PATIENCE, "the wait is shown", || {
        line = all.line();
        assert!(!line.contains("other"), "{line}");
        line.contains(" 1 orders:1 by ")
    });
    all.signal("TERM");
    all.finish();
}

#[test]
fn a_watch_of_waits_ends_with_its_reader() {
    let fleet = Fleet::start(1);
    let script = "{ \"$REDLATCH\" ls --trust --watch; echo \"code $?\" >&2; } | head -n 1";
    let mut shell = crate::harness::command("sh");
    shell.args(["-c", script]).env("REDLATCH", env!("CARGO_BIN_EXE_redlatch"));
    let finished = finish(shell.env("REDLATCH_MASTERS", fleet.urls().join(",")));
    assert_eq!((finished.stderr.as_str(), finished.stdout.as_str()), ("code 0\n", "nobody waits\n"));
}

#[test]
fn waits_are_drawn_in_place_at_40_columns() {
    let fleet = Fleet::start(1);
    let name = "orders:a-name-that-is-longer-than-the-line";
    let _holder = holder(&fleet, &["--label", "host 7", name]);
    let _waiter = run(&fleet, &[name], "true");
    let script = "\"$REDLATCH\" ls --trust --watch --prefix 'p[1]:'";
    let Some(session) = Session::start_with_width(&fleet.urls(), script, 40) else { return };
    let mut screen = String::new();
    eventually(PATIENCE, "it draws the same place again", || {
        screen = session.screen();
        screen.matches("orders:").count() > 2
    });
    assert!(screen.contains("\x1b[2A\x1b[J"), "{screen}");
    for line in screen.lines() {
        let shown = line.rsplit("\x1b[J").next().expect("a line");
        assert!(shown.trim_end().chars().count() < 40, "{shown:?}");
    }
    assert!(screen.lines().any(|line| line.contains(" 1 orders:a-name-that") && line.contains('…')));
}

#[test]
fn a_watch_of_waits_needs_rights() {
    let mut fleet = Fleet::start(1);
    fleet.master(0).ask("ACL SETUSER locker on >pw ~* &* +get +getrange +pttl +info +ping +echo +scan");
    fleet.master(0).ask("ZADD redlatch:wait:a 1 redlatch:1:somebody");
    let urls: Vec<_> = fleet.urls().iter().map(|url| url.replace("redis://", "redis://locker:pw@")).collect();
    let refused = finish(redlatch(&urls).args(["ls", "--trust", "--watch"]));
    expect(&refused, 69, &["0 of 1 master", "NOPERM"]);
    fleet.master(0).ask("ACL SETUSER locker +time");
    let refused = finish(redlatch(&urls).args(["ls", "--trust", "--watch"]));
    expect(&refused, 69, &["0 of 1 master", "NOPERM", "zrange"]);
}

/// The entries are as a waiter writes them, and live for a short time.
#[test]
fn a_watch_says_that_there_are_more_queues_than_it_takes() {
    let fill = "local time = redis.call('TIME')
        local stay_end = time[1] * 1000 + math.floor(time[2] / 1000) + 2500
        for it = 1, ARGV[1] do
            local entry = string.format('redlatch:1:%012dp00000001%013d0000000000000', it, stay_end)
            redis.call('DEL', 'p[1]:redlatch:wait:' .. it)
            redis.call('ZADD', 'p[1]:redlatch:wait:' .. it, 1, entry)
        end";
    let mut fleet = Fleet::start(1);
    let mut watch = Running::start(watch(&fleet).arg("--json"));
    let (count, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _end = Until(&is_over);
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                let count = count.load(Ordering::SeqCst).to_string();
                fleet.master(0).command(&[b"EVAL", fill.as_bytes(), b"0", count.as_bytes()]);
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        for (all, is_cut) in [(1024, false), (1025, true)] {
            count.store(all, Ordering::SeqCst);
            eventually(PATIENCE * 2, "all live queues are seen", || {
                let look: serde_json::Value = serde_json::from_str(&watch.line()).expect("JSON");
                let seen = look["waits"].as_array().map(Vec::len);
                assert!(seen != Some(all) || look["is_cut"] == is_cut, "{all}");
                seen == Some(all)
            });
        }
    });
    watch.signal("TERM");
    watch.finish();
}

/// One look does not reach all keys of a master, and the next one goes on where it ended.
#[test]
fn queues_among_many_keys_are_found_look_by_look() {
    const WAIT_COUNT: usize = 24;
    let mut fleet = Fleet::start(3);
    let many = "for it = 1, 50000 do redis.call('SET', ARGV[1] .. it, 1) end";
    for piece in ["a", "b", "c", "d"] {
        for master in fleet.masters() {
            master.command(&[b"EVAL", many.as_bytes(), b"0", piece.as_bytes()]);
        }
    }
    let name = |index: usize| format!("r{index}");
    for index in 0..WAIT_COUNT {
        fleet.masters().for_each(|master| drop(master.ask(&format!("SET p[1]:{} other", name(index)))));
    }
    let client = Client::builder().masters(fleet.urls()).prefix("p[1]:").quarantine(Quarantine::Trust);
    let client = client.answer_timeout(Duration::from_secs(5)).connect().expect("an event loop");
    let mut watch = Running::start(watch(&fleet).arg("--json"));
    std::thread::scope(|scope| {
        let wait = |index| client.lock(&*name(index)).wait(PATIENCE * 4).acquire().map(drop);
        let waits: Vec<_> = (0..WAIT_COUNT).map(|index| scope.spawn(move || wait(index))).collect();
        eventually(PATIENCE * 2, "all are found", || look(&mut watch).len() == WAIT_COUNT);
        for index in 0..WAIT_COUNT {
            fleet.masters().for_each(|master| drop(master.ask(&format!("DEL p[1]:{}", name(index)))));
        }
        waits.into_iter().for_each(|wait| wait.join().expect("no panic").expect("it is free"));
    });
    watch.signal("TERM");
    watch.finish();
}
