//! Many locks that are kept by renewals, and the cost for the client and a master.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use redlatch_support::Fleet;

use super::{FamilyPeer, Player, calls};

const READY_PATIENCE: Duration = Duration::from_secs(60);

/// Result of keeping locks.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Kept {
    /// Share of a core that the client used, and its memory.
    pub core_share: f64,
    pub memory_mib: u64,
    /// Renewals sent to one master per second, as scripts.
    pub renewals_per_second: f64,
    /// Locks that the peer reported as lost.
    pub lost: usize,
    /// Keys left at the end on the master with the fewest.
    pub keys_left: u64,
}

/// Keeps this many locks for some seconds.
///
/// # Errors
/// Why the peer takes no part, or did not end.
#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
pub fn keep(peer: FamilyPeer, lock_count: usize, time: Duration, ttl: Duration) -> Result<Kept, String> {
    let mut command = peer.command()?;
    let mut fleet = Fleet::start(peer.master_count());
    command.args([
        "keep",
        &lock_count.to_string(),
        &time.as_secs().to_string(),
        &ttl.as_millis().to_string(),
    ]);
    command.arg("0").args(fleet.addrs().iter().map(SocketAddr::to_string));
    let player = Player::start(command)?;
    expect(&player.line(READY_PATIENCE)?, "held")?;
    let (before, sent_before) = (player.usage().0, scripts(&mut fleet));
    let end = player.line(time + READY_PATIENCE)?;
    let ((after, memory_mib), sent_after) = (player.usage(), scripts(&mut fleet));
    let keys = fleet.masters().map(|master| integer(&master.ask("DBSIZE").text()));
    let keys_left = keys.min().unwrap_or(0);
    Ok(Kept {
        core_share: (after.saturating_sub(before)).as_secs_f64() / time.as_secs_f64(),
        memory_mib,
        renewals_per_second: (sent_after - sent_before) as f64 / time.as_secs_f64(),
        lost: end.strip_prefix("kept ").and_then(|count| count.parse().ok()).ok_or(end)?,
        keys_left,
    })
}

/// Number of scripts sent to the first master.
fn scripts(fleet: &mut Fleet) -> u64 {
    let stats = fleet.master(0).ask("INFO commandstats").text();
    calls(&stats, "evalsha") + calls(&stats, "eval")
}

fn expect(line: &str, wanted: &str) -> Result<(), String> {
    if line == wanted { Ok(()) } else { Err(format!("{line} in place of {wanted}")) }
}

fn integer(text: &str) -> u64 {
    text.trim().trim_start_matches(':').parse().unwrap_or(0)
}
