//! Every limit of the crate, with what happens when it is reached.
//!
//! A limit is a constant if no user has a reason to change it; otherwise it is the bound of a setting.

use std::time::Duration;

/// Largest number of masters of one client: 32. A configuration with more is refused.
pub const MASTER_COUNT_MAX: usize = 32;

/// Largest size of a lock's name without the prefix: 1,024 bytes. An empty or longer name is refused before
/// anything is sent.
pub const RESOURCE_SIZE_MAX: usize = 1024;

/// Largest number of slots of a pool: 1,024. A request for more is refused before anything is sent.
pub const SLOT_COUNT_MAX: u32 = 1024;

/// Longest part of a slot's name in front of the pool's name, in bytes: `redlatch:slot:1023:`.
pub(crate) const SLOT_PART_SIZE_MAX: usize = 19;

/// Largest number of consecutive tries for a slot, each of which another caller may win: 4. Then the caller
/// waits at the pool's door; a caller that does not wait pauses and searches again.
pub(crate) const SLOT_RACES_MAX: u32 = 4;

/// Largest number of further searches by a caller that does not wait, while some slot may be free: 8.
pub(crate) const SLOT_LOOKS_AGAIN_MAX: u32 = 8;

/// Largest number of holders that the error of a refused slot names: 8.
pub(crate) const SLOT_HOLDERS_MAX: usize = 8;

/// Largest number of slots for which a pool's first waiter stands in each slot's queue: 8. In a larger pool
/// it searches for a free slot from time to time.
pub const SLOT_STAND_MAX: u32 = 8;

/// Shortest pause between two searches for a free slot: 1 ms, or the duration of the last search if longer.
pub(crate) const SLOT_LOOK_PAUSE_MIN: Duration = Duration::from_millis(1);

/// Longest pause between two searches for a free slot: 50 ms. The first waiter pauses for an eighth of the
/// time for which it has searched.
pub const SLOT_LOOK_PAUSE_MAX: Duration = Duration::from_millis(50);

/// TTL of the lock at which a pool's waiters queue: 1 s, or `max_ttl` if that is shorter. A killed first
/// waiter delays the others by at most this time.
pub const DOOR_TTL: Duration = Duration::from_secs(1);

/// Largest size of the prefix: 256 bytes. A configuration with a longer prefix is refused.
pub const PREFIX_SIZE_MAX: usize = 256;

/// Largest size of a holder label: 64 bytes. A longer label is refused before anything is sent.
pub const HOLDER_LABEL_SIZE_MAX: usize = 64;

/// Largest size of the fleet's record: 1,536 bytes, of which a list of 32 masters takes 1,088. A longer
/// record counts as damaged.
pub(crate) const RECORD_SIZE_MAX: usize = 1536;

/// Longest uptime of a master of a new fleet (`redlatch fleet init`): one hour. A master that has run for
/// longer counts anyway, unless `max_ttl` is longer.
pub const FOUNDING_UPTIME_MAX: Duration = Duration::from_secs(3600);

/// Time after which an open connection asks again whether its server is still a master that keeps its locks:
/// 60 s.
pub(crate) const FACTS_PAUSE: Duration = Duration::from_secs(60);

/// Time after which the question is repeated if the master had no room for it, or was busy: 1 s.
pub(crate) const PAUSE_UNANSWERED: Duration = Duration::from_secs(1);

/// Shortest time between two name lookups for a master that accepts no writes: 5 s.
pub(crate) const LOOKUP_PAUSE: Duration = Duration::from_secs(5);

/// Time after which a fleet's record is read again: 60 s.
pub(crate) const RECORD_PAUSE: Duration = Duration::from_secs(60);

/// Upper bound of the setting `max_ttl`: 7 days.
pub const MAX_TTL_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// Upper bound of the clock drift setting, in parts per million: 500,000, half of the TTL.
pub const DRIFT_PPM_MAX: u32 = 500_000;

/// Upper bound of the settings for an answer, a connection and a pause between attempts: one day. A wait has
/// no bound.
pub const TIME_LIMIT_MAX: Duration = Duration::from_secs(24 * 3600);

