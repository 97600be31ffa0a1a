//! [`LockName`], the type in which every call takes the name of a lock.

use std::fmt;

use bytes::Bytes;

use super::input_error::InputError;
use super::resource::Resource;
use crate::pool;

/// Name of a lock. Every call of [`Client`](crate::Client) and [`Redlock`](crate::Redlock) takes an
/// `impl Into<LockName>`: borrowed bytes of any kind, or owned bytes that the request keeps.
///
/// | given | kept |
/// | --- | --- |
/// | a reference: `&str`, `&String`, `&[u8]`, `&Vec<u8>`, `&[u8; 16]`, `&Bytes` | borrowed; a request that outlives the borrow, such as [`Client::lock_owned`](crate::Client::lock_owned), copies it once |
/// | `String` (for example from `format!`), `Vec<u8>`, `Bytes` | without a copy |
///
/// A name has 1 to 1,024 bytes ([`crate::limits::RESOURCE_SIZE_MAX`]), checked by the call that asks the
/// masters. [`Resource`](crate::engine::Resource), for your own event loop, always borrows.
///
/// ```no_run
/// use redlatch::{Client, LockName};
///
/// # let client = Client::connect(["redis://10.0.0.1"])?;
/// let (id, name) = (42, String::from("orders:42"));
/// let request = client.lock("orders:42");
/// let requests = [client.lock(&name), client.lock(format!("orders:{id}"))];
/// let owned = [client.lock_owned(&name), client.lock_owned(name.clone())];
/// let candidates = [client.lead("reports"), client.lead(&name)];
/// let prices = [client.rw_lock("prices"), client.rw_lock(&name)];
/// let set = client.lock_set([&name, "orders:43"]);
/// client.inspect(&name)?;
/// client.force_unlock(format!("orders:{id}"))?;
///
/// // A type of your own that is a name:
/// struct Order(u64);
///
/// impl From<&Order> for LockName<'_> {
///     fn from(order: &Order) -> Self {
///         format!("orders:{}", order.0).into()
///     }
/// }
///
/// let guard = client.lock(&Order(42)).acquire()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct LockName<'a>(Kept<'a>);

#[derive(Clone)]
enum Kept<'a> {
    Borrowed(&'a [u8]),
    Shared(Bytes),
    /// The name of a pool's slot or door.
    OfPool(Bytes),
}

impl<'a> LockName<'a> {
    /// Returns the name of the lock for this slot of a pool; see [`pool::slot_name`]. No other lock can have
    /// it, and a set refuses it.
    #[must_use]
    pub fn of_slot(pool: &[u8], slot: u32) -> LockName<'static> {
        LockName::of_pool(pool::slot_name(pool, slot))
    }

    /// Returns the name of the lock that only the first waiter of a pool holds; see [`pool::door_name`].
    #[must_use]
    pub fn of_door(pool: &[u8]) -> LockName<'static> {
        LockName::of_pool(pool::door_name(pool))
    }

    pub(crate) const fn of_pool(name: Bytes) -> Self {
        Self(Kept::OfPool(name))
    }

    /// Checks the name of a lock to be acquired.
    pub(crate) fn resource(&self) -> Result<Resource<'_>, InputError> {
        match &self.0 {
            Kept::Borrowed(name) => Resource::new(*name),
            Kept::Shared(name) => Resource::new(name),
            Kept::OfPool(name) => Resource::of_any_lock(name),
        }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Kept::Borrowed(name) => name,
            Kept::Shared(name) | Kept::OfPool(name) => name,
        }
    }

    /// The owned name; `None` if it is borrowed.
    pub(crate) const fn shared(&self) -> Option<&Bytes> {
        match &self.0 {
            Kept::Borrowed(_) => None,
            Kept::Shared(name) | Kept::OfPool(name) => Some(name),
        }
    }

    /// The same name without a borrow. A borrowed name is copied.
    pub(crate) fn into_owned(self) -> LockName<'static> {
        LockName(match self.0 {
            Kept::Borrowed(name) => Kept::Shared(Bytes::copy_from_slice(name)),
            Kept::Shared(name) => Kept::Shared(name),
            Kept::OfPool(name) => Kept::OfPool(name),
        })
    }

    pub(crate) fn into_shared(self) -> Bytes {
        match self.0 {
            Kept::Borrowed(name) => Bytes::copy_from_slice(name),
            Kept::Shared(name) | Kept::OfPool(name) => name,
        }
    }
}

impl AsRef<[u8]> for LockName<'_> {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl<'a, T: AsRef<[u8]> + ?Sized> From<&'a T> for LockName<'a> {
    fn from(name: &'a T) -> Self {
        Self(Kept::Borrowed(name.as_ref()))
    }
}

impl From<Bytes> for LockName<'_> {
    fn from(name: Bytes) -> Self {
        Self(Kept::Shared(name))
    }
}

impl From<String> for LockName<'_> {
    fn from(name: String) -> Self {
        Bytes::from(name).into()
    }
}

impl From<Vec<u8>> for LockName<'_> {
    fn from(name: Vec<u8>) -> Self {
        Bytes::from(name).into()
    }
}

impl fmt::Debug for LockName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.as_bytes().escape_ascii())
    }
}
