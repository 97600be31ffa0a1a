//! A lock on redis-rs, as a careful user would write it: all masters at once, connections that reconnect, a
//! limit for each reply, a release on all masters, and no lock beyond its validity.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rand::RngExt;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Client, Cmd, Value};
use tokio::runtime::{Builder, Runtime};

use crate::{Locks, Terms};

const RETRY_DELAY: Duration = Duration::from_millis(200);
/// A fiftieth of the TTL for clock differences, and Redis's resolution of 1 ms with some room.
const DRIFT_SHARE: u32 = 50;
const RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

pub(crate) struct ByHand {
    runtime: Runtime,
    connections: Vec<ConnectionManager>,
    name: String,
    ttl: Duration,
    token: [u8; 20],
}

impl ByHand {
    pub(crate) fn open(terms: &Terms) -> Self {
        // A missing answer costs a tenth of the TTL, not the default's 500 ms.
        let config = ConnectionManagerConfig::new().set_response_timeout(Some(terms.ttl / 10));
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let connections = runtime.block_on(async {
            let clients = terms.urls.iter().map(|url| Client::open(url.as_str()).expect("a valid URL"));
            let lazy = |client| ConnectionManager::new_lazy_with_config(client, config.clone());
            clients.map(lazy).collect::<Result<_, _>>().expect("connections that are opened later")
        });
        Self { runtime, connections, name: terms.name.clone(), ttl: terms.ttl, token: [0; 20] }
    }

    /// Number of masters with the expected reply.
    async fn count(&self, command: &Cmd, is_hoped: impl Fn(&Value) -> bool) -> usize {
        let replies = self.connections.iter().map(|connection| {
            let mut connection = connection.clone();
            async move { command.query_async::<Value>(&mut connection).await }
        });
        join_all(replies).await.iter().filter(|reply| reply.as_ref().is_ok_and(&is_hoped)).count()
    }

    async fn try_acquire(&self) -> Option<Instant> {
        let begun = Instant::now();
        let mut command = redis::cmd("SET");
        command.arg(&self.name).arg(&self.token[..]).arg("NX").arg("PX").arg(self.ttl.as_millis() as u64);
        let granted = self.count(&command, |reply| *reply == Value::Okay).await;
        let until = begun + self.ttl - self.ttl / DRIFT_SHARE;
        if granted > self.connections.len() / 2 && Instant::now() < until {
            return Some(until);
        }
        self.delete().await;
        None
    }

    async fn delete(&self) {
        let mut command = redis::cmd("EVAL");
        command.arg(RELEASE).arg(1).arg(&self.name).arg(&self.token[..]);
        self.count(&command, |_| true).await;
    }
}

impl Locks for ByHand {
    fn acquire(&mut self) -> Option<Instant> {
        let given_up = Instant::now() + self.ttl;
        loop {
            self.token = rand::rng().random();
            let acquired = self.runtime.block_on(self.try_acquire());
            let delay = rand::rng().random_range(Duration::ZERO..RETRY_DELAY);
            if acquired.is_some() || Instant::now() + delay >= given_up {
                return acquired;
            }
            self.pause(delay);
        }
    }

    fn release(&mut self) {
        self.runtime.block_on(self.delete());
    }

    fn pause(&mut self, time: Duration) {
        self.runtime.block_on(async { tokio::time::sleep(time).await });
    }
}
