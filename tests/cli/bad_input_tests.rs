//! Input that cannot work: the exit code and the message. Passwords are never shown.

use std::process::Command;
use std::time::{Duration, Instant};

use redlatch_support::{Fleet, PATIENCE, Raw, eventually};

use crate::harness::{Finished, PATIENT, Running, expect, finish, holder_count, redlatch};

#[test]
fn bad_input_gives_64_and_names_the_problem() {
    let url = "redis://127.0.0.1:1";
    let long = "x".repeat(1025);
    let too_many = (1..=33).map(|port| format!("redis://127.0.0.1:{port}")).collect::<Vec<_>>().join(",");
    let rows: &[(&[&str], &str)] = &[
        (&["run", "-m", url, "--ttl", "0", "r", "--", "true"], "too short"),
        (&["run", "-m", url, "--ttl", "1ms", "r", "--", "true"], "too short"),
        (
            &["run", "-m", url, "--ttl", "3ms", "r", "--", "true"],
            "give more than 1ms beyond the drift allowance of 2ms",
        ),
        (&["run", "-m", url, "--ttl", "9223372036854775807ms", "r", "--", "true"], "--ttl"),
        (&["run", "-m", url, "--ttl", "9223372036854775s", "r", "--", "true"], "--ttl is"),
        (&["run", "-m", url, "--ttl", "18446744073709551615s", "r", "--", "true"], "--ttl is"),
        (&["run", "-m", url, "--max-ttl", "18446744073709551615s", "r", "--", "true"], "max_ttl is"),
        (&["run", "-m", url, "--max-ttl", "8days", "r", "--", "true"], "max_ttl"),
        (&["run", "-m", url, "--ttl", "99999999999999999999s", "r", "--", "true"], "--ttl"),
        (&["run", "-m", url, "--ttl", "10", "r", "--", "true"], "--ttl"),
        (&["run", "-m", url, "--ttl", "-1s", "r", "--", "true"], "-1"),
        (&["run", "-m", url, "--max-ttl", "0", "r", "--", "true"], "max_ttl"),
        (&["run", "-m", url, "--answer-timeout", "0", "r", "--", "true"], "answer_timeout"),
        (&["run", "-m", url, "--connect-timeout", "2days", "r", "--", "true"], "connect_timeout"),
        (&["run", "-m", url, "--wait", "soon", "r", "--", "true"], "--wait"),
        (&["run", "-m", url, "--strict", "--trust", "r", "--", "true"], "--strict"),
        (&["run", "-m", url, "redlatch:mark", "--", "true"], "does not start with redlatch:"),
        (&["run", "-m", url, "-E", "256", "r", "--", "true"], "256"),
        (&["run", "-m", url, "", "--", "true"], "empty"),
        (&["run", "-m", url, &long, "--", "true"], "1025 bytes"),
        (&["run", "-m", url, "--also", "", "r", "--", "true"], "empty"),
        (&["run", "-m", url, "--prefix", &long, "r", "--", "true"], "prefix"),
        (&["run", "-m", url, "r", "--"], "COMMAND"),
        (&["run", "-m", url, "r", "true"], "write -- between"),
        (&["run", "-m", url, "--", "true"], "NAME"),
        (&["run", "-m", url, "-m", url, "r", "--", "true"], "same server"),
        (&["run", "-m", "redis://127.0.0.1:1,redis://127.0.0.1:1/3", "r", "--", "true"], "same server"),
        (&["run", "-m", &too_many, "r", "--", "true"], "33 masters given; give 1 to 32"),
        (&["run", "-m", "", "r", "--", "true"], "no masters"),
        (&["run", "-m", "redis://127.0.0.1:1,h", "r", "--", "true"], "master 2 does not begin"),
        (&["run", "-m", "127.0.0.1:6379", "r", "--", "true"], "master 1 does not begin"),
        (&["run", "-m", "http://h", "r", "--", "true"], "unknown scheme"),
        (&["run", "-m", "redis://h:0", "r", "--", "true"], "port"),
        (&["run", "-m", "redis://h/x", "r", "--", "true"], "database"),
        (&["run", "r", "--", "true"], "no masters"),
        (&["bench"], "no masters"),
        (&["bench", "-m", url, "--depth", "0"], "--depth"),
        (&["bench", "-m", url, "--depth", "99999999"], "--depth"),
        (&["bench", "-m", url, "--depth", "8", "--keys", "7"], "--keys"),
        (&["bench", "-m", url, "--pairs", "0"], "--pairs"),
        (&["bench", "-m", url, "--pairs", "1", "--time", "1s"], "--time"),
        (&["bench", "-m", url, "--time", "0"], "--time"),
        (&["bench", "-m", url, "--ttl", "1ms"], "too short"),
        (&["inspect", "r"], "no masters"),
        (&["inspect", "-m", url, ""], "empty"),
        (&["inspect", "-m", url], "NAME"),
        (&["unlock", "-m", url, "r"], "--force"),
        (&["unlock", "-m", url, "--force", "redlatch:mark"], "does not start with redlatch:"),
        (&["sprint"], "sprint"),
        (&["lock", "r"], "use redlatch run NAME -- COMMAND, or redlatch acquire"),
        (&[], "Usage"),
    ];
    for (args, named) in rows {
        let mut command = redlatch(&[]);
        let finished = finish(command.env_remove("REDLATCH_MASTERS").args(*args));
        let Finished { code, stdout, stderr } = &finished;
        assert_eq!(*code, Some(64), "{args:?}: {stderr}");
        assert!(stderr.contains(named), "{args:?}: {named:?} is not in: {stderr}");
        assert_eq!(stdout, "", "{args:?}");
    }
}

