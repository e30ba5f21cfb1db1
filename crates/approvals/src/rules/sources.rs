//! Where rules come from: the daemon's user, and root, whose word about what is allowed goes before the user's.

use super::{Rules, Ruling};
use outpost_sys::root_only;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The name of the rules in the system's directory.
const FILE: &str = "rules.toml";

/// The files that rules are read from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// The file that the user, the configuration or a flag names.
    pub own: PathBuf,
    /// A directory of root's. Where it exists, only rules in it can allow, and those of `own` can only be stricter. None
    /// for a daemon that runs as root: there `own` is root's word.
    pub system: Option<PathBuf>,
}

/// Tells one state of all files from another, rights included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamp(Vec<Found>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    Error(Option<i32>),
    File { inode: u64, bytes: u64, changed: (i64, i64) },
}

impl Sources {
    /// For a daemon of this process's user.
    pub fn new(own: PathBuf, system: &Path) -> Sources {
        let is_root = outpost_sys::limits::effective_uid() == 0;
        Sources { own, system: (!is_root).then(|| system.to_owned()) }
    }

    /// All rules that are in force. Whatever is wrong with a file is the [`problem`](Rules::problem) of all.
    pub fn load(&self) -> Rules {
        let Some(system) = self.system.as_deref() else { return Rules::load(&self.own) };
        match std::fs::symlink_metadata(system) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Rules::load(&self.own),
            Err(error) => return Rules::denying(system, &format!(": cannot look at it: {error}")),
            Ok(_) => {}
        }
        let file = system.join(FILE);
        let weak = root_only::weak_spot(system).or_else(|| {
            let is_there = !matches!(std::fs::symlink_metadata(&file), Err(error) if error.kind() == io::ErrorKind::NotFound);
            is_there.then(|| root_only::weak_spot(&file)).flatten()
        });
        if let Some(weak) = weak {
            let weak = crate::display::quote(&weak.to_string_lossy());
            return Rules::denying(&file, &format!(": others than root can change {weak}"));
        }
        let rules = Rules::load(&file);
        match self.own == file {
            true => rules,
            false => rules.restricted_by(Rules::load(&self.own), &self.own),
        }
    }

    /// What has to be the same for rules that were loaded to be in force.
    pub(crate) fn stamp(&self) -> Stamp {
        let system = self.system.iter().flat_map(|dir| [dir.clone(), dir.join(FILE)]);
        let own = found(std::fs::metadata(&self.own));
        Stamp(system.map(|path| found(std::fs::metadata(path))).chain([own]).collect())
    }
}

impl Rules {
    /// These rules with what other ones deny or ask about. What those allow does not count.
    fn restricted_by(mut self, stricter: Rules, path: &Path) -> Rules {
        let ignored: Vec<&str> = stricter
            .rules
            .iter()
            .filter(|rule| rule.ruling == Ruling::Allow)
            .map(|rule| rule.name.as_str())
            .collect();
        if !ignored.is_empty() {
            let rules = ignored.join(", ");
            tracing::warn!(file = %path.display(), rules, "rules that allow count only in the system's directory");
        }
        self.problem = self.problem.or(stricter.problem);
        self.rules.extend(stricter.rules.into_iter().filter(|rule| rule.ruling != Ruling::Allow));
        self
    }
}

