//! Connections between clients and masters: bytes under way in both directions, cut, delayed and lost.

use std::collections::VecDeque;

use rand::rngs::StdRng;
use rand::{Rng, RngExt};

use crate::clock::Time;

/// One connection, also after one or both sides have left it: what was sent still arrives.
pub struct Conn {
    pub client: usize,
    pub master: usize,
    /// Which of the client's lives made it, and which process of the master it leads to.
    pub client_life: u32,
    pub master_life: u32,
    /// Since when some of what is queued has not been written.
    pub unsent_since: Option<Time>,
    pub to_master: Pipe,
    pub to_client: Pipe,
    /// Arrived at the master and not carried out, less than a command or because the process is stopped.
    pub master_input: Vec<u8>,
    /// When the oldest of that was queued by the client, or before.
    pub input_queued_at: Time,
    /// Arrived at the client and not read.
    pub client_input: Vec<u8>,
    pub state: ConnState,
    /// When the client gave it up.
    pub left_at: Option<Time>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnState {
    Connecting,
    /// The client is to notice it.
    Accepted,
    Refused,
    Open,
    /// The client is to notice it once it has read what came before.
    Ended,
}

/// One direction of a connection.
#[derive(Default)]
pub struct Pipe {
    /// When each arrives, and when it was queued.
    pieces: VecDeque<(Time, Time, Piece)>,
    last_arrival: Time,
    /// When what arrived last was queued.
    pub queued_at: Time,
    pub stalled_until: Time,
    /// Nothing that is sent from now on gets through.
    is_cut: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    Bytes(Vec<u8>),
    /// The end of the connection, by FIN or RST.
    End,
}

/// How a network delays and cuts.
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
    /// Sends bytes; `plan` gets the times at which something arrives.
    pub fn send(
        &mut self,
        now: Time,
        queued_at: Time,
        bytes: &[u8],
        weather: &Weather,
        rng: &mut StdRng,
        mut plan: impl FnMut(Time),
    ) {
        let mut rest = bytes;
        if self.is_cut {
            return;
        }
        let is_split = chance(rng, weather.cut_ppm);
        while !rest.is_empty() {
            let size = match is_split {
                false => rest.len(),
                true if rng.random() => 1,
                true => rng.random_range(1..=rest.len()),
            };
            let (piece, behind) = rest.split_at(size);
            rest = behind;
            let at = now + weather.delay(rng);
            plan(self.push(at, queued_at, Piece::Bytes(piece.to_vec())));
        }
    }

    /// Ends the direction; returns when the end arrives.
    pub fn end(&mut self, at: Time) -> Time {
        self.push(at, at, Piece::End)
    }

    fn push(&mut self, at: Time, queued_at: Time, piece: Piece) -> Time {
        let at = at.max(self.last_arrival);
        self.last_arrival = at;
        self.pieces.push_back((at, queued_at, piece));
        at
    }

    /// What has arrived by now; while stalled, when to ask again.
    pub fn arrive(&mut self, now: Time) -> Result<Option<Piece>, Time> {
        if self.stalled_until > now && !self.pieces.is_empty() {
            return Err(self.stalled_until);
        }
        if self.pieces.front().is_none_or(|(at, ..)| *at > now) {
            return Ok(None);
        }
        let Some((_, queued_at, piece)) = self.pieces.pop_front() else { return Ok(None) };
        self.queued_at = queued_at;
        Ok(Some(piece))
    }

    /// Only the first `size` bytes under way still arrive.
    pub fn cut(&mut self, mut size: usize) {
        self.is_cut = true;
        self.pieces.retain_mut(|(_, _, piece)| match piece {
            Piece::Bytes(bytes) => {
                bytes.truncate(size);
                size -= bytes.len();
                !bytes.is_empty()
            }
            Piece::End => false,
        });
    }

    pub fn size(&self) -> usize {
        self.pieces
            .iter()
            .map(|(_, _, piece)| if let Piece::Bytes(bytes) = piece { bytes.len() } else { 0 })
            .sum()
    }

    pub fn count(&self) -> usize {
        self.pieces.len()
    }

    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }
}
