//! `redlatch doctor` finds each planted misconfiguration, and nothing on a healthy fleet.

use std::net::Ipv4Addr;
use std::process::Command;
use std::time::Duration;

use redlatch::{Config, Credentials};
use redlatch_cli::doctor;
use redlatch_support::{Certificates, Fleet, PATIENCE, Place, eventually, valkey_9};

use crate::harness::{command, expect, finish, redlatch};
use crate::terminal::Session;

pub(crate) const PAGE: &str =
    concat!(include_str!("../../docs/set-up.md"), include_str!("../../docs/rights.md"));

/// The `redis.conf` of docs/set-up.md as arguments, without the ACL file, which does not exist here.
fn healthy_settings() -> Vec<String> {
    let (_, rest) = PAGE.split_once("```text\nmaxmemory ").expect("the page has a redis.conf");
    let (settings, _) = rest.split_once("```").expect("it ends");
    let settings = format!("maxmemory {settings}");
    let lines = settings.lines().filter(|line| !line.starts_with("aclfile"));
    let pair = |line: &str| {
        let (name, value) = line.split_once(' ').expect("a name and a value");
        [format!("--{name}"), value.trim_matches('"').to_owned()]
    };
    lines.flat_map(pair).collect()
}

/// Four masters on separate machines, as far as addresses show, and a fifth beside the first.
fn start() -> Fleet {
    let hosts = [2, 3, 4, 5, 2].map(|last| Ipv4Addr::new(127, 0, 0, last).into());
    let mut fleet = Fleet::start_at(hosts.map(|host| Place { host, ..Place::default() }).into());
    let settings = healthy_settings();
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    fleet.masters().for_each(|master| master.restart_with(&settings));
    fleet
}

/// `redlatch doctor` with limits that a slow machine does not exceed.
fn doctor(urls: &[String]) -> Command {
    let mut command = doctor_with_max_ttl(urls, "1s");
    command.args(["--connect-timeout", "20s"]);
    command
}

fn doctor_with_max_ttl(urls: &[String], max_ttl: &str) -> Command {
    let mut command = redlatch(urls);
    // Too short to compare clock rates, which takes 5 s.
    command.args(["doctor", "--max-ttl", max_ttl, "--answer-timeout", "20s", "--time-limit", "9s"]);
    command
}

/// The exit code, and the codes of the findings.
pub(crate) fn examine(command: &mut Command) -> (Option<i32>, Vec<String>) {
    let finished = finish(command.arg("--json"));
    let found: serde_json::Value = serde_json::from_str(&finished.stdout)
        .unwrap_or_else(|error| panic!("{error}: {} {}", finished.stdout, finished.stderr));
    let findings = found["findings"].as_array().expect("a list");
    for finding in findings {
        for text in ["what", "why", "advice"] {
            assert!(finding[text].as_str().is_some_and(|text| !text.is_empty()), "{finding}");
        }
    }
    let codes = findings.iter().map(|it| it["code"].as_str().expect("a text").to_owned()).collect();
    (finished.code, codes)
}

/// Waits until the fleet is found healthy, because masters must have run for a while.
#[track_caller]
fn expect_healthy(urls: &[String]) {
    let mut found = (None, Vec::new());
    eventually(PATIENCE, "nothing is found", || {
        found = examine(&mut doctor(urls));
        found == (Some(0), Vec::new())
    });
}

/// Waits until exactly these findings are left, because a master may take a while to follow a command.
#[track_caller]
fn expect_found(urls: &[String], args: &[&str], exit: i32, codes: &[&str]) {
    let expected = (Some(exit), codes.iter().map(|&code| code.to_owned()).collect::<Vec<_>>());
    let mut found = (None, Vec::new());
    let start = std::time::Instant::now();
    while found != expected {
        found = examine(doctor(urls).args(args));
        assert!(start.elapsed() < PATIENCE, "found {found:?}, expected {expected:?}");
    }
}

