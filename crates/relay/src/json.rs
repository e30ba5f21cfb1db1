//! JSON as the original's library reads and writes it, which is part of the contract: see [`read`] and [`write`].

pub(crate) mod read;
pub(crate) mod write;
