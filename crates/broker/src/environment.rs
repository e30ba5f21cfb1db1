//! The variables that a request may set, and the complete environment of a command.

use outpost_sys::user::User;
use std::collections::BTreeMap;
use std::path::Path;

/// The search path for programs, and the PATH of every command. No other PATH is used.
pub(crate) const SECURE_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

const ZONEINFO_DIR: &str = "/usr/share/zoneinfo";

/// Refuses requests that set a forbidden variable. The error is the message for the client. Variables are never
/// stripped silently: that would hide an attack.
pub(crate) fn check(
    variables: &BTreeMap<String, String>,
    privileged: bool,
    target: &User,
) -> Result<(), String> {
    for (name, value) in variables {
        if name == "SSH_AUTH_SOCK" {
            return Err("SSH_AUTH_SOCK cannot be set in request env; use forward_agent instead".into());
        }
        if !is_allowed(name) {
            return Err(format!("environment variable not allowed: {name}"));
        }
        if privileged && !is_safe_for_root(name, value, target) {
            return Err(format!(
                "environment variable not allowed: {name} with this value for a privileged command"
            ));
        }
    }
    Ok(())
}

fn is_allowed(name: &str) -> bool {
    let category = |rest: &str| {
        !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    matches!(name, "LANG" | "TZ" | "HOME" | "DEBIAN_FRONTEND" | "TERM")
        || name.strip_prefix("LC_").is_some_and(category)
}

/// Whether a program that runs as root can safely interpret this value.
fn is_safe_for_root(name: &str, value: &str, target: &User) -> bool {
    let all = |allowed: &dyn Fn(u8) -> bool| value.len() <= 64 && value.bytes().all(allowed);
    match name {
        "HOME" => Path::new(value) == target.home,
        "DEBIAN_FRONTEND" => {
            ["noninteractive", "readline", "dialog", "teletype", "text", "gnome", "kde", "editor", ""]
                .contains(&value)
        }
        "TERM" => all(&|byte| byte.is_ascii_alphanumeric() || b"+.-".contains(&byte)),
        "TZ" => is_zone_name(value),
        _ => all(&|byte| byte.is_ascii_alphanumeric() || b"_.@-".contains(&byte)),
    }
}

/// Accepts names of installed time zones only: no paths and no POSIX TZ rules.
fn is_zone_name(value: &str) -> bool {
    let part = |part: &str| {
        !part.is_empty()
            && !part.starts_with('.')
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_+-.".contains(&byte))
    };
    value == "UTC" || (value.split('/').all(part) && Path::new(ZONEINFO_DIR).join(value).is_file())
}

/// The complete environment of a command that runs as `user`. `ssh_agent` is the forwarded agent socket.
pub(crate) fn command_environment(
    variables: &BTreeMap<String, String>,
    user: &User,
    ssh_agent: Option<String>,
) -> BTreeMap<String, String> {
    let name = user.name.to_string_lossy();
    let mut all = BTreeMap::from([
        ("HOME".to_owned(), user.home.display().to_string()),
        ("USER".to_owned(), name.to_string()),
        ("LOGNAME".to_owned(), name.into_owned()),
        ("PATH".to_owned(), SECURE_PATH.to_owned()),
    ]);
    all.extend(variables.clone());
    all.extend(ssh_agent.map(|socket| ("SSH_AUTH_SOCK".to_owned(), socket)));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> User {
        User { uid: 0, gid: 0, name: "root".into(), home: "/root".into() }
    }

    fn message(name: &str, value: &str, privileged: bool) -> Option<String> {
        check(&BTreeMap::from([(name.into(), value.into())]), privileged, &root()).err()
    }

    #[test]
    fn only_the_contracts_variables_are_allowed() {
        for name in ["LANG", "TZ", "HOME", "DEBIAN_FRONTEND", "TERM", "LC_ALL", "LC_x"] {
            assert_eq!(message(name, "C", false), None, "{name}");
        }
        for name in
            ["LD_PRELOAD", "PATH", "BASH_ENV", "IFS", "lang", "", "LC_", "LC_A B", "LC_A=B", "LC_\u{e4}"]
        {
            assert_eq!(message(name, "C", false), Some(format!("environment variable not allowed: {name}")));
        }
        assert!(message("SSH_AUTH_SOCK", "/x", false).unwrap().contains("use forward_agent instead"));
    }

    #[test]
    fn unsafe_values_are_refused_for_privileged_commands() {
        for (name, value) in [
            ("HOME", "/home/agent"),
            ("TZ", "/tmp/zone"),
            ("TZ", ":/tmp/zone"),
            ("TZ", "../../tmp/zone"),
            ("TZ", "Europe/../../../etc/passwd"),
            ("LANG", "../../tmp/locale"),
            ("LC_ALL", "() { :; }"),
            ("LANG", "%s"),
            ("TERM", "/tmp/terminfo"),
            ("DEBIAN_FRONTEND", "passthrough"),
        ] {
            assert!(message(name, value, true).is_some(), "{name}={value}");
            assert_eq!(message(name, value, false), None, "an unprivileged command could set it itself");
        }
        for (name, value) in
            [("HOME", "/root"), ("TZ", "UTC"), ("LANG", "de_DE.UTF-8@euro"), ("TERM", "xterm-256color")]
        {
            assert_eq!(message(name, value, true), None, "{name}={value}");
        }
    }
}
