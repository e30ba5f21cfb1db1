//! What all faces share on the wire: lines with a limit, a bound on requests under way, base64 in place, a bounded way out.

#![forbid(unsafe_code)]

mod accept;
pub mod base64;
mod connect;
mod lines;
mod load;
mod outbox;
mod peers;
mod per_user;
mod socket;

pub use accept::{Listener, accept_admitted, accept_all, stop_accepting};
pub use connect::connect;
pub use lines::{Line, Lines};
pub use load::{Load, SharedLoad, Weight};
pub use outbox::{Closed, Outbox};
pub use peers::{Peers, TokenNeeded};
pub use per_user::{PerUser, UserPlace};
pub use socket::{ReadHalf, WriteHalf, split, standard};
