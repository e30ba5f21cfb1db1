//! JSON with the behaviour of Go's `encoding/json`, which is part of the contract.

mod nesting;
pub(crate) mod read;
mod string;
pub(crate) mod unmarshal;
mod validate;
pub mod write;
