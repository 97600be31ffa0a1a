//! The rights that each feature needs, and for each right a command that changes nothing. Redis has exactly
//! one good answer to each command; any other answer is a refusal.

use redlatch::error::Failure;
use redlatch::probe::Answer;
use redlatch::scripts::{FENCE_NAME, NamedScript, PROBE_NAME, SCRIPTS, WAIT_NAME};
use redlatch::{Config, Mode};

/// Rights of the login.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Rights {
    /// Name of the user; `default` for a login without a name.
    pub user: Box<str>,
    /// Commands that the user may not run, as an ACL names them.
    pub denied: Vec<&'static str>,
    /// Commands that the server does not know.
    pub unknown: Vec<&'static str>,
    /// Commands with an answer that Redis never gives, by the answer.
    pub odd: Vec<(String, Vec<&'static str>)>,
    /// Error reply with which the server refuses scripts.
    pub scripts_refusal: Option<String>,
    /// Error reply of a server that currently refuses writes or all commands.
    pub write_refusal: Option<String>,
    /// Whether the login may not use a key behind the prefix.
    pub lacks_keys: bool,
    /// Whether the login may not use a channel behind the prefix.
    pub lacks_channels: bool,
}

/// Part of the client that needs separate rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Feature {
    /// All kinds of lock.
    Locks,
    /// Quarantine of restarted masters, and strict mode.
    Quarantine,
    /// Queues of waiters, and messages to them.
    Waiting,
    /// Channels whose messages reach no subscriber to a pattern.
    Sharded,
    Inspections,
    /// Names of connections, and scripts that are loaded ahead.
    Comfort,
    Fenced,
    /// Readers and writers.
    Shared,
}

impl Feature {
    /// All features, most important first.
    pub(super) const ALL: [Self; 8] = [
        Self::Locks,
        Self::Quarantine,
        Self::Waiting,
        Self::Sharded,
        Self::Inspections,
        Self::Comfort,
        Self::Fenced,
        Self::Shared,
    ];

    /// Name in findings.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Locks => "all locks",
            Self::Quarantine => "quarantine and strict mode",
            Self::Waiting => "waiters' queues",
            Self::Sharded => "sharded channels",
            Self::Inspections => "inspections",
            Self::Comfort => "names of connections and loaded scripts",
            Self::Fenced => "fenced locks",
            Self::Shared => "readers and writers",
        }
    }

    /// Effect of missing rights.
    pub(super) const fn without(self) -> &'static str {
        match self {
            Self::Locks => "locks cannot be taken, extended or released there as needed",
            Self::Quarantine => {
                "each reconnect counts as a restart; strict mode refuses the master; less can be examined"
            }
            Self::Waiting => "waiters retry at random times there instead of standing in a queue",
            Self::Sharded => "a subscriber to a pattern of channels makes dead waiters look alive there",
            Self::Inspections => "inspect fails there, or shows less",
            Self::Comfort => "connections have no name, or a script's first use costs a round trip",
            Self::Fenced => "fenced and shared locks cannot be taken there",
            Self::Shared => "locks of readers do not work there",
        }
    }

    /// Commands that the feature needs, as an ACL names them.
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
            Self::Sharded => &["spublish", "ssubscribe"],
            Self::Inspections => &["getrange", "zrevrank"],
            Self::Comfort => &["client|setname", "script|load"],
            Self::Fenced => Mode::Fenced.rights(),
            Self::Shared => Mode::Shared.rights(),
        }
    }
}

/// A command that shows whether the user has a right, and changes nothing.
pub(super) struct Trial {
    /// The right, or the name of a script.
    pub(super) right: &'static str,
    pub(super) command: Vec<Vec<u8>>,
    is_good: fn(&Answer) -> bool,
}

fn script(name: &str) -> NamedScript {
    SCRIPTS.into_iter().find(|it| it.name == name).expect("a script of this name")
}

