//! Storage that refuses a paused holder's late write: Postgres, SQLite, Redis, or objects with `If-Match`.
//!
//! ```text
//!   alice   lock, token 1 ─ claim, read ── pause ──────────────────────────────── write ── refused
//!   bob                          (TTL is over) lock, token 2 ─ claim, read ────────────── write ── taken
//! ```
//!
//! Run the statements with any driver. Each holder first *claims* the record: one statement compares the
//! tokens, stores the larger one and reads. A write passes only while its own token is stored. Without the
//! claim, alice's write could still come between bob's read and bob's write.
//!
//! ```sh
//! cargo run --example fences -- redis://10.0.0.1,redis://10.0.0.2,redis://10.0.0.3 accounts.db
//! # or postgresql://host/database, redis://host (which keeps data, not locks), http://host/bucket/account-7
//! ```

use std::error::Error;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use redlatch::{Client, FencingToken, Guard};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// A holder's access to account 7.
pub trait Account {
    /// Makes the storage refuse smaller tokens, and returns the balance. `None`: a larger token was there.
    fn claim(&mut self, token: FencingToken) -> Outcome<Option<u64>>;

    /// Returns whether the balance was written; false if a larger token came after the claim.
    fn write(&mut self, token: FencingToken, balance: u64) -> Outcome<bool>;
}

/// Parameters: account, token, balance. A row means success. Any isolation level works; at stricter levels
/// the statement may fail, and is then repeated.
pub mod postgres {
    pub const TABLE: &str = "CREATE TABLE accounts
        (id bigint PRIMARY KEY, balance bigint NOT NULL, fence bigint NOT NULL DEFAULT 0)";
    pub const CLAIM: &str = "UPDATE accounts SET fence = $2 WHERE id = $1 AND fence <= $2 RETURNING balance";
    pub const WRITE: &str = "UPDATE accounts SET balance = $3 WHERE id = $1 AND fence = $2 RETURNING balance";
}

/// The same parameters. `RETURNING` needs SQLite 3.35; with older versions read `changes()`.
pub mod sqlite {
    pub const TABLE: &str = "CREATE TABLE accounts
        (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL, fence INTEGER NOT NULL DEFAULT 0)";
    pub const CLAIM: &str = "UPDATE accounts SET fence = ?2 WHERE id = ?1 AND fence <= ?2 RETURNING balance";
    pub const WRITE: &str = "UPDATE accounts SET balance = ?3 WHERE id = ?1 AND fence = ?2 RETURNING balance";
}

/// Scripts over a hash with the fields `balance` and `fence`. Lua's numbers hold each token, below 2^53.
/// This server keeps data, so it needs `appendfsync always`, and no failover that forgets writes.
pub mod redis {
    pub const CLAIM: &str = "
        if tonumber(redis.call('HGET', KEYS[1], 'fence') or 0) > tonumber(ARGV[1]) then return false end
        redis.call('HSET', KEYS[1], 'fence', ARGV[1])
        return redis.call('HGET', KEYS[1], 'balance') or '0'";
    pub const WRITE: &str = "
        if redis.call('HGET', KEYS[1], 'fence') ~= ARGV[1] then return false end
        redis.call('HSET', KEYS[1], 'balance', ARGV[2])
        return ARGV[2]";
}

/// A database behind its command-line program, which prints the row, or nothing.
pub enum Database {
    /// URL of the database.
    Postgres(String),
    /// Path of the file.
    Sqlite(String),
    /// URL of the server.
    Redis(String),
}

impl Database {
    fn ask(&self, statement: &str, values: &[u64]) -> Outcome<Option<u64>> {
        let values: Vec<String> = values.iter().map(u64::to_string).collect();
        let mut command = match self {
            Self::Postgres(url) => {
                let mut command = Command::new("psql");
                command.args(["-qAt", "-v", "ON_ERROR_STOP=1", "-d", url]);
                command.args(["-c", &format!("PREPARE it AS {statement}")]);
                command.args(["-c", &format!("EXECUTE it({})", values.join(", "))]);
                command
            }
            Self::Sqlite(file) => {
                let mut command = Command::new("sqlite3");
                command.args(["-bail", "-cmd", ".timeout 5000"]);
                for (index, value) in values.iter().enumerate() {
                    command.args(["-cmd", &format!(".parameter set ?{} {value}", index + 1)]);
                }
                command.args([file, statement]);
                command
            }
            Self::Redis(url) => {
                let mut command = Command::new("redis-cli");
                command.args(["-e", "-u", url, "EVAL", statement, "1", &format!("account:{}", values[0])]);
                command.args(&values[1..]);
                command
            }
        };
        let output = command.output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into());
        }
        match String::from_utf8(output.stdout)?.trim() {
            "" => Ok(None),
            row => Ok(Some(row.parse()?)),
        }
    }

    const fn statements(&self) -> [&'static str; 2] {
        match self {
            Self::Postgres(_) => [postgres::CLAIM, postgres::WRITE],
            Self::Sqlite(_) => [sqlite::CLAIM, sqlite::WRITE],
            Self::Redis(_) => [redis::CLAIM, redis::WRITE],
        }
    }
}

impl Account for Database {
    fn claim(&mut self, token: FencingToken) -> Outcome<Option<u64>> {
        self.ask(self.statements()[0], &[7, token.as_u64()])
    }

    fn write(&mut self, token: FencingToken, balance: u64) -> Outcome<bool> {
        Ok(self.ask(self.statements()[1], &[7, token.as_u64(), balance])?.is_some())
    }
}

