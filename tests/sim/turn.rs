//! A client's turns: the real driver's steps, with a possible stop between any two.

use std::time::{Duration, Instant};

use rand::RngExt;
use redlatch::engine::{LinkRequest, MasterId};
use redlatch::status::MasterState;
use redlatch::words::NO_SERVER;

use crate::checker::id;
use crate::clock::{MS, Time};
use crate::network::{Conn, ConnState, Pipe, chance};
use crate::owners::Owner;
use crate::sets::SetWorker;
use crate::slots::SlotWorker;
use crate::tasks::Tasks;
use crate::world::{Event, World, note, shown};

/// Steps of a client's turn, in the driver's order.
const TURN: [Step; 7] =
    [Step::Links, Step::Read, Step::Timeouts, Step::Outcomes, Step::Application, Step::Links, Step::Write];

#[derive(Debug, Clone, Copy)]
pub enum Step {
    Links,
    Read,
    Timeouts,
    Outcomes,
    Application,
    Write,
}

/// Shortest time from a turn without work to the next turn.
const TURN_PAUSE: Time = MS / 20;

impl World {
    /// Plans a turn of a client, at this time or earlier.
    pub fn wake(&mut self, client: usize, at: Time) {
        let it = &mut self.clients[client];
        let at = at.max(it.paused_until).max(self.now);
        if at < it.wake_at && !it.is_down {
            (it.wake_at, it.wake_order) = (at, self.events.next_order());
        }
    }

    /// Something has arrived for one life of a client.
    pub fn wake_life(&mut self, client: usize, life: u32) {
        if self.clients[client].life == life {
            self.clients[client].has_arrivals = true;
            self.wake(client, self.now);
        }
    }

    pub fn local(&self, client: usize) -> Instant {
        self.clients[client].clock.at(self.now)
    }

    pub fn turn(&mut self, client: usize) {
        if self.clients[client].is_down {
            return;
        }
        let now = self.now;
        let it = &mut self.clients[client];
        if let Some(since) = it.suspended_at.take() {
            it.clock.stand_still(since, now);
        }
        if self.clients[client].step == 0 {
            self.clients[client].turn_began = self.now;
        }
        let stop_at = if chance(&mut self.rng, self.pause_ppm) {
            self.rng.random_range(0..TURN.len())
        } else {
            TURN.len()
        };
        #[expect(clippy::needless_range_loop, reason = "this loop is unrolled, one over `TURN` is not")]
        for step in self.clients[client].step..TURN.len() {
            self.step_count += 1;
            let is_stopped = step == stop_at || self.pause_at_step == Some(self.step_count);
            if is_stopped {
                let pause = self.rng.random_range(self.pause_min..=self.pause_max);
                self.count_fault("client paused between two steps");
                self.pause(client, pause);
            }
            // Moves on, so that the same stop does not come again.
            self.clients[client].step = step + 1;
            self.step(client, TURN[step]);
            if is_stopped || self.clients[client].paused_until > self.now {
                return;
            }
        }
        self.clients[client].step = 0;
        self.check_client(client);
        self.plan_turn(client);
    }

    /// Stops the process for this time; arriving bytes wait.
    pub fn pause(&mut self, client: usize, time: Time) {
        let it = &mut self.clients[client];
        it.paused_until = it.paused_until.max(self.now + time);
        it.wake_at = Time::MAX;
        // Deadlines move, because a pause is nobody's fault.
        for (_, deadline) in it.locks.iter_mut().filter_map(|(_, lock)| lock.pending.as_mut()) {
            *deadline += Duration::from_nanos(time + time / 10);
        }
        it.queries.iter_mut().for_each(|it| it.deadline += Duration::from_nanos(time + time / 10));
        self.wake(client, self.now);
    }

