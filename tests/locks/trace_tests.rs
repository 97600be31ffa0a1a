//! Spans of the feature `tracing`: spans of acquisitions and of held locks, in the caller's context.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock};
use std::task::{Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use redlatch::{AcquireError, Cancel, Client, Guard};
use redlatch_support::stage::Fleet;
use redlatch_support::{PATIENCE, block_on, eventually};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Metadata, Span, Subscriber, dispatcher, info_span};

use crate::harness::{Count, LONG, TTL, await_held, open, poll_once, poll_with, within};

/// A span as the subscriber saw it.
#[derive(Debug, Clone, Default)]
struct Seen {
    name: &'static str,
    /// Index of the parent.
    parent: Option<usize>,
    fields: BTreeMap<&'static str, String>,
    entered: usize,
    handles: usize,
}

impl Seen {
    const fn is_closed(&self) -> bool {
        self.handles == 0
    }

    fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }
}

/// A subscriber that notes spans. A span's id is its index plus one.
#[derive(Clone, Default)]
struct Notes {
    spans: Arc<Mutex<Vec<Seen>>>,
    /// Client that each call of the subscriber uses, so the client's mutex must be free.
    asked: Arc<OnceLock<Client>>,
    /// Whether the next span that a thread enters makes it panic.
    panics: Arc<AtomicBool>,
}

thread_local! {
    /// The spans that this thread has entered.
    static INSIDE: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

impl Notes {
    fn change<T>(&self, change: impl FnOnce(&mut Vec<Seen>) -> T) -> T {
        if let Some(client) = self.asked.get() {
            let _ = client.stats();
        }
        change(&mut self.spans.lock().expect("no panic"))
    }

    fn change_one<T>(&self, id: &Id, change: impl FnOnce(&mut Seen) -> T) -> T {
        self.change(|spans| change(&mut spans[index(id)]))
    }

    fn spans(&self) -> Vec<Seen> {
        self.spans.lock().expect("no panic").clone()
    }

    /// Returns the spans with this name.
    fn named(&self, name: &str) -> Vec<Seen> {
        self.spans().into_iter().filter(|span| span.name == name).collect()
    }

    /// Outcome of the last opened span with this name.
    fn last_outcome(&self, name: &str) -> String {
        let spans = self.named(name);
        let last = spans.last().expect("there is one");
        assert!(last.is_closed(), "{last:?}");
        last.field("outcome").to_owned()
    }
}

fn index(id: &Id) -> usize {
    usize::try_from(id.into_u64()).expect("an index") - 1
}

struct Fields<'a>(&'a mut Seen);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.fields.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.fields.insert(field.name(), value.to_owned());
    }
}

impl Subscriber for Notes {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && (metadata.target() == "redlatch" || metadata.name() == "caller")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        assert!(span.is_contextual());
        let parent = INSIDE.with_borrow(|inside| inside.last().copied());
        let mut seen = Seen { name: span.metadata().name(), parent, handles: 1, ..Seen::default() };
        span.record(&mut Fields(&mut seen));
        self.change(|spans| {
            spans.push(seen);
            Id::from_u64(spans.len() as u64)
        })
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        self.change_one(id, |span| values.record(&mut Fields(span)));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, id: &Id) {
        if self.panics.swap(false, Ordering::SeqCst) {
            std::panic::resume_unwind(Box::new("the subscriber panics"));
        }
        INSIDE.with_borrow_mut(|inside| inside.push(index(id)));
        self.change_one(id, |span| span.entered += 1);
    }

    fn exit(&self, id: &Id) {
        assert_eq!(INSIDE.with_borrow_mut(Vec::pop), Some(index(id)));
    }

    fn clone_span(&self, id: &Id) -> Id {
        self.change_one(id, |span| span.handles += 1);
        id.clone()
    }

    fn try_close(&self, id: Id) -> bool {
        self.change_one(&id, |span| {
            span.handles -= 1;
            span.is_closed()
        })
    }
}

