//! The logins of the masters: those of their URLs, or what the provider of credentials returned last; and
//! when the provider is asked again.
//!
//! There is at most one question for a master at a time, whatever it is for: a connect, or open connections
//! whose credentials end. One that is never answered is not asked again.

use std::time::{Duration, Instant};

use rand::RngExt;

use crate::config::{Config, Credentials, Login};
use crate::engine::ground::Ground;
use crate::engine::request::LinkRequest;
use crate::engine::timers::login_timer;
use crate::error::CredentialsError;
use crate::limits;
use crate::lock::{MasterId, MasterSet};

#[derive(Debug)]
pub(crate) struct Logins {
    masters: Vec<MasterLogin>,
    /// Masters whose credentials the event loop is to ask for.
    wishes: MasterSet,
}

/// The login that a connection is to have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CurrentLogin<'a> {
    pub(crate) login: Option<&'a Login>,
    /// Changes with the login, and when it is to be sent again.
    pub(crate) version: u32,
}

#[derive(Debug)]
struct MasterLogin {
    login: Option<Login>,
    version: u32,
    /// Whether an answer of the provider is under way.
    is_asked: bool,
    serves: Serves,
    /// When the provider is to be asked for the open connections.
    renew_at: Option<Instant>,
    /// Until when an open connection is not sent again what its server refused.
    resend_at: Option<Instant>,
    /// When its answer for them is late.
    late_at: Option<Instant>,
    /// Failures in a row.
    failure_count: u32,
    /// Why there is no newer login.
    error: Option<CredentialsError>,
}

/// Which connect a login is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Serves {
    /// The one under way when it came, if there was one.
    This,
    /// The next one: it came too late for the one before.
    Next,
    /// None that begins from now on.
    Past,
}

impl Logins {
    pub(crate) fn new(config: &Config) -> Self {
        let masters = config.masters.iter().map(|url| MasterLogin {
            login: url.login.clone(),
            version: 0,
            is_asked: false,
            serves: Serves::Past,
            renew_at: None,
            resend_at: None,
            late_at: None,
            failure_count: 0,
            error: None,
        });
        Self { masters: masters.collect(), wishes: MasterSet::EMPTY }
    }

