//! `redlatch fleet replace`: a new master replaces another one, with never two holders.

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use redlatch::Config;
use redlatch_support::judge::{Visit, VisitName, overlaps};
use redlatch_support::{Fleet, Master, PATIENCE, Until, eventually};

use crate::harness::{Running, expect, finish, redlatch};

/// Settings of all clients, with limits that a busy machine does not exceed.
const SETTINGS: [&str; 8] =
    ["--prefix", "p:", "--max-ttl", "1s", "--answer-timeout", "900ms", "--connect-timeout", "20s"];

/// The old list, and a spare server outside it.
struct Lists {
    fleet: Fleet,
    old: Vec<String>,
    spare: String,
}

/// Masters declared as a fleet, and a spare server. All keep their data.
fn declared(size: usize) -> Lists {
    let fleet = Fleet::start_with(size + 1, &["--appendonly", "yes"]);
    let mut old = fleet.urls();
    let spare = old.pop().expect("there is one");
    let init = finish(fleet_command(&old, "init").arg("--new"));
    expect(&init, 0, &[]);
    Lists { fleet, old, spare }
}

fn fleet_command(urls: &[String], subcommand: &str) -> Command {
    let mut command = redlatch(urls);
    command.args(["fleet", subcommand, "--time-limit", "25s"]).args(SETTINGS);
    command
}

impl Lists {
    fn replace(&self, place: usize, new: &str) -> Command {
        let mut command = fleet_command(&self.old, "replace");
        command.args([&self.old[place], new]);
        command
    }

    /// The list with the spare server in place of this master.
    fn new_list(&self, place: usize) -> Vec<String> {
        let mut urls = self.old.clone();
        urls[place].clone_from(&self.spare);
        urls
    }

    fn records(&mut self) -> Vec<String> {
        let ask = |master: &mut Master| master.try_command(&[b"GET", b"p:redlatch:fleet"]);
        self.fleet.masters().map(|it| ask(it).map_or("down".to_owned(), |record| record.text())).collect()
    }

    /// A refused replacement changes nothing.
    fn refused(&mut self, command: &mut Command, said: &str) {
        let before = self.records();
        expect(&finish(command), 1, &["is not replaced", said]);
        assert_eq!(self.records(), before, "{said}");
    }
}

/// A client that contends for one lock.
pub(crate) struct Contender<'a> {
    pub(crate) client: usize,
    pub(crate) urls: &'a [String],
    pub(crate) max_ttl: Duration,
    /// How long it holds the lock.
    pub(crate) stay: Duration,
}

/// The visits of a client to one lock until the end. Also counts them.
pub(crate) fn contend(contender: &Contender<'_>, is_over: &AtomicBool, count: &AtomicUsize) -> Vec<Visit> {
    let Contender { client, urls, max_ttl, stay } = *contender;
    let config = Config::builder().masters(urls).prefix("p:").max_ttl(max_ttl);
    let config = config.answer_timeout(Duration::from_millis(300)).connect_timeout(PATIENCE);
    let client_of_redlatch = config.connect().expect("an event loop");
    let mut visits = Vec::new();
    while !is_over.load(Ordering::SeqCst) {
        let request = client_of_redlatch.lock("a").ttl(max_ttl * 9 / 10);
        let Ok(guard) = request.wait(Duration::from_millis(500)).acquire() else { continue };
        let (from, valid_until) = (Instant::now(), guard.valid_until());
        thread::sleep(stay);
        let until = Instant::now().min(valid_until);
        let name = VisitName { resource: 0, client, number: visits.len() };
        let visit = Visit { name, is_shared: false, from, until, is_witnessed: false, fencing_token: None };
        // A lock that had expired when it was handed out was never held.
        visits.extend(Some(visit).filter(|visit| visit.from < visit.until));
        count.fetch_add(1, Ordering::SeqCst);
        drop(guard.release());
    }
    visits
}

