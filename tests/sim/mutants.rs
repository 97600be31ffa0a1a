//! Shows that the tests are worth something: each deliberate defect of `src/mutants.rs` makes a schedule go red that is
//! green without it.
//!
//! Built only with `RUSTFLAGS="--cfg redlatch_mutants"`, as `scripts/test` does.

use std::panic::{AssertUnwindSafe, catch_unwind};

use redlatch::lock::SCRIPTS;
use redlatch::mutants::{Mutant, SCRIPT_DEFECTS, ScriptDefect, switch};

use crate::directed::{
    Verdict, acquire, bytes, desk, fair, fence, handover, hold, keep, masters, news, sharing,
};
use crate::directed::{errands, owners, sets};
use crate::lua::{self, Break};
use crate::{history, sockets};

/// Runs a schedule with a defect switched on in this thread. A panic is a finding too.
fn with(mutant: Mutant, schedule: fn() -> Verdict) -> Verdict {
    let broken = broken_scripts(mutant);
    switch(Some(mutant));
    let result = catch_unwind(AssertUnwindSafe(|| match broken.is_empty() {
        true => schedule(),
        false => lua::with_broken(broken, schedule),
    }));
    switch(None);
    result.unwrap_or_else(|_| Err("it panicked".to_owned()))
}

/// The scripts in which a defect is.
fn broken_scripts(mutant: Mutant) -> Vec<Break> {
    let broken = |name: &str, defect: &ScriptDefect| {
        let script = SCRIPTS.iter().find(|it| it.name == name).expect("a script of this name");
        assert_eq!(script.text.matches(defect.piece).count(), 1, "{name}: {defect:?}");
        Break { script: script.name, text: script.text.replace(defect.piece, defect.broken) }
    };
    let defects = SCRIPT_DEFECTS.iter().filter(|defect| defect.mutant == mutant);
    defects.flat_map(|defect| defect.scripts.iter().map(|name| broken(name, defect))).collect()
}

fn is_killed(mutant: Mutant, schedule: fn() -> Verdict) {
    assert_eq!(schedule(), Ok(()), "without the defect");
    if !broken_scripts(mutant).is_empty() {
        assert_eq!(lua::with_lua(schedule), Ok(()), "without the defect, by the scripts themselves");
    }
    let verdict = with(mutant, schedule);
    assert!(verdict.is_err(), "{mutant:?} survives");
    println!("{mutant:?}: {}", verdict.unwrap_err());
}

