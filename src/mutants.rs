//! Deliberate defects, one for each rule that the tests must hold: `tests/sim/mutants.rs` switches each on
//! and shows that the simulator goes red.
//!
//! They exist only in a build with `--cfg redlatch_mutants`, which `scripts/test` makes for that purpose and
//! no Cargo feature can. In every other build [`is_on`] is the constant `false` and its branches are gone.

#![cfg_attr(
    not(redlatch_mutants),
    expect(unreachable_pub, reason = "public for the tests that switch them on")
)]

#[cfg(redlatch_mutants)]
mod scripts;

use std::sync::atomic::{AtomicU8, Ordering};

/// `mutant!(Name)`: whether this defect is switched on.
macro_rules! mutant {
    ($name:ident) => {
        crate::mutants::is_on(crate::mutants::Mutant::$name)
    };
}
pub(crate) use mutant;

#[cfg(redlatch_mutants)]
pub use scripts::{SCRIPT_DEFECTS, ScriptDefect};

/// A defect, named after what it does wrong; below the first rule of `docs/dev/rules.md` that it breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    not(redlatch_mutants),
    expect(dead_code, reason = "defects of scripts are in a table that other builds do not have")
)]
pub enum Mutant {
    // ---- I1, I3 ----
    /// The deadline of a lock counts from its quorum.
    DeadlineFromQuorum,
    /// The deadline of an extension counts from its reply.
    ExtensionFromReply,
    /// A key has the TTL of another lock.
    TermsOfAnother,

    // ---- I2 ----
    /// A lock is handed out without looking whether it is still valid.
    DeadlineUnchecked,
    /// Due time-outs are handled before replies that have arrived are read.
    TimeOutsBeforeReads,
    /// A task that fetches its answer late is handed a lock that is over.
    FetchedUnchecked,
    /// A task that fetches its answer late is handed a lock of less than the validity that it asked for.
    FetchedAnyValidity,
    /// Nothing is taken off the TTL for clock drift.
    NoDrift,

    // ---- I4 ----
    /// The quorum is half of the masters.
    QuorumHalf,
    /// The quorum is that of the masters which answer.
    QuorumOfReachable,

    // ---- I5 ----
    /// A master's second vote counts for another's.
    VotesAsCount,

    // ---- I6 ----
    /// Every attempt has the same value.
    ValueReused,

    // ---- I7 ----
    /// A late vote counts for the next attempt in the same slot.
    LateVoteToNextAttempt,
    /// A grant counts though its connection broke before the verdict.
    LostGrantCounted,
    /// The grant of a swap counts though its connection broke before the verdict.
    LostSwapCounted,

    // ---- I8 ----
    /// No master is ever in quarantine.
    NoQuarantine,
    /// The quarantine ends a nanosecond early.
    QuarantineTickShort,
    /// The votes of masters in quarantine count.
    QuarantinedVotesCounted,
    /// A changed `run_id` is not noticed.
    RunIdIgnored,
    /// The last second of an uptime counts though it may not have passed.
    UptimeRoundedUp,
    /// A server that already ran when another was heard in its place is taken for a restarted one.
    ReplacedServerTrusted,
    /// Strict mode believes the uptime that a server reports.
    UptimeInStrict,
    /// A mark speaks for any process.
    MarkOfOtherProcess,
    /// A mark is written before the watch is over.
    MarkUnwatched,
    /// A fleet's record is not compared with the client's settings.
    RecordUncompared,
    /// A client writes its record over that of another one.
    RecordOverwritten,
    /// Strict mode counts a master whose declared settings are others.
    DeclaredIgnored,
    /// The record under another prefix is believed.
    RecordOfOtherPrefix,
    /// The record of a new fleet speaks for a process that started later.
    NewThoughRestarted,
    /// The record of a process that was new for another fleet ends its quarantine in this one.
    NewOfOtherFleet,
    /// A master that takes another one's place counts by its uptime.
    JoiningCounted,
    /// A master is replaced without the wait for the locks on the old one.
    ReplacedWithoutWait,
    /// A new master whose process changed while a replacement waited takes the place at once.
    JoinedTwice,
    /// A new fleet is declared though a master does not answer.
    FoundedWithoutMaster,
    /// A clock that is set counts as one that runs fast.
    StepTakenForRate,
    /// A mark is written over another application's key.
    ForeignMarkOverwritten,
    /// Strict mode takes any server.
    UnfitServerTaken,