/// The program waits for nothing after its message.
#[test]
fn an_end_with_a_message_is_quick() {
    eventually(PATIENCE, "sixteen ends are quick", || {
        let begun = Instant::now();
        for _ in 0..16 {
            expect(
                &finish(redlatch(&[]).args(["run", "-m", "http://h", "r", "--", "true"])),
                64,
                &["unknown"],
            );
        }
        begun.elapsed() < Duration::from_secs(4)
    });
}

// I28
#[test]
fn a_ttl_above_the_fleets_maximum_is_refused() {
    let url = "redis://127.0.0.1:1";
    let named = ["--ttl is 120s", "maximum TTL of 30s", "--max-ttl", "All users"];
    for args in [
        &["run", "-m", url, "--ttl", "2min", "r", "--", "true"][..],
        &["run", "-m", url, "--ttl", "2min", "--strict", "r", "--", "true"],
        &["run", "-m", url, "--ttl", "2min", "--max-ttl", "30s", "r", "--", "true"],
        &["bench", "-m", url, "--ttl", "2min"],
        &["bench", "-m", url, "--ttl", "2min", "--trust"],
    ] {
        expect(&finish(redlatch(&[]).args(args)), 64, &named);
    }
    let raised = ["run", "-m", url, "--ttl", "2min", "--max-ttl", "2min", "r", "--", "true"];
    expect(&finish(redlatch(&[]).args(raised)), 69, &["no quorum"]);
}

#[test]
fn help_and_version_give_0() {
    for args in [&["--help"][..], &["run", "--help"], &["bench", "--help"], &["run", "-h"], &["--version"]] {
        let finished = finish(redlatch(&[]).args(args));
        expect(&finished, 0, &[]);
        assert!(finished.stdout.contains("redlatch"), "{args:?}");
    }
}

#[test]
fn passwords_are_never_shown() {
    let mut fleet = Fleet::start_with(1, &["--requirepass", "s3cret%/x"]);
    let port = fleet.master(0).port();
    let good = format!("redis://:s3cret%25%2Fx@127.0.0.1:{port}");
    let wrong = format!("redis://me:s3cret@127.0.0.1:{port}");
    let broken = "redis://me:s3cret@127.0.0.1:x".to_owned();
    let cut = "redis://me:s3cret,s3cret@127.0.0.1:1".to_owned();
    let cases: &[(&String, &[&str], i32)] = &[
        (&good, &["run", "-v", "--trust", "r", "--", "true"], 0),
        (&good, &["bench", "--trust", "--pairs", "10"], 0),
        (&wrong, &["run", "-v", "--trust", "r", "--", "true"], 69),
        (&wrong, &["bench", "--trust"], 69),
        (&broken, &["run", "r", "--", "true"], 64),
        (&cut, &["run", "r", "--", "true"], 64),
        (&good, &["run", "--help"], 0),
        (&good, &["run", "r", &wrong, "--", "true"], 64),
        (&good, &["run", "r", "redis://me:s3cret s3cret@h", "--", "true"], 64),
    ];
    for (url, args, code) in cases {
        let Finished { code: found, stdout, stderr } =
            finish(redlatch(&[]).env("REDLATCH_MASTERS", url).args(*args));
        assert_eq!(found, Some(*code), "{args:?}: {stderr}");
        assert!(!format!("{stdout}{stderr}").contains("s3cret"), "{args:?}: {stdout}{stderr}");
    }
}

