//! Contests for a pool's slots, while masters and holders die.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redlatch::{AcquireError, Client, Config, SlotsRequest, limits};
use redlatch_support::judge::{self, Visit, VisitName};
use redlatch_support::{Fleet, PATIENCE, eventually};

use crate::contest::TTL;
use crate::lock_tests::ANSWER_TIMEOUT;

const CALLERS: usize = 8;

/// State that the callers share with the test's thread.
#[derive(Default)]
struct Shared {
    is_over: AtomicBool,
    /// Number of acquired slots.
    count: AtomicUsize,
}

/// A caller that takes a slot, holds it for a while, and sometimes appears to die with it.
fn play(client: &Client, caller: usize, slots: u32, shared: &Shared) -> Vec<Visit> {
    let mut rng = StdRng::seed_from_u64(caller as u64);
    let mut visits = Vec::new();
    let wanted = || -> SlotsRequest { client.slots("pool", slots).ttl(TTL).wait(2 * TTL) };
    while !shared.is_over.load(Ordering::SeqCst) {
        let request = if rng.random_range(0..4) == 0 { wanted().fenced() } else { wanted() };
        let result = if caller.is_multiple_of(2) {
            request.acquire()
        } else {
            smol::block_on(request.acquire_async())
        };
        let slot = match result {
            Ok(slot) => slot,
            Err(AcquireError::Contended(_) | AcquireError::NoQuorum(_) | AcquireError::Expired(_)) => {
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        let from = Instant::now();
        assert!(slot.slot() < slots);
        shared.count.fetch_add(1, Ordering::SeqCst);
        thread::sleep(Duration::from_millis(rng.random_range(0..20)));
        let dies = rng.random_range(0..16) == 0;
        let until = slot.valid_until();
        let name = VisitName { resource: slot.slot() as usize, client: caller, number: visits.len() };
        // A dying caller holds the slot to the end of its validity.
        let until = if dies { until } else { until.min(Instant::now()) };
        let fencing_token = slot.fencing_token().map(u64::from);
        if until > from {
            visits.push(Visit { name, is_shared: false, from, until, is_witnessed: false, fencing_token });
        }
        if dies {
            let _ = slot.into_guard().leave();
        } else {
            drop(slot);
        }
    }
    visits
}

/// Masters are killed and return empty, sometimes a quorum of them.
fn contest(slots: u32) {
    let mut fleet = Fleet::start(5);
    let shared = Shared::default();
    let open = || {
        let config = Config::builder().masters(fleet.urls()).max_ttl(TTL).answer_timeout(ANSWER_TIMEOUT);
        config.connect().expect("an event loop")
    };
    let clients: Vec<Client> = (0..CALLERS / 2).map(|_| open()).collect();
    let visits: Vec<Visit> = thread::scope(|scope| {
        let callers: Vec<_> = (0..CALLERS)
            .map(|caller| {
                let (client, shared) = (&clients[caller / 2], &shared);
                scope.spawn(move || play(client, caller, slots, shared))
            })
            .collect();
        let progress = |what: &str| {
            let before = shared.count.load(Ordering::SeqCst);
            eventually(PATIENCE, &format!("{slots} slots are acquired {what}"), || {
                let has_died = callers.iter().any(|caller| caller.is_finished());
                has_died || shared.count.load(Ordering::SeqCst) >= before + 20
            });
        };
        progress("while all is well");
        fleet.master(0).kill();
        progress("while one is dead");
        fleet.master(0).restart();
        fleet.master(1).kill();
        fleet.master(1).restart();
        progress("while two are in quarantine");
        thread::sleep(TTL + TTL / 10);
        (0..3).for_each(|index| fleet.master(index).kill());
        (0..3).for_each(|index| fleet.master(index).restart());
        progress("after three came back empty");
        shared.is_over.store(true, Ordering::SeqCst);
        callers.into_iter().flat_map(|caller| caller.join().expect("no panic")).collect()
    });
    let mut wrong = judge::overlaps(&visits);
    wrong.extend(judge::token_disorders(&visits));
    assert!(wrong.is_empty(), "{slots} slots, {} visits: {wrong:#?}", visits.len());
    println!("{slots} slots: {} visits", visits.len());
}

// I78
#[test]
fn slot_has_one_holder_while_masters_die() {
    // The first waiter queues for few slots, but searches for many.
    thread::scope(|scope| {
        for slots in [2, limits::SLOT_STAND_MAX + 1] {
            scope.spawn(move || contest(slots));
        }
    });
}
