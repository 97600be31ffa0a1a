//! The protocol without the library's sockets: `engine::Engine` in a complete mio loop.
//!
//! ```text
//!   submit ──► Engine ──► poll_link: connect, close     send_ready ──► sockets ──► recv_space
//!                │                                                                     │
//!                └──► poll_outcome ◄── handle_timeout ◄────── recv_done ◄──────────────┘
//! ```
//!
//! `cargo run --example own_loop_engine 10.0.0.1:6379 10.0.0.2:6379 10.0.0.3:6379`

use std::error::Error;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use rand::TryRng;
use rand::rngs::SysRng;
use redlatch::engine::{Engine, LinkRequest, MasterId, OpId, Outcome, Request};
use redlatch::{Config, Options};

pub struct Loop {
    engine: Engine,
    poll: Poll,
    addresses: Vec<SocketAddr>,
    /// Indexed by `MasterId::index`.
    sockets: Vec<Option<Socket>>,
}

struct Socket {
    stream: TcpStream,
    is_connected: bool,
}

impl Loop {
    /// The addresses of the configured masters, in the same order.
    pub fn new(config: Config, addresses: Vec<SocketAddr>) -> Result<Self, Box<dyn Error>> {
        let mut seed = [0; 32];
        SysRng.try_fill_bytes(&mut seed)?; // the locks' values are drawn from it
        let engine = Engine::new(Arc::new(config), seed, Instant::now());
        let sockets = addresses.iter().map(|_| None).collect();
        Ok(Self { engine, poll: Poll::new()?, addresses, sockets })
    }

    /// Submits a request, and turns the loop until its answer. A real loop has many requests under way.
    pub fn ask(&mut self, request: Request<'_>) -> Result<(OpId, Outcome), Box<dyn Error>> {
        // Without a quorum of connections, the request would fail at once.
        while !self.engine.is_settled() {
            self.turn()?;
        }
        let asked = self.engine.submit(Instant::now(), request)?;
        loop {
            match self.engine.poll_outcome() {
                Some((id, outcome)) if id == asked => return Ok((id, outcome)),
                Some(_) => {} // the answer of another request
                None => self.turn()?,
            }
        }
    }

    fn turn(&mut self) -> io::Result<()> {
        self.follow_links()?;
        self.write();
        let due = self.engine.next_timeout().map(|(at, _)| at.saturating_duration_since(Instant::now()));
        let mut events = Events::with_capacity(self.sockets.len());
        match self.poll.poll(&mut events, due) {
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(()),
            result => result?,
        }
        for link in events.iter().filter_map(|event| MasterId::new(event.token().0)) {
            if let Err(why) = self.connect_and_read(link) {
                self.sockets[link.index()] = None;
                self.engine.handle_disconnected(Instant::now(), link, &why.to_string());
            }
        }
        // After the reads, so that an answer that has arrived is not late.
        self.engine.handle_timeout(Instant::now());
        Ok(())
    }

    /// Opens and closes connections for the engine.
    fn follow_links(&mut self) -> io::Result<()> {
        while let Some(request) = self.engine.poll_link() {
            match request {
                LinkRequest::Close(link) => self.sockets[link.index()] = None,
                // The addresses are fixed.
                LinkRequest::LookUp(_) => {}
                LinkRequest::Credentials(_) => unreachable!("the settings have no credentials provider"),
                LinkRequest::Connect(link) => {
                    let mut stream = TcpStream::connect(self.addresses[link.index()])?;
                    let interest = Interest::READABLE | Interest::WRITABLE;
                    self.poll.registry().register(&mut stream, Token(link.index()), interest)?;
                    self.sockets[link.index()] = Some(Socket { stream, is_connected: false });
                }
            }
        }
        Ok(())
    }

    fn connect_and_read(&mut self, link: MasterId) -> io::Result<()> {
        let Some(socket) = &mut self.sockets[link.index()] else { return Ok(()) };
        if !socket.is_connected {
            if let Some(error) = socket.stream.take_error()? {
                return Err(error);
            }
            match socket.stream.peer_addr() {
                Err(error) if error.kind() == ErrorKind::NotConnected => return Ok(()),
                result => result?,
            };
            socket.stream.set_nodelay(true)?;
            socket.is_connected = true;
            self.engine.handle_connected(Instant::now(), link);
        }
        loop {
            match socket.stream.read(self.engine.recv_space(link)) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(size) => self.engine.recv_done(Instant::now(), link, size),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes queued bytes, as far as the sockets accept them. The rest follows when they are writable again.
    fn write(&mut self) {
        for index in 0..self.sockets.len() {
            let (Some(link), Some(socket)) = (MasterId::new(index), &mut self.sockets[index]) else {
                continue;
            };
            let bytes = self.engine.send_ready(link);
            if !socket.is_connected || bytes.is_empty() {
                continue;
            }
            match socket.stream.write(bytes) {
                Ok(size) => self.engine.send_done(link, size),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => {
                    self.sockets[index] = None;
                    self.engine.handle_disconnected(Instant::now(), link, &error.to_string());
                }
            }
        }
    }
}

/// Acquires and releases a lock. Returns whether it was free.
pub fn lock_once(config: Config, addresses: Vec<SocketAddr>, name: &str) -> Result<bool, Box<dyn Error>> {
    let mut events = Loop::new(config, addresses)?;
    let resource = redlatch::engine::Resource::new(name)?;
    let request = Request::Acquire { resource, options: Options::new().wait(Duration::ZERO), label: None };
    let (lock, outcome) = events.ask(request)?;
    let Outcome::Acquire(Ok(grant)) = outcome else { return Ok(false) };
    println!("held for {:?}", grant.valid_until - Instant::now());
    events.ask(Request::Release { lock, awaited: true })?;
    Ok(true)
}

#[allow(dead_code, reason = "a test includes this file for what is above")]
fn main() -> Result<(), Box<dyn Error>> {
    let addresses: Vec<SocketAddr> =
        std::env::args().skip(1).map(|it| it.parse()).collect::<Result<_, _>>()?;
    let config = Config::builder().masters(addresses.iter().map(|it| format!("redis://{it}"))).build()?;
    println!(
        "{}",
        if lock_once(config, addresses, "own-loop")? { "released" } else { "another client holds it" }
    );
    Ok(())
}
