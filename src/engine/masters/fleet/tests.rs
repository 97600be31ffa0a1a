use super::*;
use crate::engine::locks::slab::Id;
use crate::engine::masters::owed::Question;

fn fleet() -> Fleet {
    let config = Config::builder().masters(["redis://a", "redis://b", "redis://c"]).build().expect("valid");
    Fleet::new(&mut Ground::new(Arc::new(config), [0; 32], Instant::now()))
}

fn set(bits: usize) -> MasterSet {
    (0..3).filter(|index| bits >> index & 1 == 1).filter_map(MasterId::new).collect()
}

#[test]
fn each_link_keeps_the_order_of_calls() {
    let (mut fleet, mut expected) = (fleet(), vec![Vec::new(); 3]);
    for round in 0..2000_usize {
        let masters = set(round * 7 / 40);
        let bytes = format!("request {round:>9}");
        let sent = fleet.queue(masters, Owed::Query { question: Question::Holder, id: Id::NOBODY }, |out| {
            out.extend_from_slice(bytes.as_bytes());
        });
        assert_eq!(sent, masters);
        masters.iter().for_each(|master| expected[master.index()].extend_from_slice(bytes.as_bytes()));
        for master in fleet.all.iter() {
            let size = fleet.owed_count(master) * "request 123456789".len();
            assert_eq!(size, expected[master.index()].len());
        }
    }
    fleet.distribute_gathered();
    assert!(
        fleet.links.iter().zip(&expected).all(|(link, bytes)| link.connection.wire.send_ready() == bytes)
    );
}

#[test]
fn only_a_master_with_a_full_queue_is_skipped() {
    let mut fleet = fleet();
    let owed = [Owed::Query { question: Question::Holder, id: Id::NOBODY }];
    let nearly_full = vec![0; limits::OUTBOX_SIZE_MAX - 30];
    fleet.links[1].connection.wire.request(&nearly_full, &owed).expect("room");
    let mut send = |masters| fleet.queue(masters, owed[0], |out| out.extend([0; 20]));
    assert_eq!((send(set(0b111)), send(set(0b111))), (set(0b111), set(0b101)));
    assert_eq!((send(set(0b010)), send(set(0b101))), (set(0b000), set(0b101)));
    fleet.distribute_gathered();
    let counts: Vec<usize> = fleet.links.iter().map(|link| link.connection.wire.owed_count()).collect();
    assert_eq!(counts, [3, 2, 3]);
}

/// An answer that took 300 ms shows the time 300 ms ago.
#[test]
fn fastest_recent_answer_sets_the_clock_estimate() {
    let (mut fleet, start) = (fleet(), Instant::now());
    let [master, other] = [0, 1].map(|index| MasterId::new(index).expect("few"));
    let at = |ms: u64| start + Duration::from_millis(ms);
    // The median of two clocks is the later one.
    fleet.note_clock(at(0), master, 5_000_000);
    fleet.note_clock(at(1000), master, 5_700_000);
    assert_eq!(fleet.masters_us(at(1000)), 6_000_000, "a late answer counts less");
    fleet.note_clock(at(2000), master, 7_200_000);
    assert_eq!(fleet.masters_us(at(3000)), 8_200_000, "a prompter one counts more");
    fleet.note_clock(at(12_000), master, 16_000_000);
    assert_eq!(fleet.masters_us(at(12_000)), 16_000_000, "after 10 s each counts");
    fleet.note_clock(at(12_000), other, 90_000_000);
    assert_eq!(fleet.masters_us(at(11_000)), 89_000_000, "also of a moment before");
    fleet.note_clock(at(12_000), MasterId::new(2).expect("few"), 1_000_000);
    assert_eq!(fleet.masters_us(at(12_000)), 16_000_000, "the one in the middle, in whichever order");
}
