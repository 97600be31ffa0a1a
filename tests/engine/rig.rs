//! One engine and N model masters in one thread. Each test decides when bytes and time move. Names of faults
//! and times match `World` in tests/sim.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redlatch::engine::{Engine, LinkRequest, MasterId, OpId, Outcome, Request, Resource};
use redlatch::{Config, ConfigBuilder, Options, limits};

use crate::model::ModelMaster;

pub struct Rig {
    pub engine: Engine,
    pub masters: Vec<ModelMaster>,
    pub now: Instant,
    pub outcomes: VecDeque<(OpId, Outcome)>,
    /// Masters for which the engine has asked for credentials.
    pub asked: VecDeque<usize>,
    /// Masters whose names the engine wants to look up again.
    pub looked_up: VecDeque<usize>,
    links: Vec<Link>,
}

/// Connection number for bytes of a master's ended connections.
const LATE: usize = usize::MAX;

/// Network between the engine and one master.
#[derive(Default)]
struct Link {
    is_open: bool,
    /// Connection attempts fail.
    is_refusing: bool,
    /// Bytes to the master are held back.
    is_stopped: bool,
    /// Replies are held back.
    is_stalled: bool,
    to_master: Vec<u8>,
    to_engine: Vec<u8>,
}

/// Number of operations that the engine has room for: 16,384, or as many as in a program if
/// `REDLATCH_FULL_TABLES` is set (`scripts/soak`). A full table takes a debug build up to a minute.
pub fn operation_count_max() -> usize {
    if std::env::var_os("REDLATCH_FULL_TABLES").is_some() { limits::OPERATION_COUNT_MAX } else { 16_384 }
}

/// Number of tokens that the engine has room for.
pub fn claim_count_max() -> usize {
    2 * operation_count_max()
}

pub fn id(index: usize) -> MasterId {
    MasterId::new(index).expect("below the limit")
}

impl Rig {
    /// `count` connected masters that have run for an hour.
    pub fn new(count: usize, settings: impl FnOnce(ConfigBuilder) -> ConfigBuilder) -> Self {
        let mut rig = Self::unconnected(count, settings);
        rig.pump();
        rig
    }

    pub fn unconnected(count: usize, settings: impl FnOnce(ConfigBuilder) -> ConfigBuilder) -> Self {
        Self::with_urls((0..count).map(|index| format!("redis://m{index}")).collect(), settings)
    }

    pub fn with_urls(urls: Vec<String>, settings: impl FnOnce(ConfigBuilder) -> ConfigBuilder) -> Self {
        let count = urls.len();
        let config = settings(Config::builder().masters(urls)).build().expect("valid settings");
        let start = Instant::now();
        let now = start + Duration::from_secs(3600);
        Self {
            engine: Engine::with_room_for(operation_count_max(), Arc::new(config), [7; 32], now),
            masters: (0..count).map(|index| ModelMaster::new(&format!("run{index}"), start)).collect(),
            now,
            outcomes: VecDeque::new(),
            asked: VecDeque::new(),
            looked_up: VecDeque::new(),
            links: (0..count).map(|_| Link::default()).collect(),
        }
    }

    /// Moves bytes until nothing more can move at this instant.
    pub fn pump(&mut self) {
        loop {
            let mut moved = false;
            while let Some(request) = self.engine.poll_link() {
                moved = true;
                match request {
                    LinkRequest::Close(link) => {
                        self.links[link.index()].close();
                        self.masters[link.index()].forget_conn(link.index());
                    }
                    LinkRequest::LookUp(master) => self.looked_up.push_back(master.index()),
                    LinkRequest::Credentials(master) => self.asked.push_back(master.index()),
                    LinkRequest::Connect(link) if self.links[link.index()].is_refusing => {
                        self.engine.handle_disconnected(self.now, link, "connection refused");
                    }
                    LinkRequest::Connect(link) => {
                        self.links[link.index()].is_open = true;
                        self.masters[link.index()].begin_conn(link.index());
                        self.engine.handle_connected(self.now, link);
                    }
                }
            }
            for index in 0..self.links.len() {
                moved |= self.exchange(index);
            }
            while let Some(outcome) = self.engine.poll_outcome() {
                self.outcomes.push_back(outcome);
            }
            if let Some(what) = self.engine.unarmed() {
                panic!("nothing wakes the engine for {what}");
            }
            if !moved {
                // Arrived bytes come first; a due deadline may then move bytes again.
                let is_due = self.engine.next_timeout().is_some_and(|(at, _)| at <= self.now);
                if !is_due {
                    return;
                }
                self.engine.handle_timeout(self.now);
            }
        }
    }

    fn exchange(&mut self, index: usize) -> bool {
        if !self.links[index].is_open {
            return false;
        }
        let name = id(index);
        let bytes = self.engine.send_ready(name).to_vec();
        self.engine.send_done(name, bytes.len());
        let link = &mut self.links[index];
        link.to_master.extend_from_slice(&bytes);
        if !link.is_stopped {
            let master = &mut self.masters[index];
            master.handle_over(index, self.now, &mut link.to_master, &mut link.to_engine);
            for (conn, message) in std::mem::take(&mut master.pushes) {
                self.links[conn].to_engine.extend_from_slice(&message);
            }
        }
        let link = &mut self.links[index];
        if link.is_stalled || link.to_engine.is_empty() {
            return !bytes.is_empty();
        }
        let replies = std::mem::take(&mut link.to_engine);
        self.receive(index, &replies);
        true
    }

