//! A table of all the library's messages, checked against the rules of writing that a program can check.
//! `cli/message.rs` contains the command line's table.
//!
//! A new message is one line here, and a new variant without a line does not compile. `tests/golden/errors`
//! contains all complete texts, with the class and the source of each operation's error.

use std::time::Instant;

use redlatch_support::broken_rule;

use super::fleet::{FleetDifference, FleetId, Unusable};
use super::probe::ProbeError;
use super::*;
use crate::Config;
use crate::client::DriveEnded;
use crate::compose::FleetsError;
use crate::driver::{ConnectError, NoPlaintext};
#[cfg(feature = "tls")]
use crate::driver::{TlsError, TlsTrouble};
use crate::engine::SubmitError;
use crate::engine::masters::status::MasterState;
use crate::engine::masters::trouble::{Trouble, Warning};
use crate::founding::Why;
use crate::lock::TokenRefusal;
use judgement::{Judged, Unjudged};

/// A time with more digits than a message may have.
const LONG: Duration = Duration::from_nanos(4_408_173_216);
/// Reply of a master whose queue of a fair lock is full.
const QUEUE_FULL: &str = "ERR too many wait for this lock script: 567376a0, on @user_script:1.";

fn report(round: Round, votes: &[Vote]) -> Report {
    let name = |index| format!("redis://10.0.0.{}:6379", index + 1).into();
    let votes = votes.iter().enumerate().map(|(index, vote)| (name(index), vote.clone())).collect();
    Report { round, resource: "orders:42".into(), votes }
}

/// The same vote from all five masters.
fn all(round: Round, vote: Vote) -> Report {
    report(round, &vec![vote; 5])
}

fn denial(holder: HolderTtl, held_by: HeldBy, vote: Vote) -> Box<Denial> {
    let report = all(Round::Acquire, vote);
    Box::new(Denial { attempts: 2, took: LONG, holder, held_by, ..Denial::new(report) })
}

fn contended(holder: HolderTtl, held_by: HeldBy) -> AcquireError {
    AcquireError::Contended(denial(holder, held_by, Vote::Refused { holder }))
}

/// Behind other callers of the same client.
fn queued(holder: HolderTtl, held_by: HeldBy) -> AcquireError {
    AcquireError::Contended(denial(holder, held_by, Vote::Failed(Failure::Queued)))
}

fn refused_slot(held_by: HeldBy) -> AcquireError {
    let mut denial = denial(HolderTtl::Left(LONG), held_by, Vote::Refused { holder: HolderTtl::Unknown });
    denial.report.resource = "redlatch:slot:2:orders:42".into();
    let label = Some("job 7".into());
    denial.slots = vec![
        SlotHolder { slot: 0, label, ttl: HolderTtl::Left(LONG) },
        SlotHolder { slot: 2, label: None, ttl: HolderTtl::Unknown },
    ];
    AcquireError::Contended(denial)
}

fn no_quorum(failure: Failure) -> AcquireError {
    AcquireError::NoQuorum(denial(HolderTtl::Unknown, HeldBy::default(), Vote::Failed(failure)))
}

fn replied(text: &str) -> Failure {
    Failure::Replied(text.into())
}

fn bad_url(url: &str) -> ConfigError {
    Config::builder().master(url).build().expect_err("a bad URL")
}

/// A message on one line and on several, words that it must contain, and an error's class and source.
struct Sample {
    texts: [String; 2],
    words: &'static str,
    #[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "the page is compared with TLS alone"))]
    judgement: String,
}

fn sample(message: &impl fmt::Display, words: &'static str, judgement: String) -> Sample {
    Sample { texts: [format!("{message}"), format!("{message:#}")], words, judgement }
}

