//! Breaks each statement and each term of each script once, and looks for a test that notices. The scripts
//! that the model does not have in Rust are left out: `tests/park_scripts` tests them on real servers.
//!
//! A break that the comparison with the model does not notice (`scripts.rs`) is a finding, unless
//! [`EQUIVALENT`] says why it changes nothing. A plain run takes one break in sixteen. By hand:
//!
//! ```text
//! REDLATCH_BREAKS=all          cargo test --profile sim --test sim each_break       all of them
//! REDLATCH_BREAKS=schedules    the same, and lists those that no schedule of the script's own kind notices
//! ```

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::breaks::syntax::{Variant, variants};
use crate::directed::{self, Verdict};
use crate::lua::{self, Break};
use crate::scripts;

#[path = "syntax.rs"]
mod syntax;

/// Seeds of the comparison for each break. Nearly all are noticed with one of the first.
const SEEDS: u64 = 3000;
/// And for those that change nothing.
const SEEDS_OF_EQUIVALENT: u64 = 20;
/// Of so many breaks a plain run takes one.
const SAMPLE: usize = 16;

/// Breaks that change nothing: what the script's name starts with, a part of how the break is shown, and why.
const EQUIVALENT: [(&str, &str, &str); 6] = [
    (
        "release",
        "return redis.[call -> pcall]('del'",
        "an error that is returned is the reply, raised or not",
    ),
    ("extend", "return redis.[call -> pcall]('pexpire'", "likewise"),
    ("fenced_acquire", "return redis.[call -> pcall]('set'", "likewise"),
    ("fenced_", "string.sub(holder.err, [1 -> 0], 9)", "Lua starts at 1 then, too"),
    ("free_slots", "sub(value.err, [1 -> 0], 9)", "likewise"),
    ("free_slots", "sub(value, [1 -> 0], 4)", "likewise"),
];

/// Whether a task fails or panics.
fn fails(task: impl FnOnce() -> Verdict) -> bool {
    !matches!(catch_unwind(AssertUnwindSafe(task)), Ok(Ok(())))
}

fn is_noticed(variant: &Variant) -> bool {
    let seeds = if variant.is_equivalent().is_some() { SEEDS_OF_EQUIVALENT } else { SEEDS };
    let compare = || scripts::compare(0..seeds, Some(variant.script)).map(drop);
    fails(|| lua::with_broken(variant.breaks(), compare))
}

/// By the schedules about locks of the script's kind.
fn is_noticed_by_schedules(variant: &Variant) -> bool {
    let schedules = match scripts::kind_of_lock(variant.script) {
        Some("fenced") => directed::fence::ALL.to_vec(),
        Some("shared") => directed::sharing::ALL.to_vec(),
        _ => [directed::hold::ALL, directed::handover::ALL].concat(),
    };
    schedules.into_iter().any(|schedule| fails(|| lua::with_broken(variant.breaks(), schedule)))
}

impl Variant {
    fn breaks(&self) -> Vec<Break> {
        vec![Break { script: self.script, text: self.text() }]
    }

    fn is_equivalent(&self) -> Option<usize> {
        let shown = self.to_string();
        EQUIVALENT
            .iter()
            .position(|(script, part, _)| self.script.starts_with(script) && shown.contains(part))
    }
}

/// Those of some breaks that a test does not notice.
fn survivors(variants: &[Variant], is_noticed: fn(&Variant) -> bool) -> Vec<Variant> {
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(variant) = variants.get(next.fetch_add(1, Ordering::Relaxed)) {
            if !is_noticed(variant) {
                found.lock().expect("no panic").push(variant.clone());
            }
        }
    };
    let thread_count = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..thread_count).for_each(|_| drop(scope.spawn(work))));
    found.into_inner().expect("no panic")
}

#[test]
fn each_break_of_a_script_is_noticed() {
    let wanted = std::env::var("REDLATCH_BREAKS").unwrap_or_default();
    let all = scripts::compared().flat_map(variants).filter(|it| it.is_equivalent().is_none());
    let breaks: Vec<_> = all.step_by(if wanted.is_empty() { SAMPLE } else { 1 }).collect();
    let findings = survivors(&breaks, is_noticed);
    findings.iter().for_each(|finding| println!("nothing notices {finding}"));
    assert!(findings.is_empty(), "{} of {} breaks are not noticed", findings.len(), breaks.len());
    println!("{} breaks are noticed", breaks.len());
    if wanted == "schedules" {
        let unnoticed = survivors(&breaks, is_noticed_by_schedules);
        println!("{} breaks that no schedule notices", unnoticed.len());
        unnoticed.iter().for_each(|it| println!("no schedule notices {it}"));
    }
}

/// What is said to change nothing is still there, and is not noticed.
#[test]
fn the_breaks_that_change_nothing_are_not_noticed() {
    let breaks: Vec<_> =
        scripts::compared().flat_map(variants).filter(|it| it.is_equivalent().is_some()).collect();
    for (place, (script, part, _)) in EQUIVALENT.iter().enumerate() {
        let is_there = breaks.iter().any(|it| it.is_equivalent() == Some(place));
        assert!(is_there, "{script} has no {part}");
    }
    let unnoticed = survivors(&breaks, is_noticed);
    let noticed = breaks.iter().find(|it| !unnoticed.contains(it));
    assert!(noticed.is_none(), "it changes something: {}", noticed.expect("as above"));
}
