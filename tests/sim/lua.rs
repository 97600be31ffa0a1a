//! The scripts that masters run by a real Lua. Those without a likeness in Rust always run so. For the others
//! it is a matter of the thread: [`with_lua`] for all that a schedule does, [`with_broken`] for the same with
//! one script broken.

use std::cell::{Cell, RefCell};
use std::time::Instant;

use redlatch::internals::NamedScript;

use crate::model::lua::{Code, run_code};
use crate::model::{Answer, ModelMaster, Refusal};

/// A script with a text that is not the engine's.
#[derive(Debug, Clone)]
pub struct Break {
    /// The name of the script.
    pub script: &'static str,
    pub text: String,
}

thread_local! {
    static IS_WANTED: Cell<bool> = const { Cell::new(false) };
    static BREAKS: RefCell<Vec<Break>> = const { RefCell::new(Vec::new()) };
    static NO_RIGHTS: RefCell<Option<NoRight>> = const { RefCell::new(None) };
}

/// Has a master that is made now run its scripts as the thread wants it.
pub fn prepare(model: &mut ModelMaster) {
    model.interpreter = run;
    model.interprets_all = IS_WANTED.get();
}

/// Runs something whose masters run the scripts themselves.
pub fn with_lua<T>(task: impl FnOnce() -> T) -> T {
    with_broken(Vec::new(), task)
}

/// The same with some scripts broken.
pub fn with_broken<T>(breaks: Vec<Break>, task: impl FnOnce() -> T) -> T {
    /// Also after a panic.
    struct Restore(bool, Vec<Break>);
    impl Drop for Restore {
        fn drop(&mut self) {
            IS_WANTED.set(self.0);
            BREAKS.set(std::mem::take(&mut self.1));
        }
    }
    let _restore = Restore(IS_WANTED.replace(true), BREAKS.replace(breaks));
    task()
}

/// One command of a script that is refused, as to a user without the right.
struct NoRight {
    place: usize,
    /// The names of all that the script asks for.
    asked: Vec<String>,
}

/// Runs a script whose command at this place is refused; returns the names of all commands that it asked for,
/// too.
pub fn with_refusal<T>(place: usize, task: impl FnOnce() -> T) -> (T, Vec<String>) {
    NO_RIGHTS.set(Some(NoRight { place, asked: Vec::new() }));
    let result = task();
    (result, NO_RIGHTS.take().map(|it| it.asked).unwrap_or_default())
}

/// Whether the command is refused.
fn is_refused(name: &str) -> bool {
    NO_RIGHTS.with_borrow_mut(|refusal| {
        refusal.as_mut().is_some_and(|it| {
            it.asked.push(name.to_owned());
            it.asked.len() == it.place + 1
        })
    })
}

/// Runs a script, or the broken one in its place.
fn run(
    model: &mut ModelMaster,
    now: Instant,
    script: &'static NamedScript,
    keys: &[&[u8]],
    args: &[&[u8]],
) -> Result<Answer, Refusal> {
    BREAKS.with_borrow(|breaks| {
        let broken = breaks.iter().find(|it| it.script == script.name);
        let (id, text) = broken.map_or((script.sha, script.text), |it| (&it.text, &it.text));
        run_code(model, now, Code { id, text, is_refused }, [keys, args])
    })
}
