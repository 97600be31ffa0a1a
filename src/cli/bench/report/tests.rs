//! A benchmark's result as a table and as JSON, from fixed times.

use clap::Parser;
use redlatch::{Client, Config};

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

fn report<'a>(args: &'a Args, has_round_trip: bool, measured: Measured) -> Report<'a> {
    let urls = (1..=3).map(|number| format!("unix:///nowhere/{number}"));
    let client =
        Client::open(Config::builder().masters(urls).build().expect("valid")).expect("an event loop");
    let mut masters = client.masters();
    masters[1].state = MasterState::Ready;
    let us = Duration::from_micros;
    let round_trip = has_round_trip.then_some(RoundTrip { one: us(150), all: us(200) });
    Report { args, masters, round_trip, measured }
}

fn measured() -> Measured {
    let mut measured = Measured { pairs: 997, elapsed: Duration::from_millis(2500), ..Measured::default() };
    (1..=1000).for_each(|us| measured.acquire.record(Duration::from_micros(us)));
    (1..=10).for_each(|ms| measured.release.record(Duration::from_millis(ms)));
    ["first", "second"].iter().for_each(|error| measured.note_error("no quorum", error));
    measured.note_error("contended", &"third");
    measured
}

#[test]
fn bench_result_matches_its_golden_file() {
    let mut page = String::new();
    for (words, has_round_trip, measured) in [
        (&["redlatch"][..], true, measured()),
        (&["redlatch", "--depth", "2", "--ttl", "7s", "--no-await-release", "--fair"], true, measured()),
        (&["redlatch", "--keys", "5", "--pairs", "9"], false, Measured::default()),
    ] {
        let mut args = Line::parse_from(words).args;
        page += &format!(
            "# {}\n{}",
            words.join(" "),
            report(&args, has_round_trip, Measured { ..measured }).text()
        );
        args.json = true;
        page += &report(&args, has_round_trip, self::measured()).text();
    }
    redlatch_support::assert_golden("bench", &page);
}

#[test]
fn a_phase_ends_at_its_limit() {
    let s = Duration::from_secs;
    let reached = |limit: Limit| {
        [(1, s(9)), (2, s(1)), (3, s(2)), (9, s(3))].map(|(count, time)| limit.is_reached(count, time))
    };
    assert_eq!(reached(Limit::Pairs(2)), [false, true, true, true]);
    assert_eq!(reached(Limit::Time(s(2))), [true, false, true, true]);
}

#[test]
fn numbers_of_a_benchmark_have_bounds() {
    for (words, refused) in [
        (&["--depth", "0"][..], Some("--depth is 0; give 1 to 32768")),
        (&["--depth", "1"], None),
        (&["--depth", "32768"], None),
        (&["--depth", "32769"], Some("--depth is 32769; give 1 to 32768")),
        (&["--keys", "0"], Some("--keys is 0; give 1 to 10000000")),
        (&["--depth", "3", "--keys", "2"], Some("--keys is 2; give 3 to 10000000")),
        (&["--depth", "3", "--keys", "3"], None),
        (&["--keys", "10000001"], Some("--keys is 10000001; give 1 to 10000000")),
        (&["--pairs", "0"], Some("--pairs is 0; give 1 to 18446744073709551615")),
        (&["--time", "0s"], Some("--time is 0s; give more than 0 to 24h")),
    ] {
        let args = Line::parse_from(["redlatch"].iter().chain(words)).args;
        assert_eq!(args.check().err().map(|exit| exit.why).as_deref(), refused, "{words:?}");
    }
    let keys = |depth: &str| Line::parse_from(["redlatch", "--depth", depth]).args.key_count();
    assert_eq!([keys("1"), keys("250"), keys("251")], [1000, 1000, 1004]);
}

#[test]
fn progress_is_a_share_of_all() {
    for (done, all, shown) in [(0, 0, 0), (0, 7, 0), (99, 100, 99), (199, 200, 99), (7, 7, 100), (8, 7, 100)]
    {
        let ms = Duration::from_millis;
        let by_pairs = Limit::Pairs(all).percent(done, ms(1));
        assert_eq!((by_pairs, Limit::Time(ms(all)).percent(1, ms(done))), (shown, shown), "{done} of {all}");
    }
}
