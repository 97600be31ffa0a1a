//! Clients, masters and the network between them, on one virtual clock of true time.
//!
//! Everything that happens is an event with a time; events of one time happen in the order in which they were
//! planned. All randomness comes from one generator, so a seed is a history. What the engine gets, and in
//! which order, is what the real driver would give it; between any two steps of a turn the process may be
//! stopped.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use redlatch::engine::{Engine, Outcome};
use redlatch::{Config, LockHandle};

use crate::callers::Callers;
use crate::checker::Checker;
use crate::client::{Client, LinkState, Worker};
use crate::clock::{Clock, MS, SECOND, Time, WALL_US};
use crate::lua;
use crate::model::{Keys, ModelMaster};
use crate::network::{Conn, ConnState, Weather};

pub struct World {
    pub now: Time,
    pub rng: StdRng,
    /// What all clients agree on, and the settings of those that are added next.
    pub config: Arc<Config>,
    pub clients: Vec<Client>,
    pub masters: Vec<Master>,
    pub conns: Vec<Conn>,
    pub weather: Weather,
    pub checker: Checker,
    /// Of a million turns, how many are interrupted, and for how long at the most.
    pub pause_ppm: u32,
    pub pause_min: Time,
    pub pause_max: Time,
    /// Steps of all clients so far, and one before which a client is stopped.
    pub step_count: u64,
    pub pause_at_step: Option<u64>,
    /// Of a million writes, how many take only a part of the bytes.
    pub short_write_ppm: u32,
    /// Clients are used the way of `Client`, not of `Redlock`.
    pub has_desks: bool,
    /// Places in lists of masters that lead to another server than the one of that number.
    pub detours: Vec<Detour>,
    /// The application of all clients.
    pub habits: Habits,
    /// Handles that were made last, used or not.
    pub handles: VecDeque<LockHandle>,
    pub statistics: Statistics,
    /// Steps of a master's link from one state to another.
    pub link_steps: [[u64; LinkState::NAMES.len()]; LinkState::NAMES.len()],
    pub digest: Digest,
    /// What happened, in words, if somebody wants to know.
    pub trace: Option<Vec<String>>,
    /// Look for all that may be wrong after each turn, not after one in ten.
    pub is_checked_always: bool,
    pub events: Events,
    /// Replies to the commands that are carried out, empty between them.
    pub replies: Vec<u8>,
    /// And the words of one.
    pub words: Vec<&'static [u8]>,
}

/// What the applications do.
#[derive(Debug, Clone)]
pub struct Habits {
    pub keys: Vec<Vec<u8>>,
    pub ttls: Vec<Duration>,
    pub wait_max: Time,
    pub pause_max: Time,
    /// Of a million locks, how many are fenced.
    pub fenced_ppm: u32,
    /// And of the others, how many are fair.
    pub fair_ppm: u32,
    /// And of the others, how many are readers'.
    pub shared_ppm: u32,
    /// Share of callers with a label.
    pub label_ppm: u32,
    /// Of a million times that a worker begins, how often it tries a handle, if there is one.
    pub handle_ppm: u32,
    /// Slots of the pool; zero without one.
    pub slot_count: u32,
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
    /// Its clock was set back, or what was sent to the process before reached this one: a key may stay for
    /// longer than its client can know.
    pub keeps_longer: bool,
    /// What was on its disk at some earlier times.
    pub snapshots: VecDeque<(Time, Keys)>,
}

impl Master {
    /// A server that has run for an hour.
    fn new(index: usize) -> Self {
        let clock = Clock::new(0, 0);
        let mut model = ModelMaster::new(&format!("m{index}-0"), clock.at(0) - Duration::from_secs(3600));
        model.set_wall(clock.at(0), WALL_US);
        lua::prepare(&mut model);
        Self {
            model,
            clock,
            is_up: true,
            life: 0,
            stopped_until: 0,
            refuses_until: 0,
            swallows_until: 0,
            lost_at: vec![None],
            lies: false,
            keeps_longer: false,
            snapshots: VecDeque::new(),
        }
    }
}

/// A place in a list of masters that leads to another server than the one of that number.
#[derive(Debug, Clone, Copy)]
pub struct Detour {
    /// In the list of this client; in all lists without one.
    pub client: Option<usize>,
    pub place: usize,
    pub server: usize,
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
    /// How clients were used, and what their callers did.
    pub calls: BTreeMap<&'static str, u64>,
    pub guard_count: u64,
    pub void_count: u64,
}

