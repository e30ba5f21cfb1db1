//! The methods, one file for each namespace of the contract.

pub(crate) mod files;
pub(crate) mod git;
pub(crate) mod process;
pub(crate) mod server;
