//! What a policy says about files, seen from inside and afterwards from outside.

use crate::kit::{Place, state};
use outpost_sandbox::{Access, Entry, Error, Policy, Reads, Special, plan};
use std::fs;
use std::os::unix::fs::symlink;

#[test]
fn nothing_can_be_written_where_only_reading_is_allowed() {
    let place = Place::new();
    let file = place.write("ws/f", "old");
    let done =
        place.sh(&place.read_only(), "cat f; echo new > f; touch g; rm f; ls /bin >/dev/null && echo bin");
    assert!(done.out.starts_with("old") && done.out.ends_with("bin\n"), "{}", done.out);
    assert_eq!(fs::read_to_string(file).unwrap(), "old");
    assert_eq!(place.names("ws"), ["f"]);
}

#[test]
fn a_workspace_can_be_written_to_and_what_is_around_it_cannot() {
    let place = Place::new();
    let done = place.sh(
        &place.workspace_write(),
        "mkdir d && echo x > d/f && mv d/f f && ln f g; touch ../outside || echo no",
    );
    assert!(done.out.ends_with("no\n"), "{}", done.out);
    assert_eq!(place.names("ws"), ["d", "f", "g"]);
    assert_eq!(place.names("."), ["ws"]);
}

#[test]
fn missing_protected_names_cannot_be_made_and_nothing_is_left() {
    let place = Place::new();
    let script = "for n in .git .codex .agents; do mkdir $n; touch $n; touch $n/f; rmdir $n; mv $n away; mkdir x && mv -T x $n; ln -s /tmp $n/l; done 2>/dev/null; ls -d .git/* .codex/* .agents/* 2>/dev/null; touch new; echo end";
    let done = place.sh(&place.workspace_write(), script);
    assert_eq!(done.out, "end\n");
    assert_eq!(place.names("ws"), ["new", "x"]);
    let records = fs::read_dir(state().join("mountpoints")).map_or(0, |records| records.count());
    assert!(records <= 8, "{records} records are left by the tests that run now");
}

#[test]
fn existing_protected_directories_are_read_only() {
    let place = Place::new();
    for name in [".git/config", ".codex/config", ".agents/a"] {
        place.write(&format!("ws/{name}"), "old");
    }
    let script = "for f in .git/config .codex/config .agents/a; do cat $f; echo new > $f; rm $f; done 2>/dev/null; rm -rf .git; mv .codex c; mkdir .git/hooks; ls -A";
    let done = place.sh(&place.workspace_write(), script);
    assert!(
        done.out.starts_with("oldoldold") && done.out.ends_with(".agents\n.codex\n.git\n"),
        "{}",
        done.out
    );
    assert_eq!(place.names("ws/.git"), ["config"]);
}

#[test]
fn what_a_git_file_leads_to_is_read_only() {
    let place = Place::new();
    place.write("ws/main/.git/worktrees/w/HEAD", "x");
    place.write("ws/main/.git/worktrees/w/commondir", "../..\n");
    place.write("ws/.git", "gitdir: main/.git/worktrees/w\n");
    let script = "for f in .git main/.git/worktrees/w/HEAD main/.git/config; do echo evil > $f; done 2>/dev/null; mv main m; touch main/ok && echo ok";
    let done = place.sh(&place.workspace_write(), script);
    assert!(done.out.ends_with("ok\n"), "{}", done.out);
    assert_eq!(place.names("ws/main"), [".git", "ok"]);
    assert_eq!(place.names("ws/main/.git"), ["worktrees"]);
    assert_eq!(fs::read_to_string(place.path("ws/main/.git/worktrees/w/HEAD")).unwrap(), "x");
}

#[test]
fn a_protected_link_is_refused() {
    let place = Place::new();
    fs::create_dir(place.path("real")).unwrap();
    symlink(place.path("real"), place.path("ws/.codex")).unwrap();
    let refused = plan(&place.workspace_write(), &place.context());
    assert!(matches!(refused, Err(Error::WritableLink { .. })), "{refused:?}");
}

#[test]
fn a_parent_of_a_protected_path_cannot_be_moved_away() {
    let place = Place::new();
    place.write("ws/a/b/secret", "s");
    let policy = place.profile(&[("ws/a/b/secret", Access::None), ("ws/a/c/missing", Access::None)]);
    let done =
        place.sh(&policy, "cat a/b/secret; mv a x; mv a/b a/y; mkdir a/c; rm -rf a; touch a/new; echo end");
    assert!(done.out.ends_with("end\n") && !done.out.contains("s\n\n"), "{}", done.out);
    assert_eq!(place.names("ws/a"), ["b", "new"]);
    assert_eq!(fs::read_to_string(place.path("ws/a/b/secret")).unwrap(), "s");
}

