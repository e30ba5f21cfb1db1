//! `outpost install-service --guard`: installs and uninstalls the guard, root's daemon for approvals.

use super::install_service::{self, quoted};
use super::{Outcome, print};
use crate::paths::Paths;
use outpost_approvals::guard::GuardPaths;
use outpost_sys::connect::{self, Trust};
use outpost_sys::process::effective_uid;
use outpost_sys::root_only;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const UNIT: &str = "outpost-guard.service";

/// Exists while systemd runs.
const SYSTEMD_RUNTIME_DIR: &str = "/run/systemd/system";

/// Absolute paths: root must not run a program from a user's `PATH`.
const SYSTEMCTL: [&str; 2] = ["/usr/bin/systemctl", "/bin/systemctl"];

/// Where `--uninstall` moves the records.
fn retained_state(guard_paths: &GuardPaths) -> PathBuf {
    guard_paths.state().with_extension("uninstalled")
}

fn unit_path(guard_paths: &GuardPaths) -> PathBuf {
    guard_paths.root().unwrap_or(Path::new("/")).join("etc/systemd/system").join(UNIT)
}

pub(super) fn install(paths: &Paths, only_print: bool, force: bool) -> Outcome {
    let binary = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let unit = unit(&binary, &paths.guard)?;
    if only_print {
        return print(&unit);
    }
    check_root()?;
    check_binary(&binary, "install-service --guard")?;
    let (guard_paths, mut done) = (&paths.guard, String::new());
    let retained = retained_state(guard_paths);
    if retained.exists() && !guard_paths.state().exists() {
        fs::rename(&retained, guard_paths.state())
            .map_err(|error| format!("{}: {error}", retained.display()))?;
        done += &format!("restored the records from {}\n", retained.display());
    }
    let etc = guard_paths.etc();
    let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(&etc);
    made.map_err(|error| format!("{}: {error}", etc.display()))?;
    guard_paths.create().map_err(|error| error.to_string())?;
    done += &format!(
        "created {} (root only), {} and {}\n",
        guard_paths.state().display(),
        guard_paths.runtime().display(),
        etc.display()
    );
    let path = unit_path(guard_paths);
    let written = install_service::write(&path, &unit, force)?;
    done += &format!("{} {}\n", if written { "wrote" } else { "unchanged:" }, path.display());
    match systemctl(guard_paths) {
        Some(systemctl) => {
            run(systemctl, &["daemon-reload"])?;
            run(systemctl, &["enable", "--now", UNIT])?;
            done += "started the guard and enabled it at boot\nlog: journalctl -u outpost-guard -f\n";
        }
        None => {
            done += "systemd is not running: start the guard with `outpost --guard serve --detach`, as root\n"
        }
    }
    done += "next: enroll an approver: sudo outpost --guard approvals enroll\n";
    done += "users' daemons, `outpost ask` and `outpost mcp` find the guard automatically\n";
    print(&done)
}

/// Removes the guard. Its records are moved aside, root's configuration stays.
pub(super) fn uninstall(paths: &Paths, force: bool) -> Outcome {
    check_root()?;
    let (guard_paths, mut done) = (&paths.guard, String::new());
    let unit = unit_path(guard_paths);
    let found = fs::read_to_string(&unit).unwrap_or_default();
    if unit.exists() && !force && !install_service::is_generated(&found) {
        return Err(format!("{} was edited by hand\nhint: `--force` removes it anyway", unit.display()));
    }
    if let Some(systemctl) = systemctl(guard_paths).filter(|_| unit.exists()) {
        run(systemctl, &["disable", "--now", UNIT])?;
    }
    if connect::connect(&paths.control_socket(), Trust::Root).is_ok() {
        return Err(
            "the guard is still running\nhint: stop it with `outpost --guard stop`, then retry".into()
        );
    }
    match fs::remove_file(&unit) {
        Ok(()) => done += &format!("removed {}\n", unit.display()),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(format!("{}: {error}", unit.display())),
    }
    if let Some(systemctl) = systemctl(guard_paths) {
        run(systemctl, &["daemon-reload"])?;
    }
    let runtime = guard_paths.runtime();
    match fs::remove_dir_all(&runtime) {
        Ok(()) => done += &format!("removed {}\n", runtime.display()),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(format!("{}: {error}", runtime.display())),
    }
    let retained = retained_state(guard_paths);
    match fs::rename(guard_paths.state(), &retained) {
        Ok(()) => done += &format!("moved its records to {}\n", retained.display()),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(format!("{}: {error}", guard_paths.state().display())),
    }
    done += &format!("kept {} with rules and approvers\n", guard_paths.etc().display());
    done += "users' daemons are in personal mode again\n";
    print(&done)
}

