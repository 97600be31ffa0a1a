//! A service with its tests, which need no server.
//!
//! `cargo test --example tested_service`
//! `cargo run --example tested_service redis://10.0.0.1 redis://10.0.0.2 redis://10.0.0.3`

use std::time::Duration;

use redlatch::{Client, Guard, RunError};

/// What happened to an order.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    Shipped,
    /// Another worker ships it.
    Taken,
    /// No lock is available: the printed error says what to do.
    Postponed,
    /// The lock was lost: check before shipping again.
    Unsure,
}

/// Ships an order, unless another worker does. The work should check the guard before each step.
pub fn ship(locks: &Client, order: &str, work: impl FnOnce(&Guard)) -> Outcome {
    let request = locks.lock(format!("orders:{order}")).wait(Duration::ZERO);
    match request.ttl(Duration::from_secs(2)).auto_extend(Duration::from_secs(600)).run(|guard| work(guard)) {
        Ok(()) => Outcome::Shipped,
        Err(RunError::Lost(_)) => Outcome::Unsure,
        Err(error) if error.is_contended() => Outcome::Taken,
        Err(error) => {
            eprintln!("{error:#}"); // with what each master said
            Outcome::Postponed
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let locks = Client::connect(std::env::args().skip(1))?;
    println!("{:?}", ship(&locks, "42", |_guard| println!("packed")));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use redlatch_testing::{Double, DoubleMaster};

    type TestResult = Result<(), Box<dyn std::error::Error>>;

    #[test]
    fn an_order_is_shipped_under_its_lock() -> TestResult {
        let double = Double::start(3)?;
        let locks = double.config().connect()?;
        let outcome =
            ship(&locks, "42", |_| assert!(locks.inspect("orders:42").is_ok_and(|it| it.is_held())));
        assert_eq!(outcome, Outcome::Shipped);
        assert!(!locks.inspect("orders:42")?.is_held());
        Ok(())
    }

    #[test]
    fn an_order_of_another_worker_is_left_alone() -> TestResult {
        let double = Double::start(3)?;
        let other = double.config().holder_label("another worker").connect()?;
        let _held = other.lock("orders:42").acquire()?;
        let locks = double.config().connect()?;
        assert_eq!(ship(&locks, "42", |_| panic!("it is taken")), Outcome::Taken);
        Ok(())
    }

    #[test]
    fn a_dead_master_stops_nothing_and_two_postpone() -> TestResult {
        let double = Double::start(3)?;
        let locks = double.config().connect()?;
        double.master(0).kill();
        assert_eq!(ship(&locks, "42", |_| ()), Outcome::Shipped);
        double.master(1).kill();
        assert_eq!(ship(&locks, "42", |_| panic!("no quorum")), Outcome::Postponed);
        Ok(())
    }

    #[test]
    fn an_outage_during_the_work_leaves_doubt() -> TestResult {
        let double = Double::start(3)?;
        let locks = double.config().connect()?;
        let outcome = ship(&locks, "42", |guard| {
            double.masters().for_each(DoubleMaster::kill);
            while guard.is_valid() {
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        assert_eq!(outcome, Outcome::Unsure);
        Ok(())
    }
}
