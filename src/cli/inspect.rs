//! `redlatch inspect`: what each master holds of a lock. `redlatch unlock --force`: breaks the lock.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::output::whole_ms;
use redlatch::error::{Failure, ForceUnlockError, HolderTtl, InputError, InspectError, Vote};
use redlatch::inspection::{Inspection, KeyState, LockStatus};
use redlatch::pool::slot_name;
use redlatch::status::MasterState;
use redlatch::words::{Printable, Shown};
use redlatch::{Client, limits};
use serde_json::{Value, json};

use super::exit::{Exit, code};
use super::message::{Message, label};
use super::options::MasterOptions;
use super::output::{Colour, add_paragraph, json_line, paint, print, say, terminal_width, wrapped};
use super::watch::Watch;

/// Show what each master holds of a lock, of any holder.
///
/// It asks each master once, and takes no part in the lock. A master without an answer delays it by the time
/// limits of --connect-timeout and --answer-timeout. The lock may change before you read the
/// result. A master that restarted lately and has no such key does not count as free, as it may have
/// forgotten one.
#[derive(clap::Args)]
#[command(after_help = INSPECT_HELP)]
pub(crate) struct InspectArgs {
    /// The lock's name.
    #[arg(value_name = "NAME")]
    resource: OsString,

    /// Treat NAME as a pool, and look at this slot.
    #[arg(long, value_name = "NUMBER")]
    slot: Option<u32>,

    /// Treat NAME as a pool of this many slots, and look at each of them.
    #[arg(long, value_name = "COUNT", conflicts_with_all = ["slot", "watch"])]
    slots: Option<u32>,

    /// Print the result as one JSON object; with --watch one line with an object for each change.
    #[arg(long)]
    json: bool,

    /// Show the lock again and again, until you end the program or nobody reads its output. It asks twice a
    /// second. A terminal shows each answer in place of the last one. Elsewhere, and with --json, only changes
    /// are shown: another key or holder on a master, or a master that starts or stops answering.
    #[arg(long)]
    watch: bool,

    #[command(flatten)]
    masters: MasterOptions,
}

/// Interval at which `--watch` asks the masters.
const WATCH_PAUSE: Duration = Duration::from_millis(500);

/// Added to the answer limit, so that a connect timeout of the same length ends first.
const CONNECT_SLACK: Duration = Duration::from_millis(50);

/// Pause between two checks whether a master is connected.
const CONNECT_LOOK_PAUSE: Duration = Duration::from_millis(5);

const INSPECT_HELP: &str = "\
Exit codes:
  0 if the lock, or a slot of the pool, is free on a quorum of masters, 75 if
  it is held, shared or split, 64 bad usage, 69 if fewer than a quorum
  answered, 70 if the operating system refused something; with --watch 0 when
  nobody reads the output any more

Examples:
  redlatch inspect nightly-report
  redlatch inspect --watch nightly-report
  redlatch inspect --slots 3 migrations
  redlatch inspect --json nightly-report | jq -r '.masters[] | select(.held) | .name'";

/// Delete a lock, whoever holds it.
///
/// THIS BREAKS THE LOCK. The holder is not notified: it may go on as if it held the lock, beside the next
/// holder. Use it if the holder is surely dead and nobody can wait for the end of its TTL, which
/// `redlatch inspect` shows.
#[derive(clap::Args)]
#[command(after_help = UNLOCK_HELP)]
pub(crate) struct UnlockArgs {
    /// The lock's name.
    #[arg(value_name = "NAME")]
    resource: OsString,

    /// Treat NAME as a pool, and delete this slot.
    #[arg(long, value_name = "NUMBER")]
    slot: Option<u32>,

    /// Confirm that you want to break the lock; nothing is deleted without it.
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    masters: MasterOptions,
}

const UNLOCK_HELP: &str = "\
Exit codes:
  0 if a quorum of masters has no such lock any more, whether it had one before
  or not, 64 bad usage or without --force, 69 if fewer than a quorum said so,
  70 if the operating system refused something

A key that is no lock, of another type than a string or a set of readers, stays
as it is.

Example:
  redlatch unlock --force nightly-report";