    // ---- I9 ----
    /// Only masters that granted are released.
    ReleaseOnlyGranted,
    /// A release goes out over a new connection.
    ReleaseOnOtherConnection,
    /// Keys that a broken connection left behind are forgotten.
    OrphansDropped,
    /// A key that is absent over a new connection is taken for released, though its `SET` may come later.
    AbsentIsProof,
    /// A key that was deleted is taken for the only one, though the lock was sent twice.
    DeletedIsProof,
    /// Whichever process answers next, the process before is taken for ended.
    SuccessorIsProof,
    /// An error reply to a release is taken for its end.
    ReleaseErrorIsDone,
    /// A release that its caller awaits is not sent again over the next connection.
    AwaitedSentOnce,
    /// A master that answers many requests is late for the last of them.
    BacklogIsLate,
    /// A master that has fallen silent is waited for as long as its backlog would take.
    SilentBacklogAwaited,
    /// The release of a lock whose validity has ended is forgotten.
    ExpiredKeptForever,
    /// A waiter for the same lock asks the masters at once instead of standing in line.
    NobodyQueues,
    /// A lock that is left is released.
    LeftReleased,
    /// A lock whose validity has ended can be left.
    ExpiredLeft,
    /// A master that gets the rest of a time late counts as one that got it in time.
    LateRestCounts,
    /// The rest counts on a master in quarantine, where the lock was put back.
    QuarantinedRestCounts,
    /// A lock that is left for less than the shortest TTL is promised for all of that TTL.
    HeldBeyondRest,
    /// A master that misses the rest of a time does not get it again.
    RestSentOnce,
    /// A master that has not got the rest of a time is not released after it.
    RestWithoutEnd,
    /// An adopted lock has the handle's token, which its first holder has, too.
    AdoptedKeepsToken,
    /// An adoption leaves the handle's value on the masters, for the next adoption.
    AdoptionLeavesValue,
    /// An adoption takes the key whoever has it.
    AdoptionUncompared,
    /// The votes of masters in quarantine count for an adoption once that is over.
    AdoptedInQuarantine,
    /// A fenced lock is adopted where a later holder has raised the fence.
    AdoptedBelowFence,
    /// A release by a handle leaves the fence as it is.
    HandleLeavesFence,
    /// A waiter behind a holder does not look whether that one's validity has ended.
    HolderWaitedForWithoutEnd,
    /// Handing a lock over overwrites whatever the key holds.
    SwapWithoutCompare,
    /// The deadline of a lock that was handed over counts from its quorum.
    HandoverFromReply,
    /// A lock that was handed over is not released where the swap is not answered.
    HandoverForgetsClaim,
    /// A swap that may come late over a broken connection is forgotten.
    LateSwapForgotten,
    /// A swap is sent again, in full, behind the release of the lock that it hands out.
    SwapBehindRelease,
    /// A lock is handed over within one client without end.
    HandoverWithoutEnd,
    /// A fair lock is had by whoever asks first when it is free.
    HeadUnchecked,
    /// Each round of a waiter has a new ticket.
    TicketForgotten,
    /// A waiter that is rung waits for its next heartbeat.
    RingIgnored,
    /// A waiter gives no sign of life.
    HeartbeatForgotten,
    /// A waiter keeps the part of a lock that it got until it has all of it.
    PartKept,
    /// The first waiter never has the masters look whether the lock is free.
    NobodyLooks,
    /// A master that asks for the script of an attempt which the others have decided does not get it.
    LateScriptForgotten,
    /// A waiter that gives up stays in the queue until its heartbeat is over.
    LeaveForgotten,
    /// The ticket of a waiter that died stays.
    DeadWaitersStay,
    /// A queue whose waiters all died stays.
    DeadQueuesStay,
    /// A round does not end the token of the one before.
    OldTokenKept,
    /// A waiter that has the lock leaves the tokens of its earlier rounds.
    EarlierTokensKept,
    /// The next round goes to a master that has not answered the one before.
    ParkedTwice,
    /// A held lock is put back on a master where its entry may wait.
    RepairWhileParked,
    /// A grant counts that came over another connection than the one that carried the park.
    LostGrantHeard,
    /// No master grants a lock to a waiter by itself.
    OnlyRings,
    /// A grant that nobody received leaves its key.
    UndoneGrantLeavesKey,
    /// An entry stays when its attempt has been granted.
    EntryStaysGranted,
    /// A vote is published before its key is written.
    PublishedUnwritten,
    /// A release serves nobody.
    ReleaseServesNobody,
    /// A forced unlock serves nobody.
    ForcedServesNobody,
    /// The release of a fenced lock serves nobody.
    FencedServesNobody,
    /// The last reader that goes serves nobody.
    ReaderServesNobody,
    /// A waiter that gives up its key serves nobody.
    UnparkServesNobody,
    /// Only the first of several readers at the head gets the lock.
    ReadersStopAfterFirst,
    /// A reader comes though somebody waits.
    ReaderPassesQueue,
    /// A reader that was granted by message ends the others with its own TTL.
    GrantedReaderCutsShort,
    /// A grant by message leaves the fence as it is.
    GrantLeavesFence,
    /// A grant by message does not compare the token with the fence.
    GrantBelowFence,
    /// The entry of a lock that is handed over within one client stays.
    SwapLeavesEntry,
    /// A park that comes late takes the place of a later one.
    LateParkReplaces,
    /// A park leaves the value of the round before.
    OldValueLeft,
    /// A rung entry keeps its stay.
    RungKeepsStay,
    /// A ring prolongs a stay that is nearly over.
    RingProlongs,
    /// A ticket may be as far from the master's clock as it likes.
    TicketUnlimited,
    /// A ticket is limited by the time of each round, not by that of the first.
    TicketMoved,
    /// The entry of an attempt that does not wait stays.
    BriefEntryStays,
    /// A master that stopped at its limit is not asked to go on.
    MoreIgnored,
    /// A master that stopped at its limit is asked to go on once, however many are left.
    MoreFollowedOnce,
    /// A late answer to an earlier park has the running round sent to a master that has it already.
    LateAnswerParksAgain,
    /// A master that answers a park with a grant leaves others aside.
    GrantLeavesAside,
    /// A writer is served beside readers.
    WriterServedBesideReaders,
    /// A release takes the key whoever has it, and serves the next.
    ServedOverHolder,

