//! The real binary: keeper and worker as processes, killed, replaced and locked out, and asked for what needs a human.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod approvals;
mod approve;
mod attach;
mod audit;
mod commands;
mod config;
mod connect;
mod deaths;
mod desk;
mod docs;
mod doctor;
mod gone;
mod lacking;
mod life;
mod limits;
mod nameless;
mod recruits;
mod replacement;
mod screens;
mod shared;
mod start;
mod support;
mod survival;
mod table;
mod top;