pub enum Event {
    ToMaster(usize),
    ToClient(usize),
    Connected(usize, bool),
    Resume(usize),
}

/// What went over the wires and what came of it, as one number: FNV-1a, by words of eight bytes.
pub struct Digest(pub u64);

impl Default for Digest {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    pub fn add(&mut self, now: Time, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        words.iter().for_each(|word| self.mix(u64::from_le_bytes(*word)));
        self.mix(u64::from_le_bytes(last));
        self.mix(bytes.len() as u64);
        self.mix(now);
    }

    /// Turned, for a product alone carries nothing downwards.
    const fn mix(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(29);
    }
}

/// A time, and behind it the place among the events of that time, as one number.
type Moment = u128;

fn moment(at: Time, order: u64) -> Moment {
    Moment::from(at) << 64 | Moment::from(order)
}

fn time_of(moment: Moment) -> Time {
    Time::try_from(moment >> 64).expect("64 bits")
}

/// What is planned, in the order in which it happens.
#[derive(Default)]
pub struct Events {
    heap: BinaryHeap<Planned>,
    /// Planned and happened so far.
    count: u64,
}

/// No two have the same moment; the earliest is the largest.
struct Planned {
    at: Moment,
    event: Event,
}

impl Ord for Planned {
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.cmp(&self.at)
    }
}

impl PartialOrd for Planned {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Planned {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Planned {}

impl Events {
    pub fn plan(&mut self, at: Time, event: Event) {
        let order = self.next_order();
        self.heap.push(Planned { at: moment(at, order), event });
    }

    /// The place behind all that is planned, among the events of one time.
    pub fn next_order(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    /// When the next one happens; at the end of time if there is none.
    fn next(&self) -> Moment {
        self.heap.peek().map_or(Moment::MAX, |next| next.at)
    }

    fn pop(&mut self) -> Option<Event> {
        self.count += 1;
        self.heap.pop().map(|next| next.event)
    }
}

/// More events than any history needs: something goes on without end.
const EVENT_COUNT_MAX: u64 = 3_000_000;

/// Adds a line to the trace, if there is one.
macro_rules! note {
    ($world:expr, $($text:tt)*) => {
        if $world.trace.is_some() {
            $world.trace(&format!($($text)*));
        }
    };
}
pub(crate) use note;

impl World {
    /// Masters that have run for an hour; no client yet.
    pub fn new(seed: u64, config: Config) -> Self {
        let master_count = config.master_count();
        let masters = (0..master_count).map(Master::new).collect();
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
            pause_min: 0,
            pause_max: 0,
            step_count: 0,
            pause_at_step: None,
            short_write_ppm: 0,
            has_desks: false,
            detours: Vec::new(),
            habits: Habits {
                keys: vec![b"a".to_vec()],
                ttls: vec![Duration::from_secs(1)],
                wait_max: 0,
                fenced_ppm: 0,
                fair_ppm: 0,
                shared_ppm: 0,
                label_ppm: 0,
                handle_ppm: 0,
                slot_count: 0,
                pause_max: SECOND,
                is_closing: false,
            },
            handles: VecDeque::new(),
            statistics: Statistics::default(),
            link_steps: Default::default(),
            digest: Digest::default(),
            trace: None,
            is_checked_always: false,
            events: Events::default(),
            replies: Vec::new(),
            words: Vec::new(),
        }
    }

    /// One more server, that is in no list before there is a [`Detour`] to it. It has run for an hour.
    pub fn add_server(&mut self) -> usize {
        self.masters.push(Master::new(self.masters.len()));
        self.checker.server_count = self.masters.len();
        self.masters.len() - 1
    }

    /// The server at a place in a client's list of masters.
    pub fn server(&self, client: usize, place: usize) -> usize {
        let leads = |it: &&Detour| it.place == place && it.client.is_none_or(|its| its == client);
        self.detours.iter().find(leads).map_or(place, |it| it.server)
    }

