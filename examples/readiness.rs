//! Readiness, liveness and metrics over HTTP, for a service that needs locks, without a web framework.
//!
//! ```sh
//! cargo run --example readiness -- 127.0.0.1:8080 redis://10.0.0.1 redis://10.0.0.2 redis://10.0.0.3
//! curl -i http://127.0.0.1:8080/ready
//! ```

use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use redlatch::Client;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let address = args.next().ok_or("usage: readiness ADDRESS MASTER…")?;
    let client = Client::connect(args)?;
    let listener = TcpListener::bind(address)?;
    println!("serving http://{}", listener.local_addr()?);
    for connection in listener.incoming() {
        // A probe that disconnects is no fault of the service.
        if let Err(error) = connection.and_then(|connection| answer(&client, connection)) {
            eprintln!("a probe was not answered: {error}");
        }
    }
    Ok(())
}

/// Status and body for a path.
pub fn respond(client: &Client, path: &str) -> (&'static str, String) {
    match path {
        // The process answers, so it is alive. A restart would repair no master.
        "/live" => ("200 OK", "alive\n".to_owned()),
        // A quorum is enough, even if masters are missing.
        "/ready" => {
            let health = client.health();
            let status = if health.has_quorum { "200 OK" } else { "503 Service Unavailable" };
            (status, format!("{health:#}\n"))
        }
        "/metrics" => ("200 OK", client.stats().to_prometheus()),
        _ => ("404 Not Found", String::new()),
    }
}

fn answer(client: &Client, mut connection: TcpStream) -> io::Result<()> {
    connection.set_read_timeout(Some(Duration::from_secs(1)))?;
    connection.set_write_timeout(Some(Duration::from_secs(1)))?;
    let mut request = String::new();
    BufReader::new(&connection).read_line(&mut request)?;
    let (status, body) = respond(client, request.split(' ').nth(1).unwrap_or_default());
    let kind = "text/plain; version=0.0.4";
    let size = body.len();
    write!(
        connection,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n{body}"
    )
}
