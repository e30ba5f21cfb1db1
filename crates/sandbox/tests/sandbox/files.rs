//! File policies, checked from inside the sandbox and afterwards from outside.

use crate::kit::{Fixture, state};
use outpost_sandbox::{Access, Error, Policy, PolicyEntry, Reads, Special, plan};
use std::fs;
use std::os::unix::fs::symlink;

#[test]
fn nothing_can_be_written_where_only_reading_is_allowed() {
    let fixture = Fixture::new();
    let file = fixture.write("ws/f", "old");
    let done = fixture
        .sh(&fixture.read_only(), "cat f; echo new > f; touch g; rm f; ls /bin >/dev/null && echo bin");
    assert!(done.out.starts_with("old") && done.out.ends_with("bin\n"), "{}", done.out);
    assert_eq!(fs::read_to_string(file).unwrap(), "old");
    assert_eq!(fixture.names("ws"), ["f"]);
}

#[test]
fn a_workspace_can_be_written_to_and_what_is_around_it_cannot() {
    let fixture = Fixture::new();
    let done = fixture.sh(
        &fixture.workspace_write(),
        "mkdir d && echo x > d/f && mv d/f f && ln f g; touch ../outside || echo no",
    );
    assert!(done.out.ends_with("no\n"), "{}", done.out);
    assert_eq!(fixture.names("ws"), ["d", "f", "g"]);
    assert_eq!(fixture.names("."), ["ws"]);
}

#[test]
fn missing_protected_names_cannot_be_created_and_no_placeholder_is_left() {
    let fixture = Fixture::new();
    let script = "for n in .git .codex .agents; do mkdir $n; touch $n; touch $n/f; rmdir $n; mv $n away; mkdir x && mv -T x $n; ln -s /tmp $n/l; done 2>/dev/null; ls -d .git/* .codex/* .agents/* 2>/dev/null; touch new; echo end";
    let done = fixture.sh(&fixture.workspace_write(), script);
    assert_eq!(done.out, "end\n");
    assert_eq!(fixture.names("ws"), ["new", "x"]);
    let records = fs::read_dir(state().join("mountpoints")).map_or(0, |records| records.count());
    assert!(records <= 8, "{records} records are left by the tests that run now");
}

#[test]
fn existing_protected_directories_are_read_only() {
    let fixture = Fixture::new();
    for name in [".git/config", ".codex/config", ".agents/a"] {
        fixture.write(&format!("ws/{name}"), "old");
    }
    let script = "for f in .git/config .codex/config .agents/a; do cat $f; echo new > $f; rm $f; done 2>/dev/null; rm -rf .git; mv .codex c; mkdir .git/hooks; ls -A";
    let done = fixture.sh(&fixture.workspace_write(), script);
    assert!(
        done.out.starts_with("oldoldold") && done.out.ends_with(".agents\n.codex\n.git\n"),
        "{}",
        done.out
    );
    assert_eq!(fixture.names("ws/.git"), ["config"]);
}

#[test]
fn the_target_of_a_git_file_is_read_only() {
    let fixture = Fixture::new();
    fixture.write("ws/main/.git/worktrees/w/HEAD", "x");
    fixture.write("ws/main/.git/worktrees/w/commondir", "../..\n");
    fixture.write("ws/.git", "gitdir: main/.git/worktrees/w\n");
    let script = "for f in .git main/.git/worktrees/w/HEAD main/.git/config; do echo evil > $f; done 2>/dev/null; mv main m; touch main/ok && echo ok";
    let done = fixture.sh(&fixture.workspace_write(), script);
    assert!(done.out.ends_with("ok\n"), "{}", done.out);
    assert_eq!(fixture.names("ws/main"), [".git", "ok"]);
    assert_eq!(fixture.names("ws/main/.git"), ["worktrees"]);
    assert_eq!(fs::read_to_string(fixture.path("ws/main/.git/worktrees/w/HEAD")).unwrap(), "x");
}

#[test]
fn a_protected_link_is_refused() {
    let fixture = Fixture::new();
    fs::create_dir(fixture.path("real")).unwrap();
    symlink(fixture.path("real"), fixture.path("ws/.codex")).unwrap();
    let refused = plan(&fixture.workspace_write(), &fixture.context());
    assert!(matches!(refused, Err(Error::WritableLink { .. })), "{refused:?}");
}

#[test]
fn a_parent_of_a_protected_path_cannot_be_moved_away() {
    let fixture = Fixture::new();
    fixture.write("ws/a/b/secret", "s");
    let policy = fixture.profile(&[("ws/a/b/secret", Access::None), ("ws/a/c/missing", Access::None)]);
    let done =
        fixture.sh(&policy, "cat a/b/secret; mv a x; mv a/b a/y; mkdir a/c; rm -rf a; touch a/new; echo end");
    assert!(done.out.ends_with("end\n") && !done.out.contains("s\n\n"), "{}", done.out);
    assert_eq!(fixture.names("ws/a"), ["b", "new"]);
    assert_eq!(fs::read_to_string(fixture.path("ws/a/b/secret")).unwrap(), "s");
}

