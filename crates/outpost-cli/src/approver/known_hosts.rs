//! Known host keys of daemons, trusted on first use: a changed key is refused.

use outpost_approvals::signing::{PublicKey, fingerprint};
use outpost_sys::file::{self, Open};
use std::io::Write;
use std::path::PathBuf;

/// Room for thousands of hosts.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// The file and the name of one host in it.
pub(super) struct KnownHosts {
    path: PathBuf,
    name: String,
}

impl KnownHosts {
    /// Whitespace in the name is replaced, because it separates the fields of the file.
    pub(super) fn new(path: PathBuf, name: String) -> KnownHosts {
        KnownHosts { path, name: name.replace(|c: char| c.is_whitespace() || c.is_control(), "_") }
    }

    /// Refuses a key that differs from the stored one. The key of a new host is stored.
    pub(super) fn check(&self, key: &PublicKey) -> Result<(), String> {
        let fail = |why: &dyn std::fmt::Display| {
            format!(
                "cannot store the host key in {}: {why}\nhint: choose another directory with --state-dir",
                self.path.display()
            )
        };
        let text = match file::open(&self.path, Open::Read) {
            Err(outpost_sys::Errno::NOENT) => Vec::new(),
            opened => file::read_whole(&opened.map_err(|errno| fail(&errno))?, FILE_BYTES_MAX)
                .map_err(|errno| fail(&errno))?,
        };
        let text = String::from_utf8_lossy(&text);
        let known = text.lines().find_map(|line| line.split_once(' ').filter(|(name, _)| *name == self.name));
        let Some((_, known)) = known else {
            let dir = self.path.parent().unwrap_or(&self.path);
            crate::paths::make_private(dir).map_err(|error| fail(&error))?;
            let mut file =
                std::fs::File::from(file::open(&self.path, Open::Append).map_err(|errno| fail(&errno))?);
            let key = PublicKey::from(key.key_data().clone()).to_openssh().map_err(|error| fail(&error))?;
            return file.write_all(format!("{} {key}\n", self.name).as_bytes()).map_err(|error| fail(&error));
        };
        let known = PublicKey::from_openssh(known).map_err(|error| fail(&error))?;
        match known.key_data() == key.key_data() {
            true => Ok(()),
            false => Err(format!(
                "the host key of {} changed to {} from {}: this may be another daemon\n\
                 hint: if its state directory was recreated, remove its line from {}",
                self.name,
                fingerprint(key),
                fingerprint(&known),
                self.path.display()
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outpost_approvals::signing::Signer;

    #[test]
    fn only_a_changed_host_key_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("own/known_hosts");
        let (first, second) = (Signer::random().unwrap(), Signer::random().unwrap());
        let at = |name: &str| KnownHosts::new(path.clone(), name.into());
        at("/run/a b").check(first.key()).unwrap();
        at("/run/a b").check(first.key()).unwrap();
        at("other").check(second.key()).unwrap();
        let refused = at("/run/a b").check(second.key()).unwrap_err();
        assert!(refused.contains("may be another daemon") && refused.contains("hint: "), "{refused}");
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 2);
    }
}
