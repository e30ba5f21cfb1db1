//! Programs that run other commands. Allowing one of them means allowing any command.

/// Prefixes of names: any version, variant or companion matches.
const FAMILIES: [&str; 18] = [
    "emacs", "gdb", "ld-linux", "ld-musl", "ld.so", "lua", "node", "nvim", "perl", "php", "pypy", "python",
    "qemu-", "ruby", "tclsh", "texlua", "vim", "wish",
];

/// Whole names, with an optional version or build suffix.
#[rustfmt::skip]
const NAMES: &[&str] = &[
    // Shells.
    "ash", "bash", "busybox", "csh", "dash", "elvish", "es", "fish", "hush", "ksh", "lksh", "mksh", "nu", "oil", "osh",
    "pdksh", "posh", "powershell", "pwsh", "rbash", "rc", "rksh", "rzsh", "sash", "sh", "tcsh", "toybox", "xonsh", "yash",
    "ysh", "zsh",
    // Interpreters, and tools with a scripting language.
    "awk", "bpftrace", "bun", "clisp", "d8", "dc", "deno", "dotnet", "elixir", "erl", "escript", "expect", "gawk", "ghci",
    "gimp", "gjs", "gnuplot", "groovy", "guile", "iex", "ipython", "irb", "java", "jjs", "jrunscript", "js", "jshell",
    "julia", "kotlin", "m4", "mawk", "mono", "mysql", "mariadb", "nawk", "ocaml", "octave", "original-awk", "psql", "qjs",
    "r", "racket", "rscript", "runghc", "sbcl", "scala", "scheme", "sed", "gsed", "sqlite", "swift", "tcl",
    // Programs that run their arguments.
    "capsh", "catchsegv", "chpst", "chroot", "chrt", "daemonize", "doas", "dtach", "abduco", "env",
    "entr", "fakechroot", "fakeroot", "faketime", "fd", "fdfind", "find", "firejail", "flock", "gtimeout",
    "i386", "ionice", "linux32", "linux64", "lldb", "ltrace", "nice", "nohup", "nsenter", "numactl", "parallel", "perf",
    "pkexec", "prlimit", "proot", "run-parts", "run0", "runcon", "runuser", "screen", "script", "setarch", "setpriv",
    "setsid", "setuidgid", "sg", "newgrp", "softlimit", "start-stop-daemon", "stdbuf", "strace", "su", "sudo",
    "sudo-rs", "sudoedit", "systemd-inhibit", "systemd-nspawn", "systemd-run", "taskset", "time", "timeout",
    "tmux", "torify", "torsocks", "tsocks", "unbuffer", "unshare", "valgrind", "watch", "x86_64", "xargs", "zargs",
    // Schedulers and remote access.
    "anacron", "at", "batch", "crontab", "fcrontab", "ftp", "machinectl", "mosh", "nc", "ncat", "netcat", "rsh", "rsync",
    "scp", "sftp", "socat", "ssh", "sshpass", "telnet",
    // Containers and virtual machines.
    "buildah", "bwrap", "crictl", "crun", "ctr", "distrobox", "docker", "docker-compose", "flatpak", "helm", "incus",
    "kubectl", "lxc", "lxc-attach", "lxc-execute", "lxd", "minikube", "nerdctl", "oc", "podman", "runc", "snap", "toolbox",
    "vagrant", "virsh",
    // Build tools and package managers, which run scripts of a directory or a package.
    "ant", "bazel", "bundle", "cargo", "cmake", "composer", "ctest", "gem", "gmake", "go", "gradle", "just", "make",
    "meson", "mvn", "ninja", "npm", "npx", "pip", "pipx", "pnpm", "rake", "scons", "tox", "uv", "uvx", "yarn",
    // Editors and pagers, and programs that start them.
    "editor", "ed", "ex", "gvim", "helix", "hx", "info", "jed", "joe", "kak", "less", "man", "mc", "mcedit", "micro", "more",
    "most", "nano", "ne", "pager", "pg", "pico", "pinfo", "red", "rnano", "rview", "rvim", "sensible-editor",
    "sensible-pager", "vi", "view", "visudo", "vipw", "vigr",
    // Archivers and version control: hooks, filters and external compressors.
    "bsdtar", "bzr", "cpio", "cvs", "fossil", "git", "gtar", "hg", "svn", "tar", "tig", "tcpdump", "zip",
];

/// Suffixes of builds and packages.
const BUILDS: [&str; 7] = ["-static", ".static", "-dbg", ".basic", ".tiny", ".nox", ".real"];

/// Whether a program, by its path or name, runs other commands: shells, interpreters, wrappers, editors and
/// others. The list is not complete; an operator must know the programs that a rule allows.
pub fn is_interpreter(path_or_name: &str) -> bool {
    let name = path_or_name.rsplit('/').next().unwrap_or(path_or_name).to_ascii_lowercase();
    if FAMILIES.iter().any(|family| name.starts_with(family)) {
        return true;
    }
    let is_version = |letter: char| letter.is_ascii_digit() || ".-_+".contains(letter);
    let build = BUILDS.iter().find_map(|build| name.strip_suffix(build));
    let candidates = [Some(name.as_str()), build];
    candidates
        .into_iter()
        .flatten()
        .any(|name| NAMES.contains(&name) || NAMES.contains(&name.trim_end_matches(is_version)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_run_commands_are_recognised() {
        let named = "sh bash dash zsh ksh fish csh tcsh busybox python python3 python3.11 python2.7 pypy3 perl perl5.36.0 \
            ruby ruby3.1 node nodejs node18 deno bun lua lua5.4 luajit php php8.2 php-fpm8.2 tclsh tclsh8.6 awk gawk mawk \
            nawk original-awk env xargs find sudo doas su pkexec ssh scp rsync vi vim vim.basic vim.tiny nvim view ex emacs \
            emacs-nox emacsclient nano less more man watch nohup nice timeout setsid stdbuf strace gdb gdbserver tar git \
            docker podman kubectl nsenter chroot unshare systemd-run at crontab make sed ksh93 bash-static \
            busybox.static make-4.3 ld-linux-x86-64.so.2 ld-musl-x86_64.so.1 R Rscript sqlite3";
        for name in named.split_ascii_whitespace() {
            assert!(is_interpreter(name), "{name}");
            assert!(is_interpreter(&format!("/usr/local/bin/{name}")), "{name}");
        }
    }

    #[test]
    fn other_tools_are_not_interpreters() {
        for name in [
            "ls",
            "cat",
            "systemctl",
            "apt-get",
            "df",
            "shutdown",
            "ip",
            "journalctl",
            "id",
            "mount",
            "du",
            "",
        ] {
            assert!(!is_interpreter(name), "{name}");
            assert!(!is_interpreter(&format!("/opt/python3/{name}")), "{name}");
        }
    }
}
