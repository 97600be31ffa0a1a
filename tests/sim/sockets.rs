//! Rules of the driver, on real sockets with a model master.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use redlatch::engine::{Outcome, Request, Resource};
use redlatch::status::MasterState;
use redlatch::{AcquireError, Client, Config, Options, Quarantine, Redlock, limits};

use crate::directed::Verdict;
use crate::model::ModelMaster;

/// A model master behind a port, for one connection; it ends with the connection.
struct Server {
    url: String,
    model: Arc<Mutex<ModelMaster>>,
    thread: JoinHandle<()>,
}

impl Server {
    fn start(change: impl FnOnce(&mut ModelMaster)) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("redis://{}", listener.local_addr().expect("bound"));
        let mut model = ModelMaster::new("a", Instant::now());
        change(&mut model);
        let model = Arc::new(Mutex::new(model));
        let shared = model.clone();
        let thread = std::thread::spawn(move || serve(&listener, &shared));
        Self { url, model, thread }
    }

    fn connect(&self) -> Redlock {
        let builder = Config::builder().master(&self.url).quarantine(Quarantine::Trust);
        let config = builder.answer_timeout(ANSWER_TIMEOUT).connect_timeout(CONNECT_TIMEOUT).build();
        Redlock::open(config.expect("valid settings")).expect("an event loop")
    }

    fn client(&self, answer_timeout: Duration) -> Client {
        let builder = Config::builder().master(&self.url).quarantine(Quarantine::Trust);
        let config = builder.answer_timeout(answer_timeout).connect_timeout(CONNECT_TIMEOUT).build();
        Client::open(config.expect("valid settings")).expect("an event loop")
    }

    fn holds(&self, key: &[u8]) -> bool {
        self.model.lock().expect("no panic").value(Instant::now(), key).is_some()
    }

    /// Waits until the key exists, or does not.
    fn await_key(&self, key: &[u8], is_held: bool) -> Verdict {
        let deadline = Instant::now() + PATIENCE;
        while self.holds(key) != is_held {
            if Instant::now() > deadline {
                return Err(format!("the key should be {}", if is_held { "there" } else { "gone" }));
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    fn end(self, redlock: Redlock) -> Verdict {
        drop(redlock);
        self.thread.join().map_err(|_| "the server panicked".to_owned())
    }
}

const ANSWER_TIMEOUT: Duration = Duration::from_millis(100);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK_COUNT: u32 = 10;

fn serve(listener: &TcpListener, model: &Mutex<ModelMaster>) {
    let (mut stream, _) = listener.accept().expect("a client comes");
    let (mut input, mut replies, mut buffer) = (Vec::new(), Vec::new(), vec![0; 64 * 1024]);
    while let Ok(size) = stream.read(&mut buffer)
        && size > 0
    {
        input.extend_from_slice(&buffer[..size]);
        model.lock().expect("no panic").handle(Instant::now(), &mut input, &mut replies);
        if stream.write_all(&replies).is_err() {
            return;
        }
        replies.clear();
    }
}

/// The handshake's answers take more than one read.
// I154
pub fn more_than_one_read_full_of_replies_is_read() -> Verdict {
    let server = Server::start(|model| model.maxmemory_policy = "x".repeat(redlatch::limits::READ_SIZE));
    let redlock = server.connect();
    let is_ready = redlock.masters()[0].state == MasterState::Ready;
    server.end(redlock)?;
    if is_ready { Ok(()) } else { Err("the end of the answer was not read".to_owned()) }
}

/// The server reads nothing for a while, so its socket takes only a part of each write.
// I154
pub fn a_short_write_is_continued() -> Verdict {
    let server = Server::start(|_| {});
    // Nothing may time out meanwhile, because the release would write the rest.
    let long = 4 * PATIENCE;
    let config = Config::builder().master(&server.url).quarantine(Quarantine::Trust);
    let config = config.answer_timeout(long).max_ttl(2 * long);
    let mut redlock = Redlock::open(config.build().expect("valid settings")).expect("an event loop");
    let busy = server.model.lock().expect("no panic");
    let (mut last, width) = (String::new(), limits::RESOURCE_SIZE_MAX);
    // Until the client has no more room either.
    for index in 0..limits::OPERATION_COUNT_MAX {
        let name = format!("{index:0width$}");
        let resource = Resource::new(&name).expect("valid");
        let options = Options::new().ttl(long + PATIENCE).wait(Duration::ZERO);
        if redlock.submit(Request::Acquire { resource, options, label: None }).is_err() {
            break;
        }
        redlock.flush();
        if redlock.poll_outcome().is_some() {
            break;
        }
        last = name;
    }
    drop(busy);
    assert!(!last.is_empty(), "something was sent");
    let deadline = Instant::now() + PATIENCE;
    while !server.holds(last.as_bytes()) {
        if Instant::now() > deadline {
            return Err("what the socket did not take at first was not written".to_owned());
        }
        redlock.turn(Duration::from_millis(1)).expect("the loop runs");
    }
    server.end(redlock)
}

/// For example, the process was stopped when the answer arrived.
// I2
pub fn received_answer_is_read_before_timeouts() -> Verdict {
    let server = Server::start(|_| {});
    let mut redlock = server.connect();
    let resource = Resource::new("a").expect("valid");
    let options = Options::new().ttl(Duration::from_secs(20)).wait(Duration::ZERO);
    redlock.submit(Request::Acquire { resource, options, label: None }).map_err(|error| error.to_string())?;
    redlock.flush();
    server.await_key(b"a", true)?;
    std::thread::sleep(2 * ANSWER_TIMEOUT);
    redlock.turn(PATIENCE).expect("the loop runs");
    let outcome = redlock.poll_outcome();
    server.end(redlock)?;
    match outcome {
        Some((_, Outcome::Acquire(Ok(_)))) => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

// I24
pub fn a_dropped_guard_is_released_also_in_a_panic() -> Verdict {
    let server = Server::start(|_| {});
    let client = server.client(PATIENCE);
    let guard = client.lock("a").ttl(Duration::from_secs(20)).acquire().map_err(|error| error.to_string())?;
    let panic = catch_unwind(AssertUnwindSafe(move || {
        let _held = guard;
        std::panic::resume_unwind(Box::new(()));
    }));
    assert!(panic.is_err());
    let verdict = server.await_key(b"a", false);
    drop(client);
    server.thread.join().map_err(|_| "the server panicked".to_owned()).and(verdict)
}

/// A task is polled again long after its lock was acquired.
// I2
pub fn a_late_fetched_answer_is_no_lock() -> Verdict {
    let server = Server::start(|_| {});
    let client = server.client(PATIENCE);
    // On a busy machine, the answer may take long.
    let ttl = Duration::from_secs(1);
    let mut acquiring = client.lock("a").ttl(ttl).acquire_async();
    let mut poll = || Pin::new(&mut acquiring).poll(&mut Context::from_waker(Waker::noop()));
    assert!(poll().is_pending());
    server.await_key(b"a", true)?;
    std::thread::sleep(2 * ttl);
    let answer = poll();
    drop(acquiring);
    let verdict = match answer {
        Poll::Ready(Err(AcquireError::Expired(_))) => Ok(()),
        other => Err(format!("{other:?}")),
    };
    drop(client);
    server.thread.join().map_err(|_| "the server panicked".to_owned()).and(verdict)
}

/// The lock is valid when it is fetched, but for less time than required.
// I2
pub fn a_late_fetched_answer_has_enough_validity() -> Verdict {
    let server = Server::start(|_| {});
    let client = server.client(PATIENCE);
    let (ttl, min_validity) = (Duration::from_secs(20), Duration::from_secs(18));
    let mut acquiring = client.lock("a").ttl(ttl).min_validity(min_validity).acquire_async();
    let mut poll = || Pin::new(&mut acquiring).poll(&mut Context::from_waker(Waker::noop()));
    assert!(poll().is_pending());
    server.await_key(b"a", true)?;
    std::thread::sleep(ttl - min_validity);
    let answer = poll();
    drop(acquiring);
    let verdict = match answer {
        Poll::Ready(Err(AcquireError::Expired(_))) => Ok(()),
        other => Err(format!("{other:?}")),
    };
    drop(client);
    server.thread.join().map_err(|_| "the server panicked".to_owned()).and(verdict)
}

/// Repeats something and measures the total, which must be less than half of the pauses after which a
/// client's thread looks by itself. Such looks would hide that nothing wakes the thread.
fn far_from_looking(mut round: impl FnMut() -> Verdict) -> Verdict {
    let start = Instant::now();
    for _ in 0..LOOK_COUNT {
        round()?;
    }
    let took = start.elapsed();
    let limit = limits::LOOK_PAUSE * LOOK_COUNT / 2;
    if took < limit { Ok(()) } else { Err(format!("{LOOK_COUNT} deadlines took {took:?}")) }
}

/// Acquires locks without extension, and waits for the report of each loss. Keeps all guards, because a drop
/// makes a thread look.
fn losses_are_reported_in_time(client: &Client) -> Verdict {
    let mut guards = Vec::new();
    far_from_looking(|| {
        let name = guards.len().to_string();
        let guard = client.lock(&name).ttl(Duration::from_millis(50)).wait(PATIENCE).acquire();
        let guard = guard.map_err(|error| error.to_string())?;
        let (sender, receiver) = mpsc::channel();
        guard.on_lost(move || sender.send(()).unwrap_or_default());
        guards.push(guard);
        receiver.recv_timeout(PATIENCE).map_err(|_| "the loss is not reported".to_owned())
    })
}

/// Nobody waits, and the client's thread sleeps.
// I95
pub fn a_loss_is_reported_in_time_though_nobody_calls() -> Verdict {
    let server = Server::start(|_| {});
    let client = server.client(PATIENCE);
    let verdict = losses_are_reported_in_time(&client);
    drop(client);
    server.thread.join().map_err(|_| "the server panicked".to_owned()).and(verdict)
}

/// A thread waits for a lock, and sleeps until that lock expires.
// I95
pub fn a_loss_is_reported_in_time_beside_a_leader() -> Verdict {
    let server = Server::start(|_| {});
    let client = server.client(PATIENCE);
    let held = client.lock("held").ttl(Duration::from_secs(30)).acquire().expect("free");
    let its = client.clone();
    let leader = std::thread::spawn(move || its.lock("held").wait(PATIENCE * 6).acquire().map(drop));
    let verdict = losses_are_reported_in_time(&client);
    drop(held);
    leader.join().map_err(|_| "the leader panicked".to_owned())?.map_err(|error| error.to_string())?;
    drop(client);
    server.thread.join().map_err(|_| "the server panicked".to_owned()).and(verdict)
}

tests!(
    a_late_fetched_answer_has_enough_validity,
    a_loss_is_reported_in_time_though_nobody_calls,
    a_loss_is_reported_in_time_beside_a_leader,
    a_late_fetched_answer_is_no_lock,
    more_than_one_read_full_of_replies_is_read,
    a_short_write_is_continued,
    received_answer_is_read_before_timeouts,
    a_dropped_guard_is_released_also_in_a_panic,
);