// I153
#[test]
fn a_healthy_fleet_gives_no_finding() {
    let mut fleet = start();
    let urls = fleet.urls()[..3].to_vec();
    let state = |fleet: &mut Fleet| -> Vec<String> {
        let fields = |info: String| -> Vec<String> {
            let is_kept = |line: &&str| {
                line.starts_with("rdb_changes_since_last_save:") || line.starts_with("expired_keys:")
            };
            info.lines().filter(is_kept).map(str::to_owned).collect()
        };
        fleet
            .masters()
            .flat_map(|master| {
                [fields(master.ask("INFO").text()), vec![master.ask("DBSIZE").text()]].concat()
            })
            .collect()
    };
    let before = state(&mut fleet);
    expect_healthy(&urls);
    assert_eq!(state(&mut fleet), before, "an examination changes nothing");
    let text = finish(&mut doctor(&urls));
    expect(&text, 0, &[]);
    assert!(text.stdout.ends_with("\nnothing found\n"), "{}", text.stdout);
    assert!(text.stdout.contains("round trip") && text.stdout.contains("noeviction"), "{}", text.stdout);
    let limits = "--max-ttl 1s --answer-timeout 20s --time-limit 9s --connect-timeout 20s";
    let script = format!("TERM=xterm NO_COLOR= \"$REDLATCH\" doctor {limits}");
    if let Some(session) = Session::start(&urls, &script) {
        let (_, screen) = session.finish();
        assert!(screen.contains("\x1b[1;32mnothing found\x1b[0m"), "{screen}");
    }
    for master in fleet.masters().take(3) {
        master.ask("CONFIG SET appendfsync always");
    }
    expect_found(&urls, &["--trust"], 0, &[]);
    expect_found(&urls, &[], 0, &["trust-justified"]);
}

#[test]
fn the_json_has_each_fact_of_a_master() {
    let mut fleet = start();
    let master = fleet.master(1);
    master.ask("CONFIG SET maxmemory 300mb");
    let fields = master.ask("INFO").text();
    let field = |name: &str| {
        let value = fields.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.unwrap_or_else(|| panic!("{name} is not in: {fields}")).trim().to_owned()
    };
    let number = |name: &str| field(name).parse::<u64>().expect("a number");
    let limits = ["--max-ttl", "1s", "--answer-timeout", "20s", "--time-limit", "20s"];
    let finished = finish(redlatch(&fleet.urls()[..3]).args(["doctor", "--json"]).args(limits));
    let found: serde_json::Value = serde_json::from_str(&finished.stdout).expect("JSON and nothing else");
    let mut facts = found["masters"][1].clone();
    // Removes the facts that vary.
    let mut take = |name: &str| facts.as_object_mut().expect("an object").remove(name).expect("it is there");
    let round_trip = take("round_trip_us");
    assert!(round_trip["p50"].as_u64() <= round_trip["p99"].as_u64(), "{round_trip}");
    assert!(matches!(round_trip["count"].as_u64(), Some(1..=100)), "{round_trip}");
    let ahead_ms = take("clock_ahead_ms");
    assert!(
        ahead_ms.as_i64().is_some_and(|ahead| ahead.abs() < 60_000),
        "one machine has one clock: {ahead_ms}"
    );
    let ppm = take("clock_rate_ppm");
    assert!(ppm.as_i64().is_some_and(|ppm| ppm.abs() < 200_000), "one machine has one clock: {ppm}");
    let uptime = take("uptime_s");
    assert!(uptime.as_u64().is_some_and(|it| it >= number("uptime_in_seconds")), "{uptime}");
    let used = take("used_memory");
    let before = number("used_memory");
    assert!(used.as_u64().is_some_and(|it| it > before / 2 && it < before * 2), "{used}, before it {before}");
    // Redis has no `DELIFEQ`; Valkey has it since version 9.
    assert!(
        [serde_json::Value::Null, "DELIFEQ".into(), "DELEX IFEQ".into()].contains(&take("native_release"))
    );
    let version = if fields.contains("valkey_version:") { "valkey_version" } else { "redis_version" };
    let expected = serde_json::json!({
        "name": fleet.urls()[1],
        "answered": true,
        "address": "127.0.0.3",
        "run_id": field("run_id"),
        "version": field(version),
        "role": "master",
        "is_cluster": false,
        "maxmemory": 300 << 20,
        "maxmemory_policy": "noeviction",
        "evicted_keys": 0,
        "fleet": null,
        "prefixes": [],
        "is_append_only": true,
        "appendfsync": "everysec",
        "syncs_each_write": false,
        "user": "default",
        "denied": [],
        "certificate_left_s": null,
    });
    assert_eq!(facts, expected);
}

