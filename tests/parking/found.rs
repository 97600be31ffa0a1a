//! Shows that the model is worth something: each rule that it can break is found.

use crate::defect::Defect;
use crate::model::{Model, Setting};
use crate::property::Property;
use crate::search::{Limit, search};
use crate::spaces::{A_BREAK, LIMIT, NONE, ONE_ROUND, TWO_ROUNDS, with};
use crate::state::Faults;

const BREAK: Setting = with(ONE_ROUND, A_BREAK);
const BREAK_AND_CANCEL: Setting = with(ONE_ROUND, Faults { cancels: 1, ..A_BREAK });
const BREAK_AND_REPAIR: Setting = with(ONE_ROUND, Faults { repairs: 1, ..A_BREAK });
const CANCEL: Setting = with(ONE_ROUND, Faults { cancels: 1, ..NONE });
const CRASH: Setting = with(ONE_ROUND, Faults { crashes: 1, ..NONE });
const FULL: Setting = with(ONE_ROUND, Faults { full: 1, ..NONE });
const RESTART: Setting = with(ONE_ROUND, Faults { restarts: 1, ..NONE });
const SETS: Setting = Setting { sets: true, ..ONE_ROUND };

const TWO_AND_BREAK: Setting = with(TWO_ROUNDS, A_BREAK);
const TWO_AND_CANCEL: Setting = with(TWO_ROUNDS, Faults { cancels: 1, ..NONE });
const TWO_AND_BREAK_AND_CANCEL: Setting = with(TWO_ROUNDS, Faults { cancels: 1, ..A_BREAK });
const TWO_AND_ERROR: Setting = with(TWO_ROUNDS, Faults { rejections: 1, ..NONE });
const TWO_AND_ERROR_AND_CANCEL: Setting = with(TWO_ROUNDS, Faults { rejections: 1, cancels: 1, ..NONE });
const TWO_AND_STAY: Setting = with(TWO_ROUNDS, Faults { stays: 1, ..NONE });

/// Searches for each property alone: with the defect it is broken, without it holds in as many states.
fn is_found<const C: usize>(defect: Defect, setting: Setting, properties: &'static [Property]) {
    for property in properties {
        let setting = Setting { properties: std::slice::from_ref(property), ..setting };
        let violation = match search(&Model::<C>::new(setting, Some(defect)), LIMIT) {
            Err(violation) => violation,
            Ok(explored) if cfg!(debug_assertions) && !explored.is_whole => {
                println!("{defect:?}: needs more states");
                continue;
            }
            Ok(explored) => panic!("{defect:?} breaks no {property:?} in {explored}"),
        };
        println!("{defect:?}: {violation}");
        let limit = Limit { states: violation.state_count, ..LIMIT };
        if let Err(violation) = search(&Model::<C>::new(setting, None), limit) {
            panic!("without {defect:?}: {violation}");
        }
    }
}

