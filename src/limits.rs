//! Every limit of the crate in one place, with what happens when it is reached.
//!
//! A limit is a constant where no user has a reason to change it, and the bound of a setting where one has.

use std::time::Duration;

/// Masters of one client. More is refused when the configuration is built.
pub const MASTER_COUNT_MAX: usize = 32;

/// Bytes of a resource name without the prefix. An empty or longer name is refused before anything is sent.
pub const RESOURCE_SIZE_MAX: usize = 1024;

/// Bytes of the naming prefix. A longer one is refused when the configuration is built.
pub const PREFIX_SIZE_MAX: usize = 256;

/// Upper bound of the `max_ttl` setting: a week. A master that restarted is kept from voting for this long.
pub const MAX_TTL_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// Upper bound of the clock drift setting, in parts per million: half of the TTL.
pub const DRIFT_PPM_MAX: u32 = 500_000;

/// Upper bound of the settable time limits for an answer, a connection and a pause between attempts: a day. A
/// wait has no bound.
pub const TIME_LIMIT_MAX: Duration = Duration::from_secs(24 * 3600);

/// Locks of one engine that are being acquired, held, or whose release is awaited. One more is `Overloaded`,
/// at once.
pub const OPERATION_COUNT_MAX: usize = 131_072;

/// Acquisitions of one engine that stand in line for one lock; they count as operations too. One more is
/// `Overloaded`, at once.
pub const QUEUED_COUNT_MAX: usize = 4096;

/// How often in a row a lock may pass from one caller of an engine to the next without being free in between.
/// Then it is really released, and the next caller asks for it only after a pause that is drawn as after a
/// failed attempt that took as long as a turn of the row on average. The mean pause is two turns, so other
/// clients find the lock free for a ninth of the time at the least, up to turns of the longest retry delay;
/// half as many turns would cost the callers of a busy engine twice as much for it. With turns shorter than a
/// millisecond, the shortest pause, others have more: an empty turn on loopback takes a sixth of one, and
/// then the lock is free for half of the time.
pub const HANDOVER_COUNT_MAX: u32 = 16;

/// For how long in a row it may pass on at the most; a holder who has it at the end of this time may keep it.
/// Other clients wait no longer than this and one turn for their first chance. Shorter, and callers who each
/// hold a lock for a tenth of a second would never hand it over.
pub const HANDOVER_TIME_MAX: Duration = Duration::from_secs(1);

/// Tokens that may be on some master: of the locks above, and as many whose release is not proven yet. Beyond
/// it those are left to their TTL.
pub const CLAIM_COUNT_MAX: usize = 2 * OPERATION_COUNT_MAX;

/// Bytes of a user or a password. A longer one is refused when the configuration is built.
pub const LOGIN_SIZE_MAX: usize = 64 * 1024;

/// Bytes waiting to be written to one master. A command that does not fit is not sent: that master's vote is
/// a failure. An acquisition for which no quorum has room is `Overloaded`, at once.
pub const OUTBOX_SIZE_MAX: usize = 8 * 1024 * 1024;

/// Replies owed by one master. A command beyond it is not sent: that master's vote is a failure.
pub const OWED_COUNT_MAX: usize = 262_144;

/// Bytes of one encoded request: a script, three keys of a resource name with its prefix, and some more. No
/// check: names are bounded.
pub(crate) const REQUEST_SIZE_MAX: usize = 3 * (RESOURCE_SIZE_MAX + PREFIX_SIZE_MAX) + 2560;

/// How often in a row a fenced acquisition may be tried again with another token without a pause.
pub(crate) const RENUMBERING_COUNT_MAX: u32 = 3;

/// How long the place of one who waits for a fair lock is kept without a word from it: a waiter that died
/// holds the others up for this long at the most, however many died with it. Waiters ask the masters at least
/// every third of it, so it is also what waiting costs; one whose masters are slower than two thirds of it to
/// answer may be overtaken.
pub const FAIR_HEARTBEAT: Duration = Duration::from_secs(3);

/// Waiters in the queue of one fair lock, over all clients. The masters refuse one more with an error that
/// says so, which counts as a failure and not as a no.
pub const FAIR_QUEUE_COUNT_MAX: u64 = 4096;

/// Bytes of one line of a reply, without its CRLF. A longer line ends the connection.
pub const REPLY_LINE_SIZE_MAX: usize = 16 * 1024;

/// Bytes of one whole reply, headers included. A larger one ends the connection.
pub const REPLY_SIZE_MAX: usize = 1024 * 1024;

/// Elements of one array in a reply. A longer array ends the connection.
pub const REPLY_ELEMENT_COUNT_MAX: usize = 1024;

/// Arrays inside arrays in a reply. A deeper nesting ends the connection.
pub const REPLY_DEPTH_MAX: usize = 8;

/// Holds that one [`crate::ReentrantLock`] has at the same time. One more is
/// `LockReentrantError::TooManyHolds`.
pub const HOLD_COUNT_MAX: usize = u32::MAX as usize;

/// Locks that are acquired together by [`crate::Client::lock_set`]. More are `InputError::SetTooLarge`;
/// nothing is sent.
pub const SET_SIZE_MAX: usize = 256;

/// Bytes of a key's value that [`crate::Client::inspect`] fetches; the rest is cut off.
pub const VALUE_SHOWN_MAX: usize = 256;