pub(crate) fn inspect(args: &InspectArgs) -> Result<u8, Exit> {
    if let Some(count) = args.slots.filter(|count| !(1..=limits::SLOT_COUNT_MAX).contains(count)) {
        return Err(InputError::SlotCount { count }.into());
    }
    let client = connect(&args.masters)?;
    let look = |name: &[u8]| {
        client.inspect(name).map_err(|error| match error {
            InspectError::Input(error) => error.into(),
            error => Exit::internal(error).of_lock(&label([name])),
        })
    };
    if let Some(count) = args.slots {
        let slots = (0..count).map(|slot| look(&name(&args.resource, Some(slot))));
        let slots = slots.collect::<Result<Vec<_>, Exit>>()?;
        print(&if args.json { slots_json(&slots) } else { paragraphs(&slots_text(&slots)) })?;
        // One free slot is enough. Without a free slot, an unknown slot may be free.
        let codes: Vec<_> = slots.iter().map(exit_code).collect();
        let is_any = |code: &u8| codes.contains(code);
        return Ok([0, code::NO_QUORUM].into_iter().find(is_any).unwrap_or(code::CONTENDED));
    }
    let name = name(&args.resource, args.slot);
    if args.watch {
        return watch(|| look(&name), args.json, &label([&*name]));
    }
    let inspection = look(&name)?;
    print(&if args.json { json_line(&json_of(&inspection)) } else { text(&inspection, terminal_width()) })?;
    if inspection.status() == LockStatus::Free && args.slot.is_none() && !args.json {
        say(Message::MaybePool);
    }
    Ok(exit_code(&inspection))
}

fn exit_code(inspection: &Inspection) -> u8 {
    match inspection.status() {
        LockStatus::Free => 0,
        LockStatus::Held | LockStatus::Shared | LockStatus::Split => code::CONTENDED,
        _ => code::NO_QUORUM,
    }
}

pub(crate) fn unlock(args: &UnlockArgs) -> Result<u8, Exit> {
    if !args.force {
        return Err(Exit::usage(Message::UnlockWithoutForce));
    }
    let client = connect(&args.masters)?;
    let name = name(&args.resource, args.slot);
    let lock = &label([&*name]);
    let (code, report) = match client.force_unlock(&name) {
        Ok(done) => (0, done.report),
        Err(ForceUnlockError::Unconfirmed(report)) => (code::NO_QUORUM, report),
        Err(ForceUnlockError::Input(error)) => return Err(error.into()),
        Err(error) => return Err(Exit::internal(error).of_lock(lock)),
    };
    print(&paragraphs(&report.lines().into_iter().map(|line| line + "\n").collect::<String>()))?;
    if report.votes.iter().any(|(_, vote)| may_have_deleted(vote)) {
        say(Message::UnlockWarning { lock });
    }
    if code != 0 {
        say(Message::UnlockUnconfirmed { lock });
    }
    Ok(code)
}

/// Whether the master deleted a key, or may have done so without an answer.
const fn may_have_deleted(vote: &Vote) -> bool {
    matches!(vote, Vote::Granted | Vote::Failed(Failure::NoAnswer { .. } | Failure::ConnectionLost))
}

/// Name of the lock, or of the pool's slot.
fn name(resource: &OsStr, slot: Option<u32>) -> Vec<u8> {
    let name = resource.as_bytes();
    slot.map_or_else(|| name.to_vec(), |slot| slot_name(name, slot).to_vec())
}

/// Shows the result of each look, until nobody reads the output.
fn watch(mut look: impl FnMut() -> Result<Inspection, Exit>, is_json: bool, lock: &str) -> Result<u8, Exit> {
    let mut watch = Watch::new(is_json);
    let mut shown: Option<Inspection> = None;
    loop {
        let inspection = look()?;
        let is_change = shown.as_ref().is_none_or(|last| is_change(last, &inspection));
        let terminal = watch.terminal();
        let text = match terminal {
            Some(columns) => {
                wrapped(&format!("{lock}, twice a second:"), columns, "") + &text(&inspection, Some(columns))
            }
            None if is_json => json_line(&json_of(&inspection)),
            None => text(&inspection, None),
        };
        if is_change || terminal.is_some() {
            watch.show(&text)?;
            shown = Some(inspection);
        }
        if !watch.wait(WATCH_PAUSE)? {
            return Ok(0);
        }
    }
}

/// The findings, status first. With a width, lines break between words.
fn text(inspection: &Inspection, width: Option<usize>) -> String {
    let text = format!("{inspection:#}\n");
    let mut text = width.map_or_else(|| text.clone(), |width| wrapped(&text, width, ""));
    match inspection.status() {
        LockStatus::Free => paint(&mut text, 0, "free", Colour::Fine),
        LockStatus::Held | LockStatus::Shared => {}
        status => paint(&mut text, 0, status_word(status), Colour::Care),
    }
    text
}

