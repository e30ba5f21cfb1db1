//! The binary over there: what there is, whether ours takes its place, and how it gets there.

use super::SHOWN_CHARS;
use super::ssh::{Ssh, quoted};
use crate::cli::arrive::{MARK, Version, digest};
use std::fs::File;
use std::path::Path;

/// Where ours is put, below the home there.
const PLACE: &str = ".local/bin/outpost";

/// Says what there is, in lines with our mark.
const PROBE: &str = r#"
say() { printf 'outpost-connect %s %s\n' "$1" "$2"; }
say system "$(uname -s)"
say machine "$(uname -m)"
for at in "$HOME/.local/bin/outpost" "$(command -v outpost)"; do
    [ -f "$at" ] && [ -x "$at" ] || continue
    said=$("$at" --version </dev/null 2>/dev/null) || continue
    sum=$(sha256sum <"$at") || continue
    say binary "$at"
    say version "$said"
    say sha256 "${sum%% *}"
    break
done
say end .
"#;

/// Takes our binary on standard input. It has its name only once it is whole and runs.
const RECEIVE: &str = r#"
set -e
place="$HOME/.local/bin/outpost"
mkdir -p "$HOME/.local/bin"
new="$place.new.$$"
trap 'rm -f "$new"' EXIT
trap 'exit 1' HUP INT TERM
cat >"$new"
sum=$(sha256sum <"$new")
[ "${sum%% *}" = "$expected" ] || { echo "what arrived is not what was sent" >&2; exit 1; }
chmod 755 "$new"
"$new" --version >/dev/null || { echo "it does not run there: is it a static build?" >&2; exit 1; }
sync "$new" 2>/dev/null || :
mv -f "$new" "$place"
trap - EXIT
"#;

/// What may be done about a binary that is not ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Replace {
    /// An older one, and another build of the same version.
    Older,
    /// Any.
    Any,
    /// None: only put ours where there is none.
    Nothing,
}

/// What there is.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    system: String,
    machine: String,
    binary: Option<Binary>,
}

#[derive(Debug, PartialEq, Eq)]
struct Binary {
    path: String,
    version: Version,
    sha256: String,
}

/// This very program.
struct Own {
    version: Version,
    sha256: String,
}

#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// What is there is used, for this reason.
    Keep(String),
    Copy(String),
}

/// Sees to it that there is a binary over there; returns how a shell there calls it.
pub(super) async fn install(ssh: &Ssh<'_>, replace: Replace) -> Result<String, String> {
    let said = ssh.run(PROBE, None).await.map_err(|why| format!("cannot see what is there: {why}"))?;
    let found = parse(&said)?;
    let own = Own { version: Version::ours(), sha256: digest(Path::new("/proc/self/exe"))? };
    match (decide(&own, &found, replace)?, &found.binary) {
        (Step::Keep(why), Some(binary)) => {
            if replace != Replace::Nothing {
                errln!("outpost: copying nothing: {why}");
            }
            Ok(quoted(&binary.path))
        }
        (Step::Keep(why) | Step::Copy(why), _) => {
            copy(ssh, &own, &why).await?;
            Ok(format!("\"$HOME/{PLACE}\""))
        }
    }
}

async fn copy(ssh: &Ssh<'_>, own: &Own, why: &str) -> Result<(), String> {
    let fail = |error: std::io::Error| format!("this program: {error}");
    let binary = File::open("/proc/self/exe").map_err(fail)?;
    let bytes = binary.metadata().map_err(fail)?.len();
    errln!(
        "outpost: copying outpost {} ({} MiB) to ~/{PLACE} there: {why}",
        own.version,
        bytes.div_ceil(1 << 20)
    );
    let script = format!("expected={}{RECEIVE}", own.sha256);
    let copied = ssh.run(&script, Some(binary)).await;
    copied.map(drop).map_err(|why| format!("cannot copy this program there: {why}"))
}

