//! Clients, masters and the network between them, on one virtual clock of true time.
//!
//! Everything that happens is an event with a time; events of one time happen in the order in which they were planned.
//! All randomness comes from one generator, so a seed is a history. What the engine is told, and in which order, is what
//! the real driver would tell it; between any two steps of a turn the process may be stopped.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use redlatch::engine::{Engine, LinkRequest, MasterState, OpId, Outcome, Request};
use redlatch::lock::{Resource, Vote};
use redlatch::resp::{self, Decoded, Reply};
use redlatch::{AcquireError, Config, ExtendError, Quarantine, Report};

use crate::checker::{Checker, Guard, id};
use crate::client::{Client, Lock, Pending, Worker};
use crate::clock::{Clock, MS, SECOND, Time};
use crate::model::{Keys, ModelMaster};
use crate::network::{Conn, ConnState, Piece, Pipe, Weather, chance};

pub struct World {
    pub now: Time,
    pub rng: StdRng,
    pub config: Arc<Config>,
    pub clients: Vec<Client>,
    pub masters: Vec<Master>,
    pub conns: Vec<Conn>,
    pub weather: Weather,
    pub checker: Checker,
    /// Of a million turns, how many are interrupted, and for how long at the most.
    pub pause_ppm: u32,
    pub pause_max: Time,
    /// Of a million writes, how many take only a part of the bytes.
    pub short_write_ppm: u32,
    /// The application of all clients.
    pub habits: Habits,
    pub statistics: Statistics,
    pub digest: u64,
    /// What happened, in words, if somebody wants to know.
    pub trace: Option<Vec<String>>,
    /// Look for all that may be wrong after each turn, not after one in ten.
    pub is_checked_always: bool,
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    event_count: u64,
}

/// What the applications do.
#[derive(Debug, Clone)]
pub struct Habits {
    pub keys: Vec<Vec<u8>>,
    pub ttls: Vec<Duration>,
    pub wait_max: Time,
    pub pause_max: Time,
    /// Nothing new is begun, and what is held is let go.
    pub is_closing: bool,
}

/// One server: its process, its data, its clock.
pub struct Master {
    pub model: ModelMaster,
    pub clock: Clock,
    pub is_up: bool,
    /// Counts its processes.
    pub life: u32,
    pub stopped_until: Time,
    pub refuses_until: Time,
    /// New connections get no answer.
    pub swallows_until: Time,
    /// By process: when it, or one before whose data it has, started without data that there had been.
    pub lost_at: Vec<Option<Time>>,
    /// Its reported uptime is longer than the truth.
    pub lies: bool,
    /// What was on its disk at some earlier times.
    pub snapshots: VecDeque<(Time, Keys)>,
}

/// What was counted.
#[derive(Debug, Clone, Default)]
pub struct Statistics {
    pub simulated: Time,
    pub event_count: u64,
    pub faults: BTreeMap<&'static str, u64>,
    /// Steps of a master's link from one state to another, as seen after turns.
    pub link_steps: BTreeMap<(&'static str, &'static str), u64>,
    pub outcomes: BTreeMap<&'static str, u64>,
    pub guard_count: u64,
    pub void_count: u64,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Client(usize),
    ToMaster(usize),
    ToClient(usize),
    Connected(usize, bool),
    Resume(usize),
}

/// The steps of one turn of a client, in the order of the driver's.
const TURN: [Step; 7] =
    [Step::Links, Step::Read, Step::Timeouts, Step::Outcomes, Step::Application, Step::Links, Step::Write];

#[derive(Debug, Clone, Copy)]
enum Step {
    Links,
    Read,
    Timeouts,
    Outcomes,
    Application,
    Write,
}

/// A turn without work does not follow another sooner than this.
const TURN_PAUSE: Time = MS / 20;
/// More events than any history needs: something goes on without end.
const EVENT_COUNT_MAX: u64 = 3_000_000;

macro_rules! note {
    ($world:expr, $($text:tt)*) => {
        if $world.trace.is_some() {
            $world.tell(&format!($($text)*));
        }
    };
}

impl World {
    /// Masters that have run for an hour; no client yet.
    pub fn new(seed: u64, config: Config) -> Self {
        let master_count = config.master_count();
        let masters = (0..master_count)
            .map(|index| {
                let clock = Clock::new(0, 0);
                Master {
                    model: ModelMaster::new(&format!("m{index}-0"), clock.at(0) - Duration::from_secs(3600)),
                    clock,
                    is_up: true,
                    life: 0,
                    stopped_until: 0,
                    refuses_until: 0,
                    swallows_until: 0,
                    lost_at: vec![None],
                    lies: false,
                    snapshots: VecDeque::new(),
                }
            })
            .collect();
        Self {
            now: 0,
            rng: StdRng::seed_from_u64(seed),
            config: Arc::new(config),
            clients: Vec::new(),
            masters,
            conns: Vec::new(),
            weather: Weather { delay_min: MS / 10, delay_max: MS / 10, cut_ppm: 0, slow_ppm: 0 },
            checker: Checker::new(master_count),
            pause_ppm: 0,
            pause_max: 0,
            short_write_ppm: 0,
            habits: Habits {
                keys: vec![b"a".to_vec()],
                ttls: vec![Duration::from_secs(1)],
                wait_max: 0,
                pause_max: SECOND,
                is_closing: false,
            },
            statistics: Statistics::default(),
            digest: 0xcbf2_9ce4_8422_2325,
            trace: None,
            is_checked_always: false,
            events: BinaryHeap::new(),
            event_count: 0,
        }
    }

