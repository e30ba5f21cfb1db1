//! The rule files of the daemon's user and of root, and their precedence.

use super::{Rules, Ruling};
use outpost_sys::root_only;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The rules file in the system directory.
const FILE: &str = "rules.toml";

/// The files that rules are loaded from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleFiles {
    /// The user's file, from the configuration or a flag.
    pub user_file: PathBuf,
    /// Root's policy directory. If it exists, only rules in it can allow, and `user_file` can only restrict.
    /// `None` for a daemon that runs as root: then `user_file` belongs to root.
    pub system_dir: Option<PathBuf>,
}

/// Detects a change of any file, including its mode and owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileStamps(Vec<FileStamp>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum FileStamp {
    Missing,
    Error(Option<i32>),
    File { inode: u64, bytes: u64, changed: (i64, i64) },
}

impl RuleFiles {
    /// The files for a daemon of the current user.
    pub fn new(user_file: PathBuf, system_dir: &Path) -> RuleFiles {
        let is_root = outpost_sys::process::effective_uid() == 0;
        RuleFiles { user_file, system_dir: (!is_root).then(|| system_dir.to_owned()) }
    }

    /// Loads all rules in force. An error in one file becomes the [`problem`](Rules::problem) of all rules.
    pub fn load(&self) -> Rules {
        let Some(system) = self.system_dir.as_deref() else { return Rules::load(&self.user_file) };
        match std::fs::symlink_metadata(system) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Rules::load(&self.user_file),
            Err(error) => return Rules::deny_all(system, &format!(": cannot stat it: {error}")),
            Ok(_) => {}
        }
        let file = system.join(FILE);
        let weak = root_only::weak_spot(system).or_else(|| {
            let exists = !matches!(std::fs::symlink_metadata(&file), Err(error) if error.kind() == io::ErrorKind::NotFound);
            exists.then(|| root_only::weak_spot(&file)).flatten()
        });
        if let Some(weak) = weak {
            let weak = crate::display::quote(&weak.to_string_lossy());
            return Rules::deny_all(&file, &format!(": others than root can change {weak}"));
        }
        let rules = Rules::load(&file);
        match self.user_file == file {
            true => rules,
            false => rules.restricted_by(Rules::load(&self.user_file), &self.user_file),
        }
    }

    /// Stamps of all files. The loaded rules stay in force while the stamps are equal.
    pub(crate) fn stamp(&self) -> FileStamps {
        let system = self.system_dir.iter().flat_map(|dir| [dir.clone(), dir.join(FILE)]);
        let user = stamp_of(std::fs::metadata(&self.user_file));
        FileStamps(system.map(|path| stamp_of(std::fs::metadata(path))).chain([user]).collect())
    }
}

impl Rules {
    /// Adds the deny and ask rules of another file. Its allow rules are ignored.
    fn restricted_by(mut self, stricter: Rules, path: &Path) -> Rules {
        let ignored: Vec<&str> = stricter
            .rules
            .iter()
            .filter(|rule| rule.ruling == Ruling::Allow)
            .map(|rule| rule.name.as_str())
            .collect();
        if !ignored.is_empty() {
            let rules = ignored.join(", ");
            tracing::warn!(file = %path.display(), rules, "ignoring allow rules outside of the system directory");
        }
        self.problem = self.problem.or(stricter.problem);
        self.rules.extend(stricter.rules.into_iter().filter(|rule| rule.ruling != Ruling::Allow));
        self
    }
}

