//! Which variables a request may set, and what a command is given.

use outpost_sys::user::User;
use std::collections::BTreeMap;
use std::path::Path;

/// Where commands are looked up, whatever anybody's PATH says. They get it as theirs.
pub(crate) const SECURE_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

const ZONES: &str = "/usr/share/zoneinfo";

/// The message for a variable that may not be set. "Refuse, do not strip": what is stripped hides an attack.
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
        if privileged && !is_harmless(name, value, target) {
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

/// Programs with root's rights believe these.
fn is_harmless(name: &str, value: &str, target: &User) -> bool {
    let all = |allowed: &dyn Fn(u8) -> bool| value.len() <= 64 && value.bytes().all(allowed);
    match name {
        "HOME" => Path::new(value) == target.home,
        "DEBIAN_FRONTEND" => {
            ["noninteractive", "readline", "dialog", "teletype", "text", "gnome", "kde", "editor", ""]
                .contains(&value)
        }
        "TERM" => all(&|byte| byte.is_ascii_alphanumeric() || b"+.-".contains(&byte)),
        "TZ" => is_zone(value),
        _ => all(&|byte| byte.is_ascii_alphanumeric() || b"_.@-".contains(&byte)),
    }
}

/// A zone by its name: no path, no rule of the caller's own.
fn is_zone(value: &str) -> bool {
    let part = |part: &str| {
        !part.is_empty()
            && !part.starts_with('.')
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_+-.".contains(&byte))
    };
    value == "UTC" || (value.split('/').all(part) && Path::new(ZONES).join(value).is_file())
}

/// The whole environment of a command that runs as `user`. `agent` is the daemon's own, if it is forwarded.
pub(crate) fn of_command(
    variables: &BTreeMap<String, String>,
    user: &User,
    agent: Option<String>,
) -> BTreeMap<String, String> {
    let name = user.name.to_string_lossy();
    let mut all = BTreeMap::from([
        ("HOME".to_owned(), user.home.display().to_string()),
        ("USER".to_owned(), name.to_string()),
        ("LOGNAME".to_owned(), name.into_owned()),
        ("PATH".to_owned(), SECURE_PATH.to_owned()),
    ]);
    all.extend(variables.clone());
    all.extend(agent.map(|agent| ("SSH_AUTH_SOCK".to_owned(), agent)));
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
    fn the_originals_list_is_allowed_and_nothing_else() {
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
    fn root_gets_no_value_that_means_more_than_it_says() {
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
            assert_eq!(message(name, value, false), None, "an unprivileged one could set it itself");
        }
        for (name, value) in
            [("HOME", "/root"), ("TZ", "UTC"), ("LANG", "de_DE.UTF-8@euro"), ("TERM", "xterm-256color")]
        {
            assert_eq!(message(name, value, true), None, "{name}={value}");
        }
    }
}
