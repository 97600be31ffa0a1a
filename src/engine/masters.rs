//! The masters of an engine: their connections, and the logins of these.
//!
//! Credentials change: attempts to connect wait for them, and open connections get them in place. A refused
//! `AUTH` leaves a connection as it was, so a refusal is a warning. The connection stays until the server
//! closes it. The next connect asks the provider again.

pub(super) mod connection;
pub(super) mod fleet;
pub(super) mod groups;
pub(crate) mod handshake;
pub(super) mod link;
pub(super) mod logins;
pub(crate) mod mark;
pub(super) mod owed;
pub(crate) mod record;
pub(super) mod script;
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
    /// The connections for commands, and what is on its way over them.
    pub(super) fleet: Fleet,
    pub(super) logins: Logins,
}

impl Masters {
    /// Masters that are all to be connected.
    pub(super) fn new(ground: &mut Ground) -> Self {
        Self { logins: Logins::new(&ground.config), fleet: Fleet::new(ground) }
    }

    /// Takes the credentials of a master. Open connections get them by `AUTH` in place. Returns the reason if
    /// there are none: waiting attempts to connect are to fail with it.
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

    /// Whether there is a connection to a master, or an attempt at one.
    fn has_connection(&self, master: MasterId) -> bool {
        !self.fleet.link(master).connection.is_down()
    }

    /// Counts a failure, reports a new reason, and has the provider asked again for a connection.
    pub(super) fn note_no_credentials(
        &mut self,
        ground: &mut Ground,
        master: MasterId,
        error: CredentialsError,
    ) {
        self.fleet.link_mut(master).stats.credentials_failed += 1;
        let is_new = self.logins.note_reason(master, &error);
        // Without a connection the next connect asks by itself.
        if self.has_connection(master) {
            self.logins.note_failed(ground, master, &error);
        }
        if is_new {
            let name = &ground.config.labels[master.index()];
            ground.events.push(|| Event::CredentialsFailed { master: name.clone(), error });
        }
    }

    /// Lets connections that wait for credentials go on, or has the provider asked.
    pub(super) fn tend_logins(&mut self) {
        for master in self.fleet.wishes.awaiting_login.iter() {
            if self.logins.is_there(master) {
                self.fleet.wishes.note_login(master);
            }
        }
    }

    /// Sends `AUTH` on a connection that stands with another login. One whose `AUTH` is not answered yet gets
    /// the next one behind the answer.
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

    /// An earlier error is over once the open connection has the login.
    fn check_login(&mut self, master: MasterId) {
        let version = self.logins.current(master).version;
        let connection = &self.fleet.link(master).connection;
        let is_accepted = !connection.is_ready() || connection.login.is_accepted(version);
        if self.logins.error(master).is_some() && is_accepted {
            self.logins.note_accepted(master);
        }
    }

    /// Why open connections of a master have no newer login.
    pub(super) fn login_error(&self, master: MasterId) -> Option<&CredentialsError> {
        self.logins.error(master).filter(|_| self.fleet.link(master).connection.is_ready())
    }

    /// The reply to `AUTH` on a connection that stands.
    pub(super) fn handle_login_answer(
        &mut self,
        ground: &mut Ground,
        master: MasterId,
        refusal: Option<Box<str>>,
    ) {
        if let Some(refusal) = refusal {
            self.note_no_credentials(ground, master, CredentialsError::Refused { refusal });
        }
        // Another one may have come meanwhile.
        self.bring_login(ground, master);
    }

    pub(super) fn handle_login_timeout(&mut self, ground: &mut Ground, master: MasterId) {
        let has_connection = self.has_connection(master);
        if let Some(error) = self.logins.handle_timeout(ground, master, has_connection) {
            self.note_no_credentials(ground, master, error);
        }
    }

    /// A master is taken in.
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

    /// Another process answered in place of the one before, whether it is taken in or not.
    pub(super) fn report_restart(&self, ground: &mut Ground, master: MasterId) {
        let name = &ground.config.labels[master.index()];
        ground.events.push(|| Event::Restarted { master: name.clone() });
    }
}
