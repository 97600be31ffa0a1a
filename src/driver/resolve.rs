//! Calls that may block for seconds, in threads: host name lookups, and the credentials provider.
//!
//! Every attempt to connect looks the name up again, so a moved master is found. A connection has at most one
//! lookup at a time; a late lookup serves the next attempt. The engine has at most one open question to the
//! provider per master. So the number of threads is bounded.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use mio::Waker;

use crate::limits;
use crate::lock::MasterId;

/// Calls in their own threads, and their results.
#[derive(Debug)]
pub(super) struct Calls<T> {
    waker: Arc<Waker>,
    sender: Sender<T>,
    receiver: Receiver<T>,
}

impl<T: Send + 'static> Calls<T> {
    /// The waker ends the poller's sleep when a call has returned.
    pub(super) fn new(waker: Arc<Waker>) -> Self {
        let (sender, receiver) = mpsc::channel();
        Self { waker, sender, receiver }
    }

    /// Starts a call. [`Calls::poll`] returns its result after the waker's event.
    pub(super) fn start(&self, thread: &str, call: impl FnOnce() -> T + Send + 'static) -> io::Result<()> {
        let (sender, waker) = (self.sender.clone(), self.waker.clone());
        let run = move || {
            // The driver may be gone.
            let _ = sender.send(call());
            let _ = waker.wake();
        };
        thread::Builder::new().name(thread.to_owned()).spawn(run).map(drop)
    }

    pub(super) fn poll(&self) -> Option<T> {
        self.receiver.try_recv().ok()
    }
}

type Resolved = (MasterId, io::Result<Vec<SocketAddr>>);

#[derive(Debug)]
pub(super) struct Resolver {
    calls: Calls<Resolved>,
    /// By [`MasterId::index`].
    lookups: [Lookup; limits::MASTER_COUNT_MAX],
}

/// Lookups for one connection.
#[derive(Debug, Clone, Copy)]
struct Lookup {
    /// Whether a lookup is in progress.
    is_busy: bool,
    /// Whether its result is wanted.
    is_wanted: bool,
    /// Number of lookups so far, for rotating the addresses.
    count: usize,
}

impl Resolver {
    pub(super) fn new(waker: Arc<Waker>) -> Self {
        let lookups = [Lookup { is_busy: false, is_wanted: false, count: 0 }; limits::MASTER_COUNT_MAX];
        Self { calls: Calls::new(waker), lookups }
    }

    /// Returns the address at once if `host` is one. Otherwise `None`, and [`Resolver::poll_found`] returns
    /// the result after the waker's event.
    pub(super) fn resolve(
        &mut self,
        master: MasterId,
        host: &str,
        port: u16,
    ) -> Option<io::Result<Vec<SocketAddr>>> {
        if let Ok(ip) = host.parse::<IpAddr>() {
            return Some(Ok(vec![SocketAddr::new(ip, port)]));
        }
        let own = &mut self.lookups[master.index()];
        own.is_wanted = true;
        if own.is_busy {
            return None;
        }
        let (turn, host) = (own.count, host.to_owned());
        own.count = own.count.wrapping_add(1);
        let lookup = move || (master, look_up(&host, port, turn));
        let started = self.calls.start("redlatch-resolve", lookup);
        own.is_busy = started.is_ok();
        started.err().map(Err)
    }

    /// Forgets a lookup whose attempt is over.
    pub(super) fn forget(&mut self, master: MasterId) {
        self.lookups[master.index()].is_wanted = false;
    }

    /// Returns the next finished lookup that is still wanted.
    pub(super) fn poll_found(&mut self) -> Option<Resolved> {
        while let Some((master, found)) = self.calls.poll() {
            let own = &mut self.lookups[master.index()];
            own.is_busy = false;
            if std::mem::take(&mut own.is_wanted) {
                return Some((master, found));
            }
        }
        None
    }
}

/// All addresses, rotated by `turn`, so that an address that accepts connections and never answers is not
/// always tried first.
#[expect(clippy::disallowed_methods, reason = "asks the resolver")]
pub(super) fn look_up(host: &str, port: u16, turn: usize) -> io::Result<Vec<SocketAddr>> {
    Ok(in_turn((host, port).to_socket_addrs()?.collect(), turn))
}

