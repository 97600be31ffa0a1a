//! The files of `deploy/`: they agree with the pages, name existing things, and work on a real server.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::Duration;

use redlatch::{Config, Quarantine};
use redlatch_support::{Fleet, root};

use crate::doctor_tests::{PAGE, examine};
use crate::harness::{PATIENT, expect, finish, redlatch};

const CONF: &str = include_str!("../../deploy/redis.conf");
const TLS_CONF: &str = include_str!("../../deploy/redis-tls.conf");
const USERS: &str = include_str!("../../deploy/users.acl");
const RULES: &str = include_str!("../../deploy/prometheus-rules.yaml");
const DASHBOARD: &str = include_str!("../../deploy/grafana-dashboard.json");
const KUBERNETES: &str = include_str!("../../deploy/kubernetes/masters.yaml");
const CLIENT: &str = include_str!("../../deploy/kubernetes/client.env");
const JOB: &str = include_str!("../../deploy/kubernetes/cronjob.yaml");
const MONITORING: &str = include_str!("../../docs/monitoring.md");

#[test]
fn settings_and_rights_are_those_of_the_page() {
    let (_, settings) = PAGE.split_once("```text\nmaxmemory ").expect("the page has a redis.conf");
    let (settings, _) = settings.split_once("```").expect("it ends");
    assert!(CONF.contains(&format!("\nmaxmemory {settings}")), "deploy/redis.conf has all of it");
    let (_, rights) =
        PAGE.split_once("All kinds of lock:\n\n```text\nACL SETUSER ").expect("the page has rights");
    let (rights, _) = rights.split_once('\n').expect("one line");
    let admin = "user admin on >ADMIN_PASSWORD ~* &* +@all";
    assert_eq!(USERS, format!("user default off\nuser {rights}\n{admin}\n"));
    let (_, tls) = PAGE.split_once("```text\nport 0\n").expect("the page has TLS");
    let (tls, _) = tls.split_once("```").expect("it ends");
    assert!(TLS_CONF.ends_with(&format!("\nport 0\n{tls}")), "deploy/redis-tls.conf has all of it");
}

/// Whole words that start with `redlatch_`.
fn metrics(text: &str) -> BTreeSet<&str> {
    let words = text.split(|char: char| !char.is_ascii_alphanumeric() && char != '_');
    words.filter(|word| word.starts_with("redlatch_")).collect()
}

#[test]
fn alerts_and_panels_name_metrics_that_exist() {
    let fleet = Fleet::start(1);
    let config = Config::builder().masters(fleet.urls()).quarantine(Quarantine::Trust);
    let client = config.answer_timeout(Duration::from_secs(5)).connect().expect("an event loop");
    let holding = client.lock("a").acquire().expect("free");
    // A contended lock adds its own metrics.
    client.lock("a").try_acquire().expect_err("it is held");
    let page = client.stats().to_prometheus();
    drop(holding);
    let known: BTreeSet<&str> =
        page.lines().filter(|line| !line.starts_with('#')).flat_map(metrics).collect();
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().expect("queries"));
    let queries: Vec<&str> = targets.map(|target| target["expr"].as_str().expect("a query")).collect();
    let alerts: Vec<&str> = RULES.lines().filter_map(|line| line.trim().strip_prefix("expr: ")).collect();
    assert!(queries.len() > 20 && alerts.len() == 10, "{} queries, {} alerts", queries.len(), alerts.len());
    for query in queries.iter().chain(&alerts) {
        let named = metrics(query);
        assert!(!named.is_empty(), "{query}");
        let unknown: Vec<_> = named.difference(&known).collect();
        assert!(unknown.is_empty(), "{unknown:?} in {query}");
    }
    let names = RULES.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    let names = names.map(|rest| rest.split(' ').next().expect("a name"));
    let severities = RULES.lines().filter_map(|line| line.trim().strip_prefix("labels: {severity: "));
    for (name, severity) in names.zip(severities) {
        let row = MONITORING.split(&format!("| `{name}` |")).nth(1).and_then(|rest| rest.lines().next());
        let row = row.unwrap_or_else(|| panic!("docs/monitoring.md does not explain {name}"));
        assert_eq!(severity == "critical}", row.contains("| page: "), "{name}: {severity}");
    }
}

/// Uses Prometheus's `promtool`, where installed.
#[test]
fn alerts_fire_when_they_should() {
    let root = root();
    for args in
        [["check", "rules", "deploy/prometheus-rules.yaml"], ["test", "rules", "tests/cli/alerts.yaml"]]
    {
        let Ok(output) = Command::new("promtool").args(args).current_dir(&root).output() else {
            println!("skipped: no promtool here");
            return;
        };
        let text = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&text));
    }
}

