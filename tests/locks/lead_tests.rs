//! Leader election: `Client::lead`.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::Poll;
use std::thread;

use redlatch::{AcquireError, Cancel, Candidate, Client, HeldLocks, Leadership, LockEnd};
use redlatch_support::stage::Fleet;
use redlatch_support::{PATIENCE, block_on, eventually};

use crate::harness::{LONG, TTL, open, poll_once, within};

fn candidate(client: &Client) -> Candidate {
    client.lead("leader").ttl(TTL)
}

/// Waits until the lock is gone everywhere. The keys that count terms stay.
fn await_no_leader(fleet: &mut Fleet) {
    for master in fleet.masters() {
        eventually(PATIENCE, "nobody leads", || master.ask("EXISTS leader").text() == "0");
    }
}

// I116
#[test]
fn one_leads_at_a_time_and_terms_rise() {
    let mut fleet = Fleet::start(3);
    let clients = [(); 3].map(|()| open(&fleet.urls(), LONG));
    let terms = Mutex::new(Vec::new());
    let leader_count = AtomicUsize::new(0);
    thread::scope(|scope| {
        for (index, client) in clients.iter().enumerate() {
            let (terms, leader_count) = (&terms, &leader_count);
            scope.spawn(move || {
                let mut rounds = 0;
                let mut lead = |term| {
                    assert_eq!(leader_count.fetch_add(1, Ordering::SeqCst), 0, "two lead");
                    terms.lock().expect("no panic").push(term);
                    leader_count.fetch_sub(1, Ordering::SeqCst);
                    rounds += 1;
                    if rounds == 5 { ControlFlow::Break(rounds) } else { ControlFlow::Continue(()) }
                };
                let result = if index == 0 {
                    block_on(candidate(client).run_async(async |leadership| lead(leadership.term())))
                } else {
                    candidate(client).run(|leadership| lead(leadership.term()))
                };
                assert_eq!(result.expect("it leads"), 5);
            });
        }
    });
    let terms = terms.into_inner().expect("no panic");
    assert_eq!(terms.len(), 15);
    assert!(terms.is_sorted_by(|a, b| a < b), "{terms:?}");
    await_no_leader(&mut fleet);
}

// I116
#[test]
fn lost_leader_stops_work_and_campaigns_again() {
    let fleet = Fleet::start(3);
    let (client, breaker) = (open(&fleet.urls(), LONG), open(&fleet.urls(), LONG));
    let (sender, receiver) = mpsc::channel();
    let its = client.clone();
    let leading = thread::spawn(move || {
        let candidate = its.lead("leader").ttl(std::time::Duration::from_millis(500));
        let mut count = 0;
        block_on(candidate.run_async(async |leadership| {
            count += 1;
            sender.send(leadership.term()).expect("the test waits");
            if count == 1 {
                // Only the loss ends this work.
                std::future::pending::<()>().await;
            }
            ControlFlow::Break(leadership.term())
        }))
    });
    let first = receiver.recv_timeout(PATIENCE).expect("it leads");
    breaker.force_unlock("leader").expect("a quorum deletes it");
    let second = receiver.recv_timeout(PATIENCE).expect("it leads again");
    assert!(second > first);
    assert_eq!(within("the leader", move || leading.join().expect("no panic")).expect("it leads"), second);
}

// I116
#[test]
fn a_campaign_is_cancelled_drained_and_dropped() {
    let mut fleet = Fleet::start(3);
    let (leader, client) = (open(&fleet.urls(), LONG), open(&fleet.urls(), LONG));
    let leadership = candidate(&leader).campaign().expect("free");
    assert!(leadership.is_leader());
    assert_eq!(leadership.guard().fencing_token(), Some(leadership.term()));

    let cancel = Cancel::new();
    let its = candidate(&client).cancel_with(&cancel);
    let campaign = thread::spawn(move || its.campaign().map(drop));
    eventually(PATIENCE, "it campaigns", || client.stats().operations == 1);
    cancel.cancel();
    let ended = within("the campaign", move || campaign.join().expect("no panic"));
    assert!(matches!(ended, Err(AcquireError::Cancelled)), "{ended:?}");

    let its = candidate(&client);
    {
        let mut campaign = Box::pin(its.campaign_async());
        assert!(poll_once(&mut campaign).is_pending());
    }
    eventually(PATIENCE, "it is given up", || client.stats().operations == 0);

    let campaign = thread::spawn(move || its.campaign().map(drop));
    eventually(PATIENCE, "it campaigns", || client.stats().operations == 1);
    assert_eq!(client.drain(PATIENCE, HeldLocks::Release), 0);
    let ended = within("the campaign", move || campaign.join().expect("no panic"));
    assert!(matches!(ended, Err(AcquireError::Stopped(_))), "{ended:?}");
    assert!(matches!(candidate(&client).campaign(), Err(AcquireError::Stopped(_))));

    let lost = leadership.lost();
    let (sender, receiver) = mpsc::channel();
    leadership.on_lost(move || sender.send(()).expect("the test waits"));
    assert_eq!(leader.drain(PATIENCE, HeldLocks::Release), 0, "a drain resigns");
    receiver.recv_timeout(PATIENCE).expect("the loss is reported");
    assert_eq!(block_on(lost), LockEnd::Released);
    assert!(!leadership.is_leader());
    await_no_leader(&mut fleet);
}

