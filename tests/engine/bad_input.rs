//! Replies of each form, in each place: each is the right vote or ends the connection with a reason. No reply
//! becomes a false grant or leaves a key behind, and the client works afterwards.
//!
//! | form | what the client does |
//! |---|---|
//! | `+` `-` `:` `$` `*` | accepts it if it fits or the handshake step is optional; else ends the connection |
//! | `:+1` | reads `:1` |
//! | `*-1` `_` | reads `$-1`, the only null of its commands in RESP2 |
//! | `#t` `#f` | reads `:1` and `:0`, as in RESP2 |
//! | `,1` `(1` | reads `:1`, or a string if it is no 64-bit number |
//! | `!` `=` `~` | reads `-`, `$` and `*` |
//! | `%` | accepts it only as the answer to `HELLO 3` |
//! | attributes | skips them anywhere |
//! | `>` | skips others' pushes between replies; ends the connection inside a reply |
//! | `$?` `*?` `%?` `~?` | ends the connection: no server command sends streamed types |

use std::sync::Arc;
use std::time::{Duration, Instant};

use redlatch::engine::{Engine, LinkRequest, OpId, Outcome, Request, Resource};
use redlatch::error::{Failure, HolderTtl, Vote};
use redlatch::resp::{self, Decoded, Reply};
use redlatch::status::MasterState;
use redlatch::{AcquireError, Config, ExtendError, Options, ReleaseError, limits};

use crate::model::Dialect;
use crate::rig::{Rig, id};
use crate::{defaults, denied, granted, ms};

const TTL_MS: u64 = 2000;

/// Every type of reply, and for some types the values with a special meaning.
const REPLIES: [&[u8]; 30] = [
    b"+OK\r\n",
    b"+QUEUED\r\n",
    b"+\r\n",
    b"-ERR x\r\n",
    b"-\r\n",
    b"-NOSCRIPT x\r\n",
    b":1\r\n",
    b":0\r\n",
    b":-1\r\n",
    b":-2\r\n",
    b":-3\r\n",
    b":700\r\n",
    b":9223372036854775807\r\n",
    b":+1\r\n",
    b"$2\r\nOK\r\n",
    b"$0\r\n\r\n",
    b"$-1\r\n",
    b"*0\r\n",
    b"*1\r\n+OK\r\n",
    b"*-1\r\n",
    b"*2\r\n$-1\r\n:1\r\n",
    b"_\r\n",
    b"#t\r\n",
    b",1\r\n",
    b"(1\r\n",
    b"!5\r\nERR x\r\n",
    b"=6\r\ntxt:OK\r\n",
    b"%1\r\n+OK\r\n:1\r\n",
    b"~1\r\n+OK\r\n",
    b"|1\r\n+a\r\n:1\r\n+OK\r\n",
];

/// The RESP2 reply with the same meaning.
fn plain(reply: &[u8]) -> &[u8] {
    match reply {
        b"_\r\n" | b"*-1\r\n" => b"$-1\r\n",
        b":+1\r\n" | b"#t\r\n" | b",1\r\n" | b"(1\r\n" => b":1\r\n",
        b"!5\r\nERR x\r\n" => b"-ERR x\r\n",
        b"=6\r\ntxt:OK\r\n" => b"$2\r\nOK\r\n",
        b"~1\r\n+OK\r\n" => b"*1\r\n+OK\r\n",
        b"|1\r\n+a\r\n:1\r\n+OK\r\n" => b"+OK\r\n",
        other => other,
    }
}

