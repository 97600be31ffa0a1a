//! One connection for subscriptions: what it owes, and what its replies and messages say.

use std::collections::BTreeSet;
use std::time::Instant;

use super::connection::{Connection, LoginState, State};
use super::handshake::{self, HandshakeStep};
use super::slab::Id;
use super::subscription::Subscription;
use super::trouble::Trouble;
use crate::config::Login;
use crate::lock::command;
use crate::lock::command::answer::{Notification as Message, WrongShape};
use crate::mutants::mutant;
use crate::resp::{self, Reply};
use crate::wire::Full;

/// Channels of one waiter: the lock's own, and that of its group.
pub(super) const CHANNEL_COUNT_MAX: usize = 2;

#[derive(Debug)]
pub(super) struct SubscriptionLink {
    pub(super) connection: Connection<Owed>,
    /// When it has to have answered what it owes.
    pub(super) answer_due: Option<Instant>,
    /// Why the master refused to notify, in its words.
    pub(super) refused: Option<Box<str>>,
    /// The answer to `AUTH`, until it is fetched: why it was refused, if it was.
    pub(super) login_answer: Option<Option<Box<str>>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owed {
    Handshake(HandshakeStep),
    /// `AUTH` on a connection that stands.
    Login,
    /// The last channel of a waiter.
    Subscribe(Id),
    /// Another channel more, or one less.
    Channel,
}

/// Meaning of a reply or a message. The channel of a message is in the buffer.
pub(super) enum Heard {
    Nothing,
    Ready,
    Subscribed(Id),
    Freed,
    Waiting(u32),
}

impl SubscriptionLink {
    pub(super) const fn new(now: Instant) -> Self {
        Self { connection: Connection::new(now), answer_due: None, refused: None, login_answer: None }
    }

    /// The next reply or message; the channel of a message is left in the buffer.
    pub(super) fn next_heard(&mut self, buffer: &mut Vec<u8>) -> Result<Option<Heard>, String> {
        let Self { connection: Connection { state, wire, login, .. }, refused, .. } = self;
        let is_ready = matches!(state, State::Ready { .. });
        let is_message = |reply: &Reply<'_>| {
            is_ready
                && matches!(
                    command::answer::notification(reply),
                    Some(Message::Freed(_) | Message::Waiting(..))
                )
        };
        let next = wire.next_reply_or_push(is_message).map_err(|error| error.to_string())?;
        let Some((owed, reply)) = next else { return Ok(None) };
        let heard = match (owed, command::answer::notification(&reply)) {
            (None, Some(Message::Freed(channel))) => {
                buffer.clear();
                resp::encode_bulk(buffer, channel);
                Heard::Freed
            }
            (None, Some(Message::Waiting(channel, count))) => {
                buffer.clear();
                resp::encode_bulk(buffer, channel);
                Heard::Waiting(count)
            }
            (Some(Owed::Handshake(step)), _) => {
                if state.handle_step(step, &reply)? {
                    Heard::Ready
                } else {
                    Heard::Nothing
                }
            }
            (Some(Owed::Login), None) => {
                let refusal = login.take_answer(&reply);
                self.login_answer = Some(refusal.map_err(|WrongShape| Trouble::WrongShape.to_string())?);
                Heard::Nothing
            }
            (Some(Owed::Subscribe(id)), Some(Message::Confirmed)) => {
                *refused = None;
                Heard::Subscribed(id)
            }
            (Some(Owed::Channel), Some(Message::Confirmed)) => Heard::Nothing,
            (Some(_), _) => {
                let Reply::Error(text) = reply else { return Err(Trouble::WrongShape.to_string()) };
                *refused = Some(command::answer::error_text(text));
                return Err(Trouble::NoSubscription.to_string());
            }
            (None, _) => return Err(Trouble::WrongShape.to_string()),
        };
        Ok(Some(heard))
    }

    /// Queues `AUTH`. Servers refuse it beside subscriptions, so all of them end before it and begin again
    /// behind it, in one write, whatever the answer to it is. The attempt that follows each confirmation
    /// makes up for a release in between.
    pub(super) fn send_login<'a>(
        &mut self,
        login: &Login,
        version: u32,
        subscriptions: impl Iterator<Item = &'a Subscription>,
    ) -> Result<(), Full> {
        let (mut channels, mut behind, mut owed_behind) = (BTreeSet::new(), Vec::new(), Vec::new());
        for subscription in subscriptions {
            let own: Vec<&[u8]> = subscription.channels().collect();
            command::wake::encode_subscribe(&mut behind, &own);
            let owed = [Owed::Channel, Owed::Subscribe(subscription.id)];
            owed_behind.extend_from_slice(&owed[CHANNEL_COUNT_MAX - own.len()..]);
            channels.extend(own);
        }
        if mutant!(LoginBesideSubscriptions) {
            channels.clear();
        }
        let (mut bytes, mut owed) = (Vec::new(), vec![Owed::Channel; channels.len()]);
        if !channels.is_empty() {
            let channels: Vec<&[u8]> = channels.into_iter().collect();
            command::wake::encode_unsubscribe(&mut bytes, &channels);
        }
        handshake::encode_auth(&mut bytes, login);
        owed.push(Owed::Login);
        bytes.append(&mut behind);
        owed.append(&mut owed_behind);
        self.connection.wire.request(&bytes, &owed)?;
        self.connection.login = LoginState::sent(version, login);
        Ok(())
    }
}
