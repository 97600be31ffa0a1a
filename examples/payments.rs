//! A payment service on tokio for production: TLS, changing passwords, metrics, readiness, orderly shutdown.
//!
//! ```text
//!   POST /orders/42   charges order 42 under its lock: 200; 409 if it is held; 503 without a quorum or room;
//!                     500 if the charge failed, or if its outcome is unknown (the body then says: look it up)
//!   GET  /ready       200 while a quorum of masters can grant locks, else 503
//!   GET  /live        200
//!   GET  /metrics     the statistics, for Prometheus
//!   SIGTERM           stops accepting, lets charges finish and release their locks, exits
//!
//! export MASTERS=rediss://10.0.0.1:6379,rediss://10.0.0.2:6379,rediss://10.0.0.3:6379
//! export CA_FILE=ca.pem LOGIN_FILE=/run/secrets/login LEDGER=/var/lib/ledger LISTEN=127.0.0.1:8080
//! cargo run --example payments --features tls
//! ```

use std::env;
use std::error::Error;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use redlatch::{Client, Config, Credentials, ErrorClass, Event, HeldLocks, Pem, RunError, Tls};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Also how long a restarted master does not vote. A longer charge renews its lock.
const TTL: Duration = Duration::from_secs(10);
/// How long a charge waits for its lock.
const WAIT: Duration = Duration::from_secs(10);
/// A slower master does not vote. The default is 50 ms if round trips are short.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// The longest charge.
const CHARGE_MAX: Duration = Duration::from_secs(60);
/// Longest duration of a connection, and largest request in bytes.
const CONNECTION_MAX: Duration = Duration::from_secs(90);
const REQUEST_SIZE_MAX: u64 = 8192;
/// How long a shutdown waits for charges under way.
const GRACE: Duration = Duration::from_secs(20);
/// The agent that writes the login keeps the old login valid for longer than this.
const LOGIN_VALID_FOR: Duration = Duration::from_secs(4);

/// For the caller of a charge whose lock was lost before the bank answered.
const OUTCOME_UNKNOWN: &str = "the charge may have happened, or not. Do not charge anew: look the order up, or \
     repeat this request with the same payment number\n";

/// Settings from the environment.
struct Settings {
    masters: String,
    ca_file: PathBuf,
    /// Contains user and password, in two lines.
    login_file: PathBuf,
    ledger: PathBuf,
    listen: String,
}

impl Settings {
    fn from_env() -> Result<Self, Box<dyn Error>> {
        let get = |name: &str| env::var(name).map_err(|_| format!("set {name}"));
        Ok(Self {
            masters: get("MASTERS")?,
            ca_file: get("CA_FILE")?.into(),
            login_file: get("LOGIN_FILE")?.into(),
            ledger: get("LEDGER")?.into(),
            listen: get("LISTEN")?,
        })
    }

    fn config(&self) -> Result<Config, Box<dyn Error>> {
        let login_file = self.login_file.clone();
        let config = Config::builder()
            .masters(self.masters.split(','))
            .prefix("orders:")
            .max_ttl(TTL)
            .answer_timeout(ANSWER_TIMEOUT)
            .tls(Tls::new().ca(Pem::File(self.ca_file.clone())))
            .credentials(move |_master| {
                let login = fs::read_to_string(&login_file)?;
                let (user, password) = login.trim_end().split_once('\n').ok_or("the login has two lines")?;
                Ok(Credentials::new(password).user(user).valid_for(LOGIN_VALID_FOR))
            })
            .on_event(|event| match event {
                // Each order has two of these events. All others are rare, and for people.
                Event::Acquired { .. } | Event::Released { .. } => {}
                // The error of the provider is the source; an `io::Error` of a file contains no secret.
                Event::CredentialsFailed { master, error } => {
                    eprintln!("{master}: {error}: {:?}", error.source());
                }
                event => eprintln!("{event:?}"),
            });
        Ok(config.build()?)
    }
}

#[tokio::main(flavor = "current_thread")]
pub async fn main() -> Result<(), Box<dyn Error>> {
    let mut terminate = signal(SignalKind::terminate())?;
    serve(&Settings::from_env()?, async move {
        terminate.recv().await;
    })
    .await
}

