//! `redlatch ls`: the locks on the masters, judged by quorum.
//!
//! The names come from `SCAN` on all masters. Each name is then inspected as in `redlatch inspect`, so both
//! agree.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use redlatch::Client;
use redlatch::engine::{Resource, quorum};
use redlatch::env::parse_time;
use redlatch::error::{Failure, HolderTtl};
use redlatch::inspection::{Inspection, KeyState, LockStatus};
use redlatch::pool::LockOfPool;
use redlatch::probe::{Probe, ProbeError, some};
use redlatch::scripts::{FENCE_NAME, WAIT_NAME};
use redlatch::status::MasterState;
use redlatch::words::{Rounded, Shown};
use serde_json::{Value, json};

use super::exit::{Exit, code};
use super::inspect::{connect, connected, holder, left_ms, status_word};
use super::message::Message;
use super::options::MasterOptions;
use super::output::{Colour, add_paragraph, json_line, paint, print, say, terminal_width};
use super::scan::{self, Failures};

/// List the locks on the masters, of any holder.
///
/// It asks each master for the keys that begin with the prefix, and then for each lock. It takes no part in
/// any lock. A lock that comes or goes meanwhile may be missing, or be listed though it is gone. Keys that
/// cannot be locks are not listed; stderr says how many of them have a lock's name. The login needs the right
/// +scan, and for waiters +zcard.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// Names to list, as a pattern of Redis: `*` stands for any text, `?` for a character [default: all].
    #[arg(value_name = "PATTERN")]
    pattern: Option<OsString>,

    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,

    /// How long the search for names may take on each master.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_time)]
    time_limit: Duration,

    #[command(flatten)]
    masters: MasterOptions,
}

const HELP: &str = "\
Columns: state; masters that hold it; time left by the masters' clocks; kind;
waiters; name and holder. A lock is fenced if its name has a fence. Waiters are
those in the masters' queues; ? if unknown. Callers that wait behind others of
their client count as one.

Exit codes:
  0 if a quorum of masters answered, 64 bad usage, 69 if fewer did, for the
  names or for a lock of the list, which then is unknown, 70 if the operating
  system refused something. A master in quarantine without the key of a lock
  counts as no answer.

The list ends at 100,000 names, or at 64 MiB of names of one master. A message
on stderr says so.

Examples:
  redlatch ls 'orders:*'
  redlatch ls --json | jq -r '.locks[] | select(.status == \"split\") | .name'";

/// Largest number of names that are listed.
const NAME_COUNT_MAX: usize = 100_000;

/// Largest number of bytes of names from one master.
const NAMES_SIZE_MAX: usize = 64 << 20;

/// Names in one write.
const CHUNK_SIZE: usize = 64;

/// Concurrent inspections.
const THREAD_COUNT: usize = 16;

struct Listed {
    name: Vec<u8>,
    inspection: Inspection,
    extras: Extras,
}

/// Properties of a lock that its key does not show.
#[derive(Clone, Copy, Default)]
struct Extras {
    is_fenced: bool,
    /// Entries of the lock's queue; `None` if too few masters report them.
    queued: Option<i64>,
}

pub(crate) fn execute(args: &Args) -> Result<u8, Exit> {
    let prefix: Arc<[u8]> = args.masters.prefix().into();
    let mut search = Search { client: connect(&args.masters)?, args, prefix, failures: Failures::default() };
    let (names, is_cut) = search.find_names()?;
    let count = names.len();
    let extras = search.find_extras(&names)?;
    let inspections = search.inspect_all(&names)?;
    let Search { client, mut failures, .. } = search;
    inspections.iter().for_each(|inspection| add_failures(&mut failures, inspection));
    let (mut locks, mut other_count) = (Vec::new(), 0);
    for ((name, extras), inspection) in names.into_iter().zip(extras).zip(inspections) {
        match what_is(&inspection) {
            What::Lock => locks.push(Listed { name, inspection, extras }),
            What::Other => other_count += 1,
            What::Gone => {}
        }
    }
    if args.json {
        let all: Vec<Value> = locks.iter().map(Listed::json).collect();
        print(&json_line(&json!({ "locks": all, "other_keys": other_count, "is_cut": is_cut })))?;
    } else {
        print(&table(&locks, terminal_width(), io::stdout().is_terminal()))?;
    }
    failures.lines(client.masters().len()).iter().for_each(say);
    remarks(other_count, is_cut.then_some(count)).for_each(say);
    let is_unknown = locks.iter().any(|lock| lock.inspection.status() == LockStatus::Unknown);
    Ok(if is_unknown { code::NO_QUORUM } else { 0 })
}

