//! [`Fleets`]: several fleets of masters, and which of them has the lock of a name. Uses public items alone:
//! `tests/fleets.rs` compiles this file outside the crate.

use crate::pool::LockOfPool;
use crate::{Candidate, Client, LockName, LockRequest, RwLock, SlotsRequest};

/// Several fleets of masters, for more locks than one fleet carries. Each lock is in one fleet, which the
/// hash of its name chooses; see [`Fleets::of`].
///
/// Each fleet is a [`Client`] under a label that you choose. The hash contains the label and no address, so
/// a fleet may replace its masters. All processes must use the same labels for the same fleets; the order
/// does not matter.
///
/// ```no_run
/// use redlatch::{Client, Fleets};
///
/// let first = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"];
/// let second = ["redis://10.0.1.1", "redis://10.0.1.2", "redis://10.0.1.3"];
/// let clients = (Client::connect(first)?, Client::connect(second)?);
/// let fleets = Fleets::new([("first", clients.0), ("second", clients.1)])?;
///
/// let guard = fleets.lock("orders:42").acquire()?;
/// // Calls that `Fleets` does not have:
/// let status = fleets.of("orders:42").inspect("orders:42")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Hash tags
///
/// A set of locks and a pool of slots are in one fleet. Names with the same text in braces are in the same
/// fleet, as in Redis Cluster: if a name contains `{`, and at least one byte between its first `{` and the
/// next `}`, only those bytes are hashed.
///
/// ```no_run
/// # let client = redlatch::Client::connect(["redis://10.0.0.1"])?;
/// # let fleets = redlatch::Fleets::new([("first", client)])?;
/// let names = ["{cart:7}:items", "{cart:7}:total"];
/// let set = fleets.of("{cart:7}").lock_set(names).acquire()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Adding and removing fleets
///
/// A new label takes about its equal share of the names, and no other name moves. Without a label its names
/// move to the other fleets. A process with the old list and a process with the new list ask different
/// fleets for a name that moves, so **both may hold its lock**. Two ways are safe:
///
/// - **Stop**: stop all processes, wait for `max_ttl` (30 s unless set), and start them with the new list.
/// - **Take both**, for locks without fencing tokens: start all processes, one after the other, with code
///   that takes each lock in its old fleet, then in its new fleet, and holds both. The work stops when either
///   guard is not valid. When no process has the old list alone, start all with the new list alone.
///
/// ```no_run
/// use redlatch::{AcquireError, Fleets, Guard};
///
/// fn lock_both(
///     old: &Fleets,
///     new: &Fleets,
///     name: &str,
/// ) -> Result<(Guard, Option<Guard>), AcquireError> {
///     let guard = old.lock(name).acquire()?;
///     let moves = old.label_of(name) != new.label_of(name);
///     Ok((guard, moves.then(|| new.lock(name).acquire()).transpose()?))
/// }
/// ```
///
/// **[Fencing tokens](crate::FencingToken) of a moved name, also terms of a leader, grow only after a
/// stop.** Each fleet guarantees growth among its own tokens alone. A token lies within half of `max_ttl` of
/// the clocks of the fleet that accepted it. So after the wait, tokens grow if the new fleet's clocks are
/// not behind the old fleet's clocks. If they may be, wait longer by that difference. Without a wait the
/// next token may be smaller.
#[derive(Debug, Clone)]
pub struct Fleets {
    /// At least one, in the order of their labels, each label once.
    fleets: Vec<Fleet>,
}

#[derive(Debug, Clone)]
struct Fleet {
    label: String,
    client: Client,
    seed: u64,
}

impl Fleets {
    /// Returns these fleets, each with its label. Asks no master.
    ///
    /// # Errors
    /// [`FleetsError`] if there is no fleet, or if two fleets have the same label.
    pub fn new<L: Into<String>>(fleets: impl IntoIterator<Item = (L, Client)>) -> Result<Self, FleetsError> {
        let fleet = |(label, client): (L, Client)| {
            let label = label.into();
            Fleet { seed: mix(fnv1a(label.as_bytes())), label, client }
        };
        let mut fleets: Vec<Fleet> = fleets.into_iter().map(fleet).collect();
        fleets.sort_by(|a, b| a.label.cmp(&b.label));
        if fleets.is_empty() {
            return Err(FleetsError::Empty);
        }
        match fleets.windows(2).find(|pair| pair[0].label == pair[1].label) {
            Some(pair) => Err(FleetsError::SameLabel { label: pair[0].label.clone() }),
            None => Ok(Self { fleets }),
        }
    }

