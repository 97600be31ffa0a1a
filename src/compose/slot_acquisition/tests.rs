use super::*;
use crate::clock;
use std::sync::Arc;

use crate::error::{Denial, Failure, HolderTtl, Report, Round, Vote};

const WAIT: Duration = Duration::from_secs(60);

fn config() -> Config {
    Config::builder().masters(["redis://127.0.0.1:1"]).build().expect("valid settings")
}

fn contended() -> AcquireError {
    AcquireError::Contended(Box::new(Denial::new(Report::new(Round::Acquire, "a"))))
}

fn held_by(error: &AcquireError) -> HeldBy {
    let AcquireError::Contended(denial) = error else { panic!("{error}") };
    denial.held_by
}

fn begin(now: Instant, count: u32, options: Options) -> (SlotAcquisition<&'static str>, u32) {
    match SlotAcquisition::begin(now, &config(), count, &options, 1) {
        (acquisition, SlotStep::Try { slot, .. }) => (acquisition, slot),
        (_, step) => panic!("{step:?}"),
    }
}

#[test]
fn extendable_door_is_kept_second_by_second() {
    let door = |config: crate::ConfigBuilder| {
        let config = config.master("redis://127.0.0.1:1").build().expect("valid settings");
        let options = door_options(&config, WAIT);
        assert!(options.policy == WaitPolicy::Fair && options.wait == Some(WAIT), "{options:?}");
        (options.ttl, options.auto_extend)
    };
    let half = limits::DOOR_TTL / 2;
    let forever = Some(Duration::MAX);
    assert_eq!(door(Config::builder()), (Some(limits::DOOR_TTL), forever));
    assert_eq!(door(Config::builder().max_ttl(half)), (Some(half), forever));
    assert_eq!(door(Config::builder().max_hold(Duration::ZERO)), (Some(limits::DOOR_TTL), None));
}

#[test]
fn a_wait_beyond_the_clock_is_for_ever() {
    let now = clock::now();
    let (mut acquisition, slot) = begin(now, 16, Options::new().wait(Duration::MAX));
    assert!(acquisition.tried(now, slot, Err(contended())).is_none());
    let step = acquisition.looked(now, Ok(SlotLook::Taken));
    assert!(matches!(step, Some(SlotStep::Enter(left)) if left == limits::FOREVER), "{step:?}");
}

#[test]
fn a_free_slot_is_tried_without_the_refusal() {
    let now = clock::now();
    let (mut acquisition, first) = begin(now, 16, Options::new());
    let step = acquisition.looked(now, Ok(SlotLook::Free(vec![9])));
    assert!(matches!(step, Some(SlotStep::Try { slot: 9, .. })), "{first} is refused, or in doubt");
    // The engine may ask for a fenced slot once more.
    let (mut acquisition, first) = begin(now, 16, Options::new().fenced());
    assert!(acquisition.looked(now, Ok(SlotLook::Free(vec![9]))).is_none());
    let step = acquisition.tried(now, first, Err(contended()));
    assert!(matches!(step, Some(SlotStep::Try { slot: 9, .. })), "{step:?}");
}

// I79
#[test]
fn a_caller_without_wait_looks_again_while_a_slot_may_be_free() {
    for look in [SlotLook::Free(vec![3, 4]), SlotLook::Contested] {
        let begun = clock::now();
        let (mut acquisition, slot) = begin(begun, 16, Options::new().wait(Duration::ZERO));
        let (mut now, mut tries, mut pauses) = (begun, 1, Vec::new());
        assert!(acquisition.tried(now, slot, Err(contended())).is_none());
        let mut step = acquisition.looked(now, Ok(look.clone())).expect("both have come");
        let error = loop {
            step = match step {
                SlotStep::Try { slot, .. } => {
                    tries += 1;
                    assert!(acquisition.tried(now, slot, Err(contended())).is_none());
                    acquisition.looked(now, Ok(look.clone())).expect("both have come")
                }
                SlotStep::Pause(time) => {
                    pauses.push(time);
                    now += time;
                    acquisition.paused(now, Ok(()))
                }
                SlotStep::Look(_) => acquisition.looked(now, Ok(look.clone())).expect("the answer"),
                SlotStep::Failed(error) => break error,
                step => panic!("{step:?}"),
            };
        };
        let each = if look == SlotLook::Contested { 0 } else { limits::SLOT_RACES_MAX };
        let looks = limits::SLOT_LOOKS_AGAIN_MAX;
        assert_eq!((tries, pauses.len()), ((each * (looks + 1)).max(1), looks as usize));
        assert!(pauses.iter().all(|it| *it <= limits::SLOT_LOOK_PAUSE_MAX), "{pauses:?}");
        assert_eq!(held_by(&error), HeldBy::SlotRivals(16));
    }
}

