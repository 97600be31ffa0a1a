//! The signal that ends a measurement early: a flag that the measurement looks at.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::exit::code;

/// Number of the signal that came last; zero before one came.
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

    /// The exit code of the signal that came, if one did.
    pub(crate) fn code(&self) -> Option<u8> {
        let signal = self.0.load(Ordering::Relaxed);
        (signal != 0).then(|| code::of_signal(signal))
    }
}
