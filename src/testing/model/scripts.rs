//! The engine's scripts on a model master: in Rust, statement for statement, so that histories run fast; or
//! in an interpreter. `tests/sim/scripts.rs` compares the two. The scripts of parked attempts and of
//! adoptions have no version in Rust, and are always interpreted; `tests/park_scripts` tests them.

use std::time::Instant;

use redlatch::scripts::{NamedScript, SCRIPTS};

use super::commands::{integer, millis};
use super::{Answer, Dialect, ModelMaster, Refusal};

/// Runs a script with its keys and arguments on a model.
pub type Interpreter = fn(
    &mut ModelMaster,
    Instant,
    &'static NamedScript,
    keys: &[&[u8]],
    args: &[&[u8]],
) -> Result<Answer, Refusal>;

/// Scripts that are always interpreted.
pub const WITHOUT_LIKENESS: [&str; 10] = [
    "adopt",
    "park",
    "unpark",
    "serve",
    "release_serve",
    "fenced_release_serve",
    "shared_acquire_queue",
    "shared_release_serve",
    "force_unlock_serve",
    "swap_parked",
];

const FOREIGN_SCRIPT: &str = "ERR the model runs no scripts but those of redlatch";
const NO_NUMBER: &[u8] = b"ERR the fence is no number";

/// Script that `EVALSHA` or `EVAL` names with this word.
pub fn script(word: &[u8]) -> Option<&'static NamedScript> {
    place(word).map(|place| &SCRIPTS[place])
}

/// Place of a script in [`SCRIPTS`], by digest or text.
fn place(word: &[u8]) -> Option<usize> {
    // Compares the first digits in one instruction: different digests differ there.
    let first = word.first_chunk::<8>();
    let is_digest = |it: &NamedScript| it.sha.as_bytes().first_chunk() == first && it.sha.as_bytes() == word;
    SCRIPTS.iter().position(|it| is_digest(it) || it.text.as_bytes() == word)
}

/// Digest of a script.
pub fn digest(name: &str) -> &'static str {
    SCRIPTS.iter().find(|script| script.name == name).expect("a script of this name").sha
}

impl ModelMaster {
    pub(super) fn carry_out_script(
        &mut self,
        now: Instant,
        name: &str,
        args: &[&[u8]],
    ) -> Result<Answer, Refusal> {
        self.script_count += u64::from(name != "SCRIPT");
        let known = |word: &[u8]| place(word).map_or_else(|| Refusal::says(FOREIGN_SCRIPT), Ok);
        let (script, args) = match (name, args) {
            ("SCRIPT", [b"LOAD", text]) => {
                let script = known(text)?;
                self.scripts.insert(script);
                return Ok(Answer::Bulk(SCRIPTS[script].sha.as_bytes().to_vec()));
            }
            ("SCRIPT", [b"FLUSH"]) => {
                self.flush_scripts();
                return Ok(Answer::ok());
            }
            ("EVALSHA", [sha, args @ ..]) if place(sha).is_some_and(|it| self.scripts.contains(&it)) => {
                (known(sha)?, args)
            }
            ("EVALSHA", [_, _, ..]) if self.dialect.is_valkey() => {
                return Refusal::says("NOSCRIPT No matching script.");
            }
            ("EVALSHA", [_, _, ..]) => return Refusal::says("NOSCRIPT No matching script. Please use EVAL."),
            ("EVAL", [text, args @ ..]) => {
                let script = known(text)?;
                self.scripts.insert(script);
                (script, args)
            }
            _ => return Err(Refusal::NotUnderstood),
        };
        let [key_count, words @ ..] = args else { return Err(Refusal::NotUnderstood) };
        let key_count = usize::try_from(integer(key_count)?).unwrap_or(usize::MAX);
        let (keys, args) = words.split_at_checked(key_count).ok_or(Refusal::NotUnderstood)?;
        let script = &SCRIPTS[script];
        self.data.begin_script();
        let is_interpreted = self.interprets_all || WITHOUT_LIKENESS.contains(&script.name);
        let run = if is_interpreted { self.interpreter } else { ModelMaster::run };
        let answer = run(self, now, script, keys, args);
        self.data.end_script();
        answer.map_err(|refusal| self.in_script(refusal, script))
    }

