//! A connection to one master, and how it ends.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};

use super::*;

// I150
#[test]
fn a_lookup_that_hangs_is_named() {
    let (_never, receiver) = mpsc::channel::<()>();
    let limit = Limit::new(Duration::from_millis(20), clock::now() + limits::FOREVER);
    let hanging = addresses(limit, move || {
        let _ = receiver.recv();
        Ok(Vec::new())
    });
    let said = "its name was not resolved within 20ms; check the name and the name server";
    assert_eq!(hanging, Err(ProbeError::Unreachable(said.to_owned())));
}

#[test]
fn a_limit_ends_with_the_session() {
    let second = Duration::from_secs(1);
    assert_eq!(Limit::new(second, clock::now() + limits::FOREVER).time, second);
    assert!(Limit::new(second, clock::now() + second / 2).time <= second / 2);
    assert_eq!(Limit::new(second, clock::now() - second).time, Duration::ZERO);
}

/// A server that sends one `|`-separated part of this text after each read. Then it reads
/// until the client leaves, or ends the connection. Returns its address, and all that it has read.
fn start(says: &'static str, ends: bool) -> (SocketAddr, mpsc::Receiver<String>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let address = listener.local_addr().expect("bound");
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        let mut input = Vec::new();
        for part in says.split('|') {
            let mut bytes = [0; 1024];
            let size = stream.read(&mut bytes).expect("commands");
            input.extend_from_slice(&bytes[..size]);
            stream.write_all(part.as_bytes()).expect("it is read");
        }
        if ends {
            stream.shutdown(std::net::Shutdown::Write).expect("it is open");
        }
        let _ = stream.read_to_end(&mut input);
        sender.send(String::from_utf8_lossy(&input).replace("\r\n", " "))
    });
    (address, receiver)
}

const LONG: Duration = Duration::from_secs(40);

fn config(url: &str) -> Config {
    Config::builder().master(url).connect_timeout(LONG).build().expect("valid settings")
}

#[test]
fn probe_logs_in_like_a_client() {
    let (refused, unreachable) = (ProbeError::LoginRefused, ProbeError::Unreachable);
    let step = |step, text: &str| step_refused(step, text.as_bytes());
    let (ping, auth) = ("*1 $4 PING ", "*2 $4 AUTH $1 p ");
    let both = "*3 $4 AUTH $2 me $1 p *1 $4 PING *2 $6 SELECT $1 7 ";
    for (login, db, says, sent, result) in [
        ("", "", "+PONG\r\n", ping.to_owned(), Ok("default")),
        ("", "/0", "+PONG\r\n", ping.to_owned(), Ok("default")),
        ("", "", "-ERR x\r\n", ping.to_owned(), Ok("default")),
        (":p@", "", "+OK\r\n+PONG\r\n", auth.to_owned() + ping, Ok("default")),
        ("me:p@", "/7", "+OK\r\n+PONG\r\n+OK\r\n", both.to_owned(), Ok("me")),
        ("", "", "-NOAUTH x\r\n", ping.to_owned(), Err(refused(step("AUTH", "NOAUTH x")))),
        ("", "", "-DENIED x\r\n", ping.to_owned(), Err(refused(step("AUTH", "DENIED x")))),
        ("", "", "-LOADING x\r\n", ping.to_owned(), Err(unreachable(step("PING", "LOADING x")))),
        (":p@", "", "-ERR x\r\n+PONG\r\n", auth.to_owned() + ping, Err(refused(step("AUTH", "ERR x")))),
        (
            ":p@",
            "",
            "+OK\r\n-LOADING x\r\n",
            auth.to_owned() + ping,
            Err(unreachable(step("PING", "LOADING x"))),
        ),
        (":p@", "", "+OK\r\n-ERR x\r\n", auth.to_owned() + ping, Ok("default")),
        ("me:p@", "/7", "+OK\r\n-ERR x\r\n+OK\r\n", both.to_owned(), Ok("me")),
        (
            "me:p@",
            "/7",
            "+OK\r\n+PONG\r\n-ERR x\r\n",
            both.to_owned(),
            Err(unreachable(step("SELECT", "ERR x"))),
        ),
        (
            "",
            "",
            ":1\r\n:2\r\n",
            ping.to_owned(),
            Err(unreachable(crate::wire::WireError::Unsolicited.to_string())),
        ),
    ] {
        let (address, received) = start(says, false);
        let config = config(&format!("redis://{login}{address}{db}"));
        let mut opened = each(&config, LONG, |probe, _| {
            assert_eq!((probe.address(), probe.certificate_end()), (Some(Ipv4Addr::LOCALHOST.into()), None));
            Ok(probe.user())
        });
        let opened = opened.as_mut().expect("threads").remove(0);
        assert_eq!(opened, result.map(ToOwned::to_owned), "{login} {db} {says}");
        assert_eq!(received.recv().expect("its thread ends"), sent, "{login} {db} {says}");
    }
}

