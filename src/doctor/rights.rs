//! Which rights each feature needs, and a command for each right that changes nothing.

use crate::config::Config;
use crate::driver::probe::Answer;
use crate::lock::PROBE_NAME;

/// Rights of the login, found by commands that change nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rights {
    /// Name of the user; `default` for a login without a name.
    pub user: Box<str>,
    /// Commands that the user may not run, as an ACL names them.
    pub denied: Vec<&'static str>,
    /// Commands that the server does not know.
    pub unknown: Vec<&'static str>,
    /// Whether a key behind the prefix is out of its reach.
    pub lacks_keys: bool,
    /// Whether a channel behind the prefix is out of its reach.
    pub lacks_channels: bool,
}

/// Part of the client that needs rights of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Feature {
    /// All kinds of lock.
    Locks,
    /// Quarantine of restarted masters, and strict mode.
    Quarantine,
    /// Queues of waiters, and messages to them.
    Waiting,
    Inspections,
    /// Names of connections, and scripts that are loaded ahead.
    Comfort,
    Fenced,
    /// Readers and writers.
    Shared,
}

impl Feature {
    /// All features, the most important first.
    pub(super) const ALL: [Self; 7] = [
        Self::Locks,
        Self::Quarantine,
        Self::Waiting,
        Self::Inspections,
        Self::Comfort,
        Self::Fenced,
        Self::Shared,
    ];

    /// Its name in findings.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Locks => "all locks",
            Self::Quarantine => "quarantine and strict mode",
            Self::Waiting => "waiters' queues",
            Self::Inspections => "inspections",
            Self::Comfort => "names of connections and loaded scripts",
            Self::Fenced => "fenced locks",
            Self::Shared => "readers and writers",
        }
    }

    /// The effect of missing rights.
    pub(super) const fn without(self) -> &'static str {
        match self {
            Self::Locks => "locks cannot be taken, extended or released there as needed",
            Self::Quarantine => {
                "each reconnect counts as a restart; strict mode refuses the master; less can be examined"
            }
            Self::Waiting => "waiters retry at random times there instead of standing in a queue",
            Self::Inspections => "inspect fails there, or shows less",
            Self::Comfort => "connections have no name, or a script's first use costs a round trip",
            Self::Fenced => "fenced and shared locks cannot be taken there",
            Self::Shared => "locks of readers do not work there",
        }
    }

    /// The commands that it needs, as an ACL names them.
    pub(super) const fn rights(self) -> &'static [&'static str] {
        match self {
            Self::Locks => &["set", "get", "del", "pexpire", "pttl", "evalsha", "eval", "echo"],
            Self::Quarantine => &["info"],
            Self::Waiting => &[
                "publish",
                "subscribe",
                "time",
                "exists",
                "zadd",
                "zrem",
                "zcard",
                "zrange",
                "zrangebyscore",
            ],
            Self::Inspections => &["getrange", "zrevrank"],
            Self::Comfort => &["client|setname", "script|load"],
            Self::Fenced => &["time"],
            Self::Shared => {
                &["time", "type", "pexpireat", "zadd", "zrem", "zrange", "zscore", "zremrangebyscore"]
            }
        }
    }
}

/// A command that shows whether the user has a right, and changes nothing.
pub(super) struct Trial {
    pub(super) right: &'static str,
    pub(super) command: Vec<Vec<u8>>,
}

/// A key that no lock has, and that nothing creates.
pub(super) fn trial_key(config: &Config) -> Vec<u8> {
    [&config.prefix, PROBE_NAME, b"doctor"].concat()
}

