//! Plans for hosts that are only told of.

use super::*;
use crate::look::Told;
use crate::{Access, Entry, Error, Reads, Special};

fn printed(policy: &Policy, files: &[&str]) -> Vec<String> {
    let plan = made(policy, files).unwrap();
    let lines = plan.to_string();
    let lines = lines.lines().filter(|line| !line.starts_with("network") && !line.starts_with("limit"));
    lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

fn made(policy: &Policy, files: &[&str]) -> Result<Plan> {
    plan_with(&Told::of(files), policy, &Context { cwd: "/w".into(), tmpdir: Some("/t".into()) })
}

fn profile(entries: &[(&str, Access)]) -> Policy {
    Policy::restricted(entries.iter().map(|(path, access)| Entry::path(*path, *access)).collect(), false)
}

const READ: &str = "root the host's, read-only";

#[test]
fn read_only_is_one_line() {
    assert_eq!(printed(&Policy::read_only(&Reads::Everything, false), &["/w/.git/"]), [READ]);
}

#[test]
fn a_workspace_has_its_names_protected_or_held() {
    let policy = Policy::workspace_write(&[], &Reads::Everything, false, true, true);
    let lines = printed(&policy, &["/w/.git/HEAD"]);
    assert_eq!(lines, [READ, "write /w", "hold /w/.agents", "hold /w/.codex", "read /w/.git"]);
}

#[test]
fn an_explicit_entry_replaces_the_protection() {
    let policy = profile(&[("/", Access::Read), ("/w", Access::Write), ("/w/.codex", Access::Write)]);
    let lines = printed(&policy, &["/w/.git/", "/w/.codex/", "/w/.agents/"]);
    assert!(!lines.contains(&"read /w/.codex".to_owned()), "{lines:?}");
    assert!(lines.contains(&"read /w/.git".to_owned()), "{lines:?}");
}

#[test]
fn roots_in_roots_are_pinned() {
    let policy = Policy::workspace_write(&[], &Reads::Everything, false, true, false);
    let context = Context { cwd: "/t/x/ws".into(), tmpdir: Some("/t".into()) };
    let all =
        ["/t/.git/", "/t/.codex/", "/t/.agents/", "/t/x/ws/.git/", "/t/x/ws/.codex/", "/t/x/ws/.agents/"];
    let plan = plan_with(&Told::of(&all), &policy, &context).unwrap();
    let pins: Vec<_> = plan.mounts.iter().filter(|mount| mount.what == What::Pin).map(|m| &m.path).collect();
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
        let lines = printed(&policy, &["/d/.git/", "/d/.codex/", "/d/.agents/", "/w/"]);
        assert_eq!(lines[1], expected);
    }
}

#[test]
fn without_entries_there_is_nothing() {
    assert_eq!(printed(&Policy::restricted(Vec::new(), false), &["/w/"]), ["root empty"]);
}

#[test]
fn an_empty_root_has_the_links_that_lead_to_what_is_open() {
    let policy = Policy::restricted(vec![Entry::special(Special::Minimal, Access::Read)], false);
    let lines = printed(&policy, &["/usr/bin/", "/bin -> usr/bin", "/w/"]);
    assert_eq!(lines, ["root empty", "link /bin -> usr/bin", "read /usr"]);
}

#[test]
fn a_missing_denied_path_is_held_at_its_first_missing_component() {
    let policy = profile(&[("/", Access::Read), ("/w", Access::Write), ("/w/a/b/c", Access::None)]);
    let lines = printed(&policy, &["/w/.git/", "/w/.codex/", "/w/.agents/"]);
    assert!(lines.contains(&"hold /w/a".to_owned()), "{lines:?}");
}

