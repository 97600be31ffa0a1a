//! The raw loop: the same bytes without a library. A floor, not a rival, because it handles nothing unusual.

use std::net::SocketAddr;

use crate::load::{KEY_COUNT, Limit, Rig, Round, Tally, Work};
use crate::raw_loop::RawLoop;

/// Pairs of the trial that measures its speed; at least one for each caller.
const TRIAL_PAIRS: usize = 64;

pub(super) struct RawRig {
    raw: RawLoop,
    depth: usize,
    /// Seconds for each pair, in the last round.
    pace: f64,
}

impl RawRig {
    pub(super) fn connect(addresses: &[SocketAddr], work: &Work, at_quorum: bool) -> Self {
        let raw = RawLoop::connect(addresses);
        let mut rig = Self {
            raw: if at_quorum { raw.decide_at_quorum() } else { raw },
            depth: work.callers,
            pace: 0.0,
        };
        rig.run(TRIAL_PAIRS);
        rig
    }

    fn run(&mut self, pairs: usize) -> Round {
        let pairs = pairs.max(1).next_multiple_of(self.depth);
        let mut tally = Tally::default();
        let depth = self.depth;
        let elapsed = self.raw.pairs_noting(KEY_COUNT, depth, pairs, |time| {
            // Each lock of a batch takes as long as the batch.
            for _ in 0..depth {
                tally.note(Ok(time));
            }
        });
        let round = Tally::sum(vec![tally], elapsed);
        self.pace = 1.0 / round.pairs_per_second();
        round
    }
}

impl Rig for RawRig {
    /// Its bytes are all written beforehand, so it runs for the count that its pace promises.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count of pairs is far below 2^52"
    )]
    fn round(&mut self, limit: Limit) -> Round {
        match limit {
            Limit::Time(time) => self.run((time.as_secs_f64() / self.pace) as usize),
            Limit::Pairs(count) => self.run(count * self.depth),
        }
    }
}
