//! [`LockHandle`]: a held lock as a value, which another process adopts or releases.
//!
//! ```text
//!   magic, version 4 │ kind 1 │ TTL 4 │ end 8 │ hold until 8 │ fencing token 8 │ fleet 8 │ token 20
//!   label 1 + n │ prefix 2 + n │ name 2 + n │ checksum 8
//! ```
//!
//! Numbers are little-endian; times are in milliseconds, ends since 1970. The checksum detects damage, not
//! forgery: a process that knows the token may do anything with the lock.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;

use crate::config::Config;
use crate::error::{ForeignHandle, ParseHandleError};
use crate::limits;
use crate::lock::command::entry::Entry;
use crate::lock::{FencingToken, HolderLabel, Kind, Token};
use crate::options::Mode;

const MAGIC: &[u8; 3] = b"rlh";
const VERSION: u8 = 1;
/// Beginning of the text form; the bytes in hexadecimal digits follow.
const TEXT_HEAD: &str = "redlatch:";
const KIND_MASK: u8 = 3;
/// Set in a handle that another client may adopt.
const PASSED: u8 = 4;

/// A held lock as a value for another process, which [adopts](crate::Client::adopt) the lock, or
/// [releases](crate::Client::release_handle) it.
///
/// [`Guard::into_handle`](crate::Guard::into_handle) gives up the lock and makes a handle that can be adopted
/// once. [`Guard::to_handle`](crate::Guard::to_handle) keeps the lock and makes a handle that can only
/// release it, for a supervisor that sees its holder die.
///
/// **It is a secret**: a process that has it can release or adopt the lock. `Debug` hides the token;
/// `Display` and [`LockHandle::to_bytes`] do not. It contains no URL and no password.
///
/// ```
/// use redlatch::LockHandle;
///
/// let damaged = "redlatch:726c6801";
/// assert!(damaged.parse::<LockHandle>().is_err());
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct LockHandle {
    pub(crate) name: Bytes,
    pub(crate) prefix: Box<[u8]>,
    /// Hash of the list of masters, in any order.
    pub(crate) fleet: u64,
    pub(crate) token: Token,
    pub(crate) label: Option<Box<str>>,
    pub(crate) kind: Kind,
    pub(crate) ttl_ms: u32,
    pub(crate) end_ms: u64,
    /// End of the automatic extension, if there is one.
    pub(crate) hold_until_ms: Option<u64>,
    pub(crate) is_passed: bool,
}

impl LockHandle {
    /// Key and value of the lock as its first holder had them.
    pub(crate) fn entry(&self, prefix: &[u8]) -> Entry {
        let mut entry = Entry::EMPTY;
        entry.set(prefix, &self.name, &self.token);
        if let Some(label) = &self.label {
            entry.add_label(&self.token, label.as_bytes());
        }
        entry
    }

    /// Returns the lock's name, without the prefix.
    #[must_use]
    pub fn resource(&self) -> &[u8] {
        &self.name
    }

    /// Returns the random value that the masters hold for the lock.
    #[must_use]
    pub const fn token(&self) -> Token {
        self.token
    }

    /// Returns the fencing token of a fenced lock. Adoption does not change it.
    #[must_use]
    pub const fn fencing_token(&self) -> Option<FencingToken> {
        self.kind.fencing_token()
    }

