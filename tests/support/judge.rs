//! Decides from the holders' logs whether two holders that do not share a lock had it at the same time.
//!
//! There are two witnesses. Each client logs the interval of its validity, on this process's clock; the
//! intervals of a resource must not overlap. And each holder writes its entry and its exit to one more
//! server, which orders them; entries and exits must alternate. Only the first witness counts for a holder
//! whose validity ended before its exit was confirmed.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Instant;

/// One held lock, from its grant to its release or its end.
#[derive(Debug, Clone)]
pub struct Visit {
    pub name: VisitName,
    /// Whether other shared holders may be inside at the same time.
    pub is_shared: bool,
    /// A time after the grant was handed out.
    pub from: Instant,
    /// A time before the release; the end of the validity if that came first.
    pub until: Instant,
    /// Whether entry and exit were both confirmed within the validity.
    pub is_witnessed: bool,
    pub fencing_token: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct VisitName {
    pub resource: usize,
    pub client: usize,
    pub number: usize,
}

impl fmt::Display for VisitName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.client, self.number)
    }
}

/// Pairs of visits to one resource with overlapping validity, in words.
pub fn overlaps(visits: &[Visit]) -> Vec<String> {
    let mut visits: Vec<&Visit> = visits.iter().collect();
    visits.sort_by_key(|visit| (visit.name.resource, visit.from));
    let mut found = Vec::new();
    // The latest end among shared holders, and among the others.
    let mut latest: [Option<&Visit>; 2] = [None, None];
    for visit in visits {
        let of_resource = |before: &&Visit| before.name.resource == visit.name.resource;
        let rivals = if visit.is_shared { &latest[1..] } else { &latest[..] };
        let rivals = rivals.iter().flatten().copied().filter(of_resource);
        for before in rivals.filter(|before| visit.from < before.until) {
            let both = before.until.min(visit.until).saturating_duration_since(visit.from);
            found.push(format!(
                "resource {}: {} and {} both for {both:?}",
                visit.name.resource, before.name, visit.name
            ));
        }
        let own = &mut latest[usize::from(!visit.is_shared)];
        if own.filter(of_resource).is_none_or(|before| before.until < visit.until) {
            *own = Some(visit);
        }
    }
    found
}

/// Fenced visits to a resource whose token is not above all earlier ones, in words.
pub fn token_disorders(visits: &[Visit]) -> Vec<String> {
    let fenced = visits.iter().filter_map(|visit| Some((visit, visit.fencing_token?)));
    let mut fenced: Vec<_> = fenced.collect();
    fenced.sort_by_key(|(visit, _)| (visit.name.resource, visit.from));
    let wrong = |pair: &[(&Visit, u64)]| {
        let [(before, old), (visit, new)] = *pair else { unreachable!("windows of two") };
        (before.name.resource == visit.name.resource && new <= old)
            .then(|| format!("resource {}: {} has token {new} after {old}", visit.name.resource, visit.name))
    };
    fenced.windows(2).filter_map(wrong).collect()
}

