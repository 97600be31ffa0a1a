//! `redlatch acquire --handle`, `redlatch release --handle` and `redlatch run --handle`.

use std::fs;
use std::io::pipe;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, UNIX_EPOCH};

use redlatch::{Client, Guard, LockHandle, Quarantine};
use redlatch_support::{Fleet, Master, PATIENCE, eventually};

use crate::blocked_tests::fill;
use crate::harness::{FOREVER, PATIENT, Running, expect, finish, holder_count, signal, trusting};

/// Path for a file, in a folder that the test removes.
struct Place(PathBuf);

impl Place {
    fn new(test: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("redlatch-handle-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).expect("a folder");
        Self(folder)
    }

    fn file(&self) -> PathBuf {
        self.0.join("lock")
    }

    fn text(&self) -> String {
        fs::read_to_string(self.file()).expect("the file is there")
    }

    /// Number of files in the folder.
    fn all(&self) -> usize {
        fs::read_dir(&self.0).expect("a folder").count()
    }

    fn on(&self, fleet: &Fleet, subcommand: &str, words: &[&str]) -> Command {
        let mut command = trusting(fleet, subcommand);
        command.arg("--handle").arg(self.file()).args(words);
        command
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_lock_is_kept_for_a_later_step() {
    let mut fleet = Fleet::start(3);
    let place = Place::new("step");
    let held = finish(&mut place.on(&fleet, "acquire", &["--fenced", "deploy"]));
    expect(&held, 0, &["lock \"deploy\" is held for", "redlatch release --handle"]);
    assert!(held.stdout.trim().parse::<u64>().is_ok(), "the fencing token: {:?}", held.stdout);
    assert_eq!(fs::metadata(place.file()).expect("it is there").permissions().mode() & 0o777, 0o600);
    assert_eq!(place.all(), 1, "nothing else is left");
    assert!(holder_count(&mut fleet, "deploy") >= 2, "a quorum has it");
    // The same path, while the lock is held.
    expect(&finish(&mut place.on(&fleet, "acquire", &["deploy"])), 75, &["held by another client"]);
    let released = finish(&mut place.on(&fleet, "release", &[]));
    expect(&released, 0, &["lock \"deploy\" released"]);
    assert_eq!(place.all(), 0);
    eventually(PATIENCE, "it is free", || holder_count(&mut fleet, "deploy") == 0);
    expect(&finish(&mut place.on(&fleet, "release", &[])), 0, &[": nothing to release"]);
}

#[test]
fn lock_is_released_if_its_token_is_unwritten() {
    let mut fleet = Fleet::start(3);
    let place = Place::new("full");
    let mut shell = crate::harness::command("sh");
    shell.args(["-c", "exec \"$REDLATCH\" \"$@\" >/dev/full", "sh", "acquire"]).args(PATIENT);
    shell.arg("--handle").arg(place.file()).args(["--fenced", "deploy"]);
    shell.env("REDLATCH", env!("CARGO_BIN_EXE_redlatch")).env("REDLATCH_MASTERS", fleet.urls().join(","));
    let full = finish(&mut shell);
    expect(&full, 70, &["No space left"]);
    assert!(!full.stderr.contains("is held for"), "{}", full.stderr);
    assert_eq!(place.all(), 0, "no handle is left");
    assert!(holder_count(&mut fleet, "deploy") < 2, "a quorum has confirmed the release");
}

/// Neither a signal nor the end of the lock waits for the reader of the token.
#[test]
fn a_token_that_nobody_reads_holds_nothing_up() {
    let mut fleet = Fleet::start(3);
    let place = Place::new("unread");
    for (ttl, stop, code) in [("30s", Some("TERM"), 143), ("30s", Some("INT"), 130), ("1s", None, 76)] {
        let (_reader, mut writer) = pipe().expect("a pipe");
        fill(&mut writer);
        let mut acquire = place.on(&fleet, "acquire", &["--ttl", ttl, "--fenced", "deploy"]);
        acquire.stdin(Stdio::null()).stdout(writer.try_clone().expect("a file"));
        let mut program = acquire.spawn().expect("redlatch was built");
        if let Some(name) = stop {
            eventually(PATIENCE, "it is held", || place.all() > 0 && holder_count(&mut fleet, "deploy") >= 2);
            signal(program.id(), name);
        }
        let mut status = None;
        eventually(PATIENCE, "it ends", || {
            status = program.try_wait().expect("a child can be waited for");
            status.is_some()
        });
        assert_eq!(status.and_then(|status| status.code()), Some(code), "{stop:?}");
        assert_eq!(place.all(), 0, "no handle is left");
        eventually(PATIENCE, "it is released", || holder_count(&mut fleet, "deploy") < 2);
    }
}

#[test]
fn a_program_adopts_a_lock_from_the_shell() {
    let fleet = Fleet::start(3);
    let place = Place::new("adopt");
    expect(&finish(&mut place.on(&fleet, "acquire", &["-q", "--ttl", "20s", "deploy"])), 0, &[]);
    let handle: LockHandle = place.text().parse().expect("a handle");
    let client = Client::builder().masters(fleet.urls()).quarantine(Quarantine::Trust).connect();
    let client = client.expect("an event loop");
    let guard = client.adopt(&handle).expect("it is held");
    let released = finish(&mut place.on(&fleet, "release", &[]));
    expect(&released, 0, &["lock \"deploy\" was gone already"]);
    assert!(guard.is_valid() && place.all() == 0);
    drop(guard);
}

/// Like `ExecStopPost` after a killed redlatch.
#[test]
fn the_lock_of_a_killed_run_is_released() {
    let mut fleet = Fleet::start(3);
    let place = Place::new("killed");
    let script = format!("echo in; {FOREVER}");
    let mut run = place.on(&fleet, "run", &["--ttl", "30s", "report", "--", "sh", "-c", &script]);
    let mut first = Running::start(&mut run);
    assert_eq!(first.line(), "in");
    let handle: LockHandle = place.text().parse().expect("a handle");
    assert!(!handle.can_be_adopted(), "its holder goes on");
    first.signal("KILL");
    first.wait_for_exit();
    assert_eq!(place.all(), 1, "nobody removed it");
    // A quorum has the lock. The third master may have connected later.
    assert!(holder_count(&mut fleet, "report") >= 2, "the lock stays");
    let released = finish(&mut place.on(&fleet, "release", &[]));
    expect(&released, 0, &["lock \"report\" released"]);
    assert_eq!((place.all(), holder_count(&mut fleet, "report")), (0, 0));
    // The next run finds the lock free and no file.
    expect(&finish(&mut place.on(&fleet, "run", &["report", "--", "true"])), 0, &[]);
    assert_eq!(place.all(), 0, "a run that ended removes its file");
}

#[test]
fn a_release_by_the_file_ends_a_run() {
    let mut fleet = Fleet::start(3);
    let place = Place::new("ended");
    let script = format!("echo in; {FOREVER}");
    let mut run = place.on(&fleet, "run", &["--ttl", "2s", "report", "--", "sh", "-c", &script]);
    let mut first = Running::start(&mut run);
    assert_eq!(first.line(), "in");
    expect(&finish(&mut place.on(&fleet, "release", &[])), 0, &["released"]);
    expect(&first.finish(), 76, &["lock \"report\""]);
    assert_eq!(holder_count(&mut fleet, "report"), 0);
}

#[test]
fn stale_handle_of_same_lock_is_replaced() {
    let fleet = Fleet::start(3);
    let place = Place::new("stale");
    let quiet = finish(&mut place.on(&fleet, "acquire", &["--quiet", "report"]));
    expect(&quiet, 0, &[]);
    assert_eq!(quiet.stderr, "");
    let stale = place.text();
    // Somebody broke the lock, so the handle is void.
    let mut unlock = trusting(&fleet, "unlock");
    expect(&finish(unlock.args(["--force", "report"])), 0, &[]);
    expect(&finish(&mut place.on(&fleet, "acquire", &["-q", "report"])), 0, &[]);
    assert_ne!(place.text(), stale);
    let (before, all) = (place.text(), place.all());
    let (other, foreign) =
        ("contains the handle of another lock or reader", "use one prefix, or delete the file");
    for (subcommand, words, why) in [
        ("acquire", &["other"][..], other),
        ("run", &["other", "--", "true"], other),
        ("run", &["--shared", "report", "--", "true"], other),
        ("acquire", &["--prefix", "p:", "report"], foreign),
        ("run", &["--prefix", "p:", "report", "--", "true"], foreign),
    ] {
        let refused = finish(&mut place.on(&fleet, subcommand, words));
        expect(&refused, 64, &[why]);
        assert_eq!((place.text(), place.all()), (before.clone(), all), "it stays");
    }
}

#[test]
fn bad_files_are_named() {
    let mut fleet = Fleet::start(3);
    let place = Place::new("bad");
    expect(&finish(&mut place.on(&fleet, "acquire", &["-q", "report"])), 0, &[]);
    let text = place.text();
    let rights =
        |mode| fs::set_permissions(place.file(), fs::Permissions::from_mode(mode)).expect("own file");
    for mode in [0o640, 0o604] {
        rights(mode);
        expect(&finish(&mut place.on(&fleet, "release", &[])), 64, &["give it mode 0600"]);
    }
    rights(0o600);
    let foreign = finish(&mut place.on(&fleet, "release", &["--prefix", "p:"]));
    expect(&foreign, 64, &["has the prefix \"\", this client has \"p:\""]);
    let urls = fleet.urls();
    let mut fewer = place.on(&fleet, "release", &[]);
    fewer.env("REDLATCH_MASTERS", urls[..2].join(","));
    expect(&finish(&mut fewer), 64, &["is for other masters"]);
    fs::write(place.file(), &text[..text.len() - 3]).expect("own file");
    for subcommand in [&["release"][..], &["acquire", "report"], &["run", "report", "--", "true"]] {
        let damaged = finish(&mut place.on(&fleet, subcommand[0], &subcommand[1..]));
        expect(&damaged, 64, &["this is no handle of a lock, or a damaged one"]);
    }
    assert_eq!(holder_count(&mut fleet, "report"), 3, "nothing was released");
    fs::write(place.file(), text).expect("own file");
    expect(&finish(&mut place.on(&fleet, "release", &[])), 0, &[]);
    let made = Command::new("mkfifo").args(["-m", "600"]).arg(place.file()).status();
    assert!(made.expect("mkfifo runs").success());
    expect(&finish(&mut place.on(&fleet, "release", &[])), 64, &["it is no regular file"]);
    // The handle cannot be written, so the lock is not kept.
    fs::remove_dir_all(&place.0).expect("own folder");
    for subcommand in [&["acquire", "report"][..], &["run", "report", "--", "echo", "in"]] {
        let failed = finish(&mut place.on(&fleet, subcommand[0], &subcommand[1..]));
        expect(&failed, 70, &["No such file or directory"]);
        assert_eq!(failed.stdout, "");
        assert!(holder_count(&mut fleet, "report") < 2, "a quorum has confirmed the release");
        eventually(PATIENCE, "it is released", || holder_count(&mut fleet, "report") == 0);
    }
}

#[test]
fn a_file_stays_until_its_lock_is_released() {
    let mut fleet = Fleet::start(3);
    let place = Place::new("stays");
    expect(&finish(&mut place.on(&fleet, "acquire", &["-q", "report"])), 0, &[]);
    let text = place.text();
    fleet.master(0).kill();
    fleet.master(1).kill();
    expect(&finish(&mut place.on(&fleet, "release", &[])), 69, &["report", "Connection refused"]);
    assert_eq!((place.text(), place.all()), (text, 1), "for another attempt");
}

/// Name of a contended lock.
const DEPLOY: &str = "deploy";

fn client(fleet: &Fleet) -> Client {
    let client = Client::builder().masters(fleet.urls()).quarantine(Quarantine::Trust).connect();
    client.expect("an event loop")
}

/// Holds the lock, and starts a program that waits for it and must write its handle to this path.
fn waiter(
    fleet: &mut Fleet,
    client: &Client,
    place: &Place,
    subcommand: &str,
    command: &[&str],
) -> (Guard, Running) {
    let guard = client.lock(DEPLOY).ttl(Duration::from_secs(30)).wait(PATIENCE).acquire().expect("free");
    let words = [&["--wait", "60s", DEPLOY], command].concat();
    let waiting = Running::start(&mut place.on(fleet, subcommand, &words));
    let waiters = |master: &mut Master| master.ask("ZCARD redlatch:wait:deploy").text();
    eventually(PATIENCE, "it waits", || fleet.masters().all(|master| waiters(master) == "1"));
    (guard, waiting)
}

/// Writes a handle as redlatch does.
fn put(place: &Place, handle: &LockHandle) {
    fs::write(place.file(), format!("{handle}\n")).expect("a file");
    fs::set_permissions(place.file(), fs::Permissions::from_mode(0o600)).expect("a file of one's own");
}

/// A quorum has released the lock; soon each master has.
fn assert_released(fleet: &mut Fleet) {
    assert!(holder_count(fleet, DEPLOY) < 2, "a quorum has confirmed the release");
    eventually(PATIENCE, "it is released", || holder_count(fleet, DEPLOY) == 0);
}

#[test]
fn a_handle_that_came_meanwhile_is_replaced() {
    let mut fleet = Fleet::start(3);
    let place = Place::new("meanwhile");
    let client = client(&fleet);
    let (guard, waiting) = waiter(&mut fleet, &client, &place, "acquire", &[]);
    // The last holder's file, which is removed after the release, or never.
    let last = guard.to_handle().expect("it is held");
    put(&place, &last);
    drop(guard);
    expect(&waiting.finish(), 0, &["lock \"deploy\" is held for"]);
    assert!(place.text().trim() != last.to_string() && place.all() == 1);
}

#[test]
fn another_locks_newer_handle_stays() {
    let mut fleet = Fleet::start(3);
    let client = client(&fleet);
    let other = client.lock("other").ttl(Duration::from_secs(30)).acquire().expect("free");
    let handle = other.to_handle().expect("it is held");
    for (subcommand, command) in [("acquire", &[][..]), ("run", &["--", "echo", "in"])] {
        let place = Place::new(subcommand);
        let (guard, waiting) = waiter(&mut fleet, &client, &place, subcommand, command);
        put(&place, &handle);
        drop(guard);
        let failed = waiting.finish();
        expect(&failed, 70, &["File exists"]);
        assert_eq!((&*failed.stdout, place.text().trim(), place.all()), ("", &*handle.to_string(), 1));
        assert_released(&mut fleet);
    }
}

#[test]
fn lock_is_released_if_its_handle_is_unwritten() {
    let mut fleet = Fleet::start(3);
    let client = client(&fleet);
    for (subcommand, command) in [("acquire", &[][..]), ("run", &["--", "echo", "in"])] {
        let place = Place::new(&format!("no-folder-{subcommand}"));
        let (guard, waiting) = waiter(&mut fleet, &client, &place, subcommand, command);
        fs::remove_dir_all(&place.0).expect("own folder");
        drop(guard);
        let failed = waiting.finish();
        expect(&failed, 70, &["No such file or directory"]);
        assert_eq!(failed.stdout, "");
        assert_released(&mut fleet);
    }
}

#[test]
fn run_leaves_another_runs_handle() {
    let fleet = Fleet::start(1);
    let place = Place::new("untouched");
    let words = ["report", "--", "sh", "-c", "echo in; read line"];
    let mut run = Running::start_with_stdin(&mut place.on(&fleet, "run", &words));
    assert_eq!(run.line(), "in");
    fs::write(place.file(), "another one's\n").expect("own file");
    // Renaming a file would change the folder's time.
    let folder = fs::File::open(&place.0).expect("own folder");
    folder.set_modified(UNIX_EPOCH).expect("own folder");
    run.send("\n");
    expect(&run.finish(), 0, &[]);
    assert_eq!(place.text(), "another one's\n");
    assert_eq!(folder.metadata().expect("own folder").modified().expect("a time"), UNIX_EPOCH);
}

#[test]
fn verbose_mode_names_unreleased_queue_entries() {
    let mut fleet = Fleet::start(3);
    let place = Place::new("unconfirmed");
    for (subcommand, command) in [("acquire", &[][..]), ("run", &["--", "true"])] {
        for (options, is_said) in [(&["-v"][..], true), (&[], false)] {
            let name = format!("{subcommand}-{is_said}");
            fleet.masters().for_each(|master| _ = master.ask(&format!("SET {name} other PX 600000")));
            let words = [options, &["--wait", "60s", &name], command].concat();
            let waiting = Running::start(&mut place.on(&fleet, subcommand, &words));
            let waiters = |master: &mut Master| master.ask(&format!("ZCARD redlatch:wait:{name}")).text();
            eventually(PATIENCE, "it waits", || fleet.masters().all(|master| waiters(master) == "1"));
            fleet.master(2).stop();
            waiting.signal("TERM");
            let ended = waiting.finish();
            fleet.master(2).cont();
            expect(&ended, 143, &["SIGTERM came before"]);
            // One key, or two if an earlier round's token had not ended there.
            let said = ended.stderr.contains(" not confirmed by all masters");
            assert_eq!(said, is_said, "{subcommand} {options:?}: {}", ended.stderr);
        }
    }
}
