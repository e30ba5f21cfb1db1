//! The kernel, its limits, and the programs that the daemon calls.

use super::{Check, Verdict};
use crate::paths::Paths;
use crate::serve::KERNEL_MIN;
use outpost_sandbox::{Host, Namespaces};
use outpost_sys::{cgroup, kernel, limits, user};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What the kernel gives a user before it makes their pipes small.
const PIPE_PAGES_USUAL: u64 = 16384;
/// Pages of a pipe as the kernel makes it, and pipes of one process.
const PAGES_PER_PROCESS: u64 = 16 * 3;

pub(super) fn checks(paths: &Paths) -> Vec<Check> {
    let sandbox = match Host::probe(&paths.state) {
        Ok(host) => vec![namespaces(&host), landlock(&host), seccomp(&host)],
        Err(error) => vec![Check::bad(
            "namespaces",
            Verdict::Missing,
            error.to_string(),
            "sandboxed commands are refused as long as this is so",
            "free descriptors, memory or processes of this user, and run outpost doctor again",
        )],
    };
    let others = [cgroups(), pipes(), descriptors(), processes(), inotify(), sudo(), git()];
    std::iter::once(kernel_release(&kernel::release())).chain(sandbox).chain(others).collect()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn number(path: &str) -> Option<u64> {
    read(path).parse().ok()
}

fn kernel_release(release: &str) -> Check {
    let found = format!("Linux {release}");
    let mend = "run a newer kernel; 6.15 has all that is used";
    match kernel::version_in(release) {
        version if version < KERNEL_MIN => Check::bad(
            "kernel",
            Verdict::Missing,
            found,
            "the daemon does not start: it needs Linux 5.10 or later",
            mend,
        ),
        version if version < (5, 12) => Check::bad(
            "kernel",
            Verdict::Degraded,
            found,
            "sandboxed commands are refused before 5.12 (mount_setattr); no cgroup.kill before 5.14: descendants \
             are found by a marker in their environment",
            mend,
        ),
        version if version < (5, 14) => Check::bad(
            "kernel",
            Verdict::Degraded,
            found,
            "no cgroup.kill before 5.14: descendants are found by a marker in their environment",
            mend,
        ),
        version if version < (6, 15) => Check::ok(
            "kernel",
            format!("{found}; after a keeper's death exits are known by process events, always from 6.15 on"),
        ),
        _ => Check::ok("kernel", found),
    }
}

fn namespaces(host: &Host) -> Check {
    match host.namespaces {
        Namespaces::Direct => Check::ok("namespaces", "mount, pid, ipc, net"),
        Namespaces::User => Check::ok("namespaces", "user, mount, pid, ipc, net"),
        Namespaces::None if !host.mount_attributes => Check::bad(
            "namespaces",
            Verdict::Missing,
            host.why_none.as_deref().unwrap_or("none"),
            "every sandboxed command is refused; all other commands run",
            "run Linux 5.12 or later",
        ),
        Namespaces::None => {
            let means = match &host.why_not_alone {
                None => "sandboxed commands are refused, except read-only ones without network, which Landlock holds alone".into(),
                Some(why) => format!("every sandboxed command is refused; Landlock cannot hold one alone: {why}"),
            };
            let found = host.why_none.as_deref().unwrap_or("none");
            Check::bad("namespaces", Verdict::Missing, found, means, outpost_sandbox::advice())
        }
    }
}

fn landlock(host: &Host) -> Check {
    let means = match host.namespaces {
        Namespaces::None => "without namespaces no command can be sandboxed",
        _ => "sandboxes have one layer less: mounts and seccomp alone keep files and network",
    };
    let bad = |found: String, mend| Check::bad("landlock", Verdict::Degraded, found, means, mend);
    match (host.landlock, &host.why_not_alone) {
        (None, _) => bad("none".into(), outpost_sandbox::landlock_advice()),
        (Some(version), Some(_)) if host.landlock_stands_alone() => {
            bad(format!("ABI {version}; it cannot hold a command alone"), "allow namespaces, as above")
        }
        (Some(version), Some(_)) => bad(
            format!("ABI {version}; it cannot hold a command alone"),
            "allow namespaces, as above, or run Linux 6.2 or later (Landlock ABI 3)",
        ),
        (Some(version), None) if host.landlock_is_used() => Check::ok("landlock", format!("ABI {version}")),
        (Some(version), None) => {
            bad(format!("ABI {version}, too old to be used"), "run Linux 5.19 or later (Landlock ABI 2)")
        }
    }
}

fn seccomp(host: &Host) -> Check {
    match host.seccomp {
        true => Check::ok("seccomp", "filters"),
        false => Check::bad(
            "seccomp",
            Verdict::Missing,
            "no filters",
            "no command can be sandboxed",
            "run a kernel with CONFIG_SECCOMP_FILTER",
        ),
    }
}

fn cgroups() -> Check {
    match cgroup::Parent::detect(&format!("outpost-doctor-{}", std::process::id())) {
        Ok(Some(parent)) => {
            let _not_empty = parent.remove();
            Check::ok("cgroups", "version 2, writable: a process is killed with all its descendants")
        }
        Ok(None) | Err(_) => Check::bad(
            "cgroups",
            Verdict::Degraded,
            "no group below this process's own can be made",
            "descendants are found by a marker in their environment; one that cleared it may survive a kill",
            "run the daemon as a service with Delegate=yes: outpost install-service (from a login shell: \
             systemd-run --user --scope -p Delegate=yes outpost serve)",
        ),
    }
}

fn pipes() -> Check {
    let path = "/proc/sys/fs/pipe-user-pages-soft";
    let Some(pages) = number(path) else { return Check::ok("pipes", "no quota is known") };
    let found = match pages {
        0 => "no quota".to_owned(),
        pages => format!("{pages} pages a user, full size for about {} processes", pages / PAGES_PER_PROCESS),
    };
    if limits::effective_uid() == 0 {
        return Check::ok("pipes", format!("{found}; root has none"));
    }
    match pages {
        1..PIPE_PAGES_USUAL => Check::bad(
            "pipes",
            Verdict::Degraded,
            found,
            "beyond, pipes have one page: everything works, output moves slower",
            format!("sysctl -w fs.pipe-user-pages-soft={PIPE_PAGES_USUAL}"),
        ),
        _ => Check::ok("pipes", found),
    }
}

fn shown(limit: Option<u64>) -> String {
    limit.map_or("unlimited".to_owned(), |limit| limit.to_string())
}

fn descriptors() -> Check {
    let limit = limits::descriptors();
    let found = format!("{}, raised by the daemon to {}", shown(limit.soft), shown(limit.hard));
    let verdict = match limit.hard.unwrap_or(u64::MAX) {
        0..128 => Verdict::Missing,
        128..4096 => Verdict::Degraded,
        _ => return Check::ok("descriptors", found),
    };
    let means = "a process takes about six open files, a client one: few fit";
    Check::bad(
        "descriptors",
        verdict,
        found,
        means,
        "LimitNOFILE=65536 in the service, or ulimit -Hn 65536 as root",
    )
}

fn processes() -> Check {
    let soft = limits::processes().soft;
    match soft {
        Some(most @ 0..1024) => Check::bad(
            "processes",
            Verdict::Degraded,
            format!("{most} of this user at once"),
            "agents and builds start hundreds; beyond, starts fail",
            "LimitNPROC=8192 in the service, or a line in /etc/security/limits.conf",
        ),
        most => Check::ok("processes", format!("{} of this user at once", shown(most))),
    }
}

fn inotify() -> Check {
    let [watches, instances] = ["max_user_watches", "max_user_instances"]
        .map(|name| number(&format!("/proc/sys/fs/inotify/{name}")).unwrap_or(0));
    let found = format!("{watches} watches, {instances} instances");
    match watches >= 8192 && instances >= 128 {
        true => Check::ok("inotify", found),
        false => Check::bad(
            "inotify",
            Verdict::Degraded,
            found,
            "agents that watch a project's files may see changes late or not begin",
            "sysctl -w fs.inotify.max_user_watches=524288 fs.inotify.max_user_instances=1024",
        ),
    }
}

/// The first of this name on the PATH.
fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).filter(|dir| dir.is_absolute());
    let is_program = |path: &PathBuf| {
        path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    dirs.map(|dir| dir.join(name)).find(is_program)
}

