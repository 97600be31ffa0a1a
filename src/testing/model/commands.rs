//! Commands that read or change keys, for connections and scripts.

use std::time::{Duration, Instant};

use super::{Answer, ModelMaster, Refusal, Scope, SortedSet, Value};

const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
const NOT_A_FLOAT: &str = "ERR value is not a valid float";
const NO_RANGE: &str = "ERR min or max is not a float";
const SYNTAX: &str = "ERR syntax error";

impl ModelMaster {
    /// Executes a command whose name is in capitals; `None` if the command is not one of these.
    pub fn command(&mut self, now: Instant, name: &str, args: &[&[u8]]) -> Option<Result<Answer, Refusal>> {
        Some(match name {
            "GET" | "GETDEL" | "GETRANGE" | "SET" | "DELIFEQ" | "DELEX" => {
                self.string_command(now, name, args)
            }
            "DEL" | "EXISTS" | "PTTL" | "PEXPIRE" | "PEXPIREAT" | "TYPE" => self.key_command(now, name, args),
            "ZADD" | "ZREM" | "ZREMRANGEBYSCORE" => self.set_change(now, name, args),
            "ZCARD" | "ZSCORE" | "ZRANK" | "ZREVRANK" | "ZRANGE" | "ZREVRANGE" | "ZRANGEBYSCORE" => {
                self.set_look(now, name, args)
            }
            "TIME" if args.is_empty() => Ok(self.time(now)),
            "PUBLISH" | "SPUBLISH" => match (self.errors.get(name), args) {
                (Some(error), _) => Refusal::says(error),
                (None, [channel, payload]) => {
                    let scope = if name == "PUBLISH" { Scope::Server } else { Scope::Shard };
                    Ok(Answer::count(self.publish(scope, channel, payload)))
                }
                _ => Err(Refusal::NotUnderstood),
            },
            _ => return None,
        })
    }

    fn time(&self, now: Instant) -> Answer {
        let time = Duration::from_micros(self.wall_us(now));
        let parts = [time.as_secs().to_string(), time.subsec_micros().to_string()];
        Answer::Array(parts.map(|part| Answer::Bulk(part.into_bytes())).to_vec())
    }

    fn string_command(&mut self, now: Instant, name: &str, args: &[&[u8]]) -> Result<Answer, Refusal> {
        let in_capitals: Vec<Vec<u8>>;
        let mut options = args.get(2..).unwrap_or_default();
        let capital_options: Vec<&[u8]>;
        if options.iter().any(|word| word.len() <= 4 && word.iter().any(u8::is_ascii_lowercase)) {
            in_capitals = options.iter().map(|word| word.to_ascii_uppercase()).collect();
            capital_options = in_capitals.iter().map(Vec::as_slice).collect();
            options = &capital_options;
        }
        let has_if_eq = self.dialect.has_set_if_eq();
        let data = &mut self.data;
        Ok(match (name, args, options) {
            ("GET", [key], _) => Answer::bulk(data.string(now, key)?),
            ("GETDEL", [key], _) => {
                let value = Answer::bulk(data.string(now, key)?);
                data.delete(now, key);
                value
            }
            ("GETRANGE", [key, b"0", last @ (b"0" | b"255")], _) => {
                let (value, size) = (data.string(now, key)?.unwrap_or_default(), integer(last)? + 1);
                Answer::bulk(Some(&value[..value.len().min(clamped(size))]))
            }
            ("SET", [key, value], _) => data.set(key, value, None).map(|()| Answer::ok())?,
            ("SET", [key, value, ..], [b"PX", ttl]) => {
                data.set(key, value, Some(now + millis(ttl)?)).map(|()| Answer::ok())?
            }
            ("SET", [key, value, _], [b"NX"]) => {
                data.may_take_memory()?;
                if data.is_taken(now, key) {
                    return Ok(Answer::Nil);
                }
                data.set(key, value, None).map(|()| Answer::ok())?
            }
            ("SET", [key, value, ..], [b"XX", b"PX", ttl]) => {
                data.may_take_memory()?;
                if !data.is_taken(now, key) {
                    return Ok(Answer::Nil);
                }
                data.set(key, value, Some(now + millis(ttl)?)).map(|()| Answer::ok())?
            }
            ("SET", [key, value, ..], [b"NX", b"PX", ttl]) => {
                let (is_taken, expires) = (data.is_taken(now, key), now + millis(ttl)?);
                data.may_take_memory()?;
                if is_taken {
                    return Ok(Answer::Nil);
                }
                data.set(key, value, Some(expires)).map(|()| Answer::ok())?
            }
            ("SET", [key, value, _, old, ..], [b"IFEQ", _, b"PX", ttl]) if has_if_eq => {
                data.may_take_memory()?;
                if data.string(now, key)? != Some(*old) {
                    return Ok(Answer::Nil);
                }
                data.set(key, value, Some(now + millis(ttl)?)).map(|()| Answer::ok())?
            }
            ("SET", [_, _, _, ..], _) => {
                data.may_take_memory()?;
                return Refusal::says(SYNTAX);
            }
            ("DELEX", [key, _, _], _) if data.is_taken(now, key) && data.string(now, key).is_err() => {
                return Refusal::says("ERR Key should be of string type if conditions are specified");
            }
            ("DELIFEQ", [key, value], _) | ("DELEX", [key, b"IFEQ", value], _) => {
                let is_own = data.string(now, key)? == Some(*value);
                Answer::Integer(i64::from(is_own && data.delete(now, key)))
            }
            _ => return Err(Refusal::NotUnderstood),
        })
    }

