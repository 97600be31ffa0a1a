//! Releases of dropped guards wait for a write that they can join; none waits longer than the thread that
//! dropped them.
//!
//! A process may end right behind the drop, and a client in a `static` is never dropped. So each thread
//! remembers the clients of which it dropped something, and writes what they have queued when it ends. The
//! main thread ends with the return of `main` and with [`std::process::exit`], where the system runs
//! destructors of thread-local values (Linux with glibc does).
//!
//! A thread ends a moment after its closure: [`std::thread::scope`] waits for the closures only, `join` waits
//! for the end. An exit inside a panic hook writes nothing.

use std::cell::RefCell;
use std::sync::{Arc, Weak};
use std::thread;

use super::shared::Shared;

thread_local! {
    static DROPPED_OF: DroppedOf = const { DroppedOf(RefCell::new(Vec::new())) };
}

/// The clients of which this thread dropped something, the last one last.
struct DroppedOf(RefCell<Vec<Weak<Shared>>>);

/// Something of this client was dropped.
pub(super) fn note_drop(client: &Arc<Shared>) {
    // While a thread ends it may have no list any more: what it drops then is written at once.
    if DROPPED_OF.try_with(|dropped| dropped.note(client)).is_err() {
        client.flush_at_end();
    }
}

impl DroppedOf {
    fn note(&self, client: &Arc<Shared>) {
        let mut clients = self.0.borrow_mut();
        if clients.last().is_some_and(|last| last.as_ptr() == Arc::as_ptr(client)) {
            return;
        }
        clients.retain(|other| other.as_ptr() != Arc::as_ptr(client) && other.strong_count() > 0);
        clients.push(Arc::downgrade(client));
    }
}

impl Drop for DroppedOf {
    fn drop(&mut self) {
        // A panic hook exits: the panic may have left a client locked by this thread, or half-way.
        if thread::panicking() {
            return;
        }
        self.0.take().iter().filter_map(Weak::upgrade).for_each(|client| client.flush_at_end());
    }
}
