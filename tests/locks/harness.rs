//! Clients of a fleet, polls of a future, and a time limit for calls that must not hang.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use redlatch::{Client, Config, ConfigBuilder, Quarantine};
use redlatch_support::settle;
use redlatch_support::stage::Fleet;
use redlatch_support::{PATIENCE, eventually};
use tokio::io::{Interest, unix::AsyncFd};

/// TTL of locks whose expiry no test awaits: no key expires within [`PATIENCE`].
pub(crate) const TTL: Duration = Duration::from_secs(120);
/// An answer limit that no slow answer exceeds.
pub(crate) const LONG: Duration = Duration::from_secs(20);
/// An answer limit that tests wait out.
pub(crate) const SHORT: Duration = Duration::from_millis(300);

/// Settings whose masters vote from the start.
pub(crate) fn config(urls: &[String], answer_timeout: Duration) -> ConfigBuilder {
    let config = Config::builder().masters(urls).quarantine(Quarantine::Trust).max_ttl(TTL);
    let config = config.client_name(name_of(urls));
    config.answer_timeout(answer_timeout).retry_delay(Duration::from_millis(1)..=Duration::from_millis(20))
}

pub(crate) fn open(urls: &[String], answer_timeout: Duration) -> Client {
    config(urls, answer_timeout).connect().expect("an event loop")
}

/// Name of the connections of this fleet's clients. A client of another test may reach a master whose port
/// belonged to a dead master of that test.
fn name_of(urls: &[String]) -> String {
    let port: String = urls[0].chars().filter(char::is_ascii_digit).collect();
    format!("of-{port}")
}

/// Waits until each master has this many connections of this fleet's clients. The double lists none.
pub(crate) fn await_connections(fleet: &mut Fleet, count: usize) {
    let name = format!(" name={} ", name_of(&fleet.urls()));
    for master in fleet.masters() {
        eventually(PATIENCE, "the connections are opened or closed", || {
            master.counted("CLIENT LIST").is_none_or(|list| list.matches(&name).count() == count)
        });
    }
}

/// Waits until each master has one connection of this fleet's clients, and the handshake is complete.
pub(crate) fn await_subscribed(fleet: &mut Fleet) {
    let name = format!(" name={} ", name_of(&fleet.urls()));
    for master in fleet.masters() {
        eventually(PATIENCE, "its connection hears of grants", || {
            let Some(list) = master.counted("CLIENT LIST") else { return true };
            let own: Vec<_> = list.lines().filter(|line| line.contains(&name)).collect();
            matches!(own[..], [line] if line.contains(" ssub=1 "))
        });
        eventually(PATIENCE, "the fleet's record is written", || {
            master.ask("EXISTS redlatch:fleet").text() == "1"
        });
    }
}

/// Asserts that the client knows of no lock and that no keys are left. Other clients must have finished
/// before: a release returns once a quorum has answered.
pub(crate) fn assert_nothing_left(client: &Client, fleet: &mut Fleet) {
    assert_nothing_left_of(&[client], fleet);
}

/// Like [`assert_nothing_left`], for all clients that had locks.
pub(crate) fn assert_nothing_left_of(clients: &[&Client], fleet: &mut Fleet) {
    for client in clients {
        assert_eq!(settle(client, PATIENCE), 0, "locks left on some master");
    }
    for master in fleet.masters() {
        assert_eq!(master.keys(), "[]");
    }
}

/// Waits until each master has the key. A master without the key would grant its vote to a waiter at once, so
/// the waiter would not stand in its queue.
pub(crate) fn await_held(fleet: &mut Fleet, key: &str) {
    for master in fleet.masters() {
        eventually(PATIENCE, "it is on each master", || master.ask(&format!("EXISTS {key}")).text() == "1");
    }
}

/// Waits until this many waiters for this lock stand in the queue of each of these masters.
pub(crate) fn await_waiters(fleet: &mut Fleet, masters: std::ops::Range<usize>, name: &str, count: usize) {
    for index in masters {
        eventually(PATIENCE, "they stand in the queue", || {
            fleet.master(index).ask(&format!("ZCARD redlatch:wait:{name}")).text() == count.to_string()
        });
    }
}

/// Waits until all keys are gone, for whatever reason.
pub(crate) fn await_no_keys(fleet: &mut Fleet) {
    for master in fleet.masters() {
        eventually(PATIENCE, "the keys are released", || master.key_count() == "0");
    }
}

/// Runs something that must not hang, and passes its panic on.
#[track_caller]
pub(crate) fn within<T: Send + 'static>(what: &str, run: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    let running = thread::spawn(move || {
        let result = run();
        // If it took too long, nobody receives.
        let _ = sender.send(result);
    });
    match receiver.recv_timeout(PATIENCE) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("{what}: hangs"),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            std::panic::resume_unwind(running.join().expect_err("it sent nothing"))
        }
    }
}

/// Drives a client's event loop on tokio, in place of the client's thread.
pub(crate) async fn drive_on_tokio(client: Client) {
    let drive = client.drive().expect("a descriptor");
    // The drive ends with the last handle.
    drop(client);
    #[allow(deprecated, reason = "the others are unsafe; a drive owns its descriptor and keeps it open")]
    let mut drive = AsyncFd::with_interest(drive, Interest::READABLE).expect("tokio watches it");
    let mut timer = pin!(tokio::time::sleep(Duration::ZERO));
    std::future::poll_fn(move |context| {
        loop {
            // Cleared before the turn, so that a later event counts as new.
            if let Poll::Ready(ready) = drive.poll_read_ready_mut(context) {
                ready.expect("tokio watches it").clear_ready();
            }
            let Ok(due) = drive.get_mut().turn(context.waker()) else { return Poll::Ready(()) };
            let is_due = due.is_some_and(|due| {
                timer.as_mut().reset(due.into());
                timer.as_mut().poll(context).is_ready()
            });
            if !is_due && drive.poll_read_ready_mut(context).is_pending() {
                return Poll::Pending;
            }
        }
    })
    .await;
}

/// Polls once, with a waker that does nothing.
pub(crate) fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    poll_with(future, Waker::noop())
}

pub(crate) fn poll_with<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

/// Counts its wake-ups.
#[derive(Default)]
pub(crate) struct Count(AtomicUsize);

impl Count {
    pub(crate) fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}
