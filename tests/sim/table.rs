//! Replies, messages and changed keys of each script without a Rust model, in many states of its keys.
//! `tests/golden/scripts/` has one line for each state. `breaks.rs` breaks the scripts, and looks for a line
//! that differs.

mod cases;

use std::path::Path;
use std::time::{Duration, Instant};

use redlatch::resp;
use redlatch::scripts::{NamedScript, SCRIPTS};
use redlatch_support::assert_golden;

use cases::{Case, Refused, cases, refusals};

use crate::lua;
use crate::model::{Dialect, Entry, Keys, ModelMaster, Value, WITHOUT_LIKENESS, fence_key, queue_key};

/// The server's clock, in milliseconds; its microseconds are a little later.
const NOW_MS: i64 = 1_712_345_678_901;
const NOW_US: i64 = NOW_MS * 1000 + 537;
const FENCE_US: i64 = NOW_US - 7;
/// The part of a fence's window before the server's clock.
const HALF_US: i64 = 500_000_000_007;
/// TTLs of a fence and of a grant, with as many digits as an entry has room for.
const FENCE_TTL_MS: i64 = 6_000_000_000;
const GRANT_MS: i64 = 4_000_000_001;
const LOCK: &[u8] = b"lock";
const OWN_ID: &str = "waiter-own..";
/// Connection that subscribes to the caller's channel.
const CALLER: usize = 1000;

/// A value of 20 bytes, which may have a label.
fn value(name: &str) -> Vec<u8> {
    match name {
        "labelled" => format!("{name:.<20}\tweb-3"),
        "long" => format!("{name:.<40}"),
        "label" => format!("{name:.<20}\t{}", "x".repeat(100)),
        name => format!("{name:.<20}"),
    }
    .into_bytes()
}

fn token(word: &str) -> i64 {
    let tokens = [
        ('=', FENCE_US),
        ('_', FENCE_US + 1),
        ('<', NOW_US - HALF_US),
        ('(', NOW_US - HALF_US + 1),
        (')', NOW_US + HALF_US),
        ('>', NOW_US + HALF_US + 1),
        (']', NOW_US + 2 * HALF_US),
        ('}', NOW_US + 2 * HALF_US + 1),
        ('/', NOW_US + 1),
    ];
    tokens.iter().find(|(flag, _)| word.contains(*flag)).map_or(NOW_US, |(_, token)| *token)
}

/// Token part of a fenced waiter's entry, and of its park.
fn fenced(word: &str) -> String {
    if word.starts_with('f') {
        format!("{:016}{HALF_US:012}{:010}", token(word), FENCE_TTL_MS)
    } else {
        String::new()
    }
}

fn channel(place: usize, word: &str) -> String {
    format!("c:{place}{}", if word.contains('h') { "s" } else { "" })
}

/// The entry of a waiter, at a place in the queue. Its word is the mode, `p`, `f` or `r`, with flags:
///
/// | flag | meaning |
/// |---|---|
/// | `-` `*` `^` `+` | its stay ends now, a millisecond later, as late as possible, later |
/// | `s` `S` | its stay ends like a rung waiter's, a millisecond later |
/// | `~` `!` `g` | it is not fresh; its channel has no subscriber; its grant has no time |
/// | `o` `n` `O` `R` | it is the caller's, from the last round, this one, the next one, one with a large number |
/// | `k` `v` `w` | its value is `other`, the caller's, the caller's old one |
/// | `1` to `8` | a field is no number: round, stay, fresh, grant, size, token, window, TTL of the fence |
/// | `X` `h` | it has another mark; its channel is sharded |
/// | `=` `_` `/` | its token is the fence, the next one, the one after the server's clock |
/// | `<` `(` `)` `>` `]` `}` | its token is at the ends of the window, and of a window twice as long |
/// | `b` `y` `d` `?` | in a call: it does not stay; it yields; it has an old value; it knows no ticket |
/// | `A` | in a call: it names a ticket where nobody waits |
/// | `B` `L` `H` `w` | in a call: its ticket is before all, too low, too high; it has waited for four seconds |
fn entry(place: usize, word: &str) -> String {
    let flag = |flags: &[(char, i64)], other| {
        flags.iter().find(|(flag, _)| word.contains(*flag)).map_or(other, |(_, number)| *number)
    };
    let round = flag(&[('o', 1), ('n', 2), ('O', 3), ('R', 10_000_001)], 7);
    let id = if round == 7 { format!("waiter-{place:05}") } else { OWN_ID.to_owned() };
    let stay_ms = flag(&[('-', 0), ('*', 1), ('^', 3000), ('+', 3001), ('s', 200), ('S', 201)], 1000);
    let [fresh_ms, grant_ms] = [flag(&[('~', 0)], 1), flag(&[('g', 0)], GRANT_MS)];
    let owner = match word {
        _ if word.contains('k') => "other".to_owned(),
        _ if word.contains('v') => "own".to_owned(),
        _ if word.contains('w') => "old".to_owned(),
        _ => format!("value-{place}"),
    };
    let numbers = [round, stay_ms, fresh_ms, grant_ms];
    let channel = channel(place, word);
    let mut member = member(&id, word, numbers, &[&channel, &format!("vote{place:04}"), &owner]);
    let fields = [24..32, 32..45, 45..58, 58..68, 68..71, 82..98, 98..110, 110..120];
    for (_, field) in ('1'..='8').zip(fields).filter(|(flag, _)| word.contains(*flag)) {
        member.replace_range(field.clone(), &"x".repeat(field.len()));
    }
    if word.contains('X') {
        member.replace_range(..11, "redlatch:2:");
    }
    member
}

