//! The command's descendants, even in another group or session, or without their parents.
//!
//! On Linux this process adopts orphaned descendants (it is a subreaper), so all of them stay below it in the
//! process tree that `/proc` shows. On other systems only the command's group is known.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use rustix::process::{Pid, getpid};

/// A process, distinguished from a later process with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Identity {
    pub(super) pid: Pid,
    /// Clock ticks from the system's start to the process's start.
    started: u64,
}

/// Entry of a process in `/proc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Descendant {
    pub(super) id: Identity,
    parent: Option<Pid>,
    pub(super) group: Option<Pid>,
    state: u8,
}

impl Descendant {
    /// Whether the process has ended and waits to be reaped.
    pub(super) const fn is_zombie(&self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }

    pub(super) const fn is_stopped(&self) -> bool {
        matches!(self.state, b'T' | b't')
    }

    /// Whether this process started or adopted the descendant.
    pub(super) fn is_child(&self) -> bool {
        self.parent == Some(getpid())
    }

    /// Parses `/proc/PID/stat`. The program's name may contain any bytes.
    fn parse(stat: &[u8]) -> Option<Self> {
        let name = stat.iter().position(|byte| *byte == b'(')?;
        let name_end = stat.iter().rposition(|byte| *byte == b')')?;
        let text = |bytes| std::str::from_utf8(bytes).ok();
        let pid = text(&stat[..name])?.trim().parse().ok().and_then(existing)?;
        let rest: Vec<&str> = text(&stat[name_end + 1..])?.split_ascii_whitespace().collect();
        let number = |index: usize| rest.get(index)?.parse().ok().map(existing);
        let state = *rest.first()?.as_bytes().first()?;
        let started = rest.get(19)?.parse().ok()?;
        Some(Self { id: Identity { pid, started }, parent: number(1)?, group: number(2)?, state })
    }
}

/// The kernel shows 0 for a process outside this namespace, and -1 for a process that is ending.
fn existing(pid: i32) -> Option<Pid> {
    if pid > 0 { Pid::from_raw(pid) } else { None }
}

/// Makes this process adopt descendants whose parents end.
pub(super) fn adopt() {
    #[cfg(target_os = "linux")]
    // Refused before Linux 3.4. Then descendants outside the group are out of reach.
    let _ = rustix::process::set_child_subreaper(Some(getpid()));
}

/// Result of a search; `None` without `/proc`.
pub(super) type Found = Option<Vec<Descendant>>;

/// A thread that searches: `/proc` may have thousands of entries, and KILL must not wait for them.
#[derive(Debug)]
pub(super) struct Search {
    begin: Sender<()>,
    found: Receiver<Found>,
    is_under_way: bool,
    /// Whether the search under way started before the latest [`Self::begin_anew`].
    is_outdated: bool,
}

impl Search {
    pub(super) fn start(strangers: Arc<HashSet<Identity>>) -> io::Result<Self> {
        let (begin, begun) = mpsc::channel();
        let (sender, found) = mpsc::channel();
        thread::Builder::new()
            .name("descendants".to_owned())
            .spawn(move || while begun.recv().is_ok() && sender.send(list(&strangers)).is_ok() {})?;
        Ok(Self { begin, found, is_under_way: false, is_outdated: false })
    }

    /// Begins a search, unless one is under way.
    pub(super) fn begin(&mut self) {
        if !self.is_under_way {
            self.is_under_way = self.begin.send(()).is_ok();
        }
    }

    /// Begins a search that starts from now: if a search is under way, its result is dropped and it is
    /// repeated.
    pub(super) fn begin_anew(&mut self) {
        self.is_outdated = self.is_under_way;
        self.begin();
    }

    /// Result of the latest search, once.
    pub(super) fn take(&mut self) -> Option<Found> {
        let found = self.found.try_recv().ok()?;
        self.is_under_way = false;
        if std::mem::take(&mut self.is_outdated) {
            self.begin();
            return None;
        }
        Some(found)
    }
}

/// Whether this process still exists. Its number may meanwhile belong to another process.
pub(super) fn exists(id: Identity) -> bool {
    let stat = fs::read(format!("/proc/{}/stat", id.pid)).unwrap_or_default();
    Descendant::parse(&stat).is_some_and(|it| it.id == id)
}

/// All descendants of this process except the strangers and their descendants.
pub(super) fn list(strangers: &HashSet<Identity>) -> Found {
    let pids = fs::read_dir("/proc").ok()?.flatten().map(|entry| entry.path());
    // A process that has just ended has no entry, which is no error.
    let all: Vec<_> = pids
        .filter(|path| path.file_name().is_some_and(|name| name.as_encoded_bytes()[0].is_ascii_digit()))
        .filter_map(|path| Descendant::parse(&fs::read(path.join("stat")).ok()?))
        .collect();
    let is_here = all.iter().any(|it| it.id.pid == getpid());
    is_here.then(|| below(all, getpid(), strangers))
}

