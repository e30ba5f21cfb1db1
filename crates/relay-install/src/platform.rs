//! The host's platform in Go's terms. The client selects the build of the CLI by it.

use outpost_sys::bounded_command::{self, Limits};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

pub(super) const OS: &str = "linux";

const LDD_TIMEOUT: Duration = Duration::from_secs(5);
const LDD_OUTPUT_BYTES_MAX: usize = 64 * 1024;

/// The host's C library, which can differ from the one of this program.
pub(super) fn libc() -> &'static str {
    let ldd = std::env::var_os("PATH").and_then(|path| find_executable("ldd", std::env::split_paths(&path)));
    detect_libc(ldd.as_deref(), Path::new("/lib"), LDD_TIMEOUT)
}

/// The first executable file of this name. Skips relative directories, also the empty one, which means the working directory.
fn find_executable(name: &str, dirs: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    dirs.filter(|dir| dir.is_absolute()).map(|dir| dir.join(name)).find(|path| {
        path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    })
}

fn detect_libc(ldd: Option<&Path>, lib: &Path, timeout: Duration) -> &'static str {
    // musl's ldd prints its name to stderr and exits with 1.
    let limits = Limits { timeout, output_bytes_max: LDD_OUTPUT_BYTES_MAX, merge_stderr: true };
    let run = |ldd: &Path| bounded_command::run(Command::new(ldd).arg("--version"), &limits, |_| false).ok();
    let is_musl = match ldd.and_then(run) {
        Some(output) if output.stdout.to_ascii_lowercase().windows(4).any(|word| word == b"musl") => true,
        Some(output) if !output.stdout.is_empty() && !output.killed => false,
        _ => has_musl_loader(lib),
    };
    if is_musl { "musl" } else { "glibc" }
}

/// Whether the directory contains an `ld-musl-*.so.*`.
fn has_musl_loader(lib: &Path) -> bool {
    let is_loader = |name: &str| name.strip_prefix("ld-musl-").is_some_and(|rest| rest.contains(".so."));
    std::fs::read_dir(lib)
        .is_ok_and(|entries| entries.flatten().any(|entry| entry.file_name().to_str().is_some_and(is_loader)))
}

#[cfg(test)]
mod tests {
    use super::super::fixture::script;
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn musl_is_detected_although_its_ldd_fails() {
        let dir = tempfile::tempdir().unwrap();
        let ldd = script(dir.path(), "ldd", "echo 'MUSL libc (x86_64)' >&2; exit 1");
        assert_eq!(detect_libc(Some(&ldd), dir.path(), LONG), "musl");
        let ldd = script(dir.path(), "ldd2", "echo 'ldd (GNU libc) 2.39'");
        std::fs::write(dir.path().join("ld-musl-x86_64.so.1"), "").unwrap();
        assert_eq!(
            detect_libc(Some(&ldd), dir.path(), LONG),
            "glibc",
            "ldd takes precedence over the loader"
        );
    }

    #[test]
    fn without_output_of_ldd_the_loader_decides() {
        let dir = tempfile::tempdir().unwrap();
        let silent = script(dir.path(), "ldd", "exit 1");
        let missing = dir.path().join("missing");
        let hanging = script(dir.path(), "hanging", "echo something; exec sleep 1000");
        let all = [Some(silent.as_path()), Some(missing.as_path()), None, Some(hanging.as_path())];
        let timeout =
            |ldd: Option<&Path>| if ldd == Some(&hanging) { Duration::from_millis(300) } else { LONG };
        for ldd in all {
            assert_eq!(detect_libc(ldd, dir.path(), timeout(ldd)), "glibc", "{ldd:?}");
        }
        std::fs::write(dir.path().join("ld-musl-aarch64.so.1"), "").unwrap();
        for ldd in all {
            assert_eq!(detect_libc(ldd, dir.path(), timeout(ldd)), "musl", "{ldd:?}");
        }
    }

    #[test]
    fn only_an_executable_file_in_an_absolute_directory_is_found() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("plain"), "").unwrap();
        let program = script(dir.path(), "program", "");
        let dirs = || [PathBuf::new(), PathBuf::from("."), dir.path().to_owned()].into_iter();
        assert_eq!(find_executable("plain", dirs()), None);
        assert_eq!(find_executable("program", dirs()), Some(program));
    }
}