fn found(file: io::Result<Metadata>) -> Found {
    match file {
        Ok(of) => Found::File { inode: of.ino(), bytes: of.len(), changed: (of.ctime(), of.ctime_nsec()) },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Found::Nothing,
        Err(error) => Found::Error(error.raw_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::{Subject, Verdict};
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

    fn judged(sources: &Sources, program: &str) -> Verdict {
        let (env, stages) = (BTreeMap::new(), [(program, &[][..])]);
        let subject = Subject {
            stages: &stages,
            privileged: false,
            run_as: "u",
            session: "",
            env: &env,
            cwd: "/",
            has_reason: false,
        };
        sources.load().judge(&subject, Timestamp::now())
    }

    /// The files of the user and of the system in a new directory.
    fn place() -> (tempfile::TempDir, Sources) {
        let dir = tempfile::tempdir().unwrap();
        let real = std::fs::canonicalize(dir.path()).unwrap();
        let (own, system) = (real.join("own.toml"), real.join("system"));
        (dir, Sources { own, system: Some(system) })
    }

    #[test]
    fn where_there_is_no_system_directory_the_users_rules_allow() {
        let (_dir, sources) = place();
        std::fs::write(&sources.own, rule("allow", "/bin/a")).unwrap();
        assert_eq!(judged(&sources, "/bin/a").ruling, Ruling::Allow);
    }

    #[test]
    fn a_system_directory_takes_the_users_right_to_allow_and_leaves_the_rest() {
        if outpost_sys::limits::effective_uid() != 0 {
            return;
        }
        let (_dir, sources) = place();
        let system = sources.system.clone().unwrap();
        std::fs::write(&sources.own, rule("allow", "/bin/a") + &rule("deny", "/bin/b")).unwrap();
        let before = sources.stamp();
        std::fs::create_dir(&system).unwrap();
        assert_ne!(sources.stamp(), before, "a directory that appears is noticed");
        assert_eq!(judged(&sources, "/bin/a").ruling, Ruling::Ask);
        assert_eq!(judged(&sources, "/bin/b").ruling, Ruling::Deny);
        let allow = rule("allow", "/bin/a") + &rule("allow", "/bin/b") + &rule("allow", "/bin/c");
        std::fs::write(system.join(FILE), allow).unwrap();
        let rulings = ["/bin/a", "/bin/b", "/bin/c"].map(|program| judged(&sources, program).ruling);
        assert_eq!(rulings, [Ruling::Allow, Ruling::Deny, Ruling::Allow]);
        // What cannot be read in either file denies everything.
        std::fs::write(&sources.own, "[[rule").unwrap();
        assert_eq!(judged(&sources, "/bin/c").ruling, Ruling::Deny);
    }

    #[test]
    fn a_system_directory_that_others_can_change_denies_everything() {
        if outpost_sys::limits::effective_uid() != 0 {
            return;
        }
        let (_dir, sources) = place();
        let system = sources.system.clone().unwrap();
        std::fs::create_dir(&system).unwrap();
        std::fs::write(system.join(FILE), rule("allow", "/bin/a")).unwrap();
        assert_eq!(judged(&sources, "/bin/a").ruling, Ruling::Allow);
        for (path, mode) in [(&system, 0o777), (&system.join(FILE), 0o666)] {
            let before = std::fs::metadata(path).unwrap().permissions();
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
            assert_eq!(judged(&sources, "/bin/a").ruling, Ruling::Deny, "{}", path.display());
            std::fs::set_permissions(path, before).unwrap();
        }
        std::os::unix::fs::chown(system.join(FILE), Some(1000), None).unwrap();
        assert_eq!(judged(&sources, "/bin/a").ruling, Ruling::Deny);
    }

    /// Only a file that is not there is no rules. One that cannot be looked at may deny what would be allowed.
    #[test]
    fn an_error_on_the_way_to_the_rules_denies() {
        let (_dir, mut sources) = place();
        let dir = sources.own.parent().unwrap().to_owned();
        let link = dir.join("loop");
        std::os::unix::fs::symlink(&link, &link).unwrap();
        std::fs::write(dir.join("file"), "").unwrap();
        assert_eq!(judged(&sources, "/bin/a").ruling, Ruling::Ask);
        for way in [link, dir.join("file")] {
            for system in [false, true] {
                let path = way.join("rules.toml");
                match system {
                    true => sources = Sources { own: dir.join("own.toml"), system: Some(path.clone()) },
                    false => sources = Sources { own: path.clone(), system: None },
                }
                assert_eq!(judged(&sources, "/bin/a").ruling, Ruling::Deny, "{}", path.display());
                assert!(sources.load().problem().unwrap().contains("cannot look at it"));
            }
        }
    }
}
