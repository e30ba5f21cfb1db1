//! `server.*`: who we are and what we can do. They take no params, so whatever is sent as such is ignored.

use crate::json::write::Object;
use crate::server::Relay;

const FEATURES: [&str; 1] = ["process.stdin.offset"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Ping,
    Version,
    Capabilities,
    Shutdown,
}

/// Appends the result of a method.
pub(crate) type Append = fn(&Relay, &mut Vec<u8>);

impl Method {
    /// What answers it at once. A shutdown has no answer.
    pub(crate) fn answer(self) -> Option<Append> {
        match self {
            Method::Ping => Some(ping),
            Method::Version => Some(version),
            Method::Capabilities => Some(capabilities),
            Method::Shutdown => None,
        }
    }
}

fn ping(_relay: &Relay, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"pong\":true}");
}

fn version(relay: &Relay, out: &mut Vec<u8>) {
    Object::begin(out)
        .string("version", &relay.version)
        .string("platform", "linux")
        .string("arch", crate::go::architecture())
        .end();
}

fn capabilities(relay: &Relay, out: &mut Vec<u8>) {
    Object::begin(out)
        .string("version", &relay.version)
        .strings("methods", super::ALL.map(|(name, _)| name))
        .strings("features", FEATURES)
        .end();
}