/// A subscriber, and its dispatcher.
///
/// If there is only one subscriber, `tracing` caches the interest of whichever thread first reaches a place
/// in the code. Another test's thread may have no subscriber, and would disable that place's spans for
/// everybody.
fn notes() -> (Notes, Dispatch) {
    static SECOND: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(Notes::default()));
    LazyLock::force(&SECOND);
    let notes = Notes::default();
    (notes.clone(), Dispatch::new(notes))
}

/// The time that a field shows.
fn time(field: &str) -> Duration {
    let units = [("ns", 1e-9), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let parsed = units.iter().find_map(|(unit, seconds)| {
        Some(Duration::from_secs_f64(field.strip_suffix(unit)?.parse::<f64>().ok()? * seconds))
    });
    parsed.unwrap_or_else(|| panic!("no time: {field}"))
}

// I114
#[test]
fn a_threads_lock_has_spans_below_the_callers() {
    let fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let (notes, dispatch) = notes();
    dispatcher::with_default(&dispatch, || {
        info_span!("caller").in_scope(|| {
            let begun = Instant::now();
            let guard = client.lock("orders:42").ttl(TTL).fenced().acquire().expect("free");
            let [caller, acquire, hold] = &notes.spans()[..] else { panic!("{:?}", notes.spans()) };
            assert_eq!((caller.name, caller.parent), ("caller", None));
            assert_eq!((acquire.name, acquire.parent, acquire.entered), ("redlatch.acquire", Some(0), 1));
            assert_eq!((hold.name, hold.parent, hold.entered), ("redlatch.hold", Some(0), 0));
            assert!(acquire.is_closed() && !hold.is_closed());
            assert_eq!((acquire.field("lock"), acquire.field("mode")), ("orders:42", "Fenced"));
            assert_eq!((acquire.field("outcome"), acquire.field("attempts")), ("acquired", "1"));
            assert!(acquire.field("took").ends_with('s') && hold.field("held").is_empty());
            guard.release().expect("confirmed");
            let hold = notes.spans().remove(2);
            assert!(hold.is_closed());
            assert_eq!((hold.field("lock"), hold.field("mode")), ("orders:42", "Fenced"));
            assert_eq!(hold.field("outcome"), "released");
            assert!(time(hold.field("held")) <= begun.elapsed(), "as long as it was held: {hold:?}");
        });
    });
    assert!(notes.spans().iter().all(Seen::is_closed));
}

/// The first poll and the later ones run on different threads, as on a multi-threaded executor.
// I114
#[test]
fn a_tasks_span_is_entered_on_each_thread() {
    let mut fleet = Fleet::start(3);
    let (holder, client) = (open(&fleet.urls(), LONG), open(&fleet.urls(), LONG));
    let (notes, dispatch) = notes();
    let held = holder.lock("a").holder_label("job 7").ttl(TTL).try_acquire().expect("free");
    await_held(&mut fleet, "a");
    let caller = dispatcher::with_default(&dispatch, || info_span!("caller"));
    let mut acquiring = client.lock_owned("a").ttl(TTL).wait(PATIENCE).acquire_async();
    dispatcher::with_default(&dispatch, || {
        assert!(caller.in_scope(|| poll_once(&mut acquiring)).is_pending());
    });
    assert_eq!(notes.spans()[1].entered, 1);
    for master in fleet.masters() {
        eventually(PATIENCE, "it waits, and hears for whom", || {
            master.ask("ZCARD redlatch:wait:a").text() == "1"
        });
    }
    held.release().expect("confirmed");
    let its_caller = caller.clone();
    let guard = thread::spawn(move || {
        dispatcher::with_default(&dispatch, || block_on(Inside(its_caller, acquiring)).expect("released"))
    });
    let guard = guard.join().expect("no panic");
    let [_, acquire, hold] = &notes.spans()[..] else { panic!("{:?}", notes.spans()) };
    assert!(acquire.parent == Some(0) && acquire.entered >= 2 && acquire.is_closed(), "{acquire:?}");
    assert!(acquire.field("holder").starts_with("job 7 ("), "the last one in its way: {acquire:?}");
    assert!(hold.parent == Some(0) && !hold.is_closed(), "{hold:?}");
    // Dropped on this thread, which has no subscriber.
    drop(guard);
    assert_eq!(notes.last_outcome("redlatch.hold"), "dropped");
}

/// A future whose polls are inside a span.
struct Inside<F>(Span, F);

impl<F: Future + Unpin> Future for Inside<F> {
    type Output = F::Output;

    fn poll(mut self: std::pin::Pin<&mut Self>, context: &mut std::task::Context<'_>) -> Poll<F::Output> {
        let Self(span, future) = &mut *self;
        span.in_scope(|| std::pin::Pin::new(future).poll(context))
    }
}

#[test]
fn each_outcome_is_recorded() {
    let fleet = Fleet::start(3);
    let (holder, client) = (open(&fleet.urls(), LONG), open(&fleet.urls(), LONG));
    let (notes, dispatch) = notes();
    let _held = holder.lock("held").holder_label("job 7").ttl(TTL).try_acquire().expect("free");
    dispatcher::with_default(&dispatch, || {
        let acquire = |name: &str| notes.last_outcome(&format!("redlatch.{name}"));
        assert!(client.lock("held").ttl(TTL).try_acquire().is_err());
        assert_eq!(acquire("acquire"), "contended");
        let spans = notes.named("redlatch.acquire");
        let refused = spans.last().expect("as before");
        assert_eq!(refused.field("attempts"), "1");
        assert!(refused.field("holder").starts_with("job 7 ("), "{refused:?}");
        assert!(client.lock("").acquire().is_err());
        assert_eq!(acquire("acquire"), "input");
        let cancel = Cancel::new();
        cancel.cancel();
        let cancelled = client.lock("held").ttl(TTL).cancel_with(&cancel).acquire();
        assert!(matches!(cancelled, Err(AcquireError::Cancelled)));
        assert_eq!(acquire("acquire"), "cancelled");
        let mut waiting = client.lock("held").ttl(TTL).wait(PATIENCE).acquire_async();
        assert!(poll_once(&mut waiting).is_pending());
        drop(waiting);
        assert_eq!(acquire("acquire"), "dropped");
        assert_eq!(notes.named("redlatch.hold").len(), 0);

        client.lock("free").ttl(TTL).acquire().expect("free").leave().expect("held");
        assert_eq!(acquire("hold"), "left");
        client.lock("given").ttl(TTL).acquire().expect("free").into_handle(TTL).expect("held");
        assert_eq!(acquire("hold"), "passed");
        client.lock("rest").ttl(TTL).acquire().expect("free").leave_for(TTL / 2).expect("held");
        assert_eq!(acquire("hold"), "left");
        let ttl = Duration::from_millis(200);
        let guard = client.lock("short").ttl(ttl).wait(PATIENCE).acquire().expect("free");
        eventually(PATIENCE, "it is lost", || !guard.is_valid());
        let _ = guard.release();
        assert_eq!(acquire("hold"), "lost");
        let spans = notes.named("redlatch.hold");
        assert!(time(spans.last().expect("as before").field("held")) < ttl, "not beyond its end");
    });
}

#[test]
fn batches_sets_and_reentrant_locks_have_spans_too() {
    let fleet = Fleet::start(3);
    let client = open(&fleet.urls(), LONG);
    let (notes, dispatch) = notes();
    let count = |name: &str| notes.named(name).len();
    dispatcher::with_default(&dispatch, || {
        let batch = client.acquire_all([client.lock("a").ttl(TTL), client.lock("b").ttl(TTL)]);
        assert_eq!((count("redlatch.acquire"), count("redlatch.hold")), (2, 0), "they are asked for");
        let guards: Vec<Guard> = batch.into_iter().map(|it| it.block().expect("free")).collect();
        assert_eq!(count("redlatch.hold"), 2);
        drop(guards);
        drop(client.lock_set(["c", "d"]).ttl(TTL).acquire().expect("free"));
        assert_eq!(count("redlatch.hold"), 4);
        let lock = client.lock("e").ttl(TTL).reentrant();
        let holds = [lock.lock().expect("free"), lock.lock().expect("held")];
        assert_eq!(count("redlatch.hold"), 5);
        drop(holds);
    });
    assert!(notes.spans().iter().all(Seen::is_closed), "{:?}", notes.spans());
}

#[test]
fn a_slots_span_lasts_while_a_thread_waits() {
    let mut fleet = Fleet::start(1);
    // No missing answer ends the first try within this test's patience.
    let client = open(&fleet.urls(), TTL);
    fleet.master(0).stop();
    let (notes, dispatch) = notes();
    let request = client.slots("pool", 1).ttl(TTL).wait(PATIENCE);
    let acquire = move || dispatcher::with_default(&dispatch, || request.acquire().map(drop));
    let waiting = thread::spawn(acquire);
    eventually(PATIENCE, "it is asked for", || notes.named("redlatch.acquire").len() == 1);
    fleet.master(0).cont();
    waiting.join().expect("no panic").expect("free");
    assert_eq!(notes.last_outcome("redlatch.acquire"), "acquired");
}

/// A subscriber may use the client. It would wait for itself if it were called with the client's mutex
/// locked.
// I114
#[test]
fn no_subscriber_is_called_with_the_client_locked() {
    within("a subscriber that asks the client", || {
        let fleet = Fleet::start(3);
        let client = open(&fleet.urls(), LONG);
        let (notes, dispatch) = notes();
        notes.asked.set(client.clone()).expect("once");
        dispatcher::with_default(&dispatch, || {
            client.lock("a").ttl(TTL).acquire().expect("free").release().expect("confirmed");
            drop(client.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("free"));
            let guard = block_on(client.lock("a").ttl(TTL).wait(PATIENCE).acquire_async()).expect("free");
            block_on(guard.release_async()).expect("confirmed");
            let guard = client.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("free");
            guard.leave_for(Duration::ZERO).expect("held");
            client.lock("b").ttl(TTL).acquire().expect("free").leave().expect("held");
        });
        assert_eq!(notes.named("redlatch.hold").len(), 5);
        assert!(notes.spans().iter().all(Seen::is_closed));
    });
}

/// The task that panics is kept, as some executors do; the other callers go on.
#[test]
fn subscriber_panic_leaves_other_callers_their_hold() {
    let fleet = Fleet::start(3);
    let (holder, client) = (open(&fleet.urls(), LONG), open(&fleet.urls(), LONG));
    let (notes, dispatch) = notes();
    let held = holder.lock("a").ttl(TTL).try_acquire().expect("free");
    let lock = client.lock("a").ttl(TTL).wait(PATIENCE).reentrant();
    let [mut first, mut second] = [(); 2].map(|()| Box::pin(lock.lock_async()));
    let count = Arc::<Count>::default();
    dispatcher::with_default(&dispatch, || {
        assert!(poll_once(&mut first).is_pending());
        assert!(poll_with(&mut second, &Waker::from(count.clone())).is_pending());
        notes.panics.store(true, Ordering::SeqCst);
        let panicked = catch_unwind(AssertUnwindSafe(|| poll_once(&mut first).is_pending()));
        panicked.expect_err("its subscriber panics");
    });
    assert!(count.get() > 0, "nobody asks any more");
    held.release().expect("confirmed");
    drop(block_on(second).expect("released"));
    drop(first);
}