/// Bytes that are no reply, and the reason that the client must give.
fn malformed() -> Vec<(Vec<u8>, &'static str)> {
    let fixed: [(&[u8], &str); 20] = [
        (b"$-2\r\n", "length in a reply is negative"),
        (b"*-2\r\n", "length in a reply is negative"),
        (b"$99999999999\r\n", "larger than"),
        (b"*4294967295\r\n", "more than 1024 elements"),
        (b":9223372036854775808\r\n", "does not fit in 64 bits"),
        (b":-9223372036854775809\r\n", "does not fit in 64 bits"),
        (b"$+2\r\nOK\r\n", "plain decimal digits"),
        (b":01\r\n", "plain decimal digits"),
        (b":-0\r\n", "plain decimal digits"),
        (b":\r\n", "plain decimal digits"),
        (b"$02\r\nOK\r\n", "plain decimal digits"),
        (b"$2\r\nOKOK\r\n", "not ended by CR LF"),
        (b"+OK\n", "not ended by CR LF"),
        (b"+OK\rx", "not ended by CR LF"),
        (b"OK\r\n", "unknown type byte 'O'"),
        (b"\r\n", "unknown type byte"),
        // Streamed types.
        (b"$?\r\n;2\r\nOK\r\n;0\r\n", "plain decimal digits"),
        (b"*?\r\n+OK\r\n.\r\n", "plain decimal digits"),
        (b"#x\r\n", "boolean or a verbatim string in a reply is malformed"),
        (b"*1\r\n>1\r\n+OK\r\n", "unknown type byte '>'"),
    ];
    let mut rows: Vec<_> = fixed.iter().map(|(bytes, why)| (bytes.to_vec(), *why)).collect();
    rows.push((b"+".repeat(limits::REPLY_LINE_SIZE_MAX + 2), "longer than"));
    rows.push((b"*1\r\n".repeat(10_000), "nested"));
    rows
}

/// Consequence of one reply.
#[derive(Debug, Clone, PartialEq)]
enum Fate {
    /// It is an answer, and the connection stays.
    Answer(Seen),
    /// The connection ends, and all requests under way fail.
    Ends,
}

/// Result for the caller.
#[derive(Debug, Clone, PartialEq)]
enum Seen {
    Yes,
    No,
    Replied,
    Holder(HolderTtl),
    /// None yet, because the script is sent in full.
    Again,
}

fn is_error(reply: &[u8]) -> bool {
    plain(reply).starts_with(b"-")
}

fn down(rig: &Rig) -> Option<Arc<str>> {
    match rig.engine.master_status(rig.now, id(0)).state {
        MasterState::Down(why) => Some(why),
        _ => None,
    }
}

/// Checks that the connection stands, or has ended for this reason.
#[track_caller]
fn check_link(rig: &Rig, reply: &[u8], fate: &Fate, why: &str) {
    let (shown, down) = (reply[..reply.len().min(40)].escape_ascii(), down(rig));
    match fate {
        Fate::Ends => assert!(down.as_ref().is_some_and(|it| it.contains(why)), "{shown}: {down:?}"),
        Fate::Answer(_) => assert_eq!(down, None, "{shown}"),
    }
}

/// The master carries out all bytes, nobody reads the answers, and the client reconnects. After the caller
/// drops all locks, nothing may be left of them, and a new lock must be granted.
#[track_caller]
fn check_nothing_is_lost(rig: &mut Rig, lock: Option<OpId>) {
    if down(rig).is_none() {
        let late = rig.break_conn(0);
        rig.carry_out(0, late);
    }
    rig.resume_master(0);
    rig.outcomes.clear();
    if let Some(lock) = lock {
        rig.release(lock, false);
    }
    // The key is gone before its TTL ends, and the client remembers nothing of it. The foreign key expires,
    // too.
    rig.run_for(ms(TTL_MS - 200));
    assert_eq!((rig.holder_count("a"), rig.engine.operation_count()), (0, 0));
    rig.run_for(ms(400));
    assert_eq!(rig.engine.claim_count(), 0);
    assert_eq!(rig.engine.owed_count(id(0)), 0);
    let lock = rig.acquire("b", TTL_MS, 0);
    granted(rig);
    rig.release(lock, true);
    assert!(matches!(rig.outcome(), Some(Outcome::Release(Ok(_)))));
}

// ---- the handshake ----

const QUEUE: &str = "a waiter's queue (EVALSHA, SUBSCRIBE, sorted sets)";

const MARK: &str = "GET of the mark";
const RECORD: &str = "GET of the fleet's record";

