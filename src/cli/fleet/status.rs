//! `redlatch fleet status`: the recorded settings, the clients, and differences.

use std::collections::BTreeMap;

use crate::doctor::candidates::{Asked, ask_candidates};
use redlatch::Config;
use redlatch::founding::{Candidate, seen};
use redlatch::probe::ProbeError;
use redlatch::record::{Found, Record, Seen};
use redlatch::words::{Counted, Rounded, Shown, grouped};
use serde_json::{Value, json};

use crate::exit::{Exit, code};
use crate::options::AskedOptions;
use crate::output::{add_paragraph, json_line, print, stdout_width};

/// Show the settings that the masters have recorded, their clients, and what differs from these options.
///
/// It changes nothing. Clients are listed by the names of their connections: the library's version, unless
/// the client sets another name. This needs the right +client|list.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    asked: AskedOptions,
}

const HELP: &str = "\
Exit codes:
  0 if nothing differs, 1 if a master that was asked differs, 64 bad usage, 69
  if a master could not be asked, 70 if the operating system refused something

Example:
  redlatch fleet status --json | jq -r '.differs[]'";

pub(super) fn execute(args: &Args) -> Result<u8, Exit> {
    let config = args.asked.masters.config()?;
    let masters = ask_candidates(&config, args.asked.time_limit)?;
    let status = Status::new(&config, &masters);
    print(&if args.json { status.json() } else { status.text(stdout_width()) })?;
    Ok(if !status.differs.is_empty() {
        code::WARNINGS
    } else if masters.iter().any(|(_, answer)| answer.is_err()) {
        code::NO_QUORUM
    } else {
        0
    })
}

struct Status<'a> {
    masters: &'a [Asked],
    /// First record that a master has.
    record: Option<&'a Record>,
    /// Clients by name, with the largest number of connections to one master.
    clients: BTreeMap<&'a str, usize>,
    /// Whether each master that answered lists its clients.
    knows_clients: bool,
    differs: Vec<String>,
}

impl<'a> Status<'a> {
    fn new(config: &Config, masters: &'a [Asked]) -> Self {
        let seen: Vec<_> = masters.iter().map(|(name, answer)| seen(name, answer.as_ref().ok())).collect();
        let difference = |seen_here: &Seen<'_>| match seen_here.found {
            Found::Known(record) => record.difference(config, &seen).map(|it| it.to_string()),
            Found::Unusable(why) => Some(why.to_string()),
            Found::Absent | Found::Unread => None,
        };
        let lines = seen.iter().filter_map(|it| Some((it.name, difference(it)?)));
        let differs = grouped(lines, masters.len());
        let mut clients: BTreeMap<&str, usize> = BTreeMap::new();
        let answered = || masters.iter().filter_map(|(_, answer)| answer.as_ref().ok());
        let listed = || answered().map(|it| &it.clients);
        for (name, count) in listed().flatten().flatten() {
            let most = clients.entry(name).or_default();
            *most = (*most).max(*count);
        }
        let record = answered().find_map(|it| it.found.record());
        Self { masters, record, clients, knows_clients: listed().all(Option::is_some), differs }
    }

    fn text(&self, width: usize) -> String {
        let mut out = String::new();
        let settings = self.record.map_or_else(
            || "no record of a fleet; the first client writes it when all masters count".to_owned(),
            |record| {
                format!(
                    "fleet {}, {}: {}, max TTL {}, drift {} ppm",
                    record.id(),
                    record.origin(),
                    Counted(record.master_count(), "master"),
                    Rounded(record.max_ttl()),
                    record.drift_ppm()
                )
            },
        );
        add_paragraph(&mut out, width, "", 2, &settings);
        for (name, answer) in self.masters {
            let what = match answer {
                Ok(candidate) => master_words(candidate),
                Err(ProbeError::Unreachable(why)) => format!("no answer: {why}"),
                Err(ProbeError::LoginRefused(why)) => why.clone(),
            };
            add_paragraph(&mut out, width, "", 2, &format!("{name}: {what}"));
        }
        for (name, count) in &self.clients {
            add_paragraph(
                &mut out,
                width,
                "",
                2,
                &format!("client {}: {}", Shown(name), Counted(*count, "connection")),
            );
        }
        if !self.knows_clients {
            add_paragraph(&mut out, width, "", 2, "not all clients are known: the login lacks +client|list");
        }
        for line in &self.differs {
            add_paragraph(&mut out, width, "differs: ", 2, line);
        }
        out
    }

    fn json(&self) -> String {
        let master = |(name, answer): &Asked| {
            let candidate = answer.as_ref().ok();
            let record = candidate.and_then(|it| it.found.record());
            json!({
                "name": **name,
                "answered": candidate.is_some(),
                "why": answer.as_ref().err().map(ToString::to_string),
                "record": record.map(|it| it.origin().to_string()),
                "fleet": record.map(|it| it.id().to_string()),
                "uptime_s": candidate.and_then(|it| Some(it.uptime?.as_secs())),
            })
        };
        let client = |(name, count): (&&str, &usize)| json!({ "name": name, "connections": count });
        json_line(&json!({
            "fleet": self.record.map(|it| it.id().to_string()),
            "origin": self.record.map(|it| it.origin().to_string()),
            "master_count": self.record.map(Record::master_count),
            "max_ttl_ms": self.record.map(|it| it.max_ttl().as_millis()),
            "drift_ppm": self.record.map(Record::drift_ppm),
            "masters": self.masters.iter().map(master).collect::<Vec<Value>>(),
            "clients": self.clients.iter().map(client).collect::<Vec<Value>>(),
            "knows_clients": self.knows_clients,
            "differs": self.differs,
        }))
    }
}

fn master_words(candidate: &Candidate) -> String {
    let record = match &candidate.found {
        Found::Known(record) => record.origin().to_string(),
        Found::Unusable(_) => "unusable record".to_owned(),
        Found::Absent | Found::Unread => "no record".to_owned(),
    };
    let uptime = candidate.uptime.map(|uptime| format!(", up {}", Rounded(uptime))).unwrap_or_default();
    format!("{record}{uptime}")
}

#[cfg(test)]
mod tests;
