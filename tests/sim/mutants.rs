//! Shows that the tests are worth something: each deliberate defect of `src/mutants.rs` makes a schedule or a history go
//! red that is green without it.
//!
//! Built only with `RUSTFLAGS="--cfg redlatch_mutants"`, as `scripts/test` does.

use std::panic::{AssertUnwindSafe, catch_unwind};

use redlatch::mutants::{Mutant, switch};

use crate::history;

/// What is wrong with it, if anything.
type Check = fn() -> Result<(), String>;

/// Runs something with a defect switched on in this thread. A panic is a finding too.
fn with(mutant: Mutant, check: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    switch(Some(mutant));
    let result = catch_unwind(AssertUnwindSafe(check));
    switch(None);
    result.unwrap_or_else(|_| Err("it panicked".to_owned()))
}

#[test]
fn explore() {
    use Mutant::*;
    std::panic::set_hook(Box::new(|_| {}));
    let all = [
        DeadlineFromQuorum,
        DeadlineUnchecked,
        NoDrift,
        QuorumHalf,
        QuorumOfReachable,
        VotesAsCount,
        ValueReused,
        LateVoteToNextAttempt,
        LostGrantCounted,
        StragglersCancelled,
        ErrorIsNo,
        NoScriptIsNo,
        NoJitter,
        TimeoutPopsOwed,
        BareDel,
        ReleaseOnlyGranted,
        ReleaseOnOtherConnection,
        OrphansDropped,
        AbsentIsProof,
        ReleaseErrorIsDone,
        ExtensionFromReply,
        ExtensionOnMinority,
        ExtensionOnUnknown,
        ExtensionAfterDeadline,
        ShorterExtensionIgnored,
        NoQuarantine,
        QuarantineTickShort,
        QuarantinedVotesCounted,
        RunIdIgnored,
        UptimeRoundedUp,
        RestartedGrantsKept,
        SameServerTwice,
        EchoUnchecked,
        OwnKeyIsBusy,
        AllocationByHeader,
        UnboundedNesting,
        ReadStopsEarly,
    ];
    for mutant in all {
        let mut found = None;
        for seed in 0..1500 {
            if let Err(why) = with(mutant, || history::run(seed, false).violation.map_or(Ok(()), Err)) {
                found = Some((seed, why));
                break;
            }
        }
        eprintln!("{mutant:?}: {found:?}");
    }
}