    pub fn add_client(&mut self, clock: Clock, worker_count: usize) -> usize {
        let config = Arc::clone(&self.config);
        let engine = self.new_engine(&config, &clock);
        let workers = (0..worker_count)
            .map(|_| Worker { lock: None, due: self.now + self.rng.random_range(0..=self.habits.pause_max) })
            .collect();
        self.clients.push(Client {
            config,
            engine,
            clock,
            wall_us: WALL_US,
            life: 0,
            conns: vec![None; self.config.master_count()],
            accepted: 0,
            has_arrivals: false,
            is_cut_short: false,
            is_down: false,
            paused_until: 0,
            suspended_at: None,
            wake_at: Time::MAX,
            wake_order: 0,
            step: 0,
            turn_began: 0,
            link_states: vec![LinkState::Down; self.config.master_count()],
            taken_count: 0,
            locks: Vec::new(),
            workers,
            queries: Vec::new(),
            query_due: Time::MAX,
            sets: Vec::new(),
            slots: Vec::new(),
            owners: Vec::new(),
            callers: self.has_desks.then(Callers::default),
            outcomes: VecDeque::new(),
        });
        self.wake(self.clients.len() - 1, self.now);
        self.clients.len() - 1
    }

    pub fn new_engine(&mut self, config: &Arc<Config>, clock: &Clock) -> Engine {
        let mut seed = [0; 32];
        self.rng.fill_bytes(&mut seed);
        Engine::new(Arc::clone(config), seed, clock.at(self.now))
    }

    /// Goes on for this long, or until something is wrong.
    pub fn run_for(&mut self, time: Time) {
        let end = self.now + time;
        while self.checker.violation.is_none() {
            let ((turn, client), event) = (self.next_turn(), self.events.next());
            let at = time_of(turn.min(event));
            if at > end {
                break;
            }
            self.now = self.now.max(at);
            if self.events.count > EVENT_COUNT_MAX {
                self.checker.violate("events without end");
            }
            if turn < event {
                self.events.count += 1;
                self.clients[client].wake_at = Time::MAX;
                self.turn(client);
            } else if let Some(event) = self.events.pop() {
                self.handle(event);
            }
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
            let next = self.next_turn().0.min(self.events.next());
            self.run_for(time_of(next).clamp(self.now, end) - self.now);
        }
    }

    /// What was counted, the lasting things included.
    pub fn statistics(&self) -> Statistics {
        let names = LinkState::NAMES;
        let steps =
            self.link_steps.iter().zip(names).flat_map(|(counts, from)| {
                counts.iter().zip(names).map(move |(count, to)| ((from, to), *count))
            });
        Statistics {
            simulated: self.now,
            link_steps: steps.filter(|(_, count)| *count > 0).collect(),
            event_count: self.events.count,
            guard_count: self.checker.guard_count,
            void_count: self.checker.void_count,
            ..self.statistics.clone()
        }
    }

    pub fn count_fault(&mut self, name: &'static str) {
        *self.statistics.faults.entry(name).or_default() += 1;
        note!(self, "FAULT {name}");
    }

    pub fn trace(&mut self, text: &str) {
        let line = format!("{:>12.6} {text}", Duration::from_nanos(self.now).as_secs_f64());
        if let Some(trace) = &mut self.trace {
            trace.push(line);
        }
    }

    pub fn plan(&mut self, at: Time, event: Event) {
        self.events.plan(at, event);
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

    /// When the next turn of a client is due, and whose it is; at the end of time if none is. Turns are put
    /// off and brought forward all the time, so they are no events.
    fn next_turn(&self) -> (Moment, usize) {
        let mut next = (Moment::MAX, 0);
        for (index, it) in self.clients.iter().enumerate() {
            let at = moment(it.wake_at, it.wake_order);
            if at < next.0 {
                next = (at, index);
            }
        }
        next
    }

    fn handle(&mut self, event: Event) {
        match event {
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
}

pub fn run_id(master: usize, life: u32) -> String {
    format!("m{master}-{life}")
}

/// Which process of its master has this `run_id`.
pub fn life_of(run_id: &str) -> Option<u32> {
    run_id.split_once('-')?.1.parse().ok()
}

/// The key is the first argument of most commands, and the rest is long.
pub fn command(args: &[&[u8]]) -> String {
    let mut text = String::new();
    for arg in args {
        let short = if arg.len() > 24 { &arg[..8] } else { *arg };
        let _ = write!(
            text,
            "{} ",
            if arg.len() == 20 { hex(&arg[..3]) } else { short.escape_ascii().to_string() }
        );
    }
    text
}

/// The number that a command has as digits.
pub fn number(digits: &[u8]) -> u64 {
    std::str::from_utf8(digits).expect("digits").parse().expect("digits")
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn shown(bytes: &[u8]) -> String {
    let text = bytes.escape_ascii().to_string();
    if text.len() > 80 { format!("{}…", &text[..80]) } else { text }
}

pub fn described(outcome: &Outcome) -> String {
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