// I79
#[test]
fn a_caller_without_wait_ends_at_the_answer_limit() {
    let now = clock::now();
    let (mut acquisition, slot) = begin(now, 16, Options::new().wait(Duration::ZERO));
    let limit = config().answer_limit(config().ttl(config().max_ttl).expect("valid"));
    assert!(acquisition.tried(now + limit, slot, Err(contended())).is_none());
    let step = acquisition.looked(now + limit, Ok(SlotLook::Contested));
    assert!(matches!(step, Some(SlotStep::Failed(_))), "{step:?}");
}

#[test]
fn failed_masters_and_ended_waits_cause_no_look() {
    let outage = AcquireError::NoQuorum(Box::new(Denial::new(Report::new(Round::Acquire, "a"))));
    let brief = Options::new().wait(Duration::ZERO);
    let short = Options::new().wait(Duration::from_millis(20));
    for (options, error) in [(brief, outage), (short, contended())] {
        let now = clock::now();
        let later = now + Duration::from_millis(25);
        let (mut acquisition, slot) = begin(now, 16, options);
        assert!(acquisition.tried(later, slot, Err(error)).is_none());
        let step = acquisition.looked(later, Ok(SlotLook::Contested));
        assert!(matches!(step, Some(SlotStep::Failed(_))), "{step:?}");
    }
}

// I79
#[test]
fn no_look_begins_after_the_answer_limit() {
    let begun = clock::now();
    let (mut acquisition, slot) = begin(begun, 16, Options::new().wait(Duration::ZERO));
    let limit = config().answer_limit(config().ttl(config().max_ttl).expect("valid"));
    let late = begun + limit - Duration::from_nanos(1);
    assert!(acquisition.tried(late, slot, Err(contended())).is_none());
    let step = acquisition.looked(late, Ok(SlotLook::Contested));
    assert!(matches!(step, Some(SlotStep::Pause(time)) if time == Duration::from_nanos(1)), "{step:?}");
}

// I79
#[test]
fn taken_slots_are_refused_at_once_and_all_of_them() {
    let now = clock::now();
    let (mut acquisition, slot) = begin(now, 16, Options::new().wait(Duration::ZERO));
    let mut first = Denial::new(Report::new(Round::Acquire, "a"));
    (first.holder, first.holder_label) = (HolderTtl::Left(Duration::from_secs(9)), Some("job 7".into()));
    assert!(acquisition.tried(now, slot, Err(AcquireError::Contended(Box::new(first)))).is_none());
    let Some(SlotStep::Try { slot: other, .. }) =
        acquisition.looked(now, Ok(SlotLook::Free(vec![(slot + 1) % 16])))
    else {
        panic!("it is free")
    };
    let later = now + Duration::from_secs(2);
    assert!(acquisition.tried(later, other, Err(contended())).is_none());
    let step = acquisition.looked(later, Ok(SlotLook::Taken));
    let Some(SlotStep::Failed(error)) = step else { panic!("{step:?}") };
    assert_eq!(held_by(&error), HeldBy::Slots(16));
    let AcquireError::Contended(denial) = error else { unreachable!() };
    let left = HolderTtl::Left(Duration::from_secs(7));
    assert_eq!((denial.holder, denial.holder_label.as_deref()), (left, Some("job 7")));
    let known: Vec<_> = denial.slots.iter().map(|it| (it.slot, it.label.as_deref(), it.ttl)).collect();
    let mut expected = [(slot, Some("job 7"), left), (other, None, HolderTtl::Unknown)];
    expected.sort_unstable_by_key(|(slot, ..)| *slot);
    assert_eq!(known, expected);
}