/// Numbers of failed attempts for which [`crate::ConfigBuilder::retry_delay_by`] calls its function: 1 to 64,
/// or fewer if the function returns [`TIME_LIMIT_MAX`] earlier.
pub(crate) const RETRY_DELAY_COUNT: u32 = 64;

/// Lower bound of the answer limit, unless an answer timeout is configured: 5 ms, or a fiftieth of the TTL. A
/// shorter validity also limits it.
pub(crate) const ANSWER_LIMIT_MIN: Duration = Duration::from_millis(5);

/// Upper bound of that lower bound, reached at a TTL of 2.5 s: 50 ms.
pub(crate) const ANSWER_LIMIT_MIN_MAX: Duration = Duration::from_millis(50);

/// Upper bound of the answer limit, unless an answer timeout is configured: 1 s, and a fifth of the TTL
/// unless the lower bound is larger.
pub const ANSWER_LIMIT_MAX: Duration = Duration::from_secs(1);

/// Largest number of an engine's operations: locks being acquired, held or released with an awaited outcome,
/// and queries: 131,072. One more is refused at once as `Overloaded`.
pub const OPERATION_COUNT_MAX: usize = 131_072;

/// Largest number of an engine's acquisitions that wait behind another in one lock's wait queue: 4,096. They
/// also count as operations. One more is refused at once as `Overloaded`.
pub const QUEUED_COUNT_MAX: usize = 4096;

/// Largest number of consecutive hand-overs of a lock between callers of an engine: 16.
///
/// Then the lock is released, and the next caller stands behind other clients' waiters in the masters'
/// queues. Where masters have no queues, the next caller pauses before it asks. The pause is drawn as if an
/// attempt as long as an average turn of the row had failed, so its mean is about two turns. Other
/// clients therefore find the lock free for about a tenth of the time, for turns up to the longest retry
/// delay. Half as many turns would double this cost for the callers of a busy engine. Turns shorter than a
/// millisecond, the shortest pause, leave more to other clients: an empty turn on loopback takes a sixth of a
/// millisecond, and then the lock is free for half of the time.
pub const HANDOVER_COUNT_MAX: u32 = 16;

/// Longest time of consecutive hand-overs: 1 s. A holder at the end of this time may keep the lock. Other
/// clients wait no longer than this and one turn for their first chance. With a shorter time, callers that
/// each hold a lock for a tenth of a second would never hand it over.
pub const HANDOVER_TIME_MAX: Duration = Duration::from_secs(1);

/// Largest number of an engine's tokens: 262,144, for the operations above and as many locks with an
/// unconfirmed release. Beyond it, the latter are left to their TTL.
pub const CLAIM_COUNT_MAX: usize = 2 * OPERATION_COUNT_MAX;

/// Largest total size of user and password: 64 KiB. Longer ones are refused.
pub const LOGIN_SIZE_MAX: usize = 64 * 1024;

/// Largest number of unwritten bytes of a connection: 8 MiB. A command that does not fit is not sent, and the
/// master's vote is a failure. An acquisition is refused at once as `Overloaded` if no quorum has room.
pub const OUTBOX_SIZE_MAX: usize = 8 * 1024 * 1024;

/// Largest number of replies owed on a connection: 262,144. A command beyond it is not sent, and the master's
/// vote is a failure.
pub(crate) const OWED_COUNT_MAX: usize = 262_144;

/// Extra time of an awaited release for each reply beyond [`BACKLOG_MIN`] that a master still owes after the
/// answer limit: 0.1 ms. A server takes some hundredths of that for a request. The limit then starts again,
/// until the key's TTL ends.
pub(crate) const REPLY_TIME: Duration = Duration::from_micros(100);

/// Number of owed replies that are no reason to wait longer: 100.
pub(crate) const BACKLOG_MIN: usize = 100;

