//! Tests with the real sudo: a daemon that runs as a temporary user.

mod serial;

use crate::fixture::{Fixture, FixtureOptions};
use outpost_testkit::Lack;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Prefix of the temporary user names. The test's pid and a number follow.
const PREFIX: &str = "outpost-t-";
const SUDOERS: &str = "/etc/sudoers.d";
pub(crate) const PASSWORD: &str = "corr3ct-h0rse";

/// A temporary user with a password and a sudoers entry. Dropping it removes both.
pub(crate) struct User {
    name: String,
    pub(crate) uid: u32,
    home: TempDir,
}

/// The requirement of root and of the system's sudo.
pub(crate) fn sudo() -> Result<(), Lack> {
    outpost_testkit::root()?;
    outpost_testkit::installed("/usr/bin/sudo")
}

impl User {
    /// `rule` follows the user's name in sudoers. Empty: no entry.
    pub(crate) fn new(rule: &str) -> User {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        remove_leftovers();
        let name = format!("{PREFIX}{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let home = tempfile::Builder::new().prefix("outpost-home-").tempdir().unwrap();
        retry_locked(&["useradd", "-M", "-d", home.path().to_str().unwrap(), "-s", "/bin/sh", &name]);
        // From here on, `Drop` removes the user on every path.
        let mut user = User { name, uid: 0, home };
        let id = Command::new("id").args(["-u", &user.name]).output().unwrap();
        user.uid = String::from_utf8(id.stdout).unwrap().trim().parse().unwrap();
        assert!(user.uid >= 1000, "{}", user.uid);
        std::os::unix::fs::chown(user.home.path(), Some(user.uid), Some(user.uid)).unwrap();
        let mut chpasswd = Command::new("chpasswd").stdin(Stdio::piped()).spawn().unwrap();
        let line = format!("{}:{PASSWORD}\n", user.name);
        chpasswd.stdin.take().unwrap().write_all(line.as_bytes()).unwrap();
        assert!(chpasswd.wait().unwrap().success());
        if !rule.is_empty() {
            user.allow(rule);
        }
        user
    }

    fn allow(&self, rule: &str) {
        // sudo ignores file names with a dot, so it never reads a partial file.
        let new = self.sudoers().with_extension("new");
        std::fs::write(&new, format!("{} {rule}\n", self.name)).unwrap();
        std::fs::set_permissions(&new, PermissionsExt::from_mode(0o440)).unwrap();
        let checked = Command::new("visudo").args(["-c", "-f"]).arg(&new).output().unwrap();
        if !checked.status.success() {
            let _missing = std::fs::remove_file(&new);
            panic!("{rule}: {checked:?}");
        }
        std::fs::rename(new, self.sudoers()).unwrap();
    }

    fn sudoers(&self) -> PathBuf {
        Path::new(SUDOERS).join(&self.name)
    }

    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    /// Runs a program as this user.
    pub(crate) fn run(&self, argv: &[&str]) -> Output {
        let ids = [format!("--reuid={}", self.uid), format!("--regid={}", self.uid), "--clear-groups".into()];
        let mut command = Command::new("setpriv");
        command.args(ids).args(argv).env_clear().env("PATH", "/usr/bin:/bin").env("HOME", self.home.path());
        command.stdin(Stdio::null()).output().unwrap()
    }

    /// A daemon of this user with this `[broker]` configuration.
    pub(crate) fn fixture(&self, config: &str) -> Fixture {
        self.fixture_with(config, FixtureOptions::default())
    }

    pub(crate) fn fixture_with(&self, config: &str, options: FixtureOptions) -> Fixture {
        let config = format!("[broker]\n{config}\n");
        Fixture::with(FixtureOptions { config: Some(config), uid: Some(self.uid), ..options })
    }

    /// An askpass program that logs its prompt and runs `script`.
    pub(crate) fn askpass(&self, script: &str) -> Askpass {
        let [program, asked] = ["askpass", "asked"].map(|name| self.home().join(name));
        crate::kit::script(&program, &format!("echo \"$1\" >>{}\n{script}", asked.display()));
        Askpass { program, asked }
    }
}

pub(crate) struct Askpass {
    program: PathBuf,
    asked: PathBuf,
}

impl Askpass {
    pub(crate) fn config(&self) -> String {
        format!("askpass = \"{}\"", self.program.display())
    }

    /// The logged prompts.
    pub(crate) fn asked(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.asked).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

impl Drop for User {
    fn drop(&mut self) {
        remove(&self.name);
    }
}

fn remove(name: &str) {
    let _missing = std::fs::remove_file(Path::new(SUDOERS).join(name));
    // `-f`: also if the user still has processes.
    retry_locked(&["userdel", "-f", name]);
}

/// Removes the users of killed tests.
fn remove_leftovers() {
    let users = std::fs::read_to_string("/etc/passwd").unwrap();
    let names =
        users.lines().filter_map(|line| line.split(':').next()).filter(|name| name.starts_with(PREFIX));
    for name in names {
        let pid = name.trim_start_matches(PREFIX).split('-').next().unwrap_or_default();
        if !Path::new("/proc").join(pid).exists() {
            remove(name);
        }
    }
}

/// Runs a program that changes the user database. Retries while another program holds its lock.
fn retry_locked(argv: &[&str]) {
    let begun = Instant::now();
    loop {
        let (program, arguments) = argv.split_first().unwrap();
        let output = Command::new(program).args(arguments).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() || stderr.contains("does not exist") {
            return;
        }
        let is_locked = stderr.contains("cannot lock") || stderr.contains("try again");
        assert!(is_locked && begun.elapsed() < Duration::from_secs(30), "{argv:?}: {stderr}");
        outpost_testkit::pause();
    }
}
