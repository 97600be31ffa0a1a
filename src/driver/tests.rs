//! A driver whose master's name has several addresses.

#[cfg(unix)]
mod cuts;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use redlatch_support::PATIENCE;

use super::{Channel, Config, Driver, LinkRequest, Poller};
use crate::clock;
#[cfg(unix)]
use crate::config::tests::of_double;
use crate::lock::MasterId;
use crate::status::MasterState;

/// A server that accepts one connection and does not answer in TLS.
fn start_plain() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let address = listener.local_addr().expect("bound");
    thread::spawn(move || {
        let (mut client, _) = listener.accept().expect("a client");
        client.write_all(&[b'?'; 64]).expect("it is read");
        // Until the client leaves.
        let _ = std::io::copy(&mut client, &mut std::io::sink());
    });
    address
}

/// Returns why the master cannot be connected if its name has these addresses.
fn trouble_with(addresses: Vec<SocketAddr>) -> String {
    let config = Config::builder().master("rediss://h").connect_timeout(PATIENCE);
    let config = config.build().expect("valid settings");
    let (mut driver, mut poller) = Driver::new(Arc::new(config)).expect("an event loop");
    driver.engine.handle_timeout(clock::now());
    let Some(LinkRequest::Connect(link)) = driver.engine.poll_link() else { panic!("no wish to connect") };
    driver.open(link, Ok(addresses));
    let master = MasterId::new(0).expect("small");
    let given_up = clock::now() + PATIENCE;
    loop {
        match driver.engine.master_status(clock::now(), master).state {
            MasterState::Down(why) => return why.to_string(),
            _ => assert!(clock::now() < given_up, "the attempt does not end"),
        }
        driver.turn(&mut poller, Some(PATIENCE)).expect("a turn");
    }
}

// I140
#[test]
fn the_most_informative_trouble_of_an_address_is_reported() {
    // Nothing listens at the first; the second is the broadcast address.
    let refused = SocketAddr::from(([127, 0, 0, 1], 1));
    let nowhere = SocketAddr::from((Ipv4Addr::BROADCAST, 1));
    for is_last in [false, true] {
        let mut addresses = vec![start_plain(), refused, nowhere];
        if is_last {
            addresses.reverse();
        }
        let why = trouble_with(addresses);
        assert!(why.contains("it does not answer in TLS"), "{is_last}: {why}");
    }
    for addresses in [[refused, nowhere], [nowhere, refused]] {
        let why = trouble_with(addresses.to_vec());
        assert!(why.contains("refused"), "{addresses:?}: {why}");
    }
    assert!(trouble_with(Vec::new()).contains("its name has no address"));
}

/// A server that ends its first connection at once.
fn start_closing() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let address = listener.local_addr().expect("bound");
    thread::spawn(move || {
        let (client, _) = listener.accept().expect("a client");
        client.shutdown(std::net::Shutdown::Write).expect("it is open");
        let _ = std::io::copy(&mut &client, &mut std::io::sink());
    });
    address
}

#[test]
fn latest_of_equally_advanced_troubles_is_reported() {
    let (plain, closing) =
        ("it does not answer in TLS", "the server closed the connection in the TLS handshake");
    assert!(trouble_with(vec![start_closing(), start_plain()]).contains(plain));
    assert!(trouble_with(vec![start_plain(), start_closing()]).contains(closing));
}

#[test]
fn addresses_are_tried_in_their_order() {
    let refused = SocketAddr::from(([127, 0, 0, 1], 1));
    let listeners = [(); 2].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port"));
    let [first, second] = listeners.each_ref().map(|it| it.local_addr().expect("bound"));
    for (addresses, reached) in [
        (vec![first, second], 0),
        (vec![second, first], 1),
        (vec![refused, first, second], 0),
        (vec![refused, refused, second], 1),
    ] {
        let (mut driver, mut poller) = connecting(addresses, PATIENCE);
        while driver.sockets[0].is_none() {
            driver.turn(&mut poller, Some(PATIENCE)).expect("a turn");
        }
        listeners[reached].accept().expect("it is connected");
        listeners[1 - reached].set_nonblocking(true).expect("a socket option");
        listeners[1 - reached].accept().map(drop).expect_err("nobody comes");
        listeners[1 - reached].set_nonblocking(false).expect("a socket option");
    }
}

/// A driver that connects to its only master, whose name has these addresses.
fn connecting(addresses: Vec<SocketAddr>, connect_timeout: Duration) -> (Driver, Poller) {
    let config = Config::builder().master("redis://h").connect_timeout(connect_timeout);
    let config = config.build().expect("valid settings");
    let (mut driver, poller) = Driver::new(Arc::new(config)).expect("an event loop");
    driver.engine.handle_timeout(clock::now());
    let Some(LinkRequest::Connect(master)) = driver.engine.poll_link() else { panic!("no wish to connect") };
    driver.open(master, Ok(addresses));
    (driver, poller)
}

