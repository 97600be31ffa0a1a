//! An exhaustive model of parked attempts: how clients wait for a lock that another client holds.
//!
//! It models the *rules*, not the code: nothing of the crate is called. Its
//! results are true of the rules. The simulator (`tests/sim`) shows what is true of the code.
//!
//! | it has | it does not have |
//! |---|---|
//! | three masters, and up to three clients with one caller each | readers, fencing tokens, local hand-overs |
//! | `SET NX`, park, unpark, release, serve, repair; rings; polling | extensions; minimum validity beyond a tick |
//! | commands, replies and pushes in order on a connection, with any delay | lost bytes within a connection |
//! | breaks; commands that arrive late over the old connection, or never | late commands of two breaks |
//! | restarts, empty or from a snapshot, with quarantine | a restart that nobody notices |
//! | ticks for keys, validity, quarantine; ends of stays at any time | drift, lengths of stays, tickets' values |
//! | crash, cancel, forced deletion, failing writes, errors, full queues | rights, masters that cannot park |
//!
//! Every order of a queue is explored, because tickets play no part in safety. The searches for waiters that
//! cannot be served say which order they take. Time is ticks that are left, so a space is finite without a
//! last tick. Rounds begin at any time, at most one or two for a wait. The searches for served waiters
//! have rounds without end, which begin when nothing of the last one is under way. In most spaces an answer
//! that no vote depends on arrives at once. An end that is owed is repeated only when the old connection has
//! ended, which stands for the time limit of such repeats.
//!
//! The first specification had holes. The model has rules that close them, and `defect` lists them as such.
//!
//! ```sh
//! scripts/defects test --test parking                                       # half a minute
//! scripts/defects test --test parking found::late_votes -- --nocapture         # a defect, step by step
//! REDLATCH_PARKING_SECONDS=600 scripts/defects test --test parking soak -- --nocapture
//! ```
//!
//! A plain `cargo test` is some twenty times slower, and looks at the first states of each space only.
//!
//! ```text
//! state     masters, links, clients             packed    a state as bits, and its fingerprint
//!                                               search    all states, fewest steps first
//! master    the scripts                         property  what must hold in each state
//! client    rounds, votes, ends that are owed   serving   whether each waiter can still be served
//! steps     what may happen next                defect    rules to break; found: each is noticed
//! ```

mod client;
mod defect;
mod found;
mod master;
mod model;
mod packed;
mod property;
mod search;
mod serving;
mod spaces;
mod state;
mod steps;
