//! One master as the engine sees it: its connection, its bytes, and whether its votes count.
//!
//! A `Ready` link whose master may have restarted recently is in quarantine until `quarantined_until`: the
//! master gets commands, but its votes do not count. A silent master gets no acquisitions until it has
//! answered.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::Rng;

use super::connection::{Connection, State};
use super::groups::Commands;
use super::handshake::{HELLO, Handshake, HandshakeStep, Learnt, PARKING, Replication, SCRIPTS};
use super::logins::CurrentLogin;
use super::owed::{Answer, Fact, Owed, Tag};
use super::record::{Found, Seen};
use super::trouble::{Trouble, Warning};
use crate::config::{Config, Quarantine};
use crate::engine::locks::slab::Id;
use crate::engine::stats::MasterStats;
use crate::error::fleet::FleetDifference;
use crate::limits;
use crate::lock::command::answer::{Refusal, WrongShape};
use crate::lock::command::park::{self, Message};
use crate::lock::command::{self, ExtendBy, ReleaseBy};
use crate::lock::{Failure, MasterId};
use crate::resp::Reply;
use crate::words;

/// The process that answered the last handshake, and what this client knows about it.
#[derive(Debug)]
struct Identity {
    run_id: Box<str>,
    /// Start of this client's watch; `None` while the process must hold no locks. The second value is the
    /// same moment by the master's clock, in microseconds since 1970.
    watched_since: Option<(Instant, Option<u64>)>,
    /// When bytes last came from the process; updated when its connection ends.
    heard_at: Instant,
    /// Whether only this client's own watch counts: the process ran before it took another's place, or was
    /// unfit for a while. Its reported age then does not prove that it still has the locks.
    is_doubtful: bool,
    /// Whether it was a replica at the last report; its last promotion.
    is_replica: bool,
    promotion: Option<u64>,
}

impl Identity {
    /// Whether this process answered, with its memory intact.
    fn is_of(&self, learnt: &Learnt) -> bool {
        let is_process = Some(&self.run_id) == learnt.run_id.as_ref();
        is_process && !self.has_lost_memory(learnt)
    }

    /// Whether the process may have loaded another's memory since the last report. For a known replica this
    /// is assumed in any case.
    fn has_lost_memory(&self, learnt: &Learnt) -> bool {
        let Replication { promotion, .. } = &learnt.replication;
        let is_promoted = promotion.is_some() && *promotion != self.promotion;
        !self.is_replica && (learnt.replication.is_replica() || is_promoted)
    }
}

/// What a handshake reveals about the last process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Predecessor {
    /// The same process answered.
    Same,
    /// It has ended: the process that answered started after the last bytes from its predecessor.
    Ended,
    /// It may still run: the process that answered is unnamed, or may have run beside it.
    Unknown,
}

/// Comparison of the master's fleet record with this client.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    pub(crate) difference: Option<FleetDifference>,
    /// Whether the record agreed once on this connection, with every master known.
    pub(crate) has_agreed: bool,
    /// When to read the record again. `None` while the answer to a read is owed: nothing is written until it
    /// comes.
    pub(crate) due_at: Option<Instant>,
}

/// How often the process changed.
#[derive(Debug)]
struct Changes {
    count: u32,
    last_at: Instant,
}

