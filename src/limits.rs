//! Every limit of the crate in one place, with what happens when it is reached.
//!
//! A limit is a constant where no user has a reason to change it, and the bound of a setting where one has.

use std::time::Duration;

/// Largest number of masters of one client: 32. A configuration with more is refused.
pub const MASTER_COUNT_MAX: usize = 32;

/// Largest size of a resource name without the prefix: 1,024 bytes. An empty or longer name is refused
/// before anything is sent.
pub const RESOURCE_SIZE_MAX: usize = 1024;

/// Largest number of slots of one pool: 1,024. A request for more is refused before anything is sent.
pub const SLOT_COUNT_MAX: u32 = 1024;

/// Bytes of a slot's name before that of its pool, at most: `redlatch:slot:1023:`.
pub(crate) const SLOT_PART_SIZE_MAX: usize = 19;

/// Largest number of tries for a slot in a row, each of which another caller may win: 4. Then the caller
/// waits at the pool's door, or pauses and looks again if it does not wait.
pub(crate) const SLOT_RACES_MAX: u32 = 4;

/// Largest number of further looks of a caller that does not wait, while some slot may be free: 8.
pub(crate) const SLOT_LOOKS_AGAIN_MAX: u32 = 8;

/// Largest number of holders that the error of a refused slot names: 8.
pub(crate) const SLOT_HOLDERS_MAX: usize = 8;

/// Largest number of slots of a pool whose first waiter stands in the queue of each: 8. In a larger pool it
/// looks for a free slot every now and then.
pub const SLOT_STAND_MAX: u32 = 8;

/// Shortest pause between two looks for a free slot: 1 ms, or the duration of the last look if that is
/// longer.
pub(crate) const SLOT_LOOK_PAUSE_MIN: Duration = Duration::from_millis(1);

/// Longest pause between two looks for a free slot: 50 ms. A pause of the first waiter is an eighth of the
/// time for which it has looked.
pub const SLOT_LOOK_PAUSE_MAX: Duration = Duration::from_millis(50);

/// TTL of the lock at which the waiters of a pool stand: 1 s, or `max_ttl` if that is shorter. So long, at
/// most, a killed first waiter keeps the others waiting.
pub const DOOR_TTL: Duration = Duration::from_secs(1);

/// Largest size of the naming prefix: 256 bytes. A configuration with a longer one is refused.
pub const PREFIX_SIZE_MAX: usize = 256;

/// Largest size of a holder label: 64 bytes. A longer one is refused before anything is sent.
pub const HOLDER_LABEL_SIZE_MAX: usize = 64;

/// Largest size of the fleet's record: 1,536 bytes. A list of 32 masters takes 1,088 of them. A longer
/// record counts as damaged.
pub(crate) const RECORD_SIZE_MAX: usize = 1536;

/// Longest time for which a master of a new fleet may have run (`redlatch fleet init`): one hour. One that
/// has run for longer counts by itself, unless `max_ttl` is longer.
pub const FOUNDING_UPTIME_MAX: Duration = Duration::from_secs(3600);

/// Time after which a connection that stands asks again whether its server is still a master that keeps its
/// locks: 60 s.
pub(crate) const FACTS_PAUSE: Duration = Duration::from_secs(60);

/// Time after which an open connection asks again if the master had no room for the question or was busy: 1 s.
pub(crate) const PAUSE_UNANSWERED: Duration = Duration::from_secs(1);

/// Shortest time between two lookups of the name of a master that takes no writes: 5 s.
pub(crate) const LOOKUP_PAUSE: Duration = Duration::from_secs(5);

/// Time after which a fleet's record is read again: 60 s.
pub(crate) const RECORD_PAUSE: Duration = Duration::from_secs(60);

/// Upper bound of the `max_ttl` setting: 7 days.
pub const MAX_TTL_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// Upper bound of the clock drift setting, in parts per million: 500,000, half of the TTL.
pub const DRIFT_PPM_MAX: u32 = 500_000;