fn sudo() -> Check {
    const SET_UID: u32 = 0o4000;
    if limits::effective_uid() == 0 {
        return Check::ok("sudo", "not needed: the daemon would be root");
    }
    let means = "the broker cannot run anything with root's rights; without them it can";
    let fixed = ["/usr/bin/sudo", "/bin/sudo", "/usr/local/bin/sudo"];
    let Some(program) = fixed.iter().map(Path::new).find(|path| path.exists()) else {
        return Check::bad(
            "sudo",
            Verdict::Degraded,
            "not installed",
            means,
            "apt-get install sudo, as root",
        );
    };
    let found = program.display().to_string();
    match program.metadata() {
        Ok(of) if of.uid() == 0 && of.mode() & SET_UID != 0 => {
            let name = user::name_or_number(limits::effective_uid());
            Check::ok("sudo", format!("{found}; what it allows {name} is asked for at each command"))
        }
        _ => Check::bad(
            "sudo",
            Verdict::Degraded,
            format!("{found} is not set-uid root"),
            means,
            format!("chown root {found} && chmod u+s {found}, as root"),
        ),
    }
}

fn git() -> Check {
    let Some(program) = find("git") else {
        let means = "git.* of the relay face fails; agents mostly want it too";
        return Check::bad("git", Verdict::Degraded, "not on PATH", means, "apt-get install git, as root");
    };
    let asked = Command::new(&program).arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).output();
    let said = asked.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    Check::ok("git", format!("{}; {}", program.display(), said.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The advice about Landlock is about what is really missing.
    #[test]
    fn a_landlock_that_cannot_stand_alone_is_named_with_what_helps() {
        let dir = tempfile::tempdir().unwrap();
        let without = |landlock: Option<u32>| {
            let mut host = Host::probe(dir.path()).unwrap();
            host.landlock = landlock;
            host.without_namespaces("for a test")
        };
        for (version, found, mend) in [
            (None, "none", "lsm=landlock"),
            (Some(1), "ABI 1; it cannot hold a command alone", "Linux 6.2 or later (Landlock ABI 3)"),
            (Some(2), "ABI 2; it cannot hold a command alone", "Linux 6.2 or later (Landlock ABI 3)"),
        ] {
            let host = without(version);
            let check = landlock(&host);
            assert_eq!((check.verdict, check.found.as_str()), (Verdict::Degraded, found));
            assert!(check.mend.as_ref().is_some_and(|text| text.contains(mend)), "{:?}", check.mend);
            let means = namespaces(&host).means.unwrap();
            assert!(means.starts_with("every sandboxed command is refused; Landlock cannot"), "{means}");
            assert!(means.contains("where version 3 (Linux 6.2) could enforce"), "{means}");
            assert!(!means.contains("for a test"), "the cause is in `found`, once: {means}");
        }
        let mut old = Host::probe(dir.path()).unwrap();
        old.landlock = Some(1);
        if old.namespaces != Namespaces::None {
            assert!(landlock(&old).mend.is_some_and(|mend| mend.contains("Linux 5.19")));
        }
    }

    #[test]
    fn a_kernel_is_judged_by_its_numbers() {
        for (release, verdict) in [
            ("6.18.44-fc", Verdict::Ok),
            ("5.15.0-100-generic", Verdict::Ok),
            ("5.10.0", Verdict::Degraded),
            ("5.13.0", Verdict::Degraded),
            ("5.9.16", Verdict::Missing),
            ("5.8.1", Verdict::Missing),
            ("4.19.0", Verdict::Missing),
            ("", Verdict::Missing),
        ] {
            assert_eq!(kernel_release(release).verdict, verdict, "{release}");
        }
    }
}
