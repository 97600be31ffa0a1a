//! Breaks each statement and each term of each script once, and looks for a test that notices: the comparison
//! with the model (`scripts.rs`), or the tables of scripts without a Rust model (`table.rs`).
//!
//! A break that no test notices is a fault, unless [`EQUIVALENT`] says why it changes nothing. Code that
//! several scripts share is broken in all of them. A plain run takes one break in sixteen. By hand:
//!
//! ```text
//! REDLATCH_BREAKS=all          scripts/defects test --test sim each_break       all of them
//! REDLATCH_BREAKS=schedules    the same, and lists breaks that no schedule of the script's own kind notices
//! ```

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use redlatch::scripts::SCRIPTS;

use crate::breaks::syntax::{Variant, variants};
use crate::directed::{self, Verdict};
use crate::lua::{self, Break};
use crate::{scripts, table};

#[path = "syntax.rs"]
mod syntax;

/// Seeds of the comparison for each break. One of the first seeds notices nearly all.
const SEEDS: u64 = 3000;
/// Seeds for breaks that change nothing.
const SEEDS_OF_EQUIVALENT: u64 = 20;
/// A plain run takes one break in this many.
const SAMPLE: usize = 16;

/// Breaks that change nothing: beginning of the script's name, part of the shown break, and reason.
const EQUIVALENT: [(&str, &str, &str); 43] = [
    (
        "release",
        "return redis.[call -> pcall]('del'",
        "an error that is returned is the reply, raised or not",
    ),
    ("extend", "return redis.[call -> pcall]('pexpire'", "likewise"),
    ("fenced_acquire", "return redis.[call -> pcall]('set'", "likewise"),
    ("", ", [1 -> 0], ", "Lua starts at 1 then, too"),
    ("", "queue, 0, [0 -> 1]", "only the first one is looked at"),
    ("park", "byscore', lock, [0 -> 1]", "no time is so early"),
    ("shared_acquire", "byscore', lock, [0 -> 1]", "likewise"),
    ("", "33, 45)) or [0 -> 1]", "likewise"),
    ("", "46, 58)) or [0 -> 1]", "likewise"),
    ("", "last[2]) or [0 -> 1]", "likewise"),
    ("", "last_end_ms or [0 -> 1]", "likewise"),
    ("", "lock, value) or [0 -> 1]", "likewise"),
    ("", "25, 32)) or [0 -> 1]", "the first round is 1"),
    ("", "entry.token) or [0 -> 1]", "no token of a clock is so small"),
    ("", "69, 71)) or [0 -> 1]", "no channel has a name of one byte"),
    ("", "(member, [69 -> 70], 71)", "a channel's name has less than 100 bytes"),
    ("", "(['%.0f', end_ms ->", "a number of up to 14 digits is the same text without a format"),
    ("", "(['%.0f', math.max(end_ms", "likewise"),
    ("", "(['%.0f', tonumber(string.sub(member", "likewise"),
    ("", "(['%013.0f', call.now_ms", "likewise"),
    ("", "local [removed_count, reader_count", "both begin with 0"),
    ("", "local [from, to ->", "both are the ticket"),
    ("", "local [reason, largest ->", "neither has a value"),
    ("", "[return false -> ] end local function undo", "nil is as false"),
    ("", "[return nil -> ] end local function is_f", "likewise"),
    ("", "[set.err and set or nil -> set.err and set]", "likewise"),
    ("", "[is_own and refused or nil -> is_own and refused]", "likewise"),
    ("", "[not refused and own or nil -> not refused and own]", "likewise"),
    ("", "call.own and 1 -> call.own and redis", "true is 1 in a reply"),
    ("", "[call.more and 1 -> call.more] or 0", "likewise"),
    ("", "-> (refused or call.is_brief)]", "an entry that is not there is not removed"),
    ("", "['other' -> '']", "it is neither of the other names"),
    ("adopt", "['p' -> '']", "likewise"),
    ("adopt", "-> held == 'readers' and 'r']", "likewise"),
    ("", "-> holder == value] then redis", "only a value has a holder"),
    ("", "-> holder == value] if is_deleted", "likewise"),
    (
        "",
        "24), stay_end = [tonumber(string.sub(member, 33, 45)) or 0 -> tonumber",
        "a waiter without an end is removed before",
    ),
    ("", "settle_readers(lock[, now_ms -> ]) return done", "an end that has passed deletes the set"),
    ("park", "redis.[call -> pcall]('zrange', queue, rank", "the same command has read this queue before"),
    ("park", "[not refused and own -> own]", "its entry is not there"),
    ("", "[found.err and {} or found -> found]", "an error has no elements"),
    ("", "if last[[2 -> 1]] and", "each member has a score"),
    ("", "math.max(count - 1[, 0 -> ])", "a set that is there has a member"),
];