    pub fn add_client(&mut self, clock: Clock, worker_count: usize) -> usize {
        let engine = self.new_engine(&clock);
        let workers = (0..worker_count)
            .map(|_| Worker { lock: None, due: self.now + self.rng.random_range(0..=self.habits.pause_max) })
            .collect();
        self.clients.push(Client {
            engine,
            clock,
            life: 0,
            conns: vec![None; self.masters.len()],
            is_down: false,
            paused_until: 0,
            wake_at: Time::MAX,
            step: 0,
            turn_began: 0,
            locks: Vec::new(),
            workers,
            outcomes: VecDeque::new(),
        });
        self.wake(self.clients.len() - 1, self.now);
        self.clients.len() - 1
    }

    pub fn new_engine(&mut self, clock: &Clock) -> Engine {
        let mut seed = [0; 32];
        self.rng.fill_bytes(&mut seed);
        Engine::new(self.config.clone(), seed, clock.at(self.now))
    }

    /// Goes on for this long, or until something is wrong.
    pub fn run_for(&mut self, time: Time) {
        let end = self.now + time;
        while self.checker.violation.is_none() {
            match self.events.peek() {
                Some(Reverse((at, ..))) if *at <= end => {}
                _ => break,
            }
            let Some(Reverse((at, _, event))) = self.events.pop() else { break };
            self.now = self.now.max(at);
            self.event_count += 1;
            if self.event_count > EVENT_COUNT_MAX {
                self.checker.violate("events without end");
            }
            self.handle(event);
        }
        self.now = self.now.max(end);
    }

    /// Goes on until something is true, for this long at the most; says whether it is.
    pub fn run_until(&mut self, limit: Time, mut is_true: impl FnMut(&mut Self) -> bool) -> bool {
        let end = self.now + limit;
        loop {
            if is_true(self) {
                return true;
            }
            if self.now >= end || self.checker.violation.is_some() {
                return false;
            }
            let next = self.events.peek().map_or(end, |Reverse((at, ..))| *at);
            self.run_for(next.clamp(self.now, end) - self.now);
        }
    }

    /// What was counted, the lasting things included.
    pub fn statistics(&self) -> Statistics {
        Statistics {
            simulated: self.now,
            event_count: self.event_count,
            guard_count: self.checker.guard_count,
            void_count: self.checker.void_count,
            ..self.statistics.clone()
        }
    }

    pub fn count_fault(&mut self, name: &'static str) {
        *self.statistics.faults.entry(name).or_default() += 1;
        note!(self, "FAULT {name}");
    }

    pub fn tell(&mut self, text: &str) {
        let line = format!("{:>12.6} {text}", Duration::from_nanos(self.now).as_secs_f64());
        if let Some(trace) = &mut self.trace {
            trace.push(line);
        }
    }

    fn plan(&mut self, at: Time, event: Event) {
        self.event_count += 1;
        self.events.push(Reverse((at, self.event_count, event)));
    }

    pub fn plan_resume(&mut self, master: usize) {
        self.plan(self.masters[master].stopped_until.max(self.now), Event::Resume(master));
    }

    pub fn plan_to_client(&mut self, at: Time, conn: usize) {
        self.plan(at, Event::ToClient(conn));
    }

    /// What is stalled arrives now.
    pub fn end_stalls(&mut self) {
        for conn in 0..self.conns.len() {
            let it = &mut self.conns[conn];
            (it.to_master.stalled_until, it.to_client.stalled_until) = (0, 0);
            let (requests, replies) = (it.to_master.count(), it.to_client.count());
            (0..requests).for_each(|_| self.plan(self.now, Event::ToMaster(conn)));
            (0..replies).for_each(|_| self.plan(self.now, Event::ToClient(conn)));
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Client(client) => {
                let wake_at = self.clients[client].wake_at;
                if wake_at <= self.now {
                    self.clients[client].wake_at = Time::MAX;
                    self.turn(client);
                }
            }
            Event::ToMaster(conn) => self.arrive_at_master(conn),
            Event::ToClient(conn) => self.arrive_at_client(conn),
            Event::Connected(conn, is_accepted) => {
                let conn = &mut self.conns[conn];
                conn.state = if is_accepted { ConnState::Accepted } else { ConnState::Refused };
                let (client, life) = (conn.client, conn.client_life);
                self.wake_life(client, life);
            }
            Event::Resume(master) => {
                if self.masters[master].stopped_until <= self.now && self.masters[master].is_up {
                    for conn in 0..self.conns.len() {
                        if self.conns[conn].master == master && !self.conns[conn].master_input.is_empty() {
                            self.serve(conn);
                        }
                    }
                }
            }
        }
    }

    // Clients

    /// Plans a turn of a client at this time or before.
    pub fn wake(&mut self, client: usize, at: Time) {
        let it = &mut self.clients[client];
        let at = at.max(it.paused_until).max(self.now);
        if at < it.wake_at && !it.is_down {
            it.wake_at = at;
            self.plan(at, Event::Client(client));
        }
    }

