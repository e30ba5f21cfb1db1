//! The daemon: `serve` starts the keeper, the keeper starts the worker, and the worker runs the faces.

mod approvals_service;
pub(crate) mod broker_face;
mod command_loop;
mod control_handler;
mod detach;
mod exec_face;
mod faces;
pub(crate) mod fd_roles;
mod fd_store;
mod listeners;
mod live_config;
mod metrics_face;
pub(crate) mod private_paths;
mod problems;
mod relay_face;
pub(crate) mod resume_kept;
pub(crate) mod serve;
mod sessions_face;
mod shutdown;
pub(crate) mod socket;
pub(crate) mod worker;
