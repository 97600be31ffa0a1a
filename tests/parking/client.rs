//! A client's part: rounds, votes, decisions, and the ends of tokens that it owes.

use crate::defect::Defect;
use crate::model::Model;
use crate::property::Property;
use crate::state::{
    Answer, Client, Command, Connection, Doubt, End, MASTERS, Owed, Phase, QUORUM, State, TOKENS_EACH, Token,
};

/// How a round begins.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Beginning {
    /// With `SET NX` instead of a park.
    pub is_set: bool,
    /// Others may have the keys that the last round got.
    pub yields: bool,
    /// The masters of the last round's part are left to others, and are not parked at.
    pub aside: bool,
}

impl<const C: usize> Model<C> {
    /// Begins a round with a token that nothing mentions; false if there is none.
    pub fn begin_round(&self, state: &mut State<C>, client: usize, how: Beginning) -> bool {
        let it = &state.clients[client];
        let kept = it.token.filter(|_| self.has(Defect::TokenKept));
        let free =
            (0..TOKENS_EACH).map(|slot| Token::new(client, slot)).find(|token| !state.mentions(*token));
        let Some(token) = kept.or(free) else { return false };
        self.judge(state, Property::OneRound, kept.is_none());
        let rounds = if self.setting.rounds == 0 { 0 } else { state.clients[client].rounds + 1 };
        let last_round = state.clients[client].token;
        state.clients[client] = Client {
            phase: Phase::Trying,
            token: Some(token),
            validity: self.setting.ttl,
            rounds,
            is_set: how.is_set,
            is_rung: false,
            is_forced: false,
            ..state.clients[client]
        };
        for master in 0..MASTERS {
            let is_quarantined = self.is_quarantined(state, client, master);
            let link = state.link_mut(client, master);
            let stands_aside = how.aside && link.has_voted;
            if !self.has(Defect::VotesKept) {
                link.has_voted = false;
            }
            link.is_void = false;
            link.is_left = stands_aside;
            link.is_quarantined = is_quarantined;
            match link.last {
                Some(last) if stands_aside => self.send(state, client, master, Command::Unpark(last)),
                _ => self.ask(state, client, master, (how, last_round)),
            }
        }
        true
    }

    /// Sends the round's command to a master that is connected and owes no answer to an earlier one.
    pub fn ask(
        &self,
        state: &mut State<C>,
        client: usize,
        master: usize,
        (how, last_round): (Beginning, Option<Token>),
    ) {
        let token = state.clients[client].token.expect("a round runs");
        let is_quarantined = self.is_quarantined(state, client, master);
        let link = state.link_mut(client, master);
        let waits = link.awaited.is_some() && !self.has(Defect::SecondParkAtOnce);
        if link.connection == Connection::Down || waits {
            return;
        }
        let mut old = link.last;
        if self.has(Defect::OldOfLastRound) {
            old = last_round;
        }
        let is_new = link.last != Some(token);
        self.judge(state, Property::OneRound, is_new);
        let link = state.link_mut(client, master);
        let doubt = std::mem::take(&mut link.doubt);
        if doubt > Doubt::None
            && let Some(last) = link.last
        {
            self.owe(state, client, master, (last, End::Unpark, doubt));
        }
        let link = state.link_mut(client, master);
        link.last = Some(token);
        link.awaited = Some(token);
        link.before = old;
        (link.is_entry_lost, link.is_left) = (false, false);
        if !self.has(Defect::QuarantineAtBegin) {
            link.is_quarantined = is_quarantined;
        }
        if let Some(old) = old.filter(|_| how.is_set) {
            self.send(state, client, master, Command::Release(old));
        }
        let command = match how.is_set {
            true => Command::Set(token),
            false => Command::Park { token, old: old.filter(|old| *old != token), yields: how.yields },
        };
        self.send(state, client, master, command);
    }

    /// A command goes out, unless the connection has broken unnoticed.
    pub fn send(&self, state: &mut State<C>, client: usize, master: usize, command: Command) {
        let ended = match command {
            Command::Park { old, .. } => old,
            Command::Unpark(token) | Command::Release(token) | Command::NativeRelease(token) => Some(token),
            Command::Set(_) | Command::Serve | Command::Repair(_) => None,
        };
        let is_over = ended.is_none() || ended != state.current(client);
        self.judge(state, Property::EndedFirst, is_over);
        let link = state.link_mut(client, master);
        if link.connection == Connection::Up {
            link.commands.push(command);
        }
    }

    /// The master may have forgotten a lock, for all that the client knows.
    fn is_quarantined(&self, state: &State<C>, client: usize, master: usize) -> bool {
        let is_known = !state.link(client, master).is_of_old_process;
        is_known && state.masters[master].quarantine > 0 && !self.has(Defect::QuarantineIgnored)
    }

