//! The mode `-install`: ensures that one version of the agent CLI is installed and runs, and prints a facts line.
//!
//! "-install itself always exits 0 — failures are reported inside the facts (cliError), not via the exit code."
//!
//! Two invariants: a file whose requested checksum does not match is never executed, and no message contains a URL, because
//! a URL may be signed.
//!
//! Path of an installation: `download` or a local blob, `decompress` into a file of `staging`, `version_probe`, rename,
//! `prune`. `report` writes the output lines.

#![forbid(unsafe_code)]

mod decompress;
mod download;
mod http;
mod names;
mod platform;
mod prune;
mod report;
mod request_url;
mod resolver;
mod root_certs;
mod staging;
mod version_probe;

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_download;
#[cfg(test)]
mod tests_isolated;

use outpost_relay::go_compat;
use report::Facts;
use staging::StagedFile;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use resolver::Resolver;

/// The flags of the command line. An empty string stands for an absent flag.
#[derive(Clone, Default)]
pub struct Options {
    pub cli_dir: String,
    pub cli_version: String,
    pub cli_url: String,
    pub cli_checksum: String,
    pub cli_zst: String,
    pub cli_keep: i64,
}

/// Timeouts and sizes. Only tests use other values than [`LIMITS`].
#[derive(Clone, Copy)]
struct Limits {
    /// For each read of a download. The whole download has no timeout, because its duration depends on the network.
    stall_timeout: Duration,
    connect_timeout: Duration,
    /// Between two progress lines.
    progress_interval: Duration,
    /// For `<cli> --version`.
    probe_timeout: Duration,
    download_bytes_max: u64,
    decompressed_bytes_max: u64,
}

const LIMITS: Limits = Limits {
    stall_timeout: Duration::from_secs(60),
    connect_timeout: Duration::from_secs(30),
    progress_interval: Duration::from_secs(1),
    probe_timeout: Duration::from_secs(30),
    download_bytes_max: 512 << 20,
    decompressed_bytes_max: 512 << 20,
};

/// Blocking. Runs the mode and writes its lines to `out`. Reports failures in the facts line.
pub fn run(options: &Options, server_version: &str, out: &mut dyn Write) {
    run_within(&LIMITS, options, server_version, out);
}

fn run_within(limits: &Limits, options: &Options, server_version: &str, out: &mut dyn Write) {
    let mut facts = Facts { server_version, libc: platform::libc(), ..Facts::default() };
    // "cliPath (join(cli-dir, cli-version), "" if either flag is missing)"
    if !options.cli_dir.is_empty() && !options.cli_version.is_empty() {
        facts.cli_path = text(go_compat::join(options.cli_dir.as_bytes(), options.cli_version.as_bytes()));
        let installation = Installation {
            limits,
            options,
            dir: PathBuf::from(text(go_compat::clean(options.cli_dir.as_bytes()))),
            path: PathBuf::from(&facts.cli_path),
        };
        if let Err(text) = installation.ensure(&mut facts, out) {
            facts.cli_error = text;
        }
    }
    report::result(out, &facts);
}

/// The installation of one version.
struct Installation<'a> {
    limits: &'a Limits,
    options: &'a Options,
    dir: PathBuf,
    path: PathBuf,
}