/// All lines. A program that reads them gets none without locks; a person at a terminal gets a sentence.
fn table(locks: &[Listed], width: Option<usize>, is_terminal: bool) -> String {
    let header = match locks.is_empty() {
        true if is_terminal => "no locks\n",
        false if width.is_none_or(|width| width >= WIDE) => HEADER,
        _ => "",
    };
    let lines = locks.iter().map(|lock| lock.text(width));
    [header.to_owned()].into_iter().chain(lines).collect()
}

/// Remarks on keys that are not listed. `cut_at` is the number of names, if the list was cut.
fn remarks(other_count: usize, cut_at: Option<usize>) -> impl Iterator<Item = Message<'static>> {
    let others = (other_count > 0).then_some(Message::OtherKeys { count: other_count });
    others.into_iter().chain(cut_at.map(|count| Message::ListCut { count }))
}

/// Adds the failures in an inspection. A key of another type is no failure of its master. A quarantine is a
/// failure only if the lock's status depends on it.
fn add_failures(failures: &mut Failures, inspection: &Inspection) {
    let is_unknown = inspection.status() == LockStatus::Unknown;
    for (master, state) in &inspection.masters {
        match state {
            KeyState::Failed(Failure::Quarantined { .. }) if !is_unknown => {}
            KeyState::Failed(why) if !is_other_type(why) => failures.add(master, why),
            _ => {}
        }
    }
}

/// Questions to the masters.
struct Search<'a> {
    client: Client,
    args: &'a Args,
    prefix: Arc<[u8]>,
    failures: Failures,
}

impl Search<'_> {
    /// Names behind the prefix that can be locks, and whether there are more.
    fn find_names(&mut self) -> Result<(Vec<Vec<u8>>, bool), Exit> {
        let pattern = self.args.pattern.as_ref().map_or(b"*".as_slice(), |pattern| pattern.as_bytes());
        let (pattern, size) = (scan::pattern(&self.prefix, pattern), self.prefix.len());
        let found = self.ask(move |probe| scan(probe, &pattern, size))?;
        let count = self.client.masters().len();
        if found.len() < quorum(count) {
            return Err(Exit::no_quorum(found.len(), count, self.failures.lines(count)));
        }
        Ok(all_names(found))
    }

    /// Properties of each name that its key does not show.
    fn find_extras(&mut self, names: &[Vec<u8>]) -> Result<Vec<Extras>, Exit> {
        let (all, prefix) = (names.to_vec(), self.prefix.clone());
        // For each master that answered, in chunks of names.
        let answers = self.ask(move |probe| {
            all.chunks(CHUNK_SIZE)
                .map(|names| ask_extras(probe, &prefix, names))
                .collect::<Result<Vec<_>, _>>()
        })?;
        let needed = quorum(self.client.masters().len());
        let combine = |index: usize| {
            let of_name = || answers.iter().map(|all| all[index / CHUNK_SIZE][index % CHUNK_SIZE]);
            let mut queued: Vec<i64> = of_name().filter_map(|extras| extras.queued).collect();
            queued.sort_unstable_by(|one, other| other.cmp(one));
            Extras {
                is_fenced: of_name().any(|extras| extras.is_fenced),
                queued: queued.get(needed - 1).copied(),
            }
        };
        Ok((0..names.len()).map(combine).collect())
    }

    /// Inspects all names on [`THREAD_COUNT`] threads.
    fn inspect_all(&self, names: &[Vec<u8>]) -> Result<Vec<Inspection>, Exit> {
        let inspect = |names: &[Vec<u8>]| -> Result<Vec<Inspection>, Exit> {
            names.iter().map(|name| self.client.inspect(name).map_err(Exit::internal)).collect()
        };
        let size = names.len().div_ceil(THREAD_COUNT).max(1);
        let done = thread::scope(|scope| {
            let threads: Vec<_> =
                names.chunks(size).map(|names| scope.spawn(move || inspect(names))).collect();
            let done = threads.into_iter().map(|thread| thread.join().expect("no panic in an inspection"));
            done.collect::<Result<Vec<_>, Exit>>()
        })?;
        Ok(done.concat())
    }

    /// Asks each connected master, and returns the answers.
    fn ask<T: Send + 'static>(
        &mut self,
        ask: impl Fn(&mut Probe) -> Result<T, ProbeError> + Send + Sync + 'static,
    ) -> Result<Vec<T>, Exit> {
        let masters = self.client.masters();
        let (connected, others): (Vec<_>, Vec<_>) = {
            let connected = connected(&self.client);
            (0..masters.len()).partition(|place| connected.contains(place))
        };
        for place in others {
            let state = &masters[place].state;
            let why = if let MasterState::Down(why) = state {
                why.to_string()
            } else {
                Failure::Silent.to_string()
            };
            self.failures.add(&masters[place].name, why);
        }
        // A master that hung before is not asked again.
        let asked: Vec<_> =
            connected.into_iter().filter(|place| !self.failures.has(&masters[*place].name)).collect();
        let limit = self.args.time_limit;
        let answered = some(self.client.config(), asked.clone(), limit, move |mut probe, _| ask(&mut probe))?;
        let mut answers = Vec::new();
        for (place, answer) in asked.into_iter().zip(answered) {
            match answer {
                Ok(answer) => answers.push(answer),
                Err(error) => self.failures.add(&masters[place].name, error),
            }
        }
        Ok(answers)
    }
}

