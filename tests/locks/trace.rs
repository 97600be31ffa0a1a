//! What callers see of each call of `Client` in each state of one master, compared with `tests/golden/calls`.
//! Times, addresses and tokens are left out. The normal state is shown in full, other states by their
//! differences (`2=`: two lines are the same).
//!
//! Each call runs twice, blocking and awaited. Both must show the same.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use redlatch::stats::Stats;
use redlatch::status::MasterState;
use redlatch::{AcquireError, Cancel, Client, Guard, HeldLocks, LockHandle};
use redlatch_support::stage::Fleet;
use redlatch_support::{PATIENCE, Shown, Style, assert_golden, block_on, differing, eventually, wrapped};

use crate::harness::{LONG, TTL, config, poll_once};

/// States of the master while a call runs.
pub(crate) const STATES: [&str; 5] =
    ["well", "refuses writes", "has lost its keys", "has the keys of another", "down"];

/// Names of locks that the calls use.
const NAMES: [&str; 3] = ["a", "b", "redlatch:slot:0:a"];

pub(crate) fn begin(fleet: &mut Fleet, state: &str) {
    let master = fleet.master(0);
    match state {
        "well" => {}
        "refuses writes" => _ = master.ask("CONFIG SET min-replicas-to-write 1"),
        "has lost its keys" => _ = master.ask("FLUSHALL"),
        "has the keys of another" => {
            NAMES
                .iter()
                .for_each(|name| _ = master.ask(&format!("SET {name} twenty-bytes-of-another PX 600000")));
        }
        _ => master.kill(),
    }
}

pub(crate) fn end(fleet: &mut Fleet, state: &str) {
    match state {
        "down" => fleet.master(0).restart(),
        _ => _ = fleet.master(0).ask("CONFIG SET min-replicas-to-write 0"),
    }
    fleet.master(0).ask("FLUSHALL");
}

/// Real times never repeat.
pub(crate) const STYLE: Style = Style { start: None };

/// A call's lines in one state, compared with its lines in the normal state.
pub(crate) fn rendered(state: &str, lines: &[String], usual: &[String]) -> String {
    let (mark, other) = differing(lines, usual);
    other.into_iter().fold(format!("{state}{mark}\n"), |page, line| page + &wrapped(2, line))
}

pub(crate) fn counters(stats: &Stats) -> String {
    let counters = [
        ("acquired", stats.acquired),
        ("contended", stats.contended),
        ("no_quorum", stats.no_quorum),
        ("expired", stats.expired),
        ("overloaded", stats.overloaded),
        ("abandoned", stats.abandoned),
        ("released", stats.released),
        ("left", stats.left),
        ("lost", stats.lost),
        ("extended", stats.extended),
        ("extensions_failed", stats.extensions_failed),
        ("orphans", stats.orphans),
    ];
    let counters = counters.into_iter().filter(|(_, count)| *count > 0);
    counters.map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
}

/// A call on a client that holds the lock `a`, and its lines.
struct Call<'a> {
    client: &'a Client,
    guard: Option<Guard>,
    is_async: bool,
    /// Whether other locks can be acquired. Otherwise a campaign would never end.
    is_free: bool,
    losses: Arc<AtomicUsize>,
    shown: Vec<String>,
}

/// Blocks on a call, or awaits it.
macro_rules! call {
    ($call:ident, $blocking:expr, $async:expr) => {
        if $call.is_async { block_on($async) } else { $blocking }
    };
}

impl Call<'_> {
    fn show(&mut self, value: &impl Shown) {
        self.shown.push(value.shown(STYLE));
    }

    fn guard(&mut self) -> Guard {
        self.guard.take().expect("held before")
    }

    fn show_guard(&mut self, guard: &Guard) {
        let mut lines = vec![format!("guard of {}", guard.resource_str().expect("a name in UTF-8"))];
        if guard.margin() > 0 {
            lines.push(format!("margin {}", guard.margin()));
        }
        if guard.fencing_token().is_some() {
            lines.push("fenced".to_owned());
        }
        if poll_once(&mut guard.lost()).is_ready() {
            lines.push("lost".to_owned());
        }
        let has_time =
            [guard.is_valid(), guard.remaining() > Duration::ZERO, guard.valid_until() > Instant::now()];
        if has_time != [true; 3] {
            lines.push(format!(
                "valid, remaining, before its end: {}",
                has_time.map(|it| it.to_string()).join(" ")
            ));
        }
        lines.extend(Some(guard.waited().shown(STYLE)).filter(|waited| !waited.is_empty()));
        self.shown.push(lines.join(", "));
    }

    fn show_acquired(&mut self, result: Result<Guard, AcquireError>) {
        match result {
            Ok(guard) => self.show_guard(&guard),
            Err(error) => self.show(&error),
        }
    }
}

type Row = (&'static str, fn(&mut Call<'_>));

