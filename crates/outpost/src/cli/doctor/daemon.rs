//! The daemon's own: its configuration, directories, sockets, and whether it runs and is kept running.

use super::{Check, Verdict};
use crate::cli::list::{age, size};
use crate::flags::Flags;
use crate::paths::Paths;
use outpost_approvals::guard::Found;
use outpost_approvals::unix_ms;
use outpost_control::client::Client;
use outpost_control::wire::Status;
use outpost_sys::connect;
use outpost_sys::file::{self, Open};
use outpost_sys::{limits, user};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Below this much free space there is little room for journals, and below that for the records of a start.
const ROOM_BYTES: u64 = 1024 * 1024 * 1024;
const ROOM_BYTES_MIN: u64 = 64 * 1024 * 1024;
const INODES_MIN: u64 = 10_000;
/// How long a daemon that runs may take to say so.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) fn checks(paths: &Paths, flags: &Flags, mistake: Option<&String>) -> Vec<Check> {
    let mut checks = vec![
        config(flags, mistake),
        directory("state", &paths.state, "--state-dir"),
        runtime(paths),
        room(paths),
    ];
    let (running, status) = daemon(paths);
    checks.push(running);
    if let Some(status) = &status {
        checks.extend(sockets(paths, status));
    }
    checks.push(approvals(paths));
    checks.push(service());
    checks.extend(lingering());
    checks
}

/// Who decides on this host, and what that protects against.
fn approvals(paths: &Paths) -> Check {
    match paths.guard.find() {
        Found::Away(reason) => Check::bad(
            "approvals",
            Verdict::Missing,
            format!("guard mode, and the guard is away: {reason}"),
            "nothing can be approved on this host until the guard serves again",
            "sudo systemctl restart outpost-guard, or sudo outpost install-service --guard --uninstall",
        ),
        found => Check::ok("approvals", found.mode()),
    }
}

fn config(flags: &Flags, mistake: Option<&String>) -> Check {
    let file = flags.file();
    match mistake {
        Some(mistake) => Check::bad(
            "config",
            Verdict::Missing,
            mistake.lines().next().unwrap_or_default(),
            "the daemon does not begin with it, and one that runs keeps its old settings",
            "outpost config check shows all mistakes",
        ),
        None if file.exists() => Check::ok("config", file.display().to_string()),
        None => Check::ok("config", format!("{} is not there: defaults", file.display())),
    }
}

/// The directory itself, or what it would be made in.
/// Also the way to it.
fn runtime(paths: &Paths) -> Check {
    let check = directory("runtime", &paths.runtime, "--runtime-dir");
    let weak = connect::check_directory(&paths.runtime, paths.trust()).err();
    match weak.as_ref().and_then(connect::untrusted) {
        Some(reason) if matches!(check.verdict, Verdict::Ok) => Check::bad(
            "runtime",
            Verdict::Missing,
            reason.to_string(),
            "the daemon does not start there, and clients send nothing to its sockets",
            reason.hint(),
        ),
        _ => check,
    }
}

fn directory(name: &'static str, dir: &Path, flag: &str) -> Check {
    let shown = dir.display();
    let choose = format!("give another with {flag}");
    let Ok(found) = std::fs::symlink_metadata(dir) else {
        let parent = dir.ancestors().find(|dir| dir.is_dir()).unwrap_or(Path::new("/"));
        return match file::can_write(parent) {
            true => Check::ok(name, format!("{shown} will be made")),
            false => Check::bad(
                name,
                Verdict::Missing,
                format!("{shown} is not there, and {} cannot be written", parent.display()),
                "the daemon cannot begin",
                choose,
            ),
        };
    };
    if !found.is_dir() || found.uid() != limits::effective_uid() {
        let means = "the daemon does not begin in what somebody else could change";
        return Check::bad(
            name,
            Verdict::Missing,
            format!("{shown} is not a directory of this user"),
            means,
            choose,
        );
    }
    if !file::can_write(dir) {
        let mend = format!("mount it writable, or {choose}");
        return Check::bad(
            name,
            Verdict::Missing,
            format!("{shown} cannot be written"),
            "the daemon cannot begin",
            mend,
        );
    }
    match found.mode() & 0o077 {
        0 => Check::ok(name, shown.to_string()),
        _ => Check::bad(
            name,
            Verdict::Degraded,
            format!("{shown} is open to others"),
            "others can see what runs; the daemon closes it when it begins",
            format!("chmod 700 {shown}"),
        ),
    }
}