    /// Returns the mode of the lock.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.kind.mode()
    }

    /// Returns the TTL that the lock gets when it is adopted: its guard's.
    #[must_use]
    pub const fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_ms as u64)
    }

    /// Returns when the lock ends unless it is adopted, as time since 1970 by the wall clock of the process
    /// that made the handle. For a handle that only releases, the end at that time; the lock may have been
    /// extended since.
    #[must_use]
    pub const fn end(&self) -> Duration {
        Duration::from_millis(self.end_ms)
    }

    /// Returns when the lock's automatic extension ends, by the same clock. It continues until then in the
    /// process that adopts the lock.
    #[must_use]
    pub fn hold_until(&self) -> Option<Duration> {
        self.hold_until_ms.map(Duration::from_millis)
    }

    /// Returns whether the lock can be adopted, because its guard has given it up. Other handles only
    /// release.
    #[must_use]
    pub const fn can_be_adopted(&self) -> bool {
        self.is_passed
    }

    /// The handle of the lock given up by its guard, to be adopted with this TTL.
    pub(crate) fn passed(self, ttl: Duration) -> Self {
        Self { is_passed: true, ttl_ms: u32::try_from(ttl.as_millis()).unwrap_or(u32::MAX), ..self }
    }

    /// Rest of the automatic extension at this time.
    pub(crate) fn hold_left(&self, wall: Duration) -> Option<Duration> {
        Some(self.hold_until()?.saturating_sub(wall))
    }

    /// Time since the lock's end; `None` before it.
    pub(crate) fn ended_ago(&self, wall: Duration) -> Option<Duration> {
        wall.checked_sub(self.end()).filter(|ago| !ago.is_zero())
    }

    /// Returns whether the lock belongs to a client with these settings: the same prefix and the same
    /// masters, in any order and with any logins. Each master's URL must be written the same way.
    ///
    /// # Errors
    /// [`ForeignHandle`].
    pub fn check_fleet(&self, config: &Config) -> Result<(), ForeignHandle> {
        let resource = self.name.clone();
        if *self.prefix != *config.prefix {
            let [prefix, own] = [&*self.prefix, &*config.prefix].map(Bytes::copy_from_slice);
            return Err(ForeignHandle::OtherPrefix { resource, prefix, own });
        }
        if self.fleet != fleet_of(config) {
            return Err(ForeignHandle::OtherMasters { resource });
        }
        Ok(())
    }

    /// Returns the handle as at most 1,437 bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let kind = self.mode().number();
        let label = self.label.as_deref().unwrap_or_default().as_bytes();
        let mut out = [MAGIC.as_slice(), &[VERSION, kind | if self.is_passed { PASSED } else { 0 }]].concat();
        out.extend_from_slice(&self.ttl_ms.to_le_bytes());
        let fencing = self.fencing_token().map_or(0, FencingToken::as_u64);
        for number in [self.end_ms, self.hold_until_ms.unwrap_or(0), fencing, self.fleet] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(self.token.as_bytes());
        out.push(u8::try_from(label.len()).expect("a label is short"));
        out.extend_from_slice(label);
        for part in [&*self.prefix, &*self.name] {
            out.extend_from_slice(&u16::try_from(part.len()).expect("it is short").to_le_bytes());
            out.extend_from_slice(part);
        }
        out.extend_from_slice(&hash(&out).to_le_bytes());
        out
    }

    /// Parses a handle's bytes.
    ///
    /// # Errors
    /// [`ParseHandleError`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ParseHandleError> {
        match bytes.strip_prefix(MAGIC) {
            Some([VERSION, ..]) => parse(bytes).ok_or(ParseHandleError::Malformed),
            Some(&[version, ..]) if version > VERSION => Err(ParseHandleError::NewerVersion { version }),
            _ => Err(ParseHandleError::Malformed),
        }
    }
}

fn parse(bytes: &[u8]) -> Option<LockHandle> {
    let (bytes, checksum) = bytes.split_last_chunk::<8>()?;
    if hash(bytes) != u64::from_le_bytes(*checksum) {
        return None;
    }
    let mut parts = Parts(bytes.get(MAGIC.len() + 1..)?);
    let kind = parts.chunk::<1>()?[0];
    let ttl_ms = u32::from_le_bytes(*parts.chunk()?);
    let mut number = || Some(u64::from_le_bytes(*parts.chunk()?));
    let (end_ms, hold_until_ms, fencing, fleet) = (number()?, number()?, number()?, number()?);
    let token = Token::from_bytes(*parts.chunk()?);
    let label_size = usize::from(parts.chunk::<1>()?[0]);
    let label = str::from_utf8(parts.take(label_size)?).ok()?;
    let prefix = parts.sized()?;
    let name = Bytes::copy_from_slice(parts.sized()?);
    let is_whole = parts.0.is_empty() && prefix.len() <= limits::PREFIX_SIZE_MAX;
    let kind_of_lock = Kind::in_handle(kind & KIND_MASK, fencing)?;
    (is_whole && kind & !(KIND_MASK | PASSED) == 0).then_some(())?;
    let label = if label.is_empty() { None } else { Some(HolderLabel::new(label).ok()?.as_str().into()) };
    Some(LockHandle {
        name,
        prefix: prefix.into(),
        fleet,
        token,
        label,
        kind: kind_of_lock,
        ttl_ms,
        end_ms,
        hold_until_ms: Some(hold_until_ms).filter(|at| *at > 0),
        is_passed: kind & PASSED != 0,
    })
}

