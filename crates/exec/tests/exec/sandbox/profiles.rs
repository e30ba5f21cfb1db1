//! `permissionProfile`: which entry counts for a path, what the special ones mean, and which profiles are refused.

use super::{Host, for_each_user, profile};
use crate::table::{check_exec, runs_on_original, server, with};
use serde_json::{Value, json};
use std::path::Path;

const OUTSIDE: &str = "-32600 invalid permission profile: permissions profile requests filesystem writes outside the \
     workspace root, which is not supported until the runtime enforces FileSystemSandboxPolicy directly";

/// "policy cwd = the **command's** cwd".
#[test]
fn the_workspace_of_a_profile_is_the_commands_directory() {
    for_each_user(|options| {
        let mut host = Host::start(&options);
        let (cwd, work, sub) = (host.server.cwd(), host.dir("work"), host.dir("work/sub"));
        let file = host.file("work/file", "content");
        let limits = profile(&[("read", ":root"), ("write", ":current_working_directory")]);
        host.check_writes("server", &limits, &[(&cwd, true), (&work, false)]);
        let there = with(limits, json!({"cwd": work}));
        host.check_writes("command", &there, &[(&cwd, false), (&work, true), (&sub, true)]);
        host.check_reads("command", &there, &[(&file, "content")]);
        let roots = with(profile(&[("read", ":root"), ("write", ":project_roots")]), json!({"cwd": work}));
        host.check_writes("project", &roots, &[(&cwd, false), (&work, true)]);
        let read = profile(&[("read", ":root")]);
        host.check_writes("read", &read, &[(&cwd, false), (&work, false), (Path::new("/tmp"), false)]);
    });
}

/// "the entry with the most path components that is a prefix of it; equal paths: **none > write > read**".
#[test]
fn the_most_specific_entry_counts_and_the_strictest_of_equals() {
    for_each_user(|options| {
        let mut host = Host::start(&options);
        let cwd = host.server.cwd();
        let [a, b, c, d] = ["a", "a/b", "a/b/c", "d"].map(|name| host.dir(&format!("cwd/{name}")));
        for name in ["a", "a/b", "a/b/c", "d"] {
            host.file(&format!("cwd/{name}/file"), name);
        }
        let [fa, fb, fc, fd] = [&a, &b, &c, &d].map(|dir| dir.join("file"));
        let base = [("read", ":root"), ("write", ":current_working_directory")];
        let limits = |more: &[(&str, &str)]| profile(&[&base[..], more].concat());
        let [pa, pb, pc, pd] = [&a, &b, &c, &d].map(|path| path.to_str().unwrap().to_owned());
        // Closed, read-only and reopened, one in the other.
        let nested = limits(&[("read", &pa), ("none", &pb), ("write", &pc), ("none", &pd)]);
        host.check_writes(
            "nested",
            &nested,
            &[(&cwd, true), (&a, false), (&b, false), (&c, true), (&d, false)],
        );
        host.check_reads("nested", &nested, &[(&fa, "a"), (&fb, "-"), (&fc, "a/b/c"), (&fd, "-")]);
        // The order in which they come does not count.
        let turned = limits(&[("write", &pc), ("none", &pd), ("none", &pb), ("read", &pa)]);
        host.check_writes(
            "turned",
            &turned,
            &[(&cwd, true), (&a, false), (&b, false), (&c, true), (&d, false)],
        );
        let equals = limits(&[("write", &pa), ("none", &pa), ("read", &pd), ("write", &pd)]);
        host.check_writes("equals", &equals, &[(&a, false), (&d, true)]);
        host.check_reads("equals", &equals, &[(&fa, "-"), (&fd, "d")]);
        // A denied file.
        let file = limits(&[("none", fd.to_str().unwrap())]);
        host.check_reads("file", &file, &[(&fd, "-"), (&fa, "a")]);
        host.check_writes("file", &file, &[(&d, true)]);
        assert_eq!(std::fs::read_to_string(&fd).unwrap(), "d");
    });
}

/// What an entry opens is open also for names that are protected by default.
#[test]
fn an_entry_for_a_protected_name_replaces_the_default() {
    for_each_user(|options| {
        let mut host = Host::start(&options);
        let (git, codex) = (host.dir("cwd/.git"), host.dir("cwd/.codex"));
        let base = [("read", ":root"), ("write", ":current_working_directory")];
        host.check_writes("default", &profile(&base), &[(&git, false), (&codex, false)]);
        let open = profile(&[&base[..], &[("write", git.to_str().unwrap())]].concat());
        host.check_writes("opened", &open, &[(&git, true), (&codex, false)]);
    });
}

