//! Questions of `redlatch fleet` to each master about its identity, record and clients. Also the writing of
//! records.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::facts::{PREFIX_SCAN_COUNT_MAX, read_record, server};
use super::rights::{Rights, Trial, trials};
use redlatch::founding::{Candidate, Change, OldMaster};
use redlatch::probe;
use redlatch::probe::{Answer, Probe, ProbeError, each, some};
use redlatch::record::{Found, Record};
use redlatch::{Config, ConnectError};

/// Beginning of a connection's default name.
const CLIENT_NAME: &str = "redlatch/";

/// A master: its URL without the login, and the facts about it, or why there are none.
pub(crate) type Asked = (Arc<str>, Result<Candidate, ProbeError>);

/// Asks each master of a configuration, for at most `limit`. Changes nothing.
///
/// # Errors
/// [`ConnectError`] if certificates cannot be used, or if no thread can be started.
pub(crate) fn ask_candidates(config: &Config, limit: Duration) -> Result<Vec<Asked>, ConnectError> {
    let settings = config.clone();
    let answers = each(config, limit, move |probe, _| ask(probe, &settings))?;
    Ok(config.names().iter().cloned().zip(answers).collect())
}

/// Asks the old master of a replacement whether it refuses the clients' writes. Changes nothing.
///
/// # Errors
/// As [`ask_candidates`].
pub(crate) fn ask_old(config: &Config, place: usize, limit: Duration) -> Result<OldMaster, ConnectError> {
    let settings = config.clone();
    let asked = some(config, [place], limit, move |mut probe, _| {
        let trials: Vec<_> = trials(&settings).into_iter().filter(|it| LOCKING.contains(&it.right)).collect();
        let commands: Vec<_> = trials.iter().map(|Trial { command, .. }| command).collect();
        let mut rights = Rights::default();
        for (trial, answer) in trials.iter().zip(probe.exchange(&commands)?) {
            rights.note(trial, &answer);
        }
        let taken: Vec<_> = LOCKING.into_iter().filter(|right| !rights.denied.contains(right)).collect();
        let commands = taken.join(", ").to_uppercase();
        let user = probe.user();
        Ok(if taken.is_empty() { OldMaster::Refuses } else { OldMaster::Takes { commands, user } })
    })?;
    let unknown = |why: ProbeError| OldMaster::Unknown(why.to_string());
    Ok(asked.into_iter().map(|answer| answer.unwrap_or_else(unknown)).collect::<Vec<_>>().remove(0))
}

/// Commands with which a client gets or extends a lock, as an ACL names them.
const LOCKING: [&str; 4] = ["set", "pexpire", "evalsha", "eval"];

/// Writes records one after another. Each replaces the record that was read before.
///
/// # Errors
/// As [`ask_candidates`]. The inner error is the first master on which a write failed, and why.
pub(crate) fn write_records(
    config: &Config,
    limit: Duration,
    changes: &[Change],
) -> Result<Result<(), (Arc<str>, String)>, ConnectError> {
    for Change { place, from, to } in changes {
        let (key, from, to) =
            (Found::key(config.prefix()), from.as_ref().map(Record::to_string), to.to_string());
        let written = some(config, [*place], limit, move |mut probe, _| {
            write_record(&mut probe, &key, from.as_deref(), to.as_bytes())
        })?;
        if let Some(why) = written.into_iter().find_map(Result::err) {
            return Ok(Err((config.names()[*place].clone(), why.to_string())));
        }
    }
    Ok(Ok(()))
}

/// Writes a record if the master still has `from`: with `SET NX` if `from` is `None`, otherwise with `SET
/// IFEQ`, or with a script if the server lacks `SET IFEQ`.
fn write_record(probe: &mut Probe, key: &[u8], from: Option<&str>, to: &[u8]) -> Result<(), ProbeError> {
    let set: Vec<&[u8]> = match from {
        None => vec![b"SET", key, to, b"NX"],
        Some(from) => vec![b"SET", key, to, b"IFEQ", from.as_bytes()],
    };
    let answers = probe.exchange(&[set, vec![b"GET", key]])?;
    let (error, mut found) = (answers[0].error(), &answers[1]);
    let is_unknown = error.is_some_and(|error| error.starts_with("ERR"));
    let by_script;
    if let Some(from) = from.filter(|_| is_unknown) {
        let words: [&[u8]; 6] = [b"EVAL", REPLACE_RECORD.as_bytes(), b"1", key, from.as_bytes(), to];
        by_script = probe.exchange(&[words])?.remove(0);
        if let Some(error) = by_script.error() {
            let why = format!("it lacks SET IFEQ, and refused a script: {error}; grant +eval");
            return Err(ProbeError::Unreachable(why));
        }
        found = &by_script;
    } else if let Some(error) = error {
        return Err(ProbeError::Unreachable(error.to_owned()));
    }
    if found.bytes() == Some(to) {
        return Ok(());
    }
    Err(ProbeError::Unreachable("it has another record now".to_owned()))
}

