//! Settings from URLs, files and variables, on real servers.

use std::fs;
use std::path::PathBuf;

use redlatch_support::{Fleet, Place, Raw};

use crate::harness::{expect, finish, trusting};

/// A file that the test removes.
struct TestFile(PathBuf);

impl TestFile {
    fn new(name: &str, content: &str) -> Self {
        let path = std::env::temp_dir().join(format!("redlatch-{name}-{}", std::process::id()));
        fs::write(&path, content).expect("a directory for temporary files");
        Self(path)
    }
}

impl Drop for TestFile {
    fn drop(&mut self) {
        fs::remove_file(&self.0).ok();
    }
}

#[test]
fn a_password_comes_from_a_file() {
    let mut fleet = Fleet::start(3);
    fleet.masters().for_each(|master| _ = master.ask("ACL SETUSER locker on >s3cret ~* &* +@all"));
    fleet.masters().for_each(|master| _ = master.ask("CONFIG SET requirepass s3cret"));
    let file = TestFile::new("password", "s3cret\n");
    let run = |url_with: &str, file: &TestFile| {
        let urls: Vec<_> = fleet.urls().iter().map(|url| url.replace("redis://", url_with)).collect();
        let mut command = trusting(&fleet, "run");
        command.env("REDLATCH_MASTERS", urls.join(",")).env("REDLATCH_PASSWORD_FILE", &file.0);
        finish(command.args(["a", "--", "sh", "-c", "echo ${REDLATCH_PASSWORD_FILE-none}"]))
    };
    for url_with in ["redis://", "redis://locker@", "redis://locker:s3cret@", "REDIS://:s3cret@"] {
        let finished = run(url_with, &file);
        expect(&finished, 0, &[]);
        assert_eq!(finished.stdout, "none\n", "the command does not get the file's name");
    }
    fs::write(&file.0, "other").expect("it was written before");
    expect(&run("redis://", &file), 69, &["WRONGPASS"]);
    expect(&run("redis://:s3cret@", &file), 0, &[]);
    fs::remove_file(&file.0).expect("it is there");
    expect(&run("redis://", &file), 69, &["the password file", "No such file"]);
    let mut doctor = trusting(&fleet, "doctor");
    let doctor = finish(doctor.arg("--password-file").arg(&file.0));
    assert!(doctor.stdout.contains("the password file"), "{}", doctor.stdout);
}

#[test]
fn a_nearly_known_variable_ends_the_command() {
    let fleet = Fleet::start(1);
    for (name, code) in [("REDLATCH_PREFX", 64), ("REDLATCH_PREFIX_PORT", 0), ("REDLATCH_TTL_MS", 0)] {
        for words in [&["run", "a", "--", "true"][..], &["ls"], &["fleet", "status"]] {
            let mut command = trusting(&fleet, words[0]);
            if words[0] == "fleet" {
                command = crate::harness::redlatch(&fleet.urls());
                command.arg("fleet");
            }
            let finished = finish(command.args(&words[1..]).env(name, "lock:"));
            let said = ["REDLATCH_PREFX is no variable of redlatch; did you mean REDLATCH_PREFIX?"];
            expect(&finished, code, if code == 64 { &said } else { &[] });
        }
    }
}

#[test]
fn a_database_over_a_unix_socket_is_used() {
    let mut fleet = Fleet::start_with_sockets(1, &[]);
    let url = format!("{}?db=2", fleet.master(0).unix_url());
    let mut command = trusting(&fleet, "run");
    command.env("REDLATCH_MASTERS", &url);
    let address = fleet.master(0).addr();
    let look = format!(
        "exec 3<>/dev/tcp/{}/{}; printf 'SELECT 2\\r\\nEXISTS a\\r\\n' >&3; read -r x <&3; read -r y <&3; echo $y",
        address.ip(),
        address.port()
    );
    let finished = finish(command.args(["-v", "a", "--", "bash", "-c", &look]));
    expect(&finished, 0, &[&url]);
    assert_eq!(finished.stdout.trim(), ":1", "{}", finished.stderr);
    assert_eq!(fleet.master(0).ask("EXISTS a"), Raw::Integer(0), "in another database");
}

#[test]
fn a_zone_of_an_address_is_used() {
    // The zone of the loopback device is its number.
    let fleet =
        Fleet::start_at(vec![Place { host: std::net::Ipv6Addr::LOCALHOST.into(), ..Place::default() }]);
    let url = fleet.urls()[0].replace("[::1]", "[::1%251]");
    let mut command = trusting(&fleet, "run");
    expect(&finish(command.env("REDLATCH_MASTERS", &url).args(["-v", "a", "--", "true"])), 0, &[&url]);
}
