//! A server that is not Redis: it sends one greeting to each connection, and nothing more.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Pause between two checks for new and closed connections.
const PAUSE: Duration = Duration::from_millis(2);

pub(crate) struct Rogue {
    addr: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    is_over: AtomicBool,
    visitor_count: AtomicUsize,
}

impl Rogue {
    pub(crate) fn start(greeting: Vec<u8>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        listener.set_nonblocking(true).expect("a socket");
        let addr = listener.local_addr().expect("bound");
        let shared = Arc::new(Shared::default());
        let thread = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || serve(&listener, &greeting, &shared)
        });
        Self { addr, shared, thread: Some(thread) }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }

    /// Number of connections so far.
    pub(crate) fn visitor_count(&self) -> usize {
        self.shared.visitor_count.load(Ordering::SeqCst)
    }
}

impl Drop for Rogue {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("a rogue does not panic");
        }
    }
}

fn serve(listener: &TcpListener, greeting: &[u8], shared: &Shared) {
    let mut visitors: Vec<TcpStream> = Vec::new();
    while !shared.is_over.load(Ordering::SeqCst) {
        while let Ok((mut visitor, _)) = listener.accept() {
            shared.visitor_count.fetch_add(1, Ordering::SeqCst);
            visitor.set_nonblocking(true).expect("a socket");
            visitor.write_all(greeting).ok(); // shorter than a socket's buffer
            visitors.push(visitor);
        }
        visitors.retain_mut(|visitor| match visitor.read(&mut [0; 4096]) {
            Ok(size) => size > 0,
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        });
        std::thread::sleep(PAUSE);
    }
}
