//! Credentials that change, for an ACL user `app`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use redlatch::error::{CredentialsError, ProviderError};
use redlatch::status::{MasterState, Warning};
use redlatch::{AcquireError, Client, Config, ConfigBuilder, Credentials, Event};
use redlatch_support::stage::Fleet;
use redlatch_support::{Blocking, PATIENCE, Until, eventually};

use crate::harness::{LONG, TTL, assert_nothing_left, await_held, await_no_keys, await_waiters, config};

/// Longer than any test.
const NEVER: Duration = Duration::from_secs(600);
/// Validity of credentials that are renewed as often as possible.
const BRIEF: Duration = Duration::from_secs(1);

/// What the provider does for a master.
#[derive(Clone)]
enum Conduct {
    Return(&'static str),
    Fail,
    Panic,
    /// Hangs until the sender is dropped.
    Hang(Arc<Mutex<Receiver<()>>>),
}

/// A provider whose conduct can change, for each master.
#[derive(Clone, Default)]
struct Vault(Arc<Mutex<BTreeMap<String, Conduct>>>);

impl Vault {
    fn new(urls: &[String], password: &'static str) -> Self {
        let vault = Self::default();
        vault.set_all(urls, password);
        vault
    }

    fn set(&self, url: &str, conduct: Conduct) {
        self.0.lock().expect("no panic").insert(url.to_owned(), conduct);
    }

    fn set_all(&self, urls: &[String], password: &'static str) {
        urls.iter().for_each(|url| self.set(url, Conduct::Return(password)));
    }

