//! `redlatch ls --watch`: the locks for which callers wait, from the masters' queues alone.
//!
//! A look asks each master over a connection of its own, in bounded steps: it goes on with the search for
//! queues where the last look stopped, and asks for each queue that it knows.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use redlatch::engine::quorum;
use redlatch::internals::probe::{Answer, Probe, ProbeError, each};
use redlatch::internals::words::{Counted, Printable, Rounded, Shown};
use redlatch::internals::{WAIT_NAME, split_value, time_us, whole_ms};
use redlatch::{Client, Config};
use serde_json::{Value, json};

use super::exit::Exit;
use super::message::Message;
use super::output::{TerminalSize, cut_line, json_line};
use super::scan::{self, Failures};
use super::watch::Watch;

/// Time between two looks.
const WATCH_PAUSE: Duration = Duration::from_secs(1);

/// Pages of the search in one look, of about so many keys each: 65,536 keys of a master. With more keys, a
/// look sees a part of them, and a new queue appears after some looks.
const PAGE_COUNT_MAX: usize = 64;
const PAGE_SIZE: &str = "1024";

/// The most queues that are watched.
const QUEUE_COUNT_MAX: usize = 1024;

/// Queues that are asked for in one write.
const CHUNK_SIZE: usize = 32;

/// The first entries of a queue, of which the first live one is the oldest waiter.
const ENTRY_COUNT: usize = 8;

/// The longest time for which an entry stays without a sign of its waiter.
const STAY_MS: i64 = 3000;

/// Beginning of each entry of a queue, and the place of the end of its stay (`queue.lua`).
const MARK: &[u8] = b"redlatch:1:";
const STAY_END: std::ops::Range<usize> = 32..45;

/// The masters, and what is known of their queues.
pub(super) struct Fleet {
    config: Config,
    masters: Vec<Arc<str>>,
    prefix: Arc<[u8]>,
    pattern: Arc<[u8]>,
    time_limit: Duration,
    /// Where the search goes on at each master.
    cursors: Vec<Vec<u8>>,
    /// Names of queues with entries.
    known: BTreeSet<Vec<u8>>,
}

/// Queue of a lock as one master reports it.
struct Queue {
    holder: Holder,
    waiters: usize,
    /// Time since the oldest waiter asked, by the master's clock.
    oldest: Duration,
}

/// Content of the key of a lock.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Holder {
    None,
    Value(Vec<u8>),
    Readers(usize),
}

/// One look at all masters.
struct Look {
    /// The longest wait first.
    waits: Vec<Wait>,
    is_cut: bool,
    answered: usize,
    masters: usize,
    failures: Vec<String>,
}

/// Lock for which callers wait on a quorum of masters.
struct Wait {
    name: Vec<u8>,
    holder: Holder,
    waiters: usize,
    oldest: Duration,
}

/// Shows each look, until nobody reads any more.
pub(super) fn watch(mut fleet: Fleet, is_json: bool) -> Result<u8, Exit> {
    let mut watch = Watch::new(is_json);
    let mut is_first = true;
    // The troubles of the last look, if nobody waited.
    let mut shown = None;
    loop {
        let look = fleet.look()?;
        if is_first && look.answered < quorum(look.masters) {
            return Err(Exit::no_quorum(look.answered, look.masters, look.failures));
        }
        let terminal = watch.terminal();
        // Elsewhere than on a terminal, looks that find nobody are shown once.
        let idle = look.waits.is_empty().then_some(&look.failures);
        if terminal.is_some() || idle.is_none() || idle != shown.as_ref() {
            watch.show(&if is_json { json_line(&look.json()) } else { look.text(terminal) })?;
        }
        (is_first, shown) = (false, idle.cloned());
        if !watch.wait(WATCH_PAUSE)? {
            return Ok(0);
        }
    }
}

