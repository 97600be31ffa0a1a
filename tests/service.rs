//! The service of `examples/payments.rs` on five masters with TLS: two processes charge the same orders under
//! load, through a change of password, the death of a master, and SIGTERM.
//!
//! The program runs itself as the service, because the service ends through a signal.

#[path = "../examples/payments.rs"]
mod payments;

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use redlatch_support::{Certificates, Fleet, Master, PATIENCE, eventually};
use rustix::process::{Pid, Signal, kill_process};

/// Names the task of the second process.
const TASK: &str = "REDLATCH_SERVICE_TEST";
/// Number of orders that all callers charge repeatedly.
const ORDER_COUNT: u64 = 6;
/// Number of callers of each service.
const CALLER_COUNT: usize = 4;
/// Number of charges that must succeed after each event.
const CHARGE_COUNT: u64 = 60;

fn main() {
    if std::env::var_os(TASK).is_some() {
        payments::main().unwrap_or_else(|error| panic!("the service failed: {error}"));
    } else {
        a_service_outlives_passwords_masters_and_signals();
        println!("test a_service_outlives_passwords_masters_and_signals ... ok");
    }
}

fn a_service_outlives_passwords_masters_and_signals() {
    let certificates = Certificates::new();
    let mut fleet = fleet(&certificates);
    let place = Place::new(&certificates, &mut fleet);
    place.write_login("first");
    set_password(&mut fleet, &[">first"]);
    let services = [(); 2].map(|()| Service::start(&place));
    for service in &services {
        // The masters have just started, and grant nothing for the maximum TTL.
        eventually(PATIENCE, "a quorum of masters counts", || service.get("/ready").0 == 200);
    }
    let load = Load::default();
    thread::scope(|scope| {
        let _end = StopAtEnd(&load);
        for (index, service) in services.iter().enumerate() {
            for _ in 0..CALLER_COUNT {
                let load = &load;
                scope.spawn(move || load.charge_until_stopped(index, service.addr));
            }
        }
        load.await_charges("under load");

        // The old password is removed once both services have logged in again on each master.
        let logins_before: Vec<u64> = fleet.masters().map(login_count).collect();
        set_password(&mut fleet, &[">second"]);
        place.write_login("second");
        for (master, before) in fleet.masters().zip(logins_before) {
            eventually(PATIENCE, "both services log in anew", || login_count(master) >= before + 2);
        }
        load.await_charges("with two passwords");
        set_password(&mut fleet, &["<first"]);
        load.await_charges("with the new password");
        assert_ne!(fleet.master(0).ask("CLIENT KILL USER app").text(), "0", "there are connections");
        load.await_charges("after a reconnect with the new password");

        fleet.master(4).kill();
        load.await_charges("without one master");
        for service in &services {
            eventually(PATIENCE, "the loss is noticed", || {
                service.get("/metrics").1.contains("\nredlatch_masters_ready 4\n")
            });
            assert_eq!(service.get("/ready").0, 200, "four of five are a quorum");
        }

        load.expect_end(0);
        services[0].terminate();
        load.await_charges("with one service");
        refuses_without_addresses(&mut fleet, &services[1]);
        let [of_second, of_others] = ["redlatch_lost_total", "redlatch_near_losses_total"]
            .map(|name| value_of(&services[1].get("/metrics").1, name));
        assert_eq!((of_second, of_others), (0, 0), "a lock was lost");
        load.expect_end(1);
        services[1].terminate();
    });
    load.assert_no_failure();
    for service in services {
        let said = service.end();
        assert!(said.contains(" locks, 0 lost, 0 not released"), "{said}");
    }
    for index in 0..4 {
        let keys = fleet.master(index).keys();
        assert_eq!(keys, "[]", "master {index} has locks that nobody holds");
    }
    assert!(place.charge_count() >= load.charged.load(Ordering::SeqCst), "a charge is missing");
}

/// The caller of an order that another client holds sees no address, even if a master is dead.
fn refuses_without_addresses(fleet: &mut Fleet, service: &Service) {
    let mut ask_all = |line: &str| (0..4).for_each(|index| drop(fleet.master(index).ask(line)));
    ask_all("SET orders:7 other");
    let (status, body) = request(service.addr, "POST", "/orders/7").expect("an answer");
    assert!(status == 409 && !body.contains("127.0.0.1"), "{status}: {body}");
    ask_all("DEL orders:7");
}

fn fleet(certificates: &Certificates) -> Fleet {
    let path = |file: &str| certificates.path(file).display().to_string();
    let files = [path("server.pem"), path("server.key"), path("ca.pem")];
    let [certificate, key, ca] = &files;
    let args = ["--tls-cert-file", certificate, "--tls-key-file", key, "--tls-ca-cert-file", ca];
    Fleet::start_with_tls(5, &[&args[..], &["--tls-auth-clients", "no"]].concat())
}

/// Changes the passwords of the services' user.
fn set_password(fleet: &mut Fleet, rules: &[&str]) {
    for master in fleet.masters() {
        let line = format!("ACL SETUSER app on ~* &* +@all {}", rules.join(" "));
        assert_eq!(master.ask(&line).text(), "OK");
    }
}

