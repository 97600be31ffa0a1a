//! redlatch with its defaults, and a `max_ttl` of one TTL.

use std::thread;
use std::time::{Duration, Instant};

use redlatch::{Config, HeldLocks, Quarantine};
use redlatch_support::{Blocking, Lease};

use crate::{Locks, Terms};

pub(crate) struct Ours {
    redlock: Blocking,
    name: String,
    ttl: Duration,
    lease: Option<Lease>,
    /// Whether it drives its client during a hold. The client then restores keys that a restart lost, often
    /// before another client comes, so a control that drives would rarely be caught.
    is_driven: bool,
}

impl Ours {
    pub(crate) fn open(terms: &Terms, quarantine: Quarantine) -> Self {
        let config = Config::builder().masters(&terms.urls).quarantine(quarantine).max_ttl(terms.ttl);
        let redlock = Blocking::open(config.build().expect("valid settings")).expect("an event loop");
        let is_driven = quarantine != Quarantine::Trust;
        Self { redlock, name: terms.name.clone(), ttl: terms.ttl, lease: None, is_driven }
    }
}

impl Locks for Ours {
    fn acquire(&mut self) -> Option<Instant> {
        self.lease = self.redlock.lock(&self.name).ttl(self.ttl).wait(self.ttl).acquire().ok();
        self.lease.as_ref().map(Lease::valid_until)
    }

    fn release(&mut self) {
        if let Some(lease) = self.lease.take() {
            // An unconfirmed key expires with its TTL.
            let _ = self.redlock.release(lease);
        }
    }

    fn pause(&mut self, time: Duration) {
        if !self.is_driven {
            return thread::sleep(time);
        }
        let until = Instant::now() + time;
        while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            if self.redlock.turn(left).is_err() {
                return;
            }
        }
    }

    fn end(self: Box<Self>) {
        self.redlock.drain(self.ttl, HeldLocks::Release);
    }
}
