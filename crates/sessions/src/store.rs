//! What outlives a worker: the tables of sessions and messages, the event log of each turn, and when they are deleted.

pub(crate) mod database;
pub(crate) mod delivered_count;
pub(crate) mod retention;
pub(crate) mod turn_log;