/// Replaces a record, and returns the record that the master has then.
const REPLACE_RECORD: &str = include_str!("replace_record.lua");

fn ask(probe: &mut Probe, config: &Config) -> Result<Candidate, ProbeError> {
    let sections = probe.exchange(&[["INFO", "server"], ["INFO", "replication"]])?;
    let server = server(&sections);
    Ok(Candidate {
        run_id: server.run_id.map(String::from),
        uptime: server.uptime,
        is_master: server.role.is_some_and(|role| &*role == "master") && server.promotion.is_none(),
        clients: list_clients(probe, config)?,
        found: read_record(probe, config.prefix())?,
        key_count: count_keys(probe, config.prefix())?,
    })
}

/// Returns the Redis pattern that matches just this text.
#[must_use]
pub(crate) fn literal(text: &[u8]) -> Vec<u8> {
    let escaped = |byte: &u8| b"*?[]^-\\".contains(byte).then_some(b'\\').into_iter().chain([*byte]);
    text.iter().flat_map(escaped).collect()
}

/// Number of keys behind the prefix, without the fleet's record. Stops at the first page with keys.
fn count_keys(probe: &mut Probe, prefix: &[u8]) -> Result<Option<usize>, ProbeError> {
    let (pattern, record) = ([&literal(prefix), b"*".as_slice()].concat(), Found::key(prefix));
    count_pages(&record, |cursor| {
        let command: [&[u8]; 6] = [b"SCAN", cursor, b"MATCH", &pattern, b"COUNT", b"1000"];
        probe.exchange_page(&command)
    })
}

/// Number of keys on the first page that has keys other than the record. `page` returns the page at a cursor.
fn count_pages(
    record: &[u8],
    mut page: impl FnMut(&[u8]) -> Result<Answer, ProbeError>,
) -> Result<Option<usize>, ProbeError> {
    let mut cursor = b"0".to_vec();
    for _ in 0..PREFIX_SCAN_COUNT_MAX {
        let Answer::List(parts) = page(&cursor)? else { return Ok(None) };
        let (Some(Answer::Text(next)), Some(Answer::List(keys))) = (parts.first(), parts.get(1)) else {
            return Ok(None);
        };
        let count = keys.iter().filter(|key| key.bytes() != Some(record)).count();
        if count > 0 || next == b"0" {
            return Ok(Some(count));
        }
        cursor.clone_from(next);
    }
    // Too many keys with other prefixes to look at all of them.
    Ok(None)
}

/// Number of connections by client name. `None` if the master does not list all clients.
fn list_clients(probe: &mut Probe, config: &Config) -> Result<Option<BTreeMap<String, usize>>, ProbeError> {
    let answer = probe.exchange_list(&["CLIENT", "LIST"])?;
    Ok(clients_in(&answer, config.client_name()))
}