/// Upper bound of one encoded request, in bytes: a script, three keys with name and prefix, a channel with
/// the prefix, two labels, and some more. Not checked, because names and labels are bounded.
pub(crate) const REQUEST_SIZE_MAX: usize = 3 * (RESOURCE_SIZE_MAX + SLOT_PART_SIZE_MAX + PREFIX_SIZE_MAX)
    + PREFIX_SIZE_MAX
    + 2 * HOLDER_LABEL_SIZE_MAX
    + 12_800;

/// Largest number of consecutive new tokens with which a fenced acquisition tries again without a pause.
pub(crate) const RENUMBERING_COUNT_MAX: u32 = 3;

/// Largest number of waiters of all clients in one lock's queue on a master: 4,096. The master answers one
/// more with an error, which counts as a failure, not as a refusal of the lock. The waiter asks again after a
/// growing random time.
pub const WAITER_COUNT_MAX: u64 = 4096;

/// How long a waiter keeps its place in the masters' queues without a sign of life: 3 s.
pub const STAY: Duration = Duration::from_secs(3);

/// Longest time between two signs of life of a waiter: 1 s; a quarter of the lock's TTL if that is shorter
/// and the TTL is at least 2 s.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(1);

/// Shortest TTL that shortens the time between two signs of life: 2 s.
pub(crate) const SHORT_TTL: Duration = Duration::from_secs(2);

/// Longest TTL of a lock that a master grants to a waiter on its own: 10 s. For a longer TTL the waiter is
/// rung, and asks again, which takes one more round trip.
pub const GRANTED_TTL_MAX: Duration = Duration::from_secs(10);

/// Shortest time of holding after which a release serves waiters: 10 ms. A lock held for less is released
/// with a native command if no waiter is known; the first waiter then checks for itself.
pub(crate) const SERVED_HOLD_MIN: Duration = Duration::from_millis(10);

/// One in 64 of those short releases serves anyway, so that a client that keeps reacquiring a lock excludes
/// nobody for long.
pub(crate) const SHORT_HOLDS_PER_SERVE: u64 = 64;

/// Shortest pause after which a waiter gives back part of a lock that it did not get: 20 ms.
pub(crate) const PART_TIME_MIN: Duration = Duration::from_millis(20);

/// Shortest pause after which the first waiter has the masters check whether the lock is free: 10 ms.
pub(crate) const LOOK_PAUSE_MIN: Duration = Duration::from_millis(10);

/// Bounds of the random pause between checks while the lock changes hands without serving this waiter, for
/// example beside another library: 20 and 60 ms, as for a client that polls.
pub(crate) const LOOK_PAUSES_UNSERVED: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(20)..=Duration::from_millis(60);

/// How long a master's clock reading takes precedence over a reading that was delayed for longer: 10 s.
pub(crate) const CLOCK_KEPT: Duration = Duration::from_secs(10);

/// How long a client knows a lock to be contended, so that its next waiter parks without a `SET` first: 1 s.
pub(crate) const CONTENDED_KEPT: Duration = Duration::from_secs(1);

/// Largest number of locks that a client knows to be contended: 64.
pub(crate) const CONTENDED_COUNT_MAX: usize = 64;

/// Time within which waiters come back to a reconnected master: 100 ms.
pub(crate) const REJOIN_TIME: Duration = Duration::from_millis(100);

/// How long an acquisition polls after too few masters could park it: 1 s.
pub(crate) const PARK_PAUSE: Duration = Duration::from_secs(1);

/// Pause after an attempt that a quorum refused for missing rights: 1 s. Refusals during an ACL reload pass
/// quickly; any others need an operator.
pub(crate) const RIGHTS_PAUSE: Duration = Duration::from_secs(1);

/// Longest time after which a waiter asks again that several times found a full queue or slow masters: 10 s.
/// The time grows from [`PARK_PAUSE`], and half of it is random.
pub(crate) const PARK_PAUSE_MAX: Duration = Duration::from_secs(10);

/// Largest size of a reply's line, without its CRLF: 16 KiB. A longer line ends the connection.
pub const REPLY_LINE_SIZE_MAX: usize = 16 * 1024;

