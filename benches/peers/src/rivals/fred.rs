//! A lock on fred.

use std::time::{Duration, Instant};

use fred::interfaces::{ClientLike, KeysInterface, LuaInterface};
use fred::types::config::{Config, TcpConfig};
use fred::types::{Builder, Expiration, SetOptions};
use futures_util::future::join_all;
use rand::RngExt;

use super::{RELEASE_SCRIPT, new_token, quorum, retry_delay};
use crate::load::{AsyncLocks, TTL};

/// redis-rs's limit, which survives a stopped master. By default, fred waits for ever.
const COMMAND_TIMEOUT: Duration = Duration::from_millis(500);

#[derive(Clone)]
pub(super) struct Fred {
    clients: Vec<fred::clients::Client>,
    sha: String,
}

impl Fred {
    pub(super) async fn connect(urls: &[String]) -> Self {
        let mut clients = Vec::new();
        let mut sha = String::new();
        for url in urls {
            let client = Builder::from_config(Config::from_url(url).expect("a valid URL"))
                .with_performance_config(|config| config.default_command_timeout = COMMAND_TIMEOUT)
                .with_connection_config(|config| {
                    config.tcp = TcpConfig { nodelay: Some(true), ..TcpConfig::default() };
                })
                .build()
                .expect("valid settings");
            client.init().await.expect("the master listens");
            sha = client.script_load(RELEASE_SCRIPT).await.expect("the master takes scripts");
            clients.push(client);
        }
        Self { clients, sha }
    }

    async fn release(&self, key: &str, token: &[u8]) -> usize {
        let replies =
            self.clients.iter().map(|client| client.evalsha::<i64, _, _, _>(self.sha.as_str(), key, token));
        join_all(replies).await.iter().filter(|reply| matches!(reply, Ok(1))).count()
    }
}

impl AsyncLocks for Fred {
    async fn pair(&self, key: &str) -> Result<Duration, String> {
        let asked = Instant::now();
        let quorum = quorum(self.clients.len());
        let expiry = Expiration::PX(i64::try_from(TTL.as_millis()).expect("some seconds"));
        let token = loop {
            let (start, token) = (Instant::now(), new_token());
            let replies = self.clients.iter().map(|client| {
                let options = (Some(expiry.clone()), Some(SetOptions::NX), false);
                client.set::<Option<String>, _, _>(key, &token[..], options.0, options.1, options.2)
            });
            let granted = join_all(replies).await.iter().filter(|reply| matches!(reply, Ok(Some(_)))).count();
            if granted >= quorum && start.elapsed() < super::VALIDITY {
                break token;
            }
            self.release(key, &token).await;
            if asked.elapsed() > crate::load::WAIT {
                return Err(format!("{granted} of {} granted", self.clients.len()));
            }
            let delay = rand::rng().random_range(Duration::ZERO..retry_delay());
            tokio::time::sleep(delay).await;
        };
        let time = asked.elapsed();
        let released = self.release(key, &token).await;
        if released >= quorum { Ok(time) } else { Err(format!("{released} released")) }
    }
}
