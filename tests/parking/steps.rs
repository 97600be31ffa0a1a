//! All steps that are possible in a state.

use crate::client::Beginning;
use crate::defect::Defect;
use crate::master::{Arrival, describe};
use crate::model::{Kind, Model, Steps};
use crate::state::{
    Answer, Client, Command, Connection, Doubt, End, Entry, MASTERS, Phase, Saved, State, Stay,
};

impl<const C: usize> Model<C> {
    /// The states that follow, tidied.
    pub fn steps(&self, state: &State<C>, steps: &mut Steps<C>) {
        for client in 0..C {
            match state.clients[client].phase {
                Phase::Idle => self.begin(state, client, steps),
                Phase::Trying => self.wait(state, client, steps),
                Phase::Holding => self.hold(state, client, steps),
                Phase::Crashed => {}
            }
            for master in 0..MASTERS {
                self.carry(state, client, master, steps);
                self.connect(state, client, master, steps);
                self.end_stay(state, client, master, steps);
            }
        }
        (0..MASTERS).for_each(|master| self.disturb(state, master, steps));
        self.tick(state, steps);
        steps.all.iter_mut().for_each(|step| self.tidy(&mut step.state));
    }

    /// An idle client begins its next acquisition.
    fn begin(&self, state: &State<C>, client: usize, steps: &mut Steps<C>) {
        let has_room = (0..MASTERS).all(|master| state.link(client, master).owed.len() <= 1);
        if state.clients[client].locks >= self.setting.locks || !has_room {
            return;
        }
        let ways = match self.setting.sets {
            _ if self.polls(client) => [Some(true), None],
            true => [Some(true), Some(false)],
            false => [Some(false), None],
        };
        for is_set in ways.into_iter().flatten() {
            let mut state = *state;
            state.clients[client].locks += 1;
            if self.begin_round(&mut state, client, Beginning { is_set, ..Beginning::default() }) {
                let words = || format!("{} begins with {}", name(client), describe_round(&state, client));
                steps.add(state, Kind::Move, words);
            }
        }
    }

    /// What a waiting client may do.
    fn wait(&self, state: &State<C>, client: usize, steps: &mut Steps<C>) {
        let it = &state.clients[client];
        let may_follow = !self.setting.calm || state.is_calm(client);
        if may_follow && (self.setting.rounds == 0 || it.rounds < self.setting.rounds) {
            let has_part = (0..MASTERS).any(|master| state.link(client, master).has_voted);
            let kind = if it.is_rung { Kind::Move } else { Kind::Timer };
            let ways = [(false, false), (self.setting.yields, false), (false, self.setting.aside)];
            for (place, (yields, aside)) in ways.into_iter().enumerate() {
                let mut state = *state;
                let is_possible = place == 0 || has_part && (yields || aside);
                let how = Beginning { is_set: self.polls(client), yields, aside };
                if is_possible && self.begin_round(&mut state, client, how) {
                    let more = if yields { ", which lets others pass" } else { "" };
                    let aside = if aside { ", and leaves the masters of its part" } else { "" };
                    let round = describe_round(&state, client);
                    steps.add(state, kind, || {
                        format!("{} begins a round with {round}{more}{aside}", name(client))
                    });
                }
            }
        }
        for master in 0..MASTERS {
            self.ask_again(state, client, master, steps);
        }
        if state.left.cancels > 0 {
            let mut state = *state;
            state.left.cancels -= 1;
            self.end_wait(&mut state, client, End::Unpark);
            steps.add(state, Kind::Fault, || format!("{} gives its wait up", name(client)));
        }
        self.crash(state, client, steps);
    }

    /// A waiter's bare serve, and its return to a master that it left to others.
    fn ask_again(&self, state: &State<C>, client: usize, master: usize, steps: &mut Steps<C>) {
        let (it, link) = (&state.clients[client], state.link(client, master));
        if link.connection != Connection::Up {
            return;
        }
        let has_entry = state.masters[master].links.iter().any(|link| link.entry.is_some());
        if link.commands.is_empty() && has_entry && state.masters[master].key.is_none() {
            let mut state = *state;
            self.send(&mut state, client, master, Command::Serve);
            steps.add(state, Kind::Timer, || format!("{} sends a bare serve to m{master}", name(client)));
        }
        if link.last != it.token && link.awaited.is_none() {
            let mut state = *state;
            self.ask_rest(&mut state, client, master);
            steps.add(state, Kind::Move, || format!("{} parks at m{master}, too", name(client)));
        }
        if self.has(Defect::GivenBackInRound) && link.last == it.token && link.commands.is_empty() {
            let mut state = *state;
            state.link_mut(client, master).has_voted = false;
            self.send(&mut state, client, master, Command::Unpark(it.token.expect("a round runs")));
            steps.add(state, Kind::Move, || format!("{} gives back what it has at m{master}", name(client)));
        }
    }