    /// Error of a command in a script.
    fn in_script(&self, refusal: Refusal, script: &NamedScript) -> Refusal {
        let is_named = self.dialect != Dialect::Valkey9;
        let place = if is_named { format!("{}, ", script.sha) } else { String::new() };
        match refusal {
            Refusal::Says(text) => {
                let place = format!(" script: {place}on @user_script:1.");
                Refusal::Says([text, place.into_bytes()].concat())
            }
            other => other,
        }
    }

    /// Runs a script's version in Rust.
    fn run(
        &mut self,
        now: Instant,
        script: &'static NamedScript,
        keys: &[&[u8]],
        args: &[&[u8]],
    ) -> Result<Answer, Refusal> {
        let done = |is_done: bool| Answer::Integer(i64::from(is_done));
        match (script.name, keys, args) {
            ("release", [key], [value]) => self.release(now, key, value).map(done),
            ("extend", [key], [value, ttl]) => {
                let is_own = self.data.string(now, key)? == Some(*value);
                Ok(done(is_own && self.data.expire(now, key, now + millis(ttl)?)))
            }
            ("swap", [key], [old, new, ttl]) => {
                let (is_own, end) = (self.data.string(now, key)? == Some(*old), now + millis(ttl)?);
                if is_own {
                    self.data.expire(now, key, end);
                    self.data.set(key, new, Some(end))?;
                }
                Ok(done(is_own))
            }
            ("fenced_acquire", [lock, fence], args) => self.acquire_fenced(now, lock, fence, args),
            ("free_slots", [head], [pool, count, from]) => self.free_slots(now, head, pool, [count, from]),
            ("shared_extend", [lock], [value, ttl]) => self.extend_shared(now, lock, value, ttl).map(done),
            _ => panic!("no script is called like this"),
        }
    }

    fn release(&mut self, now: Instant, key: &[u8], value: &[u8]) -> Result<bool, Refusal> {
        Ok(self.data.string(now, key)? == Some(value) && self.data.delete(now, key))
    }

    fn free_slots(
        &mut self,
        now: Instant,
        head: &[u8],
        pool: &[u8],
        [count, from]: [&[u8]; 2],
    ) -> Result<Answer, Refusal> {
        let (count, from) = (integer(count)?, integer(from)?);
        let slots = (from..from + count).map(|slot| (slot % count).to_string());
        let (mut marks, mut free_count) = (Vec::new(), 0);
        for slot in slots {
            let key = [head, slot.as_bytes(), b":", pool].concat();
            if self.is_taken(now, &key) {
                marks.extend(self.value(now, &key).and_then(|value| value.first_chunk()).unwrap_or(b"????"));
                continue;
            }
            marks.extend(b"....");
            free_count += 1;
            if free_count == 4 {
                break;
            }
        }
        Ok(Answer::Bulk(marks))
    }

    fn acquire_fenced(
        &mut self,
        now: Instant,
        lock: &[u8],
        fence: &[u8],
        args: &[&[u8]],
    ) -> Result<Answer, Refusal> {
        let &[value, ttl, token, past, future, life] = args else { panic!("no script is called like this") };
        let Some(old) = self.fence_value(now, fence)? else { return Ok(Answer::Error(NO_NUMBER.to_vec())) };
        let (clock, time) = (i64::try_from(self.wall_us(now)).expect("small"), integer(token)?);
        // A list or readers refuse, as for `SET NX`.
        if self.value(now, lock) == Some(value) {
            return Ok(Answer::Status(b"OWN".to_vec()));
        }
        let refused = |refusal, left| Ok(Answer::numbers(&[refusal, old, left, clock]));
        if self.is_taken(now, lock) {
            return refused(0, self.data.time_left(now, lock));
        } else if time <= old {
            return refused(1, 0);
        } else if time <= clock - integer(past)? {
            return refused(2, 0);
        } else if time > clock + integer(future)? {
            return refused(3, 0);
        }
        self.data.set(fence, token, Some(now + millis(life)?))?;
        self.data.set(lock, value, Some(now + millis(ttl)?))?;
        Ok(Answer::ok())
    }

    /// Number in a fence: zero without a fence, `None` if the value is no number.
    fn fence_value(&self, now: Instant, fence: &[u8]) -> Result<Option<i64>, Refusal> {
        let Some(value) = self.data.string(now, fence)? else { return Ok(Some(0)) };
        Ok(integer(value).ok().filter(|_| value.iter().all(u8::is_ascii_digit)))
    }
}
