//! The environment of children: the daemon's, with PATH from the login shell. Also resolves program names by that PATH.

use crate::go_compat;
use crate::wire::Failure;
use outpost_engine::Spawn;
use outpost_sys::bounded_command::{self, Limits};
use outpost_sys::{Errno, is_exhaustion};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// Marks PATH in the shell's output, which also contains the output of its startup files.
const SENTINEL: &str = "___CLAUDE_SSH_PATH_EXTRACT___";
/// The first spawn waits this long for the login shell at most.
const SHELL_TIMEOUT: Duration = Duration::from_secs(4);
/// The shell starts when the first process is spawned, or after this delay.
const SHELL_DELAY: Duration = Duration::from_millis(100);
/// Retry interval after the shell could not be started for lack of descriptors, memory or processes.
const SHELL_RETRY_INTERVAL: Duration = Duration::from_secs(5);
const SHELL_OUTPUT_BYTES_MAX: usize = 1024 * 1024;

pub(crate) struct Environment {
    base: Vec<(OsString, OsString)>,
    /// `None` until the login shell has run.
    login: watch::Sender<Option<LoginEnvironment>>,
    /// Notified when a spawn waits for `login`.
    needed: Notify,
}

/// The result of running the login shell.
#[derive(Clone)]
struct LoginEnvironment {
    /// `None` if the shell did not print a PATH.
    path: Option<OsString>,
    /// The environment of spawns without an `env`, shared by them.
    shared: outpost_engine::Environment,
}

impl Environment {
    pub(crate) fn new(base: Vec<(OsString, OsString)>) -> Environment {
        Environment { base, login: watch::Sender::new(None), needed: Notify::new() }
    }

    /// Runs the login shell when the first spawn needs it, or after a short delay. Its startup files thus do not delay the
    /// daemon's first replies.
    pub(crate) async fn extract_login_path(&self) {
        tokio::select! {
            () = tokio::time::sleep(SHELL_DELAY) => {}
            () = self.needed.notified() => {}
        }
        loop {
            let shell = login_shell(self.variable("SHELL"));
            let base = self.base.clone();
            let extracted = tokio::task::spawn_blocking(move || run_login_shell(&shell, &base)).await;
            let extracted = extracted.unwrap_or(Ok(None));
            let is_transient =
                extracted.as_ref().is_err_and(|error| Errno::from_io_error(error).is_some_and(is_exhaustion));
            let path = extracted.ok().flatten();
            match &path {
                Some(path) => tracing::info!("[shellenv] Extracted shell PATH ({} chars)", path.len()),
                None => tracing::warn!("[shellenv] PATH sentinel not found in shell output"),
            }
            let shared = self.merge(path.as_ref(), Vec::new());
            self.login.send_replace(Some(LoginEnvironment { path, shared }));
            if !is_transient {
                return;
            }
            // Spawns use the daemon's own PATH until a retry succeeds.
            tokio::time::sleep(SHELL_RETRY_INTERVAL).await;
        }
    }

    fn variable(&self, name: &str) -> Option<&OsStr> {
        self.base.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_os_str())
    }

    /// The environment of commands that the daemon itself runs. Does not wait for the login shell.
    pub(crate) fn for_commands(&self) -> Vec<(OsString, OsString)> {
        let login_path = self.login.borrow().as_ref().and_then(|login| login.path.clone());
        let path_of = |name: &OsString| login_path.clone().filter(|_| name == "PATH");
        self.base
            .iter()
            .map(|(name, value)| (name.clone(), path_of(name).unwrap_or_else(|| value.clone())))
            .collect()
    }

    /// The daemon's environment, overridden by the login shell's PATH, overridden by a request's `env`.
    fn merge(
        &self,
        login_path: Option<&OsString>,
        overrides: Vec<(OsString, OsString)>,
    ) -> outpost_engine::Environment {
        let with_path = login_path.map(|path| (OsString::from("PATH"), path.clone()));
        let changed: BTreeMap<OsString, OsString> = with_path.into_iter().chain(overrides).collect();
        let kept = self.base.iter().filter(|(name, _)| !changed.contains_key(name)).cloned();
        kept.chain(changed.clone()).collect()
    }

    /// Sets the environment of a spawn and resolves its program. Waits for the login shell.
    pub(crate) async fn prepare(
        &self,
        spawn: &mut Spawn,
        overrides: Vec<(OsString, OsString)>,
    ) -> Result<(), Failure> {
        self.needed.notify_one();
        let mut login = self.login.subscribe();
        let login = login.wait_for(Option::is_some).await.ok().and_then(|login| login.clone());
        let Some(LoginEnvironment { path, shared }) = login else {
            return Err(Failure::internal("the relay is stopping"));
        };
        spawn.environment = match overrides.is_empty() {
            true => shared,
            false => self.merge(path.as_ref(), overrides),
        };
        if !spawn.program.as_os_str().as_bytes().contains(&b'/') {
            let name = spawn.program.clone();
            let paths =
                path.into_iter().chain(self.variable("PATH").map(OsStr::to_owned)).collect::<Vec<_>>();
            let found =
                tokio::task::spawn_blocking(move || find_executable(&name, &paths)).await.ok().flatten();
            spawn.program = found.ok_or_else(|| {
                let name = go_compat::quote(&spawn.program.to_string_lossy());
                Failure::internal(format!("exec: {name}: executable file not found in $PATH"))
            })?;
        }
        if spawn.environment.has_zero() {
            return Err(Failure::internal("exec: environment variable contains NUL"));
        }
        Ok(())
    }
}