/// Largest size of a reply, headers included: 1 MiB. A larger reply ends the connection.
pub const REPLY_SIZE_MAX: usize = 1024 * 1024;

/// Largest total number of elements of a reply's arrays, maps, sets and pushes: 1,024. A map's pair counts as
/// two. A reply with more ends the connection.
pub const REPLY_ELEMENT_COUNT_MAX: usize = 1024;

/// Largest depth of nested arrays, maps, sets and pushes in a reply: 8. Deeper nesting ends the connection.
pub const REPLY_DEPTH_MAX: usize = 8;

/// Largest number of simultaneous holds of a [`crate::ReentrantLock`]: 4,294,967,295. One more is
/// `LockReentrantError::TooManyHolds`.
pub const HOLD_COUNT_MAX: usize = u32::MAX as usize;

/// Largest number of locks that [`crate::Client::lock_set`] acquires together: 256. More are
/// `InputError::SetTooLarge`; nothing is sent.
pub const SET_SIZE_MAX: usize = 256;

/// Largest number of bytes of a key's value that [`crate::Client::inspect`] fetches: 256. The rest is cut
/// off.
pub const VALUE_SHOWN_MAX: usize = 256;

/// Largest number of bytes kept of an error reply: 160. The rest is cut off.
pub const ERROR_TEXT_SIZE_MAX: usize = 160;

/// Largest size of one page of names or of a list of connections, for an administrative connection (`doctor`,
/// `ls`, `drill`, `bench`): 64 MiB. It includes long names that are no locks. For any other exchange the
/// limit is [`REPLY_SIZE_MAX`]. A larger reply ends the connection.
pub(crate) const PROBE_PAGE_SIZE_MAX: usize = 64 * 1024 * 1024;

/// Largest number of replies and elements in one exchange of an administrative connection: 16,384.
pub(crate) const PROBE_VALUE_COUNT_MAX: usize = 16 * 1024;

/// Largest number of bytes of a text that an administrative connection keeps: 16 KiB. The rest is dropped.
pub(crate) const PROBE_TEXT_SIZE_MAX: usize = 16 * 1024;

/// As [`PROBE_TEXT_SIZE_MAX`], for a list of connections (`redlatch fleet`): 4 MiB, about 10,000 connections.
/// A longer list counts as unknown.
pub(crate) const PROBE_LIST_SIZE_MAX: usize = 4 * 1024 * 1024;

/// The same for a key's name. The longest key of a lock, the queue of a slot, is one byte shorter, so a name of
/// this size shows that the key belongs to no lock.
pub(crate) const PROBE_NAME_SIZE_MAX: usize =
    PREFIX_SIZE_MAX + "redlatch:wait:".len() + SLOT_PART_SIZE_MAX + RESOURCE_SIZE_MAX + 1;

/// Smallest size of the buffer for one read: 16 KiB. The inbox grows from here up to one reply.
pub const READ_SIZE: usize = 16 * 1024;

/// How long a connection stays open after its first missed answer: 5 s. Meanwhile the master may continue and
/// execute its commands in order. Then the connection is closed, and what failed attempts may have left is
/// released on the next one.
pub const SILENCE_MAX: Duration = Duration::from_secs(5);

/// Upper bound of the random pause before the first reconnect: 50 ms. It doubles with each failure, up to
/// [`BACKOFF_MAX`]. It starts again after a connection that lasted four times the last bound, or 2 s.
pub(crate) const BACKOFF_MIN: Duration = Duration::from_millis(50);

/// Upper bound of the random pause between two attempts to connect: 2 s.
pub const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// Shortest time between two calls of a credentials provider for one master's open connection: 1 s. A connect
/// does not wait for it.
pub const CREDENTIALS_PAUSE_MIN: Duration = Duration::from_secs(1);

/// Longest pause before the next call of the provider after it failed, or after a server refused its
/// credentials on an open connection: 60 s. The pause is random, at least 1 s; its upper bound starts at 2 s
/// and doubles.
pub const CREDENTIALS_PAUSE_MAX: Duration = Duration::from_secs(60);

