//! [`RwLock`]: one name, with a request to read and one to write. Both are requests of the client.

use bytes::Bytes;

use super::handle::Client;
use super::request::LockRequest;

/// A lock that many may read together and one may write alone; made by [`Client::rw_lock`].
///
/// It is a name, and holds nothing: [`RwLock::read`] is [`LockRequest::shared`] and [`RwLock::write`] an
/// ordinary lock of the same name. So a writer excludes, and is excluded by, readers, writers and plain locks
/// alike, those of other libraries included; and readers exclude all of them but each other.
///
/// ```no_run
/// # let client = redlatch::Client::connect(["redis://10.0.0.1"])?;
/// let prices = client.rw_lock("prices").prefer_writers();
///
/// let guard = prices.read().acquire()?; // beside other readers
/// println!("{:?}", guard.remaining());
/// guard.release()?; // before it writes: who reads and asks to write waits for itself
///
/// let guard = prices.write().fenced().acquire()?;
/// println!("{:?}", guard.fencing_token());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// **There is no way from reading to writing, or back.** A caller that has a guard to read and asks to write,
/// waits for itself until its wait ends, and for every other reader, too; two that do so would wait for each
/// other. Release, then acquire, then look again at what was read. With the guard dropped the release is on
/// its way before the request that follows.
///
/// **Order.** By itself a writer has no preference: it gets the lock when a quorum is free of readers at one
/// moment, and readers that come and go all the time can keep it waiting until its wait is over. With
/// [`RwLock::prefer_writers`] readers can be kept waiting by writers that come and go all the time.
#[derive(Debug, Clone)]
pub struct RwLock {
    client: Client,
    resource: Bytes,
    prefers_writers: bool,
}

impl Client {
    /// The lock of this name, for many readers together or one writer: 1 to
    /// [`crate::limits::RESOURCE_SIZE_MAX`] bytes. It keeps a copy of the name, which its requests and guards
    /// share.
    pub fn rw_lock(&self, resource: impl AsRef<[u8]>) -> RwLock {
        let resource = Bytes::copy_from_slice(resource.as_ref());
        RwLock { client: self.clone(), resource, prefers_writers: false }
    }
}

impl RwLock {
    /// Has [`RwLock::write`] keep new readers out while it waits; see [`LockRequest::keep_readers_out`]. It
    /// concerns the requests of this value: each writer chooses for itself.
    #[must_use = "it is the returned lock that prefers writers"]
    pub const fn prefer_writers(mut self) -> Self {
        self.prefers_writers = true;
        self
    }

    /// A request to have the lock beside other readers.
    pub fn read(&self) -> LockRequest<'static> {
        self.client.lock_owned(self.resource.clone()).shared()
    }

    /// A request to have the lock alone.
    pub fn write(&self) -> LockRequest<'static> {
        let request = self.client.lock_owned(self.resource.clone());
        if self.prefers_writers { request.keep_readers_out() } else { request }
    }
}