/// Bytes of an error reply that are kept to be shown; the rest is cut off.
pub const ERROR_TEXT_SIZE_MAX: usize = 160;

/// Bytes that a connection lends to one read at the least; the inbox grows from here up to one reply.
pub const READ_SIZE: usize = 16 * 1024;

/// How long a connection that answers nothing is kept, in the hope that the master goes on and carries out in
/// order what it was sent. Then it is closed, and what may have been granted is released over the next
/// connection.
pub const SILENCE_MAX: Duration = Duration::from_secs(5);

/// Upper bound of the random pause before the first reconnect; it doubles with each failure up to
/// [`BACKOFF_MAX`].
pub const BACKOFF_MIN: Duration = Duration::from_millis(50);

/// Upper bound of the random pause between two attempts to connect.
pub const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// Upper bound of the spin setting.
pub const SPIN_MAX: Duration = Duration::from_millis(10);

/// How long a `Redlock` may be idle before its next acquisition first looks whether its connections still
/// stand.
pub const IDLE_MAX: Duration = Duration::from_millis(100);

/// How long such an acquisition waits for connections that were closed meanwhile to be made again, if without
/// them there is no quorum.
pub const REVIVE_MAX: Duration = Duration::from_millis(200);

/// How long a [`crate::Client`] that nobody calls leaves its connections unwatched.
pub const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// How long connecting waits for the other masters once a quorum is ready, at the least.
pub const STRAGGLER_WAIT: Duration = Duration::from_millis(20);

/// How long the release of a dropped [`crate::Guard`] may wait for a write that it can ride in.
pub const DROP_LINGER: Duration = Duration::from_millis(1);

/// How long a client's thread stays for the answers to what it has sent by itself, as renewals.
pub(crate) const BACKGROUND_STAY: Duration = Duration::from_millis(5);

/// How long dropping the last handle of a [`crate::Client`] waits for the masters that answer to confirm
/// queued releases.
pub const CLOSE_WAIT: Duration = Duration::from_millis(100);

/// Threads of a client on which callbacks of [`crate::Guard::on_lost`] run at once. Further ones wait until
/// one returns.
pub const CALLBACK_THREAD_COUNT_MAX: usize = 16;

/// TTL of a [`crate::LockRequest`] that names none, if `max_ttl` allows it.
pub const TTL_DEFAULT: Duration = Duration::from_secs(10);

/// Renewals of one lock that is kept. Then it ends with its TTL. The longest hold comes before: a lock with a
/// TTL of 100 ms has so many in more than half a year.
pub const RENEWAL_COUNT_MAX: u32 = 1_000_000_000;

/// Longest pause before a renewal that failed is tried again. The pause is a twentieth of the TTL, and up to
/// as much again at random.
pub const RENEWAL_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Shortest pause before a renewal that failed is tried again, without its random part.
pub(crate) const RENEWAL_PAUSE_MIN: Duration = Duration::from_millis(1);

/// A time without end, in place of one that would overflow the clock.
pub(crate) const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Renewals that are due within this time go out together.
pub(crate) const RENEWAL_TICK: Duration = Duration::from_millis(16);

/// How long new readers stay out of a lock at the most for a writer that has gone, or cannot renew its
/// reservation, besides twice the answer limit. A writer that keeps them out tries again at least twice as
/// often.
pub const RESERVATION_TIME: Duration = Duration::from_secs(1);

/// Locks that one engine is notified of while callers wait for them, each a channel on every master. A waiter
/// for another one tries again after random delays only.
pub const WATCH_COUNT_MAX: usize = 4096;

/// How long a connection for subscriptions is kept when nobody waits for any.
pub const SUBSCRIPTION_IDLE_MAX: Duration = Duration::from_secs(5);

/// How long a master that refused a subscription is not asked for one again.
pub const SUBSCRIPTION_REFUSED_PAUSE: Duration = Duration::from_secs(60);

/// Of the clients that wait for a lock, so many on average try when it is released, if more are known to
/// wait. With three none of them tries in one release of twenty; then the first that would have tried again
/// anyway has it.
pub const WOKEN_COUNT: u32 = 3;

/// How many times the longest `retry_delay` the pause of a waiter grows to at most, once a quorum of masters
/// has confirmed that it publishes releases and while no message has come. A release without a message costs
/// a waiter at most this.
pub const QUIET_PAUSE_FACTOR_MAX: u32 = 20;

/// Of the random pause behind a wake-up, how many times it may be longer than the longest pause of those who
/// are not notified; once more as long for each [`UNWOKEN_CROWD`] clients that wait, up to
/// [`UNWOKEN_CROWD_FACTOR_MAX`] times.
pub const UNWOKEN_PAUSE_FACTOR: u32 = 10;

/// See [`UNWOKEN_PAUSE_FACTOR`]. Without it half of the attempts of a hundred clients came from these pauses.
pub const UNWOKEN_CROWD: u32 = 20;

/// See [`UNWOKEN_PAUSE_FACTOR`].
pub const UNWOKEN_CROWD_FACTOR_MAX: u32 = 5;

/// The shortest sleep of an event loop. What is due sooner is better done at once.
pub(crate) const SLEEP_MIN: Duration = Duration::from_millis(1);
