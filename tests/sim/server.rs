//! The masters' side: carries out arrived commands, and keeps the facts about tokens.

use std::collections::BTreeMap;

use redlatch::resp::{self, Decoded, Reply};

use crate::clock::Time;
use crate::model::{self, script};
use crate::network::{Arrival, ConnState};
use crate::parked::ParkingCall;
use crate::world::{Event, World, command, note, number, shown};

impl World {
    pub fn arrive_at_master(&mut self, index: usize) {
        let conn = &mut self.conns[index];
        match conn.to_master.arrive(self.now) {
            Err(again) => self.plan(again, Event::ToMaster(index)),
            Ok(Some(Arrival::Bytes { bytes, queued_at })) => {
                let master = &self.masters[conn.master];
                if conn.master_life != master.life || !master.is_up {
                    return;
                }
                if conn.master_input.is_empty() {
                    conn.input_queued_at = queued_at;
                }
                conn.master_input.extend_from_slice(bytes);
                // Every command contains a line feed.
                if master.stopped_until <= self.now && memchr::memchr(b'\n', bytes).is_some() {
                    self.serve(index);
                }
            }
            Ok(Some(Arrival::End) | None) => {}
        }
    }

    /// Carries out the commands that arrived over a connection.
    pub fn serve(&mut self, index: usize) {
        let conn = &mut self.conns[index];
        let (client, master) = (conn.client, conn.master);
        let it = &mut self.masters[master];
        if conn.master_life != it.life {
            return;
        }
        let (mut input, mut replies) =
            (std::mem::take(&mut conn.master_input), std::mem::take(&mut self.replies));
        let now = it.clock.at(self.now);
        let mut words: Vec<&[u8]> = std::mem::take(&mut self.words);
        let mut done = 0;
        while let Some(size) = model::command(&input[done..], &mut words).expect("commands") {
            done += size;
            let parking = model::parking_script(&words).map(|script| {
                let before = self.masters[master].model.holders(now, words.get(3).unwrap_or(&b"".as_slice()));
                ParkingCall { script, before }
            });
            let reply_at = replies.len();
            self.masters[master].model.carry_out_over(index, now, &words, &mut replies);
            let own = &replies[reply_at..];
            let reply = the_reply(own, words[0].ends_with(b"SUBSCRIBE"));
            note!(self, "m{master} for c{client}: {} -> {}", command(&words), shown(own));
            match parking {
                Some(call) => self.note_parking(index, &call, &words, &reply),
                None => self.note_command(index, &words, &reply),
            }
        }
        words.clear();
        // In place, which keeps the memory but no words.
        self.words = words.into_iter().map(|_| b"".as_slice()).collect();
        input.drain(..done);
        self.conns[index].master_input = input;
        self.send_to_client(index, &replies);
        replies.clear();
        self.replies = replies;
        if self.conns[index].left_at.is_some() {
            // A late command over it may have subscribed again.
            self.masters[master].model.forget_conn(index);
        }
        if !self.masters[master].model.pushes.is_empty() {
            self.send_pushes(master);
        }
    }

    /// One write for all replies of a connection, as servers do.
    fn send_pushes(&mut self, master: usize) {
        let pushes = std::mem::take(&mut self.masters[master].model.pushes);
        let mut messages = BTreeMap::<usize, Vec<u8>>::new();
        pushes
            .iter()
            .for_each(|(conn, message)| messages.entry(*conn).or_default().extend_from_slice(message));
        for (conn, message) in messages {
            note!(self, "m{master} notifies c{}: {}", self.conns[conn].client, shown(&message));
            self.send_to_client(conn, &message);
        }
    }

    fn send_to_client(&mut self, index: usize, bytes: &[u8]) {
        if self.conns[index].left_at.is_none() && !bytes.is_empty() {
            let (to_client, events) = (&mut self.conns[index].to_client, &mut self.events);
            let plan = |at| events.plan(at, Event::ToClient(index));
            to_client.send(self.now, self.now, bytes, &self.weather, &mut self.rng, plan);
        }
    }