/// The commands in order, the right reply to each, and whether any other reply ends the connection.
const STEPS: [(&str, &[u8], bool); 25] = [
    ("AUTH", b"+OK\r\n", true),
    ("HELLO 3", b"%1\r\n+OK\r\n:1\r\n", false),
    ("SELECT", b"+OK\r\n", true),
    ("CLIENT SETNAME", b"+OK\r\n", false),
    ("SCRIPT LOAD", b"$2\r\nOK\r\n", false),
    ("SCRIPT LOAD", b"$2\r\nOK\r\n", false),
    ("SCRIPT LOAD", b"$2\r\nOK\r\n", false),
    ("SCRIPT LOAD", b"$2\r\nOK\r\n", false),
    ("INFO server", b"$2\r\nOK\r\n", false),
    ("INFO replication", b"$2\r\nOK\r\n", false),
    ("INFO memory", b"$2\r\nOK\r\n", false),
    (MARK, b"$2\r\nOK\r\n", false),
    (RECORD, b"$2\r\nOK\r\n", false),
    ("SET IFEQ", b"$-1\r\n", false),
    ("DELIFEQ", b":0\r\n", false),
    ("DELEX IFEQ", b":0\r\n", false),
    ("scripts (EVALSHA, EVAL)", b":0\r\n", false),
    ("scripts (EVALSHA, EVAL)", b":0\r\n", false),
    ("SPUBLISH", b":0\r\n", false),
    ("PUBLISH", b":0\r\n", false),
    (QUEUE, b":0\r\n", false),
    (QUEUE, b":0\r\n", false),
    (QUEUE, b"*0\r\n", false),
    ("TIME", b"*0\r\n", false),
    ("ECHO", b"-", true),
];

/// A connection that waits for this step's answer.
fn rig_at_step(step: usize) -> Rig {
    let mut rig = Rig::with_urls(vec!["redis://me:pw@m0/3".to_owned()], defaults);
    rig.masters[0].password = Some("pw".to_owned());
    rig.stop_master(0);
    rig.pump();
    for (_, right, _) in &STEPS[..step] {
        rig.receive(0, right);
    }
    assert_eq!(rig.engine.owed_count(id(0)), STEPS.len() - step);
    rig
}

#[test]
fn handshake_ends_at_an_unexpected_reply() {
    for (step, (name, right, needed)) in STEPS.iter().enumerate() {
        for reply in REPLIES {
            let mut rig = rig_at_step(step);
            rig.receive(0, reply);
            let (fate, why) = match (is_error(reply), *name) {
                _ if !needed || plain(reply) == *right => (Fate::Answer(Seen::Again), String::new()),
                (true, "AUTH") => (Fate::Ends, "the login was refused: ".to_owned()),
                (true, _) => (Fate::Ends, format!("{name} was refused: ")),
                (false, _) => (Fate::Ends, format!("its answer to {name} is no reply to that")),
            };
            check_link(&rig, reply, &fate, &why);
            assert!(!rig.engine.has_quorum(), "{name}: it votes before its echo");
            check_nothing_is_lost(&mut rig, None);
        }
        for (bytes, why) in malformed() {
            let mut rig = rig_at_step(step);
            rig.receive(0, &bytes);
            check_link(&rig, &bytes, &Fate::Ends, why);
            check_nothing_is_lost(&mut rig, None);
        }
    }
}

#[test]
fn a_handshake_one_reply_ahead_never_votes() {
    // One reply too many comes first, so every later reply answers the wrong request.
    for extra in REPLIES {
        let mut rig = Rig::unconnected(1, defaults);
        rig.stop_master(0);
        rig.pump();
        rig.receive(0, extra);
        rig.refuse(0, true);
        rig.resume_master(0);
        assert!(down(&rig).is_some(), "{}", extra.escape_ascii());
        rig.refuse(0, false);
        check_nothing_is_lost(&mut rig, None);
    }
}

