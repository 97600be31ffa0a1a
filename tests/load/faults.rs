//! Harms masters at random and heals them: at most two at once, except in short outages of three.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use redlatch_support::Fleet;

/// The thread that harms the masters.
pub(crate) struct Faults {
    harming: Option<JoinHandle<Fleet>>,
    is_over: Arc<AtomicBool>,
}

impl Faults {
    pub(crate) fn begin(fleet: Fleet, is_over: Arc<AtomicBool>) -> Self {
        let its = is_over.clone();
        Self { harming: Some(thread::spawn(move || harm(fleet, &its))), is_over }
    }

    /// Fails if the thread has panicked.
    pub(crate) fn assert_alive(&mut self) {
        if self.harming.as_ref().is_some_and(JoinHandle::is_finished) {
            drop(self.harming.take().map(JoinHandle::join).expect("it is there").expect("no panic"));
        }
    }

    /// Ends the faults. All masters run again.
    pub(crate) fn end(mut self) -> Fleet {
        self.harming.take().expect("it is there").join().expect("no panic")
    }
}

impl Drop for Faults {
    /// Also ends the servers of a failed test.
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        drop(self.harming.take().map(JoinHandle::join));
    }
}

fn harm(mut fleet: Fleet, is_over: &AtomicBool) -> Fleet {
    let mut rng = StdRng::seed_from_u64(crate::seed());
    let mut counts = [0_u32; 6];
    while !is_over.load(Ordering::SeqCst) {
        thread::sleep(Duration::from_millis(rng.random_range(200..1500)));
        let fault = rng.random_range(0..counts.len());
        counts[fault] += 1;
        let first = rng.random_range(0..5);
        // One fault in twelve takes the quorum away.
        let count = [1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 3][rng.random_range(0..12)];
        let harmed: Vec<usize> = (0..count).map(|place| (first + place) % 5).collect();
        let pause = Duration::from_millis(rng.random_range(10..1500));
        match fault {
            0 => {
                harmed.iter().for_each(|index| fleet.master(*index).stop());
                thread::sleep(pause);
                harmed.iter().for_each(|index| fleet.master(*index).cont());
            }
            1 => {
                // Two restarts within a TTL may lose a quorum of grants; the quarantine is there for that.
                harmed.iter().for_each(|index| fleet.master(*index).kill());
                thread::sleep(pause);
                harmed.iter().for_each(|index| fleet.master(*index).restart());
            }
            2 => ask(&mut fleet, &harmed, "CLIENT KILL SKIPME yes"),
            3 => ask(&mut fleet, &harmed, "CLIENT KILL TYPE pubsub"),
            4 => ask(&mut fleet, &harmed, "SCRIPT FLUSH"),
            _ => ask(&mut fleet, &harmed, &format!("CLIENT PAUSE {} WRITE", pause.as_millis())),
        }
    }
    let [stops, kills, cuts, deaf, flushes, pauses] = counts;
    println!(
        "faults: {stops} stops, {kills} kills with restart, {cuts} cut connections, {deaf} cut subscriptions, \
         {flushes} forgotten scripts, {pauses} pauses"
    );
    fleet
}

fn ask(fleet: &mut Fleet, harmed: &[usize], line: &str) {
    for index in harmed {
        // The asking connection may be among the cut ones.
        let args: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        let _ = fleet.master(*index).try_command(&args);
    }
}
