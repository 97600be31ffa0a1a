//! A client whose steps are taken one by one, and its page.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::pin::Pin;
use std::sync::Weak;
use std::task::{Context, Poll, Wake};
use std::time::Duration;

use super::super::super::background::BackgroundAct;
use super::super::super::*;
use crate::client::{Client, Drive, Guard, LockEnd};
use crate::config::tests::of_double;
use crate::engine::Released;
use crate::error::{AcquireError, ReleaseError};
use crate::lock::MasterId;
use redlatch_support::PATIENCE;
use redlatch_testing::Double;

/// Longer than any test, so that nothing ends because of it.
pub(super) const LONG: Duration = Duration::from_secs(600);

/// Name of a drive that the background thread watches.
const RUNTIME: &str = "the runtime";

type Acquiring = Pin<Box<dyn Future<Output = Result<Guard, AcquireError>>>>;
type Names = Arc<Mutex<Vec<&'static str>>>;

/// Notes its name when it is woken, and whether its wake-up or its drop comes with a client's mutex held.
struct Named(&'static str, Names, Weak<Shared>);

impl Named {
    fn note(&self, name: &'static str) {
        self.1.lock().expect("no panic").push(name);
    }

    fn look(&self) {
        if self.2.upgrade().is_some_and(|shared| shared.is_locked()) {
            self.note("A WAKER UNDER THE LOCK");
        }
    }
}

impl Wake for Named {
    fn wake(self: Arc<Self>) {
        self.look();
        self.note(self.0);
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        self.look();
    }
}

pub(super) struct Stage {
    double: Double,
    pub(super) client: Client,
    is_alone: bool,
    seen_drop_count: u64,
    /// All names that were woken, and how many of them are shown.
    woken: Names,
    shown_woken_count: usize,
    /// End of the last turn that was shown.
    pub(super) shown_turn: Instant,
    acquiring: BTreeMap<&'static str, Acquiring>,
    pub(super) guards: BTreeMap<&'static str, Guard>,
    threads: BTreeMap<&'static str, JoinHandle<Guard>>,
    pub(super) drive: Option<Drive>,
    shown: BTreeMap<&'static str, String>,
    pub(super) page: String,
}

/// How a sleep until this time relates to the time when work is due.
fn sleep(until: Option<Instant>, due: Option<Instant>) -> &'static str {
    match (until, due) {
        (None, None) => "sleeps",
        (None, Some(_)) => "SLEEPS FOR EVER",
        (Some(until), Some(due)) if until > due + limits::DROP_LINGER => "SLEEPS TOO LONG",
        (Some(_), _) => "sleeps in time",
    }
}

/// A drive that nobody watches does due work, and need not look.
fn keeps_time(inner: &Inner) -> bool {
    inner.background.drive.as_ref().is_none_or(|drive| drive.is_watched)
}

fn state(inner: &mut Inner) -> Vec<(&'static str, String)> {
    let relay = inner.completions.relay_until();
    let look = keeps_time(inner).then(|| earlier(inner.due(), Some(inner.look_at(inner.last_turn))));
    let late_at = inner.background.drive.as_ref().and_then(|drive| drive.late_at);
    let look = earlier(look.flatten(), late_at);
    let is_driven = match &inner.background.drive {
        None => "false",
        Some(drive) if !drive.is_watched => "true",
        Some(_) => "by a runtime",
    };
    let master = MasterId::new(0).expect("the first one");
    let number = |count: usize| count.to_string();
    vec![
        (
            "leader",
            match (&inner.poller, &inner.sleep) {
                (Some(_), _) => "none".to_owned(),
                (None, None) => "awake".to_owned(),
                (None, Some(it)) if it.is_woken => "woken".to_owned(),
                (None, Some(it)) => {
                    sleep(it.until, earlier(inner.driver.engine.next_timeout().map(|(at, _)| at), relay))
                        .to_owned()
                }
            },
        ),
        (
            "background",
            match inner.background.sleeps_until {
                // The leader does due work, and the background thread may be about to lead or to sleep.
                _ if inner.poller.is_none() => "beside the leader".to_owned(),
                None => "awake".to_owned(),
                Some(until) => sleep(until, look).to_owned(),
            },
        ),
        ("is favoured", inner.background.is_favoured.to_string()),
        ("is driven", is_driven.to_owned()),
        ("left to the drive", inner.background.drive.as_ref().is_some_and(|it| it.has_unsent).to_string()),
        ("lingers", inner.linger_until.is_some().to_string()),
        ("unwritten requests", number(inner.unsent_count)),
        ("drops", inner.drop_count.to_string()),
        ("tasks", number(inner.completions.task_count())),
        ("sleeping threads", number(inner.completions.thread_count())),
        ("awaited", number(inner.completions.waiting_count())),
        ("kept", number(inner.completions.kept_count())),
        ("unsent", (!inner.driver.engine.send_ready(master).is_empty()).to_string()),
        ("owed", (!inner.driver.engine.is_answered()).to_string()),
        ("locks", number(inner.driver.engine.claim_count())),
        ("is closing", inner.is_closing.to_string()),
        ("stopped", inner.stopped.as_deref().unwrap_or("no").to_owned()),
    ]
}

