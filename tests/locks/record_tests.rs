//! Records of a fleet: a second client notices different settings soon after its start.

use std::time::{Duration, Instant};

use redlatch::status::{FleetDifference, Warning};
use redlatch::{Client, Config, ConfigBuilder, Event, Quarantine};
use redlatch_support::stage::Fleet;
use redlatch_support::{PATIENCE, eventually};

use crate::harness::LONG;

fn settings(urls: &[String]) -> ConfigBuilder {
    Config::builder()
        .masters(urls)
        .quarantine(Quarantine::Trust)
        .prefix("p:")
        .answer_timeout(LONG)
        .connect_timeout(PATIENCE)
}

fn differences(client: &Client) -> Vec<FleetDifference> {
    let difference = |warning| match warning {
        Warning::FleetDiffers { difference } => Some(difference),
        _ => None,
    };
    client.masters().into_iter().flat_map(|it| it.warnings).filter_map(difference).collect()
}

/// A client whose settings each master has recorded.
fn recorded(fleet: &mut Fleet, urls: &[String]) -> Client {
    let client = settings(urls).connect().expect("an event loop");
    for index in 0..urls.len() {
        eventually(PATIENCE, "there is a record", || {
            fleet.master(index).ask("GET p:redlatch:fleet").text().starts_with("redlatch:fleet:1 observed ")
        });
    }
    client
}

/// Starts a second client, which reports a difference soon.
fn noticing(what: &str, settings: ConfigBuilder) -> Client {
    let (sender, events) = std::sync::mpsc::channel();
    let start = Instant::now();
    let second = settings.on_event(move |event| {
        if matches!(event, Event::FleetDiffers { .. }) {
            let _ = sender.send(event.clone());
        }
    });
    let second = second.connect().expect("an event loop");
    // Usually within a second; the limit allows for a busy machine.
    events.recv_timeout(PATIENCE).expect("an event");
    println!("{what} are noticed {:?} after the second client's start", start.elapsed());
    second
}

// I30
#[test]
fn two_maximum_ttls_are_noticed_at_the_connect() {
    let mut fleet = Fleet::start(3);
    let urls = fleet.urls();
    let first = recorded(&mut fleet, &urls);
    let second = noticing("two maximum TTLs", settings(&urls).max_ttl(Duration::from_secs(9)));
    let secs = Duration::from_secs;
    eventually(PATIENCE, "each master differs", || {
        differences(&second) == vec![FleetDifference::MaxTtl { recorded: secs(30), ours: secs(9) }; 3]
    });
    assert_eq!(second.stats().masters[0].fleet_differences, 1);
    assert_eq!(differences(&first), []);
    second.lock("a").acquire().expect("it locks all the same").release().expect("confirmed");
}
