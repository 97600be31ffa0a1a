//! Switches of the planted bugs. A bug is on in one thread, or in the whole process through
//! `REDLATCH_DEFECT`.

use std::cell::Cell;
use std::sync::OnceLock;

/// Whether the planted bug with this name is on.
macro_rules! mutant {
    ($name:ident) => {
        crate::mutants::is_on(stringify!($name))
    };
}

std::thread_local! {
    static ON: Cell<Option<&'static str>> = Cell::new(of_process());
}

fn of_process() -> Option<&'static str> {
    static NAME: OnceLock<Option<String>> = OnceLock::new();
    NAME.get_or_init(|| std::env::var("REDLATCH_DEFECT").ok()).as_deref()
}

/// Switches a planted bug on in this thread; `None` leaves only the process's bug.
pub fn switch(mutant: Option<&'static str>) {
    ON.set(mutant.or_else(of_process));
}

pub(crate) fn is_on(mutant: &str) -> bool {
    ON.get() == Some(mutant)
}
