//! What a command may see and do: a policy becomes a plan, the plan a confinement that the child puts on itself.
//!
//! [`Policy`] says it in the words of the request, [`plan`] finds out what that means on this host and says so as a plain
//! value, and [`Confinement::build`] compiles it for the child. Whatever cannot be enforced is an [`Error`] that names
//! it; nothing is left out in silence.

#![forbid(unsafe_code)]

mod causes;
mod confinement;
mod error;
mod filter;
mod globs;
mod host;
mod landlock;
mod lease;
mod look;
mod plan;
mod policy;
mod private;
mod resolve;

pub use causes::{advice, landlock_advice};
pub use confinement::{Confinement, DESCRIPTOR_FIRST, HandedOver, Layers};
pub use error::Error;
pub use host::{Host, Namespaces, Probed};
pub use lease::sweep;
pub use plan::{Context, Mount, Plan, Root, Shadow, Shown, What, plan};
pub use policy::{AGENT_FILES, Access, Entry, EntryPath, Files, Policy, Reads, Special};
pub use private::Private;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