    fn serve(&self, builder: ConfigBuilder) -> ConfigBuilder {
        let vault = self.clone();
        builder.credentials(move |url| {
            let conduct = vault.0.lock().expect("no panic")[url].clone();
            match conduct {
                Conduct::Return(password) => Ok(Credentials::new(password).user("app").valid_for(BRIEF)),
                Conduct::Fail => Err("the vault is sealed".into()),
                Conduct::Panic => std::panic::resume_unwind(Box::new("s3cret")),
                Conduct::Hang(end) => {
                    let _ = end.lock().expect("no panic").recv();
                    Err("the vault was away".into())
                }
            }
        })
    }
}

/// Starts masters whose user `app` has this password.
fn start(count: usize, password: &str) -> Option<Fleet> {
    let mut fleet = Fleet::servers(count)?;
    set_user(&mut fleet, &format!("on >{password} ~* &* +@all"));
    Some(fleet)
}

fn set_user(fleet: &mut Fleet, rule: &str) {
    for master in fleet.masters() {
        assert_eq!(master.ask(&format!("ACL SETUSER app {rule}")).text(), "OK");
    }
}

/// Opens a client with enough time for a busy machine.
fn open_patient(builder: ConfigBuilder) -> Client {
    open(builder.connect_timeout(LONG))
}

fn open(builder: ConfigBuilder) -> Client {
    builder.connect().expect("an event loop")
}

/// Number of logins that a master has accepted.
fn login_count(fleet: &mut Fleet, index: usize) -> u64 {
    let stats = fleet.master(index).ask("INFO commandstats").text();
    let line = stats.lines().find(|line| line.starts_with("cmdstat_auth:")).unwrap_or_default();
    let of = |name: &str| {
        let value = line.split([':', ',']).find_map(|field| field.strip_prefix(name));
        value.map_or(0, |value| value.parse::<u64>().expect("a number"))
    };
    of("calls=") - of("failed_calls=")
}

/// Waits until each master has accepted this many further logins.
fn await_logins(fleet: &mut Fleet, before: &[u64], count: u64) {
    for (index, before) in before.iter().enumerate() {
        eventually(PATIENCE, "the new credentials are accepted", || {
            login_count(fleet, index) >= before + count
        });
    }
}

fn login_counts(fleet: &mut Fleet) -> Vec<u64> {
    (0..fleet.urls().len()).map(|index| login_count(fleet, index)).collect()
}

fn errors(client: &Client) -> Vec<CredentialsError> {
    let warnings = client.masters().into_iter().flat_map(|master| master.warnings);
    warnings
        .filter_map(|warning| match warning {
            Warning::CredentialsFailed { error } => Some(error),
            _ => None,
        })
        .collect()
}

fn why_down(client: &Client, index: usize) -> String {
    match &client.masters()[index].state {
        MasterState::Down(why) => why.to_string(),
        _ => String::new(),
    }
}

// I141
#[test]
fn password_change_under_load_loses_no_lock() {
    let Some(mut fleet) = start(5, "pw0") else { return };
    let urls = fleet.urls();
    let vault = Vault::new(&urls, "pw0");
    let clients = [(); 2].map(|()| open_patient(vault.serve(config(&urls, LONG))));
    let guard = clients[0].lock("kept").ttl(TTL).auto_extend(NEVER).wait(PATIENCE).acquire().expect("free");
    let (is_over, turns, inside) = (AtomicBool::new(false), AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let _end = Until(&is_over);
        for index in 0..6 {
            let (client, is_over, turns, inside) = (&clients[index % 2], &is_over, &turns, &inside);
            scope.spawn(move || {
                while !is_over.load(Ordering::SeqCst) {
                    let guard = client.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("free in a while");
                    assert!(!inside.swap(true, Ordering::SeqCst), "two holders");
                    turns.fetch_add(1, Ordering::SeqCst);
                    inside.store(false, Ordering::SeqCst);
                    assert!(!guard.release().expect("confirmed").was_already_gone());
                }
            });
        }
        eventually(PATIENCE, "the load runs", || turns.load(Ordering::SeqCst) > 20);
        for (old, new) in [("pw0", "pw1"), ("pw1", "pw2")] {
            let before = login_counts(&mut fleet);
            set_user(&mut fleet, &format!(">{new}"));
            vault.set_all(&urls, new);
            // Each of the two clients has one connection to each master.
            await_logins(&mut fleet, &before, 2);
            set_user(&mut fleet, &format!("<{old}"));
            let turns_before = turns.load(Ordering::SeqCst);
            eventually(PATIENCE, "the load goes on", || turns.load(Ordering::SeqCst) > turns_before + 20);
        }
    });
    assert!(guard.is_valid());
    guard.release().expect("confirmed");
    for client in &clients {
        let stats = client.stats();
        let failed = stats.masters.iter().map(|master| master.credentials_failed).sum::<u64>();
        assert_eq!((stats.lost, stats.reconnects(), failed, errors(client)), (0, 0, 0, vec![]));
    }
    assert_nothing_left(&clients[0], &mut fleet);
    assert_nothing_left(&clients[1], &mut fleet);
}

// I54
#[test]
fn a_waiter_is_served_behind_changed_credentials() {
    let Some(mut fleet) = start(3, "pw0") else { return };
    let urls = fleet.urls();
    let vault = Vault::new(&urls, "pw0");
    let holder = open(config(&urls, LONG));
    let guard = holder.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("free");
    await_held(&mut fleet, "a");
    // The waiter does not try again on its own.
    let patient = config(&urls, LONG).ask_holder(false).retry_delay(NEVER..=NEVER);
    let waiter = open_patient(vault.serve(patient));
    let waiting = waiter.lock("a").ttl(TTL).wait(PATIENCE).acquire_async();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| waiting.block());
        await_waiters(&mut fleet, 0..3, "a", 1);
        let before = login_counts(&mut fleet);
        set_user(&mut fleet, "resetpass >pw1");
        vault.set_all(&urls, "pw1");
        await_logins(&mut fleet, &before, 1);
        await_waiters(&mut fleet, 0..3, "a", 1);
        guard.release().expect("confirmed");
        waiting.join().expect("no panic").expect("served").release().expect("confirmed");
    });
    assert_eq!((waiter.stats().reconnects(), errors(&waiter)), (0, vec![]));
}

