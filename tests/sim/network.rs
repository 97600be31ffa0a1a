//! Connections between clients and masters: bytes under way in both directions, cut, delayed and lost.

use std::collections::VecDeque;

use rand::rngs::StdRng;
use rand::{Rng, RngExt};

use crate::clock::Time;

/// A connection, which lasts after one or both sides have left it: bytes that were sent still arrive.
pub struct Conn {
    pub client: usize,
    pub master: usize,
    /// The life of the client that opened it, and the life of the master that it leads to.
    pub client_life: u32,
    pub master_life: u32,
    /// Since when some queued bytes have not been written.
    pub unsent_since: Option<Time>,
    pub to_master: Pipe,
    pub to_client: Pipe,
    /// Bytes that arrived at the master but were not carried out: less than a command, or the process is
    /// stopped.
    pub master_input: Vec<u8>,
    /// When the client queued the oldest of these bytes, or earlier.
    pub input_queued_at: Time,
    /// Bytes that arrived at the client but were not read.
    pub client_input: Vec<u8>,
    pub state: ConnState,
    /// When the client gave it up.
    pub left_at: Option<Time>,
    /// Another process has replaced the master's, and does not know this connection's protocol version.
    pub is_replaced: bool,
}

impl Conn {
    /// Whether the client has something to read, or an end to notice.
    pub fn has_input(&self) -> bool {
        !self.client_input.is_empty() || !matches!(self.state, ConnState::Open | ConnState::Connecting)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnState {
    Connecting,
    /// The client has yet to notice.
    Accepted,
    Refused,
    Open,
    /// The client notices once it has read everything before.
    Ended,
}

/// One direction of a connection.
#[derive(Default)]
pub struct Pipe {
    pieces: VecDeque<Piece>,
    /// Bytes of all pieces, after the bytes that have arrived.
    bytes: Vec<u8>,
    arrived: usize,
    last_arrival: Time,
    pub stalled_until: Time,
    /// Bytes sent from now on are lost.
    is_cut: bool,
}

/// Bytes that arrive together.
struct Piece {
    /// When it arrives.
    at: Time,
    queued_at: Time,
    /// Number of bytes; `None` is the end of the connection.
    size: Option<usize>,
}

pub enum Arrival<'a> {
    Bytes {
        bytes: &'a [u8],
        queued_at: Time,
    },
    /// The end of the connection, by FIN or RST.
    End,
}

/// Delays and cuts of the network.
#[derive(Debug, Clone, Copy)]
pub struct Weather {
    pub delay_min: Time,
    pub delay_max: Time,
    /// Of a million sends, how many are cut into small pieces that arrive one by one.
    pub cut_ppm: u32,
    /// Of a million sends, how many take up to twenty times as long.
    pub slow_ppm: u32,
}

impl Weather {
    pub fn delay(&self, rng: &mut StdRng) -> Time {
        let delay = rng.random_range(self.delay_min..=self.delay_max);
        if chance(rng, self.slow_ppm) { delay * rng.random_range(2..=20) } else { delay }
    }
}

pub fn chance(rng: &mut impl Rng, ppm: u32) -> bool {
    ppm > 0 && rng.random_range(0..1_000_000) < ppm
}

impl Pipe {
    /// Sends bytes; `plan` gets the times of arrivals.
    pub fn send(
        &mut self,
        now: Time,
        queued_at: Time,
        bytes: &[u8],
        weather: &Weather,
        rng: &mut StdRng,
        mut plan: impl FnMut(Time),
    ) {
        if self.is_cut {
            return;
        }
        self.bytes.extend_from_slice(bytes);
        let is_split = chance(rng, weather.cut_ppm);
        let mut left = bytes.len();
        while left > 0 {
            let size = match is_split {
                false => left,
                true if rng.random() => 1,
                true => rng.random_range(1..=left),
            };
            left -= size;
            let at = now + weather.delay(rng);
            plan(self.push(at, queued_at, Some(size)));
        }
    }

    /// Ends the direction. Returns when the end arrives.
    pub fn end(&mut self, at: Time) -> Time {
        self.push(at, at, None)
    }

    fn push(&mut self, at: Time, queued_at: Time, size: Option<usize>) -> Time {
        let at = at.max(self.last_arrival);
        self.last_arrival = at;
        self.pieces.push_back(Piece { at, queued_at, size });
        at
    }

    /// Bytes that have arrived by now; while stalled, when to ask again.
    pub fn arrive(&mut self, now: Time) -> Result<Option<Arrival<'_>>, Time> {
        if self.stalled_until > now && !self.pieces.is_empty() {
            return Err(self.stalled_until);
        }
        if self.pieces.front().is_none_or(|piece| piece.at > now) {
            return Ok(None);
        }
        let Some(piece) = self.pieces.pop_front() else { return Ok(None) };
        let Some(size) = piece.size else { return Ok(Some(Arrival::End)) };
        if self.arrived > self.bytes.len() / 2 {
            self.bytes.drain(..self.arrived);
            self.arrived = 0;
        }
        self.arrived += size;
        let bytes = &self.bytes[self.arrived - size..self.arrived];
        Ok(Some(Arrival::Bytes { bytes, queued_at: piece.queued_at }))
    }

    /// Lets only the first `size` bytes under way arrive.
    pub fn cut(&mut self, mut size: usize) {
        self.is_cut = true;
        self.bytes.truncate(self.arrived + size);
        self.pieces.retain_mut(|piece| {
            let Some(own) = &mut piece.size else { return false };
            *own = size.min(*own);
            size -= *own;
            *own > 0
        });
    }

    /// Number of bytes under way.
    pub fn size(&self) -> usize {
        self.bytes.len() - self.arrived
    }

    pub fn count(&self) -> usize {
        self.pieces.len()
    }

    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }
}
