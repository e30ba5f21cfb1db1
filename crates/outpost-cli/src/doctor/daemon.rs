//! Checks of the daemon: configuration, directories, disk space, sockets, approvals and the systemd unit.

use super::{Check, Verdict};
use crate::flags::Flags;
use crate::paths::Paths;
use crate::ps::{age, size};
use outpost_approvals::guard::GuardStatus;
use outpost_control::client::Client;
use outpost_control::wire::{Status, StatusQuery};
use outpost_ledger::unix_ms;
use outpost_sys::connect;
use outpost_sys::file::{self, Open};
use outpost_sys::user;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Free space for journals, and for the records of a start.
const FREE_BYTES_WANTED: u64 = 1024 * 1024 * 1024;
const FREE_BYTES_MIN: u64 = 64 * 1024 * 1024;
const FREE_INODES_WANTED: u64 = 10_000;
/// How long a running daemon may take to reply.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) fn checks(paths: &Paths, flags: &Flags, config_error: Option<&String>) -> Vec<Check> {
    let mut checks = vec![
        config(flags, config_error),
        directory("state", &paths.state, "--state-dir"),
        runtime(paths),
        disk_space(paths),
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

/// The approvals mode, and whether the guard serves.
fn approvals(paths: &Paths) -> Check {
    match paths.guard.status() {
        GuardStatus::Unavailable(reason) => Check::bad(
            "approvals",
            Verdict::Error,
            format!("guard mode, but the guard is not running: {reason}"),
            "no request can be approved on this host until the guard runs again",
            "sudo systemctl restart outpost-guard, or sudo outpost install-service --guard --uninstall",
        ),
        found => Check::ok("approvals", found.mode()),
    }
}

fn config(flags: &Flags, config_error: Option<&String>) -> Check {
    let file = flags.config_file();
    match config_error {
        Some(config_error) => Check::bad(
            "config",
            Verdict::Error,
            config_error.lines().next().unwrap_or_default(),
            "the daemon does not start with this file; a running one keeps its previous settings",
            "outpost config check shows all errors",
        ),
        None if file.exists() => Check::ok("config", file.display().to_string()),
        None => Check::ok("config", format!("{} does not exist; the defaults apply", file.display())),
    }
}

/// The runtime directory, and the owners of its path.
fn runtime(paths: &Paths) -> Check {
    let check = directory("runtime", &paths.runtime, "--runtime-dir");
    let weak = connect::check_directory(&paths.runtime, paths.trust()).err();
    match weak.as_ref().and_then(connect::untrusted) {
        Some(reason) if matches!(check.verdict, Verdict::Ok) => Check::bad(
            "runtime",
            Verdict::Error,
            reason.to_string(),
            "the daemon does not start in it, and clients refuse its sockets",
            reason.hint(),
        ),
        _ => check,
    }
}

fn directory(name: &'static str, dir: &Path, flag: &str) -> Check {
    let shown = dir.display();
    let choose = format!("choose another directory with {flag}");
    let Ok(found) = std::fs::symlink_metadata(dir) else {
        let parent = dir.ancestors().find(|dir| dir.is_dir()).unwrap_or(Path::new("/"));
        return match file::can_write(parent) {
            true => Check::ok(name, format!("{shown} will be created")),
            false => Check::bad(
                name,
                Verdict::Error,
                format!("{shown} does not exist, and {} is not writable", parent.display()),
                "the daemon cannot start",
                choose,
            ),
        };
    };
    if !found.is_dir() || found.uid() != outpost_sys::process::effective_uid() {
        let effect = "the daemon does not start in a directory that another user can change";
        return Check::bad(
            name,
            Verdict::Error,
            format!("{shown} is not a directory of this user"),
            effect,
            choose,
        );
    }
    if !file::can_write(dir) {
        let fix = format!("make it writable, or {choose}");
        return Check::bad(
            name,
            Verdict::Error,
            format!("{shown} is not writable"),
            "the daemon cannot start",
            fix,
        );
    }
    match found.mode() & 0o077 {
        0 => Check::ok(name, shown.to_string()),
        _ => Check::bad(
            name,
            Verdict::Warning,
            format!("{shown} is accessible to other users"),
            "other users can see the processes; the daemon restricts it when it starts",
            format!("chmod 700 {shown}"),
        ),
    }
}

fn disk_space(paths: &Paths) -> Check {
    let dir = paths.state.ancestors().find(|dir| dir.is_dir()).unwrap_or(Path::new("/"));
    let Ok(free) = file::free_bytes(dir) else {
        return Check::ok("disk", format!("{}: free space unknown", dir.display()));
    };
    let inodes = file::free_inodes(dir).ok().flatten();
    let found = format!(
        "{} free{} for {}",
        size(free),
        inodes.map(|inodes| format!(", {inodes} files")).unwrap_or_default(),
        paths.state.display()
    );
    let verdict = match (free, inodes.unwrap_or(u64::MAX)) {
        (0..FREE_BYTES_MIN, _) => Verdict::Error,
        (..FREE_BYTES_WANTED, _) | (_, ..FREE_INODES_WANTED) => Verdict::Warning,
        _ => return Check::ok("disk", found),
    };
    let effect = "on a full disk processes block until there is room; no output is lost";
    Check::bad("disk", verdict, found, effect, "free space, or lower journal_bytes_max in [processes]")
}

fn daemon(paths: &Paths) -> (Check, Option<Status>) {
    let ask = || -> Option<Status> {
        let mut client = Client::connect(&paths.control_socket()).ok()?;
        client.set_timeout(Some(STATUS_TIMEOUT)).ok()?;
        client.call("status", &StatusQuery { await_faces: true }).ok()
    };
    let own = env!("CARGO_PKG_VERSION");
    if let Some(status) = ask() {
        let found = format!("version {} is running, keeper {}", status.version, status.keeper_pid);
        if let Some(problem) = status.faces.problems.first() {
            let since = age(unix_ms().saturating_sub(problem.since_ms) / 1000);
            let check = Check::bad(
                "daemon",
                Verdict::Warning,
                format!("{found}; {} {} (for {since})", problem.component, problem.message),
                "this component does not serve and is retried; the others serve",
                "remove the cause; `outpost status` shows all problems",
            );
            return (check, Some(status));
        }
        let check = match status.version == own {
            true => Check::ok("daemon", found),
            false => Check::bad(
                "daemon",
                Verdict::Warning,
                format!("{found}; this binary is {own}"),
                "the daemon lacks features of this binary",
                "outpost upgrade --binary PATH (all processes keep running)",
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
            Verdict::Error,
            "a process holds its lock, but it does not reply",
            "its worker cannot start; its processes keep running",
            "see its log; kill -HUP the keeper to retry",
        ),
        false => Check::ok("daemon", "not running; outpost serve --detach starts it"),
    };
    (check, None)
}

/// The sockets in the runtime directory, which must be private to this user.
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
                Verdict::Warning,
                format!("{shown} is accessible to other users"),
                "its private directory and the peer check still protect it, but its mode was changed",
                format!("chmod 600 {shown}"),
            ),
            _ => Check::bad(
                "socket",
                Verdict::Error,
                format!("{shown} was removed"),
                "no client can reach this face",
                "outpost stop (SIGTERM to the keeper if control.sock is gone), then outpost serve",
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
        return Check::ok("systemd", "not running on this host; outpost serve --detach needs none");
    }
    let is_root = outpost_sys::process::effective_uid() == 0;
    match crate::install_service::unit_path(is_root) {
        Ok(unit) if unit.exists() => Check::ok("systemd", format!("{} is installed", unit.display())),
        _ => Check::bad(
            "systemd",
            Verdict::Warning,
            "no outpost unit is installed",
            "the daemon is not started at boot and not restarted after a failure",
            "outpost install-service",
        ),
    }
}

/// Without lingering, a user's services end with their last login.
fn lingering() -> Option<Check> {
    if !has_systemd() || outpost_sys::process::effective_uid() == 0 {
        return None;
    }
    let name = user::name_or_number(outpost_sys::process::effective_uid());
    let exists = Path::new("/var/lib/systemd/linger").join(&name).exists();
    Some(match exists {
        true => Check::ok("lingering", format!("on for {name}")),
        false => Check::bad(
            "lingering",
            Verdict::Warning,
            format!("off for {name}"),
            "a service of this user stops at their last logout and starts at the next login",
            format!("loginctl enable-linger {name}"),
        ),
    })
}
