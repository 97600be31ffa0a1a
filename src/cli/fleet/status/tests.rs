//! The status of a fleet as text and as JSON, from fixed answers.

use std::time::Duration;

use redlatch::record::Origin;

use super::*;

fn config(max_ttl_s: u64) -> Config {
    let urls = (1..=3).map(|index| format!("redis://10.0.0.{index}"));
    Config::builder().masters(urls).max_ttl(Duration::from_secs(max_ttl_s)).build().expect("valid")
}

fn answered(index: u8, found: Found, clients: Option<&[(&str, usize)]>) -> Asked {
    let clients = clients.map(|all| all.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect());
    let candidate = Candidate {
        run_id: Some(format!("run{index}")),
        uptime: Some(Duration::from_secs(90 + u64::from(index))),
        is_master: true,
        found,
        key_count: Some(7),
        clients,
    };
    (name(index).into(), Ok(candidate))
}

fn name(index: u8) -> String {
    format!("redis://10.0.0.{index}:6379")
}

#[test]
fn fleet_status_matches_its_golden_file() {
    let absent: Vec<_> = (1..=3).map(|index| answered(index, Found::Absent, Some(&[]))).collect();
    let seen: Vec<_> = absent.iter().map(|(name, answer)| seen(name, answer.as_ref().ok())).collect();
    let records = Record::of_fleet(&config(9), &seen, Origin::Observed).expect("each is known");
    let known = |index: u8| Found::Known(records[usize::from(index) - 1].clone());
    let down = (name(3).into(), Err(ProbeError::Unreachable("Connection refused".to_owned())));
    let (some, more) = (
        &[("redlatch/0.1.0", 2), ("billing of the northern branch", 1), ("redlatch/\u{1b}]0;x", 1)][..],
        &[("redlatch/0.1.0", 5)][..],
    );
    let same = vec![
        answered(1, known(1), Some(some)),
        answered(2, known(2), Some(more)),
        answered(3, known(3), Some(some)),
    ];
    let part = vec![answered(1, Found::Absent, None), answered(2, known(2), Some(some)), down];
    let damaged = Found::from_text(b"redlatch:fleet:1 what");
    let foreign = vec![
        answered(1, damaged, Some(&[])),
        answered(2, Found::Absent, Some(&[])),
        answered(3, Found::Unread, Some(&[])),
    ];
    let mut page = String::new();
    for (title, max_ttl_s, masters) in [
        ("no record", 9, &absent),
        ("the same", 9, &same),
        ("another time", 8, &same),
        ("a part", 8, &part),
        ("damaged", 9, &foreign),
    ] {
        let config = config(max_ttl_s);
        let status = Status::new(&config, masters);
        page += &format!("# {title}\n{}\n{}\n{}\n", status.text(110), status.text(40), status.json());
    }
    redlatch_support::assert_golden("fleet", &page);
}
