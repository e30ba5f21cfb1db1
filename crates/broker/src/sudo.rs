//! sudo: finds the system's sudo, builds its arguments, and translates its refusals.

use crate::files::{self, LookupError, PinnedFile};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The only paths at which sudo is looked up.
const SUDO_PATHS: [&str; 4] = ["/usr/bin/sudo", "/bin/sudo", "/usr/local/bin/sudo", "/run/wrappers/bin/sudo"];

/// sudo drops this variable unless `--preserve-env` names it. The other allowed variables pass sudo's `env_check`.
const PRESERVED_VARIABLE: &str = "DEBIAN_FRONTEND";

const SETUID: u32 = 0o4000;

/// The system's sudo: setuid root, and only root can change it. The error is the message for the client.
pub(crate) fn find() -> Result<PinnedFile, String> {
    let Some(path) = SUDO_PATHS.iter().find(|path| Path::new(path).exists()) else {
        return Err(
            "this command needs root's rights, and there is no sudo on this host; install sudo, or run the \
                    daemon as root"
                .into(),
        );
    };
    let sudo = files::program(path, Path::new("/"), true).map_err(|error| match error {
        // Some systems install it without read permission.
        LookupError::Os(errno) => {
            format!("{path} cannot be looked at: {}", std::io::Error::from_raw_os_error(errno))
        }
        LookupError::Refused(reason) => reason,
    })?;
    let is_setuid = std::fs::metadata(&sudo.real_path)
        .is_ok_and(|metadata| metadata.mode() & SETUID != 0 && metadata.uid() == 0);
    match is_setuid {
        true => Ok(sudo),
        false => Err(format!("{path} is not setuid root, so it cannot give root's rights; reinstall sudo")),
    }
}

/// Arguments that run a command as root: the broker's options, `--`, then the program's absolute path. With `-k` sudo
/// neither uses nor stores cached credentials.
pub(crate) fn arguments(program: &Path, stage: &[String], env: &[String], askpass: bool) -> Vec<String> {
    let prompt = if askpass { "-A" } else { "-n" };
    let mut arguments: Vec<String> = ["sudo", prompt, "-k", "-H"].map(str::to_owned).into();
    if env.iter().any(|name| name == PRESERVED_VARIABLE) {
        arguments.push(format!("--preserve-env={PRESERVED_VARIABLE}"));
    }
    arguments.push("--".into());
    arguments.push(program.display().to_string());
    arguments.extend(stage.iter().skip(1).cloned());
    arguments
}

/// The message for a refusal by sudo itself: exit code 1, no stdout, and sudo's own text on stderr.
pub(crate) fn refusal(exit_code: i32, stderr: &[u8], stdout_empty: bool, askpass: bool) -> Option<String> {
    if exit_code != 1 || !stdout_empty {
        return None;
    }
    let text = String::from_utf8_lossy(stderr.get(..2048).unwrap_or(stderr));
    let has_line = |line: &str| text.lines().any(|own| own.trim_end() == line);
    let has_prefix = |line: &str| text.lines().any(|own| own.starts_with(line));
    if has_line("sudo: a password is required") {
        return Some(match askpass {
            true => "sudo wants a password and got none".into(),
            false => "sudo wants a password and there is no way to ask for one; set an askpass program, or allow the \
                      command with NOPASSWD in sudoers"
                .into(),
        });
    }
    if has_prefix("Sorry, user ") && text.contains("is not allowed to execute") {
        return Some("sudo's rules do not allow this command to this user; see sudoers".into());
    }
    if has_prefix("sudo: ") && text.contains("incorrect password attempt") {
        return Some("sudo was given a wrong password".into());
    }
    if text.contains(" is not in the sudoers file") {
        return Some("this user is not in the sudoers file".into());
    }
    has_prefix("sudo: sorry, you are not allowed to ")
        .then(|| "sudo's rules do not allow this environment to this user; see SETENV in sudoers".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_the_request_follow_the_double_dash() {
        let stage = ["apt", "--", "-u", "nobody"].map(str::to_owned);
        let arguments = arguments(Path::new("/usr/bin/apt"), &stage, &["DEBIAN_FRONTEND".into()], false);
        assert_eq!(
            arguments.join(" "),
            "sudo -n -k -H --preserve-env=DEBIAN_FRONTEND -- /usr/bin/apt -- -u nobody"
        );
    }

    #[test]
    fn only_sudos_own_messages_are_refusals() {
        assert!(refusal(1, b"sudo: a password is required\n", true, false).unwrap().contains("askpass"));
        assert!(
            refusal(1, b"Sorry, user a is not allowed to execute '/bin/x' as root on h.\n", true, false)
                .is_some()
        );
        assert_eq!(refusal(0, b"sudo: a password is required\n", true, false), None);
        assert_eq!(refusal(1, b"sudo: a password is required\n", false, false), None);
        assert_eq!(refusal(1, b"x sudo: a password is required\n", true, false), None);
    }
}
