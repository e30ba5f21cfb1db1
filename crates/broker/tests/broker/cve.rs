//! Known holes of others, one test for each row of our table of them: the attack is made, on the real sockets of the real
//! binary, and must fail.
//!
//! Rows without a test here, and why:
//!
//! - sudo-rs GHSA-q428-6v73-fc4q (a typed secret is echoed when the time is up) needs a sudo that asks: it is in
//!   [`crate::sudo`], as `sudo_rs_ghsa_q428_*`.
//! - rmcp CVE-2026-42559, the Ruby SDK's CVE-2026-63118 and MCP Toolbox's CVE-2026-11624 (DNS rebinding): the broker has no
//!   HTTP; both of its sockets are files.
//! - GoClaw #1200 to #1204 and IronClaw #4863, #4865 stand in one row with openclaw's wrappers, and have its test.
//! - sudo CVE-2017-1000368 is the newline variant of CVE-2017-1000367, and has its test.

mod claude;
mod clock;
mod decisions;
mod openclaw;
mod polkit;
mod prompt;
mod sudo;
mod terminal;
