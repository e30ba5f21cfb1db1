//! Arbitrary bytes as an archive, raw and compressed, are extracted without a panic, and nothing outside of
//! the target changes.

#![no_main]

use flate2::Compression;
use flate2::write::GzEncoder;
use libfuzzer_sys::fuzz_target;
use outpost_relay::extract::extract_tar;
use std::fs;
use std::io::Write;
use std::path::Path;

/// Extracts `archive` and checks the directories around the target.
fn extract(archive: &[u8]) {
    let scene = tempfile::tempdir().unwrap();
    let (dest, path) = (scene.path().join("dest"), scene.path().join("archive.tgz"));
    fs::write(&path, archive).unwrap();
    fs::create_dir(&dest).unwrap();
    fs::create_dir(scene.path().join("beside")).unwrap();
    fs::write(scene.path().join("beside/kept"), "kept").unwrap();
    let extracted = extract_tar(path.to_str().unwrap(), dest.to_str().unwrap(), None);
    assert!(!path.exists(), "not consumed");
    let mut names: Vec<_> = fs::read_dir(&scene).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["beside", "dest"]);
    assert_eq!(fs::read_dir(scene.path().join("beside")).unwrap().count(), 1);
    assert_eq!(fs::read(scene.path().join("beside/kept")).unwrap(), b"kept");
    assert!(extracted.error.is_some() || dest.join(".synced").is_file(), "no mark of success");
    assert_only_files_and_directories(&dest);
}

/// Checks that there are only files and directories.
fn assert_only_files_and_directories(dest: &Path) {
    let mut directories = vec![dest.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            let kind = entry.file_type().unwrap();
            assert!(kind.is_file() || kind.is_dir(), "{entry:?}");
            if kind.is_dir() {
                directories.push(entry.path());
            }
        }
    }
}

/// Mutations rarely hit a checksum, so each block that looks like a header gets a valid one.
fn with_checksums(tar: &[u8]) -> Vec<u8> {
    let mut tar = tar.to_vec();
    for block in tar.chunks_exact_mut(512).filter(|block| block[257..262] == *b"ustar") {
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    tar
}

fn packed(tar: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(tar).unwrap();
    packed.finish().unwrap()
}

fuzz_target!(|input: &[u8]| {
    extract(input);
    extract(&packed(input));
    extract(&packed(&with_checksums(input)));
});
