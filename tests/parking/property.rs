//! What must hold in each state.

use crate::state::{Answer, Connection, Link, MASTERS, Phase, State, Stay};

/// A property of a state, or of the step that led to it. `P1` to `P5` are the sentences of the proof.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Property {
    /// Two clients never hold at once.
    Exclusion,
    /// P1: a token belongs to one round, and is sent once to each master.
    OneRound,
    /// P2: whatever ends a token is sent only when its round or its lock is over for the client.
    EndedFirst,
    /// P3: a vote counts once, on the connection that carried the token's command, while that stands.
    OwnVote,
    /// P4: a token is written once for each entry or command, never over another, and reported behind that.
    WrittenOnce,
    /// P5: a key is removed early only by a command that names it, by force, or with the master's memory.
    NamedRemoval,
    /// When all is quiet, no entry or key of a client that wants nothing is left.
    NothingLost,
    /// No waiter with a live connection sleeps beside a key that a script left free.
    NobodyStranded,
    /// A connected master that owes no answer was sent the running round's command.
    EachAsked,
    /// A waiter that was answered "waiting" has its entry, until it is served.
    EntryStands,
}

/// All properties.
pub const ALL: &[Property] = &[
    Property::Exclusion,
    Property::OneRound,
    Property::EndedFirst,
    Property::OwnVote,
    Property::WrittenOnce,
    Property::NamedRemoval,
    Property::NothingLost,
    Property::NobodyStranded,
    Property::EachAsked,
    Property::EntryStands,
];

impl<const C: usize> State<C> {
    /// The first of these properties that does not hold.
    pub fn violation(&self, properties: &[Property]) -> Option<Property> {
        let is_broken = |property: &&Property| match property {
            Property::Exclusion => self.has_two_holders(),
            Property::NothingLost => self.is_quiet() && self.has_remains(),
            Property::NobodyStranded => (0..MASTERS).any(|master| self.is_stranded(master)),
            Property::EachAsked => self.has_unasked(),
            Property::EntryStands => self.has_lost_entry(),
            step => self.broken == Some(**step),
        };
        properties.iter().find(is_broken).copied()
    }

    fn has_two_holders(&self) -> bool {
        (0..C).filter(|client| self.holds(*client) && !self.clients[*client].is_forced).count() > 1
    }

    /// Nothing is under way or owed, and no client wants anything.
    fn is_quiet(&self) -> bool {
        let is_done = |phase| matches!(phase, Phase::Idle | Phase::Crashed);
        self.clients.iter().all(|client| is_done(client.phase))
            && self.masters.iter().flat_map(|master| &master.links).zip((0..C).cycle()).all(
                |(link, client)| {
                    let is_crashed = self.clients[client].phase == Phase::Crashed;
                    let is_up = link.connection == Connection::Up || is_crashed;
                    let is_empty =
                        link.commands.is_empty() && link.late.is_empty() && link.answers.is_empty();
                    is_up && is_empty && link.owed.is_empty()
                },
            )
    }

    fn has_remains(&self) -> bool {
        self.masters.iter().any(|master| {
            let counts = |client: usize| {
                self.clients[client].phase != Phase::Crashed && !master.links[client].is_restored
            };
            let has_key = master.key.is_some_and(|key| counts(key.token.owner()));
            has_key || (0..C).any(|client| master.links[client].entry.is_some() && counts(client))
        })
    }

    fn is_stranded(&self, master: usize) -> bool {
        let master = &self.masters[master];
        if master.key.is_some() || master.is_silent {
            return false;
        }
        let mut entries = master.links.iter().filter_map(|link| link.entry);
        let is_ringing = entries.clone().any(|entry| entry.stay == Stay::Rung);
        !is_ringing && entries.any(|entry| !entry.is_of_old_channel && entry.stay != Stay::Over)
    }

    fn has_unasked(&self) -> bool {
        let is_unasked = |link: &Link, client: usize| {
            let it = &self.clients[client];
            let is_free = link.connection == Connection::Up && link.awaited.is_none() && !link.is_left;
            it.phase == Phase::Trying && is_free && link.last != it.token
        };
        let links = self.masters.iter().flat_map(|master| &master.links);
        links.zip((0..C).cycle()).any(|(link, client)| is_unasked(link, client))
    }

    /// A client waits for a master's vote, which has neither its entry nor a vote under way.
    fn has_lost_entry(&self) -> bool {
        (0..C).any(|client| {
            let it = &self.clients[client];
            it.phase == Phase::Trying
                && !it.is_set
                && self.masters.iter().any(|master| {
                    let link = &master.links[client];
                    let has_message = link.answers.iter().any(|answer| {
                        matches!(*answer, Answer::Granted(token) | Answer::Vote(token) | Answer::Ring(token)
                            if Some(token) == it.token)
                    });
                    link.last == it.token
                        && link.connection == Connection::Up
                        && link.awaited.is_none()
                        && !(link.is_void
                            || link.has_voted
                            || link.is_entry_lost
                            || it.is_rung
                            || has_message)
                        && link.entry.map(|entry| entry.token) != it.token
                })
        })
    }
}