/// "command without "/" is looked up in the DAEMON's PATH, not the request's env PATH". `paths` has the login shell's PATH
/// and then the daemon's own.
fn find_executable(name: &Path, paths: &[OsString]) -> Option<PathBuf> {
    let dirs = paths.iter().flat_map(std::env::split_paths).filter(|dir| dir.is_absolute());
    dirs.map(|dir| dir.join(name)).find(|path| is_executable(path))
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// $SHELL if it is executable, else the first usable default.
fn login_shell(from_env: Option<&OsStr>) -> PathBuf {
    let defaults = ["/bin/zsh", "/bin/bash", "/bin/sh"].map(PathBuf::from);
    let mut candidates = from_env.map(PathBuf::from).into_iter().chain(defaults);
    candidates.find(|path| path.is_absolute() && is_executable(path)).unwrap_or_else(|| "/bin/sh".into())
}

/// The inner sh prints PATH, so the syntax of the login shell does not matter.
fn run_login_shell(shell: &Path, base: &[(OsString, OsString)]) -> io::Result<Option<OsString>> {
    let script = format!("/bin/sh -c 'printf \"%s%s\\n\" \"{SENTINEL}\" \"$PATH\"'");
    let mut command = Command::new(shell);
    command
        .args(["-l", "-i", "-c", &script])
        .env_clear()
        .envs(base.iter().map(|(name, value)| (name, value)))
        .env("DISABLE_AUTO_UPDATE", "true")
        .env("ZSH_DISABLE_COMPFIX", "true");
    let limits =
        Limits { timeout: SHELL_TIMEOUT, output_bytes_max: SHELL_OUTPUT_BYTES_MAX, merge_stderr: true };
    let output = bounded_command::run(&mut command, &limits, |text| parse_path(text).is_some())?;
    Ok(parse_path(&output.stdout))
}

/// The rest of the line after the sentinel; `None` while the line is incomplete.
fn parse_path(text: &[u8]) -> Option<OsString> {
    let begin = memchr::memmem::find(text, SENTINEL.as_bytes())? + SENTINEL.len();
    let rest = text.get(begin..)?;
    let line = rest.get(..memchr::memchr(b'\n', rest)?)?.trim_ascii();
    (!line.is_empty()).then(|| OsString::from_vec(line.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_is_found_in_the_output_of_startup_files() {
        let text = format!("bash: no job control\nwelcome\n{SENTINEL}/opt/bin:/usr/bin \r\nbye");
        assert_eq!(parse_path(text.as_bytes()), Some("/opt/bin:/usr/bin".into()));
        assert_eq!(parse_path(format!("{SENTINEL}/opt").as_bytes()), None, "incomplete line");
        assert_eq!(parse_path(format!("{SENTINEL}\n").as_bytes()), None);
    }

    #[test]
    fn a_login_shell_runs_its_startup_files() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(".profile"), "echo noise\nPATH=/from/profile:$PATH\nexport PATH\n")
            .unwrap();
        let base = vec![("HOME".into(), dir.path().into()), ("PATH".into(), "/usr/bin:/bin".into())];
        let path = run_login_shell(Path::new("/bin/sh"), &base).unwrap().unwrap();
        assert!(path.to_string_lossy().contains("/from/profile"), "{path:?}");
    }

    #[test]
    fn a_shell_without_output_yields_no_path() {
        assert_eq!(run_login_shell(Path::new("/bin/true"), &[]).unwrap(), None);
        let missing = run_login_shell(Path::new("/no/such/shell"), &[]).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn an_unusable_shell_is_skipped() {
        assert_ne!(login_shell(Some(OsStr::new("/no/such/shell"))), Path::new("/no/such/shell"));
        assert_ne!(login_shell(Some(OsStr::new("/etc/passwd"))), Path::new("/etc/passwd"));
        assert_eq!(login_shell(Some(OsStr::new("/bin/sh"))), Path::new("/bin/sh"));
    }
}
