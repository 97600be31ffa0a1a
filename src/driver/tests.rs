//! A driver whose master's name has several addresses.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::{Config, Driver, LinkRequest};
use crate::clock;
use crate::lock::MasterId;
use crate::status::MasterState;

/// How long anything may take that must happen: a slow machine only takes longer.
const PATIENCE: Duration = Duration::from_secs(40);

/// A server that accepts one connection, and does not answer in TLS.
fn start_plain() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let address = listener.local_addr().expect("bound");
    thread::spawn(move || {
        let (mut client, _) = listener.accept().expect("a client");
        client.write_all(&[b'?'; 64]).expect("it is read");
        // Until the client goes.
        let _ = std::io::copy(&mut client, &mut std::io::sink());
    });
    address
}

/// Says why the master cannot be connected if its name has these addresses.
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

#[test]
fn the_most_informative_trouble_of_an_address_is_reported() {
    // Nothing listens there; and nobody can connect to all hosts.
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