    fn wake_life(&mut self, client: usize, life: u32) {
        if self.clients[client].life == life {
            self.wake(client, self.now);
        }
    }

    pub fn local(&self, client: usize) -> Instant {
        self.clients[client].clock.at(self.now)
    }

    fn turn(&mut self, client: usize) {
        if self.clients[client].is_down {
            return;
        }
        if self.clients[client].step == 0 {
            self.clients[client].turn_began = self.now;
        }
        let stop_at = if chance(&mut self.rng, self.pause_ppm) {
            self.rng.random_range(0..TURN.len())
        } else {
            TURN.len()
        };
        while self.clients[client].step < TURN.len() {
            let step = self.clients[client].step;
            if step == stop_at {
                let pause = self.rng.random_range(0..=self.pause_max);
                self.count_fault("client paused between two steps");
                self.pause(client, pause);
                // Not to be met by the same stop again.
                self.clients[client].step += 1;
                self.step(client, TURN[step]);
                return;
            }
            self.clients[client].step += 1;
            self.step(client, TURN[step]);
            if self.clients[client].paused_until > self.now {
                return;
            }
        }
        self.clients[client].step = 0;
        self.check_client(client);
        self.plan_turn(client);
    }

    /// The process does nothing until then; what arrives waits for it.
    pub fn pause(&mut self, client: usize, time: Time) {
        let it = &mut self.clients[client];
        it.paused_until = it.paused_until.max(self.now + time);
        it.wake_at = Time::MAX;
        // A pause is nobody's fault.
        for (_, deadline) in it.locks.iter_mut().filter_map(|(_, lock)| lock.pending.as_mut()) {
            *deadline += Duration::from_nanos(time + time / 10);
        }
        self.wake(client, self.now);
    }

    fn plan_turn(&mut self, client: usize) {
        let it = &self.clients[client];
        let timeout = it.engine.next_timeout().map(|(at, _)| it.clock.when(at));
        let worker = it.workers.iter().map(|worker| worker.due).min();
        let has_input = it.conns.iter().flatten().any(|&conn| {
            let conn = &self.conns[conn];
            !conn.client_input.is_empty() || !matches!(conn.state, ConnState::Open | ConnState::Connecting)
        });
        if let Some(at) = timeout.into_iter().chain(worker).min() {
            self.wake(client, at.max(self.now + TURN_PAUSE));
        }
        let has_output = (0..self.masters.len()).any(|master| {
            let it = &mut self.clients[client];
            it.conns[master].is_some_and(|conn| self.conns[conn].state == ConnState::Open)
                && !it.engine.send_ready(id(master)).is_empty()
        });
        if has_input || has_output {
            self.wake(client, self.now + TURN_PAUSE);
        }
    }

    fn step(&mut self, client: usize, step: Step) {
        match step {
            Step::Links => self.follow_links(client),
            Step::Read => (0..self.masters.len()).for_each(|master| self.read(client, master)),
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
            Step::Outcomes => {
                while let Some((lock, outcome)) = self.clients[client].engine.poll_outcome() {
                    self.take_outcome(client, lock, outcome);
                }
            }
            Step::Application => self.work(client),
            Step::Write => (0..self.masters.len()).for_each(|master| self.write(client, master)),
        }
    }

    fn follow_links(&mut self, client: usize) {
        while let Some(request) = self.clients[client].engine.poll_link() {
            match request {
                LinkRequest::Close(master) => {
                    let now = self.local(client);
                    let state = self.clients[client].engine.master_status(now, master).state;
                    if let MasterState::Down(why) = &state
                        && ["no request", "wrong shape", "malformed"].iter().any(|bad| why.contains(bad))
                    {
                        self.checker.violate(format!("I14: replies and requests do not match: {why}"));
                    }
                    note!(self, "c{client} closes m{} {state:?}", master.index());
                    self.leave_conn(client, master.index());
                }
                LinkRequest::Connect(master) => self.connect(client, master.index()),
            }
        }
    }

