//! Shows that the tests are worth something: each deliberate defect of `src/mutants.rs` makes a schedule go
//! red that is green without it.
//!
//! Built only with `RUSTFLAGS="--cfg redlatch_mutants"`, as `scripts/test` does.

use std::panic::{AssertUnwindSafe, catch_unwind};

use redlatch::internals::SCRIPTS;
use redlatch::mutants::{Mutant, SCRIPT_DEFECTS, ScriptDefect, switch};

use crate::directed::{
    Verdict, acquire, bytes, completions, drain, fair, fence, fleet, handles, handover, hold, keep, leave,
    masters, parked, rounds, sharing,
};
use crate::directed::{login, owners, queries, sets, slots};
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
    deadline_unchecked: DeadlineUnchecked by acquire::a_quorum_heard_late_is_not_handed_out;
    fetched_unchecked: FetchedUnchecked by sockets::a_late_fetched_answer_is_no_lock;
    fetched_any_validity: FetchedAnyValidity by sockets::a_late_fetched_answer_has_enough_validity;
    deadline_wakes_nobody: DeadlineWakesNobody by sockets::a_loss_is_reported_in_time_though_nobody_calls;
    no_drift: NoDrift by acquire::a_masters_clock_may_be_nearly_a_hundredth_faster;
    quorum_half: QuorumHalf by acquire::two_of_five_are_no_quorum_whoever_is_reachable;
    quorum_of_reachable: QuorumOfReachable by acquire::two_of_five_are_no_quorum_whoever_is_reachable;
    votes_as_count: VotesAsCount by acquire::a_twice_granting_master_counts_once;
    value_reused: ValueReused by acquire::every_attempt_has_a_value_of_its_own;
    late_vote_to_next_attempt: LateVoteToNextAttempt by acquire::a_late_answer_serves_no_next_lock;
    lost_grant_counted: LostGrantCounted by acquire::a_grant_does_not_outlive_its_connection;
    lost_swap_counted: LostSwapCounted by handover::a_swaps_grant_dies_with_its_connection;
    loss_uncounted: LossUncounted by hold::each_lock_ends_in_one_counter;
    handover_uncounted: HandoverUncounted by hold::each_lock_ends_in_one_counter;
    drained_acquires: DrainedAcquires by drain::a_drained_client_acquires_nothing;
    drain_forgets_waiters: DrainForgetsWaiters by drain::a_drain_ends_those_who_wait;
    drain_releases_left: DrainReleasesLeft by drain::a_drain_leaves_locks_to_their_guards;
    drained_validity_reused: DrainedValidityReused by drain::the_next_in_a_drained_slot_moves_no_validity;
    drained_stays_valid: DrainedStaysValid by drain::a_drain_ends_validities_before_it_releases;
    stragglers_cancelled: StragglersCancelled by acquire::late_grants_add_to_the_margin;
    error_is_no: ErrorIsNo by acquire::an_error_is_not_a_no;
    noscript_is_no: NoScriptIsNo by hold::a_flushed_script_is_sent_again;
    no_jitter: NoJitter by acquire::retries_come_at_random_times;
    timeout_pops_owed: TimeoutPopsOwed by acquire::a_time_out_leaves_the_order_of_replies_alone;
    left_released: LeftReleased by leave::a_left_lock_lives_to_the_end_of_its_ttl;
    adopted_keeps_token: AdoptedKeepsToken by handles::the_first_holder_reaches_no_adopted_lock;
    adoption_leaves_value: AdoptionLeavesValue by handles::a_handle_is_adopted_once;
    adoption_uncompared: AdoptionUncompared by handles::a_lock_that_ended_is_not_adopted;
    adopted_in_quarantine: AdoptedInQuarantine by handles::quarantined_masters_adopt_nothing;
    adopted_below_fence: AdoptedBelowFence by handles::a_fenced_lock_is_not_adopted_below_the_fence;
    handle_leaves_fence: HandleLeavesFence by handles::a_release_by_a_handle_raises_the_fence;
    expired_left: ExpiredLeft by leave::a_lost_lock_is_not_left;
    quarantined_rest_counts: QuarantinedRestCounts by leave::a_rest_in_quarantine_does_not_count;
    waiting_entry_is_absent: WaitingEntryIsAbsent by parked::an_entry_that_waits_proves_no_loss;
    late_rest_counts: LateRestCounts by leave::a_rest_that_comes_late_does_not_count;
    rest_sent_once: RestSentOnce by leave::a_master_that_is_back_gets_the_rest;
    rest_without_end: RestWithoutEnd by leave::a_master_that_is_back_late_is_released;
    label_forgotten: LabelForgotten by hold::a_labelled_lock_is_released_at_once;
    bare_extension: BareExtension by hold::an_extension_leaves_somebody_elses_key_alone;
    bare_del: BareDel by hold::a_release_leaves_somebody_elses_key_alone;
    release_only_granted: ReleaseOnlyGranted by hold::a_master_that_has_not_answered_is_released_too;
    release_on_other_connection: ReleaseOnOtherConnection by hold::a_release_follows_its_set;
    orphans_dropped: OrphansDropped by hold::a_broken_connection_is_released_over_the_next;
    awaited_sent_once: AwaitedSentOnce by hold::an_awaited_release_is_sent_again_after_a_reconnect;
    backlog_is_late: BacklogIsLate by hold::releases_behind_many_others_are_awaited;
    silent_backlog_awaited: SilentBacklogAwaited by hold::masters_that_fall_silent_are_not_awaited_for_their_backlog;
    expired_kept_forever: ExpiredKeptForever by hold::a_release_after_the_end_frees_its_place;
    absent_is_proof: AbsentIsProof by hold::a_set_after_its_release_is_released_again;
    deleted_is_proof: DeletedIsProof by hold::a_first_set_may_follow_the_second_release;
    successor_is_proof: SuccessorIsProof by hold::a_nameless_server_may_set_late;
    release_error_is_done: ReleaseErrorIsDone by hold::a_release_that_was_refused_is_sent_again;
    extension_from_reply: ExtensionFromReply by hold::an_extension_counts_from_its_sending;
    terms_of_another: TermsOfAnother by rounds::a_late_attempt_of_a_round_has_its_own_ttl;
    extension_on_minority: ExtensionOnMinority by hold::one_master_of_three_cannot_extend;
    extension_on_unknown: ExtensionOnUnknown by hold::silence_does_not_extend;
    loss_unpublished: LossUnpublished by hold::a_lock_that_masters_prove_lost_is_over;
    proven_loss_stays_valid: ProvenLossStaysValid by hold::a_lock_that_masters_prove_lost_is_over;
    extension_after_deadline: ExtensionAfterDeadline by hold::a_lock_that_is_over_is_not_extended;
    shorter_extension_ignored: ShorterExtensionIgnored by hold::a_shorter_ttl_counts_though_its_round_fails;
    full_taken_for_lost: FullTakenForLost by hold::full_masters_still_extend;
    swap_without_compare: SwapWithoutCompare by handover::a_lost_lock_is_never_handed_over;
    swap_behind_release: SwapBehindRelease by handover::a_forgotten_swap_never_follows_a_release;
    handover_forgets_claim: HandoverForgetsClaim by handover::a_lost_swap_is_released;
    late_swap_forgotten: LateSwapForgotten by handover::a_swap_that_comes_late_leaves_no_key;
    handover_from_reply: HandoverFromReply by handover::a_handed_over_validity_counts_from_the_release;
    handover_without_end: HandoverWithoutEnd by handover::other_clients_get_their_turn;
    holder_waited_for_without_end: HolderWaitedForWithoutEnd by handover::a_holder_that_expires_delays_nobody;
    nobody_queues: NobodyQueues by handover::who_waits_for_its_own_client_asks_nobody;
    head_unchecked: HeadUnchecked by fair::the_first_caller_is_first_however_slow;
    dead_queues_stay: DeadQueuesStay by fair::a_queue_of_the_dead_leaves_no_key;
    dead_waiters_stay: DeadWaitersStay by fair::those_who_stand_still_cost_one_stay_together;
    ticket_forgotten: TicketForgotten by parked::heartbeats_move_nobody;
    ring_ignored: RingIgnored by fair::a_place_is_kept_however_long_the_wait_is;
    heartbeat_forgotten: HeartbeatForgotten by fair::a_place_is_kept_however_long_the_wait_is;
    part_kept: PartKept by rounds::two_minorities_learn_who_is_first;
    nobody_looks: NobodyLooks by parked::a_foreign_release_is_found_by_looking;
    old_token_kept: OldTokenKept by rounds::two_minorities_learn_who_is_first;
    earlier_tokens_kept: EarlierTokensKept by rounds::what_an_earlier_round_left_goes_at_once;
    lost_grant_heard: LostGrantHeard by parked::a_message_over_the_next_connection_is_no_vote;
    only_rings: OnlyRings by parked::a_hand_over_takes_one_round_trip;
    undone_grant_leaves_key: UndoneGrantLeavesKey by parked::who_died_last_leaves_no_key;
    entry_stays_granted: EntryStaysGranted by parked::a_granted_entry_is_gone;
    published_unwritten: PublishedUnwritten by parked::a_grant_that_cannot_be_written_is_not_published;
    release_serves_nobody: ReleaseServesNobody by parked::a_plain_release_serves_the_next;
    forced_serves_nobody: ForcedServesNobody by parked::a_forced_unlock_serves_the_next;
    fenced_serves_nobody: FencedServesNobody by parked::a_fenced_release_serves_the_next;
    reader_serves_nobody: ReaderServesNobody by parked::a_reader_that_goes_serves_a_writer;
    unpark_serves_nobody: UnparkServesNobody by parked::the_end_of_a_parked_lock_serves_the_next;
    readers_stop_after_first: ReadersStopAfterFirst by parked::readers_at_the_head_come_together;
    reader_passes_queue: ReaderPassesQueue by parked::readers_at_the_head_come_together;
    granted_reader_cuts_short: GrantedReaderCutsShort by parked::a_granted_reader_ends_nobody_elses;
    grant_leaves_fence: GrantLeavesFence by parked::a_grant_by_message_raises_the_fence;
    grant_below_fence: GrantBelowFence by parked::a_token_below_the_fence_is_not_granted;
    swap_leaves_entry: SwapLeavesEntry by parked::a_hand_over_within_a_client_ends_the_entry;
    late_park_replaces: LateParkReplaces by rounds::a_late_park_leaves_the_later_entry;
    old_value_left: OldValueLeft by rounds::two_minorities_learn_who_is_first;
    rung_keeps_stay: RungKeepsStay by fair::one_that_stands_still_is_passed_soon;
    ring_prolongs: RingProlongs by parked::rings_prolong_no_stay;
    ticket_unlimited: TicketUnlimited by fair::a_wrong_estimate_shifts_a_waiter_by_seconds;
    ticket_moved: TicketMoved by fair::wrong_clocks_change_no_order;
    brief_entry_stays: BriefEntryStays by fair::fair_and_plain_locks_exclude_each_other;
    more_followed_once: MoreFollowedOnce by parked::dead_entries_delay_nobody_for_long;
    late_answer_parks_again: LateAnswerParksAgain by rounds::a_late_answer_sends_no_second_park;
    held_beyond_rest: HeldBeyondRest by leave::a_tiny_rest_is_not_promised_for_longer;
    more_ignored: MoreIgnored by parked::many_dead_entries_are_removed_at_once;
    grant_leaves_aside: GrantLeavesAside by parked::two_parts_behind_each_other_are_a_quorum;
    writer_served_beside_readers: WriterServedBesideReaders by parked::readers_at_the_head_come_together;
    served_over_holder: ServedOverHolder by parked::readers_at_the_head_come_together;
    parked_twice: ParkedTwice by rounds::a_slow_master_gets_one_park_at_a_time;
    repair_while_parked: RepairWhileParked by rounds::no_repair_goes_where_an_entry_may_wait;
    late_script_forgotten: LateScriptForgotten by fair::a_master_that_answers_last_learns_the_scripts;
    leave_forgotten: LeaveForgotten by fair::who_gives_up_keeps_nobody_waiting;
    reader_beside_writer: ReaderBesideWriter by sharing::readers_share_a_lock_and_writers_do_not;
    readers_cut_short: ReadersCutShort by sharing::a_reader_of_a_shorter_ttl_ends_nobody_elses;
    foreign_set_taken: ForeignSetTaken by sharing::a_reader_leaves_a_sorted_set_of_others_alone;
    readers_purged_early: ReadersPurgedEarly by sharing::a_new_reader_leaves_valid_readers;
    extended_reader_ends_key: ExtendedReaderEndsKey by sharing::an_extended_reader_leaves_the_others_their_time;
    released_reader_keeps_key: ReleasedReaderKeepsKey by sharing::a_writer_follows_the_last_reader;
    late_reader_cuts_short: LateReaderCutsShort by sharing::a_late_reader_request_cuts_no_extension;
    reader_ends_all: ReaderEndsAll by sharing::a_reader_that_goes_leaves_the_others;
    shared_extension_joins: SharedExtensionJoins by sharing::a_reader_is_extended_only_where_it_is;
    foreign_queue_taken: ForeignQueueTaken by fair::a_queue_leaves_sets_of_others_alone;
    foreign_fence_taken: ForeignFenceTaken by fence::a_text_is_not_taken_for_a_fence;
    readers_queue: ReadersQueue by sharing::one_clients_readers_do_not_wait;
    renewal_uncapped: RenewalUncapped by keep::a_kept_lock_ends_with_its_longest_hold;
    loss_reported_late: LossReportedLate by keep::the_loss_is_reported_before_the_end;
    loss_reports_old_ttl: LossReportsOldTtl by keep::a_loss_is_reported_a_tenth_early;
    renewal_without_limit: RenewalWithoutLimit by keep::a_renewal_is_tried_again_while_masters_stand_still;
    renewal_pause_uncapped: RenewalPauseUncapped by keep::a_failed_renewal_of_a_long_lock_is_tried_again_soon;
    renewal_end_unreported: RenewalEndUnreported by keep::renewals_are_reported_until_the_longest_hold;
    kept_after_loss: KeptAfterLoss by keep::a_lock_reported_lost_is_not_renewed;
    renewed_after_release: RenewedAfterRelease by keep::a_kept_lock_lives_while_held;
    release_reported_as_loss: ReleaseReportedAsLoss by keep::a_released_locks_loss_is_not_reported;
    fence_not_strict: FenceNotStrict by fence::a_token_as_large_as_the_fence_is_refused;
    fence_lowered: FenceLowered by fence::a_late_release_spares_the_next_lock;
    fence_deleted: FenceDeleted by fence::a_release_leaves_the_fence;
    fence_window_too_wide: FenceWindowTooWide by fence::a_lost_fence_is_older_than_the_window;
    renumbering_keeps_votes: RenumberingKeepsVotes by fence::each_vote_is_for_the_token_given;
    fence_of_quarantine: FenceOfQuarantine by fence::a_quarantined_vote_never_counts_later;
    fenced_handed_over: FencedHandedOver by fence::a_fenced_lock_is_not_handed_over;
    plain_handed_to_fenced: PlainHandedToFenced by fence::a_fenced_waiter_behind_plain_gets_a_token;
    refused_login_ends: RefusedLoginEnds by login::refused_credentials_keep_connection_and_lock;
    login_of_handshake_kept: LoginOfHandshakeKept by login::credentials_that_change_in_a_handshake_arrive;
    retry_forgets_quarantine: RetryForgetsQuarantine by fence::a_retry_does_not_count_masters_in_quarantine;
    no_quarantine: NoQuarantine by masters::an_empty_master_does_not_vote_against_locks;
    quarantine_tick_short: QuarantineTickShort by masters::the_quarantine_lasts_to_its_last_nanosecond;
    quarantined_votes_counted: QuarantinedVotesCounted by masters::an_empty_master_does_not_vote_against_locks;
    run_id_ignored: RunIdIgnored by masters::a_master_restarted_twice_counts_from_the_second;
    uptime_rounded_up: UptimeRoundedUp by masters::an_uptimes_last_second_may_not_count;
    restarted_grants_kept: RestartedGrantsKept by masters::a_master_that_restarted_is_not_in_the_margin;
    waits_in_quarantine: WaitsInQuarantine by masters::a_wait_shorter_than_the_quarantine_fails;
    same_server_twice: SameServerTwice by masters::one_server_behind_two_addresses_votes_once;
    echo_unchecked: EchoUnchecked by masters::a_connection_votes_only_after_its_own_echo;
    own_key_is_grant: OwnKeyIsGrant by masters::an_unnamed_server_behind_two_addresses_votes_once;
    own_key_is_busy: OwnKeyIsBusy by hold::the_own_key_met_again_is_not_somebody_elses;
    margin_kept_by_extension: MarginKeptByExtension by hold::the_margin_counts_extended_masters_only;
    absence_is_silence: AbsenceIsSilence by hold::unasked_masters_prove_a_loss;
    repair_unproven: RepairUnproven by hold::a_lock_without_a_quorum_is_not_put_back;
    tries_unlimited: TriesUnlimited by acquire::attempts_end_with_their_number;
    late_set_after_extension: LateSetAfterExtension by hold::a_late_set_is_void_after_an_extension;
    stray_extension_ignored: StrayExtensionIgnored by hold::a_broken_shorter_extension_cuts_nothing;
    waits_for_all: WaitsForAll by acquire::one_stopped_master_delays_nobody;
    round_trip_unheard: RoundTripUnheard by acquire::the_answer_limit_follows_the_round_trip;
    slowness_remembered: SlownessRemembered by acquire::the_answer_limit_follows_the_round_trip;
    replaced_server_trusted: ReplacedServerTrusted by masters::a_replaced_server_is_no_restart;
    uptime_in_strict: UptimeInStrict by masters::strict_mode_believes_no_uptime;
    mark_of_other_process: MarkOfOtherProcess by masters::a_mark_speaks_for_the_process_that_it_names;
    foreign_mark_overwritten: ForeignMarkOverwritten by masters::a_key_that_is_no_mark_is_not_overwritten;
    mark_unwatched: MarkUnwatched by masters::a_mark_is_written_after_the_watch;
    record_uncompared: RecordUncompared by fleet::a_second_clients_other_settings_are_noticed;
    record_overwritten: RecordOverwritten by fleet::clients_that_start_together_notice_each_other;
    declared_ignored: DeclaredIgnored by fleet::strict_mode_refuses_other_declared_settings;
    record_of_other_prefix: RecordOfOtherPrefix by fleet::the_record_of_another_prefix_is_not_believed;
    founded_without_master: FoundedWithoutMaster by fleet::masters_of_which_one_is_missing_are_not_declared;
    step_taken_for_rate: StepTakenForRate by fleet::a_clock_that_is_set_is_not_fast;
    new_though_restarted: NewThoughRestarted by fleet::a_new_process_that_restarts_is_quarantined;
    joining_counted: JoiningCounted by fleet::a_joining_master_counts_by_no_uptime;
    joined_twice: JoinedTwice by fleet::a_new_master_that_changes_takes_no_place;
    replaced_without_wait: ReplacedWithoutWait by fleet::a_replacement_waits_for_locks_on_the_old_master;
    new_of_other_fleet: NewOfOtherFleet by fleet::a_process_new_for_another_fleet_is_quarantined;
    unfit_server_taken: UnfitServerTaken by masters::strict_mode_takes_no_replica;
    no_time_out: NoTimeOut by acquire::without_masters_calls_end_by_their_deadline;
    no_reconnect: NoReconnect by hold::a_broken_connection_is_released_over_the_next;
    seed_ignored: SeedIgnored by same_history;
    abandon_forgets: AbandonForgets by completions::an_acquisition_that_is_given_up_leaves_no_key;
    answer_to_next_caller: AnswerToNextCaller by completions::an_answer_never_reaches_the_next_caller;
    drop_forgets: DropForgets by sockets::a_dropped_lease_is_released_also_in_a_panic;
    look_is_vote: LookIsVote by queries::an_inspection_is_no_vote;
    force_deletes_any_type: ForceDeletesAnyType by queries::a_forced_unlock_leaves_other_key_types;
    forced_deletion_again: ForcedDeletionAgain by queries::a_forced_deletion_is_not_sent_again;
    set_keeps_subset: SetKeepsSubset by sets::a_waiting_set_holds_nothing;
    set_keeps_late_grant: SetKeepsLateGrant by sets::what_is_granted_after_a_refusal_goes_at_once;
    set_hands_out_subset: SetHandsOutSubset by sets::a_set_with_a_taken_lock_fails;
    set_expired_unchecked: SetExpiredUnchecked by sets::a_set_keeps_distance_from_its_end;
    set_validity_of_longest: SetValidityOfLongest by sets::a_set_ends_with_its_first_lock;
    slot_of_another: SlotOfAnother by slots::a_slot_has_the_number_of_its_lock;
    free_on_any_master: FreeOnAnyMaster by slots::what_one_master_calls_free_is_taken;
    split_is_taken: SplitIsTaken by slots::callers_that_come_together_fill_the_pool;
    door_kept: DoorKept by slots::the_next_waiter_gets_the_door_at_once;
    door_stands_open: DoorStandsOpen by slots::only_one_waiter_looks;
    stands_at_one_slot: StandsAtOneSlot by slots::a_released_slot_is_found_in_time;
    stand_ends_with_first: StandEndsWithFirst by slots::one_of_the_queues_fails_alone;
    look_pause_uncapped: LookPauseUncapped by slots::a_released_slot_is_found_in_time;
    drained_looks: DrainedLooks by slots::a_drain_ends_a_wait_for_slots;
    holds_end_with_first: HoldsEndWithFirst by owners::a_reentrant_lock_lasts_from_first_to_last;
    early_failure_repeated: EarlyFailureRepeated by owners::a_failed_attempt_is_not_repeated_without_end;
    longer_wait_forgotten: LongerWaitForgotten by owners::a_longer_wait_outlasts_a_failed_attempt;
    joined_uncounted: JoinedUncounted by owners::joining_callers_have_their_own_holds;
    lost_taken_again: LostTakenAgain by owners::a_lock_that_is_over_is_not_taken_again;
    fetched_hold_unchecked: FetchedHoldUnchecked by owners::a_hold_fetched_after_the_end_is_void;
    time_outs_before_reads: TimeOutsBeforeReads by sockets::an_answer_that_is_here_is_not_late;
    allocation_by_header: AllocationByHeader by bytes::a_header_reserves_no_memory;
    unbounded_nesting: UnboundedNesting by bytes::arrays_are_nested_to_the_limit_only;
    read_stops_early: ReadStopsEarly by sockets::more_than_one_read_full_of_replies_is_read;
    short_write_forgotten: ShortWriteForgotten by sockets::a_short_write_is_continued;
}

