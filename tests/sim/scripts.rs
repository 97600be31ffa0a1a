//! Each script and its model, compared: from the same random state, with the same random arguments, both must
//! return the same reply, publish the same messages, and leave the same data.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use redlatch::resp;
use redlatch::scripts::{NamedScript, SCRIPTS};

use crate::clock::WALL_US;
use crate::lua;
use crate::model::{ModelMaster, SortedSet, Value, WITHOUT_LIKENESS};

const LOCKS: [&[u8]; 2] = [b"a", b"\r\n"];
const VALUES: [&[u8]; 4] = [b"0123456789abcdefghij", &[0xff; 20], b"\0\r\n", b"7"];
const CHANNELS: &[u8] = b"c:";
/// More subscribers than a script's largest published number.
const SUBSCRIBERS: usize = 6;
const STEPS: usize = 150;
const SEEDS: u64 = 100;

/// The replies that distinguish each script's branches.
const KINDS: [&str; 24] = [
    "extend: -WRONGTYPE",
    "extend: :0",
    "extend: :1",
    "fenced_acquire: +OK",
    "fenced_acquire: +OWN",
    "fenced_acquire: -ERR",
    "fenced_acquire: -OOM",
    "fenced_acquire: -WRONGTYPE",
    "fenced_acquire: :0",
    "fenced_acquire: :1",
    "fenced_acquire: :2",
    "fenced_acquire: :3",
    "free_slots: $12",
    "free_slots: $4",
    "free_slots: $8",
    "release: -WRONGTYPE",
    "release: :0",
    "release: :1",
    "shared_extend: -WRONGTYPE",
    "shared_extend: :0",
    "shared_extend: :1",
    "swap: -WRONGTYPE",
    "swap: :0",
    "swap: :1",
];

/// Keys and arguments of a script's call.
struct Call {
    keys: Vec<Vec<u8>>,
    args: Vec<Vec<u8>>,
}

/// Two masters with the same past. One runs the scripts with Lua.
struct Pair {
    rng: StdRng,
    now: Instant,
    /// The model, and the master with the interpreter.
    masters: [ModelMaster; 2],
    /// The last action.
    shown: String,
}

impl Pair {
    fn new(seed: u64) -> Self {
        let now = Instant::now();
        let masters = [(); 2].map(|()| {
            let mut master = ModelMaster::new("run", now);
            master.set_wall(now, WALL_US);
            master
        });
        let mut pair = Self { rng: StdRng::seed_from_u64(seed), now, masters, shown: String::new() };
        lua::prepare(&mut pair.masters[1]);
        for conn in 1..=SUBSCRIBERS {
            let channel = pair.channel();
            pair.both(|it| drop(exchange(it, conn, now, &[b"SUBSCRIBE".as_slice(), &channel])));
        }
        pair
    }

    fn both(&mut self, change: impl FnMut(&mut ModelMaster)) {
        self.masters.iter_mut().for_each(change);
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        *from.choose(&mut self.rng).expect("not empty")
    }

    fn chance(&mut self, one_in: u32) -> bool {
        self.rng.random_range(0..one_in) == 0
    }