/// Counts the connections in an answer. `own_name` is the name of this client's connections.
fn clients_in(answer: &Answer, own_name: &str) -> Option<BTreeMap<String, usize>> {
    let list = answer.bytes().filter(|list| list.len() < probe::LIST_SIZE_MAX)?;
    let mut clients = BTreeMap::new();
    for line in String::from_utf8_lossy(list).lines() {
        let name = line.split(' ').find_map(|field| field.strip_prefix("name=")).unwrap_or_default();
        if name.starts_with(CLIENT_NAME) || name == own_name {
            *clients.entry(name.to_owned()).or_default() += 1;
        }
    }
    Some(clients)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread;

    use redlatch::record::{Origin, Seen};
    use redlatch_support::PATIENCE;

    use super::*;

    /// The script itself is tested on a server.
    #[test]
    fn a_record_is_written_unless_another_is_there() {
        let config = Config::builder().master("redis://a").build().expect("valid settings");
        let seen = Seen { name: &config.names()[0], found: &Found::Absent, run_id: Some("r1") };
        let record =
            |origin| Record::of_fleet(&config, &[seen], origin).expect("its process is known").remove(0);
        let (from, to) = (record(Origin::Declared).to_string(), record(Origin::Observed).to_string());
        let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
        let changed = Err("it has another record now".to_owned());
        let no_if_eq = || format!("-ERR syntax error\r\n{}", bulk(&from));
        for (from, replies, expected) in [
            (None, vec![format!("+OK\r\n{}", bulk(&to))], Ok(())),
            (None, vec![format!("$-1\r\n{}", bulk(&from))], changed.clone()),
            (Some(&*from), vec![format!("+OK\r\n{}", bulk(&to))], Ok(())),
            (Some(&*from), vec![no_if_eq(), bulk(&to)], Ok(())),
            (Some(&*from), vec![no_if_eq(), bulk("redlatch:fleet:1 x")], changed),
        ] {
            let mut probe = master_that_says(replies);
            let written = write_record(&mut probe, b"redlatch:fleet", from, to.as_bytes());
            assert_eq!(written.map_err(|why| why.to_string()), expected);
        }
    }

    /// A connection to a peer that answers each write with the next of these texts.
    fn master_that_says(replies: Vec<String>) -> Probe {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let addr = listener.local_addr().expect("bound");
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            for reply in replies {
                assert!(stream.read(&mut [0; 4096]).expect("a command") > 0);
                stream.write_all(reply.as_bytes()).expect("it listens");
            }
        });
        Probe::plain(addr, PATIENCE).expect("it is there")
    }

    #[test]
    fn a_prefix_is_no_pattern() {
        assert_eq!(literal(b"a*[b]:"), b"a\\*\\[b\\]:");
        assert_eq!(literal(b""), b"");
    }

    #[test]
    fn one_key_on_an_early_page_is_found() {
        let text = |text: &str| Answer::Text(text.as_bytes().to_vec());
        let page = |next: &str, keys: &[&str]| {
            Answer::List(vec![text(next), Answer::List(keys.iter().map(|key| text(key)).collect())])
        };
        let count = |pages: &[Answer]| {
            let mut pages = pages.iter();
            count_pages(b"p:record", |_| Ok(pages.next().expect("it ended").clone()))
        };
        let (empty, last) = (page("7", &[]), page("0", &[]));
        assert_eq!(count(&[empty.clone(), page("9", &["p:a"])]), Ok(Some(1)));
        assert_eq!(count(&[page("7", &["p:a", "p:record", "p:b"])]), Ok(Some(2)));
        assert_eq!(count(&[empty.clone(), page("9", &["p:record"]), last]), Ok(Some(0)));
        assert_eq!(count(&[empty.clone(), page("0", &["p:a"])]), Ok(Some(1)));
        assert_eq!(count(&[empty, Answer::Error("NOPERM".to_owned())]), Ok(None));
        let mut cursors = Vec::new();
        let endless = count_pages(b"p:record", |cursor| {
            cursors.push(String::from_utf8_lossy(cursor).into_owned());
            Ok(page("7", &[]))
        });
        assert_eq!((endless, cursors.len()), (Ok(None), PREFIX_SCAN_COUNT_MAX));
        assert_eq!(cursors[..3], ["0", "7", "7"]);
    }

    #[test]
    fn truncated_client_list_is_rejected() {
        let listed = |size: usize| {
            let line = b"id=1 name=redlatch/9.9.9 db=0\nid=2 name=billing\nid=3 name= db=0\n";
            let list = [line.as_slice(), &vec![b'x'; size - line.len()]].concat();
            clients_in(&Answer::Text(list), "billing")
        };
        let both = [("redlatch/9.9.9".to_owned(), 1), ("billing".to_owned(), 1)];
        assert_eq!(listed(100), Some(both.clone().into()));
        assert_eq!(listed(probe::LIST_SIZE_MAX - 1), Some(both.into()));
        assert_eq!(listed(probe::LIST_SIZE_MAX), None);
        assert_eq!(clients_in(&Answer::Error("NOPERM".to_owned()), "billing"), None);
    }
}
