//! A master's part: what `SET NX`, park, unpark, release and serve do to the key and the queue.
//!
//! A script is carried out whole. Where any entry may be the first, or a write may fail, a command has
//! several outcomes.

use crate::defect::Defect;
use crate::model::{Kind, Model, Order, Steps};
use crate::property::Property;
use crate::state::{Answer, Command, Connection, Doubt, Entry, Key, Link, MASTERS, State, Stay, Token};

/// How a command came.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    OnTime,
    /// Over a connection that the client has given up: nobody gets its answer.
    Late,
}

/// Parameters of `serve`.
#[derive(Clone, Copy, Default)]
struct Serving {
    /// The client whose call serves; its own entry is answered, not published.
    caller: Option<usize>,
    /// The client whose entry is passed over.
    but: Option<usize>,
}

/// What the first entry of a queue comes to.
enum Course {
    Stops,
    GoesOn,
}

/// The states that a script can end in.
type Ends<const C: usize> = Vec<State<C>>;

impl<const C: usize> Model<C> {
    /// A master carries out the next command of a client.
    pub fn carry_out(
        &self,
        state: &State<C>,
        (client, master): (usize, usize),
        arrival: Arrival,
        steps: &mut Steps<C>,
    ) {
        let mut state = *state;
        let link = state.link_mut(client, master);
        let queue = if arrival == Arrival::OnTime { &mut link.commands } else { &mut link.late };
        let command = queue.pop().expect("a command is under way");
        let at = (client, master);
        if let Command::Park { token, old, .. } = command
            && arrival == Arrival::OnTime
            && state.left.rejections > 0
        {
            self.reject(&state, at, (token, old), steps);
        }
        for mut end in self.outcomes(state, at, command, arrival) {
            let answer = self.answer(&state, &mut end, at, command);
            if let (Some(answer), Arrival::OnTime) = (answer, arrival) {
                self.reply(&mut end, at, answer);
            }
            steps.add(end, Kind::Move, || {
                let late = if arrival == Arrival::Late { "late " } else { "" };
                format!("m{master} carries out the {late}{command}{}", describe(&end, master))
            });
        }
    }

    /// A master answers a park by an error: it carried nothing out, or its queue is full.
    fn reject(
        &self,
        state: &State<C>,
        (client, master): (usize, usize),
        (token, old): (Token, Option<Token>),
        steps: &mut Steps<C>,
    ) {
        let mut state = *state;
        state.left.rejections -= 1;
        let mut refused = state;
        refused.link_mut(client, master).answers.push(Answer::Rejected { token, old });
        steps.add(refused, Kind::Fault, || format!("m{master} answers the park of {token} with an error"));
        let has_deleted = old.is_some_and(|old| self.end(&mut state, master, old));
        let link = state.link_mut(client, master);
        (link.entry, link.is_entry_lost) = (None, true);
        let ends = match has_deleted && self.has(Defect::FullServesNobody) {
            true => vec![state],
            false => self.serve(state, master, Serving::default()),
        };
        for mut end in ends {
            // A failed vote: nothing is sent for this token again.
            self.reply(&mut end, (client, master), Answer::Waiting(token));
            steps.add(end, Kind::Fault, || {
                format!("m{master} has no place for the park of {token}{}", describe(&end, master))
            });
        }
    }

    fn outcomes(
        &self,
        mut state: State<C>,
        at: (usize, usize),
        command: Command,
        arrival: Arrival,
    ) -> Ends<C> {
        let (client, master) = at;
        match command {
            Command::Set(token) | Command::Repair(token) => {
                if state.masters[master].key.is_none() {
                    self.write(&mut state, master, token, matches!(command, Command::Set(_)));
                }
                vec![state]
            }
            Command::Park { token, old, yields } => self.park(state, at, token, (old, yields), arrival),
            Command::Unpark(token) => {
                let link = state.link_mut(client, master);
                let is_its =
                    link.entry.is_some_and(|entry| entry.token == token) || self.has(Defect::UnparkById);
                if is_its && !self.has(Defect::UnparkKeepsEntry) {
                    link.entry = None;
                }
                if !self.has(Defect::UnparkKeepsKey) {
                    self.end(&mut state, master, token);
                }
                if self.has(Defect::UnparkServesNobody) {
                    return vec![state];
                }
                self.serve(state, master, Serving::default())
            }
            Command::Release(token) => {
                let has_deleted = self.end(&mut state, master, token);
                if !has_deleted || self.has(Defect::ReleaseServesNobody) {
                    return vec![state];
                }
                self.serve(state, master, Serving::default())
            }
            Command::NativeRelease(token) => {
                state.masters[master].is_silent |= self.end(&mut state, master, token);
                vec![state]
            }
            Command::Serve => self.serve(state, master, Serving::default()),
        }
    }

