//! The fleet's record: a key on each master with the settings that all clients must share.
//!
//! ```text
//!  <prefix>redlatch:fleet = "redlatch:fleet:1 observed max_ttl_ms=30000 drift_ppm=10000 own=L of=L-A,L-A"
//! ```
//!
//! L is a master's label, A the hash of its address; either identifies the master. A label stays with the
//! data when the address changes; a master that restarts without data gets a new label. An operator's record
//! says `declared`. It may end with `new=RUN_ID` (this process was started empty for the fleet) or `joining`
//! (the master replaces another, and may not count yet).
//!
//! The first client writes the record with `SET NX`, later ones compare. A record follows from the client's
//! settings and each master's label (from its record, or its hashed `run_id`), so clients with one list write
//! the same members, and others notice the difference. The key has no TTL, which would hide a difference once
//! expired. To change a setting, an operator declares it (`redlatch fleet init --again`).

use std::fmt::{self, Write};
use std::time::Duration;

use crate::config::Config;
use crate::error::fleet::{FleetDifference, FleetId, Unusable};
use crate::handle::hash;
use crate::limits::RECORD_SIZE_MAX;
use crate::lock::command::answer::WrongShape;
use crate::lock::{FLEET_NAME, whole_ms};
use crate::resp::Reply;
use crate::words;

/// Names of the two requests in messages.
pub(crate) const READING: &str = "GET of the fleet's record";
pub(crate) const WRITING: &str = "SET of the fleet's record";

/// Beginning of a record of any version.
const MAGIC: &str = "redlatch:fleet:";

/// Version that this client writes and reads.
const VERSION: &str = "1";

/// Source of a record's settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A client wrote its own settings.
    Observed,
    /// An operator declared the settings (`redlatch fleet init`).
    Declared,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Observed => "observed",
            Self::Declared => "declared",
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Member {
    /// Hash of the `run_id` under which the master was first recorded.
    label: u64,
    /// Hash of its URL without the login: a record reveals no address.
    address: u64,
}

/// Settings of a fleet, as recorded on one of its masters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    origin: Origin,
    max_ttl_ms: u64,
    drift_ppm: u32,
    /// Label of the master that holds this record.
    own: u64,
    members: Vec<Member>,
    process: Process,
}

/// What a record says about the process on its master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Process {
    /// Nothing: the process counts by the rules of each mode.
    Any,
    /// The process replaces a master that may still hold locks, so only the client's own watch counts for it.
    Joining,
    /// This process was started empty for the fleet.
    New(Box<str>),
}

/// Content of the record's key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Found {
    /// Not read yet.
    #[default]
    Unread,
    /// No key.
    Absent,
    /// A record.
    Known(Record),
    /// Content that this client cannot use.
    Unusable(Unusable),
}

/// A master as this client sees it.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    /// URL without the login.
    pub name: &'a str,
    /// Content of the record's key.
    pub found: &'a Found,
    /// Identity of the process.
    pub run_id: Option<&'a str>,
}

impl Seen<'_> {
    /// Its entry in a record's list.
    pub(crate) fn member(&self) -> Option<Member> {
        Some(Member { label: self.label()?, address: hash(self.name.as_bytes()) })
    }

    /// The label in its record, or the label that it will get.
    fn label(&self) -> Option<u64> {
        match self.found {
            Found::Known(record) => Some(record.own),
            _ => self.run_id.map(|run_id| hash(run_id.as_bytes())),
        }
    }
}

impl Found {
    /// The key of the record.
    #[must_use]
    pub fn key(prefix: &[u8]) -> Vec<u8> {
        [prefix, FLEET_NAME].concat()
    }

    /// Decodes the reply to `GET`.
    pub(crate) fn from_reply(reply: &Reply<'_>) -> Result<Self, WrongShape> {
        match reply {
            Reply::NullBulk => Ok(Self::Absent),
            Reply::Bulk(text) => Ok(Self::from_text(text)),
            Reply::Error(text) if text.starts_with(b"WRONGTYPE") => Ok(Self::Unusable(Unusable::Foreign)),
            Reply::Error(text) => Ok(Self::Unusable(Unusable::Refused(words::error_text(text)))),
            _ => Err(WrongShape),
        }
    }

