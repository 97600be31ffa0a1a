//! Advice about common error replies.

use std::borrow::Cow;

use crate::lock::names_missing_right;

/// Features, and the rights that each needs.
const RIGHTS: [(&str, &[&str]); 12] = [
    ("all locks", &["set", "get", "del", "pexpire", "evalsha", "eval", "echo"]),
    ("scripts sent by digest", &["script"]),
    ("the times of holders", &["pttl"]),
    ("inspections", &["getrange", "zrevrank"]),
    ("quarantine and strict mode", &["info"]),
    ("the names of connections", &["client"]),
    ("waiters' queues", &["publish", "subscribe", "exists", "zcard", "zrangebyscore"]),
    ("sharded channels", &["spublish", "ssubscribe"]),
    ("URLs with a database", &["select"]),
    ("waiters' queues, fenced and shared locks", &["time"]),
    (
        "waiters' queues and shared locks",
        &["zadd", "zrem", "zrange", "zscore", "pexpireat", "zremrangebyscore"],
    ),
    ("shared locks", &["type"]),
];

/// Returns what to do about a server's error reply, such as `grant +set` for a missing right; `None` for replies that
/// explain themselves.
#[must_use]
pub fn advice(text: &str) -> Option<Cow<'static, str>> {
    if names_missing_right(text) {
        return Some(missing_right(text));
    }
    let code = text.split(' ').next().unwrap_or_default();
    let fixed = match code {
        "NOAUTH" => "it needs a password; put user and password into this master's URL",
        "WRONGPASS" => "check user and password of this master",
        "ERR" if text.contains("AUTH") && text.contains("password") => {
            "it has no password; remove it from this master's URL"
        }
        "ERR" if text.contains("max number of clients") => "raise maxclients there, or close idle clients",
        "ERR" if text.contains("DB index is out of range") => {
            "correct the database in its URL, or raise databases there"
        }
        "DENIED" => "it refuses other machines; set a password there",
        "READONLY" | "MASTERDOWN" | "REDIRECT" => "this is a replica; list its master instead",
        "OOM" => "out of memory; raise maxmemory; keep the policy noeviction",
        "MISCONF" => "it cannot write its snapshot; look at its log and disk",
        "LOADING" => "it is reading its data set; wait",
        "MOVED" | "ASK" | "TRYAGAIN" | "CLUSTERDOWN" => "this is a cluster node; use independent masters",
        "CROSSSLOT" => {
            "this is a cluster node; use independent masters, or a prefix with a hash tag such as {lock}:"
        }
        "BUSY" | "UNKILLABLE" => "another script runs there for long; wait, or SCRIPT KILL it",
        "NOREPLICAS" => "it has too few replicas; add them, or set min-replicas-to-write 0",
        "ERR" if text.contains("number of arguments for 'auth'") => {
            "it knows no users, as before Redis 6; remove the user from its URL"
        }
        "ERR" if is_of_no_master(text) => {
            "is it a master? A sentinel, a proxy or rename-command refuses this"
        }
        _ => return None,
    };
    Some(Cow::Borrowed(fixed))
}

/// Whether a server does not know a command that every master knows.
fn is_of_no_master(text: &str) -> bool {
    let named =
        text.strip_prefix("ERR unknown command ").map(|rest| rest.trim_start_matches(['\'', '`', '"']));
    let name = named.and_then(|rest| rest.split(['\'', '`', '"', ',', ' ']).next()).unwrap_or_default();
    ["echo", "ping", "select", "set", "get", "del", "pexpire"].iter().any(|it| it.eq_ignore_ascii_case(name))
}