    // ---- I10 ----
    /// Release deletes whatever the key holds.
    BareDel,
    /// An extension gives whatever the key holds more time.
    BareExtension,
    /// A release compares with the token alone, where the value has a label behind it.
    LabelForgotten,
    /// A deletion by force that a broken connection has lost is sent again over the next.
    ForcedDeletionAgain,
    /// A forced unlock deletes a key of any type.
    ForceDeletesAnyType,
    /// A master that calls a lock free when looked at has granted it to whoever asks for it in the place of
    /// the look.
    LookIsVote,
    /// A set keeps what it has while it waits for what it has not.
    SetKeepsSubset,
    /// A set keeps what is granted after another of its locks was refused.
    SetKeepsLateGrant,
    /// A set is handed out without the locks that were refused.
    SetHandsOutSubset,
    /// A set is handed out though the lock that it waited for has come too near to its end.
    SetExpiredUnchecked,
    /// A set is valid as long as one of its locks.
    SetValidityOfLongest,
    /// A slot is handed out with the number of another one.
    SlotOfAnother,
    /// A slot that one master calls free counts as free.
    FreeOnAnyMaster,
    /// Slots for which the votes are split count as taken.
    SplitIsTaken,
    /// The holder of a slot keeps the pool's door.
    DoorKept,
    /// A waiter for a slot waits for no door.
    DoorStandsOpen,
    /// The first waiter of a few slots stands in the queue of one of them.
    StandsAtOneSlot,
    /// The first waiter gives up as soon as one of its slots cannot be had.
    StandEndsWithFirst,
    /// Looks for a free slot come at ever longer intervals.
    LookPauseUncapped,
    /// A drained engine looks for slots.
    DrainedLooks,
    /// A reentrant lock is released when the first of its holds ends.
    HoldsEndWithFirst,
    /// A caller that comes while the first hold is being acquired is not counted.
    JoinedUncounted,
    /// A reentrant lock that is over is taken again.
    LostTakenAgain,
    /// A hold that is fetched late is not looked at.
    FetchedHoldUnchecked,
    /// A reentrant lock repeats an attempt that failed before its wait was over.
    EarlyFailureRepeated,
    /// A failed attempt of a reentrant lock also answers callers whose wait lasts longer.
    LongerWaitForgotten,
    /// An acquisition makes more attempts than its caller allows.
    TriesUnlimited,
    /// A lock is put back on a master though too few others are known to have granted it and kept it.
    RepairUnproven,
    /// A reader is let in where somebody has the lock alone.
    ReaderBesideWriter,
    /// A reader's coming ends the others with its own TTL.
    ReadersCutShort,
    /// A reader's coming removes others whose time is not over.
    ReadersPurgedEarly,
    /// A reader that goes takes the others with it.
    ReaderEndsAll,
    /// The key ends with the reader that was extended, not with the last one.
    ExtendedReaderEndsKey,
    /// A reader's request that comes late ends the extension behind it.
    LateReaderCutsShort,
    /// The key keeps the end of a reader that has gone.
    ReleasedReaderKeepsKey,
    /// A reader is extended on a master that does not have it.
    SharedExtensionJoins,
    /// A reader joins any sorted set at the lock's key, whoever made it.
    ForeignSetTaken,
    /// A waiter joins any sorted set where its queue belongs.
    ForeignQueueTaken,
    /// A text that Lua reads as a number is taken for a fence.
    ForeignFenceTaken,
    /// Readers stand in line behind each other.
    ReadersQueue,
    /// The guard of a lock that is proven lost reads the validity as before.
    LossUnpublished,