/// Number of logins so far.
fn login_count(master: &mut Master) -> u64 {
    let info = master.ask("INFO commandstats").text();
    let calls = info.split("cmdstat_auth:calls=").nth(1).unwrap_or("0,");
    calls.split(',').next().and_then(|calls| calls.parse().ok()).unwrap_or_default()
}

/// Value of a counter in the text for Prometheus.
fn value_of(page: &str, name: &str) -> u64 {
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in:\n{page}"))
}

/// Files and settings that the services share.
struct Place {
    masters: String,
    ca_file: PathBuf,
    login_file: PathBuf,
    ledger: PathBuf,
}

impl Place {
    fn new(certificates: &Certificates, fleet: &mut Fleet) -> Self {
        let urls: Vec<String> = fleet.masters().map(|master| master.tls_url()).collect();
        let ledger = certificates.path("ledger");
        fs::create_dir(&ledger).expect("a directory of the test's own");
        let (ca_file, login_file) = (certificates.path("ca.pem"), certificates.path("login"));
        Self { masters: urls.join(","), ca_file, login_file, ledger }
    }

    /// Replaces the login atomically, as agents of vaults do.
    fn write_login(&self, password: &str) {
        let next = self.login_file.with_extension("next");
        fs::write(&next, format!("app\n{password}\n")).expect("a directory of the test's own");
        fs::rename(next, &self.login_file).expect("a directory of the test's own");
    }

    fn charge_count(&self) -> u64 {
        let count = |order| fs::read_to_string(self.ledger.join(format!("{order}"))).unwrap_or_default();
        (0..ORDER_COUNT).map(|order| count(order).trim().parse::<u64>().unwrap_or_default()).sum()
    }
}

/// One process of the service.
struct Service {
    child: Child,
    said: BufReader<ChildStdout>,
    addr: SocketAddr,
}

impl Service {
    fn start(place: &Place) -> Self {
        let program = std::env::current_exe().expect("this program has a path");
        let mut command = Command::new(program);
        command.env(TASK, "serve").env("MASTERS", &place.masters).env("LISTEN", "127.0.0.1:0");
        command.env("CA_FILE", &place.ca_file).env("LOGIN_FILE", &place.login_file);
        command.env("LEDGER", &place.ledger).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts again");
        let mut said = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut line = String::new();
        said.read_line(&mut line).expect("text");
        let addr = line.trim().strip_prefix("serving http://").and_then(|addr| addr.parse().ok());
        let addr = addr.unwrap_or_else(|| panic!("the service says {line:?}"));
        Self { child, said, addr }
    }

    fn get(&self, path: &str) -> (u16, String) {
        request(self.addr, "GET", path).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn terminate(&self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).expect("the service runs");
    }

    /// Last output of a service that has ended well.
    fn end(mut self) -> String {
        let mut rest = String::new();
        self.said.read_to_string(&mut rest).expect("text");
        let status = self.child.wait().expect("it was not waited for");
        assert!(status.success(), "{status}: {rest}");
        rest
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Only a failed test leaves it running.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Status and body of the answer.
fn request(addr: SocketAddr, method: &str, path: &str) -> io::Result<(u16, String)> {
    let mut connection = TcpStream::connect(addr)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    write!(connection, "{method} {path} HTTP/1.1\r\nHost: test\r\n\r\n")?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer)?;
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| io::Error::other(format!("no status in {answer:?}")))?;
    Ok((status, answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default()))
}

/// Work of the callers, and their results.
#[derive(Default)]
struct Load {
    charged: AtomicU64,
    /// By service: whether it may refuse connections because it is ending.
    ends: [AtomicBool; 2],
    is_over: AtomicBool,
    failures: Mutex<Vec<String>>,
}

impl Load {
    fn charge_until_stopped(&self, service: usize, addr: SocketAddr) {
        for turn in 0.. {
            if self.is_over.load(Ordering::SeqCst) {
                return;
            }
            let answer = request(addr, "POST", &format!("/orders/{}", turn % ORDER_COUNT));
            // Read after the answer, because the end may have begun meanwhile.
            let may_end = self.ends[service].load(Ordering::SeqCst);
            match answer {
                Ok((200, _)) => drop(self.charged.fetch_add(1, Ordering::SeqCst)),
                // Another caller had the lock for the whole wait.
                Ok((409, _)) => {}
                Ok((503, _)) if may_end => {}
                Err(_) if may_end => return,
                other => {
                    let failure = format!("service {service}: {other:?}");
                    return self.failures.lock().expect("no panic").push(failure);
                }
            }
        }
    }

    /// Waits until this many more orders are charged.
    fn await_charges(&self, when: &str) {
        let goal = self.charged.load(Ordering::SeqCst) + CHARGE_COUNT;
        eventually(PATIENCE, &format!("orders are charged {when}"), || {
            self.assert_no_failure();
            self.charged.load(Ordering::SeqCst) >= goal
        });
    }

    fn expect_end(&self, service: usize) {
        self.ends[service].store(true, Ordering::SeqCst);
    }

    fn assert_no_failure(&self) {
        let failures = self.failures.lock().expect("no panic");
        assert!(failures.is_empty(), "{failures:#?}");
    }
}

/// Ends the callers, even if the test fails.
struct StopAtEnd<'a>(&'a Load);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::SeqCst);
    }
}