#[test]
fn a_swallowed_connection_costs_a_quarter_second() {
    let (swallowing, _full) = super::socket::tests::full();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let live = listener.local_addr().expect("bound");
    let ms = Duration::from_millis;
    // With little time, each address gets its share.
    for (dead_count, timeout, shortest) in
        [(1, PATIENCE, ms(250)), (2, PATIENCE, ms(500)), (9, ms(1000), ms(900))]
    {
        eventually_within(shortest + ms(250), "the next address", || {
            let addresses = [vec![swallowing; dead_count], vec![live]].concat();
            let start = clock::now();
            let (mut driver, mut poller) = connecting(addresses, timeout);
            while driver.sockets[0].is_none() {
                // A busy machine may use up the time for all addresses.
                if driver.races.is_empty() {
                    return false;
                }
                driver.turn(&mut poller, Some(PATIENCE)).expect("a turn");
            }
            assert!(clock::now() - start >= shortest, "{dead_count}");
            assert!(driver.races.is_empty() && driver.due().is_some_and(|at| at > clock::now()));
            listener.accept().expect("it is connected");
            true
        });
    }
}

#[test]
fn only_one_address_gets_a_login() {
    let listeners = [(); 2].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port"));
    let addresses = listeners.each_ref().map(|it| it.local_addr().expect("bound"));
    let (mut driver, mut poller) = connecting(addresses.to_vec(), PATIENCE);
    // Both are connected before the driver looks.
    let later = clock::now() + Duration::from_secs(1);
    let open = |socket| Ok(Channel::plain(socket));
    driver.races[0].1.advance(later, &driver.registry, open).expect("attempts");
    let mut peers = listeners.map(|it| it.accept().expect("it is connected").0);
    while driver.sockets[0].is_none() {
        driver.turn(&mut poller, Some(PATIENCE)).expect("a turn");
    }
    driver.turn(&mut poller, Some(Duration::ZERO)).expect("a turn");
    drop(driver);
    let mut sizes = peers.each_mut().map(|peer| peer.read_to_end(&mut Vec::new()).unwrap_or(usize::MAX));
    sizes.sort_unstable();
    assert!(sizes[0] == 0 && sizes[1] > 0, "{sizes:?}");
}

#[test]
fn a_name_that_leads_elsewhere_ends_its_connection() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let (own, other) = (listener.local_addr().expect("bound"), SocketAddr::from(([127, 0, 0, 1], 1)));
    let (mut driver, mut poller) = connecting(vec![own], PATIENCE);
    let master = MasterId::new(0).expect("small");
    while driver.sockets[0].is_none() {
        driver.turn(&mut poller, Some(PATIENCE)).expect("a turn");
    }
    for kept in [&[][..], &[own], &[other, own]] {
        driver.compare(master, kept);
        assert!(driver.sockets[0].is_some(), "{kept:?}");
    }
    driver.compare(master, &[other]);
    assert!(driver.sockets[0].is_none());
    let state = driver.engine.master_status(clock::now(), master).state;
    assert!(matches!(&state, MasterState::Down(why) if why.contains("leads to another server")), "{state:?}");
}

/// A connection without bytes to send must not be polled again and again.
#[test]
fn a_master_that_connects_leaves_nothing_unsent() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let (hanging, _full) = super::socket::tests::full();
    let config = Config::builder().masters(["redis://h", "redis://i"]).connect_timeout(PATIENCE);
    let config = config.build().expect("valid settings");
    let (mut driver, mut poller) = Driver::new(Arc::new(config)).expect("an event loop");
    driver.engine.handle_timeout(clock::now());
    for address in [listener.local_addr().expect("bound"), hanging] {
        let Some(LinkRequest::Connect(master)) = driver.engine.poll_link() else {
            panic!("no wish to connect")
        };
        driver.open(master, Ok(vec![address]));
    }
    while driver.sockets[0].is_none() {
        driver.turn(&mut poller, Some(PATIENCE)).expect("a turn");
    }
    assert!(driver.sockets[1].is_none() && !driver.has_unsent);
    let (mut greeted, _) = listener.accept().expect("it is connected");
    assert!(greeted.read(&mut [0; 1]).expect("it is open") > 0, "the greeting is sent");
}

#[test]
fn a_poller_waits_for_its_time_or_an_event() {
    let config = Config::builder().master("redis://127.0.0.1:1").build().expect("valid settings");
    let (driver, mut poller) = Driver::new(Arc::new(config)).expect("an event loop");
    let ms = Duration::from_millis;
    for spin in [Duration::ZERO, ms(3), ms(50)] {
        poller.spin = spin;
        for timeout in [Duration::ZERO, ms(1), ms(10)] {
            let start = clock::now();
            assert!(poller.wait(Some(timeout)).expect("a poll") && poller.events.is_empty());
            assert!(clock::now() - start >= timeout, "{spin:?}, {timeout:?}");
        }
    }
    for spin in [Duration::ZERO, ms(1), 2 * PATIENCE] {
        poller.spin = spin;
        for timeout in [None, Some(2 * PATIENCE), Some(Duration::ZERO)] {
            driver.wake_poller().expect("a waker");
            let start = clock::now();
            assert!(poller.wait(timeout).expect("a poll") && poller.events.iter().count() == 1);
            assert!(clock::now() - start < PATIENCE, "{spin:?}, {timeout:?}");
        }
    }
}