fn parse(said: &str) -> Result<Found, String> {
    let member = |name: &str| {
        let mark = format!("{MARK} {name} ");
        said.lines().find_map(|line| Some(line.strip_prefix(&mark)?.trim_end().to_owned()))
    };
    let (Some(system), Some(machine), Some(_)) = (member("system"), member("machine"), member("end")) else {
        return Err(format!(
            "the shell there does not do as it is told; it says {:?}",
            said.chars().take(SHOWN_CHARS).collect::<String>()
        ));
    };
    let binary = match (member("binary"), member("version"), member("sha256")) {
        (Some(path), Some(version), Some(sha256)) => {
            let known = version.strip_prefix("outpost ").and_then(Version::parse);
            let version = known.ok_or_else(|| {
                format!("{path:?} there is another program: it says that it is {version:?}; move it away")
            })?;
            Some(Binary { path, version, sha256 })
        }
        _ => None,
    };
    Ok(Found { system, machine, binary })
}

fn decide(own: &Own, found: &Found, replace: Replace) -> Result<Step, String> {
    let foreign = found.system != "Linux" || found.machine != std::env::consts::ARCH;
    let step = match &found.binary {
        None => Step::Copy("there is none".into()),
        Some(binary) if binary.sha256 == own.sha256 => {
            Step::Keep(format!("outpost {} is there", own.version))
        }
        Some(binary) => {
            let its = binary.version;
            match replace {
                Replace::Nothing => Step::Keep(format!("outpost {its} is there")),
                Replace::Any => Step::Copy(format!("it replaces {its}")),
                Replace::Older if its < own.version => {
                    Step::Copy(format!("it replaces {its}, which is older"))
                }
                Replace::Older if its > own.version => {
                    Step::Keep(format!("outpost {its} is there, which is newer (--force replaces it)"))
                }
                Replace::Older if foreign => Step::Keep(format!("outpost {its} is there")),
                Replace::Older => Step::Copy(format!("it replaces another build of {its}")),
            }
        }
    };
    if foreign && matches!(step, Step::Copy(_)) {
        return Err(format!(
            "that host is {:?} on {:?}, and this program is for Linux on {}: put outpost {} for it at ~/{PLACE} there",
            found.system,
            found.machine,
            std::env::consts::ARCH,
            own.version
        ));
    }
    Ok(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Own {
        Own { version: Version::parse("1.2.3").unwrap(), sha256: "aa".into() }
    }

    fn found(machine: &str, binary: Option<(&str, &str)>) -> Found {
        let binary = binary.map(|(version, sha256)| Binary {
            path: "/x/outpost".into(),
            version: Version::parse(version).unwrap(),
            sha256: sha256.into(),
        });
        Found { system: "Linux".into(), machine: machine.into(), binary }
    }

    #[test]
    fn nothing_is_replaced_that_is_newer_or_of_another_machine() {
        let here = std::env::consts::ARCH;
        let copies = |machine: &str, binary, replace| {
            decide(&own(), &found(machine, binary), replace).map(|step| matches!(step, Step::Copy(_)))
        };
        assert_eq!(copies(here, None, Replace::Nothing), Ok(true));
        assert_eq!(copies(here, Some(("1.2.3", "aa")), Replace::Any), Ok(false));
        assert_eq!(copies(here, Some(("1.2.3", "bb")), Replace::Older), Ok(true));
        assert_eq!(copies(here, Some(("1.2.3", "bb")), Replace::Nothing), Ok(false));
        assert_eq!(copies(here, Some(("1.2.2", "bb")), Replace::Older), Ok(true));
        assert_eq!(copies(here, Some(("1.10.0", "bb")), Replace::Older), Ok(false));
        assert_eq!(copies(here, Some(("1.10.0", "bb")), Replace::Any), Ok(true));
        assert_eq!(copies("other", Some(("1.2.3", "bb")), Replace::Older), Ok(false));
        let refused = copies("other", Some(("1.2.2", "bb")), Replace::Older).unwrap_err();
        assert!(refused.contains("\"other\"") && refused.contains(here), "{refused}");
    }

    #[test]
    fn only_marked_lines_of_a_shell_count() {
        let said = "Welcome!\noutpost-connect system Linux\noutpost-connect machine x86_64\n\
                    outpost-connect binary /home/me/.local/bin/outpost\noutpost-connect version outpost 1.2.3\n\
                    outpost-connect sha256 bb\nsystem other\noutpost-connect end .\n";
        let parsed = parse(said).unwrap();
        assert_eq!((parsed.machine.as_str(), parsed.binary.unwrap().sha256.as_str()), ("x86_64", "bb"));
        assert!(
            parse(&said.replace("outpost 1.2.3", "something else")).unwrap_err().contains("move it away")
        );
        assert!(parse(&said.replace("outpost-connect end .", "")).is_err());
    }
}
