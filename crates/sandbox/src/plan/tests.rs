//! Plans for fake hosts.

use super::*;
use crate::host_fs::FakeFs;
use crate::{Access, Error, PolicyEntry, Reads, Special};

fn lines_of(policy: &Policy, files: &[&str]) -> Vec<String> {
    let plan = plan_for(policy, files).unwrap();
    let lines = plan.to_string();
    let lines = lines.lines().filter(|line| !line.starts_with("network") && !line.starts_with("limit"));
    lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

fn plan_for(policy: &Policy, files: &[&str]) -> Result<Plan> {
    plan_with(&FakeFs::of(files), policy, &Context { cwd: "/w".into(), tmpdir: Some("/t".into()) })
}

fn profile(entries: &[(&str, Access)]) -> Policy {
    Policy::restricted(
        entries.iter().map(|(path, access)| PolicyEntry::path(*path, *access)).collect(),
        false,
    )
}

const READ: &str = "root the host's, read-only";

#[test]
fn read_only_is_one_line() {
    assert_eq!(lines_of(&Policy::read_only(&Reads::Everything, false), &["/w/.git/"]), [READ]);
}

#[test]
fn a_workspace_has_its_names_protected_or_gets_placeholders() {
    let policy = Policy::workspace_write(&[], &Reads::Everything, false, true, true);
    let lines = lines_of(&policy, &["/w/.git/HEAD"]);
    assert_eq!(lines, [READ, "write /w", "hold /w/.agents", "hold /w/.codex", "read /w/.git"]);
}

#[test]
fn an_explicit_entry_replaces_the_protection() {
    let policy = profile(&[("/", Access::Read), ("/w", Access::Write), ("/w/.codex", Access::Write)]);
    let lines = lines_of(&policy, &["/w/.git/", "/w/.codex/", "/w/.agents/"]);
    assert!(!lines.contains(&"read /w/.codex".to_owned()), "{lines:?}");
    assert!(lines.contains(&"read /w/.git".to_owned()), "{lines:?}");
}

#[test]
fn roots_in_roots_are_pinned() {
    let policy = Policy::workspace_write(&[], &Reads::Everything, false, true, false);
    let context = Context { cwd: "/t/x/ws".into(), tmpdir: Some("/t".into()) };
    let all =
        ["/t/.git/", "/t/.codex/", "/t/.agents/", "/t/x/ws/.git/", "/t/x/ws/.codex/", "/t/x/ws/.agents/"];
    let plan = plan_with(&FakeFs::of(&all), &policy, &context).unwrap();
    let pins: Vec<_> =
        plan.mounts.iter().filter(|mount| mount.kind == MountKind::Pin).map(|m| &m.path).collect();
    assert_eq!(pins, [std::path::Path::new("/t/x"), std::path::Path::new("/t/x/ws")]);
}

#[test]
fn none_wins_then_write_then_read() {
    for (first, second, expected) in [
        (Access::Read, Access::Write, "write /d"),
        (Access::Write, Access::Read, "write /d"),
        (Access::None, Access::Write, "deny /d"),
    ] {
        let policy = profile(&[("/", Access::Read), ("/d", first), ("/d", second)]);
        let lines = lines_of(&policy, &["/d/.git/", "/d/.codex/", "/d/.agents/", "/w/"]);
        assert_eq!(lines[1], expected);
    }
}

#[test]
fn without_entries_the_root_is_empty() {
    assert_eq!(lines_of(&Policy::restricted(Vec::new(), false), &["/w/"]), ["root empty"]);
}

#[test]
fn an_empty_root_has_the_links_that_lead_to_what_is_open() {
    let policy = Policy::restricted(vec![PolicyEntry::special(Special::Minimal, Access::Read)], false);
    let lines = lines_of(&policy, &["/usr/bin/", "/bin -> usr/bin", "/w/"]);
    assert_eq!(lines, ["root empty", "link /bin -> usr/bin", "read /usr"]);
}

#[test]
fn a_missing_denied_path_gets_a_placeholder_at_its_first_missing_component() {
    let policy = profile(&[("/", Access::Read), ("/w", Access::Write), ("/w/a/b/c", Access::None)]);
    let lines = lines_of(&policy, &["/w/.git/", "/w/.codex/", "/w/.agents/"]);
    assert!(lines.contains(&"hold /w/a".to_owned()), "{lines:?}");
}

#[test]
fn a_placeholder_of_another_command_counts_as_missing() {
    let policy = profile(&[("/", Access::Read), ("/w", Access::Write), ("/w/a/b/c", Access::None)]);
    let lines = lines_of(&policy, &["/w/.git/", "/w/.codex/", "/w/.agents/", "/w/a/: placeholder"]);
    assert!(lines.contains(&"hold /w/a".to_owned()), "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains("/w/a/b")), "{lines:?}");
    // Also where an entry grants reading, which would mount it.
    let policy = profile(&[("/", Access::Read), ("/w", Access::Write), ("/w/a", Access::Read)]);
    let lines = lines_of(&policy, &["/w/.git/", "/w/.codex/", "/w/.agents/", "/w/a/: placeholder"]);
    assert!(lines.contains(&"hold /w/a".to_owned()), "{lines:?}");
}

#[test]
fn a_missing_denied_path_where_nothing_can_be_created_is_ignored() {
    let policy = profile(&[("/", Access::Read), ("/etc/secret", Access::None)]);
    assert_eq!(lines_of(&policy, &["/etc/", "/w/"]), [READ]);
}

#[test]
fn a_link_that_could_be_replaced_is_refused() {
    let policy = profile(&[("/", Access::Read), ("/w", Access::Write), ("/w/link/secret", Access::None)]);
    let refused = plan_for(&policy, &["/w/link -> /data", "/data/secret"]);
    assert!(
        matches!(&refused, Err(Error::WritableLink { link, .. }) if link.ends_with("link")),
        "{refused:?}"
    );
}

/// An earlier command could write there, so it may have chosen the link's target.
#[test]
fn a_link_that_an_earlier_command_could_have_planted_opens_nothing() {
    for access in [Access::Read, Access::Write] {
        let policy = profile(&[("/w", Access::Write), ("/w/link", access)]);
        let refused = plan_for(&policy, &["/w/link -> /data/secret", "/data/secret/"]);
        assert!(
            matches!(&refused, Err(Error::PlantedLink { link, .. }) if link.ends_with("link")),
            "{refused:?}"
        );
    }
    let elsewhere = profile(&[("/w", Access::Write), ("/home/link", Access::Write)]);
    let all = ["/w/.git/", "/home/link -> /data", "/data/"];
    assert!(lines_of(&elsewhere, &all).contains(&"write /data".to_owned()));
}

/// A submodule's repository is inside its parent's. Its hooks and configuration later run outside of the
/// sandbox.
#[test]
fn the_target_of_a_gitdir_file_is_protected() {
    let policy = profile(&[("/", Access::Read), ("/w", Access::Write), ("/w/module", Access::Write)]);
    let names = ["/w/.codex/", "/w/.agents/", "/w/module/.codex/", "/w/module/.agents/"];
    let module = ["/w/store/modules/m/HEAD", "/w/module/.git: gitdir: ../store/modules/m"];
    let lines = lines_of(&policy, &[&names[..], &module].concat());
    for line in ["read /w/module/.git", "read /w/store/modules/m"] {
        assert!(lines.contains(&line.to_owned()), "{line}: {lines:?}");
    }
    let worktree =
        ["/w/store/.git/worktrees/m/commondir: ../..", "/w/module/.git: gitdir: /w/store/.git/worktrees/m"];
    let lines = lines_of(&policy, &[&names[..], &worktree].concat());
    assert!(lines.contains(&"read /w/store/.git".to_owned()), "{lines:?}");
}

#[test]
fn a_second_mount_of_a_kernel_file_system_is_read_only() {
    let names = ["/w/.git/", "/w/.codex/", "/w/.agents/", "/.git/", "/.codex/", "/.agents/"];
    let host = ["/w/jail/proc/sys/", "/home/sys/", "/w/hidden -> /home", "/proc/", "/sys/", "/dev/cgroup/"];
    let mut fake = FakeFs::of(&[&names[..], &host].concat());
    fake.1 = ["/proc", "/dev/cgroup", "/w/jail/proc", "/w/gone", "/w/hidden/sys"].map(PathBuf::from).to_vec();
    let context = Context { cwd: "/w".into(), tmpdir: None };
    let writes = |paths: &[&str]| {
        let entries = paths.iter().map(|path| (*path, Access::Write)).collect::<Vec<_>>();
        plan_with(&fake, &profile(&[&[("/", Access::Read)], &entries[..]].concat()), &context)
    };
    // Protected paths and placeholders, without those that are written or protected anyway.
    let kept = |plan: Plan| -> Vec<String> {
        let mounts =
            plan.mounts.into_iter().filter(|mount| !matches!(mount.kind, MountKind::Write | MountKind::Pin));
        let paths = mounts.map(|mount| mount.path.display().to_string());
        paths.filter(|path| !names.contains(&format!("{path}/").as_str())).collect()
    };
    assert_eq!(kept(writes(&["/w"]).unwrap()), ["/w/jail/proc"]);
    // A command's own /proc and /dev are not the host's.
    assert_eq!(kept(writes(&["/"]).unwrap()), ["/sys", "/w/jail/proc"]);
    for path in ["/w/jail/proc", "/w/jail/proc/sys"] {
        let refused = writes(&[path]);
        assert!(matches!(&refused, Err(Error::Reserved { path: at }) if at.ends_with(path)), "{refused:?}");
    }
}

#[test]
fn a_denied_link_elsewhere_denies_its_target() {
    let policy = profile(&[("/", Access::Read), ("/home/link", Access::None)]);
    assert_eq!(lines_of(&policy, &["/home/link -> /data", "/data/secret", "/w/"]), [READ, "deny /data"]);
}

#[test]
fn kernel_files_cannot_be_granted() {
    for path in ["/proc/sys", "/sys/kernel", "/dev"] {
        assert!(
            matches!(plan_for(&profile(&[(path, Access::Write)]), &["/w/"]), Err(Error::Reserved { .. })),
            "{path}"
        );
    }
    let everything = Policy { files: Files::Unrestricted, network: false };
    assert_eq!(lines_of(&everything, &["/sys/", "/w/"]), ["root the host's, writable", "read /sys"]);
}

#[test]
fn a_glob_denies_on_top_of_everything() {
    let mut policy = profile(&[("/", Access::Read), ("/d/a", Access::Write)]);
    let Files::Restricted { entries, .. } = &mut policy.files else { unreachable!() };
    entries.push(PolicyEntry::deny_glob("/d*"));
    assert_eq!(lines_of(&policy, &["/d/a/.git/", "/w/"]), [READ, "deny /d"]);
}

#[test]
fn a_glob_that_may_match_later_is_reported_or_refused() {
    let mut policy = profile(&[("/", Access::Read), ("/w", Access::Write)]);
    let Files::Restricted { entries, .. } = &mut policy.files else { unreachable!() };
    entries.push(PolicyEntry::deny_glob("**/*.env"));
    assert!(lines_of(&policy, &["/w/"]).contains(&"unenforceable **/*.env below /w".to_owned()));
    let Files::Restricted { refuse_unenforceable, .. } = &mut policy.files else { unreachable!() };
    *refuse_unenforceable = true;
    assert!(matches!(plan_for(&policy, &["/w/"]), Err(Error::GlobUnenforceable { .. })));
}

#[test]
fn a_relative_path_is_refused() {
    assert!(matches!(plan_for(&profile(&[("w", Access::Read)]), &["/w/"]), Err(Error::Relative { .. })));
}
