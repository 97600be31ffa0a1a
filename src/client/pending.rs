//! What was asked of a client and is not answered yet: futures for any executor, which a thread can wait for,
//! too.

use std::task::{Context, Poll};

use super::completions::{CompletionToken, Question};
use super::handle::Client;
use super::lingering::note_drop;
use super::parker::Parker;
use super::shared::{Core, Stopped};
use crate::cancel::Registration;
use crate::engine::{OpId, Outcome};
use crate::error::AcquireError;

/// Makes a future of what has a [`Pending`] in it.
macro_rules! future {
    ($name:ty, $output:ty) => {
        impl ::std::future::Future for $name {
            type Output = $output;

            fn poll(
                mut self: ::std::pin::Pin<&mut Self>,
                context: &mut ::std::task::Context<'_>,
            ) -> ::std::task::Poll<$output> {
                self.0.poll(context)
            }
        }
    };
}
pub(super) use future;

/// The caller that wants an answer: a thread, which waits until it is there, or a task.
#[derive(Clone, Copy)]
pub(super) enum How<'a, 'b> {
    Thread,
    Task(&'a Context<'b>),
}

/// What can be asked of a client and is answered once.
pub(super) trait Ask {
    const QUESTION: Question;
    type Answer;
    type Error;

    fn client(&self) -> &Client;

    /// Has the engine take the request.
    fn submit(&mut self, core: &mut Core) -> Result<OpId, Self::Error>;

    fn answer(&mut self, op: OpId, outcome: Outcome) -> Result<Self::Answer, Self::Error>;

    fn stopped(why: Stopped) -> Self::Error;
}

/// A request, and how far it is.
#[derive(Debug)]
pub(super) struct Pending<A: Ask> {
    ask: A,
    state: State<A::Error>,
}

#[derive(Debug)]
enum State<E> {
    /// Nothing was sent.
    Idle,
    /// The outcome has not been fetched.
    Waiting(CompletionToken),
    /// It was refused before anything was sent.
    Refused(E),
    /// All was said.
    Over,
}

impl<A: Ask> Pending<A> {
    pub(super) const fn new(ask: A) -> Self {
        Self { ask, state: State::Idle }
    }

    /// What is asked.
    pub(super) const fn ask(&self) -> &A {
        &self.ask
    }

    /// Submits without waiting; the caller sees to it that the request is written.
    pub(super) fn submit(&mut self, core: &mut Core) {
        self.state = match self.ask.submit(core) {
            Ok(op) => State::Waiting(core.completions.expect(op, A::QUESTION)),
            Err(error) => State::Refused(error),
        };
        // An answer that is there at once frees the operation's place, which the next request of a batch may
        // take.
        core.deliver();
    }

    /// What entitles to the answer; submits the request if that was not done yet. `None` if there will be no
    /// answer.
    fn completion(&mut self, core: &mut Core) -> Option<CompletionToken> {
        if let State::Idle = self.state {
            self.submit(core);
        }
        match self.state {
            State::Waiting(completion) => Some(completion),
            _ => None,
        }
    }

    pub(super) fn wait(mut self) -> Result<A::Answer, A::Error> {
        self.wait_here()
    }

    /// Waits for it, or polls it.
    pub(super) fn resolve(&mut self, how: How<'_, '_>) -> Poll<Result<A::Answer, A::Error>> {
        match how {
            How::Thread => Poll::Ready(self.wait_here()),
            How::Task(context) => self.poll(context),
        }
    }

    fn wait_here(&mut self) -> Result<A::Answer, A::Error> {
        let client = self.ask.client().clone();
        let outcome = client.shared().wait(A::QUESTION, |core| self.completion(core));
        self.finish(outcome)
    }

    pub(super) fn poll(&mut self, context: &Context<'_>) -> Poll<Result<A::Answer, A::Error>> {
        let client = self.ask.client().clone();
        let is_new = matches!(self.state, State::Idle);
        let outcome = client.shared().poll(context.waker(), is_new, |core| self.completion(core));
        outcome.map(|outcome| self.finish(outcome))
    }

    /// Makes the answer of an outcome.
    fn finish(&mut self, outcome: Result<Option<Outcome>, Stopped>) -> Result<A::Answer, A::Error> {
        match (outcome, std::mem::replace(&mut self.state, State::Over)) {
            (_, State::Over) => panic!("polled after it was ready"),
            (Ok(Some(outcome)), State::Waiting(completion)) => self.ask.answer(completion.op, outcome),
            (_, State::Refused(error)) => Err(error),
            (Err(why), state) => {
                // The client may go on, without this call: the drop gives up what was asked.
                self.state = state;
                Err(A::stopped(why))
            }
            (Ok(_), _) => unreachable!("an outcome is that of a submitted request, and is given once"),
        }
    }
}

/// Polls or waits for what is asked until it is answered or cancelled.
pub(super) fn resolve_cancellable<A: Ask<Error = AcquireError>>(
    registration: &mut Registration,
    pending: &mut Option<Pending<A>>,
    how: How<'_, '_>,
) -> Poll<Result<A::Answer, AcquireError>> {
    let own = match how {
        How::Thread => Some(Parker::own()),
        How::Task(_) => None,
    };
    loop {
        let waker = match (&own, how) {
            (Some((_, waker)), _) => waker,
            (None, How::Task(context)) => context.waker(),
            (None, How::Thread) => unreachable!("a thread has a parker"),
        };
        let asked = pending.as_mut().expect("polled after it was ready");
        if own.is_some()
            && let Err(why) = asked.ask().client().shared().check_may_wait()
        {
            return Poll::Ready(Err(A::stopped(why)));
        }
        if registration.register(waker) {
            // Its drop gives up what was asked.
            drop(pending.take());
            return Poll::Ready(Err(AcquireError::Cancelled));
        }
        match (asked.poll(&Context::from_waker(waker)), &own) {
            (Poll::Ready(result), _) => return Poll::Ready(result),
            (Poll::Pending, Some((parker, _))) => drop(parker.park(None)),
            (Poll::Pending, None) => return Poll::Pending,
        }
    }
}

impl<A: Ask> Drop for Pending<A> {
    fn drop(&mut self) {
        if let State::Waiting(completion) = self.state {
            // A client that cannot be used has nothing to give up.
            let client = self.ask.client();
            drop(client.shared().with(|core| core.abandon(completion)));
            note_drop(client.shared());
        }
    }
}
