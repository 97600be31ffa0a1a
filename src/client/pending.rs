//! Calls under way: futures for any executor, for which a thread can wait, too.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::completions::{CompletionToken, OutcomeKind};
use super::shared::background::note_drop;
use super::shared::{Inner, Shared, Stopped};
use crate::cancel::Registration;
use crate::clock;
use crate::engine::{OpId, Outcome};

/// A request that a client answers once.
pub(super) trait Ask {
    const OUTCOME: OutcomeKind;
    /// Error of a client that cannot be used.
    const STOPPED: fn(Stopped) -> Self::Error;
    type Answer;
    type Error;
    /// Data that the submission keeps for the answer.
    type Submitted;

    fn shared(&self) -> &Arc<Shared>;

    /// Submits the request to the engine.
    fn submit(&mut self, inner: &mut Inner) -> Result<(OpId, Self::Submitted), Self::Error>;

    fn answer(
        &mut self,
        op: OpId,
        submitted: Self::Submitted,
        outcome: Outcome,
    ) -> Result<Self::Answer, Self::Error>;

    /// The handle that may cancel the call, and the error of a cancelled call.
    fn cancellation(&mut self) -> Option<(&mut Registration, Self::Error)> {
        None
    }
}

/// A request and its progress.
#[derive(Debug)]
pub(super) struct Pending<A: Ask> {
    ask: A,
    state: PendingState<A::Error, A::Submitted>,
}

#[derive(Debug)]
enum PendingState<E, S> {
    /// Nothing was sent.
    Idle,
    /// The outcome is not fetched yet.
    Waiting(CompletionToken, S),
    /// The request was refused before anything was sent.
    Refused(E),
    /// The answer was given, or nobody wants it.
    Over,
}

impl<A: Ask> Pending<A> {
    pub(super) const fn new(ask: A) -> Self {
        Self { ask, state: PendingState::Idle }
    }

    pub(super) const fn ask(&self) -> &A {
        &self.ask
    }

    pub(super) const fn ask_mut(&mut self) -> &mut A {
        &mut self.ask
    }

    /// Submits without waiting. The caller must see to it that the request is written.
    pub(super) fn submit(&mut self, inner: &mut Inner) {
        self.state = match self.ask.submit(inner) {
            Ok((op, submitted)) => PendingState::Waiting(inner.completions.expect(op, A::OUTCOME), submitted),
            Err(error) => PendingState::Refused(error),
        };
        // An immediate answer frees the operation's place, which the next request of a batch may take.
        inner.deliver();
    }

    /// Token of the answer. Submits the request if that was not done yet. `None` if no answer will come.
    fn completion(&mut self, inner: &mut Inner) -> Option<CompletionToken> {
        if let PendingState::Idle = self.state {
            self.submit(inner);
        }
        self.token()
    }

    /// Token of an answer that is not fetched yet.
    pub(super) const fn token(&self) -> Option<CompletionToken> {
        match self.state {
            PendingState::Waiting(completion, _) => Some(completion),
            _ => None,
        }
    }

    pub(super) fn wait(&mut self) -> Result<A::Answer, A::Error> {
        let shared = self.ask.shared().clone();
        if let Some(cancelled) = self.cancelled(|| shared.thread_waker()) {
            return Err(cancelled);
        }
        let cancel = self.ask.cancellation().map(|(registration, _)| registration.handle().clone());
        let outcome = shared.wait(A::OUTCOME, cancel.as_ref(), |inner| self.completion(inner));
        if let (Ok(None), Some(_)) = (&outcome, self.token())
            && let Some(cancelled) = self.cancelled(|| Waker::noop().clone())
        {
            return Err(cancelled);
        }
        self.finish(outcome)
    }

    /// Wakes this waker when the call is cancelled. If it already is, gives up the call and returns its
    /// error.
    fn cancelled(&mut self, waker: impl FnOnce() -> Waker) -> Option<A::Error> {
        let (registration, cancelled) = self.ask.cancellation()?;
        if !registration.register(&waker()) {
            return None;
        }
        self.give_up();
        Some(cancelled)
    }

    pub(super) fn poll_with(&mut self, waker: &Waker) -> Poll<Result<A::Answer, A::Error>> {
        assert!(!matches!(self.state, PendingState::Over), "polled after it was ready");
        if let Some(cancelled) = self.cancelled(|| waker.clone()) {
            return Poll::Ready(Err(cancelled));
        }
        let outcome = match self.state {
            PendingState::Waiting(completion, _) => {
                self.ask.shared().poll(waker, false, |_| Some(completion))
            }
            _ => self.ask.shared().clone().poll(waker, true, |inner| self.completion(inner)),
        };
        outcome.map(|outcome| self.finish(outcome))
    }

    /// Turns an outcome into the answer.
    fn finish(&mut self, outcome: Result<Option<Outcome>, Stopped>) -> Result<A::Answer, A::Error> {
        match (outcome, std::mem::replace(&mut self.state, PendingState::Over)) {
            (_, PendingState::Over) => panic!("polled after it was ready"),
            (Ok(Some(outcome)), PendingState::Waiting(completion, submitted)) => {
                self.ask.answer(completion.op, submitted, outcome)
            }
            (_, PendingState::Refused(error)) => Err(error),
            (Err(why), state) => {
                // The client may go on without this call: the drop gives up the request.
                self.state = state;
                Err(A::STOPPED(why))
            }
            (Ok(_), _) => unreachable!("an outcome is that of a submitted request, and is given once"),
        }
    }

    fn give_up(&mut self) {
        if let PendingState::Waiting(completion, _) = std::mem::replace(&mut self.state, PendingState::Over) {
            // A client that cannot be used has nothing to give up.
            let shared = self.ask.shared();
            drop(shared.with(|inner| inner.abandon(completion)));
            note_drop(shared);
        }
    }
}

/// Submits the calls of this client, with one write for each master. Calls of other clients, and all calls of
/// a stopped client, are submitted only by their own wait.
pub(super) fn submit_all<'b, A: Ask + 'b>(
    shared: &Arc<Shared>,
    batch: impl Iterator<Item = &'b mut Pending<A>>,
) {
    let _ = shared.with(|inner| {
        let start = inner.now();
        for call in batch.filter(|it| Arc::ptr_eq(it.ask.shared(), shared)) {
            inner.enter_at(clock::now());
            call.submit(inner);
        }
        inner.write_batch(start);
    });
}

/// Nothing is pinned: a call under way may move between two polls.
impl<A: Ask> Unpin for Pending<A> {}

impl<A: Ask> Future for Pending<A> {
    type Output = Result<A::Answer, A::Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_with(context.waker())
    }
}

impl<A: Ask> Drop for Pending<A> {
    fn drop(&mut self) {
        self.give_up();
    }
}