/// Upper bound of the settable time limits for an answer, a connection and a pause between attempts: one
/// day. A wait has no bound.
pub const TIME_LIMIT_MAX: Duration = Duration::from_secs(24 * 3600);

/// Numbers of failed attempts for which the function given to [`crate::ConfigBuilder::retry_delay_by`] is
/// called: 64, or fewer if it returns [`TIME_LIMIT_MAX`] before.
pub(crate) const RETRY_DELAY_COUNT: u32 = 64;

/// Lower bound of the answer limit, unless an answer time-out is configured: 5 ms, or a fiftieth of the
/// TTL. A shorter validity bounds it, too.
pub(crate) const ANSWER_LIMIT_MIN: Duration = Duration::from_millis(5);

/// The largest lower bound of that time, for a TTL of 2.5 s or more: 50 ms.
pub(crate) const ANSWER_LIMIT_MIN_MAX: Duration = Duration::from_millis(50);

/// Upper bound of the answer limit, unless an answer time-out is configured: 1 s, and a fifth of the TTL
/// unless the lower bound is larger.
pub const ANSWER_LIMIT_MAX: Duration = Duration::from_secs(1);

/// Largest number of locks of one engine that are being acquired, held, or whose release is awaited, and of
/// queries: 131,072. One more is `Overloaded`, at once.
pub const OPERATION_COUNT_MAX: usize = 131_072;

/// Largest number of acquisitions of one engine that stand behind another in the wait queue of one lock:
/// 4,096. They count as operations, too. One more is `Overloaded`, at once.
pub const QUEUED_COUNT_MAX: usize = 4096;

/// Largest number of times in a row that a lock passes from one caller of an engine to the next without
/// being free in between: 16.
///
/// Then the lock is released, and the next caller stands behind the waiters of other clients in the
/// masters' queues. Where masters have none, it asks only after a pause. The pause is drawn as after a
/// failed attempt that took as long as an average turn of the row, so its mean is about two turns. Other
/// clients therefore find the lock free for about a tenth of the time, for turns up to the longest retry
/// delay. Half as many turns would cost the callers of a busy engine twice as much for it. With turns
/// shorter than a millisecond, the shortest pause, other clients have more: an empty turn on loopback
/// takes a sixth of one, and then the lock is free for half of the time.
pub const HANDOVER_COUNT_MAX: u32 = 16;

/// Longest time in a row for which a lock passes on like this: 1 s. A holder that has it at the end of this
/// time may keep it. Other clients wait no longer than this and one turn for their first chance. With a
/// shorter time, callers that each hold a lock for a tenth of a second would never hand it over.
pub const HANDOVER_TIME_MAX: Duration = Duration::from_secs(1);

/// Largest number of tokens that an engine keeps track of: 262,144, for the operations above and as many
/// locks whose release is not proven yet. Beyond it those locks are left to their TTL.
pub const CLAIM_COUNT_MAX: usize = 2 * OPERATION_COUNT_MAX;

/// Largest size of a user and a password together: 64 KiB. Longer ones are refused.
pub const LOGIN_SIZE_MAX: usize = 64 * 1024;

/// Largest number of bytes that wait to be written to one connection: 8 MiB. A command that does not fit
/// is not sent: that master's vote is a failure. An acquisition for which no quorum has room is
/// `Overloaded`, at once.
pub const OUTBOX_SIZE_MAX: usize = 8 * 1024 * 1024;

/// Largest number of replies owed over one connection: 262,144. A command beyond it is not sent: that
/// master's vote is a failure.
pub(crate) const OWED_COUNT_MAX: usize = 262_144;

/// Time by which an awaited release may take longer, for each reply beyond [`BACKLOG_MIN`] that a master
/// still owes when the answer limit has passed: 0.1 ms. A server takes some hundredths of that for a request.
/// The limit then counts anew, until the key's TTL is over.
pub(crate) const REPLY_TIME: Duration = Duration::from_micros(100);