// I142
#[test]
fn a_bad_provider_costs_its_masters_only() {
    let Some(mut fleet) = start(5, "s3cret") else { return };
    let urls = fleet.urls();
    let vault = Vault::new(&urls, "s3cret");
    let (end, ended) = mpsc::channel();
    vault.set(&urls[0], Conduct::Panic);
    vault.set(&urls[1], Conduct::Hang(Arc::new(Mutex::new(ended))));
    let client = open(vault.serve(config(&urls, LONG)));
    client.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("three masters").release().expect("confirmed");
    eventually(PATIENCE, "the panic is shown", || why_down(&client, 0).contains("provider panicked"));
    eventually(PATIENCE, "the hang is shown", || why_down(&client, 1).contains("gave no answer within 1s"));
    assert_eq!(client.health().may_fail, 0);
    // A standing connection stays, and does not ask the provider.
    vault.set(&urls[2], Conduct::Fail);
    let sealed = CredentialsError::Failed(ProviderError::new("the vault is sealed"));
    eventually(PATIENCE, "a failed renewal is a warning", || errors(&client) == [sealed.clone()]);
    client.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("three masters").release().expect("confirmed");
    // Fewer masters than a quorum are left.
    fleet.master(2).restart();
    set_user(&mut fleet, "on >s3cret ~* &* +@all");
    eventually(PATIENCE, "the reason is shown", || why_down(&client, 2).contains("provider failed"));
    let error = client.lock("a").ttl(TTL).try_acquire().map(drop).expect_err("no quorum");
    assert!(matches!(error, AcquireError::NoQuorum(_)), "{error}");
    let shown = format!("{error} {error:?} {client:?} {:#} {:?}", client.health(), client.config());
    assert!(!shown.contains("s3cret") && !shown.contains("115, 51, 99"), "{shown}");
    assert!(shown.contains("provider failed") && !shown.contains("sealed"), "{shown}");
    assert!(shown.contains("provider panicked"), "{shown}");
    // All calls of the provider return.
    vault.set_all(&urls, "s3cret");
    drop(end);
    eventually(PATIENCE, "all masters count", || client.health().may_fail == 2);
    assert_eq!(errors(&client), []);
}

// I141
#[test]
fn refused_credentials_stay_until_the_server_closes() {
    let Some(mut fleet) = start(3, "right") else { return };
    let urls = fleet.urls();
    let vault = Vault::new(&urls, "right");
    let (sender, events) = mpsc::channel();
    let sender = Mutex::new(sender);
    let observed = config(&urls, LONG).on_event(move |event| {
        // The test may have ended.
        let _ = sender.lock().expect("no panic").send(event.clone());
    });
    let client = open_patient(vault.serve(observed));
    let mut guard = client.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("free");
    vault.set_all(&urls, "wr0ng");
    eventually(PATIENCE, "each master refuses them", || errors(&client).len() == 3);
    guard.extend(TTL).expect("all connections stay");
    assert_eq!(client.stats().reconnects(), 0);
    let refusal = |event: Event| match event {
        Event::CredentialsFailed { error: CredentialsError::Refused { refusal }, .. } => Some(refusal),
        _ => None,
    };
    // The observer runs on a separate thread.
    let refusals = std::iter::from_fn(|| events.recv_timeout(PATIENCE).ok()).filter_map(refusal);
    let refusals: Vec<_> = refusals.take(3).collect();
    assert!(refusals.len() == 3 && refusals[0].starts_with("WRONGPASS"), "{refusals:?}");
    assert!(!format!("{client:?} {:#}", client.health()).contains("wr0ng"));
    // The server ends the connection and refuses the next login.
    assert_eq!(fleet.master(0).ask("ACL DELUSER app").text(), "1");
    eventually(PATIENCE, "the login is refused", || why_down(&client, 0).contains("the login was refused"));
    guard.extend(TTL).expect("two connections stay");
    set_user(&mut fleet, "on resetpass >wr0ng ~* &* +@all");
    eventually(PATIENCE, "all are accepted", || client.health().may_fail == 1 && errors(&client).is_empty());
    guard.release().expect("confirmed");
    await_no_keys(&mut fleet);
}