    // ---- I11 ----
    /// A lock can be extended after its deadline.
    ExtensionAfterDeadline,
    /// A lock is renewed for as long as it is held.
    RenewalUncapped,
    /// A lock that is kept is renewed also after its release.
    RenewedAfterRelease,
    /// The loss of a lock is reported when its validity has ended.
    LossReportedLate,
    /// The release of a lock is reported as its loss.
    ReleaseReportedAsLoss,
    /// A lock whose loss was reported goes on being renewed.
    KeptAfterLoss,
    /// The loss of a lock is reported as if its TTL were the one before the extension.
    LossReportsOldTtl,
    /// A renewal waits for answers until the validity ends.
    RenewalWithoutLimit,
    /// A deadline of the engine does not wake a client's thread that nobody else has wake up.
    DeadlineWakesNobody,
    /// The end of the renewals is not reported.
    RenewalEndUnreported,
    /// The pause before a failed renewal is tried again grows with the TTL.
    RenewalPauseUncapped,
    /// One master is enough to extend.
    ExtensionOnMinority,
    /// No answers are taken for consent to extend.
    ExtensionOnUnknown,
    /// A shorter TTL takes effect only when its round succeeds.
    ShorterExtensionIgnored,
    /// A shorter extension that may still be under way over a broken connection is forgotten.
    StrayExtensionIgnored,
    /// A lock that a majority of masters showed to be lost stays valid.
    ProvenLossStaysValid,
    /// A master that cannot have the key counts as one that did not answer.
    AbsenceIsSilence,
    /// A master that has no key but the entry of its holder counts as one that cannot have the key.
    WaitingEntryIsAbsent,
    /// A full server that refuses a native extension is not asked by script.
    FullTakenForLost,
    /// Grants after the verdict are not counted.
    StragglersCancelled,
    /// A restarted master keeps its place in the margin.
    RestartedGrantsKept,
    /// A master that did not answer an extension stays in the margin.
    MarginKeptByExtension,
    /// A late answer to the `SET` counts after an extension that its master never got.
    LateSetAfterExtension,

