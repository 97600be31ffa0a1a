//! The Lua scripts themselves, run by a real Lua 5.1 on a model master's data. Converts between replies and
//! Lua's values like Redis.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Instant;

use mlua::{Function, Lua, LuaString, MultiValue, Table, Value as LuaValue};
use redlatch::scripts::NamedScript;

use super::answer::shown;
use super::{Answer, ModelMaster, Refusal};

thread_local! {
    static RUNNER: Runner = Runner::new().expect("a Lua state");
}

/// Runs a script in this thread's interpreter.
///
/// # Errors
/// The errors that the script raises.
pub fn run(
    model: &mut ModelMaster,
    now: Instant,
    script: &'static NamedScript,
    keys: &[&[u8]],
    args: &[&[u8]],
) -> Result<Answer, Refusal> {
    let code = Code { id: script.sha, text: script.text, is_refused: |_| false };
    run_code(model, now, code, [keys, args])
}

/// Runs any code in this thread's interpreter.
///
/// # Errors
/// The errors that the script raises.
pub fn run_code(
    model: &mut ModelMaster,
    now: Instant,
    code: Code<'_>,
    words: [&[&[u8]]; 2],
) -> Result<Answer, Refusal> {
    RUNNER.with(|runner| runner.run(model, now, code, words))
}

#[derive(Debug, Clone, Copy)]
pub struct Code<'a> {
    /// Name of the compiled script.
    pub id: &'a str,
    pub text: &'a str,
    /// Whether to refuse a command of this name, as for a user without the right.
    pub is_refused: fn(&str) -> bool,
}

/// A Lua state, with its compiled scripts.
struct Runner {
    lua: Lua,
    chunks: RefCell<HashMap<String, Function>>,
}

/// The part of `redis` that scripts use, built on the function `carry_out`. Scripts can define no globals.
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
            let carry_out = scope.create_function_mut(|lua, words: MultiValue| {
                carry_out(lua, model, now, code.is_refused, words)
            })?;
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

    fn chunk(&self, Code { id, text, .. }: Code<'_>) -> mlua::Result<Function> {
        if let Some(chunk) = self.chunks.borrow().get(id) {
            return Ok(chunk.clone());
        }
        let chunk = self.lua.load(text).set_name("@user_script").into_function()?;
        self.chunks.borrow_mut().insert(id.to_owned(), chunk.clone());
        Ok(chunk)
    }
}

/// `redis.pcall`: executes a command, and returns an error as a table.
fn carry_out(
    lua: &Lua,
    model: &mut ModelMaster,
    now: Instant,
    is_refused: fn(&str) -> bool,
    words: MultiValue,
) -> mlua::Result<LuaValue> {
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

/// Argument of a command: a string, or a number. A number without a fraction is written as an integer.
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

/// Error of a command that needs a missing right.
const NO_RIGHT: &[u8] = b"NOPERM no right";

/// Value of a reply for a script.
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
        // Scripts use RESP2.
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

/// Reply for the value that a script returned.
fn answer(value: &LuaValue) -> mlua::Result<Answer> {
    Ok(match value {
        LuaValue::String(text) => Answer::Bulk(text.as_bytes().to_vec()),
        LuaValue::Integer(number) => Answer::Integer(*number),
        // Truncated, not rounded.
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
    // A sequence ends at the first nil.
    let elements = table.sequence_values::<LuaValue>();
    elements.map(|element| answer(&element?)).collect::<mlua::Result<_>>().map(Answer::Array)
}