fn stamp_of(file: io::Result<Metadata>) -> FileStamp {
    match file {
        Ok(file) => FileStamp::File {
            inode: file.ino(),
            bytes: file.len(),
            changed: (file.ctime(), file.ctime_nsec()),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => FileStamp::Missing,
        Err(error) => FileStamp::Error(error.raw_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::{RuleInput, Verdict};
    use jiff::Timestamp;
    use std::collections::BTreeMap;
    use std::os::unix::fs::PermissionsExt;

    fn rule(decision: &str, program: &str) -> String {
        let privileged = if decision == "allow" { "privileged = false\n" } else { "" };
        let name = program.trim_start_matches("/bin/");
        format!(
            "[[rule]]\nname = \"{decision}-{name}\"\ndecision = \"{decision}\"\ncommand = [\"{program}\"]\n{privileged}"
        )
    }

    fn evaluate(files: &RuleFiles, program: &str) -> Verdict {
        let (env, stages) = (BTreeMap::new(), [(program, &[][..])]);
        let input = RuleInput {
            stages: &stages,
            privileged: false,
            run_as: "u",
            session: "",
            env: &env,
            cwd: "/",
            has_reason: false,
        };
        files.load().evaluate(&input, Timestamp::now())
    }

    /// A user file and a system directory in a temporary directory.
    fn fixture() -> (tempfile::TempDir, RuleFiles) {
        let dir = tempfile::tempdir().unwrap();
        let real = std::fs::canonicalize(dir.path()).unwrap();
        let (user_file, system) = (real.join("own.toml"), real.join("system"));
        (dir, RuleFiles { user_file, system_dir: Some(system) })
    }

    #[test]
    fn without_a_system_directory_user_rules_can_allow() {
        let (_dir, files) = fixture();
        std::fs::write(&files.user_file, rule("allow", "/bin/a")).unwrap();
        assert_eq!(evaluate(&files, "/bin/a").ruling, Ruling::Allow);
    }

    #[test]
    fn with_a_system_directory_user_rules_can_only_restrict() {
        if outpost_sys::process::effective_uid() != 0 {
            return;
        }
        let (_dir, files) = fixture();
        let system = files.system_dir.clone().unwrap();
        std::fs::write(&files.user_file, rule("allow", "/bin/a") + &rule("deny", "/bin/b")).unwrap();
        let before = files.stamp();
        std::fs::create_dir(&system).unwrap();
        assert_ne!(files.stamp(), before, "a directory that appears is noticed");
        assert_eq!(evaluate(&files, "/bin/a").ruling, Ruling::Ask);
        assert_eq!(evaluate(&files, "/bin/b").ruling, Ruling::Deny);
        let allow = rule("allow", "/bin/a") + &rule("allow", "/bin/b") + &rule("allow", "/bin/c");
        std::fs::write(system.join(FILE), allow).unwrap();
        let rulings = ["/bin/a", "/bin/b", "/bin/c"].map(|program| evaluate(&files, program).ruling);
        assert_eq!(rulings, [Ruling::Allow, Ruling::Deny, Ruling::Allow]);
        // An error in either file denies every request.
        std::fs::write(&files.user_file, "[[rule").unwrap();
        assert_eq!(evaluate(&files, "/bin/c").ruling, Ruling::Deny);
    }

    #[test]
    fn a_system_directory_writable_by_others_denies_everything() {
        if outpost_sys::process::effective_uid() != 0 {
            return;
        }
        let (_dir, files) = fixture();
        let system = files.system_dir.clone().unwrap();
        std::fs::create_dir(&system).unwrap();
        std::fs::write(system.join(FILE), rule("allow", "/bin/a")).unwrap();
        assert_eq!(evaluate(&files, "/bin/a").ruling, Ruling::Allow);
        for (path, mode) in [(&system, 0o777), (&system.join(FILE), 0o666)] {
            let before = std::fs::metadata(path).unwrap().permissions();
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
            assert_eq!(evaluate(&files, "/bin/a").ruling, Ruling::Deny, "{}", path.display());
            std::fs::set_permissions(path, before).unwrap();
        }
        std::os::unix::fs::chown(system.join(FILE), Some(1000), None).unwrap();
        assert_eq!(evaluate(&files, "/bin/a").ruling, Ruling::Deny);
    }

    /// Only a missing file means no rules. A file that cannot be read may contain deny rules.
    #[test]
    fn a_path_error_denies_everything() {
        let (_dir, mut files) = fixture();
        let dir = files.user_file.parent().unwrap().to_owned();
        let link = dir.join("loop");
        std::os::unix::fs::symlink(&link, &link).unwrap();
        std::fs::write(dir.join("file"), "").unwrap();
        assert_eq!(evaluate(&files, "/bin/a").ruling, Ruling::Ask);
        for way in [link, dir.join("file")] {
            for system in [false, true] {
                let path = way.join("rules.toml");
                match system {
                    true => {
                        files = RuleFiles { user_file: dir.join("own.toml"), system_dir: Some(path.clone()) }
                    }
                    false => files = RuleFiles { user_file: path.clone(), system_dir: None },
                }
                assert_eq!(evaluate(&files, "/bin/a").ruling, Ruling::Deny, "{}", path.display());
                assert!(files.load().problem().unwrap().contains("cannot stat it"));
            }
        }
    }
}
