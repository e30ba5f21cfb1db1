//! Basics: a sandboxed command runs and exits.

use crate::kit::{Fixture, host};
use outpost_sandbox::Namespaces;
use outpost_sys::pidfd::ExitCause;

#[test]
fn this_host_has_namespaces() {
    assert_ne!(host().namespaces, Namespaces::None, "{:?}", host());
    println!("{:?}", host());
}

#[test]
fn a_read_only_command_runs_and_its_exit_is_reported() {
    let fixture = Fixture::new();
    assert_eq!(fixture.run(&fixture.read_only(), &["/bin/true"]).cause, ExitCause::Code(0));
    assert_eq!(fixture.sh(&fixture.read_only(), "exit 7").cause, ExitCause::Code(7));
    assert_eq!(fixture.sh(&fixture.read_only(), "kill -9 $$").cause, ExitCause::Signal(9));
    assert_eq!(fixture.sh(&fixture.read_only(), "kill -SEGV $$").cause, ExitCause::Signal(11));
}