/// So many replies owed are no reason to wait longer: 100.
pub(crate) const BACKLOG_MIN: usize = 100;

/// Bytes of one encoded request: a script, three keys of a resource name with its prefix, a channel with the
/// prefix, two labels, and some more. No check: names and labels are bounded.
pub(crate) const REQUEST_SIZE_MAX: usize = 3 * (RESOURCE_SIZE_MAX + SLOT_PART_SIZE_MAX + PREFIX_SIZE_MAX)
    + PREFIX_SIZE_MAX
    + 2 * HOLDER_LABEL_SIZE_MAX
    + 12_800;

/// How often in a row a fenced acquisition may be tried again with another token without a pause.
pub(crate) const RENUMBERING_COUNT_MAX: u32 = 3;

/// Largest number of waiters in the queue of one lock on a master, over all clients: 4,096. The masters
/// refuse one more with an error that says so, which is a failure and not a refusal of the lock. The waiter
/// asks again after a random time that grows.
pub const WAITER_COUNT_MAX: u64 = 4096;

/// Time for which a waiter's place in the masters' queues is kept without a sign of life from it: 3 s.
pub const STAY: Duration = Duration::from_secs(3);

/// Longest time between two signs of life of a waiter: 1 s; a quarter of the lock's TTL if that is less and
/// the TTL is 2 s or longer.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(1);

/// A lock with a shorter TTL than 2 s has no shorter time between two signs of life for it.
pub(crate) const SHORT_TTL: Duration = Duration::from_secs(2);

/// Longest TTL of a lock that a master grants to a waiter by itself: 10 s. A waiter for a longer one is
/// rung, and asks again: one round trip more.
pub const GRANTED_TTL_MAX: Duration = Duration::from_secs(10);

/// A lock that was held for less than 10 ms is released by a native command where nobody is known to wait,
/// and the first waiter looks for it by itself.
pub(crate) const SERVED_HOLD_MIN: Duration = Duration::from_millis(10);

/// One release in 64 serves all the same: a client that takes a lock again and again keeps
/// nobody out for long.
pub(crate) const SHORT_HOLDS_PER_SERVE: u64 = 64;

/// Shortest pause after which a waiter gives back a part of a lock that it did not get: 20 ms.
pub(crate) const PART_TIME_MIN: Duration = Duration::from_millis(20);

/// Shortest pause after which the first waiter has the masters look whether the lock is free: 10 ms.
pub(crate) const LOOK_PAUSE_MIN: Duration = Duration::from_millis(10);

/// Bounds of the random pause between looks while the lock changes hands and no master serves the waiter,
/// as beside another library: 20 and 60 ms, which are those of a client that polls.
pub(crate) const LOOK_PAUSES_UNSERVED: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(20)..=Duration::from_millis(60);

/// How long a master's answer about its time counts for more than one that was longer under way: 10 s.
pub(crate) const CLOCK_KEPT: Duration = Duration::from_secs(10);

/// Time within which waiters come back to a master that is connected again: 100 ms.
pub(crate) const REJOIN_TIME: Duration = Duration::from_millis(100);

/// Time for which an acquisition polls after too few masters could park it: 1 s.
pub(crate) const PARK_PAUSE: Duration = Duration::from_secs(1);

/// Pause after an attempt that a quorum refused for missing rights: 1 s. A reload of the ACL refuses for a
/// moment, and anything else needs an operator.
pub(crate) const RIGHTS_PAUSE: Duration = Duration::from_secs(1);

/// Longest time after which a waiter asks again that found a full queue, or slow masters, several times: 10
/// s. It grows from [`PARK_PAUSE`], and half of it is random.
pub(crate) const PARK_PAUSE_MAX: Duration = Duration::from_secs(10);

/// Largest size of one line of a reply, without its CRLF: 16 KiB. A longer line ends the connection.
pub const REPLY_LINE_SIZE_MAX: usize = 16 * 1024;

