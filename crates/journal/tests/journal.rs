//! The journal with real pipes and files: order, recovery, caps, stdin, failing system calls.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "journal/caps.rs"]
mod caps;
#[path = "journal/chores.rs"]
mod chores;
#[path = "journal/damage.rs"]
mod damage;
#[path = "journal/faults.rs"]
mod faults;
#[path = "journal/open_any_bytes.rs"]
mod open_any_bytes;
#[path = "journal/open_mutated.rs"]
mod open_mutated;
#[path = "journal/order.rs"]
mod order;
#[path = "journal/power.rs"]
mod power;
#[path = "journal/random.rs"]
mod random;
#[path = "journal/rig.rs"]
mod rig;
#[path = "journal/stdin.rs"]
mod stdin;
#[path = "journal/threads.rs"]
mod threads;