/// A line for each defect: the test's name, the defect, the schedule that finds it.
macro_rules! killed {
    ($($name:ident: $mutant:ident by $schedule:path;)*) => {
        $(#[test] fn $name() { is_killed(Mutant::$mutant, $schedule); })*

        /// Fails to compile when a defect has no line.
        #[allow(dead_code, reason = "only its match is wanted")]
        const fn is_listed(mutant: Mutant) -> bool {
            match mutant { $(Mutant::$mutant => true,)* }
        }
    };
}

killed! {
    deadline_from_quorum: DeadlineFromQuorum by acquire::answers_that_take_long_do_not_move_the_deadline;
    deadline_unchecked: DeadlineUnchecked by acquire::a_quorum_heard_after_the_deadline_is_not_handed_out;
    fetched_unchecked: FetchedUnchecked by sockets::an_answer_that_is_fetched_after_the_end_is_no_lock;
    fetched_any_validity: FetchedAnyValidity by sockets::an_answer_that_is_fetched_late_has_the_validity_asked_for;
    deadline_wakes_nobody: DeadlineWakesNobody by sockets::a_loss_is_reported_in_time_though_nobody_calls;
    no_drift: NoDrift by acquire::a_masters_clock_may_be_nearly_a_hundredth_faster;
    quorum_half: QuorumHalf by acquire::two_of_five_are_no_quorum_whoever_is_reachable;
    quorum_of_reachable: QuorumOfReachable by acquire::two_of_five_are_no_quorum_whoever_is_reachable;
    votes_as_count: VotesAsCount by acquire::a_master_that_grants_twice_is_one_in_the_margin;
    value_reused: ValueReused by acquire::every_attempt_has_a_value_of_its_own;
    late_vote_to_next_attempt: LateVoteToNextAttempt by acquire::a_late_answer_does_not_count_for_the_next_lock;
    lost_grant_counted: LostGrantCounted by acquire::a_grant_does_not_outlive_its_connection;
    lost_swap_counted: LostSwapCounted by handover::the_grant_of_a_swap_does_not_outlive_its_connection;
    stragglers_cancelled: StragglersCancelled by acquire::late_grants_add_to_the_margin;
    error_is_no: ErrorIsNo by acquire::an_error_is_not_a_no;
    noscript_is_no: NoScriptIsNo by hold::a_script_that_was_flushed_between_load_and_call_is_sent_again;
    no_jitter: NoJitter by acquire::retries_come_at_random_times;
    timeout_pops_owed: TimeoutPopsOwed by acquire::a_time_out_leaves_the_order_of_replies_alone;
    bare_extension: BareExtension by hold::an_extension_leaves_somebody_elses_key_alone;
    bare_del: BareDel by hold::a_release_leaves_somebody_elses_key_alone;
    release_only_granted: ReleaseOnlyGranted by hold::a_master_that_has_not_answered_is_released_too;
    release_on_other_connection: ReleaseOnOtherConnection by hold::a_release_waits_behind_its_set_on_the_same_connection;
    orphans_dropped: OrphansDropped by hold::what_a_broken_connection_left_is_released_over_the_next;
    awaited_sent_once: AwaitedSentOnce by hold::an_awaited_release_is_sent_again_after_a_reconnect;
    expired_kept_forever: ExpiredKeptForever by hold::a_release_after_the_end_frees_its_place;
    absent_is_proof: AbsentIsProof by hold::a_set_that_is_carried_out_after_its_release_is_released_again;
    deleted_is_proof: DeletedIsProof by hold::a_first_set_may_come_after_the_second_ones_key_is_released;
    successor_is_proof: SuccessorIsProof by hold::a_set_may_come_late_on_a_server_that_does_not_tell_who_it_is;
    release_error_is_done: ReleaseErrorIsDone by hold::a_release_that_was_refused_is_sent_again;
    extension_from_reply: ExtensionFromReply by hold::an_extension_counts_from_its_sending;
    extension_on_minority: ExtensionOnMinority by hold::one_master_of_three_cannot_extend;
    extension_on_unknown: ExtensionOnUnknown by hold::silence_does_not_extend;
    proven_loss_stays_valid: ProvenLossStaysValid by hold::a_lock_that_masters_prove_lost_is_over;
    extension_after_deadline: ExtensionAfterDeadline by hold::a_lock_that_is_over_is_not_extended;
    shorter_extension_ignored: ShorterExtensionIgnored by hold::a_shorter_ttl_counts_though_its_round_fails;
    full_taken_for_lost: FullTakenForLost by hold::masters_that_are_full_extend_a_lock_all_the_same;
    swap_without_compare: SwapWithoutCompare by handover::a_lock_that_was_lost_is_not_handed_over_over_its_next_holder;
    swap_behind_release: SwapBehindRelease by handover::a_forgotten_swap_is_not_sent_again_behind_a_release;
    handover_forgets_claim: HandoverForgetsClaim by handover::what_was_handed_over_is_released_where_the_swap_was_lost;
    late_swap_forgotten: LateSwapForgotten by handover::a_swap_that_comes_late_leaves_no_key;
    handover_from_reply: HandoverFromReply by handover::the_validity_of_what_is_handed_over_counts_from_the_release_before;
    handover_without_end: HandoverWithoutEnd by handover::other_clients_get_their_turn;
    holder_waited_for_without_end: HolderWaitedForWithoutEnd by handover::a_holder_that_lets_its_lock_expire_holds_nobody_up;
    nobody_queues: NobodyQueues by handover::who_waits_for_its_own_client_asks_nobody;
    try_before_subscribe: TryBeforeSubscribe by news::a_release_before_the_subscription_is_not_missed;
    no_timer_behind_wake: NoTimerBehindWake by news::a_message_that_is_lost_costs_a_pause_and_no_more;
    subscribed_polls: SubscribedPolls by news::a_subscribed_waiter_asks_less_and_less;
    all_woken: AllWoken by news::not_all_who_wait_come_when_a_lock_is_released;
    head_unchecked: HeadUnchecked by fair::who_asked_first_has_it_first_however_slow_it_is;
    dead_queues_stay: DeadQueuesStay by fair::a_queue_of_the_dead_leaves_no_key;
    dead_waiters_stay: DeadWaitersStay by fair::those_who_died_cost_one_heartbeat_together;
    ticket_from_length: TicketFromLength by fair::a_new_ticket_is_larger_than_any_that_stands;
    ticket_forgotten: TicketForgotten by fair::a_place_is_kept_however_long_the_wait_is;
    ticket_smallest: TicketSmallest by fair::a_ticket_is_larger_than_all_that_were_allotted_before;
    late_script_forgotten: LateScriptForgotten by fair::a_master_that_answers_last_has_the_tickets_too;
    leave_forgotten: LeaveForgotten by fair::who_gives_up_keeps_nobody_waiting;
    failed_untold: FailedUntold by fair::nobody_who_is_next_waits_for_its_heartbeat_while_nothing_fails;
    reader_beside_writer: ReaderBesideWriter by sharing::readers_have_a_lock_together_and_whoever_writes_has_it_alone;
    readers_cut_short: ReadersCutShort by sharing::a_reader_of_a_shorter_ttl_ends_nobody_elses;
    foreign_set_taken: ForeignSetTaken by sharing::a_reader_leaves_a_sorted_set_of_others_alone;
    readers_purged_early: ReadersPurgedEarly by sharing::a_readers_coming_leaves_those_whose_time_is_not_over;
    extended_reader_ends_key: ExtendedReaderEndsKey by sharing::an_extended_reader_leaves_the_others_their_time;
    released_reader_keeps_key: ReleasedReaderKeepsKey by sharing::a_writer_waits_no_longer_than_for_the_last_reader;
    late_reader_cuts_short: LateReaderCutsShort by sharing::a_readers_late_request_does_not_cut_its_extension_short;
    reader_ends_all: ReaderEndsAll by sharing::a_reader_that_goes_leaves_the_others;
    shared_extension_joins: SharedExtensionJoins by sharing::a_reader_is_extended_only_where_it_is;
    intent_ignored: IntentIgnored by sharing::a_writer_that_keeps_readers_out_has_its_turn;
    foreign_intent_taken: ForeignIntentTaken by sharing::an_intent_leaves_a_key_of_others_alone;
    foreign_queue_taken: ForeignQueueTaken by fair::a_queue_leaves_sets_of_others_alone;
    foreign_fence_taken: ForeignFenceTaken by fence::a_text_is_not_taken_for_a_fence;
    intent_kept: IntentKept by sharing::a_writer_that_gives_up_lets_readers_in_at_once;
    intent_not_renewed: IntentNotRenewed by sharing::a_writer_that_waits_keeps_readers_out_for_as_long_as_it_waits;
    readers_queue: ReadersQueue by sharing::readers_of_one_client_do_not_wait_for_each_other;
    renewal_uncapped: RenewalUncapped by keep::a_kept_lock_ends_with_its_longest_hold;
    loss_told_late: LossToldLate by keep::the_loss_is_told_before_the_validity_ends_whatever_masters_answer;
    loss_tells_old_ttl: LossTellsOldTtl by keep::a_loss_is_reported_a_tenth_of_the_extended_ttl_before_the_end;
    renewal_without_limit: RenewalWithoutLimit by keep::a_renewal_is_tried_again_while_masters_stand_still;
    renewal_pause_uncapped: RenewalPauseUncapped by keep::a_failed_renewal_of_a_long_lock_is_tried_again_soon;
    renewal_end_unreported: RenewalEndUnreported by keep::renewals_are_reported_until_the_longest_hold;
    kept_after_loss: KeptAfterLoss by keep::a_lock_that_was_told_lost_is_not_renewed_any_more;
    renewed_after_release: RenewedAfterRelease by keep::a_kept_lock_lives_as_long_as_it_is_held_and_no_longer;
    release_told_as_loss: ReleaseToldAsLoss by keep::the_loss_of_a_lock_that_was_released_is_not_told;
    fence_not_strict: FenceNotStrict by fence::a_token_as_large_as_the_fence_is_refused;
    fence_lowered: FenceLowered by fence::a_late_release_leaves_the_next_lock_and_its_fence;
    fence_deleted: FenceDeleted by fence::a_release_leaves_the_fence;
    fence_window_too_wide: FenceWindowTooWide by fence::a_fence_that_was_lost_in_a_restart_is_older_than_the_window;
    renumbering_keeps_votes: RenumberingKeepsVotes by fence::each_vote_was_given_for_the_token_that_is_handed_out;
    fence_of_quarantine: FenceOfQuarantine by fence::a_vote_that_was_given_in_quarantine_does_not_count_after_it;
    fenced_handed_over: FencedHandedOver by fence::a_fenced_lock_is_not_handed_over;
    plain_handed_to_fenced: PlainHandedToFenced by fence::a_fenced_waiter_behind_a_plain_holder_has_a_token;
    retry_forgets_quarantine: RetryForgetsQuarantine by fence::a_retry_does_not_count_masters_in_quarantine;
    no_quarantine: NoQuarantine by masters::a_master_that_came_back_empty_does_not_vote_against_a_lock_it_forgot;
    quarantine_tick_short: QuarantineTickShort by masters::the_quarantine_lasts_to_its_last_nanosecond;
    quarantined_votes_counted: QuarantinedVotesCounted by masters::a_master_that_came_back_empty_does_not_vote_against_a_lock_it_forgot;
    run_id_ignored: RunIdIgnored by masters::a_master_that_restarts_twice_within_a_ttl_is_counted_from_the_second;
    uptime_rounded_up: UptimeRoundedUp by masters::the_last_second_of_an_uptime_may_not_have_passed;
    restarted_grants_kept: RestartedGrantsKept by masters::a_master_that_restarted_is_not_in_the_margin;
    waits_in_quarantine: WaitsInQuarantine by masters::a_wait_that_ends_before_the_quarantine_fails_at_once;
    same_server_twice: SameServerTwice by masters::one_server_behind_two_addresses_votes_once;
    echo_unchecked: EchoUnchecked by masters::a_connection_votes_only_after_its_own_echo;
    own_key_is_grant: OwnKeyIsGrant by masters::an_unnamed_server_behind_two_addresses_votes_once;
    own_key_is_busy: OwnKeyIsBusy by hold::the_own_key_met_again_is_not_somebody_elses;
    margin_kept_by_extension: MarginKeptByExtension by hold::the_margin_after_an_extension_is_of_masters_that_were_extended;
    absence_is_silence: AbsenceIsSilence by hold::a_loss_is_proven_by_masters_that_were_never_asked;
    repair_unproven: RepairUnproven by hold::a_lock_without_a_quorum_is_not_put_back;
    tries_unlimited: TriesUnlimited by acquire::attempts_end_with_their_number;
    late_set_after_extension: LateSetAfterExtension by hold::a_late_answer_to_the_set_says_nothing_once_the_lock_is_extended;
    stray_extension_ignored: StrayExtensionIgnored by hold::a_shorter_extension_of_a_broken_connection_does_not_cut_a_longer_one_short;
    waits_for_all: WaitsForAll by acquire::one_stopped_master_delays_nobody;
    replaced_server_trusted: ReplacedServerTrusted by masters::another_server_in_a_masters_place_is_not_taken_for_a_restart;
    uptime_in_strict: UptimeInStrict by masters::strict_mode_believes_no_uptime;
    mark_of_other_process: MarkOfOtherProcess by masters::a_mark_speaks_for_the_process_that_it_names;
    foreign_mark_overwritten: ForeignMarkOverwritten by masters::a_key_that_is_no_mark_is_not_overwritten;
    mark_unwatched: MarkUnwatched by masters::a_mark_is_written_at_the_end_of_the_watch;
    unfit_server_taken: UnfitServerTaken by masters::strict_mode_takes_no_replica;
    no_time_out: NoTimeOut by acquire::with_no_master_up_every_call_ends_by_its_deadline;
    no_reconnect: NoReconnect by hold::what_a_broken_connection_left_is_released_over_the_next;
    seed_ignored: SeedIgnored by same_history;
    abandon_forgets: AbandonForgets by desk::an_acquisition_that_is_given_up_leaves_no_key;
    answer_to_next_caller: AnswerToNextCaller by desk::an_answer_is_not_given_to_the_next_caller_in_its_place;
    drop_forgets: DropForgets by sockets::a_dropped_lease_is_released_also_in_a_panic;
    look_is_vote: LookIsVote by errands::a_look_at_a_lock_is_a_vote_for_nothing;
    force_deletes_any_type: ForceDeletesAnyType by errands::a_forced_unlock_leaves_a_key_that_is_no_lock;
    forced_deletion_again: ForcedDeletionAgain by errands::a_forced_deletion_is_not_sent_again;
    set_keeps_subset: SetKeepsSubset by sets::nothing_of_a_set_is_held_while_another_lock_of_it_is_waited_for;
    set_keeps_late_grant: SetKeepsLateGrant by sets::what_is_granted_after_a_refusal_goes_at_once;
    set_hands_out_subset: SetHandsOutSubset by sets::a_set_with_a_lock_that_is_taken_is_not_handed_out;
    set_expired_unchecked: SetExpiredUnchecked by sets::a_set_is_not_handed_out_too_near_to_the_end_of_its_first_lock;
    set_validity_of_longest: SetValidityOfLongest by sets::a_set_is_valid_as_long_as_the_first_of_its_locks_to_end;
    holds_end_with_first: HoldsEndWithFirst by owners::a_reentrant_lock_is_held_from_the_first_hold_to_the_last_and_no_longer;
    joined_uncounted: JoinedUncounted by owners::those_who_come_while_the_lock_is_acquired_have_holds_of_their_own;
    lost_taken_again: LostTakenAgain by owners::a_lock_that_is_over_is_not_taken_again;
    fetched_hold_unchecked: FetchedHoldUnchecked by owners::a_hold_that_is_fetched_after_the_end_is_none;
    time_outs_before_reads: TimeOutsBeforeReads by sockets::an_answer_that_is_here_is_not_late;
    allocation_by_header: AllocationByHeader by bytes::a_header_reserves_no_memory;
    unbounded_nesting: UnboundedNesting by bytes::arrays_are_nested_to_the_limit_only;
    read_stops_early: ReadStopsEarly by sockets::more_than_one_read_full_of_replies_is_read;
}

/// The same defect where a fenced lock is sent again.
#[test]
fn own_fenced_key_is_busy() {
    let schedule = fence::the_own_key_of_a_fenced_lock_met_again_is_not_somebody_elses;
    is_killed(Mutant::OwnKeyIsBusy, schedule);
}

/// The same defect where the lock is fenced.
#[test]
fn bare_del_of_a_fenced_lock() {
    is_killed(Mutant::BareDel, fence::a_late_release_leaves_the_next_lock_and_its_fence);
}

/// A reader's release goes wherever the reader may be, as any other.
#[test]
fn reader_released_only_where_granted() {
    is_killed(Mutant::ReleaseOnlyGranted, sharing::a_reader_is_released_where_it_was_not_heard_too);
}

#[test]
fn reader_of_a_broken_connection_forgotten() {
    is_killed(
        Mutant::AbsentIsProof,
        sharing::what_a_readers_broken_connection_left_is_released_over_the_next,
    );
}

/// The same defect where the lock is a reader's.
#[test]
fn stray_extension_of_a_reader_ignored() {
    let schedule = sharing::a_readers_late_shorter_extension_does_not_cut_a_longer_one_short;
    is_killed(Mutant::StrayExtensionIgnored, schedule);
}

/// The same defect where the lock is fenced.
#[test]
fn all_woken_for_a_fenced_lock() {
    is_killed(Mutant::AllWoken, news::not_all_who_wait_come_when_a_fenced_lock_is_released);
}

/// Whether a seed gives the same history twice.
fn same_history() -> Verdict {
    let is_same = history::run(7, false).digest == history::run(7, false).digest;
    if is_same { Ok(()) } else { Err("I25: one seed, two histories".to_owned()) }
}
