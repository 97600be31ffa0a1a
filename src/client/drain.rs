//! The end of a client: no more acquisitions, and a wait until nothing is left on any master.

use std::thread;
use std::time::Duration;

use super::completions::Question;
use super::handle::Client;
use super::pending::{Ask, Pending};
use super::shared::{Core, Stopped};
use crate::clock;
use crate::engine::{HeldLocks, OpId, Outcome, Request, SubmitError};
use crate::limits;

impl Client {
    /// Ends the client's locks and then the client, within `limit`: for the shutdown of a service.
    ///
    /// 1. From now on nothing is acquired. Acquisitions under way end with [`crate::AcquireError::Stopped`],
    ///    and so do later ones, of all handles.
    /// 2. `held` says what becomes of locks that guards hold: they are released now, or left to their guards.
    /// 3. This call returns when nothing is left on any master, or after `limit`.
    /// 4. The client stops. Guards that still hold a lock keep their validity, and nobody renews or releases
    ///    it: it ends with its TTL.
    ///
    /// Returns the number of locks that are not released on every master. A master that cannot be reached
    /// keeps them there until their TTL; that harms nobody if the others have released them.
    ///
    /// It returns at once in a fork of the process, where it is 0, and in a waker that this client calls.
    ///
    /// ```no_run
    /// # use redlatch::{Client, HeldLocks};
    /// # use std::time::Duration;
    /// # let client = Client::connect(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?;
    /// let unreleased = client.drain(Duration::from_secs(10), HeldLocks::Leave);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn drain(&self, limit: Duration, held: HeldLocks) -> usize {
        let result = self.draining(limit, held).wait();
        self.end_drain(result)
    }

    /// Returns the future of [`Client::drain`], for tasks. It does nothing before it is polled. It is
    /// cancel-safe: dropping it ends the wait only. The client then acquires nothing, has released what was
    /// to be released, and serves its guards.
    pub fn drain_async(
        &self,
        limit: Duration,
        held: HeldLocks,
    ) -> impl Future<Output = usize> + Send + use<> {
        let client = self.clone();
        async move {
            let mut draining = client.draining(limit, held);
            let result = std::future::poll_fn(|context| draining.poll(context)).await;
            client.end_drain(result)
        }
    }

    fn draining(&self, limit: Duration, held: HeldLocks) -> Pending<Draining> {
        Pending::new(Draining { client: self.clone(), limit, held })
    }

    fn end_drain(&self, result: Result<usize, NotDrained>) -> usize {
        if let Ok(count) = result {
            // Without time nothing of it has been written yet.
            let _ = self.shared().with(|core| {
                core.flush();
                core.is_drained = true;
            });
            self.shared().stop("it was drained; open a new client");
            return count;
        }
        // A client that has stopped leaves its locks to their TTL; those of a fork are its parent's.
        self.shared().peek(|core| core.driver.engine.claim_count()).unwrap_or_default()
    }
}

/// Waits at most that long until a client has nothing on any master, and looks each millisecond. Returns the
/// number of locks that are not released everywhere. The client goes on, unlike after a drain: for tests.
pub fn settle(client: &Client, limit: Duration) -> usize {
    let until = clock::now().checked_add(limit);
    loop {
        let count = client.stats().claims;
        if count == 0 || until.is_some_and(|until| until <= clock::now()) {
            return count;
        }
        thread::sleep(limits::DRAIN_LOOK_PAUSE);
    }
}

/// The client cannot be asked, or has no room for the question.
#[derive(Debug)]
struct NotDrained;

#[derive(Debug)]
struct Draining {
    client: Client,
    limit: Duration,
    held: HeldLocks,
}

impl Ask for Draining {
    const QUESTION: Question = Question::Drain;
    type Answer = usize;
    type Error = NotDrained;

    fn client(&self) -> &Client {
        &self.client
    }

    fn submit(&mut self, core: &mut Core) -> Result<OpId, NotDrained> {
        let request = Request::Drain { held: self.held, limit: self.limit };
        // Without room it has ended the acquisitions under way, and there is room now.
        let again = |core: &mut Core| {
            core.deliver();
            core.submit(request)
        };
        core.submit(request).or_else(|_| again(core)).map_err(|_: SubmitError| NotDrained)
    }

    fn answer(&mut self, _: OpId, outcome: Outcome) -> Result<usize, NotDrained> {
        match outcome {
            Outcome::Drained(count) => Ok(count),
            _ => unreachable!("a drain is answered by its own outcome"),
        }
    }

    fn stopped(_: Stopped) -> NotDrained {
        NotDrained
    }
}