/// Zombies in the latest list.
#[derive(Debug, Default)]
pub(super) struct Ended(HashSet<Identity>);

impl Ended {
    /// Takes the next list. Returns whether the list may miss a process: `/proc` is listed before its entries
    /// are read, and a process that ended in between may have started another one, which is not listed.
    pub(super) fn follow(&mut self, found: &[Descendant]) -> bool {
        let ended = found.iter().filter(|it| it.is_zombie()).map(|it| it.id).collect();
        let before = std::mem::replace(&mut self.0, ended);
        !self.0.is_subset(&before)
    }
}

fn below(mut rest: Vec<Descendant>, root: Pid, strangers: &HashSet<Identity>) -> Vec<Descendant> {
    rest.retain(|it| !strangers.contains(&it.id));
    let mut found = Vec::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for child in rest.extract_if(.., |it| it.parent == Some(parent)) {
            parents.push(child.id.pid);
            found.push(child);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descendant(pid: i32, parent: i32) -> Descendant {
        let stat =
            format!("{pid} (a) b\n) S {parent} 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 {} 1 1", pid * 2);
        Descendant::parse(stat.as_bytes()).expect("a line of the kernel's")
    }

    #[test]
    fn a_name_of_any_bytes_hides_no_process() {
        let stat = b"42 (\xff) Z 1 (\n) R 7 8 9 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 12345 0 0";
        let found = Descendant::parse(stat).expect("a line of the kernel's");
        assert_eq!((found.id.pid.as_raw_nonzero().get(), found.id.started), (42, 12_345));
        assert_eq!((found.parent, found.group), (Pid::from_raw(7), Pid::from_raw(8)));
        assert!(!found.is_zombie());
        let ending = b"42 (a) X 0 -1 -1 0 -1 4228108 0 0 0 0 0 0 0 0 20 0 0 0 12345 0 0";
        let ending = Descendant::parse(ending).expect("a line of the kernel's");
        assert!(ending.is_zombie() && (ending.parent, ending.group) == (None, None));
        for broken in [&b""[..], b"(", b")(", b"1 (a", b"1 (a) S 2", b"x (a) S 1 1 1"] {
            assert_eq!(Descendant::parse(broken), None);
        }
    }

    // I103
    #[test]
    fn descendants_are_found_below_the_command_only() {
        let all: Vec<_> = [(9, 1), (3, 2), (2, 1), (5, 4), (4, 9), (6, 5), (8, 7)]
            .map(|(pid, parent)| descendant(pid, parent))
            .into();
        let found = |strangers: &[i32]| {
            let strangers = strangers.iter().map(|pid| descendant(*pid, 0).id).collect();
            let root = Pid::from_raw(1).expect("not zero");
            let mut pids: Vec<_> = below(all.clone(), root, &strangers)
                .iter()
                .map(|it| it.id.pid.as_raw_nonzero().get())
                .collect();
            pids.sort_unstable();
            pids
        };
        assert_eq!(found(&[]), [2, 3, 4, 5, 6, 9]);
        assert_eq!(found(&[4]), [2, 3, 9]);
    }

    #[test]
    fn early_search_is_repeated() {
        let (begin, begun) = mpsc::channel();
        let (sender, found) = mpsc::channel();
        let mut search = Search { begin, found, is_under_way: false, is_outdated: false };
        let begun = || begun.try_iter().count();
        let end = |pid| sender.send(Some(vec![descendant(pid, 1)])).expect("the search takes it");
        let pid_in = |found: Option<Found>| Some(found??.first()?.id.pid.as_raw_nonzero().get());
        search.begin();
        search.begin();
        assert_eq!((begun(), pid_in(search.take())), (1, None), "one search at a time");
        search.begin_anew();
        end(2);
        assert_eq!((pid_in(search.take()), begun()), (None, 1), "another one follows the outdated one");
        end(3);
        assert_eq!((pid_in(search.take()), begun()), (Some(3), 0));
        search.begin_anew();
        end(4);
        assert_eq!((begun(), pid_in(search.take()), begun()), (1, Some(4), 0), "none was under way");
        drop(sender);
        assert!(search.take().is_none(), "the searches have ended");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_child_is_listed_until_reaped() {
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().expect("cat");
        let pid = Pid::from_child(&child);
        let found = || list(&HashSet::new()).expect("/proc").into_iter().find(|it| it.id.pid == pid);
        assert!(found().is_some_and(|it| it.is_child() && !it.is_zombie()));
        drop(child.stdin.take());
        let id = found().expect("it is not reaped").id;
        assert!(exists(id) && !exists(Identity { started: id.started + 1, ..id }), "another with its number");
        child.wait().expect("a child of this process");
        assert_eq!(found(), None);
        assert!(!exists(id));
    }
}
