//! The scripts themselves, run by a real Lua 5.1 on a model master's data, with the conversions that Redis
//! makes between its replies and Lua's values.
//!
//! Scripts that have no likeness in Rust always run so. For the others it is a matter of the thread:
//! [`with_lua`] for all that a schedule does, [`with_broken`] for the same with one script broken.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::Instant;

use mlua::{Function, Lua, LuaString, MultiValue, Table, Value as LuaValue};
use redlatch::internals::NamedScript;

use super::answer::shown;
use super::{Answer, Interpreter, ModelMaster, Refusal};

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
    static RUNNER: Runner = Runner::new().expect("a Lua state");
}

/// What runs the scripts of masters that are made now.
pub fn interpreter() -> Option<Interpreter> {
    IS_WANTED.get().then_some(run as Interpreter)
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

/// What it gets.
const NO_RIGHT: &[u8] = b"NOPERM no right";

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

/// Runs a script, or the broken one in its place. The interpreter is the thread's own.
pub fn run(
    model: &mut ModelMaster,
    now: Instant,
    script: &'static NamedScript,
    keys: &[&[u8]],
    args: &[&[u8]],
) -> Result<Answer, Refusal> {
    BREAKS.with_borrow(|breaks| {
        let broken = breaks.iter().find(|it| it.script == script.name);
        let code = match broken {
            Some(it) => Code { id: &it.text, text: &it.text },
            None => Code { id: script.sha, text: script.text },
        };
        RUNNER.with(|runner| runner.run(model, now, code, [keys, args]))
    })
}

/// A script as it runs, and what it is known by once it is compiled.
#[derive(Clone, Copy)]
struct Code<'a> {
    id: &'a str,
    text: &'a str,
}

/// One Lua state, and the scripts that it has compiled.
struct Runner {
    lua: Lua,
    chunks: RefCell<HashMap<String, Function>>,
}

/// `redis`, as far as scripts use it, over the function `carry_out`; and no global but those that are there.
const PRELUDE: &str = "
redis = {}
function redis.pcall(...) return carry_out(...) end
function redis.call(...)
    local answer = carry_out(...)
    if type(answer) == 'table' and answer.err then error(answer) end
    return answer
end
function redis.error_reply(text) return {err = text} end
function redis.status_reply(text) return {ok = text} end
function run(script)
    local is_done, value = pcall(script)
    if is_done then return value, nil end
    if type(value) == 'table' then return nil, value.err end
    return nil, 'ERR ' .. tostring(value)
end
KEYS, ARGV, carry_out = {}, {}, false
local function strict(_, name) error('Script attempted to access nonexistent global variable ' .. name) end
setmetatable(_G, {__index = strict, __newindex = strict})
";

impl Runner {
    fn new() -> mlua::Result<Self> {
        let lua = Lua::new();
        lua.load(PRELUDE).exec()?;
        Ok(Self { lua, chunks: RefCell::default() })
    }

    fn run(
        &self,
        model: &mut ModelMaster,
        now: Instant,
        code: Code<'_>,
        [keys, args]: [&[&[u8]]; 2],
    ) -> Result<Answer, Refusal> {
        let lua = &self.lua;
        let returned = lua.scope(|scope| {
            let carry_out =
                scope.create_function_mut(|lua, words: MultiValue| carry_out(lua, model, now, words))?;
            let globals = lua.globals();
            globals.raw_set("carry_out", carry_out)?;
            for (name, words) in [("KEYS", keys), ("ARGV", args)] {
                let words = words.iter().map(|word| lua.create_string(word));
                globals.raw_set(name, words.collect::<mlua::Result<Vec<_>>>()?)?;
            }
            let run: Function = globals.raw_get("run")?;
            let (value, raised): (LuaValue, Option<LuaString>) = run.call(self.chunk(code)?)?;
            match raised {
                None => answer(&value).map(Ok),
                Some(text) => Ok(Err(Refusal::Says(text.as_bytes().to_vec()))),
            }
        });
        returned.expect("Lua itself works")
    }

    fn chunk(&self, Code { id, text }: Code<'_>) -> mlua::Result<Function> {
        if let Some(chunk) = self.chunks.borrow().get(id) {
            return Ok(chunk.clone());
        }
        let chunk = self.lua.load(text).set_name("@user_script").into_function()?;
        self.chunks.borrow_mut().insert(id.to_owned(), chunk.clone());
        Ok(chunk)
    }
}

