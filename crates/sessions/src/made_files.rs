//! Settings files that a confined agent must not make: an empty one stands there while it runs.
//!
//! A missing name is otherwise held by an empty directory, but opencode does not start beside a directory of the name of its
//! settings. So a real file without settings is made, which the sandbox protects. It is removed with the last process that needs
//! it. A killed daemon leaves it behind, where it says nothing.

use outpost_sandbox::AGENT_FILES;
use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const NOTHING: &[u8] = b"{}\n";

/// Files that were made, and how many processes need each.
#[derive(Clone, Debug, Default)]
pub(crate) struct MadeFiles(Arc<Mutex<HashMap<PathBuf, usize>>>);

/// What one process needs. Let go when it is dropped.
#[derive(Debug)]
pub(crate) struct Needed {
    made: MadeFiles,
    paths: Vec<PathBuf>,
}

impl MadeFiles {
    fn count(&self) -> MutexGuard<'_, HashMap<PathBuf, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes what is missing in these directories. Looks at the disk and writes.
    pub(crate) fn need<'a>(&self, roots: impl IntoIterator<Item = &'a Path>) -> std::io::Result<Needed> {
        let mut needed = Needed { made: self.clone(), paths: Vec::new() };
        for path in roots.into_iter().flat_map(|root| AGENT_FILES.iter().map(|name| root.join(name))) {
            let mut count = self.count();
            if !count.contains_key(&path) {
                if path.symlink_metadata().is_ok() || !path.parent().is_some_and(Path::is_dir) {
                    continue;
                }
                let mut file = std::fs::File::create_new(&path)?;
                count.insert(path.clone(), 0);
                file.write_all(NOTHING)?;
            }
            if let Some(count) = count.get_mut(&path) {
                *count += 1;
                needed.paths.push(path);
            }
        }
        Ok(needed)
    }
}

impl Drop for Needed {
    fn drop(&mut self) {
        let mut count = self.made.count();
        for path in &self.paths {
            let left = count.get_mut(path).map_or(0, |count| {
                *count = count.saturating_sub(1);
                *count
            });
            if left == 0 {
                count.remove(path);
                // What somebody has written into it meanwhile stays.
                let is_ours = path.symlink_metadata().is_ok_and(|found| found.is_file())
                    && std::fs::read(path).is_ok_and(|text| text == NOTHING);
                if is_ours {
                    let _gone_already = std::fs::remove_file(path);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_goes_with_the_last_that_needs_it_and_stays_if_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let made = MadeFiles::default();
        std::fs::write(dir.path().join("opencode.json"), "{ }").unwrap();
        let [first, second] = [(); 2].map(|()| made.need([dir.path()]).unwrap());
        let file = dir.path().join("opencode.jsonc");
        assert_eq!(std::fs::read(&file).unwrap(), NOTHING);
        drop(first);
        assert!(file.exists());
        drop(second);
        assert!(!file.exists() && dir.path().join("opencode.json").exists());
        let third = made.need([dir.path()]).unwrap();
        std::fs::write(&file, "{ \"a\": 1 }").unwrap();
        drop(third);
        assert!(file.exists());
    }
}
