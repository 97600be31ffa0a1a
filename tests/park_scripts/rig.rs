//! A server, the scripts, and parked waiters.

use redlatch::scripts::SCRIPTS;
use redlatch_testing::Fleet;

use crate::wire::{Value, Wire};

pub const LOCK: &str = "lock";
pub const QUEUE: &str = "redlatch:wait:lock";
pub const FENCE: &str = "redlatch:fence:lock";
pub const HOUR_MS: i64 = 3_600_000;

/// Half of a fence's window, and the TTL of a fence.
pub const HALF_US: i64 = 3_600_000_000;
pub const FENCE_TTL_MS: i64 = 4 * HOUR_MS;

/// Names of the scripts.
pub const PARK: &str = "park";
pub const UNPARK: &str = "unpark";
pub const SERVE: &str = "serve";
pub const RELEASE: &str = "release_serve";
pub const FENCED_RELEASE: &str = "fenced_release_serve";
pub const SHARED_ACQUIRE: &str = "shared_acquire_queue";
pub const SHARED_RELEASE: &str = "shared_release_serve";
pub const FORCE_UNLOCK: &str = "force_unlock_serve";
pub const SWAP: &str = "swap_parked";

/// Text of a script with hours instead of seconds, so that no pause of the machine ends a stay or shifts a
/// ticket.
fn patient(name: &str) -> String {
    let script = SCRIPTS.iter().find(|it| it.name == name).expect("a script of this name");
    let long = script.text.replace("'redlatch:1:', 3000, 200", "'redlatch:1:', 36000000, 200");
    let long = long.replace("4096, 3000000", "4096, 3600000000");
    assert!(long.contains("36000000, 200") && long.contains("4096, 3600000000"), "constants of queue.lua");
    long
}

pub struct Rig {
    fleet: Fleet,
    pub admin: Wire,
    /// The server's clock at the start of the test, in microseconds.
    pub start_us: i64,
}

impl Rig {
    pub fn new() -> Rig {
        let mut fleet = Fleet::start(1).expect("a server starts");
        let mut admin = Wire::open(fleet.master(0).addr(), &[]);
        let start_us = clock_us(&mut admin);
        Rig { fleet, admin, start_us }
    }

    pub fn connect(&mut self, channels: &[&str]) -> Wire {
        Wire::open(self.fleet.master(0).addr(), channels)
    }

    /// A plain waiter with a connection. Its ticket has this place.
    pub fn waiter(&mut self, place: u16) -> Waiter {
        let channel = format!("redlatch:c:{place:022}");
        let wire = self.connect(&[&channel]);
        Waiter::new(wire, channel, self.start_us, place)
    }

    pub fn call(&mut self, words: &[&str]) -> Value {
        self.admin.call(words)
    }

    /// Runs the script with this name and the lock's keys.
    pub fn run(&mut self, name: &str, args: &[&str]) -> Value {
        let text = patient(name);
        let has_fence = ![SWAP, SHARED_ACQUIRE].contains(&name);
        let keys: &[&str] = if has_fence { &[LOCK, QUEUE, FENCE] } else { &[LOCK, QUEUE] };
        let key_count = keys.len().to_string();
        self.admin.call(&[&["EVAL", &text, &key_count], keys, args].concat())
    }

    /// Whether waiters were notified.
    pub fn serve(&mut self) -> i64 {
        self.run(SERVE, &[]).int() & 7
    }

    /// Digest of the value at the lock's key; zero if waiters were notified.
    pub fn look(&mut self) -> i64 {
        self.run(SERVE, &[]).int() >> 3
    }

    pub fn release(&mut self, value: &str) -> i64 {
        self.run(RELEASE, &[value]).int()
    }

    /// Another client acquires the lock.
    pub fn hold(&mut self, value: &str) {
        assert_eq!(self.call(&["SET", LOCK, value, "PX", &HOUR_MS.to_string()]), Value::Text("OK".into()));
    }

