//! An MCP server on standard input and output that asks the broker.

#![forbid(unsafe_code)]