#[test]
fn the_largest_number_of_attempts_bounds_tries() {
    let now = clock::now();
    let (mut acquisition, slot) = begin(now, 16, Options::new().wait(WAIT).max_attempts(1));
    assert!(acquisition.tried(now, slot, Err(contended())).is_none());
    let step = acquisition.looked(now, Ok(SlotLook::Free(vec![3])));
    assert!(matches!(step, Some(SlotStep::Failed(AcquireError::Contended(_)))), "{step:?}");
}

#[test]
fn a_wait_at_the_door_ends_with_the_slots_error() {
    let now = clock::now();
    let (mut acquisition, slot) = begin(now, 16, Options::new().wait(WAIT));
    assert!(acquisition.tried(now, slot, Err(contended())).is_none());
    let step = acquisition.looked(now, Ok(SlotLook::Taken));
    assert!(matches!(step, Some(SlotStep::Enter(WAIT))), "{step:?}");
    let at_door = AcquireError::Contended(Box::new(Denial::new(Report::new(Round::Acquire, "door"))));
    let step = acquisition.entered(now + WAIT, Err(at_door));
    let SlotStep::Failed(error) = step else { panic!("{step:?}") };
    assert_eq!(held_by(&error), HeldBy::Slots(16));
}

#[test]
fn pauses_grow_up_to_their_limit() {
    let mut now = clock::now();
    let (begun, until) = (now, now + WAIT);
    let (mut acquisition, slot) = begin(now, 16, Options::new().wait(WAIT));
    assert!(acquisition.tried(now, slot, Err(contended())).is_none());
    acquisition.looked(now, Ok(SlotLook::Taken));
    let mut step = acquisition.entered(now, Ok("door"));
    let mut pauses = Vec::new();
    loop {
        step = match step {
            SlotStep::Look(_) => acquisition.looked(now, Ok(SlotLook::Taken)).expect("the answer"),
            SlotStep::Pause(time) => {
                let expected = (now - begun) / 8;
                let (least, most) = (limits::SLOT_LOOK_PAUSE_MIN, limits::SLOT_LOOK_PAUSE_MAX);
                assert_eq!(time, expected.clamp(least, most).min(until - now));
                pauses.push(time);
                now += time;
                acquisition.paused(now, Ok(()))
            }
            SlotStep::Failed(error) => break assert_eq!(held_by(&error), HeldBy::Slots(16)),
            step => panic!("{step:?}"),
        };
    }
    assert_eq!((now, acquisition.take_door()), (until, Some("door")));
    assert_eq!(pauses[0], limits::SLOT_LOOK_PAUSE_MIN);
    assert!(pauses[..pauses.len() - 1].is_sorted(), "the last one ends with the wait");
    assert_eq!(pauses.iter().max(), Some(&limits::SLOT_LOOK_PAUSE_MAX));
}

#[test]
fn unreachable_masters_are_no_taken_slots() {
    let now = clock::now();
    let (mut acquisition, slot) = begin(now, 16, Options::new().wait(WAIT));
    assert!(acquisition.tried(now, slot, Err(contended())).is_none());
    acquisition.looked(now, Ok(SlotLook::Unknown(Vec::new())));
    assert!(matches!(acquisition.entered(now, Ok("door")), SlotStep::Look(_)));
    let step = acquisition.looked(now, Ok(SlotLook::Unknown(Vec::new())));
    assert!(matches!(step, Some(SlotStep::Try { .. })), "its error says why: {step:?}");
}

/// One slot is taken, and nothing is known about the other 15.
#[test]
fn a_refused_look_is_no_busy_pool() {
    for (count, is_outage) in [(16, true), (1, false)] {
        let now = clock::now();
        let (mut acquisition, slot) = begin(now, count, Options::new().wait(Duration::ZERO));
        assert!(acquisition.tried(now, slot, Err(contended())).is_none());
        let refused = Vote::Failed(Failure::Replied("NOPERM x".into()));
        let votes = vec![(Arc::from("redis://h"), refused)];
        let step = acquisition.looked(now, Ok(SlotLook::Unknown(votes)));
        let Some(SlotStep::Failed(error)) = step else { panic!("{step:?}") };
        assert_eq!((error.is_outage(), error.is_contended()), (is_outage, !is_outage), "{error}");
        assert_eq!(error.to_string().contains("NOPERM x"), is_outage, "{error}");
    }
}