fn room(paths: &Paths) -> Check {
    let dir = paths.state.ancestors().find(|dir| dir.is_dir()).unwrap_or(Path::new("/"));
    let Ok(free) = file::free_bytes(dir) else {
        return Check::ok("disk", format!("{}: not known", dir.display()));
    };
    let inodes = file::free_inodes(dir).ok().flatten();
    let found = format!(
        "{} free{} for {}",
        size(free),
        inodes.map(|inodes| format!(", {inodes} files")).unwrap_or_default(),
        paths.state.display()
    );
    let verdict = match (free, inodes.unwrap_or(u64::MAX)) {
        (0..ROOM_BYTES_MIN, _) => Verdict::Missing,
        (..ROOM_BYTES, _) | (_, ..INODES_MIN) => Verdict::Degraded,
        _ => return Check::ok("disk", found),
    };
    let means = "on a full disk processes wait until there is room; nothing is lost";
    Check::bad("disk", verdict, found, means, "make room, or lower journal_bytes_max in [processes]")
}

fn daemon(paths: &Paths) -> (Check, Option<Status>) {
    let ask = || -> Option<Status> {
        let mut client = Client::connect(&paths.control_socket()).ok()?;
        client.set_patience(Some(PATIENCE)).ok()?;
        client.call("status", &()).ok()
    };
    let own = env!("CARGO_PKG_VERSION");
    if let Some(status) = ask() {
        let found = format!("version {} runs, keeper {}", status.version, status.keeper_pid);
        if let Some(problem) = status.faces.problems.first() {
            let since = age(unix_ms().saturating_sub(problem.since_ms) / 1000);
            let check = Check::bad(
                "daemon",
                Verdict::Degraded,
                format!("{found}; {} {} (since {since})", problem.component, problem.message),
                "the other parts serve; this one is retried until it succeeds",
                "mend the cause; `outpost status` shows all problems",
            );
            return (check, Some(status));
        }
        let check = match status.version == own {
            true => Check::ok("daemon", found),
            false => Check::bad(
                "daemon",
                Verdict::Degraded,
                format!("{found}; this binary is {own}"),
                "what this binary offers anew, the daemon does not",
                "outpost upgrade --binary PATH, which loses nothing",
            ),
        };
        return (check, Some(status));
    }
    let is_held = file::open(paths.lock(), Open::ReadWrite)
        .and_then(|lock| file::try_lock(&lock))
        .is_ok_and(|taken| !taken);
    let check = match is_held {
        true => Check::bad(
            "daemon",
            Verdict::Missing,
            "somebody has its lock, but it does not answer",
            "its worker cannot begin; its processes live on",
            "see its log; kill -HUP the keeper to try again",
        ),
        false => Check::ok("daemon", "does not run; outpost serve starts it"),
    };
    (check, None)
}

/// Those in our directory are for this user only.
fn sockets(paths: &Paths, status: &Status) -> Vec<Check> {
    let own = status.faces.listening.iter().map(|row| PathBuf::from(&row.address));
    let own = own.filter(|path| path.parent() == Some(&paths.runtime));
    own.map(|path| {
        let shown = path.display().to_string();
        match path.symlink_metadata() {
            Ok(found) if found.file_type().is_socket() && found.mode() & 0o077 == 0 => {
                Check::ok("socket", shown)
            }
            Ok(found) if found.file_type().is_socket() => Check::bad(
                "socket",
                Verdict::Degraded,
                format!("{shown} is open to others"),
                "its directory is private, and peers are checked; still it was not made so",
                format!("chmod 600 {shown}"),
            ),
            _ => Check::bad(
                "socket",
                Verdict::Missing,
                format!("{shown} is gone"),
                "nobody can reach that face any more; somebody has removed it",
                "outpost stop (by its keeper's SIGTERM if control.sock is gone), then outpost serve",
            ),
        }
    })
    .collect()
}

fn has_systemd() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

fn service() -> Check {
    if !has_systemd() {
        return Check::ok("systemd", "does not run this host; outpost serve --detach needs none");
    }
    let is_root = limits::effective_uid() == 0;
    match crate::cli::install_service::unit_path(is_root) {
        Ok(unit) if unit.exists() => Check::ok("systemd", format!("{} is installed", unit.display())),
        _ => Check::bad(
            "systemd",
            Verdict::Degraded,
            "no unit of ours is installed",
            "the daemon is not started at boot, nor again if it should ever end",
            "outpost install-service",
        ),
    }
}

/// Without it, what a user's systemd runs ends with their last login.
fn lingering() -> Option<Check> {
    if !has_systemd() || limits::effective_uid() == 0 {
        return None;
    }
    let name = user::name_or_number(limits::effective_uid());
    let exists = Path::new("/var/lib/systemd/linger").join(&name).exists();
    Some(match exists {
        true => Check::ok("lingering", format!("on for {name}")),
        false => Check::bad(
            "lingering",
            Verdict::Degraded,
            format!("off for {name}"),
            "a service of this user ends with their last login, and begins with the next",
            format!("loginctl enable-linger {name}"),
        ),
    })
}