/// A key that no lock uses and nothing creates.
pub(super) fn trial_key(config: &Config) -> Vec<u8> {
    [config.prefix(), PROBE_NAME, b"doctor"].concat()
}

/// The commands in sending order. Subscriptions come last, because a subscribed connection takes no other
/// commands.
pub(super) fn trials(config: &Config) -> Vec<Trial> {
    let key = trial_key(config);
    let key = key.as_slice();
    let is_empty: fn(&Answer) -> bool = |it| it.bytes() == Some(b"");
    let is_list: fn(&Answer) -> bool = |it| *it == Answer::List(Vec::new());
    let is_nil: fn(&Answer) -> bool = |it| *it == Answer::Null;
    let is_zero: fn(&Answer) -> bool = |it| it.integer() == Some(0);
    let release = script("release");
    let (sha, text) = (release.sha.as_bytes(), release.text.as_bytes());
    type Row<'a> = (&'static str, &'a [&'a [u8]], fn(&Answer) -> bool);
    let rows: [Row<'_>; 27] = [
        ("set", &[b"SET", key, b"", b"XX", b"PX", b"1"], is_nil),
        ("get", &[b"GET", key], is_nil),
        ("del", &[b"DEL", key], is_zero),
        ("pexpire", &[b"PEXPIRE", key, b"1"], is_zero),
        ("pttl", &[b"PTTL", key], |it| it.integer() == Some(-2)),
        // The master keeps the script, as with each client.
        ("eval", &[b"EVAL", text, b"1", key, b"none"], is_zero),
        ("evalsha", &[b"EVALSHA", sha, b"1", key, b"none"], |it| {
            it.integer() == Some(0) || it.error().is_some_and(|text| text.starts_with("NOSCRIPT"))
        }),
        ("script|load", &[b"SCRIPT", b"LOAD", text], |it| {
            it.bytes() == Some(script("release").sha.as_bytes())
        }),
        ("echo", &[b"ECHO", b""], is_empty),
        ("client|setname", &[b"CLIENT", b"SETNAME", config.client_name().as_bytes()], |it| {
            it.bytes() == Some(b"OK")
        }),
        ("getrange", &[b"GETRANGE", key, b"0", b"0"], is_empty),
        ("zrevrank", &[b"ZREVRANK", key, b""], is_nil),
        ("publish", &[b"PUBLISH", key, b""], |it| it.integer().is_some()),
        ("spublish", &[b"SPUBLISH", key, b""], |it| it.integer().is_some()),
        ("time", &[b"TIME"], |it| matches!(it, Answer::List(parts) if parts.len() == 2)),
        ("exists", &[b"EXISTS", key], is_zero),
        ("type", &[b"TYPE", key], |it| it.bytes() == Some(b"none")),
        ("pexpireat", &[b"PEXPIREAT", key, b"1"], is_zero),
        ("zadd", &[b"ZADD", key, b"XX", b"0", b""], is_zero),
        ("zrem", &[b"ZREM", key, b""], is_zero),
        ("zcard", &[b"ZCARD", key], is_zero),
        ("zscore", &[b"ZSCORE", key, b""], is_nil),
        ("zrange", &[b"ZRANGE", key, b"0", b"0"], is_list),
        ("zrangebyscore", &[b"ZRANGEBYSCORE", key, b"0", b"0"], is_list),
        ("zremrangebyscore", &[b"ZREMRANGEBYSCORE", key, b"0", b"0"], is_zero),
        ("ssubscribe", &[b"SSUBSCRIBE", key], |it| matches!(it, Answer::List(parts) if parts.len() == 3)),
        ("subscribe", &[b"SUBSCRIBE", key], |it| matches!(it, Answer::List(parts) if parts.len() == 3)),
    ];
    let trial = |(right, words, is_good): Row<'_>| Trial {
        right,
        command: words.iter().map(|word| word.to_vec()).collect(),
        is_good,
    };
    rows.into_iter().map(trial).collect()
}

