//! `Fleets` on model masters. This file also compiles `src/compose/fleets.rs` outside the crate, with public items alone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

// `crate::…` in `src/compose/fleets.rs` means these.
use redlatch::pool;
use redlatch::{AcquireError, FencingToken, Fleets, FleetsError, Guard};
use redlatch::{Candidate, Client, LockName, LockRequest, RwLock, SlotsRequest};
use redlatch_support::PATIENCE;
use redlatch_testing::Double;

#[path = "../src/compose/fleets.rs"]
#[allow(dead_code, reason = "compiled, not called")]
mod outside;

/// A TTL that no test waits for.
const TTL: Duration = Duration::from_secs(120);
/// A `max_ttl` that a test waits for.
const SHORT: Duration = Duration::from_secs(1);

fn start() -> Double {
    Double::start(1).expect("free ports")
}

fn open(double: &Double) -> Client {
    double.config().max_ttl(TTL).answer_timeout(PATIENCE).connect().expect("an event loop")
}

/// Fleets of one client, to see which label a name gets.
fn labelled(labels: &[&str]) -> Fleets {
    let client = open(&start());
    Fleets::new(labels.iter().map(|label| (*label, client.clone()))).expect("different labels")
}

fn names() -> impl Iterator<Item = String> {
    (0..1000).map(|number| format!("orders:{number}"))
}

/// A name that `new` has in another fleet than `old`.
fn moving(old: &Fleets, new: &Fleets) -> String {
    names().find(|name| old.label_of(name) != new.label_of(name)).expect("a third of them")
}

#[test]
fn names_spread_evenly_over_fleets() {
    let fleets = labelled(&["a", "b", "c"]);
    let mut counts = BTreeMap::<_, usize>::new();
    for name in names() {
        *counts.entry(fleets.label_of(&name).to_owned()).or_default() += 1;
    }
    // Four standard deviations around a third.
    assert!(counts.len() == 3 && counts.values().all(|count| (274..=393).contains(count)), "{counts:?}");
}

#[test]
fn added_fleet_gets_all_names_that_move() {
    let (old, new) = (labelled(&["a", "b", "c"]), labelled(&["a", "b", "c", "d"]));
    let moved: Vec<_> = names().filter(|name| old.label_of(name) != new.label_of(name)).collect();
    assert!(moved.iter().all(|name| new.label_of(name) == "d"));
    assert!((195..=305).contains(&moved.len()), "{} of 1,000 names move", moved.len());
}

#[test]
fn order_of_fleets_changes_no_choice() {
    let (fleets, reversed) = (labelled(&["a", "b", "c"]), labelled(&["c", "b", "a"]));
    for name in names() {
        assert_eq!(fleets.label_of(&name), reversed.label_of(&name), "{name}");
    }
}

/// Computed by another program. A change here lets two versions hold one lock.
#[test]
fn every_version_chooses_the_same_fleet() {
    let long = [b'n'; 1024];
    let chosen: [(&[u8], &str); 16] = [
        (b"a", "third"),
        (b"orders:1", "third"),
        (b"orders:2", "5"),
        (b"orders:3", "vierte-ä"),
        (b"orders:42", "third"),
        (b"{cart:7}:items", "second"),
        (b"{cart:7}:total", "second"),
        (b"cart:7", "second"),
        (b"{}a", "second"),
        (b"a{b", "vierte-ä"),
        (b"}{", "first"),
        (b"x{y}{z}", "third"),
        (b"y", "third"),
        (b"\x00\xff", "5"),
        ("ünï".as_bytes(), "5"),
        (&long, "first"),
    ];
    let fleets = labelled(&["first", "second", "third", "vierte-ä", "5"]);
    for (name, label) in chosen {
        assert_eq!(fleets.label_of(name), label, "{}", name.escape_ascii());
    }
}

#[test]
fn hash_tag_alone_chooses_the_fleet() {
    let fleets = labelled(&["a", "b", "c"]);
    for tag in names() {
        for name in [format!("{{{tag}}}:items"), format!("cart}}{{{tag}}}"), format!("{{{tag}}}{{other}}")] {
            assert_eq!(fleets.label_of(&name), fleets.label_of(&tag), "{name}");
        }
    }
    for pool in names() {
        for name in [LockName::of_slot(pool.as_bytes(), 7), LockName::of_door(pool.as_bytes())] {
            assert_eq!(fleets.label_of(name), fleets.label_of(&pool), "the locks of {pool}");
        }
    }
    // No tag: the whole name counts, so these names are in all fleets.
    for around in [("{}", ""), ("{", ""), ("}", "{"), ("", "}")] {
        let labels =
            names().map(|name| fleets.label_of(format!("{}{name}{}", around.0, around.1)).to_owned());
        assert_eq!(labels.collect::<BTreeSet<_>>().len(), 3, "{around:?}");
    }
}

#[test]
fn list_without_fleets_is_refused() {
    let error = Fleets::new([] as [(&str, Client); 0]).expect_err("it is empty");
    assert_eq!(error.to_string(), "no fleet is given; give at least one");
}

#[test]
fn doubled_label_is_refused() {
    let client = open(&start());
    let error = Fleets::new(["a", "b", "a"].map(|label| (label, client.clone()))).expect_err("twice `a`");
    assert_eq!(error, FleetsError::SameLabel { label: "a".to_owned() });
    assert_eq!(error.to_string(), "two fleets have the label `a`; give each fleet its own label");
}