    /// Returns the client of the fleet in which the lock of this name is.
    ///
    /// It is the fleet with the largest `mix(mix(fnv1a(label)) ^ fnv1a(tag))`: rendezvous hashing (Thaler and
    /// Ravishankar, 1998). `fnv1a` is FNV-1a with 64 bits, `mix` the finalizer of `SplitMix64`, and `tag` the
    /// [hash tag](Fleets#hash-tags) or else the whole name. The choice is the same in each version and on
    /// each platform. It takes one step for each byte of the name and for each fleet, and allocates nothing.
    #[must_use]
    pub fn of<'n>(&self, name: impl Into<LockName<'n>>) -> &Client {
        &self.choose(&name.into()).client
    }

    /// Returns the label of the fleet in which the lock of this name is.
    #[must_use]
    pub fn label_of<'n>(&self, name: impl Into<LockName<'n>>) -> &str {
        &self.choose(&name.into()).label
    }

    /// Iterates over all labels and clients in the order of the labels, for example to read
    /// [`Client::health`] or to [`Client::drain`] each.
    pub fn clients(&self) -> impl Iterator<Item = (&str, &Client)> {
        self.fleets.iter().map(|fleet| (&*fleet.label, &fleet.client))
    }

    /// As [`Client::lock`], in the fleet of this name.
    pub fn lock<'a, 'n: 'a>(&'a self, name: impl Into<LockName<'n>>) -> LockRequest<'a> {
        let name = name.into();
        self.of(&name).lock(name)
    }

    /// As [`Client::lock_owned`], in the fleet of this name.
    pub fn lock_owned<'n>(&self, name: impl Into<LockName<'n>>) -> LockRequest<'static> {
        let name = name.into();
        self.of(&name).lock_owned(name)
    }

    /// As [`Client::rw_lock`], in the fleet of this name.
    pub fn rw_lock<'n>(&self, name: impl Into<LockName<'n>>) -> RwLock {
        let name = name.into();
        self.of(&name).rw_lock(name)
    }

    /// As [`Client::slots`], in the fleet of this pool. All its slots are there.
    pub fn slots<'n>(&self, pool: impl Into<LockName<'n>>, count: u32) -> SlotsRequest {
        let pool = pool.into();
        self.of(&pool).slots(pool, count)
    }

    /// As [`Client::lead`], in the fleet of this name.
    pub fn lead<'n>(&self, name: impl Into<LockName<'n>>) -> Candidate {
        let name = name.into();
        self.of(&name).lead(name)
    }

    fn choose(&self, name: &LockName<'_>) -> &Fleet {
        // A pool's locks are where the pool is.
        let name = LockOfPool::parse(name.as_ref()).map_or(name.as_ref(), |lock| lock.pool);
        let hash = fnv1a(hash_tag(name));
        // The order of the labels decides between equal values.
        self.fleets.iter().max_by_key(|fleet| mix(fleet.seed ^ hash)).expect("`new` refuses an empty list")
    }
}

/// Why [`Fleets::new`] refused a list of fleets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FleetsError {
    /// An empty list.
    #[error("no fleet is given; give at least one")]
    Empty,
    /// The same label twice.
    #[error("two fleets have the label `{}`; give each fleet its own label", label.escape_debug())]
    SameLabel {
        /// The label.
        label: String,
    },
}

/// What is hashed of a name: the bytes between the first `{` and the next `}`, if there are any.
fn hash_tag(name: &[u8]) -> &[u8] {
    let mut parts = name.splitn(2, |byte| *byte == b'{').skip(1);
    let tag = parts.next().and_then(|rest| Some(&rest[..rest.iter().position(|byte| *byte == b'}')?]));
    tag.filter(|tag| !tag.is_empty()).unwrap_or(name)
}

/// FNV-1a with 64 bits (Fowler, Noll, Vo).
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Finalizer of `SplitMix64` (Steele, Lea, Flood 2014; constants of Stafford's variant 13).
fn mix(mut hash: u64) -> u64 {
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}
