//! `outpost mcp` as MCP clients see it: the real binary on pipes, asked by rmcp's own client, by the Python package and by
//! bare lines, in front of a real broker with a human at its terminal.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod answers;
mod arguments;
mod eras;
mod kit;
mod lines;
mod python;
mod tools;
mod waiting;