    fn key_command(&mut self, now: Instant, name: &str, args: &[&[u8]]) -> Result<Answer, Refusal> {
        let (wall, data) = (self.wall, &mut self.data);
        Ok(match (name, args) {
            ("DEL", [key]) => Answer::Integer(i64::from(data.delete(now, key))),
            ("EXISTS", [_, ..]) => Answer::count(args.iter().filter(|key| data.is_taken(now, key)).count()),
            ("PTTL", [key]) => Answer::Integer(data.time_left(now, key)),
            ("PEXPIRE", [key, ttl]) => {
                let ttl = Duration::from_millis(integer(ttl)?.max(0).unsigned_abs());
                Answer::Integer(i64::from(data.expire(now, key, now + ttl)))
            }
            ("PEXPIREAT", [key, at]) => {
                let end = wall.at_ms(integer(at)?);
                Answer::Integer(i64::from(data.expire(now, key, end)))
            }
            ("TYPE", [key]) => Answer::Status(match data.entry(now, key).map(|entry| &entry.value) {
                None => b"none".to_vec(),
                Some(Value::String(_)) => b"string".to_vec(),
                Some(Value::List) => b"list".to_vec(),
                Some(Value::SortedSet(_)) => b"zset".to_vec(),
            }),
            _ => return Err(Refusal::NotUnderstood),
        })
    }

    fn set_change(&mut self, now: Instant, name: &str, args: &[&[u8]]) -> Result<Answer, Refusal> {
        let data = &mut self.data;
        Ok(match (name, args) {
            ("ZADD", [key, pairs @ ..]) if !pairs.is_empty() && pairs.len() % 2 == 0 => {
                data.may_take_memory()?;
                let members = pairs.chunks(2).map(|pair| Ok((float(pair[0])?, pair[1])));
                Answer::count(data.add(now, key, &members.collect::<Result<Vec<_>, _>>()?)?)
            }
            ("ZADD", [key, b"XX", _, _]) if !data.is_taken(now, key) => {
                data.may_take_memory()?;
                Answer::Integer(0)
            }
            ("ZADD", [_, _, _, ..]) => return Refusal::says(SYNTAX),
            ("ZREM", [key, member]) => Answer::Integer(i64::from(data.remove(now, key, member)?)),
            ("ZREMRANGEBYSCORE", [key, min, max]) => {
                Answer::count(data.purge(now, key, min_or_max(min)?, min_or_max(max)?)?)
            }
            _ => return Err(Refusal::NotUnderstood),
        })
    }

