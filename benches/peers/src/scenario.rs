//! The measured kinds of work, and the masters for each.

use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::load::Work;
use crate::rivals::Peer;

/// A kind of work for all peers. Its id names it in the data.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub id: &'static str,
    pub title: &'static str,
    pub master_count: usize,
    pub work: Work,
    pub network: Network,
    /// The form of redlatch to compare the others with.
    pub ours: Peer,
    /// The raw loop for the same work, if there is one.
    pub floor: Option<Peer>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Network {
    /// Loopback.
    Direct,
    /// Loopback through a proxy that delays, with each master's round trip.
    Delayed(&'static [Duration]),
    /// Loopback. The first master is stopped (SIGSTOP) once all peers are connected.
    OneStopped,
}

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

const UNIFORM_1: [Duration; 5] = [ms(1); 5];
const UNIFORM_10: [Duration; 5] = [ms(10); 5];
const MIXED: [Duration; 5] = [ms(2), ms(2), ms(2), ms(50), ms(50)];
const REGIONS: [Duration; 3] = [ms(1), ms(30), ms(80)];

impl Scenario {
    pub fn all() -> Vec<Self> {
        let mut list = vec![
            Self::separate("callers-1", "1 caller", 1, 5),
            Self::separate("callers-4", "4 callers", 4, 5),
            Self::separate("callers-16", "16 callers", 16, 5),
            Self::separate("callers-64", "64 callers", 64, 5),
            Self::separate("callers-128", "128 callers", 128, 5),
            Self::separate("callers-1024", "1,024 callers", 1024, 5),
            Self {
                work: Work { callers: 16, one_key: true },
                floor: None,
                ..Self::separate("one-key-16", "16 callers on one key", 16, 5)
            },
            Self::delayed("rtt-1", "1 caller, round trip 1 ms", &UNIFORM_1),
            Self::delayed("rtt-10", "1 caller, round trip 10 ms", &UNIFORM_10),
            Self::delayed("rtt-mixed", "1 caller, round trips 2/2/2/50/50 ms", &MIXED),
            Self::delayed("rtt-regions", "1 caller, N = 3, round trips 1/30/80 ms", &REGIONS),
            Self {
                network: Network::OneStopped,
                floor: Some(Peer::RawQuorum),
                ..Self::separate("one-stopped", "1 caller, one master stopped", 1, 5)
            },
        ];
        for (id, title, callers, master_count) in [
            ("masters-1", "1 caller, N = 1", 1, 1),
            ("masters-3", "1 caller, N = 3", 1, 3),
            ("masters-7", "1 caller, N = 7", 1, 7),
            ("masters-1-callers-128", "128 callers, N = 1", 128, 1),
            ("masters-3-callers-128", "128 callers, N = 3", 128, 3),
            ("masters-7-callers-128", "128 callers, N = 7", 128, 7),
        ] {
            list.push(Self::separate(id, title, callers, master_count));
        }
        list
    }

    /// # Errors
    /// Which scenarios there are, if none has this id.
    pub fn find(id: &str) -> Result<Self, String> {
        let all = Self::all();
        let ids: Vec<&str> = all.iter().map(|scenario| scenario.id).collect();
        let known = format!("no scenario is called {id}; there are {}", ids.join(", "));
        all.into_iter().find(|scenario| scenario.id == id).ok_or(known)
    }

    fn separate(id: &'static str, title: &'static str, callers: usize, master_count: usize) -> Self {
        let (ours, floor) =
            if callers == 1 { (Peer::Client, Peer::RawQuorum) } else { (Peer::ClientTasks, Peer::Raw) };
        let work = Work { callers, one_key: false };
        Self { id, title, master_count, work, network: Network::Direct, ours, floor: Some(floor) }
    }

    fn delayed(id: &'static str, title: &'static str, round_trips: &'static [Duration]) -> Self {
        Self { network: Network::Delayed(round_trips), ..Self::separate(id, title, 1, round_trips.len()) }
    }

    /// The round trip of the fastest majority, if the proxies make one.
    pub fn quorum_round_trip(&self) -> Option<Duration> {
        let Network::Delayed(round_trips) = self.network else { return None };
        let mut round_trips = round_trips.to_vec();
        round_trips.sort_unstable();
        Some(round_trips[round_trips.len() / 2])
    }

    /// Factor for the length of a round: longer where callers wait for each other.
    pub fn stretch(&self) -> u32 {
        if self.work.one_key { 3 } else { 1 }
    }

    /// How long the slowest reply may be under way after a peer's turn.
    pub fn straggling(&self) -> Duration {
        let Network::Delayed(round_trips) = self.network else { return ms(20) };
        ms(20) + 2 * round_trips.iter().max().copied().unwrap_or_default()
    }
}

impl Serialize for Scenario {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.id.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Scenario {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::find(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}
