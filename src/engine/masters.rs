//! The masters of an engine: their connections and logins.
//!
//! Credentials change. A connect waits for the provider's answer; an open connection gets the new login
//! through `AUTH`. A refused `AUTH` leaves a connection as it was, so a refusal is a warning. The connection
//! stays until the server closes it, and the next connect asks the provider again.

pub(super) mod connection;
pub(super) mod fleet;
pub(super) mod groups;
pub(crate) mod handshake;
pub(super) mod link;
pub(super) mod logins;
pub mod mark;
pub(super) mod owed;
pub mod record;
pub(crate) mod status;
pub(crate) mod trouble;
pub(super) mod wall_clock;

use self::fleet::Fleet;
use self::logins::Logins;
use super::ground::Ground;
use crate::config::Credentials;
use crate::error::CredentialsError;
use crate::event::Event;
use crate::limits;
use crate::lock::MasterId;

#[derive(Debug)]
pub(super) struct Masters {
    /// The connections, and the requests in progress on them.
    pub(super) fleet: Fleet,
    pub(super) logins: Logins,
}

impl Masters {
    pub(super) fn new(ground: &mut Ground) -> Self {
        Self { logins: Logins::new(&ground.config), fleet: Fleet::new(ground) }
    }

    /// Takes the provider's answer for a master, and sends a new login on the open connection. Returns the
    /// error with which connects that wait for credentials must fail.
    pub(super) fn take_credentials(
        &mut self,
        ground: &mut Ground,
        master: MasterId,
        answer: Result<Credentials, CredentialsError>,
    ) -> Option<CredentialsError> {
        self.logins.note_answer(master);
        match answer.and_then(Credentials::checked) {
            Ok(credentials) => {
                let is_unused = self.fleet.link(master).connection.is_down();
                let version = self.logins.current(master).version;
                let connection = &self.fleet.link(master).connection;
                let is_refused = connection.is_ready() && connection.login.is_refused(version);
                self.logins.take(ground, master, credentials, is_unused, is_refused);
                self.fleet.wishes.note_login(master);
                self.bring_login(ground, master);
                None
            }
            Err(error) => Some(error),
        }
    }

    /// Whether a connection to the master is open or being opened.
    fn has_connection(&self, master: MasterId) -> bool {
        !self.fleet.link(master).connection.is_down()
    }

    /// Counts a failure, reports a new reason, and schedules the next question to the provider.
    pub(super) fn note_no_credentials(
        &mut self,
        ground: &mut Ground,
        master: MasterId,
        error: CredentialsError,
    ) {
        self.fleet.link_mut(master).stats.credentials_failed += 1;
        let is_new = self.logins.note_reason(master, &error);
        // Without a connection, the next connect asks the provider.
        if self.has_connection(master) {
            self.logins.note_failed(ground, master, &error);
        }
        if is_new {
            let name = &ground.config.labels[master.index()];
            ground.events.push(|| Event::CredentialsFailed { master: name.clone(), error });
        }
    }

    /// Continues the connects for which credentials have come, and asks the provider for the others.
    pub(super) fn tend_logins(&mut self) {
        for master in self.fleet.wishes.awaiting_login.iter() {
            if self.logins.is_there(master) {
                self.fleet.wishes.note_login(master);
            }
        }
    }

    /// Sends the current login on an open connection that has another. If an `AUTH` is unanswered, the next
    /// one follows its answer.
    pub(super) fn bring_login(&mut self, ground: &mut Ground, master: MasterId) {
        let current = self.logins.current(master);
        let connection = &self.fleet.link(master).connection;
        if let Some(login) = current.login
            && connection.is_ready()
            && connection.login.wants(current.version)
            && !self.fleet.send_login(master, login, current.version)
        {
            self.logins.retry(ground, master, ground.now + limits::CREDENTIALS_PAUSE_MIN);
        }
        self.check_login(master);
    }

    /// Clears an earlier error once the open connection has the login.
    fn check_login(&mut self, master: MasterId) {
        let version = self.logins.current(master).version;
        let connection = &self.fleet.link(master).connection;
        let is_accepted = !connection.is_ready() || connection.login.is_accepted(version);
        if self.logins.error(master).is_some() && is_accepted {
            self.logins.note_accepted(master);
        }
    }

    /// Why the open connection of a master has no newer login.
    pub(super) fn login_error(&self, master: MasterId) -> Option<&CredentialsError> {
        self.logins.error(master).filter(|_| self.fleet.link(master).connection.is_ready())
    }

    /// Takes the reply to `AUTH` on an open connection.
    pub(super) fn handle_login_answer(
        &mut self,
        ground: &mut Ground,
        master: MasterId,
        refusal: Option<Box<str>>,
    ) {
        if let Some(refusal) = refusal {
            self.note_no_credentials(ground, master, CredentialsError::Refused { refusal });
        }
        // A newer login may have come during this `AUTH`.
        self.bring_login(ground, master);
    }

    pub(super) fn handle_login_timeout(&mut self, ground: &mut Ground, master: MasterId) {
        let has_connection = self.has_connection(master);
        if let Some(error) = self.logins.handle_timeout(ground, master, has_connection) {
            self.note_no_credentials(ground, master, error);
        }
    }

    pub(super) fn report_connected(
        &self,
        ground: &mut Ground,
        master: MasterId,
        is_reconnect: bool,
        is_restart: bool,
    ) {
        let name = &ground.config.labels[master.index()];
        ground.events.push(|| Event::Connected { master: name.clone(), is_reconnect });
        if is_restart {
            self.report_restart(ground, master);
        }
        let (name, learnt) = (&ground.config.labels[master.index()], &self.fleet.link(master).learnt);
        if let Some(refusal) = learnt.scripts_refusal().filter(|_| !learnt.has_native_release()) {
            ground.events.push(|| Event::NoScripts { master: name.clone(), refusal: refusal.into() });
        }
        if let Some(until) = self.fleet.link(master).quarantined_until {
            let left = until.saturating_duration_since(ground.now);
            ground.events.push(|| Event::Quarantined { master: name.clone(), left });
        }
    }

    /// Reports that a different process answers for a master, even if this client does not use that process.
    pub(super) fn report_restart(&self, ground: &mut Ground, master: MasterId) {
        let name = &ground.config.labels[master.index()];
        ground.events.push(|| Event::Restarted { master: name.clone() });
    }
}
