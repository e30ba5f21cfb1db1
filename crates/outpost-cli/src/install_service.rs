//! `outpost install-service`: writes a systemd unit that starts the daemon at boot.

use super::{Outcome, install_guard, print};
use crate::paths::{Dirs, Paths};
use clap::Args;
use outpost_sys::process::effective_uid;
use outpost_sys::user;
use std::path::{Path, PathBuf};

const UNIT: &str = "outpost.service";

/// The first line of a generated unit. A generated unit may be replaced.
const MARK: &str = "# Written by `outpost install-service`.";

#[derive(Args)]
pub(super) struct InstallService {
    /// Install a system unit; root only [default for root]
    #[arg(long, conflicts_with = "user")]
    system: bool,
    /// Install a user unit [default for other users]
    #[arg(long)]
    user: bool,
    /// Print the unit and change nothing
    #[arg(long)]
    print: bool,
    /// Replace a unit that was edited by hand
    #[arg(long)]
    force: bool,
    /// With --guard: stop and remove the guard; its records are moved aside
    #[arg(long, conflicts_with = "print")]
    uninstall: bool,
}

/// The path of the unit.
pub(super) fn unit_path(is_system: bool) -> Result<PathBuf, String> {
    if is_system {
        return Ok(Path::new("/etc/systemd/system").join(UNIT));
    }
    let config = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|dir| dir.is_absolute());
    let config = config.or_else(|| Some(outpost_sys::user::home()?.join(".config")));
    let config =
        config.ok_or("cannot find the directory of user units: neither XDG_CONFIG_HOME nor HOME is set")?;
    Ok(config.join("systemd/user").join(UNIT))
}

pub(super) fn run(paths: &Paths, options: &InstallService) -> Outcome {
    match (paths.is_guard, options.uninstall) {
        (true, true) => return install_guard::uninstall(paths, options.force),
        (true, false) => return install_guard::install(paths, options.print, options.force),
        (false, true) => {
            return Err(
                "--uninstall needs --guard\nhint: `systemctl disable --now outpost` disables the daemon"
                    .into(),
            );
        }
        (false, false) => {}
    }
    let is_system = options.system || (!options.user && effective_uid() == 0);
    let binary = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let paths = if is_system { system_paths(paths) } else { paths.clone() };
    let unit = unit(&binary, is_system, &paths)?;
    if options.print {
        return print(&unit);
    }
    if is_system {
        install_guard::check_binary(&binary, "install-service --system")?;
    }
    let path = unit_path(is_system)?;
    let is_written = write(&path, &unit, options.force)?;
    let shown = path.display();
    let done = match is_written {
        true => format!("wrote {shown}\n"),
        false => format!("{shown} is up to date\n"),
    };
    print(&(done + &next_steps(is_system, &paths)))
}

/// The directories of a system service, unless flags name others. Root's defaults may be removed at root's logout.
fn system_paths(given: &Paths) -> Paths {
    let default = Dirs::default().resolve().ok();
    let is_default = |own: &PathBuf, of: fn(&Paths) -> &PathBuf| default.as_ref().map(of) == Some(own);
    let choose = |own: &PathBuf, of: fn(&Paths) -> &PathBuf, system: &str| {
        if is_default(own, of) { PathBuf::from(system) } else { own.clone() }
    };
    Paths {
        state: choose(&given.state, |paths| &paths.state, "/var/lib/outpost"),
        runtime: choose(&given.runtime, |paths| &paths.runtime, "/run/outpost"),
        ..given.clone()
    }
}

/// Writes a unit; false if it is up to date. A unit that was edited by hand is not replaced without `force`.
pub(super) fn write(path: &Path, unit: &str, force: bool) -> Result<bool, String> {
    let fail = |error: std::io::Error| format!("{}: {error}", path.display());
    match std::fs::read_to_string(path) {
        Ok(found) if found == unit => return Ok(false),
        Ok(found) if !force && !is_generated(&found) => {
            return Err(format!(
                "{} was edited by hand\nhint: `--print` shows the new unit, `--force` replaces the file",
                path.display()
            ));
        }
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(fail(error)),
    }
    let dir = path.parent().unwrap_or(path);
    std::fs::create_dir_all(dir).map_err(fail)?;
    let new = path.with_extension("service.new");
    std::fs::write(&new, unit).and_then(|()| std::fs::rename(&new, path)).map_err(fail)?;
    Ok(true)
}

/// Whether any version of this program generated this exact text: the second line is the hash of the rest.
pub(super) fn is_generated(unit: &str) -> bool {
    let mut lines = unit.splitn(3, '\n');
    let (first, second, rest) = (lines.next(), lines.next(), lines.next().unwrap_or_default());
    first == Some(MARK) && second == Some(&seal(rest))
}