impl Fleet {
    /// The masters of a client, which is not needed any more, and the names to look for.
    pub(super) fn new(
        client: &Client,
        prefix: Arc<[u8]>,
        pattern: Option<&OsStr>,
        time_limit: Duration,
    ) -> Self {
        let masters: Vec<_> = client.masters().into_iter().map(|master| master.name).collect();
        let pattern = pattern.map_or(b"*".as_slice(), OsStr::as_bytes);
        Self {
            config: client.config().clone(),
            cursors: vec![scan::START.to_vec(); masters.len()],
            masters,
            pattern: scan::pattern(&[&prefix, WAIT_NAME].concat(), pattern).into(),
            prefix,
            time_limit,
            known: BTreeSet::new(),
        }
    }

    /// Asks all masters at the same time.
    fn look(&mut self) -> Result<Look, Exit> {
        let (known, cursors) = (Arc::new(std::mem::take(&mut self.known)), self.cursors.clone());
        let (prefix, pattern) = (self.prefix.clone(), self.pattern.clone());
        let answers = each(&self.config, self.time_limit, move |probe, master| {
            let mut names = BTreeSet::clone(&known);
            let next =
                find(probe, &mut names, &cursors[master.index()], &pattern, prefix.len() + WAIT_NAME.len())?;
            Ok((next, ask(probe, &prefix, names)?))
        })?;
        let (mut failures, mut answered) = (Failures::default(), 0);
        let mut queues: BTreeMap<Vec<u8>, Vec<Queue>> = BTreeMap::new();
        for (place, answer) in answers.into_iter().enumerate() {
            match answer {
                Ok((next, found)) => {
                    answered += 1;
                    self.cursors[place] = next;
                    found.into_iter().for_each(|(name, queue)| queues.entry(name).or_default().push(queue));
                }
                Err(error) => failures.add(&self.masters[place], error),
            }
        }
        let count = self.masters.len();
        let is_cut = queues.len() > QUEUE_COUNT_MAX;
        self.known = queues.keys().take(QUEUE_COUNT_MAX).cloned().collect();
        let mut waits: Vec<_> =
            queues.into_iter().filter_map(|(name, all)| Wait::of(name, &all, quorum(count))).collect();
        waits.sort_by(|one, other| other.oldest.cmp(&one.oldest).then_with(|| one.name.cmp(&other.name)));
        Ok(Look { waits, is_cut, answered, masters: count, failures: failures.lines(count) })
    }
}

/// Adds the names of queues on a master; returns where the search goes on.
fn find(
    probe: &mut Probe,
    names: &mut BTreeSet<Vec<u8>>,
    from: &[u8],
    pattern: &[u8],
    prefix_size: usize,
) -> Result<Vec<u8>, ProbeError> {
    let mut cursor = from.to_vec();
    for _ in 0..PAGE_COUNT_MAX {
        let page = scan::page(probe, &cursor, pattern, prefix_size, PAGE_SIZE)?;
        cursor = page.next;
        for name in page.names {
            // One more than is watched shows that there are more.
            if names.len() <= QUEUE_COUNT_MAX {
                names.insert(name);
            }
        }
        if cursor == scan::START {
            break;
        }
    }
    Ok(cursor)
}

