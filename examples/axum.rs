//! A payment service with axum: `POST /pay/ID` charges a payment once, however often its caller repeats it.
//!
//! ```text
//!   POST /pay/ID   200 and the receipt, the same for each repetition of ID; 409 while another request
//!                  charges it; 503 if too few masters answer; 500 if the lock was lost before the end
//!   GET /ready     200 while a quorum of masters can grant locks, else 503
//!   Ctrl-C, TERM   stops accepting, finishes the requests under way, releases their locks, exits
//! ```
//!
//! `REDLATCH_MASTERS=redis://10.0.0.1,… cargo run --example axum 127.0.0.1:8080`

use std::collections::HashMap;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use redlatch::{Client, ConfigBuilder, ErrorClass, HeldLocks};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// How long a repeated request waits for the first one.
const WAIT: Duration = Duration::from_secs(2);
/// The longest charge.
const CHARGE_MAX: Duration = Duration::from_secs(60);
/// How long a shutdown waits for locks to be released.
const DRAIN_MAX: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub struct Service {
    client: Client,
    /// Receipts by idempotency key. A real service keeps them in its database, with a unique key: the lock
    /// only spares most repetitions the work.
    receipts: Arc<Mutex<HashMap<String, u64>>>,
}

impl Service {
    pub fn new(client: Client) -> Self {
        Self { client, receipts: Arc::default() }
    }

    fn receipts(&self) -> std::sync::MutexGuard<'_, HashMap<String, u64>> {
        self.receipts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Charges the payment, or returns the receipt if another request has charged it.
    async fn charge_once(&self, id: &str) -> u64 {
        if let Some(receipt) = self.receipts().get(id) {
            return *receipt;
        }
        tokio::time::sleep(Duration::from_millis(20)).await; // the bank
        let mut receipts = self.receipts();
        let receipt = receipts.len() as u64 + 1;
        receipts.insert(id.to_owned(), receipt);
        receipt
    }
}

async fn pay(State(service): State<Service>, Path(id): Path<String>) -> (StatusCode, String) {
    let request = service.client.lock(format!("payment:{id}")).wait(WAIT).auto_extend(CHARGE_MAX);
    let error = match request.run_async(async |_guard| service.charge_once(&id).await).await {
        Ok(receipt) => return (StatusCode::OK, format!("receipt {receipt}\n")),
        Err(error) => error,
    };
    eprintln!("payment {id}: {error}"); // for the log: it names the masters
    let status = match error.class() {
        ErrorClass::Contended => StatusCode::CONFLICT,
        // The charge may have happened. The caller repeats the request with the same key.
        ErrorClass::Lost => StatusCode::INTERNAL_SERVER_ERROR,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    (status, format!("{}\n", error.public_message()))
}

async fn ready(State(service): State<Service>) -> (StatusCode, String) {
    let health = service.client.health();
    let status = if health.has_quorum { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, format!("{health:#}\n"))
}

/// Serves until `shutdown` is ready, then finishes the requests under way. Returns the number of locks that
/// are not released everywhere; they end with their TTL.
pub async fn serve(
    service: Service,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<usize> {
    let client = service.client.clone();
    let routes = Router::new().route("/pay/{id}", post(pay)).route("/ready", get(ready));
    axum::serve(listener, routes.with_state(service)).with_graceful_shutdown(shutdown).await?;
    Ok(client.drain_async(DRAIN_MAX, HeldLocks::Release).await)
}

#[allow(dead_code, reason = "a test includes this file for what is above")]
#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).ok_or("usage: axum ADDRESS")?;
    let client = ConfigBuilder::from_env()?.connect_async().await?;
    let listener = TcpListener::bind(address).await?;
    println!("serving http://{}", listener.local_addr()?);
    let mut terminate = signal(SignalKind::terminate())?;
    let shutdown = async move {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        }
    };
    let unreleased = serve(Service::new(client), listener, shutdown).await?;
    println!("{unreleased} locks are not released everywhere");
    Ok(())
}