/// Answer about a slot: granted, held with some seconds left, or refused by an outage.
fn refused(letter: char) -> Result<&'static str, AcquireError> {
    let mut denial = Denial::new(Report::new(Round::Acquire, "a"));
    (denial.holder, denial.holder_label) = (HolderTtl::Left(Duration::from_secs(5)), Some("job".into()));
    match letter {
        'g' => Ok("slot"),
        'c' => Err(AcquireError::Contended(Box::new(denial))),
        'n' => Err(AcquireError::NoQuorum(Box::new(denial))),
        _ => Err(AcquireError::Overloaded),
    }
}

/// The earlier attempt found the slot taken, and that counts.
#[test]
fn attempt_cut_by_the_deadline_is_no_outage() {
    let wait = Duration::from_secs(1);
    for (attempts, is_outage) in [(1, false), (2, true)] {
        let now = clock::now();
        let (mut acquisition, slot) = begin(now, 2, Options::new().wait(wait));
        assert!(acquisition.tried(now, slot, Err(contended())).is_none());
        let step = acquisition.looked(now, Ok(SlotLook::Taken));
        assert!(matches!(step, Some(SlotStep::Enter(_))), "{step:?}");
        assert!(matches!(acquisition.entered(now, Ok("door")), SlotStep::Stand(..)));
        let end = now + wait;
        assert!(acquisition.tried(end, 0, Err(contended())).is_none());
        let denial = Denial { attempts, ..Denial::new(Report::new(Round::Acquire, "a")) };
        let step = acquisition.tried(end, 1, Err(AcquireError::NoQuorum(Box::new(denial))));
        let Some(SlotStep::Failed(error)) = step else { panic!("{step:?}") };
        assert_eq!(error.is_outage(), is_outage, "{error}");
    }
}

/// A slot that no other step names.
const FREE: u32 = 77;

fn look(letter: char) -> Result<SlotLook, AcquireError> {
    match letter {
        'T' => Ok(SlotLook::Taken),
        'F' => Ok(SlotLook::Free(vec![FREE])),
        'X' => Ok(SlotLook::Contested),
        'U' => Ok(SlotLook::Unknown(Vec::new())),
        _ => Err(AcquireError::Cancelled),
    }
}

/// All answers that a step may get: small letters for slots, capitals for searches. An answer with `!` comes
/// as the wait ends.
fn answers<L>(step: &SlotStep<L>) -> &'static str {
    match step {
        SlotStep::Try { .. } => "g o E F cT cF cX cU nT nF Tg Tc Tn Uc cT! cF! nX!",
        SlotStep::Enter(_) => "g c n o g! c!",
        SlotStep::Stand(..) => "g o cg cc ccc cnc ccc! cnn",
        SlotStep::Look(_) => "T F X U E T! F! U!",
        SlotStep::Pause(_) => "p o p!",
        SlotStep::Held(..) | SlotStep::Failed(_) => "",
    }
}

