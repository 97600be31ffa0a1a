//! The page of all figures.

use std::fmt::Write as _;

use super::{Contest, FamilyPeer, Kept};
use crate::report::machine_line;

/// What was measured so far.
#[derive(Debug, Default)]
pub struct Page {
    /// Peer, and what it came to with a round trip by a proxy.
    pub hand_overs: Vec<(FamilyPeer, Result<Contest, String>)>,
    pub contests: Vec<(FamilyPeer, Result<Contest, String>)>,
    pub kept: Vec<(FamilyPeer, Result<Kept, String>)>,
    pub round_trip_ms: f64,
    pub hold_ms: u64,
    pub lock_count: usize,
    pub ttl_s: u64,
}

impl Page {
    #[must_use]
    pub fn text(&self) -> String {
        let mut page = String::from(HEAD);
        let _ = writeln!(page, "{}\n", machine_line());
        self.write_peers(&mut page);
        self.write_hand_overs(&mut page);
        self.write_contests(&mut page);
        self.write_kept(&mut page);
        page
    }

    fn write_peers(&self, page: &mut String) {
        page.push_str(
            "| peer | version | how a waiter waits | how a lock is kept |\n| --- | --- | --- | --- |\n",
        );
        for peer in FamilyPeer::ALL {
            let (name, version, waits) = (peer.name(), peer.version(), peer.waits_by());
            let _ = writeln!(page, "| {name} | {version} | {waits} | {} |", peer.keeps_by().unwrap_or("–"));
        }
        page.push_str(NOT_HERE);
    }

    fn write_hand_overs(&self, page: &mut String) {
        let _ = writeln!(
            page,
            "\n## Hand-over\n\nThe time from the release by one client to the acquisition by a waiting one. A proxy gives round trips of {} ms. \
             Each client keeps the lock for ten round trips, and asks for it again after five.\n\n\
             | peer | waiting | hand-over, median ms | ÷ round trip | attempts per lock |\n| --- | ---: | ---: | ---: | ---: |",
            self.round_trip_ms
        );
        for (peer, contest) in &self.hand_overs {
            let _ = match contest {
                Err(why) => writeln!(page, "| {} | – | {why} | | |", peer.name()),
                Ok(contest) => {
                    let ms = contest.hand_over_us.map_or(f64::NAN, |us| us / 1e3);
                    let (name, waiting, attempts) =
                        (peer.name(), contest.contender_count - 1, contest.attempts_per_lock);
                    writeln!(
                        page,
                        "| {name} | {waiting} | {ms:.1} | {:.2} | {attempts:.1} |",
                        ms / self.round_trip_ms
                    )
                }
            };
        }
    }

    fn write_contests(&self, page: &mut String) {
        let _ = writeln!(
            page,
            "\n## Fairness\n\nContenders with a client each, on loopback. Each keeps the lock for {} ms and asks for it again at once. \
             Overtaken: the number of callers that asked at least 5 ms later and had the lock earlier.\n\n\
             | peer | contenders | locks/s | wait, median ms | longest ms | overtaken, mean | most | fewest ÷ most locks | attempts per lock |\n\
             | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
            self.hold_ms
        );
        for (peer, contest) in &self.contests {
            let _ = match contest {
                Err(why) => writeln!(page, "| {} | – | {why} | | | | | | |", peer.name()),
                Ok(it) => writeln!(
                    page,
                    "| {} | {} | {:.0} | {:.1} | {:.0} | {:.2} | {} | {:.2} | {:.1} |{}",
                    peer.name(),
                    it.contender_count,
                    it.locks_per_second,
                    it.wait_ms,
                    it.longest_wait_ms,
                    it.overtaken_mean,
                    it.overtaken_most,
                    it.evenness,
                    it.attempts_per_lock,
                    if it.overlap_count > 0 { " **two at once**" } else { "" },
                ),
            };
        }
    }

    fn write_kept(&self, page: &mut String) {
        let _ = writeln!(
            page,
            "\n## Renewal\n\n{} locks with a TTL of {} s. One client keeps them by the library's own renewal.\n\n\
             | peer | of a core | memory, MiB | renewals/s at a master | reported lost | keys left at the end |\n\
             | --- | ---: | ---: | ---: | ---: | ---: |",
            self.lock_count, self.ttl_s
        );
        for (peer, kept) in &self.kept {
            let _ = match kept {
                Err(why) => writeln!(page, "| {} | {why} | | | | |", peer.name()),
                Ok(it) => writeln!(
                    page,
                    "| {} | {:.1} % | {} | {:.0} | {} | {} |",
                    peer.name(),
                    100.0 * it.core_share,
                    it.memory_mib,
                    it.renewals_per_second,
                    it.lost,
                    it.keys_left
                ),
            };
        }
    }
}

const HEAD: &str = "# Waiting, fairness and renewal, compared\n\n\
    Written by `scripts/bench --family --write`; do not edit. Each library has its default settings, except that no caller gives up.\n\
    There are five masters where a library can use several. Each peer has a process of its own, and all of them share the cores with\n\
    the servers. So the figures include the cost of Python and JavaScript: compare the waits, not the languages.\n\n";

const NOT_HERE: &str = "\nNot measured: Redisson (`RLock`, `RFairLock`) and rueidislock, as the packages of their languages could not be installed here.\n\
    redsync and redlock-rs have neither notifications nor renewal, and poll like the others.\n";
