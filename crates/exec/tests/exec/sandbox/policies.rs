//! `sandboxPolicy`: what each of the four types lets a command write.

use super::{Host, for_each_user, policy};
use crate::table::with;
use outpost_testkit::Options;
use serde_json::json;
use std::path::Path;

#[test]
fn nothing_can_be_written_under_read_only() {
    for_each_user(|options| {
        let mut host = Host::start(&options);
        let (cwd, home, other) = (host.server.cwd(), host.server.home(), host.dir("other"));
        let file = host.file("other/file", "content");
        let limits = policy(json!({"type": "readOnly"}));
        host.check_writes(
            "readOnly",
            &limits,
            &[
                (&cwd, false),
                (&home, false),
                (&other, false),
                (Path::new("/tmp"), false),
                (Path::new("/var/tmp"), false),
            ],
        );
        host.check_reads("readOnly", &limits, &[(&file, "content")]);
        let outcome =
            host.script(&limits, "echo x > /dev/null && head -c 2 /dev/zero | od -An -tx1; id -u", &[]);
        let uid = options.uid.unwrap_or(outpost_sys::process::effective_uid());
        assert_eq!(outcome, format!(" 00 00\n{uid}\n"));
        // Nor changed in another way.
        let script = r#"for c in "rm $1" "mv $1 $1.2" "chmod 777 $1" "ln $1 $1.2" "mkdir $1.d"; do
            $c 2>/dev/null && echo "$c"; done; true"#;
        assert_eq!(host.script(&limits, script, &[&file]), "");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "content");
    });
}

/// "policy cwd = the **server's** cwd, *not* the request's".
#[test]
fn a_workspace_is_the_servers_directory_and_what_is_named() {
    for_each_user(|options| {
        let tmpdir = tempfile::Builder::new().prefix("outpost-exec-").tempdir_in("/var/tmp").unwrap();
        std::os::unix::fs::chown(tmpdir.path(), options.uid, options.uid).unwrap();
        let mut host = Host::start(&options.env("TMPDIR", tmpdir.path().to_str().unwrap()));
        let (cwd, below) = (host.server.cwd(), host.dir("cwd/below"));
        let (root, other) = (host.dir("root"), host.dir("other"));
        let (tmp, tmpdir) = (Path::new("/tmp"), tmpdir.path());
        let rows = |writes: [bool; 6]| {
            [&cwd, &below, tmp, tmpdir, &root, &other].into_iter().zip(writes).collect::<Vec<_>>()
        };
        let write = |more: serde_json::Value| policy(with(json!({"type": "workspaceWrite"}), more));
        host.check_writes("plain", &write(json!({})), &rows([true, true, true, true, false, false]));
        let limits = write(json!({"writableRoots": [root, "/no/such/root"]}));
        host.check_writes("a root", &limits, &rows([true, true, true, true, true, false]));
        let limits = write(json!({"excludeSlashTmp": true}));
        host.check_writes("without /tmp", &limits, &rows([true, true, false, true, false, false]));
        let limits = write(json!({"excludeTmpdirEnvVar": true}));
        host.check_writes("without $TMPDIR", &limits, &rows([true, true, true, false, false, false]));
        let limits = write(json!({"excludeTmpdirEnvVar": true, "excludeSlashTmp": true}));
        host.check_writes("without both", &limits, &rows([true, true, false, false, false, false]));
        // The request's own directory is no workspace.
        let limits = with(write(json!({})), json!({"cwd": other}));
        host.check_writes("elsewhere", &limits, &rows([true, true, true, true, false, false]));
        // The $TMPDIR that counts is the server's: with the original, a request opens any directory that way.
        if outpost_testkit::available!(crate::table::skip_on_original()).is_none() {
            return;
        }
        for own in [json!(root), json!(null), json!(""), json!("relative")] {
            let limits = with(write(json!({})), json!({"env": {"TMPDIR": own}}));
            host.check_writes("its own", &limits, &rows([true, true, true, true, false, false]));
        }
    });
}

/// As the original has it: a $TMPDIR that leads nowhere opens nothing, and closes nothing.
#[test]
fn a_relative_tmpdir_is_none() {
    for tmpdir in ["tmp", "./tmp", "~/tmp"] {
        let mut host = Host::start(&outpost_testkit::Options::default().env("TMPDIR", tmpdir));
        let (cwd, other) = (host.server.cwd(), host.dir("other"));
        let limits = policy(json!({"type": "workspaceWrite"}));
        host.check_writes(tmpdir, &limits, &[(&cwd, true), (&other, false)]);
    }
}

