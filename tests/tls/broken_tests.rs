//! Connections over TLS that break, stall or end.

use std::time::{Duration, Instant};

use redlatch_support::{Certificates, Fleet, PATIENCE, eventually};

use crate::front::{Conduct, Front};
use crate::{TTL, await_down, expect_refusal, open, settings, trusting};

/// A front on which every connection behaves like this.
fn start(conduct: Conduct) -> (Fleet, Certificates, Front) {
    let (certificates, fleet) = (Certificates::new(), Fleet::start(1));
    let front = Front::start(fleet.addrs()[0], &certificates, &[conduct]);
    (fleet, certificates, front)
}

// I138
#[test]
fn an_end_without_close_notify_is_an_error() {
    for reply_size in [0, 3, 100] {
        for inside_record in [false, true] {
            let (_fleet, certificates, front) = start(Conduct::Cut { reply_size, inside_record });
            let client = open(settings(&[front.url()]).tls(trusting(&certificates)));
            // Over the cut connection, at most one acquisition ends.
            let _ = client.lock("a").ttl(TTL).try_acquire();
            await_down(&client, &["the connection was cut without an end of TLS (close_notify)"]);
        }
    }
}

// I138
#[test]
fn an_end_with_close_notify_is_a_close() {
    let (_fleet, certificates, front) = start(Conduct::End { reply_size: 3 });
    let client = open(settings(&[front.url()]).tls(trusting(&certificates)));
    await_down(&client, &["the server closed the connection"]);
}

// I138
#[test]
fn a_cut_inside_a_reply_costs_no_lock() {
    let (certificates, mut fleet) = (Certificates::new(), Fleet::start(1));
    let cut = Conduct::Cut { reply_size: 7000, inside_record: true };
    let front = Front::start(fleet.addrs()[0], &certificates, &[cut, Conduct::Pass("server")]);
    let client = open(settings(&[front.url()]).tls(trusting(&certificates)));
    let given_up = Instant::now() + PATIENCE;
    while front.accepted_count() < 2 {
        assert!(Instant::now() < given_up, "the cut does not come");
        if let Ok(guard) = client.lock("a").ttl(TTL).wait(PATIENCE).acquire() {
            drop(guard);
        }
    }
    client.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("free").release().expect("confirmed");
    eventually(PATIENCE, "nothing is left", || fleet.master(0).key_count() == "0");
}

// I136
#[test]
fn a_peer_that_stalls_ends_by_the_time_limit() {
    let (certificates, fleet) = (Certificates::new(), Fleet::start(1));
    let front = Front::start(fleet.addrs()[0], &certificates, &[Conduct::Stall]);
    let (start, limit) = (Instant::now(), Duration::from_millis(200));
    let client = open(settings(&[front.url()]).tls(trusting(&certificates)).connect_timeout(limit));
    assert!(start.elapsed() >= limit, "no handshake, no connection");
    expect_refusal(
        &client,
        &["no connection within 200ms; check name service, address, firewall, and that the port speaks TLS"],
    );
    eventually(PATIENCE, "it is tried again", || front.accepted_count() >= 3);
}
