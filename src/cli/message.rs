//! Messages of the command line on stderr, one variant each. The library's errors have their own texts.

use std::fmt;
use std::time::Duration;

use redlatch::words::{Counted, Named, Rounded};

/// Text from the library, the system or the arguments.
type Text<'a> = &'a dyn fmt::Display;

/// Defines the messages: name, fields, text. `lock` is a [`label`].
macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident $({ $($field:ident: $type:ty),+ })? => ($($text:tt)+);)+) => {
        pub(crate) enum Message<'a> {
            $($(#[$doc])* $name $({ $($field: $type),+ })?),+
        }

        impl fmt::Display for Message<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match *self {
                    $(Self::$name $({ $($field),+ })? => write!(f, $($text)+)),+
                }
            }
        }
    };
}

messages! {
    // ---- arguments ----
    /// A bad value of an option or its variable.
    BadSetting { option: &'a str, variable: &'static str, reason: Text<'a> } => ("{option} ({variable}): {reason}");
    NoDashes => ("write -- between the lock's name and the command: redlatch run NAME -- COMMAND");
    NoLockCommand => (
        "there is no subcommand lock; use redlatch run NAME -- COMMAND, or redlatch acquire --handle FILE NAME");
    UnknownPage { names: Text<'a> } => ("no such page; give {names}, or nothing for the program's own");
    TtlTooLong { ttl: Duration, max_ttl: Duration } => (
        "--ttl is {}, above the maximum TTL of {}; give a shorter --ttl\n  All users of these masters \
         need the same --max-ttl (library: max_ttl)",
        Rounded(ttl), Rounded(max_ttl));
    OutOfBounds { option: &'static str, value: Text<'a>, min: Text<'a>, max: Text<'a> } => (
        "{option} is {value}; give {min} to {max}");
    LeastTimeTooLong { at_least: Duration, max_hold: Duration } => (
        "--at-least is {}, above the --max-hold of {}; ask for less, or raise --max-hold",
        Rounded(at_least), Rounded(max_hold));
    UnlockWithoutForce => (
        "unlock deletes the lock, and does not notify its holder; give --force if two holders may work at once\n  \
         See the holder with: redlatch inspect NAME");
    // ---- masters ----
    TooFewMasters { ready: usize, count: usize, needed: usize } => (
        "{ready} of {count} masters count, {needed} needed; repair the others");
    AwaitingMasters { left: Duration, restarted: usize, count: usize } => (
        "waiting {}: {restarted} of {count} masters may have restarted and forgotten a lock (--trust counts them)",
        Rounded(left));
    Connected { ready: usize, count: usize, needed: usize, took: Duration } => (
        "connected to {ready} of {count} masters in {}; a quorum needs {needed}", Rounded(took));
    NoRoundTrip { error: Text<'a> } => ("the round trip was not measured: {error}");
    // ---- a new fleet ----
    NotDeclared { why: Text<'a> } => ("nothing is declared: {why}");
    NotSaidNew => ("stdin is no terminal; give --new if these masters are new and empty");
    ClientsUnknown => (
        "a master does not list its clients, so --new is not enough; grant +client|list, or run this at a terminal");
    AskWhetherNew { count: usize, sentence: &'static str, is_unsure: bool } => (
        "{} will count at once; a lock that a restarted master forgot may get a second holder\n{}  \
         Type \"{sentence}\" to confirm",
        Counted(count, "master"), if is_unsure { "  Clients may be connected: not all masters list them\n" } else { "" });
    SentenceNotTyped => ("nothing is declared: this was not confirmed");
    WrittenInPart { master: Text<'a>, why: Text<'a> } => (
        "the record may be missing on {master}: {why}. Run the same command again");
    // ---- another master ----
    NotReplaced { why: Text<'a> } => ("the master is not replaced: {why}");
    AwaitingLocks { left: Duration, old: Text<'a> } => ("waiting {}: locks may be held on {old}", Rounded(left));
    LeftOut { masters: Text<'a> } => (
        "the new master counts, but {masters} did not answer. Run the same command again when they do");
    // ---- the lock ----
    /// `left` is `None` for a wait without end.
    AwaitingLock { left: Option<Duration>, error: Text<'a> } => (
        "waiting{}: {error:#}", optional(left.map(|left| format!(" up to {} more", Rounded(left)))));
    Acquired { lock: &'a str, took: Duration, later: Option<(u32, Duration)>, left: Duration } => (
        "{lock} acquired in {}{}; valid for {}",
        Rounded(took),
        optional(later.map(|(attempts, waited)| format!(" by attempt {attempts}, {} after the first", Rounded(waited)))),
        Rounded(left));
    SlotAcquired { slot: u32, count: u32 } => ("it is slot {slot} of {count}, counted from 0");
    GrantedBy { masters: Text<'a>, rest: usize } => (
        "granted by {masters}{}", optional((rest > 0).then(|| format!("; {rest} not needed"))));
    Extended { lock: &'a str, left: Duration } => ("{lock} extended; valid for {}", Rounded(left));
    NotExtended { error: Text<'a> } => ("trying again: {error}");
    NotExtendedInTime { lock: &'a str } => ("{lock} was not extended in time");
    LossNear { left: Duration, why: Text<'a> } => ("{} of validity left: {why}", Rounded(left));
    Staying { lock: &'a str, left: Duration } => ("{lock} is held for another {}, its --at-least time", Rounded(left));
    LeastTimeCut { lock: &'a str, left: Duration } => (
        "the signal cuts the --at-least time: {lock} ends in {}\n  Without a signal redlatch stays until the rest fits \
         into --max-ttl",
        Rounded(left));
    LockLost => ("the lock was lost");
    LostInStay { lock: &'a str } => ("{lock} was lost before its --at-least time");
    Kept { lock: &'a str } => ("{lock} stays held until its --at-least time is over");
    RestUnconfirmed { lock: &'a str, left: Duration } => (
        "{lock} ends within {}, and sooner if masters answer", Rounded(left));
    Released { lock: &'a str } => ("{lock} released");
    GoneBefore { lock: &'a str, absent: usize, count: usize } => (
        "{lock} was gone on {absent} of {count} masters before its release; check its work: another client may have held the lock");
    ReleasesUnconfirmed { left: usize } => (
        "{} not confirmed by all masters; the keys end with their TTL", Counted(left, "release"));
    MaybePool => ("if it is a pool of slots, give --slots COUNT");
    UnlockWarning { lock: &'a str } => (
        "warning: the holder of {lock} is not notified. Until its validity ends, two clients may hold the lock");
    UnlockUnconfirmed { lock: &'a str } => (
        "{lock} may exclude others until its TTL ends\n  Inspect it, and retry when more masters answer. Keys of \
         other types are never deleted");
    // ---- elections ----
    Campaigning { lock: &'a str } => ("campaigning for {lock}");
    Leading { lock: &'a str, term: Text<'a> } => ("leading by {lock}, term {term}");
    NotLeading { lock: &'a str, why: Text<'a>, pause: Duration } => (
        "not leading by {lock}: {why}; campaigning again in {}", Rounded(pause));
    // ---- handles ----
    Passed { lock: &'a str, left: Duration, file: Text<'a> } => (
        "{lock} is held for {}; release it by: redlatch release --handle {file}", Rounded(left));
    NoHandle { file: Text<'a> } => ("there is no {file}: nothing to release");
    HandleGone { lock: &'a str } => ("{lock} was gone already: released, adopted or expired");
    HandleFile { file: Text<'a>, error: Text<'a> } => ("{file}: {error}");
    HandleReadable { file: Text<'a> } => ("others can read {file}, and release its lock; give it mode 0600");
    HandleThere { file: Text<'a> } => (
        "{file} contains the handle of another lock or reader. Release it, or give another --handle");
    HandleForeign { file: Text<'a>, error: Text<'a> } => ("{file}: {error}, or delete the file");
    // ---- drill and list ----
    DrillRuns => (
        "another drill runs on these masters with this prefix; wait for its end, or give another --prefix");
    DrillKeysThere { name: Text<'a> } => (
        "lock {name} exists on a master: an earlier drill left it, or another program uses it\n  Wait for its TTL, or \
         give another --prefix");
    DrillProgress { elapsed: Duration, time: Duration, locks: u64, two_holders: u64 } => (
        "{} of {}: {}, {two_holders} with two holders",
        Rounded(elapsed), Rounded(time), Counted(usize::try_from(locks).unwrap_or(usize::MAX), "lock"));
    ContenderFailed { number: usize, why: Text<'a> } => (
        "contender {number} failed ({why}); run its command alone to see why");
    FaultFailed { what: Text<'a>, master: Text<'a>, why: Text<'a> } => (
        "{what} on {master} failed ({why}); check the command and the rights");
    NoFaults { missing: Text<'a> } => (
        "there was no {missing}, so the drill proves nothing about it; give more --time, or repair failed calls");
    OtherKeys { count: usize } => ("not listed: {} with the prefix that cannot be {}",
        Counted(count, "key"), if count == 1 { "a lock" } else { "locks" });
    ListCut { count: usize } => ("there are more than {count} names; give a narrower PATTERN");
    // ---- the command ----
    EndedBySignal { name: &'static str, lock: &'a str } => ("{name} came before the command started; {lock} is not held");
    OverBeforeStart { lock: &'a str } => ("{lock} ended before the command could start; give a longer --ttl");
    CannotRun { program: Text<'a>, error: Text<'a> } => ("cannot run {program}: {error}; the lock is released");
    CommandEnded { code: u8 } => ("the command ended with code {code}");
    Term { grace: Duration, why: Text<'a> } => ("TERM to the command now, KILL in {}: {why}", Rounded(grace));
    KillAfterGrace { lock: &'a str, left: Duration } => (
        "KILL to the command: its grace is over, and {}", Validity(lock, left));
    KillAtOnce { lock: &'a str, left: Duration, why: Text<'a> } => (
        "KILL to the command at once, because {}: {why}", Validity(lock, left));
    CannotKill { pid: Text<'a> } => (
        "no permission to end process {pid} of the command; it may go on without the lock");
    // ---- stderr ----
    LinesDropped { count: usize } => (
        "{} {} dropped, because stderr was read too slowly",
        Counted(count, "message"), if count == 1 { "was" } else { "were" });
}

fn optional(text: Option<String>) -> String {
    text.unwrap_or_default()
}

/// The locks of a run: `lock "a"`, or `one of lock "a", lock "b"` for several.
pub(crate) fn label<'a>(names: impl IntoIterator<Item = &'a [u8]>) -> String {
    let names: Vec<String> = names.into_iter().map(|name| Named(name).to_string()).collect();
    match names.len() {
        0 | 1 => names.concat(),
        _ => format!("one of {}", names.join(", ")),
    }
}

/// A pool, until one of its slots is held.
pub(crate) fn pool_label(name: &[u8]) -> String {
    format!("a slot of pool \"{}\"", name.escape_ascii())
}

/// Puts the lock's name before an error that does not name a lock. The error's own name would come before any
/// foreign text, which follows a `:` or `(`.
pub(crate) fn with_lock(lock: &str, error: String) -> String {
    let own = error.split([':', '(']).next().unwrap_or_default();
    if own.contains("lock \"") || own.contains("pool \"") { error } else { format!("{lock}: {error}") }
}

struct Validity<'a>(&'a str, Duration);

impl fmt::Display for Validity<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            Duration::ZERO => write!(f, "{} is no longer valid", self.0),
            left => write!(f, "{} has {} of validity left", self.0, Rounded(left)),
        }
    }
}

#[cfg(test)]
mod tests {
    use redlatch_support::{assert_golden, broken_rule};

    use super::*;

    const LONG: Duration = Duration::from_nanos(4_408_173_216);

    /// Rows of `pattern => sample, words;`, which must cover all patterns. The names in front are values that the
    /// samples share.
    macro_rules! table {
        ($lock:ident, $why:ident: $($pattern:pat => $sample:expr, $words:literal;)*) => {
            fn samples() -> Vec<(String, &'static str)> {
                use Message::*;
                let $lock = &label([b"orders:42".as_slice()])[..];
                let $why = &"lock \"orders:42\" is lost";
                #[allow(unreachable_patterns)]
                const fn has_a_line(message: &Message<'_>) {
                    match message { $($pattern => {})* }
                }
                vec![$({
                    let sample: Message<'_> = $sample;
                    has_a_line(&sample);
                    assert!(matches!(&sample, $pattern), "{sample} is not of its line");
                    (sample.to_string(), $words)
                }),*]
            }
        };
    }

    table! {
        lock, why:
        BadSetting { .. } => BadSetting { option: "--max-ttl", variable: "REDLATCH_MAX_TTL", reason: &"give a time such as 30s" }, "--max-ttl (REDLATCH_MAX_TTL): give a time";
        UnknownPage { .. } => UnknownPage { names: &"run, bench" }, "no such page; give run, bench";
        LinesDropped { .. } => LinesDropped { count: 1 }, "1 message was dropped";
        LinesDropped { .. } => LinesDropped { count: 2 }, "2 messages were dropped, because stderr was read too slowly";
        NoDashes => NoDashes, "write -- between the lock's name and the command";
        NoLockCommand => NoLockCommand, "use redlatch run NAME -- COMMAND, or redlatch acquire";
        TtlTooLong { .. } => TtlTooLong { ttl: LONG, max_ttl: 2 * LONG }, "--ttl is 4.4s, above";
        OutOfBounds { .. } => OutOfBounds { option: "--depth", value: &0, min: &1, max: &9 }, "--depth is 0; give 1 to 9";
        UnlockWithoutForce => UnlockWithoutForce, "does not notify its holder; give --force";
        TooFewMasters { .. } => TooFewMasters { ready: 1, count: 3, needed: 2 }, "1 of 3 masters count, 2 needed; repair";
        AwaitingMasters { .. } => AwaitingMasters { left: LONG, restarted: 2, count: 3 }, "waiting 4.4s: 2 of 3 masters may have restarted";
        Connected { .. } => Connected { ready: 1, count: 3, needed: 2, took: LONG }, "connected to 1 of 3 masters in 4.4s";
        NotDeclared { .. } => NotDeclared { why: &"redis://h:6379 has 2 keys behind the prefix" }, "nothing is declared: redis://h:6379 has 2 keys";
        NotSaidNew => NotSaidNew, "give --new";
        ClientsUnknown => ClientsUnknown, "run this at a terminal";
        AskWhetherNew { .. } => AskWhetherNew { count: 5, sentence: "these masters are new", is_unsure: true }, "5 masters will count at once";
        AskWhetherNew { .. } => AskWhetherNew { count: 1, sentence: "these masters are new", is_unsure: false }, "1 master will count at once";
        SentenceNotTyped => SentenceNotTyped, "nothing is declared";
        WrittenInPart { .. } => WrittenInPart { master: &"redis://h:6379", why: &"no answer" }, "Run the same command again";
        NotReplaced { .. } => NotReplaced { why: &"redis://h:6379 takes SET" }, "the master is not replaced: redis://h:6379 takes SET";
        AwaitingLocks { .. } => AwaitingLocks { left: LONG, old: &"redis://h:6379" }, "waiting 4.4s: locks may be held on redis://h:6379";
        LeftOut { .. } => LeftOut { masters: &"redis://h:6379" }, "redis://h:6379 did not answer";
        NoRoundTrip { .. } => NoRoundTrip { error: &"broken pipe" }, "was not measured: broken pipe";
        AwaitingLock { .. } => AwaitingLock { left: Some(LONG), error: why }, "waiting up to 4.4s more: lock \"orders:42\"";
        AwaitingLock { .. } => AwaitingLock { left: None, error: why }, "waiting: lock \"orders:42\"";
        Acquired { .. } => Acquired { lock, took: LONG, later: None, left: 2 * LONG }, "lock \"orders:42\" acquired in 4.4s; valid for 8.8s";
        Acquired { .. } => Acquired { lock, took: LONG, later: Some((2, 2 * LONG)), left: 3 * LONG }, "lock \"orders:42\" acquired in 4.4s by attempt 2, 8.8s after the first";
        SlotAcquired { .. } => SlotAcquired { slot: 2, count: 3 }, "it is slot 2 of 3, counted from 0";
        GrantedBy { .. } => GrantedBy { masters: &"all 3 masters", rest: 0 }, "granted by all 3 masters";
        GrantedBy { .. } => GrantedBy { masters: &"redis://h:1, redis://h:2", rest: 1 }, "; 1 not needed";
        Extended { .. } => Extended { lock, left: LONG }, "lock \"orders:42\" extended; valid for 4.4s";
        NotExtended { .. } => NotExtended { error: why }, "trying again: lock \"orders:42\"";
        NotExtendedInTime { .. } => NotExtendedInTime { lock }, "lock \"orders:42\" was not extended in time";
        LossNear { .. } => LossNear { left: LONG, why }, "4.4s of validity left: lock \"orders:42\"";
        Staying { .. } => Staying { lock, left: LONG }, "lock \"orders:42\" is held for another 4.4s";
        LeastTimeCut { .. } => LeastTimeCut { lock, left: LONG }, "the signal cuts the --at-least time: lock \"orders:42\" ends in 4.4s";
        LeastTimeTooLong { .. } => LeastTimeTooLong { at_least: 2 * LONG, max_hold: LONG }, "above the --max-hold of 4.4s; ask for less";
        LostInStay { .. } => LostInStay { lock }, "was lost before its --at-least time";
        RestUnconfirmed { .. } => RestUnconfirmed { lock, left: LONG }, "ends within 4.4s, and sooner if masters answer";
        Kept { .. } => Kept { lock }, "lock \"orders:42\" stays held until";
        Released { .. } => Released { lock }, "lock \"orders:42\" released";
        GoneBefore { .. } => GoneBefore { lock, absent: 2, count: 3 }, "lock \"orders:42\" was gone on 2 of 3 masters before its release; check its work";
        ReleasesUnconfirmed { .. } => ReleasesUnconfirmed { left: 2 }, "2 releases not confirmed";
        Passed { .. } => Passed { lock, left: LONG, file: &"/run/a" }, "lock \"orders:42\" is held for 4.4s; release it by";
        NoHandle { .. } => NoHandle { file: &"/run/a" }, "there is no /run/a: nothing to release";
        HandleGone { .. } => HandleGone { lock }, "lock \"orders:42\" was gone already";
        HandleFile { .. } => HandleFile { file: &"/run/a", error: &"No such file or directory" }, "/run/a: No such file";
        HandleReadable { .. } => HandleReadable { file: &"/run/a" }, "give it mode 0600";
        HandleThere { .. } => HandleThere { file: &"/run/a" }, "/run/a contains the handle of another lock or reader. Release it, or";
        HandleForeign { .. } => HandleForeign { file: &"/run/a", error: &"use one prefix" }, "/run/a: use one prefix, or delete";
        DrillRuns => DrillRuns, "another drill runs";
        DrillKeysThere { .. } => DrillKeysThere { name: &"redlatch-drill:1" }, "lock redlatch-drill:1 exists on a master";
        DrillProgress { .. } => DrillProgress { elapsed: Duration::from_secs(10), time: Duration::from_secs(30), locks: 200, two_holders: 0 }, "10s of 30s: 200 locks, 0 with two holders";
        ContenderFailed { .. } => ContenderFailed { number: 2, why: &"exit status: 1" }, "contender 2 failed (exit status: 1)";
        FaultFailed { .. } => FaultFailed { what: &"CLIENT PAUSE", master: &"redis://h:6379", why: &"NOPERM" }, "CLIENT PAUSE on redis://h:6379 failed (NOPERM)";
        NoFaults { .. } => NoFaults { missing: &"pause and no hook" }, "there was no pause and no hook, so";
        MaybePool => MaybePool, "if it is a pool of slots, give --slots COUNT";
        UnlockWarning { .. } => UnlockWarning { lock }, "the holder of lock \"orders:42\" is not notified";
        UnlockUnconfirmed { .. } => UnlockUnconfirmed { lock }, "lock \"orders:42\" may exclude others until its TTL ends\n  Inspect it";
        OtherKeys { .. } => OtherKeys { count: 2 }, "not listed: 2 keys";
        ListCut { .. } => ListCut { count: 9 }, "give a narrower PATTERN";
        EndedBySignal { .. } => EndedBySignal { name: "SIGTERM", lock }, "SIGTERM came before the command started; lock \"orders:42\" is not held";
        OverBeforeStart { .. } => OverBeforeStart { lock }, "lock \"orders:42\" ended before the command could start; give a longer --ttl";
        CannotRun { .. } => CannotRun { program: &"job", error: &"No such file or directory" }, "cannot run job: No such file";
        LockLost => LockLost, "the lock was lost";
        Campaigning { .. } => Campaigning { lock }, "campaigning for lock \"orders:42\"";
        Leading { .. } => Leading { lock, term: &7 }, "leading by lock \"orders:42\", term 7";
        NotLeading { .. } => NotLeading { lock, why: &CommandEnded { code: 1 }, pause: LONG }, "the command ended with code 1; campaigning again in 4.4s";
        CommandEnded { .. } => CommandEnded { code: 1 }, "the command ended with code 1";
        Term { .. } => Term { grace: LONG, why }, "TERM to the command now, KILL in 4.4s: lock \"orders:42\"";
        KillAfterGrace { .. } => KillAfterGrace { lock, left: Duration::ZERO }, "lock \"orders:42\" is no longer valid";
        KillAfterGrace { .. } => KillAfterGrace { lock, left: LONG }, "lock \"orders:42\" has 4.4s of validity left";
        KillAtOnce { .. } => KillAtOnce { lock, left: LONG, why: &"the machine slept" }, "lock \"orders:42\"";
        CannotKill { .. } => CannotKill { pid: &7 }, "it may go on without the lock";
    }

    #[test]
    fn all_messages_keep_the_rules_of_writing() {
        let mut page = String::new();
        for (text, words) in samples() {
            assert!(text.contains(words), "{text:?} lacks {words:?}");
            assert_eq!(broken_rule(&text), None, "{text:?}");
            page += &format!("{text}\n");
        }
        assert_golden("messages", &page);
    }

    #[test]
    fn an_error_gets_the_name_that_it_lacks() {
        let lock = label([b"a".as_slice()]);
        assert_eq!(with_lock(&lock, "too many".to_owned()), "lock \"a\": too many");
        assert_eq!(with_lock(&lock, "lock \"b\" is lost".to_owned()), "lock \"b\" is lost");
        let slot = "slot 1 of pool \"a\" is lost";
        assert_eq!(with_lock(&pool_label(b"a"), slot.to_owned()), slot);
        let others = "the client cannot be used: lock \"b\" is lost";
        assert_eq!(with_lock(&lock, others.to_owned()), format!("lock \"a\": {others}"));
        assert_eq!(label([b"a".as_slice(), b"b"]), "one of lock \"a\", lock \"b\"");
    }
}
