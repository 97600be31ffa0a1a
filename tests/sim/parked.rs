//! Parked attempts on the masters: which token was granted where, and over which connection.
//!
//! A script may grant the lock to waiters other than its caller. So the truth comes from the lock's key, not
//! from the reply: a new value was granted to the connection that parked it, and a missing value was taken
//! out.

use redlatch::resp::Reply;

use crate::clock::Time;
use crate::judge::LEFT_MAX;
use crate::model::token_of;
use crate::world::{World, hex, number};

/// How a token was parked on a master.
pub struct Parking {
    pub client: usize,
    pub life: u32,
    /// The connection that parked it.
    conn: usize,
    /// How long the command was under way.
    late: Time,
    /// The fencing token of a fenced lock.
    fence: Option<u64>,
}

/// A script of parked attempts that a master runs.
pub struct ParkingCall {
    pub script: &'static str,
    /// The values of the lock's key before the script.
    pub before: Vec<Vec<u8>>,
}

impl World {
    /// Notes the effects of one of these scripts.
    pub fn note_parking(&mut self, conn: usize, call: &ParkingCall, words: &[&[u8]], reply: &Reply<'_>) {
        let [name, _, _, key, ..] = *words else { return };
        let late = if name == b"EVAL" { Time::MAX } else { self.now - self.conns[conn].input_queued_at };
        if let ("park", [_, _, _, _, _, _, args @ ..]) = (call.script, words) {
            self.note_park(conn, args, late);
        }
        self.note_answer(conn, call.script, words, reply, late);
        let master = self.conns[conn].master;
        let it = &self.masters[master];
        let after = it.model.holders(it.clock.at(self.now), key);
        let is_named = |value: &[u8]| words.contains(&value);
        for value in after.iter().filter(|value| !call.before.contains(value)) {
            // For the value of a repair or a swap, the reply says whether the caller has it, whoever parked
            // it before.
            if call.script == "park" || !is_named(value) {
                self.note_served(conn, words, value);
            }
        }
        let is_forced = call.script == "force_unlock_serve";
        let is_named = |value: &[u8]| is_forced || is_named(value);
        if let Some(value) = call.before.iter().find(|value| !after.contains(value) && !is_named(value)) {
            let (token, script) = (hex(&token_of(value)[..3]), call.script);
            self.checker
                .violate(format!("P5: {script} took {token} out of m{master}, which it does not name"));
        }
    }

    /// A token was parked.
    fn note_park(&mut self, conn: usize, args: &[&[u8]], late: Time) {
        let [_, _, _, _, _, _, _, mode, _, _, _, _, _, fenced, value] = *args else {
            panic!("a park has 15 arguments")
        };
        let it = &self.conns[conn];
        let (master, is_gone) = (it.master, it.left_at.is_some());
        let fence = (mode == b"f").then(|| number(&fenced[..16]));
        let parking = Parking { client: it.client, life: it.client_life, conn, late, fence };
        let places = self.checker.parkings.entry(token_of(value).to_vec()).or_default();
        // A late command of a broken connection does not replace a command of the next connection.
        if !is_gone || !places.contains_key(&master) {
            places.insert(master, parking);
        }
    }