#[test]
fn deployed_server_serves_each_kind_of_lock() {
    let root = root();
    let acl = std::env::temp_dir().join(format!("redlatch-users-{}.acl", std::process::id()));
    fs::write(&acl, "user default on nopass ~* &* +@all\n").expect("a file");
    let conf = root.join("deploy/redis.conf").display().to_string();
    // Arguments after the include override it: the harness needs another address, and at first no password.
    let args = ["--include", &conf, "--aclfile", &acl.display().to_string(), "--bind", "127.0.0.1"];
    let mut fleet = Fleet::start_with(1, &args);
    fs::write(&acl, USERS).expect("a file");
    fleet.master(0).ask("ACL LOAD");
    let urls = [fleet.master(0).url().replace("redis://", "redis://locker:PASSWORD@")];
    let (_, found) = examine(redlatch(&urls).args(["doctor", "--prefix", "lock:"]).args(&PATIENT[1..]));
    // A new server on this machine has these findings.
    for code in ["login-refused", "evicting-policy", "missing-rights", "missing-commands", "no-memory-limit"]
    {
        assert!(!found.iter().any(|it| it == code), "{found:?}");
    }
    for kind in [&[][..], &["--fenced"], &["--fair"], &["--shared"]] {
        let mut run = redlatch(&urls);
        run.args(["run", "--prefix", "lock:"]).args(PATIENT).args(kind).args(["a", "--", "true"]);
        expect(&finish(&mut run), 0, &[]);
    }
    let other =
        finish(redlatch(&urls).args(["run", "--prefix", "other:"]).args(PATIENT).args(["a", "--", "true"]));
    expect(&other, 69, &["NOPERM"]);
    // `ls` needs `+scan`.
    let list = |urls: &[String]| finish(redlatch(urls).args(["ls", "--prefix", "lock:"]).args(PATIENT)).code;
    let admin = [fleet.master(0).url().replace("redis://", "redis://admin:ADMIN_PASSWORD@")];
    assert_eq!((list(&admin), list(&urls)), (Some(0), Some(69)));
    let stranger = [fleet.master(0).url()];
    assert_ne!(finish(redlatch(&stranger).args(["ls"]).args(PATIENT)).code, Some(0), "without a login");
    fs::remove_file(acl).expect("it is there");
}

#[test]
fn kubernetes_waits_for_the_quarantine() {
    let number = |text: &str, name: &str| -> f64 {
        let (_, rest) = text.split_once(name).unwrap_or_else(|| panic!("no {name}"));
        let end = rest.find(|char: char| !char.is_ascii_digit()).unwrap_or(rest.len());
        rest[..end].parse().expect("a number")
    };
    let max_ttl = number(CLIENT, "REDLATCH_MAX_TTL=");
    // The drift allowance, plus rounding of the uptime to whole seconds.
    assert!(number(KUBERNETES, "initialDelaySeconds: ") >= max_ttl * 1.01 + 2.0);
    let help = finish(redlatch(&[]).args(["run", "--help"])).stdout;
    let words = JOB
        .split([' ', ',', '[', ']'])
        .filter(|word| word.starts_with("--") && *word != "--" && !word.contains('='));
    let options: Vec<&str> = words.collect();
    assert_eq!(options.len(), 3, "{options:?}");
    assert!(options.iter().all(|option| help.contains(option)), "{options:?}");
    for variable in CLIENT.lines().filter_map(|line| line.split('=').next()) {
        assert!(PAGE.contains(&format!("| `{variable}` |")), "{variable}");
    }
}

/// Uses PyYAML, where installed.
#[test]
fn yaml_files_are_yaml() {
    let script = "import sys, yaml\nfor name in sys.argv[1:]:\n assert list(yaml.safe_load_all(open(name)))";
    let root = root().join("deploy");
    let names = [
        "compose.yaml",
        "compose.tls.yaml",
        "compose.try.yaml",
        "kustomization.yaml",
        "prometheus-rules.yaml",
        "kubernetes/masters.yaml",
    ];
    let files = names.iter().chain(&["kubernetes/cronjob.yaml"]).map(|name| root.join(name));
    let python = |code: &str| {
        let mut command = Command::new("python3");
        command.args(["-c", code]);
        command
    };
    if !python("import yaml").output().is_ok_and(|output| output.status.success()) {
        println!("skipped: no PyYAML here");
        return;
    }
    let output = python(script).args(files).output().expect("Python runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
