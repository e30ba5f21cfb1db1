//! Addresses on which faces listen: the value of settings and flags, and the table of those in use.

use crate::columns::{self, pad_end};
use crate::console;
use outpost_control::wire::Listening;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

/// An IP address with a port, or `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ListenAddress {
    Disabled,
    At(SocketAddr),
}

impl ListenAddress {
    pub fn address(self) -> Option<SocketAddr> {
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

/// The listeners as a table for a terminal, with an example command for each.
pub fn table(rows: &[Listening]) -> String {
    let rows: Vec<[_; 3]> =
        rows.iter().map(|row| [&row.face, &row.address, &row.hint].map(|cell| console::line(cell))).collect();
    let width = |column: usize| rows.iter().map(|row| columns::width(&row[column])).max().unwrap_or_default();
    let (faces, addresses) = (width(0), width(1));
    let line = |[face, address, hint]: &[Cow<'_, str>; 3]| {
        format!("  {}  {}  try: {hint}\n", pad_end(face, faces), pad_end(address, addresses))
    };
    rows.iter().map(line).collect()
}