/// An object with "FENCE BALANCE", in a store whose `PUT` compares `If-Match` with the object's `ETag`, and
/// refuses with 412. A claim replaces the object, so older `ETag`s become useless.
pub struct Object {
    host: String,
    path: String,
    etag: String,
}

impl Object {
    /// `url` is `http://host:port/path`.
    pub fn new(url: &str) -> Outcome<Self> {
        let rest = url.strip_prefix("http://").ok_or("this example has no TLS")?;
        let (host, path) = rest.split_once('/').ok_or("no path")?;
        Ok(Self { host: host.to_owned(), path: format!("/{path}"), etag: String::new() })
    }

    /// Replaces the object's content unless the object has changed since the last answer. Returns whether it
    /// did.
    fn put(&mut self, content: &str) -> Outcome<bool> {
        let if_match = format!("If-Match: {}\r\n", self.etag);
        match self.request("PUT", &if_match, content)? {
            (200 | 201 | 204, etag, _) => {
                self.etag = etag;
                Ok(true)
            }
            (412, ..) => Ok(false), // and the `ETag` stays the old one: a repeated write is refused, too
            (status, _, body) => Err(format!("{status}: {body}").into()),
        }
    }

    /// Status, `ETag` and body of the answer.
    fn request(&self, method: &str, headers: &str, content: &str) -> Outcome<(u16, String, String)> {
        let mut connection = TcpStream::connect(&self.host)?;
        connection.set_read_timeout(Some(Duration::from_secs(5)))?;
        let Self { host, path, .. } = self;
        let size = content.len();
        write!(
            connection,
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}Content-Length: {size}\r\n\r\n{content}"
        )?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or("no answer")?;
        let status = head.split(' ').nth(1).ok_or("no status")?.parse()?;
        let mut headers = head.lines().filter_map(|line| line.split_once(": "));
        let etag = headers.find(|(name, _)| name.eq_ignore_ascii_case("etag"));
        Ok((status, etag.map_or("", |(_, value)| value).to_owned(), body.to_owned()))
    }
}

impl Account for Object {
    fn claim(&mut self, token: FencingToken) -> Outcome<Option<u64>> {
        loop {
            let (status, etag, body) = self.request("GET", "", "")?;
            let content = body.trim_end().split_once(' ').filter(|_| status == 200);
            let (fence, balance) = content.ok_or_else(|| format!("{status}: {body}"))?;
            if fence.parse::<u64>()? > token.as_u64() {
                return Ok(None);
            }
            self.etag = etag;
            let balance = balance.parse()?;
            if self.put(&format!("{token} {balance}"))? {
                return Ok(Some(balance));
            }
            // Another holder came in between: its token decides.
        }
    }

    fn write(&mut self, token: FencingToken, balance: u64) -> Outcome<bool> {
        self.put(&format!("{token} {balance}"))
    }
}

/// Alice reads 100 and pauses before she writes 90. Meanwhile bob takes 50. Returns whether alice's write,
/// which comes between bob's read and bob's write, was accepted.
pub fn alice_and_bob(clients: [&Client; 2], accounts: [&mut dyn Account; 2]) -> Outcome<bool> {
    let lock = |client: &Client| -> Outcome<(Guard, FencingToken)> {
        let (ttl, wait) = (Duration::from_millis(500), Duration::from_secs(10));
        let guard = client.lock("account:7").ttl(ttl).wait(wait).fenced().acquire()?;
        let token = guard.fencing_token().ok_or("it was asked for")?;
        Ok((guard, token))
    };
    let [of_alice, of_bob] = accounts;
    let (_guard, token_of_alice) = lock(clients[0])?;
    let balance = of_alice.claim(token_of_alice)?.ok_or("alice is first")?;

    // Here alice's process is stopped, or her machine sleeps, and she cannot know that her time is over. Bob
    // gets the lock as soon as it is.
    let (_guard, token_of_bob) = lock(clients[1])?;
    let balance_for_bob = of_bob.claim(token_of_bob)?.ok_or("bob has the larger token")?;

    // Alice goes on. Her guard is no longer valid, but she checked it before her pause.
    let was_taken = of_alice.write(token_of_alice, balance.saturating_sub(10))?;
    if !of_bob.write(token_of_bob, balance_for_bob.saturating_sub(50))? {
        return Err("bob holds the lock".into());
    }
    Ok(was_taken)
}

/// Chooses the storage by its address.
pub fn open(storage: &str) -> Outcome<Box<dyn Account>> {
    Ok(match storage.split_once("://") {
        Some(("postgresql" | "postgres", _)) => Box::new(Database::Postgres(storage.to_owned())),
        Some(("redis", _)) => Box::new(Database::Redis(storage.to_owned())),
        Some(_) => Box::new(Object::new(storage)?),
        None => Box::new(Database::Sqlite(storage.to_owned())),
    })
}

#[allow(dead_code, reason = "a test includes this file for what is above")]
fn main() -> Outcome<()> {
    let mut args = std::env::args().skip(1);
    let (Some(masters), Some(storage)) = (args.next(), args.next()) else {
        return Err("usage: fences MASTER,… STORAGE".into());
    };
    let connect = || Client::connect(masters.split(','));
    let (alice, bob) = (connect()?, connect()?);
    let was_taken = alice_and_bob([&alice, &bob], [&mut *open(&storage)?, &mut *open(&storage)?])?;
    println!("alice's late write was {}", if was_taken { "taken" } else { "refused" });
    Ok(())
}