#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) master: MasterId,
    pub(crate) connection: Connection<Owed>,
    /// First deadline that the master missed, if it has been silent since.
    pub(crate) silent_since: Option<Instant>,
    /// Set if the master gets requests again only after it sends something: it was silent, or its queues are
    /// still more than half full after a request found no room.
    pub(crate) is_unasked: bool,
    pub(crate) by: Commands,
    pub(crate) learnt: Learnt,
    /// The master's clock, in microseconds since 1970, and when it was read.
    pub(crate) clock: Option<(Instant, u64)>,
    /// When its votes start to count; `None` once they do.
    pub(crate) quarantined_until: Option<Instant>,
    /// Start of the current quarantine.
    quarantined_since: Instant,
    /// End of this connection's handshake.
    met_at: Instant,
    /// End of this client's own watch, if the mark must then be written.
    pub(crate) mark_due_at: Option<Instant>,
    pub(crate) comparison: Comparison,
    /// When to ask again for the facts that can change on an open connection.
    pub(crate) facts_due_at: Option<Instant>,
    /// When its name was last looked up again.
    looked_up_at: Option<Instant>,
    /// When bytes last came from the master.
    pub(crate) heard_at: Instant,
    /// Why the master is not connected.
    pub(crate) why: Arc<str>,
    identity: Option<Identity>,
    changes: Option<Changes>,
    /// By [`Tag::place`]: whose scripts are being loaded.
    pub(crate) scripts_loading: [bool; Tag::COUNT],
    pub(crate) round_trip: RoundTrip,
    /// Counters and times. State and time in quarantine are filled in by [`Link::snapshot`].
    pub(crate) stats: MasterStats,
    was_connected: bool,
}

impl Link {
    pub(crate) fn new(master: MasterId, name: Arc<str>, now: Instant) -> Self {
        Self {
            master,
            connection: Connection::new(now),
            silent_since: None,
            is_unasked: false,
            by: Commands { release: ReleaseBy::EvalSha, extend: ExtendBy::EvalSha, serves: false },
            learnt: Learnt::default(),
            clock: None,
            quarantined_until: None,
            quarantined_since: now,
            met_at: now,
            mark_due_at: None,
            comparison: Comparison::default(),
            facts_due_at: None,
            looked_up_at: None,
            heard_at: now,
            why: Trouble::UnderWay.to_string().into(),
            identity: None,
            changes: None,
            scripts_loading: [false; Tag::COUNT],
            round_trip: RoundTrip::default(),
            stats: MasterStats { name, ..MasterStats::default() },
            was_connected: false,
        }
    }

    /// Why this master gets no requests.
    pub(crate) fn absence(&self) -> Failure {
        if self.connection.is_ready() {
            Failure::Silent
        } else {
            Failure::NotConnected { why: self.why.clone() }
        }
    }

    /// Why the server is unfit or risky as a lock master.
    pub(crate) fn warnings(&self, now: Instant) -> Vec<Warning> {
        let mut warnings = Vec::new();
        if let Some(Changes { count, last_at }) = self.changes {
            warnings.push(Warning::Changed { count, ago: now - last_at });
        }
        if let Some(policy) = self.learnt.evicting_policy() {
            warnings.push(Warning::Evicting { policy: policy.into() });
        }
        if let Some(refusal) = self.publish_refusal() {
            warnings.push(Warning::NotPublishing { refusal: refusal.into() });
        }
        let mut needed = vec![HELLO, PARKING, HandshakeStep::Time.name()];
        match self.learnt.scripts_refusal() {
            Some(refusal) if !self.learnt.has_native_release() => {
                warnings.push(Warning::NoScripts { refusal: refusal.into() });
            }
            _ => needed.push(SCRIPTS),
        }
        let parks_not = self.learnt.refused.iter().find(|(name, _)| self.by.serves && needed.contains(name));
        if let Some((_, refusal)) = parks_not {
            warnings.push(Warning::NotParking { refusal: refusal.clone() });
        }
        if let Some(difference) = &self.comparison.difference {
            warnings.push(Warning::FleetDiffers { difference: difference.clone() });
        }
        if let Found::Unusable(why) = &self.learnt.record {
            warnings.push(Warning::NoFleetRecord { why: why.clone() });
        }
        if self.connection.is_ready()
            && let Some((fields, refusal)) = self.learnt.unreported()
        {
            let info_refusal = refusal.map(Box::from);
            warnings.push(Warning::Unreported { fields: fields.into(), info_refusal });
        }
        warnings
    }

    /// The error with which the master refused to publish messages, if it did.
    pub(crate) fn publish_refusal(&self) -> Option<&str> {
        let refused = self.learnt.refused.iter().find(|(name, _)| *name == HandshakeStep::TryPublish.name());
        refused.map(|(_, text)| &**text)
    }

