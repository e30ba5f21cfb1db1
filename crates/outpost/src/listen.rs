//! Where a port listens: at an address, or nowhere.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) enum Listen {
    Nowhere,
    At(SocketAddr),
}

impl Listen {
    pub(crate) fn address(self) -> Option<SocketAddr> {
        match self {
            Listen::Nowhere => None,
            Listen::At(address) => Some(address),
        }
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Listen, String> {
        match text {
            "none" => Ok(Listen::Nowhere),
            text => text
                .parse()
                .map(Listen::At)
                .map_err(|_| format!("{text:?} is not an address and a port, as 127.0.0.1:9100, nor none")),
        }
    }
}

impl TryFrom<String> for Listen {
    type Error = String;

    fn try_from(text: String) -> Result<Listen, String> {
        text.parse()
    }
}

impl From<Listen> for String {
    fn from(listen: Listen) -> String {
        listen.to_string()
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Nowhere => f.write_str("none"),
            Listen::At(address) => address.fmt(f),
        }
    }
}
