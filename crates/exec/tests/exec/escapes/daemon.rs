//! The daemon itself: what it keeps, what it listens on, and what it reads that a command has written.

use super::Limits;
use super::Limits::{Networked, ReadOnly, Workspace};
use super::scene::Scene;
use crate::sandbox::{for_each_user, policy, profile};
use crate::table::with;
use serde_json::{Value, json};
use std::os::unix::net::UnixListener;
use std::path::Path;

/// A policy under which the directory that has everything of the server can be written to.
fn home_is_writable(scene: &Scene, network: bool) -> Value {
    let roots = [scene.host.server.dir()];
    policy(json!({"type": "workspaceWrite", "writableRoots": roots, "networkAccess": network}))
}

#[test]
fn what_the_daemon_keeps_is_neither_seen_nor_moved() {
    outpost_testkit::require!(crate::table::skip_on_original());
    for_each_user(|options| {
        let mut scene = Scene::start(&options);
        let rows = [
            ("listed", r#"report(opendir my $dir, $state)"#, "EACCES"),
            ("entered", r#"report(chdir "$state/app-server")"#, "EACCES"),
            ("written", r#"report(put("$state/new"))"#, "EACCES"),
            ("a record is forged", r#"report(put("$state/mountpoints/1-1", "$out/inner"))"#, "EACCES"),
        ];
        for (name, script, expected) in rows {
            let writable = home_is_writable(&scene, true);
            for limits in [
                ReadOnly.params(&scene),
                Workspace.params(&scene),
                Limits::Everything.params(&scene),
                writable,
            ] {
                let params = with(scene.params(script, &[]), limits);
                assert_eq!(scene.report(&params), expected, "{name}: {params}, user {:?}", options.uid);
            }
        }
        for (name, script) in [
            ("moved", r#"report(rename $state, "$state-moved")"#),
            ("replaced", r#"mkdir "$state-new"; report(rename "$state-new", $state)"#),
            ("exchanged", r#"mkdir "$state-new"; report(sys(316, -100, "$state-new", -100, $state, 2))"#),
        ] {
            let params = with(scene.params(script, &[]), home_is_writable(&scene, false));
            assert_eq!(scene.report(&params), "EBUSY", "{name}, user {:?}", options.uid);
        }
        // Without a sandbox all of it is there.
        assert_eq!(scene.run(Limits::None, r#"report(opendir my $dir, "$state/app-server")"#), "done");
        assert_eq!(scene.run(Limits::None, r#"report(put("$state/new"))"#), "done");
    });
}

/// A command with network may connect to Unix sockets, except to those of the daemon, which would start unconfined processes.
#[test]
fn the_daemons_socket_is_not_reached_with_a_network_either() {
    outpost_testkit::require!(crate::table::skip_on_original());
    for_each_user(|options| {
        let run = tempfile::Builder::new().prefix("outpost-exec-run-").tempdir_in("/var/tmp").unwrap();
        if let Some(uid) = options.uid {
            std::os::unix::fs::chown(run.path(), Some(uid), Some(uid)).unwrap();
        }
        let socket = run.path().join("control.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        if let Some(uid) = options.uid {
            std::os::unix::fs::chown(&socket, Some(uid), Some(uid)).unwrap();
        }
        listener.set_nonblocking(true).unwrap();
        let options = options.env("OUTPOST_RUNTIME_DIR", run.path().to_str().unwrap());
        let mut scene = Scene::start(&options);
        let script = format!(
            "use Socket; socket(my $s, AF_UNIX, SOCK_STREAM, 0) or die; report(connect $s, sockaddr_un(\"{}\"))",
            socket.display()
        );
        let everything = with(Limits::Everything.params(&scene), json!({}));
        for (limits, expected) in [
            (Networked.params(&scene), "EACCES"),
            (home_is_writable(&scene, true), "EACCES"),
            (ReadOnly.params(&scene), "EPERM"),
            (everything, "EPERM"),
        ] {
            let params = with(scene.params(&script, &[]), limits);
            assert_eq!(scene.report(&params), expected, "{params}, user {:?}", options.uid);
            assert!(listener.accept().is_err());
        }
        assert_eq!(scene.run(Limits::None, &script), "done");
        assert!(listener.accept().is_ok());
    });
}

/// A root that is missing, or lies where commands write, can become a link to anywhere between two requests.
#[test]
fn a_writable_root_that_a_command_made_a_link_opens_nothing() {
    outpost_testkit::require!(crate::table::skip_on_original());
    for_each_user(|options| {
        let mut scene = Scene::start(&options);
        let cases = [
            ("missing", r#"report(symlink $out, "$ws/root")"#),
            ("deeper", r#"mkdir "$ws/a" or die; report(symlink $out, "$ws/a/root")"#),
            ("above", r#"report(symlink "$out/..", "$ws/up")"#),
        ];
        let roots = ["root", "a/root", "up/outside"].map(|root| scene.workspace().join(root));
        for ((name, plant), root) in cases.iter().zip(&roots) {
            let write = policy(json!({"type": "workspaceWrite", "writableRoots": [root]}));
            let read =
                json!({"type": "restricted", "includePlatformDefaults": true, "readableRoots": [root]});
            let read = policy(json!({"type": "workspaceWrite", "readOnlyAccess": read}));
            for limits in [write, read] {
                assert_eq!(scene.run(Workspace, plant), "done", "{name}: {limits}");
                let attempt = r#"report(put("$out/victim"))"#;
                let outcome = scene.report(&with(scene.params(attempt, &[]), limits.clone()));
                assert!(
                    outcome.starts_with("error: "),
                    "{name}: {outcome:?} {limits}, user {:?}",
                    options.uid
                );
                assert!(outcome.contains("could replace the symbolic link"), "{outcome}");
                assert_eq!(scene.harm(), Vec::<String>::new(), "{name}");
                scene.clean();
            }
        }
        // One that leads to where it may write anyway is as good as any.
        std::fs::create_dir(scene.workspace().join("real")).unwrap();
        std::os::unix::fs::symlink("real", &roots[0]).unwrap();
        let limits = policy(json!({"type": "workspaceWrite", "writableRoots": [roots[0]]}));
        let params = with(scene.params("print 'ran'", &[]), limits);
        assert_eq!(scene.report(&params), "ran");
    });
}

/// What a command leaves where the daemon looks must not make the daemon wait, or look elsewhere.
#[test]
fn files_that_a_command_drops_do_not_stop_the_daemon() {
    outpost_testkit::require!(crate::table::skip_on_original());
    let drops = [
        ("a pipe", r#"report(sys(133, "$ws/sub/.git", 0010644, 0))"#),
        (
            "a file without an end",
            r#"report(truncate_to("$ws/sub/.git")); sub truncate_to { put($_[0], "gitdir: " . "x" x 8000); truncate $_[0], 1 << 40 }"#,
        ),
        ("a way to everything", r#"report(put("$ws/sub/.git", "gitdir: /\n"))"#),
        ("a way up", r#"report(put("$ws/sub/.git", "gitdir: ../../../../../..\n"))"#),
        ("a way to the kernel", r#"report(put("$ws/sub/.git", "gitdir: /proc/self/fd/0\n"))"#),
        ("a way with a zero", r#"report(put("$ws/sub/.git", "gitdir: a\0b\n"))"#),
        ("no text", r#"report(put("$ws/sub/.git", "gitdir: \xff\xfe\n"))"#),
    ];
    for_each_user(|options| {
        let mut scene = Scene::start(&options);
        for (name, drop) in drops {
            scene.host.dir("cwd/sub");
            assert_eq!(scene.run(Workspace, drop), "done", "{name}");
            let limits = profile(&[("read", ":root"), ("write", ":current_working_directory")]);
            let params =
                with(scene.params(r#"report(put("$ws/sub/made") && !put("$out/victim"))"#, &[]), limits);
            let outcome = scene.report(&with(params, json!({"cwd": scene.workspace().join("sub")})));
            assert!(outcome == "done" || outcome.starts_with("error: exec failed: "), "{name}: {outcome}");
            assert_eq!(scene.harm(), Vec::<String>::new(), "{name}");
            scene.clean();
        }
    });
}

/// A link in place of a protected name is refused by name: it could be replaced while it is relied upon.
#[test]
fn a_protected_name_that_is_a_link_is_refused() {
    outpost_testkit::require!(crate::table::skip_on_original());
    for_each_user(|options| {
        let mut scene = Scene::start(&options);
        scene.host.dir("cwd/sub");
        assert_eq!(scene.run(Workspace, r#"report(symlink $out, "$ws/sub/.git")"#), "done");
        let limits = profile(&[("read", ":root"), ("write", ":current_working_directory")]);
        let params = with(scene.params("print 'ran'", &[]), limits);
        let outcome = scene.report(&with(params, json!({"cwd": scene.workspace().join("sub")})));
        assert!(outcome.contains("could replace the symbolic link"), "{outcome}");
    });
}

/// A lock on the placeholder of a missing name, taken by a process with read access only.
#[test]
fn a_lock_by_a_reader_does_not_block_other_commands() {
    outpost_testkit::require!(crate::table::skip_on_original());
    for_each_user(|options| {
        let mut scene = Scene::start(&options);
        let limits = Workspace.params(&scene);
        let waits = with(scene.params("print 'up'; <STDIN>", &[]), limits.clone());
        let streamed = |params, id: &str| {
            with(
                params,
                json!({"processId": id, "streamStdin": true, "streamStdoutStderr": true, "disableTimeout": true}),
            )
        };
        let writer = scene.host.server.request("command/exec", &streamed(waits, "writer"));
        scene.host.server.wait_output("writer", "up");
        // Shared at first, as the daemon has it; alone once the writer has ended.
        let script = r#"
            my $dir = opened("$ws/.codex", 0) or die "open: $!"; flock($dir, 1) or die; print "shared\n";
            <STDIN>; flock($dir, 2) or die; print "alone\n"; <STDIN>"#;
        let locks = with(scene.params(script, &[]), ReadOnly.params(&scene));
        let reader = scene.host.server.request("command/exec", &streamed(locks, "reader"));
        scene.host.server.wait_output("reader", "shared");
        scene.host.server.call("command/exec/write", &json!({"processId": "writer", "closeStdin": true}));
        scene.report_of(writer);
        let line = json!({"processId": "reader", "deltaBase64": "Cg=="});
        scene.host.server.call("command/exec/write", &line);
        scene.host.server.wait_output("reader", "alone");
        let outcome = scene.report(&with(scene.params("print 'ran'", &[]), limits.clone()));
        assert!(
            outcome == "ran"
                || outcome.starts_with("error: exec failed: cannot prevent the command from creating "),
            "{outcome}"
        );
        scene.host.server.call("command/exec/write", &json!({"processId": "reader", "closeStdin": true}));
        scene.report_of(reader);
        // Nothing of it stays when the reader has ended.
        assert_eq!(scene.report(&with(scene.params("print 'ran'", &[]), limits)), "ran");
        let held = scene.workspace().join(".codex");
        crate::process::until("the held name goes", || !Path::new(&held).exists());
    });
}