/// Largest size of one whole reply, headers included: 1 MiB. A larger one ends the connection.
pub const REPLY_SIZE_MAX: usize = 1024 * 1024;

/// Largest number of elements of the arrays, maps, sets and pushes in a reply together: 1,024. A pair of a
/// map is two. A reply with more ends the connection.
pub const REPLY_ELEMENT_COUNT_MAX: usize = 1024;

/// Largest depth of arrays inside arrays in a reply: 8. Maps, sets and pushes count as arrays. A deeper
/// nesting ends the connection.
pub const REPLY_DEPTH_MAX: usize = 8;

/// Largest number of holds that one [`crate::ReentrantLock`] has at the same time: 4,294,967,295. One more
/// is `LockReentrantError::TooManyHolds`.
pub const HOLD_COUNT_MAX: usize = u32::MAX as usize;

/// Largest number of locks that [`crate::Client::lock_set`] acquires together: 256. More are
/// `InputError::SetTooLarge`; nothing is sent.
pub const SET_SIZE_MAX: usize = 256;

/// Largest number of bytes of a key's value that [`crate::Client::inspect`] fetches: 256. The rest is cut
/// off.
pub const VALUE_SHOWN_MAX: usize = 256;

/// Largest number of bytes of an error reply that are kept to be shown: 160. The rest is cut off.
pub const ERROR_TEXT_SIZE_MAX: usize = 160;

/// Largest number of bytes that a connection of administration (`doctor`, `ls`, `drill`, `bench`) reads for
/// one page of a search for names, or for a list of connections: 64 MiB, also of long names that are no
/// locks. For any other exchange it is [`REPLY_SIZE_MAX`]. A larger one ends the connection.
pub(crate) const PROBE_PAGE_SIZE_MAX: usize = 64 * 1024 * 1024;

/// Largest number of replies and of their elements that such a connection reads for one exchange: 16,384.
pub(crate) const PROBE_VALUE_COUNT_MAX: usize = 16 * 1024;

/// Largest number of bytes of a text that such a connection keeps: 16 KiB. The rest is dropped.
pub(crate) const PROBE_TEXT_SIZE_MAX: usize = 16 * 1024;

/// The same for a list of connections (`redlatch fleet`): 4 MiB, about 10,000 connections. A longer list
/// counts as unknown.
pub(crate) const PROBE_LIST_SIZE_MAX: usize = 4 * 1024 * 1024;

/// The same for a key's name: one byte more than the longest key of a lock, which is the queue of a slot, so
/// that a longer key is known to be none.
pub(crate) const PROBE_NAME_SIZE_MAX: usize =
    PREFIX_SIZE_MAX + "redlatch:wait:".len() + SLOT_PART_SIZE_MAX + RESOURCE_SIZE_MAX + 1;

/// Smallest number of bytes that a connection lends to one read: 16 KiB. The inbox grows from here up to
/// one reply.
pub const READ_SIZE: usize = 16 * 1024;

/// Time for which a connection is kept after the first answer that it missed: 5 s. Meanwhile the master may
/// go on and carry out its commands in order. Then the connection is closed, and what failed attempts may
/// have left is released over the next one.
pub const SILENCE_MAX: Duration = Duration::from_secs(5);

/// Upper bound of the random pause before the first reconnect: 50 ms. It doubles with each failure up to
/// [`BACKOFF_MAX`], 2 s. It is 50 ms again after a connection that lasted four times the last bound, or 2 s.
pub(crate) const BACKOFF_MIN: Duration = Duration::from_millis(50);

/// Upper bound of the random pause between two attempts to connect: 2 s.
pub const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// Shortest time between two calls of a credentials provider for the open connections of one master: 1 s. A
/// connect does not wait for it.
pub const CREDENTIALS_PAUSE_MIN: Duration = Duration::from_secs(1);

/// Longest pause before the provider is called again after it failed, or after a server refused its
/// credentials on an open connection: 60 s. The pause is random, at least 1 s; its bound is 2 s at
/// first, and doubles.
pub const CREDENTIALS_PAUSE_MAX: Duration = Duration::from_secs(60);

