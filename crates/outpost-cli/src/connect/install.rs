//! Remote installation: probes the remote binary, decides whether to replace it, and copies ours.

use super::EXCERPT_CHARS;
use super::ssh::{Ssh, quoted};
use crate::remote_bootstrap::{LINE_MARK, digest, own_version};
use semver::Version;
use std::cmp::Ordering;
use std::fs::File;
use std::path::Path;

/// Install path below the remote home directory.
const INSTALL_PATH: &str = ".local/bin/outpost";

/// Reports platform and binary of the remote host, in marked lines.
const PROBE_SCRIPT: &str = r#"
report() { printf 'outpost-connect %s %s\n' "$1" "$2"; }
report system "$(uname -s)"
report machine "$(uname -m)"
for at in "$HOME/.local/bin/outpost" "$(command -v outpost)"; do
    [ -f "$at" ] && [ -x "$at" ] || continue
    version=$("$at" --version </dev/null 2>/dev/null) || continue
    sum=$(sha256sum <"$at") || continue
    report binary "$at"
    report version "$version"
    report sha256 "${sum%% *}"
    break
done
report end .
"#;

/// Receives our binary on standard input, verifies its hash, runs it once, and renames it into place.
const RECEIVE_SCRIPT: &str = r#"
set -e
place="$HOME/.local/bin/outpost"
mkdir -p "$HOME/.local/bin"
new="$place.new.$$"
trap 'rm -f "$new"' EXIT
trap 'exit 1' HUP INT TERM
cat >"$new"
sum=$(sha256sum <"$new")
[ "${sum%% *}" = "$expected" ] || { echo "hash mismatch: the copy is corrupt" >&2; exit 1; }
chmod 755 "$new"
"$new" --version >/dev/null || { echo "the binary does not run on this host: is it a static build?" >&2; exit 1; }
sync "$new" 2>/dev/null || :
mv -f "$new" "$place"
trap - EXIT
"#;

/// Which remote binaries may be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Replace {
    /// An older version, and another build of the same version.
    Older,
    Any,
    /// None; install only where no binary exists.
    Nothing,
}

/// The result of the probe.
#[derive(Debug, PartialEq, Eq)]
struct RemoteHost {
    system: String,
    machine: String,
    binary: Option<RemoteBinary>,
}

#[derive(Debug, PartialEq, Eq)]
struct RemoteBinary {
    path: String,
    version: Version,
    sha256: String,
}

/// The running binary.
struct LocalBinary {
    version: Version,
    sha256: String,
}

#[derive(Debug, PartialEq, Eq)]
enum InstallStep {
    /// Use the remote binary, for this reason.
    Keep(String),
    /// Copy ours, for this reason.
    Copy(String),
}

/// Makes sure that a suitable binary is installed; returns its path, quoted for a shell.
pub(super) async fn install(ssh: &Ssh<'_>, replace: Replace) -> Result<String, String> {
    let output =
        ssh.run(PROBE_SCRIPT, None).await.map_err(|why| format!("cannot probe the remote host: {why}"))?;
    let remote = parse(&output)?;
    let local = LocalBinary { version: own_version(), sha256: digest(Path::new("/proc/self/exe"))? };
    match (decide(&local, &remote, replace)?, &remote.binary) {
        (InstallStep::Keep(why), Some(binary)) => {
            if replace != Replace::Nothing {
                errln!("outpost: not copied: {why}");
            }
            Ok(quoted(&binary.path))
        }
        (InstallStep::Keep(why) | InstallStep::Copy(why), _) => {
            copy(ssh, &local, &why).await?;
            Ok(format!("\"$HOME/{INSTALL_PATH}\""))
        }
    }
}

async fn copy(ssh: &Ssh<'_>, local: &LocalBinary, why: &str) -> Result<(), String> {
    let fail = |error: std::io::Error| format!("cannot read this program: {error}");
    let binary = File::open("/proc/self/exe").map_err(fail)?;
    let bytes = binary.metadata().map_err(fail)?.len();
    errln!(
        "outpost: copying outpost {} ({} MiB) to ~/{INSTALL_PATH} on the remote host: {why}",
        local.version,
        bytes.div_ceil(1 << 20)
    );
    let script = format!("expected={}{RECEIVE_SCRIPT}", local.sha256);
    let copied = ssh.run(&script, Some(binary)).await;
    copied.map(drop).map_err(|why| format!("cannot copy outpost to the remote host: {why}"))
}

fn parse(output: &str) -> Result<RemoteHost, String> {
    let member = |name: &str| {
        let prefix = format!("{LINE_MARK} {name} ");
        output.lines().find_map(|line| Some(line.strip_prefix(&prefix)?.trim_end().to_owned()))
    };
    let (Some(system), Some(machine), Some(_)) = (member("system"), member("machine"), member("end")) else {
        return Err(format!(
            "unexpected output of the remote shell: {:?}",
            output.chars().take(EXCERPT_CHARS).collect::<String>()
        ));
    };
    let binary = match (member("binary"), member("version"), member("sha256")) {
        (Some(path), Some(version), Some(sha256)) => {
            let known = version.strip_prefix("outpost ").and_then(|text| Version::parse(text).ok());
            let version = known.ok_or_else(|| {
                format!("{path:?} on the remote host is not outpost (--version prints {version:?})\nhint: move it away")
            })?;
            Some(RemoteBinary { path, version, sha256 })
        }
        _ => None,
    };
    Ok(RemoteHost { system, machine, binary })
}