/// Entry of a park's caller.
fn own_entry(call: &str) -> String {
    let stay_ms = if call.contains('b') { 0 } else { 1500 };
    member(OWN_ID, call, [2, stay_ms, 800, 7000], &["c:own", "vote-own", "own"])
}

fn member(id: &str, word: &str, numbers: [i64; 4], [channel, vote, owner]: &[&str; 3]) -> String {
    let [round, stay_ms, fresh_ms, grant_ms] = numbers;
    let (stay_end, fresh_end, size) = (NOW_MS + stay_ms, NOW_MS + fresh_ms, channel.len());
    let (mode, fenced, value) =
        (&word[..1], fenced(word), String::from_utf8_lossy(&value(owner)).into_owned());
    format!(
        "redlatch:1:{id}{mode}{round:08}{stay_end:013}{fresh_end:013}{grant_ms:010}{size:03}{channel}{vote}{fenced}{value}"
    )
}

/// Words of a queue's waiters.
fn waiters(queue: &str) -> Vec<String> {
    let words: Vec<&str> = match queue {
        "full" => vec!["p!"; 4096],
        "full but one" => vec!["p!"; 4095],
        // The rank that the caller's value draws at random.
        "full, dead at its rank" => [vec!["p!"; 3959], vec!["p-"; 63], vec!["p-X"], vec!["p!"; 73]].concat(),
        "full of dead" => [vec!["p-"; 4095], vec!["p-X"]].concat(),
        "17 dead" => [vec!["p-"; 17], vec!["p"]].concat(),
        "16 dead" => [vec!["p-"; 16], vec!["p"]].concat(),
        "17 unheard" => [vec!["p!"; 17], vec!["p"]].concat(),
        "16 unheard" => [vec!["p!"; 16], vec!["p"]].concat(),
        "65 readers" => vec!["r"; 65],
        "64 readers" => vec!["r"; 64],
        "64 before pv" => [vec!["p"; 64], vec!["pv"]].concat(),
        "63 before pv" => [vec!["p"; 63], vec!["pv"]].concat(),
        words => words.split_whitespace().collect(),
    };
    words.into_iter().map(ToOwned::to_owned).collect()
}

/// Ticket of the waiter at a place of the queue.
fn ticket(place: usize) -> i64 {
    NOW_US - 5000 + i64::try_from(place).expect("small")
}

struct Rig {
    now: Instant,
    master: ModelMaster,
    /// The waiters' members, and how to show them.
    members: Vec<(Vec<u8>, String)>,
}

impl Rig {
    fn new(case: Case) -> Self {
        let now = Instant::now();
        let mut master = ModelMaster::new("run", now);
        // This dialect's errors name no script.
        master.dialect = Dialect::Valkey9;
        master.set_wall(now, NOW_US.unsigned_abs());
        lua::prepare(&mut master);
        let mut rig = Self { now, master, members: Vec::new() };
        rig.call(CALLER, &[b"SUBSCRIBE", b"c:own"]);
        rig.put_lock(case.lock);
        rig.put_queue(case.queue);
        rig.put_fence(case.fence);
        if case.call.starts_with(['p', 'r', 'f']) {
            rig.members.push((own_entry(case.call).into_bytes(), "#caller".to_owned()));
        }
        rig.master.data.is_full = case.is_full;
        rig
    }