/// Upper bound of the spin setting: 10 ms.
pub const SPIN_MAX: Duration = Duration::from_millis(10);

/// Time for which a `Client` may be idle before its next acquisition first checks its connections: 100 ms.
pub const IDLE_MAX: Duration = Duration::from_millis(100);

/// Longest time that such an acquisition waits for closed connections to be made again, if there is no
/// quorum without them: 200 ms.
pub const REVIVE_MAX: Duration = Duration::from_millis(200);

/// Time for which a [`crate::Client`] that nobody calls leaves its connections unwatched: 1 s.
pub const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// How often a client's thread looks while a connection is being opened and nobody leads. Nothing wakes it
/// for an address, for credentials, or for a master's first reply.
pub(crate) const CONNECT_LOOK_PAUSE: Duration = Duration::from_millis(20);

/// Shortest time that connecting waits for the other masters once a quorum is ready: 20 ms.
pub const STRAGGLER_WAIT: Duration = Duration::from_millis(20);

/// Longest time that the release of a dropped [`crate::Guard`] waits for a write that it can join: 1 ms.
pub const DROP_LINGER: Duration = Duration::from_millis(1);

/// How often a drain looks whether all is released: each millisecond.
pub(crate) const DRAIN_LOOK_PAUSE: Duration = Duration::from_millis(1);

/// How long a client's thread stays for the answers to what it has sent by itself, as renewals.
pub(crate) const BACKGROUND_STAY: Duration = Duration::from_millis(5);

/// Time without a turn of the runtime after which the client's thread leads in its place, if tasks wait: 20 ms. A
/// busy runtime of a thousand tasks turns each 3 ms.
pub const DRIVE_LATE: Duration = Duration::from_millis(20);

/// Longest time that dropping the last handle of a [`crate::Client`] waits for the answering masters to
/// confirm queued releases: 100 ms.
pub const CLOSE_WAIT: Duration = Duration::from_millis(100);

/// TTL of a [`crate::LockRequest`] without one: 10 s, or `max_ttl` if that is shorter.
pub const TTL_DEFAULT: Duration = Duration::from_secs(10);

/// Largest number of renewals of one kept lock: 1,000,000,000. Then it ends with its TTL. The longest hold
/// usually comes before: a lock with a TTL of 100 ms reaches this number after more than half a year.
pub(crate) const RENEWAL_COUNT_MAX: u32 = 1_000_000_000;

/// Longest pause before a failed renewal is tried again: 1 s. The pause is a twentieth of the TTL, from 1
/// ms to half a second, and up to as much again at random.
pub const RENEWAL_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Shortest pause before a renewal that failed is tried again, without its random part.
pub(crate) const RENEWAL_PAUSE_MIN: Duration = Duration::from_millis(1);

/// Largest number of addresses of one name that are tried for one connection.
pub(crate) const ADDRESS_COUNT_MAX: usize = 16;

/// A time without end, in place of one that would overflow the clock.
pub(crate) const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Renewals that are due within this time go out together.
pub(crate) const RENEWAL_TICK: Duration = Duration::from_millis(16);

/// Largest number of events that an engine keeps for the observer: 1,024. Further ones are dropped and
/// counted ([`Stats::events_dropped`](crate::stats::Stats::events_dropped)).
pub const EVENT_COUNT_MAX: usize = 1024;

/// Mean pause between acquisitions above which each one is timed: 1 ms.
pub const TIMED_PAUSE: Duration = Duration::from_millis(1);

/// One acquisition in 64 is timed while they keep coming faster than [`TIMED_PAUSE`], so that the others
/// pay nothing for it. With an observer of events all are. The first 64 are timed, too. Counters count
/// all.
pub const TIMED_SHARE: u32 = 64;

/// Shortest time between two acquisitions whose round trip to the masters is measured: 10 ms.
pub const ROUND_TRIP_PAUSE: Duration = Duration::from_millis(10);
