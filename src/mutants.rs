//! Switches of deliberate defects: `tests/sim/mutants.rs` lists them, switches each on, and shows that the
//! simulator goes red.
//!
//! They exist only in a build with `--cfg redlatch_mutants`, which `scripts/test` makes for that purpose and
//! no Cargo feature can. In every other build [`is_on`] is the constant `false` and its branches are gone.

use std::sync::atomic::{AtomicU8, Ordering};

/// Whether the defect of this name is switched on. `scripts/check-rules` finds a name that no test has.
macro_rules! mutant {
    ($name:ident) => {
        crate::mutants::is_on(stringify!($name))
    };
}
pub(crate) use mutant;

#[cfg(redlatch_mutants)]
std::thread_local! {
    static ACTIVE: std::cell::Cell<Option<&'static str>> = const { std::cell::Cell::new(None) };
}

/// Switches a defect on in this thread, or all off.
#[cfg(redlatch_mutants)]
pub fn switch(mutant: Option<&'static str>) {
    ACTIVE.set(mutant);
}

#[cfg(redlatch_mutants)]
pub(crate) fn is_on(mutant: &str) -> bool {
    ACTIVE.get() == Some(mutant)
}

/// The seed, or with `SeedIgnored` another one each time.
pub(crate) fn seed(mut seed: [u8; 32]) -> [u8; 32] {
    static COUNT: AtomicU8 = AtomicU8::new(0);
    if mutant!(SeedIgnored) {
        seed[0] = COUNT.fetch_add(1, Ordering::Relaxed);
    }
    seed
}

#[cfg(not(redlatch_mutants))]
#[inline(always)]
pub(crate) const fn is_on(_: &str) -> bool {
    false
}
