//! Free ports.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU64, Ordering};

/// How many ports to try before giving up.
pub(super) const PORT_ATTEMPTS_MAX: usize = 1_000;

/// Returns a port of loopback on which nobody listens now; `None` if none was found.
///
/// It is below the usual ephemeral ports. A client that retries a dead port among those may get the same port
/// as its own, and so connect to itself.
#[must_use]
pub fn free_port() -> Option<u16> {
    free_port_at(Ipv4Addr::LOCALHOST.into())
}

pub(super) fn free_port_at(host: IpAddr) -> Option<u16> {
    const FIRST: u16 = 10_000;
    const LAST: u16 = 32_767;
    static DRAWN: AtomicU64 = AtomicU64::new(0);
    let seed = RandomState::new();
    // The host may exist only where the server runs.
    let host = if host.is_loopback() { host } else { Ipv4Addr::LOCALHOST.into() };
    (0..PORT_ATTEMPTS_MAX).find_map(|_| {
        let random = seed.hash_one(DRAWN.fetch_add(1, Ordering::Relaxed)) % u64::from(LAST - FIRST + 1);
        let port = FIRST + u16::try_from(random).ok()?;
        TcpListener::bind((host, port)).is_ok().then_some(port)
    })
}
