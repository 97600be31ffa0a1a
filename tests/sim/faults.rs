//! All faults, each as one call. [`World::heal`] ends them.

use std::sync::Arc;

use rand::RngExt;
use rand::seq::IndexedRandom;
use redlatch::{Credentials, Quarantine};

use crate::checker::id;
use crate::clock::{MS, SECOND, Time};
use crate::model::Keys;
use crate::network::{ConnState, Pipe, Weather};
use crate::world::{World, run_id};

/// Data of a restarted master.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    /// No data.
    Empty,
    /// All data, as with an AOF that is synced always.
    All,
    /// All data except up to two seconds of writes, as with an AOF that is synced every second.
    EverySecond,
    /// Data of an earlier snapshot.
    Snapshot,
}

impl World {
    /// SIGSTOP: the master receives bytes, but does nothing.
    pub fn stop_master(&mut self, master: usize, time: Time) {
        let it = &mut self.masters[master];
        it.stopped_until = it.stopped_until.max(self.now + time);
        self.plan_resume(master);
    }

    /// Kills the process. If its host dies, too, no connection notices.
    pub fn kill_master(&mut self, master: usize, is_noticed: bool) {
        if !self.masters[master].is_up {
            return;
        }
        self.masters[master].is_up = false;
        let life = self.masters[master].life;
        for conn in 0..self.conns.len() {
            if self.conns[conn].master == master && self.conns[conn].master_life == life {
                self.conns[conn].master_input.clear();
                if is_noticed {
                    self.end_conn(conn);
                }
            }
        }
    }

    /// Starts another process in place of a killed one.
    pub fn start_master(&mut self, master: usize, data: Data) {
        if self.masters[master].is_up {
            return;
        }
        let before = self.masters[master].model.keys().clone();
        let after = self.data_after_restart(master, data);
        let now = self.masters[master].clock.at(self.now);
        let it = &mut self.masters[master];
        it.is_up = true;
        it.life += 1;
        it.lies = false;
        it.stopped_until = 0;
        it.model.restart(&run_id(master, it.life), now);
        it.model.load_keys(after.clone());
        let lost_before = it.lost_at.last().copied().flatten();
        it.lost_at.push(if data == Data::All { lost_before } else { Some(self.now) });
        let is_protected = self.config.quarantine() != Quarantine::Trust;
        let wall = it.model.wall;
        self.checker.note_loss(master, wall, [&before, &after], is_protected);
        // The quarantine covers the window if the clock has only gone forward since the fence.
        if !is_protected || self.masters[master].keeps_longer {
            self.checker.note_fences_lost(master, now, &before, &after);
        }
        self.checker.note_return(master, wall, [&before, &after]);
        self.void_guards();
    }

    fn data_after_restart(&mut self, master: usize, data: Data) -> Keys {
        let it = &self.masters[master];
        let oldest = match data {
            Data::Empty => return Keys::new(),
            Data::All => return it.model.keys().clone(),
            Data::EverySecond => self.now.saturating_sub(2 * SECOND),
            Data::Snapshot => 0,
        };
        let found: Vec<_> =
            it.snapshots.iter().filter(|(at, _)| *at >= oldest).map(|(_, keys)| keys).collect();
        found.choose(&mut self.rng).map_or_else(|| it.model.keys().clone(), |keys| (*keys).clone())
    }

    /// Notes the data that a snapshot of each master would contain now.
    pub fn take_snapshots(&mut self) {
        for master in &mut self.masters {
            master.snapshots.push_back((self.now, master.model.keys().clone()));
            if master.snapshots.len() > 20 {
                master.snapshots.pop_front();
            }
        }
    }

    /// Something behind the connection, such as a proxy, switches to a new and empty process. No connection
    /// notices.
    pub fn restart_unbroken(&mut self, master: usize) {
        self.lose_data(master, |_| Keys::new());
        let it = &mut self.masters[master];
        it.keeps_longer = true;
        it.life += 1;
        it.lost_at.push(None);
        let (run_id, now) = (run_id(master, it.life), it.clock.at(self.now));
        it.model.restart(&run_id, now);
        let life = it.life;
        for conn in self.conns.iter_mut().filter(|conn| conn.master == master && conn.master_life + 1 == life)
        {
            (conn.master_life, conn.is_replaced) = (life, true);
        }
    }

