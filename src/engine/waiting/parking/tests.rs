use super::*;
use crate::lock::HolderTtl;
use rand::SeedableRng;
use rand::rngs::StdRng;

/// Returns the first round of a waiter with three masters.
fn new(now: Instant, rng: &mut StdRng) -> Parked {
    Parked::new(now, Some(0), None, |over| Place::new(3, rng, over))
}

#[test]
fn only_consecutive_splits_exclude_masters() {
    let (now, mut rng) = (Instant::now(), StdRng::seed_from_u64(1));
    let part = MasterSet::first(1);
    for (parts, aside) in [
        ([part, part, MasterSet::EMPTY, part], MasterSet::EMPTY),
        ([MasterSet::EMPTY, part, part, part], part),
    ] {
        let mut parking = new(now, &mut rng);
        for part in parts {
            parking.plan_give_back(now, part, Duration::ZERO, &mut rng);
            parking.place.give_back(part, true);
        }
        assert_eq!(parking.place.aside, aside, "{parts:?}");
    }
}

#[test]
fn a_round_without_a_part_yields_to_nobody() {
    let mut parking = new(Instant::now(), &mut StdRng::seed_from_u64(1));
    let part = MasterSet::first(1);
    for (part, yields) in [(part, false), (part, true), (MasterSet::EMPTY, false)] {
        parking.place.give_back(part, true);
        assert_eq!(parking.place.yields, yields);
    }
}

/// Returns a waiter that is first on two masters, whose holders have these times left. The third master is
/// set aside.
fn first_behind(now: Instant, left: [Duration; 2]) -> Parked {
    let mut rng = StdRng::seed_from_u64(1);
    let mut parking = new(now, &mut rng);
    let ttl = Ttl::new(Duration::from_secs(8), Drift::DEFAULT, limits::MAX_TTL_MAX).expect("valid");
    parking.begin(now, Duration::from_secs(1), ttl, true, &mut rng);
    let aside = MasterId::new(2).expect("small");
    (0..3).for_each(|_| parking.place.give_back(MasterSet::only(aside), true));
    for index in 0..left.len() {
        let holder = HolderTtl::Unknown;
        let seen = Waiting { is_first: true, holder, readers: 0, label: None, refusal: None, digest: 0 };
        let master = MasterId::new(index).expect("small");
        parking.note_waiting(now, master, &seen);
    }
    // The pause between looks has grown.
    let left = left.into_iter().min();
    (0..20).for_each(|_| parking.plan_look(now, left, Duration::ZERO, ttl, &mut rng));
    parking
}

#[test]
fn a_look_follows_the_first_end_of_a_holder() {
    let (now, ms) = (Instant::now(), Duration::from_millis);
    for left in [[ms(40), ms(90)], [ms(90), ms(40)]] {
        let parking = first_behind(now, left);
        assert_eq!(parking.due.look, Some(now + ms(41)));
        assert!(!parking.place.aside.is_empty(), "the holder is there");
    }
}

#[test]
fn no_master_is_excluded_behind_a_holder() {
    let over = Duration::ZERO;
    for left in [[over, Duration::from_millis(90)], [over, over]] {
        assert!(first_behind(Instant::now(), left).place.aside.is_empty());
    }
}

#[test]
fn masters_are_set_aside_only_for_a_quorum_that_waits() {
    let (now, mut rng) = (Instant::now(), StdRng::seed_from_u64(1));
    let part = MasterSet::first(1);
    for is_waiting in [false, true] {
        let mut parking = new(now, &mut rng);
        (0..3).for_each(|_| parking.place.give_back(part, is_waiting));
        assert_eq!(parking.place.aside == part, is_waiting);
    }
}

#[test]
fn looks_are_four_round_trips_apart_at_the_least() {
    let (now, ms) = (Instant::now(), Duration::from_millis);
    let mut parking = first_behind(now, [ms(60_000), ms(60_000)]);
    let ttl = Ttl::new(ms(10), Drift::DEFAULT, limits::MAX_TTL_MAX).expect("valid");
    for (round_trip, pause) in [(ms(1), limits::LOOK_PAUSE_MIN), (ms(50), ms(200))] {
        parking.place.look_pause = Duration::ZERO;
        parking.plan_look(now, None, round_trip, ttl, &mut StdRng::seed_from_u64(1));
        assert_eq!(parking.due.look, Some(now + pause));
    }
}

#[test]
fn looks_grow_rare_only_while_a_value_stays() {
    let (now, ms, mut rng) = (Instant::now(), Duration::from_millis, StdRng::seed_from_u64(1));
    let ttl = Ttl::new(ms(8_000), Drift::DEFAULT, limits::MAX_TTL_MAX).expect("valid");
    let [first, second] = [0, 1].map(|index| MasterId::new(index).expect("small"));
    let mut parking = first_behind(now, [ms(60_000); 2]);
    // Values are compared per master, and an absent key says nothing.
    for (master, digest) in [(first, 5), (second, 6), (first, 5), (first, 0), (first, 5), (second, 6)] {
        assert!(!parking.note_value(now, master, digest), "nothing has changed");
    }
    assert_eq!(parking.due.look, Some(now + limits::HEARTBEAT));
    assert!(parking.note_value(now, second, 7), "another holder");
    parking.hasten_look(now, Duration::ZERO, &mut rng);
    assert!(parking.due.look.is_some_and(|at| at <= now + limits::LOOK_PAUSES_UNSERVED.end().to_owned()));
    for (age, pauses) in [(0, 20..=60), (640, 20..=60), (16_000, 500..=500), (90_000, 1000..=1000)] {
        let at = now + ms(age);
        parking.due.look = None;
        parking.plan_look(at, None, Duration::ZERO, ttl, &mut rng);
        let pause = (parking.due.look.expect("it is planned") - at).as_millis();
        assert!(pauses.contains(&pause), "{pause} ms at {age} ms");
    }
}

#[test]
fn a_lost_master_has_not_rung() {
    let (now, round_trip) = (Instant::now(), Duration::from_millis(30));
    let [first, second] = [0, 1].map(|index| MasterId::new(index).expect("small"));
    for is_lost in [false, true] {
        let mut parking = first_behind(now, [Duration::from_secs(60); 2]);
        parking.note_ring(now, first, 2, round_trip);
        if is_lost {
            parking.note_lost(first);
        }
        parking.note_ring(now, second, 2, round_trip);
        assert_eq!(parking.due.early, Some(if is_lost { now + round_trip } else { now }));
    }
}

#[test]
fn a_master_that_grants_is_not_waited_on() {
    let [first, second] = [0, 1].map(|index| MasterId::new(index).expect("small"));
    let mut parking = first_behind(Instant::now(), [Duration::from_secs(60); 2]);
    parking.note_granted(first);
    assert_eq!([parking.waiting, parking.first], [MasterSet::only(second); 2]);
    assert!(parking.place.aside.is_empty());
}

#[test]
fn a_part_is_given_back_after_five_round_trips_at_the_least() {
    let (now, ms, mut rng) = (Instant::now(), Duration::from_millis, StdRng::seed_from_u64(1));
    for (round_trip, pause) in [(ms(1), limits::PART_TIME_MIN), (ms(20), ms(100))] {
        let mut parking = new(now, &mut rng);
        parking.plan_give_back(now, MasterSet::first(1), round_trip, &mut rng);
        let early = parking.due.early.expect("it is planned") - now;
        assert!((pause..=pause * 2).contains(&early), "{early:?}");
    }
}
