//! Dropping text pages.

use outpost_sys::memory::drop_text_pages;

/// Resident pages of mapped files, in kilobytes.
fn resident_file_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssFile:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn dropped_text_pages_are_not_resident_and_the_program_goes_on() {
    let before = resident_file_kb();
    drop_text_pages();
    let after = resident_file_kb();
    assert!(after < before * 3 / 4, "{after} of {before} kB");
    // Constants and code are mapped again.
    assert_eq!(format!("{:?}", ["a", "b"].concat()), "\"ab\"");
}