// I153
#[test]
fn planted_misconfigurations_are_found_one_by_one() {
    let mut fleet = start();
    let all = fleet.urls();
    let three = all[..3].to_vec();
    expect_healthy(&three);
    // Persistence that does not justify the client's trust.
    expect_found(&three, &["--trust"], 2, &["trust-unsynced"]);
    fleet.master(0).ask("CONFIG SET appendonly no");
    expect_found(&three, &["--trust"], 2, &["trust-unsynced", "trust-unsynced"]);
    expect_found(&three, &[], 0, &["restart-forgets"]);
    fleet.master(0).ask("CONFIG SET appendonly yes");
    fleet.master(0).ask("CONFIG SET maxmemory-policy allkeys-lru");
    expect_found(&three, &[], 2, &["evicting-policy"]);
    fleet.master(0).ask("CONFIG SET maxmemory-policy noeviction");
    let used = fleet.master(0).ask("INFO memory").text();
    let used = used.lines().find_map(|line| line.strip_prefix("used_memory:")).expect("a field");
    let used: u64 = used.parse().expect("a number");
    // Far enough below the limit that the examination's own connection does not fill it.
    fleet.master(0).ask(&format!("CONFIG SET maxmemory {}", used + used / 8));
    expect_found(&three, &[], 1, &["memory-near-limit"]);
    fleet.master(0).ask("CONFIG SET maxmemory 0");
    expect_found(&three, &[], 0, &["no-memory-limit"]);
    fleet.master(0).ask("CONFIG SET maxmemory 256mb");
    fleet.master(0).ask("CONFIG SET min-replicas-to-write 1");
    expect_found(&three, &[], 2, &["writes-refused"]);
    fleet.master(0).ask("CONFIG SET min-replicas-to-write 0");
    expect_found(&all[..4], &[], 1, &["even-count"]);
    expect_found(&all[..2], &[], 1, &["too-few-masters"]);
    let twice = all[0].replace("127.0.0.2", "[::ffff:127.0.0.2]");
    expect_found(&[all[0].clone(), all[1].clone(), twice], &[], 2, &["same-server"]);
    expect_found(&[all[0].clone(), all[1].clone(), all[4].clone()], &[], 1, &["same-host"]);
    let (code, mut codes) = examine(&mut doctor_with_max_ttl(&three, "1day"));
    // One finding for each remaining time, in whole seconds.
    codes.dedup();
    let expected = ["no-quorum", "short-backlog-ttl", "quarantined"].map(str::to_owned);
    assert_eq!((code, codes), (Some(69), expected.to_vec()));
    expect_found(&three, &["--strict"], 69, &["no-quorum", "unobserved"]);
    for master in fleet.masters().take(3) {
        let info = master.ask("INFO server").text();
        let run_id = info.lines().find_map(|line| line.strip_prefix("run_id:")).expect("a field");
        master.command(&[b"SET", b"redlatch:mark", format!("{} - - 3600000", run_id.trim()).as_bytes()]);
    }
    expect_found(&three, &["--strict"], 0, &[]);
    fleet.masters().for_each(|master| _ = master.ask("DEL redlatch:mark"));
    let addr = fleet.master(3).addr();
    fleet.master(0).ask(&format!("REPLICAOF {} {}", addr.ip(), addr.port()));
    expect_found(&three, &[], 2, &["replica"]);
    // A promoted process counts from the client's first sight of it, a restarted one from its uptime.
    fleet.master(0).ask("REPLICAOF NO ONE");
    expect_found(&three, &[], 1, &["quarantined"]);
    fleet.master(0).restart_with(&healthy_settings().iter().map(String::as_str).collect::<Vec<_>>());
    expect_healthy(&three);
    let settings = [healthy_settings(), vec!["--cluster-enabled".into(), "yes".into()]].concat();
    fleet.master(2).restart_with(&settings.iter().map(String::as_str).collect::<Vec<_>>());
    let slots = "CLUSTER ADDSLOTS";
    let slots: String = (0..16_384).fold(slots.to_owned(), |line, slot| format!("{line} {slot}"));
    fleet.master(2).ask(&slots);
    expect_found(&three, &["--prefix", "lock:"], 2, &["cluster-without-hash-tag"]);
    expect_found(&three, &["--prefix", "{lock}:"], 1, &["cluster-node"]);
    fleet.master(2).kill();
    expect_found(&three, &[], 2, &["unreachable"]);
}