/// The bytes not yet parsed.
struct Parts<'a>(&'a [u8]);

impl<'a> Parts<'a> {
    fn chunk<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (chunk, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(chunk)
    }

    fn take(&mut self, size: usize) -> Option<&'a [u8]> {
        let (part, rest) = self.0.split_at_checked(size)?;
        self.0 = rest;
        Some(part)
    }

    fn sized(&mut self) -> Option<&'a [u8]> {
        let size = u16::from_le_bytes(*self.chunk()?);
        self.take(usize::from(size))
    }
}

/// Hash of a client's masters, in any order and without logins.
pub(crate) fn fleet_of(config: &Config) -> u64 {
    // The text of a URL contains no login.
    let mut masters: Vec<String> = config.masters.iter().map(ToString::to_string).collect();
    masters.sort_unstable();
    hash(masters.join("\n").as_bytes())
}

/// 64-bit FNV-1a: the same in each version and on each machine. It resists no attacker, who could as well
/// delete locks.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix)
}

impl fmt::Display for LockHandle {
    /// One line of ASCII, including the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(TEXT_HEAD)?;
        self.to_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for LockHandle {
    type Err = ParseHandleError;

    /// Parses the text of `Display`; ignores surrounding white space.
    fn from_str(text: &str) -> Result<Self, ParseHandleError> {
        let digits = text.trim().strip_prefix(TEXT_HEAD).ok_or(ParseHandleError::Malformed)?;
        let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let bytes = pairs.iter().map(|[high, low]| Some(digit(*high)? * 16 + digit(*low)?));
        let bytes: Option<Vec<u8>> = bytes.collect();
        Self::from_bytes(&bytes.filter(|_| rest.is_empty()).ok_or(ParseHandleError::Malformed)?)
    }
}

impl fmt::Debug for LockHandle {
    /// Omits the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockHandle")
            .field("resource", &self.name.escape_ascii().to_string())
            .field("mode", &self.mode())
            .field("fencing_token", &self.fencing_token())
            .field("ttl", &self.ttl())
            .field("end", &self.end())
            .field("can_be_adopted", &self.is_passed)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(kind: Kind) -> LockHandle {
        LockHandle {
            name: "orders:42".into(),
            prefix: b"p:".as_slice().into(),
            fleet: 7,
            token: Token::from_bytes(*b"0123456789abcdefghij"),
            label: Some("web-3".into()),
            kind,
            ttl_ms: 10_000,
            end_ms: 1_800_000_000_000,
            hold_until_ms: None,
            is_passed: true,
        }
    }

    #[test]
    fn a_handle_is_the_same_behind_bytes_and_text() {
        let kinds = [Kind::Plain, Kind::Fenced(FencingToken::near(9)), Kind::Shared];
        for kind in kinds {
            for (hold_until_ms, is_passed, label) in [(Some(5), true, None), (None, false, Some("a".into()))]
            {
                let handle = LockHandle { hold_until_ms, is_passed, label, ..handle(kind) };
                assert_eq!(LockHandle::from_bytes(&handle.to_bytes()), Ok(handle.clone()));
                assert_eq!(format!(" {handle}\n").parse(), Ok(handle.clone()));
                assert!(handle.to_string().bytes().all(|byte| byte.is_ascii_graphic()));
            }
        }
        let name = vec![0; limits::SLOT_PART_SIZE_MAX + limits::RESOURCE_SIZE_MAX];
        let prefix = vec![0; limits::PREFIX_SIZE_MAX];
        let label = Some("a".repeat(limits::HOLDER_LABEL_SIZE_MAX).into());
        let longest = LockHandle { name: name.into(), prefix: prefix.into(), label, ..handle(Kind::Plain) };
        assert_eq!(longest.to_bytes().len(), 1437);
        assert_eq!(LockHandle::from_bytes(&longest.to_bytes()), Ok(longest));
    }

