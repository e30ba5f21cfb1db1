//! The request's environment, directory and descriptors: they reach the command only, after it is confined.

use super::Limits;
use super::Limits::{Networked, ReadOnly, Workspace};
use super::scene::Scene;
use crate::sandbox::for_each_user;
use crate::table::with;
use serde_json::{Value, json};
use std::os::unix::fs::symlink;

const ALL: [Limits; 4] = [ReadOnly, Workspace, Networked, Limits::None];

fn with_env(mut params: Value, name: &str, value: &str) -> Value {
    params["env"][name] = json!(value);
    params
}

/// The loader writes a trace to a file of its choice: an unconfined process with the variable would leave one.
#[test]
fn loader_variables_take_effect_only_inside_the_sandbox() {
    outpost_testkit::require!(crate::table::skip_on_original());
    for_each_user(|options| {
        let mut scene = Scene::start(&options);
        let inner = scene.outside().join("inner");
        let file = inner.join("trace");
        for limits in ALL {
            let mut params = with(scene.params("print 'ran'", &[]), limits.params(&scene));
            params = with_env(params, "LD_DEBUG", "files");
            params = with_env(params, "LD_DEBUG_OUTPUT", file.to_str().unwrap());
            params = with_env(params, "LD_PRELOAD", "/lib/outpost-none.so");
            let outcome = scene.report(&params);
            let left = std::fs::read_dir(&inner).unwrap().count();
            // The loader reports what it cannot write or find, and continues.
            assert!(outcome.contains("ran"), "{limits:?}: {outcome}");
            assert_eq!(
                left > 0,
                limits == Limits::None,
                "{limits:?} left {left} files, user {:?}",
                options.uid
            );
        }
    });
}

/// The policy's temporary directory is the server's.
#[test]
fn a_requests_temporary_directory_is_not_made_writable() {
    outpost_testkit::require!(crate::table::skip_on_original());
    for_each_user(|options| {
        let mut scene = Scene::start(&options);
        let outside = scene.outside();
        for limits in ALL {
            let params = with(scene.params(r#"report(put("$ENV{TMPDIR}/new"))"#, &[]), limits.params(&scene));
            let outcome = scene.report(&with_env(params, "TMPDIR", outside.to_str().unwrap()));
            let expected = if limits == Limits::None { "done" } else { "EROFS" };
            assert_eq!(outcome, expected, "{limits:?}, user {:?}", options.uid);
        }
    });
}

/// A program that is found first is executed, but inside like any other.
#[test]
fn a_hostile_directory_in_the_path_is_searched_inside() {
    outpost_testkit::require!(crate::table::skip_on_original());
    for_each_user(|options| {
        let mut scene = Scene::start(&options);
        let hostile = "#!/bin/sh\necho hostile $$\n{ echo x > ../outside/new; } 2>/dev/null && echo out\n";
        for name in ["true", "sh", "mount", "unshare", "setpriv", "newuidmap", "bwrap"] {
            let file = scene.host.file(&format!("cwd/bin/{name}"), hostile);
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let path = scene.workspace().join("bin").to_str().unwrap().to_owned();
        for limits in [ReadOnly, Workspace, Networked] {
            let params = with(json!({"command": ["true"], "env": {"PATH": path}}), limits.params(&scene));
            // The first process is the sandbox's own, the command the second.
            assert_eq!(scene.report(&params), "hostile 2\n", "{limits:?}, user {:?}", options.uid);
        }
        let params = with(json!({"command": ["true"], "env": {"PATH": path}}), Limits::None.params(&scene));
        assert!(scene.report(&params).ends_with("\nout\n"));
    });
}

#[test]
fn no_descriptor_but_the_three_is_inherited() {
    outpost_testkit::require!(crate::table::skip_on_original());
    let script = r#"
        opendir(my $dir, "/proc/self/fd") or die; my @open = sort grep { /\d/ && $_ != fileno_of($dir) } readdir $dir;
        print "@open"; sub fileno_of { require POSIX; POSIX::dup2(0, 99); opendir(my $d, "/proc/self/fd");
        POSIX::close(99); my %now = map { $_ => 1 } grep { /\d/ } readdir $d; $now{3} ? 3 : -1 }"#;
    for_each_user(|options| {
        let mut scene = Scene::start(&options);
        for limits in [ReadOnly, Workspace, Networked, Limits::Minimal, Limits::Denying] {
            assert_eq!(scene.run(limits, script), "0 1 2", "{limits:?}, user {:?}", options.uid);
        }
        // With something to inherit, if only from a shell, the script sees it.
        let script = format!("exec 7</dev/null; exec /usr/bin/perl -e '{}'", script.replace('\'', "'\\''"));
        let params = with(json!({"command": ["/bin/sh", "-c", script]}), ReadOnly.params(&scene));
        assert_eq!(scene.report(&params), "0 1 2 7");
    });
}

/// "policy cwd = the server's cwd": a link elsewhere makes nothing writable there.
#[test]
fn a_directory_that_is_a_link_opens_nothing() {
    outpost_testkit::require!(crate::table::skip_on_original());
    for_each_user(|options| {
        let mut scene = Scene::start(&options);
        let link = scene.workspace().join("link");
        symlink(scene.outside(), &link).unwrap();
        for limits in ALL {
            let params = with(scene.params(r#"report(put("new"))"#, &[]), limits.params(&scene));
            let outcome = scene.report(&with(params, json!({"cwd": link})));
            let expected = if limits == Limits::None { "done" } else { "EROFS" };
            assert_eq!(outcome, expected, "{limits:?}, user {:?}", options.uid);
        }
    });
}

/// Names are bytes: none of them ends a pattern, a line of a record or a program.
#[test]
fn hostile_names_are_denied_like_others() {
    outpost_testkit::require!(crate::table::skip_on_original());
    for_each_user(|options| {
        let mut scene = Scene::start(&options);
        let names = [
            "new\nline.key",
            "esc\u{1b}[31m.key",
            "*.key",
            "-rf .key",
            "quo'te\".key",
            " .key",
            "\u{202e}x.key",
        ];
        for name in names {
            scene.host.file(&format!("cwd/deep/{name}"), "secret\n");
        }
        let script = r#"
            opendir(my $dir, "$ws/deep") or die; my @left;
            for my $name (grep { /key/ } readdir $dir) { opened("$ws/deep/$name", 0) ? push(@left, $name) : push(@denied, name()) }
            print "read @left; ", scalar(grep { $_ eq "EACCES" } @denied), " denied""#;
        let outcome = scene.run(Limits::Denying, script);
        assert_eq!(outcome, format!("read ; {} denied", names.len()), "user {:?}", options.uid);
        assert!(scene.run(Limits::None, script).ends_with("; 0 denied"));
    });
}
