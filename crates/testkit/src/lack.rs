//! What a test needs and this machine does not have: such a test is named in the output and in a log, never passed over.
//!
//! A check returns `Result<T, Lack>`, and the test unwraps it with [`require!`](crate::require), or, for a part of a test,
//! with [`available!`](crate::available). `OUTPOST_NO_SKIP=1`, which `.ci/run` sets, turns the lack of anything that
//! `scripts/setup-tests` installs into a failure. `OUTPOST_SKIP_LOG` names an existing file that gets one line for each
//! test that did not run; `scripts/run-tests` prints it last.

use std::fs::File;
use std::io::Write;
use std::path::Path;

/// Set to 1: a test may not be skipped for lack of something that the set-up installs.
const NO_SKIP: &str = "OUTPOST_NO_SKIP";

/// A file that gets a line `NAME: REASON` for each test that did not run.
const SKIP_LOG: &str = "OUTPOST_SKIP_LOG";

/// Why a test cannot run on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lack {
    reason: String,
    is_installable: bool,
}

impl Lack {
    /// `scripts/setup-tests` installs it: its absence is a fault of the set-up.
    pub fn of_setup(reason: impl Into<String>) -> Lack {
        Lack { reason: reason.into(), is_installable: true }
    }

    /// No installation provides it: a kernel feature, a right, a processor.
    pub fn of_host(reason: impl Into<String>) -> Lack {
        Lack { reason: reason.into(), is_installable: false }
    }
}

/// Needs root: other users, mounts, namespaces.
pub fn root() -> Result<(), Lack> {
    match outpost_sys::process::effective_uid() {
        0 => Ok(()),
        uid => Err(Lack::of_host(format!("it needs root; this is uid {uid}"))),
    }
}

/// Needs a file of a package that the set-up installs.
pub fn installed(path: &str) -> Result<(), Lack> {
    match Path::new(path).exists() {
        true => Ok(()),
        false => Err(Lack::of_setup(format!("{path} is missing; scripts/setup-tests installs it"))),
    }
}

/// Needs the kernel's process connector.
pub fn process_events() -> Result<(), Lack> {
    match outpost_sys::exits::subscribe() {
        Ok(_socket) => Ok(()),
        Err(errno) => Err(Lack::of_host(format!("the kernel reports no process events here ({errno})"))),
    }
}

/// What is lacking where `cgroup::Parent::detect` finds nothing.
pub fn no_cgroups() -> Lack {
    let uid = outpost_sys::process::effective_uid();
    Lack::of_host(format!("uid {uid} may not make control groups (version 2) here"))
}

/// Needs system call numbers of x86-64.
pub fn x86_64() -> Result<(), Lack> {
    match cfg!(target_arch = "x86_64") {
        true => Ok(()),
        false => Err(Lack::of_host("it uses system call numbers of x86-64")),
    }
}

/// Reports that the test `name` did not run; panics where that is not allowed.
pub fn report_lack(name: &str, lack: &Lack) {
    let is_strict = std::env::var_os(NO_SKIP).is_some_and(|value| value == "1");
    let log = std::env::var_os(SKIP_LOG).filter(|path| !path.is_empty());
    report(name, lack, is_strict, log.as_deref().map(Path::new));
}

fn report(name: &str, lack: &Lack, is_strict: bool, log: Option<&Path>) {
    let reason = &lack.reason;
    assert!(!(is_strict && lack.is_installable), "{NO_SKIP} is set and {name} cannot run: {reason}");
    eprintln!("SKIPPED {name}: {reason}");
    if let Some(path) = log {
        // Not created here: in /tmp the kernel refuses O_CREAT on a file of another user (fs.protected_regular), and
        // some tests run as another user.
        let appended = File::options().append(true).open(path);
        // One write, so that lines of concurrent tests do not mix.
        let written = appended.and_then(|mut file| file.write_all(format!("{name}: {reason}\n").as_bytes()));
        assert!(written.is_ok(), "{SKIP_LOG}={}: {written:?}", path.display());
    }
}

/// The path of the function that `marker`, a function item within it, was declared in: `binary::module::test`.
pub fn enclosing_function<T>(_marker: T) -> String {
    let path = std::any::type_name::<T>();
    let path = path.rsplit_once("::").map_or(path, |(parent, _marker)| parent);
    // An async test is a closure in a function.
    path.replace("::{{closure}}", "")
}

/// The value of a check that succeeded. Otherwise reports the lack under the name of the calling test and returns from it.
#[macro_export]
macro_rules! require {
    ($check:expr) => {
        match $check {
            Ok(value) => value,
            Err(lack) => {
                fn marker() {}
                return $crate::report_lack(&$crate::enclosing_function(marker), &lack);
            }
        }
    };
}

/// The value of a check that succeeded. Otherwise reports that the calling test ran only in part, and is `None`.
#[macro_export]
macro_rules! available {
    ($check:expr) => {
        match $check {
            Ok(value) => Some(value),
            Err(lack) => {
                fn marker() {}
                let name = $crate::enclosing_function(marker) + " (in part)";
                $crate::report_lack(&name, &lack);
                None
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logged(lack: &Lack, is_strict: bool) -> std::thread::Result<String> {
        let log = tempfile::NamedTempFile::new().unwrap();
        std::panic::catch_unwind(|| report("a::test", lack, is_strict, Some(log.path())))?;
        Ok(std::fs::read_to_string(log.path()).unwrap())
    }

    #[test]
    fn a_test_that_the_set_up_should_have_made_possible_fails_under_no_skip() {
        let lack = Lack::of_setup("no sudo");
        assert_eq!(logged(&lack, false).unwrap(), "a::test: no sudo\n");
        assert!(logged(&lack, true).is_err());
    }

    #[test]
    fn a_test_that_the_host_cannot_run_is_named_also_under_no_skip() {
        let lack = Lack::of_host("no Landlock");
        for is_strict in [false, true] {
            assert_eq!(logged(&lack, is_strict).unwrap(), "a::test: no Landlock\n");
        }
    }

    #[test]
    fn a_log_that_cannot_be_written_is_no_silent_skip() {
        let log = Path::new("/nowhere/log");
        let lack = Lack::of_host("x");
        assert!(std::panic::catch_unwind(|| report("a::test", &lack, false, Some(log))).is_err());
    }

    #[tokio::test]
    async fn the_calling_test_is_named_also_where_it_is_async() {
        fn marker() {}
        let expected = "outpost_testkit::lack::tests::the_calling_test_is_named_also_where_it_is_async";
        assert_eq!(enclosing_function(marker), expected);
        let within = || {
            fn marker() {}
            enclosing_function(marker)
        };
        assert_eq!(within(), expected);
    }
}