/// `Type { Variant pattern => sample, words; … }`. The patterns must be exhaustive; `#[cfg(…)]` may
/// stand before one.
macro_rules! table {
    ($($type:ident { $($(#[$if:meta])? $pattern:pat => $sample:expr, $words:literal;)* })*) => {{
        let mut samples = Vec::new();
        $({
            #[allow(unused_imports)]
            use $type::*;
            #[allow(unreachable_patterns)]
            const fn has_a_line(message: &$type) {
                match message { $($(#[$if])? $pattern => {})* }
            }
            $($(#[$if])? {
                let sample = $sample;
                has_a_line(&sample);
                assert!(matches!(&sample, $pattern), "{sample} is not of its line");
                let judgement = (&sample).judgement();
                samples.push(crate::error::tests::sample(&sample, $words, judgement));
            })*
        })*
        samples
    }};
}

mod handles;
mod judgement;
mod pages;
mod quarantine;

#[rustfmt::skip]
fn samples_of_calls() -> Vec<Sample> {
    use HolderTtl as Ttl;
    let (other, own) = (HeldBy::AnotherClient, HeldBy::ThisClient);
    let stopped = || Arc::from("it belongs to process 7, of which this is a fork; connect anew in the child");
    let granted = |failure| Report { votes: report(Round::Extend, &[Vote::Granted, Vote::Failed(failure)]).votes, ..all(Round::Extend, Vote::Pending) };
    let gone = |round| all(round, Vote::Refused { holder: Ttl::Unknown });
    let mut samples = table! {
        AcquireError {
            Contended(_) => contended(Ttl::Left(LONG), other), "lock \"orders:42\" is held by another client, for at most 4.4s unless extended; wait longer, or retry later";
            Contended(_) => contended(Ttl::Unknown, other), "lock \"orders:42\" is held by another client; wait longer, or retry later";
            Contended(_) => contended(Ttl::Gone, other), "lock \"orders:42\" is held by another client, or was until a moment ago; retry";
            Contended(_) => contended(Ttl::Left(LONG), own), "lock \"orders:42\" is held by another caller of this client: for at most 4.4s unless extended; release it, or wait longer";
            Contended(_) => queued(Ttl::Left(LONG), own), "waited for 4.4s; no master was asked";
            Contended(_) => queued(Ttl::Unknown, other), "other callers of this client came first for lock \"orders:42\"; wait longer, or retry later";
            Contended(_) => contended(Ttl::Left(LONG), HeldBy::Readers(2)), "lock \"orders:42\" is shared by 2 readers, for at most 4.4s unless extended; wait longer, or retry later";
            Contended(_) => contended(Ttl::Unknown, HeldBy::Readers(1)), "is shared by 1 reader;";
            Contended(_) => contended(Ttl::Never, other), "lock \"orders:42\" is held by a key without a TTL, which is no lock; inspect it, then delete it (redlatch unlock --force)";
            NoQuorum(_) => no_quorum(Failure::Quarantined { left: LONG, is_new: true }), "For new, empty masters: redlatch fleet init";
            NoQuorum(_) => no_quorum(Failure::Quarantined { left: LONG, is_new: false }), "no quorum of masters for lock \"orders:42\" for another 4.4s: 5 masters may have restarted and forgotten a lock; wait";
            NoQuorum(_) => no_quorum(Failure::ConnectionLost), "no quorum of masters for lock \"orders:42\"; repair what the masters report, then retry";
            NoQuorum(_) => no_quorum(Failure::NotConnected { why: "Connection refused (os error 111)".into() }), "all 5 masters: not connected: Connection refused";
            NoQuorum(_) => no_quorum(replied("NOPERM User locker has no permissions to run the 'time' command")), "(the ACL user lacks +time, which waiters' queues, fenced and shared locks need)";
            NoQuorum(_) => no_quorum(replied(QUEUE_FULL)), "the wait queue of lock \"orders:42\" is full; retry later";
            Expired(_) => AcquireError::Expired(denial(Ttl::Unknown, other, Vote::Granted)), "lock \"orders:42\" expired while it was acquired; ask for a longer TTL";
            Overloaded => AcquireError::Overloaded, "release some, or retry later";
            Cancelled => AcquireError::Cancelled, "the acquisition was cancelled; nothing is held";
            Input(_) => AcquireError::Input(InputError::ResourceEmpty), "give at least one byte";
            Stopped(_) => AcquireError::Stopped(stopped()), "the client cannot be used: it belongs to process 7, of which this is a fork; connect anew in the child";
        }
        ExtendError {
            Expired => ExtendError::Expired, "stop the protected work";
            Lost(_) => ExtendError::Lost(gone(Round::Extend)), "lock \"orders:42\" is lost; stop the protected work: 0 of 5 masters extended, 3 needed";
            NoQuorum(_) => ExtendError::NoQuorum(granted(Failure::NotHeld)), "lock \"orders:42\" was not extended; retry while it is valid";
            HoldLimit { .. } => ExtendError::HoldLimit { max_hold: LONG }, "would pass max_hold, which is 4.4s; release the lock";
            Busy => ExtendError::Busy, "wait for it";
            NotHeld => ExtendError::NotHeld, "acquire it first";
            Input(_) => ExtendError::Input(InputError::ResourceEmpty), "at least one byte";
            Stopped(_) => ExtendError::Stopped(stopped()), "connect anew";
        }
        LeaveError {
            Expired => LeaveError::Expired, "stop the protected work";
            Lost(_) => LeaveError::Lost(gone(Round::Leave)), "lock \"orders:42\" is lost, so there is nothing to leave: 0 of 5 masters set the remaining time, 3 needed";
            Unconfirmed { .. } => LeaveError::Unconfirmed { report: granted(Failure::Silent).into(), latest_end: Instant::now() }, "lock \"orders:42\" may end earlier or later than asked; check the masters";
            NotHeld => LeaveError::NotHeld, "acquire it first";
            Input(_) => LeaveError::Input(InputError::ResourceEmpty), "at least one byte";
            Stopped(_) => LeaveError::Stopped(stopped()), "connect anew";
        }
        ReleaseError {
            Unconfirmed(_) => ReleaseError::Unconfirmed(granted(Failure::Silent)), "the release of lock \"orders:42\" is not confirmed; it ends with its TTL";
            NotHeld => ReleaseError::NotHeld, "not held by this client";
            Stopped(_) => ReleaseError::Stopped(stopped()), "connect anew";
        }
        InspectError {
            Overloaded => InspectError::Overloaded, "retry later";
            Input(_) => InspectError::Input(InputError::ResourceEmpty), "at least one byte";
            Stopped(_) => InspectError::Stopped(stopped()), "connect anew";
        }
        ForceUnlockError {
            Unconfirmed(_) => ForceUnlockError::Unconfirmed(gone(Round::Release)), "lock \"orders:42\"";
            Overloaded => ForceUnlockError::Overloaded, "retry later";
            Input(_) => ForceUnlockError::Input(InputError::ResourceEmpty), "at least one byte";
            Stopped(_) => ForceUnlockError::Stopped(stopped()), "connect anew";
        }
        SubmitError {
            Overloaded => SubmitError::Overloaded, "retry later";
            Input(_) => SubmitError::Input(InputError::ResourceEmpty), "at least one byte";
            Stopped(_) => SubmitError::Stopped(stopped()), "connect anew";
        }
    };
    samples.extend(samples_of_several(contended(Ttl::Left(LONG), other)));
    samples
}

#[rustfmt::skip]
fn samples_of_several(contended: AcquireError) -> [Sample; 10] {
    fn judged(error: &(impl fmt::Display + Judged), words: &'static str) -> Sample {
        sample(error, words, error.judgement())
    }
    let resource = || "orders:42";
    [
        judged(&SetError::new(resource(), contended), "lock \"orders:42\" is held"),
        judged(&SetError::new(resource(), AcquireError::Overloaded), "lock \"orders:42\": this client"),
        judged(&SetError::new("", AcquireError::Input(InputError::SetEmpty)), "no lock is named"),
        judged(&SetError::new(resource(), ExtendError::Busy), "lock \"orders:42\": another extension"),
        judged(&SetError::new(resource(), ReleaseError::NotHeld), "lock \"orders:42\": the lock is not held"),
        judged(&SetError::new(resource(), LeaveError::Expired), "lock \"orders:42\": the lock's validity has ended"),
        judged(&refused_slot(HeldBy::Slots(3)), "all 3 slots of pool \"orders:42\" are taken: slot 0 (job 7) for at most 4.4s unless extended, slot 2; wait longer, or retry later"),
        judged(&refused_slot(HeldBy::Slots(1)), "the only slot of pool \"orders:42\" is taken: slot 0 (job 7) for"),
        judged(&refused_slot(HeldBy::SlotRivals(3)), "no quorum agrees on one of the 3 slots of pool \"orders:42\": other callers compete for them; retry"),
        sample(&DriveEnded, "drop the drive too", String::new()),
    ]
}

#[rustfmt::skip]
fn samples_of_settings() -> Vec<Sample> {
    table! {
        LockReentrantError {
            Lost { .. } => LockReentrantError::Lost { hold_count: 2 }, "end its 2 holds";
            TooManyHolds => LockReentrantError::TooManyHolds, "end some";
            Acquire(_) => LockReentrantError::Acquire(AcquireError::Overloaded), "retry later";
        }
        RunError {
            Acquire(_) => RunError::Acquire(AcquireError::Overloaded), "retry later";
            Lost(_) => RunError::Lost(Some(())), "check what the work did";
        }
        InputError {
            ResourceEmpty => InputError::ResourceEmpty, "give at least one byte";
            ResourceTooLong { .. } => InputError::ResourceTooLong { size: 9999 }, "give at most";
            ResourceReserved => InputError::ResourceReserved, "choose a name that does not start with redlatch:";
            LabelEmpty => InputError::LabelEmpty, "give at least one character, or leave it out";
            LabelTooLong { .. } => InputError::LabelTooLong { size: 99 }, "has 99 bytes; give at most 64";
            LabelUnprintable => InputError::LabelUnprintable, "give printable text";
            FairAndFenced => InputError::FairAndFenced, "ask for one of the two";
            SharedFenced => InputError::SharedFenced, "ask for a shared lock or for a fenced one";
            SharedFair => InputError::SharedFair, "ask for one of the two";
            AutoExtendZero => InputError::AutoExtendZero, "leave auto_extend out";
            MaxHoldZero => InputError::MaxHoldZero, "raise max_hold";
            SetEmpty => InputError::SetEmpty, "name at least one";
            SetFair => InputError::SetFair, "leave fair out";
            SetTooLarge { .. } => InputError::SetTooLarge { count: 99 }, "name at most";
            SlotCount { .. } => InputError::SlotCount { count: 2000 }, "a pool of 2000 slots is asked for; give 1 to 1024";
            SlotMode => InputError::SlotMode, "leave both out";
            TtlTooShort { .. } => InputError::TtlTooShort { ttl: LONG, drift: 2 * LONG }, "give more than";
            TtlTooLong { .. } => InputError::TtlTooLong { ttl: 2 * LONG, max_ttl: LONG }, "a TTL of 8.8s is 4.4s above the maximum of 4.4s; ask for less, or raise max_ttl on every client";
            MinValidityTooLong { .. } => InputError::MinValidityTooLong { asked: LONG, validity: 2 * LONG }, "ask for less";
            DriftTooLarge { .. } => InputError::DriftTooLarge { ppm: 2_000_000 }, "give at most";
        }
        FleetsError {
            Empty => FleetsError::Empty, "give at least one";
            SameLabel { .. } => FleetsError::SameLabel { label: "first".to_owned() }, "two fleets have the label `first`; give each fleet its own label";
        }
        ConfigError {
            MasterCount { .. } => ConfigError::MasterCount { count: 0 }, "0 masters given; give 1 to 32";
            Url { .. } => bad_url("redis://a,redis://b"), "master 1: several URLs, which must be given one by one";
            Url { .. } => bad_url("redis://h:x"), "a port that is not 1 to 65535";
            Url { .. } => bad_url("redis://h?timeout=1"), "a query, which only unix:// has, as ?db=1, in `redis://h…`";
            Url { .. } => bad_url("redis://me:a/b@h"), "a / in front of the host, which a password has as %2F, in `redis://…@h`";
            #[cfg(not(feature = "tls"))] Url { .. } => bad_url("rediss://h"), "TLS, which needs the cargo feature tls";
            Url { .. } => bad_url("http://h"), "an unknown scheme in `http://h`; write redis://";
            Url { .. } => bad_url("redis://me:%zz@h"), "a % without two hexadecimal digits";
            SameMaster { .. } => ConfigError::SameMaster { index: 2, other: 0, address: "redis://h:6379".to_owned() }, "master 3 is the same server as master 1 (redis://h:6379); list each server once";
            TwoLogins { .. } => ConfigError::TwoLogins { index: 0 }, "remove one of them";
            NoPassword { .. } => ConfigError::NoPassword { index: 1 }, "master 2: a user without a password; add it to the URL, or set REDLATCH_PASSWORD_FILE";
            UnknownVariable { .. } => ConfigError::UnknownVariable { name: "REDLATCH_MASTER".to_owned(), known: "REDLATCH_MASTERS" }, "REDLATCH_MASTER is no variable of redlatch; did you mean REDLATCH_MASTERS?";
            #[cfg(feature = "tls")] TlsUnused => ConfigError::TlsUnused, "write rediss://, or remove them";
            #[cfg(feature = "tls")] TlsServerName { .. } => ConfigError::TlsServerName { name: "a b".to_owned() }, "`a b` cannot be the name of a TLS server; give the name in its certificate";
            Variable { .. } => ConfigError::Variable { variable: "REDLATCH_MAX_TTL", reason: "give a time such as 30s".to_owned() }, "REDLATCH_MAX_TTL: give a time such as 30s";
            PrefixTooLong { .. } => ConfigError::PrefixTooLong { size: 9999 }, "give at most";
            ClientName => ConfigError::ClientName, "use ASCII without spaces";
            AnswerTimeoutShare { .. } => ConfigError::AnswerTimeoutShare { ppm: 0 }, "give 1 to 1,000,000";
            OutOfBounds { .. } => ConfigError::OutOfBounds { setting: "max_ttl", value: LONG, min: 2 * LONG, max: 3 * LONG }, "max_ttl is 4.4s; give 8.8s to 13.2s";
            Input(_) => ConfigError::Input(InputError::DriftTooLarge { ppm: 2_000_000 }), "give at most";
        }
        ConnectError {
            Config(_) => ConnectError::Config(ConfigError::ClientName), "use ASCII";
            Io(_) => ConnectError::Io(std::io::Error::from_raw_os_error(24)), "check the limits of this process";
            #[cfg(feature = "tls")] Tls(_) => ConnectError::Tls(TlsError::Setup { why: "no".to_owned() }), "check the certificates";
        }
    }
}

#[rustfmt::skip]
fn samples_of_new_fleets() -> Vec<Sample> {
    table! {
        Why {
            Unanswered(_) => Why::Unanswered(ProbeError::Unreachable("no answer within 1s".to_owned())), "does not answer: no answer within 1s; repair it";
            Unanswered(_) => Why::Unanswered(ProbeError::LoginRefused("the login was refused: WRONGPASS".to_owned())), "cannot be asked: the login was refused";
            Unnamed => Why::Unnamed, "+info";
            Replica => Why::Replica, "list a master";
            SameServer(_) => Why::SameServer("redis://i:6379".into()), "list each server once";
            Old(_) => Why::Old(LONG), "has run for 4.4s";
            Joining => Why::Joining, "finish that first: redlatch fleet replace";
            HasRecord => Why::HasRecord, "Start it without data";
            Unusable(_) => Why::Unusable(super::fleet::Unusable::Damaged), "has an unusable record";
            HasKeys(_) => Why::HasKeys(1), "has 1 key behind";
            MayHaveKeys => Why::MayHaveKeys, "+scan";
            HasClients(_) => Why::HasClients(2), "2 connections";
            MayHaveClients => Why::MayHaveClients, "+client|list";
            NotListed => Why::NotListed, "not in the list";
            Listed => Why::Listed, "in the list of masters already";
            TakesWrites { .. } => Why::TakesWrites { commands: "SET, EVAL".to_owned(), user: "locker".to_owned() }, "still takes writes (SET, EVAL). To replace it, stop it for good, or run there: ACL SETUSER locker -set";
            MayTakeWrites(_) => Why::MayTakeWrites("no answer within 1s".to_owned()), "may take writes: no answer within 1s. If it is off";
            Differs(_) => Why::Differs(FleetDifference::MasterCount { recorded: 3, ours: 5 }), "differs";
            ChangedMeanwhile => Why::ChangedMeanwhile, "run the command again";
            LacksOld(_) => Why::LacksOld("redis://h:6379".into()), "without redis://h:6379";
            TooFewRecords { .. } => Why::TooFewRecords { count: 1, needed: 2 }, "the fleet's record is on 1 other master, 2 needed";
        }
    }
}

#[rustfmt::skip]
fn samples_of_masters() -> Vec<Sample> {
    table! {
        Failure {
            NotConnected { .. } => Failure::NotConnected { why: Trouble::UnderWay.to_string().into() }, "not connected: still connecting";
            ConnectionLost => Failure::ConnectionLost, "the connection broke before the answer";
            NoAnswer { .. } => Failure::NoAnswer { limit: LONG }, "no answer within 4.4s; check the master, or raise answer_timeout";
            Silent => Failure::Silent, "still owes an earlier answer";
            Quarantined { .. } => Failure::Quarantined { left: LONG, is_new: false }, "not counted for another 4.4s: it may have restarted and forgotten a lock";
            Queued => Failure::Queued, "other callers of this client came first";
            QueueFull => Failure::QueueFull, "its queue of requests is full; reduce the load";
            NotHeld => Failure::NotHeld, "never received this lock";
            SameServer => Failure::SameServer, "list each server once";
            TokenRefused(_) => Failure::TokenRefused(TokenRefusal::Stale), "it has seen the same or a larger one";
            TokenRefused(_) => Failure::TokenRefused(TokenRefusal::Past { by: LONG }), "its clock is 4.4s ahead; synchronize";
            TokenRefused(_) => Failure::TokenRefused(TokenRefusal::Future { by: LONG }), "its clock is 4.4s behind; synchronize";
            Replied(_) => replied("ERR the fence is no number"), "error reply: ERR the fence is no number";
            Replied(_) => replied("WRONGTYPE Operation against a key"), "error reply: WRONGTYPE";
            Replied(_) => replied("NOAUTH Authentication required."), "put user and password into this master's URL";
            Replied(_) => replied("WRONGPASS invalid username-password pair"), "check user and password of this master";
            Replied(_) => replied("READONLY You can't write against a read only replica."), "this is a replica; list its master instead";
            Replied(_) => replied("OOM command not allowed"), "raise maxmemory; keep the policy noeviction";
            Replied(_) => replied("MISCONF Redis is configured to save RDB snapshots"), "look at its log and disk";
            Replied(_) => replied("LOADING Redis is loading the dataset in memory"), "it is reading its data set; wait";
            Replied(_) => replied("CLUSTERDOWN Hash slot not served"), "this is a cluster node; use independent masters";
            Replied(_) => replied("NOPERM No permissions to access a key"), "the ACL user lacks the keys ~PREFIX*, which all locks need";
        }
        Warning {
            Changed { .. } => Warning::Changed { count: 2, ago: LONG }, "it restarted or was replaced 2 times, last 4.4s ago; find out why";
            Evicting { .. } => Warning::Evicting { policy: "allkeys-lru".into() }, "its maxmemory-policy is allkeys-lru, which may evict locks; set noeviction";
            NotPublishing { .. } => Warning::NotPublishing { refusal: "NOPERM User locker has no permissions to run the 'publish' command".into() }, "the ACL user lacks +publish, which waiters' queues need";
            NotParking { .. } => Warning::NotParking { refusal: "NOPERM No permissions to access a channel".into() }, "the ACL user lacks the channels &PREFIX*, which waiters' queues need";
            NoScripts { .. } => Warning::NoScripts { refusal: "NOPERM User locker has no permissions to run the 'eval' command".into() }, "the ACL user lacks +eval, which all locks need";
            Unreported { .. } => Warning::Unreported { fields: "run_id, role".into(), info_refusal: Some("NOPERM no".into()) }, "run_id, role, so each reconnect counts as a restart; grant +info (INFO was refused: NOPERM no)";
            Unreported { .. } => Warning::Unreported { fields: "maxmemory_policy".into(), info_refusal: None }, "does not report its maxmemory_policy; use a Redis or Valkey server";
            FleetDiffers { .. } => Warning::FleetDiffers { difference: FleetDifference::MaxTtl { recorded: LONG, ours: 2 * LONG } }, "max_ttl 4.4s";
            NoFleetRecord { .. } => Warning::NoFleetRecord { why: Unusable::Damaged }, "damaged";
            CredentialsFailed { .. } => Warning::CredentialsFailed { error: CredentialsError::Panicked }, "its connections keep their old credentials: the credentials provider panicked";
        }
        FleetDifference {
            MaxTtl { .. } => FleetDifference::MaxTtl { recorded: LONG, ours: 2 * LONG }, "the fleet's record has max_ttl 4.4s, and this client 8.8s; give all clients the same";
            DriftPpm { .. } => FleetDifference::DriftPpm { recorded: 10_000, ours: 20_000 }, "has drift_ppm 10000, and this client 20000";
            MasterCount { .. } => FleetDifference::MasterCount { recorded: 5, ours: 3 }, "has 5 masters, and this client 3; give all clients one list";
            Masters { .. } => FleetDifference::Masters { recorded: FleetId(7), missing: "redis://10.0.0.4:6379".into() }, "other masters (0000000000000007), without redis://10.0.0.4:6379; give all clients one list";
        }
        MasterState {
            Down(_) => MasterState::Down("Connection refused".into()), "is not connected: Connection refused";
            Connecting => MasterState::Connecting, "is being connected";
            Ready => MasterState::Ready, "counts";
            Quarantined(_) => MasterState::Quarantined(LONG), "is in quarantine for another 4.4s";
            Silent => MasterState::Silent, "still owes an answer";
        }
        Unusable {
            Foreign => Unusable::Foreign, "choose another prefix, or delete the key";
            Damaged => Unusable::Damaged, "delete PREFIXredlatch:fleet";
            Newer => Unusable::Newer, "update this one";
            Refused(_) => Unusable::Refused("NOPERM No permissions to access a key".into()), "cannot be read: NOPERM";
        }
        CredentialsError {
            NoProvider => CredentialsError::NoProvider, "set one, or give the login in the URL";
            Failed(_) => CredentialsError::Failed(ProviderError::new("the vault is sealed")), "the credentials provider failed; see Event::CredentialsFailed";
            Panicked => CredentialsError::Panicked, "see its panic message";
            NoAnswer { .. } => CredentialsError::NoAnswer { limit: LONG }, "gave no answer within 4.4s; give it a time-out";
            PasswordFile { .. } => CredentialsError::PasswordFile { file: "/run/secrets/redis".to_owned(), why: "No such file or directory (os error 2)".to_owned() }, "the password file /run/secrets/redis is unusable: No such file or directory (os error 2); give one line, readable here";
            Empty => CredentialsError::Empty, "returned an empty password; check the provider";
            TooLong { .. } => CredentialsError::TooLong { size: 70_000 }, "give at most 65536";
            NoThread => CredentialsError::NoThread, "check the limits of this process";
            Refused { .. } => CredentialsError::Refused { refusal: "WRONGPASS invalid username-password pair".into() }, "keeps the old: WRONGPASS";
        }
    }
}

#[rustfmt::skip]
fn samples_of_trouble() -> Vec<Sample> {
    table! {
        Trouble {
            UnderWay => Trouble::UnderWay, "still connecting";
            NoConnection(_) => Trouble::NoConnection(LONG), "no connection within 4.4s; check name service, address and firewall";
            NoTlsConnection(_) => Trouble::NoTlsConnection(LONG), "no connection within 4.4s; check name service, address, firewall, and that the port speaks TLS";
            NoHandshake(_) => Trouble::NoHandshake(LONG), "no answer to the handshake within 4.4s; check the master";
            NoAnswer(_) => Trouble::NoAnswer(LONG), "no answer within 4.4s; check the master";
            NotFinished(_) => Trouble::NotFinished(LONG), "not finished within 4.4s; give more time";
            NoAddress(_) => Trouble::NoAddress(LONG), "its name was not resolved within 4.4s";
            RepliesTooLarge { .. } => Trouble::RepliesTooLarge { size: 1 << 20 }, "larger than 1048576 bytes";
            RepliesTooMany => Trouble::RepliesTooMany, "more than 16384 values; is it a Redis or Valkey server?";
            Silent => Trouble::Silent, "no answer for 5s; check the master";
            NoLogin { .. } => Trouble::NoLogin { refusal: "NOAUTH Authentication required." }, "it needs a password; put user and password into this master's URL";
            NoLogin { .. } => Trouble::NoLogin { refusal: "ERR AUTH <password> called without any password configured" }, "it has no password; remove it from this master's URL";
            StepRefused { .. } => Trouble::StepRefused { step: "SELECT", refusal: "ERR DB index is out of range" }, "SELECT was refused: ERR DB index";
            WrongStep { .. } => Trouble::WrongStep { step: "ECHO" }, "is it a Redis or Valkey server?";
            WrongShape => Trouble::WrongShape, "is it a Redis or Valkey server?";
            ClosedAfter { .. } => Trouble::ClosedAfter { why: "the server closed the connection", refusal: "ERR max number of clients reached" }, "after \"ERR max number of clients reached\" (raise maxclients there";
            ListedTwice { .. } => Trouble::ListedTwice { other: "redis://h:6379", run_id: "1a8c" }, "it is the same server as redis://h:6379 (run_id 1a8c); list each server once";
            Replica => Trouble::Replica, "list its master instead";
            Promoted => Trouble::Promoted, "may have lost locks";
            Elsewhere { .. } => Trouble::Elsewhere { refusal: "READONLY You can't write" }, "it refused a command: READONLY You can't write (this is a replica; list its master instead)";
            StrictEvicting { .. } => Trouble::StrictEvicting { policy: "allkeys-lru" }, "set noeviction";
            StrictDeclared { .. } => Trouble::StrictDeclared { difference: &FleetDifference::MasterCount { recorded: 5, ours: 3 } }, "strict mode refuses a master with other declared settings";
            StrictUnreported { .. } => Trouble::StrictUnreported { fields: "run_id, role".to_owned(), info_refusal: Some("NOPERM no") }, "grant +info";
        }
    }
}

#[rustfmt::skip]
fn samples_of_channels() -> Vec<Sample> {
    let reset = || std::io::Error::from_raw_os_error(104);
    table! {
        NoPlaintext {
            Alert => NoPlaintext::Alert, "it answers in TLS; write rediss:// in its URL";
            End => NoPlaintext::End, "if it wants TLS, write rediss://";
            Broken(_) => NoPlaintext::Broken(reset()), "(os error 104) before its first reply; if it wants TLS, write rediss://";
            EndOfUnix => NoPlaintext::EndOfUnix, "before its first reply; read the server's log";
        }
    }
}

#[cfg(feature = "tls")]
#[rustfmt::skip]
fn samples_of_tls() -> Vec<Sample> {
    use rustls::AlertDescription as Alert;
    let reset = || std::io::Error::from_raw_os_error(104);
    let (file, bytes) = (|| "/etc/tls.pem".to_owned(), || "(given as bytes)".to_owned());
    table! {
        TlsError {
            Unreadable { .. } => TlsError::Unreadable { what: "the CA", place: file(), source: std::io::ErrorKind::NotFound.into() }, "the CA /etc/tls.pem cannot be read: entity not found; check the path and its permissions";
            Unusable { .. } => TlsError::Unusable { what: "the client key", place: bytes(), why: "it holds none".to_owned(), wanted: "a private key" }, "the client key (given as bytes) is unusable: it holds none; give a private key in PEM form";
            KeyMismatch { .. } => TlsError::KeyMismatch { key: file(), certificate: file() }, "give the two that belong together";
            Platform { .. } => TlsError::Platform { why: "none".to_owned() }, "give a CA by Tls::ca (--tls-ca)";
            Setup { .. } => TlsError::Setup { why: "none".to_owned() }, "check the certificates";
        }
        TlsTrouble {
            Expired => TlsTrouble::Expired, "its certificate has expired; renew it, and check the clocks";
            NotValidYet => TlsTrouble::NotValidYet, "its certificate is not valid yet; check the clocks";
            WrongName { .. } => TlsTrouble::WrongName { wanted: "10.0.0.1".to_owned(), presented: vec!["DnsName(\"a.example\")".to_owned(), "IpAddress(10.0.0.2)".to_owned()] }, "its certificate is for a.example, 10.0.0.2, not for 10.0.0.1; set Tls::server_name (--tls-server-name)";
            WrongName { .. } => TlsTrouble::WrongName { wanted: "h".to_owned(), presented: vec!["DnsName(\"x\")".to_owned(); 9] }, "is for x, x, x, x and 5 more, not for h";
            WrongName { .. } => TlsTrouble::WrongName { wanted: "h".to_owned(), presented: vec![] }, "its certificate is for no name, not for h";
            UnknownCa => TlsTrouble::UnknownCa, "its certificate comes from an unknown CA; give the CA by Tls::ca (--tls-ca)";
            CaAsServer => TlsTrouble::CaAsServer, "its certificate is a CA itself";
            BadCertificate(_) => TlsTrouble::BadCertificate("revoked".to_owned()), "its certificate is refused: revoked; replace it";
            WantsCertificate => TlsTrouble::WantsCertificate, "it wants a client certificate; give one by Tls::client_certificate (--tls-cert, --tls-key)";
            CertificateRefused(_) => TlsTrouble::CertificateRefused(Alert::UnknownCA), "it refused the client certificate (unknown ca); check its CA";
            Refused(_) => TlsTrouble::Refused(Alert::HandshakeFailure), "it refused the TLS handshake (handshake failure); check";
            Incompatible(_) => TlsTrouble::Incompatible("Tls12NotOffered".to_owned()), "enable TLS 1.2 or 1.3 there";
            NoCommonCipher => TlsTrouble::NoCommonCipher, "it has no TLS cipher or kind of key in common; enable ECDHE";
            NoTls => TlsTrouble::NoTls, "it does not answer in TLS; check the port, or write redis:// for plaintext";
            ClosedInHandshake => TlsTrouble::ClosedInHandshake, "check that the port speaks TLS";
            BrokenInHandshake(_) => TlsTrouble::BrokenInHandshake(reset()), "(os error 104) in the TLS handshake; check that the port speaks TLS";
            Truncated => TlsTrouble::Truncated, "the connection was cut without an end of TLS (close_notify)";
            Other(_) => TlsTrouble::Other("received corrupt message".to_owned()), "TLS failed: received corrupt message; check";
        }
    }
}

#[cfg(not(feature = "tls"))]
fn samples_of_tls() -> Vec<Sample> {
    Vec::new()
}

fn samples() -> Vec<Sample> {
    let samples = [
        samples_of_calls(),
        samples_of_settings(),
        samples_of_new_fleets(),
        samples_of_masters(),
        samples_of_trouble(),
        samples_of_channels(),
        handles::samples(),
    ];
    samples.into_iter().chain([samples_of_tls()]).flatten().collect()
}

#[test]
fn all_messages_keep_the_rules_of_writing() {
    for Sample { texts, words, .. } in samples() {
        for text in texts {
            assert!(text.contains(words), "{text:?} lacks {words:?}");
            assert!(text.matches("orders:42").count() <= 1, "{text:?} has the name twice");
            let has_votes = text.contains(" masters granted") || text.contains(" masters extended");
            assert!(!has_votes || text.contains("orders:42"), "{text:?} lacks the lock's name");
            assert_eq!(broken_rule(&text), None, "{text:?}");
        }
    }
}

#[test]
fn each_quoted_message_exists() {
    let samples = samples();
    let page = include_str!("../../docs/errors.md");
    let (_, section) = page.split_once("## Messages").expect("the page has it");
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let quoted: Vec<&str> = rows
        .filter_map(|row| row.split('|').nth(1))
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .collect();
    assert!(quoted.len() > 10, "{quoted:?}");
    for text in quoted {
        let exists = samples.iter().any(|sample| sample.texts.iter().any(|it| it.contains(text)));
        assert!(exists, "no message has {text:?}, which docs/errors.md explains");
    }
}

#[test]
fn masters_that_say_the_same_share_a_line() {
    let left = |ms| Vote::Refused { holder: HolderTtl::Left(Duration::from_millis(ms)) };
    let report = |votes: &[Vote]| report(Round::Acquire, votes).lines().join("; ");
    let down = Vote::Failed(Failure::ConnectionLost);
    assert_eq!(
        report(&[left(4000), left(4400), left(4300)]),
        "all 3 masters: refused, held for at most 4.4s"
    );
    assert_eq!(
        report(&[left(4400), down.clone(), left(90)]),
        "redis://10.0.0.1:6379, redis://10.0.0.3:6379: refused, held for at most 4.4s; \
         redis://10.0.0.2:6379: the connection broke before the answer"
    );
    assert_eq!(report(&[down]), "redis://10.0.0.1:6379: the connection broke before the answer");
    let quarantined = |s| Vote::Failed(Failure::Quarantined { left: Duration::from_secs(s), is_new: false });
    assert_eq!(
        report(&[quarantined(7), quarantined(9), quarantined(8)]),
        "all 3 masters: not counted for another 9s: it may have restarted and forgotten a lock"
    );
}

#[test]
fn full_queues_are_named_where_masters_are_well() {
    let down = || Vote::Failed(Failure::ConnectionLost);
    let full = || Vote::Failed(replied(QUEUE_FULL));
    let refused = || Vote::Refused { holder: HolderTtl::Gone };
    for (votes, expected) in [
        (vec![full(), full(), full()], true),
        (vec![full(), full(), down()], true),
        (vec![full(), refused(), down()], true),
        (vec![full(), Vote::Granted, Vote::Pending], true),
        (vec![full(), down(), down()], false),
        (vec![refused(), refused(), down()], false),
        (vec![down(), down(), down()], false),
        (vec![], false),
    ] {
        assert_eq!(report(Round::Acquire, &votes).is_queue_full(), expected, "{votes:?}");
    }
}

/// The manual's table of classes.
#[test]
fn the_manual_has_each_class() {
    use ErrorClass::*;
    let page = include_str!("../../docs/errors.md");
    for class in [Contended, Outage, Unconfirmed, Overloaded, Lost, Cancelled, Stopped, Rejected] {
        let mark = |is: bool| if is { "yes" } else { "no" };
        let row = format!(
            "| `{class:?}` | {} | {} | {} | {} |",
            mark(class.is_contended()),
            mark(class.is_outage()),
            mark(class.is_retryable()),
            class.public_message(),
        );
        assert!(page.contains(&row), "{row}");
    }
}

#[test]
fn debug_output_shows_names_as_text() {
    let report = all(Round::Acquire, Vote::Pending);
    let set = SetError::new("orders:42", AcquireError::Contended(Box::new(Denial::new(report))));
    let event = crate::Event::Lost { resource: "orders:42".into(), held: LONG };
    let shown = format!("{set:?} {event:?}");
    assert_eq!(shown.matches("b\"orders:42\"").count(), 3, "{shown}");
    assert!(!shown.contains("111, 114"), "{shown}");
}

/// A test double may return any report, and its error must have a text.
#[test]
fn an_error_of_a_double_is_shown() {
    let vote = (Arc::from("redis://h:6379"), Vote::Granted);
    for count in [0, 1, 33, 1000] {
        let report = Report { votes: vec![vote.clone(); count], ..Report::new(Round::Acquire, "orders:42") };
        let denial = || Box::new(Denial::new(report.clone()));
        for error in [
            AcquireError::Contended(denial()),
            AcquireError::NoQuorum(denial()),
            AcquireError::Expired(denial()),
        ] {
            let shown = format!("{error} {error:#}");
            assert!(
                shown.contains("orders:42") && (count > 0 || shown.contains("no master was asked")),
                "{shown}"
            );
        }
        assert!(ReleaseError::Unconfirmed(report).to_string().contains("orders:42"));
    }
}

#[test]
fn a_new_denial_has_no_attempts_and_an_unknown_holder() {
    let Denial { attempts, took, holder, held_by, holder_label, slots, waited, report } =
        Denial::new(all(Round::Acquire, Vote::Granted));
    assert_eq!((attempts, took, holder, held_by), (0, Duration::ZERO, HolderTtl::Unknown, HeldBy::default()));
    assert!(holder_label.is_none() && slots.is_empty() && waited == Waited::default());
    assert_eq!(report.votes.len(), 5);
}
