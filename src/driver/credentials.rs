//! The provider of credentials, off the event loop: it may block for as long as it wants.
//!
//! The engine has at most one question for a master open, so there is at most one thread for each.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use mio::Waker;

use crate::config::{Config, Credentials};
use crate::error::CredentialsError;
use crate::lock::MasterId;

type ProviderAnswer = (MasterId, Result<Credentials, CredentialsError>);

/// Asks the provider.
#[derive(Debug)]
pub(super) struct Asker {
    waker: Arc<Waker>,
    sender: Sender<ProviderAnswer>,
    receiver: Receiver<ProviderAnswer>,
}

impl Asker {
    /// The waker ends the poller's sleep when there is an answer.
    pub(super) fn new(waker: Arc<Waker>) -> Self {
        let (sender, receiver) = mpsc::channel();
        Self { waker, sender, receiver }
    }

    /// Has the provider asked; [`Asker::poll_answer`] has the answer after the waker's event.
    pub(super) fn ask(&self, config: Arc<Config>, master: MasterId) -> io::Result<()> {
        let (sender, waker) = (self.sender.clone(), self.waker.clone());
        let ask = move || {
            // The driver may be gone by now: then nobody wants the answer.
            let _ = sender.send((master, config.ask_credentials(master)));
            let _ = waker.wake();
        };
        thread::Builder::new().name("redlatch-login".to_owned()).spawn(ask).map(|_| ())
    }

    pub(super) fn poll_answer(&self) -> Option<ProviderAnswer> {
        self.receiver.try_recv().ok()
    }
}
