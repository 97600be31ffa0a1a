//! States and calls of the table.

/// A state of the keys, and a call.
#[derive(Clone, Copy)]
pub struct Case {
    pub lock: &'static str,
    pub queue: &'static str,
    pub fence: &'static str,
    pub call: &'static str,
    pub is_full: bool,
}

/// All combinations of these.
fn cross(
    locks: &[&'static str],
    queues: &[&'static str],
    fences: &[&'static str],
    calls: &[&'static str],
) -> Vec<Case> {
    let mut cases = Vec::new();
    for &lock in locks {
        for &queue in queues {
            for &fence in fences {
                cases.extend(calls.iter().map(|&call| Case { lock, queue, fence, call, is_full: false }));
            }
        }
    }
    cases
}

const LOCKS: [&str; 26] = [
    "",
    "own",
    "old",
    "other",
    "other!",
    "labelled",
    "label",
    "long",
    "list",
    "set",
    "alone own",
    "readers",
    "readers other",
    "readers! other",
    "readers other-",
    "readers own",
    "readers own*",
    "readers own-",
    "readers old",
    "readers old other",
    "readers own other",
    "readers own other-",
    "readers old other-",
    "readers own other x+",
    "readers old other x+",
    "readers other x+",
];

const QUEUES: [&str; 47] = [
    "", "p", "ph", "ph!", "ph~", "p-", "p*", "p^", "p+", "p~", "p~s", "p~S", "p!", "p~!", "pg", "pg p", "pk",
    "pk p", "po", "pn", "pO", "pR", "po1", "p2", "p3", "p4", "p5", "pX", "pvX", "p po", "po p", "pv", "pv p",
    "p pv", "p- p", "p! p", "p~! p", "r", "r!", "r! r", "r r p r", "r r! r f", "rg", "r~ r", "rk r", "set",
    "list",
];

const FENCED: [&str; 14] =
    ["f", "f=", "f_", "f<", "f(", "f)", "f>", "f= p", "f!", "fg", "f6", "f7", "f7/", "f8"];

const TOKENS: [&str; 8] = ["f", "f=", "f_", "f<", "f(", "f)", "f>", "f=b"];
const FENCES: [&str; 5] = ["", "fence", "12x", "x12", "list"];

/// States in which refused commands and full memory are tried, too.
fn base(script: &str) -> Vec<Case> {
    match script {
        "park" => [
            cross(&["", "other"], &[""], &[""], &["p", "r", "f"]),
            cross(&["old"], &["p", "po p", "p~"], &[""], &["pdy"]),
            cross(&["readers old", "readers other", "readers old other"], &["r", "p"], &[""], &["rdy", "pd"]),
            cross(&[""], &["r", "r!", "f", "f!", "p!"], &["fence"], &["pb", "f=b"]),
            cross(&["readers other-"], &[""], &[""], &["r"]),
        ]
        .concat(),
        "unpark" => [
            cross(&["own"], &["p", "p!", "p~", "r", "r!", "f", "f!"], &[""], &[""]),
            cross(&["readers own", "readers own other"], &["p", "r"], &[""], &["", "f"]),
            cross(&["other"], &["pv"], &["fence"], &["f"]),
        ]
        .concat(),
        "serve" => {
            cross(&["", "readers other"], &["p", "p!", "p~", "r", "r r!", "f", "f!"], &["fence"], &[""])
        }
        "release_serve" => cross(&["own"], &["", "p", "r! p", "f", "p~"], &[""], &["own"]),
        "fenced_release_serve" => cross(&["own", ""], &["", "p", "f"], &["", "fence"], &["f"]),
        "shared_release_serve" => {
            cross(&["readers own", "readers own other"], &["", "p", "r"], &[""], &["own"])
        }
        "force_unlock_serve" => cross(&["other", "readers other", "list"], &["", "p", "r"], &[""], &[""]),
        "swap_parked" => cross(&["own"], &["", "pv"], &[""], &["", "?"]),
        "adopt" => cross(&["own", "readers own", "readers own other"], &[""], &["fence"], &["", "f"]),
        "shared_acquire_queue" => cross(&["", "readers other", "readers own"], &["", "p"], &[""], &[""]),
        other => panic!("no states for the script {other}"),
    }
}

/// States for a waiter's scripts.
fn of_waiter(script: &str) -> Vec<Case> {
    match script {
        "park" => [
            cross(&LOCKS, &[""], &[""], &["p", "pd", "pdy", "pb", "r", "rd", "rdy", "f"]),
            cross(&LOCKS, &["p"], &[""], &["pd", "rdy"]),
            cross(&["", "old"], &QUEUES, &[""], &["pdy"]),
            cross(&["", "readers other"], &QUEUES, &[""], &["r"]),
            cross(&["", "other"], &QUEUES, &[""], &["pb?"]),
            cross(&["", "old"], &FENCED, &["fence"], &["pdy", "f?"]),
            cross(&[""], &["", "po"], &FENCES, &TOKENS),
            cross(&["other"], &["", "p", "po"], &[""], &["pL", "pH", "pB", "pw", "pwL", "pwH"]),
            cross(&["other"], &["", "po p"], &[""], &["pA"]),
            cross(&["", "old"], &["pw p", "p pw"], &[""], &["pd", "p"]),
            cross(&["", "other"], &["17 dead", "16 dead"], &[""], &["p"]),
            cross(&[""], &["65 readers", "64 readers"], &[""], &["r", "rB"]),
            cross(&["other"], &["full", "full but one", "full of dead"], &[""], &["p"]),
            cross(&["other"], &["full, dead at its rank"], &[""], &["p"]),
        ]
        .concat(),
        "unpark" => [
            cross(&LOCKS, &["", "p"], &[""], &["", "?"]),
            cross(&["own", "other"], &QUEUES, &[""], &["", "?"]),
            cross(&["own", ""], &["pv p"], &[""], &["A"]),
            cross(&["other"], &["64 before pv", "63 before pv"], &[""], &["?"]),
            cross(&["own"], &["", "f"], &FENCES, &["f", "f=", "f_", "f<", "f(", "f)", "f>"]),
        ]
        .concat(),
        "serve" => [
            cross(&LOCKS, &["p", "r"], &[""], &[""]),
            cross(&["", "readers other"], &QUEUES, &[""], &[""]),
            cross(&["other"], &["pk", "p", "pk p"], &[""], &[""]),
            cross(&[""], &FENCED, &FENCES, &[""]),
            cross(
                &[""],
                &["17 dead", "16 dead", "17 unheard", "16 unheard", "65 readers", "64 readers"],
                &[""],
                &[""],
            ),
        ]
        .concat(),
        other => of_holder(other),
    }
}

/// States for a holder's scripts.
fn of_holder(script: &str) -> Vec<Case> {
    match script {
        "release_serve" => [
            cross(&LOCKS, &["", "p"], &[""], &["own"]),
            cross(&["own"], &QUEUES, &[""], &["own"]),
            cross(&["own"], &FENCED, &["fence"], &["own"]),
            cross(&["own"], &["17 dead"], &[""], &["own"]),
        ]
        .concat(),
        "fenced_release_serve" => [
            cross(&LOCKS, &["p"], &[""], &["f"]),
            cross(&["own"], &["", "p!", "r r", "pg", "list"], &[""], &["f"]),
            cross(&["own", "other"], &["f"], &FENCES, &["f", "f=", "f_", "f<", "f(", "f)", "f>", "f]", "f}"]),
        ]
        .concat(),
        "shared_release_serve" => [
            cross(&LOCKS, &["p", "r"], &[""], &["own"]),
            cross(
                &["readers own", "readers own other"],
                &["", "p!", "p~", "r! r", "r p", "f"],
                &[""],
                &["own"],
            ),
        ]
        .concat(),
        "force_unlock_serve" => [
            cross(&LOCKS, &["", "p", "r"], &[""], &[""]),
            cross(&["other", "readers own"], &["p!", "p~", "r! r", "17 dead"], &[""], &[""]),
            cross(&["other"], &["f", "f=", "fg"], &["fence"], &[""]),
        ]
        .concat(),
        "swap_parked" => {
            [cross(&LOCKS, &["", "pv"], &[""], &[""]), cross(&["own"], &QUEUES, &[""], &["", "?"])].concat()
        }
        "adopt" => [
            cross(&LOCKS, &[""], &["", "fence"], &["", "f"]),
            cross(&["own", "readers own"], &[""], &FENCES, &["", "f", "f=", "f_", "f<"]),
        ]
        .concat(),
        "shared_acquire_queue" => [
            cross(&LOCKS, &["", "p"], &[""], &["", "short"]),
            cross(&["", "readers own-", "readers own*"], &QUEUES, &[""], &[""]),
        ]
        .concat(),
        other => panic!("no states for the script {other}"),
    }
}

pub fn cases(script: &str) -> Vec<Case> {
    let states = of_waiter(script);
    let full = base(script).into_iter().map(|case| Case { is_full: true, ..case });
    states.into_iter().chain(full).collect()
}

/// What a call may not do.
#[derive(Clone, Copy)]
pub enum Refused {
    Nothing,
    /// The command at this place; further calls refuse the command at each later place.
    At(usize),
    /// All commands of these names.
    Names(&'static [&'static str]),
}

/// Calls without some rights.
pub fn refusals(script: &str) -> Vec<(Case, Refused)> {
    let of = |lock, queue, call, names| {
        cross(&[lock], &[queue], &[""], &[call]).into_iter().map(move |case| (case, Refused::Names(names)))
    };
    let mut all: Vec<_> = base(script).into_iter().map(|case| (case, Refused::At(0))).collect();
    match script {
        "serve" => {
            all.extend(of("", "p", "", &["PUBLISH", "ZADD"]));
            all.extend(of("", "p", "", &["PUBLISH", "PEXPIRE"]));
            all.extend(of("readers other", "r", "", &["PEXPIREAT", "ZREM"]));
        }
        "park" => {
            all.extend(of("other", "", "p", &["ZADD", "ZREM"]));
            all.extend(of("other", "full of dead", "p", &["ZREM"]));
        }
        _ => {}
    }
    all
}
