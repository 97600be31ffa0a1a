//! The faults that masters suffer again and again until a contest ends.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use rand::seq::SliceRandom;
use redlatch_support::Proxy;
use redlatch_testing::Fleet;

use crate::contest::TTL;

/// Size of a clock's step.
const STEP_S: i64 = 60;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Calm,
    RestartedRow,
    RestartedPairs,
    RestartedMajority,
    RestartedLate,
    Paused,
    Hung,
    Lost,
    Cut,
    Clocks,
}

impl Fault {
    pub(crate) const ALL: [Self; 10] = [
        Self::Calm,
        Self::RestartedRow,
        Self::RestartedPairs,
        Self::RestartedMajority,
        Self::RestartedLate,
        Self::Paused,
        Self::Hung,
        Self::Lost,
        Self::Cut,
        Self::Clocks,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Calm => "no fault",
            Self::RestartedRow => "one master restarted empty",
            Self::RestartedPairs => "two masters restarted empty",
            Self::RestartedMajority => "three masters restarted empty",
            Self::RestartedLate => "two masters restarted late",
            Self::Paused => "paused holders",
            Self::Hung => "hung masters",
            Self::Lost => "lost answers",
            Self::Cut => "cut connections",
            Self::Clocks => "clock steps",
        }
    }

    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Calm => "Nothing happens.",
            Self::RestartedRow => {
                "One master after another is killed and started again at once, without its keys: three in a row, then 3 s of \
                 rest. One at a time is down."
            }
            Self::RestartedPairs => {
                "The same with two masters at once: two pairs in a row, then 3 s of rest. A majority is always up."
            }
            Self::RestartedMajority => {
                "Three masters at once are killed and started again without their keys: a majority has forgotten each lock. Then 3 s \
                 of rest."
            }
            Self::RestartedLate => {
                "Two masters are killed, stay down for longer than a TTL (2.5 s), and come back without their keys: the advice \
                 of the Redlock algorithm. Then 3.5 s of rest."
            }
            Self::Paused => {
                "One of twenty holders is stopped (SIGSTOP) for 3 s, one and a half TTLs, while it holds the lock."
            }
            Self::Hung => {
                "Two masters stand still (SIGSTOP) for 3 s, with their connections open; then 1 s of rest."
            }
            Self::Lost => {
                "Two masters take commands for 0.8 s and nobody gets an answer; then their connections are reset. 0.7 s of rest."
            }
            Self::Cut => "All connections to all masters are reset, every 0.5 s.",
            Self::Clocks => {
                "The wall clocks of two masters step forward by 60 s, and back after 1 s; 1 s of rest."
            }
        }
    }

    pub(crate) const fn needs_proxies(self) -> bool {
        matches!(self, Self::Lost | Self::Cut)
    }

    /// Long where a fault must meet a holder.
    pub(crate) const fn longest_hold(self) -> Duration {
        match self {
            Self::RestartedRow | Self::RestartedPairs | Self::RestartedMajority | Self::RestartedLate => {
                Duration::from_millis(1000)
            }
            _ => Duration::from_millis(200),
        }
    }
}

/// A contest's masters, and what is needed to harm them.
pub(crate) struct Field {
    pub(crate) fleet: Fleet,
    pub(crate) proxies: Vec<Proxy>,
    /// By master: a file with its clock's step.
    pub(crate) clocks: Vec<PathBuf>,
}

impl Field {
    /// Repeats the fault until this time. Afterwards all masters are well.
    pub(crate) fn suffer(&mut self, fault: Fault, until: Instant) {
        let mut masters: Vec<usize> = (0..self.fleet.urls().len()).collect();
        while Instant::now() < until {
            masters.shuffle(&mut rand::rng());
            let [first, second, third, fourth, ..] = masters[..] else { return };
            let pause = |millis| sleep_until(until.min(Instant::now() + Duration::from_millis(millis)));
            match fault {
                Fault::Calm | Fault::Paused => sleep_until(until),
                Fault::RestartedRow => {
                    [first, second, third].into_iter().for_each(|index| self.restart(&[index]));
                    pause(3000);
                }
                Fault::RestartedPairs => {
                    self.restart(&[first, second]);
                    self.restart(&[third, fourth]);
                    pause(3000);
                }
                Fault::RestartedMajority => {
                    self.restart(&[first, second, third]);
                    pause(3000);
                }
                Fault::RestartedLate => {
                    [first, second].into_iter().for_each(|index| self.fleet.master(index).kill());
                    // Also at the end, because earlier restarts would not be late.
                    thread::sleep(TTL + Duration::from_millis(500));
                    self.restart(&[first, second]);
                    pause(3500);
                }
                Fault::Hung => {
                    let both = [first, second];
                    both.iter().for_each(|index| self.fleet.master(*index).stop().expect("it runs"));
                    pause(3000);
                    both.iter().for_each(|index| self.fleet.master(*index).resume().expect("it runs"));
                    pause(1000);
                }
                Fault::Lost => {
                    let both = [&self.proxies[first], &self.proxies[second]];
                    both.iter().for_each(|proxy| proxy.stall_replies(true));
                    pause(800);
                    both.iter().for_each(|proxy| {
                        proxy.drop_connections();
                        proxy.stall_replies(false);
                    });
                    pause(700);
                }
                Fault::Cut => {
                    self.proxies.iter().for_each(Proxy::drop_connections);
                    pause(500);
                }
                Fault::Clocks => {
                    [first, second].iter().for_each(|index| self.step(*index, STEP_S));
                    pause(1000);
                    [first, second].iter().for_each(|index| self.step(*index, 0));
                    pause(1000);
                }
            }
        }
    }

    /// Kills and restarts these masters.
    fn restart(&mut self, indices: &[usize]) {
        indices.iter().for_each(|index| self.fleet.master(*index).kill());
        indices.iter().for_each(|index| self.fleet.master(*index).restart().expect("it starts again"));
    }

    fn step(&self, index: usize, step_s: i64) {
        // In place, because the server has mapped the file.
        let mut clock = OpenOptions::new().write(true).open(&self.clocks[index]).expect("a clock");
        clock.write_all(&step_s.to_ne_bytes()).expect("a clock steps");
    }
}

pub(crate) fn sleep_until(until: Instant) {
    thread::sleep(until.saturating_duration_since(Instant::now()));
}
