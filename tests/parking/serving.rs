//! Whether each waiter can still be served, from every state of a whole space.
//!
//! A waiter that no sequence of steps without a further fault leads to the lock is stuck. Steps are moves and
//! timers, and the clock where keys may have to expire first; other clients' releases are moves. The search
//! asks for one way to the lock, not that each way leads there.

use std::fmt;

use crate::model::{Kind, Model};
use crate::search::{Explored, Id, Limit, Violation, Visitor, visit};
use crate::state::{Phase, State};

/// The steps of a space, and which clients wait and hold in each state.
struct Graph {
    /// The last kind of steps that may be needed.
    up_to: Kind,
    /// Sets of clients, by state.
    waiting: Vec<u8>,
    holding: Vec<u8>,
    /// From, and to.
    steps: Vec<(Id, Id)>,
}

impl<const C: usize> Visitor<C> for Graph {
    fn visit_state(&mut self, state: &State<C>) {
        let set = |phase| {
            (0..C)
                .filter(|client| state.clients[*client].phase == phase)
                .fold(0, |set, client| set | 1 << client)
        };
        self.waiting.push(set(Phase::Trying));
        self.holding.push(set(Phase::Holding));
    }

    fn visit_step(&mut self, from: Id, to: Id, kind: Kind) {
        if kind <= self.up_to && from != to {
            self.steps.push((from, to));
        }
    }
}

/// A waiter that can never be served.
pub struct Stuck {
    pub client: usize,
    pub steps: Vec<String>,
    pub stuck_count: usize,
    pub waiting_count: usize,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stuck { stuck_count, waiting_count, .. } = self;
        let name = crate::steps::name(self.client);
        writeln!(
            f,
            "{name} waits in {waiting_count} states, and can never be served in {stuck_count} of them. To one:"
        )?;
        self.steps
            .iter()
            .enumerate()
            .try_for_each(|(number, words)| writeln!(f, "  {:2}. {words}", number + 1))
    }
}

/// What the search for stuck waiters found.
pub enum Served {
    Each(Explored),
    /// What lies behind a part of the space is unknown.
    Unknown(Explored),
    Stuck(Stuck),
    Violation(Box<Violation>),
}

/// Looks for a waiter that can never be served.
pub fn serves_each<const C: usize>(model: &Model<C>, limit: Limit, up_to: Kind) -> Served {
    let mut graph = Graph { up_to, waiting: Vec::new(), holding: Vec::new(), steps: Vec::new() };
    let visited = match visit(model, limit, &mut graph) {
        Ok(visited) => visited,
        Err(violation) => return Served::Violation(violation),
    };
    if !visited.explored.is_whole {
        return Served::Unknown(visited.explored);
    }
    let before = Before::new(&graph);
    for client in 0..C {
        let is_of = |set: &u8| set & 1 << client != 0;
        let can_hold = before.reaching(&graph.holding, is_of);
        let waits = |id: &usize| is_of(&graph.waiting[*id]);
        let waiting_count = (0..can_hold.len()).filter(waits).count();
        let mut stuck = (0..can_hold.len()).filter(waits).filter(|id| !can_hold[*id]);
        if let Some(first) = stuck.next() {
            let steps = visited.steps_to(model, Id::try_from(first).expect("it is an id"));
            return Served::Stuck(Stuck { client, steps, stuck_count: 1 + stuck.count(), waiting_count });
        }
    }
    Served::Each(visited.explored)
}

/// The states from which each state is reached in one step.
struct Before {
    /// Where the list of a state begins; the next one's begin is its end.
    begins: Vec<usize>,
    from: Vec<Id>,
}

impl Before {
    fn new(graph: &Graph) -> Before {
        let mut begins = vec![0; graph.waiting.len() + 1];
        graph.steps.iter().for_each(|(_, to)| begins[*to as usize + 1] += 1);
        for id in 1..begins.len() {
            begins[id] += begins[id - 1];
        }
        let mut places = begins.clone();
        let mut from = vec![0; graph.steps.len()];
        for (source, to) in &graph.steps {
            from[places[*to as usize]] = *source;
            places[*to as usize] += 1;
        }
        Before { begins, from }
    }

    /// Which states lead to one of the wanted.
    fn reaching(&self, sets: &[u8], is_wanted: impl Fn(&u8) -> bool) -> Vec<bool> {
        let mut reaches: Vec<bool> = sets.iter().map(is_wanted).collect();
        let mut open: Vec<usize> = (0..reaches.len()).filter(|id| reaches[*id]).collect();
        while let Some(id) = open.pop() {
            for &from in &self.from[self.begins[id]..self.begins[id + 1]] {
                if !std::mem::replace(&mut reaches[from as usize], true) {
                    open.push(from as usize);
                }
            }
        }
        reaches
    }
}