// I116
#[test]
fn cancelled_leader_finishes_its_round() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    for (is_async, goes_on) in [(false, false), (false, true), (true, false), (true, true)] {
        let (cancel, mut rounds) = (Cancel::new(), Vec::new());
        let candidate = candidate(&client).cancel_with(&cancel);
        let pause = || client.pause(std::time::Duration::from_millis(1));
        let end = || if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
        let ended = if is_async {
            block_on(candidate.run_async(async |leadership: &Leadership| {
                while !leadership.is_cancelled() && rounds.len() < 2 {
                    cancel.cancel();
                    pause().await.expect("the client goes on");
                    rounds.push(leadership.is_leader());
                }
                end()
            }))
        } else {
            candidate.run(|leadership| {
                while !leadership.is_cancelled() && rounds.len() < 2 {
                    cancel.cancel();
                    pause().block().expect("the client goes on");
                    rounds.push(leadership.is_leader());
                }
                end()
            })
        };
        assert_eq!(rounds, [true], "one round, and the whole of it");
        match ended {
            Err(AcquireError::Cancelled) if goes_on => {}
            Ok(()) if !goes_on => {}
            ended => panic!("{is_async} {goes_on}: {ended:?}"),
        }
        await_no_leader(&mut fleet);
    }
}

// I116
#[test]
fn dropped_work_resigns() {
    let mut fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let began = Arc::new(AtomicUsize::new(0));
    let its = candidate(&client);
    let mut running = Box::pin(its.run_async(async |_| {
        began.fetch_add(1, Ordering::SeqCst);
        std::future::pending::<ControlFlow<()>>().await
    }));
    eventually(PATIENCE, "it leads", || {
        assert!(poll_once(&mut running).is_pending());
        began.load(Ordering::SeqCst) == 1
    });
    drop(running);
    await_no_leader(&mut fleet);
}

#[test]
fn empty_leadership_name_is_an_input_error() {
    let fleet = Fleet::start(1);
    let client = open(&fleet.urls(), LONG);
    assert!(matches!(client.lead("").campaign(), Err(AcquireError::Input(_))));
}

#[test]
fn a_campaign_is_spawned_with_its_work() {
    let fleet = Fleet::start(1);
    let candidate = candidate(&open(&fleet.urls(), LONG));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build();
    let its = candidate.clone();
    let spawned = runtime.expect("a runtime").block_on(async {
        let running = its.run_async(async |leadership: &Leadership| {
            tokio::task::yield_now().await;
            ControlFlow::Break((leadership.term(), leadership.guard().margin()))
        });
        tokio::spawn(running).await.expect("no panic")
    });
    let (term, margin) = spawned.expect("it leads");
    assert_eq!(margin, 0);
    let next = candidate.run(|leadership| ControlFlow::Break(leadership.term())).expect("it leads");
    assert!(next > term);
}

#[test]
fn a_run_resigns_before_it_returns() {
    let mut fleet = Fleet::start(1);
    let client = open(&fleet.urls(), LONG);
    for _ in 0..3 {
        candidate(&client).run(|_| ControlFlow::Break(())).expect("it leads");
        assert_eq!(fleet.master(0).ask("EXISTS leader").text(), "0");
        block_on(candidate(&client).run_async(async |_| ControlFlow::Break(()))).expect("it leads");
        assert_eq!(fleet.master(0).ask("EXISTS leader").text(), "0");
    }
}

#[test]
fn work_is_not_polled_behind_a_loss() {
    let fleet = Fleet::start(1);
    let (client, breaker) = (open(&fleet.urls(), LONG), open(&fleet.urls(), LONG));
    let candidate = client.lead("leader").ttl(std::time::Duration::from_millis(500));
    let (sender, lost) = mpsc::channel();
    let polled = Arc::new(AtomicUsize::new(0));
    let mut running = Box::pin(candidate.run_async(async |leadership| {
        let sender = sender.clone();
        leadership.on_lost(move || {
            // The next leadership may end after the receiver is gone.
            let _ = sender.send(());
        });
        let polled = polled.clone();
        std::future::poll_fn(move |_| {
            polled.fetch_add(1, Ordering::SeqCst);
            Poll::<ControlFlow<()>>::Pending
        })
        .await
    }));
    eventually(PATIENCE, "it leads", || {
        assert!(poll_once(&mut running).is_pending());
        polled.load(Ordering::SeqCst) > 0
    });
    breaker.force_unlock("leader").expect("a quorum deletes it");
    lost.recv_timeout(PATIENCE).expect("the loss is reported");
    let before = polled.load(Ordering::SeqCst);
    assert!(poll_once(&mut running).is_pending(), "it campaigns again");
    assert_eq!(polled.load(Ordering::SeqCst), before);
}

#[test]
fn leadership_has_its_candidates_ttl() {
    let fleet = Fleet::start(3);
    let leadership = candidate(&open(&fleet.urls(), LONG)).ttl(TTL / 4).campaign().expect("nobody leads");
    let left = leadership.guard().remaining();
    assert!(left <= TTL / 4 && left > TTL / 8, "{left:?}");
}
