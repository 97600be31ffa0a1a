//! A request that outlives the call that made it: with a handle and a name of its own.

use std::sync::Arc;
use std::time::Duration;

use crate::client::desk::Question;
use crate::client::guard::Guard;
use crate::client::handle::Client;
use crate::client::pending::Ask;
use crate::client::request::{Asked, LockRequest};
use crate::client::shared::{Core, Stopped};
use crate::engine::{OpId, Outcome};
use crate::error::AcquireError;
use crate::options::Options;

/// What a [`LockRequest`] says, with nothing borrowed.
#[derive(Debug, Clone)]
pub(super) struct OwnRequest {
    pub(super) client: Client,
    pub(super) resource: Arc<[u8]>,
    options: Options,
}

/// What is asked with it.
#[derive(Debug)]
pub(super) struct OwnAcquisition {
    request: OwnRequest,
    asked: Asked,
}

impl OwnRequest {
    pub(super) fn new(request: &LockRequest<'_>) -> Self {
        let LockRequest { client, resource, options } = *request;
        Self { client: client.clone(), resource: resource.into(), options }
    }

    fn as_request(&self) -> LockRequest<'_> {
        LockRequest { client: &self.client, resource: &self.resource, options: self.options }
    }

    /// For how long a caller goes on trying.
    pub(super) fn wait(&self) -> Duration {
        self.options.wait_or_default(self.client.config().max_ttl)
    }

    /// The same with another wait.
    pub(super) fn acquisition(&self, wait: Duration) -> OwnAcquisition {
        let request = Self { options: self.options.wait(wait), ..self.clone() };
        OwnAcquisition { request, asked: Asked::NOTHING }
    }
}

impl Ask for OwnAcquisition {
    const QUESTION: Question = Question::Acquire;
    type Answer = Guard;
    type Error = AcquireError;

    fn client(&self) -> &Client {
        &self.request.client
    }

    fn submit(&mut self, core: &mut Core) -> Result<OpId, AcquireError> {
        self.request.as_request().submit(core, &mut self.asked)
    }

    fn answer(&mut self, op: OpId, outcome: Outcome) -> Result<Guard, AcquireError> {
        self.request.as_request().guard(&mut self.asked, op, outcome)
    }

    fn stopped(why: Stopped) -> AcquireError {
        AcquireError::Stopped(why)
    }
}