/// The commands in the order in which they are sent. Nothing follows the last one: a connection with a
/// subscription takes no other commands.
pub(super) fn trials(config: &Config) -> Vec<Trial> {
    let key = trial_key(config);
    let key = key.as_slice();
    let unknown_script = [b'0'; 40];
    let rows: [(&'static str, &[&[u8]]); 25] = [
        ("set", &[b"SET", key, b"", b"XX", b"PX", b"1"]),
        ("get", &[b"GET", key]),
        ("del", &[b"DEL", key]),
        ("pexpire", &[b"PEXPIRE", key, b"1"]),
        ("pttl", &[b"PTTL", key]),
        ("evalsha", &[b"EVALSHA", &unknown_script, b"1", key]),
        // One key is announced and none is there, so that nothing runs.
        ("eval", &[b"EVAL", b"return", b"1"]),
        ("echo", &[b"ECHO", b""]),
        // It does not compile, so that nothing is kept.
        ("script|load", &[b"SCRIPT", b"LOAD", b"("]),
        ("client|setname", &[b"CLIENT", b"SETNAME", config.client_name.as_bytes()]),
        ("getrange", &[b"GETRANGE", key, b"0", b"0"]),
        ("zrevrank", &[b"ZREVRANK", key, b""]),
        ("publish", &[b"PUBLISH", key, b""]),
        ("time", &[b"TIME"]),
        ("exists", &[b"EXISTS", key]),
        ("type", &[b"TYPE", key]),
        ("pexpireat", &[b"PEXPIREAT", key, b"1"]),
        ("zadd", &[b"ZADD", key, b"XX", b"0", b""]),
        ("zrem", &[b"ZREM", key, b""]),
        ("zcard", &[b"ZCARD", key]),
        ("zscore", &[b"ZSCORE", key, b""]),
        ("zrange", &[b"ZRANGE", key, b"0", b"0"]),
        ("zrangebyscore", &[b"ZRANGEBYSCORE", key, b"0", b"0"]),
        ("zremrangebyscore", &[b"ZREMRANGEBYSCORE", key, b"0", b"0"]),
        ("subscribe", &[b"SUBSCRIBE", key]),
    ];
    let trial = |(right, words): (&'static str, &[&[u8]])| Trial {
        right,
        command: words.iter().map(|word| word.to_vec()).collect(),
    };
    rows.into_iter().map(trial).collect()
}

impl Rights {
    /// Takes the answer to a trial.
    pub(super) fn note(&mut self, right: &'static str, answer: &Answer) {
        let Some(text) = answer.error() else { return };
        if text.starts_with("ERR unknown command") || text.starts_with("ERR unknown subcommand") {
            self.unknown.push(right);
        } else if text.starts_with("NOPERM") {
            // The name of the user is in the text, and may be any.
            let says = |words: &[&str]| words.iter().any(|it| text.contains(it));
            if says(&["to run the '", "run this command"]) {
                self.denied.push(right);
            } else if says(&["to access a key", "one of the keys"]) {
                self.lacks_keys = true;
            } else if says(&["to access a channel", "to access a Pub/Sub channel", "one of the channels"]) {
                self.lacks_channels = true;
            } else {
                self.denied.push(right);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_right_of_a_feature_has_a_trial() {
        let config = Config::builder().master("redis://h").build().expect("valid");
        for Trial { right, command } in trials(&config) {
            let words: Vec<_> = right.split('|').map(|word| word.to_uppercase().into_bytes()).collect();
            assert!(command.starts_with(&words), "{right}");
        }
        let mut tried: Vec<_> = trials(&config).into_iter().map(|trial| trial.right).collect();
        tried.push("info"); // asked for anyway
        for right in Feature::ALL.into_iter().flat_map(Feature::rights) {
            assert!(tried.contains(right), "{right}");
        }
    }

    #[test]
    fn the_features_have_the_rights_of_the_manual() {
        let page = include_str!("../../docs/operating.md");
        let line = page.lines().rfind(|line| line.starts_with("ACL SETUSER locker reset")).expect("a line");
        let mut listed: Vec<_> = line.split(' ').filter_map(|word| word.strip_prefix('+')).collect();
        let mut needed: Vec<_> = Feature::ALL.into_iter().flat_map(Feature::rights).copied().collect();
        for rights in [&mut listed, &mut needed] {
            rights.sort_unstable();
            rights.dedup();
        }
        assert_eq!(listed, needed);
    }

    #[test]
    fn refusals_are_distinguished() {
        let mut rights = Rights::default();
        let error = |text: &str| Answer::Error(text.to_owned());
        for (right, answer) in [
            ("get", error("NOPERM this user has no permissions to run the 'get' command")),
            ("set", error("NOPERM No permissions to access a key")),
            (
                "publish",
                error("NOPERM this user has no permissions to access one of the channels used as arguments"),
            ),
            ("del", error("NOPERM User payment-channel has no permissions to run the 'del' command")),
            ("info", error("NOPERM User one of the keys has no permissions to run the 'info' command")),
            ("eval", error("ERR unknown command 'EVAL', with args beginning with: ")),
            ("script|load", error("ERR unknown subcommand 'LOAD'. Try SCRIPT HELP.")),
            ("time", error("NOPERM not today")),
            ("evalsha", error("NOSCRIPT No matching script.")),
            ("zadd", error("READONLY You can't write against a read only replica.")),
            ("echo", Answer::Text(Vec::new())),
        ] {
            rights.note(right, &answer);
        }
        let Rights { denied, unknown, lacks_keys, lacks_channels, .. } = rights;
        assert_eq!((denied, unknown), (vec!["get", "del", "info", "time"], vec!["eval", "script|load"]));
        assert!(lacks_keys && lacks_channels);
    }
}
