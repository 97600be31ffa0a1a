//! `redlatch inspect`: what each master holds of a lock. `redlatch unlock --force`: the lock broken.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use redlatch::internals::words::Printable;
use redlatch::{Client, ForceUnlockError, HolderTtl, InspectError, Inspection, KeyState, LockStatus, Report};

use super::message::{Message, label};
use super::options::{Exit, MasterOptions, code, print, say};

/// Show what each master holds of a lock, of any holder.
///
/// It asks once, in one round trip, and takes no part in the lock. By the time that the result is read,
/// anything may have changed. A master that restarted lately and has no such key does not count as free, as
/// it may have forgotten one.
#[derive(clap::Args)]
#[command(after_help = INSPECT_HELP)]
pub(crate) struct InspectArgs {
    /// The lock's name.
    #[arg(value_name = "RESOURCE")]
    resource: OsString,

    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    masters: MasterOptions,
}

const INSPECT_HELP: &str = "\
Exit codes:
  0 if the lock is free on a quorum of masters, 75 if it is held, shared or split, 64 bad usage, 69 if fewer than a quorum answered

Examples:
  redlatch inspect nightly-report
  redlatch inspect --json nightly-report | jq -r '.masters[] | select(.held) | .name'";

/// Delete a lock, whoever holds it.
///
/// THIS BREAKS THE LOCK. The holder is not notified: it goes on as if it held the lock, beside the next
/// holder. Use it if the holder is known to be dead and nobody can wait for the end of its TTL, which
/// `redlatch inspect` shows.
#[derive(clap::Args)]
#[command(after_help = UNLOCK_HELP)]
pub(crate) struct UnlockArgs {
    /// The lock's name.
    #[arg(value_name = "RESOURCE")]
    resource: OsString,

    /// Confirm that the lock is to be broken; nothing is deleted without it.
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    masters: MasterOptions,
}

const UNLOCK_HELP: &str = "\
Exit codes:
  0 if a quorum of masters has no such lock any more, whether it had one before or not, 64 bad usage or without --force,
  69 if fewer than a quorum said so

A key that is no lock, of another type than a string or a set of readers, stays as it is.

Example:
  redlatch unlock --force nightly-report";

/// Runs `inspect`; the result is the program's exit code.
pub(crate) fn inspect(args: &InspectArgs) -> Result<u8, Exit> {
    let client = connect(&args.masters)?;
    let name = label([args.resource.as_bytes()]);
    let inspection = client.inspect(args.resource.as_bytes()).map_err(|error| match error {
        InspectError::Input(error) => error.into(),
        error => Exit::new(code::INTERNAL, error).of_lock(&name),
    })?;
    print(&if args.json { json(&inspection) } else { format!("{inspection:#}\n") })?;
    Ok(match inspection.status() {
        LockStatus::Free => 0,
        LockStatus::Held | LockStatus::Shared | LockStatus::Split => code::CONTENDED,
        _ => code::NO_QUORUM,
    })
}

/// Runs `unlock`; the result is the program's exit code.
pub(crate) fn unlock(args: &UnlockArgs) -> Result<u8, Exit> {
    if !args.force {
        return Err(Exit::usage(Message::UnlockWithoutForce));
    }
    let client = connect(&args.masters)?;
    let lock = &label([args.resource.as_bytes()]);
    say(Message::UnlockWarning { lock });
    let (code, report) = match client.force_unlock(args.resource.as_bytes()) {
        Ok(done) => (0, done.report),
        Err(ForceUnlockError::Unconfirmed(report)) => (code::NO_QUORUM, report),
        Err(ForceUnlockError::Input(error)) => return Err(error.into()),
        Err(error) => return Err(Exit::new(code::INTERNAL, error).of_lock(lock)),
    };
    print(&deletions(&report))?;
    if code != 0 {
        say(Message::UnlockUnconfirmed { lock });
    }
    Ok(code)
}

fn connect(masters: &MasterOptions) -> Result<Client, Exit> {
    Ok(Client::open(masters.config(|builder| builder)?)?)
}

fn json(inspection: &Inspection) -> String {
    let ms = |time: HolderTtl| match time {
        HolderTtl::Left(left) => serde_json::json!(whole_ms(left)),
        _ => serde_json::Value::Null,
    };
    let masters: Vec<_> = inspection
        .masters
        .iter()
        .map(|(name, told)| match told {
            KeyState::Absent => serde_json::json!({ "name": **name, "held": false }),
            KeyState::Holds { left, .. } => {
                let (token, label) = told.holder().unwrap_or_default();
                let value = Printable(token).to_string();
                serde_json::json!({
                    "name": **name, "held": true, "value": value, "label": label, "left_ms": ms(*left),
                })
            }
            KeyState::Shared { readers, left } => serde_json::json!({
                "name": **name, "held": true, "readers": readers, "left_ms": ms(*left),
            }),
            KeyState::Failed(failure) => serde_json::json!({
                "name": **name, "held": null, "error": failure.to_string(),
            }),
            _ => serde_json::json!({ "name": **name, "held": null }),
        })
        .collect();
    let status = match inspection.status() {
        LockStatus::Free => "free",
        LockStatus::Held => "held",
        LockStatus::Shared => "shared",
        LockStatus::Split => "split",
        _ => "unknown",
    };
    let holder = inspection.holder().map(|value| Printable(value).to_string());
    let all = serde_json::json!({
        "status": status, "holder": holder, "holder_label": inspection.holder_label(),
        "remaining_ms": ms(inspection.remaining()), "masters": masters,
    });
    format!("{all}\n")
}

fn whole_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn deletions(report: &Report) -> String {
    report.lines().into_iter().map(|line| line + "\n").collect()
}
