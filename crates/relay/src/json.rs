//! JSON as the original's library reads and writes it, which is part of the contract: see [`check`], [`read`], [`fill`]
//! and [`write`].

mod check;
pub(crate) mod fill;
mod nesting;
pub(crate) mod read;
mod string;
pub(crate) mod write;