/// Names of all masters without duplicates, and whether there are more.
fn all_names(found: Vec<(Vec<Vec<u8>>, bool)>) -> (Vec<Vec<u8>>, bool) {
    let is_cut = found.iter().any(|(_, more)| *more);
    let names: BTreeSet<_> = found.into_iter().flat_map(|(names, _)| names).collect();
    let is_cut = is_cut || names.len() > NAME_COUNT_MAX;
    (names.into_iter().take(NAME_COUNT_MAX).collect(), is_cut)
}

/// Names on one master that can be locks, and whether there are more.
fn scan(probe: &mut Probe, pattern: &[u8], prefix_size: usize) -> Result<(Vec<Vec<u8>>, bool), ProbeError> {
    let (mut names, mut size, mut cursor) = (Vec::new(), 0, scan::START.to_vec());
    loop {
        let page = scan::page(probe, &cursor, pattern, prefix_size)?;
        let found = page.names.into_iter().filter(|name| Resource::of_any_lock(name).is_ok());
        names.extend(found.inspect(|name| size += name.len()));
        if page.next == scan::START {
            return Ok((names, false));
        }
        if names.len() > 2 * NAME_COUNT_MAX || size > NAMES_SIZE_MAX {
            return Ok((names, true));
        }
        cursor = page.next;
    }
}

fn ask_extras(probe: &mut Probe, prefix: &[u8], names: &[Vec<u8>]) -> Result<Vec<Extras>, ProbeError> {
    let key = |kind: &[u8], name: &[u8]| [prefix, kind, name].concat();
    let mut commands: Vec<Vec<Vec<u8>>> = Vec::with_capacity(2 * names.len());
    for name in names {
        commands.push(vec![b"PTTL".to_vec(), key(FENCE_NAME, name)]);
        commands.push(vec![b"ZCARD".to_vec(), key(WAIT_NAME, name)]);
    }
    let answers = probe.exchange(&commands)?;
    let extras = (0..names.len()).map(|index| Extras {
        is_fenced: answers[2 * index].integer().is_some_and(|left| left != -2),
        queued: answers[2 * index + 1].integer(),
    });
    Ok(extras.collect())
}

/// Kind of a name: the first of these kinds that any master shows.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Lock,
    /// A key of another type, or without a TTL.
    Other,
    Gone,
}

fn what_is(inspection: &Inspection) -> What {
    let shown = inspection.masters.iter().filter_map(|(_, state)| match state {
        KeyState::Holds { left: HolderTtl::Left(_), .. }
        | KeyState::Shared { left: HolderTtl::Left(_), .. } => Some(What::Lock),
        KeyState::Holds { .. } | KeyState::Shared { .. } => Some(What::Other),
        KeyState::Failed(why) if is_other_type(why) => Some(What::Other),
        _ => None,
    });
    let is_unknown = inspection.status() == LockStatus::Unknown;
    shown.min().unwrap_or(if is_unknown { What::Lock } else { What::Gone })
}

