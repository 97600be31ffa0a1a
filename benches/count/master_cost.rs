//! `master_cost HOST:PORT`: memory and processor time that locks, waiters, fences and connections cost a
//! master (`benches/scripts/master-cost`). The master must have no other use, and loses its data.

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use redlatch::{AcquireError, Client, Guard, Options, Quarantine};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Number of locks, fences and waiters to measure, for an average.
const COUNT: u32 = 4000;
const CONNECTION_COUNT: u32 = 500;
const PAIR_COUNT: u32 = 40_000;
/// After this time a server has dropped an idle connection's buffers: it checks each connection every second,
/// and drops buffers that were unused for two.
const BUFFERS_KEPT: Duration = Duration::from_secs(6);
/// How long waiters are measured.
const WATCH_TIME: Duration = Duration::from_secs(10);
const TTL: Duration = Duration::from_secs(30);

/// A separate connection for questions.
struct Master(BufReader<TcpStream>);

impl Master {
    fn run(&mut self, command: &str) -> Outcome<String> {
        self.0.get_mut().write_all(format!("{command}\r\n").as_bytes())?;
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        let Some(size) = line.strip_prefix('$') else { return Ok(line) };
        let mut text = vec![0; size.trim_end().parse::<usize>()? + 2];
        self.0.read_exact(&mut text)?;
        Ok(String::from_utf8(text)?)
    }

    fn field(&mut self, section: &str, name: &str) -> Outcome<f64> {
        let info = self.run(&format!("INFO {section}"))?;
        let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        Ok(value.ok_or("no such field")?.trim_end().parse()?)
    }

    /// Bytes, without the allocator's overhead.
    fn memory(&mut self) -> Outcome<f64> {
        self.field("memory", "used_memory")
    }

    /// Seconds of the processor.
    fn time(&mut self) -> Outcome<f64> {
        Ok(self.field("cpu", "used_cpu_user")? + self.field("cpu", "used_cpu_sys")?)
    }
}

fn main() -> Outcome<()> {
    let address = std::env::args().nth(1).ok_or("usage: master_cost HOST:PORT")?;
    let mut master = Master(BufReader::new(TcpStream::connect(&address)?));
    let url = format!("redis://{address}");
    let client = connect(&url)?;
    drop(client.lock("scripts").fenced().acquire()?);
    drop(client.lock("scripts").fair().acquire()?);

    println!("memory of one master, in bytes:");
    let options = Options::new().ttl(TTL);
    let kinds = [("plain lock, held", options), ("fenced lock, held, with its fence", options.fenced())];
    for (title, options) in kinds {
        master.run("FLUSHALL")?;
        let before = master.memory()?;
        let held = hold_many(&client, options)?;
        let bytes = (master.memory()? - before) / f64::from(COUNT);
        println!("{bytes:8.0}  {title}");
        release(&client, held);
        if title.starts_with("fenced") {
            let bytes = (master.memory()? - before) / f64::from(COUNT);
            println!("{bytes:8.0}  fence that remains for three times max_ttl after the release");
        }
    }
    master.run("FLUSHALL")?;
    thread::sleep(BUFFERS_KEPT);
    let before = master.memory()?;
    let clients = (0..CONNECTION_COUNT).map(|_| connect(&url)).collect::<Outcome<Vec<_>>>()?;
    let count = f64::from(CONNECTION_COUNT);
    println!("{:8.0}  connection that has just been made", (master.memory()? - before) / count);
    thread::sleep(BUFFERS_KEPT);
    println!("{:8.0}  connection of an idle client", (master.memory()? - before) / count);
    drop(clients);
    wait(&client, &url, &mut master, "in one queue", |_| "one".to_owned())?;
    wait(&client, &url, &mut master, "each alone for a lock", |index| format!("orders:{index}"))?;

    println!("processor time of one master, in microseconds:");
    let kinds = [
        ("plain", options),
        ("fenced", options.fenced()),
        ("fair", options.fair()),
        ("shared", options.shared()),
    ];
    for callers in [1, 128] {
        for (title, options) in kinds {
            let before = master.time()?;
            for _ in 0..PAIR_COUNT / callers {
                let requests =
                    (0..callers).map(|caller| client.lock(format!("time:{caller}")).options(options));
                let guards = client.acquire_all(requests).into_iter().map(|it| it.block());
                let guards = guards.collect::<Result<Vec<Guard>, AcquireError>>()?;
                release(&client, guards);
            }
            let time = (master.time()? - before) * 1e6 / f64::from(PAIR_COUNT);
            println!("{time:8.1}  acquire and release of a {title} lock, {callers} at once");
        }
    }
    Ok(())
}

/// With a limit that a flood of requests does not reach.
fn connect(url: &str) -> Outcome<Client> {
    let builder = Client::builder().masters([url]).quarantine(Quarantine::Trust);
    Ok(builder.answer_timeout(Duration::from_secs(10)).connect()?)
}

fn hold_many(client: &Client, options: Options) -> Outcome<Vec<Guard>> {
    let requests = (0..COUNT).map(|index| client.lock(format!("orders:{index}")).options(options));
    let guards = client.acquire_all(requests).into_iter().map(|it| it.block());
    Ok(guards.collect::<Result<_, _>>()?)
}

fn release(client: &Client, guards: Vec<Guard>) {
    for releasing in client.release_all(guards) {
        releasing.block().expect("confirmed");
    }
}

/// Memory and processor time of waiters, all for one name, or each for its own. Another client holds the
/// locks.
fn wait(
    client: &Client,
    url: &str,
    master: &mut Master,
    title: &str,
    name: fn(u32) -> String,
) -> Outcome<()> {
    master.run("FLUSHALL")?;
    let mut held = Vec::new();
    for index in 0..COUNT {
        match client.lock(name(index)).auto_extend(TTL * 10).try_acquire() {
            Ok(guard) => held.push(guard),
            Err(AcquireError::Contended(_)) => break,
            Err(error) => return Err(error.into()),
        }
    }
    let waiter = connect(url)?;
    let watch = |master: &mut Master| -> Outcome<(f64, f64)> {
        let (before, start) = (master.time()?, Instant::now());
        thread::sleep(WATCH_TIME);
        Ok(((master.time()? - before) / start.elapsed().as_secs_f64(), master.memory()?))
    };
    let (idle_time, idle_memory) = watch(master)?;
    let names: Vec<String> = (0..COUNT).map(name).collect();
    let mut waiting = Vec::new();
    for name in &names {
        let request = waiter.lock(name).fair().wait(TTL * 10).ttl(TTL);
        let mut acquiring = Box::pin(request.acquire_async());
        if let Poll::Ready(result) = acquiring.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return Err(format!("not parked: {:?}", result.err()).into());
        }
        waiting.push(acquiring);
    }
    thread::sleep(Duration::from_secs(5)); // the first rounds
    let (time, memory) = watch(master)?;
    let mut queued = 0;
    for name in names.iter().collect::<std::collections::BTreeSet<_>>() {
        let count = master.run(&format!("ZCARD redlatch:wait:{name}"))?;
        queued += count.trim_start_matches(':').trim_end().parse::<u32>()?;
    }
    if queued != COUNT {
        return Err(format!("{queued} of {COUNT} waiters are in queues").into());
    }
    let bytes = (memory - idle_memory) / f64::from(COUNT);
    let micros = (time - idle_time) * 1e6 / f64::from(COUNT);
    println!(
        "{bytes:8.0}  waiter, {COUNT} of them {title}; each takes {micros:.0} us of processor time per second"
    );
    drop(waiting);
    release(client, held);
    Ok(())
}