#[test]
fn a_placeholder_of_another_command_counts_as_missing() {
    let policy = profile(&[("/", Access::Read), ("/w", Access::Write), ("/w/a/b/c", Access::None)]);
    let lines = printed(&policy, &["/w/.git/", "/w/.codex/", "/w/.agents/", "/w/a/: lease"]);
    assert!(lines.contains(&"hold /w/a".to_owned()), "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains("/w/a/b")), "{lines:?}");
    // Also where reading is granted, which would mount it.
    let policy = profile(&[("/", Access::Read), ("/w", Access::Write), ("/w/a", Access::Read)]);
    let lines = printed(&policy, &["/w/.git/", "/w/.codex/", "/w/.agents/", "/w/a/: lease"]);
    assert!(lines.contains(&"hold /w/a".to_owned()), "{lines:?}");
}

#[test]
fn a_missing_denied_path_where_nothing_can_be_made_is_nothing() {
    let policy = profile(&[("/", Access::Read), ("/etc/secret", Access::None)]);
    assert_eq!(printed(&policy, &["/etc/", "/w/"]), [READ]);
}

#[test]
fn a_link_that_could_be_replaced_is_refused() {
    let policy = profile(&[("/", Access::Read), ("/w", Access::Write), ("/w/link/secret", Access::None)]);
    let refused = made(&policy, &["/w/link -> /data", "/data/secret"]);
    assert!(
        matches!(&refused, Err(Error::WritableLink { link, .. }) if link.ends_with("link")),
        "{refused:?}"
    );
}

/// An earlier command wrote there: the link, and so what this one would open, may be its choice.
#[test]
fn a_link_that_an_earlier_command_could_have_planted_opens_nothing() {
    for access in [Access::Read, Access::Write] {
        let policy = profile(&[("/w", Access::Write), ("/w/link", access)]);
        let refused = made(&policy, &["/w/link -> /data/secret", "/data/secret/"]);
        assert!(
            matches!(&refused, Err(Error::PlantedLink { link, .. }) if link.ends_with("link")),
            "{refused:?}"
        );
    }
    let elsewhere = profile(&[("/w", Access::Write), ("/home/link", Access::Write)]);
    let all = ["/w/.git/", "/home/link -> /data", "/data/"];
    assert!(printed(&elsewhere, &all).contains(&"write /data".to_owned()));
}

/// A submodule's repository lies in its parent's: whoever writes its hooks or its configuration runs outside.
#[test]
fn what_a_gitdir_file_leads_to_is_protected() {
    let policy = profile(&[("/", Access::Read), ("/w", Access::Write), ("/w/module", Access::Write)]);
    let names = ["/w/.codex/", "/w/.agents/", "/w/module/.codex/", "/w/module/.agents/"];
    let module = ["/w/store/modules/m/HEAD", "/w/module/.git: gitdir: ../store/modules/m"];
    let lines = printed(&policy, &[&names[..], &module].concat());
    for line in ["read /w/module/.git", "read /w/store/modules/m"] {
        assert!(lines.contains(&line.to_owned()), "{line}: {lines:?}");
    }
    let worktree =
        ["/w/store/.git/worktrees/m/commondir: ../..", "/w/module/.git: gitdir: /w/store/.git/worktrees/m"];
    let lines = printed(&policy, &[&names[..], &worktree].concat());
    assert!(lines.contains(&"read /w/store/.git".to_owned()), "{lines:?}");
}

#[test]
fn a_second_mount_of_a_kernel_file_system_is_read_only() {
    let names = ["/w/.git/", "/w/.codex/", "/w/.agents/", "/.git/", "/.codex/", "/.agents/"];
    let host = ["/w/jail/proc/sys/", "/home/sys/", "/w/hidden -> /home", "/proc/", "/sys/", "/dev/cgroup/"];
    let mut told = Told::of(&[&names[..], &host].concat());
    told.1 = ["/proc", "/dev/cgroup", "/w/jail/proc", "/w/gone", "/w/hidden/sys"].map(PathBuf::from).to_vec();
    let context = Context { cwd: "/w".into(), tmpdir: None };
    let writes = |paths: &[&str]| {
        let entries = paths.iter().map(|path| (*path, Access::Write)).collect::<Vec<_>>();
        plan_with(&told, &profile(&[&[("/", Access::Read)], &entries[..]].concat()), &context)
    };
    // What was protected or held: all but what is written or protected anyway.
    let kept = |plan: Plan| -> Vec<String> {
        let mounts = plan.mounts.into_iter().filter(|mount| !matches!(mount.what, What::Write | What::Pin));
        let paths = mounts.map(|mount| mount.path.display().to_string());
        paths.filter(|path| !names.contains(&format!("{path}/").as_str())).collect()
    };
    assert_eq!(kept(writes(&["/w"]).unwrap()), ["/w/jail/proc"]);
    // A command's own /proc and /dev are none of the host's.
    assert_eq!(kept(writes(&["/"]).unwrap()), ["/sys", "/w/jail/proc"]);
    for path in ["/w/jail/proc", "/w/jail/proc/sys"] {
        let refused = writes(&[path]);
        assert!(matches!(&refused, Err(Error::Reserved { path: at }) if at.ends_with(path)), "{refused:?}");
    }
}

#[test]
fn a_denied_link_elsewhere_denies_its_target() {
    let policy = profile(&[("/", Access::Read), ("/home/link", Access::None)]);
    assert_eq!(printed(&policy, &["/home/link -> /data", "/data/secret", "/w/"]), [READ, "deny /data"]);
}

#[test]
fn the_kernels_files_stay_as_they_are() {
    for path in ["/proc/sys", "/sys/kernel", "/dev"] {
        assert!(
            matches!(made(&profile(&[(path, Access::Write)]), &["/w/"]), Err(Error::Reserved { .. })),
            "{path}"
        );
    }
    let everything = Policy { files: Files::Unrestricted, network: false };
    assert_eq!(printed(&everything, &["/sys/", "/w/"]), ["root the host's, writable", "read /sys"]);
}

#[test]
fn a_glob_denies_on_top_of_everything() {
    let mut policy = profile(&[("/", Access::Read), ("/d/a", Access::Write)]);
    let Files::Restricted { entries, .. } = &mut policy.files else { unreachable!() };
    entries.push(Entry::deny_glob("/d*"));
    assert_eq!(printed(&policy, &["/d/a/.git/", "/w/"]), [READ, "deny /d"]);
}

#[test]
fn a_glob_that_may_match_later_is_told_or_refused() {
    let mut policy = profile(&[("/", Access::Read), ("/w", Access::Write)]);
    let Files::Restricted { entries, .. } = &mut policy.files else { unreachable!() };
    entries.push(Entry::deny_glob("**/*.env"));
    assert!(printed(&policy, &["/w/"]).contains(&"late **/*.env below /w".to_owned()));
    let Files::Restricted { refuse_late_matches, .. } = &mut policy.files else { unreachable!() };
    *refuse_late_matches = true;
    assert!(matches!(made(&policy, &["/w/"]), Err(Error::GlobLate { .. })));
}

#[test]
fn a_relative_path_is_refused() {
    assert!(matches!(made(&profile(&[("w", Access::Read)]), &["/w/"]), Err(Error::Relative { .. })));
}
