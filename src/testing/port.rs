//! Free ports on loopback.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of ports to try.
pub(super) const PORT_ATTEMPTS_MAX: usize = 1_000;

/// Returns a loopback port on which nobody listens now; `None` if none was found.
///
/// The port is below the usual ephemeral ports: a client that retries a dead ephemeral port may get it as its
/// own port, and connect to itself. A process gets each port once, because clients of a server that has ended
/// may go on trying its port.
#[must_use]
pub fn free_port() -> Option<u16> {
    free_port_at(Ipv4Addr::LOCALHOST.into())
}

pub(super) fn free_port_at(host: IpAddr) -> Option<u16> {
    const FIRST: u16 = 10_000;
    const LAST: u16 = 32_767;
    /// Starts at random, because several processes may draw at the same time.
    static NEXT: LazyLock<AtomicU64> = LazyLock::new(|| AtomicU64::new(RandomState::new().hash_one(0) >> 1));
    // The host may exist only where the server runs.
    let host = if host.is_loopback() { host } else { Ipv4Addr::LOCALHOST.into() };
    (0..PORT_ATTEMPTS_MAX).find_map(|_| {
        let offset = NEXT.fetch_add(1, Ordering::Relaxed) % u64::from(LAST - FIRST + 1);
        let port = FIRST + u16::try_from(offset).ok()?;
        TcpListener::bind((host, port)).is_ok().then_some(port)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_port_is_drawn_once() {
        let mut ports: Vec<_> = (0..1000).map(|_| free_port().expect("a port")).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 1000);
    }
}
