use super::*;
use crate::clock;
use crate::error::{Denial, HolderTtl, Report, Round};

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
fn a_free_slot_is_tried_without_the_refusal() {
    let now = clock::now();
    let (mut acquisition, first) = begin(now, 16, Options::new());
    let step = acquisition.looked(now, Ok(SlotLook::Free(vec![9])));
    assert!(matches!(step, Some(SlotStep::Try { slot: 9, .. })), "{first} is refused, or in doubt");
    // A fenced one may be asked for once more by the engine.
    let (mut acquisition, first) = begin(now, 16, Options::new().fenced());
    assert!(acquisition.looked(now, Ok(SlotLook::Free(vec![9]))).is_none());
    let step = acquisition.tried(now, first, Err(contended()));
    assert!(matches!(step, Some(SlotStep::Try { slot: 9, .. })), "{step:?}");
}

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
fn masters_that_fail_and_waits_that_end_are_no_reason_to_look_again() {
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
    let until = now + WAIT;
    let (mut acquisition, slot) = begin(now, 16, Options::new().wait(WAIT));
    assert!(acquisition.tried(now, slot, Err(contended())).is_none());
    acquisition.looked(now, Ok(SlotLook::Taken));
    let mut step = acquisition.entered(now, Ok("door"));
    let mut pauses = Vec::new();
    loop {
        step = match step {
            SlotStep::Look(_) => acquisition.looked(now, Ok(SlotLook::Taken)).expect("the answer"),
            SlotStep::Pause(time) => {
                pauses.push(time);
                now += time;
                acquisition.paused(now, Ok(()))
            }
            SlotStep::Failed(error) => break assert_eq!(held_by(&error), HeldBy::Slots(16)),
            step => panic!("{step:?}"),
        };
    }
    assert_eq!((now, acquisition.into_door()), (until, Some("door")));
    assert_eq!(pauses[0], limits::SLOT_LOOK_PAUSE_MIN);
    assert!(pauses[..pauses.len() - 1].is_sorted(), "the last one ends with the wait");
    assert_eq!(pauses.iter().max(), Some(&limits::SLOT_LOOK_PAUSE_MAX));
}

#[test]
fn unreachable_masters_are_no_taken_slots() {
    let now = clock::now();
    let (mut acquisition, slot) = begin(now, 16, Options::new().wait(WAIT));
    assert!(acquisition.tried(now, slot, Err(contended())).is_none());
    acquisition.looked(now, Ok(SlotLook::Unknown));
    assert!(matches!(acquisition.entered(now, Ok("door")), SlotStep::Look(_)));
    let step = acquisition.looked(now, Ok(SlotLook::Unknown));
    assert!(matches!(step, Some(SlotStep::Try { .. })), "its error says why: {step:?}");
}
