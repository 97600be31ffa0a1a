//! The round trip to the masters, as a yardstick for locks: `PING`s over separate connections.

use std::time::{Duration, Instant};

use redlatch::Redlock;
use redlatch::probe::{Probe, ProbeError, some};
use redlatch::stats::Histogram;
use redlatch::status::MasterState;

use crate::exit::Exit;

/// Time limit for connecting to a master, and for its answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Mean times.
#[derive(Debug, Clone, Copy)]
pub(super) struct RoundTrip {
    /// Time for one `PING` to one master; mean over all masters.
    pub(super) one: Duration,
    /// Time for a `PING` to every master, all sent before the first answer is read.
    pub(super) all: Duration,
}

/// Measures the round trip to the reachable masters for about `time`. Fails if one of them fails.
pub(super) fn measure(redlock: &Redlock, time: Duration) -> Result<RoundTrip, Exit> {
    let answers = |state: &MasterState| matches!(state, MasterState::Ready | MasterState::Quarantined(_));
    let masters = redlock.masters();
    let masters = (0..masters.len()).filter(|place| answers(&masters[*place].state));
    let probes = some(redlock.config(), masters, PATIENCE + time, |probe, _| Ok(probe))?;
    let measured =
        probes.into_iter().collect::<Result<Vec<_>, _>>().and_then(|probes| exchange(probes, time));
    measured.map_err(Exit::internal)
}

fn exchange(mut probes: Vec<Probe>, time: Duration) -> Result<RoundTrip, ProbeError> {
    if probes.is_empty() {
        return Err(ProbeError::Unreachable("no master answers".to_owned()));
    }
    let (mut one, mut all) = (Histogram::new(), Histogram::new());
    let start = Instant::now();
    // The first round warms up the connections and is not counted.
    for round in 0.. {
        for probe in &mut probes {
            let asked = Instant::now();
            probe.exchange(&PING)?;
            one.record(asked.elapsed());
        }
        let asked = Instant::now();
        probes.iter_mut().for_each(|probe| probe.send(&PING));
        probes.iter_mut().try_for_each(|probe| probe.receive(PING.len()).map(drop))?;
        all.record(asked.elapsed());
        if round == 0 {
            (one, all) = (Histogram::new(), Histogram::new());
        } else if start.elapsed() >= time {
            break;
        }
    }
    Ok(RoundTrip { one: mean(&one), all: mean(&all) })
}

const PING: [[&str; 1]; 1] = [["PING"]];

/// Zero without any measurement.
pub(super) fn mean(times: &Histogram) -> Duration {
    let count = u32::try_from(times.count()).unwrap_or(u32::MAX);
    times.sum().checked_div(count).unwrap_or_default()
}