#[test]
fn incomplete_info_keeps_votes_from_counting() {
    let rows: [(&[u8], bool); 8] = [
        (b"", false),
        (b"# Server\r\n", false),
        (b"run_id:\r\nuptime_in_seconds:\r\n", false),
        (b"uptime_in_seconds:99999\r\n", true),
        (b"run_id:abc\r\nuptime_in_seconds:-5\r\n", false),
        (b"run_id:abc\r\nuptime_in_seconds:99999999999999999999\r\n", false),
        (b"run_id:abc\r\nuptime_in_seconds:1e9\r\n", false),
        (b"run_id:abc uptime_in_seconds:99999\nuptime_in_seconds:99999", false),
    ];
    for (info, counts) in rows {
        let now = Instant::now();
        let config = Config::builder().master("redis://h").build().expect("valid");
        let quarantine = config.quarantine_time();
        let mut engine = Engine::new(Arc::new(config), [7; 32], now);
        engine.handle_timeout(now);
        assert_eq!(engine.poll_link(), Some(LinkRequest::Connect(id(0))));
        engine.handle_connected(now, id(0));
        answer_handshake(&mut engine, now, info);
        let status = engine.master_status(now, id(0));
        let expected = if counts { MasterState::Ready } else { MasterState::Quarantined(quarantine) };
        assert_eq!(status.state, expected, "{}", info.escape_ascii());
        let has_run_id = info.starts_with(b"run_id:abc");
        assert_eq!(status.run_id.is_some(), has_run_id);
        let is_said = status.warnings.iter().any(|warning| warning.to_string().contains("each reconnect"));
        assert_eq!(is_said, !has_run_id, "{:?}", status.warnings);
    }
}

fn answer_handshake(engine: &mut Engine, now: Instant, info: &[u8]) {
    let (commands, mut replies) = (engine.send_ready(id(0)).to_vec(), Vec::new());
    engine.send_done(id(0), commands.len());
    let mut rest = commands.as_slice();
    while let Ok(Decoded::Complete { reply: Reply::Array(args), size }) = resp::decode(rest) {
        let args: Vec<Reply<'_>> = args.iter().collect();
        match args[..] {
            [Reply::Bulk(b"ECHO"), nonce] => resp::encode_reply(&mut replies, &nonce),
            [Reply::Bulk(b"INFO"), _] => resp::encode_bulk(&mut replies, info),
            _ => resp::encode_reply(&mut replies, &Reply::Error(b"ERR x")),
        }
        rest = &rest[size..];
    }
    engine.recv_space(id(0))[..replies.len()].copy_from_slice(&replies);
    engine.recv_done(now, id(0), replies.len());
}

// ---- votes ----

#[test]
fn acquisition_reply_votes_or_ends_the_connection() {
    let rows = REPLIES.map(|reply| (reply.to_vec(), "does not fit the request")).into_iter();
    for (reply, why) in rows.chain(malformed()) {
        let mut rig = Rig::new(1, |builder| builder.ask_holder(false).wake_waiters(false));
        rig.stop_master(0);
        let lock = rig.acquire("a", TTL_MS, 0);
        rig.receive(0, &reply);
        let fate = match plain(&reply) {
            b"+OK\r\n" => Fate::Answer(Seen::Yes),
            b"$-1\r\n" => Fate::Answer(Seen::No),
            error if is_error(error) => Fate::Answer(Seen::Replied),
            _ => Fate::Ends,
        };
        check_link(&rig, &reply, &fate, why);
        rig.pump();
        let outcome = rig.outcome();
        let is_held = matches!(outcome, Some(Outcome::Acquire(Ok(_))));
        let said = match &outcome {
            Some(Outcome::Acquire(Err(AcquireError::NoQuorum(denial)))) => Some(&denial.report.votes[0].1),
            _ => None,
        };
        let is_reported = match fate {
            Fate::Answer(Seen::Yes) => is_held,
            Fate::Answer(Seen::No) => {
                matches!(outcome, Some(Outcome::Acquire(Err(AcquireError::Contended(_)))))
            }
            Fate::Answer(_) => matches!(said, Some(Vote::Failed(Failure::Replied(_)))),
            Fate::Ends => said == Some(&Vote::Failed(Failure::ConnectionLost)),
        };
        assert!(is_reported, "{}: {outcome:?}", reply.escape_ascii());
        if fate == Fate::Answer(Seen::No) {
            // A master that refuses has not set the key.
            drop(rig.break_conn(0));
        }
        check_nothing_is_lost(&mut rig, is_held.then_some(lock));
    }
}