#[test]
fn the_deepest_entry_decides_and_opens_again() {
    let place = Place::new();
    for name in ["ws/no/f", "ws/no/again/f", "ws/no/again/not/f", "ws/no/deep/er/file"] {
        place.write(name, "text");
    }
    let policy = place.profile(&[
        ("ws/no", Access::None),
        ("ws/no/again", Access::Write),
        ("ws/no/again/not", Access::None),
        ("ws/no/deep/er/file", Access::Read),
    ]);
    let script = "cat no/f no/again/not/f 2>/dev/null; ls no; echo new > no/again/f; touch no/x; cat no/deep/er/file; echo; echo y > no/deep/er/file; cat no/again/f";
    let done = place.sh(&policy, script);
    assert!(done.out.contains("text\n") && done.out.ends_with("new\n"), "{}", done.out);
    assert_eq!(done.out.matches("text").count(), 1, "{}", done.out);
    assert_eq!(place.names("ws/no"), ["again", "deep", "f"]);
    assert_eq!(fs::read_to_string(place.path("ws/no/deep/er/file")).unwrap(), "text");
}

#[test]
fn denied_files_and_directories_cannot_be_read_under_a_readable_root() {
    let place = Place::new();
    place.write("secret/key", "k");
    place.write("other", "o");
    let policy = Policy::restricted(
        vec![
            Entry::special(Special::Root, Access::Read),
            Entry::path(place.path("secret"), Access::None),
            Entry::path(place.path("other"), Access::None),
        ],
        false,
    );
    let done = place.sh(&policy, "cat ../secret/key ../other; ls ../secret; echo end");
    assert!(done.out.ends_with("end\n") && done.out.matches("ermission denied").count() == 3, "{}", done.out);
}

#[test]
fn restricted_reads_need_nothing_of_ours_inside() {
    let place = Place::new();
    place.write("ws/f", "mine\n");
    place.write("other", "not\n");
    let reads = Reads::Restricted { include_platform_defaults: true, roots: Vec::new() };
    let done = place.sh(&Policy::read_only(&reads, false), "cat f; cat ../other /etc/hostname >/dev/null && echo all; ls /home /root /var 2>&1 | head -3; touch /x; echo end");
    assert!(done.out.starts_with("mine\n") && done.out.ends_with("end\n"), "{}", done.out);
    assert!(!done.out.contains("all\n"), "{}", done.out);
}

#[test]
fn globs_mask_what_matches_directories_too() {
    let place = Place::new();
    for name in ["ws/a.env", "ws/d/b.env", "ws/d/keep", "ws/deny1/x", "ws/two/y"] {
        place.write(name, "text\n");
    }
    let mut policy = place.profile(&[]);
    if let outpost_sandbox::Files::Restricted { entries, .. } = &mut policy.files {
        entries.extend([
            Entry::deny_glob("**/*.env"),
            Entry::deny_glob("{deny*,two}"),
            Entry::deny_glob("later"),
        ]);
    }
    let done = place.sh(
        &policy,
        "cat a.env d/b.env deny1/x two/y 2>/dev/null; mkdir later; touch later/x; mv a.env b; cat d/keep; ls",
    );
    assert!(done.out.contains("text\n") && done.out.matches("text").count() == 1, "{}", done.out);
    assert_eq!(place.names("ws"), ["a.env", "d", "deny1", "two"]);
    assert_eq!(plan(&policy, &place.context()).unwrap().late.len(), 2);
}

#[test]
fn allowing_by_glob_is_refused_by_name() {
    let place = Place::new();
    let entry = Entry { path: outpost_sandbox::EntryPath::Glob("*.rs".into()), access: Access::Read };
    let refused = plan(&Policy::restricted(vec![entry], false), &place.context()).unwrap_err();
    assert!(refused.to_string().contains("*.rs"), "{refused}");
}

#[test]
fn a_missing_writable_root_is_nothing() {
    let place = Place::new();
    let policy = Policy::workspace_write(&[place.path("nowhere")], &Reads::Everything, false, true, true);
    assert!(place.sh(&policy, "touch f").ok());
}

#[test]
fn a_writable_root_behind_a_link_is_the_real_one() {
    let place = Place::new();
    fs::create_dir(place.path("real")).unwrap();
    symlink(place.path("real"), place.path("link")).unwrap();
    let policy = Policy::workspace_write(&[place.path("link")], &Reads::Everything, false, true, true);
    assert!(place.sh(&policy, "touch ../link/f && mkdir ../link/.git || true").ok());
    assert_eq!(place.names("real"), ["f"]);
}

#[test]
fn two_commands_in_one_workspace_hold_its_names_together() {
    let place = Place::new();
    let inner = plan(&place.workspace_write(), &place.context()).unwrap();
    let first = outpost_sandbox::Confinement::build(&inner, crate::kit::host()).unwrap();
    let again = plan(&place.workspace_write(), &place.context()).unwrap();
    assert_eq!(again.held().count(), 3, "{again}");
    let second = outpost_sandbox::Confinement::build(&again, crate::kit::host()).unwrap();
    drop(first);
    assert_eq!(place.names("ws"), [".agents", ".codex", ".git"]);
    drop(second);
    assert!(place.names("ws").is_empty());
}

#[test]
fn a_held_name_that_somebody_used_stays() {
    let place = Place::new();
    let held = plan(&place.workspace_write(), &place.context()).unwrap();
    let confinement = outpost_sandbox::Confinement::build(&held, crate::kit::host()).unwrap();
    fs::remove_dir(place.path("ws/.git")).unwrap();
    place.write("ws/.git/config", "real");
    drop(confinement);
    assert_eq!(place.names("ws"), [".git"]);
}