    /// The last error of an unfinished handshake.
    pub(crate) fn last_refusal(&self) -> Option<&str> {
        match &self.connection.state {
            State::Handshake { handshake, .. } => handshake.learnt.refused.last().map(|(_, text)| &**text),
            _ => None,
        }
    }

    /// What a fleet record needs to know about the master.
    pub(crate) fn seen<'a>(&'a self, name: &'a str) -> Seen<'a> {
        Seen { name, found: &self.learnt.record, run_id: self.learnt.run_id.as_deref() }
    }

    /// Whether the master may belong to a new fleet, as far as this client knows.
    pub(crate) fn may_be_new(&self) -> bool {
        let is_young = self.learnt.uptime.is_some_and(|uptime| uptime < limits::FOUNDING_UPTIME_MAX);
        is_young && self.learnt.record == Found::Absent && self.changes.is_none()
    }

    /// The process behind a ready link.
    pub(crate) fn run_id(&self) -> Option<&str> {
        if self.connection.is_ready() { self.learnt.run_id.as_deref() } else { None }
    }

    /// Next time when this link needs attention, without any other event.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.connection.deadline().or_else(|| {
            let silence_end = self.silent_since.map(|since| since + limits::SILENCE_MAX);
            let due = [self.mark_due_at, self.comparison.due_at, self.facts_due_at];
            silence_end.into_iter().chain(due.into_iter().flatten()).min()
        })
    }

    /// The connection is open: queues the handshake.
    pub(crate) fn start_handshake(
        &mut self,
        now: Instant,
        config: &Config,
        login: CurrentLogin<'_>,
        rng: &mut impl Rng,
    ) {
        let (handshake, commands) = Handshake::new(config, self.master, login.login, rng);
        self.scripts_loading = [false; Tag::COUNT];
        self.comparison.due_at = None;
        let deadline = now + config.connect_timeout;
        self.connection.start_handshake(deadline, login.version, handshake, &commands, Owed::Handshake);
        self.heard_at = now;
    }

    /// The nonce came back: takes over the facts from the handshake. Also returns whether the process has
    /// changed. [`Link::set_quarantine`] then decides when the master counts, and [`Link::refuse_unfit`]
    /// whether it counts at all.
    pub(crate) fn finish_handshake(
        &mut self,
        now: Instant,
        config: &Config,
        needed: Duration,
    ) -> (Predecessor, bool) {
        if let Some(deadline) = self.connection.deadline() {
            let left = deadline.saturating_duration_since(now);
            self.round_trip.note(config.connect_timeout.saturating_sub(left));
        }
        self.learnt = self.connection.finish_handshake(now);
        self.by = self.learnt.commands(config);
        self.clock = self.learnt.clock_us.map(|clock_us| (now, clock_us));
        self.comparison.has_agreed = false;
        self.met_at = now;
        let is_same_process = self.identity.as_ref().is_some_and(|identity| identity.is_of(&self.learnt));
        let age = self.learnt.age(config, needed);
        let met = if is_same_process { (Predecessor::Same, false) } else { self.meet_process(now, age) };
        if let Some(identity) = self.identity.as_mut().filter(|_| self.learnt.run_id.is_some()) {
            identity.is_replica = self.learnt.replication.is_replica();
            identity.promotion = self.learnt.replication.promotion.or(identity.promotion);
        }
        if self.learnt.record.is_joining() {
            self.doubt();
        }
        met
    }

    /// Decides when the master counts, given the length of a quarantine (`needed`).
    pub(crate) fn set_quarantine(&mut self, now: Instant, config: &Config, needed: Duration) {
        let mut watch_end = None;
        let mut quarantined_until = self.met_at + needed.saturating_sub(self.learnt.age(config, needed));
        if let Some(Identity { watched_since, is_doubtful, .. }) = &mut self.identity
            && self.learnt.run_id.is_some()
        {
            let clock_us = self.learnt.clock_us;
            let end = watched_since.get_or_insert((now, clock_us)).0 + needed;
            quarantined_until = if *is_doubtful { end } else { quarantined_until.min(end) };
            watch_end = Some(end);
        }
        let is_trusted = config.quarantine == Quarantine::Trust && !self.learnt.record.is_joining();
        self.count_quarantine(now);
        self.quarantined_since = now;
        self.quarantined_until = Some(quarantined_until).filter(|at| *at > now && !is_trusted);
        let is_to_mark = config.quarantine == Quarantine::Strict && self.learnt.observed() < needed;
        self.mark_due_at = watch_end.filter(|_| is_to_mark);
    }

    /// The process has changed. If the new one may already have run when its predecessor last sent something,
    /// it may have replaced the predecessor without ever having its locks.
    fn meet_process(&mut self, now: Instant, age: Duration) -> (Predecessor, bool) {
        // Without a run ID there is nothing to compare, so the last identified process stays remembered.
        let Some(run_id) = self.learnt.run_id.clone() else { return (Predecessor::Unknown, false) };
        let before = self.identity.take();
        let unheard = before.as_ref().map(|before| now - before.heard_at);
        let has_ended =
            unheard.is_some_and(|unheard| self.learnt.run_time().is_some_and(|run_time| run_time <= unheard));
        let may_be_older =
            |unheard| age > unheard || self.learnt.run_time_max().is_none_or(|run_time| run_time > unheard);
        let is_doubtful = unheard.is_some_and(may_be_older);
        let is_restart = before.is_some();
        if is_restart {
            let count = self.changes.as_ref().map_or(0, |changes| changes.count).saturating_add(1);
            self.changes = Some(Changes { count, last_at: now });
            self.stats.restarts += 1;
        }
        let (is_replica, promotion) = (false, None);
        let heard_at = now;
        self.identity =
            Some(Identity { run_id, watched_since: None, heard_at, is_doubtful, is_replica, promotion });
        (if has_ended { Predecessor::Ended } else { Predecessor::Unknown }, is_restart)
    }

    /// Why this server is refused, given its facts. While unfit it may lose locks, so the watch over it
    /// starts when it is fit, whatever its mark says.
    pub(crate) fn refuse_unfit(&mut self, config: &Config) -> Option<String> {
        let why = self.learnt.unfitness(config)?;
        self.doubt();
        Some(why)
    }

    /// Takes a fact that was asked for again. Returns the reason if the connection must end; the next
    /// handshake then decides whether the server counts.
    pub(crate) fn take_fact(&mut self, config: &Config, fact: Fact) -> Option<String> {
        match fact {
            Fact::Replication(replication) if replication.is_replica() => {
                self.doubt();
                Some(Trouble::Replica.to_string())
            }
            Fact::Replication(Replication { promotion, .. }) => {
                let is_promoted = promotion.is_some() && promotion != self.learnt.replication.promotion;
                is_promoted.then(|| Trouble::Promoted.to_string())
            }
            Fact::Policy(policy) => {
                self.learnt.maxmemory_policy = policy.or_else(|| self.learnt.maxmemory_policy.take());
                self.refuse_unfit(config)
            }
            // The login lost the right to ask. Strict mode needs the answers.
            Fact::Refused(refusal) => {
                let why = Trouble::StepRefused { step: "INFO", refusal: &refusal };
                (config.quarantine == Quarantine::Strict).then(|| why.to_string())
            }
        }
    }

    /// Whether to look up the name of this master, which refuses writes. True at most once in 5 s.
    pub(crate) fn wants_lookup(&mut self, now: Instant) -> bool {
        let is_recent = |at: &Instant| now.saturating_duration_since(*at) < limits::LOOKUP_PAUSE;
        let wants = !self.looked_up_at.as_ref().is_some_and(is_recent);
        self.looked_up_at = if wants { Some(now) } else { self.looked_up_at };
        wants
    }

    /// Start of this client's watch over the process, by the master's clock.
    pub(crate) fn first_seen_us(&self) -> Option<u64> {
        self.identity.as_ref()?.watched_since?.1
    }

    /// Only a new watch by this client counts for the process: it was a replica, may lose locks, or takes
    /// another master's place.
    pub(crate) const fn doubt(&mut self) {
        if let Some(identity) = &mut self.identity {
            (identity.watched_since, identity.is_doubtful) = (None, true);
        }
    }

    /// Ends the connection, with all owed replies, and sets the time of the next attempt.
    pub(crate) fn fail(&mut self, now: Instant, why: &str, rng: &mut impl Rng) {
        let pause = self.connection.back_off(now, rng);
        if self.connection.is_ready()
            && let Some(identity) = &mut self.identity
        {
            identity.heard_at = self.heard_at;
        }
        self.why = Arc::from(why);
        (self.silent_since, self.is_unasked, self.facts_due_at) = (None, false, None);
        self.connection.close(now + pause);
    }

    /// Notes that the master is in use. Returns whether it had been connected before.
    pub(crate) fn note_connected(&mut self, now: Instant) -> bool {
        self.facts_due_at = self.learnt.replication.role.as_ref().map(|_| now + limits::FACTS_PAUSE);
        let is_reconnect = std::mem::replace(&mut self.was_connected, true);
        self.stats.reconnects += is_reconnect as u64;
        is_reconnect
    }

    /// Counts the current quarantine, which ends or is replaced.
    pub(crate) fn count_quarantine(&mut self, now: Instant) {
        self.stats.quarantined += self.time_in_quarantine(now);
    }

    /// Time spent in the current quarantine.
    fn time_in_quarantine(&self, now: Instant) -> Duration {
        let until = self.quarantined_until.map_or(self.quarantined_since, |until| until.min(now));
        until.saturating_duration_since(self.quarantined_since)
    }

    /// Counters and times up to now.
    pub(crate) fn snapshot(&self, now: Instant, is_ready: bool) -> MasterStats {
        let quarantined = self.stats.quarantined + self.time_in_quarantine(now);
        MasterStats { is_ready, quarantined, ..self.stats.clone() }
    }

    /// Takes and decodes the next complete reply. An error is the reason to end the connection.
    pub(crate) fn next_answer(&mut self) -> Result<Option<Taken>, String> {
        let Self { connection, by, learnt, scripts_loading, .. } = self;
        let Connection { wire, state, login, .. } = connection;
        let has_messages = !learnt.channel.is_empty() && matches!(state, State::Ready { .. });
        // Pushes of unknown kinds are no replies either: RESP3 has clients skip them.
        let is_push = |reply: &Reply<'_>| park::message(reply).is_some_and(|it| it != Message::Subscribed);
        match wire.next_reply_or_push(is_push) {
            Ok(Some((None, push))) => {
                let answer = match park::message(&push).filter(|_| has_messages) {
                    Some(Message::Ring(vote)) => Id::from_bytes(vote).map(Answer::Ring),
                    Some(Message::Vote(vote)) => Id::from_bytes(vote).map(Answer::Granted),
                    _ => None,
                };
                Ok(Some(Taken { answer: answer.unwrap_or(Answer::Ignored), timed: None, refusal: None }))
            }
            Ok(Some((Some(owed), mut reply))) => {
                if !reply.is_plain() {
                    reply = reply.plain();
                }
                if let Owed::Scripts(tag) = owed {
                    scripts_loading[tag.place()] = false;
                }
                let (owed, timed) = owed.untimed();
                let refusal = match (&reply, owed) {
                    (Reply::Error(_), Owed::Handshake(_)) => None,
                    (Reply::Error(text), _) => {
                        Refusal::of(text).map(|refusal| (refusal, words::error_text(text)))
                    }
                    _ => None,
                };
                let answer = match owed {
                    Owed::Handshake(step) => state
                        .handle_step(step, &reply)
                        .map(|is_done| if is_done { Answer::HandshakeDone } else { Answer::Ignored }),
                    Owed::Login => login.take_answer(&reply).map(Answer::Login).map_err(wrong_shape),
                    owed => take_apart(learnt, *by, owed, &reply),
                };
                answer.map(|answer| Some(Taken { answer, timed, refusal }))
            }
            Ok(None) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// A decoded reply.
pub(crate) struct Taken {
    pub(crate) answer: Answer,
    /// The claim whose round trip this reply measures.
    pub(crate) timed: Option<Id>,
    /// Meaning of an error reply, and its text.
    pub(crate) refusal: Option<(Refusal, Box<str>)>,
}

fn take_apart(learnt: &Learnt, by: Commands, owed: Owed, reply: &Reply<'_>) -> Result<Answer, String> {
    let may_run = command::answer::is_noscript(reply) || learnt.scripts_refusal().is_none();
    if owed.wants_script(reply, by) && may_run {
        return Ok(Answer::WantsScript(owed));
    }
    if let (Owed::Subscription, Reply::Error(text)) = (owed, reply)
        && command::answer::is_passing(text)
    {
        let refusal = &words::error_text(text);
        return Err(Trouble::StepRefused { step: learnt.subscribe(), refusal }.to_string());
    }
    owed.answer(reply).map_err(wrong_shape)
}

fn wrong_shape(WrongShape: WrongShape) -> String {
    Trouble::WrongShape.to_string()
}

/// How long a master takes to answer: a smoothed mean and deviation, as in TCP's retransmission timer (RFC
/// 6298). Samples come from the handshake and from timed acquisitions. Each reply belongs to one request, so
/// replies after the end of their attempt count too, and the estimate follows a slower network without TCP's
/// doubling. Zero before the first sample.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RoundTrip {
    mean: Duration,
    deviation: Duration,
}

impl RoundTrip {
    pub(crate) fn note(&mut self, sample: Duration) {
        if self.mean.is_zero() {
            (self.mean, self.deviation) = (sample, sample / 2);
            return;
        }
        self.deviation = self.deviation / 4 * 3 + self.mean.abs_diff(sample) / 4;
        self.mean = self.mean / 8 * 7 + sample / 8;
    }

    /// Usual time to an answer.
    pub(crate) const fn mean(self) -> Duration {
        self.mean
    }

    /// Time within which the master normally answers.
    pub(crate) fn limit(self) -> Duration {
        self.mean + self.deviation * 4
    }
}

/// Time within which a quorum answers: the limit of its slowest master. Zero if shorter than any answer
/// limit.
pub(crate) fn limit_of_quorum(limits: impl Iterator<Item = Duration>, quorum: usize) -> Duration {
    let limit = quorum_th(limits, quorum);
    if limit > limits::ANSWER_LIMIT_MIN { limit } else { Duration::ZERO }
}

/// Time of the slowest master in the fastest quorum, or of the slowest of all if there are fewer.
pub(crate) fn quorum_th(times: impl Iterator<Item = Duration>, quorum: usize) -> Duration {
    let mut by_master = [Duration::ZERO; limits::MASTER_COUNT_MAX];
    let mut count = 0;
    for (place, time) in by_master.iter_mut().zip(times) {
        *place = time;
        count += 1;
    }
    by_master[..count].sort_unstable();
    by_master[..count.min(quorum)].last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_limit_follows_the_quorums_slowest_master() {
        let limit = |ms: &[u64], quorum| {
            limit_of_quorum(ms.iter().map(|ms| Duration::from_millis(*ms)), quorum).as_millis()
        };
        assert_eq!(limit(&[50, 8, 7, 50, 9], 3), 9);
        assert_eq!(limit(&[50, 8], 3), 50, "all that there are");
        assert_eq!([limit(&[], 3), limit(&[5, 5, 5], 2)], [0, 0], "no answer limit is so short");
    }

    // I110
    #[test]
    fn the_limit_follows_samples_and_forgets_a_stall() {
        let ms = Duration::from_millis;
        let mut round_trip = RoundTrip::default();
        assert_eq!(round_trip.limit(), Duration::ZERO);
        round_trip.note(ms(80));
        assert_eq!(round_trip.limit(), ms(240));
        for _ in 0..50 {
            round_trip.note(ms(80));
        }
        let steady = round_trip.limit();
        assert!((ms(80)..ms(81)).contains(&steady), "{steady:?}");
        round_trip.note(ms(380));
        assert!(round_trip.limit() > ms(380), "another stall like this fits");
        for _ in 0..50 {
            round_trip.note(ms(80));
        }
        assert!(round_trip.limit() < ms(85), "{:?}", round_trip.limit());
    }
}