/// Asks a master for these queues; returns those with a live waiter.
fn ask(
    probe: &mut Probe,
    prefix: &[u8],
    names: BTreeSet<Vec<u8>>,
) -> Result<Vec<(Vec<u8>, Queue)>, ProbeError> {
    let names: Vec<_> = names.into_iter().collect();
    let (mut found, last) = (Vec::new(), (ENTRY_COUNT - 1).to_string());
    for names in names.chunks(CHUNK_SIZE) {
        let mut commands: Vec<Vec<Vec<u8>>> = vec![vec![b"TIME".to_vec()]];
        for name in names {
            let (lock, queue) = ([prefix, name].concat(), [prefix, WAIT_NAME, name].concat());
            let range = [b"ZRANGE".as_slice(), &queue, b"0", last.as_bytes(), b"WITHSCORES"];
            commands.push(range.map(<[u8]>::to_vec).to_vec());
            commands.push(vec![b"ZCARD".to_vec(), queue]);
            // As an inspection asks for it: a value of another application may be large.
            commands.push([b"GETRANGE".as_slice(), &lock, b"0", b"127"].map(<[u8]>::to_vec).to_vec());
            commands.push(vec![b"ZCARD".to_vec(), lock]);
        }
        let answers = probe.exchange(&commands)?;
        let unusable = || ProbeError::Unreachable(format!("its reply to TIME is {}", answers[0].text()));
        let now_us = time_us(&answers[0]).ok_or_else(unusable)?;
        for (name, answers) in names.iter().zip(answers[1..].chunks(4)) {
            if let Answer::Error(text) = &answers[0]
                && !text.starts_with("WRONGTYPE")
            {
                return Err(ProbeError::Unreachable(text.clone()));
            }
            found.extend(queue_of(answers, now_us).map(|queue| (name.clone(), queue)));
        }
    }
    Ok(found)
}

fn number(text: &[u8]) -> Option<i64> {
    // A score may be written with an exponent.
    let number: f64 = std::str::from_utf8(text).ok()?.trim().parse().ok()?;
    #[expect(clippy::cast_possible_truncation, reason = "microseconds are whole, and far below 2^53")]
    number.is_finite().then_some(number as i64)
}

/// The queue in the answers of a master; `None` if no live waiter is in it.
fn queue_of(answers: &[Answer], now_us: i64) -> Option<Queue> {
    let [Answer::List(entries), count, value, readers] = answers else { return None };
    let is_live = |entry: &[u8]| {
        let stay_end = entry.strip_prefix(MARK).and_then(|_| number(entry.get(STAY_END)?));
        stay_end.is_some_and(|end| (now_us / 1000..=now_us / 1000 + STAY_MS).contains(&end))
    };
    let mut oldest = None;
    let mut dead_count = 0;
    for entry in entries.chunks_exact(2) {
        if entry[0].bytes().is_some_and(is_live) {
            oldest = oldest.or_else(|| number(entry[1].bytes()?));
        } else {
            dead_count += 1;
        }
    }
    let waiters = usize::try_from(count.integer()?).ok()?.saturating_sub(dead_count);
    let holder = match (value.bytes(), readers.integer()) {
        (Some(b""), _) => Holder::None,
        (Some(value), _) => Holder::Value(value.to_vec()),
        // One member of the set is a marker.
        (None, Some(count)) => Holder::Readers(usize::try_from(count.saturating_sub(1)).unwrap_or(0)),
        (None, None) => Holder::None,
    };
    let oldest = Duration::from_micros(u64::try_from(now_us.saturating_sub(oldest?)).unwrap_or(0));
    Some(Queue { holder, waiters, oldest })
}

impl Wait {
    /// A lock by the queues on all masters, if somebody waits on a quorum of them: as many callers wait on a
    /// quorum, and for as long.
    fn of(name: Vec<u8>, queues: &[Queue], quorum: usize) -> Option<Self> {
        let at_quorum = |mut values: Vec<u128>| {
            values.sort_unstable_by(|one, other| other.cmp(one));
            values.get(quorum - 1).copied()
        };
        let waiters = at_quorum(queues.iter().map(|queue| queue.waiters as u128).collect())?;
        let oldest_us = at_quorum(queues.iter().map(|queue| queue.oldest.as_micros()).collect())?;
        let mut counts: BTreeMap<&Holder, usize> = BTreeMap::new();
        queues.iter().for_each(|queue| *counts.entry(&queue.holder).or_default() += 1);
        let holder = counts.into_iter().max_by_key(|(_, count)| *count)?.0.clone();
        let oldest = Duration::from_micros(u64::try_from(oldest_us).unwrap_or(u64::MAX));
        Some(Self { name, holder, waiters: usize::try_from(waiters).unwrap_or(usize::MAX), oldest })
            .filter(|wait| wait.waiters > 0)
    }