/// `redis.pcall`: carries out a command, and returns an error as a table.
fn carry_out(lua: &Lua, model: &mut ModelMaster, now: Instant, words: MultiValue) -> mlua::Result<LuaValue> {
    let words: Option<Vec<Vec<u8>>> = words.iter().map(word).collect();
    let Some(words) = words.filter(|words| !words.is_empty()) else {
        return error(lua, b"ERR Lua redis lib command arguments must be strings or integers");
    };
    let name = String::from_utf8_lossy(&words[0]).to_ascii_uppercase();
    let args: Vec<_> = words[1..].iter().map(Vec::as_slice).collect();
    if is_refused(&name) {
        return error(lua, NO_RIGHT);
    }
    match model.command(now, &name, &args) {
        Some(Ok(answer)) => lua_value(lua, &answer),
        Some(Err(Refusal::Says(text))) => error(lua, &text),
        Some(Err(Refusal::NotUnderstood)) => {
            error(lua, b"ERR Wrong number of args calling Redis command from script")
        }
        None => error(lua, b"ERR Unknown Redis command called from script"),
    }
}

/// An argument of a command: a string, or a number without a fraction as an integer.
fn word(value: &LuaValue) -> Option<Vec<u8>> {
    match value {
        LuaValue::String(text) => Some(text.as_bytes().to_vec()),
        LuaValue::Integer(number) => Some(number.to_string().into_bytes()),
        LuaValue::Number(number) if number.fract() == 0.0 && number.abs() < 1e17 => {
            Some(format!("{number:.0}").into_bytes())
        }
        LuaValue::Number(number) => Some(format!("{number:?}").into_bytes()),
        _ => None,
    }
}

fn error(lua: &Lua, text: &[u8]) -> mlua::Result<LuaValue> {
    lua_value(lua, &Answer::Error(text.to_vec()))
}

/// What a script gets for a reply.
fn lua_value(lua: &Lua, answer: &Answer) -> mlua::Result<LuaValue> {
    let with_field = |name, text: &[u8]| {
        let table = lua.create_table()?;
        table.raw_set(name, lua.create_string(text)?)?;
        Ok(LuaValue::Table(table))
    };
    match answer {
        Answer::Nil => Ok(LuaValue::Boolean(false)),
        #[allow(clippy::cast_precision_loss, reason = "as Lua 5.1 has it")]
        Answer::Integer(number) => Ok(LuaValue::Number(*number as f64)),
        Answer::Bulk(bytes) => Ok(LuaValue::String(lua.create_string(bytes)?)),
        // Scripts speak RESP2.
        Answer::Double(score) => Ok(LuaValue::String(lua.create_string(shown(*score))?)),
        Answer::Scored(members) => {
            let both = |(member, score): &(Vec<u8>, f64)| [member.clone(), shown(*score)];
            let texts = members.iter().flat_map(both).map(|text| lua.create_string(text));
            let texts = texts.collect::<mlua::Result<Vec<_>>>()?;
            lua.create_sequence_from(texts).map(LuaValue::Table)
        }
        Answer::Status(text) => with_field("ok", text),
        Answer::Error(text) => with_field("err", text),
        Answer::Array(elements) => {
            let elements = elements.iter().map(|element| lua_value(lua, element));
            lua.create_sequence_from(elements.collect::<mlua::Result<Vec<_>>>()?).map(LuaValue::Table)
        }
        Answer::Verbatim(_) | Answer::Map(_) | Answer::Pushes(_) => panic!("no script asks for {answer:?}"),
    }
}

/// The reply for what a script returned.
fn answer(value: &LuaValue) -> mlua::Result<Answer> {
    Ok(match value {
        LuaValue::String(text) => Answer::Bulk(text.as_bytes().to_vec()),
        LuaValue::Integer(number) => Answer::Integer(*number),
        // Cut off, not rounded.
        #[allow(clippy::cast_possible_truncation, reason = "as Redis does it")]
        LuaValue::Number(number) => Answer::Integer(*number as i64),
        LuaValue::Boolean(true) => Answer::Integer(1),
        LuaValue::Table(table) => table_answer(table)?,
        _ => Answer::Nil,
    })
}

fn table_answer(table: &Table) -> mlua::Result<Answer> {
    if let Some(text) = table.raw_get::<Option<LuaString>>("err")? {
        return Ok(Answer::Error(text.as_bytes().to_vec()));
    }
    if let Some(text) = table.raw_get::<Option<LuaString>>("ok")? {
        return Ok(Answer::Status(text.as_bytes().to_vec()));
    }
    // Up to the first nil.
    let elements = table.sequence_values::<LuaValue>();
    elements.map(|element| answer(&element?)).collect::<mlua::Result<_>>().map(Answer::Array)
}
