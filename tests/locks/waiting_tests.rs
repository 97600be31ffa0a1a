//! Clients that wait for a lock of another client: their attempts are parked on the masters.

use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use redlatch::{AcquireError, Client, ConfigBuilder, Guard, limits};
use redlatch_support::settle;
use redlatch_support::stage::{Fleet, Master};
use redlatch_support::{PATIENCE, Proxy, assert_sooner, eventually};

use crate::harness::{
    LONG, TTL, assert_nothing_left, await_connections, await_held, await_no_keys, await_waiters, config,
    poll_once, within,
};

/// Longer than any test: a waiter that gets the lock in time did not poll.
const NEVER: Duration = Duration::from_secs(600);

/// The longest TTL that masters grant to a parked waiter.
const GRANTED: Duration = Duration::from_secs(10);

/// A client that almost never polls.
fn patient(urls: &[String]) -> ConfigBuilder {
    config(urls, LONG).ask_holder(false).retry_delay(NEVER..=NEVER)
}

fn open(builder: ConfigBuilder) -> Client {
    builder.connect().expect("an event loop")
}

/// Starts a thread that waits for the lock.
fn wait(client: &Client) -> JoinHandle<Result<Guard, AcquireError>> {
    let client = client.clone();
    thread::spawn(move || client.lock("a").ttl(TTL).wait(PATIENCE).acquire())
}

/// Acquires the lock, and waits until each master has its key: a master without the key grants a waiter its
/// vote at once, and has no entry for it.
fn hold(client: &Client, fleet: &mut Fleet) -> Guard {
    let guard = client.lock("a").ttl(TTL).try_acquire().expect("free");
    await_held(fleet, "a");
    guard
}

/// How often a master has carried out these commands.
fn calls(master: &mut Master, commands: &[&str]) -> u64 {
    let stats = master.counted("INFO commandstats").unwrap_or_default();
    let count = |line: &str| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        commands.contains(&name).then(|| rest.split(',').next()?.parse::<u64>().ok())?
    };
    stats.lines().filter_map(count).sum()
}

/// Once with a TTL that masters grant, and once with a TTL for which they ring.
// I54
#[test]
fn a_waiting_client_gets_a_released_lock() {
    within("a waiter is served", || {
        let mut fleet = Fleet::start(5);
        let (first, second) = (open(patient(&fleet.urls())), open(patient(&fleet.urls())));
        let ttls = [TTL, limits::GRANTED_TTL_MAX];
        for (ttl, is_fenced) in ttls.into_iter().flat_map(|ttl| [(ttl, false), (ttl, true)]).cycle().take(12)
        {
            // A release that is still under way would meet the key of the lock before.
            for master in fleet.masters() {
                eventually(PATIENCE, "it is free everywhere", || master.ask("EXISTS a").text() == "0");
            }
            let guard = hold(&first, &mut fleet);
            let waiting = second.clone();
            let waiter = thread::spawn(move || {
                let request = waiting.lock("a").ttl(ttl).wait(PATIENCE);
                if is_fenced { request.fenced().acquire() } else { request.acquire() }
            });
            await_waiters(&mut fleet, 0..5, "a", 1);
            guard.release().expect("the masters answer");
            let guard = waiter.join().expect("no panic").expect("it is served");
            guard.release().expect("the masters answer");
        }
        // Only fences are left.
        assert_eq!((settle(&first, PATIENCE), settle(&second, PATIENCE)), (0, 0));
        for master in fleet.masters() {
            assert_eq!(master.keys(), "[redlatch:fence:a]");
        }
    });
}

// I54
#[test]
fn two_hanging_masters_delay_no_waiter() {
    within("a waiter is served", || {
        let mut fleet = Fleet::start(5);
        let short = |urls: &[String]| patient(urls).answer_timeout(Duration::from_millis(500));
        let (first, second) = (open(short(&fleet.urls())), open(short(&fleet.urls())));
        let guard = hold(&first, &mut fleet);
        let waiter = wait(&second);
        await_waiters(&mut fleet, 0..5, "a", 1);
        (0..2).for_each(|index| fleet.master(index).stop());
        drop(guard);
        let guard = waiter.join().expect("no panic").expect("it is served");
        (0..2).for_each(|index| fleet.master(index).cont());
        guard.release().expect("the masters answer");
    });
}

