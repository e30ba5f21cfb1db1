//! The broker face as its clients and its approver see it: the real binary on a real socket and a real terminal, answers
//! compared byte for byte.
//!
//! `OUTPOST_BROKER_PEER=/path/to/sudo-proxy` (1.2.0, see `scripts/fetch-broker-peer`) runs the same tests against the
//! original, except those in the modules named `ours`: what we do otherwise on purpose. `OUTPOST_BROKER_ALL=1` runs those
//! there, too: each must fail, or it would not notice when we do as the original does.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod actions;
mod agent;
mod answers;
mod chaos;
mod client;
mod cve;
mod env;
mod fields;
mod framing;
mod freshness;
mod gate;
mod kit;
mod limits;
mod ours;
mod pipelines;
mod policy;
mod prompt;
mod replay;
mod serve;
mod socket;
mod sudo;