    /// A lagging replica replaces its master. It has been up for an hour.
    pub fn promote_stale_replica(&mut self, master: usize) {
        self.kill_master(master, true);
        let stale = self.data_after_restart(master, Data::Snapshot);
        self.lose_data(master, |_| stale.clone());
        let it = &mut self.masters[master];
        it.is_up = true;
        it.life += 1;
        it.lost_at.push(None);
        it.stopped_until = 0;
        let (run_id, now) = (run_id(master, it.life), it.clock.at(self.now));
        it.model.restart(&run_id, now);
        it.model.started = now - std::time::Duration::from_secs(3600);
        it.model.load_keys(stale);
        self.deceive(master);
    }

    /// A master becomes the replica of an empty one until it has a copy, and then is promoted: one process
    /// with another memory. If its connections end before that, its quarantine covers the loss.
    pub fn resync_master(&mut self, master: usize, is_noticed: bool) {
        if !self.masters[master].is_up {
            return;
        }
        if !is_noticed {
            self.lose_data(master, |_| Keys::new());
            return self.masters[master].model.promote();
        }
        self.kill_master(master, true);
        let it = &self.masters[master];
        let (run_id, started) = (it.model.run_id.clone(), it.model.started);
        let (replid_count, stopped_until, lies) = (it.model.replid_count, it.stopped_until, it.lies);
        self.start_master(master, Data::Empty);
        let it = &mut self.masters[master];
        (it.model.run_id, it.model.started) = (run_id, started);
        (it.model.replid_count, it.stopped_until, it.lies) = (replid_count, stopped_until, lies);
        it.model.promote();
    }

    /// Makes a master report a longer uptime than the age of its data.
    fn deceive(&mut self, master: usize) {
        self.masters[master].lies = true;
        if self.config.quarantine() == Quarantine::Uptime {
            self.checker.note_unprotected(master);
            self.void_guards();
        }
    }

    pub fn flush_all(&mut self, master: usize) {
        self.lose_data(master, |_| Keys::new());
    }

    /// Removes a random key.
    pub fn evict(&mut self, master: usize) {
        let mut names: Vec<_> = self.masters[master].model.keys().keys().cloned().collect();
        names.sort();
        let Some(name) = names.choose(&mut self.rng).cloned() else { return };
        self.lose_data(master, |keys| {
            let mut keys = keys.clone();
            keys.remove(&name);
            keys
        });
    }

    fn lose_data(&mut self, master: usize, change: impl FnOnce(&Keys) -> Keys) {
        let before = self.masters[master].model.keys().clone();
        let after = change(&before);
        self.masters[master].model.load_keys(after.clone());
        let wall = self.masters[master].model.wall;
        self.checker.note_loss(master, wall, [&before, &after], false);
        let now = self.masters[master].clock.at(self.now);
        self.checker.note_fences_lost(master, now, &before, &after);
        self.checker.note_return(master, wall, [&before, &after]);
        self.void_guards();
    }

    /// Steps a master's wall clock: keys expire sooner or later, and its uptime is wrong.
    pub fn step_clock(&mut self, master: usize, step: i64) {
        self.masters[master].clock.step(step);
        if step <= 0 {
            let it = &mut self.masters[master];
            it.keeps_longer = true;
            self.checker.note_set_back(master, it.clock.at(self.now), it.model.keys());
            return;
        }
        self.deceive(master);
        let it = &self.masters[master];
        self.checker.note_loss(master, it.model.wall, [it.model.keys(), &Keys::new()], false);
        self.void_guards();
    }

    /// Breaks a connection: each side gets a part of the bytes under way, then the end.
    pub fn reset_conn(&mut self, client: usize, master: usize) {
        let Some(conn) = self.clients[client].conns[master] else { return };
        let (to_master, to_client) = (self.conns[conn].to_master.size(), self.conns[conn].to_client.size());
        let (kept, heard) = (self.rng.random_range(0..=to_master), self.rng.random_range(0..=to_client));
        self.cut_conn(client, master, kept, heard);
    }

    /// Like [`Self::reset_conn`], with this many more bytes arriving in each direction.
    pub fn cut_conn(&mut self, client: usize, master: usize, requests_size: usize, replies_size: usize) {
        let Some(conn) = self.clients[client].conns[master] else { return };
        if self.conns[conn].state != ConnState::Connecting {
            self.conns[conn].to_master.cut(requests_size);
            self.conns[conn].to_client.cut(replies_size);
            self.end_conn(conn);
        }
    }

    /// Ends the connection only for the client: bytes that it has sent still arrive.
    pub fn break_conn(&mut self, client: usize, master: usize) {
        let Some(conn) = self.clients[client].conns[master] else { return };
        if self.conns[conn].state != ConnState::Connecting {
            self.conns[conn].to_client.cut(0);
            self.conns[conn].to_client.stalled_until = 0;
            self.end_conn(conn);
        }
    }