/// "`.git` if it exists …, `.agents` if a dir, `.codex` if a dir".
#[test]
fn what_steers_agents_is_protected_in_a_workspace() {
    for_each_user(|options| {
        let mut host = Host::start(&options);
        let guarded = [
            host.dir("cwd/.git"),
            host.dir("cwd/.git/hooks"),
            host.dir("cwd/.agents"),
            host.dir("cwd/.codex"),
            host.dir("root/.git"),
            host.dir("root/.agents"),
            host.dir("root/.codex"),
        ];
        let free = [host.dir("root/deep/.git"), host.dir("cwd/.github"), host.dir("root/x")];
        let limits = policy(json!({"type": "workspaceWrite", "writableRoots": [host.path("root")]}));
        let mut rows: Vec<(&Path, bool)> = guarded.iter().map(|path| (path.as_path(), false)).collect();
        rows.extend(free.iter().map(|path| (path.as_path(), true)));
        host.check_writes("protected names", &limits, &rows);
        // They cannot be put aside either.
        let script =
            "mv .codex aside 2>/dev/null && echo moved; rmdir .agents 2>/dev/null && echo removed; true";
        assert_eq!(host.script(&limits, script, &[]), "");
        assert!(guarded.iter().all(|path| path.is_dir()));
    });
}

/// "or file: then also the `gitdir:` target".
#[test]
fn the_repository_of_a_worktree_is_protected() {
    for_each_user(|options| {
        let mut host = Host::start(&options);
        let git = host.dir("root/repository");
        host.file("cwd/.git", &format!("gitdir: {}\n", git.display()));
        let limits = policy(json!({"type": "workspaceWrite", "writableRoots": [host.path("root")]}));
        let (cwd, root) = (host.server.cwd(), host.path("root"));
        host.check_writes("a worktree", &limits, &[(&cwd, true), (&root, true), (&git, false)]);
        let outcome = host.script(&limits, "{ echo x > .git; } 2>/dev/null && echo written; true", &[]);
        assert_eq!(outcome, "");
    });
}

/// "Symlinked roots: the real target is bound."
#[test]
fn a_root_may_be_a_link() {
    for_each_user(|options| {
        let mut host = Host::start(&options);
        let real = host.dir("real");
        std::os::unix::fs::symlink(&real, host.path("link")).unwrap();
        let link = host.path("link");
        let limits = policy(json!({"type": "workspaceWrite", "writableRoots": [link]}));
        host.check_writes("a link", &limits, &[(&real, true), (&link, true)]);
    });
}

/// "no enforcement": an outer sandbox enforces it.
#[test]
fn nothing_is_enforced_where_nothing_is_asked_for() {
    for_each_user(|options| {
        let mut host = Host::start(&options);
        let (cwd, other) = (host.server.cwd(), host.dir("other"));
        for limits in [
            policy(json!({"type": "dangerFullAccess"})),
            policy(json!({"type": "externalSandbox"})),
            policy(json!({"type": "externalSandbox", "networkAccess": "enabled"})),
        ] {
            host.check_writes("open", &limits, &[(&cwd, true), (&other, true), (Path::new("/tmp"), true)]);
            let outcome = host.script(&limits, "grep NoNewPrivs /proc/self/status | tr -d '\\t'", &[]);
            assert_eq!(outcome, "NoNewPrivs:0\n", "{limits}");
        }
    });
}

/// Without a policy and without a configuration: the safest that can be asked for.
#[test]
fn a_command_without_a_policy_is_confined() {
    for_each_user(|options| {
        let mut host = Host::start(&options);
        let (cwd, other) = (host.server.cwd(), host.dir("other"));
        for limits in [json!({}), json!({"sandboxPolicy": null, "permissionProfile": null})] {
            host.check_writes(
                "default",
                &limits,
                &[(&cwd, false), (&other, false), (Path::new("/tmp"), false)],
            );
        }
    });
}

/// Only what is named can be read. In the original such a command never starts, unless its helper is among it.
#[test]
fn reads_can_be_restricted() {
    outpost_testkit::require!(crate::table::skip_on_original());
    for_each_user(|options: Options| {
        let mut host = Host::start(&options);
        let (inside, root, outside) = (
            host.file("cwd/file", "inside"),
            host.file("root/file", "root"),
            host.file("other/file", "outside"),
        );
        let access = json!({"type": "restricted", "readableRoots": [host.path("root")]});
        let limits = policy(json!({"type": "readOnly", "access": access}));
        host.check_reads("restricted", &limits, &[(&inside, "inside"), (&root, "root"), (&outside, "-")]);
        let limits = policy(json!({"type": "workspaceWrite", "readOnlyAccess": access}));
        host.check_reads("restricted", &limits, &[(&inside, "inside"), (&root, "root"), (&outside, "-")]);
        let (cwd, root) = (host.server.cwd(), host.path("root"));
        host.check_writes("restricted", &limits, &[(&cwd, true), (&root, false)]);
    });
}
