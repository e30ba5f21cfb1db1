//! `server.*`: who we are and what we can do. They take no params, so whatever is sent as such is ignored.

use crate::json::write::Object;
use crate::server::Relay;

/// "server.capabilities self-describes the set. Order as returned".
const METHODS: [&str; 19] = [
    "server.ping",
    "server.version",
    "server.capabilities",
    "server.shutdown",
    "files.list",
    "files.validate",
    "files.stat",
    "files.read",
    "files.extract_tar",
    "git.info",
    "git.status",
    "git.list_branches",
    "git.worktree_create",
    "git.worktree_remove",
    "process.spawn",
    "process.stdin",
    "process.kill",
    "process.killAndWait",
    "process.reattach",
];

const FEATURES: [&str; 1] = ["process.stdin.offset"];

/// Appends the result of a method.
pub(crate) type Append = fn(&Relay, &mut Vec<u8>);

/// The method of that name, if it is one that is answered at once.
pub(crate) fn find(name: &str) -> Option<Append> {
    match name {
        "ping" => Some(ping),
        "version" => Some(version),
        "capabilities" => Some(capabilities),
        _ => None,
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
        .strings("methods", METHODS)
        .strings("features", FEATURES)
        .end();
}