/// Between any two replies, whether `PUBLISH` messages or unknown pushes.
#[test]
fn pushes_are_no_replies() {
    let pushes = b">1\r\n+OK\r\n>2\r\n$10\r\ninvalidate\r\n*0\r\n>0\r\n|1\r\n+a\r\n:1\r\n>1\r\n:1\r\n";
    for (step, (name, ..)) in STEPS.iter().enumerate() {
        let mut rig = rig_at_step(step);
        let owed = rig.engine.owed_count(id(0));
        rig.receive(0, pushes);
        assert_eq!((down(&rig), rig.engine.owed_count(id(0))), (None, owed), "{name}");
    }
    let mut rig = Rig::new(1, |builder| builder.ask_holder(false).wake_waiters(false));
    rig.stop_master(0);
    let lock = rig.acquire("a", TTL_MS, 0);
    rig.receive(0, pushes);
    assert_eq!((down(&rig), rig.outcome()), (None, None));
    rig.receive(0, b"+OK\r\n");
    rig.pump();
    granted(&mut rig);
    check_nothing_is_lost(&mut rig, Some(lock));
}

#[test]
fn a_second_reply_ends_the_connection() {
    let mut rig = Rig::new(3, defaults);
    (0..3).for_each(|index| rig.stop_master(index));
    let lock = rig.acquire("a", TTL_MS, 0);
    rig.receive(0, b"+OK\r\n+OK\r\n");
    let why = down(&rig).expect("ended");
    assert!(why.contains("without a request"), "{why}");
    assert_eq!(rig.outcome(), None);
    rig.receive(1, b"+OK\r\n");
    assert_eq!(rig.outcome(), None, "one vote of three, and one that went with its connection");
    (0..3).for_each(|index| rig.resume_master(index));
    rig.outcomes.clear();
    rig.release(lock, false);
    rig.run_for(ms(TTL_MS + 200));
    assert_eq!((rig.holder_count("a"), rig.engine.claim_count()), (0, 0));
}

/// How a master compares: by script, by script in full, or with native commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Script,
    WholeScript,
    Native,
}

/// A held lock whose extension or release is under way.
fn rig_with_request(by: By, request: impl Fn(&mut Rig, OpId)) -> (Rig, OpId) {
    let mut rig = Rig::unconnected(1, |builder| builder.wake_waiters(false));
    if by == By::Native {
        rig.masters[0].dialect = Dialect::Valkey9;
    }
    rig.pump();
    let lock = rig.acquire("a", TTL_MS, 0);
    granted(&mut rig);
    rig.stop_master(0);
    request(&mut rig, lock);
    if by == By::WholeScript {
        rig.receive(0, b"-NOSCRIPT x\r\n");
        rig.pump();
        assert_eq!(rig.outcome(), None);
    }
    assert_eq!(rig.engine.owed_count(id(0)), 1);
    (rig, lock)
}