const CALLS: &[Row] = &[
    ("acquire the same", |call| {
        let ask = || call.client.lock("a").ttl(TTL);
        let result = call!(call, ask().try_acquire(), ask().try_acquire_async());
        call.show_acquired(result);
    }),
    ("acquire another", |call| {
        let ask = || call.client.lock("b").ttl(TTL).wait(Duration::ZERO).fenced();
        let result = call!(call, ask().acquire(), ask().acquire_async());
        call.show_acquired(result);
    }),
    ("acquire with a bad name", |call| {
        let result = call!(call, call.client.lock("").acquire(), call.client.lock("").acquire_async());
        call.show_acquired(result);
        let result = call.client.lock("b").holder_label("").try_acquire();
        call.show_acquired(result);
    }),
    ("acquire, cancelled before", |call| {
        let cancel = Cancel::new();
        cancel.cancel();
        let ask = || call.client.lock("b").cancel_with(&cancel);
        let result = call!(call, ask().acquire(), ask().acquire_async());
        call.show_acquired(result);
    }),
    ("acquire several", |call| {
        let requests = ["a", "b"].map(|name| call.client.lock(name).ttl(TTL).wait(Duration::ZERO));
        for pending in call.client.acquire_all(requests) {
            let result = call!(call, pending.block(), pending);
            call.show_acquired(result);
        }
    }),
    ("read", |call| {
        let lock = call.client.rw_lock("b");
        let ask = || lock.read().ttl(TTL).wait(Duration::ZERO);
        let first = call!(call, ask().acquire(), ask().acquire_async());
        let second = call!(call, ask().acquire(), ask().acquire_async());
        [first, second].into_iter().for_each(|result| call.show_acquired(result));
    }),
    ("extend", |call| {
        let mut guard = call.guard();
        let result = call!(call, guard.extend(TTL / 2), guard.extend_async(TTL / 2));
        call.show(&result);
        let result = call!(call, guard.extend(2 * TTL), guard.extend_async(2 * TTL));
        call.show(&result);
        call.show_guard(&guard);
    }),
    ("extend all", |call| {
        let mut guard = call.guard();
        for pending in call.client.extend_all([&mut guard], TTL / 2) {
            let result = call!(call, pending.block(), pending);
            call.show(&result);
        }
        call.show_guard(&guard);
    }),
    ("release", |call| {
        let guard = call.guard();
        let result = call!(call, guard.release(), guard.release_async());
        call.show(&result);
    }),
    ("release all", |call| {
        let guard = call.guard();
        for pending in call.client.release_all([guard]) {
            let result = call!(call, pending.block(), pending);
            call.show(&result);
        }
    }),
    ("leave", |call| {
        let result = call.guard().leave();
        call.show(&result);
    }),
    ("leave for a time", |call| {
        let guard = call.guard();
        let result = call!(call, guard.leave_for(TTL / 2), guard.leave_for_async(TTL / 2));
        call.show(&result);
    }),
    ("pass on and adopt", |call| {
        let guard = call.guard();
        match call!(call, guard.into_handle(TTL / 2), guard.into_handle_async(TTL / 2)) {
            Err(error) => {
                call.show(error.reason());
                call.show_guard(&error.into_guard());
            }
            Ok(handle) => {
                call.show(&handle.can_be_adopted());
                let handle: LockHandle = handle.to_string().parse().expect("what it wrote");
                match call!(call, call.client.adopt(&handle), call.client.adopt_async(&handle)) {
                    Ok(guard) => call.show_guard(&guard),
                    Err(error) => call.show(&error),
                }
                let again = call.client.adopt(&handle).map(drop);
                call.show(&again);
            }
        }
    }),
    ("release by a handle", |call| {
        let handle = call.guard.as_ref().and_then(Guard::to_handle).expect("held");
        let client = call.client;
        let result = call!(call, client.release_handle(&handle), client.release_handle_async(&handle));
        call.show(&result);
        let result = client.adopt(&handle).map(drop);
        call.show(&result);
    }),
    ("inspect", |call| {
        let result = call!(call, call.client.inspect("a"), call.client.inspect_async("a"));
        call.show(&result.as_ref().map(|it| (it.status(), it.masters.len(), it.is_held())));
        let result = call!(call, call.client.inspect(""), call.client.inspect_async(""));
        call.show(&result);
    }),
    ("force unlock", |call| {
        let result = call!(call, call.client.force_unlock("a"), call.client.force_unlock_async("a"));
        call.show(&result);
        let result = call!(call, call.client.force_unlock(""), call.client.force_unlock_async(""));
        call.show(&result);
    }),
    ("a set", |call| {
        let ask = || call.client.lock_set(["b", "c"]).ttl(TTL).wait(Duration::ZERO);
        match call!(call, ask().acquire(), ask().acquire_async()) {
            Err(error) => call.show(&error),
            Ok(mut set) => {
                call.show(&(
                    set.resources().map(<[u8]>::len).collect::<Vec<_>>(),
                    set.margin(),
                    set.is_valid(),
                ));
                let result = call!(call, set.extend(TTL / 2), set.extend_async(TTL / 2));
                call.show(&(result, set.remaining() <= TTL / 2, set.remaining() > TTL / 4));
                let result = call!(call, set.release(), set.release_async());
                call.show(&result);
            }
        }
        let set = call.client.lock_set(["a", "b"]).ttl(TTL).try_acquire();
        call.show(&set.map(|set| set.guards().len()));
        let set = call.client.lock_set::<&str>([]).try_acquire();
        call.show(&set.map(|set| set.guards().len()));
        let set = call.client.lock_set(["d", "e"]).ttl(TTL).try_acquire();
        let left = set.map(|set| set.leave());
        call.show(&left);
    }),
    ("a slot", |call| {
        let ask = || call.client.slots("a", 1).ttl(TTL).wait(Duration::ZERO);
        let mut guards = Vec::new();
        for _ in 0..2 {
            match call!(call, ask().acquire(), ask().acquire_async()) {
                Ok(guard) => guards.push(guard),
                Err(error) => call.show(&error),
            }
        }
        call.show(&guards.iter().map(|guard| (guard.slot(), guard.pool().len())).collect::<Vec<_>>());
        for guard in guards {
            let result = call!(call, guard.release(), guard.release_async());
            call.show(&result);
        }
    }),
    ("a reentrant lock", |call| {
        let lock = call.client.lock("b").ttl(TTL).wait(Duration::ZERO).reentrant();
        let first = call!(call, lock.lock(), lock.lock_async());
        let second = call!(call, lock.lock(), lock.lock_async());
        call.show(&(lock.is_held(), lock.hold_count(), lock.remaining() > TTL / 2, lock.resource()));
        for hold in [first, second] {
            match hold {
                Err(error) => call.show(&error),
                Ok(hold) => {
                    let extended = call!(call, hold.extend(TTL / 4), hold.extend_async(TTL / 4));
                    call.show(&(
                        extended,
                        hold.is_valid(),
                        hold.remaining() <= TTL / 4,
                        hold.token().is_some(),
                    ));
                    let result = call!(call, hold.release(), hold.release_async());
                    call.show(&(result, lock.hold_count(), lock.is_held()));
                }
            }
        }
    }),
    ("run", |call| {
        let ask = || call.client.lock("b").ttl(TTL).wait(Duration::ZERO);
        let result =
            call!(call, ask().run(|guard| guard.is_valid()), ask().run_async(async |guard| guard.is_valid()));
        call.show(&result);
    }),
    ("lead", |call| {
        let candidate = call.client.lead("b").ttl(TTL);
        if call.is_free {
            let result = candidate.run(|leadership| {
                ControlFlow::Break((
                    leadership.is_leader(),
                    leadership.guard().fencing_token() == Some(leadership.term()),
                ))
            });
            call.show(&result);
        }
    }),
    ("drain", |call| {
        let limit = Duration::from_millis(10);
        let left = call!(
            call,
            call.client.drain(limit, HeldLocks::Leave),
            call.client.drain_async(limit, HeldLocks::Leave)
        );
        let guard = call.guard();
        call.show(&(left, guard.is_valid()));
        let refused = call.client.lock("b").try_acquire();
        call.show_acquired(refused);
    }),
    ("lose by a drain", |call| {
        let guard = call.guard();
        let losses = call.losses.clone();
        guard.on_lost(move || _ = losses.fetch_add(1, Ordering::SeqCst));
        call.client.drain(Duration::from_millis(10), HeldLocks::Release);
        call.show(&(guard.is_valid(), guard.remaining().is_zero(), guard.margin()));
        eventually(PATIENCE, "the callback is called", || call.losses.load(Ordering::SeqCst) == 1);
        let result = guard.release();
        call.show(&result);
    }),
];