    /// Keeps the facts about tokens.
    pub fn note_command(&mut self, conn: usize, words: &[&[u8]], reply: &Reply<'_>) {
        let (client, master) = (self.conns[conn].client, self.conns[conn].master);
        // A script in full follows a master's NOSCRIPT, whenever that was.
        let is_whole = words[0] == b"EVAL";
        let late = if is_whole { Time::MAX } else { self.now - self.conns[conn].input_queued_at };
        if let [b"EVALSHA" | b"EVAL", word, _, rest @ ..] = words
            && script(word).is_some_and(|script| script.name == "shared_extend")
        {
            return self.note_reader_extended(conn, rest, reply, late);
        }
        match (words, reply) {
            ([b"EVALSHA" | b"EVAL", _, b"2", rest @ ..], _) => self.note_fenced(conn, rest, reply, late),
            ([b"SET", key, new, b"IFEQ", old, ..], Reply::Simple(_) | Reply::NullBulk | Reply::Null)
                if old != new =>
            {
                self.note_swap(conn, [key, old, new], matches!(reply, Reply::Simple(_)), late);
            }
            ([b"EVALSHA" | b"EVAL", _, _, key, old, new, _ttl], Reply::Integer(done)) => {
                self.note_swap(conn, [key, old, new], *done == 1, late);
            }
            ([b"SET", key, token, b"NX" | b"IFEQ", _, ..], Reply::Simple(_)) => {
                self.checker.note_granted(conn, &self.conns[conn], key, token, late);
            }
            ([b"SET", key, _, b"NX", _, ..], Reply::NullBulk | Reply::Null) => {
                self.checker.note_refused(client, key, master);
            }
            ([b"SET", _, token, b"IFEQ", ..], Reply::NullBulk | Reply::Null) => {
                self.checker.note_denied(master, token);
            }
            ([b"EVALSHA" | b"EVAL", _, _, key, token, _ttl], Reply::Integer(1)) => {
                self.checker.note_granted(conn, &self.conns[conn], key, token, late);
            }
            // For readers.
            (
                [b"SET", key, new, b"IFEQ", old, ..] | [b"EVALSHA" | b"EVAL", _, b"1", key, old, new, _],
                Reply::Error(text),
            ) if text.starts_with(b"WRONGTYPE") && old != new => {
                self.note_swap(conn, [key, old, new], false, late);
            }
            (
                [b"SET", _, token, b"IFEQ", ..] | [b"EVALSHA" | b"EVAL", _, _, _, token, ..],
                Reply::Error(text),
            ) if text.starts_with(b"WRONGTYPE") => {
                self.checker.note_denied(master, token);
            }
            ([b"DELIFEQ" | b"DELEX", _, .., token], Reply::Error(text)) if text.starts_with(b"WRONGTYPE") => {
                self.checker.note_denied(master, token);
            }
            ([b"EVALSHA" | b"EVAL", _, _, _, token, ..], Reply::Integer(0)) => {
                self.checker.note_denied(master, token)
            }
            ([b"DELIFEQ" | b"DELEX", _, .., token], Reply::Integer(0)) => {
                self.checker.note_denied(master, token)
            }
            ([b"GETDEL", key], Reply::Bulk(_) | Reply::NullBulk | Reply::Null) => {
                self.checker.note_forced(client, master, key);
                self.void_guards();
            }
            _ => {}
        }
    }

    /// A reader was extended, or is gone.
    fn note_reader_extended(&mut self, conn: usize, args: &[&[u8]], reply: &Reply<'_>, late: Time) {
        let master = self.conns[conn].master;
        match (args, reply) {
            ([key, value, _], Reply::Integer(1)) => {
                self.checker.note_granted(conn, &self.conns[conn], key, value, late);
            }
            ([_, value, _], Reply::Integer(0)) => self.checker.note_denied(master, value),
            ([_, value, _], Reply::Error(text)) if text.starts_with(b"WRONGTYPE") => {
                self.checker.note_denied(master, value);
            }
            _ => {}
        }
    }

    /// A fenced lock was requested or released.
    fn note_fenced(&mut self, conn: usize, args: &[&[u8]], reply: &Reply<'_>, late: Time) {
        let (client, master) = (self.conns[conn].client, self.conns[conn].master);
        match (args, reply) {
            ([key, _, value, _ttl, token, _past, _future, _life], Reply::Simple(b"OK")) => {
                self.checker.note_granted(conn, &self.conns[conn], key, value, late);
                self.checker.note_fenced(value, number(token), self.now);
            }
            ([key, _, _, _, _, _, _, _], Reply::Array(_)) => {
                self.checker.note_refused(client, key, master);
            }
            ([_, _, value, _, _, _, _], Reply::Integer(0)) => self.checker.note_denied(master, value),
            _ => {}
        }
    }

    /// A hand-over: another token takes the token's place.
    pub fn note_swap(&mut self, conn: usize, [key, old, new]: [&[u8]; 3], is_done: bool, late: Time) {
        let (client, master) = (self.conns[conn].client, self.conns[conn].master);
        if is_done {
            self.checker.note_granted(conn, &self.conns[conn], key, new, late);
            self.checker.note_swapped(new);
        } else {
            self.checker.note_denied(master, old);
            self.checker.note_refused(client, key, master);
        }
    }

    pub fn arrive_at_client(&mut self, index: usize) {
        let conn = &mut self.conns[index];
        match conn.to_client.arrive(self.now) {
            Err(again) => self.plan(again, Event::ToClient(index)),
            Ok(Some(arrival)) => {
                if conn.left_at.is_some() {
                    return;
                }
                match arrival {
                    Arrival::Bytes { bytes, .. } => conn.client_input.extend_from_slice(bytes),
                    Arrival::End => conn.state = ConnState::Ended,
                }
                let (client, life) = (conn.client, conn.client_life);
                self.wake_life(client, life);
            }
            Ok(None) => {}
        }
    }
}

/// The reply to a command: the only one, or one for each channel. Messages may come before or after it. In
/// RESP3, a channel's confirmation is also a message, and takes the reply's place.
fn the_reply(mut bytes: &[u8], is_subscription: bool) -> Reply<'_> {
    let (mut replies, mut pushes) = (Vec::new(), Vec::new());
    while !bytes.is_empty() {
        let Ok(Decoded::Complete { reply, size }) = resp::decode(bytes) else {
            panic!("the model's own reply")
        };
        if let Reply::Array(elements) | Reply::Map(elements) | Reply::Push(elements) = &reply {
            assert_eq!(elements.iter().count(), elements.len(), "each element decodes alone");
        }
        let is_push = matches!(reply, Reply::Push(_));
        if is_push { &mut pushes } else { &mut replies }.push(reply);
        bytes = &bytes[size..];
    }
    assert!(replies.len() == 1 || is_subscription, "one command, one reply; or one for each channel");
    *replies.first().or(pushes.first()).expect("a reply")
}
