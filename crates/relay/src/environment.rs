//! What children inherit, and where their programs are found: the daemon's environment with the login shell's PATH.

use crate::go;
use crate::helper::{self, Limits};
use crate::wire::Failure;
use outpost_engine::Spawn;
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

/// Stands before the PATH in what the login shell prints, among whatever its start files print.
const SENTINEL: &str = "___CLAUDE_SSH_PATH_EXTRACT___";
/// How long the login shell may take. The first process waits for it.
const SHELL_PATIENCE: Duration = Duration::from_secs(4);
/// How long after the start it is asked at the latest.
const SHELL_DELAY: Duration = Duration::from_millis(100);
/// How long after it could not be started for lack of descriptors, memory or processes it is asked again.
const SHELL_AGAIN_AFTER: Duration = Duration::from_secs(5);
/// What start files may print before we lose interest.
const SHELL_OUTPUT_MAX: usize = 1024 * 1024;

pub(crate) struct Environment {
    base: Vec<(OsString, OsString)>,
    /// None until the login shell has been asked.
    login: watch::Sender<Option<Login>>,
    /// A process waits for it.
    needed: Notify,
}

/// What is known once the login shell has been asked.
#[derive(Clone)]
struct Login {
    /// Its PATH, if it gave one.
    path: Option<OsString>,
    /// What processes are given that ask for nothing of their own.
    environment: outpost_engine::Environment,
}

impl Environment {
    pub(crate) fn new(base: Vec<(OsString, OsString)>) -> Environment {
        Environment { base, login: watch::Sender::new(None), needed: Notify::new() }
    }

    /// Asks the login shell when the first process needs its answer, or a moment after the start: whoever waits for the
    /// daemon to answer shall not wait for start files too.
    pub(crate) async fn extract_login_path(&self) {
        tokio::select! {
            () = tokio::time::sleep(SHELL_DELAY) => {}
            () = self.needed.notified() => {}
        }
        loop {
            let shell = login_shell(self.variable("SHELL"));
            let base = self.base.clone();
            let asked = tokio::task::spawn_blocking(move || ask_shell(&shell, &base)).await;
            let asked = asked.unwrap_or(Ok(None));
            let passing =
                asked.as_ref().is_err_and(|error| Errno::from_io_error(error).is_some_and(is_exhaustion));
            let path = asked.ok().flatten();
            match &path {
                Some(path) => tracing::info!("[shellenv] Extracted shell PATH ({} chars)", path.len()),
                None => tracing::warn!("[shellenv] PATH sentinel not found in shell output"),
            }
            let environment = self.merged(path.as_ref(), Vec::new());
            self.login.send_replace(Some(Login { path, environment }));
            if !passing {
                return;
            }
            // Processes start with the daemon's own PATH until the shell can be started.
            tokio::time::sleep(SHELL_AGAIN_AFTER).await;
        }
    }

    fn variable(&self, name: &str) -> Option<&OsStr> {
        self.base.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_os_str())
    }

    /// What our own helpers run with: the daemon's environment, with the login shell's PATH once that is known.
    pub(crate) fn for_helpers(&self) -> Vec<(OsString, OsString)> {
        let login_path = self.login.borrow().as_ref().and_then(|login| login.path.clone());
        let path_of = |name: &OsString| login_path.clone().filter(|_| name == "PATH");
        self.base
            .iter()
            .map(|(name, value)| (name.clone(), path_of(name).unwrap_or_else(|| value.clone())))
            .collect()
    }

    /// The daemon's environment with the login shell's PATH, and with what a process has of its own.
    fn merged(
        &self,
        login_path: Option<&OsString>,
        own: Vec<(OsString, OsString)>,
    ) -> outpost_engine::Environment {
        let with_path = login_path.map(|path| (OsString::from("PATH"), path.clone()));
        let changed: BTreeMap<OsString, OsString> = with_path.into_iter().chain(own).collect();
        let kept = self.base.iter().filter(|(name, _)| !changed.contains_key(name)).cloned();
        kept.chain(changed.clone()).collect()
    }

    /// Gives a process its environment and finds its program.
    pub(crate) async fn prepare(
        &self,
        spawn: &mut Spawn,
        own: Vec<(OsString, OsString)>,
    ) -> Result<(), Failure> {
        self.needed.notify_one();
        let mut asked = self.login.subscribe();
        let login = asked.wait_for(Option::is_some).await.ok().and_then(|login| login.clone());
        let Some(Login { path, environment }) = login else {
            return Err(Failure::internal("the relay is stopping"));
        };
        spawn.environment = match own.is_empty() {
            true => environment,
            false => self.merged(path.as_ref(), own),
        };
        if !spawn.program.as_os_str().as_bytes().contains(&b'/') {
            let name = spawn.program.clone();
            let paths =
                path.into_iter().chain(self.variable("PATH").map(OsStr::to_owned)).collect::<Vec<_>>();
            let found = tokio::task::spawn_blocking(move || look_up(&name, &paths)).await.ok().flatten();
            spawn.program = found.ok_or_else(|| {
                let name = go::quote(&spawn.program.to_string_lossy());
                Failure::internal(format!("exec: {name}: executable file not found in $PATH"))
            })?;
        }
        if spawn.environment.has_zero() {
            return Err(Failure::internal("exec: environment variable contains NUL"));
        }
        Ok(())
    }
}

