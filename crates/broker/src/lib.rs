//! The broker face: pipelines that run, with root's rights or ours, once a human has allowed exactly them.

#![forbid(unsafe_code)]

pub mod wire;