impl Stage {
    pub(super) fn new(title: &str, is_alone: bool) -> Self {
        let double = Double::start(1).expect("a master");
        let config =
            of_double(&double).answer_timeout(LONG).max_ttl(LONG * 2).build().expect("valid settings");
        let (mut driver, mut poller) = Driver::new(Arc::new(config.clone())).expect("an event loop");
        while !(driver.engine.has_quorum() && driver.engine.is_answered()) {
            driver.turn(&mut poller, None).expect("it turns");
        }
        let shared = Shared::start_by(driver, poller, |_, run| {
            Ok(thread::spawn(if is_alone { Box::new(|| ()) } else { run }))
        });
        let client = Client::from_shared(shared.expect("it starts"), Arc::new(config));
        let shown_turn = client.shared().lock().last_turn;
        let mut stage = Self {
            double,
            client,
            is_alone,
            seen_drop_count: 0,
            woken: Names::default(),
            shown_woken_count: 0,
            shown_turn,
            acquiring: BTreeMap::new(),
            guards: BTreeMap::new(),
            threads: BTreeMap::new(),
            drive: None,
            shown: BTreeMap::new(),
            page: format!("# {title}\n"),
        };
        stage.show("connected");
        stage
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        self.client.shared()
    }

    /// Waits until this holds, in looks that change nothing.
    #[track_caller]
    pub(super) fn await_that(&self, what: &str, is_so: impl Fn(&Inner) -> bool) -> MutexGuard<'_, Inner> {
        let start = clock::now();
        loop {
            let inner = self.shared().lock();
            if is_so(&inner) {
                return inner;
            }
            drop(inner);
            assert!(clock::now() - start < PATIENCE, "{what}: never, behind\n{}", self.page);
            thread::yield_now();
        }
    }

    /// Shows the differences from the last step, once nothing moves.
    #[track_caller]
    pub(super) fn show(&mut self, step: &str) {
        let is_alone = self.is_alone;
        let is_quiet = move |inner: &Inner| {
            let is_led = inner.sleep.as_ref().is_some_and(|sleep| !sleep.is_woken);
            let is_left = inner.poller.is_some()
                && inner.background.sleeps_until.is_some()
                && inner.completions.thread_count() == 0
                && inner.linger_until.is_none();
            is_alone
                || inner.stopped.is_some()
                || is_led && inner.completions.relay_until().is_none()
                || is_left
        };
        let mut inner = self.await_that("the end of all moves", is_quiet);
        let (state, turn) = (state(&mut inner), inner.last_turn);
        drop(inner);
        let turn = std::mem::replace(&mut self.shown_turn, turn) != turn;
        // If that thread does not exist, nobody else uses up its wake-up.
        if is_alone && self.shared().background.sleep(Some(clock::now())) {
            self.woken.lock().expect("no panic").push("the background");
        }
        let changed = state.into_iter().filter_map(|(of, now)| {
            let is_same = self.shown.get(of) == Some(&now);
            self.shown.insert(of, now.clone());
            (!is_same).then(|| format!("{of}: {now}"))
        });
        let turned = (is_alone && turn).then(|| "turned".to_owned());
        let changed: Vec<_> = turned.into_iter().chain(changed).collect();
        let mut woken = self.woken.lock().expect("no panic")[self.shown_woken_count..].to_vec();
        self.shown_woken_count += woken.len();
        woken.sort_unstable();
        let woken = if woken.is_empty() { String::new() } else { format!(" [wakes {}]", woken.join(", ")) };
        let _ = writeln!(self.page, "{step}{woken}\n  {}", changed.join("; "));
    }

    /// A task of this name waits for the lock of this name.
    pub(super) fn acquire(&mut self, name: &'static str) {
        let client = self.client.clone();
        let acquiring = async move { client.lock(name).ttl(LONG).wait(LONG).acquire_async().await };
        self.acquiring.insert(name, Box::pin(acquiring));
        self.poll(name);
    }

    pub(super) fn poll(&mut self, name: &'static str) {
        self.poll_as(name, name);
    }

    pub(super) fn waker(&self, name: &'static str) -> Waker {
        // Otherwise other threads may hold the mutex at any time.
        let is_alone = self.is_alone && name != RUNTIME;
        let client = if is_alone { Arc::downgrade(self.shared()) } else { Weak::new() };
        Waker::from(Arc::new(Named(name, self.woken.clone(), client)))
    }

    pub(super) fn poll_as(&mut self, name: &'static str, waker: &'static str) {
        let mut acquiring = self.acquiring.remove(name).expect("it is under way");
        let waker = self.waker(waker);
        let step = match acquiring.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => {
                self.acquiring.insert(name, acquiring);
                format!("poll {name}: pending")
            }
            Poll::Ready(Ok(guard)) => {
                self.guards.insert(name, guard);
                format!("poll {name}: acquired")
            }
            Poll::Ready(Err(error)) => format!("poll {name}: {error}"),
        };
        self.show(&step);
    }

    pub(super) fn poll_other<T: Shown>(
        &mut self,
        future: &mut (impl Future<Output = T> + Unpin),
        waker: &'static str,
    ) {
        let answer = Pin::new(future).poll(&mut Context::from_waker(&self.waker(waker)));
        let shown = match answer {
            Poll::Ready(answer) => answer.shown(),
            Poll::Pending => "pending".to_owned(),
        };
        self.show(&format!("poll as {waker}: {shown}"));
    }

    /// The task's master answers. Polls the task once it is woken.
    #[track_caller]
    pub(super) fn finish(&mut self, name: &'static str) {
        self.hang(false);
        let start = clock::now();
        while !self.is_woken(name) {
            assert!(clock::now() - start < PATIENCE, "{name} is not woken, behind\n{}", self.page);
            thread::yield_now();
        }
        self.poll(name);
        assert!(self.guards.contains_key(name), "{}", self.page);
    }

    /// This thread waits for the lock of this name, and leads.
    pub(super) fn acquire_here(&mut self, name: &'static str) {
        let guard = self.client.lock(name).ttl(LONG).wait(LONG).acquire().expect("it answers");
        self.guards.insert(name, guard);
        self.show(&format!("this thread acquires {name}"));
    }

    pub(super) fn forget(&mut self, name: &'static str) {
        drop(self.acquiring.remove(name).expect("it is under way"));
        self.show(&format!("drop of the call for {name}"));
    }

    pub(super) fn drop_guard(&mut self, name: &'static str) {
        drop(self.guards.remove(name).expect("it is held"));
        self.show(&format!("drop of the guard of {name}"));
    }

    /// A thread waits for the lock of this name. Shown once the thread leads or sleeps.
    pub(super) fn block(&mut self, name: &'static str) {
        let count = |inner: &Inner| inner.completions.waiting_count();
        let before = count(&self.shared().lock());
        let client = self.client.clone();
        let waiting = move || client.lock(name).ttl(LONG).wait(LONG).acquire().expect("it answers");
        self.threads.insert(name, thread::spawn(waiting));
        let sleeping = self.shared().lock().completions.thread_count();
        drop(self.await_that("a thread", |inner| {
            count(inner) > before
                && (inner.completions.thread_count() > sleeping
                    || inner.sleep.as_ref().is_some_and(|it| !it.is_woken))
        }));
        self.show(&format!("a thread waits for {name}"));
    }

    /// Waits until these threads have their locks, and all tasks are woken.
    #[track_caller]
    pub(super) fn join(&mut self, names: &[&'static str]) {
        let start = clock::now();
        for name in names {
            let thread = self.threads.remove(name).expect("it waits");
            while !thread.is_finished() {
                assert!(
                    clock::now() - start < PATIENCE,
                    "the thread for {name} sleeps on, behind\n{}",
                    self.page
                );
                thread::yield_now();
            }
            self.guards.insert(name, thread.join().expect("no panic"));
        }
        for name in self.acquiring.keys() {
            while !self.is_woken(name) {
                assert!(clock::now() - start < PATIENCE, "{name} is not woken, behind\n{}", self.page);
                thread::yield_now();
            }
        }
        self.show("the threads have their locks");
    }

    pub(super) fn is_woken(&self, name: &'static str) -> bool {
        self.woken.lock().expect("no panic").contains(&name)
    }

    fn turn_once(&mut self) {
        let waker = self.drive_waker();
        if let Some(drive) = &mut self.drive {
            drive.turn(&waker).expect("it goes on");
            return;
        }
        let mut inner = self.shared().enter().expect("it goes on");
        let poller = inner.poller.take().expect("nobody leads");
        let now = inner.now();
        let inner = self.shared().lead(inner, poller, Some(now), |_| false).expect("it goes on");
        self.shared().leave(inner);
    }

    /// One turn of the current leader.
    pub(super) fn turn(&mut self) {
        self.turn_once();
        self.show("a turn");
    }

    /// The master answers. Turns until the master owes nothing.
    pub(super) fn answers(&mut self) {
        self.hang(false);
        let start = clock::now();
        while !self.shared().lock().driver.engine.is_answered() {
            assert!(clock::now() - start < PATIENCE, "no answer, behind\n{}", self.page);
            self.turn_once();
        }
        self.show("all answers are read");
    }

    /// Does what the background thread would do.
    pub(super) fn look(&mut self, was_woken: bool) {
        let (shared, seen_drop_count, begun) = (self.shared().clone(), self.seen_drop_count, clock::now());
        let step = match shared.next_act(was_woken, &mut self.seen_drop_count) {
            Ok(BackgroundAct::Sleep(until)) => {
                let inner = shared.lock();
                // A leader looks, too.
                let looked = if inner.poller.is_none() { begun } else { inner.last_turn };
                let due = keeps_time(&inner).then(|| earlier(inner.due(), Some(inner.look_at(looked))));
                let late_at = inner.background.drive.as_ref().and_then(|drive| drive.late_at);
                let due = earlier(due.flatten(), late_at);
                let lingers = self.seen_drop_count != seen_drop_count;
                let is_short = until.is_some_and(|until| due.is_none_or(|due| until < due)) && !lingers;
                let sleep = if is_short { "SLEEPS TOO SHORT" } else { sleep(until, due) };
                format!("background: {sleep}")
            }
            Ok(BackgroundAct::LookAgain) => "background: goes on".to_owned(),
            Ok(BackgroundAct::End) => "background: ends".to_owned(),
            Err(why) => format!("background: {why}"),
        };
        self.show(&step);
    }

    pub(super) fn drive_begins(&mut self) {
        self.drive = Some(self.client.drive().expect("a descriptor"));
        self.show("a drive begins");
    }

    pub(super) fn runtime_begins(&mut self) {
        self.drive = Some(self.shared().drive(true).expect("a descriptor"));
        self.show("a runtime drives");
    }

    /// Makes the runtime late from now on, or on time for long.
    pub(super) fn be_late(&mut self, is_late: bool) {
        let late_at = clock::now() + if is_late { Duration::ZERO } else { LONG };
        self.shared().lock().background.drive.as_mut().expect("it drives").late_at = Some(late_at);
    }

    fn drive_waker(&self) -> Waker {
        let is_watched = self.shared().lock().background.drive.as_ref().is_some_and(|it| it.is_watched);
        self.waker(if is_watched { RUNTIME } else { "drive" })
    }

    /// The background thread looks, and leads until the runtime drives again.
    pub(super) fn look_until_the_drive_turns(&mut self) {
        let (shared, waker) = (self.shared().clone(), self.drive_waker());
        let mut drive = self.drive.take().expect("it drives");
        let turning = thread::spawn(move || {
            while shared.lock().sleep.is_none() {
                thread::yield_now();
            }
            drive.turn(&waker).expect("it goes on");
            drive
        });
        self.look(true);
        self.drive = Some(turning.join().expect("no panic"));
    }

    pub(super) fn drive_turns(&mut self) {
        let waker = self.drive_waker();
        let drive = self.drive.as_mut().expect("it drives");
        let step = match drive.turn(&waker) {
            Ok(next) => {
                let inner = self.client.shared().lock();
                format!("the drive turns: {}", sleep(next, inner.due()))
            }
            Err(error) => format!("the drive turns: {error}"),
        };
        self.show(&step);
    }

    /// Makes the master hang, or answer again. Requests to a hanging master show before their answers.
    pub(super) fn hang(&mut self, hangs: bool) {
        let master = self.double.master(0);
        if hangs { master.stop() } else { master.resume() }.expect("it runs");
    }
}

/// What a page says of a future's output.
pub(super) trait Shown {
    fn shown(&self) -> String;
}

impl Shown for LockEnd {
    fn shown(&self) -> String {
        match self {
            Self::Lost => "lost",
            Self::Released => "released",
        }
        .to_owned()
    }
}

impl Shown for Result<Released, ReleaseError> {
    fn shown(&self) -> String {
        match self {
            Ok(Released { deleted, .. }) => format!("released on {deleted}"),
            Err(error) => error.to_string(),
        }
    }
}