// I142
#[test]
fn a_redlock_renews_credentials_in_its_calls() {
    let Some(mut fleet) = start(3, "pw0") else { return };
    let urls = fleet.urls();
    let vault = Vault::new(&urls, "pw0");
    let settings = vault.serve(config(&urls, LONG)).connect_timeout(LONG).build().expect("valid settings");
    let mut redlock = Blocking::open(settings).expect("an event loop");
    let lease = redlock.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("free");
    let before = login_counts(&mut fleet);
    set_user(&mut fleet, "resetpass >pw1");
    vault.set_all(&urls, "pw1");
    for (index, before) in before.iter().enumerate() {
        eventually(PATIENCE, "the new credentials are accepted", || {
            redlock.turn(Duration::from_millis(1)).expect("an event loop");
            login_count(&mut fleet, index) > *before
        });
    }
    redlock.release(lease).expect("confirmed");
    assert_eq!((redlock.stats().lost, redlock.stats().reconnects()), (0, 0));
}

/// One master ends the connection of a client that nobody calls; waits until the client has reconnected. Only
/// one master, because work for others would make the client's thread look.
fn a_connection_returns_without_a_call(fleet: &mut Fleet, builder: ConfigBuilder) {
    let client = open(builder);
    eventually(PATIENCE, "all masters count", || client.health().may_fail == 1);
    assert_eq!(fleet.master(0).ask("CLIENT KILL SKIPME yes").text(), "1");
    eventually(PATIENCE, "the connection is made again", || client.stats().reconnects() >= 1);
}

// I144
#[test]
fn an_idle_client_reconnects_with_its_provider() {
    let Some(mut fleet) = start(3, "pw") else { return };
    // Credentials without an end, so that no renewal makes the client's thread look.
    let builder = config(&fleet.urls(), LONG).credentials(|_| Ok(Credentials::new("pw").user("app")));
    a_connection_returns_without_a_call(&mut fleet, builder);
}

// I144
#[test]
fn an_idle_client_reconnects_by_host_names() {
    let Some(mut fleet) = Fleet::servers(3) else { return };
    let urls: Vec<_> = fleet.urls().iter().map(|url| url.replace("127.0.0.1", "localhost")).collect();
    assert!(urls.iter().all(|url| url.contains("localhost")), "{urls:?}");
    a_connection_returns_without_a_call(&mut fleet, config(&urls, LONG));
}

#[test]
fn a_provider_needs_urls_without_a_login() {
    let urls = ["redis://app:s3cret@127.0.0.1:1"];
    let error = Config::builder()
        .masters(urls)
        .credentials(|_| Err("unused".into()))
        .build()
        .expect_err("two logins");
    assert!(!error.to_string().contains("s3cret"), "{error}");
}

#[test]
fn a_password_file_is_read_at_each_connect() {
    let Some(mut fleet) = Fleet::servers(1) else { return };
    assert_eq!(fleet.master(0).ask("CONFIG SET requirepass first").text(), "OK");
    let path = std::env::temp_dir().join(format!("redlatch-reread-{}", std::process::id()));
    std::fs::write(&path, "first\n").expect("a directory for temporary files");
    let lookup = |name: &str| match name {
        "REDLATCH_MASTERS" => Some(fleet.urls().join(",").into()),
        "REDLATCH_PASSWORD_FILE" => Some(path.clone().into()),
        _ => None,
    };
    let builder = redlatch::env::builder(lookup).expect("valid settings");
    let builder = builder.quarantine(redlatch::Quarantine::Trust).connect_timeout(PATIENCE).max_ttl(TTL);
    let client = Client::open(builder.build().expect("valid settings")).expect("an event loop");
    drop(client.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("the first password"));
    std::fs::write(&path, "second").expect("it was written before");
    fleet.master(0).ask("CONFIG SET requirepass second");
    fleet.master(0).ask("CLIENT KILL TYPE normal");
    let acquired = client.lock("b").ttl(TTL).wait(PATIENCE).acquire();
    std::fs::remove_file(&path).expect("it is there");
    drop(acquired.expect("the second password"));
}