#[test]
fn a_waiter_that_dies_costs_nobody_its_turn() {
    serve_behind_a_dead_waiter(|_| ());
}

/// Pattern subscribers do not receive messages of sharded channels.
// I60
#[test]
fn a_pattern_subscriber_keeps_no_dead_waiter_alive() {
    serve_behind_a_dead_waiter(|fleet| {
        let watching: Vec<_> = fleet.masters().map(|master| master.send(&[b"PSUBSCRIBE", b"*"])).collect();
        for master in fleet.masters() {
            eventually(PATIENCE, "it has subscribed", || master.ask("PUBSUB NUMPAT").text() == "1");
        }
        watching
    });
}

/// A waiter's connections end, and it does not return. `watch` returns other clients' connections.
fn serve_behind_a_dead_waiter<T>(watch: impl FnOnce(&mut Fleet) -> T + Send + 'static) {
    within("the next waiter is served", || {
        let Some(mut fleet) = Fleet::servers(3) else { return };
        let _watching = watch(&mut fleet);
        let mut proxies: Vec<Proxy> = fleet.addrs().into_iter().map(Proxy::start).collect();
        let urls: Vec<String> = proxies.iter().map(Proxy::url).collect();
        let (holder, next) = (open(patient(&fleet.urls())), open(patient(&fleet.urls())));
        // The waiter loses all masters for a while, and then pauses before it tries again.
        let dead = open(config(&urls, LONG).ask_holder(false));
        let guard = hold(&holder, &mut fleet);
        // With a TTL that masters grant.
        let dying = thread::spawn(move || dead.lock("a").ttl(GRANTED).wait(PATIENCE).acquire());
        await_waiters(&mut fleet, 0..3, "a", 1);
        let waiter = wait(&next);
        await_waiters(&mut fleet, 0..3, "a", 2);
        proxies.iter_mut().for_each(|proxy| {
            proxy.refuse(true);
            proxy.drop_connections();
        });
        // The masters have noticed the end.
        for master in fleet.masters() {
            eventually(PATIENCE, "its channel has no listener", || {
                let channels = master.ask("PUBSUB SHARDCHANNELS redlatch:c:*").text();
                channels.matches("redlatch:c:").count() == 2
            });
        }
        let start = Instant::now();
        guard.release().expect("the masters answer");
        let guard = waiter.join().expect("no panic").expect("it is served");
        assert_sooner(start, limits::STAY, "a turn of the dead waiter lasts its stay, or its TTL");
        proxies.iter_mut().for_each(|proxy| proxy.refuse(false));
        guard.release().expect("the masters answer");
        dying.join().expect("no panic").expect("it is back").release().expect("the masters answer");
        // Parks whose reply was lost are owed until they expire, and the last release may be under way.
        await_no_keys(&mut fleet);
    });
}

/// An ACL without channels on some of the masters; the waiter parks on the others, or polls.
// I55
#[test]
fn masters_that_forbid_channels_are_still_waited_for() {
    within("a waiter gets the lock", || {
        for count in [1, 3] {
            let Some(mut fleet) = Fleet::servers(3) else { return };
            for index in 0..count {
                fleet.master(index).ask("ACL SETUSER default resetchannels");
            }
            let (first, second) = (open(config(&fleet.urls(), LONG)), open(config(&fleet.urls(), LONG)));
            let guard = hold(&first, &mut fleet);
            let waiter = wait(&second);
            await_waiters(&mut fleet, count..3, "a", 1);
            eventually(PATIENCE, "the master's warnings say so", || {
                let warnings = &second.masters()[0].warnings;
                warnings.iter().any(|warning| warning.to_string().contains("parks no waiters"))
            });
            // A park that was sent before the refusal arrived keeps its place until its next round.
            let has_none = || fleet.master(0).ask("EXISTS redlatch:wait:a").text() == "0";
            eventually(PATIENCE, "it has no queue", has_none);
            let start = Instant::now();
            guard.release().expect("the masters answer");
            let guard = waiter.join().expect("no panic").expect("it goes on trying");
            assert_sooner(start, Duration::from_secs(10), "a waiter that does not poll waits for the TTL");
            guard.release().expect("the masters answer");
            assert_eq!(settle(&second, PATIENCE), 0);
            assert_nothing_left(&first, &mut fleet);
        }
    });
}

