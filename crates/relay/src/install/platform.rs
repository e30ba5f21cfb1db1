//! What kind of host this is, in the original's names: the client chooses the build of the CLI by them.

use crate::helper::{self, Limits};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

pub(super) const OS: &str = "linux";

const LDD_LIMIT: Duration = Duration::from_secs(5);
const LDD_OUTPUT_BYTES: usize = 64 * 1024;

/// The host's C library, whatever ours is.
pub(super) fn libc() -> &'static str {
    let ldd = std::env::var_os("PATH").and_then(|path| find("ldd", std::env::split_paths(&path)));
    libc_of(ldd.as_deref(), Path::new("/lib"), LDD_LIMIT)
}

/// The first executable file of this name. An empty entry of the path would mean the working directory and is left out.
fn find(name: &str, dirs: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    dirs.filter(|dir| dir.is_absolute()).map(|dir| dir.join(name)).find(|path| {
        path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    })
}

fn libc_of(ldd: Option<&Path>, lib: &Path, limit: Duration) -> &'static str {
    // musl's ldd says what it is on standard error, and exits with 1.
    let limits = Limits { patience: limit, output_bytes: LDD_OUTPUT_BYTES, together: true };
    let run = |ldd: &Path| helper::run(Command::new(ldd).arg("--version"), &limits, |_| false).ok();
    let is_musl = match ldd.and_then(run) {
        Some(said) if said.stdout.to_ascii_lowercase().windows(4).any(|word| word == b"musl") => true,
        Some(said) if !said.stdout.is_empty() && !said.stopped => false,
        _ => has_musl_loader(lib),
    };
    if is_musl { "musl" } else { "glibc" }
}

/// Whether some `ld-musl-*.so.*` is there.
fn has_musl_loader(lib: &Path) -> bool {
    let is_loader = |name: &str| name.strip_prefix("ld-musl-").is_some_and(|rest| rest.contains(".so."));
    std::fs::read_dir(lib)
        .is_ok_and(|entries| entries.flatten().any(|entry| entry.file_name().to_str().is_some_and(is_loader)))
}

#[cfg(test)]
mod tests {
    use super::super::testkit::script;
    use super::*;

    const PATIENT: Duration = Duration::from_secs(60);

    #[test]
    fn musl_is_seen_although_its_ldd_fails_and_complains() {
        let dir = tempfile::tempdir().unwrap();
        let ldd = script(dir.path(), "ldd", "echo 'MUSL libc (x86_64)' >&2; exit 1");
        assert_eq!(libc_of(Some(&ldd), dir.path(), PATIENT), "musl");
        let ldd = script(dir.path(), "ldd2", "echo 'ldd (GNU libc) 2.39'");
        std::fs::write(dir.path().join("ld-musl-x86_64.so.1"), "").unwrap();
        assert_eq!(libc_of(Some(&ldd), dir.path(), PATIENT), "glibc", "what ldd says wins");
    }

    #[test]
    fn without_a_word_from_ldd_the_loader_tells() {
        let dir = tempfile::tempdir().unwrap();
        let silent = script(dir.path(), "ldd", "exit 1");
        let missing = dir.path().join("missing");
        let hanging = script(dir.path(), "hanging", "echo something; exec sleep 1000");
        let all = [Some(silent.as_path()), Some(missing.as_path()), None, Some(hanging.as_path())];
        let limit =
            |ldd: Option<&Path>| if ldd == Some(&hanging) { Duration::from_millis(300) } else { PATIENT };
        for ldd in all {
            assert_eq!(libc_of(ldd, dir.path(), limit(ldd)), "glibc", "{ldd:?}");
        }
        std::fs::write(dir.path().join("ld-musl-aarch64.so.1"), "").unwrap();
        for ldd in all {
            assert_eq!(libc_of(ldd, dir.path(), limit(ldd)), "musl", "{ldd:?}");
        }
    }

    #[test]
    fn only_an_executable_file_in_an_absolute_directory_is_found() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("plain"), "").unwrap();
        let program = script(dir.path(), "program", "");
        let dirs = || [PathBuf::new(), PathBuf::from("."), dir.path().to_owned()].into_iter();
        assert_eq!(find("plain", dirs()), None);
        assert_eq!(find("program", dirs()), Some(program));
    }
}
