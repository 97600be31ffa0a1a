use super::*;
use crate::config::Config;

fn op_in(state: OpState) -> Op {
    let config = Config::builder().masters(["redis://a"]).build().expect("valid");
    let ttl = config.ttl(Duration::from_secs(1)).expect("valid");
    Op { state, ..Op::blank(Instant::now(), ttl) }
}

/// Each state once, in the order of the table below.
fn states() -> [OpState; 8] {
    let at = Instant::now();
    let held = Held::new(at, at, op_in(OpState::New).asked.ttl);
    [
        OpState::New,
        OpState::Queued { turn: Turn::Later },
        OpState::Waiting { retry_at: at },
        OpState::Acquiring { deadline: at },
        OpState::Asking { deadline: at },
        OpState::Held(held),
        OpState::Releasing,
        OpState::Query,
    ]
}

// I112
#[test]
fn only_the_drawn_transitions_are_legal() {
    // One row for each state, one column for each state that may follow.
    let drawn = [
        [0, 1, 0, 1, 0, 0, 1, 1],
        [0, 1, 0, 1, 0, 0, 0, 0],
        [0, 1, 0, 1, 0, 0, 0, 0],
        [0, 0, 1, 1, 1, 1, 1, 0],
        [0, 0, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 1, 0],
        [0, 0, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 0, 0],
    ];
    for (before, row) in states().into_iter().zip(drawn) {
        for (after, is_drawn) in states().into_iter().zip(row) {
            assert_eq!(after.may_follow(&before), is_drawn == 1, "{before:?} to {after:?}");
        }
    }
}

// I112
#[test]
#[should_panic(expected = "no such state follows")]
fn a_released_lock_is_not_held_again() {
    op_in(OpState::Releasing).enter(states()[5]);
}

// I112
#[test]
fn a_planned_attempt_is_only_brought_forward() {
    let now = Instant::now();
    let at = |ms| now + Duration::from_millis(ms);
    let mut op = op_in(OpState::Acquiring { deadline: now });
    for (asked, planned) in [(50, 50), (70, 50), (20, 20)] {
        op.retry_by(at(asked));
        assert!(matches!(op.state(), OpState::Waiting { retry_at } if *retry_at == at(planned)));
    }
}