fn seal(text: &str) -> String {
    use sha2::{Digest, Sha256};
    format!("# sha256 of what follows: {}", outpost_ledger::hex(&Sha256::digest(text.as_bytes())))
}

fn unit(binary: &Path, is_system: bool, paths: &Paths) -> Result<String, String> {
    let (target, where_) = match is_system {
        true => ("multi-user.target", ""),
        false => ("default.target", " --user"),
    };
    let binary = quoted(binary)?;
    let dirs = format!("--state-dir {} --runtime-dir {}", quoted(&paths.state)?, quoted(&paths.runtime)?);
    let rest = format!(
        "# Change it with `systemctl{where_} edit outpost`: the next install-service replaces this file.

[Unit]
Description=Outpost: runs processes for agents and their users
After=network.target
# Retry without limit, for example while the disk is full.
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
ExecStart={binary} {dirs} serve --log-format journald
ExecReload={binary} {dirs} reload
# Stops every process with its grace time; systemd only waits.
ExecStop={binary} {dirs} stop
TimeoutStopSec=60
# If the main process is killed, the other process keeps everything running until the next start finds it.
KillMode=process
# If both are killed, systemd keeps the descriptors of running processes for the next start.
FileDescriptorStoreMax=8192
# systemd sets this variable itself from version 254 on.
Environment=FDSTORE=8192
Restart=always
RestartSec=1
# Exit code 3: a daemon that was started by hand is already running, so a restart cannot succeed.
RestartPreventExitStatus=3
WatchdogSec=30
# One cgroup per process, so that a kill reaches every descendant.
Delegate=yes
LimitNOFILE=65536
OOMPolicy=continue

[Install]
WantedBy={target}
"
    );
    Ok(sealed(&rest))
}

/// Prefixes a unit with its mark and its hash.
pub(super) fn sealed(rest: &str) -> String {
    format!("{MARK}\n{}\n{rest}", seal(rest))
}

/// Quotes a path for a command line of a unit.
pub(super) fn quoted(path: &Path) -> Result<String, String> {
    let text = path.to_str().filter(|text| !text.contains(char::is_control));
    let text = text.ok_or_else(|| {
        format!("a systemd unit cannot contain the path {}\nhint: choose another path", path.display())
    })?;
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%").replace('$', "$$");
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-%".contains(&byte);
    Ok(if escaped.bytes().all(is_plain) { escaped } else { format!("\"{escaped}\"") })
}

fn next_steps(is_system: bool, paths: &Paths) -> String {
    if is_system {
        return format!(
            "now: systemctl daemon-reload && systemctl enable --now outpost\n\
             log: journalctl -u outpost -f\n\
             for commands: export OUTPOST_STATE_DIR={} OUTPOST_RUNTIME_DIR={}\n\
             A daemon of root requires a token from every client of its ports; clients read it from {}.\n\
             To disable the port of sessions: [sessions] listen = \"none\" in outpost.toml\n",
            paths.state.display(),
            paths.runtime.display(),
            paths.sessions_token().display()
        );
    }
    let name = user::by_uid(effective_uid()).ok().flatten();
    let name = name.map_or_else(|| "$USER".into(), |user| user.name.display().to_string());
    format!(
        "now: systemctl --user daemon-reload && systemctl --user enable --now outpost\n\
         log: journalctl --user -u outpost -f\n\
         User services stop at the last logout. To keep this one: loginctl enable-linger {name}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edited_unit_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = Dirs {
            state_dir: Some("/var/lib/o".into()),
            runtime_dir: Some("/run/o".into()),
            ..Dirs::default()
        };
        let paths = dirs.resolve().unwrap();
        let path = dir.path().join("systemd").join(UNIT);
        let [old, new] = ["/usr/bin/outpost", "/opt/my tools/100%/outpost"]
            .map(|binary| unit(Path::new(binary), true, &paths).unwrap());
        assert!(new.contains("ExecStart=\"/opt/my tools/100%%/outpost\" --state-dir /var/lib/o"), "{new}");
        assert_eq!(write(&path, &old, false), Ok(true));
        assert_eq!(write(&path, &old, false), Ok(false));
        assert_eq!(write(&path, &new, false), Ok(true), "generated by another version");
        std::fs::write(&path, new.replace("RestartSec=1", "RestartSec=9")).unwrap();
        assert!(write(&path, &new, false).unwrap_err().contains("--force"));
        assert_eq!(write(&path, &new, true), Ok(true));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), new);
    }
}