fn decide(local: &LocalBinary, remote: &RemoteHost, replace: Replace) -> Result<InstallStep, String> {
    let other_platform = remote.system != "Linux" || remote.machine != std::env::consts::ARCH;
    let step = match &remote.binary {
        None => InstallStep::Copy("not installed".into()),
        Some(binary) if binary.sha256 == local.sha256 => {
            InstallStep::Keep(format!("outpost {} is installed", local.version))
        }
        Some(binary) => {
            let its = &binary.version;
            match (replace, its.cmp_precedence(&local.version)) {
                (Replace::Nothing, _) => InstallStep::Keep(format!("outpost {its} is installed")),
                (Replace::Any, _) => InstallStep::Copy(format!("replaces {its}")),
                (Replace::Older, Ordering::Less) => {
                    InstallStep::Copy(format!("replaces {its}, which is older"))
                }
                (Replace::Older, Ordering::Greater) => InstallStep::Keep(format!(
                    "outpost {its} is installed, which is newer (--force replaces it)"
                )),
                (Replace::Older, Ordering::Equal) if other_platform => {
                    InstallStep::Keep(format!("outpost {its} is installed"))
                }
                (Replace::Older, Ordering::Equal) => {
                    InstallStep::Copy(format!("replaces another build of {its}"))
                }
            }
        }
    };
    if other_platform && matches!(step, InstallStep::Copy(_)) {
        return Err(format!(
            "the remote host is {:?} on {:?}, but this binary is for Linux on {}\nhint: install outpost {} for it as ~/{INSTALL_PATH} on that host",
            remote.system,
            remote.machine,
            std::env::consts::ARCH,
            local.version
        ));
    }
    Ok(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local() -> LocalBinary {
        LocalBinary { version: Version::parse("1.2.3").unwrap(), sha256: "aa".into() }
    }

    fn remote(machine: &str, binary: Option<(&str, &str)>) -> RemoteHost {
        let binary = binary.map(|(version, sha256)| RemoteBinary {
            path: "/x/outpost".into(),
            version: Version::parse(version).unwrap(),
            sha256: sha256.into(),
        });
        RemoteHost { system: "Linux".into(), machine: machine.into(), binary }
    }

    #[test]
    fn newer_binaries_and_other_platforms_are_not_replaced() {
        let here = std::env::consts::ARCH;
        let copies = |machine: &str, binary, replace| {
            decide(&local(), &remote(machine, binary), replace)
                .map(|step| matches!(step, InstallStep::Copy(_)))
        };
        assert_eq!(copies(here, None, Replace::Nothing), Ok(true));
        assert_eq!(copies(here, Some(("1.2.3", "aa")), Replace::Any), Ok(false));
        assert_eq!(copies(here, Some(("1.2.3", "bb")), Replace::Older), Ok(true));
        assert_eq!(copies(here, Some(("1.2.3", "bb")), Replace::Nothing), Ok(false));
        assert_eq!(copies(here, Some(("1.2.2", "bb")), Replace::Older), Ok(true));
        assert_eq!(copies(here, Some(("1.2.3-rc.1", "bb")), Replace::Older), Ok(true));
        assert_eq!(copies(here, Some(("1.3.0-rc.1", "bb")), Replace::Older), Ok(false));
        assert_eq!(copies("other", Some(("1.2.3+build", "bb")), Replace::Older), Ok(false));
        assert_eq!(copies(here, Some(("1.10.0", "bb")), Replace::Older), Ok(false));
        assert_eq!(copies(here, Some(("1.10.0", "bb")), Replace::Any), Ok(true));
        assert_eq!(copies("other", Some(("1.2.3", "bb")), Replace::Older), Ok(false));
        let refused = copies("other", Some(("1.2.2", "bb")), Replace::Older).unwrap_err();
        assert!(refused.contains("\"other\"") && refused.contains(here), "{refused}");
    }

    #[test]
    fn unmarked_lines_of_a_shell_are_ignored() {
        let output = "Welcome!\noutpost-connect system Linux\noutpost-connect machine x86_64\n\
                    outpost-connect binary /home/me/.local/bin/outpost\noutpost-connect version outpost 1.2.3\n\
                    outpost-connect sha256 bb\nsystem other\noutpost-connect end .\n";
        let parsed = parse(output).unwrap();
        assert_eq!((parsed.machine.as_str(), parsed.binary.unwrap().sha256.as_str()), ("x86_64", "bb"));
        assert!(
            parse(&output.replace("outpost 1.2.3", "something else")).unwrap_err().contains("move it away")
        );
        assert!(parse(&output.replace("outpost-connect end .", "")).is_err());
    }
}
