//! The real agent CLIs behind the sessions face, with a fake model. `scripts/setup-agent-clis` installs them. Tests of
//! a missing CLI are reported as skipped.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod claude;
mod codex;
mod gemini;
mod kit;
mod opencode;
mod scenarios;