    fn hold(&self, state: &State<C>, client: usize, steps: &mut Steps<C>) {
        let ends = match (state.clients[client].is_set, self.setting.native) {
            (true, true) => [Some(End::Release), Some(End::Native)],
            (true, false) => [Some(End::Release), None],
            (false, _) => [Some(End::Unpark), None],
        };
        for end in ends.into_iter().flatten() {
            let mut state = *state;
            self.end_wait(&mut state, client, end);
            steps.add(state, Kind::Move, || format!("{} releases its lock by {end:?}", name(client)));
        }
        for master in (0..MASTERS).filter(|_| state.left.repairs > 0 && state.holds(client)) {
            let token = state.clients[client].token.expect("it holds");
            let link = state.link(client, master);
            let is_certain = link.doubt == Doubt::None || self.has(Defect::RepairedInDoubt);
            let is_free = link.connection == Connection::Up && link.awaited.is_none();
            if is_free && is_certain && link.last.is_none_or(|last| last == token) {
                let mut state = *state;
                state.left.repairs -= 1;
                let link = state.link_mut(client, master);
                link.is_repaired = link.last == Some(token);
                (link.last, link.awaited) = (Some(token), Some(token));
                self.send(&mut state, client, master, Command::Repair(token));
                steps.add(state, Kind::Fault, || format!("{} repairs its lock at m{master}", name(client)));
            }
        }
        self.crash(state, client, steps);
    }

    fn crash(&self, state: &State<C>, client: usize, steps: &mut Steps<C>) {
        if state.left.crashes == 0 {
            return;
        }
        let mut state = *state;
        state.left.crashes -= 1;
        state.clients[client] = Client { phase: Phase::Crashed, ..Client::default() };
        for master in 0..MASTERS {
            let link = state.link_mut(client, master);
            if link.connection == Connection::Up {
                Self::break_connection(link, Connection::Down);
            }
            link.connection = Connection::Down;
            (link.last, link.awaited, link.before, link.doubt) = (None, None, None, Doubt::None);
            link.is_repaired = false;
            link.owed.clear();
        }
        steps.add(state, Kind::Fault, || format!("{} crashes", name(client)));
    }

    /// Commands are carried out, and answers arrive.
    fn carry(&self, state: &State<C>, client: usize, master: usize, steps: &mut Steps<C>) {
        let link = state.link(client, master);
        if link.connection == Connection::Up && !link.commands.is_empty() {
            self.carry_out(state, (client, master), Arrival::OnTime, steps);
        }
        if !link.late.is_empty() {
            self.carry_out(state, (client, master), Arrival::Late, steps);
        }
        if let Some(answer) = link.answers.first().filter(|_| link.connection != Connection::Down) {
            let mut state = *state;
            state.link_mut(client, master).answers.pop();
            self.receive(&mut state, (client, master), answer);
            let holds = state.clients[client].phase == Phase::Holding && !state.holds_since(client, answer);
            let then = if holds { ", and has the lock" } else { "" };
            steps.add(state, Kind::Move, || {
                format!("{} receives from m{master}: {answer:?}{then}", name(client))
            });
        }
    }

    /// Connections end and begin.
    fn connect(&self, state: &State<C>, client: usize, master: usize, steps: &mut Steps<C>) {
        let link = state.link(client, master);
        let is_crashed = state.clients[client].phase == Phase::Crashed;
        let is_dead = self.setting.is_one_dead && master == MASTERS - 1;
        let mut add = |kind, change: &dyn Fn(&mut State<C>), words: &str| {
            let mut state = *state;
            change(&mut state);
            steps.add(state, kind, || format!("{} – m{master}: {words}", name(client)));
        };
        // Before the old connection has ended, an answer proves nothing.
        let is_owed = !link.has_old && link.owed.iter().any(|owed| !owed.is_sent);
        if link.connection == Connection::Up && is_owed {
            add(Kind::Timer, &|state| self.repeat_owed(state, client, master), "what is owed is repeated");
        }
        match link.connection {
            // The order of commands over three connections is more than the model has.
            Connection::Up if state.left.breaks > 0 && !link.has_old => {
                let end = |state: &mut State<C>| {
                    state.left.breaks -= 1;
                    Self::break_connection(state.link_mut(client, master), Connection::Broken);
                };
                add(Kind::Fault, &end, "the connection breaks");
            }
            Connection::Broken if !is_crashed => {
                add(
                    Kind::Move,
                    &|state| self.notice_break(state, client, master),
                    "the client notices the break",
                );
            }
            Connection::Down if !is_crashed && !is_dead => {
                add(Kind::Move, &|state| self.reconnect(state, client, master), "a new connection");
            }
            _ => {}
        }
        if link.has_old {
            let end = |state: &mut State<C>| {
                let link = state.link_mut(client, master);
                link.late.clear();
                link.has_old = false;
            };
            let words =
                if link.late.is_empty() { "the master reads the old end" } else { "late commands are lost" };
            add(Kind::Move, &end, words);
        }
    }

