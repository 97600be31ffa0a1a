//! Clients, masters and the network between them, on one virtual clock of true time.
//!
//! Everything that happens is a timed event; events of one time happen in the order of their planning. All
//! randomness comes from one generator, so a seed determines a history. The engine gets the same calls in the
//! same order as from the real driver. Between any two steps of a turn, the process may be stopped.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redlatch::engine::Outcome;
use redlatch::{Config, LockHandle};

use crate::checker::Checker;
use crate::client::{Client, LinkState, Worker};
use crate::clock::{Clock, MS, SECOND, Time, WALL_US};
use crate::lua;
use crate::model::{Keys, ModelMaster};
use crate::network::{Conn, ConnState, Weather};

pub struct World {
    pub now: Time,
    pub rng: StdRng,
    /// Settings that all clients share, for clients added later.
    pub config: Arc<Config>,
    pub clients: Vec<Client>,
    pub masters: Vec<Master>,
    pub conns: Vec<Conn>,
    pub weather: Weather,
    pub checker: Checker,
    /// Of a million turns, how many are interrupted, and for how long at most.
    pub pause_ppm: u32,
    pub pause_min: Time,
    pub pause_max: Time,
    /// Steps of all clients so far, and the step before which a client is stopped.
    pub step_count: u64,
    pub pause_at_step: Option<u64>,
    /// Of a million writes, how many take only a part of the bytes.
    pub short_write_ppm: u32,
    /// Whether each client is a `Client` with tasks, instead of an engine that is used like `Redlock`.
    pub has_tasks: bool,
    /// Places in lists of masters that lead to a server with another number.
    pub detours: Vec<Detour>,
    /// The application of all clients.
    pub habits: Habits,
    /// The last handles that were made, used or not.
    pub handles: VecDeque<LockHandle>,
    pub statistics: Statistics,
    /// Transitions of a master's link between states.
    pub link_steps: [[u64; LinkState::NAMES.len()]; LinkState::NAMES.len()],
    pub digest: Digest,
    /// What happened, in words, on request.
    pub trace: Option<Vec<String>>,
    /// Checks everything after each turn, not after one in ten.
    pub is_checked_always: bool,
    pub events: Events,
    /// Replies to the present commands; empty in between.
    pub replies: Vec<u8>,
    /// Words of one command.
    pub words: Vec<&'static [u8]>,
}

/// Habits of the applications.
#[derive(Debug, Clone)]
pub struct Habits {
    pub keys: Vec<Vec<u8>>,
    pub ttls: Vec<Duration>,
    pub wait_max: Time,
    pub pause_max: Time,
    /// Of a million locks, how many are fenced.
    pub fenced_ppm: u32,
    /// Of a million other locks, how many are fair.
    pub fair_ppm: u32,
    /// Of a million other locks, how many are readers'.
    pub shared_ppm: u32,
    /// Of a million callers, how many have a label.
    pub label_ppm: u32,
    /// Of a million beginnings of a worker, how many try a handle, if there is one.
    pub handle_ppm: u32,
    /// Number of slots in the pool; zero without a pool.
    pub slot_count: u32,
    /// Nothing new begins, and held locks are released.
    pub is_closing: bool,
}

/// One server: its process, its data, its clock.
pub struct Master {
    pub model: ModelMaster,
    pub clock: Clock,
    pub is_up: bool,
    /// Number of its processes.
    pub life: u32,
    pub stopped_until: Time,
    pub refuses_until: Time,
    /// New connections get no answer.
    pub swallows_until: Time,
    /// By process: when it, or an earlier process whose data it has, started without the data of its
    /// predecessor.
    pub lost_at: Vec<Option<Time>>,
    /// Its reported uptime is too long.
    pub lies: bool,
    /// Its clock was set back, or commands to an earlier process reached this one, so a key may last longer
    /// than its client can know.
    pub keeps_longer: bool,
    /// Its disk at some earlier times.
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

/// A place in a list of masters that leads to a server with another number.
#[derive(Debug, Clone, Copy)]
pub struct Detour {
    /// Only in this client's list; in all lists if `None`.
    pub client: Option<usize>,
    pub place: usize,
    pub server: usize,
}

/// Counts.
#[derive(Debug, Clone, Default)]
pub struct Statistics {
    pub simulated: Time,
    pub event_count: u64,
    pub faults: BTreeMap<&'static str, u64>,
    /// Transitions of a master's link between states, as seen after turns.
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

/// Digest of all bytes on the wires and their effects: FNV-1a over words of eight bytes.
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

    /// Rotated, because a product alone carries nothing into lower bits.
    const fn mix(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(29);
    }
}

/// A time, with the place among that time's events in the low bits.
type Moment = u128;

fn moment(at: Time, order: u64) -> Moment {
    Moment::from(at) << 64 | Moment::from(order)
}

fn time_of(moment: Moment) -> Time {
    Time::try_from(moment >> 64).expect("64 bits")
}

/// Planned events, in the order of their occurrence.
#[derive(Default)]
pub struct Events {
    heap: BinaryHeap<Planned>,
    /// Number of events planned so far.
    count: u64,
}

/// No two events have the same moment. The earliest event sorts last.
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

    /// The next place among the events of one time.
    pub fn next_order(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    /// When the next event happens; at the end of time if there is none.
    fn next(&self) -> Moment {
        self.heap.peek().map_or(Moment::MAX, |next| next.at)
    }

    fn pop(&mut self) -> Option<Event> {
        self.count += 1;
        self.heap.pop().map(|next| next.event)
    }
}

/// More events than any history needs, so something loops.
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
    /// Masters that have run for an hour, without clients.
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
            has_tasks: false,
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

    /// Adds a server that has run for an hour. It is in no list without a [`Detour`].
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
        let times = (clock.at(self.now), Duration::from_micros(WALL_US + self.now / 1000));
        let (engine, tasks) = self.new_process(&config, times);
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
            tasks,
            outcomes: VecDeque::new(),
        });
        self.wake(self.clients.len() - 1, self.now);
        self.clients.len() - 1
    }

    /// Runs for this time, or until the checker finds a fault.
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

    /// Runs until a condition is true, at most for this time. Returns whether it is.
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

    /// All counts, including totals of the present state.
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

    /// Delivers everything that is stalled.
    pub fn end_stalls(&mut self) {
        for conn in 0..self.conns.len() {
            let it = &mut self.conns[conn];
            (it.to_master.stalled_until, it.to_client.stalled_until) = (0, 0);
            let (requests, replies) = (it.to_master.count(), it.to_client.count());
            (0..requests).for_each(|_| self.plan(self.now, Event::ToMaster(conn)));
            (0..replies).for_each(|_| self.plan(self.now, Event::ToClient(conn)));
        }
    }

    /// Time and client of the next turn; at the end of time if there is none. Turns move all the time, so
    /// they are no events.
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

/// Number of the master's process with this `run_id`.
pub fn life_of(run_id: &str) -> Option<u32> {
    run_id.split_once('-')?.1.parse().ok()
}

/// The key is the first argument of most commands; the rest is long.
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

/// The number that these digits represent.
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