    fn put(&mut self, key: &[u8], value: Value, ms: Option<u64>) {
        self.master.data.put(key, value, ms.map(|ms| self.now + Duration::from_millis(ms)));
    }

    fn put_lock(&mut self, lock: &str) {
        match lock {
            "" => {}
            "list" => self.put(LOCK, Value::List, Some(5000)),
            "set" => {
                let members: [(f64, &[u8]); 2] = [(5.0, b"five"), (9_999_999_999_999.0, b"x")];
                self.put(LOCK, Value::SortedSet(members.into_iter().collect()), Some(5000));
            }
            "alone own" => {
                let own = value("own");
                let members = [(9_999_999_999_999.0, own.as_slice())];
                self.put(LOCK, Value::SortedSet(members.into_iter().collect()), Some(5000));
            }
            "other!" => self.put(LOCK, Value::String(value("other")), None),
            readers if readers.starts_with("readers") => {
                let ends = [('-', 0), ('*', 1), ('+', 9000)];
                let names = readers.split_whitespace().skip(1).map(|word| {
                    let ms = ends.iter().find(|(flag, _)| word.ends_with(*flag)).map_or(500, |(_, ms)| *ms);
                    (NOW_MS + ms, value(word.trim_end_matches(['-', '*', '+'])))
                });
                let names: Vec<_> = names.collect();
                let ms = if readers.contains('+') { 9000 } else { 500 };
                let marker = (f64::NEG_INFINITY, b"redlatch:readers:1".as_slice());
                #[allow(clippy::cast_precision_loss, reason = "below 2^53")]
                let members = names.iter().map(|(end_ms, name)| (*end_ms as f64, name.as_slice()));
                let set = members.chain([marker]).collect();
                self.put(LOCK, Value::SortedSet(set), (!readers.starts_with("readers!")).then_some(ms));
            }
            name => self.put(LOCK, Value::String(value(name)), Some(5000)),
        }
    }

    fn put_queue(&mut self, queue: &str) {
        let key = queue_key(LOCK);
        match queue {
            "list" => return self.put(&key, Value::List, None),
            "set" => {
                let members: [(f64, &[u8]); 1] = [(1.0, b"foreign")];
                return self.put(&key, Value::SortedSet(members.into_iter().collect()), None);
            }
            _ => {}
        }
        let words = waiters(queue);
        for (place, word) in words.iter().enumerate() {
            self.members.push((entry(place, word).into_bytes(), format!("#{place}")));
            if !word.contains('!') && !queue.starts_with("full") {
                let subscribe: &[u8] = if word.contains('h') { b"SSUBSCRIBE" } else { b"SUBSCRIBE" };
                self.call(place + 1, &[subscribe, channel(place, word).as_bytes()]);
            }
        }
        if !words.is_empty() {
            #[allow(clippy::cast_precision_loss, reason = "below 2^53")]
            let set = self
                .members
                .iter()
                .enumerate()
                .map(|(place, (member, _))| (ticket(place) as f64, member.as_slice()))
                .collect();
            self.put(&key, Value::SortedSet(set), Some(6000));
        }
    }

    fn put_fence(&mut self, fence: &str) {
        match fence {
            "" => {}
            "list" => self.put(&fence_key(LOCK), Value::List, None),
            "fence" => {
                self.put(&fence_key(LOCK), Value::String(FENCE_US.to_string().into_bytes()), Some(9000))
            }
            text => self.put(&fence_key(LOCK), Value::String(text.into()), None),
        }
    }

