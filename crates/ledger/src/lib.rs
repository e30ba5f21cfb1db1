//! The ledger of the daemon: a database for the tables of all faces, and the audit chain.
//!
//! One thread writes both. A face queues a job with [`Ledger::transact`]; the job reads and writes through a [`LedgerTx`].
//! The thread commits all queued jobs in one transaction. The audit chain ([`audit`]) is a tamper-evident log beside it.
//!
//! **Invariant:** a job takes effect in the database and in the chain, or in neither. After a crash, the next start marks
//! the chain's records without a commit as void.
//!
//! **Boundary:** this crate knows no table except its own. Each face brings the schema of its tables.

#![forbid(unsafe_code)]

pub mod audit;
mod boot_instant;
mod error;
mod hex;
mod ledger;

pub use boot_instant::{BootInstant, unix_ms};
pub use error::{Cause, Error, Result};
pub use hex::hex;
pub use ledger::{Ledger, LedgerTx};
