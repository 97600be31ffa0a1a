//! [`RwLock`]: one name, with a request to read and one to write. Both are requests of the client.

use bytes::Bytes;

use super::handle::Client;
use super::request::LockRequest;
use crate::lock::LockName;

/// Lock that many readers hold together or one writer holds alone; made by [`Client::rw_lock`].
///
/// It is a name and holds nothing: [`RwLock::read`] is [`LockRequest::shared`], and [`RwLock::write`] is an
/// ordinary lock of the same name. A writer excludes readers, writers and plain locks, also of other
/// libraries, and all of them exclude it. Readers exclude all of them but each other.
///
/// ```no_run
/// # let client = redlatch::Client::connect(["redis://10.0.0.1"])?;
/// let prices = client.rw_lock("prices").prefer_writers();
///
/// let guard = prices.read().acquire()?; // beside other readers
/// println!("{:?}", guard.remaining());
/// drop(guard); // before it writes: a reader that asks to write waits for itself
///
/// let guard = prices.write().fenced().acquire()?;
/// println!("{:?}", guard.fencing_token());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// **No upgrade.** A guard to read never becomes a guard to write, or back. A reader that asks to write waits
/// for itself and for every other reader, until its wait ends; two such readers would wait for each other.
/// Release, acquire, then look again at the data. A dropped guard's release is on its way before the request
/// that follows.
///
/// **Order.** By default a writer has no preference. It gets the lock when a quorum is free of readers at one
/// moment, so a stream of readers can keep it waiting until its wait is over. With
/// [`RwLock::prefer_writers`], a stream of writers can keep readers waiting.
#[derive(Debug, Clone)]
pub struct RwLock {
    client: Client,
    resource: Bytes,
    prefers_writers: bool,
}

impl Client {
    /// Returns the lock of this name, for many readers or one writer; see [`LockName`]. A borrowed name is
    /// copied once; the requests and guards of the lock share it.
    pub fn rw_lock<'n>(&self, name: impl Into<LockName<'n>>) -> RwLock {
        RwLock { client: self.clone(), resource: name.into().into_shared(), prefers_writers: false }
    }
}

impl RwLock {
    /// Lets [`RwLock::write`] keep new readers out while it waits; see [`LockRequest::keep_readers_out`]. It
    /// concerns the requests of this value: each writer chooses for itself.
    #[must_use = "it is the returned lock that prefers writers"]
    pub const fn prefer_writers(mut self) -> Self {
        self.prefers_writers = true;
        self
    }

    /// Returns a request to hold the lock together with other readers.
    pub fn read(&self) -> LockRequest<'static> {
        self.client.lock_owned(self.resource.clone()).shared()
    }

    /// Returns a request to hold the lock alone.
    pub fn write(&self) -> LockRequest<'static> {
        let request = self.client.lock_owned(self.resource.clone());
        if self.prefers_writers { request.keep_readers_out() } else { request }
    }
}