// I153
#[test]
fn a_login_without_rights_gets_the_acl_line() {
    let mut fleet = start();
    let bare = fleet.urls()[..3].to_vec();
    expect_healthy(&bare);
    let rule = PAGE.lines().rfind(|line| line.starts_with("ACL SETUSER locker reset")).expect("a line");
    let urls: Vec<_> = bare.iter().map(|url| url.replace("redis://", "redis://locker:PASSWORD@")).collect();
    let args = ["--prefix", "lock:"];
    let all = |fleet: &mut Fleet, rule: &str| fleet.masters().for_each(|master| _ = master.ask(rule));
    all(&mut fleet, rule);
    expect_found(&urls, &args, 0, &[]);
    for (rights, exit, line) in [
        ("-evalsha", 2, "ACL SETUSER locker +evalsha"),
        ("-script|load", 0, "ACL SETUSER locker +script|load"),
        ("-ssubscribe", 0, "ACL SETUSER locker +ssubscribe"),
        ("-spublish -publish", 1, "ACL SETUSER locker +publish"),
        ("-ssubscribe -subscribe", 1, "ACL SETUSER locker +subscribe"),
        ("resetchannels", 1, "ACL SETUSER locker &lock:*"),
        ("resetkeys ~other:*", 69, "ACL SETUSER locker ~lock:*"),
        ("-info", 1, "ACL SETUSER locker +info"),
        ("-zrangebyscore", 1, "ACL SETUSER locker +zrangebyscore"),
    ] {
        all(&mut fleet, &format!("ACL SETUSER locker {rights}"));
        let codes = match rights {
            "resetkeys ~other:*" => &["no-quorum", "missing-rights"][..],
            "-evalsha" => &["no-scripts"],
            "-spublish -publish" | "-ssubscribe -subscribe" => &["missing-rights"; 2],
            _ => &["missing-rights"],
        };
        expect_found(&urls, &args, exit, codes);
        let text = finish(doctor(&urls).args(args)).stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(line), "{rights}: {line:?} is not in: {text}");
        all(&mut fleet, rule);
    }
    all(&mut fleet, "ACL SETUSER locker -publish -subscribe");
    expect_found(&urls, &args, 0, &[]);
    all(&mut fleet, "ACL SETUSER locker reset on >PASSWORD");
    let (code, codes) = examine(doctor(&urls).args(args));
    assert_eq!((code, &*codes[0]), (Some(69), "no-quorum"));
    assert!(
        codes.len() >= 7 && codes[1..].iter().all(|code| code == "missing-rights" || code == "no-scripts"),
        "{codes:?}"
    );
    let wrong: Vec<_> = urls.iter().map(|url| url.replace("PASSWORD", "s3cret")).collect();
    let mixed = [wrong[0].clone(), urls[1].clone(), urls[2].clone()];
    all(&mut fleet, rule);
    expect_found(&mixed, &args, 2, &["login-refused"]);
    let text = finish(&mut doctor(&wrong));
    expect(&text, 69, &[]);
    assert!(text.stdout.contains("WRONGPASS") && !text.stdout.contains("s3cret"), "{}", text.stdout);
}

#[test]
fn the_library_call_logs_in_by_the_provider() {
    let mut fleet = Fleet::start(1);
    let rule = PAGE.lines().rfind(|line| line.starts_with("ACL SETUSER locker reset")).expect("a line");
    assert_eq!(fleet.master(0).ask(rule).text(), "OK");
    fleet.master(0).ask("ACL SETUSER default off");
    // Nobody but `locker` can log in.
    let is_refused = |password: &'static str| {
        let config = Config::builder().masters(fleet.urls()).prefix("lock:").connect_timeout(PATIENCE);
        let config = config.credentials(move |_| Ok(Credentials::new(password).user("locker")));
        let config = config.build().expect("valid settings");
        let found = doctor::examine(&config, Duration::from_secs(9)).expect("threads");
        found.iter().any(|finding| finding.problem.code() == "login-refused")
    };
    assert_eq!(["PASSWORD", "wrong"].map(is_refused), [false, true]);
}

