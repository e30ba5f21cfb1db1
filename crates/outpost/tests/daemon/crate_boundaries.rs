//! The crate boundaries of ARCHITECTURE.md, checked against the dependencies that cargo reports.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// The face crates, and the MCP client.
const FACES: [&str; 6] = ["control", "relay", "exec", "broker", "sessions", "mcp"];

type Links = BTreeMap<String, BTreeSet<String>>;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn short(name: &str) -> &str {
    name.strip_prefix("outpost-").unwrap_or(name)
}

/// For each crate of the workspace, its direct dependencies in the workspace.
fn direct_links() -> Links {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut metadata = Command::new(cargo);
    metadata.args(["metadata", "--format-version=1", "--no-deps", "--offline"]).current_dir(root());
    let output = metadata.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let names: BTreeSet<&str> = packages.iter().map(|package| package["name"].as_str().unwrap()).collect();
    let direct = |package: &Value| {
        let linked = package["dependencies"].as_array().unwrap().iter().filter(|on| on["kind"].is_null());
        let linked = linked.map(|on| on["name"].as_str().unwrap()).filter(|name| names.contains(name));
        linked.map(|name| short(name).to_owned()).collect::<BTreeSet<_>>()
    };
    packages
        .iter()
        .map(|package| (short(package["name"].as_str().unwrap()).to_owned(), direct(package)))
        .collect()
}

/// For each crate of the workspace, its transitive dependencies in the workspace.
fn links() -> Links {
    let mut links = direct_links();
    // Each round adds one level of dependencies. No chain is longer than the number of crates.
    for _ in 0..links.len() {
        let before = links.clone();
        for linked in links.values_mut() {
            let further: Vec<String> = linked.iter().flat_map(|name| before[name].clone()).collect();
            linked.extend(further);
        }
    }
    links
}

#[test]
fn no_face_links_another_and_mcp_links_no_server() {
    let links = links();
    for face in FACES {
        let linked: Vec<&String> = links[face].iter().filter(|name| FACES.contains(&name.as_str())).collect();
        assert!(linked.is_empty(), "{face} links {linked:?}");
    }
    for server in ["approvals", "engine", "keeper", "sandbox"] {
        assert!(!links["mcp"].contains(server), "mcp links {server}");
    }
}

#[test]
fn lower_crates_do_not_link_higher_ones() {
    let links = links();
    let only = |name: &str, allowed: &[&str]| {
        let foreign: Vec<&String> = links[name].iter().filter(|on| !allowed.contains(&on.as_str())).collect();
        assert!(foreign.is_empty(), "{name} links {foreign:?}");
    };
    only("sys", &[]);
    only("broker-wire", &[]);
    for name in ["wire", "keeper", "journal", "sandbox"] {
        only(name, &["sys"]);
    }
    only("broker-client", &["broker-wire", "sys", "wire"]);
    only("ledger", &["sys"]);
    only("approvals", &["ledger", "sys", "wire"]);
    only("tidy", &[]);
    only("engine", &["sys", "keeper", "journal"]);
    for (name, linked) in &links {
        assert!(!linked.contains("outpost"), "{name} links the binary");
        assert!(name == "bench" || !linked.contains("testkit"), "{name} links the testkit");
    }
}

/// The command line links the engine through the crates of the faces, whose clients and settings it uses.
#[test]
fn the_command_line_names_neither_engine_nor_keeper() {
    let linked = &direct_links()["cli"];
    for daemon_only in ["engine", "keeper", "journal", "exec", "relay"] {
        assert!(!linked.contains(daemon_only), "cli names {daemon_only}");
    }
}

#[test]
fn every_crate_has_its_paragraph_in_the_architecture() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    for name in links().keys() {
        assert!(text.contains(&format!("**`{name}`**")), "ARCHITECTURE.md has no paragraph for {name}");
    }
}