    fn lock(&mut self) -> &'static [u8] {
        self.pick(&LOCKS)
    }

    fn value(&mut self) -> Vec<u8> {
        self.pick(&VALUES).to_vec()
    }

    /// A value with the mark of a waiter's entry.
    fn marked(&mut self) -> Vec<u8> {
        [b"redlatch:1:".as_slice(), &self.value()].concat()
    }

    /// Any key of a lock.
    fn key(&mut self) -> Vec<u8> {
        let lock = self.lock();
        match self.rng.random_range(0..9) {
            0..3 => fence_key(lock),
            3..6 => lock.to_vec(),
            // A slot's lock.
            _ => format!("s{}:a", self.pick(&[0, 0, 0, 1, 1, 2, 9, 10])).into_bytes(),
        }
    }

    fn channel(&mut self) -> Vec<u8> {
        let lock = self.lock();
        match self.rng.random_range(0..4) {
            0..2 => lock.to_vec(),
            2 => [CHANNELS, &self.marked()].concat(),
            // A group's channel.
            _ => [CHANNELS, self.pick(&[b"0", b"1", b"2", b"3"])].concat(),
        }
    }

    /// Milliseconds that a key or a reader may last.
    fn ms(&mut self) -> Vec<u8> {
        self.pick(&[1_u32, 2, 5, 40, 41, 300, 1000]).to_string().into_bytes()
    }

    /// Time passes; others write, subscribe, or fill the server.
    fn disturb(&mut self) {
        let ns = self.pick(&[0, 0, 1, 999_999, 1_000_000, 4_700_000, 41_000_000, 350_000_000]);
        self.now += Duration::from_nanos(ns);
        if self.chance(3) {
            self.put_foreign();
        }
        if self.chance(6) {
            let is_full = self.chance(3);
            self.both(|it| it.data.is_full = is_full);
        }
        if self.chance(40) {
            let is_refused = self.rng.random::<bool>();
            let error = ("PUBLISH".to_owned(), "NOPERM no".to_owned());
            self.both(|it| it.errors = is_refused.then(|| error.clone()).into_iter().collect());
        }
        if self.chance(12) {
            let (conn, channel) = (self.rng.random_range(1..=SUBSCRIBERS), self.channel());
            let word: &[u8] = if self.chance(4) { b"UNSUBSCRIBE" } else { b"SUBSCRIBE" };
            let now = self.now;
            self.both(|it| drop(exchange(it, conn, now, &[word, &channel])));
        }
    }

    /// A key that a script may find: of the right type or another, with or without an expiry.
    fn put_foreign(&mut self) {
        let (key, ttl) = (self.key(), Duration::from_millis(self.pick(&[1, 20, 300, 5000])));
        let expires = self.rng.random::<bool>().then(|| self.now + ttl);
        let value = match self.rng.random_range(0..8) {
            0..2 => {
                self.both(|it| drop(it.data.keys.remove(&key)));
                return;
            }
            2 => Value::List,
            3 => Value::String(self.pick(&["x1", "0x1f", "-7", "7 ", ""]).into()),
            4 => Value::String(self.token()),
            5 if self.chance(20) => Value::SortedSet(self.long_set()),
            5 => Value::String(self.value()),
            _ => Value::SortedSet(self.foreign_set(LOCKS.contains(&key.as_slice()))),
        };
        self.both(|it| it.data.put(&key, value.clone(), expires));
    }

    /// Members that may be readers, with scores near the present, or small scores.
    fn foreign_set(&mut self, is_lock: bool) -> SortedSet {
        let now_ms = self.masters[0].wall.ms(self.now);
        let is_own = !is_lock && !self.chance(4);
        let members: Vec<_> = (0..self.rng.random_range(1..=4))
            .map(|_| {
                let off = self.pick(&[-1000_i64, -1, 0, 1, 40, 41, 500, 5000]);
                let score = if self.rng.random() { now_ms + off } else { self.rng.random_range(0..6) };
                #[allow(clippy::cast_precision_loss, reason = "below 2^53")]
                (score as f64, if is_own || self.chance(3) { self.marked() } else { self.value() })
            })
            .collect();
        let marker =
            (is_lock && self.rng.random()).then_some((f64::NEG_INFINITY, b"redlatch:readers:1".as_slice()));
        members.iter().map(|(score, member)| (*score, member.as_slice())).chain(marker).collect()
    }

    /// More expired members than one call removes.
    fn long_set(&mut self) -> SortedSet {
        let names: Vec<_> = (0..105).map(|index| format!("redlatch:1:{index:03}")).collect();
        names.iter().map(|name| (1.0, name.as_bytes())).collect()
    }

    /// A fencing token near the master's clock.
    fn token(&mut self) -> Vec<u8> {
        let off = self.pick(&[-600_000_i64, -500_000, -499_999, -1, 0, 1, 2, 500_000, 500_001, 600_000]);
        let us = self.masters[0].wall_us(self.now).saturating_add_signed(off);
        us.to_string().into_bytes()
    }

    fn draw(&mut self, script: &str) -> Call {
        let lock = self.lock();
        let value = self.value();
        let mut keys = vec![lock.to_vec()];
        let args = match script {
            "release" => vec![value],
            "extend" => vec![value, self.ms()],
            "swap" => vec![value, self.value(), self.ms()],
            "fenced_acquire" => {
                keys.push(fence_key(lock));
                let half = b"500000".to_vec();
                let past = if self.chance(4) { b"4503599627370496".to_vec() } else { half.clone() };
                let window = [self.token(), past, half, self.ms()];
                [value, self.ms()].into_iter().chain(window).collect()
            }
            "shared_extend" => vec![value, self.ms()],
            "free_slots" => {
                keys = vec![b"s".to_vec()];
                let count = self.pick(&[1, 2, 3, 9, 10, 12]);
                let from = self.rng.random_range(0..count);
                vec![b"a".to_vec(), count.to_string().into_bytes(), from.to_string().into_bytes()]
            }
            other => panic!("no arguments for the script {other}"),
        };
        Call { keys, args }
    }

    /// Words of a call with random arguments.
    fn words(&mut self, script: &'static str) -> Vec<Vec<u8>> {
        let Call { keys, args } = self.draw(script);
        let shown = keys.iter().chain(&args).map(|word| word.escape_ascii().to_string());
        self.shown = format!("{script} {}", shown.collect::<Vec<_>>().join(" "));
        let text = SCRIPTS.iter().find(|it| it.name == script).expect("a script").text;
        let count = keys.len().to_string().into_bytes();
        [b"EVAL".to_vec(), text.into(), count].into_iter().chain(keys).chain(args).collect()
    }

    /// Runs a script on both, and returns the kind of reply; or returns the difference.
    fn run(&mut self, script: &'static str) -> Result<String, String> {
        let (words, now) = (self.words(script), self.now);
        let [model, itself] = self.masters.each_mut().map(|it| exchange(it, 0, now, &words));
        let kind = kind(&model.0);
        if model != itself {
            return Err(format!("the model: {model:?}\nthe script: {itself:?}"));
        }
        let [model, itself] = self.masters.each_ref().map(|it| &it.data.keys);
        if model != itself {
            return Err(format!("the model leaves {model:?}\nthe script leaves {itself:?}"));
        }
        Ok(format!("{script}: {kind}"))
    }

    /// Refuses one command of the script. That ends the script with this error, unless the command is
    /// optional.
    fn run_refused(&mut self, script: &'static str) -> Result<(), String> {
        let (words, now, place) = (self.words(script), self.now, self.rng.random_range(0..16));
        let [model, itself] = &mut self.masters;
        itself.data.keys = model.data.keys.clone();
        exchange(model, 0, now, &words);
        let ((refused, _), asked) = lua::with_refusal(place, || exchange(itself, 0, now, &words));
        let Some(command) = asked.get(place) else { return Ok(()) };
        let is_right = asked.len() == place + 1 && refused.starts_with("-NOPERM ");
        if is_right {
            Ok(())
        } else {
            Err(format!("without a right for {command}: {refused}, after {asked:?}"))
        }
    }
}