fn shown(step: &SlotStep<&'static str>) -> String {
    match step {
        SlotStep::Try { slot: FREE, .. } => "try the free one".to_owned(),
        SlotStep::Try { .. } => "try".to_owned(),
        SlotStep::Enter(left) => format!("enter, {left:?}"),
        SlotStep::Stand(slots, left) => format!("stand {slots:?}, {left:?}"),
        SlotStep::Look(_) => "look".to_owned(),
        SlotStep::Pause(time) => format!("pause {time:?}"),
        SlotStep::Held(slot, _) => format!("held, free {}", *slot == FREE),
        SlotStep::Failed(AcquireError::Contended(denial)) => {
            let known = denial.slots.iter().filter(|it| it.slot == FREE).count();
            let by = match denial.held_by {
                HeldBy::Slots(count) => format!("{count} slots"),
                HeldBy::SlotRivals(count) => format!("rivals of {count} slots"),
                _ => "a lock".to_owned(),
            };
            let left = match denial.holder {
                HolderTtl::Left(left) => format!("{left:?} left"),
                HolderTtl::Never => "no end".to_owned(),
                HolderTtl::Gone => "gone".to_owned(),
                HolderTtl::Unknown => "end unknown".to_owned(),
            };
            format!("contended by {by}, {left}, {} known, the free one {known}", denial.slots.len())
        }
        SlotStep::Failed(AcquireError::NoQuorum(_)) => "no quorum".to_owned(),
        SlotStep::Failed(AcquireError::Overloaded) => "overloaded".to_owned(),
        SlotStep::Failed(AcquireError::Cancelled) => "cancelled".to_owned(),
        SlotStep::Failed(error) => error.to_string(),
    }
}

