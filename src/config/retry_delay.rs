//! A delay function of the caller's own, and which thread is inside it.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// A caller's own function from attempts that failed to the delay before the next one.
#[derive(Clone)]
pub(crate) struct RetryDelay {
    function: Arc<dyn Fn(u32) -> Duration + Send + Sync>,
    /// The thread that calls it: one thread at a time, for the client is locked meanwhile.
    called: Arc<Inside>,
}

/// The thread that is inside something, one at most.
///
/// It is noted with that something and not with the thread, which may be inside several at once.
#[derive(Debug, Default)]
pub(crate) struct Inside(AtomicUsize);

thread_local! {
    /// Its address stands for the thread, also while the thread ends: it has no destructor.
    static HERE: u8 = const { 0 };
}

impl RetryDelay {
    pub(super) fn new(function: impl Fn(u32) -> Duration + Send + Sync + 'static) -> Self {
        Self { function: Arc::new(function), called: Arc::default() }
    }

    /// The same function, called by another client.
    pub(crate) fn of_another_client(&self) -> Self {
        Self { function: self.function.clone(), called: Arc::default() }
    }

    /// The delay after so many failed attempts; `None` if the function panics.
    pub(crate) fn after(&self, failed_count: u32) -> Option<Duration> {
        // The panic hook has shown the panic. The thread that it came by may serve others, and the engine is
        // half-way.
        self.called.run(|| catch_unwind(AssertUnwindSafe(|| (self.function)(failed_count)))).ok()
    }

    /// Whether this thread is inside the function, called by this client.
    pub(crate) fn is_called(&self) -> bool {
        self.called.is_here()
    }
}

impl fmt::Debug for RetryDelay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RetryDelay")
    }
}

impl Inside {
    pub(crate) fn run<T>(&self, run: impl FnOnce() -> T) -> T {
        self.0.store(here(), Ordering::Relaxed);
        let _left = Left(self);
        run()
    }

    pub(crate) fn is_here(&self) -> bool {
        self.0.load(Ordering::Relaxed) == here()
    }
}

/// The thread goes out, also by a panic.
struct Left<'a>(&'a Inside);

impl Drop for Left<'_> {
    fn drop(&mut self) {
        self.0.0.store(0, Ordering::Relaxed);
    }
}

fn here() -> usize {
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nested_delay_function_is_known_as_called() {
        let slot = Arc::new(std::sync::OnceLock::<RetryDelay>::new());
        let its = slot.clone();
        let inner = RetryDelay::new(move |_| {
            let is_inside_outer = its.get().expect("it is set").is_called();
            Duration::from_secs(u64::from(is_inside_outer))
        });
        let outer = RetryDelay::new(move |_| inner.after(1).expect("no panic"));
        assert!(slot.set(outer.clone()).is_ok());
        assert_eq!(outer.after(1), Some(Duration::from_secs(1)));
        assert!(!outer.of_another_client().is_called() && !outer.is_called());
        let panics = RetryDelay::new(|_| std::panic::resume_unwind(Box::new("it panics")));
        assert!(panics.after(1).is_none() && !panics.is_called());
    }
}
