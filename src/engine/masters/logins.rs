//! Each master's login, from its URL or the credentials provider's last answer, and when to ask the provider
//! again.
//!
//! A master has at most one open question to the provider, whether for a connect or to renew the login of an
//! open connection. A question that is never answered is not repeated.

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
    /// Masters whose credentials the event loop must ask for.
    wishes: MasterSet,
}

/// The login that a connection should have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CurrentLogin<'a> {
    pub(crate) login: Option<&'a Login>,
    /// Changes when the login changes, and when it must be sent again.
    pub(crate) version: u32,
}

#[derive(Debug)]
struct MasterLogin {
    login: Option<Login>,
    version: u32,
    /// Whether the provider owes an answer.
    is_asked: bool,
    serves: Serves,
    /// When to ask the provider for the open connection.
    renew_at: Option<Instant>,
    /// Until when a login that the server refused is not sent again on an open connection.
    resend_at: Option<Instant>,
    /// When the provider's answer for the open connection is late.
    late_at: Option<Instant>,
    /// Consecutive failures.
    failure_count: u32,
    /// Why there is no newer login.
    error: Option<CredentialsError>,
}

/// The connection attempt that may use a login.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Serves {
    /// The attempt in progress when the login came, if any.
    This,
    /// The next attempt, because the login came too late for the last one.
    Next,
    /// No later attempt.
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

    pub(crate) fn error(&self, master: MasterId) -> Option<&CredentialsError> {
        self.masters[master.index()].error.as_ref()
    }

    pub(crate) fn poll(&mut self) -> Option<LinkRequest> {
        let master = self.wishes.iter().next()?;
        self.wishes.remove(master);
        Some(LinkRequest::Credentials(master))
    }

    /// Whether a connect has its credentials. If not, asks the provider.
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

    /// A connect ended before it used its login. If the login came for this connect, the next one uses it.
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

    pub(crate) fn note_answer(&mut self, master: MasterId) {
        let own = &mut self.masters[master.index()];
        (own.is_asked, own.late_at) = (false, None);
    }

    /// Takes credentials. `is_unused` says that they are for the next connect, and `is_refused` that an open
    /// connection refused the current login.
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
        // A server may later accept a login that it refused.
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

    /// The open connection has the login.
    pub(crate) fn note_accepted(&mut self, master: MasterId) {
        let own = &mut self.masters[master.index()];
        (own.failure_count, own.error, own.resend_at) = (0, None, None);
    }

    /// Notes why there is no newer login. Returns whether the reason is new.
    pub(crate) fn note_reason(&mut self, master: MasterId, error: &CredentialsError) -> bool {
        let own = &mut self.masters[master.index()];
        own.error.replace(error.clone()).as_ref() != Some(error)
    }

    /// The open connection gets no newer login for now: schedules the next question.
    pub(crate) fn note_failed(&mut self, ground: &mut Ground, master: MasterId, error: &CredentialsError) {
        let own = &mut self.masters[master.index()];
        own.failure_count = own.failure_count.saturating_add(1);
        let doubled = limits::CREDENTIALS_PAUSE_MIN.saturating_mul(1 << (own.failure_count - 1).min(16));
        let longest = doubled.min(limits::CREDENTIALS_PAUSE_MAX).max(limits::CREDENTIALS_PAUSE_MIN * 2);
        let retry_at = ground.now + ground.rng.random_range(limits::CREDENTIALS_PAUSE_MIN..=longest);
        if matches!(error, CredentialsError::Refused { .. }) {
            own.resend_at = Some(own.resend_at.map_or(retry_at, |at| at.min(retry_at)));
        }
        // A provider that hangs is asked again only after it has answered.
        if !own.is_asked {
            self.retry(ground, master, retry_at);
        }
    }

    /// Asks the provider again at this time, or earlier if planned.
    pub(crate) fn retry(&mut self, ground: &mut Ground, master: MasterId, at: Instant) {
        let own = &mut self.masters[master.index()];
        own.renew_at = Some(own.renew_at.map_or(at, |renew_at| renew_at.min(at)));
        self.arm(ground, master);
    }

    /// Handles due questions and renewals. Returns an error if the provider's answer for an open connection
    /// is late.
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
            // The next connect asks on its own.
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

/// Time after which to renew credentials that are valid for `time`.
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