/// A line for each defect: the test's name, the defect, clients and setting, the properties that it breaks.
macro_rules! found {
    (
        $($name:ident: $defect:ident with $clients:literal in $setting:expr, breaks $($property:ident),+;)*
        | $($other:ident),+;
    ) => {
        $(#[test] fn $name() { is_found::<$clients>(Defect::$defect, $setting, &[$(Property::$property),+]); })*

        /// Fails to compile when a defect has no line.
        #[allow(dead_code, reason = "only its match is wanted")]
        const fn is_listed(defect: Defect) -> bool {
            match defect { $(Defect::$defect => true,)* $(Defect::$other => false,)+ }
        }
    };
}

found! {
    a_kept_token: TokenKept with 2 in TWO_ROUNDS, breaks Exclusion, OneRound;
    validity_from_decision: ValidityFromDecision with 2 in ONE_ROUND, breaks Exclusion;
    validity_of_asked_ttl: ValidityOfAskedTtl with 2 in ONE_ROUND, breaks Exclusion;
    a_quorum_of_one: QuorumOfOne with 2 in ONE_ROUND, breaks Exclusion;
    kept_votes: VotesKept with 2 in TWO_ROUNDS, breaks Exclusion;
    late_votes: LateVoteCounted with 2 in TWO_ROUNDS, breaks Exclusion, OwnVote;
    votes_that_outlive_connections: VoteOutlivesConnection with 2 in BREAK, breaks OwnVote;
    one_channel: OneChannel with 2 in BREAK, breaks OwnVote;
    counted_rings: RingCounted with 2 in Setting { rings_only: true, locks: 2, ..ONE_ROUND }, breaks Exclusion;
    ignored_quarantine: QuarantineIgnored with 2 in RESTART, breaks Exclusion;
    quarantine_at_begin: QuarantineAtBegin with 2 in RESTART, breaks Exclusion;
    a_short_quarantine: ShortQuarantine with 2 in Setting { ttl: 2, ..RESTART }, breaks Exclusion;
    a_part_given_back: GivenBackInRound with 2 in ONE_ROUND, breaks Exclusion, EndedFirst;
    an_unparked_lock: HeldUnparked with 2 in ONE_ROUND, breaks EndedFirst;
    a_token_sent_again: SentAgain with 2 in BREAK, breaks OneRound;
    a_token_cleaned_in_its_round: CleanedInRound with 2 in BREAK, breaks EndedFirst;
    a_repair_in_doubt: RepairedInDoubt with 1 in BREAK_AND_REPAIR, breaks NothingLost;
    the_old_value_of_the_last_round: OldOfLastRound with 1 in TWO_AND_CANCEL, breaks NothingLost;
    the_old_value_of_a_lost_park: OldOfLostPark with 1 in TWO_AND_BREAK_AND_CANCEL, breaks NothingLost;
    no_park_behind_an_answer: NoneBehindAnswer with 1 in TWO_ROUNDS, breaks EachAsked;
    no_park_after_a_reconnect: NoneAfterReconnect with 1 in TWO_AND_BREAK, breaks EachAsked;
    a_second_park_at_once: SecondParkAtOnce with 1 in TWO_AND_BREAK_AND_CANCEL, breaks NothingLost;
    a_forgotten_rejection: RejectionForgotten with 1 in TWO_AND_ERROR, breaks NothingLost;
    a_park_behind_its_unpark: ResentAfterUnpark with 1 in TWO_AND_ERROR_AND_CANCEL, breaks NothingLost;
    a_late_command_behind_the_answer: AnswerIsProof with 1 in BREAK_AND_CANCEL, breaks NothingLost;
    a_late_repair_behind_a_deletion: DeletionIsProof with 1 in BREAK_AND_REPAIR, breaks NothingLost;
    a_late_park_instead_of_a_later_entry: LaterEntryReplaced with 2 in TWO_AND_BREAK, breaks EntryStands;
    an_end_sent_once: OwedNotRepeated with 1 in BREAK, breaks NothingLost;
    ends_for_voters_only: OnlyVotersUnparked with 1 in CANCEL, breaks NothingLost;
    others_forgotten: OthersForgotten with 1 in TWO_ROUNDS, breaks NothingLost;
    a_cancel_that_owes_nothing: CancelOwesNothing with 1 in CANCEL, breaks NothingLost;
    an_entry_that_stays: EntryStays with 2 in ONE_ROUND, breaks WrittenOnce;
    a_vote_before_the_write: PublishedFirst with 2 in Setting { locks: 2, ..FULL }, breaks Exclusion;
    an_unreceived_grant: UnreceivedKept with 2 in CRASH, breaks WrittenOnce;
    an_undone_grant_that_stops: UndoneStops with 2 in TWO_AND_BREAK, breaks NobodyStranded;
    a_short_grant: ShortGrant with 2 in Setting { ttl: 2, ..ONE_ROUND }, breaks Exclusion;
    a_grant_over_a_key: ServedOverKey with 2 in ONE_ROUND, breaks Exclusion, WrittenOnce;
    an_undone_repair: RepairUndone with 2 in BREAK_AND_REPAIR, breaks NamedRemoval;
    a_dead_entry_that_stays: OverEntryStays with 2 in TWO_AND_STAY, breaks NobodyStranded;
    an_unchecked_unpark: UnparkUnchecked with 2 in Setting { locks: 2, ..CANCEL }, breaks Exclusion, NamedRemoval;
    an_unchecked_old_value: OldUnchecked with 2 in TWO_ROUNDS, breaks Exclusion, NamedRemoval;
    an_unpark_by_id: UnparkById with 2 in Setting { aside: true, ..TWO_AND_BREAK }, breaks EntryStands;
    an_unpark_that_keeps_the_entry: UnparkKeepsEntry with 2 in CANCEL, breaks NothingLost;
    an_unpark_that_keeps_the_key: UnparkKeepsKey with 1 in ONE_ROUND, breaks NothingLost;
    an_unpark_that_serves_nobody: UnparkServesNobody with 2 in ONE_ROUND, breaks NobodyStranded;
    a_release_that_serves_nobody: ReleaseServesNobody with 2 in SETS, breaks NobodyStranded;
    a_full_queue_that_is_not_served: FullServesNobody with 2 in TWO_AND_ERROR, breaks NobodyStranded;
    a_park_that_serves_itself: ParkServesItselfOnly with 2 in TWO_ROUNDS, breaks NobodyStranded;
    | QuarantineWhenSent, QuarantineAtDecision, OwnEntryRung;
}
