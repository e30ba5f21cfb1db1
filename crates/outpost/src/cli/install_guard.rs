//! `outpost install-service --guard`: sets up root's daemon for approvals, and takes it away again.

use super::install_service::{self, quoted};
use super::{Outcome, print};
use crate::paths::Paths;
use outpost_approvals::guard::Places;
use outpost_sys::connect::{self, Trust};
use outpost_sys::limits::effective_uid;
use outpost_sys::root_only;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const UNIT: &str = "outpost-guard.service";

/// Where there is a systemd that runs.
const SYSTEMD: &str = "/run/systemd/system";

/// By path: what root runs is not looked up in a user's PATH.
const SYSTEMCTL: [&str; 2] = ["/usr/bin/systemctl", "/bin/systemctl"];

/// The records of a guard that was removed.
fn put_aside(places: &Places) -> PathBuf {
    places.state().with_extension("uninstalled")
}

fn unit_path(places: &Places) -> PathBuf {
    places.root().unwrap_or(Path::new("/")).join("etc/systemd/system").join(UNIT)
}

pub(super) fn install(paths: &Paths, only_print: bool, force: bool) -> Outcome {
    let binary = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let unit = unit(&binary, &paths.guard)?;
    if only_print {
        return print(&unit);
    }
    check_root()?;
    check_binary(&binary, "install-service --guard")?;
    let (places, mut done) = (&paths.guard, String::new());
    let aside = put_aside(places);
    if aside.exists() && !places.state().exists() {
        fs::rename(&aside, places.state()).map_err(|error| format!("{}: {error}", aside.display()))?;
        done += &format!("took the records in {} back into use\n", aside.display());
    }
    let etc = places.etc();
    let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(&etc);
    made.map_err(|error| format!("{}: {error}", etc.display()))?;
    places.create()?;
    done += &format!(
        "made {} (root only), {} and {}\n",
        places.state().display(),
        places.runtime().display(),
        etc.display()
    );
    let path = unit_path(places);
    let written = install_service::write(&path, &unit, force)?;
    done += &format!("{} {}\n", if written { "wrote" } else { "left as it was:" }, path.display());
    match systemctl(places) {
        Some(systemctl) => {
            run(systemctl, &["daemon-reload"])?;
            run(systemctl, &["enable", "--now", UNIT])?;
            done += "started it; it starts with the host from now on\nlog: journalctl -u outpost-guard -f\n";
        }
        None => {
            done += "systemd does not run here: start it with `outpost --guard serve --detach`, as root\n"
        }
    }
    done += "next: enrol an approver: sudo outpost --guard approvals enroll\n";
    done += "users' daemons, `outpost ask` and `outpost mcp` find the guard by themselves\n";
    print(&done)
}

/// Takes away all but the records, which are put aside.
pub(super) fn uninstall(paths: &Paths, force: bool) -> Outcome {
    check_root()?;
    let (places, mut done) = (&paths.guard, String::new());
    let unit = unit_path(places);
    let found = fs::read_to_string(&unit).unwrap_or_default();
    if unit.exists() && !force && !install_service::is_untouched(&found) {
        return Err(format!(
            "{} was changed by hand\nhint: `--force` removes it all the same",
            unit.display()
        ));
    }
    if let Some(systemctl) = systemctl(places).filter(|_| unit.exists()) {
        run(systemctl, &["disable", "--now", UNIT])?;
    }
    if connect::connect(&paths.control_socket(), Trust::Root).is_ok() {
        return Err("the guard still runs\nhint: stop it with `outpost --guard stop`, then try again".into());
    }
    match fs::remove_file(&unit) {
        Ok(()) => done += &format!("removed {}\n", unit.display()),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(format!("{}: {error}", unit.display())),
    }
    if let Some(systemctl) = systemctl(places) {
        run(systemctl, &["daemon-reload"])?;
    }
    let runtime = places.runtime();
    match fs::remove_dir_all(&runtime) {
        Ok(()) => done += &format!("removed {}\n", runtime.display()),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(format!("{}: {error}", runtime.display())),
    }
    let aside = put_aside(places);
    match fs::rename(places.state(), &aside) {
        Ok(()) => done += &format!("put its records aside: {}\n", aside.display()),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(format!("{}: {error}", places.state().display())),
    }
    done += &format!("{} stays: rules and approvers are yours\n", places.etc().display());
    done += "users' daemons decide for themselves again, with what personal mode protects against\n";
    print(&done)
}

fn check_root() -> Result<(), String> {
    match effective_uid() {
        0 => Ok(()),
        _ => Err("only root can set up the guard\nhint: sudo outpost install-service --guard".into()),
    }
}

/// A user who can write the binary is root as soon as it starts. `command` is what is tried again with a safe one.
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

/// None where systemd does not run, or would not start what was set up elsewhere than in `/`.
fn systemctl(places: &Places) -> Option<&'static str> {
    let runs = places.root().is_none() && Path::new(SYSTEMD).is_dir();
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

fn unit(binary: &Path, places: &Places) -> Result<String, String> {
    let binary = quoted(binary)?;
    let guard = match places.root() {
        Some(root) => format!("--guard --guard-root {}", quoted(root)?),
        None => "--guard".to_owned(),
    };
    Ok(install_service::sealed(&format!(
        "# Change it with `systemctl edit outpost-guard`: this file is replaced by the next install-service.

[Unit]
Description=Outpost guard: asks humans before commands run as root
# A full disk passes: systemd is not to give up.
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
ExecStart={binary} {guard} serve --log-format journald
ExecReload={binary} {guard} reload
ExecStop={binary} {guard} stop
TimeoutStopSec=60
# Should its main process be killed: the other half goes on, with everything that runs, and is found by the next start.
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
# Approved commands are root's and inherit what is set here, so only what none of them needs is taken away.
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
    fn the_unit_runs_the_guard_and_is_known_again_as_ours() {
        let text = unit(Path::new("/usr/local/bin/outpost"), &Places::default()).unwrap();
        assert!(
            text.contains("ExecStart=/usr/local/bin/outpost --guard serve --log-format journald\n"),
            "{text}"
        );
        for line in ["Type=notify", "Restart=always", "StateDirectoryMode=0700", "KeyringMode=private"] {
            assert!(text.lines().any(|found| found == line), "{line}");
        }
        assert!(install_service::is_untouched(&text));
    }

    #[test]
    fn a_binary_that_others_can_write_is_refused() {
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