    /// Decodes the key's value.
    #[must_use]
    pub fn from_text(text: &[u8]) -> Self {
        let behind = std::str::from_utf8(text).ok().and_then(|text| text.strip_prefix(MAGIC));
        let Some((version, rest)) = behind.and_then(|behind| behind.split_once(' ')) else {
            return Self::Unusable(Unusable::Foreign);
        };
        if version != VERSION {
            let is_number = !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_digit());
            return Self::Unusable(if is_number { Unusable::Newer } else { Unusable::Foreign });
        }
        let record = Some(rest).filter(|_| text.len() <= RECORD_SIZE_MAX).and_then(Record::parse);
        record.map_or(Self::Unusable(Unusable::Damaged), Self::Known)
    }

    /// Returns whether the record says that this process was started empty for the fleet, as its master at
    /// this URL. A process started for another fleet says nothing about this fleet's locks.
    #[must_use]
    pub fn is_new(&self, name: &str, run_id: Option<&str>) -> bool {
        let Self::Known(record) = self else { return false };
        let Process::New(new) = &record.process else { return false };
        let is_listed = record.member(name).is_some_and(|it| it.label == record.own);
        if !is_listed {
            return false;
        }
        run_id == Some(&**new)
    }

    /// Returns whether the master replaces another, and may not count yet.
    #[must_use]
    pub fn is_joining(&self) -> bool {
        self.record().is_some_and(|record| record.process == Process::Joining)
    }

    /// Returns the record, if there is one.
    #[must_use]
    pub const fn record(&self) -> Option<&Record> {
        match self {
            Self::Known(record) => Some(record),
            _ => None,
        }
    }
}

impl Record {
    /// Returns the record that a client with these settings and masters would write on each master, in order.
    /// `None` until each master is known, so that no record has part of a list.
    #[must_use]
    pub fn of_fleet(config: &Config, seen: &[Seen<'_>], origin: Origin) -> Option<Vec<Self>> {
        let own = seen.iter().map(Seen::member).collect::<Option<Vec<_>>>()?;
        let mut members = own.clone();
        members.sort_unstable();
        let record = |own: &Member| Self {
            origin,
            max_ttl_ms: whole_ms(config.max_ttl),
            drift_ppm: config.drift.ppm(),
            own: own.label,
            members: members.clone(),
            process: Process::Any,
        };
        Some(own.iter().map(record).collect())
    }

    /// Returns the record with the statement that this process was started empty for the fleet.
    #[must_use]
    pub fn with_new(self, run_id: &str) -> Self {
        Self { process: Process::New(run_id.into()), ..self }
    }

    /// Returns the fleet's record for this master of the list.
    pub(crate) fn on(&self, master: &Seen<'_>) -> Option<Self> {
        let ours = master.member()?;
        let by_label = self.members.iter().find(|it| it.label == ours.label);
        let own = by_label.or_else(|| self.members.iter().find(|it| it.address == ours.address))?;
        Some(Self { own: own.label, process: Process::Any, ..self.clone() })
    }

    /// Returns the fleet's record for this member of the list, which replaces another master.
    pub(crate) fn of_joining(&self, member: Member) -> Self {
        Self { own: member.label, process: Process::Joining, ..self.clone() }
    }

    /// Returns the record with the master at URL `old` replaced in the list; `None` if it is not listed.
    pub(crate) fn replaced(&self, old: &str, new: Member) -> Option<Self> {
        let old = self.member(old)?;
        let mut members: Vec<_> = self.members.iter().map(|it| if *it == old { new } else { *it }).collect();
        members.sort_unstable();
        Some(Self { members, ..self.clone() })
    }

    /// Returns the list's entry for the master at this URL.
    pub(crate) fn member(&self, name: &str) -> Option<Member> {
        self.members.iter().find(|it| it.address == hash(name.as_bytes())).copied()
    }

    pub(crate) const fn process(&self) -> &Process {
        &self.process
    }

    /// Returns the first difference from a client with these settings and masters. A master not known yet
    /// counts as listed.
    #[must_use]
    pub fn difference(&self, config: &Config, seen: &[Seen<'_>]) -> Option<FleetDifference> {
        let (recorded, ours) = (self.max_ttl_ms, whole_ms(config.max_ttl));
        if recorded != ours {
            let [recorded, ours] = [recorded, ours].map(Duration::from_millis);
            return Some(FleetDifference::MaxTtl { recorded, ours });
        }
        let (recorded, ours) = (self.drift_ppm, config.drift.ppm());
        if recorded != ours {
            return Some(FleetDifference::DriftPpm { recorded, ours });
        }
        self.difference_of_masters(seen)
    }

    /// Returns the first difference between the list and these masters.
    pub(crate) fn difference_of_masters(&self, seen: &[Seen<'_>]) -> Option<FleetDifference> {
        let (recorded, ours) = (self.members.len(), seen.len());
        if recorded != ours {
            return Some(FleetDifference::MasterCount { recorded, ours });
        }
        let missing = self.missing(seen)?;
        Some(FleetDifference::Masters { recorded: self.id(), missing: missing.into() })
    }

    /// Name of a known master without an entry in the list. Two masters cannot share an entry. A master may
    /// match two entries (one label, one address), so masters with fewer choices choose first.
    fn missing<'a>(&self, seen: &[Seen<'a>]) -> Option<&'a str> {
        let mut free = self.members.clone();
        let known = |seen: &Seen<'a>| Some((seen.name, seen.member()?));
        let mut left: Vec<(&str, Member)> = seen.iter().filter_map(known).collect();
        let is_it = |ours: Member| move |it: &Member| it.label == ours.label || it.address == ours.address;
        while !left.is_empty() {
            let choices = |ours: Member| free.iter().filter(|it| is_it(ours)(it)).count();
            let (place, _) = left.iter().enumerate().min_by_key(|(_, (_, ours))| choices(*ours))?;
            let (name, ours) = left.swap_remove(place);
            let Some(taken) = free.iter().position(is_it(ours)) else { return Some(name) };
            free.swap_remove(taken);
        }
        None
    }