    pub(crate) fn current(&self, master: MasterId) -> CurrentLogin<'_> {
        let MasterLogin { login, version, .. } = &self.masters[master.index()];
        CurrentLogin { login: login.as_ref(), version: *version }
    }

    /// Why open connections of a master have no newer login.
    pub(crate) fn error(&self, master: MasterId) -> Option<&CredentialsError> {
        self.masters[master.index()].error.as_ref()
    }

    pub(crate) fn poll(&mut self) -> Option<LinkRequest> {
        let master = self.wishes.iter().next()?;
        self.wishes.remove(master);
        Some(LinkRequest::Credentials(master))
    }

    /// A connect needs credentials. True if they are there; otherwise the provider is asked.
    pub(crate) fn is_there(&mut self, master: MasterId) -> bool {
        let own = &mut self.masters[master.index()];
        let is_there = own.serves == Serves::Next;
        if is_there {
            own.serves = Serves::Past;
        } else {
            self.ask(master);
        }
        is_there
    }

    /// A connect ended before it could use the login that was there: if that came for this connect, it serves
    /// the next one.
    pub(crate) fn keep_unused(&mut self, master: MasterId) {
        let serves = &mut self.masters[master.index()].serves;
        if *serves == Serves::This {
            *serves = Serves::Next;
        }
    }

    fn ask(&mut self, master: MasterId) {
        let own = &mut self.masters[master.index()];
        if !std::mem::replace(&mut own.is_asked, true) {
            self.wishes.insert(master);
        }
    }

    /// The provider has answered.
    pub(crate) fn note_answer(&mut self, master: MasterId) {
        let own = &mut self.masters[master.index()];
        (own.is_asked, own.late_at) = (false, None);
    }

    /// Takes credentials; `is_unused` if they are for the next connect, and `is_refused` if an open
    /// connection has refused the login that there is.
    pub(crate) fn take(
        &mut self,
        ground: &mut Ground,
        master: MasterId,
        credentials: Credentials,
        is_unused: bool,
        is_refused: bool,
    ) {
        let own = &mut self.masters[master.index()];
        let Credentials { login, valid_for } = credentials;
        // The server may accept in a while what it refused before.
        let resend_at = own.resend_at.filter(|at| is_refused && *at > ground.now);
        if own.login.as_ref() != Some(&login) || (is_refused && resend_at.is_none()) {
            own.version = own.version.wrapping_add(1);
            own.resend_at = None;
        }
        own.login = Some(login);
        own.serves = if is_unused { Serves::Next } else { Serves::This };
        let renew_at = valid_for.and_then(|time| ground.now.checked_add(renewal_after(time)));
        own.renew_at = renew_at.into_iter().chain(own.resend_at.and(resend_at)).min();
        self.arm(ground, master);
    }

    /// All open connections have the login.
    pub(crate) fn note_accepted(&mut self, master: MasterId) {
        let own = &mut self.masters[master.index()];
        (own.failure_count, own.error, own.resend_at) = (0, None, None);
    }

    /// There is no newer login for this reason. Returns whether it is a new one.
    pub(crate) fn note_reason(&mut self, master: MasterId, error: &CredentialsError) -> bool {
        let own = &mut self.masters[master.index()];
        own.error.replace(error.clone()).as_ref() != Some(error)
    }

    /// Open connections get no newer login for now.
    pub(crate) fn note_failed(&mut self, ground: &mut Ground, master: MasterId, error: &CredentialsError) {
        let own = &mut self.masters[master.index()];
        own.failure_count = own.failure_count.saturating_add(1);
        let doubled = limits::CREDENTIALS_PAUSE_MIN.saturating_mul(1 << (own.failure_count - 1).min(16));
        let longest = doubled.min(limits::CREDENTIALS_PAUSE_MAX).max(limits::CREDENTIALS_PAUSE_MIN * 2);
        let retry_at = ground.now + ground.rng.random_range(limits::CREDENTIALS_PAUSE_MIN..=longest);
        if matches!(error, CredentialsError::Refused { .. }) {
            own.resend_at = Some(own.resend_at.map_or(retry_at, |at| at.min(retry_at)));
        }
        // One that hangs is not asked again before it answers.
        if !own.is_asked {
            self.retry(ground, master, retry_at);
        }
    }

    /// Asks the provider again at this time at the latest.
    pub(crate) fn retry(&mut self, ground: &mut Ground, master: MasterId, at: Instant) {
        let own = &mut self.masters[master.index()];
        own.renew_at = Some(own.renew_at.map_or(at, |renew_at| renew_at.min(at)));
        self.arm(ground, master);
    }

    /// Something may be due. Returns an answer that is late for open connections.
    pub(crate) fn handle_timeout(
        &mut self,
        ground: &mut Ground,
        master: MasterId,
        has_connection: bool,
    ) -> Option<CredentialsError> {
        let limit = ground.config.connect_timeout;
        let own = &mut self.masters[master.index()];
        let is_late = own.late_at.take_if(|at| *at <= ground.now).is_some();
        if own.renew_at.take_if(|at| *at <= ground.now).is_some() {
            // The next connect asks by itself.
            own.serves = Serves::Past;
            if has_connection && ground.config.has_provider() {
                own.late_at = Some(ground.now + limit);
                self.ask(master);
            }
        }
        self.arm(ground, master);
        is_late.then_some(CredentialsError::NoAnswer { limit })
    }

    fn arm(&self, ground: &mut Ground, master: MasterId) {
        if let Some(at) = self.deadline(master) {
            ground.timers.arm(login_timer(master), at);
        }
    }

    pub(crate) fn deadline(&self, master: MasterId) -> Option<Instant> {
        let own = &self.masters[master.index()];
        own.renew_at.into_iter().chain(own.late_at).min()
    }
}

/// When credentials with this validity are renewed.
fn renewal_after(time: Duration) -> Duration {
    (time - time / 4).max(limits::CREDENTIALS_PAUSE_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earlier_of_two_times_is_the_deadline() {
        let config = Config::builder().master("redis://h").build().expect("valid");
        let (mut logins, master) = (Logins::new(&config), MasterId::new(0).expect("small"));
        let soon = Instant::now();
        let later = soon + Duration::from_secs(1);
        for (renew_at, late_at) in [(soon, later), (later, soon)] {
            let own = &mut logins.masters[0];
            (own.renew_at, own.late_at) = (Some(renew_at), Some(late_at));
            assert_eq!(logins.deadline(master), Some(soon));
        }
    }
}