    pub fn plan_turn(&mut self, client: usize) {
        let it = &self.clients[client];
        if let Some(what) = it.engine.unarmed() {
            self.checker.violate(format!("nothing wakes the engine for {what}"));
        }
        let timeout = match it.tasks {
            None => it.engine.next_timeout().map(|(at, _)| it.clock.when(at)),
            Some(_) => it.next_lead(self.now),
        };
        let worker = it.workers.iter().map(|worker| worker.due).min();
        let set = it.sets.iter().map(SetWorker::due).min();
        let slot = it.slots.iter().map(SlotWorker::due);
        let family = set.into_iter().chain(slot).chain(it.owners.iter().map(Owner::due)).min();
        let query = Some(self.next_query(client)).filter(|at| *at < Time::MAX);
        let look = it.tasks.as_ref().and_then(Tasks::next_look);
        let has_input = it.has_arrivals && self.next_conn(client, 0, Conn::has_input).is_some();
        if let Some(at) = timeout.into_iter().chain(worker).chain(look).chain(family).chain(query).min() {
            self.wake(client, at.max(self.now + TURN_PAUSE));
        }
        // Everything that was not cut short is written in full.
        let is_left = |conn: &Conn| conn.state == ConnState::Open && conn.unsent_since.is_some();
        let (mut has_output, mut from) = (false, 0);
        while self.clients[client].is_cut_short
            && self.clients[client].is_flushed()
            && !has_output
            && let Some(place) = self.next_conn(client, from, is_left)
        {
            let link = id(place);
            has_output = !self.clients[client].engine.send_ready(link).is_empty();
            from = place + 1;
        }
        if has_input || has_output || self.clients[client].engine.has_outcome() {
            self.wake(client, self.now + TURN_PAUSE);
        }
    }

    pub fn step(&mut self, client: usize, step: Step) {
        match step {
            // A `Client` follows its links when its drive turns.
            Step::Links => {
                let turns = |it: &Tasks| it.has_turned || self.is_lead_due(client);
                if self.clients[client].tasks.as_ref().is_none_or(turns) {
                    self.follow_links(client);
                }
            }
            Step::Read => {
                let (mut from, has_arrivals) = (0, std::mem::take(&mut self.clients[client].has_arrivals));
                while has_arrivals && let Some(place) = self.next_conn(client, from, Conn::has_input) {
                    self.clients[client].note_arrival();
                    self.read(client, place);
                    from = place + 1;
                }
            }
            Step::Timeouts if self.clients[client].tasks.is_some() => self.lead(client),
            Step::Timeouts => {
                let now = self.local(client);
                let engine = &mut self.clients[client].engine;
                if engine.next_timeout().is_some_and(|(at, _)| at <= now) {
                    engine.handle_timeout(now);
                    if engine.next_timeout().is_some_and(|(at, _)| at <= now) {
                        self.checker.violate("a time-out is due right after all were handled");
                    }
                }
            }
            Step::Outcomes if self.clients[client].tasks.is_some() => {
                self.deliver(client);
                self.look(client);
            }
            Step::Outcomes => {
                self.follow_renewals(client);
                while let Some((lock, outcome)) = self.clients[client].engine.poll_outcome() {
                    self.take_outcome(client, lock, outcome);
                }
            }
            Step::Application => self.work(client),
            Step::Write => {
                if !self.clients[client].is_flushed() {
                    return;
                }
                self.clients[client].is_cut_short = false;
                let mut left = self.clients[client].accepted;
                while left != 0 {
                    self.write(client, left.trailing_zeros() as usize);
                    left &= left - 1;
                }
            }
        }
    }

    /// The first matching connection of a client, from this place on.
    fn next_conn(&self, client: usize, from: usize, is_meant: impl Fn(&Conn) -> bool) -> Option<usize> {
        let mut conns = self.clients[client].conns[from..].iter();
        let place = conns.position(|conn| conn.is_some_and(|conn| is_meant(&self.conns[conn])))?;
        Some(from + place)
    }

    pub fn follow_links(&mut self, client: usize) {
        while let Some(request) = self.clients[client].engine.poll_link() {
            match request {
                LinkRequest::Close(link) => {
                    let now = self.local(client);
                    let state = self.clients[client].engine.master_state(now, link);
                    let conn = self.clients[client].conns[link.index()];
                    if let MasterState::Down(why) = &state
                        && why.contains(NO_SERVER)
                        && !conn.is_some_and(|conn| self.conns[conn].is_replaced)
                    {
                        self.checker.violate(format!("I14: replies and requests do not match: {why}"));
                    }
                    note!(self, "c{client} closes {link:?} {state:?}");
                    self.leave_conn(client, link.index());
                }
                LinkRequest::Connect(link) => self.connect(client, link),
                LinkRequest::LookUp(_) => {}
                LinkRequest::Credentials(_) => unreachable!("there is no provider"),
            }
        }
    }