/// Scripts that do nothing without a lock and waiters. `park` and `shared_acquire_queue` are left out: they
/// write before they can refuse.
pub(super) fn script_trials(config: &Config) -> Vec<Trial> {
    let key = trial_key(config);
    let beside = |name: &[u8]| [config.prefix(), name, &key[config.prefix().len()..]].concat();
    let keys = [key.clone(), beside(WAIT_NAME), beside(FENCE_NAME)];
    let fenced = [key.clone(), beside(FENCE_NAME)];
    let is_zero: fn(&Answer) -> bool = |it| it.integer() == Some(0);
    let is_free: fn(&Answer) -> bool = |it| it.bytes() == Some(b"....");
    // The token 1 is too old on any clock.
    let is_past: fn(&Answer) -> bool = |it| {
        let Answer::List(parts) = it else { return false };
        parts.len() == 4 && parts[..3] == [2, 0, 0].map(Answer::Integer)
    };
    type Row<'a> = (&'static str, &'a [Vec<u8>], &'a [&'a str], fn(&Answer) -> bool);
    let rows: [Row<'_>; 14] = [
        ("extend", &keys, &["none", "1"], is_zero),
        ("swap", &keys, &["none", "none", "1"], is_zero),
        ("release_serve", &keys, &["none"], is_zero),
        ("fenced_release_serve", &keys, &["none", "0", "1", "1", "1"], is_zero),
        ("shared_extend", &keys, &["none", "1"], is_zero),
        ("shared_release_serve", &keys, &["none"], is_zero),
        ("serve", &keys, &[], is_zero),
        ("force_unlock_serve", &keys, &[], is_zero),
        ("unpark", &keys, &["1", "none", "", "1", "1"], is_zero),
        ("swap_parked", &keys, &["1", "none", "none", "1"], is_zero),
        ("adopt", &fenced, &["none", "none", "1", ""], is_zero),
        ("free_slots", &keys, &["none", "1", "0"], is_free),
        ("fenced_acquire", &fenced, &["none", "1", "1", "1", "1", "1"], is_past),
        ("release", &keys, &["none"], is_zero),
    ];
    let trial = |(name, keys, arguments, is_good): Row<'_>| {
        let script = script(name);
        let count = script.key_count.to_string();
        let head = ["EVAL", script.text, &count].map(|word| word.as_bytes().to_vec());
        let arguments = arguments.iter().map(|word| word.as_bytes().to_vec());
        let command = head.into_iter().chain(keys[..script.key_count].iter().cloned()).chain(arguments);
        Trial { right: script.name, command: command.collect(), is_good }
    };
    rows.into_iter().map(trial).collect()
}

impl Rights {
    pub(super) fn note(&mut self, trial: &Trial, answer: &Answer) {
        if (trial.is_good)(answer) {
            return;
        }
        let text = answer.error().map_or_else(|| format!("the answer {}", answer.text()), str::to_owned);
        self.note_refusal(trial.right, &text);
        let is_script = ["eval", "evalsha"].contains(&trial.right);
        if is_script && !is_passing(&text) && !self.lacks_keys {
            self.scripts_refusal.get_or_insert(text);
        }
    }

    /// Notes the answer to the trial of a script. Ignores a missing right that another trial has shown.
    pub(super) fn note_script(&mut self, trial: &Trial, answer: &Answer) {
        let is_right =
            answer.error().is_some_and(|text| replied(text).is_missing_right()) && self.lacks_any();
        // A matter of the prefix: whether the script's keys are in one slot.
        let is_slot = answer.error().is_some_and(|text| text.starts_with("CROSSSLOT"));
        if self.scripts_refusal.is_none() && !is_right && !is_slot {
            self.note(trial, answer);
        }
    }

    const fn lacks_any(&self) -> bool {
        !self.denied.is_empty() || self.lacks_keys || self.lacks_channels
    }

