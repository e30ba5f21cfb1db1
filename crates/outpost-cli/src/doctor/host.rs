//! Checks of the host: kernel, sandbox features, limits, and programs that the daemon calls.

use super::{Check, Verdict};
use crate::paths::Paths;
use outpost_sandbox::{Host, Namespaces};
use outpost_sys::{cgroup, kernel, limits, user};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The oldest supported kernel. Earlier ones lack system calls for which the daemon has no fallback.
pub const KERNEL_MIN: kernel::Version = (5, 10);

/// The kernel's default quota of pipe pages per user. Beyond it, new pipes have one page.
const PIPE_PAGES_DEFAULT: u64 = 16384;
/// Default pages of a pipe, times the pipes of one process.
const PAGES_PER_PROCESS: u64 = 16 * 3;

pub(super) fn checks(paths: &Paths) -> Vec<Check> {
    let sandbox = match Host::probe(&paths.state) {
        Ok(host) => vec![namespaces(&host), landlock(&host), seccomp(&host)],
        Err(error) => vec![Check::bad(
            "namespaces",
            Verdict::Error,
            error.to_string(),
            "sandboxed commands are refused",
            "free descriptors, memory or processes of this user, then run outpost doctor again",
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
    let fix = "run a newer kernel; 6.15 has all features";
    match kernel::version_in(release) {
        version if version < KERNEL_MIN => Check::bad(
            "kernel",
            Verdict::Error,
            found,
            "the daemon does not start: it needs Linux 5.10 or later",
            fix,
        ),
        version if version < (5, 12) => Check::bad(
            "kernel",
            Verdict::Warning,
            found,
            "sandboxed commands are refused before 5.12 (mount_setattr); no cgroup.kill before 5.14: descendants \
             are found by a marker in their environment",
            fix,
        ),
        version if version < (5, 14) => Check::bad(
            "kernel",
            Verdict::Warning,
            found,
            "no cgroup.kill before 5.14: descendants are found by a marker in their environment",
            fix,
        ),
        version if version < (6, 15) => Check::ok(
            "kernel",
            format!("{found}; exit statuses after a keeper's death need process events before 6.15"),
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
            Verdict::Error,
            host.why_none.as_deref().unwrap_or("none"),
            "every sandboxed command is refused; all other commands run",
            "run Linux 5.12 or later",
        ),
        Namespaces::None => {
            let effect = match &host.why_not_alone {
                None => "sandboxed commands are refused, except read-only ones without network, for which Landlock suffices".into(),
                Some(why) => format!("every sandboxed command is refused; Landlock cannot confine one alone: {why}"),
            };
            let found = host.why_none.as_deref().unwrap_or("none");
            Check::bad("namespaces", Verdict::Error, found, effect, outpost_sandbox::advice())
        }
    }
}

fn landlock(host: &Host) -> Check {
    let effect = match host.namespaces {
        Namespaces::None => "without namespaces no command can be sandboxed",
        _ => "sandboxes have one layer less: only mounts and seccomp protect files and network",
    };
    let bad = |found: String, fix| Check::bad("landlock", Verdict::Warning, found, effect, fix);
    match (host.landlock, &host.why_not_alone) {
        (None, _) => bad("none".into(), outpost_sandbox::landlock_advice()),
        (Some(version), Some(_)) if host.landlock_stands_alone() => {
            bad(format!("ABI {version}; cannot confine a command alone"), "allow namespaces, as above")
        }
        (Some(version), Some(_)) => bad(
            format!("ABI {version}; cannot confine a command alone"),
            "allow namespaces, as above, or run Linux 6.2 or later (Landlock ABI 3)",
        ),
        (Some(version), None) if host.landlock_is_used() => Check::ok("landlock", format!("ABI {version}")),
        (Some(version), None) => {
            bad(format!("ABI {version}, too old"), "run Linux 5.19 or later (Landlock ABI 2)")
        }
    }
}

fn seccomp(host: &Host) -> Check {
    match host.seccomp {
        true => Check::ok("seccomp", "filters"),
        false => Check::bad(
            "seccomp",
            Verdict::Error,
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
            Verdict::Warning,
            "cannot create a cgroup below the one of this process",
            "descendants are found by a marker in their environment; one that cleared it may survive a kill",
            "run the daemon as a service with Delegate=yes: outpost install-service (from a login shell: \
             systemd-run --user --scope -p Delegate=yes outpost serve)",
        ),
    }
}

fn pipes() -> Check {
    let path = "/proc/sys/fs/pipe-user-pages-soft";
    let Some(pages) = number(path) else { return Check::ok("pipes", "quota unknown") };
    let found = match pages {
        0 => "no quota".to_owned(),
        pages => format!("{pages} pages a user, full size for about {} processes", pages / PAGES_PER_PROCESS),
    };
    if outpost_sys::process::effective_uid() == 0 {
        return Check::ok("pipes", format!("{found}; no quota for root"));
    }
    match pages {
        1..PIPE_PAGES_DEFAULT => Check::bad(
            "pipes",
            Verdict::Warning,
            found,
            "further pipes have one page: output is slower",
            format!("sysctl -w fs.pipe-user-pages-soft={PIPE_PAGES_DEFAULT}"),
        ),
        _ => Check::ok("pipes", found),
    }
}

fn limit_text(limit: Option<u64>) -> String {
    limit.map_or("unlimited".to_owned(), |limit| limit.to_string())
}

fn descriptors() -> Check {
    let limit = limits::descriptors();
    let found = format!("{}, raised by the daemon to {}", limit_text(limit.soft), limit_text(limit.hard));
    let verdict = match limit.hard.unwrap_or(u64::MAX) {
        0..128 => Verdict::Error,
        128..4096 => Verdict::Warning,
        _ => return Check::ok("descriptors", found),
    };
    let effect = "few processes fit: each needs about six descriptors, each client one";
    Check::bad(
        "descriptors",
        verdict,
        found,
        effect,
        "LimitNOFILE=65536 in the service, or ulimit -Hn 65536 as root",
    )
}

fn processes() -> Check {
    let soft = limits::processes().soft;
    match soft {
        Some(most @ 0..1024) => Check::bad(
            "processes",
            Verdict::Warning,
            format!("at most {most} of this user"),
            "starts fail beyond the limit; agents and builds start hundreds of processes",
            "LimitNPROC=8192 in the service, or a line in /etc/security/limits.conf",
        ),
        most => Check::ok("processes", format!("at most {} of this user", limit_text(most))),
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
            Verdict::Warning,
            found,
            "agents that watch project files may miss changes or fail to start",
            "sysctl -w fs.inotify.max_user_watches=524288 fs.inotify.max_user_instances=1024",
        ),
    }
}

/// The first executable of this name in `PATH`.
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
    if outpost_sys::process::effective_uid() == 0 {
        return Check::ok("sudo", "not needed: the daemon runs as root");
    }
    let effect = "the broker cannot run commands as root, only unprivileged ones";
    let fixed = ["/usr/bin/sudo", "/bin/sudo", "/usr/local/bin/sudo"];
    let Some(program) = fixed.iter().map(Path::new).find(|path| path.exists()) else {
        return Check::bad(
            "sudo",
            Verdict::Warning,
            "not installed",
            effect,
            "apt-get install sudo, as root",
        );
    };
    let found = program.display().to_string();
    match program.metadata() {
        Ok(of) if of.uid() == 0 && of.mode() & SET_UID != 0 => {
            let name = user::name_or_number(outpost_sys::process::effective_uid());
            Check::ok("sudo", format!("{found}; the rights of {name} are checked with each command"))
        }
        _ => Check::bad(
            "sudo",
            Verdict::Warning,
            format!("{found} is not set-uid root"),
            effect,
            format!("chown root {found} && chmod u+s {found}, as root"),
        ),
    }
}

fn git() -> Check {
    let Some(program) = find("git") else {
        let effect = "git.* methods of the relay face fail; most agents need git too";
        return Check::bad("git", Verdict::Warning, "not in PATH", effect, "apt-get install git, as root");
    };
    let version = Command::new(&program).arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).output();
    let version = version.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    Check::ok("git", format!("{}; {}", program.display(), version.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_insufficient_landlock_is_reported_with_its_fix() {
        let dir = tempfile::tempdir().unwrap();
        let without = |landlock: Option<u32>| {
            let mut host = Host::probe(dir.path()).unwrap();
            host.landlock = landlock;
            host.without_namespaces("for a test")
        };
        for (version, found, fix) in [
            (None, "none", "lsm=landlock"),
            (Some(1), "ABI 1; cannot confine a command alone", "Linux 6.2 or later (Landlock ABI 3)"),
            (Some(2), "ABI 2; cannot confine a command alone", "Linux 6.2 or later (Landlock ABI 3)"),
        ] {
            let host = without(version);
            let check = landlock(&host);
            assert_eq!((check.verdict, check.found.as_str()), (Verdict::Warning, found));
            assert!(check.fix.as_ref().is_some_and(|text| text.contains(fix)), "{:?}", check.fix);
            let effect = namespaces(&host).effect.unwrap();
            assert!(effect.starts_with("every sandboxed command is refused; Landlock cannot"), "{effect}");
            assert!(effect.contains("where version 3 (Linux 6.2) could enforce"), "{effect}");
            assert!(!effect.contains("for a test"), "the cause is in `found`, once: {effect}");
        }
        let mut old = Host::probe(dir.path()).unwrap();
        old.landlock = Some(1);
        if old.namespaces != Namespaces::None {
            assert!(landlock(&old).fix.is_some_and(|fix| fix.contains("Linux 5.19")));
        }
    }

    #[test]
    fn the_verdict_on_a_kernel_depends_on_its_version() {
        for (release, verdict) in [
            ("6.18.44-fc", Verdict::Ok),
            ("5.15.0-100-generic", Verdict::Ok),
            ("5.10.0", Verdict::Warning),
            ("5.13.0", Verdict::Warning),
            ("5.9.16", Verdict::Error),
            ("5.8.1", Verdict::Error),
            ("4.19.0", Verdict::Error),
            ("", Verdict::Error),
        ] {
            assert_eq!(kernel_release(release).verdict, verdict, "{release}");
        }
    }
}