// I27
#[test]
fn dead_master_is_replaced_under_load() {
    let mut lists = declared(5);
    let (old, new) = (lists.old.clone(), lists.new_list(2));
    let ends = [(); 2].map(|()| AtomicBool::new(false));
    let counts = [(); 4].map(|()| AtomicUsize::new(0));
    let visits = thread::scope(|scope| {
        let _ends = ends.each_ref().map(Until);
        let client = |client: usize| {
            let (ends, counts, urls) = (&ends, &counts, if client < 2 { &old } else { &new });
            let (max_ttl, stay) = (Duration::from_secs(1), Duration::from_millis(1));
            let contender = Contender { client, urls, max_ttl, stay };
            scope.spawn(move || contend(&contender, &ends[client / 2], &counts[client]))
        };
        let progress = |clients: std::ops::Range<usize>| {
            let count = || clients.clone().map(|it| counts[it].load(Ordering::SeqCst)).collect::<Vec<_>>();
            let before = count();
            eventually(PATIENCE, "each client gets the lock", || {
                count().iter().zip(&before).all(|(now, before)| now > before)
            });
        };
        let mut clients: Vec<_> = (0..2).map(client).collect();
        progress(0..2);
        lists.fleet.master(2).kill();
        progress(0..2);
        let spare = lists.spare.clone();
        let mut command = lists.replace(2, &spare);
        lists.refused(&mut command, "If it is off for good, give --is-off");
        let begun = Instant::now();
        let replaced = finish(command.arg("--is-off"));
        expect(&replaced, 0, &[&format!("locks may be held on {}", lists.old[2])]);
        assert!(begun.elapsed() > Duration::from_secs(1), "locks of the old master were not waited for");
        assert!(replaced.stdout.contains("give the clients the new list now"), "{}", replaced.stdout);
        clients.extend((2..4).map(client));
        // Both lists are in use, and later only the new one.
        progress(0..4);
        progress(0..4);
        ends[0].store(true, Ordering::SeqCst);
        // Each majority of the new list now includes the new master.
        lists.fleet.masters().take(2).for_each(|master| master.kill());
        progress(2..4);
        ends[1].store(true, Ordering::SeqCst);
        clients.into_iter().flat_map(|it| it.join().expect("it only locks")).collect::<Vec<_>>()
    });
    assert_eq!(overlaps(&visits), Vec::<String>::new());
    println!("{} visits, no two at one time", visits.len());
}

// I27
#[test]
fn a_master_that_refuses_writes_is_replaced() {
    let mut lists = declared(3);
    let spare = lists.spare.clone();
    let mut command = lists.replace(1, &spare);
    let writes = "still takes writes (SET, PEXPIRE, EVALSHA, EVAL). To replace it, stop it for good";
    lists.refused(&mut command, writes);
    // An operator who says that the master is off may be wrong, so its answer must be a refusal.
    lists.refused(lists.replace(1, &spare).arg("--is-off"), writes);
    lists.fleet.master(1).ask("ACL SETUSER default -set -pexpire -evalsha");
    lists.refused(
        &mut command,
        "still takes writes (EVAL). To replace it, stop it for good, or run there: ACL SETUSER default",
    );
    lists.fleet.master(1).ask("ACL SETUSER default -eval");
    expect(&finish(&mut command), 0, &[]);
    let new = lists.new_list(1);
    let status = finish(&mut fleet_command(&new, "status"));
    expect(&status, 0, &[]);
    assert!(status.stdout.contains("declared: 3 masters"), "{}", status.stdout);
    let mut run = redlatch(&new);
    run.args(["run", "--strict", "--ttl", "900ms"]).args(SETTINGS);
    expect(&finish(run.args(["--wait", "20s", "a", "--", "true"])), 0, &[]);
    // Repeating it changes nothing, and a different new master comes too late.
    let records = lists.records();
    expect(&finish(&mut command), 0, &[]);
    assert_eq!(lists.records(), records);
    let other = Fleet::start(1);
    let late = format!("has a record without {}", lists.old[1]);
    lists.refused(&mut lists.replace(1, &other.urls()[0]), &late);
    // The old master cannot return as it is: its process was once declared new, and lacks later locks.
    lists.fleet.master(3).ask("ACL SETUSER default -set -pexpire -evalsha -eval");
    let mut back = fleet_command(&new, "replace");
    lists.refused(back.args([&spare, &lists.old[1].clone()]), "has the record of a fleet");
}