#[test]
fn the_deepest_entry_decides_and_may_grant_again() {
    let fixture = Fixture::new();
    for name in ["ws/no/f", "ws/no/again/f", "ws/no/again/not/f", "ws/no/deep/er/file"] {
        fixture.write(name, "text");
    }
    let policy = fixture.profile(&[
        ("ws/no", Access::None),
        ("ws/no/again", Access::Write),
        ("ws/no/again/not", Access::None),
        ("ws/no/deep/er/file", Access::Read),
    ]);
    let script = "cat no/f no/again/not/f 2>/dev/null; ls no; echo new > no/again/f; touch no/x; cat no/deep/er/file; echo; echo y > no/deep/er/file; cat no/again/f";
    let done = fixture.sh(&policy, script);
    assert!(done.out.contains("text\n") && done.out.ends_with("new\n"), "{}", done.out);
    assert_eq!(done.out.matches("text").count(), 1, "{}", done.out);
    assert_eq!(fixture.names("ws/no"), ["again", "deep", "f"]);
    assert_eq!(fs::read_to_string(fixture.path("ws/no/deep/er/file")).unwrap(), "text");
}

#[test]
fn denied_files_and_directories_cannot_be_read_under_a_readable_root() {
    let fixture = Fixture::new();
    fixture.write("secret/key", "k");
    fixture.write("other", "o");
    let policy = Policy::restricted(
        vec![
            PolicyEntry::special(Special::Root, Access::Read),
            PolicyEntry::path(fixture.path("secret"), Access::None),
            PolicyEntry::path(fixture.path("other"), Access::None),
        ],
        false,
    );
    let done = fixture.sh(&policy, "cat ../secret/key ../other; ls ../secret; echo end");
    assert!(done.out.ends_with("end\n") && done.out.matches("ermission denied").count() == 3, "{}", done.out);
}

#[test]
fn restricted_reads_need_no_outpost_file_inside() {
    let fixture = Fixture::new();
    fixture.write("ws/f", "mine\n");
    fixture.write("other", "not\n");
    let reads = Reads::Restricted { include_platform_defaults: true, roots: Vec::new() };
    let done = fixture.sh(&Policy::read_only(&reads, false), "cat f; cat ../other /etc/hostname >/dev/null && echo all; ls /home /root /var 2>&1 | head -3; touch /x; echo end");
    assert!(done.out.starts_with("mine\n") && done.out.ends_with("end\n"), "{}", done.out);
    assert!(!done.out.contains("all\n"), "{}", done.out);
}

#[test]
fn globs_mask_matching_files_and_directories() {
    let fixture = Fixture::new();
    for name in ["ws/a.env", "ws/d/b.env", "ws/d/keep", "ws/deny1/x", "ws/two/y"] {
        fixture.write(name, "text\n");
    }
    let mut policy = fixture.profile(&[]);
    if let outpost_sandbox::Files::Restricted { entries, .. } = &mut policy.files {
        entries.extend([
            PolicyEntry::deny_glob("**/*.env"),
            PolicyEntry::deny_glob("{deny*,two}"),
            PolicyEntry::deny_glob("later"),
        ]);
    }
    let done = fixture.sh(
        &policy,
        "cat a.env d/b.env deny1/x two/y 2>/dev/null; mkdir later; touch later/x; mv a.env b; cat d/keep; ls",
    );
    assert!(done.out.contains("text\n") && done.out.matches("text").count() == 1, "{}", done.out);
    assert_eq!(fixture.names("ws"), ["a.env", "d", "deny1", "two"]);
    assert_eq!(plan(&policy, &fixture.context()).unwrap().unenforceable.len(), 2);
}

#[test]
fn granting_by_glob_is_refused() {
    let fixture = Fixture::new();
    let entry = PolicyEntry { path: outpost_sandbox::EntryPath::Glob("*.rs".into()), access: Access::Read };
    let refused = plan(&Policy::restricted(vec![entry], false), &fixture.context()).unwrap_err();
    assert!(refused.to_string().contains("*.rs"), "{refused}");
}

#[test]
fn a_missing_writable_root_is_skipped() {
    let fixture = Fixture::new();
    let policy = Policy::workspace_write(&[fixture.path("nowhere")], &Reads::Everything, false, true, true);
    assert!(fixture.sh(&policy, "touch f").ok());
}

#[test]
fn a_writable_root_behind_a_link_is_the_real_one() {
    let fixture = Fixture::new();
    fs::create_dir(fixture.path("real")).unwrap();
    symlink(fixture.path("real"), fixture.path("link")).unwrap();
    let policy = Policy::workspace_write(&[fixture.path("link")], &Reads::Everything, false, true, true);
    assert!(fixture.sh(&policy, "touch ../link/f && mkdir ../link/.git || true").ok());
    assert_eq!(fixture.names("real"), ["f"]);
}

#[test]
fn two_commands_in_one_workspace_share_its_placeholders() {
    let fixture = Fixture::new();
    let inner = plan(&fixture.workspace_write(), &fixture.context()).unwrap();
    let first = outpost_sandbox::Confinement::build(&inner, crate::kit::host()).unwrap();
    let again = plan(&fixture.workspace_write(), &fixture.context()).unwrap();
    assert_eq!(again.placeholders().count(), 3, "{again}");
    let second = outpost_sandbox::Confinement::build(&again, crate::kit::host()).unwrap();
    drop(first);
    assert_eq!(fixture.names("ws"), [".agents", ".codex", ".git"]);
    drop(second);
    assert!(fixture.names("ws").is_empty());
}

#[test]
fn a_placeholder_with_a_file_in_it_stays() {
    let fixture = Fixture::new();
    let planned = plan(&fixture.workspace_write(), &fixture.context()).unwrap();
    let confinement = outpost_sandbox::Confinement::build(&planned, crate::kit::host()).unwrap();
    fs::remove_dir(fixture.path("ws/.git")).unwrap();
    fixture.write("ws/.git/config", "real");
    drop(confinement);
    assert_eq!(fixture.names("ws"), [".git"]);
}
