//! Root's rights by way of sudo: which sudo, how it is called, and what its refusals mean.

use crate::files::{self, Pinned, Unusable};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Where a system has it; never anywhere else.
const PLACES: [&str; 4] = ["/usr/bin/sudo", "/bin/sudo", "/usr/local/bin/sudo", "/run/wrappers/bin/sudo"];

/// A variable that sudo drops unless it is told otherwise. Others that may be set pass its own checks.
const KEPT_BY_NAME: &str = "DEBIAN_FRONTEND";

const SETUID: u32 = 0o4000;

/// The system's sudo, owned by root and by nobody else, or what is wrong with it.
pub(crate) fn find() -> Result<Pinned, String> {
    let Some(place) = PLACES.iter().find(|place| Path::new(place).exists()) else {
        return Err("this command needs root's rights, and there is no sudo on this host; install sudo, or run the \
                    daemon as root"
            .into());
    };
    let sudo = files::program(place, Path::new("/"), true).map_err(|unusable| match unusable {
        // Some systems let nobody read it.
        Unusable::Os(errno) => {
            format!("{place} cannot be looked at: {}", std::io::Error::from_raw_os_error(errno))
        }
        Unusable::Refused(reason) => reason,
    })?;
    let is_setuid = std::fs::metadata(&sudo.path).is_ok_and(|of| of.mode() & SETUID != 0 && of.uid() == 0);
    match is_setuid {
        true => Ok(sudo),
        false => Err(format!("{place} is not setuid root, so it cannot give root's rights; reinstall sudo")),
    }
}

/// Arguments that run a command as root: everything of ours before `--`, an absolute path after it. Credentials that
/// somebody has left are neither used (`-k`) nor left.
pub(crate) fn arguments(program: &Path, stage: &[String], env: &[String], askpass: bool) -> Vec<String> {
    let how = if askpass { "-A" } else { "-n" };
    let mut arguments: Vec<String> = ["sudo", how, "-k", "-H"].map(str::to_owned).into();
    if env.iter().any(|name| name == KEPT_BY_NAME) {
        arguments.push(format!("--preserve-env={KEPT_BY_NAME}"));
    }
    arguments.push("--".into());
    arguments.push(program.display().to_string());
    arguments.extend(stage.iter().skip(1).cloned());
    arguments
}

/// What sudo's own refusal means, if that is what a stage wrote before it ended with 1.
pub(crate) fn refusal(exit_code: i32, stderr: &[u8], stdout_empty: bool, askpass: bool) -> Option<String> {
    if exit_code != 1 || !stdout_empty {
        return None;
    }
    let text = String::from_utf8_lossy(stderr.get(..2048).unwrap_or(stderr));
    let says = |line: &str| text.lines().any(|own| own.trim_end() == line);
    let begins = |line: &str| text.lines().any(|own| own.starts_with(line));
    if says("sudo: a password is required") {
        return Some(match askpass {
            true => "sudo wants a password and got none".into(),
            false => "sudo wants a password and there is no way to ask for one; set an askpass program, or allow the \
                      command with NOPASSWD in sudoers"
                .into(),
        });
    }
    if begins("Sorry, user ") && text.contains("is not allowed to execute") {
        return Some("sudo's rules do not allow this command to this user; see sudoers".into());
    }
    if begins("sudo: ") && text.contains("incorrect password attempt") {
        return Some("sudo was given a wrong password".into());
    }
    if text.contains(" is not in the sudoers file") {
        return Some("this user is not in the sudoers file".into());
    }
    begins("sudo: sorry, you are not allowed to ")
        .then(|| "sudo's rules do not allow this environment to this user; see SETENV in sudoers".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_from_a_request_stands_after_the_two_dashes() {
        let stage = ["apt", "--", "-u", "nobody"].map(str::to_owned);
        let arguments = arguments(Path::new("/usr/bin/apt"), &stage, &["DEBIAN_FRONTEND".into()], false);
        assert_eq!(
            arguments.join(" "),
            "sudo -n -k -H --preserve-env=DEBIAN_FRONTEND -- /usr/bin/apt -- -u nobody"
        );
    }

    #[test]
    fn only_sudos_own_refusals_are_taken_for_one() {
        assert!(refusal(1, b"sudo: a password is required\n", true, false).unwrap().contains("askpass"));
        assert!(refusal(1, b"Sorry, user a is not allowed to execute '/bin/x' as root on h.\n", true, false).is_some());
        assert_eq!(refusal(0, b"sudo: a password is required\n", true, false), None);
        assert_eq!(refusal(1, b"sudo: a password is required\n", false, false), None);
        assert_eq!(refusal(1, b"x sudo: a password is required\n", true, false), None);
    }
}