    /// Notes what the reply tells the caller.
    fn note_answer(&mut self, conn: usize, script: &str, words: &[&[u8]], reply: &Reply<'_>, late: Time) {
        let (client, master) = (self.conns[conn].client, self.conns[conn].master);
        let (key, args) = (words[3], &words[3..]);
        let is_wrong_type = matches!(reply, Reply::Error(text) if text.starts_with(b"WRONGTYPE"));
        match (script, args, reply) {
            ("park", [.., value], Reply::Array(numbers)) => match numbers.iter().next() {
                // The caller's value was already there.
                Some(Reply::Integer(2)) => {
                    self.checker.note_granted(conn, &self.conns[conn], key, value, late);
                }
                Some(Reply::Integer(0)) => self.checker.note_refused(client, key, master),
                _ => {}
            },
            ("shared_acquire_queue", [_, _, value, _], Reply::Simple(_)) => {
                self.checker.note_granted(conn, &self.conns[conn], key, value, late);
            }
            ("shared_acquire_queue", _, Reply::Integer(_)) => self.checker.note_refused(client, key, master),
            ("swap_parked", [_, _, _, old, new, _], Reply::Integer(done)) => {
                self.note_swap(conn, [key, old, new], *done == 1, late);
            }
            ("swap_parked", [_, _, _, old, new, _], _) if is_wrong_type => {
                self.note_swap(conn, [key, old, new], false, late);
            }
            ("unpark", [_, _, _, _, value, ..], _) | ("release_serve", [_, _, _, value], _)
            | ("fenced_release_serve", [_, _, _, value, ..], _)
            | ("shared_release_serve", [_, _, _, value], _)
                // The third bit asks for another call.
                if is_wrong_type || matches!(reply, Reply::Integer(0 | 4)) =>
            {
                self.checker.note_denied(master, value);
            }
            ("adopt", [key, _, old, new, ..], Reply::Integer(1)) => {
                // Always sent in full, and once.
                let late = self.now - self.conns[conn].input_queued_at;
                self.checker.note_granted(conn, &self.conns[conn], key, new, late);
                self.checker.note_adopted(old, new);
            }
            ("adopt", [key, _, old, ..], Reply::Integer(0)) => {
                self.checker.note_denied(master, old);
                self.checker.note_refused(client, key, master);
            }
            ("force_unlock_serve", _, Reply::Integer(_)) => {
                self.checker.note_forced(client, master, key);
                self.void_guards();
            }
            _ => {}
        }
    }

    /// A value is new at its key.
    fn note_served(&mut self, caller: usize, words: &[&[u8]], value: &[u8]) {
        let (master, token, key) = (self.conns[caller].master, token_of(value), words[3]);
        let parking = self.checker.parkings.get(token).and_then(|places| places.get(&master));
        match parking {
            Some(&Parking { conn, late, fence, .. }) => {
                self.checker.note_granted(conn, &self.conns[conn], key, value, late);
                if let Some(fence) = fence {
                    self.checker.note_fenced(value, fence, self.now);
                }
            }
            None => {
                let token = hex(&token[..3]);
                self.checker.violate(format!("P4: m{master} gave its key to {token}, which nobody parked"));
            }
        }
    }

    /// A client without a lock or an orphan must have left no entry, except entries of late commands, and of
    /// ended connections, whose grants reach nobody (I9).
    pub fn check_entries(&mut self, client: usize) {
        if self.checker.parkings.is_empty() || self.clients[client].engine.claim_count() > 0 {
            return;
        }
        for (master, it) in self.masters.iter().enumerate() {
            let now = it.clock.at(self.now);
            let mut entries = it.model.queued_keys().flat_map(|key| it.model.parked(now, key));
            let is_left = |entry: &crate::model::Parked| {
                let token = token_of(&entry.value);
                // The entry of a lock that was left lasts for its stay, as the key lasts for its TTL.
                if self.checker.facts.get(token).is_some_and(|facts| facts.is_left) {
                    return false;
                }
                let places = self.checker.parkings.get(token);
                places.and_then(|places| places.get(&master)).is_some_and(|parking| {
                    let end = it.clock.when(it.model.wall.at_ms(entry.stay_end_ms));
                    let is_own = (parking.client, parking.life) == (client, self.clients[client].life);
                    let conn = &self.conns[parking.conn];
                    // Another process has the entry from disk, without a subscriber.
                    let is_gone = conn.left_at.is_some() || conn.master_life != it.life || conn.is_replaced;
                    is_own && !is_gone && end.saturating_sub(self.now) > parking.late.saturating_add(LEFT_MAX)
                })
            };
            if let Some(entry) = entries.find(is_left).filter(|_| !it.keeps_longer) {
                let token = hex(&token_of(&entry.value)[..3]);
                return self.checker.violate(format!("I9: c{client} forgot its entry {token} on m{master}"));
            }
        }
    }
}