    fn connect(&mut self, client: usize, master: usize) {
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
            client_input: Vec::new(),
            state: ConnState::Connecting,
            left_at: None,
        });
        self.clients[client].conns[master] = Some(index);
        let at = self.now + self.weather.delay(&mut self.rng) + self.weather.delay(&mut self.rng);
        let it = &self.masters[master];
        if it.swallows_until <= self.now {
            self.plan(at, Event::Connected(index, it.is_up && it.refuses_until <= self.now));
        }
    }

    /// The client gives its connection up. What is under way to the master arrives, or some of it.
    fn leave_conn(&mut self, client: usize, master: usize) {
        let Some(conn) = self.clients[client].conns[master].take() else { return };
        let conn = &mut self.conns[conn];
        conn.left_at = Some(self.now);
        conn.client_input.clear();
    }

    fn read(&mut self, client: usize, master: usize) {
        let Some(index) = self.clients[client].conns[master] else { return };
        match self.conns[index].state {
            ConnState::Accepted => {
                self.conns[index].state = ConnState::Open;
                note!(self, "c{client} connected to m{master}");
                let now = self.local(client);
                self.clients[client].engine.handle_connected(now, id(master));
            }
            ConnState::Refused => return self.lose_conn(client, master, "connection refused"),
            ConnState::Connecting | ConnState::Open | ConnState::Ended => {}
        }
        let input = std::mem::take(&mut self.conns[index].client_input);
        if !input.is_empty() {
            note!(self, "c{client} reads from m{master} {}", shown(&input));
        }
        let mut rest = input.as_slice();
        while !rest.is_empty() {
            let now = self.local(client);
            let space = self.clients[client].engine.recv_space(id(master));
            let size = space.len().min(rest.len());
            space[..size].copy_from_slice(&rest[..size]);
            self.clients[client].engine.recv_done(now, id(master), size);
            rest = &rest[size..];
            self.follow_links(client);
            if self.clients[client].conns[master] != Some(index) {
                return;
            }
        }
        if self.conns[index].state == ConnState::Ended {
            self.lose_conn(client, master, "connection reset");
        }
    }

    fn lose_conn(&mut self, client: usize, master: usize, why: &str) {
        note!(self, "c{client} loses m{master}: {why}");
        self.leave_conn(client, master);
        let now = self.local(client);
        self.clients[client].engine.handle_disconnected(now, id(master), why);
    }

    fn write(&mut self, client: usize, master: usize) {
        let Some(index) = self.clients[client].conns[master] else { return };
        if self.conns[index].state != ConnState::Open {
            return;
        }
        let engine = &mut self.clients[client].engine;
        let ready = engine.send_ready(id(master));
        if ready.is_empty() {
            return;
        }
        let is_short = chance(&mut self.rng, self.short_write_ppm);
        let size = if is_short { self.rng.random_range(1..=ready.len()) } else { ready.len() };
        let bytes = ready[..size].to_vec();
        engine.send_done(id(master), size);
        self.digest(&bytes);
        let mut due = Vec::new();
        self.conns[index].to_master.send(self.now, &bytes, &self.weather, &mut self.rng, &mut due);
        due.into_iter().for_each(|at| self.plan(at, Event::ToMaster(index)));
    }

    fn digest(&mut self, bytes: &[u8]) {
        for &byte in bytes.iter().chain(&self.now.to_le_bytes()) {
            self.digest = (self.digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// Whether there is a connection, and the process behind it lives.
    pub fn is_connected(&self, client: usize, master: usize) -> bool {
        self.clients[client].conns[master].is_some_and(|conn| {
            let (conn, it) = (&self.conns[conn], &self.masters[master]);
            conn.state == ConnState::Open && it.is_up && conn.master_life == it.life
        })
    }

    // The application

    pub fn submit_acquire(
        &mut self,
        client: usize,
        key: &[u8],
        ttl: Duration,
        wait: Duration,
    ) -> Option<OpId> {
        let ttl = self.config.ttl(ttl).expect("a valid TTL");
        let now = self.local(client);
        let resource = Resource::new(key).expect("a valid name");
        let request = Request::Acquire { resource, ttl, wait, min_validity: Duration::ZERO };
        let lock = self.clients[client].engine.submit(now, request).ok()?;
        let deadline = now + wait + 2 * self.config.answer_limit(ttl);
        note!(
            self,
            "c{client} asks for {} as {lock:?}, TTL {:?}, wait {wait:?}",
            shown(key),
            ttl.as_duration()
        );
        self.clients[client].locks.push((
            lock,
            Lock {
                key: key.to_vec(),
                ttl: ttl.as_duration(),
                pending: Some((Pending::Acquire, deadline)),
                is_held: false,
            },
        ));
        self.wake(client, self.now);
        Some(lock)
    }

    pub fn submit_extend(&mut self, client: usize, lock: OpId, ttl: Duration) {
        let ttl = self.config.ttl(ttl).expect("a valid TTL");
        let now = self.local(client);
        note!(self, "c{client} extends {lock:?} to {:?}", ttl.as_duration());
        self.clients[client].engine.submit(now, Request::Extend { lock, ttl }).expect("always taken");
        let deadline = now + self.config.answer_limit(ttl);
        if let Some(it) = self.clients[client].lock(lock) {
            it.pending = Some((Pending::Extend, deadline));
        }
        self.follow_validity(client, lock);
        self.wake(client, self.now);
    }

    pub fn submit_release(&mut self, client: usize, lock: OpId, awaited: bool) {
        let now = self.local(client);
        note!(self, "c{client} releases {lock:?}");
        self.checker.end_guard(client, lock);
        let answer_limit = self.config.answer_limit(self.config.ttl(self.config_max_ttl()).expect("valid"));
        self.clients[client].engine.submit(now, Request::Release { lock, awaited }).expect("always taken");
        if awaited && let Some(it) = self.clients[client].lock(lock) {
            it.pending = Some((Pending::Release, now + answer_limit));
            it.is_held = false;
        } else {
            self.clients[client].forget(lock);
        }
        self.wake(client, self.now);
    }

    fn config_max_ttl(&self) -> Duration {
        *self.habits.ttls.iter().max().expect("at least one")
    }

    /// The guard is what the engine says now.
    fn follow_validity(&mut self, client: usize, lock: OpId) {
        let valid_until = self.clients[client].engine.valid_until(lock);
        if let Some(guard) = self.checker.guards.iter_mut().find(|it| it.client == client && it.lock == lock)
            && let Some(valid_until) = valid_until
        {
            guard.valid_until = valid_until;
        }
    }

    fn take_outcome(&mut self, client: usize, lock: OpId, outcome: Outcome) {
        let (name, expected) = match &outcome {
            Outcome::Acquire(Ok(_)) => ("acquired", Pending::Acquire),
            Outcome::Acquire(Err(AcquireError::Contended(_))) => ("contended", Pending::Acquire),
            Outcome::Acquire(Err(AcquireError::NoQuorum(_))) => ("no quorum", Pending::Acquire),
            Outcome::Acquire(Err(_)) => ("acquire failed otherwise", Pending::Acquire),
            Outcome::Extend(Ok(_)) => ("extended", Pending::Extend),
            Outcome::Extend(Err(ExtendError::Lost(_))) => ("lost", Pending::Extend),
            Outcome::Extend(Err(_)) => ("not extended", Pending::Extend),
            Outcome::Release(Ok(_)) => ("released", Pending::Release),
            Outcome::Release(Err(_)) => ("release not confirmed", Pending::Release),
            _ => ("other", Pending::Release),
        };
        *self.statistics.outcomes.entry(name).or_default() += 1;
        self.digest(name.as_bytes());
        note!(self, "c{client} {lock:?} {name}{}", described(&outcome));
        let pending = self.clients[client].lock(lock).and_then(|it| it.pending);
        // A release that comes in the way ends an extension under way with an outcome of its own.
        let is_cut_extension =
            expected == Pending::Extend && matches!(pending, None | Some((Pending::Release, _)));
        if pending.is_none_or(|(it, _)| it != expected) && !is_cut_extension {
            self.checker.violate(format!("an outcome that nobody waits for: {name}"));
        }
        if is_cut_extension {
            return;
        }
        self.check_outcome(client, lock, &outcome);
        let is_over = matches!(&outcome, Outcome::Acquire(Err(_)) | Outcome::Release(_));
        if let Some(it) = self.clients[client].lock(lock) {
            it.pending = None;
            it.is_held = !is_over;
        }
        if is_over {
            self.clients[client].forget(lock);
        }
        self.tell_worker(client, lock, is_over);
        if self.clients[client].workers.is_empty() {
            self.clients[client].outcomes.push_back((lock, outcome));
        }
    }

    fn tell_worker(&mut self, client: usize, lock: OpId, is_over: bool) {
        let Some(index) = self.clients[client].workers.iter().position(|it| it.lock == Some(lock)) else {
            return;
        };
        let ttl = self.clients[client].lock(lock).map_or(Duration::ZERO, |it| it.ttl);
        let ttl = Time::try_from(ttl.as_nanos()).expect("small");
        let pause = if is_over {
            self.rng.random_range(0..=self.habits.pause_max)
        } else if self.rng.random() {
            self.rng.random_range(0..=ttl / 10)
        } else {
            self.rng.random_range(0..=ttl + ttl / 8)
        };
        let worker = &mut self.clients[client].workers[index];
        worker.due = self.now + pause;
        if is_over {
            worker.lock = None;
        }
    }

    fn work(&mut self, client: usize) {
        for index in 0..self.clients[client].workers.len() {
            let worker = self.clients[client].workers[index];
            if worker.due > self.now {
                continue;
            }
            self.clients[client].workers[index].due = Time::MAX;
            match worker.lock {
                None if self.habits.is_closing => {}
                None => self.begin_work(client, index),
                Some(lock) => self.go_on_with_work(client, index, lock),
            }
        }
    }

    fn begin_work(&mut self, client: usize, worker: usize) {
        let key = self.habits.keys[self.rng.random_range(0..self.habits.keys.len())].clone();
        let ttl = self.habits.ttls[self.rng.random_range(0..self.habits.ttls.len())];
        let wait = if self.rng.random() { 0 } else { self.rng.random_range(0..=self.habits.wait_max) };
        let lock = self.submit_acquire(client, &key, ttl, Duration::from_nanos(wait));
        // Some do not wait for the end.
        let patience = chance(&mut self.rng, 100_000).then(|| self.rng.random_range(0..=100 * MS));
        let worker = &mut self.clients[client].workers[worker];
        worker.lock = lock;
        worker.due = patience.map_or(Time::MAX, |patience| self.now + patience);
    }

    fn go_on_with_work(&mut self, client: usize, worker: usize, lock: OpId) {
        let is_pending = self.clients[client].lock(lock).is_some_and(|it| it.pending.is_some());
        let dice: u32 = self.rng.random_range(0..100);
        if is_pending || dice < 35 || (self.habits.is_closing && dice < 70) {
            // Of what is under way nothing more is heard: this cancels it.
            self.submit_release(client, lock, false);
            self.clients[client].workers[worker] =
                Worker { lock: None, due: self.now + self.habits.pause_max / 4 };
        } else if dice < 60 || self.habits.is_closing {
            self.submit_release(client, lock, true);
        } else if dice < 95 {
            let ttl = self.habits.ttls[self.rng.random_range(0..self.habits.ttls.len())];
            self.submit_extend(client, lock, ttl);
        } else {
            self.clients[client].workers[worker].due = self.now + self.rng.random_range(0..=SECOND);
        }
    }

    // Masters

    fn arrive_at_master(&mut self, index: usize) {
        match self.conns[index].to_master.arrive(self.now) {
            Err(again) => self.plan(again, Event::ToMaster(index)),
            Ok(Some(Piece::Bytes(bytes))) => {
                let conn = &mut self.conns[index];
                let master = &self.masters[conn.master];
                if conn.master_life != master.life || !master.is_up {
                    return;
                }
                conn.master_input.extend_from_slice(&bytes);
                if master.stopped_until <= self.now {
                    self.serve(index);
                }
            }
            Ok(Some(Piece::End) | None) => {}
        }
    }

    /// Carries out what has arrived over a connection.
    fn serve(&mut self, index: usize) {
        let conn = &mut self.conns[index];
        let (client, master) = (conn.client, conn.master);
        let it = &mut self.masters[master];
        if conn.master_life != it.life {
            return;
        }
        let (mut input, mut replies) = (std::mem::take(&mut conn.master_input), Vec::new());
        let now = it.clock.at(self.now);
        it.model.handle(now, &mut input, &mut replies);
        self.conns[index].master_input = input;
        let log = std::mem::take(&mut self.masters[master].model.log);
        let mut rest = replies.as_slice();
        for args in &log {
            let Ok(Decoded::Complete { reply, size }) = resp::decode(rest) else {
                panic!("the model's own reply")
            };
            note!(self, "m{master} for c{client}: {} -> {}", command(args), shown(&rest[..size]));
            self.note_command(index, args, &reply);
            rest = &rest[size..];
        }
        if self.conns[index].left_at.is_none() && !replies.is_empty() {
            let mut due = Vec::new();
            self.conns[index].to_client.send(self.now, &replies, &self.weather, &mut self.rng, &mut due);
            due.into_iter().for_each(|at| self.plan(at, Event::ToClient(index)));
        }
    }

    /// Keeps the facts about tokens.
    fn note_command(&mut self, conn: usize, args: &[Vec<u8>], reply: &Reply<'_>) {
        let words: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
        let (client, master) = (self.conns[conn].client, self.conns[conn].master);
        match (words.as_slice(), reply) {
            ([b"SET", key, token, b"NX" | b"IFEQ", ..], Reply::Simple(_)) => {
                self.checker.note_granted(conn, &self.conns[conn], key, token);
            }
            ([b"SET", key, _, b"NX", ..], Reply::NullBulk) => {
                self.checker.refused.entry((client, key.to_vec())).or_default().insert(id(master));
            }
            ([b"SET", _, token, b"IFEQ", ..], Reply::NullBulk) => self.checker.note_denied(master, token),
            ([b"EVALSHA" | b"EVAL", _, _, key, token, _ttl], Reply::Integer(1)) => {
                self.checker.note_granted(conn, &self.conns[conn], key, token);
            }
            ([b"EVALSHA" | b"EVAL", _, _, _, token, ..], Reply::Integer(0)) => {
                self.checker.note_denied(master, token)
            }
            ([b"DELIFEQ" | b"DELEX", _, .., token], Reply::Integer(0)) => {
                self.checker.note_denied(master, token)
            }
            ([b"DEL", ..], _) => self.checker.violate("I10: a key was deleted without a look at its value"),
            _ => {}
        }
    }

    fn arrive_at_client(&mut self, index: usize) {
        match self.conns[index].to_client.arrive(self.now) {
            Err(again) => self.plan(again, Event::ToClient(index)),
            Ok(Some(piece)) => {
                let conn = &mut self.conns[index];
                if conn.left_at.is_some() {
                    return;
                }
                match piece {
                    Piece::Bytes(bytes) => conn.client_input.extend_from_slice(&bytes),
                    Piece::End => conn.state = ConnState::Ended,
                }
                let (client, life) = (conn.client, conn.client_life);
                self.wake_life(client, life);
            }
            Ok(None) => {}
        }
    }

    // Judgement

    fn check_outcome(&mut self, client: usize, lock: OpId, outcome: &Outcome) {
        match outcome {
            Outcome::Acquire(Ok(grant)) => {
                let Some(key) = self.clients[client].lock(lock).map(|it| it.key.clone()) else { return };
                let token = grant.token.as_bytes().to_vec();
                self.check_granted(client, &token, grant.granted);
                self.check_in_time(client, grant.valid_until, "I2: a lock was handed out after its deadline");
                let guard =
                    Guard { client, lock, key, token, valid_until: grant.valid_until, is_void: false };
                self.checker.guards.push(guard);
                self.checker.guard_count += 1;
                self.check_guard(client, lock);
            }
            Outcome::Acquire(Err(AcquireError::Contended(denial))) => {
                let key = self.clients[client].lock(lock).map(|it| it.key.clone()).unwrap_or_default();
                let refused = self.checker.refused.get(&(client, key)).copied().unwrap_or_default();
                self.check_refusals(&denial.report, |checked| refused.contains(id(checked)));
            }
            Outcome::Extend(result) => {
                let valid_until = self.checker.guard(client, lock).map(|guard| guard.valid_until);
                if let (Ok(_), Some(valid_until)) = (result, valid_until) {
                    self.check_in_time(client, valid_until, "I11: a lock was extended after its deadline");
                }
                self.follow_validity(client, lock);
                if result.is_ok() {
                    self.check_guard(client, lock);
                }
                let report = match result {
                    Err(ExtendError::Lost(report) | ExtendError::NoQuorum(report)) => report,
                    _ => return,
                };
                let guard = self.checker.guard(client, lock);
                let facts = guard.and_then(|guard| self.checker.facts.get(&guard.token));
                // Of a lock that was never granted there, the acquisition's own refusal stands.
                let key = facts.map(|facts| facts.key.clone()).unwrap_or_default();
                let refused = self.checker.refused.get(&(client, key)).copied().unwrap_or_default();
                let denied = facts.map(|facts| facts.denied).unwrap_or_default().union(refused);
                self.check_refusals(report, |checked| denied.contains(id(checked)));
            }
            _ => {}
        }
    }

    /// Each vote that says no was an explicit no (I16).
    fn check_refusals(&mut self, report: &Report, is_true: impl Fn(usize) -> bool) {
        for (index, (_, vote)) in report.votes.iter().enumerate() {
            if matches!(vote, Vote::Refused { .. }) && !is_true(index) {
                self.checker.violate(format!("I16: m{index} never said no, but its vote is {vote:?}"));
            }
        }
    }

    /// The masters that are said to have granted did (I7), and a quorum of them can vote (I4, I8).
    fn check_granted(&mut self, client: usize, token: &[u8], granted: redlatch::lock::MasterSet) {
        let max_ttl = Time::try_from(self.config.quarantine_time().as_nanos()).expect("small") * 98 / 100;
        let turn_began = self.clients[client].turn_began;
        let mut count = 0;
        for master in granted.iter() {
            let by = self.checker.facts.get(token).and_then(|facts| facts.granted_by[master.index()]);
            let over = self.checker.facts.get(token).and_then(|facts| facts.granted_over[master.index()]);
            if by.is_none() {
                self.checker.violate(format!("I7: m{} never granted this token, but counts", master.index()));
            } else if over.and_then(|conn| self.conns[conn].left_at).is_some_and(|at| at < turn_began) {
                let why = "granted over a connection that is gone, but counts";
                self.checker.violate(format!("I7: m{} {why}", master.index()));
            }
            let it = &self.masters[master.index()];
            let is_protected = match self.config.quarantine() {
                Quarantine::Trust => false,
                Quarantine::Strict => true,
                _ => !it.lies,
            };
            let lost_at = by.and_then(|life| it.lost_at.get(life as usize).copied().flatten());
            let is_young = lost_at.is_some_and(|at| self.now < at + max_ttl);
            count += usize::from(!is_protected || !is_young);
        }
        if granted.count() < self.checker.quorum() {
            self.checker.violate(format!("I4: {granted:?} is no quorum of {}", self.masters.len()));
        } else if count < self.checker.quorum() && self.checker.judges_exclusion {
            self.checker.violate(format!("I8: a quorum with masters in quarantine: {granted:?}"));
        }
    }

    /// Unless the process was stopped since, what is told now was true a moment ago.
    fn check_in_time(&mut self, client: usize, valid_until: Instant, what: &str) {
        if self.clients[client].turn_began == self.now && self.local(client) >= valid_until {
            self.checker.violate(what);
        }
    }

    fn is_valid(&self, guard: &Guard) -> bool {
        self.local(guard.client) < guard.valid_until
    }

    /// A guard begins, or was prolonged: it is alone, and a quorum holds its key for as long as it is valid.
    fn check_guard(&mut self, client: usize, lock: OpId) {
        let Some(guard) = self.checker.guard(client, lock) else { return };
        if !self.checker.judges_exclusion || !self.is_valid(guard) {
            return;
        }
        let facts = &self.checker.facts[&guard.token];
        let until = self.clients[client].clock.when(guard.valid_until);
        let covering = (0..self.masters.len())
            .filter(|&index| {
                let master = &self.masters[index];
                let is_held = |(value, expires): &(Vec<u8>, Option<Instant>)| {
                    *value == guard.token && expires.is_none_or(|at| master.clock.when(at) >= until)
                };
                let is_excused = facts.lost.union(facts.forgotten).contains(id(index));
                is_excused || master.model.keys().get(&guard.key).is_some_and(is_held)
            })
            .count();
        let is_void = facts.lost.count() > self.clients[client].engine.margin(lock);
        if covering < self.checker.quorum() {
            let name = shown(&guard.key);
            self.checker.violate(format!(
                "c{client} holds {name} on {covering} masters for all its validity: no quorum"
            ));
        }
        if is_void {
            self.make_void(client, lock);
        }
        self.check_alone(client, lock);
    }

    fn check_alone(&mut self, client: usize, lock: OpId) {
        let Some(guard) = self.checker.guard(client, lock) else { return };
        if guard.is_void {
            return;
        }
        let is_rival = |it: &&Guard| {
            (it.client != client || it.lock != lock)
                && it.key == guard.key
                && !it.is_void
                && self.is_valid(it)
        };
        if let Some(rival) = self.checker.guards.iter().find(is_rival) {
            let (other, name) = (rival.client, shown(&guard.key));
            self.checker.violate(format!("EXCLUSION: c{client} and c{other} both hold {name}"));
        }
    }

    /// After a fault: a guard that lost more masters than its margin is promised nothing any more.
    pub fn void_guards(&mut self) {
        let lost_too_many = |guard: &Guard| {
            let lost = self.checker.facts.get(&guard.token).map_or(0, |facts| facts.lost.count());
            lost > self.clients[guard.client].engine.margin(guard.lock)
        };
        let voided: Vec<_> = self
            .checker
            .guards
            .iter()
            .filter(|guard| !guard.is_void && lost_too_many(guard))
            .map(|guard| (guard.client, guard.lock))
            .collect();
        voided.into_iter().for_each(|(client, lock)| self.make_void(client, lock));
    }

    fn make_void(&mut self, client: usize, lock: OpId) {
        if let Some(guard) = self.checker.guards.iter_mut().find(|it| it.client == client && it.lock == lock)
        {
            guard.is_void = true;
            self.checker.void_count += 1;
        }
    }

    /// After a turn: nothing is overdue, and counts agree.
    fn check_client(&mut self, client: usize) {
        let it = &self.clients[client];
        let now = it.clock.at(it.turn_began);
        let overdue = self.clients[client].locks.iter().find_map(|(lock, it)| {
            let (pending, deadline) = it.pending?;
            (now > deadline + Duration::from_millis(1)).then_some((*lock, pending))
        });
        if let Some((lock, pending)) = overdue {
            self.checker.violate(format!("I22: c{client}: {pending:?} of {lock:?} is overdue"));
        }
        if !self.is_checked_always && !chance(&mut self.rng, 100_000) {
            return;
        }
        for master in 0..self.masters.len() {
            self.check_owed(client, master);
            self.count_link(client, master);
        }
        self.check_margins(client);
    }

    /// When nothing is under way, no reply is owed (I14).
    fn check_owed(&mut self, client: usize, master: usize) {
        let it = &mut self.clients[client];
        let owed = it.engine.owed_count(id(master));
        let is_quiet = match it.conns[master] {
            None => true,
            Some(index) => {
                let conn = &self.conns[index];
                let has_output = !it.engine.send_ready(id(master)).is_empty();
                let is_empty = conn.to_master.is_empty() && conn.to_client.is_empty();
                let is_read = conn.master_input.is_empty() && conn.client_input.is_empty();
                conn.state == ConnState::Open
                    && !has_output
                    && is_empty
                    && is_read
                    && self.masters[master].is_up
                    && conn.master_life == self.masters[master].life
            }
        };
        if is_quiet && owed != 0 {
            self.checker
                .violate(format!("I14: c{client} expects {owed} replies of m{master}, none is under way"));
        }
    }

    /// No margin has a master that is known to be another process than the one which granted.
    fn check_margins(&mut self, client: usize) {
        let now = self.local(client);
        for index in 0..self.checker.guards.len() {
            let guard = &self.checker.guards[index];
            if guard.client != client {
                continue;
            }
            let Some(granted) = self.clients[client].engine.granted(guard.lock) else { continue };
            for master in granted.iter() {
                let by = self
                    .checker
                    .facts
                    .get(&guard.token)
                    .and_then(|it| it.granted_by.get(master.index()).copied().flatten());
                let Some(life) = by else {
                    return self
                        .checker
                        .violate(format!("m{} never granted, but is in the margin", master.index()));
                };
                let status = self.clients[client].engine.master_status(now, master);
                let is_ready = matches!(status.state, MasterState::Ready | MasterState::Quarantined(_));
                let known = status.run_id.as_deref().and_then(life_of);
                if is_ready && known.is_some_and(|known| known > life) {
                    return self
                        .checker
                        .violate(format!("m{} restarted since, but is in the margin", master.index()));
                }
            }
        }
    }

    fn count_link(&mut self, client: usize, master: usize) {
        let state = match self.clients[client].engine.master_status(self.local(client), id(master)).state {
            MasterState::Down(_) => "down",
            MasterState::Connecting => "connecting",
            MasterState::Ready => "ready",
            MasterState::Quarantined(_) => "quarantined",
            MasterState::Silent => "silent",
            _ => "other",
        };
        *self.statistics.link_steps.entry((state, state)).or_default() += 1;
    }
}

pub fn run_id(master: usize, life: u32) -> String {
    format!("m{master}-{life}")
}

/// Which process of its master has this `run_id`.
fn life_of(run_id: &str) -> Option<u32> {
    run_id.split_once('-')?.1.parse().ok()
}

/// The key is the first argument of most commands, and the rest is long.
fn command(args: &[Vec<u8>]) -> String {
    let mut text = String::new();
    for arg in args {
        let short = if arg.len() > 24 { &arg[..8] } else { arg };
        let _ = write!(
            text,
            "{} ",
            if arg.len() == 20 { hex(&arg[..3]) } else { short.escape_ascii().to_string() }
        );
    }
    text
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn shown(bytes: &[u8]) -> String {
    let text = bytes.escape_ascii().to_string();
    if text.len() > 80 { format!("{}…", &text[..80]) } else { text }
}

fn described(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Acquire(Ok(grant)) => {
            format!(" {} by {:?}", hex(&grant.token.as_bytes()[..3]), grant.granted)
        }
        Outcome::Acquire(Err(error)) => format!(": {error}"),
        Outcome::Extend(Err(error)) => format!(": {error}"),
        Outcome::Release(result) => format!(": {result:?}"),
        _ => String::new(),
    }
}
