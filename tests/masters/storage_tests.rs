//! `examples/fences.rs` on each storage, which refuses a paused holder's late write and late claim.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::thread;

use redlatch::{Client, FencingToken};
use redlatch_support::{Fleet, PATIENCE};

use crate::lock_tests::{ANSWER_TIMEOUT, settings};

#[path = "../../examples/fences.rs"]
mod fences;

/// The example's story, with a holder that slept between lock and claim. `balance` asks the storage directly.
fn check(storage: &str, balance: impl Fn() -> String) {
    let fleet = Fleet::start(3);
    let open = || {
        let config = settings(&fleet.urls()).answer_timeout(ANSWER_TIMEOUT).build().expect("valid");
        Client::open(config).expect("an event loop")
    };
    let (alice, bob) = (open(), open());
    let account = || fences::open(storage).expect("an address");
    let token = || -> FencingToken {
        let guard = alice.lock("account:7").wait(PATIENCE).fenced().acquire().expect("free");
        guard.fencing_token().expect("it is fenced")
    };
    let late = token();
    let was_taken = fences::alice_and_bob([&alice, &bob], [&mut *account(), &mut *account()]);
    assert!(!was_taken.expect("storage and masters answer"), "{storage}: alice's late write was taken");
    assert_eq!(balance(), "50", "{storage}: bob wrote last");
    assert_eq!(account().claim(late).expect("an answer"), None, "{storage}: a claim that comes late");
    let (mut paused, older) = (account(), token());
    assert_eq!(paused.claim(older).expect("an answer"), Some(50));
    let (mut next, token) = (account(), token());
    assert_eq!(next.claim(token).expect("an answer"), Some(50));
    assert_eq!(next.claim(token).expect("an answer"), Some(50), "a claim may be repeated");
    for _ in 0..2 {
        assert!(!paused.write(older, 0).expect("an answer"), "{storage}: a late write, repeated");
    }
    for _ in 0..2 {
        assert!(next.write(token, 40).expect("an answer"), "{storage}: one holder may write repeatedly");
    }
    assert_eq!(balance(), "40");
}

/// A program's output, without the final line break.
fn print(program: &str, args: &[&str]) -> String {
    let output =
        Command::new(program).args(args).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

const BALANCE: &str = "SELECT balance FROM accounts WHERE id = 7";
const NEW_ACCOUNT: &str = "INSERT INTO accounts (id, balance) VALUES (7, 100)";

#[test]
fn sqlite_refuses_a_paused_holder() {
    if !is_there("sqlite3") {
        println!("skipped: no program sqlite3 here");
        return;
    }
    let file = std::env::temp_dir().join(format!("redlatch-fences-{}.db", std::process::id()));
    let storage = file.display().to_string();
    print("sqlite3", &[&storage, fences::sqlite::TABLE, NEW_ACCOUNT]);
    check(&storage, || print("sqlite3", &[&storage, BALANCE]));
    std::fs::remove_file(file).expect("it is there");
}

/// `scripts/with-postgres` sets the variable.
#[test]
fn postgres_refuses_a_paused_holder() {
    let Ok(storage) = std::env::var("REDLATCH_POSTGRES") else {
        println!("skipped: REDLATCH_POSTGRES names no database");
        return;
    };
    let run =
        |statement: &str| print("psql", &["-qAt", "-v", "ON_ERROR_STOP=1", "-d", &storage, "-c", statement]);
    run("DROP TABLE IF EXISTS accounts");
    run(fences::postgres::TABLE);
    run(NEW_ACCOUNT);
    check(&storage, || run(BALANCE));
}

#[test]
fn redis_refuses_a_paused_holder() {
    if !is_there("redis-cli") {
        println!("skipped: no program redis-cli here");
        return;
    }
    let storage = Fleet::start(1);
    let [url] = &storage.urls()[..] else { panic!("one server") };
    print("redis-cli", &["-e", "-u", url, "HSET", "account:7", "balance", "100"]);
    check(url, || print("redis-cli", &["-e", "-u", url, "HGET", "account:7", "balance"]));
}

#[test]
fn an_object_store_refuses_a_paused_holder() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    let url = format!("http://{address}/bucket/account-7");
    thread::spawn(move || store_one_object(&listener));
    let content = || {
        let mut connection = TcpStream::connect(&address).expect("it listens");
        write!(connection, "GET /bucket/account-7 HTTP/1.1\r\n\r\n").expect("it reads");
        let mut answer = String::new();
        connection.read_to_string(&mut answer).expect("it answers");
        answer.rsplit_once(' ').expect("fence and balance").1.to_owned()
    };
    check(&url, content);
}

/// Like an object store: each `PUT` gets a new `ETag`, and an `If-Match` with another tag changes nothing.
fn store_one_object(listener: &TcpListener) {
    let (mut version, mut content) = (1, "0 100".to_owned());
    for connection in listener.incoming() {
        let mut connection = BufReader::new(connection.expect("a client"));
        let (mut method, mut if_match, mut size) = (String::new(), None, 0);
        connection.read_line(&mut method).expect("a request");
        loop {
            let mut line = String::new();
            connection.read_line(&mut line).expect("a header");
            match line.trim_end().split_once(": ") {
                Some(("If-Match", etag)) => if_match = Some(etag.to_owned()),
                Some(("Content-Length", text)) => size = text.parse().expect("a number"),
                Some(_) => {}
                None => break,
            }
        }
        let mut body = vec![0; size];
        connection.read_exact(&mut body).expect("a body");
        let mut status = "200 OK";
        if method.starts_with("PUT") {
            if if_match.expect("each PUT is conditional") == format!("\"v{version}\"") {
                (version, content) = (version + 1, String::from_utf8(body).expect("text"));
            } else {
                status = "412 Precondition Failed";
            }
        }
        let answer = if method.starts_with("GET") { &content[..] } else { "" };
        let size = answer.len();
        // A client that has gone is no fault of the store.
        let _gone = write!(
            connection.get_mut(),
            "HTTP/1.1 {status}\r\nETag: \"v{version}\"\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n{answer}"
        );
    }
}
