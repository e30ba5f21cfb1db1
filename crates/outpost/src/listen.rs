//! The value of `listen` settings and flags: an IP address with a port, or `none`.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) enum ListenAddress {
    Disabled,
    At(SocketAddr),
}

impl ListenAddress {
    pub(crate) fn address(self) -> Option<SocketAddr> {
        match self {
            ListenAddress::Disabled => None,
            ListenAddress::At(address) => Some(address),
        }
    }
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<ListenAddress, String> {
        match text {
            "none" => Ok(ListenAddress::Disabled),
            text => text
                .parse()
                .map(ListenAddress::At)
                .map_err(|_| format!("{text:?} is neither IP:PORT, as in 127.0.0.1:9100, nor none")),
        }
    }
}

impl TryFrom<String> for ListenAddress {
    type Error = String;

    fn try_from(text: String) -> Result<ListenAddress, String> {
        text.parse()
    }
}

impl From<ListenAddress> for String {
    fn from(listen: ListenAddress) -> String {
        listen.to_string()
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddress::Disabled => f.write_str("none"),
            ListenAddress::At(address) => address.fmt(f),
        }
    }
}