/// Serves until `shutdown` is ready.
async fn serve(settings: &Settings, shutdown: impl Future<Output = ()>) -> Result<(), Box<dyn Error>> {
    let client = Client::open_async(settings.config()?).await?;
    let listener = TcpListener::bind(&settings.listen).await?;
    println!("serving http://{}", listener.local_addr()?);
    let ledger: Arc<Path> = settings.ledger.clone().into();
    let mut shutdown = pin!(shutdown);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            accepted = listener.accept() => {
                match accepted {
                    Ok((connection, _)) => {
                        let answering = answer(client.clone(), ledger.clone(), connection);
                        // A stopped caller must not hold a connection for ever. The timeout also drops a
                        // charge, whose outcome is then unknown.
                        connections.spawn(timeout(CONNECTION_MAX, answering));
                    }
                    // For example too many open files. Charges under way go on.
                    Err(error) => {
                        eprintln!("a connection was not accepted: {error}");
                        sleep(Duration::from_millis(100)).await;
                    }
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    // Charges that wait for their lock get an error now. The others finish, and release their locks.
    let unreleased = client.drain_async(GRACE, HeldLocks::Leave).await;
    // Only answers are still under way.
    let _ = timeout(GRACE, async { while connections.join_next().await.is_some() {} }).await;
    let stats = client.stats();
    println!("{} locks, {} lost, {unreleased} not released", stats.acquired, stats.lost);
    Ok(())
}

async fn answer(client: Client, ledger: Arc<Path>, connection: TcpStream) -> io::Result<()> {
    let (input, mut output) = connection.into_split();
    let mut input = BufReader::new(input.take(REQUEST_SIZE_MAX));
    let mut request = String::new();
    input.read_line(&mut request).await?;
    let mut header = String::from("-");
    while !header.trim_end().is_empty() {
        header.clear();
        input.read_line(&mut header).await?;
    }
    let mut words = request.split(' ');
    let (status, body) = match (words.next(), words.next()) {
        (Some("POST"), Some(path)) if path.starts_with("/orders/") => {
            charge(&client, &ledger, &path["/orders/".len()..]).await
        }
        (Some("GET"), Some("/live")) => ("200 OK", "alive\n".to_owned()),
        (Some("GET"), Some("/ready")) => {
            let health = client.health();
            let status = if health.has_quorum { "200 OK" } else { "503 Service Unavailable" };
            (status, format!("{health:#}\n"))
        }
        (Some("GET"), Some("/metrics")) => ("200 OK", client.stats().to_prometheus()),
        _ => ("404 Not Found", String::new()),
    };
    let size = body.len();
    let kind = "text/plain; version=0.0.4"; // as Prometheus wants it
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n{body}"
    );
    output.write_all(answer.as_bytes()).await?;
    output.shutdown().await
}

/// Charges an order under its lock. Returns status and text of the answer.
async fn charge(client: &Client, ledger: &Path, order: &str) -> (&'static str, String) {
    if order.is_empty() || !order.bytes().all(|byte| byte.is_ascii_digit()) {
        return ("404 Not Found", "no such order\n".to_owned());
    }
    let request = client.lock(order).ttl(TTL).wait(WAIT).auto_extend(CHARGE_MAX);
    let charged = request.run_async(async |_guard| pay(ledger, order).await).await;
    // The log gets the masters' answers; the caller gets no addresses.
    let charged = charged.inspect_err(|error| eprintln!("order {order}: {error}"));
    match charged {
        // The order is charged or not, whatever happened to its lock.
        Ok(Ok(())) | Err(RunError::Lost(Some(Ok(())))) => ("200 OK", "charged\n".to_owned()),
        Ok(Err(why)) | Err(RunError::Lost(Some(Err(why)))) => {
            ("500 Internal Server Error", format!("{why}\n"))
        }
        // The loss ended the wait for the bank. A drop does not take back what the bank got.
        Err(RunError::Lost(None)) => ("500 Internal Server Error", OUTCOME_UNKNOWN.to_owned()),
        Err(error) => {
            let status = match error.class() {
                ErrorClass::Contended => "409 Conflict",
                ErrorClass::Rejected => "500 Internal Server Error",
                _ => "503 Service Unavailable",
            };
            (status, format!("{}\n", error.public_message()))
        }
    }
}

/// Stands for a call to the bank, which does not tolerate two simultaneous calls for one order. A lock alone
/// does not stop late or repeated calls, so a real call has an idempotency key, such as the payment's number.
async fn pay(ledger: &Path, order: &str) -> io::Result<()> {
    let _call = Call::begin(ledger.join(format!("{order}.under-way")))?;
    sleep(Duration::from_millis(5)).await;
    let account = ledger.join(order);
    let count: u64 = fs::read_to_string(&account).unwrap_or_default().trim().parse().unwrap_or_default();
    fs::write(&account, format!("{}\n", count + 1))
}

/// A call to the bank under way, as a file. Dropping a charge ends it; a real bank would go on.
struct Call(PathBuf);

impl Call {
    fn begin(mark: PathBuf) -> io::Result<Self> {
        match fs::File::create_new(&mark) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                Err(io::Error::other("two processes charge this order at once"))
            }
            created => created.map(|_| Self(mark)),
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