    pub(super) fn note_refusal(&mut self, right: &'static str, text: &str) {
        if text.starts_with("ERR unknown command") || text.starts_with("ERR unknown subcommand") {
            self.unknown.push(right);
        } else if is_passing(text) {
            self.write_refusal.get_or_insert_with(|| text.to_owned());
        } else if text.starts_with("NOPERM") {
            // The text contains the name of the user, which may be anything.
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
        } else if Feature::Sharded.rights().contains(&right) {
            // Other channels replace sharded channels.
            self.unknown.push(right);
        } else {
            match self.odd.iter_mut().find(|(other, _)| other == text) {
                Some((_, rights)) => rights.push(right),
                None => self.odd.push((text.to_owned(), vec![right])),
            }
        }
    }
}

/// Whether a server refuses commands for a reason that does not depend on the command.
fn is_passing(text: &str) -> bool {
    let is_of_command = text.starts_with("NOPERM") || text.starts_with("ERR");
    replied(text).is_refusal() && !is_of_command
}

fn replied(text: &str) -> Failure {
    Failure::Replied(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_right_of_a_feature_has_a_trial() {
        let config = Config::builder().master("redis://h").build().expect("valid");
        for Trial { right, command, .. } in trials(&config) {
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
    fn each_mode_of_a_lock_has_its_feature() {
        for mode in Mode::ALL.into_iter().filter(|mode| !mode.rights().is_empty()) {
            assert!(Feature::ALL.iter().any(|it| it.rights() == mode.rights()), "{mode:?}");
        }
    }

    /// The other two scripts write.
    #[test]
    fn each_script_that_can_refuse_has_a_trial() {
        let config = Config::builder().master("redis://h").build().expect("valid");
        let tried: Vec<_> = script_trials(&config).into_iter().map(|trial| trial.right).collect();
        let untried: Vec<_> = SCRIPTS.iter().map(|it| it.name).filter(|it| !tried.contains(it)).collect();
        assert_eq!(untried, ["shared_acquire_queue", "park"]);
    }

    #[test]
    fn the_features_have_the_rights_of_the_manual() {
        let page = include_str!("../../../docs/rights.md");
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
            ("ssubscribe", error("ERR unsupported command")),
            ("zadd", error("READONLY You can't write against a read only replica.")),
        ] {
            rights.note_refusal(right, answer.error().expect("an error"));
        }
        let Rights { denied, unknown, lacks_keys, lacks_channels, odd, write_refusal, .. } = rights;
        assert_eq!(
            (denied, unknown),
            (vec!["get", "del", "info", "time"], vec!["eval", "script|load", "ssubscribe"])
        );
        assert!(lacks_keys && lacks_channels);
        assert!(odd.is_empty() && write_refusal.is_some_and(|text| text.starts_with("READONLY")));
    }

    /// Only Redis's own answer is good, whatever the words.
    #[test]
    fn unknown_answer_to_a_trial_is_a_refusal() {
        let config = Config::builder().master("redis://h").build().expect("valid");
        let words = ["ERR unsupported command", "ERR Command is not available", "no", "FORBIDDEN"];
        let errors = words.map(|text| Answer::Error(text.to_owned()));
        let odd = [Answer::Integer(77), Answer::Text(b"QUEUED".to_vec()), Answer::List(vec![Answer::Null])];
        for answer in errors.iter().chain(&odd) {
            for trial in trials(&config).iter().chain(&script_trials(&config)) {
                let is_sharded = Feature::Sharded.rights().contains(&trial.right);
                if is_sharded || trial.right == "publish" && answer.integer().is_some() {
                    continue;
                }
                let mut rights = Rights::default();
                rights.note(trial, answer);
                let commands: Vec<_> = rights.odd.iter().flat_map(|(_, commands)| commands.clone()).collect();
                assert_eq!(commands, [trial.right], "{answer:?}");
                let runs_scripts = ["eval", "evalsha"].contains(&trial.right);
                assert_eq!(rights.scripts_refusal.is_some(), runs_scripts, "{answer:?} to {}", trial.right);
            }
        }
    }
}