    /// Label of the holder, if it has one.
    fn label(&self) -> Option<&str> {
        let Holder::Value(value) = &self.holder else { return None };
        split_value(value).1.map(|label| label.as_str())
    }

    fn text(&self) -> String {
        let name = self.name.escape_ascii().to_string().replace(' ', "\\x20");
        let by = match (&self.holder, self.label()) {
            (_, Some(label)) => format!("by {}", Shown(label)),
            (Holder::None, _) => "free".to_owned(),
            (Holder::Readers(count), _) => format!("by {}", Counted(*count, "reader")),
            // Enough of the value to distinguish holders.
            (Holder::Value(value), None) => {
                format!("by {}", Printable(value).to_string().chars().take(12).collect::<String>())
            }
        };
        format!("{:>6} {:>7} {name} {by}", Rounded(self.oldest).to_string(), self.waiters)
    }

    fn json(&self) -> Value {
        let (holder, readers) = match &self.holder {
            Holder::None => (None, None),
            Holder::Value(value) => (Some(Printable(split_value(value).0).to_string()), None),
            Holder::Readers(count) => (None, Some(*count)),
        };
        json!({
            "name": self.name.escape_ascii().to_string(), "holder": holder, "holder_label": self.label(),
            "readers": readers, "waiters": self.waiters, "oldest_wait_ms": whole_ms(self.oldest),
        })
    }
}

impl Look {
    /// The lines of a look. On a terminal they are cut to its width, and to its height.
    fn text(&self, terminal: Option<TerminalSize>) -> String {
        let mut notes = self.failures.clone();
        if self.is_cut {
            notes.push(Message::ListCut { count: QUEUE_COUNT_MAX }.to_string());
        }
        if self.waits.is_empty() {
            notes.insert(0, "nobody waits".to_owned());
        }
        // The header, the rest, and the line of the cursor.
        let room = terminal.map(|size| size.rows).filter(|rows| *rows > 0);
        let room = room.map_or(usize::MAX, |rows| rows.saturating_sub(notes.len() + 3).max(1));
        let mut lines = if self.waits.is_empty() { Vec::new() } else { vec![HEADER.to_owned()] };
        lines.extend(self.waits.iter().take(room).map(Wait::text));
        if self.waits.len() > room {
            lines.push(format!("and {} more", self.waits.len() - room));
        }
        let width = terminal.map(|size| size.columns);
        lines.into_iter().chain(notes).map(|line| cut_line(line, width) + "\n").collect()
    }

    fn json(&self) -> Value {
        json!({
            "waits": self.waits.iter().map(Wait::json).collect::<Vec<_>>(), "is_cut": self.is_cut,
            "masters": self.masters, "answered": self.answered, "failures": self.failures,
        })
    }
}

const HEADER: &str = "OLDEST WAITERS NAME by HOLDER";

#[cfg(test)]
mod tests {
    use super::*;

    fn look(count: usize) -> Look {
        let wait = |number: usize| Wait {
            name: format!("orders:{number} of a name that is long").into_bytes(),
            holder: Holder::Value(b"twenty-bytes-of-tok.\tweb-3:4711".to_vec()),
            waiters: number,
            oldest: Duration::from_millis(4408),
        };
        let failures = vec!["redis://10.0.0.3: Connection refused (os error 111)".to_owned()];
        Look { waits: (0..count).map(wait).collect(), is_cut: false, answered: 2, masters: 3, failures }
    }

    #[test]
    fn a_look_fits_on_one_screen() {
        let screen = Some(TerminalSize { columns: 40, rows: 10 });
        for count in [0, 1, 6, 7, 1000] {
            let text = look(count).text(screen);
            assert!(text.lines().count() < 10, "{text}");
            assert!(text.lines().all(|line| line.chars().count() < 40), "{text}");
            assert!(text.contains("redis://10.0.0.3"), "{text}");
        }
        assert!(look(1000).text(screen).contains("\nand 994 more\n"));
        assert!(look(0).text(None).starts_with("nobody waits\n"));
        assert_eq!(look(1000).text(None).lines().count(), 1002, "all of them where nothing is cut");
    }

