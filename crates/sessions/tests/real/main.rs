//! The real agent CLIs through the sessions face, against a fake model. `scripts/setup-agent-clis` installs them; where one is
//! missing, its tests say so and are skipped.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod claude;
mod codex;
mod gemini;
mod kit;
mod opencode;
mod scenes;