    pub fn connect(&mut self, client: usize, link: MasterId) {
        let (address, place) = (link.index(), link.index());
        let master = self.server(client, address);
        let index = self.conns.len();
        let (client_life, master_life) = (self.clients[client].life, self.masters[master].life);
        self.conns.push(Conn {
            client,
            master,
            client_life,
            master_life,
            to_master: Pipe::default(),
            to_client: Pipe::default(),
            master_input: Vec::new(),
            unsent_since: None,
            input_queued_at: 0,
            client_input: Vec::new(),
            state: ConnState::Connecting,
            left_at: None,
            is_replaced: false,
        });
        self.clients[client].conns[place] = Some(index);
        let at = self.now + self.weather.delay(&mut self.rng) + self.weather.delay(&mut self.rng);
        let it = &self.masters[master];
        if it.swallows_until <= self.now {
            self.plan(at, Event::Connected(index, it.is_up && it.refuses_until <= self.now));
        }
    }

    /// The client closes a connection. Some or all bytes under way to the master still arrive.
    pub fn leave_conn(&mut self, client: usize, place: usize) {
        let Some(conn) = self.clients[client].conns[place].take() else { return };
        self.clients[client].accepted &= !(1 << place);
        let it = &mut self.conns[conn];
        it.left_at = Some(self.now);
        it.client_input.clear();
        let master = it.master;
        self.masters[master].model.forget_conn(conn);
    }

    pub fn read(&mut self, client: usize, place: usize) {
        let Some(index) = self.clients[client].conns[place] else { return };
        let link = id(place);
        match self.conns[index].state {
            ConnState::Accepted => {
                self.conns[index].state = ConnState::Open;
                self.clients[client].accepted |= 1 << place;
                note!(self, "c{client} connected {:?}", id(place));
                let now = self.local(client);
                self.clients[client].engine.handle_connected(now, link);
            }
            ConnState::Refused => return self.lose_conn(client, place, "connection refused"),
            ConnState::Connecting | ConnState::Open | ConnState::Ended => {}
        }
        let mut input = std::mem::take(&mut self.conns[index].client_input);
        if !input.is_empty() {
            note!(self, "c{client} reads from {:?} {}", id(place), shown(&input));
        }
        let mut rest = input.as_slice();
        while !rest.is_empty() {
            let now = self.local(client);
            let space = self.clients[client].engine.recv_space(link);
            let size = space.len().min(rest.len());
            space[..size].copy_from_slice(&rest[..size]);
            self.clients[client].engine.recv_done(now, link, size);
            rest = &rest[size..];
            self.follow_links(client);
            if self.clients[client].conns[place] != Some(index) {
                return;
            }
        }
        input.clear();
        self.conns[index].client_input = input;
        if self.conns[index].state == ConnState::Ended {
            self.lose_conn(client, place, "connection reset");
        }
    }

    pub fn lose_conn(&mut self, client: usize, place: usize, why: &str) {
        note!(self, "c{client} loses {:?}: {why}", id(place));
        self.leave_conn(client, place);
        let (now, link) = (self.local(client), id(place));
        self.clients[client].engine.handle_disconnected(now, link, why);
    }

    pub fn write(&mut self, client: usize, place: usize) {
        let Some(index) = self.clients[client].conns[place] else { return };
        if self.conns[index].state != ConnState::Open {
            return;
        }
        let link = id(place);
        let it = &mut self.clients[client];
        let (engine, turn_began) = (&mut it.engine, it.turn_began);
        let ready = engine.send_ready(link);
        if ready.is_empty() {
            return;
        }
        let is_short = chance(&mut self.rng, self.short_write_ppm);
        let size = if is_short { self.rng.random_range(1..=ready.len()) } else { ready.len() };
        let bytes = &ready[..size];
        self.digest.add(self.now, bytes);
        // Queued in this turn, which may have been stopped since, or in an earlier turn.
        let queued_at = self.conns[index].unsent_since.unwrap_or(turn_began);
        self.conns[index].unsent_since = is_short.then_some(queued_at);
        let (pipe, events) = (&mut self.conns[index].to_master, &mut self.events);
        let plan = |at| events.plan(at, Event::ToMaster(index));
        pipe.send(self.now, queued_at, bytes, &self.weather, &mut self.rng, plan);
        engine.send_done(link, size);
        it.is_cut_short |= is_short;
    }

    /// Whether the connection stands, and its process lives.
    pub fn is_connected(&self, client: usize, master: usize) -> bool {
        self.clients[client].conns[master].is_some_and(|conn| {
            let (conn, it) = (&self.conns[conn], &self.masters[master]);
            conn.state == ConnState::Open && it.is_up && conn.master_life == it.life
        })
    }
}