    fn park(
        &self,
        mut state: State<C>,
        at: (usize, usize),
        token: Token,
        (old, yields): (Option<Token>, bool),
        arrival: Arrival,
    ) -> Ends<C> {
        let (client, master) = at;
        if state.masters[master].key.is_some_and(|key| key.token == token) {
            return vec![state];
        }
        let had_old = match old {
            Some(_) if self.has(Defect::OldUnchecked) => self.remove(&mut state, master, old),
            Some(old) => self.end(&mut state, master, old),
            None => false,
        };
        let is_of_old_channel = arrival == Arrival::Late;
        let link = state.link_mut(client, master);
        let is_later =
            |entry: Entry| is_of_old_channel && Some(entry.token) == link.last && entry.token != token;
        if link.entry.is_some_and(is_later) && !self.has(Defect::LaterEntryReplaced) {
            return self.serve(state, master, Serving::default());
        }
        link.entry = Some(Entry { token, stay: Stay::Fresh, is_of_old_channel });
        let own = Serving { caller: Some(client), ..Serving::default() };
        if had_old && yields {
            let others = Serving { but: Some(client), ..Serving::default() };
            let yielded = self.serve(state, master, others);
            return yielded.into_iter().flat_map(|state| self.serve(state, master, own)).collect();
        }
        self.serve(state, master, own)
    }

    /// `serve(K, Q)`, for each order of the queue that is possible.
    fn serve(&self, state: State<C>, master: usize, serving: Serving) -> Ends<C> {
        let mut ends = Vec::new();
        let mut open = vec![state];
        while let Some(mut state) = open.pop() {
            state.masters[master].is_silent = false;
            let waiting =
                |client: &usize| state.link(*client, master).entry.is_some() && serving.but != Some(*client);
            let firsts: Vec<usize> = self.by_ticket(&state, master).filter(waiting).collect();
            if firsts.is_empty() {
                ends.push(state);
            }
            let choices = if self.setting.order == Order::Any { firsts.len() } else { 1 };
            for &first in firsts.iter().take(choices) {
                let mut next = state;
                let entry = next.link_mut(first, master).entry.take().expect("it waits");
                if state.left.full > 0 {
                    ends.extend(self.failing(&state, (first, master), entry, serving));
                }
                match self.serve_first(&mut next, (first, master), entry, serving) {
                    Course::Stops => ends.push(next),
                    Course::GoesOn => open.push(next),
                }
            }
        }
        ends
    }

    /// Serves the first entry, which has been taken out of the queue; it may go back.
    fn serve_first(
        &self,
        state: &mut State<C>,
        at: (usize, usize),
        entry: Entry,
        serving: Serving,
    ) -> Course {
        let (client, master) = at;
        let is_own = serving.caller == Some(client);
        let key = state.masters[master].key;
        let back = |state: &mut State<C>| state.link_mut(client, master).entry = Some(entry);
        if key.is_some_and(|key| key.token == entry.token) && !self.has(Defect::RepairUndone) {
            return Course::GoesOn;
        }
        if entry.stay == Stay::Over && !is_own {
            if self.has(Defect::OverEntryStays) {
                back(state);
                return Course::Stops;
            }
            return Course::GoesOn;
        }
        if key.is_some_and(|key| key.token != entry.token) && !self.has(Defect::ServedOverKey) {
            back(state);
            return Course::Stops;
        }
        let only_rings = self.setting.rings_only || entry.stay != Stay::Fresh;
        if is_own && !(only_rings && self.has(Defect::OwnEntryRung)) {
            self.write(state, master, entry.token, true);
            if self.has(Defect::EntryStays) {
                back(state);
            }
            return Course::Stops;
        }
        if self.has(Defect::ParkServesItselfOnly) && serving.caller.is_some() {
            back(state);
            return Course::Stops;
        }
        if only_rings { self.ring(state, at, entry) } else { self.grant(state, at, entry) }
    }