    /// Value of the lock's key.
    pub fn holder(&mut self) -> Option<String> {
        match self.call(&["GET", LOCK]) {
            Value::Null => None,
            value => Some(value.text().to_owned()),
        }
    }

    /// Ids in the queue, in the order of their tickets.
    pub fn waiting(&mut self) -> Vec<String> {
        self.entries().iter().map(|it| it[11..23].trim_start_matches("waiter-").to_owned()).collect()
    }

    pub fn entries(&mut self) -> Vec<String> {
        let entries = self.call(&["ZRANGE", QUEUE, "0", "-1"]);
        entries.list().iter().map(|it| it.text().to_owned()).collect()
    }

    pub fn entry_count(&mut self) -> i64 {
        self.call(&["ZCARD", QUEUE]).int()
    }

    /// Readers in the set, without the marker.
    pub fn readers(&mut self) -> Vec<String> {
        let members = self.call(&["ZRANGE", LOCK, "1", "-1"]);
        members.list().iter().map(|it| it.text().to_owned()).collect()
    }

    pub fn now_ms(&mut self) -> i64 {
        clock_us(&mut self.admin) / 1000
    }

    /// Returns once the server's clock has passed this millisecond.
    pub fn pass(&mut self, end_ms: i64) {
        while self.now_ms() <= end_ms {}
    }

    /// This waiter's grant must stand, with its TTL.
    pub fn assert_holds(&mut self, waiter: &Waiter) {
        assert_eq!(self.holder().as_deref(), Some(waiter.value.as_str()));
        let ttl_ms = self.call(&["PTTL", LOCK]).int();
        assert!((1..=waiter.grant_ms).contains(&ttl_ms) && ttl_ms > HOUR_MS / 2, "{ttl_ms} ms");
    }
}

pub fn clock_us(wire: &mut Wire) -> i64 {
    let time = wire.call(&["TIME"]);
    let [seconds, us] = time.list() else { panic!("{time:?}") };
    let number = |it: &Value| it.text().parse::<i64>().expect("a number");
    number(seconds) * 1_000_000 + number(us)
}

/// An answer to a park.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    Granted { ticket: i64, more: bool },
    Own,
    Waiting(Waiting),
    Error(String),
}

/// An answer to a waiter.
#[derive(Debug, Clone, PartialEq)]
pub struct Waiting {
    pub ticket: i64,
    pub more: bool,
    pub is_first: bool,
    pub left_ms: i64,
    pub readers: i64,
    pub label: String,
    pub reason: i64,
    pub fence: i64,
    pub digest: i64,
}

impl Answer {
    fn new(value: &Value) -> Answer {
        if let Value::Error(text) = value {
            return Answer::Error(text.clone());
        }
        let items = value.list();
        let ticket = items[1].int();
        assert!(items[2].int() > 1_600_000_000_000_000, "the master's clock: {value:?}");
        let more = items[3].int() == 1;
        match (items[0].int(), items.len()) {
            (1, 4) => Answer::Granted { ticket, more },
            (2, 4) => Answer::Own,
            (0, 11) => {
                let label = items[7].text().to_owned();
                let [first, left_ms, readers] = [4, 5, 6].map(|place: usize| items[place].int());
                let [reason, fence, digest] = [8, 9, 10].map(|place: usize| items[place].int());
                let is_first = first == 1;
                Answer::Waiting(Waiting {
                    ticket,
                    more,
                    is_first,
                    left_ms,
                    readers,
                    label,
                    reason,
                    fence,
                    digest,
                })
            }
            _ => panic!("no answer of a park: {value:?}"),
        }
    }

    pub fn is_granted(&self) -> bool {
        matches!(self, Answer::Granted { .. })
    }

    pub fn ticket(&self) -> i64 {
        match self {
            Answer::Granted { ticket, .. } | Answer::Waiting(Waiting { ticket, .. }) => *ticket,
            other => panic!("no ticket: {other:?}"),
        }
    }
}

