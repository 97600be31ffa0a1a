//! Names of keys on a master, page by page. Also the masters that failed.

use std::sync::Arc;

use crate::doctor::candidates::literal;
use redlatch::probe::{Answer, Probe, ProbeError};
use redlatch::words::grouped;

/// One page of the names behind a prefix.
pub(super) struct Page {
    /// Names without the prefix. A name may come twice.
    pub(super) names: Vec<Vec<u8>>,
    /// Cursor of the next page; `0` after the last page.
    pub(super) next: Vec<u8>,
}

/// Cursor of the first page. As the next cursor it means that no page is left.
pub(super) const START: &[u8] = b"0";

/// Pattern of the keys behind this prefix whose rest matches.
pub(super) fn pattern(prefix: &[u8], rest: &[u8]) -> Vec<u8> {
    [&literal(prefix), rest].concat()
}

/// About how many keys a master examines for one page. It serves other clients between two pages.
const COUNT: &[u8] = b"128";

/// Asks for the page at `cursor`. A key that comes or goes meanwhile may be missed.
pub(super) fn page(
    probe: &mut Probe,
    cursor: &[u8],
    pattern: &[u8],
    prefix_size: usize,
) -> Result<Page, ProbeError> {
    let answer = probe.exchange_page(&[b"SCAN".as_slice(), cursor, b"MATCH", pattern, b"COUNT", COUNT])?;
    let unusable = |answer: &Answer| match answer {
        Answer::Error(text) => ProbeError::Unreachable(text.clone()),
        _ => ProbeError::Unreachable("its reply to SCAN has an unknown form".to_owned()),
    };
    let Answer::List(parts) = &answer else { return Err(unusable(&answer)) };
    let (Some(Answer::Text(next)), Some(Answer::List(keys))) = (parts.first(), parts.get(1)) else {
        return Err(unusable(&answer));
    };
    let names = keys.iter().filter_map(Answer::bytes).filter_map(|key| key.get(prefix_size..));
    Ok(Page { names: names.map(<[u8]>::to_vec).collect(), next: next.clone() })
}

/// Masters that failed, each with its first failure.
#[derive(Default)]
pub(super) struct Failures(Vec<(Arc<str>, String)>);

impl Failures {
    pub(super) fn add(&mut self, master: &Arc<str>, why: impl ToString) {
        if !self.has(master) {
            self.0.push((master.clone(), why.to_string()));
        }
    }

    pub(super) fn has(&self, master: &Arc<str>) -> bool {
        self.0.iter().any(|(other, _)| other == master)
    }

    /// A line for each group of masters with the same failure, out of `count` masters.
    pub(super) fn lines(&self, count: usize) -> Vec<String> {
        grouped(self.0.iter().map(|(master, why)| (&**master, why.clone())), count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_of_a_master_is_shown() {
        let [one, other] = ["redis://a", "redis://b"].map(Arc::from);
        let mut failures = Failures::default();
        for (master, why) in [(&one, "no answer"), (&one, "gone"), (&other, "gone")] {
            failures.add(master, why);
        }
        assert_eq!(failures.lines(3), ["redis://a: no answer", "redis://b: gone"]);
    }
}
