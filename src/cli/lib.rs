//! The parts of the program `redlatch` that other programs can call: [`doctor::examine`] says what is wrong
//! with a fleet, and what to do about it. The lock itself is the crate [`redlatch`].

#![warn(missing_docs, unreachable_pub)]

pub mod doctor;
