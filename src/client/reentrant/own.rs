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
use crate::limits;

/// What a [`LockRequest`] says, with nothing borrowed.
#[derive(Debug, Clone)]
pub(super) struct OwnRequest {
    pub(super) client: Client,
    pub(super) resource: Arc<[u8]>,
    ttl: Option<Duration>,
    wait: Option<Duration>,
    tries: Option<u32>,
    min_validity: Duration,
    auto_extend: Option<Duration>,
    is_fenced: bool,
    is_fair: bool,
    is_shared: bool,
    keeps_readers_out: bool,
}

/// What is asked with it.
#[derive(Debug)]
pub(super) struct OwnAcquisition {
    request: OwnRequest,
    asked: Asked,
}

impl OwnRequest {
    pub(super) fn new(request: &LockRequest<'_>) -> Self {
        // Taken apart, so that a new field cannot be forgotten here.
        let LockRequest {
            client,
            resource,
            ttl,
            wait,
            tries,
            min_validity,
            auto_extend,
            is_fenced,
            is_fair,
            is_shared,
            keeps_readers_out,
        } = *request;
        Self {
            client: client.clone(),
            resource: resource.into(),
            ttl,
            wait,
            tries,
            min_validity,
            auto_extend,
            is_fenced,
            is_fair,
            is_shared,
            keeps_readers_out,
        }
    }

    fn as_request(&self) -> LockRequest<'_> {
        let Self { client, resource, .. } = self;
        let Self {
            ttl,
            wait,
            tries,
            min_validity,
            auto_extend,
            is_fenced,
            is_fair,
            is_shared,
            keeps_readers_out,
            ..
        } = *self;
        LockRequest {
            client,
            resource,
            ttl,
            wait,
            tries,
            min_validity,
            auto_extend,
            is_fenced,
            is_fair,
            is_shared,
            keeps_readers_out,
        }
    }

    /// For how long a caller goes on trying.
    pub(super) fn wait(&self) -> Duration {
        let ttl = || self.ttl.unwrap_or(limits::TTL_DEFAULT.min(self.client.config().max_ttl));
        self.wait.unwrap_or_else(ttl)
    }

    /// The same with another wait.
    pub(super) fn acquisition(&self, wait: Duration) -> OwnAcquisition {
        OwnAcquisition { request: Self { wait: Some(wait), ..self.clone() }, asked: Asked::NOTHING }
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