    fn set_look(&mut self, now: Instant, name: &str, args: &[&[u8]]) -> Result<Answer, Refusal> {
        let key = args.first().ok_or(Refusal::NotUnderstood)?;
        let empty = SortedSet::default();
        let set = self.data.sorted_set(now, key).map(|set| set.unwrap_or(&empty));
        let with_scores = |members: Vec<(f64, &[u8])>| {
            Answer::Scored(members.into_iter().map(|(score, member)| (member.to_vec(), score)).collect())
        };
        let rank = |rank: Option<usize>| rank.map_or(Answer::Nil, Answer::count);
        Ok(match (name, &args[1..]) {
            ("ZCARD", []) => Answer::count(set?.count()),
            ("ZSCORE", [member]) => set?.score(member).map_or(Answer::Nil, Answer::Double),
            ("ZRANK", [member]) => rank(set?.rank(member)),
            ("ZREVRANK", [member]) => {
                let set = set?;
                rank(set.rank(member).map(|rank| set.count() - 1 - rank))
            }
            ("ZRANGE" | "ZREVRANGE", [from, to, with @ ..]) => {
                let (from, to, set) = (integer(from)?, integer(to)?, set?);
                let mut members: Vec<_> = set.iter().collect();
                if name == "ZREVRANGE" {
                    members.reverse();
                }
                let members = slice(members, from, to);
                match with {
                    [] => Answer::Array(members.into_iter().map(|it| Answer::bulk(Some(it.1))).collect()),
                    [word] if word.eq_ignore_ascii_case(b"WITHSCORES") => with_scores(members),
                    _ => return Refusal::says(SYNTAX),
                }
            }
            ("ZRANGEBYSCORE", [min, max, limit @ ..]) => {
                let range = min_or_max(min)?..=min_or_max(max)?;
                let (offset, count) = match limit {
                    [] => (0, -1),
                    [word, offset, count] if word.eq_ignore_ascii_case(b"LIMIT") => {
                        (integer(offset)?, integer(count)?)
                    }
                    _ => return Refusal::says(SYNTAX),
                };
                let set = set?;
                let members = set.iter().filter(|(score, _)| range.contains(score)).skip(clamped(offset));
                let members = members.take(if count < 0 { usize::MAX } else { clamped(count) });
                Answer::Array(members.map(|(_, member)| Answer::bulk(Some(member))).collect())
            }
            _ => return Err(Refusal::NotUnderstood),
        })
    }
}

/// Elements between two places, both included. A negative place counts from the end.
fn slice<T>(all: Vec<T>, from: i64, to: i64) -> Vec<T> {
    let count = i64::try_from(all.len()).expect("small");
    let place = |at: i64| if at < 0 { at + count } else { at };
    let (from, to) = (place(from).max(0), place(to));
    all.into_iter().skip(clamped(from)).take(clamped(to - from + 1)).collect()
}

fn clamped(number: i64) -> usize {
    usize::try_from(number.max(0)).unwrap_or(usize::MAX)
}

/// TTL of a key in milliseconds, which must be positive.
pub(super) fn millis(digits: &[u8]) -> Result<Duration, Refusal> {
    match integer(digits)? {
        ms @ 1.. => Ok(Duration::from_millis(ms.unsigned_abs())),
        _ => Refusal::says("ERR invalid expire time in 'set' command"),
    }
}

pub(super) fn integer(digits: &[u8]) -> Result<i64, Refusal> {
    // A fast path: most numbers have no sign, and too few digits for an overflow.
    if (1..=18).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit) {
        return Ok(digits.iter().fold(0, |number, digit| 10 * number + i64::from(digit - b'0')));
    }
    let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
    number.map_or_else(|| Refusal::says(NOT_AN_INTEGER), Ok)
}

/// Bound of a range of scores.
fn min_or_max(digits: &[u8]) -> Result<f64, Refusal> {
    float(digits).or_else(|_| Refusal::says(NO_RANGE))
}

fn float(digits: &[u8]) -> Result<f64, Refusal> {
    let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse::<f64>().ok());
    number.filter(|number| !number.is_nan()).map_or_else(|| Refusal::says(NOT_A_FLOAT), Ok)
}
