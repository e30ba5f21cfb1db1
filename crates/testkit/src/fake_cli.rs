//! A directory of programs under the names of the agent CLIs, all of which are `fake-agent`.

use crate::daemon::binary_beside;
use std::path::Path;

/// Makes the fake available in `bin` under these names: programs are found by name.
pub fn install_fake_clis(bin: &Path, names: &[&str]) {
    let test = std::env::current_exe().unwrap();
    // A test is in `deps`, the programs are one up.
    let fake = binary_beside(&test.parent().unwrap().parent().unwrap().join("tests"), "fake-agent");
    std::fs::create_dir_all(bin).unwrap();
    for name in names {
        std::os::unix::fs::symlink(&fake, bin.join(name)).unwrap();
    }
}
