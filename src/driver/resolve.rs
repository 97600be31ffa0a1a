//! Host names to addresses, off the event loop: a lookup may block for seconds.
//!
//! A name is looked up anew for each attempt to connect, so a master that moved is found again. There is at most one
//! lookup for a master at a time; one that comes too late serves the next attempt.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use mio::Waker;

use crate::limits;
use crate::lock::{MasterId, MasterSet};

type Found = (MasterId, io::Result<Vec<SocketAddr>>);

#[derive(Debug)]
pub(super) struct Resolver {
    waker: Arc<Waker>,
    sender: Sender<Found>,
    receiver: Receiver<Found>,
    /// Masters with a lookup under way.
    busy: MasterSet,
    /// Masters that wait for one.
    wanted: MasterSet,
    /// Lookups of each master so far, to take the addresses of a name in turns.
    lookup_counts: [usize; limits::MASTER_COUNT_MAX],
}

impl Resolver {
    /// The waker ends the poller's sleep when a lookup is done.
    pub(super) fn new(waker: Arc<Waker>) -> Self {
        let (sender, receiver) = mpsc::channel();
        let (busy, wanted) = (MasterSet::EMPTY, MasterSet::EMPTY);
        Self { waker, sender, receiver, busy, wanted, lookup_counts: [0; limits::MASTER_COUNT_MAX] }
    }

    /// The address at once if `host` is one; else `None`, and [`Resolver::poll_found`] has it after the waker's event.
    pub(super) fn resolve(
        &mut self,
        master: MasterId,
        host: &str,
        port: u16,
    ) -> Option<io::Result<Vec<SocketAddr>>> {
        if let Ok(ip) = host.parse::<IpAddr>() {
            return Some(Ok(vec![SocketAddr::new(ip, port)]));
        }
        self.wanted.insert(master);
        if self.busy.contains(master) {
            return None;
        }
        self.busy.insert(master);
        let count = &mut self.lookup_counts[master.index()];
        let (turn, host) = (*count, host.to_owned());
        *count = count.wrapping_add(1);
        let (sender, waker) = (self.sender.clone(), self.waker.clone());
        let lookup = move || {
            // The driver may be gone by now: then nobody wants the answer.
            let _ = sender.send((master, look_up(&host, port, turn)));
            let _ = waker.wake();
        };
        match thread::Builder::new().name("redlatch-resolve".to_owned()).spawn(lookup) {
            Ok(_) => None,
            Err(error) => {
                self.busy.remove(master);
                self.wanted.remove(master);
                Some(Err(error))
            }
        }
    }

    /// The attempt that wanted the address is over.
    pub(super) fn forget(&mut self, master: MasterId) {
        self.wanted.remove(master);
    }

    /// The next finished lookup that is still wanted.
    pub(super) fn poll_found(&mut self) -> Option<Found> {
        while let Ok((master, found)) = self.receiver.try_recv() {
            self.busy.remove(master);
            if self.wanted.contains(master) {
                self.wanted.remove(master);
                return Some((master, found));
            }
        }
        None
    }
}

/// All addresses, each at the front in its turn: one that swallows connections is not always the first to be tried.
fn look_up(host: &str, port: u16, turn: usize) -> io::Result<Vec<SocketAddr>> {
    let mut addresses: Vec<SocketAddr> = (host, port).to_socket_addrs()?.collect();
    let count = addresses.len();
    addresses.rotate_left(turn % count.max(1));
    Ok(addresses)
}
