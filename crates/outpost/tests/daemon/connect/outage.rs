//! `outpost connect` over a link between two network namespaces that is taken down.

use super::{PRODUCER, Reader, RemoteHost, produced};
use outpost_testkit::{Lack, require};
use std::process::{Command, Stdio};

/// Two network namespaces with a link between them, removed at the end of the test.
struct Link {
    names: [String; 2],
}

impl Link {
    const ADDRESSES: [&'static str; 2] = ["10.213.77.1", "10.213.77.2"];

    fn make() -> Result<Link, Lack> {
        outpost_testkit::root()?;
        let pid = std::process::id();
        let link = Link { names: [format!("opa{pid}"), format!("opb{pid}")] };
        let [a, b] = &link.names;
        if !ip(&["netns", "add", a]) {
            return Err(Lack::of_setup("`ip netns add` fails; iproute2 and root have network namespaces"));
        }
        assert!(ip(&["netns", "add", b]));
        assert!(ip(&["link", "add", a, "netns", a, "type", "veth", "peer", "name", b, "netns", b]));
        for (name, address) in link.names.iter().zip(Link::ADDRESSES) {
            assert!(ip(&["-n", name, "address", "add", &format!("{address}/30"), "dev", name]));
            assert!(ip(&["-n", name, "link", "set", "lo", "up"]));
            link.set(name, "up");
        }
        Ok(link)
    }

    fn set(&self, name: &str, state: &str) {
        assert!(ip(&["-n", name, "link", "set", name, state]));
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for name in &self.names {
            ip(&["netns", "del", name]);
        }
    }
}

fn ip(arguments: &[&str]) -> bool {
    Command::new("ip").args(arguments).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

#[test]
fn a_network_outage_loses_and_duplicates_nothing() {
    let link = require!(Link::make());
    let [a, b] = &link.names;
    let by = ["ip", "netns", "exec", a].map(str::to_owned).to_vec();
    let address = Some((Link::ADDRESSES[1], 2222));
    let mut remote = require!(RemoteHost::start_at(address, &["ip", "netns", "exec", b], by));
    remote.options = vec!["ServerAliveInterval=1", "ServerAliveCountMax=2", "ConnectTimeout=2"];
    let connected = remote.connect();
    let mut run = Reader::new(remote.on(&["run", "--name", "p", "--", "sh", "-c", PRODUCER]));
    run.read_until(50_000);
    link.set(b, "down");
    run.write("go\n");
    connected.wait_for("is lost", 1);
    connected.wait_for("retry in", 1);
    link.set(b, "up");
    connected.wait_for("reconnected to there", 1);
    run.write("end\n");
    let (text, code) = run.end();
    assert!(text == produced(), "{} bytes of {}", text.len(), produced().len());
    assert_eq!(code, Some(7));
}
