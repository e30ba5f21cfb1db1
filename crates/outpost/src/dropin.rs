//! Drop-in replacements: programs that stand in for an original and take its command line, files and messages.

pub(crate) mod app_server;
pub(crate) mod codecast;
pub(crate) mod relay;
pub(crate) mod run_dir;
pub(crate) mod sudo_proxy;