    // ---- I12 ----
    /// A master takes a fencing token that is as large as its fence.
    FenceNotStrict,
    /// A release deletes the fence.
    FenceDeleted,
    /// A release that comes late lowers the fence.
    FenceLowered,
    /// A master takes tokens from a window that is twice as long as its quarantine.
    FenceWindowTooWide,
    /// A vote for a fencing token that a master gave in its quarantine counts when that is over.
    FenceOfQuarantine,
    /// A lock is handed over within one client though its fence does not rise.
    FencedHandedOver,
    /// A plain lock is handed over to a caller that wants a fencing token, which has none then.
    PlainHandedToFenced,
    /// Masters in quarantine count for a fenced lock from its second attempt on.
    RetryForgetsQuarantine,

    // ---- I13 ----
    /// Votes for a fencing token count for the next one.
    RenumberingKeepsVotes,

    // ---- I14, I15 ----
    /// A time-out takes the reply's entry off the queue.
    TimeoutPopsOwed,

    // ---- I16 ----
    /// An error reply to `SET` is a no.
    ErrorIsNo,
    /// `NOSCRIPT` means that the key is gone.
    NoScriptIsNo,
    /// The lock's own key, met when a master is asked again, is taken for somebody else's.
    OwnKeyIsBusy,

    // ---- I17 ----
    /// The inbox grows to what a header announces.
    AllocationByHeader,
    /// Arrays may be nested without end.
    UnboundedNesting,

    // ---- I18 ----
    /// A verdict waits for every master.
    WaitsForAll,
    /// No round trip changes how long answers are waited for.
    RoundTripUnheard,
    /// The slowest round trip so far is that of a master for ever.
    SlownessRemembered,

    // ---- I20 ----
    /// The echo that ends a handshake may be anything.
    EchoUnchecked,

    // ---- I21 ----
    /// One server behind two addresses has two votes.
    SameServerTwice,
    /// The lock's own key, met by the request that is to set it, counts as a vote.
    OwnKeyIsGrant,

    // ---- I22 ----
    /// An attempt waits for answers without end.
    NoTimeOut,
    /// A drained engine acquires locks.
    DrainedAcquires,
    /// A drain does not end the acquisitions under way.
    DrainForgetsWaiters,
    /// A drain releases the locks that it is to leave.
    DrainReleasesLeft,
    /// The guard of a lock that a drain released is valid still.
    DrainedStaysValid,
    /// The next occupant of its slot ends the validity of a guard whose lock a drain released.
    DrainedValidityReused,
    /// A waiter goes on though the quarantine outlasts the wait.
    WaitsInQuarantine,

    // ---- I23 ----
    /// A connection that is lost is never made again.
    NoReconnect,

    // ---- I24 ----
    /// Dropping a lease releases nothing.
    DropForgets,
    /// An acquisition that is given up is not released.
    AbandonForgets,
    /// An answer is given to the next caller whose operation has the same place.
    AnswerToNextCaller,
    /// A lock that ended before its release is counted nowhere.
    LossUncounted,
    /// A lock that is handed over is not counted as released.
    HandoverUncounted,

    // ---- I25 ----
    /// The generator does not follow its seed.
    SeedIgnored,
    /// Retries come at fixed intervals.
    NoJitter,
    /// A refusal of new credentials ends the connection.
    RefusedLoginEnds,
    /// Credentials that change during a handshake do not reach its connection.
    LoginOfHandshakeKept,
    /// A readable socket is read once.
    ReadStopsEarly,
    /// The rest of a short write is left until something else is to be written.
    ShortWriteForgotten,
}

#[cfg(redlatch_mutants)]
std::thread_local! {
    static ACTIVE: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}

/// Switches a defect on in this thread, or all off.
#[cfg(redlatch_mutants)]
pub fn switch(mutant: Option<Mutant>) {
    ACTIVE.set(mutant);
}

#[cfg(redlatch_mutants)]
pub(crate) fn is_on(mutant: Mutant) -> bool {
    ACTIVE.get() == Some(mutant)
}

/// The seed, or with [`Mutant::SeedIgnored`] another one each time.
pub(crate) fn seed(mut seed: [u8; 32]) -> [u8; 32] {
    static COUNT: AtomicU8 = AtomicU8::new(0);
    if mutant!(SeedIgnored) {
        seed[0] = COUNT.fetch_add(1, Ordering::Relaxed);
    }
    seed
}

#[cfg(not(redlatch_mutants))]
#[inline(always)]
pub(crate) const fn is_on(_: Mutant) -> bool {
    false
}
