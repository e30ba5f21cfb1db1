//! Known vulnerabilities of other programs: one test per row of the table in docs/security.md. Each test performs the
//! attack on the real sockets of the real binary. The attack must fail.
//!
//! Rows without a test here:
//!
//! - sudo-rs GHSA-q428-6v73-fc4q (a typed secret is echoed at the timeout) needs a sudo with a password: the test
//!   is in [`crate::sudo`], `sudo_rs_ghsa_q428_*`.
//! - rmcp CVE-2026-42559, the Ruby SDK's CVE-2026-63118 and MCP Toolbox's CVE-2026-11624 (DNS rebinding): the broker has no
//!   HTTP. Its sockets are Unix sockets.
//! - GoClaw #1200 to #1204 and IronClaw #4863, #4865 share a row and a test with openclaw's wrappers.
//! - sudo CVE-2017-1000368 is the newline variant of CVE-2017-1000367 and shares its test.

mod claude;
mod clock;
mod decisions;
mod openclaw;
mod polkit;
mod prompt;
mod sudo;
mod terminal;