/// Reply and published messages.
fn exchange(
    master: &mut ModelMaster,
    conn: usize,
    now: Instant,
    words: &[impl AsRef<[u8]>],
) -> (String, String) {
    let (mut input, mut reply) = (Vec::new(), Vec::new());
    let words: Vec<_> = words.iter().map(AsRef::as_ref).collect();
    resp::encode_command(&mut input, &words);
    master.handle_over(conn, now, &mut input, &mut reply);
    master.log.clear();
    let pushes = std::mem::take(&mut master.pushes);
    let pushes: Vec<_> =
        pushes.iter().map(|(conn, message)| format!("{conn} {}", message.escape_ascii())).collect();
    (reply.escape_ascii().to_string(), pushes.join(", "))
}

/// First element of an array, first word of an error, or a number of one digit.
fn kind(reply: &str) -> String {
    let first = reply.split("\\r\\n").find(|part| !part.starts_with('*')).unwrap_or_default();
    let is_large = first.starts_with(':') && first.len() > ":-1".len();
    if is_large { ":many".to_owned() } else { first.split(' ').next().unwrap_or_default().to_owned() }
}

fn fence_key(lock: &[u8]) -> Vec<u8> {
    crate::model::fence_key(lock)
}

/// The kind of lock that a script is for; `None` for plain locks.
pub fn kind_of_lock(script: &str) -> Option<&str> {
    script.split('_').next().filter(|kind| ["fenced", "shared"].contains(kind))
}

/// Scripts with a model in Rust.
pub fn compared() -> impl Iterator<Item = &'static NamedScript> {
    SCRIPTS.iter().filter(|it| !WITHOUT_LIKENESS.contains(&it.name))
}

/// Related scripts.
fn family(script: &str) -> Vec<&'static str> {
    let names = compared().map(|it| it.name);
    names.filter(|other| kind_of_lock(other) == kind_of_lock(script) || *other == script).collect()
}

/// Compares scripts with their models, also with refused commands, for one script or all. Returns the kinds
/// of replies, or a difference.
pub fn compare(seeds: Range<u64>, particular: Option<&'static str>) -> Result<BTreeSet<String>, String> {
    let mut kinds = BTreeSet::new();
    let all: Vec<_> = particular.map_or_else(|| compared().map(|it| it.name).collect(), family);
    for seed in seeds {
        for is_refused in [false, true] {
            let mut pair = Pair::new(seed);
            for step in 0..STEPS {
                pair.disturb();
                let script = match particular {
                    Some(script) if pair.rng.random() => script,
                    _ => pair.pick(&all),
                };
                let done = if is_refused {
                    pair.run_refused(script)
                } else {
                    pair.run(script).map(|kind| {
                        kinds.insert(kind);
                    })
                };
                done.map_err(|why| format!("seed {seed}, step {step}: {}\n{why}", pair.shown))?;
            }
        }
    }
    Ok(kinds)
}

#[test]
fn each_script_does_what_the_model_of_it_does() {
    let kinds = lua::with_lua(|| compare(0..SEEDS, None)).unwrap_or_else(|why| panic!("{why}"));
    let missing: Vec<_> = KINDS.iter().filter(|kind| !kinds.contains(**kind)).collect();
    assert!(missing.is_empty(), "never replied: {missing:?}");
}