    /// Writes the key for the first waiter and publishes its vote.
    fn grant(&self, state: &mut State<C>, at: (usize, usize), entry: Entry) -> Course {
        let (client, master) = at;
        let was_absent = state.masters[master].key.is_none();
        self.write(state, master, entry.token, true);
        if self.has(Defect::EntryStays) {
            state.link_mut(client, master).entry = Some(entry);
        }
        if self.publish(state, at, entry, Answer::Vote(entry.token)) {
            return Course::Stops;
        }
        if self.has(Defect::UnreceivedKept) {
            self.judge(state, Property::WrittenOnce, false);
            return Course::Stops;
        }
        self.judge(state, Property::NamedRemoval, was_absent);
        state.masters[master].key = None;
        state.masters[master].written &= !entry.token.bit();
        if self.has(Defect::UndoneStops) { Course::Stops } else { Course::GoesOn }
    }

    fn ring(&self, state: &mut State<C>, at: (usize, usize), entry: Entry) -> Course {
        if !self.publish(state, at, entry, Answer::Ring(entry.token)) {
            return Course::GoesOn;
        }
        state.link_mut(at.0, at.1).entry = Some(Entry { stay: Stay::Rung, ..entry });
        Course::Stops
    }

    /// Publishes to a waiter; false if nobody receives it.
    fn publish(
        &self,
        state: &mut State<C>,
        (client, master): (usize, usize),
        entry: Entry,
        push: Answer,
    ) -> bool {
        let link = state.link_mut(client, master);
        let is_for_present = !entry.is_of_old_channel || self.has(Defect::OneChannel);
        if is_for_present && link.connection == Connection::Up {
            let is_again =
                matches!(push, Answer::Ring(_)) && link.answers.iter().any(|answer| *answer == push);
            if !is_again {
                link.answers.push(push);
            }
            return true;
        }
        link.has_old
    }

    /// The write for this first entry fails.
    fn failing(
        &self,
        state: &State<C>,
        at: (usize, usize),
        entry: Entry,
        serving: Serving,
    ) -> Option<State<C>> {
        let (client, master) = at;
        if state.masters[master].key.is_some() || serving.caller == Some(client) || entry.stay != Stay::Fresh
        {
            return None;
        }
        let mut state = *state;
        state.left.full -= 1;
        if self.has(Defect::PublishedFirst) {
            self.publish(&mut state, at, entry, Answer::Vote(entry.token));
        }
        // The key stays free until somebody asks again.
        state.masters[master].is_silent = true;
        Some(state)
    }

    fn write(&self, state: &mut State<C>, master: usize, token: Token, once: bool) {
        let it = &state.masters[master];
        let is_first = it.written & token.bit() == 0 || !once;
        let is_absent = it.key.is_none();
        self.judge(state, Property::WrittenOnce, is_first && is_absent);
        let it = &mut state.masters[master];
        let ttl = self.setting.ttl - u8::from(self.has(Defect::ShortGrant));
        it.key = (ttl > 0).then_some(Key { token, ttl });
        if once {
            it.written |= token.bit();
        }
        it.is_silent = false;
    }

    /// Deletes the key if it has this value; a defect looks at no value.
    fn end(&self, state: &mut State<C>, master: usize, token: Token) -> bool {
        let is_its = state.masters[master].key.is_some_and(|key| key.token == token);
        if is_its || self.has(Defect::UnparkUnchecked) {
            self.remove(state, master, Some(token))
        } else {
            false
        }
    }

    /// Deletes the key, for a command that names this token.
    pub fn remove(&self, state: &mut State<C>, master: usize, named: Option<Token>) -> bool {
        let Some(key) = state.masters[master].key.take() else { return false };
        self.judge(state, Property::NamedRemoval, named == Some(key.token));
        true
    }

    /// An operator deletes the key, whatever it has.
    pub fn force(&self, state: &State<C>, master: usize, steps: &mut Steps<C>) {
        let mut state = *state;
        state.left.forces -= 1;
        let Some(key) = state.masters[master].key.take() else { return };
        let owner = key.token.owner();
        if state.current(owner) == Some(key.token) {
            state.clients[owner].is_forced = true;
        }
        for end in self.serve(state, master, Serving::default()) {
            let words = || {
                format!("an operator forces the key {} from m{master}{}", key.token, describe(&end, master))
            };
            steps.add(end, Kind::Fault, words);
        }
    }