#[test]
fn each_call_asks_the_fleet_of_its_name() {
    let doubles = [start(), start()];
    let fleets = Fleets::new(["a", "b"].into_iter().zip(doubles.iter().map(open))).expect("two labels");
    let acquired = |client: &Client| client.stats().acquired;
    for (label, client) in fleets.clients() {
        let name = &names().find(|name| fleets.label_of(name) == label).expect("about half");
        drop(fleets.lock(name).acquire().expect("free"));
        assert_eq!(acquired(client), 1, "lock");
        drop(fleets.lock_owned(name).acquire().expect("free"));
        assert_eq!(acquired(client), 2, "lock_owned");
        drop(fleets.rw_lock(name).write().acquire().expect("free"));
        assert_eq!(acquired(client), 3, "rw_lock");
        drop(fleets.slots(name, 1).acquire().expect("free"));
        assert_eq!(acquired(client), 4, "slots");
        drop(fleets.lead(name).campaign().expect("free"));
        assert_eq!(acquired(client), 5, "lead");
        drop(fleets.of(name).lock(name).acquire().expect("free"));
        assert_eq!(acquired(client), 6, "of");
    }
}

/// Two processes with the lists before and after a fleet is added.
struct Change {
    doubles: [Double; 2],
    old: Fleets,
    new: Fleets,
    name: String,
    max_ttl: Duration,
}

impl Change {
    fn start(max_ttl: Duration) -> Self {
        let doubles = [start(), start()];
        let config = |double: &Double| double.config().max_ttl(max_ttl).answer_timeout(PATIENCE);
        let open = |double: &Double| config(double).connect().expect("an event loop");
        let [first, second] = doubles.each_ref();
        let old = Fleets::new([("a", open(first))]).expect("one label");
        let new = Fleets::new([("a", open(first)), ("b", open(second))]).expect("two labels");
        let name = moving(&old, &new);
        Self { doubles, old, new, name, max_ttl }
    }
}

/// Documented at `Fleets`.
fn lock_both(old: &Fleets, new: &Fleets, name: &str) -> Result<Vec<Guard>, AcquireError> {
    let mut guards = vec![old.lock(name).try_acquire()?];
    if old.label_of(name) != new.label_of(name) {
        guards.push(new.lock(name).try_acquire()?);
    }
    Ok(guards)
}

#[test]
fn moved_name_has_two_holders_without_care() {
    let change = Change::start(TTL);
    let Change { old, new, name, .. } = &change;
    let guards = [old, new].map(|fleets| fleets.lock(name).try_acquire().expect("each fleet grants it"));
    assert!(guards.iter().all(Guard::is_valid), "two valid guards of one name");
}

#[test]
fn locks_in_both_fleets_exclude_each_other() {
    let change = Change::start(TTL);
    let Change { old, new, name, .. } = &change;
    let old_list = || old.lock(name).try_acquire().map(|guard| vec![guard]);
    let both_lists = || lock_both(old, new, name);
    let new_list = || new.lock(name).try_acquire().map(|guard| vec![guard]);
    let calls: [&dyn Fn() -> Result<Vec<Guard>, AcquireError>; 3] = [&old_list, &both_lists, &new_list];
    // The old list and the new list alone are never in use together.
    for (holder, rival) in [(0, 1), (1, 0), (1, 1), (1, 2), (2, 1)] {
        let held = calls[holder]().expect("free");
        let refused = calls[rival]();
        assert!(matches!(refused, Err(AcquireError::Contended(_))), "{holder} {rival}: {refused:?}");
        for guard in held {
            guard.release().expect("confirmed");
        }
    }
    let stays = names().find(|name| old.label_of(name) == new.label_of(name)).expect("most of them");
    assert_eq!(lock_both(old, new, &stays).expect("free").len(), 1, "one fleet, one lock");
}

/// The token of a lock in this fleet.
fn fenced(fleets: &Fleets, change: &Change) -> FencingToken {
    let request = fleets.lock(&change.name).ttl(change.max_ttl).wait(PATIENCE).fenced();
    request.acquire().expect("free").fencing_token().expect("it is fenced")
}

/// The largest token that the old fleet grants now, as to a client with a fast clock.
fn largest_token_of_old_fleet(change: &Change) -> FencingToken {
    let now = SystemTime::UNIX_EPOCH.elapsed().expect("after 1970");
    let fence = (now + change.max_ttl / 2).as_micros() - 1;
    let args = ["SET", &format!("redlatch:fence:{}", change.name), &fence.to_string(), "PX", "600000"];
    change.doubles[0].master(0).command(&args).expect("it answers");
    let token = fenced(&change.old, change);
    assert!(u128::from(token.as_u64()) > fence, "{token} follows the fence {fence}");
    token
}

#[test]
fn fencing_token_may_fall_with_the_move() {
    let change = Change::start(TTL);
    let before = largest_token_of_old_fleet(&change);
    let after = fenced(&change.new, &change);
    assert!(after < before, "{after} is larger than {before}: say so at `Fleets`");
}

#[test]
fn fencing_token_grows_after_the_stop() {
    let change = Change::start(SHORT);
    let before = largest_token_of_old_fleet(&change);
    std::thread::sleep(SHORT); // the wait of the stop
    let after = fenced(&change.new, &change);
    assert!(after > before, "{after} is not larger than {before}");
}
