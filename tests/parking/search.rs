//! Breadth-first search over all states of a model, so that the steps to a violation are the fewest.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::time::{Duration, Instant};

use crate::model::{Kind, Model, Order, Steps};
use crate::packed::{Namings, links_of};
use crate::property::Property;
use crate::state::State;

/// Between two lines that show how far a long search is.
const PROGRESS_PAUSE: Duration = Duration::from_secs(10);

/// The steps that broke a property.
pub struct Violation {
    pub property: Property,
    pub steps: Vec<String>,
    pub state_count: usize,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = self.steps.len();
        writeln!(f, "{:?} broken after {steps} steps, among {} states:", self.property, self.state_count)?;
        self.steps
            .iter()
            .enumerate()
            .try_for_each(|(number, words)| writeln!(f, "  {:2}. {words}", number + 1))
    }
}

/// A space without a violation.
#[derive(Clone, Copy, Debug)]
pub struct Explored {
    pub state_count: usize,
    pub step_count: u64,
    pub depth: usize,
    pub took: Duration,
    /// The whole space, not only up to the limit.
    pub is_whole: bool,
}

impl fmt::Display for Explored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Explored { state_count, step_count, depth, took, is_whole } = self;
        let what = if *is_whole { "the whole space" } else { "a part" };
        write!(
            f,
            "{what}: {state_count} states, {step_count} steps, depth {depth}, {:.1} s",
            took.as_secs_f64()
        )
    }
}

/// What a search may cost.
#[derive(Clone, Copy)]
pub struct Limit {
    pub states: usize,
    pub time: Duration,
}

/// Fingerprints are hashes already.
#[derive(Default)]
pub struct Unhashed(u64);

impl Hasher for Unhashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("fingerprints are numbers");
    }

    fn write_u128(&mut self, number: u128) {
        self.0 = u64::try_from(number >> 64).expect("half of it");
    }
}

/// How a state was first reached: from which one, by which of its steps.
#[derive(Clone, Copy)]
struct Origin {
    from: Id,
    step: u16,
}

/// Number of a state, in the order in which they are found.
pub type Id = u32;

/// Gets each state and each step of a search.
pub trait Visitor<const C: usize> {
    fn visit_state(&mut self, state: &State<C>);
    fn visit_step(&mut self, from: Id, to: Id, kind: Kind);
}

/// Only violations matter.
struct NoVisitor;

impl<const C: usize> Visitor<C> for NoVisitor {
    fn visit_state(&mut self, _: &State<C>) {}
    fn visit_step(&mut self, _: Id, _: Id, _: Kind) {}
}

/// The states that a search has found, and how.
pub struct Found {
    ids: HashMap<u128, Id, BuildHasherDefault<Unhashed>>,
    origins: Vec<Origin>,
    started: Instant,
    step_count: u64,
    depth: usize,
}

/// Looks at each state that can be reached.
pub fn search<const C: usize>(model: &Model<C>, limit: Limit) -> Result<Explored, Box<Violation>> {
    visit(model, limit, &mut NoVisitor).map(|found| found.explored)
}

/// A search without a violation.
pub struct Visited {
    pub explored: Explored,
    found: Found,
}

impl Visited {
    /// The steps to a state, in words.
    pub fn steps_to<const C: usize>(&self, model: &Model<C>, id: Id) -> Vec<String> {
        self.found.words(model, id, None)
    }
}

/// The same, and shows all to a visitor.
pub fn visit<const C: usize>(
    model: &Model<C>,
    limit: Limit,
    visitor: &mut impl Visitor<C>,
) -> Result<Visited, Box<Violation>> {
    let mut found = Found::new();
    let first = model.initial();
    let namings = Namings::new(model.setting.order == Order::Any && !model.setting.polls);
    found.add(namings.fingerprint(&first), Origin { from: 0, step: 0 });
    visitor.visit_state(&first);
    let mut frontier = vec![(0, first)];
    let mut steps = Steps::new(false);
    let mut printed = found.started;
    while !frontier.is_empty() {
        let mut next = Vec::new();
        for (id, state) in &frontier {
            steps.all.clear();
            model.steps(state, &mut steps);
            found.step_count += steps.all.len() as u64;
            let links = links_of(state);
            for (step, after) in steps.all.iter().enumerate() {
                let origin =
                    Origin { from: *id, step: u16::try_from(step).expect("few steps from one state") };
                if let Some(property) = after.state.violation(model.setting.properties) {
                    let steps = found.words(model, *id, Some(origin.step));
                    return Err(Box::new(Violation { property, steps, state_count: found.origins.len() }));
                }
                let fingerprint = namings.fingerprint_after(&after.state, state, &links);
                let (to, is_new) = found.add(fingerprint, origin);
                if is_new {
                    visitor.visit_state(&after.state);
                    next.push((to, after.state));
                }
                visitor.visit_step(*id, to, after.kind);
            }
            if printed.elapsed() >= PROGRESS_PAUSE {
                printed = Instant::now();
                println!("… {}", found.explored(false));
            }
            if found.origins.len() > limit.states || found.started.elapsed() > limit.time {
                return Ok(Visited { explored: found.explored(false), found });
            }
        }
        found.depth += 1;
        frontier = next;
    }
    Ok(Visited { explored: found.explored(true), found })
}

impl Found {
    fn new() -> Found {
        Found {
            ids: HashMap::default(),
            origins: Vec::new(),
            started: Instant::now(),
            step_count: 0,
            depth: 0,
        }
    }

    /// The number of a state, and whether it is new.
    fn add(&mut self, fingerprint: u128, origin: Origin) -> (Id, bool) {
        let next = Id::try_from(self.origins.len()).expect("states fit into 32 bits");
        match self.ids.entry(fingerprint) {
            Entry::Occupied(entry) => (*entry.get(), false),
            Entry::Vacant(entry) => {
                entry.insert(next);
                self.origins.push(origin);
                (next, true)
            }
        }
    }

    fn explored(&self, is_whole: bool) -> Explored {
        let (state_count, took) = (self.origins.len(), self.started.elapsed());
        Explored { state_count, step_count: self.step_count, depth: self.depth, took, is_whole }
    }

    /// The steps to a state and a last one, in words: walks them once more from the beginning.
    fn words<const C: usize>(&self, model: &Model<C>, mut at: Id, last: Option<u16>) -> Vec<String> {
        let mut path: Vec<u16> = last.into_iter().collect();
        while at != 0 {
            let origin = self.origins[at as usize];
            path.push(origin.step);
            at = origin.from;
        }
        let mut state = model.initial();
        let mut steps = Steps::new(true);
        let mut all = Vec::new();
        for step in path.into_iter().rev() {
            steps.all.clear();
            model.steps(&state, &mut steps);
            let step = steps.all.swap_remove(usize::from(step));
            state = step.state;
            all.push(step.words);
        }
        all
    }
}
