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

/// The result of a method that is answered at once; none when there is no such method.
pub(crate) fn call(relay: &Relay, name: &str) -> Option<Vec<u8>> {
    match name {
        "ping" => Some(b"{\"pong\":true}".to_vec()),
        "version" => Some(version(relay)),
        "capabilities" => Some(capabilities(relay)),
        _ => None,
    }
}

fn version(relay: &Relay) -> Vec<u8> {
    let mut out = Vec::new();
    Object::begin(&mut out)
        .string("version", &relay.version)
        .string("platform", "linux")
        .string("arch", crate::go::architecture())
        .end();
    out
}

fn capabilities(relay: &Relay) -> Vec<u8> {
    let mut out = Vec::new();
    Object::begin(&mut out)
        .string("version", &relay.version)
        .strings("methods", METHODS)
        .strings("features", FEATURES)
        .end();
    out
}