    /// Returns the identity of the list of masters.
    #[must_use]
    pub fn id(&self) -> FleetId {
        let mut labels: Vec<u64> = self.members.iter().map(|member| member.label).collect();
        labels.sort_unstable();
        FleetId(hash(&labels.into_iter().flat_map(u64::to_be_bytes).collect::<Vec<_>>()))
    }

    /// Returns the origin of the settings.
    #[must_use]
    pub const fn origin(&self) -> Origin {
        self.origin
    }

    /// Returns the longest TTL of any client.
    #[must_use]
    pub const fn max_ttl(&self) -> Duration {
        Duration::from_millis(self.max_ttl_ms)
    }

    /// Returns the largest allowed difference between clock rates, in millionths.
    #[must_use]
    pub const fn drift_ppm(&self) -> u32 {
        self.drift_ppm
    }

    /// Returns the quarantine for the larger of these and a client's settings.
    #[must_use]
    pub fn quarantine_time(&self, config: &Config) -> Duration {
        config.quarantine_time_beside(self.max_ttl(), self.drift_ppm())
    }

    /// Returns the number of masters.
    #[must_use]
    pub const fn master_count(&self) -> usize {
        self.members.len()
    }

    fn parse(rest: &str) -> Option<Self> {
        let mut words = rest.split(' ');
        let origin = match words.next()? {
            "observed" => Origin::Observed,
            "declared" => Origin::Declared,
            _ => return None,
        };
        let max_ttl_ms = number(words.next()?.strip_prefix("max_ttl_ms=")?)?;
        let drift_ppm = number(words.next()?.strip_prefix("drift_ppm=")?)?;
        let own = hex(words.next()?.strip_prefix("own=")?)?;
        let member = |word: &str| {
            let (of, address) = word.split_once('-')?;
            Some(Member { label: hex(of)?, address: hex(address)? })
        };
        let members =
            words.next()?.strip_prefix("of=")?.split(',').map(member).collect::<Option<Vec<_>>>()?;
        let process = match words.next() {
            None => Process::Any,
            Some("joining") => Process::Joining,
            Some(word) => Process::New(word.strip_prefix("new=").filter(|run_id| !run_id.is_empty())?.into()),
        };
        let is_whole = words.next().is_none() && members.iter().any(|member| member.label == own);
        is_whole.then_some(Self { origin, max_ttl_ms, drift_ppm, own, members, process })
    }
}

impl fmt::Display for Record {
    /// Writes the stored form.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { origin, max_ttl_ms, drift_ppm, own, members, process } = self;
        write!(
            f,
            "{MAGIC}{VERSION} {origin} max_ttl_ms={max_ttl_ms} drift_ppm={drift_ppm} own={own:016x} of="
        )?;
        for (place, Member { label, address }) in members.iter().enumerate() {
            if place > 0 {
                f.write_char(',')?;
            }
            write!(f, "{label:016x}-{address:016x}")?;
        }
        match process {
            Process::Any => Ok(()),
            Process::Joining => f.write_str(" joining"),
            Process::New(run_id) => write!(f, " new={run_id}"),
        }
    }
}

/// Accepts digits only: Rust's parser also accepts a sign, which this module never writes.
pub(super) fn number<N: std::str::FromStr>(digits: &str) -> Option<N> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

pub(super) fn hex(digits: &str) -> Option<u64> {
    let is_hex = digits.len() == 16 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    is_hex.then(|| u64::from_str_radix(digits, 16).ok())?
}

#[cfg(test)]
mod tests;