    /// Reply and published messages.
    fn call(&mut self, conn: usize, words: &[&[u8]]) -> (String, Vec<String>) {
        let (mut input, mut reply) = (Vec::new(), Vec::new());
        resp::encode_command(&mut input, words);
        self.master.handle_over(conn, self.now, &mut input, &mut reply);
        self.master.log.clear();
        let pushes = std::mem::take(&mut self.master.pushes);
        let message = |(conn, bytes): &(usize, Vec<u8>)| {
            let text = bytes.escape_ascii().to_string();
            let name = if *conn == CALLER { "caller".to_owned() } else { (conn - 1).to_string() };
            format!("#{name} gets {}", text.rsplit("\\r\\n").nth(1).unwrap_or_default())
        };
        let reply =
            reply.escape_ascii().to_string().replace("\\r\\n", " ").replace(&NOW_US.to_string(), "NOW");
        (reply, pushes.iter().map(message).collect())
    }

    fn shown(&self, entry: &Entry) -> String {
        let until =
            entry.expires.map_or("no end".to_owned(), |at| format!("{} ms", (at - self.now).as_millis()));
        match &entry.value {
            Value::List => "list".to_owned(),
            Value::String(value) => format!("{} for {until}", short(value)),
            Value::SortedSet(set) => {
                let member = |(score, member)| format!("{} {}", relative(score), self.shown_member(member));
                let mut members: Vec<_> = set.iter().map(member).collect();
                if members.len() > 20 {
                    let count = members.len();
                    members = vec![members[0].clone(), format!("{count} in all"), members[count - 1].clone()];
                }
                format!("{{{}}} for {until}", members.join(", "))
            }
        }
    }

    /// A member of a set. A waiter is shown by its place, with its new end if only that differs.
    fn shown_member(&self, member: &[u8]) -> String {
        let stay = 32..45;
        let rest =
            |member: &[u8]| member.get(stay.end..).map(|behind| [&member[..stay.start], behind].concat());
        let known = self.members.iter().find(|(known, _)| known == member);
        let alike =
            || self.members.iter().find(|(known, _)| rest(known).is_some() && rest(known) == rest(member));
        match known {
            Some((_, name)) => name.clone(),
            None => match alike() {
                Some((_, name)) => format!("{name} until {}", member[stay.clone()].escape_ascii()),
                None => short(member),
            },
        }
    }

    /// Changed keys.
    fn changes(&self, before: &Keys) -> String {
        let after = &self.master.data.keys;
        let changed = after.iter().filter(|(key, entry)| before.get(*key) != Some(entry));
        let changed = changed.map(|(key, entry)| format!("{} = {}", key.escape_ascii(), self.shown(entry)));
        let gone = before.keys().filter(|key| !after.contains_key(*key));
        let gone = gone.map(|key| format!("{} is gone", key.escape_ascii()));
        changed.chain(gone).collect::<Vec<_>>().join("; ")
    }
}

/// Bytes as text, without a value's padding.
fn short(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string().replace("....", "")
}

/// A ticket or an end relative to the present; anything else as it is.
#[allow(clippy::cast_precision_loss, reason = "below 2^53")]
fn relative(score: f64) -> String {
    match score {
        us if us > 1e15 => format!("{:+}us", us - NOW_US as f64),
        ms if ms > 1e12 => format!("{:+}ms", ms - NOW_MS as f64),
        other => other.to_string(),
    }
}