    /// An answer or a push arrives.
    pub fn receive(&self, state: &mut State<C>, (client, master): (usize, usize), answer: Answer) {
        match answer {
            Answer::Granted(token) => {
                self.count_vote(state, client, master, token);
                self.settle(state, client, master, token);
            }
            Answer::Vote(token) => self.count_vote(state, client, master, token),
            Answer::Waiting(token) => self.settle(state, client, master, token),
            Answer::Ring(token) => {
                if state.clients[client].phase == Phase::Trying && state.clients[client].token == Some(token)
                {
                    state.clients[client].is_rung = true;
                }
                if self.has(Defect::RingCounted) {
                    self.count_vote(state, client, master, token);
                }
            }
            Answer::Ended { token, settles } => {
                let is_enough = |doubt: Doubt| match doubt {
                    Doubt::Once => self.has(Defect::AnswerIsProof),
                    _ => self.has(Defect::DeletionIsProof) && settles == Doubt::Once,
                };
                let is_proven = |owed: &Owed| owed.doubt <= settles || is_enough(owed.doubt);
                let owed = &mut state.link_mut(client, master).owed;
                owed.retain(|owed| owed.token != token || !is_proven(owed));
                owed.iter_mut().filter(|owed| owed.token == token).for_each(|owed| owed.is_sent = false);
            }
            Answer::Rejected { token, old } => self.receive_rejection(state, client, master, (token, old)),
        }
    }

    /// The command of a token was answered: the running round's may follow.
    pub fn settle(&self, state: &mut State<C>, client: usize, master: usize, token: Token) {
        let link = state.link_mut(client, master);
        if link.awaited != Some(token) {
            return;
        }
        (link.awaited, link.before, link.is_repaired) = (None, None, false);
        if !self.has(Defect::NoneBehindAnswer) {
            self.ask_rest(state, client, master);
        }
    }

    /// Asks a master that was not asked in this round.
    pub fn ask_rest(&self, state: &mut State<C>, client: usize, master: usize) {
        let it = &state.clients[client];
        if it.phase == Phase::Trying && state.link(client, master).last != it.token {
            let how = Beginning { is_set: it.is_set, ..Beginning::default() };
            self.ask(state, client, master, (how, None));
        }
    }

    /// A master refused a park by an error: the park's old value was not cleared.
    fn receive_rejection(
        &self,
        state: &mut State<C>,
        client: usize,
        master: usize,
        (token, old): (Token, Option<Token>),
    ) {
        let it = state.clients[client];
        let is_trying = it.phase == Phase::Trying;
        let link = state.link_mut(client, master);
        let runs = is_trying && it.token == Some(token) && link.last == Some(token);
        if runs || self.has(Defect::ResentAfterUnpark) {
            // As after NOSCRIPT. Its answer is still awaited.
            link.commands.push(Command::Park { token, old, yields: false });
            return;
        }
        (link.awaited, link.before) = (None, None);
        if !self.has(Defect::RejectionForgotten) {
            match old {
                Some(_) if is_trying && link.last == Some(token) => link.last = old,
                Some(old) => self.owe(state, client, master, (old, End::Unpark, Doubt::None)),
                None => {}
            }
        }
        self.ask_rest(state, client, master);
    }

    fn count_vote(&self, state: &mut State<C>, client: usize, master: usize, token: Token) {
        let it = state.clients[client];
        let link = state.link(client, master);
        let is_own = it.token == Some(token) && link.last == it.token;
        let is_countable = is_own && !link.is_void && link.connection != Connection::Down;
        if it.phase != Phase::Trying {
            if self.has(Defect::HeldUnparked) && it.phase == Phase::Holding && it.token == Some(token) {
                self.owe(state, client, master, (token, End::Unpark, Doubt::None));
            }
            return;
        }
        let is_counted = is_countable
            || self.has(Defect::LateVoteCounted)
            || self.has(Defect::OneChannel) && it.token == Some(token);
        if !is_counted {
            return;
        }
        self.judge(state, Property::OwnVote, is_countable);
        state.link_mut(client, master).has_voted = true;
        self.decide(state, client);
    }

    /// A quorum of votes that count, and validity that is left, make the lock.
    fn decide(&self, state: &mut State<C>, client: usize) {
        let counts = |master: &usize| {
            let link = state.link(client, *master);
            let is_quarantined = self.is_quarantined(state, client, *master);
            let now = is_quarantined
                && !self.has(Defect::QuarantineAtBegin)
                && !self.has(Defect::QuarantineWhenSent);
            let when_sent = link.is_quarantined && !self.has(Defect::QuarantineAtDecision);
            link.has_voted && !now && !when_sent
        };
        let votes = (0..MASTERS).filter(counts).count();
        let stand = (0..MASTERS).filter(counts).all(|master| !state.link(client, master).is_void);
        let quorum = if self.has(Defect::QuorumOfOne) { 1 } else { QUORUM };
        let longer = u8::from(self.has(Defect::ValidityOfAskedTtl));
        let mut validity = state.clients[client].validity + longer;
        if self.has(Defect::ValidityFromDecision) {
            validity = self.setting.ttl;
        }
        if votes < quorum || validity == 0 {
            return;
        }
        self.judge(state, Property::OwnVote, stand);
        let it = &mut state.clients[client];
        it.phase = Phase::Holding;
        it.validity = validity;
        let held = it.token;
        for master in 0..MASTERS {
            let link = state.link_mut(client, master);
            if let Some(last) = link.last.filter(|last| Some(*last) != held) {
                let doubt = std::mem::take(&mut link.doubt);
                link.last = None;
                if !self.has(Defect::OthersForgotten) {
                    self.owe(state, client, master, (last, End::Unpark, doubt));
                }
            }
        }
    }

