//! What every confined command can and cannot do.

use crate::kit::{Place, host};
use outpost_sandbox::Namespaces;
use outpost_sys::pidfd::How;

#[test]
fn this_host_has_namespaces() {
    assert_ne!(host().namespaces, Namespaces::None, "{:?}", host());
    println!("{:?}", host());
}

#[test]
fn a_read_only_command_runs_and_ends_as_it_does() {
    let place = Place::new();
    assert_eq!(place.run(&place.read_only(), &["/bin/true"]).how, How::Code(0));
    assert_eq!(place.sh(&place.read_only(), "exit 7").how, How::Code(7));
    assert_eq!(place.sh(&place.read_only(), "kill -9 $$").how, How::Signal(9));
    assert_eq!(place.sh(&place.read_only(), "kill -SEGV $$").how, How::Signal(11));
}