/// "command without "/" is looked up in the DAEMON's PATH, not the request's env PATH": the login shell's, then ours.
fn look_up(name: &Path, paths: &[OsString]) -> Option<PathBuf> {
    let is_program = |path: &PathBuf| {
        path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    let dirs = paths.iter().flat_map(std::env::split_paths).filter(|dir| dir.is_absolute());
    dirs.map(|dir| dir.join(name)).find(is_program)
}

/// $SHELL if it can be executed, else the first of the usual ones.
fn login_shell(named: Option<&OsStr>) -> PathBuf {
    let usable = |path: &PathBuf| {
        path.is_absolute()
            && path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    let usual = ["/bin/zsh", "/bin/bash", "/bin/sh"].map(PathBuf::from);
    named.map(PathBuf::from).into_iter().chain(usual).find(usable).unwrap_or_else(|| "/bin/sh".into())
}

/// The inner sh prints, so that it does not matter which language the login shell speaks.
fn ask_shell(shell: &Path, base: &[(OsString, OsString)]) -> io::Result<Option<OsString>> {
    let script = format!("/bin/sh -c 'printf \"%s%s\\n\" \"{SENTINEL}\" \"$PATH\"'");
    let mut command = Command::new(shell);
    command
        .args(["-l", "-i", "-c", &script])
        .env_clear()
        .envs(base.iter().map(|(name, value)| (name, value)))
        .env("DISABLE_AUTO_UPDATE", "true")
        .env("ZSH_DISABLE_COMPFIX", "true");
    let limits = Limits { patience: SHELL_PATIENCE, output_bytes: SHELL_OUTPUT_MAX, together: true };
    let asked = helper::run(&mut command, &limits, |text| path_in(text).is_some())?;
    Ok(path_in(&asked.stdout))
}

/// The rest of the line behind the sentinel, once the line is whole.
fn path_in(text: &[u8]) -> Option<OsString> {
    let begin = memchr::memmem::find(text, SENTINEL.as_bytes())? + SENTINEL.len();
    let rest = text.get(begin..)?;
    let line = rest.get(..memchr::memchr(b'\n', rest)?)?.trim_ascii();
    (!line.is_empty()).then(|| OsString::from_vec(line.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_is_found_among_what_start_files_print() {
        let text = format!("bash: no job control\nwelcome\n{SENTINEL}/opt/bin:/usr/bin \r\nbye");
        assert_eq!(path_in(text.as_bytes()), Some("/opt/bin:/usr/bin".into()));
        assert_eq!(path_in(format!("{SENTINEL}/opt").as_bytes()), None, "the line is not whole yet");
        assert_eq!(path_in(format!("{SENTINEL}\n").as_bytes()), None);
    }

    #[test]
    fn a_login_shell_is_asked_with_its_start_files() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(".profile"), "echo noise\nPATH=/from/profile:$PATH\nexport PATH\n")
            .unwrap();
        let base = vec![("HOME".into(), dir.path().into()), ("PATH".into(), "/usr/bin:/bin".into())];
        let path = ask_shell(Path::new("/bin/sh"), &base).unwrap().unwrap();
        assert!(path.to_string_lossy().contains("/from/profile"), "{path:?}");
    }

    #[test]
    fn a_shell_that_says_nothing_is_none() {
        assert_eq!(ask_shell(Path::new("/bin/true"), &[]).unwrap(), None);
        let missing = ask_shell(Path::new("/no/such/shell"), &[]).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn an_unusable_shell_is_not_asked() {
        assert_ne!(login_shell(Some(OsStr::new("/no/such/shell"))), Path::new("/no/such/shell"));
        assert_ne!(login_shell(Some(OsStr::new("/etc/passwd"))), Path::new("/etc/passwd"));
        assert_eq!(login_shell(Some(OsStr::new("/bin/sh"))), Path::new("/bin/sh"));
    }
}