#[test]
fn an_exchange_ends_with_its_replies_or_the_connection() {
    let talk = |says, ends| {
        let (address, _) = start(says, ends);
        let work = |probe: &mut Probe, _| probe.exchange(&[["GET", "a"], ["GET", "b"]]);
        each(&config(&format!("redis://{address}")), LONG, work).expect("threads").remove(0)
    };
    let ended = "the server closed the connection";
    let before_first = format!("{ended} before its first reply; if it wants TLS, write rediss://");
    let text = |text: &str| Answer::Text(text.into());
    assert_eq!(talk("+PONG\r\n|$1\r\nx\r\n+y\r\n", false), Ok(vec![text("x"), text("y")]));
    assert_eq!(talk("+PONG\r\n|$1\r\nx\r\n+y\r\n", true), Ok(vec![text("x"), text("y")]));
    assert_eq!(talk("+PONG\r\n|$1\r\nx\r\n+y\r", true), Err(unreachable(ended)));
    assert_eq!(talk("+PONG\r\n|", true), Err(unreachable(ended)));
    assert_eq!(talk("", true), Err(unreachable(before_first)));
}

#[test]
fn last_words_of_a_server_are_reported() {
    let full = "-ERR max number of clients reached\r\n";
    let said = "the server closed the connection, after \"ERR max number of clients reached\" \
                (raise maxclients there, or close idle clients)";
    let other = "the server closed the connection, after \"ERR out of order\"";
    let talk = |login, says, ends| {
        let (address, _) = start(says, ends);
        let work = |probe: &mut Probe, _| probe.exchange(&[["GET", "a"], ["GET", "b"]]);
        each(&config(&format!("redis://{login}{address}")), LONG, work).expect("threads").remove(0)
    };
    for login in ["", ":p@"] {
        assert_eq!(talk(login, full, true), Err(unreachable(said)), "{login}");
    }
    assert_eq!(talk("", "+PONG\r\n|-ERR out of order\r\n", true), Err(unreachable(other)));
    assert_eq!(talk("", "-ERR out of order\r\n|", true), Err(unreachable(other)));
    // A later answer proves that the server continued.
    let ended = "the server closed the connection";
    assert_eq!(talk("", "-ERR x\r\n|$1\r\ny\r\n", true), Err(unreachable(ended)));
    // The server does not read the second command, so the connection ends with a reset.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let url = format!("redis://{}", listener.local_addr().expect("bound"));
    let (go, gone) = mpsc::channel::<()>();
    let peer = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        stream.read_exact(&mut [0; 7]).expect("a part of PING");
        stream
            .write_all(full.replace("max number of clients reached", "out of order").as_bytes())
            .expect("it is open");
        drop((stream, go));
    });
    let gone = std::sync::Mutex::new(gone);
    let work = move |probe: &mut Probe, _: MasterId| {
        let _ = gone.lock().expect("one caller").recv();
        probe.exchange(&[["GET", "a"]])
    };
    let result = each(&config(&url), LONG, work).expect("threads").remove(0);
    let why = result.expect_err("it is closed").to_string();
    assert!(why.ends_with(", after \"ERR out of order\""), "{why}");
    peer.join().expect("it has said all");
}

