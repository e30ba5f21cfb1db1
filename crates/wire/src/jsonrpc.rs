//! The error object of JSON-RPC, and its codes. Each face encodes its own replies.

use serde::Serialize;

pub const PARSE: i32 = -32700;
pub const INVALID_REQUEST: i32 = -32600;
pub const METHOD_NOT_FOUND: i32 = -32601;
pub const INVALID_PARAMS: i32 = -32602;
pub const INTERNAL: i32 = -32603;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    pub code: i32,
    pub message: String,
}

impl Failure {
    pub fn new(code: i32, message: impl Into<String>) -> Failure {
        Failure { code, message: message.into() }
    }

    pub fn invalid_request(message: impl Into<String>) -> Failure {
        Failure::new(INVALID_REQUEST, message)
    }

    pub fn invalid_params(message: impl Into<String>) -> Failure {
        Failure::new(INVALID_PARAMS, message)
    }

    pub fn internal(message: impl Into<String>) -> Failure {
        Failure::new(INTERNAL, message)
    }
}
