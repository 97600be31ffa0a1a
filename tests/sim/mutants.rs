//! Proves that the tests find faults: with each planted bug, one for each rule, a schedule fails that passes
//! without it.
//!
//! Only the copy of the tree with planted bugs contains this module: `scripts/defects test --test sim`.

mod scripts;

use std::panic::{AssertUnwindSafe, catch_unwind};

use redlatch::mutants::switch;
use redlatch::scripts::SCRIPTS;

use crate::directed::{
    Verdict, acquire, bytes, drain, fair, fence, fleet, handles, handover, hold, keep, leave, masters,
    parked, rounds, sharing, tasks,
};
use crate::directed::{login, owners, queries, sets, slots};
use crate::lua::{self, Break};
use crate::{history, sockets};
use scripts::{SCRIPT_DEFECTS, ScriptDefect};

/// Runs a schedule with a defect switched on in this thread. A panic also counts as found.
fn with(mutant: &'static str, schedule: fn() -> Verdict) -> Verdict {
    let broken = broken_scripts(mutant);
    switch(Some(mutant));
    let result = catch_unwind(AssertUnwindSafe(|| match broken.is_empty() {
        true => schedule(),
        false => lua::with_broken(broken, schedule),
    }));
    switch(None);
    result.unwrap_or_else(|_| Err("it panicked".to_owned()))
}

/// The scripts with a defect.
fn broken_scripts(mutant: &'static str) -> Vec<Break> {
    let broken = |name: &str, defect: &ScriptDefect| {
        let script = SCRIPTS.iter().find(|it| it.name == name).expect("a script of this name");
        assert_eq!(script.text.matches(defect.piece).count(), 1, "{name}: {defect:?}");
        Break { script: script.name, text: script.text.replace(defect.piece, defect.broken) }
    };
    let defects = SCRIPT_DEFECTS.iter().filter(|defect| defect.mutant == mutant);
    defects.flat_map(|defect| defect.scripts.iter().map(|name| broken(name, defect))).collect()
}

fn is_killed(mutant: &'static str, schedule: fn() -> Verdict) {
    assert_eq!(schedule(), Ok(()), "without the defect");
    if !broken_scripts(mutant).is_empty() {
        assert_eq!(lua::with_lua(schedule), Ok(()), "without the defect, by the scripts themselves");
    }
    let verdict = with(mutant, schedule);
    assert!(verdict.is_err(), "{mutant} survives");
    println!("{mutant}: {}", verdict.unwrap_err());
}

