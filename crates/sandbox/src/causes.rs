//! Advice: why namespaces or Landlock are unavailable on this host, and how to enable them.

use std::path::Path;

/// Settings that forbid user namespaces: the file, the forbidding value, and the command that changes it.
const SETTINGS: &[(&str, &str, &str)] = &[
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile for outpost that allows userns",
    ),
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"),
    ("/proc/sys/user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces=10000"),
];

/// Files that container engines create in their containers.
const CONTAINERS: &[&str] = &["/run/.containerenv", "/.dockerenv", "/run/systemd/container"];

const IN_A_CONTAINER: &str = "in this container a seccomp filter, an AppArmor profile or a masked /proc can forbid them: \
     start it with --privileged, or with --security-opt seccomp=unconfined --security-opt apparmor=unconfined \
     --security-opt unmask=ALL (podman; docker: systempaths=unconfined)";

const UNKNOWN: &str = "no known setting forbids them: a security module or a seccomp filter around the daemon does, which \
     the kernel's log or the service manager may name";

const LANDLOCK_ON_A_HOST: &str =
    "boot with lsm=landlock,... among the security modules; Linux has Landlock from 5.13 on";

const LANDLOCK_IN_A_CONTAINER: &str = "in this container a seccomp filter can hide it: start it with a profile that allows the \
     landlock_ calls, or with --security-opt seccomp=unconfined; else boot the host with lsm=landlock,... among the \
     security modules";

/// How to enable Landlock on this host or in this container.
pub fn landlock_advice() -> &'static str {
    if is_container() { LANDLOCK_IN_A_CONTAINER } else { LANDLOCK_ON_A_HOST }
}

fn is_container() -> bool {
    CONTAINERS.iter().any(|path| Path::new(path).exists())
}

/// How to enable namespaces on this host or in this container.
pub fn advice() -> String {
    let settings: Vec<String> =
        SETTINGS.iter().filter(|(path, value, _)| reads(path, value)).map(shown).collect();
    chosen(settings, is_container())
}

fn reads(path: &str, value: &str) -> bool {
    std::fs::read_to_string(path).is_ok_and(|text| text.trim() == value)
}

fn shown((path, value, fix): &(&str, &str, &str)) -> String {
    format!("{path} is {value}: {fix}")
}

/// Settings of the host also apply to containers of an ordinary user.
fn chosen(mut settings: Vec<String>, is_container: bool) -> String {
    if is_container {
        settings.push(IN_A_CONTAINER.to_owned());
    }
    match settings.is_empty() {
        true => UNKNOWN.to_owned(),
        false => settings.join("; "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_fits_the_host_or_the_container() {
        let setting = shown(&SETTINGS[2]);
        let host = chosen(vec![setting.clone()], false);
        assert!(
            host.contains("sysctl -w user.max_user_namespaces=10000") && !host.contains("container"),
            "{host}"
        );
        let container = chosen(Vec::new(), true);
        for option in ["--privileged", "seccomp=unconfined", "apparmor=unconfined", "unmask=ALL"] {
            assert!(container.contains(option), "{container}");
        }
        assert!(!container.contains("sysctl"), "settings that are right are not advised: {container}");
        assert!(chosen(Vec::new(), false).contains("security module"));
        assert!(chosen(vec![setting], true).contains("; in this container"));
    }
}
