//! Advice about TLS is given only if TLS may be the cause.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;

use mio::{Events, Poll, Token};

use redlatch_support::PATIENCE;

use super::{Channel, Received, Socket};
use crate::clock;

/// Error of a failing plaintext connection; `connects` says whether it is open before.
fn trouble(connects: bool, open: impl FnOnce(&Poll) -> Socket, fail: impl FnOnce()) -> String {
    let mut poll = Poll::new().expect("a poller");
    let mut channel = Channel::Plain { socket: open(&poll), has_received: false };
    let given_up = clock::now() + PATIENCE;
    let mut events = Events::with_capacity(1);
    while connects && !channel.is_connected() {
        assert!(clock::now() < given_up, "it does not connect");
        poll.poll(&mut events, Some(PATIENCE)).expect("an event");
        channel.handle_writable().expect("it connects");
    }
    fail();
    loop {
        match channel.recv(&mut [0; 64]) {
            Err(error) => return error.to_string(),
            Ok(Received::Nothing) => assert!(clock::now() < given_up, "it does not fail"),
            Ok(other) => panic!("{other:?}"),
        }
        poll.poll(&mut events, Some(PATIENCE)).expect("an event");
    }
}

// I139
#[test]
fn a_refused_connection_gets_no_advice_on_tls() {
    // Nothing listens there.
    let address = SocketAddr::from(([127, 0, 0, 1], 1));
    let open = |poll: &Poll| Socket::tcp(address, poll.registry(), Token(0)).expect("an attempt");
    let why = trouble(false, open, || {});
    assert!(why.contains("refused") && !why.contains("rediss"), "{why}");
}

// I139
#[test]
fn a_connection_closed_at_once_gets_advice_on_tls() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let address = listener.local_addr().expect("bound");
    let open = |poll: &Poll| Socket::tcp(address, poll.registry(), Token(0)).expect("an attempt");
    let why = trouble(true, open, || drop(listener.accept().expect("a client")));
    assert!(why.contains("if it wants TLS, write rediss://"), "{why}");
}

#[test]
fn an_alert_in_tls_gets_advice_on_tls() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let address = listener.local_addr().expect("bound");
    let open = |poll: &Poll| Socket::tcp(address, poll.registry(), Token(0)).expect("an attempt");
    let alert = [21, 3, 3, 0, 2, 2, 10];
    let write = || listener.accept().expect("a client").0.write_all(&alert).expect("there is room");
    assert_eq!(trouble(true, open, write), "it answers in TLS; write rediss:// in its URL");
}

// I139
#[test]
fn a_unix_socket_gets_no_advice_on_tls() {
    let name = format!("redlatch-channel-{}.sock", std::process::id());
    let path = std::env::temp_dir().join(name);
    let listener = UnixListener::bind(&path).expect("a free name");
    let open = |poll: &Poll| Socket::unix(&path, poll.registry(), Token(0)).expect("an attempt");
    let why = trouble(true, open, || drop(listener.accept().expect("a client")));
    std::fs::remove_file(&path).expect("it is there");
    assert_eq!(why, "the server closed the connection before its first reply; read the server's log");
}

#[test]
fn a_connection_that_has_answered_gets_no_advice_on_tls() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let address = listener.local_addr().expect("bound");
    let mut poll = Poll::new().expect("a poller");
    let socket = Socket::tcp(address, poll.registry(), Token(0)).expect("an attempt");
    let mut channel = Channel::Plain { socket, has_received: false };
    let (mut peer, _) = listener.accept().expect("a client");
    peer.write_all(b"+PONG\r\n").expect("there is room");
    drop(peer);
    let (mut events, mut received) = (Events::with_capacity(1), 0);
    let given_up = clock::now() + PATIENCE;
    loop {
        assert!(clock::now() < given_up, "it does not end");
        poll.poll(&mut events, Some(PATIENCE)).expect("an event");
        channel.handle_writable().expect("it connects");
        while channel.is_connected() {
            match channel.recv(&mut [0; 64]).expect("an end without an error") {
                Received::Bytes { size, .. } => received += size,
                Received::End => return assert_eq!(received, 7),
                _ => break,
            }
        }
    }
}