// I27
#[test]
fn a_wrong_argument_replaces_nothing() {
    let mut lists = declared(3);
    let (spare, old) = (lists.spare.clone(), lists.old.clone());
    lists.fleet.master(1).ask("ACL SETUSER default -set -pexpire -evalsha -eval");
    let mut unlisted = fleet_command(&old[..2], "replace");
    lists.refused(unlisted.args([&old[2], &spare]), "is not in the list of masters");
    lists.refused(&mut lists.replace(1, &old[0]), "is in the list of masters already");
    let alias = old[0].replace("127.0.0.1", "localhost");
    lists.refused(&mut lists.replace(1, &alias), "is the same server as");
    let mut other = lists.replace(1, &spare);
    lists.refused(other.args(["--drift-ppm", "20000"]), "has drift_ppm 10000, and this client 20000");
    for (key, said) in [
        ("p:a", "has 1 key behind the prefix"),
        ("p:redlatch:mark", "has 1 key behind the prefix"),
        ("p:redlatch:fleet", "holds no record"),
    ] {
        lists.fleet.master(3).ask(&format!("SET {key} x"));
        lists.refused(&mut lists.replace(1, &spare), said);
        lists.fleet.master(3).ask(&format!("DEL {key}"));
    }
    let own = lists.records()[0].clone();
    lists.fleet.master(3).command(&[b"SET", b"p:redlatch:fleet", own.as_bytes()]);
    lists.refused(&mut lists.replace(1, &spare), "has the record of a fleet");
    lists.fleet.master(3).ask("DEL p:redlatch:fleet");
    lists.fleet.master(2).ask("DEL p:redlatch:fleet");
    lists.refused(&mut lists.replace(1, &spare), "the fleet's record is on 1 other master, 2 needed");
    lists.fleet.master(2).kill();
    lists.refused(&mut lists.replace(1, &spare), "the fleet's record is on 1 other master, 2 needed");
    assert_eq!(finish(&mut lists.replace(1, "redlis://h")).code, Some(64));
}

/// One operator reads a record, and another writes it before the first does.
#[test]
fn a_record_that_changed_meanwhile_stays() {
    let mut lists = declared(3);
    let before = lists.records()[0].clone();
    let (to, other) =
        (before.replace("declared", "observed"), before.replace("max_ttl_ms=1000 ", "max_ttl_ms=900 "));
    let mut write = |there: &str| {
        let (key, master) = (b"p:redlatch:fleet".as_slice(), lists.fleet.master(0));
        master.command(&[b"SET", key, there.as_bytes()]);
        let script = include_bytes!("../../src/cli/doctor/replace_record.lua");
        let found = master.command(&[b"EVAL", script, b"1", key, before.as_bytes(), to.as_bytes()]).text();
        assert_eq!(found, lists.records()[0]);
        found
    };
    assert_eq!([write(&other), write(&before)], [other.clone(), to.clone()]);
}

/// The operator's process dies while waiting, and between two records.
// I27
#[test]
fn a_replacement_that_was_cut_short_goes_on() {
    let mut lists = declared(5);
    let spare = lists.spare.clone();
    let before = lists.records();
    lists.fleet.master(4).kill();
    let mut waiting = Running::start(lists.replace(4, &spare).arg("--is-off"));
    eventually(PATIENCE, "the new master joins", || lists.records()[5].contains(" of="));
    waiting.signal("KILL");
    waiting.wait_for_exit();
    // Two operators continue the replacement at the same time.
    let other = Running::start(lists.replace(4, &spare).arg("--is-off"));
    expect(&finish(lists.replace(4, &spare).arg("--is-off")), 0, &[]);
    expect(&other.finish(), 0, &[]);
    let whole = lists.records();
    let (listed, _) = whole[5].split_once(" new=").expect("its process is named");
    lists.fleet.master(5).command(&[b"SET", b"p:redlatch:fleet", format!("{listed} joining").as_bytes()]);
    for place in [0, 3] {
        lists.fleet.master(place).command(&[b"SET", b"p:redlatch:fleet", before[place].as_bytes()]);
    }
    // A silent master is left out, and completed when it answers.
    lists.fleet.master(0).shutdown();
    let left_out = format!("but {} did not answer. Run the same command again", lists.old[0]);
    expect(&finish(lists.replace(4, &spare).arg("--is-off")), 69, &[&left_out]);
    lists.fleet.master(0).restart();
    expect(&finish(lists.replace(4, &spare).arg("--is-off")), 0, &[]);
    assert_eq!(lists.records(), whole);
}
