//! Control groups: children cloned into one, and killing them.

use crate::kit::{self, Spec, command, read_lines, read_to_end, shell};
use outpost_sys::Errno;
use outpost_sys::cgroup::{Group, Parent};
use outpost_sys::fault::{self, Fault};
use outpost_sys::pidfd::ExitCause;
use outpost_sys::procfs;
use outpost_testkit::{Lack, no_cgroups, require};
use std::time::Duration;

/// The parent group of one test, removed with everything in it.
pub(crate) struct Groups {
    pub(crate) parent: Parent,
}

impl Groups {
    pub(crate) fn of(test: &str) -> Result<Groups, Lack> {
        let parent =
            Parent::detect(&format!("outpost-test-{}-{test}", kit::me())).unwrap().ok_or_else(no_cgroups)?;
        Ok(Groups { parent })
    }

    pub(crate) fn group(&self, name: &str, spec: &mut Spec) -> Group {
        let group = self.parent.group(name);
        spec.cgroup = Some(group.create().unwrap());
        group
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for name in self.parent.names() {
            let _left = self.parent.group(&name).destroy(kit::TIMEOUT);
        }
        let removed = self.parent.remove();
        assert!(removed.is_ok() || std::thread::panicking(), "{removed:?}");
    }
}

#[test]
fn a_child_is_cloned_into_its_group() {
    let groups = require!(Groups::of("born"));
    let mut spec = command("/bin/sleep", &["1000"]);
    let group = groups.group("one", &mut spec);
    let mut sleeper = spec.start_quiet().unwrap();
    assert_eq!(group.members(), [sleeper.pid]);
    assert_eq!(groups.parent.names(), ["one"]);
    assert_eq!(group.remove(), Err(Errno::BUSY));
    group.kill().unwrap();
    assert_eq!(sleeper.end().cause, ExitCause::Signal(9));
    group.destroy(kit::TIMEOUT).unwrap();
    assert_eq!((group.members(), groups.parent.names()), (vec![], vec![]));
    assert_eq!(group.kill(), Err(Errno::NOENT));
    group.destroy(Duration::ZERO).unwrap();
}

/// A tree whose members left session and parent. Each of them holds both pipes.
pub(crate) const SCATTERED: &str = "exec 5<&0
    setsid sh -c 'cat <&5 & echo $!; (setsid cat <&5 & echo $!); echo $$; exec cat <&5' &
    wait";

#[test]
fn killing_the_group_reaches_processes_that_left_session_and_parent() {
    let groups = require!(Groups::of("scattered"));
    let mut spec = shell(SCATTERED);
    let group = groups.group("tree", &mut spec);
    let (mut kid, _gate, output) = spec.start_gated();
    let mut pids: Vec<i32> = read_lines(&output, 3).iter().map(|line| line.parse().unwrap()).collect();
    pids.push(kid.pid);
    let session = procfs::stat(pids[2]).unwrap().session;
    assert_ne!(session, procfs::stat(kid.pid).unwrap().session, "or this test tests nothing");
    let mut members = group.members();
    pids.sort_unstable();
    members.sort_unstable();
    assert_eq!(members, pids);
    group.kill().unwrap();
    assert_eq!(read_to_end(output), b"");
    assert_eq!(kid.end().cause, ExitCause::Signal(9));
    group.destroy(kit::TIMEOUT).unwrap();
}

#[test]
fn groups_that_a_child_created_are_removed_with_its_group() {
    let groups = require!(Groups::of("nested"));
    let mut spec = command("/bin/sleep", &["1000"]);
    let group = groups.group("outer", &mut spec);
    let inner = groups.parent.group("outer/inner");
    spec.cgroup = Some(inner.create().unwrap());
    let mut sleeper = spec.start_quiet().unwrap();
    assert_eq!(group.members(), [sleeper.pid], "those below count");
    // A zombie does not keep its group busy.
    group.destroy(kit::TIMEOUT).unwrap();
    assert_eq!(sleeper.end().cause, ExitCause::Signal(9));
    assert!(groups.parent.names().is_empty());
}

#[test]
fn a_failed_start_leaves_its_group_empty() {
    let groups = require!(Groups::of("failed"));
    let mut spec = command("/missing", &[]);
    let group = groups.group("none", &mut spec);
    assert_eq!(spec.failure().errno, Errno::NOENT);
    assert_eq!(group.remove(), Ok(()));
    // The directory is still open, but the group is gone.
    let failure = spec.failure();
    assert!(matches!(failure.errno, Errno::NODEV | Errno::NOENT), "{failure:?}");
}

#[test]
fn a_resource_that_has_run_out_is_not_taken_for_a_host_without_cgroups() {
    let name = format!("outpost-test-{}-exhausted", kit::me());
    require!(Parent::detect(&name).unwrap().ok_or_else(no_cgroups)).remove().unwrap();
    for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOSPC, Errno::AGAIN, Errno::ACCESS] {
        for nth in 1.. {
            fault::arm(nth, Fault::Errno(errno));
            let detected = Parent::detect(&name);
            if fault::disarm() {
                assert!(nth > 3, "the calls of a detection have no failpoint");
                detected.unwrap().unwrap().remove().unwrap();
                break;
            }
            match errno {
                Errno::ACCESS => assert!(detected.unwrap().is_none(), "call {nth}"),
                errno => assert_eq!(detected.err(), Some(errno), "call {nth}"),
            }
        }
    }
}