// I55
#[test]
fn a_silent_client_neither_parks_nor_subscribes() {
    within("a waiter gets the lock", || {
        let Some(mut fleet) = Fleet::servers(3) else { return };
        let silent = || open(config(&fleet.urls(), LONG).wake_waiters(false));
        let (first, second) = (silent(), silent());
        let guard = hold(&first, &mut fleet);
        let waiter = wait(&second);
        let refused = || second.stats().masters.iter().map(|master| master.refused).sum::<u64>();
        eventually(PATIENCE, "it tries again and again", || refused() > 20);
        guard.release().expect("the masters answer");
        waiter.join().expect("no panic").expect("it tries again").release().expect("the masters answer");
        for master in fleet.masters() {
            assert_eq!(calls(master, &["hello", "publish", "subscribe", "zadd"]), 0);
        }
    });
}

// I56
#[test]
fn idle_waiters_send_few_requests() {
    const CLIENT_COUNT: usize = 4;
    const WINDOW: Duration = Duration::from_secs(3);
    let Some(mut fleet) = Fleet::servers(3) else { return };
    let clients = [(); CLIENT_COUNT].map(|()| open(patient(&fleet.urls())));
    fleet.masters().for_each(|master| {
        assert_eq!(master.ask("SET a theirs NX PX 600000").text(), "OK");
    });
    let wait = |client: &Client| {
        let client = client.clone();
        thread::spawn(move || {
            let guard = client.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("its turn comes");
            guard.release().expect("the masters answer");
        })
    };
    let waiters: Vec<_> = clients.iter().flat_map(|client| [wait(client), wait(client)]).collect();
    // Of two callers of a client, one stands in the queue.
    await_waiters(&mut fleet, 0..3, "a", CLIENT_COUNT);
    await_connections(&mut fleet, CLIENT_COUNT);
    let mut requests =
        || -> Vec<u64> { fleet.masters().map(|master| calls(master, &["evalsha", "eval", "set"])).collect() };
    let looks = requests();
    eventually(PATIENCE, "the pauses between looks have grown", || requests()[0] > looks[0] + 12);
    let (before, start) = (requests(), Instant::now());
    thread::sleep(WINDOW);
    let (after, passed) = (requests(), start.elapsed().as_secs_f64());
    for (before, after) in before.into_iter().zip(after) {
        let each = (after - before) as f64 / passed / CLIENT_COUNT as f64;
        assert!(each < 3.0, "{each:.1} requests of a waiter per second");
    }
    await_connections(&mut fleet, CLIENT_COUNT);
    fleet.masters().for_each(|master| assert_eq!(master.ask("DEL a").text(), "1"));
    for waiter in waiters {
        waiter.join().expect("no panic");
    }
    clients.iter().for_each(|client| assert_eq!(settle(client, PATIENCE), 0));
    assert_nothing_left(&clients[0], &mut fleet);
}

#[test]
fn acquisition_under_way_says_why_it_waits() {
    let fleet = Fleet::start(3);
    let [holder, waiter] = [(); 2].map(|()| open(config(&fleet.urls(), LONG)));
    let locks = ["a", "c"].map(|name| holder.lock(name).ttl(TTL).acquire().expect("it is free"));
    let slot = holder.slots("pool", 1).ttl(TTL).acquire().expect("it is free");
    let mut one = waiter.lock("a").wait(PATIENCE).acquire_async();
    let mut set = waiter.lock_set(["b", "c"]).wait(PATIENCE).acquire_async();
    let mut of_pool = waiter.slots("pool", 1).wait(PATIENCE).acquire_async();
    assert!(one.last_failure().is_none() && set.last_failure().is_none() && of_pool.last_failure().is_none());
    let is_contended = |error: Option<AcquireError>| matches!(error, Some(AcquireError::Contended(_)));
    eventually(PATIENCE, "each says that it is held", || {
        assert!(poll_once(&mut one).is_pending());
        assert!(poll_once(&mut set).is_pending());
        assert!(poll_once(&mut of_pool).is_pending());
        is_contended(one.last_failure())
            && is_contended(set.last_failure())
            && is_contended(of_pool.last_failure())
    });
    drop((one, set, of_pool, locks, slot));
}