/// Lines that break between words on a terminal.
fn paragraphs(lines: &str) -> String {
    let Some(width) = terminal_width() else { return lines.to_owned() };
    let mut out = String::new();
    lines.lines().for_each(|line| add_paragraph(&mut out, width, "", 2, line));
    out
}

fn slots_text(slots: &[Inspection]) -> String {
    let line = |(slot, inspection): (usize, &Inspection)| {
        let by = inspection.holder_label().map(|label| format!(", by {}", Shown(label)));
        format!("slot {slot}: {inspection}{}\n", by.unwrap_or_default())
    };
    slots.iter().enumerate().map(line).collect()
}

fn slots_json(slots: &[Inspection]) -> String {
    json_line(&json!({ "slots": slots.iter().map(json_of).collect::<Vec<_>>() }))
}

/// Whether anything but the remaining time differs.
fn is_change(last: &Inspection, now: &Inspection) -> bool {
    let without_time = |(name, state): &(Arc<str>, KeyState)| match state {
        KeyState::Holds { value, .. } => (name.clone(), format!("held by {}", value.escape_ascii())),
        KeyState::Shared { readers, .. } => (name.clone(), format!("{readers} readers")),
        KeyState::Absent => (name.clone(), "free".to_owned()),
        // The reason may contain a running time.
        _ => (name.clone(), "unknown".to_owned()),
    };
    !last.masters.iter().map(without_time).eq(now.masters.iter().map(without_time))
}

/// Opens a client for queries. Each master is connected or has failed: `Client::open` waits only briefly for
/// stragglers once a quorum is connected, but a query wants every answer.
pub(super) fn connect(masters: &MasterOptions) -> Result<Client, Exit> {
    let config = masters.query_config()?;
    let limit = config.answer_limit(config.ttl(config.max_ttl())?);
    let started = Instant::now();
    let client = Client::open(config)?;
    // The connect timeout ends this loop. With a quorum, the answer limit ends it, too.
    while client.masters().iter().any(|master| matches!(master.state, MasterState::Connecting)) {
        if client.health().has_quorum && started.elapsed() > limit + CONNECT_SLACK {
            break;
        }
        thread::sleep(CONNECT_LOOK_PAUSE);
    }
    Ok(client)
}

/// Places of the connected masters. A new connection to another master would fail just as late.
pub(super) fn connected(client: &Client) -> Vec<usize> {
    let answers = |state: &MasterState| matches!(state, MasterState::Ready | MasterState::Quarantined(_));
    let masters = client.masters();
    (0..masters.len()).filter(|place| answers(&masters[*place].state)).collect()
}

fn json_of(inspection: &Inspection) -> Value {
    let masters: Vec<_> = inspection
        .masters
        .iter()
        .map(|(name, state)| match state {
            KeyState::Absent => json!({ "name": **name, "held": false }),
            KeyState::Holds { left, .. } => {
                let (token, label) = state.holder().unwrap_or_default();
                let value = Printable(token).to_string();
                json!({ "name": **name, "held": true, "value": value, "label": label, "left_ms": left_ms(*left) })
            }
            KeyState::Shared { readers, left } => {
                json!({ "name": **name, "held": true, "readers": readers, "left_ms": left_ms(*left) })
            }
            KeyState::Failed(failure) => json!({ "name": **name, "held": null, "error": failure.to_string() }),
            _ => json!({ "name": **name, "held": null }),
        })
        .collect();
    json!({
        "status": status_word(inspection.status()), "holder": holder(inspection), "holder_label": inspection.holder_label(),
        "remaining_ms": left_ms(inspection.remaining()), "masters": masters,
    })
}

/// Milliseconds left; `None` without a key or a TTL.
pub(super) fn left_ms(time: HolderTtl) -> Option<u64> {
    match time {
        HolderTtl::Left(left) => Some(whole_ms(left)),
        _ => None,
    }
}

/// Token of the holder, or the value that another library wrote.
pub(super) fn holder(inspection: &Inspection) -> Option<String> {
    inspection.holder().map(|value| Printable(value).to_string())
}

pub(super) const fn status_word(status: LockStatus) -> &'static str {
    match status {
        LockStatus::Free => "free",
        LockStatus::Held => "held",
        LockStatus::Shared => "shared",
        LockStatus::Split => "split",
        _ => "unknown",
    }
}

#[cfg(test)]
pub(super) mod tests;
