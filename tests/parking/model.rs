//! A model: its bounds, and the rule that is broken on purpose.

use crate::defect::Defect;
use crate::property::Property;
use crate::state::{Client, Connection, Faults, Link, MASTERS, Master, Phase, State};

/// Order of a master's queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Any entry may be the first: tickets play no part in safety.
    Any,
    /// The lower client is first everywhere.
    SameTickets,
    /// Each master has another client first, as with clocks that differ.
    OwnTickets,
}

/// Bounds of a search, and what takes part.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Ticks of a grant, and of a quarantine.
    pub ttl: u8,
    /// Locks that each client takes, one after the other.
    pub locks: u8,
    /// Rounds of one wait; 0: no limit.
    pub rounds: u8,
    /// A round begins only when nothing of the last one is under way on a connection that stands.
    pub calm: bool,
    pub order: Order,
    /// The first attempt may be `SET NX`.
    pub sets: bool,
    /// The last client does not park: each round is a release and a `SET NX`.
    pub polls: bool,
    /// A lock got by `SET NX` may be released without a script.
    pub native: bool,
    /// Step 1 of the change: an entry is never served, only rung.
    pub rings_only: bool,
    /// A round may let others have the keys that the last one got.
    pub yields: bool,
    /// A round may leave the masters of its part to others, and park there later.
    pub aside: bool,
    /// The last master is never there.
    pub is_one_dead: bool,
    /// Answers that no vote depends on arrive at once. It makes the space smaller.
    pub prompt: bool,
    pub faults: Faults,
    /// The properties that are looked at.
    pub properties: &'static [Property],
}

impl Setting {
    /// Two rounds of one lock for each client, and no faults.
    pub const PLAIN: Setting = Setting {
        ttl: 1,
        locks: 1,
        rounds: 2,
        calm: false,
        order: Order::Any,
        sets: false,
        polls: false,
        native: false,
        rings_only: false,
        yields: false,
        aside: false,
        is_one_dead: false,
        prompt: true,
        faults: Faults {
            breaks: 0,
            restarts: 0,
            saves: 0,
            crashes: 0,
            cancels: 0,
            forces: 0,
            stays: 0,
            full: 0,
            rejections: 0,
            repairs: 0,
        },
        properties: crate::property::ALL,
    };
}

/// Kind of a step, for the question which waiters can be served.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// It happens by itself: a message arrives, a master carries out a command, a client does what it owes.
    Move,
    /// A timer of a waiter: a heartbeat, a bare serve, an owed command that is repeated.
    Timer,
    /// A tick, or the end of a stay.
    Clock,
    /// A fault, or a caller who gives up.
    Fault,
}

pub struct Step<const C: usize> {
    pub state: State<C>,
    pub kind: Kind,
    /// What happened, in words, if words are wanted.
    pub words: String,
}

/// Collects the steps that are possible in one state.
pub struct Steps<const C: usize> {
    pub all: Vec<Step<C>>,
    pub with_words: bool,
}

impl<const C: usize> Steps<C> {
    pub fn new(with_words: bool) -> Self {
        Steps { all: Vec::new(), with_words }
    }

    pub fn add(&mut self, state: State<C>, kind: Kind, words: impl FnOnce() -> String) {
        let words = if self.with_words { words() } else { String::new() };
        self.all.push(Step { state, kind, words });
    }
}

#[derive(Clone, Copy)]
pub struct Model<const C: usize> {
    pub setting: Setting,
    defect: Option<Defect>,
}

impl<const C: usize> Model<C> {
    pub fn new(setting: Setting, defect: Option<Defect>) -> Self {
        Model { setting, defect }
    }

    pub fn has(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }

    /// Notes that the step which is being made breaks a property.
    pub fn judge(&self, state: &mut State<C>, property: Property, holds: bool) {
        if !holds && state.broken.is_none() && self.setting.properties.contains(&property) {
            state.broken = Some(property);
        }
    }

    pub fn initial(&self) -> State<C> {
        let mut state = State {
            masters: [Master {
                key: None,
                quarantine: 0,
                saved: None,
                lowest: 0,
                is_silent: false,
                written: 0,
                links: [Link::default(); C],
            }; MASTERS],
            clients: [Client::default(); C],
            left: self.setting.faults,
            broken: None,
        };
        if self.setting.is_one_dead {
            state.masters[MASTERS - 1].links.iter_mut().for_each(|link| link.connection = Connection::Down);
        }
        if self.setting.order == Order::OwnTickets {
            let lowest = (0..C).cycle().zip(&mut state.masters);
            lowest.for_each(|(client, master)| master.lowest = u8::try_from(client).expect("few clients"));
        }
        state
    }

    /// Whether a client polls instead of parking.
    pub fn polls(&self, client: usize) -> bool {
        self.setting.polls && client == C - 1
    }

    /// Clients in the order of their tickets at a master.
    pub fn by_ticket(&self, state: &State<C>, master: usize) -> impl Iterator<Item = usize> + use<C> {
        let lowest = usize::from(state.masters[master].lowest);
        (0..C).map(move |place| (lowest + place) % C)
    }

    /// Drops what can have no effect any more, so that states which differ only in that are one.
    pub fn tidy(&self, state: &mut State<C>) {
        for client in 0..C {
            let (phase, current) = (state.clients[client].phase, state.clients[client].token);
            let is_trying = phase == Phase::Trying;
            for master in &mut state.masters {
                let link = &mut master.links[client];
                let hears_all = self.hears_all();
                link.answers
                    .retain(|answer| answer.matters(is_trying.then_some(current).flatten()) || hears_all);
                if phase == Phase::Crashed || link.connection == Connection::Down {
                    link.answers.clear();
                }
                if !is_trying {
                    (link.has_voted, link.is_void, link.is_quarantined) = (false, false, false);
                    (link.is_entry_lost, link.is_left) = (false, false);
                }
            }
            if matches!(phase, Phase::Idle | Phase::Crashed) {
                let locks = state.clients[client].locks;
                state.clients[client] = Client { phase, locks, ..Client::default() };
            }
        }
        for master in &mut state.masters {
            let written = master.written;
            if written != 0 {
                master.written = master.mentioned() & written;
            }
            let has_entry = master.links.iter().any(|link| link.entry.is_some());
            master.is_silent &= master.key.is_none() && has_entry;
        }
    }

    /// Whether a defect listens to answers that mean nothing.
    fn hears_all(&self) -> bool {
        self.has(Defect::LateVoteCounted)
            || self.has(Defect::HeldUnparked)
            || self.has(Defect::ResentAfterUnpark)
    }
}