    fn end_conn(&mut self, conn: usize) {
        if self.conns[conn].state == ConnState::Connecting {
            return;
        }
        let at = self.now + self.weather.delay(&mut self.rng);
        let at = self.conns[conn].to_client.end(at);
        self.plan_to_client(at, conn);
    }

    /// Holds bytes in these directions for this time.
    pub fn stall(&mut self, client: usize, master: usize, requests: bool, replies: bool, time: Time) {
        let Some(conn) = self.clients[client].conns[master] else { return };
        let until = self.now + time;
        let conn = &mut self.conns[conn];
        let stall = |pipe: &mut Pipe| pipe.stalled_until = pipe.stalled_until.max(until);
        if requests {
            stall(&mut conn.to_master);
        }
        if replies {
            stall(&mut conn.to_client);
        }
    }

    /// Kills the client's process, with all its state and connections.
    pub fn crash_client(&mut self, client: usize) {
        if self.clients[client].is_down {
            return;
        }
        (0..self.config.master_count()).for_each(|place| self.leave_conn(client, place));
        let it = &mut self.clients[client];
        it.is_down = true;
        it.wake_at = Time::MAX;
        it.locks.clear();
        it.outcomes.clear();
        it.queries.clear();
        it.sets.iter_mut().for_each(|set| set.forget(Time::MAX));
        it.slots.iter_mut().for_each(|worker| worker.forget(Time::MAX));
        it.owners.iter_mut().for_each(|owner| owner.forget(Time::MAX));
        it.tasks = None;
        self.checker.guards.retain(|guard| guard.client != client);
        self.checker.waiters.retain(|waiter| waiter.client != client);
    }

    /// Restarts the client without any state.
    pub fn start_client(&mut self, client: usize) {
        if !self.clients[client].is_down {
            return;
        }
        let config = Arc::clone(&self.clients[client].config);
        let (engine, tasks) = self.new_process(&config, self.times(client));
        let now = self.now;
        let it = &mut self.clients[client];
        (it.engine, it.tasks) = (engine, tasks);
        it.taken_count = 0;
        it.is_down = false;
        it.life += 1;
        it.paused_until = 0;
        it.suspended_at = None;
        it.step = 0;
        it.workers.iter_mut().for_each(|worker| (worker.lock, worker.due) = (None, now));
        it.sets.iter_mut().for_each(|set| set.forget(now));
        it.slots.iter_mut().for_each(|worker| worker.forget(now));
        it.owners.iter_mut().for_each(|owner| owner.forget(now));
        self.wake(client, self.now);
    }

    /// Suspends the machine and its monotonic clock. Exclusion is not promised from then on.
    pub fn suspend(&mut self, client: usize, time: Time) {
        self.checker.judges_exclusion = false;
        self.pause(client, time);
        self.clients[client].suspended_at.get_or_insert(self.now);
    }

    /// Gives a running client new credentials for a master.
    pub fn change_credentials(&mut self, client: usize, master: usize, is_right: bool) {
        let it = &self.clients[client];
        if it.is_down || it.paused_until > self.now || it.suspended_at.is_some() {
            return;
        }
        // Masters without a password accept any password for the user `default`, and none without a user.
        let credentials = Credentials::new(self.now.to_string());
        let credentials = if is_right { credentials.user("default") } else { credentials };
        let now = self.local(client);
        let it = &mut self.clients[client];
        it.engine.handle_credentials(now, id(master), Ok(credentials));
        it.note_arrival();
        self.wake(client, self.now);
    }

    /// Ends all faults. Lost data stays lost.
    pub fn heal(&mut self) {
        self.pause_ppm = 0;
        self.short_write_ppm = 0;
        // Answers arrive within the shortest answer limit.
        self.weather = Weather { delay_min: MS / 20, delay_max: MS, cut_ppm: 0, slow_ppm: 0 };
        for master in 0..self.masters.len() {
            self.start_master(master, Data::All);
            let it = &mut self.masters[master];
            (it.stopped_until, it.refuses_until, it.swallows_until) = (self.now, 0, 0);
            it.model.errors.clear();
            it.model.data.is_full = false;
            self.plan_resume(master);
        }
        for client in 0..self.clients.len() {
            self.start_client(client);
            let it = &mut self.clients[client];
            it.paused_until = it.paused_until.min(self.now);
            if let Some(since) = it.suspended_at.take() {
                it.clock.stand_still(since, self.now);
            }
            (0..self.masters.len()).for_each(|master| self.change_credentials(client, master, true));
            self.wake(client, self.now);
        }
        self.end_stalls();
    }
}
