//! The exec face: standalone commands over JSON lines, as `codex app-server` speaks them.

#![forbid(unsafe_code)]
