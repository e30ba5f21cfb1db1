//! The daemon: `serve` starts the keeper, the keeper starts the worker, and the worker runs the faces.

pub(crate) mod approvals_service;
pub(crate) mod broker_face;
mod command_loop;
mod control_handler;
mod detach;
mod exec_face;
mod faces;
pub(crate) mod fd_roles;
mod fd_store;
pub(crate) mod listeners;
pub(crate) mod live_config;
mod metrics_face;
mod problems;
mod relay_face;
pub(crate) mod resume_kept;
pub(crate) mod serve;
pub(crate) mod sessions_face;
pub(crate) mod shutdown;
pub(crate) mod socket;
pub(crate) mod worker;