/// Whether a task fails or panics.
fn fails(task: impl FnOnce() -> Verdict) -> bool {
    !matches!(catch_unwind(AssertUnwindSafe(task)), Ok(Ok(())))
}

fn is_noticed(broken: &Broken) -> bool {
    let seeds = if broken.is_equivalent().is_some() { SEEDS_OF_EQUIVALENT } else { SEEDS };
    let check = || {
        broken.0.iter().try_for_each(|it| match table::tabled().find(|script| script.name == it.script) {
            Some(script) => table::check(script),
            None => scripts::compare(0..seeds, Some(it.script)).map(drop),
        })
    };
    fails(|| lua::with_broken(broken.breaks(), check))
}

/// Whether the schedules about the script's kind of lock notice the break.
fn is_noticed_by_schedules(broken: &Broken) -> bool {
    let schedules = match scripts::kind_of_lock(broken.0[0].script) {
        Some("fenced") => directed::fence::ALL.to_vec(),
        Some("shared") => directed::sharing::ALL.to_vec(),
        _ if table::tabled().any(|it| it.name == broken.0[0].script) => {
            [directed::parked::ALL, directed::fair::ALL, directed::rounds::ALL, directed::handles::ALL]
                .concat()
        }
        _ => [directed::hold::ALL, directed::handover::ALL].concat(),
    };
    schedules.into_iter().any(|schedule| fails(|| lua::with_broken(broken.breaks(), schedule)))
}

/// One break in one script, or in code that several scripts share.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Broken(Vec<Variant>);

impl Broken {
    fn breaks(&self) -> Vec<Break> {
        self.0.iter().map(|it| Break { script: it.script, text: it.text() }).collect()
    }

    fn is_equivalent(&self) -> Option<usize> {
        let shown = self.0[0].to_string();
        EQUIVALENT
            .iter()
            .position(|(script, part, _)| self.0[0].script.starts_with(script) && shown.contains(part))
    }
}

/// All breaks of all scripts.
fn all() -> Vec<Broken> {
    let mut places = BTreeMap::new();
    let mut all: Vec<Broken> = Vec::new();
    for variant in SCRIPTS.iter().flat_map(variants) {
        let (home, place, by) = variant.key();
        let key = (home, place.start, place.end, by.to_owned());
        let at = *places.entry(key).or_insert(all.len());
        match all.get_mut(at) {
            Some(broken) => broken.0.push(variant),
            None => all.push(Broken(vec![variant])),
        }
    }
    all
}

/// The breaks that a test does not notice.
fn survivors(breaks: &[Broken], is_noticed: fn(&Broken) -> bool) -> Vec<Broken> {
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(broken) = breaks.get(next.fetch_add(1, Ordering::Relaxed)) {
            if !is_noticed(broken) {
                found.lock().expect("no panic").push(broken.clone());
            }
        }
    };
    let thread_count = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..thread_count).for_each(|_| drop(scope.spawn(work))));
    found.into_inner().expect("no panic")
}

fn wanted() -> String {
    std::env::var("REDLATCH_BREAKS").unwrap_or_default()
}

/// The sample of a run.
fn sampled(all: impl Iterator<Item = Broken>) -> Vec<Broken> {
    all.step_by(if wanted().is_empty() { SAMPLE } else { 1 }).collect()
}

#[test]
fn each_break_of_a_script_is_noticed() {
    let breaks = sampled(all().into_iter().filter(|it| it.is_equivalent().is_none()));
    let findings = survivors(&breaks, is_noticed);
    findings.iter().for_each(|finding| println!("nothing notices {}", finding.0[0]));
    assert!(findings.is_empty(), "{} of {} breaks are not noticed", findings.len(), breaks.len());
    println!("{} breaks are noticed", breaks.len());
    if wanted() == "schedules" {
        let unnoticed = survivors(&breaks, is_noticed_by_schedules);
        println!("{} breaks that no schedule notices", unnoticed.len());
        unnoticed.iter().for_each(|it| println!("no schedule notices {}", it.0[0]));
    }
}

/// A break listed as equivalent must still exist, and must not be noticed.
#[test]
fn the_breaks_that_change_nothing_are_not_noticed() {
    let breaks: Vec<_> = all().into_iter().filter(|it| it.is_equivalent().is_some()).collect();
    for (place, (script, part, _)) in EQUIVALENT.iter().enumerate() {
        let is_there = breaks.iter().any(|it| it.is_equivalent() == Some(place));
        assert!(is_there, "{script} has no {part}");
    }
    let breaks = sampled(breaks.into_iter());
    let unnoticed = survivors(&breaks, is_noticed);
    let noticed = breaks.iter().find(|it| !unnoticed.contains(it));
    assert!(noticed.is_none(), "it changes something: {}", noticed.expect("as above").0[0]);
}