/// The short limits begin after the connect, so that a slow machine does not change the error.
#[test]
fn hung_server_is_named_with_its_missing_reply() {
    let short = Duration::from_millis(20);
    let said = |result: Result<Vec<Answer>, ProbeError>| result.expect_err("it hangs").to_string();
    let (address, _) = start("", false);
    let mut probe = Probe::plain(address, LONG).expect("it accepts");
    probe.limit = short;
    assert_eq!(said(probe.exchange(&[["GET", "a"]])), "no answer within 20ms; check the master");
    let why = said(probe.log_in(0).map(|()| Vec::new()));
    assert_eq!(why, "no answer to the handshake within 20ms; check the master");
    (probe.limit, probe.session) = (LONG, Limit::new(short, clock::now() + LONG));
    let why = said(probe.exchange(&[["GET", "a"]]));
    assert_eq!(why, "not finished within 20ms; give more time, or ask for less");
}

#[test]
fn a_server_that_accepts_nobody_is_not_connected() {
    let (address, _full) = crate::driver::socket::tests::full();
    let why = Probe::plain(address, Duration::from_millis(20)).map(drop).expect_err("it accepts nobody");
    let said = "no connection within 20ms; check name service, address and firewall";
    assert_eq!(why, ProbeError::Unreachable(said.to_owned()));
}

#[test]
fn a_probe_goes_on_beside_a_swallowed_connection() {
    let (swallowing, _full) = crate::driver::socket::tests::full();
    let (live, _) = start("+PONG\r\n", false);
    let session = Limit::new(LONG, clock::now() + LONG);
    let places = [swallowing, live].map(Place::Tcp).into();
    let start_time = clock::now();
    let mut probe = Probe::connect(LONG, session, places, |socket| Ok(Channel::plain(socket)))
        .expect("one of them answers");
    assert_eq!((probe.address(), probe.log_in(0)), (Some(live.ip()), Ok(())));
    assert!(clock::now() - start_time < LONG / 2);
}

/// The socket accepts only part of it at once.
#[test]
fn a_long_command_is_written_to_its_end() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let url = format!("redis://{}", listener.local_addr().expect("bound"));
    let text = "x".repeat(16 * 1024 * 1024);
    let size = text.len();
    let peer = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        let mut bytes = vec![0; 64 * 1024];
        assert!(stream.read(&mut bytes).expect("a PING") > 0);
        stream.write_all(b"+PONG\r\n").expect("it is read");
        let mut read_size = 0;
        while read_size < size {
            read_size += stream.read(&mut bytes).expect("a command");
        }
        stream.write_all(b"+OK\r\n").expect("it is read");
    });
    let answers = each(&config(&url), LONG, move |probe, _| probe.exchange(&[["SET", "a", &text]]));
    let answers = answers.expect("threads").remove(0).expect("an answer");
    assert_eq!(answers, [Answer::Text(b"OK".as_slice().into())]);
    peer.join().expect("it has read all");
}

#[test]
fn a_result_counts_until_the_end_of_the_session() {
    let limit = 2 * GRACE;
    let start_time = clock::now();
    // A busy machine may need several tries.
    let is_in_time = || {
        let (address, _) = start("+PONG\r\n", false);
        let work = move |_, _| {
            thread::sleep(limit * 3 / 4);
            Ok(())
        };
        let results = some(&config(&format!("redis://{address}")), [0], limit, work).expect("threads");
        results == [Ok(())]
    };
    while !is_in_time() {
        assert!(clock::now() - start_time < LONG, "its result is thrown away");
    }
}

#[test]
fn results_stand_in_the_order_of_the_places() {
    let masters = [(); 3].map(|()| start("+PONG\r\n", false).0);
    let urls = masters.map(|address| format!("redis://{address}"));
    let config = Config::builder().masters(urls).connect_timeout(LONG).build().expect("valid settings");
    let places = some(&config, [2, 0], LONG, |_, master| Ok(master.index())).expect("threads");
    assert_eq!(places, [Ok(2), Ok(0)]);
}