impl Installation<'_> {
    fn ensure(&self, facts: &mut Facts<'_>, out: &mut dyn Write) -> Result<(), String> {
        names::check_version(&self.options.cli_version)?;
        if self.is_present() {
            facts.cli_was_present = true;
            // Do not prune. The original does, and can delete the file that it has just reported.
            return Ok(());
        }
        if !self.options.cli_zst.is_empty() {
            if self.install_file()? == FileInstall::DoneByOther {
                facts.cli_was_present = true;
                return Ok(());
            }
        } else if !self.options.cli_url.is_empty() {
            self.install_url(facts, out)?;
        } else {
            let version = &self.options.cli_version;
            return Err(format!("cli {version} missing and no --cli-url or --cli-zst provided"));
        }
        prune::prune(&self.dir, &self.options.cli_version, self.options.cli_keep);
        Ok(())
    }

    fn is_present(&self) -> bool {
        self.path.metadata().is_ok_and(|found| found.is_file())
            && version_probe::succeeds(&self.path, self.limits.probe_timeout)
    }

    /// Installs the blob of `-cli-zst`. Removes the blob only after a complete success.
    fn install_file(&self) -> Result<FileInstall, String> {
        let source = &self.options.cli_zst;
        let mut blob = match open_blob(source) {
            Ok(blob) => blob,
            // A concurrent process has installed the same version from this blob and removed the blob.
            Err((_, kind)) if kind == io::ErrorKind::NotFound && self.is_present() => {
                return Ok(FileInstall::DoneByOther);
            }
            Err((text, _)) => return Err(format!("opening input: {text}")),
        };
        let expected = Some(self.options.cli_checksum.as_str()).filter(|checksum| !checksum.is_empty());
        if let Some(expected) = expected {
            let actual = decompress::file_checksum(&mut blob).map_err(|error| {
                format!("opening input: {}", go_compat::path_error("read", source, &error))
            })?;
            decompress::verify_checksum(expected, &actual)?;
        }
        staging::create_dir_all(&self.dir)?;
        // Other processes can write to the blob after the first check, so the decoder's input is hashed again. The first
        // check remains necessary: it keeps a wrong blob from the decoder and yields the contract's error.
        self.install_blob(&mut blob, expected)?;
        staging::remove_if_same(Path::new(source), &blob);
        Ok(FileInstall::Installed)
    }

    fn install_url(&self, facts: &mut Facts<'_>, out: &mut dyn Write) -> Result<(), String> {
        staging::create_dir_all(&self.dir)?;
        let mut blob = StagedFile::create(&self.dir, names::DOWNLOAD_PREFIX)?;
        let mut progress = |bytes, total| report::progress(out, bytes, total);
        let (stats, outcome) =
            download::download(&self.options.cli_url, &mut blob, self.limits, &mut progress);
        facts.download = Some(stats);
        // "verified on the download (-cli-url) path unconditionally — an empty -cli-checksum still fails"
        decompress::verify_checksum(&self.options.cli_checksum, &outcome?)?;
        // No second hash: the file was created exclusively with mode 0600 and is not opened by name again, so its content is
        // what was hashed during the download.
        self.install_blob(blob.rewind()?, None)
    }

    /// Decompresses the blob, and renames the program to its final name if it runs.
    fn install_blob(&self, blob: &mut File, expected: Option<&str>) -> Result<(), String> {
        let mut staged = StagedFile::create(&self.dir, names::PROGRAM_PREFIX)?;
        decompress::decompress(blob, &mut staged, self.limits.decompressed_bytes_max, expected)?;
        staged.make_executable()?;
        if !version_probe::succeeds(staged.path(), self.limits.probe_timeout) {
            return Err(format!("installed cli at {} is not runnable", self.path.display()));
        }
        staged.install(&self.path)
    }
}

/// The result of installing a `-cli-zst` blob.
#[derive(PartialEq, Eq)]
enum FileInstall {
    Installed,
    /// A concurrent process has installed and removed the blob.
    DoneByOther,
}

/// Opens the blob of `-cli-zst`. It must be a regular file: it is read twice, and a FIFO could block.
fn open_blob(path: &str) -> Result<File, (String, io::ErrorKind)> {
    let failed = |operation, error: &io::Error| (go_compat::path_error(operation, path, error), error.kind());
    let blob = staging::open_nonblocking(Path::new(path)).map_err(|error| failed("open", &error))?;
    let found = blob.metadata().map_err(|error| failed("stat", &error))?;
    if found.is_dir() {
        return Err(failed("read", &io::Error::from(outpost_sys::Errno::ISDIR)));
    }
    if !found.is_file() {
        return Err((format!("open {path}: not a regular file"), io::ErrorKind::InvalidInput));
    }
    Ok(blob)
}

/// Lossless: the path is built from strings.
fn text(path: Vec<u8>) -> String {
    String::from_utf8_lossy(&path).into_owned()
}
