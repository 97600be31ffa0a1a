//! `redlatch fleet init --again`: a new `max_ttl` for masters in use, with never two holders.

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use redlatch_support::judge::overlaps;
use redlatch_support::{Fleet, PATIENCE, Until, eventually};

use crate::harness::{expect, finish, redlatch};
use crate::replace_tests::{Contender, contend};

fn init(urls: &[String], how: &str, max_ttl: &str) -> Command {
    let mut command = redlatch(urls);
    command.args(["fleet", "init", how, "--max-ttl", max_ttl, "--time-limit", "25s", "--prefix", "p:"]);
    command.args(["--answer-timeout", "900ms", "--connect-timeout", "20s"]);
    command
}

fn records(fleet: &mut Fleet) -> Vec<String> {
    fleet.masters().map(|master| master.ask("GET p:redlatch:fleet").text()).collect()
}

// I35
#[test]
fn max_ttl_is_raised_and_lowered_under_load() {
    let mut fleet = Fleet::start(3);
    let urls = fleet.urls();
    expect(&finish(&mut init(&urls, "--new", "1s")), 0, &[]);
    let ends = [(); 3].map(|()| AtomicBool::new(false));
    let counts = [(); 6].map(|()| AtomicUsize::new(0));
    let visits = thread::scope(|scope| {
        let _ends = ends.each_ref().map(Until);
        let start = |client: usize, max_ttl: u64| {
            let (ends, counts, urls) = (&ends, &counts, &urls);
            let (max_ttl, stay) =
                (Duration::from_secs(max_ttl), Duration::from_millis(max_ttl * max_ttl * 20));
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
        let declare = |max_ttl: &str| {
            let begun = Instant::now();
            let declared = finish(&mut init(&urls, "--again", max_ttl));
            expect(&declared, 0, &["waiting"]);
            assert!(begun.elapsed() > Duration::from_secs(3), "the longer of both was not waited for");
            assert!(declared.stdout.contains("clients read it within a minute"), "{}", declared.stdout);
        };
        let mut clients: Vec<_> = (0..2).map(|client| start(client, 1)).collect();
        progress(0..2);
        declare("3s");
        assert!(records(&mut fleet).iter().all(|it| it.contains("max_ttl_ms=3000") && it.contains(" new=")));
        clients.extend((2..4).map(|client| start(client, 3)));
        progress(0..4);
        // The restart shows clients of both kinds that the master forgot locks of 3 s.
        fleet.master(0).restart();
        progress(0..4);
        fleet.master(1).restart();
        progress(0..4);
        ends[1].store(true, Ordering::SeqCst);
        declare("1s");
        assert!(records(&mut fleet).iter().all(|it| it.contains("max_ttl_ms=1000") && it.contains(" new=")));
        clients.extend((4..6).map(|client| start(client, 1)));
        fleet.master(2).restart();
        progress(0..2);
        progress(4..6);
        ends.iter().for_each(|end| end.store(true, Ordering::SeqCst));
        clients.into_iter().flat_map(|it| it.join().expect("it only locks")).collect::<Vec<_>>()
    });
    assert_eq!(overlaps(&visits), Vec::<String>::new());
    println!("{} visits, no two at one time", visits.len());
}

#[test]
fn fleet_is_not_declared_again_with_other_masters() {
    let mut fleet = Fleet::start(3);
    let urls = fleet.urls();
    expect(&finish(&mut init(&urls, "--new", "1s")), 0, &[]);
    let before = records(&mut fleet);
    let fewer = finish(&mut init(&urls[..2], "--again", "2s"));
    expect(&fewer, 1, &["nothing is declared", "has 3 masters, and this client 2"]);
    assert_eq!(records(&mut fleet), before);
    // Nothing changed, so nothing is awaited.
    let same = finish(&mut init(&urls, "--again", "1s"));
    expect(&same, 0, &[]);
    assert_eq!((records(&mut fleet), same.stderr), (before, String::new()));
}
