//! The signal that ends a measurement early, as a flag that the measurement polls.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::exit::code;

/// Number of the latest signal; zero before any signal.
#[derive(Clone)]
pub(crate) struct Interrupt(Arc<AtomicUsize>);

impl Interrupt {
    pub(crate) fn catch(signals: &[i32]) -> io::Result<Self> {
        let number = Arc::new(AtomicUsize::new(0));
        for signal in signals {
            let value = usize::try_from(*signal).unwrap_or(0);
            signal_hook::flag::register_usize(*signal, number.clone(), value)?;
        }
        Ok(Self(number))
    }

    pub(crate) fn has_come(&self) -> bool {
        self.code().is_some()
    }

    /// Exit code for the signal, if one came.
    pub(crate) fn code(&self) -> Option<u8> {
        let signal = self.0.load(Ordering::Relaxed);
        (signal != 0).then(|| code::of_signal(signal))
    }
}