/// Faults in the second witness's log of one resource (`+` and `-` with a visit's name, in the order of
/// arrival), in words.
pub fn disorders(resource: usize, log: &[String], visits: &[Visit]) -> Vec<String> {
    let witnessed: BTreeSet<String> = visits
        .iter()
        .filter(|visit| visit.name.resource == resource && visit.is_witnessed)
        .map(|visit| visit.name.to_string())
        .collect();
    let shared: BTreeSet<String> = visits
        .iter()
        .filter(|visit| visit.name.resource == resource && visit.is_shared)
        .map(|visit| visit.name.to_string())
        .collect();
    let mut found = Vec::new();
    let mut inside: Vec<&str> = Vec::new();
    let mut seen_count = 0;
    for event in log {
        let (kind, name) = event.split_at(1);
        if !witnessed.contains(name) {
            continue;
        }
        match (kind, inside.iter().position(|other| *other == name)) {
            ("+", None) => {
                let is_rival = |other: &&&str| !shared.contains(name) || !shared.contains(**other);
                if let Some(other) = inside.iter().find(is_rival) {
                    found.push(format!("resource {resource}: {name} came in while {other} was inside"));
                }
                inside.push(name);
                seen_count += 1;
            }
            ("-", Some(place)) => drop(inside.swap_remove(place)),
            _ => found.push(format!("resource {resource}: {event} while {inside:?} was inside")),
        }
    }
    if seen_count != witnessed.len() {
        found.push(format!("resource {resource}: {seen_count} entries of {} arrived", witnessed.len()));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn visit(start: Instant, client: usize, resource: usize, from_ms: u64, until_ms: u64) -> Visit {
        let at = |ms| start + Duration::from_millis(ms);
        let name = VisitName { resource, client, number: 0 };
        let is_shared = false;
        let (from, until, fencing_token) = (at(from_ms), at(until_ms), None);
        Visit { name, is_shared, from, until, is_witnessed: true, fencing_token }
    }

    #[test]
    fn two_simultaneous_holders_are_seen() {
        let start = Instant::now();
        let visit = |client, resource, from_ms, until_ms| visit(start, client, resource, from_ms, until_ms);
        let good = [visit(0, 0, 0, 10), visit(1, 0, 10, 20), visit(2, 1, 5, 15)];
        assert_eq!(overlaps(&good), Vec::<String>::new());
        let found = overlaps(&[visit(0, 0, 0, 10), visit(1, 0, 9, 20)]);
        assert_eq!(found, ["resource 0: 0.0 and 1.0 both for 1ms"]);
        let found = overlaps(&[visit(2, 0, 8, 9), visit(0, 0, 0, 10), visit(1, 0, 3, 4)]);
        assert_eq!(found.len(), 2, "{found:?}");
        let shared =
            |client, from_ms, until_ms| Visit { is_shared: true, ..visit(client, 0, from_ms, until_ms) };
        let good = [shared(0, 0, 10), shared(1, 5, 20), visit(2, 0, 20, 25), shared(0, 25, 30)];
        assert_eq!(overlaps(&good), Vec::<String>::new());
        let found = overlaps(&[shared(0, 0, 10), shared(1, 2, 3), visit(2, 0, 9, 12), shared(3, 11, 13)]);
        assert_eq!(found, ["resource 0: 0.0 and 2.0 both for 1ms", "resource 0: 2.0 and 3.0 both for 1ms"]);
    }

    #[test]
    fn tokens_of_one_resource_must_rise() {
        let start = Instant::now();
        let fenced = |resource, from_ms, token: u64| Visit {
            fencing_token: Some(token),
            ..visit(start, 0, resource, from_ms, from_ms + 1)
        };
        let good = [fenced(0, 5, 9), fenced(0, 1, 8), visit(start, 0, 0, 2, 3), fenced(1, 7, 1)];
        assert_eq!(token_disorders(&good), Vec::<String>::new());
        let found = token_disorders(&[fenced(0, 1, 8), fenced(0, 5, 8), fenced(0, 6, 7)]);
        assert_eq!(found, ["resource 0: 0.0 has token 8 after 8", "resource 0: 0.0 has token 7 after 8"]);
    }

    #[test]
    fn a_log_must_alternate_but_for_late_exits() {
        let start = Instant::now();
        let mut visits = [visit(start, 0, 0, 0, 1), visit(start, 1, 0, 0, 1)];
        let log = |events: &str| events.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(disorders(0, &log("+1.0 -1.0 +0.0 -0.0"), &visits), Vec::<String>::new());
        assert_eq!(disorders(0, &log("+1.0 +0.0 -1.0 -0.0"), &visits).len(), 1);
        visits[0].is_shared = true;
        assert_eq!(disorders(0, &log("+1.0 +0.0 -1.0 -0.0"), &visits).len(), 1, "one of them shares");
        visits[1].is_shared = true;
        assert_eq!(disorders(0, &log("+1.0 +0.0 -1.0 -0.0"), &visits), Vec::<String>::new());
        visits.iter_mut().for_each(|visit| visit.is_shared = false);
        assert_eq!(disorders(0, &log("+1.0 -1.0 +0.0"), &visits).len(), 0, "its end is not known to be late");
        assert_eq!(disorders(0, &log("+1.0 -1.0"), &visits).len(), 1, "an entry is missing");
        visits[1].is_witnessed = false;
        assert_eq!(disorders(0, &log("+1.0 +0.0 -1.0 -0.0"), &visits), Vec::<String>::new());
    }
}