    /// The end of a token is owed to a master; it goes out now, or over the next connection.
    pub fn owe(
        &self,
        state: &mut State<C>,
        client: usize,
        master: usize,
        (token, end, doubt): (Token, End, Doubt),
    ) {
        let link = state.link_mut(client, master);
        if let Some(owed) = link.owed.iter_mut().find(|owed| owed.token == token) {
            owed.doubt = owed.doubt.max(doubt);
            return;
        }
        let is_sent = link.connection != Connection::Down;
        link.owed.push(Owed { token, end, doubt, is_sent });
        if is_sent {
            self.send_end(state, client, master, Owed { token, end, doubt, is_sent });
        }
    }

    fn send_end(&self, state: &mut State<C>, client: usize, master: usize, owed: Owed) {
        let command = match owed.end {
            End::Unpark => Command::Unpark(owed.token),
            End::Release => Command::Release(owed.token),
            End::Native => Command::NativeRelease(owed.token),
        };
        self.send(state, client, master, command);
    }

    /// Sends what is owed and not under way.
    pub fn repeat_owed(&self, state: &mut State<C>, client: usize, master: usize) {
        let all = state.link(client, master).owed;
        for owed in all.iter().filter(|owed| !owed.is_sent) {
            self.send_end(state, client, master, *owed);
        }
        state.link_mut(client, master).owed.iter_mut().for_each(|owed| owed.is_sent = true);
    }

    /// The wait is given up, or the lock is: each master is owed the end of the token last sent there.
    pub fn end_wait(&self, state: &mut State<C>, client: usize, end: End) {
        let was_trying = state.clients[client].phase == Phase::Trying;
        state.clients[client].phase = Phase::Idle;
        for master in 0..MASTERS {
            let link = state.link_mut(client, master);
            let has_asked_only = was_trying && !link.has_voted;
            let is_spared = was_trying && self.has(Defect::CancelOwesNothing)
                || has_asked_only && self.has(Defect::OnlyVotersUnparked);
            let doubt = std::mem::take(&mut link.doubt);
            if let Some(last) = link.last.take()
                && !is_spared
            {
                self.owe(state, client, master, (last, end, doubt));
            }
        }
    }

    /// The client notices that a connection has ended: answers that were under way are lost.
    pub fn notice_break(&self, state: &mut State<C>, client: usize, master: usize) {
        let is_trying = state.clients[client].phase == Phase::Trying;
        let current = state.clients[client].token;
        let link = state.link_mut(client, master);
        link.connection = Connection::Down;
        link.answers.clear();
        if is_trying && link.last == current {
            link.is_void = true;
            link.has_voted &= self.has(Defect::VoteOutlivesConnection);
        }
        let doubt = if std::mem::take(&mut link.is_repaired) { Doubt::Twice } else { Doubt::Once };
        for owed in link.owed.iter_mut() {
            owed.is_sent = false;
            if link.awaited == Some(owed.token) {
                owed.doubt = owed.doubt.max(doubt);
            }
        }
        if link.awaited.is_some() && link.awaited == link.last {
            link.doubt = link.doubt.max(doubt);
        }
        let (awaited, before) = (link.awaited.take(), link.before.take());
        if self.has(Defect::OwedNotRepeated) {
            link.owed.clear();
        }
        // The unanswered command may never have cleared its old value.
        if let Some(before) =
            before.filter(|before| Some(*before) != awaited && !self.has(Defect::OldOfLostPark))
        {
            self.owe(state, client, master, (before, End::Unpark, Doubt::None));
        }
    }

    /// A new connection: first what is owed, then the round's park if the master was not sent it.
    pub fn reconnect(&self, state: &mut State<C>, client: usize, master: usize) {
        let link = state.link_mut(client, master);
        link.connection = Connection::Up;
        link.is_of_old_process = false;
        self.repeat_owed(state, client, master);
        let it = state.clients[client];
        if it.phase != Phase::Trying {
            return;
        }
        let token = it.token.expect("a round runs");
        if state.link(client, master).last != Some(token) {
            if !self.has(Defect::NoneAfterReconnect) {
                self.ask_rest(state, client, master);
            }
        } else if self.has(Defect::CleanedInRound) {
            self.send(state, client, master, Command::Unpark(token));
        } else if self.has(Defect::SentAgain) {
            state.link_mut(client, master).is_void = false;
            let how = Beginning { is_set: it.is_set, ..Beginning::default() };
            self.ask(state, client, master, (how, None));
        }
    }
}