#[test]
fn extension_reply_votes_or_ends_the_connection() {
    for by in [By::Script, By::WholeScript, By::Native] {
        let rows = REPLIES.map(|reply| (reply.to_vec(), "does not fit the request")).into_iter();
        for (reply, why) in rows.chain(malformed()) {
            let (mut rig, lock) = rig_with_request(by, |rig, lock| rig.extend(lock, 2 * TTL_MS));
            let until = rig.engine.valid_until(lock).expect("held");
            rig.receive(0, &reply);
            let fate = match plain(&reply) {
                b"+OK\r\n" | b":1\r\n" => Fate::Answer(Seen::Yes),
                b"$-1\r\n" | b":0\r\n" => Fate::Answer(Seen::No),
                b"-NOSCRIPT x\r\n" if by == By::Script => Fate::Answer(Seen::Again),
                error if is_error(error) => Fate::Answer(Seen::Replied),
                _ => Fate::Ends,
            };
            check_link(&rig, &reply, &fate, why);
            rig.pump();
            let outcome = rig.outcome();
            let failed_by = match &outcome {
                Some(Outcome::Extend(Err(ExtendError::NoQuorum(report)))) => Some(&report.votes[0].1),
                _ => None,
            };
            let is_reported = match fate {
                Fate::Answer(Seen::Yes) => {
                    outcome == Some(Outcome::Extend(Ok(rig.now + ms(2 * TTL_MS - 42))))
                }
                Fate::Answer(Seen::No) => {
                    matches!(outcome, Some(Outcome::Extend(Err(ExtendError::Lost(_)))))
                }
                Fate::Answer(Seen::Again) => outcome.is_none(),
                Fate::Answer(_) => matches!(failed_by, Some(Vote::Failed(Failure::Replied(_)))),
                Fate::Ends => failed_by == Some(&Vote::Failed(Failure::ConnectionLost)),
            };
            assert!(is_reported, "{by:?} {}: {outcome:?}", reply.escape_ascii());
            if !matches!(fate, Fate::Answer(Seen::Yes | Seen::No)) {
                assert_eq!(rig.engine.valid_until(lock), Some(until), "what failed changes nothing");
            }
            check_nothing_is_lost(&mut rig, Some(lock));
        }
    }
}

#[test]
fn release_reply_counts_or_ends_the_connection() {
    for by in [By::Script, By::WholeScript, By::Native] {
        let rows = REPLIES.map(|reply| (reply.to_vec(), "does not fit the request")).into_iter();
        for (reply, why) in rows.chain(malformed()) {
            let (mut rig, _) = rig_with_request(by, |rig, lock| rig.release(lock, true));
            rig.receive(0, &reply);
            let fate = match plain(&reply) {
                b":1\r\n" => Fate::Answer(Seen::Yes),
                b":0\r\n" => Fate::Answer(Seen::No),
                b"-NOSCRIPT x\r\n" if by == By::Script => Fate::Answer(Seen::Again),
                error if is_error(error) => Fate::Answer(Seen::Replied),
                _ => Fate::Ends,
            };
            check_link(&rig, &reply, &fate, why);
            rig.pump();
            let outcome = rig.outcome();
            let counts = match &outcome {
                Some(Outcome::Release(Ok(released))) => Some((released.deleted, released.absent)),
                _ => None,
            };
            let is_reported = match fate {
                Fate::Answer(Seen::Yes) => counts == Some((1, 0)),
                Fate::Answer(Seen::No) => counts == Some((0, 1)),
                Fate::Answer(Seen::Again) => outcome.is_none(),
                Fate::Answer(_) | Fate::Ends => {
                    matches!(outcome, Some(Outcome::Release(Err(ReleaseError::Unconfirmed(_)))))
                }
            };
            assert!(is_reported, "{by:?} {}: {outcome:?}", reply.escape_ascii());
            if matches!(fate, Fate::Answer(Seen::Replied | Seen::Again) | Fate::Ends) {
                check_nothing_is_lost(&mut rig, None);
            }
        }
    }
}

#[test]
fn holder_reply_counts_or_ends_the_connection() {
    let rows = REPLIES.map(|reply| (reply.to_vec(), "does not fit the request")).into_iter();
    for (reply, why) in rows.chain(malformed()) {
        let mut rig = Rig::new(1, |builder| builder.wake_waiters(false));
        let until = rig.now + ms(1500);
        rig.masters[0].put(b"a", b"other", Some(until));
        rig.stop_master(0);
        rig.acquire("a", TTL_MS, 0);
        rig.receive(0, b"$-1\r\n");
        rig.pump();
        assert_eq!((rig.outcome(), rig.engine.owed_count(id(0))), (None, 3), "all questions are under way");
        let (value, no_readers) = (b"$5\r\nother\r\n", b"$-1\r\n");
        rig.receive(0, value);
        rig.receive(0, no_readers);
        rig.receive(0, &reply);
        let fate = Fate::Answer(Seen::Holder(match plain(&reply) {
            b":-2\r\n" | b":0\r\n" => HolderTtl::Gone,
            b":-1\r\n" => HolderTtl::Never,
            b":1\r\n" => HolderTtl::Left(ms(1)),
            b":700\r\n" => HolderTtl::Left(ms(700)),
            b":9223372036854775807\r\n" => HolderTtl::Left(ms(i64::MAX.unsigned_abs())),
            _ => HolderTtl::Unknown,
        }));
        let ends = fate == Fate::Answer(Seen::Holder(HolderTtl::Unknown)) && !is_error(&reply);
        check_link(&rig, &reply, if ends { &Fate::Ends } else { &fate }, why);
        // If the connection has ended, the answer limit ends the wait.
        rig.run_for(ms(50));
        let AcquireError::Contended(denial) = denied(&mut rig) else { panic!("a nil is a refusal") };
        assert_eq!(fate, Fate::Answer(Seen::Holder(denial.holder)), "{}", reply.escape_ascii());
        check_nothing_is_lost(&mut rig, None);
    }
}