/// Alternates IPv6 and IPv4 (RFC 8305): a network that swallows one of them costs one attempt.
fn in_turn(mut addresses: Vec<SocketAddr>, turn: usize) -> Vec<SocketAddr> {
    let count = addresses.len();
    addresses.rotate_left(turn % count.max(1));
    let starts_with_ipv6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (firsts, seconds): (Vec<_>, Vec<_>) =
        addresses.into_iter().partition(|it| it.is_ipv6() == starts_with_ipv6);
    let (mut firsts, mut seconds) = (firsts.into_iter(), seconds.into_iter());
    let pairs = std::iter::from_fn(|| match (firsts.next(), seconds.next()) {
        (None, None) => None,
        pair => Some([pair.0, pair.1]),
    });
    pairs.flatten().flatten().take(limits::ADDRESS_COUNT_MAX).collect()
}

#[cfg(test)]
mod tests {
    use mio::{Events, Poll, Token};

    use super::*;

    struct Rig {
        poll: Poll,
        resolver: Resolver,
    }

    fn master() -> MasterId {
        MasterId::new(1).expect("small")
    }

    impl Rig {
        fn new() -> Self {
            let poll = Poll::new().expect("a poller");
            let waker = Waker::new(poll.registry(), Token(7)).expect("a waker");
            let resolver = Resolver::new(Arc::new(waker));
            Self { poll, resolver }
        }

        fn resolve(&mut self, host: &str) -> Option<io::Result<Vec<SocketAddr>>> {
            self.resolver.resolve(master(), host, 6379)
        }

        /// Waits for the end of a lookup.
        fn wait(&mut self) {
            let mut events = Events::with_capacity(1);
            self.poll.poll(&mut events, Some(std::time::Duration::from_secs(40))).expect("a poll");
            assert_eq!(events.iter().map(mio::event::Event::token).collect::<Vec<_>>(), [Token(7)]);
        }

        /// The next lookup that is wanted, and its addresses.
        fn found(&mut self) -> Option<(MasterId, bool)> {
            let (master, found) = self.resolver.poll_found()?;
            let found = found.expect("it is in the file of hosts");
            Some((master, found.contains(&SocketAddr::from(([127, 0, 0, 1], 6379)))))
        }
    }

    #[test]
    fn an_address_needs_no_lookup() {
        let mut rig = Rig::new();
        let found = rig.resolve("127.0.0.1").expect("at once").expect("an address");
        assert_eq!(found, [SocketAddr::from(([127, 0, 0, 1], 6379))]);
        let found = rig.resolve("::1").expect("at once").expect("an address");
        assert_eq!(found, [SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 6379))]);
        assert!(!rig.resolver.lookups[1].is_busy && rig.found().is_none());
    }

    #[test]
    fn a_lookup_serves_the_attempt_that_wants_it() {
        let mut rig = Rig::new();
        for count in 1..=3 {
            assert!(rig.resolve("localhost").is_none());
            assert!(rig.resolve("localhost").is_none(), "there is one at a time");
            assert_eq!(rig.resolver.lookups[1].count, count);
            rig.wait();
            assert_eq!(rig.found(), Some((master(), true)));
            assert_eq!(rig.found(), None);
        }
        assert!(rig.resolve("localhost").is_none());
        rig.resolver.forget(master());
        rig.wait();
        assert_eq!(rig.found(), None, "nobody wants it");
        assert!(rig.resolve("localhost").is_none());
        rig.resolver.forget(master());
        assert!(rig.resolve("localhost").is_none());
        assert_eq!(rig.resolver.lookups[1].count, 5);
        rig.wait();
        assert_eq!(rig.found(), Some((master(), true)), "it serves the next attempt");
    }

    #[test]
    fn each_address_is_first_in_its_turn() {
        let all = [1, 2, 3].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        for (turn, ports) in [(0, [1, 2, 3]), (1, [2, 3, 1]), (2, [3, 1, 2]), (3, [1, 2, 3])] {
            assert_eq!(in_turn(all.to_vec(), turn).iter().map(SocketAddr::port).collect::<Vec<_>>(), ports);
        }
        assert_eq!(in_turn(Vec::new(), 5), []);
        assert_eq!(in_turn([all[0]; 20].to_vec(), 7).len(), limits::ADDRESS_COUNT_MAX);
    }

    #[test]
    fn both_families_stand_in_turns() {
        let old = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let new = |port| SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], port));
        let all = vec![new(1), new(2), new(3), old(4), old(5)];
        for (turn, ports) in [(0, [1, 4, 2, 5, 3]), (1, [2, 4, 3, 5, 1]), (3, [4, 1, 5, 2, 3])] {
            let ordered: Vec<_> = in_turn(all.clone(), turn).iter().map(SocketAddr::port).collect();
            assert_eq!(ordered, ports, "{turn}");
        }
    }
}