/// Repeats `run` until it succeeds in less than `limit`: a busy machine may need several tries.
fn eventually_within(limit: Duration, what: &str, mut run: impl FnMut() -> bool) {
    let start = clock::now();
    loop {
        let begun = clock::now();
        let has_succeeded = run();
        let ended = clock::now();
        if has_succeeded && ended - begun < limit {
            return;
        }
        assert!(ended - start < PATIENCE, "{what}: it always takes {limit:?} or more");
    }
}

#[test]
fn a_poller_that_spins_is_not_late() {
    let ms = Duration::from_millis;
    let config =
        Config::builder().master("redis://127.0.0.1:1").spin(ms(10)).build().expect("valid settings");
    let (_driver, mut poller) = Driver::new(Arc::new(config)).expect("an event loop");
    let has_cores_to_spare = thread::available_parallelism().expect("a number").get() > 1;
    assert_eq!(poller.spin, if has_cores_to_spare { ms(10) } else { Duration::ZERO });
    for (spin, timeout, limit) in [(ms(50), ms(1), ms(25)), (ms(50), ms(60), ms(90))] {
        poller.spin = spin;
        let what = format!("a sleep of {timeout:?}");
        eventually_within(limit, &what, || poller.wait(Some(timeout)).expect("a poll"));
    }
}

#[cfg(unix)]
#[test]
fn settling_does_not_wait_for_a_master_that_hangs() {
    let double = redlatch_testing::Double::start(3).expect("free ports");
    for hanging in [false, true] {
        if hanging {
            double.master(0).stop().expect("it runs");
            // No master is ready at once.
            (1..3).for_each(|index| double.master(index).delay(Duration::from_millis(200)));
        }
        let config = of_double(&double).connect_timeout(PATIENCE).build().expect("valid settings");
        let (mut driver, mut poller) = Driver::new(Arc::new(config)).expect("an event loop");
        let start = clock::now();
        driver.settle(&mut poller).expect("an event loop");
        assert!(clock::now() - start < PATIENCE, "{hanging}");
        let states = driver.engine.masters().map(|it| driver.engine.master_state(clock::now(), it));
        let ready = states.filter(|it| *it == MasterState::Ready).count();
        // The third master may be late.
        assert!(ready == 2 || ready == 3 && !hanging, "{hanging}: {ready}");
    }
}

#[cfg(unix)]
#[test]
fn settling_waits_a_moment_for_the_last_master() {
    let double = redlatch_testing::Double::start(3).expect("free ports");
    double.master(0).delay(crate::limits::STRAGGLER_WAIT * 3 / 4);
    let config = Arc::new(of_double(&double).connect_timeout(PATIENCE).build().expect("valid settings"));
    // A busy machine may need several tries.
    for _ in 0..20 {
        let (mut driver, mut poller) = Driver::new(config.clone()).expect("an event loop");
        driver.settle(&mut poller).expect("an event loop");
        if driver.engine.is_settled() {
            return;
        }
    }
    panic!("it goes without the last master");
}

/// A driver whose engine asks to connect to its only master, which listens.
fn asked_to_connect() -> (TcpListener, Driver, Poller) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let url = format!("redis://{}", listener.local_addr().expect("bound"));
    let config = Config::builder().master(url).connect_timeout(PATIENCE).build().expect("valid settings");
    let (mut driver, poller) = Driver::new(Arc::new(config)).expect("an event loop");
    driver.engine.handle_timeout(clock::now());
    (listener, driver, poller)
}

#[test]
fn a_turn_begins_with_what_is_asked_for() {
    let (_listener, mut driver, mut poller) = asked_to_connect();
    let master = MasterId::new(0).expect("small");
    driver.unread.insert(master);
    driver.begin_turn();
    assert_eq!(driver.races.len(), 1, "it connects");
    assert!(driver.unread.is_empty(), "what an earlier connection left unread went with it");
    while driver.sockets[0].is_none() {
        assert!(poller.wait(Some(PATIENCE)).expect("a poll"));
        driver.handle_events(&poller.events);
    }
    assert!(!driver.engine.send_ready(master).is_empty(), "the handshake waits");
    driver.begin_turn();
    assert!(driver.engine.send_ready(master).is_empty() && !driver.has_unsent, "it is written");
}

#[test]
fn abandoned_connection_is_not_read() {
    let (listener, mut driver, mut poller) = asked_to_connect();
    let master = MasterId::new(0).expect("small");
    driver.begin_turn();
    while driver.sockets[0].is_none() {
        driver.turn(&mut poller, Some(PATIENCE)).expect("a turn");
    }
    let (mut peer, _) = listener.accept().expect("it is connected");
    peer.write_all(&[b'?'; 64]).expect("there is room");
    while !matches!(driver.engine.master_status(clock::now(), master).state, MasterState::Down(_)) {
        assert!(poller.wait(Some(PATIENCE)).expect("a poll"));
        driver.receive(master, true);
    }
    assert!(driver.sockets[0].is_none());
}