#[test]
fn special_paths_resolve_to_their_directories() {
    for_each_user(|options| {
        let tmpdir = tempfile::Builder::new().prefix("outpost-exec-").tempdir_in("/var/tmp").unwrap();
        std::os::unix::fs::chown(tmpdir.path(), options.uid, options.uid).unwrap();
        let mut host = Host::start(&options.env("TMPDIR", tmpdir.path().to_str().unwrap()));
        let (cwd, sub, other) = (host.server.cwd(), host.dir("cwd/sub"), host.dir("other"));
        let tmp = Path::new("/tmp");
        let base = [("read", ":root"), ("write", ":current_working_directory")];
        let limits = |more: &[(&str, &str)]| profile(&[&base[..], more].concat());
        let rows = |writes: [bool; 4]| {
            [&cwd, tmp, tmpdir.path(), &other].into_iter().zip(writes).collect::<Vec<_>>()
        };
        host.check_writes("tmpdir", &limits(&[("write", ":tmpdir")]), &rows([true, false, true, false]));
        let own = with(limits(&[("write", ":tmpdir")]), json!({"env": {"TMPDIR": other}}));
        if !crate::table::runs_on_original() {
            host.check_writes("the tmpdir of the command", &own, &rows([true, false, true, false]));
        }
        host.check_writes(
            "slash_tmp",
            &limits(&[("write", ":slash_tmp")]),
            &rows([true, true, false, false]),
        );
        let further = limits(&[("write", other.to_str().unwrap())]);
        host.check_writes("another path", &further, &rows([true, false, false, true]));
        // Ignored, whatever its content.
        let mut unknown = limits(&[]);
        let entries = unknown["permissionProfile"]["fileSystem"]["entries"].as_array_mut().unwrap();
        let value = json!({"kind": "unknown", "path": other});
        entries.push(json!({"access": "write", "path": {"type": "special", "value": value}}));
        host.check_writes("unknown", &unknown, &rows([true, false, false, false]));
        // Below the workspace, closed.
        let mut closed = limits(&[]);
        let entries = closed["permissionProfile"]["fileSystem"]["entries"].as_array_mut().unwrap();
        let value = json!({"kind": "project_roots", "subpath": "sub"});
        entries.push(json!({"access": "read", "path": {"type": "special", "value": value}}));
        host.check_writes("subpath", &closed, &[(&cwd, true), (&sub, false)]);
    });
}

/// "writable paths without a writable cwd (or `/`-write narrowed by anything)".
#[test]
fn writes_outside_of_the_workspace_alone_are_refused() {
    let mut server = server();
    let run = |profile: Value| with(json!({"command": ["/bin/true"]}), profile);
    check_exec(
        &mut server,
        vec![
            (run(profile(&[("write", "/opt")])), OUTSIDE),
            (run(profile(&[("read", ":root"), ("write", "/opt")])), OUTSIDE),
            (run(profile(&[("read", ":root"), ("write", ":slash_tmp")])), OUTSIDE),
            (run(profile(&[("write", ":root"), ("none", "/opt")])), OUTSIDE),
            (
                run(profile(&[
                    ("read", ":root"),
                    ("write", ":current_working_directory"),
                    ("write", "/opt"),
                ])),
                "exit 0",
            ),
            (run(profile(&[("read", ":root")])), "exit 0"),
            // They open nothing.
            (run(profile(&[("read", ":root"), ("write", ":minimal")])), "exit 0"),
        ],
    );
}

/// "Globs deny on top of everything"; "glob_pattern only works with `none`".
#[test]
fn files_that_match_a_pattern_are_closed() {
    for_each_user(|options| {
        let mut host = Host::start(&options);
        let key = host.file("cwd/deep/one.key", "key");
        let top = host.file("cwd/two.key", "top");
        let text = host.file("cwd/deep/one.txt", "text");
        let base = [("read", ":root"), ("write", ":current_working_directory")];
        let limits = |more: &[(&str, &str)]| profile(&[&base[..], more].concat());
        let pattern = format!("*{}/**/*.key", host.server.cwd().display());
        let closed = limits(&[("none", &pattern)]);
        host.check_reads("a pattern", &closed, &[(&key, "-"), (&top, "-"), (&text, "text")]);
        let relative = limits(&[("none", "***/*.key")]);
        host.check_reads("a relative pattern", &relative, &[(&key, "-"), (&top, "-"), (&text, "text")]);
        let ignored = limits(&[("read", &pattern)]);
        host.check_reads("a pattern to read", &ignored, &[(&key, "key"), (&top, "top"), (&text, "text")]);
        assert_eq!(std::fs::read_to_string(&key).unwrap(), "key");
    });
}