#[test]
fn each_client_call_matches_its_golden_file() {
    let Some(mut fleet) = Fleet::servers(1) else { return };
    let mut page = String::new();
    for (name, run) in CALLS {
        page += &format!("# {name}\n");
        let mut usual = Vec::new();
        for state in STATES {
            let mut both = Vec::new();
            for is_async in [false, true] {
                let urls = fleet.urls();
                let client = config(&urls, LONG).max_ttl(TTL).connect().expect("an event loop");
                let guard = Some(client.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("free"));
                begin(&mut fleet, state);
                if state == "down" {
                    // A client that nobody calls does not check its connections.
                    eventually(PATIENCE, "the client notices it", || {
                        client.inspect("c").is_ok()
                            && matches!(client.masters()[0].state, MasterState::Down(_))
                    });
                }
                let (losses, is_free) = (Arc::default(), ["well", "has lost its keys"].contains(&state));
                let mut call = Call { client: &client, guard, is_async, is_free, losses, shown: Vec::new() };
                run(&mut call);
                let guard = call.guard.take();
                if let Some(guard) = &guard {
                    call.show_guard(guard);
                }
                let losses = call.losses.load(Ordering::SeqCst);
                let mut shown = call.shown;
                shown.push(format!("counters: {}; losses {losses}", counters(&client.stats())));
                both.push(shown);
                drop(guard);
                drop(client);
                end(&mut fleet, state);
            }
            assert_eq!(both[0], both[1], "{name}: {state}: blocking, and awaited");
            page += &rendered(state, &both[0], &usual);
            if state == "well" {
                usual = both.swap_remove(0);
            }
        }
    }
    assert_golden("calls", &page);
}
