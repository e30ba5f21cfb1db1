//! Connections to sockets that another user created, can change or listens on: the client sends no byte.

use outpost_sys::connect::{
    Trust, Untrusted, check_directory, connect, connect_nonblocking, is_abandoned, untrusted,
};
use outpost_testkit::{as_user, require, root};
use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

const ANN: u32 = 54_321;
const EVE: u32 = 54_322;

/// A directory like `/tmp` if this is root; otherwise a directory of this user.
fn shared() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o1777)).unwrap();
    dir
}

fn directory(path: PathBuf, uid: u32, mode: u32) -> PathBuf {
    fs::create_dir(&path).unwrap();
    chown(&path, Some(uid), Some(uid)).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
    path
}

/// A socket with this owner on which a process of that user listens, non-blocking.
fn listening(path: &Path, owner: u32, listener: u32) -> UnixListener {
    let elsewhere = tempfile::tempdir().unwrap();
    fs::set_permissions(elsewhere.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let made = elsewhere.path().join("s");
    let bound = as_user(listener, || UnixListener::bind(&made).unwrap());
    fs::rename(&made, path).unwrap();
    lchown(path, Some(owner), Some(owner)).unwrap();
    fs::set_permissions(path, PermissionsExt::from_mode(0o666)).unwrap();
    bound.set_nonblocking(true).unwrap();
    bound
}

/// The result for a client of this user.
fn reached(uid: u32, socket: &Path, trust: Trust) -> Result<(), Option<Untrusted>> {
    let attempts = as_user(uid, || [connect(socket, trust), connect_nonblocking(socket, trust)]);
    let [blocking, nonblocking] =
        attempts.map(|made| made.map(drop).map_err(|error| untrusted(&error).cloned()));
    assert_eq!(blocking, nonblocking);
    blocking
}

fn got_no_connection(listener: &UnixListener) -> bool {
    listener.accept().is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

#[test]
fn a_directory_that_another_user_made_first_gets_no_connection() {
    require!(root());
    let base = shared();
    let dir = directory(base.path().join("outpost"), EVE, 0o755);
    let socket = dir.join("control.sock");
    for owner in [EVE, ANN, 0] {
        let listener = listening(&socket, owner, EVE);
        for client in [ANN, 0] {
            let refused = reached(client, &socket, Trust::Own).unwrap_err().unwrap();
            assert!(
                matches!(&refused, Untrusted::Ancestor { ancestor, uid: EVE, .. } if *ancestor == dir),
                "{refused}"
            );
            assert!(got_no_connection(&listener));
        }
    }
    as_user(ANN, || {
        let refused = check_directory(&dir, Trust::Own).unwrap_err();
        assert!(untrusted(&refused).is_some());
    });
}

#[test]
fn a_directory_that_others_can_write_gets_no_connection() {
    require!(root());
    let base = shared();
    for (name, mode) in [("others", 0o707), ("group", 0o770), ("sticky", 0o1777)] {
        let dir = directory(base.path().join(name), ANN, mode);
        chown(&dir, None, Some(100)).unwrap();
        let socket = dir.join("s");
        let listener = listening(&socket, EVE, EVE);
        let refused = reached(ANN, &socket, Trust::Own);
        assert!(matches!(refused, Err(Some(Untrusted::Ancestor { .. }))), "{name}: {refused:?}");
        assert!(got_no_connection(&listener));
    }
    // A parent directory.
    let open = directory(base.path().join("open"), ANN, 0o777);
    let dir = directory(open.join("outpost"), ANN, 0o700);
    let listener = listening(&dir.join("s"), ANN, ANN);
    let refused = reached(ANN, &dir.join("s"), Trust::Own);
    assert!(matches!(refused, Err(Some(Untrusted::Ancestor { ancestor, .. })) if ancestor == open));
    assert!(got_no_connection(&listener));
}

#[test]
fn a_listener_of_another_user_gets_no_byte() {
    require!(root());
    let base = shared();
    let dir = directory(base.path().join("outpost"), ANN, 0o700);
    let socket = dir.join("s");
    let theirs = listening(&socket, EVE, EVE);
    assert!(matches!(reached(ANN, &socket, Trust::Own), Err(Some(Untrusted::File { uid: EVE, .. }))));
    assert!(got_no_connection(&theirs));
    let replaced = listening(&socket, ANN, EVE);
    assert!(matches!(reached(ANN, &socket, Trust::Own), Err(Some(Untrusted::Listener { uid: EVE, .. }))));
    let mut bytes = Vec::new();
    replaced.accept().unwrap().0.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, b"", "the connection was closed with nothing in it");
}

#[test]
fn a_link_of_another_user_is_not_followed() {
    require!(root());
    let base = shared();
    let dir = directory(base.path().join("real"), ANN, 0o700);
    let listener = listening(&dir.join("s"), ANN, ANN);
    let link = base.path().join("outpost");
    symlink(&dir, &link).unwrap();
    lchown(&link, Some(EVE), Some(EVE)).unwrap();
    assert!(
        matches!(reached(ANN, &link.join("s"), Trust::Own), Err(Some(Untrusted::Ancestor { ancestor, .. })) if ancestor == link)
    );
    assert!(got_no_connection(&listener));
    lchown(&link, Some(ANN), Some(ANN)).unwrap();
    assert_eq!(reached(ANN, &link.join("s"), Trust::Own), Ok(()), "a link of one's own is one's own choice");
}

#[test]
fn own_sockets_and_those_of_root_are_reached() {
    require!(root());
    let base = shared();
    let own = directory(base.path().join("own"), ANN, 0o700);
    let _own = listening(&own.join("s"), ANN, ANN);
    assert_eq!(reached(ANN, &own.join("s"), Trust::Own), Ok(()));
    assert!(matches!(reached(ANN, &own.join("s"), Trust::Root), Err(Some(_))));
    assert!(
        matches!(reached(0, &own.join("s"), Trust::Own), Err(Some(_))),
        "root sends nothing to a user's process"
    );
    let roots = directory(base.path().join("root"), 0, 0o755);
    let _roots = listening(&roots.join("s"), 0, 0);
    for trust in [Trust::Own, Trust::Root, Trust::Owner] {
        assert_eq!(reached(ANN, &roots.join("s"), trust), Ok(()));
    }
}

#[test]
fn a_named_socket_is_its_owners_and_no_other_users() {
    require!(root());
    let base = shared();
    let dir = directory(base.path().join("ann"), ANN, 0o755);
    let _ann = listening(&dir.join("s"), ANN, ANN);
    assert_eq!(reached(EVE, &dir.join("s"), Trust::Owner), Ok(()));
    assert!(matches!(reached(EVE, &dir.join("s"), Trust::Own), Err(Some(_))));
    let _replaced = listening(&dir.join("s"), ANN, 54_323);
    assert!(matches!(reached(EVE, &dir.join("s"), Trust::Owner), Err(Some(Untrusted::Listener { .. }))));
    let weak = directory(base.path().join("weak"), 54_323, 0o755);
    let _moved = listening(&weak.join("s"), ANN, ANN);
    assert!(matches!(reached(EVE, &weak.join("s"), Trust::Owner), Err(Some(Untrusted::Ancestor { .. }))));
}

/// As whichever user runs the tests.
#[test]
fn a_socket_of_this_user_is_reached_and_a_missing_one_is_not_found() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    assert_eq!(connect(&socket, Trust::Own).unwrap_err().kind(), ErrorKind::NotFound);
    let missing = dir.path().join("none/s");
    assert_eq!(connect(&missing, Trust::Own).unwrap_err().kind(), ErrorKind::NotFound);
    let listener = UnixListener::bind(&socket).unwrap();
    connect(&socket, Trust::Own).unwrap();
    assert!(!is_abandoned(&socket));
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    assert!(untrusted(&connect(&socket, Trust::Own).unwrap_err()).is_some());
    assert!(untrusted(&check_directory(dir.path(), Trust::Own).unwrap_err()).is_some());
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o700)).unwrap();
    check_directory(dir.path(), Trust::Own).unwrap();
    drop(listener);
    assert!(is_abandoned(&socket));
    assert_eq!(connect(&socket, Trust::Own).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    fs::remove_file(&socket).unwrap();
    fs::write(&socket, "").unwrap();
    let refused = connect(&socket, Trust::Own).unwrap_err();
    let own = outpost_sys::process::effective_uid();
    assert!(matches!(untrusted(&refused), Some(Untrusted::File { uid, .. }) if *uid == own), "{refused}");
}

#[test]
fn a_socket_whose_path_is_longer_than_an_address_is_reached() {
    let dir = tempfile::tempdir().unwrap();
    let deep = dir.path().join("d".repeat(120));
    fs::create_dir(&deep).unwrap();
    fs::set_permissions(&deep, PermissionsExt::from_mode(0o700)).unwrap();
    let socket = deep.join("s");
    let (address, _open) = outpost_sys::message::address(&socket).unwrap();
    let _listener = UnixListener::bind(address).unwrap();
    connect(&socket, Trust::Own).unwrap();
}
