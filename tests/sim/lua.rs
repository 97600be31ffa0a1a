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
    static COMMAND_COUNT: Cell<usize> = const { Cell::new(0) };
}

/// Commands of one script that are carried out; a broken one may go on for ever.
const COMMAND_COUNT_MAX: usize = 20_000;

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

/// Commands of a script that are refused, as to a user without the right.
struct NoRight {
    which: Which,
    /// The names of all that the script asks for.
    asked: Vec<String>,
}

enum Which {
    /// The one at this place.
    Place(usize),
    Names(&'static [&'static str]),
}

/// Runs a script whose command at this place is refused; returns the names of all commands that it asked for,
/// too.
pub fn with_refusal<T>(place: usize, task: impl FnOnce() -> T) -> (T, Vec<String>) {
    without(Which::Place(place), task)
}

/// Runs a script whose commands of these names are all refused.
pub fn with_refusal_of<T>(names: &'static [&'static str], task: impl FnOnce() -> T) -> T {
    without(Which::Names(names), task).0
}

fn without<T>(which: Which, task: impl FnOnce() -> T) -> (T, Vec<String>) {
    NO_RIGHTS.set(Some(NoRight { which, asked: Vec::new() }));
    let result = task();
    (result, NO_RIGHTS.take().map(|it| it.asked).unwrap_or_default())
}

/// Whether the command is refused.
fn is_refused(name: &str) -> bool {
    COMMAND_COUNT.set(COMMAND_COUNT.get() + 1);
    if COMMAND_COUNT.get() > COMMAND_COUNT_MAX {
        return true;
    }
    NO_RIGHTS.with_borrow_mut(|refusal| {
        refusal.as_mut().is_some_and(|it| {
            it.asked.push(name.to_owned());
            match it.which {
                Which::Place(place) => it.asked.len() == place + 1,
                Which::Names(names) => names.contains(&name),
            }
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
    COMMAND_COUNT.set(0);
    BREAKS.with_borrow(|breaks| {
        let broken = breaks.iter().find(|it| it.script == script.name);
        let (id, text) = broken.map_or((script.sha, script.text), |it| (&it.text, &it.text));
        run_code(model, now, Code { id, text, is_refused }, [keys, args])
    })
}
