//! What all faces share: lines with a limit, bounds on concurrent requests, base64, bounded send buffers, admission of
//! clients, JSON-RPC errors, metrics.

#![forbid(unsafe_code)]

mod accept;
#[cfg(feature = "http")]
mod access;
pub mod base64;
mod connect;
pub mod jsonrpc;
mod lines;
mod load;
#[cfg(feature = "http")]
pub mod metrics;
mod outbox;
mod peers;
mod per_user;
mod socket;

pub use accept::{Listener, accept_admitted, accept_all, stop_accepting};
#[cfg(feature = "http")]
pub use access::{Access, Refusal, TokenCheck, TokenFault, is_same_secret};
pub use connect::connect;
pub use lines::{Line, Lines};
pub use load::{Load, SharedLoad, Weight};
pub use outbox::{Closed, Outbox};
pub use peers::{Peers, TokenNeeded};
pub use per_user::{PerUserLimit, UserPermit};
pub use socket::{ReadHalf, WriteHalf, split, stdio};