fn is_other_type(why: &Failure) -> bool {
    why.to_string().contains("WRONGTYPE")
}

impl Listed {
    fn kind(&self) -> &'static str {
        let is_shared = |(_, state): &(Arc<str>, KeyState)| matches!(state, KeyState::Shared { .. });
        match self.extras {
            _ if self.inspection.masters.iter().any(is_shared) => "readers",
            Extras { is_fenced: true, .. } => "fenced",
            _ => "plain",
        }
    }

    /// Number of masters that hold a part of the lock.
    fn holding(&self) -> usize {
        let holds = |state: &KeyState| matches!(state, KeyState::Holds { .. } | KeyState::Shared { .. });
        self.inspection.masters.iter().filter(|(_, state)| holds(state)).count()
    }

    /// One line, or two on a narrow terminal.
    fn text(&self, width: Option<usize>) -> String {
        let (state, kind) = (status_word(self.inspection.status()), self.kind());
        let is_whole = !matches!(self.inspection.status(), LockStatus::Split | LockStatus::Unknown);
        let on = format!("{}/{}", self.holding(), self.inspection.masters.len());
        let left = match self.inspection.remaining() {
            HolderTtl::Left(left) => Rounded(left).to_string(),
            HolderTtl::Never => "ever".to_owned(),
            _ => "-".to_owned(),
        };
        let waiters = self.extras.queued.map_or_else(|| "?".to_owned(), |count| count.to_string());
        let name = shown_name(&self.name);
        let by = match (self.inspection.holder_label(), holder(&self.inspection)) {
            (Some(label), _) => format!(" by {}", Shown(label)),
            (None, Some(holder)) if holder.chars().count() > HOLDER_SHOWN_MAX => {
                format!(" by {}…", holder.chars().take(HOLDER_SHOWN_MAX).collect::<String>())
            }
            (None, Some(holder)) => format!(" by {holder}"),
            (None, None) => String::new(),
        };
        if let Some(width) = width.filter(|width| *width < WIDE) {
            let mut text = format!("{name}\n");
            let rest = format!("{state} {on} {left} {kind} {waiters}{by}");
            let from = text.len() + 2;
            add_paragraph(&mut text, width, "  ", 4, &rest);
            if !is_whole {
                paint(&mut text, from, state, Colour::Care);
            }
            return text;
        }
        let mut text = format!("{state:<7} {on:<5} {left:>6} {kind:<7} {waiters:>7} {name}{by}\n");
        if !is_whole {
            paint(&mut text, 0, state, Colour::Care);
        }
        text
    }

    fn json(&self) -> Value {
        let mut fields = json!({
            "name": self.name.escape_ascii().to_string(), "status": status_word(self.inspection.status()), "kind": self.kind(),
            "holder": holder(&self.inspection), "holder_label": self.inspection.holder_label(), "remaining_ms": left_ms(self.inspection.remaining()), "holding": self.holding(),
            "masters": self.inspection.masters.len(), "queued": self.extras.queued,
        });
        if let Some(LockOfPool { pool, slot }) = LockOfPool::parse(&self.name) {
            fields["pool"] = pool.escape_ascii().to_string().into();
            fields["slot"] = slot.into();
        }
        fields
    }
}

/// Name in its column: `migrations slot 3` for a slot, `migrations door` for the lock at which a pool's
/// waiters queue. Blanks are escaped, so that none looks like the end of the name.
fn shown_name(name: &[u8]) -> String {
    let shown = |name: &[u8]| name.escape_ascii().to_string().replace(' ', "\\x20");
    match LockOfPool::parse(name) {
        Some(LockOfPool { pool, slot: Some(slot) }) => format!("{} slot {slot}", shown(pool)),
        Some(LockOfPool { pool, slot: None }) => format!("{} door", shown(pool)),
        None => shown(name),
    }
}

/// Column names of [`Listed::text`].
const HEADER: &str = "STATE   ON      LEFT KIND    WAITERS NAME by HOLDER\n";

/// Width from which a lock takes one line.
const WIDE: usize = 60;

/// Number of characters of a holder's value that are shown: enough to distinguish holders.
const HOLDER_SHOWN_MAX: usize = 12;

#[cfg(test)]
mod tests;
