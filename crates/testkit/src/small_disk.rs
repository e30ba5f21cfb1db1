//! A small file system of its own that a test fills and empties.

use crate::lack::Lack;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A tmpfs, unmounted when dropped.
pub struct SmallDisk {
    dir: TempDir,
}

impl SmallDisk {
    /// Mounts it with these options of tmpfs(5).
    pub fn mount(options: &str) -> Result<SmallDisk, Lack> {
        let disk = SmallDisk { dir: tempfile::tempdir().unwrap() };
        match disk.run("mount", &["-t", "tmpfs", "-o", options, "outpost-test"]) {
            true => Ok(disk),
            false => Err(Lack::of_host("this user may not mount")),
        }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Gives it another size, such as `size=64m`.
    pub fn resize(&self, options: &str) {
        assert!(self.run("mount", &["-o", &format!("remount,{options}")]), "remount {options}");
    }

    /// Takes every free block.
    pub fn fill(&self) {
        let mut file = File::options().create(true).append(true).open(self.ballast()).unwrap();
        let block = [b'x'; 4096];
        loop {
            match file.write_all(&block) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => return,
                Err(error) => panic!("fill {}: {error}", self.path().display()),
            }
        }
    }

    /// Gives them back.
    pub fn empty(&self) {
        std::fs::remove_file(self.ballast()).unwrap();
    }

    fn ballast(&self) -> PathBuf {
        self.path().join("ballast")
    }

    fn run(&self, program: &str, arguments: &[&str]) -> bool {
        let path = self.dir.path();
        Command::new(program).args(arguments).arg(path).output().is_ok_and(|output| output.status.success())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        self.run("umount", &["--lazy"]);
    }
}