    /// The stay of an entry ends, or it is no longer fresh.
    fn end_stay(&self, state: &State<C>, client: usize, master: usize, steps: &mut Steps<C>) {
        let link = state.link(client, master);
        let Some(entry) = link.entry else { return };
        let is_left = state.clients[client].phase == Phase::Crashed || entry.is_of_old_channel;
        let is_free = is_left || entry.stay == Stay::Rung;
        if entry.stay == Stay::Over || !is_free && state.left.stays == 0 {
            return;
        }
        let mut become_ = |stay: Stay, words: &str| {
            let mut state = *state;
            state.left.stays -= u8::from(!is_free);
            let link = state.link_mut(client, master);
            link.entry = Some(Entry { stay, ..entry });
            link.is_entry_lost = true;
            state.masters[master].is_silent = true;
            steps.add(state, Kind::Clock, || format!("m{master}: {words} {}", entry.token));
        };
        become_(Stay::Over, "the stay is over of");
        if entry.stay == Stay::Fresh && !is_left {
            become_(Stay::Stale, "no longer fresh is");
        }
    }

    /// Restarts, snapshots and forced deletions.
    fn disturb(&self, state: &State<C>, master: usize, steps: &mut Steps<C>) {
        let it = &state.masters[master];
        if state.left.restarts > 0 {
            self.restart(state, master, false, steps);
            if it.saved.is_some() {
                self.restart(state, master, true, steps);
            }
        }
        if state.left.saves > 0 && state.left.restarts > 0 {
            let mut state = *state;
            state.left.saves -= 1;
            let entries = it.links.each_ref().map(|link| link.entry);
            state.masters[master].saved = Some(Saved { key: it.key, entries });
            steps.add(state, Kind::Fault, || {
                format!("m{master} makes a snapshot{}", describe(&state, master))
            });
        }
        if state.left.forces > 0 {
            self.force(state, master, steps);
        }
    }

    /// A tick passes everywhere.
    fn tick(&self, state: &State<C>, steps: &mut Steps<C>) {
        let mut state = *state;
        let mut passes = false;
        for master in &mut state.masters {
            passes |= master.quarantine > 0;
            master.quarantine = master.quarantine.saturating_sub(1);
            let saved = master.saved.as_mut().map(|saved| &mut saved.key);
            let (key, saved) = (&mut master.key, saved);
            for key in [Some(key), saved].into_iter().flatten() {
                passes |= key.is_some();
                let left = key.map(|mut key| {
                    key.ttl -= 1;
                    key
                });
                *key = left.filter(|key| key.ttl > 0);
            }
            master.is_silent |= master.key.is_none();
        }
        for client in &mut state.clients {
            passes |= client.validity > 0;
            client.validity = client.validity.saturating_sub(1);
        }
        if passes {
            steps.add(state, Kind::Clock, || "a tick".to_owned());
        }
    }
}

impl<const C: usize> State<C> {
    /// Nothing of the client is under way on a connection that stands.
    fn is_calm(&self, client: usize) -> bool {
        self.masters.iter().all(|master| {
            let link = &master.links[client];
            link.connection != Connection::Up || link.commands.is_empty() && link.answers.is_empty()
        })
    }

    /// Whether the client held already before this answer, for the words.
    fn holds_since(&self, client: usize, answer: Answer) -> bool {
        !matches!(answer, Answer::Granted(token) | Answer::Vote(token) if self.clients[client].token == Some(token))
    }
}

pub fn name(client: usize) -> &'static str {
    ["A", "B", "C"][client]
}

fn describe_round<const C: usize>(state: &State<C>, client: usize) -> String {
    let it = &state.clients[client];
    let token = it.token.expect("a round runs");
    if it.is_set { format!("{token}, by SET NX") } else { token.to_string() }
}
