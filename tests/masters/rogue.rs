//! A server that is not Redis: it sends one greeting to each connection, and nothing more.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Pause between two checks for new and closed connections.
const PAUSE: Duration = Duration::from_millis(2);

pub(crate) struct Rogue {
    addr: SocketAddr,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Rogue {
    pub(crate) fn start(greeting: Vec<u8>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        listener.set_nonblocking(true).expect("a socket");
        let addr = listener.local_addr().expect("bound");
        let is_over = Arc::<AtomicBool>::default();
        let thread = std::thread::spawn({
            let is_over = is_over.clone();
            move || serve(&listener, &greeting, &is_over)
        });
        Self { addr, is_over, thread: Some(thread) }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }
}

impl Drop for Rogue {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("a rogue does not panic");
        }
    }
}

fn serve(listener: &TcpListener, greeting: &[u8], is_over: &AtomicBool) {
    let mut visitors: Vec<TcpStream> = Vec::new();
    while !is_over.load(Ordering::SeqCst) {
        while let Ok((mut visitor, _)) = listener.accept() {
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
