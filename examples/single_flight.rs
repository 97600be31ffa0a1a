//! Single flight over processes: many callers want one value, one of them computes it, and all get it.
//!
//! `cargo run --example single_flight /tmp/report redis://10.0.0.1 redis://10.0.0.2 redis://10.0.0.3`

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use std::{error::Error, fs, process};

use redlatch::Client;
use tokio::{sync::OnceCell, task::JoinSet, time::sleep};

type Failure = Box<dyn Error + Send + Sync>;

/// A value in a cache of all processes, such as Redis. Each process has one `SingleFlight` for the value.
pub struct SingleFlight<V> {
    client: Client,
    name: &'static str,
    /// The flight under way, which ends with its last caller.
    flight: Mutex<Weak<OnceCell<V>>>,
}

impl<V: Clone> SingleFlight<V> {
    pub fn new(client: Client, name: &'static str) -> Self {
        Self { client, name, flight: Mutex::default() }
    }

    /// Returns the value that `stored` finds in the cache, or else lets one caller of all processes run
    /// `fill`, which computes and stores the value. One caller of each process waits for the lock, the
    /// others for that caller's value. If that caller fails or is dropped, the next takes its place.
    pub async fn get<S: Future<Output = Option<V>>>(
        &self,
        stored: impl Fn() -> S,
        fill: impl Future<Output = Result<V, Failure>>,
    ) -> Result<V, Failure> {
        if let Some(value) = stored().await {
            return Ok(value);
        }
        let fly = || async {
            let request = self.client.lock(self.name).wait(Duration::from_secs(60));
            let _guard = request.auto_extend(Duration::from_secs(60)).await?;
            match stored().await {
                Some(value) => Ok(value), // another process stored it during the wait
                None => fill.await,
            }
        };
        self.flight().get_or_try_init(fly).await.cloned()
    }

    fn flight(&self) -> Arc<OnceCell<V>> {
        let mut current = self.flight.lock().unwrap_or_else(PoisonError::into_inner);
        let flight = current.upgrade().unwrap_or_default();
        *current = Arc::downgrade(&flight);
        flight
    }
}

async fn stored(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()
}

async fn compute(path: &str) -> Result<String, Failure> {
    sleep(Duration::from_millis(200)).await;
    fs::write(format!("{path}.new"), process::id().to_string())?;
    fs::rename(format!("{path}.new"), path)?;
    Ok(fs::read_to_string(path)?)
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let path: &str = args.next().ok_or("give the file of the cache")?.leak();
    let report = SingleFlight::new(Client::connect_async(args).await?, "report");
    let (report, began) = (Arc::new(report), Instant::now());
    let call = async |report: Arc<SingleFlight<_>>| report.get(|| stored(path), compute(path)).await;
    let callers: JoinSet<_> = (0..250).map(|_| call(report.clone())).collect();
    let reports = callers.join_all().await.into_iter().collect::<Result<Vec<_>, _>>()?;
    println!("{:?}: {} callers have what process {} computed", began.elapsed(), reports.len(), reports[0]);
    Ok(())
}