/// Upper bound of the setting `spin`: 10 ms.
pub const SPIN_MAX: Duration = Duration::from_millis(10);

/// How long a `Client` may be idle before its next acquisition first checks its connections: 100 ms.
pub const IDLE_MAX: Duration = Duration::from_millis(100);

/// Longest time that this acquisition waits for closed connections to reopen, if a quorum needs them: 200 ms.
pub const REVIVE_MAX: Duration = Duration::from_millis(200);

/// How long a [`crate::Client`] that nobody calls leaves its connections unwatched: 1 s.
pub const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// How often a client's thread looks while a connection is being opened and nobody leads: every 20 ms.
/// Nothing wakes it for an address, for credentials, or for a master's first reply.
pub(crate) const CONNECT_LOOK_PAUSE: Duration = Duration::from_millis(20);

/// Shortest time that connecting waits for the other masters once a quorum is ready: 20 ms.
pub const STRAGGLER_WAIT: Duration = Duration::from_millis(20);

/// Longest time that a dropped [`crate::Guard`]'s release waits for a write that it can join: 1 ms.
pub const DROP_LINGER: Duration = Duration::from_millis(1);

/// How often a drain checks whether all releases are complete: every millisecond.
pub(crate) const DRAIN_LOOK_PAUSE: Duration = Duration::from_millis(1);

/// How long a client's thread stays for answers to its own requests, such as renewals: 5 ms.
pub(crate) const BACKGROUND_STAY: Duration = Duration::from_millis(5);

/// Time without a turn of the runtime after which the client's thread leads in its place, if tasks wait: 20
/// ms. A busy runtime of a thousand tasks turns every 3 ms.
pub const DRIVE_LATE: Duration = Duration::from_millis(20);

/// Longest time that dropping the last handle of a [`crate::Client`] waits for responsive masters to confirm
/// queued releases: 100 ms.
pub const CLOSE_WAIT: Duration = Duration::from_millis(100);

/// TTL of a [`crate::LockRequest`] without one: 10 s, or `max_ttl` if that is shorter.
pub const TTL_DEFAULT: Duration = Duration::from_secs(10);

/// Largest number of renewals of one kept lock: 1,000,000,000. Then it ends with its TTL. The longest hold
/// usually comes first: with a TTL of 100 ms this number takes more than half a year.
pub(crate) const RENEWAL_COUNT_MAX: u32 = 1_000_000_000;

/// Longest pause before a failed renewal is repeated: 1 s. The pause is a twentieth of the TTL, from 1 ms to
/// half a second, plus a random time up to as long.
pub const RENEWAL_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Shortest pause before a failed renewal is repeated, without its random part: 1 ms.
pub(crate) const RENEWAL_PAUSE_MIN: Duration = Duration::from_millis(1);

/// Largest number of a name's addresses tried for one connection: 16.
pub(crate) const ADDRESS_COUNT_MAX: usize = 16;

/// An endless time, in place of a time that would overflow the clock: 100 years.
pub(crate) const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Renewals due within this time are sent together: 16 ms.
pub(crate) const RENEWAL_TICK: Duration = Duration::from_millis(16);

/// Largest number of events that an engine keeps for the observer: 1,024. Further events are dropped and
/// counted ([`Stats::events_dropped`](crate::stats::Stats::events_dropped)).
pub const EVENT_COUNT_MAX: usize = 1024;

/// Mean pause between acquisitions above which each is timed: 1 ms.
pub const TIMED_PAUSE: Duration = Duration::from_millis(1);

/// One acquisition in 64 is timed while they come faster than [`TIMED_PAUSE`], so that the others pay
/// nothing. The first 64 are all timed, and with an observer every one. Counters count all acquisitions.
pub const TIMED_SHARE: u32 = 64;

/// Shortest time between two acquisitions with a measured round trip: 10 ms.
pub const ROUND_TRIP_PAUSE: Duration = Duration::from_millis(10);