/// `redlatch run --trust` with limits that a slow machine does not exceed.
fn patient(urls: &[String]) -> Command {
    let mut command = redlatch(urls);
    command.arg("run").args(PATIENT);
    command
}

/// A way to block the lock, the message that it causes, and the exit code.
struct Obstacle {
    command: &'static str,
    code: i32,
    said: &'static [&'static str],
}

#[test]
fn a_foreign_key_is_contention_and_stays() {
    let mut fleet = Fleet::start(3);
    let said: &[&str] = &["lock \"r\" is held by a key without a TTL", "inspect it, then delete it"];
    let rows = [
        Obstacle { command: "SET r stuck", code: 75, said },
        Obstacle { command: "RPUSH r a list", code: 75, said },
        Obstacle { command: "HSET r a hash", code: 75, said },
        Obstacle { command: "SADD r set", code: 75, said },
        Obstacle { command: "SET r other PX 600000", code: 75, said: &["held by another", "for at most"] },
    ];
    for Obstacle { command, code, said } in rows {
        fleet.masters().for_each(|master| drop(master.ask(command)));
        let run = finish(patient(&fleet.urls()).args(["r", "--", "echo", "no"]));
        expect(&run, code, said);
        assert_eq!(run.stdout, "", "{command}");
        assert_eq!(holder_count(&mut fleet, "r"), 3, "{command}: somebody else's key is not deleted");
        fleet.masters().for_each(|master| assert_eq!(master.ask("DEL r"), Raw::Integer(1)));
        expect(&finish(patient(&fleet.urls()).args(["r", "--", "true"])), 0, &[]);
        assert_eq!(holder_count(&mut fleet, "r"), 0, "{command}");
    }
}

#[test]
fn names_of_any_argument_bytes_are_keys() {
    use std::os::unix::ffi::OsStrExt;
    let mut fleet = Fleet::start(1);
    let longest = "x".repeat(1024);
    let names: [&[u8]; 6] = [b"\r\n", b"r\r\nDEL r\r\n", b"\xff\xfe", b"$-1", b" ", longest.as_bytes()];
    for name in names {
        let command = &mut patient(&fleet.urls());
        command.args(["--label", ""]).arg(std::ffi::OsStr::from_bytes(name)).args([
            "--",
            "sh",
            "-c",
            "echo ready; read line",
        ]);
        let mut run = Running::start_with_stdin(command);
        run.line();
        assert_eq!(fleet.master(0).command(&[b"STRLEN", name]), Raw::Integer(20), "{}", name.escape_ascii());
        run.send("\n");
        expect(&run.finish(), 0, &[]);
        assert_eq!(fleet.master(0).command(&[b"EXISTS", name]), Raw::Integer(0), "{}", name.escape_ascii());
    }
}

#[test]
fn one_server_under_two_names_votes_once() {
    let mut fleet = Fleet::start(2);
    let ports = [0, 1].map(|index| fleet.master(index).port());
    let twice = [format!("redis://127.0.0.1:{}", ports[0]), format!("redis://localhost:{}", ports[0])];
    let run = finish(patient(&twice).args(["r", "--", "true"]));
    expect(
        &run,
        69,
        &["of 2 masters granted, 2 needed", "it is the same server as", "list each server once"],
    );
    let three = [&twice[..], &[format!("redis://127.0.0.1:{}", ports[1])]].concat();
    expect(&finish(patient(&three).args(["r", "--", "true"])), 0, &[]);
    assert_eq!(holder_count(&mut fleet, "r"), 0);
}

#[test]
fn foreign_server_gives_69_and_is_named() {
    use std::io::Write;
    let said: [(&'static [u8], &str); 5] = [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "unknown type byte 'H'"),
        (b"-ERR max number of clients reached\r\n", "max number of clients reached"),
        (b"$99999999999\r\n", "larger than"),
        (b":18446744073709551616\r\n", "does not fit in 64 bits"),
        (b"", "closed the connection"),
    ];
    for (bytes, named) in said {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("redis://{}", listener.local_addr().expect("bound"));
        // Serves every connection until the test program ends.
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let _ = stream.write_all(bytes);
                // Closes without a reset, because the request is read first.
                let _ = stream.shutdown(std::net::Shutdown::Write);
                let _ = std::io::copy(&mut stream, &mut std::io::sink());
            }
        });
        let run = finish(patient(std::slice::from_ref(&url)).args(["r", "--", "true"]));
        expect(&run, 69, &["no quorum", &url, named]);
    }
}