/// The same defect where a fenced lock is sent again.
#[test]
fn own_fenced_key_is_busy() {
    let schedule = fence::a_fenced_lock_recognizes_its_own_key;
    is_killed(Mutant::OwnKeyIsBusy, schedule);
}

/// The same defect where the lock is fenced.
#[test]
fn bare_del_of_a_fenced_lock() {
    is_killed(Mutant::BareDel, fence::a_late_release_spares_the_next_lock);
}

/// The same defect where the lock is granted by message.
#[test]
fn deadline_of_a_grant_from_quorum() {
    is_killed(Mutant::DeadlineFromQuorum, parked::a_grant_counts_from_the_start_of_its_round);
}

/// The same defect where the votes are messages.
#[test]
fn quarantined_messages_counted() {
    is_killed(Mutant::NoQuarantine, parked::votes_in_quarantine_give_no_parked_lock);
}

/// The same defect where the vote was a message.
#[test]
fn lost_message_counted() {
    is_killed(Mutant::LostGrantCounted, parked::a_vote_does_not_outlive_its_connection);
}

/// A reader's release goes wherever the reader may be, as any other.
#[test]
fn reader_released_only_where_granted() {
    is_killed(Mutant::ReleaseOnlyGranted, sharing::an_unheard_reader_is_released_too);
}

#[test]
fn reader_of_a_broken_connection_forgotten() {
    is_killed(Mutant::AbsentIsProof, sharing::a_readers_broken_connection_is_released_over_the_next);
}

/// The same defect where the lock is a reader's.
#[test]
fn stray_extension_of_a_reader_ignored() {
    let schedule = sharing::a_late_shorter_reader_extension_cuts_nothing;
    is_killed(Mutant::StrayExtensionIgnored, schedule);
}

/// Whether a seed gives the same history twice.
fn same_history() -> Verdict {
    let is_same = history::run(7, false).digest == history::run(7, false).digest;
    if is_same { Ok(()) } else { Err("I25: one seed, two histories".to_owned()) }
}
