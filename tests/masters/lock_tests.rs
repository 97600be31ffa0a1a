//! `Redlock` on real masters: scripts, logins, and servers that talk garbage.

use std::time::{Duration, Instant};

use redlatch::scripts::SCRIPTS;
use redlatch::status::MasterState;
use redlatch::{Config, ConfigBuilder, Quarantine};
use redlatch_support::{Blocking, Fleet, PATIENCE};

use crate::rogue::Rogue;

pub(crate) const TTL: Duration = Duration::from_secs(10);
/// Longer than a slow machine delays an answer.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

pub(crate) fn settings(urls: &[String]) -> ConfigBuilder {
    Config::builder().masters(urls).quarantine(Quarantine::Trust).answer_timeout(ANSWER_TIMEOUT)
}

/// Opens a client that knows the state of each master.
pub(crate) fn open(builder: ConfigBuilder) -> Blocking {
    let mut redlock = Blocking::open(builder.build().expect("valid settings")).expect("an event loop");
    drive(&mut redlock, "each master is up or down", |redlock| {
        redlock.masters().iter().all(|master| master.state != MasterState::Connecting)
    });
    redlock
}

/// Drives the loop until a condition is true.
pub(crate) fn drive(redlock: &mut Blocking, what: &str, mut is_true: impl FnMut(&Blocking) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_true(redlock) {
        assert!(Instant::now() < deadline, "not in time: {what}");
        redlock.turn(Duration::from_millis(5)).expect("the loop runs");
    }
}

pub(crate) fn state(redlock: &Blocking, index: usize) -> MasterState {
    redlock.masters().swap_remove(index).state
}

#[test]
fn our_script_digests_match_and_survive_a_flush() {
    let mut fleet = Fleet::start(1);
    let mut redlock = open(settings(&fleet.urls()));
    for script in SCRIPTS.iter().filter(|script| ["release", "extend"].contains(&script.name)) {
        let exists = format!("SCRIPT EXISTS {}", script.sha);
        assert_eq!(fleet.master(0).ask(&exists).text(), "[1]", "{}", script.name);
    }
    let mut lease = redlock.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("free");
    fleet.master(0).ask("SCRIPT FLUSH");
    redlock.extend(&mut lease, TTL).expect("held");
    fleet.master(0).ask("SCRIPT FLUSH");
    assert_eq!(redlock.release(lease).map(|released| released.deleted), Ok(1));
}

#[test]
fn user_password_database_and_unix_socket_work() {
    let mut fleet = Fleet::start_with_sockets(1, &["--requirepass", "s3cret"]);
    let open_url = |url: String| open(settings(&[url]));
    let with_login = |fleet: &mut Fleet, login: &str, tail: &str| {
        format!("{}{tail}", fleet.master(0).url().replace("redis://", &format!("redis://{login}@")))
    };
    let url = fleet.master(0).url();
    let error = open_url(url).lock("a").ttl(TTL).try_acquire().expect_err("no password");
    let said =
        "NOAUTH Authentication required. (it needs a password; put user and password into this master's URL)";
    assert!(error.to_string().contains(said), "{error}");
    let url = with_login(&mut fleet, ":wrong-pw", "");
    let error = open_url(url).lock("a").ttl(TTL).try_acquire().expect_err("wrong password");
    assert!(error.to_string().contains("WRONGPASS") && !error.to_string().contains("wrong-pw"), "{error}");
    let url = with_login(&mut fleet, "default:s3cret", "/3");
    let mut redlock = open_url(url);
    let lease = redlock.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("logged in");
    assert!(!format!("{redlock:?} {lease:?} {:?}", redlock.config()).contains("s3cret"));
    let unix_url = fleet.master(0).unix_url().replace("unix://", "unix://:s3cret@");
    drop(open_url(unix_url).lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("database 0 is another one"));
}

#[test]
fn garbage_or_mute_server_harms_nobody() {
    let fleet = Fleet::start(3);
    // Each connection gets this greeting, so the next one must not be mistaken for a silent server.
    let rogues = [Rogue::start(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()), Rogue::start(Vec::new())];
    let mut urls = fleet.urls();
    urls.extend(rogues.iter().map(Rogue::url));
    let mut redlock = open(settings(&urls));
    let (garbage, mute) = (state(&redlock, 3), state(&redlock, 4));
    assert!(matches!(&garbage, MasterState::Down(why) if why.contains("is it a Redis")), "{garbage:?}");
    assert!(
        matches!(&mute, MasterState::Down(why) if why.contains("no answer to the handshake")),
        "{mute:?}"
    );
    let lease = redlock.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("three of five are sane");
    redlock.release(lease).expect("confirmed");
}
