//! Each step of signalling, tested alone. Shell commands stand for the command and its descendants. No test
//! calls [`Process::found`], which would also reap the children of other tests.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::*;

/// Stops itself, and exits with code 7 when it is continued after TERM.
const STOPPED: &str = "trap 'exit 7' TERM; echo; kill -STOP $$; while :; do sleep 0.01; done";
const FOREVER: &str = "trap '' TERM; echo; while :; do sleep 0.01; done";

/// Starts a shell that leads a group. Returns once it has printed, because an earlier TERM would end it.
fn shell(script: &str) -> Child {
    let mut command = Command::new("sh");
    let mut child =
        command.args(["-c", script]).process_group(0).stdout(Stdio::piped()).spawn().expect("sh runs");
    child.stdout.take().expect("a pipe").read_exact(&mut [0]).expect("it prints");
    child
}

fn process(script: &str) -> Process {
    let strangers = Arc::new(HashSet::new());
    Process {
        pid: Pid::from_child(&shell(script)),
        program: "sh".to_owned(),
        terminal: None,
        code: None,
        failure: None,
        search: Search::start(strangers.clone()).expect("a thread"),
        strangers,
        ended: Ended::default(),
        known: Vec::new(),
        is_first_search: false,
        asked: HashSet::new(),
        paused: HashSet::new(),
        unreachable: HashSet::new(),
        is_left: false,
    }
}

#[track_caller]
fn eventually<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let given_up = Instant::now() + Duration::from_secs(30);
    loop {
        match look() {
            Some(seen) => return seen,
            None => assert!(Instant::now() < given_up, "it does not come"),
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until the entry of this process matches, and returns it.
#[track_caller]
fn entry(pid: Pid, is_wanted: fn(&Descendant) -> bool) -> Descendant {
    eventually(|| {
        descendants::list(&HashSet::new())?.into_iter().find(|it| it.id.pid == pid && is_wanted(it))
    })
}

#[track_caller]
fn code_of(process: &mut Process) -> u8 {
    eventually(|| {
        process.look().expect("a child of this process");
        process.code
    })
}

#[track_caller]
fn ended(mut child: Child) -> (Option<i32>, Option<i32>) {
    use std::os::unix::process::ExitStatusExt;
    let status = eventually(|| child.try_wait().expect("a child of this process"));
    (status.code(), status.signal())
}

#[test]
fn stopped_command_keeps_its_exit_code() {
    let mut process = process(STOPPED);
    entry(process.pid, Descendant::is_stopped);
    process.end();
    assert_eq!(code_of(&mut process), 7);
    // `end` also starts a search for descendants.
    assert!(process.is_first_search && eventually(|| process.search.take()).is_some());
    assert!(process.pursue(Some(Vec::new()), false) && !process.is_first_search);
    assert_eq!(process.take_end().and_then(Result::ok), Some(7));
}

#[test]
fn kill_reaches_the_group_and_known_descendants() {
    let (mut process, outside) = (process(FOREVER), shell(FOREVER));
    let it = entry(Pid::from_child(&outside), |_| true);
    assert!(!process.pursue(Some(vec![it]), false), "it got TERM, which it ignores");
    process.kill();
    assert_eq!(code_of(&mut process), 137);
    assert_eq!(ended(outside), (None, Some(9)));
    assert!(eventually(|| process.search.take()).is_some(), "the others are searched");
}

#[test]
fn escaped_process_gets_term_and_cont() {
    let (mut process, outside) = (process(FOREVER), shell(STOPPED));
    let it = entry(Pid::from_child(&outside), Descendant::is_stopped);
    assert!(!process.pursue(Some(vec![it]), false));
    assert_eq!(ended(outside), (Some(7), None));
    // Group members got TERM through the group. A process that is found later gets it once.
    let member = entry(process.pid, |_| true);
    let other = shell("trap 'kill -STOP $$' TERM; echo; while :; do sleep 0.01; done");
    let it = entry(Pid::from_child(&other), |_| true);
    assert!(!process.pursue(Some(vec![it, member]), false));
    assert!(process.asked.contains(&it.id) && !process.asked.contains(&member.id));
    // KILL goes to every process found.
    assert!(!process.pursue(Some(vec![it, member]), true));
    assert_eq!((ended(other), code_of(&mut process)), ((None, Some(9)), 137));
}

/// The ended process may have started another one, which the list misses.
#[test]
fn search_repeats_after_a_process_has_just_ended() {
    let mut process = process("echo; exit 3");
    let ended = entry(process.pid, Descendant::is_zombie);
    assert_eq!(code_of(&mut process), 3);
    assert!(!process.pursue(Some(vec![ended]), false), "one ended during the search");
    assert!(process.pursue(Some(vec![ended]), false), "it had ended before");
    assert!(process.pursue(Some(Vec::new()), false), "it is reaped");
}

#[test]
fn without_proc_the_group_shows_remaining_processes() {
    let mut process = process("echo; sleep 60 & exit 3");
    assert_eq!(code_of(&mut process), 3);
    assert!(!process.pursue(None, false), "one is in the group");
    assert!(eventually(|| process.pursue(None, true).then_some(true)));
}

#[test]
fn unsupervised_command_is_killed() {
    let process = process(FOREVER);
    let pid = process.pid;
    drop(process);
    entry(pid, Descendant::is_zombie);
}