/// Words of a call.
fn words(script: &NamedScript, case: Case) -> Vec<Vec<u8>> {
    let Case { call, queue, .. } = case;
    let number = |number: i64| number.to_string().into_bytes();
    let flag = |flags: &[(char, i64)], other| {
        flags.iter().find(|(flag, _)| call.contains(*flag)).map_or(other, |(_, number)| *number)
    };
    // Ticket of the caller's own entry.
    let own = waiters(queue).iter().position(|word| word.contains(['o', 'n', 'O', 'R', 'v']));
    let own = own.filter(|_| !call.contains('A'));
    let at = if call.contains('?') { Vec::new() } else { number(own.map_or(NOW_US, ticket)) };
    let (value_of_call, own_value) = (value, value("own"));
    let token_of_call = || if call.starts_with('f') { number(token(call)) } else { Vec::new() };
    let mode = call.get(..1).unwrap_or_default();
    let args = match script.name {
        "park" => vec![
            OWN_ID.into(),
            number(2),
            number(NOW_US - 300 + flag(&[('B', -10_000), ('L', -10_000_000), ('H', 10_000_000)], 0)),
            at,
            number(flag(&[('w', 4_000_000)], 0)),
            if call.contains('d') { value("old") } else { Vec::new() },
            number(flag(&[('y', 1)], 0)),
            mode.into(),
            number(flag(&[('b', 0)], 1500)),
            number(800),
            number(7000),
            b"c:own".to_vec(),
            b"vote-own".to_vec(),
            fenced(call).into_bytes(),
            own_value,
        ],
        "unpark" => vec![at, own_value, token_of_call(), number(HALF_US), number(FENCE_TTL_MS)],
        "serve" | "force_unlock_serve" => Vec::new(),
        "release_serve" | "shared_release_serve" => vec![value_of_call(call)],
        "fenced_release_serve" => {
            vec![own_value, token_of_call(), number(HALF_US), number(2 * HALF_US), number(FENCE_TTL_MS)]
        }
        "swap_parked" => vec![at, own_value, value("new"), number(7000)],
        "adopt" => vec![own_value, value("new"), number(7000), token_of_call()],
        "shared_acquire_queue" => vec![own_value, number(if call == "short" { 3 } else { 7000 })],
        other => panic!("no arguments for the script {other}"),
    };
    let keys = match script.name {
        "swap_parked" | "shared_acquire_queue" => vec![LOCK.to_vec(), queue_key(LOCK)],
        "adopt" => vec![LOCK.to_vec(), fence_key(LOCK)],
        _ => vec![LOCK.to_vec(), queue_key(LOCK), fence_key(LOCK)],
    };
    let head = [b"EVAL".to_vec(), script.text.into(), keys.len().to_string().into_bytes()];
    head.into_iter().chain(keys).chain(args).collect()
}

/// Line of a call without some rights; `None` if it does not need them.
fn line(script: &NamedScript, case: Case, refused: Refused) -> Option<String> {
    let mut rig = Rig::new(case);
    let before = rig.master.data.keys.clone();
    let words = words(script, case);
    let words: Vec<_> = words.iter().map(Vec::as_slice).collect();
    let (without, (reply, messages)) = match refused {
        Refused::Nothing => (String::new(), rig.call(0, &words)),
        Refused::At(place) => {
            let (result, asked) = lua::with_refusal(place, || rig.call(0, &words));
            (format!(" without {} {}", asked.get(place)?, place + 1), result)
        }
        Refused::Names(names) => {
            let result = lua::with_refusal_of(names, || rig.call(0, &words));
            (format!(" without all {}", names.join(" ")), result)
        }
    };
    let Case { lock, queue, fence, call, is_full } = case;
    let full = if is_full { " in full memory" } else { "" };
    let parts = [reply, messages.join(", "), rig.changes(&before)];
    let parts: Vec<_> = parts.iter().map(|part| part.trim()).filter(|part| !part.is_empty()).collect();
    Some(format!("{lock} | {queue} | {fence} | {call}{full}{without} -> {}\n", parts.join("; ")))
}

/// Passes each of a script's lines to `is_wanted`; returns false once that returns false.
fn each_line(script: &NamedScript, mut is_wanted: impl FnMut(&str) -> bool) -> bool {
    let whole = cases(script.name).into_iter().map(|case| (case, Refused::Nothing));
    for (case, refused) in whole.chain(refusals(script.name)) {
        let each = match refused {
            Refused::At(first) => first..usize::MAX,
            _ => 0..1,
        };
        for place in each {
            let refused = if let Refused::At(_) = refused { Refused::At(place) } else { refused };
            match line(script, case, refused) {
                Some(line) if is_wanted(&line) => {}
                Some(_) => return false,
                None => break,
            }
        }
    }
    true
}

/// Scripts of the table.
pub fn tabled() -> impl Iterator<Item = &'static NamedScript> {
    SCRIPTS.iter().filter(|it| WITHOUT_LIKENESS.contains(&it.name))
}

/// Compares a script with its table.
pub fn check(script: &NamedScript) -> Result<(), String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/scripts").join(script.name);
    let table = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    let mut lines = table.split_inclusive('\n');
    let is_kept = each_line(script, |line| lines.next() == Some(line)) && lines.next().is_none();
    if is_kept { Ok(()) } else { Err(format!("{} does not keep to its table", script.name)) }
}

#[test]
fn each_script_keeps_to_its_table() {
    for script in tabled() {
        let mut table = String::new();
        lua::with_lua(|| {
            each_line(script, |line| {
                table += line;
                true
            })
        });
        assert_golden(&format!("scripts/{}", script.name), &table);
    }
}
