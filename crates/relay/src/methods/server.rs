//! `server.*`: identity and capabilities of the daemon. These methods ignore `params`, as the contract demands.

use super::{Method, ServerMethod};
use crate::go_json::write::Object;
use crate::server::Relay;

const FEATURES: [&str; 1] = ["process.stdin.offset"];

/// Appends the result of a method.
pub(crate) type AppendResult = fn(&Relay, &mut Vec<u8>);

impl ServerMethod {
    /// The function that writes the result. `None` for a shutdown, which has no reply.
    pub(crate) fn append_result(self) -> Option<AppendResult> {
        match self {
            ServerMethod::Ping => Some(ping),
            ServerMethod::Version => Some(version),
            ServerMethod::Capabilities => Some(capabilities),
            ServerMethod::Shutdown => None,
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
        .string("arch", crate::go_compat::architecture())
        .end();
}

fn capabilities(relay: &Relay, out: &mut Vec<u8>) {
    Object::begin(out)
        .string("version", &relay.version)
        .strings("methods", Method::ALL.iter().map(|(name, _)| name))
        .strings("features", FEATURES)
        .end();
}
