//! Placeholders for missing settings files in a project, which a confined agent must not create.
//!
//! The sandbox protects a missing name by an empty directory in its place. opencode does not start if its settings file
//! is a directory. So the daemon creates a file with empty settings, which the sandbox protects. The last process that
//! needs the file removes it. A killed daemon leaves it behind, which is harmless.

use outpost_sandbox::AGENT_FILES;
use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const EMPTY_SETTINGS: &[u8] = b"{}\n";

/// The created files, and how many processes need each.
#[derive(Clone, Debug, Default)]
pub(crate) struct PlaceholderFiles(Arc<Mutex<HashMap<PathBuf, usize>>>);

/// The placeholders of one process. Dropping it releases them.
#[derive(Debug)]
pub(crate) struct PlaceholderGuard {
    files: PlaceholderFiles,
    paths: Vec<PathBuf>,
}

impl PlaceholderFiles {
    fn count(&self) -> MutexGuard<'_, HashMap<PathBuf, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates the missing files in these directories. Blocking.
    pub(crate) fn acquire<'a>(
        &self,
        roots: impl IntoIterator<Item = &'a Path>,
    ) -> std::io::Result<PlaceholderGuard> {
        let mut guard = PlaceholderGuard { files: self.clone(), paths: Vec::new() };
        for path in roots.into_iter().flat_map(|root| AGENT_FILES.iter().map(|name| root.join(name))) {
            let mut count = self.count();
            if !count.contains_key(&path) {
                if path.symlink_metadata().is_ok() || !path.parent().is_some_and(Path::is_dir) {
                    continue;
                }
                let mut file = std::fs::File::create_new(&path)?;
                count.insert(path.clone(), 0);
                file.write_all(EMPTY_SETTINGS)?;
            }
            if let Some(count) = count.get_mut(&path) {
                *count += 1;
                guard.paths.push(path);
            }
        }
        Ok(guard)
    }
}

impl Drop for PlaceholderGuard {
    fn drop(&mut self) {
        let mut count = self.files.count();
        for path in &self.paths {
            let left = count.get_mut(path).map_or(0, |count| {
                *count = count.saturating_sub(1);
                *count
            });
            if left == 0 {
                count.remove(path);
                // A file that was changed in the meantime stays.
                let is_ours = path.symlink_metadata().is_ok_and(|found| found.is_file())
                    && std::fs::read(path).is_ok_and(|text| text == EMPTY_SETTINGS);
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
    fn the_last_guard_removes_the_file_unless_it_was_changed() {
        let dir = tempfile::tempdir().unwrap();
        let files = PlaceholderFiles::default();
        std::fs::write(dir.path().join("opencode.json"), "{ }").unwrap();
        let [first, second] = [(); 2].map(|()| files.acquire([dir.path()]).unwrap());
        let file = dir.path().join("opencode.jsonc");
        assert_eq!(std::fs::read(&file).unwrap(), EMPTY_SETTINGS);
        drop(first);
        assert!(file.exists());
        drop(second);
        assert!(!file.exists() && dir.path().join("opencode.json").exists());
        let third = files.acquire([dir.path()]).unwrap();
        std::fs::write(&file, "{ \"a\": 1 }").unwrap();
        drop(third);
        assert!(file.exists());
    }
}
