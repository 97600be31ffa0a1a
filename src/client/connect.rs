//! [`Connect`]: a client that is being opened, for tasks.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;

use super::handle::Client;
use crate::caught::caught;
use crate::config::{Config, ConfigError};
use crate::driver::ConnectError;

impl Client {
    /// Returns the future of [`Client::connect`], for tasks.
    ///
    /// ```no_run
    /// # async fn start() -> Result<(), Box<dyn std::error::Error>> {
    /// let urls = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"];
    /// let client = redlatch::Client::connect_async(urls).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ConnectError`]. A master that cannot be reached is no error.
    pub fn connect_async<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Connect {
        match Config::builder().masters(urls).build() {
            Ok(config) => Self::open_async(config),
            Err(error) => Connect { state: State::Invalid(error) },
        }
    }

    /// Returns the future of [`Client::open`], for tasks; [`Connect`] says what dropping it does.
    ///
    /// # Errors
    /// As [`Client::open`].
    pub fn open_async(config: Config) -> Connect {
        Connect { state: State::Idle(Box::new(config)) }
    }
}

/// Client that is being opened: a future for any executor; made by [`Client::open_async`] and
/// [`Client::connect_async`].
///
/// It does nothing before it is polled. Then a thread of its own opens the client, within twice the
/// `connect_timeout`, 2 s by default. No poll blocks. It is cancel-safe: if it is dropped before the client
/// is open, that thread closes the client. A drop after that is the drop of the client's last handle.
#[must_use = "nothing is connected before this is awaited"]
#[derive(Debug)]
pub struct Connect {
    state: State,
}

#[derive(Debug)]
enum State {
    Invalid(ConfigError),
    Idle(Box<Config>),
    Opening(Arc<Mutex<Opening>>),
    Over,
}

/// The result of the thread, and the task that waits for it.
#[derive(Debug, Default)]
struct Opening {
    result: Option<Result<Client, ConnectError>>,
    waker: Option<Waker>,
}

impl Future for Connect {
    type Output = Result<Client, ConnectError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let opening = match std::mem::replace(&mut self.state, State::Over) {
            State::Over => panic!("polled after it was ready"),
            State::Invalid(error) => return Poll::Ready(Err(error.into())),
            State::Idle(config) => start(*config)?,
            State::Opening(opening) => opening,
        };
        let mut shared = opening.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(result) = shared.result.take() {
            return Poll::Ready(result);
        }
        let _replaced = shared.waker.replace(context.waker().clone());
        drop(shared);
        self.state = State::Opening(opening);
        Poll::Pending
    }
}

/// Opens the client on a thread of its own.
fn start(config: Config) -> Result<Arc<Mutex<Opening>>, ConnectError> {
    let opening = Arc::<Mutex<Opening>>::default();
    let its = opening.clone();
    thread::Builder::new().name("redlatch-open".to_owned()).spawn(move || {
        let result = caught(|| Client::open(config));
        let result = result.unwrap_or_else(|| Err(io::Error::other("opening the client panicked").into()));
        let mut shared = its.lock().unwrap_or_else(PoisonError::into_inner);
        shared.result = Some(result);
        let waker = shared.waker.take();
        drop(shared);
        // Before the waker, which may run anybody's code: a task that is gone leaves the client to this.
        drop(its);
        waker.into_iter().for_each(Waker::wake);
    })?;
    Ok(opening)
}