// ---- callers ----

#[test]
fn an_endless_holder_lets_a_waiter_try() {
    for answer in [b":9223372036854775807\r\n".as_slice(), b":-1\r\n"] {
        let mut rig = Rig::new(1, defaults);
        rig.stop_master(0);
        rig.acquire("a", TTL_MS, 2000);
        rig.receive(0, b"$-1\r\n");
        rig.pump();
        rig.receive(0, answer);
        // Its commands are lost, and the lock turns out to be free.
        drop(rig.break_conn(0));
        rig.resume_master(0);
        rig.run_for(ms(2000));
        granted(&mut rig);
    }
}

#[test]
fn an_endless_wait_ends_free_or_given_up() {
    let mut rig = Rig::new(3, |builder| defaults(builder).wake_waiters(false));
    let until = rig.now + ms(60_000);
    rig.masters.iter_mut().for_each(|master| master.put(b"a", b"other", Some(until)));
    let ttl = ms(TTL_MS);
    let resource = Resource::new("a").expect("valid");
    let request =
        Request::Acquire { resource, options: Options::new().ttl(ttl).wait(Duration::MAX), label: None };
    let first = rig.engine.submit(rig.now, request).expect("taken");
    let second = rig.engine.submit(rig.now, request).expect("taken");
    rig.run_for(ms(59_000));
    assert_eq!(rig.outcome(), None);
    rig.release(second, false);
    rig.run_for(ms(2000));
    assert!(granted(&mut rig).attempts > 300);
    rig.release(first, true);
    assert!(matches!(rig.outcome(), Some(Outcome::Release(Ok(_)))));
    assert_eq!((rig.holder_count("a"), rig.engine.operation_count()), (0, 0));
}

#[test]
fn names_of_any_bytes_are_distinct_keys() {
    let longest = vec![0xff; limits::RESOURCE_SIZE_MAX];
    let names: [&[u8]; 6] = [b"\r\n", b"\0", b"a\r\nDEL a\r\n", b"$-1\r\n", b"\xff\xfe", &longest];
    let mut rig = Rig::new(3, |builder| builder.prefix(b"p\r\n\0".as_slice()));
    let ttl = ms(TTL_MS);
    let locks = names.map(|name| {
        let resource = Resource::new(name).expect("valid");
        let wait = Duration::ZERO;
        let request = Request::Acquire { resource, options: Options::new().ttl(ttl).wait(wait), label: None };
        let lock = rig.engine.submit(rig.now, request).expect("taken");
        rig.pump();
        let (token, now, key) = (granted(&mut rig).token, rig.now, [b"p\r\n\0", name].concat());
        let holds = |it: &crate::model::ModelMaster| it.value(now, &key) == Some(token.as_bytes().as_slice());
        assert!(rig.masters.iter().all(holds), "{}", name.escape_ascii());
        lock
    });
    for lock in locks {
        rig.release(lock, true);
        assert!(matches!(rig.outcome(), Some(Outcome::Release(Ok(released))) if released.deleted >= 2));
    }
    assert_eq!(rig.engine.claim_count(), 0);
}