/// The right that an ACL refusal names, and the feature that needs it. Redis 7 names no command inside a
/// script.
fn missing_right(text: &str) -> Cow<'static, str> {
    if text.contains("channel") {
        return Cow::Borrowed(
            "the ACL user lacks the channels &PREFIX*, which waiters' queues need; grant them, or set the prefix (--prefix)",
        );
    }
    if text.contains("access a key") || text.contains("of the keys") {
        return Cow::Borrowed(
            "the ACL user lacks the keys ~PREFIX*, which all locks need; grant them, or set the prefix (--prefix)",
        );
    }
    let named = text.split_once("run the '").and_then(|(_, rest)| rest.split_once('\''));
    let Some((command, _)) = named else {
        return Cow::Borrowed("the ACL user lacks a right of this script; see docs/operating.md");
    };
    let name = command.split('|').next().unwrap_or_default();
    let feature = RIGHTS.iter().find(|(_, commands)| commands.contains(&name));
    match feature {
        Some((feature, _)) => Cow::Owned(format!("the ACL user lacks +{command}, which {feature} need")),
        None => Cow::Owned(format!("the ACL user lacks +{command}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // I108
    #[test]
    fn an_acl_refusal_names_right_and_feature() {
        // The exact texts of Redis 7.0; Redis 8.0 and Valkey 8.1; Valkey 9.1; any of them without the place
        // in the script.
        let script = "the ACL user lacks a right of this script; see docs/operating.md";
        let time = "the ACL user lacks +time, which waiters' queues, fenced and shared locks need";
        let keys = "the ACL user lacks the keys ~PREFIX*, which all locks need; grant them, or set the prefix (--prefix)";
        let channels = "the ACL user lacks the channels &PREFIX*, which waiters' queues need; grant them, or set the prefix (--prefix)";
        let get = "the ACL user lacks +get, which all locks need";
        let load = "the ACL user lacks +script|load, which scripts sent by digest need";
        for (reply, expected) in [
            (
                "ERR The user executing the script can't run this command or subcommand script: \
                 1a8c67671c988614eb0c618efa73283c54565629, on @user_script:1.",
                script,
            ),
            (
                "ERR The user executing the script can't access at least one of the keys mentioned in the command \
                 arguments script: 567376a027c43920e8c8527167fabbe3a20acfc9, on @user_script:1.",
                keys,
            ),
            (
                "ERR ACL failure in script: User locker has no permissions to run the 'time' command script: \
                 1a8c67671c988614eb0c618efa73283c54565629, on @user_script:1.",
                time,
            ),
            (
                "ERR ACL failure in script: No permissions to access a key script: \
                 567376a027c43920e8c8527167fabbe3a20acfc9, on @user_script:1.",
                keys,
            ),
            (
                "ERR ACL failure in script: User locker has no permissions to run the 'time' command script: on \
                 @user_script:1.",
                time,
            ),
            ("ERR ACL failure in script: No permissions to access a key script: on @user_script:1.", keys),
            ("ERR The user executing the script can't run this command or subcommand", script),
            ("ERR ACL failure in script: User locker has no permissions to run the 'get' command", get),
            // Redis 7.0; then Redis 8.0, Valkey 8.1 and Valkey 9.1.
            ("NOPERM this user has no permissions to run the 'get' command", get),
            ("NOPERM this user has no permissions to access one of the keys used as arguments", keys),
            ("NOPERM this user has no permissions to access one of the channels used as arguments", channels),
            ("NOPERM User locker has no permissions to run the 'get' command", get),
            ("NOPERM User locker has no permissions to run the 'script|load' command", load),
            ("NOPERM No permissions to access a key", keys),
            ("NOPERM No permissions to access a channel", channels),
            (
                "NOPERM User locker has no permissions to run the 'delifeq' command",
                "the ACL user lacks +delifeq",
            ),
        ] {
            assert_eq!(advice(reply).as_deref(), Some(expected), "{reply:?}");
        }
    }

    #[test]
    fn each_right_of_the_manual_has_its_feature() {
        let page = include_str!("../../docs/rights.md");
        let lines = page.lines().filter(|line| line.starts_with("ACL SETUSER") && line.contains(" +set "));
        let rights: Vec<&str> =
            lines.flat_map(str::split_whitespace).filter_map(|word| word.strip_prefix('+')).collect();
        assert!(rights.len() > 40, "the page has its lines");
        for right in rights {
            let text = format!("NOPERM User locker has no permissions to run the '{right}' command");
            let advice = advice(&text).expect("a right is missing");
            assert!(advice.contains(&format!("+{right}, which ")), "{advice}");
        }
    }

    #[test]
    fn an_error_of_the_script_itself_is_no_acl_refusal() {
        for reply in [
            "ERR the fence is no number",
            "ERR Error running script: ACL failure in script",
            "ERR",
            "ERR unknown command 'AUTH'",
            "ERR the password is no number",
        ] {
            assert_eq!(advice(reply), None, "{reply:?}");
        }
    }

    #[test]
    fn usual_refusals_have_their_advice() {
        for (reply, said) in [
            ("BUSY Redis is busy running a script. You can only call SCRIPT KILL", "SCRIPT KILL"),
            ("UNKILLABLE Sorry the script already executed write commands", "another script runs there"),
            ("NOREPLICAS Not enough good replicas to write.", "min-replicas-to-write 0"),
            ("CROSSSLOT Keys in request don't hash to the same slot", "a prefix with a hash tag"),
            ("ASK 3999 127.0.0.1:6381", "cluster node"),
            ("TRYAGAIN Multiple keys request during rehashing of slot", "cluster node"),
            ("MASTERDOWN Link with MASTER is down", "this is a replica"),
            ("ERR max number of clients reached", "raise maxclients"),
            ("ERR max number of clients + cluster connections reached", "raise maxclients"),
            ("ERR wrong number of arguments for 'auth' command", "remove the user from its URL"),
            ("ERR DB index is out of range", "correct the database"),
            ("ERR unknown command 'ECHO', with args beginning with: ", "is it a master? A sentinel"),
            ("ERR unknown command `SET`, with args", "is it a master? A sentinel"),
            ("ERR unknown command 'set'", "is it a master? A sentinel"),
        ] {
            assert!(advice(reply).is_some_and(|it| it.contains(said)), "{reply}: {:?}", advice(reply));
        }
        // Servers of that time which are masters.
        for reply in ["ERR unknown command 'HELLO'", "ERR unknown command 'DELIFEQ'", "ERR unknown command"] {
            assert_eq!(advice(reply), None, "{reply}");
        }
    }

    #[test]
    fn a_server_that_refuses_other_machines_needs_a_password() {
        let reply = "DENIED Redis is running in protected mode because protected mode is enabled";
        assert_eq!(advice(reply).as_deref(), Some("it refuses other machines; set a password there"));
    }
}