/// A line for each defect: the test's name, the defect's name in the planted bugs and in `SCRIPT_DEFECTS`,
/// and the schedule that finds it.
macro_rules! killed {
    ($($(#[$what:meta])* $name:ident: $mutant:ident by $schedule:path;)*) => {
        $($(#[$what])* #[test] fn $name() { is_killed(stringify!($mutant), $schedule); })*
    };
}

killed! {
    /// The deadline of a lock counts from its quorum.
    deadline_from_quorum: DeadlineFromQuorum by acquire::answers_that_take_long_do_not_move_the_deadline;
    /// A lock is handed out without looking whether it is still valid.
    deadline_unchecked: DeadlineUnchecked by acquire::a_quorum_heard_late_is_not_handed_out;
    /// A task that fetches its answer late is handed a lock that is over.
    fetched_unchecked: FetchedUnchecked by sockets::a_late_fetched_answer_is_no_lock;
    /// A task that fetches its answer late is handed a lock of less than the validity that it asked for.
    fetched_any_validity: FetchedAnyValidity by sockets::a_late_fetched_answer_has_enough_validity;
    /// A deadline of the engine does not wake the client's thread when nobody else would.
    deadline_wakes_nobody: DeadlineWakesNobody by sockets::a_loss_is_reported_in_time_though_nobody_calls;
    /// Nothing is taken off the TTL for clock drift.
    no_drift: NoDrift by acquire::lock_survives_the_largest_clock_drift;
    /// The quorum is half of the masters.
    quorum_half: QuorumHalf by acquire::two_of_five_masters_are_never_a_quorum;
    /// The quorum counts only masters that answer.
    quorum_of_reachable: QuorumOfReachable by acquire::two_of_five_masters_are_never_a_quorum;
    /// A master's second vote counts for another's.
    votes_as_count: VotesAsCount by acquire::a_twice_granting_master_counts_once;
    /// Every attempt has the same value.
    value_reused: ValueReused by acquire::every_attempt_has_a_value_of_its_own;
    /// A late vote counts for the next attempt in the same slot.
    late_vote_to_next_attempt: LateVoteToNextAttempt by acquire::a_late_answer_serves_no_next_lock;
    /// A grant counts though its connection broke before the verdict.
    lost_grant_counted: LostGrantCounted by acquire::a_grant_does_not_outlive_its_connection;
    /// The grant of a swap counts though its connection broke before the verdict.
    lost_swap_counted: LostSwapCounted by handover::a_swaps_grant_dies_with_its_connection;
    /// A lock that ended before its release is counted nowhere.
    loss_uncounted: LossUncounted by hold::each_lock_ends_in_one_counter;
    /// A lock that is handed over is not counted as released.
    handover_uncounted: HandoverUncounted by hold::each_lock_ends_in_one_counter;
    /// A drained engine still acquires locks.
    drained_acquires: DrainedAcquires by drain::a_drained_client_acquires_nothing;
    /// A drain does not end the acquisitions under way.
    drain_forgets_waiters: DrainForgetsWaiters by drain::a_drain_ends_those_who_wait;
    /// A drain releases the locks that it should leave.
    drain_releases_left: DrainReleasesLeft by drain::a_drain_leaves_locks_to_their_guards;
    /// The next occupant of its slot ends the validity of a guard whose lock a drain released.
    drained_validity_reused: DrainedValidityReused by drain::slot_reuse_after_a_drain_changes_no_validity;
    /// The guard of a lock that a drain released stays valid.
    drained_stays_valid: DrainedStaysValid by drain::a_drain_ends_validities_before_it_releases;
    /// Grants after the verdict are not counted.
    stragglers_cancelled: StragglersCancelled by acquire::late_grants_add_to_the_margin;
    /// An error reply to `SET` is a no.
    error_is_no: ErrorIsNo by acquire::error_reply_is_no_refusal;
    /// `NOSCRIPT` means that the key is gone.
    noscript_is_no: NoScriptIsNo by hold::a_flushed_script_is_sent_again;
    /// Retries come at fixed intervals.
    no_jitter: NoJitter by acquire::retries_come_at_random_times;
    /// A time-out takes the reply's entry off the queue.
    timeout_pops_owed: TimeoutPopsOwed by acquire::a_time_out_leaves_the_order_of_replies_alone;
    /// A lock that is left is released.
    left_released: LeftReleased by leave::a_left_lock_lives_to_the_end_of_its_ttl;
    /// An adopted lock has the handle's token, which its first holder has, too.
    adopted_keeps_token: AdoptedKeepsToken by handles::the_first_holder_reaches_no_adopted_lock;
    /// An adoption leaves the handle's value on the masters, so that it can be adopted again.
    adoption_leaves_value: AdoptionLeavesValue by handles::a_handle_is_adopted_once;
    /// An adoption takes the key whatever its value is.
    adoption_uncompared: AdoptionUncompared by handles::a_lock_that_ended_is_not_adopted;
    /// Votes of masters in quarantine count for an adoption once the quarantine ends.
    adopted_in_quarantine: AdoptedInQuarantine by handles::quarantined_masters_adopt_nothing;
    /// A fenced lock is adopted where a later holder has raised the fence.
    adopted_below_fence: AdoptedBelowFence by handles::a_fenced_lock_is_not_adopted_below_the_fence;
    /// A release with a handle leaves the fence as it is.
    handle_leaves_fence: HandleLeavesFence by handles::a_release_by_a_handle_raises_the_fence;
    /// A lock whose validity has ended can be left.
    expired_left: ExpiredLeft by leave::a_lost_lock_is_not_left;
    /// The rest counts on a master in quarantine, where the lock was restored.
    quarantined_rest_counts: QuarantinedRestCounts by leave::shortened_ttl_in_quarantine_does_not_count;
    /// A master that has only the holder's entry counts as one that cannot have the key.
    waiting_entry_is_absent: WaitingEntryIsAbsent by parked::an_entry_that_waits_proves_no_loss;
    /// A master that gets the rest of a time late counts as if it came in time.
    late_rest_counts: LateRestCounts by leave::late_shortened_ttl_does_not_count;
    /// A master that misses the rest of a time does not get it again.
    rest_sent_once: RestSentOnce by leave::returning_master_gets_the_shortened_ttl;
    /// A master that has not got the rest of a time is not released after it.
    rest_without_end: RestWithoutEnd by leave::master_returning_late_is_released;
    /// A release compares with the token alone, where the value has a label behind it.
    label_forgotten: LabelForgotten by hold::a_labelled_lock_is_released_at_once;
    /// An extension prolongs the key whatever its value is.
    bare_extension: BareExtension by hold::an_extension_leaves_somebody_elses_key_alone;
    /// A release deletes the key whatever its value is.
    bare_del: BareDel by hold::a_release_leaves_somebody_elses_key_alone;
    /// Only masters that granted are released.
    release_only_granted: ReleaseOnlyGranted by hold::a_master_that_has_not_answered_is_released_too;
    /// A release goes out over a new connection.
    release_on_other_connection: ReleaseOnOtherConnection by hold::a_release_follows_its_set;
    /// Keys that a broken connection left behind are forgotten.
    orphans_dropped: OrphansDropped by hold::a_broken_connection_is_released_over_the_next;
    /// An awaited release is not sent again over the next connection.
    awaited_sent_once: AwaitedSentOnce by hold::an_awaited_release_is_sent_again_after_a_reconnect;
    /// A master that answers many requests is late for the last of them.
    backlog_is_late: BacklogIsLate by hold::releases_behind_many_others_are_awaited;
    /// A silent master is waited for as long as its backlog would take.
    silent_backlog_awaited: SilentBacklogAwaited by hold::masters_that_fall_silent_are_not_awaited_for_their_backlog;
    /// The release of a lock whose validity has ended is forgotten.
    expired_kept_forever: ExpiredKeptForever by hold::a_release_after_the_end_frees_its_place;
    /// A key that is absent over a new connection counts as released, though its `SET` may come later.
    absent_is_proof: AbsentIsProof by hold::late_set_is_released_again;
    /// A deleted key counts as the only one, though the lock was sent twice.
    deleted_is_proof: DeletedIsProof by hold::late_first_set_is_released_after_a_repair;
    /// Any other process's answer counts as proof that the earlier process has ended.
    successor_is_proof: SuccessorIsProof by hold::late_set_without_run_id_is_released;
    /// An error reply to a release counts as its end.
    release_error_is_done: ReleaseErrorIsDone by hold::a_release_that_was_refused_is_sent_again;
    /// The deadline of an extension counts from its reply.
    extension_from_reply: ExtensionFromReply by hold::an_extension_counts_from_its_sending;
    /// A key has the TTL of another lock.
    terms_of_another: TermsOfAnother by rounds::a_late_attempt_of_a_round_has_its_own_ttl;
    /// One master is enough to extend.
    extension_on_minority: ExtensionOnMinority by hold::one_master_of_three_cannot_extend;
    /// Missing answers count as consent to extend.
    extension_on_unknown: ExtensionOnUnknown by hold::silence_does_not_extend;
    /// The guard of a lock that is proven lost still reads the old validity.
    loss_unpublished: LossUnpublished by hold::a_lock_that_masters_prove_lost_is_over;
    /// A lock that a majority of masters has shown to be lost stays valid.
    proven_loss_stays_valid: ProvenLossStaysValid by hold::a_lock_that_masters_prove_lost_is_over;
    /// A lock can be extended after its deadline.
    extension_after_deadline: ExtensionAfterDeadline by hold::a_lock_that_is_over_is_not_extended;
    /// A shorter TTL takes effect only when its round succeeds.
    shorter_extension_ignored: ShorterExtensionIgnored by hold::a_shorter_ttl_counts_though_its_round_fails;
    /// A full server that refuses a native extension is not asked by script.
    full_taken_for_lost: FullTakenForLost by hold::full_masters_still_extend;
    /// A hand-over overwrites the key whatever its value is.
    swap_without_compare: SwapWithoutCompare by handover::a_lost_lock_is_never_handed_over;
    /// A swap is sent again, in full, after the release of the lock that it hands out.
    swap_behind_release: SwapBehindRelease by handover::a_forgotten_swap_never_follows_a_release;
    /// A handed-over lock is not released where the swap has no answer.
    handover_forgets_claim: HandoverForgetsClaim by handover::a_lost_swap_is_released;
    /// A swap that may come late over a broken connection is forgotten.
    late_swap_forgotten: LateSwapForgotten by handover::a_swap_that_comes_late_leaves_no_key;
    /// The deadline of a handed-over lock counts from its quorum.
    handover_from_reply: HandoverFromReply by handover::a_handed_over_validity_counts_from_the_release;
    /// A lock is handed over within one client without end.
    handover_without_end: HandoverWithoutEnd by handover::other_clients_get_their_turn;
    /// A waiter behind a holder does not check whether the holder's validity has ended.
    holder_waited_for_without_end: HolderWaitedForWithoutEnd by handover::a_holder_that_expires_delays_nobody;
    /// A waiter asks the masters at once instead of queueing behind its own client's holder.
    nobody_queues: NobodyQueues by handover::local_waiter_sends_no_command;
    /// A free fair lock goes to whoever asks first.
    head_unchecked: HeadUnchecked by fair::the_first_caller_is_first_however_slow;
    /// A queue of dead waiters stays.
    dead_queues_stay: DeadQueuesStay by fair::a_queue_of_the_dead_leaves_no_key;
    /// The ticket of a dead waiter stays.
    dead_waiters_stay: DeadWaitersStay by fair::paused_waiters_together_delay_one_stay;
    /// Each round of a waiter has a new ticket.
    ticket_forgotten: TicketForgotten by parked::heartbeats_change_no_order;
    /// A rung waiter waits for its next heartbeat.
    ring_ignored: RingIgnored by fair::waiter_keeps_its_place_without_limit;
    /// A waiter gives no sign of life.
    heartbeat_forgotten: HeartbeatForgotten by fair::waiter_keeps_its_place_without_limit;
    /// A waiter keeps its part of a lock until it has all of it.
    part_kept: PartKept by rounds::two_minorities_learn_who_is_first;
    /// The first waiter never makes the masters check whether the lock is free.
    nobody_looks: NobodyLooks by parked::a_foreign_release_is_found_by_looking;
    /// The pauses between looks grow also while the lock changes hands.
    looks_grow_unserved: LooksGrowUnserved by rounds::looks_stay_frequent_behind_unserving_holders;
    /// A round does not end the last round's token.
    old_token_kept: OldTokenKept by rounds::two_minorities_learn_who_is_first;
    /// A waiter that got the lock leaves the tokens of its earlier rounds.
    earlier_tokens_kept: EarlierTokensKept by rounds::earlier_rounds_keys_are_released_at_once;
    /// A grant counts though another connection carried the park.
    lost_grant_heard: LostGrantHeard by parked::a_message_over_the_next_connection_is_no_vote;
    /// No master grants a lock to a waiter; all only ring.
    only_rings: OnlyRings by parked::a_hand_over_takes_one_round_trip;
    /// A grant that nobody received leaves its key.
    undone_grant_leaves_key: UndoneGrantLeavesKey by parked::last_dead_waiter_leaves_no_key;
    /// An entry stays after its attempt was granted.
    entry_stays_granted: EntryStaysGranted by parked::a_granted_entry_is_gone;
    /// A vote is published before its key is written.
    published_unwritten: PublishedUnwritten by parked::a_grant_that_cannot_be_written_is_not_published;
    /// A release serves nobody.
    release_serves_nobody: ReleaseServesNobody by parked::a_plain_release_serves_the_next;
    /// A forced unlock serves nobody.
    forced_serves_nobody: ForcedServesNobody by parked::a_forced_unlock_serves_the_next;
    /// The release of a fenced lock serves nobody.
    fenced_serves_nobody: FencedServesNobody by parked::a_fenced_release_serves_the_next;
    /// The last reader that goes serves nobody.
    reader_serves_nobody: ReaderServesNobody by parked::leaving_reader_serves_a_writer;
    /// A waiter that gives up its key serves nobody.
    unpark_serves_nobody: UnparkServesNobody by parked::the_end_of_a_parked_lock_serves_the_next;
    /// Only the first of several readers at the head gets the lock.
    readers_stop_after_first: ReadersStopAfterFirst by parked::readers_at_the_head_come_together;
    /// A reader comes in though somebody waits.
    reader_passes_queue: ReaderPassesQueue by parked::readers_at_the_head_come_together;
    /// A reader granted by message shortens the other readers with its own TTL.
    granted_reader_cuts_short: GrantedReaderCutsShort by parked::a_granted_reader_ends_nobody_elses;
    /// A grant by message leaves the fence as it is.
    grant_leaves_fence: GrantLeavesFence by parked::a_grant_by_message_raises_the_fence;
    /// A grant by message does not compare the token with the fence.
    grant_below_fence: GrantBelowFence by parked::a_token_below_the_fence_is_not_granted;
    /// The entry of a lock that is handed over within a client stays.
    swap_leaves_entry: SwapLeavesEntry by parked::a_hand_over_within_a_client_ends_the_entry;
    /// A late park replaces a later one.
    late_park_replaces: LateParkReplaces by rounds::a_late_park_leaves_the_later_entry;
    /// A park leaves the last round's value.
    old_value_left: OldValueLeft by rounds::two_minorities_learn_who_is_first;
    /// A rung entry keeps its stay.
    rung_keeps_stay: RungKeepsStay by fair::paused_waiter_is_overtaken_soon;
    /// A ring prolongs a stay that is nearly over.
    ring_prolongs: RingProlongs by parked::rings_prolong_no_stay;
    /// A ticket may be any distance from the master's clock.
    ticket_unlimited: TicketUnlimited by fair::a_wrong_estimate_shifts_a_waiter_by_seconds;
    /// A ticket is limited by each round's time, not the first round's.
    ticket_moved: TicketMoved by fair::wrong_clocks_change_no_order;
    /// The entry of an attempt that does not wait stays.
    brief_entry_stays: BriefEntryStays by fair::fair_and_plain_locks_exclude_each_other;
    /// A master that stopped at its limit is asked to go on only once.
    more_followed_once: MoreFollowedOnce by parked::dead_entries_delay_nobody_for_long;
    /// A late answer to an earlier park makes the client send the running round to a master that has it
    /// already.
    late_answer_parks_again: LateAnswerParksAgain by rounds::a_late_answer_sends_no_second_park;
    /// A lock left for less than the shortest TTL is promised for all of that TTL.
    held_beyond_rest: HeldBeyondRest by leave::tiny_remaining_time_is_not_overstated;
    /// A master that stopped at its limit is not asked to go on.
    more_ignored: MoreIgnored by parked::many_dead_entries_are_removed_at_once;
    /// A master that answers a park with a grant leaves other masters set aside.
    grant_leaves_aside: GrantLeavesAside by parked::two_parts_behind_each_other_are_a_quorum;
    /// A writer is served beside readers.
    writer_served_beside_readers: WriterServedBesideReaders by parked::readers_at_the_head_come_together;
    /// A release takes the key whoever holds it, and serves the next waiter.
    served_over_holder: ServedOverHolder by parked::readers_at_the_head_come_together;
    /// The next round goes to a master that has not answered the last one.
    parked_twice: ParkedTwice by rounds::a_slow_master_gets_one_park_at_a_time;
    /// A held lock is restored on a master where its entry may wait.
    repair_while_parked: RepairWhileParked by rounds::lock_is_not_restored_beside_a_waiting_entry;
    /// A master that asks for an attempt's script after the decision does not get it.
    late_script_forgotten: LateScriptForgotten by fair::a_master_that_answers_last_learns_the_scripts;
    /// A waiter that gives up stays in the queue until its heartbeat is over.
    leave_forgotten: LeaveForgotten by fair::cancelled_waiter_leaves_no_entry;
    /// A reader is let in while a writer holds the lock.
    reader_beside_writer: ReaderBesideWriter by sharing::readers_share_a_lock_and_writers_do_not;
    /// A new reader shortens the other readers with its own TTL.
    readers_cut_short: ReadersCutShort by sharing::a_reader_of_a_shorter_ttl_ends_nobody_elses;
    /// A reader joins a foreign sorted set at the lock's key.
    foreign_set_taken: ForeignSetTaken by sharing::a_reader_leaves_a_sorted_set_of_others_alone;
    /// A new reader removes readers whose time is not over.
    readers_purged_early: ReadersPurgedEarly by sharing::a_new_reader_leaves_valid_readers;
    /// The key expires with the extended reader, not with the last one.
    extended_reader_ends_key: ExtendedReaderEndsKey by sharing::an_extended_reader_leaves_the_others_their_time;
    /// The key keeps a released reader's expiry.
    released_reader_keeps_key: ReleasedReaderKeepsKey by sharing::a_writer_follows_the_last_reader;
    /// A reader's late request shortens a later extension.
    late_reader_cuts_short: LateReaderCutsShort by sharing::a_late_reader_request_cuts_no_extension;
    /// A released reader takes the others with it.
    reader_ends_all: ReaderEndsAll by sharing::a_reader_that_goes_leaves_the_others;
    /// A reader is extended on a master that does not have it.
    shared_extension_joins: SharedExtensionJoins by sharing::a_reader_is_extended_only_where_it_is;
    /// A waiter joins a foreign sorted set at the queue's key.
    foreign_queue_taken: ForeignQueueTaken by fair::a_queue_leaves_sets_of_others_alone;
    /// A text that Lua reads as a number counts as a fence.
    foreign_fence_taken: ForeignFenceTaken by fence::a_text_is_not_taken_for_a_fence;
    /// Readers queue behind each other.
    readers_queue: ReadersQueue by sharing::one_clients_readers_do_not_wait;
    /// A lock is renewed for as long as it is held.
    renewal_uncapped: RenewalUncapped by keep::a_kept_lock_ends_with_its_longest_hold;
    /// A lock's loss is reported only when its validity has ended.
    loss_reported_late: LossReportedLate by keep::the_loss_is_reported_before_the_end;
    /// A lock's loss is reported as if its TTL were the one before the extension.
    loss_reports_old_ttl: LossReportsOldTtl by keep::a_loss_is_reported_a_tenth_early;
    /// A renewal waits for answers until the validity ends.
    renewal_without_limit: RenewalWithoutLimit by keep::a_renewal_is_tried_again_while_masters_stand_still;
    /// The pause before a failed renewal is tried again grows with the TTL.
    renewal_pause_uncapped: RenewalPauseUncapped by keep::a_failed_renewal_of_a_long_lock_is_tried_again_soon;
    /// A lock whose loss was reported is still renewed.
    kept_after_loss: KeptAfterLoss by keep::a_lock_reported_lost_is_not_renewed;
    /// A kept lock is renewed even after its release.
    renewed_after_release: RenewedAfterRelease by keep::a_kept_lock_lives_while_held;
    /// The release of a lock is reported as its loss.
    release_reported_as_loss: ReleaseReportedAsLoss by keep::a_released_locks_loss_is_not_reported;
    /// A master accepts a fencing token equal to its fence.
    fence_not_strict: FenceNotStrict by fence::a_token_as_large_as_the_fence_is_refused;
    /// A late release lowers the fence.
    fence_lowered: FenceLowered by fence::a_late_release_spares_the_next_lock;
    /// A release deletes the fence.
    fence_deleted: FenceDeleted by fence::a_release_leaves_the_fence;
    /// A master accepts tokens from a window twice as long as its quarantine.
    fence_window_too_wide: FenceWindowTooWide by fence::a_lost_fence_is_older_than_the_window;
    /// Votes for a fencing token count for the next one.
    renumbering_keeps_votes: RenumberingKeepsVotes by fence::each_vote_is_for_the_token_given;
    /// A master's vote for a fencing token in its quarantine counts afterwards.
    fence_of_quarantine: FenceOfQuarantine by fence::a_quarantined_vote_never_counts_later;
    /// A lock is handed over within a client though its fence does not rise.
    fenced_handed_over: FencedHandedOver by fence::a_fenced_lock_is_not_handed_over;
    /// A plain lock is handed over to a caller that wants a fencing token, and gets none.
    plain_handed_to_fenced: PlainHandedToFenced by fence::a_fenced_waiter_behind_plain_gets_a_token;
    /// A refusal of new credentials ends the connection.
    refused_login_ends: RefusedLoginEnds by login::refused_credentials_keep_connection_and_lock;
    /// Credentials that change during a handshake do not reach its connection.
    login_of_handshake_kept: LoginOfHandshakeKept by login::credentials_that_change_in_a_handshake_arrive;
    /// Masters in quarantine count for a fenced lock from its second attempt on.
    retry_forgets_quarantine: RetryForgetsQuarantine by fence::a_retry_does_not_count_masters_in_quarantine;
    /// No master is ever in quarantine.
    no_quarantine: NoQuarantine by masters::an_empty_master_does_not_vote_against_locks;
    /// The quarantine ends a nanosecond early.
    quarantine_tick_short: QuarantineTickShort by masters::the_quarantine_lasts_to_its_last_nanosecond;
    /// The votes of masters in quarantine count.
    quarantined_votes_counted: QuarantinedVotesCounted by masters::an_empty_master_does_not_vote_against_locks;
    /// A changed `run_id` is not noticed.
    run_id_ignored: RunIdIgnored by masters::a_master_restarted_twice_counts_from_the_second;
    /// The last second of an uptime counts though it may not have passed.
    uptime_rounded_up: UptimeRoundedUp by masters::an_uptimes_last_second_may_not_count;
    /// A restarted master keeps its place in the margin.
    restarted_grants_kept: RestartedGrantsKept by masters::a_master_that_restarted_is_not_in_the_margin;
    /// A waiter goes on though the quarantine outlasts the wait.
    waits_in_quarantine: WaitsInQuarantine by masters::a_wait_shorter_than_the_quarantine_fails;
    /// One server behind two addresses has two votes.
    same_server_twice: SameServerTwice by masters::one_server_behind_two_addresses_votes_once;
    /// The echo that ends a handshake may be anything.
    echo_unchecked: EchoUnchecked by masters::a_connection_votes_only_after_its_own_echo;
    /// The lock's own key, which its request finds, counts as a vote.
    own_key_is_grant: OwnKeyIsGrant by masters::an_unnamed_server_behind_two_addresses_votes_once;
    /// The lock's own key, found when a master is asked again, counts as somebody else's.
    own_key_is_busy: OwnKeyIsBusy by hold::own_key_found_again_counts_as_ours;
    /// A master that did not answer an extension stays in the margin.
    margin_kept_by_extension: MarginKeptByExtension by hold::the_margin_counts_extended_masters_only;
    /// A master that cannot have the key counts as unanswered.
    absence_is_silence: AbsenceIsSilence by hold::unasked_masters_prove_a_loss;
    /// A lock is restored on a master though too few others are known to have granted and kept it.
    repair_unproven: RepairUnproven by hold::a_lock_without_a_quorum_is_not_put_back;
    /// An acquisition makes more attempts than its caller allows.
    tries_unlimited: TriesUnlimited by acquire::attempts_end_with_their_number;
    /// A late answer to the `SET` counts after an extension that its master never got.
    late_set_after_extension: LateSetAfterExtension by hold::a_late_set_is_void_after_an_extension;
    /// A shorter extension that may still be under way over a broken connection is forgotten.
    stray_extension_ignored: StrayExtensionIgnored by hold::a_broken_shorter_extension_cuts_nothing;
    /// A verdict waits for every master.
    waits_for_all: WaitsForAll by acquire::one_stopped_master_delays_nobody;
    /// Round trips do not change the answer limit.
    round_trip_unheard: RoundTripUnheard by acquire::the_answer_limit_follows_the_round_trip;
    /// The slowest round trip so far applies to a master for ever.
    slowness_remembered: SlownessRemembered by acquire::the_answer_limit_follows_the_round_trip;
    /// A server that already ran when another was heard in its place counts as restarted.
    replaced_server_trusted: ReplacedServerTrusted by masters::a_replaced_server_is_no_restart;
    /// Strict mode believes the uptime that a server reports.
    uptime_in_strict: UptimeInStrict by masters::strict_mode_believes_no_uptime;
    /// A mark is valid for any process.
    mark_of_other_process: MarkOfOtherProcess by masters::a_mark_speaks_for_the_process_that_it_names;
    /// A mark is valid for a process whatever happened to its memory since.
    mark_of_other_history: MarkOfOtherHistory by masters::a_mark_from_before_a_failover_counts_for_nothing;
    /// A process that was a replica counts as if it had kept its memory.
    resync_ignored: ResyncIgnored by masters::a_resynced_quorum_gives_no_lock_twice;
    /// A promoted process counts from the time for which it has run.
    promoted_by_uptime: PromotedByUptime by masters::a_promoted_masters_uptime_proves_nothing;
    /// The facts of the handshake are trusted for the life of a connection.
    facts_kept: FactsKept by masters::an_open_connection_asks_again;
    /// A replica counts as a master.
    replica_taken: ReplicaTaken by masters::no_mode_takes_a_replica;
    /// A connection stays although another server is the master now.
    demoted_kept: DemotedKept by masters::demoted_master_is_disconnected;
    /// A mark is written over another application's key.
    foreign_mark_overwritten: ForeignMarkOverwritten by masters::a_key_that_is_no_mark_is_not_overwritten;
    /// A mark is written before the watch is over.
    mark_unwatched: MarkUnwatched by masters::a_mark_is_written_after_the_watch;
    /// A fleet's record is not compared with the client's settings.
    record_uncompared: RecordUncompared by fleet::a_second_clients_other_settings_are_noticed;
    /// A client overwrites another client's record.
    record_overwritten: RecordOverwritten by fleet::clients_that_start_together_notice_each_other;
    /// Strict mode counts a master with different declared settings.
    declared_ignored: DeclaredIgnored by fleet::strict_mode_refuses_other_declared_settings;
    /// A client with a shorter maximum TTL than declared applies its own to a restarted master.
    declared_ttl_ignored: DeclaredTtlIgnored by fleet::the_larger_declared_ttl_is_the_quarantine;
    /// Used masters are declared again without waiting for locks of the earlier settings.
    declared_again_without_wait: DeclaredAgainWithoutWait by fleet::a_shorter_ttl_is_declared_after_the_longer_one;
    /// A record under another prefix is trusted.
    record_of_other_prefix: RecordOfOtherPrefix by fleet::the_record_of_another_prefix_is_not_believed;
    /// A new fleet is declared though a master does not answer.
    founded_without_master: FoundedWithoutMaster by fleet::fleet_with_a_missing_master_is_not_declared;
    /// The record of a new fleet counts for a process that started later.
    new_though_restarted: NewThoughRestarted by fleet::a_new_process_that_restarts_is_quarantined;
    /// A master that replaces another one counts from its uptime.
    joining_counted: JoiningCounted by fleet::a_joining_master_counts_by_no_uptime;
    /// A new master whose process changed while a replacement waited is put in place at once.
    joined_twice: JoinedTwice by fleet::a_new_master_that_changes_takes_no_place;
    /// A master is replaced without waiting for the locks on the old one.
    replaced_without_wait: ReplacedWithoutWait by fleet::a_replacement_waits_for_locks_on_the_old_master;
    /// The record of a process that was new for another fleet ends its quarantine in this one.
    new_of_other_fleet: NewOfOtherFleet by fleet::a_process_new_for_another_fleet_is_quarantined;
    /// Strict mode accepts any server.
    unfit_server_taken: UnfitServerTaken by masters::strict_mode_takes_no_evicting_master;
    /// An attempt waits for answers without a limit.
    no_time_out: NoTimeOut by acquire::without_masters_calls_end_by_their_deadline;
    /// A caller behind others of its client waits beyond the end of its wait.
    behind_without_end: BehindWithoutEnd by histories;
    /// The pause between two attempts never ends.
    pause_without_end: PauseWithoutEnd by histories;
    /// A refused caller waits for all masters to name the holder.
    naming_without_end: NamingWithoutEnd by histories;
    /// A lost connection is never reopened.
    no_reconnect: NoReconnect by hold::a_broken_connection_is_released_over_the_next;
    /// The generator ignores its seed.
    seed_ignored: SeedIgnored by same_history;
    /// An acquisition that is given up is not released.
    abandon_forgets: AbandonForgets by tasks::an_acquisition_that_is_given_up_leaves_no_key;
    /// An answer goes to the next caller whose operation has the same place.
    answer_to_next_caller: AnswerToNextCaller by tasks::an_answer_never_reaches_the_next_caller;
    /// A request that is answered at once is not written.
    answered_unwritten: AnsweredUnwritten by tasks::an_attempt_that_fails_at_once_is_written;
    /// A task leaves its request to the drive, which is not woken.
    drive_left_asleep: DriveLeftAsleep by tasks::a_request_left_to_the_drive_is_written;
    /// Tasks are woken with the mutex held.
    wakes_under_mutex: WakesUnderMutex by tasks::a_request_left_to_the_drive_is_written;
    /// Dropping a guard releases nothing.
    drop_forgets: DropForgets by sockets::a_dropped_guard_is_released_also_in_a_panic;
    /// A master's answer that a lock is free counts as a grant for the operation that has replaced the
    /// inspection.
    look_is_vote: LookIsVote by queries::an_inspection_is_no_vote;
    /// A forced unlock deletes a key of any type.
    force_deletes_any_type: ForceDeletesAnyType by queries::a_forced_unlock_leaves_other_key_types;
    /// A forced deletion that was lost with its connection is sent again over the next one.
    forced_deletion_again: ForcedDeletionAgain by queries::a_forced_deletion_is_not_sent_again;
    /// A set keeps its granted locks while it waits for a missing one.
    set_keeps_subset: SetKeepsSubset by sets::a_waiting_set_holds_nothing;
    /// A set keeps locks that are granted after another lock was refused.
    set_keeps_late_grant: SetKeepsLateGrant by sets::set_releases_late_grants_at_once;
    /// A set is handed out without the refused locks.
    set_hands_out_subset: SetHandsOutSubset by sets::a_set_with_a_taken_lock_fails;
    /// A set is handed out though the lock that it waited for is too close to its end.
    set_expired_unchecked: SetExpiredUnchecked by sets::a_set_keeps_distance_from_its_end;
    /// A set is valid while any of its locks is.
    set_validity_of_longest: SetValidityOfLongest by sets::a_set_ends_with_its_first_lock;
    /// A slot is handed out with another slot's number.
    slot_of_another: SlotOfAnother by slots::a_slot_has_the_number_of_its_lock;
    /// A slot counts as free if one master reports it as free.
    free_on_any_master: FreeOnAnyMaster by slots::slot_free_on_one_master_counts_as_taken;
    /// Slots with split votes count as taken.
    split_is_taken: SplitIsTaken by slots::callers_that_come_together_fill_the_pool;
    /// The holder of a slot keeps the pool's door.
    door_kept: DoorKept by slots::the_next_waiter_gets_the_door_at_once;
    /// A waiter for a slot does not wait for the door.
    door_stands_open: DoorStandsOpen by slots::only_one_waiter_looks;
    /// The first waiter for few slots queues for only one of them.
    stands_at_one_slot: StandsAtOneSlot by slots::a_released_slot_is_found_in_time;
    /// The first waiter gives up as soon as one of its slots is refused.
    stand_ends_with_first: StandEndsWithFirst by slots::failure_in_one_slots_queue_keeps_the_others;
    /// Searches for a free slot come at ever longer intervals.
    look_pause_uncapped: LookPauseUncapped by slots::a_released_slot_is_found_in_time;
    /// A drained engine searches for slots.
    drained_looks: DrainedLooks by slots::a_drain_ends_a_wait_for_slots;
    /// A reentrant lock is released at the end of its first hold.
    holds_end_with_first: HoldsEndWithFirst by owners::a_reentrant_lock_lasts_from_first_to_last;
    /// A reentrant lock repeats an attempt that failed before its wait was over.
    early_failure_repeated: EarlyFailureRepeated by owners::a_failed_attempt_is_not_repeated_without_end;
    /// A failed attempt of a reentrant lock also answers callers whose wait lasts longer.
    longer_wait_forgotten: LongerWaitForgotten by owners::a_longer_wait_outlasts_a_failed_attempt;
    /// A caller that comes while the first hold is being acquired is not counted.
    joined_uncounted: JoinedUncounted by owners::joining_callers_have_their_own_holds;
    /// A lost reentrant lock is taken again.
    lost_taken_again: LostTakenAgain by owners::ended_reentrant_lock_admits_no_caller;
    /// A hold that is fetched late is not checked.
    fetched_hold_unchecked: FetchedHoldUnchecked by owners::a_hold_fetched_after_the_end_is_void;
    /// Due timeouts are handled before replies that have arrived are read.
    time_outs_before_reads: TimeOutsBeforeReads by sockets::received_answer_is_read_before_timeouts;
    /// The inbox grows to the announced size.
    allocation_by_header: AllocationByHeader by bytes::a_header_reserves_no_memory;
    /// Arrays may be nested without a limit.
    unbounded_nesting: UnboundedNesting by bytes::arrays_are_nested_to_the_limit_only;
    /// A readable socket is read once.
    read_stops_early: ReadStopsEarly by sockets::more_than_one_read_full_of_replies_is_read;
    /// The rest of a short write waits until something else is written.
    short_write_forgotten: ShortWriteForgotten by sockets::a_short_write_is_continued;
}

/// The same defect where a fenced lock is sent again.
#[test]
fn own_fenced_key_is_busy() {
    let schedule = fence::a_fenced_lock_recognizes_its_own_key;
    is_killed("OwnKeyIsBusy", schedule);
}

/// The same defect where the lock is fenced.
#[test]
fn bare_del_of_a_fenced_lock() {
    is_killed("BareDel", fence::a_late_release_spares_the_next_lock);
}

/// The same defect where the lock is granted by message.
#[test]
fn deadline_of_a_grant_from_quorum() {
    is_killed("DeadlineFromQuorum", parked::a_grant_counts_from_the_start_of_its_round);
}

/// The same defect where the votes are messages.
#[test]
fn quarantined_messages_counted() {
    is_killed("NoQuarantine", parked::votes_in_quarantine_give_no_parked_lock);
}

/// The same defect where the vote was a message.
#[test]
fn lost_message_counted() {
    is_killed("LostGrantCounted", parked::a_vote_does_not_outlive_its_connection);
}

/// A reader's release goes wherever the reader may be, as for other locks.
#[test]
fn reader_released_only_where_granted() {
    is_killed("ReleaseOnlyGranted", sharing::an_unheard_reader_is_released_too);
}

#[test]
fn reader_of_a_broken_connection_forgotten() {
    is_killed("AbsentIsProof", sharing::a_readers_broken_connection_is_released_over_the_next);
}

/// The same defect where the lock is a reader's.
#[test]
fn stray_extension_of_a_reader_ignored() {
    let schedule = sharing::a_late_shorter_reader_extension_cuts_nothing;
    is_killed("StrayExtensionIgnored", schedule);
}

/// The first violation in a few histories.
fn histories() -> Verdict {
    (0..100).filter_map(|seed| history::run(seed, false).violation).next().map_or(Ok(()), Err)
}

/// Whether a seed gives the same history twice.
fn same_history() -> Verdict {
    let is_same = history::run(7, false).digest == history::run(7, false).digest;
    if is_same { Ok(()) } else { Err("I25: one seed, two histories".to_owned()) }
}