    /// What the caller is answered.
    fn answer(
        &self,
        before: &State<C>,
        end: &mut State<C>,
        at: (usize, usize),
        command: Command,
    ) -> Option<Answer> {
        let (client, master) = at;
        let had_key = |it: Token| before.masters[master].key.is_some_and(|key| key.token == it);
        let has_key = end.masters[master].key.is_some_and(
            |key| matches!(command, Command::Set(token) | Command::Park { token, .. } if token == key.token),
        );
        match command {
            Command::Set(token) | Command::Park { token, .. } => {
                // A key that has the value already is no vote, except for a client that keeps its token.
                let is_vote = has_key && (!had_key(token) || self.has(Defect::TokenKept));
                Some(if is_vote { Answer::Granted(token) } else { Answer::Waiting(token) })
            }
            Command::Unpark(token) | Command::Release(token) | Command::NativeRelease(token) => {
                let link = before.link(client, master);
                let had_entry = link.entry.is_some_and(|entry| entry.token == token);
                let settles = match link.has_old {
                    false => Doubt::Twice,
                    true if had_key(token) || had_entry => Doubt::Once,
                    true => Doubt::None,
                };
                Some(Answer::Ended { token, settles })
            }
            Command::Repair(token) => Some(Answer::Waiting(token)),
            Command::Serve => None,
        }
    }

    /// An answer is under way, or arrives at once where nothing depends on its time.
    fn reply(&self, state: &mut State<C>, (client, master): (usize, usize), answer: Answer) {
        match answer {
            Answer::Granted(token) if self.setting.prompt => {
                state.link_mut(client, master).answers.push(Answer::Vote(token));
                self.settle(state, client, master, token);
            }
            answer if self.setting.prompt => self.receive(state, (client, master), answer),
            answer => state.link_mut(client, master).answers.push(answer),
        }
    }

    /// The process of a master ends, and another one takes its place.
    pub fn restart(&self, state: &State<C>, master: usize, from_snapshot: bool, steps: &mut Steps<C>) {
        let mut state = *state;
        state.left.restarts -= 1;
        let it = &mut state.masters[master];
        let saved = it.saved.take().filter(|_| from_snapshot);
        it.key = saved.and_then(|saved| saved.key);
        it.quarantine = self.setting.ttl - u8::from(self.has(Defect::ShortQuarantine));
        it.written = 0;
        it.is_silent = true;
        for (client, link) in it.links.iter_mut().enumerate() {
            link.entry = saved.and_then(|saved| saved.entries[client]);
            let entry = &mut link.entry;
            entry.iter_mut().for_each(|entry| entry.is_of_old_channel = true);
            link.is_restored |= from_snapshot;
            link.late.clear();
            link.commands.clear();
            link.has_old = false;
            if link.connection != Connection::Down {
                link.connection = Connection::Broken;
                link.is_of_old_process = true;
            }
        }
        let what = if from_snapshot { "from its snapshot" } else { "empty" };
        steps.add(state, Kind::Fault, || format!("m{master} restarts {what}{}", describe(&state, master)));
    }

    /// The server's end of a connection ends, or is given up by the client; what was sent arrives late.
    pub fn break_connection(link: &mut Link, to: Connection) {
        link.late = link.commands;
        link.commands.clear();
        link.has_old = true;
        link.connection = to;
        link.entry.iter_mut().for_each(|entry| entry.is_of_old_channel = true);
    }
}

/// The key and the queue of a master, in words.
pub fn describe<const C: usize>(state: &State<C>, master: usize) -> String {
    debug_assert!(master < MASTERS);
    let it = &state.masters[master];
    let mut words = match it.key {
        Some(key) => format!("; there: key {}", key.token),
        None => "; there: no key".to_owned(),
    };
    for entry in it.links.iter().filter_map(|link| link.entry) {
        let channel = if entry.is_of_old_channel { " of an old channel" } else { "" };
        words += &format!(", entry {} ({:?}{channel})", entry.token, entry.stay);
    }
    words
}

impl std::fmt::Display for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Command::Set(token) => write!(f, "SET NX of {token}"),
            Command::Park { token, old: None, .. } => write!(f, "park of {token}"),
            Command::Park { token, old: Some(old), yields: false } => {
                write!(f, "park of {token}, old value {old}")
            }
            Command::Park { token, old: Some(old), yields: true } => {
                write!(f, "park of {token}, old value {old}, which lets others pass")
            }
            Command::Unpark(token) => write!(f, "unpark of {token}"),
            Command::Release(token) => write!(f, "release of {token}"),
            Command::NativeRelease(token) => write!(f, "native release of {token}"),
            Command::Serve => write!(f, "bare serve"),
            Command::Repair(token) => write!(f, "repair of {token}"),
        }
    }
}