/// The same file by another way: the pattern's own directory may be a link, or have another spelling.
#[test]
fn a_pattern_closes_what_its_links_lead_to() {
    for_each_user(|options| {
        let mut host = Host::start(&options);
        let key = host.file("cwd/real/s.key", "key");
        let text = host.file("cwd/real/s.txt", "text");
        let cwd = host.server.cwd();
        std::os::unix::fs::symlink("real", cwd.join("link")).unwrap();
        let (key_by_link, cwd) = (cwd.join("link/s.key"), cwd.display().to_string());
        for pattern in ["*link/*.key", "*l*/s.key", "*real//*.key", &format!("*{cwd}//real/./*.key")] {
            let limits = profile(&[("read", ":root"), ("none", pattern)]);
            host.check_reads(pattern, &limits, &[(&key, "-"), (&key_by_link, "-"), (&text, "text")]);
        }
        let limits = profile(&[("read", ":root"), ("none", "**.key")]);
        let limits = with(limits, json!({"cwd": format!("{cwd}/link")}));
        host.check_reads("from a link", &limits, &[(&key, "-"), (&text, "text")]);
    });
}

/// "globScanMaxDepth counts from the scan root, 1 = direct children".
#[test]
fn a_pattern_reaches_as_deep_as_it_may() {
    let mut host = Host::start(&outpost_testkit::Options::default());
    let files = ["g/x.key", "g/a/x.key", "g/a/b/x.key"].map(|name| host.file(&format!("cwd/{name}"), name));
    let base = [("read", ":root"), ("write", ":current_working_directory")];
    for (pattern, depth, closed) in [
        ("*g/**/*.key", json!(null), 3),
        ("*g/**/*.key", json!(1), 1),
        ("*g/**/*.key", json!(2), 2),
        ("*g/**/*.key", json!(9), 3),
        ("*g/*.key", json!(null), 1),
        ("*g/*.key", json!(9), 1),
    ] {
        let mut limits = profile(&[&base[..], &[("none", pattern)]].concat());
        limits["permissionProfile"]["fileSystem"]["globScanMaxDepth"] = depth;
        let rows: Vec<(&Path, &str)> = ["g/x.key", "g/a/x.key", "g/a/b/x.key"]
            .into_iter()
            .enumerate()
            .map(|(level, content)| (files[level].as_path(), if level < closed { "-" } else { content }))
            .collect();
        host.check_reads(pattern, &limits, &rows);
    }
}

/// "Full disk write + no network: no bubblewrap, no namespaces, only NO_NEW_PRIVS + seccomp".
#[test]
fn a_profile_may_open_everything_but_the_network() {
    for_each_user(|options| {
        let mut host = Host::start(&options);
        let (cwd, other) = (host.server.cwd(), host.dir("other"));
        let closed = profile(&[("write", ":root")]);
        let mut open = closed.clone();
        open["permissionProfile"]["network"] = json!({"enabled": true});
        for (limits, status) in [(&closed, "1:2:1"), (&open, "0:0:unset")] {
            host.check_writes(
                "everything",
                limits,
                &[(&cwd, true), (&other, true), (Path::new("/tmp"), true)],
            );
            let script = r#"
                while read -r name value; do
                    case $name in NoNewPrivs:|Seccomp:) printf '%s:' "$value";; esac
                done < /proc/self/status
                echo "${CODEX_SANDBOX_NETWORK_DISABLED-unset}""#;
            assert_eq!(host.script(limits, script, &[]), format!("{status}\n"), "{limits}");
        }
    });
}

/// "`fileSystem` null/absent = no entries = nothing readable". The original fails with words of its helper's.
#[test]
fn a_profile_without_entries_lets_nothing_run() {
    let mut server = server();
    for profile in [json!({}), json!({"fileSystem": null}), json!({"fileSystem": {"entries": []}})] {
        let reply =
            server.call("command/exec", &json!({"command": ["/bin/true"], "permissionProfile": profile}));
        let reply: Value = serde_json::from_str(&reply).unwrap();
        assert_ne!(reply["result"]["exitCode"], 0, "{profile}: {reply}");
        if !runs_on_original() {
            let text = "failed to spawn command: No such file or directory (os error 2)";
            assert_eq!((&reply["error"]["code"], &reply["error"]["message"]), (&json!(-32603), &json!(text)));
        }
    }
}

/// Only what is named can be read. In the original such a command never starts, unless its helper is among it.
#[test]
fn what_no_entry_names_cannot_be_read() {
    outpost_testkit::require!(crate::table::skip_on_original());
    for_each_user(|options| {
        let mut host = Host::start(&options);
        let (inside, outside) = (host.file("cwd/file", "inside"), host.file("other/file", "outside"));
        let limits = profile(&[("read", ":minimal"), ("write", ":current_working_directory")]);
        host.check_reads("minimal", &limits, &[(&inside, "inside"), (&outside, "-")]);
        let outcome = host.script(&limits, "ls /home /root /var 2>/dev/null; ls -d /usr /bin /etc", &[]);
        assert!(outcome.ends_with("/usr\n") || outcome.contains("/bin\n/etc\n/usr\n"), "{outcome}");
        assert!(!outcome.contains("tmp"), "{outcome}");
    });
}
