//! Scripts that masters run with a real Lua. Scripts without a Rust model always run so. For the others the
//! thread decides: [`with_lua`] for a whole schedule, [`with_broken`] also breaks scripts.

use std::cell::{Cell, RefCell};
use std::time::Instant;

use redlatch::scripts::NamedScript;

use crate::model::lua::{Code, run_code};
use crate::model::{Answer, ModelMaster, Refusal};

/// A script with a changed text.
#[derive(Debug, Clone)]
pub struct Break {
    /// The script's name.
    pub script: &'static str,
    pub text: String,
}

thread_local! {
    static IS_WANTED: Cell<bool> = const { Cell::new(false) };
    static BREAKS: RefCell<Vec<Break>> = const { RefCell::new(Vec::new()) };
    static NO_RIGHTS: RefCell<Option<NoRight>> = const { RefCell::new(None) };
    static COMMAND_COUNT: Cell<usize> = const { Cell::new(0) };
}

/// Largest number of commands of one script, because a broken script may loop.
const COMMAND_COUNT_MAX: usize = 20_000;

/// Makes a new master run scripts as the thread wants.
pub fn prepare(model: &mut ModelMaster) {
    model.interpreter = run;
    model.interprets_all = IS_WANTED.get();
}

/// Runs a task whose masters run the scripts with Lua.
pub fn with_lua<T>(task: impl FnOnce() -> T) -> T {
    with_broken(Vec::new(), task)
}

/// Like [`with_lua`], with some scripts broken.
pub fn with_broken<T>(breaks: Vec<Break>, task: impl FnOnce() -> T) -> T {
    /// Runs also after a panic.
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

/// Refuses a script's commands, as for a user without the right.
struct NoRight {
    which: Which,
    /// Names of all commands that the script called.
    asked: Vec<String>,
}

enum Which {
    /// The command at this place.
    Place(usize),
    Names(&'static [&'static str]),
}

/// Runs a script whose command at this place is refused. Also returns the names of all commands that it
/// called.
pub fn with_refusal<T>(place: usize, task: impl FnOnce() -> T) -> (T, Vec<String>) {
    without(Which::Place(place), task)
}

/// Runs a script whose commands of these names are refused.
pub fn with_refusal_of<T>(names: &'static [&'static str], task: impl FnOnce() -> T) -> T {
    without(Which::Names(names), task).0
}

fn without<T>(which: Which, task: impl FnOnce() -> T) -> (T, Vec<String>) {
    NO_RIGHTS.set(Some(NoRight { which, asked: Vec::new() }));
    let result = task();
    (result, NO_RIGHTS.take().map(|it| it.asked).unwrap_or_default())
}

/// Whether to refuse the command.
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

/// Runs a script, or its broken version.
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