fn check_root() -> Result<(), String> {
    match effective_uid() {
        0 => Ok(()),
        _ => Err("only root can set up the guard\nhint: sudo outpost install-service --guard".into()),
    }
}

/// Refuses a binary that other users can write, because they would become root when it starts. `command` is for the hint.
pub(super) fn check_binary(binary: &Path, command: &str) -> Result<(), String> {
    root_only::weak_spot(binary).map_or(Ok(()), Err).map_err(|spot: PathBuf| {
        format!(
            "others than root can change {}, so {} is not run as root\n\
             hint: install -m 755 {} /usr/local/bin/outpost && /usr/local/bin/outpost {command}",
            spot.display(),
            binary.display(),
            binary.display()
        )
    })
}

/// `None` if systemd does not run, or if the guard is installed below another root directory.
fn systemctl(guard_paths: &GuardPaths) -> Option<&'static str> {
    let runs = guard_paths.root().is_none() && Path::new(SYSTEMD_RUNTIME_DIR).is_dir();
    SYSTEMCTL.into_iter().find(|path| runs && Path::new(path).exists())
}

fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    let shown = format!("{program} {}", arguments.join(" "));
    let status = Command::new(program).args(arguments).status();
    match status.map_err(|error| format!("{shown}: {error}"))? {
        status if status.success() => Ok(()),
        status => Err(format!("{shown} failed: {status}\nhint: journalctl -u outpost-guard shows why")),
    }
}

fn unit(binary: &Path, guard_paths: &GuardPaths) -> Result<String, String> {
    let binary = quoted(binary)?;
    let guard = match guard_paths.root() {
        Some(root) => format!("--guard --guard-root {}", quoted(root)?),
        None => "--guard".to_owned(),
    };
    Ok(install_service::sealed(&format!(
        "# Change it with `systemctl edit outpost-guard`: the next install-service replaces this file.

[Unit]
Description=Outpost guard: approvals for commands as root
# Retry without limit, for example while the disk is full.
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
ExecStart={binary} {guard} serve --log-format journald
ExecReload={binary} {guard} reload
ExecStop={binary} {guard} stop
TimeoutStopSec=60
# If the main process is killed, the other process keeps everything running until the next start finds it.
KillMode=process
FileDescriptorStoreMax=8192
Environment=FDSTORE=8192
Restart=always
RestartSec=1
RestartPreventExitStatus=3
WatchdogSec=30
Delegate=yes
LimitNOFILE=65536
OOMPolicy=continue
# Approved commands inherit these settings, so they only restrict what no command needs.
KeyringMode=private
UMask=0077
StateDirectory=outpost-guard
StateDirectoryMode=0700
RuntimeDirectory=outpost-guard
RuntimeDirectoryMode=0755
RuntimeDirectoryPreserve=yes

[Install]
WantedBy=multi-user.target
"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_runs_the_guard_and_is_recognized_as_generated() {
        let text = unit(Path::new("/usr/local/bin/outpost"), &GuardPaths::default()).unwrap();
        assert!(
            text.contains("ExecStart=/usr/local/bin/outpost --guard serve --log-format journald\n"),
            "{text}"
        );
        for line in ["Type=notify", "Restart=always", "StateDirectoryMode=0700", "KeyringMode=private"] {
            assert!(text.lines().any(|found| found == line), "{line}");
        }
        assert!(install_service::is_generated(&text));
    }

    #[test]
    fn a_binary_that_other_users_can_write_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let binary = dir.path().join("outpost");
        fs::write(&binary, "").unwrap();
        std::os::unix::fs::symlink("/bin/true", dir.path().join("link")).unwrap();
        fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        for path in [binary, dir.path().join("link")] {
            assert!(check_binary(&path, "x").unwrap_err().contains("hint: install -m 755"));
        }
        assert_eq!(check_binary(&fs::canonicalize("/bin/true").unwrap(), "x"), Ok(()));
    }
}