    // I49
    #[test]
    fn a_damaged_handle_is_recognised() {
        let bytes = handle(Kind::Fenced(FencingToken::near(9))).to_bytes();
        for place in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[place] ^= 1 << bit;
                assert!(LockHandle::from_bytes(&damaged).is_err(), "bit {bit} of byte {place}");
            }
            assert_eq!(LockHandle::from_bytes(&bytes[..place]), Err(ParseHandleError::Malformed));
        }
        let text = handle(Kind::Plain).to_string();
        let damaged = [
            "",
            "redlatch:",
            "redlatch:7",
            &text[1..],
            &text[..text.len() - 1],
            &format!("{text}0"),
            &text.replace('7', "x"),
        ];
        // Not a hexadecimal digit.
        assert_eq!(text.replace("041027", "040g27").parse::<LockHandle>(), Err(ParseHandleError::Malformed));
        for text in damaged {
            assert_eq!(text.parse::<LockHandle>(), Err(ParseHandleError::Malformed), "{text}");
        }
    }

    /// A newer or faulty program may write such a handle.
    #[test]
    fn handle_with_trailing_bytes_is_refused() {
        let bytes = handle(Kind::Plain).to_bytes();
        let (own, _) = bytes.split_last_chunk::<8>().expect("a checksum");
        let read = |change: fn(&mut Vec<u8>)| {
            let mut bytes = own.to_vec();
            change(&mut bytes);
            let checksum = hash(&bytes).to_le_bytes();
            LockHandle::from_bytes(&[&bytes[..], &checksum].concat())
        };
        assert_eq!(read(|_| {}), Ok(handle(Kind::Plain)));
        assert_eq!(read(|bytes| bytes[4] |= 8), Err(ParseHandleError::Malformed), "an unknown flag");
        assert_eq!(read(|bytes| bytes.push(0)), Err(ParseHandleError::Malformed), "a byte behind the name");
    }

    // I49
    #[test]
    fn a_newer_version_is_named() {
        let mut bytes = handle(Kind::Plain).to_bytes();
        bytes[3] = 2;
        assert_eq!(LockHandle::from_bytes(&bytes), Err(ParseHandleError::NewerVersion { version: 2 }));
        bytes[3] = 0;
        assert_eq!(LockHandle::from_bytes(&bytes), Err(ParseHandleError::Malformed), "there was none before");
    }

    // I49
    #[test]
    fn debug_output_shows_no_token() {
        let handle = handle(Kind::Plain);
        let shown = format!("{handle:?} {handle:#?}");
        assert!(shown.contains("orders:42") && !shown.contains("0123"), "{shown}");
        assert!(!shown.contains(&handle.token.to_string()), "{shown}");
    }

    // I49
    #[test]
    fn a_fleet_is_its_masters_in_any_order() {
        let fleet =
            |urls: &[&str]| fleet_of(&Config::builder().masters(urls).build().expect("valid settings"));
        let own = fleet(&["redis://a", "redis://b:7000", "redis://c"]);
        assert_eq!(own, fleet(&["redis://user:secret@c:6379", "redis://a", "redis://b:7000"]));
        assert_ne!(own, fleet(&["redis://a", "redis://b:7000", "redis://d"]));
        assert_ne!(own, fleet(&["redis://a", "redis://b:7000"]));
        assert_ne!(own, fleet(&["redis://a", "redis://b:7000", "redis://c/1"]));
    }

    #[test]
    fn ends_are_compared_with_the_wall_clock() {
        let past = LockHandle { end_ms: 1000, hold_until_ms: Some(1500), ..handle(Kind::Plain) };
        assert_eq!(past.ended_ago(Duration::from_millis(1000)), None);
        assert_eq!(past.ended_ago(Duration::from_millis(1200)), Some(Duration::from_millis(200)));
        assert_eq!(past.hold_left(Duration::from_millis(1200)), Some(Duration::from_millis(300)));
        assert_eq!(past.hold_left(Duration::from_millis(1600)), Some(Duration::ZERO));
    }
}
