//! Rules that a model can break on purpose. Each one must be found.

/// A sentence of the specification that does not hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Defect {
    // Rounds and votes.
    /// A heartbeat keeps the token and counts validity anew.
    TokenKept,
    /// Validity counts from the decision, not from before the first byte.
    ValidityFromDecision,
    /// Validity is that of the asked TTL, not of the grant's.
    ValidityOfAskedTtl,
    /// A vote is as good as a quorum.
    QuorumOfOne,
    /// A new round keeps the votes of the last one.
    VotesKept,
    /// A vote for an earlier round counts.
    LateVoteCounted,
    /// A vote still counts when its connection has ended.
    VoteOutlivesConnection,
    /// A channel for each client, not for each connection, and any connection's pushes count.
    OneChannel,
    /// A ring counts as a vote.
    RingCounted,

    // Masters that forget.
    QuarantineIgnored,
    /// Quarantine is looked at only when the round begins.
    QuarantineAtBegin,
    /// Quarantine is looked at only when the park is sent.
    QuarantineWhenSent,
    /// Quarantine is looked at only at the decision.
    QuarantineAtDecision,
    /// The quarantine is a tick shorter than a grant.
    ShortQuarantine,

    // Ends of tokens.
    /// A part of the lock is given back under the token that still counts.
    GivenBackInRound,
    /// A vote that arrives for a held lock is given back.
    HeldUnparked,
    /// The running token is sent again over the next connection.
    SentAgain,
    /// The running token is unparked over the next connection.
    CleanedInRound,
    /// A lock is repaired at a master that was sent its park over an earlier connection.
    RepairedInDoubt,
    /// The old value is that of the last round, not the one last sent to that master.
    OldOfLastRound,
    /// A master that still had to answer gets nothing of the running round behind its answer.
    NoneBehindAnswer,
    /// A master gets nothing of the running round after a reconnect.
    NoneAfterReconnect,
    /// A second park goes to a master before the first one is answered.
    SecondParkAtOnce,
    /// A park is sent again after `NOSCRIPT` though its round is over.
    ResentAfterUnpark,
    /// What was owed is not repeated over the next connection.
    OwedNotRepeated,
    /// Only masters that voted are owed an unpark.
    OnlyVotersUnparked,
    /// Masters that were sent another token than the held one are owed nothing.
    OthersForgotten,
    CancelOwesNothing,

    // Holes of the first specification, which the model's rules close.
    /// A park that was lost with its connection is taken to have cleared its old value.
    OldOfLostPark,
    /// A park that was answered by an error is taken to have cleared its old value.
    RejectionForgotten,
    /// Any answer over a later connection proves the end of a token.
    AnswerIsProof,
    /// A deletion proves the end of a token of which two commands were sent.
    DeletionIsProof,
    /// A park that arrives late takes the place of a later round's entry.
    LaterEntryReplaced,
    /// A park that finds the queue full has deleted its old value, and serves nobody.
    FullServesNobody,

    // Scripts.
    /// An entry stays when it is granted.
    EntryStays,
    /// The vote is published before the write, which may fail.
    PublishedFirst,
    /// A grant that nobody receives stays.
    UnreceivedKept,
    /// A grant that nobody receives ends the serve.
    UndoneStops,
    /// A write has a shorter TTL than the grant.
    ShortGrant,
    /// An entry is served though the key has another value.
    ServedOverKey,
    /// A master with a repaired key writes it for the entry, and undoes that where nobody receives it.
    RepairUndone,
    /// An entry whose stay is over stays first.
    OverEntryStays,
    /// A caller's own entry is rung.
    OwnEntryRung,
    /// An unpark deletes the key whatever its value.
    UnparkUnchecked,
    /// A park deletes the key whatever its value, if it has an old value.
    OldUnchecked,
    /// An unpark removes whichever entry the client has.
    UnparkById,
    UnparkKeepsEntry,
    UnparkKeepsKey,
    UnparkServesNobody,
    ReleaseServesNobody,
    /// A park serves its own entry only.
    ParkServesItselfOnly,
}
