//! End-to-end tests of the broker face: the real binary on a real socket and a real terminal. Responses are compared byte
//! for byte.
//!
//! `OUTPOST_BROKER_PEER=/path/to/sudo-proxy` (1.2.0, see `scripts/fetch-broker-peer`) runs the same tests against the
//! original, sudo-proxy. Tests in the module `deviations` are skipped there: they cover intended differences.
//! `OUTPOST_BROKER_ALL=1` runs them too, and each must fail. A test that passes does not detect its difference.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod actions;
mod agent;
mod answers;
mod chaos;
mod client;
mod cve;
mod deviations;
mod env;
mod fields;
mod fixture;
mod framing;
mod freshness;
mod kit;
mod limits;
mod pipelines;
mod policy;
mod prompt;
mod replay;
mod serve;
mod socket;
mod sudo;
