//! End-to-end tests of `outpost mcp`: the real binary with rmcp's client, with the Python client and with raw lines, and a
//! real broker whose terminal the test operates.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod answers;
mod arguments;
mod eras;
mod kit;
mod lines;
mod python;
mod tools;
mod waiting;
