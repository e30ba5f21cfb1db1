//! The memory of a process, or of its whole tree where it has a cgroup.

use crate::support::{Host, Seen, read_until};
use outpost_sys::cgroup::Parent;
use outpost_testkit::{no_cgroups, require};

const MEGABYTES: u64 = 1_000_000;

/// The memory of a small process whose child has a lot.
async fn memory_of_tree(host: Host) -> u64 {
    let script = "sh -c 'x=$(head -c 40000000 /dev/zero | tr \"\\\\0\" a); echo ready; sleep 1000'; :";
    let process = host.sh("tree", script).await;
    let mut seen = Seen::default();
    read_until(&mut process.subscribe(0), &mut seen, |seen| seen.stdout.ends_with(b"ready\n")).await;
    let bytes = process.info().rss_bytes;
    host.close().await;
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_is_that_of_the_whole_tree_where_there_are_cgroups() {
    let alone = memory_of_tree(Host::with(|config| config.cgroups = false)).await;
    assert!((1..20 * MEGABYTES).contains(&alone), "{alone}");
    let cgroups = require!(Parent::detect("outpost-usage-test").unwrap().ok_or_else(no_cgroups));
    cgroups.remove().unwrap();
    let all = memory_of_tree(Host::new()).await;
    assert!(all > 40 * MEGABYTES, "{all}");
}