#[test]
fn a_certificate_that_ends_soon_is_found() {
    let certificates = Certificates::new();
    let path = |file: &str| certificates.path(file).display().to_string();
    let (certificate, key, ca) = (path("soon.pem"), path("soon.key"), path("ca.pem"));
    let files = ["--tls-cert-file", &certificate, "--tls-key-file", &key, "--tls-ca-cert-file", &ca];
    let mut fleet = Fleet::start_with_tls(3, &[&files[..], &["--tls-auth-clients", "no"]].concat());
    let urls: Vec<_> = fleet.masters().map(|master| master.tls_url()).collect();
    let (_, codes) = examine(doctor(&urls).args(["--tls-ca", &ca]));
    assert!(codes.iter().any(|code| code == "certificate-expires"), "{codes:?}");
    let text = finish(doctor(&urls).args(["--tls-ca", &ca])).stdout;
    assert!(text.contains("its certificate ends in 2 days"), "{text}");
    let server = [path("server.pem"), path("server.key")];
    let files = ["--tls-cert-file", &server[0], "--tls-key-file", &server[1], "--tls-ca-cert-file", &ca];
    let files = [&files[..], &["--tls-auth-clients", "no"]].concat();
    fleet.masters().for_each(|master| master.restart_with(&files));
    let (_, codes) = examine(doctor(&urls).args(["--tls-ca", &ca]));
    assert!(!codes.iter().any(|code| code == "certificate-expires"), "{codes:?}");
}

#[test]
fn a_fleet_that_is_down_gives_69() {
    let mut fleet = Fleet::start(3);
    let urls = fleet.urls();
    fleet.master(0).kill();
    fleet.master(1).kill();
    let down = finish(&mut doctor(&urls));
    expect(&down, 69, &[]);
    // The third master may still be in quarantine.
    let verdict = " of 3 masters can grant a lock, 2 are needed: no lock can be acquired now\n";
    assert!(down.stdout.get(1..).is_some_and(|it| it.starts_with(verdict)), "{}", down.stdout);
    fleet.master(2).stop();
    // Nobody answers, so the whole limit passes.
    let silent =
        finish(redlatch(&urls).args(["doctor", "--time-limit", "300ms", "--connect-timeout", "100ms"]));
    expect(&silent, 69, &[]);
    assert!(silent.stdout.contains("no answer to the handshake within"), "{}", silent.stdout);
    let none = finish(redlatch(&[]).env_remove("REDLATCH_MASTERS").arg("doctor"));
    expect(&none, 64, &["no masters"]);
}

#[test]
fn a_closed_pipe_changes_no_exit_code() {
    let fleet = Fleet::start(1);
    let script = "{ \"$REDLATCH\" doctor --trust; echo \"code $?\" >&2; } | :";
    let mut shell = command("sh");
    shell.args(["-c", script]).env("REDLATCH", env!("CARGO_BIN_EXE_redlatch"));
    let finished = finish(shell.env("REDLATCH_MASTERS", fleet.urls().join(",")));
    assert_eq!(finished.stderr, "code 2\n");
}

#[test]
fn the_text_fits_into_forty_columns() {
    let fleet = Fleet::start(1);
    let script = "stty cols 40 && \"$REDLATCH\" doctor --trust; echo \"code $?\"";
    let Some(session) = crate::terminal::Session::start(&fleet.urls(), script) else { return };
    session.wait_for("code 2");
    let mut screen = session.screen();
    assert!(screen.contains("\x1b[1;31mERROR\x1b[0m trust-unsynced"), "{screen}");
    for colour in ["\x1b[1;31m", "\x1b[1;33m", "\x1b[0m"] {
        screen = screen.replace(colour, "");
    }
    for line in screen.lines() {
        let is_one_word = line.split_whitespace().count() <= 2;
        assert!(line.trim_end().chars().count() <= 40 || is_one_word, "{line:?}");
    }
}

#[test]
fn doctor_finds_a_login_without_the_native_release() {
    let Some(valkey) = valkey_9() else { return };
    let mut fleet = Fleet::start_at(vec![valkey; 3]);
    let config = |login: &str| {
        let urls: Vec<_> = fleet.urls().iter().map(|url| url.replace("redis://", login)).collect();
        Config::builder().masters(urls).build().expect("valid settings")
    };
    let (all, few) = (config("redis://all:secret@"), config("redis://few:secret@"));
    for master in fleet.masters() {
        assert_eq!(master.ask("ACL SETUSER all on >secret ~* &* +@all").text(), "OK");
        assert_eq!(master.ask("ACL SETUSER few on >secret ~* &* +@all -delifeq").text(), "OK");
    }
    for (config, is_found) in [(all, false), (few, true)] {
        let found = doctor::examine(&config, Duration::from_secs(9)).expect("masters answer");
        assert_eq!(
            found.iter().any(|finding| finding.problem.code() == "native-denied"),
            is_found,
            "{found:?}"
        );
    }
}
