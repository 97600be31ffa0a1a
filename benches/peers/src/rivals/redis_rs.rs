//! A lock on redis-rs, as a careful user without a lock library would write it.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rand::RngExt;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo, Value};

use super::{RELEASE_SCRIPT, new_token, quorum, retry_delay};
use crate::load::{AsyncLocks, TTL};

/// Commands that a connection accepts at once. The default of 50 is too small for 1,024 callers.
const PIPELINE_SIZE: usize = 1024;

#[derive(Clone)]
pub(crate) struct RedisRs {
    connections: Vec<MultiplexedConnection>,
    sha: String,
}

/// A client with TCP_NODELAY, unlike redis-rs's default.
pub(super) fn client(url: &str) -> Client {
    let info = url.into_connection_info().expect("a valid URL");
    Client::open(info.set_tcp_settings(TcpSettings::default().set_nodelay(true))).expect("a valid URL")
}

impl RedisRs {
    pub(crate) async fn connect(urls: &[String]) -> Self {
        let config = AsyncConnectionConfig::new().set_pipeline_buffer_size(PIPELINE_SIZE);
        let mut connections = Vec::new();
        let mut sha = String::new();
        for url in urls {
            let connection = client(url).get_multiplexed_async_connection_with_config(&config).await;
            let mut connection = connection.expect("the master listens");
            let load =
                redis::cmd("SCRIPT").arg("LOAD").arg(RELEASE_SCRIPT).query_async(&mut connection).await;
            sha = load.expect("the master takes scripts");
            connections.push(connection);
        }
        Self { connections, sha }
    }

    /// Sends a command to all masters. Returns the number of expected replies.
    async fn count(&self, command: &redis::Cmd, is_hoped: impl Fn(&Value) -> bool) -> usize {
        let replies = self.connections.iter().map(|connection| {
            let mut connection = connection.clone();
            async move { command.query_async::<Value>(&mut connection).await }
        });
        join_all(replies).await.iter().filter(|reply| reply.as_ref().is_ok_and(&is_hoped)).count()
    }

    /// Tries until a quorum has granted the key. Returns the token.
    pub(crate) async fn acquire(&self, key: &str, wait: Duration) -> Result<[u8; 20], String> {
        let asked = Instant::now();
        let quorum = quorum(self.connections.len());
        loop {
            let (start, token) = (Instant::now(), new_token());
            let mut command = redis::cmd("SET");
            command.arg(key).arg(&token[..]).arg("NX").arg("PX").arg(TTL.as_millis());
            let granted = self.count(&command, |reply| *reply == Value::Okay).await;
            if granted >= quorum && start.elapsed() < super::VALIDITY {
                return Ok(token);
            }
            self.release(key, &token).await;
            if asked.elapsed() > wait {
                return Err(format!("{granted} of {} granted", self.connections.len()));
            }
            let delay = rand::rng().random_range(Duration::ZERO..retry_delay());
            tokio::time::sleep(delay).await;
        }
    }

    /// Returns the number of masters that deleted it.
    pub(crate) async fn release(&self, key: &str, token: &[u8]) -> usize {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.sha).arg(1).arg(key).arg(token);
        self.count(&command, |reply| *reply == Value::Int(1)).await
    }
}

impl AsyncLocks for RedisRs {
    async fn pair(&self, key: &str) -> Result<Duration, String> {
        let asked = Instant::now();
        let token = self.acquire(key, crate::load::WAIT).await?;
        let time = asked.elapsed();
        let released = self.release(key, &token).await;
        if released >= quorum(self.connections.len()) {
            Ok(time)
        } else {
            Err(format!("{released} released"))
        }
    }
}