    /// Gives the engine bytes as if the master had sent them.
    pub fn receive(&mut self, index: usize, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let space = self.engine.recv_space(id(index));
            let size = space.len().min(rest.len());
            space[..size].copy_from_slice(&rest[..size]);
            self.engine.recv_done(self.now, id(index), size);
            rest = &rest[size..];
        }
    }

    /// Lets time pass in steps no longer than the engine's next deadline.
    pub fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            let next = self.engine.next_timeout().map_or(end, |(at, _)| at.clamp(self.now, end));
            self.now = if next > self.now { next } else { end.min(self.now + Duration::from_micros(1)) };
            self.pump();
        }
    }

    /// The clock jumps while the engine sleeps, as if its process had paused.
    pub fn jump(&mut self, time: Duration) {
        self.now += time;
    }

    /// Holds this master's replies back from now on.
    pub fn stall_replies(&mut self, index: usize) {
        self.links[index].is_stalled = true;
    }

    /// Lets this master's replies through again.
    pub fn end_stall(&mut self, index: usize) {
        self.links[index].is_stalled = false;
        self.pump();
    }

    /// Delivers this many bytes of the stalled replies.
    pub fn deliver_some(&mut self, index: usize, size: usize) {
        let some: Vec<u8> = self.links[index].to_engine.drain(..size).collect();
        self.receive(index, &some);
        self.pump();
    }

    /// Delivers the replies of all masters together.
    pub fn end_stalls(&mut self) {
        self.links.iter_mut().for_each(|link| link.is_stalled = false);
        self.pump();
    }

    /// Stops the master's process: it receives bytes, but handles none.
    pub fn stop_master(&mut self, index: usize) {
        self.links[index].is_stopped = true;
    }

    pub fn resume_master(&mut self, index: usize) {
        self.links[index].is_stopped = false;
        self.pump();
    }

    /// Breaks the connection. The master carries out what it has received; replies are lost.
    pub fn reset_conn(&mut self, index: usize) {
        let link = &mut self.links[index];
        self.masters[index].handle_over(index, self.now, &mut link.to_master, &mut link.to_engine);
        self.masters[index].forget_conn(index);
        link.close();
        self.engine.handle_disconnected(self.now, id(index), "connection reset");
    }

    /// Breaks the connection while bytes to the master are under way. They may arrive later.
    pub fn break_conn(&mut self, index: usize) -> Vec<u8> {
        let late = std::mem::take(&mut self.links[index].to_master);
        self.links[index].close();
        self.masters[index].forget_conn(index);
        self.engine.handle_disconnected(self.now, id(index), "connection reset");
        self.pump();
        late
    }

    /// Delivers bytes of an ended connection; nobody reads the replies.
    pub fn carry_out(&mut self, index: usize, mut late: Vec<u8>) {
        self.masters[index].handle_over(LATE, self.now, &mut late, &mut Vec::new());
        self.masters[index].begin_conn(LATE);
    }

    pub fn refuse(&mut self, index: usize, refuse: bool) {
        self.links[index].is_refusing = refuse;
    }

    /// Submits an acquisition, and moves bytes.
    pub fn acquire(&mut self, resource: &str, ttl_ms: u64, wait_ms: u64) -> OpId {
        let op = self.submit_acquire(resource, ttl_ms, wait_ms);
        self.pump();
        op
    }

    pub fn submit_acquire(&mut self, resource: &str, ttl_ms: u64, wait_ms: u64) -> OpId {
        let (ttl, wait) = (Duration::from_millis(ttl_ms), Duration::from_millis(wait_ms));
        self.submit_with(resource, Options::new().ttl(ttl).wait(wait))
    }

    pub fn submit_with(&mut self, resource: &str, options: Options) -> OpId {
        let resource = Resource::new(resource).expect("a valid name");
        self.engine.submit(self.now, Request::Acquire { resource, options, label: None }).expect("room")
    }

    /// Submits an acquisition with these options, and moves bytes.
    pub fn acquire_with(&mut self, resource: &str, options: Options) -> OpId {
        let op = self.submit_with(resource, options);
        self.pump();
        op
    }

    pub fn extend(&mut self, lock: OpId, ttl_ms: u64) {
        let ttl = Duration::from_millis(ttl_ms);
        self.engine.submit(self.now, Request::Extend { lock, ttl }).expect("always taken");
        self.pump();
    }

    pub fn release(&mut self, lock: OpId, awaited: bool) {
        self.engine.submit(self.now, Request::Release { lock, awaited }).expect("always taken");
        self.pump();
    }

    /// The next outcome, if any.
    pub fn outcome(&mut self) -> Option<Outcome> {
        self.outcomes.pop_front().map(|(_, outcome)| outcome)
    }

    /// Number of masters that hold the key now.
    pub fn holder_count(&self, key: &str) -> usize {
        self.masters.iter().filter(|master| master.value(self.now, key.as_bytes()).is_some()).count()
    }
}

impl Link {
    fn close(&mut self) {
        self.is_open = false;
        self.to_master.clear();
        self.to_engine.clear();
    }
}