/// Each answer comes a second after its step. Adds the step that follows these answers, and all later steps,
/// unless the page already has them.
fn walk(count: u32, options: Options, path: &[&'static str], seen: &mut Vec<String>, page: &mut String) {
    let begun = clock::now();
    let (mut acquisition, mut step) = SlotAcquisition::begin(begun, &config(), count, &options, 1);
    let mut now = begun;
    for letters in path {
        now = if letters.ends_with('!') { begun + WAIT } else { now + Duration::from_secs(1) };
        let mut asked = match &step {
            SlotStep::Try { slot, .. } => vec![*slot],
            SlotStep::Stand(slots, _) => slots.clone(),
            _ => Vec::new(),
        };
        let mut next = None;
        for letter in letters.trim_end_matches('!').chars() {
            assert!(next.is_none(), "{path:?}: an answer is to come");
            next = match step {
                SlotStep::Enter(_) => Some(acquisition.entered(now, refused(letter))),
                SlotStep::Pause(_) => {
                    let paused = if letter == 'p' { Ok(()) } else { Err(AcquireError::Overloaded) };
                    Some(acquisition.paused(now, paused))
                }
                _ if letter.is_uppercase() => acquisition.looked(now, look(letter)),
                _ => acquisition.tried(now, asked.remove(0), refused(letter)),
            };
        }
        let Some(next) = next else {
            *page += &format!("{}{letters}: more answers are to come\n", "  ".repeat(path.len()));
            return;
        };
        step = next;
    }
    let failed = match acquisition.failed(now).map(|it| it.is_contended()) {
        None => "",
        Some(true) => "; contended so far",
        Some(false) => "; failed so far",
    };
    let line = format!("{}{}: {}", "  ".repeat(path.len()), path.last().unwrap_or(&""), shown(&step));
    let (kind, inside) = (shown(&step).chars().take(5).collect::<String>(), acquisition.door.is_some());
    let state = format!(
        "{kind} {inside} {} {}",
        acquisition.races,
        acquisition.max_tries.saturating_sub(acquisition.tries).min(2)
    );
    let place = if inside { "; inside" } else { "" };
    *page += &format!("{line}{place}{failed}");
    let is_known = !answers(&step).is_empty() && seen.contains(&state);
    *page += if is_known { "; as before\n" } else { "\n" };
    if !is_known {
        seen.push(state);
        answers(&step).split(' ').filter(|it| !it.is_empty()).for_each(|letters| {
            walk(count, options, &[path, &[letters]].concat(), seen, page);
        });
    }
}

#[test]
fn each_slot_step_matches_its_golden_file() {
    let mut page = String::new();
    let many = limits::SLOT_STAND_MAX + 1;
    let plain = Options::new().wait(WAIT);
    for (count, options) in [(many, plain), (3, plain), (many, plain.max_attempts(2)), (3, plain.fenced())] {
        let fenced = if options.mode.draws_token() { ", fenced" } else { "" };
        let attempts =
            options.max_attempts.map_or_else(String::new, |count| format!(", {count} attempts at most"));
        page += &format!("# {count} slots{fenced}{attempts}\n");
        walk(count, options, &[], &mut Vec::new(), &mut page);
    }
    redlatch_support::assert_golden("slots", &page);
}

#[test]
fn a_pool_has_at_least_one_slot_and_few_waiters_stand() {
    let options = Options::new().wait(WAIT);
    let is_pool = |count| check(count, &options).is_ok();
    let counts = [0, 1, limits::SLOT_COUNT_MAX, limits::SLOT_COUNT_MAX + 1];
    assert_eq!(counts.map(is_pool), [false, true, true, false]);
    for (count, stands) in [(limits::SLOT_STAND_MAX, true), (limits::SLOT_STAND_MAX + 1, false)] {
        let now = clock::now();
        let (mut acquisition, slot) = begin(now, count, options);
        assert!(acquisition.tried(now, slot, refused('c')).is_none());
        acquisition.looked(now, look('X'));
        let step = acquisition.entered(now, Ok("door"));
        assert_eq!(matches!(step, SlotStep::Stand(..)), stands, "{step:?}");
        // A waiter in each slot's queue knows that the slot is taken.
        let held_by = if stands { HeldBy::Slots(count) } else { HeldBy::SlotRivals(count) };
        assert_eq!(acquisition.held_by, Some(held_by));
    }
}

#[test]
fn at_most_eight_holders_are_known_by_number() {
    let now = clock::now();
    let (mut acquisition, slot) = begin(now, 16, Options::new().wait(WAIT));
    assert!(acquisition.tried(now, slot, refused('c')).is_none());
    acquisition.looked(now, look('T'));
    let mut step = acquisition.entered(now, Ok("door"));
    // Each search finds another slot free, from the last number down, and another caller takes that slot
    // first.
    for free in (0..12).rev() {
        let look = Ok(SlotLook::Free(vec![100 + free]));
        assert!(matches!(step, SlotStep::Look(_)), "{step:?}");
        let tried = acquisition.looked(now, look);
        assert!(matches!(tried, Some(SlotStep::Try { slot, .. }) if slot == 100 + free), "{tried:?}");
        assert!(acquisition.tried(now, 100 + free, refused('c')).is_none());
        let pause = acquisition.looked(now, self::look('T'));
        assert!(matches!(pause, Some(SlotStep::Pause(_))), "{pause:?}");
        step = acquisition.paused(now, Ok(()));
    }
    let over = acquisition.looked(now + WAIT, look('T'));
    let Some(SlotStep::Failed(AcquireError::Contended(denial))) = over else { panic!("{over:?}") };
    let known: Vec<_> = denial.slots.iter().map(|it| it.slot).collect();
    assert!(known.len() == limits::SLOT_HOLDERS_MAX && known.is_sorted(), "{known:?}");
}

/// Callers that met once must not meet again.
#[test]
fn random_pauses_double_up_to_their_limit() {
    let mut longest = [Duration::ZERO; 8];
    for seed in 0..400 {
        let mut now = clock::now();
        let options = Options::new().wait(Duration::ZERO);
        let (mut acquisition, step) = SlotAcquisition::begin(now, &config(), 16, &options, seed);
        let SlotStep::Try { slot, .. } = step else { panic!("{step:?}") };
        let took = Duration::from_millis(2);
        assert!(acquisition.tried(now, slot, refused('c')).is_none());
        let mut step: SlotStep<&str> = acquisition.looked(now + took, look('X')).expect("both have come");
        for (place, longest) in (1..).zip(&mut longest) {
            let SlotStep::Pause(time) = step else { panic!("{place}: {step:?}") };
            assert!(
                time >= took && time <= (took * (1 << place)).min(limits::SLOT_LOOK_PAUSE_MAX),
                "{time:?}"
            );
            *longest = time.max(*longest);
            now += time;
            assert!(matches!(acquisition.paused(now, Ok(())), SlotStep::Look(_)));
            step = acquisition.looked(now + took, look('X')).expect("the answer");
        }
    }
    let most = longest.map(|it| it.as_millis());
    assert!(most[0] == 3 && most[1] >= 7 && most[2] >= 14 && most[3] >= 28 && most[7] >= 48, "{most:?}");
}