/// A waiter and its next park.
pub struct Waiter {
    pub wire: Wire,
    pub place: u16,
    pub round: u32,
    pub ticket: i64,
    /// The server's last answered ticket; empty if unknown.
    pub at: String,
    /// Time of the first request, from which the waiting time follows.
    pub asked_us: i64,
    pub old: String,
    pub yields: bool,
    pub mode: char,
    pub stay_ms: i64,
    pub fresh_ms: i64,
    pub grant_ms: i64,
    pub channel: String,
    pub vote: String,
    pub token: i64,
    pub fence_ttl_ms: i64,
    pub value: String,
}

impl Waiter {
    fn new(wire: Wire, channel: String, start_us: i64, place: u16) -> Waiter {
        let ticket = start_us + i64::from(place) * 1000;
        let mut waiter = Waiter {
            wire,
            place,
            round: 0,
            ticket,
            at: ticket.to_string(),
            asked_us: start_us,
            old: String::new(),
            yields: false,
            mode: 'p',
            stay_ms: HOUR_MS,
            fresh_ms: HOUR_MS,
            grant_ms: HOUR_MS,
            channel,
            vote: String::new(),
            token: start_us + i64::from(place),
            fence_ttl_ms: FENCE_TTL_MS,
            value: String::new(),
        };
        waiter.begin_round(1);
        waiter
    }

    fn begin_round(&mut self, round: u32) {
        self.round = round;
        self.vote = format!("v{:03}{round:04}", self.place);
        self.value = format!("token-{:05}-{round:08}", self.place);
    }

    /// The next attempt: a new value and vote, with the last value as the old one.
    pub fn next_round(&mut self) {
        self.old = self.value.clone();
        self.begin_round(self.round + 1);
    }

    pub fn fenced(mut self) -> Waiter {
        self.mode = 'f';
        self
    }

    pub fn reader(mut self) -> Waiter {
        self.mode = 'r';
        self
    }

    pub fn name(&self) -> String {
        format!("{:05}", self.place)
    }

    pub fn park(&mut self) -> Answer {
        let waited_us = clock_us(&mut self.wire) - self.asked_us;
        let fenced = match self.mode {
            'f' => format!("{:016}{HALF_US:012}{:010}", self.token, self.fence_ttl_ms),
            _ => String::new(),
        };
        let words = [
            "EVAL".to_owned(),
            patient(PARK),
            "3".to_owned(),
            LOCK.to_owned(),
            QUEUE.to_owned(),
            FENCE.to_owned(),
            format!("waiter-{:05}", self.place),
            self.round.to_string(),
            self.ticket.to_string(),
            self.at.clone(),
            waited_us.to_string(),
            self.old.clone(),
            u8::from(self.yields).to_string(),
            self.mode.to_string(),
            self.stay_ms.to_string(),
            self.fresh_ms.to_string(),
            self.grant_ms.to_string(),
            self.channel.clone(),
            self.vote.clone(),
            fenced,
            self.value.clone(),
        ];
        let answer = Answer::new(&self.wire.call(&words));
        if matches!(answer, Answer::Granted { .. } | Answer::Waiting(_)) {
            self.at = answer.ticket().to_string();
        }
        answer
    }

    /// Parks without a grant. Returns the answer.
    pub fn waits(&mut self) -> Waiting {
        match self.park() {
            Answer::Waiting(waiting) => waiting,
            other => panic!("it does not wait: {other:?}"),
        }
    }

    pub fn unpark(&mut self, rig: &mut Rig) -> i64 {
        rig.run(UNPARK, &[&self.at, &self.value, "", "", ""]).int()
    }

    pub fn messages(&mut self) -> Vec<String> {
        self.wire.messages()
    }

    pub fn ring(&self) -> String {
        format!("{}r", self.vote)
    }
}