    #[test]
    fn a_look_is_shown_as_it_was() {
        let mut look = look(2);
        let holders = [Holder::None, Holder::Value(b"another library's".to_vec()), Holder::Readers(1)];
        look.waits.extend(holders.into_iter().map(|holder| Wait {
            name: b"a b\n".to_vec(),
            holder,
            waiters: 3,
            oldest: Duration::ZERO,
        }));
        let screen = |columns, rows| Some(TerminalSize { columns, rows });
        let mut page = [None, screen(40, 8), screen(70, 9), screen(70, 0)].map(|it| look.text(it)).join("\n");
        look.is_cut = true;
        page += &format!("\n{}\n{}", look.text(None), json_line(&look.json()));
        look.waits.clear();
        page += &format!("\n{}\n{}", look.text(None), json_line(&look.json()));
        crate::golden::assert_golden("queues", &page);
    }

    #[test]
    fn a_wait_counts_where_a_quorum_reports_it() {
        let queue = |waiters, seconds, label: &str| Queue {
            holder: Holder::Value([b"twenty-bytes-of-tok.\t", label.as_bytes()].concat()),
            waiters,
            oldest: Duration::from_secs(seconds),
        };
        let name = || b"a".to_vec();
        assert!(Wait::of(name(), &[queue(9, 99, "x")], 2).is_none(), "one master alone");
        let all = [queue(3, 7, "old"), queue(1, 5, "new"), queue(2, 6, "new")];
        let wait = Wait::of(name(), &all, 2).expect("somebody waits");
        assert_eq!((wait.waiters, wait.oldest, wait.label()), (2, Duration::from_secs(6), Some("new")));
    }

    #[test]
    fn dead_waiters_and_foreign_entries_do_not_count() {
        let entry = |end_ms: i64| {
            let text = format!("redlatch:1:123456789012p00000001{end_ms:013}0000000000000 and more");
            Answer::Text(text.into_bytes())
        };
        let score = |us: &str| Answer::Text(us.as_bytes().to_vec());
        let queue = |entries, count| {
            let value = Answer::Text(Vec::new());
            let answers = [Answer::List(entries), Answer::Integer(count), value, Answer::Integer(0)];
            queue_of(&answers, 1_700_000_000_000_000)
        };
        let now_ms = 1_700_000_000_000;
        let dead = || vec![entry(now_ms - 1), score("1699999990000000")];
        let far = || vec![entry(now_ms + STAY_MS + 1), score("1699999991000000")];
        let live = || vec![entry(now_ms + 2000), score("1.699999995e15")];
        assert!(queue(dead(), 1).is_none());
        // Numbers that no queue has.
        let odd = queue([live(), vec![entry(now_ms), score("-1e300")]].concat(), i64::MIN);
        assert!(odd.is_none());
        let odd = queue(vec![entry(now_ms), score("-1e300")], 1).expect("one lives");
        assert_eq!(odd.oldest, Duration::from_micros(i64::MAX as u64));
        let later = vec![entry(now_ms), score("1700000000000001")];
        assert_eq!(queue(later, 1).expect("one lives").oldest, Duration::ZERO, "the clock was set back");
        let list = Answer::List(live());
        let readers = [list, Answer::Integer(1), Answer::Null, Answer::Integer(i64::MIN)];
        let found = queue_of(&readers, 1_700_000_000_000_000).expect("one lives");
        assert_eq!(found.holder, Holder::Readers(0));
        assert!(queue(vec![Answer::Text(b"somebody".to_vec()), score("1")], 1).is_none());
        let found = queue([dead(), far(), live()].concat(), 5).expect("one lives");
        assert_eq!((found.waiters, found.oldest, found.holder), (3, Duration::from_secs(5), Holder::None));
    }
}
