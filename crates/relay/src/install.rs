//! The mode `-install`: makes sure that one version of the agent's CLI is there and runs, and says what it found.
//!
//! "-install itself always exits 0 — failures are reported inside the facts (cliError), not via the exit code."
//!
//! Two rules hold in all parts: nothing is executed whose checksum was asked for and did not match, and no text of
//! ours shows a URL, because a URL may be signed.

mod agent;
mod fetch;
mod names;
mod platform;
mod program;
mod prune;
mod report;
mod roots;
mod staging;
mod target;
mod unpack;

#[cfg(test)]
mod testkit;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_apart;
#[cfg(test)]
mod tests_download;

use crate::go;
use report::Facts;
use staging::Staging;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What the command line says; an empty string stands for a flag that is not there.
#[derive(Clone, Default)]
pub struct Options {
    pub cli_dir: String,
    pub cli_version: String,
    pub cli_url: String,
    pub cli_checksum: String,
    pub cli_zst: String,
    pub cli_keep: i64,
}

/// Every bound of an installation; only tests have others than these.
#[derive(Clone, Copy)]
struct Limits {
    /// How long a download may stand still. There is none on the whole: a limit cannot tell slow from hostile.
    stall: Duration,
    connect: Duration,
    /// The pause between two lines of progress.
    tick: Duration,
    /// How long `<cli> --version` may take.
    probe: Duration,
    download_bytes_max: u64,
    unpacked_bytes_max: u64,
}

const LIMITS: Limits = Limits {
    stall: Duration::from_secs(60),
    connect: Duration::from_secs(30),
    tick: Duration::from_secs(1),
    probe: Duration::from_secs(30),
    download_bytes_max: 512 << 20,
    unpacked_bytes_max: 512 << 20,
};

/// Runs the mode and writes its lines to `out`. Never fails: what goes wrong is in the facts.
pub fn run(options: &Options, server_version: &str, out: &mut dyn Write) {
    run_within(&LIMITS, options, server_version, out);
}

fn run_within(limits: &Limits, options: &Options, server_version: &str, out: &mut dyn Write) {
    let mut facts = Facts { server_version, libc: platform::libc(), ..Facts::default() };
    // "cliPath (join(cli-dir, cli-version), "" if either flag is missing)"
    if !options.cli_dir.is_empty() && !options.cli_version.is_empty() {
        facts.cli_path = text(go::join(options.cli_dir.as_bytes(), options.cli_version.as_bytes()));
        let installation = Installation {
            limits,
            options,
            dir: PathBuf::from(text(go::clean(options.cli_dir.as_bytes()))),
            path: PathBuf::from(&facts.cli_path),
        };
        if let Err(text) = installation.ensure(&mut facts, out) {
            facts.cli_error = text;
        }
    }
    report::result(out, &facts);
}

/// One version on its way into its directory.
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
            // Nothing is pruned: the original does, and can delete the very file it has just reported.
            return Ok(());
        }
        if !self.options.cli_zst.is_empty() {
            if self.install_file()? == Source::TakenByAnother {
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
            && program::answers_version(&self.path, self.limits.probe)
    }

    /// Installs the blob of `-cli-zst` and removes it, which only a full success does.
    fn install_file(&self) -> Result<Source, String> {
        let source = &self.options.cli_zst;
        let mut blob = match open_blob(source) {
            Ok(blob) => blob,
            // Another one who installs the same version from the same file removes it when done.
            Err((_, kind)) if kind == io::ErrorKind::NotFound && self.is_present() => {
                return Ok(Source::TakenByAnother);
            }
            Err((text, _)) => return Err(format!("opening input: {text}")),
        };
        let expected = Some(self.options.cli_checksum.as_str()).filter(|checksum| !checksum.is_empty());
        if let Some(expected) = expected {
            let actual = unpack::checksum(&mut blob)
                .map_err(|error| format!("opening input: {}", go::path_error("read", source, &error)))?;
            unpack::compare(expected, &actual)?;
        }
        staging::make_dir(&self.dir)?;
        // The file is somebody else's and may have been written to since it was hashed, so what is unpacked is hashed
        // again, byte by byte as the decoder takes it. The first pass stays: it keeps a blob that is known to be
        // wrong from the decoder, and gives its error the name the contract wants.
        self.place(&mut blob, expected)?;
        staging::remove_if_same(Path::new(source), &blob);
        Ok(Source::Installed)
    }

    fn install_url(&self, facts: &mut Facts<'_>, out: &mut dyn Write) -> Result<(), String> {
        staging::make_dir(&self.dir)?;
        let mut blob = Staging::create(&self.dir, names::BLOB)?;
        let mut progress = |bytes, total| report::progress(out, bytes, total);
        let (fetch, outcome) = fetch::download(&self.options.cli_url, &mut blob, self.limits, &mut progress);
        facts.fetch = Some(fetch);
        // "verified on the download (-cli-url) path unconditionally — an empty -cli-checksum still fails"
        unpack::compare(&self.options.cli_checksum, &outcome?)?;
        // Nobody else can open this file (it is ours alone from its creation on, and we never look it up by name
        // again), so the bytes that were hashed on their way in are those that come out.
        self.place(blob.rewound()?, None)
    }

    /// Unpacks the blob and puts it in place, if it runs.
    fn place(&self, blob: &mut File, expected: Option<&str>) -> Result<(), String> {
        let mut staged = Staging::create(&self.dir, names::FETCH)?;
        unpack::unpack(blob, &mut staged, self.limits.unpacked_bytes_max, expected)?;
        staged.make_program()?;
        if !program::answers_version(staged.path(), self.limits.probe) {
            return Err(format!("installed cli at {} is not runnable", self.path.display()));
        }
        staged.install(&self.path)
    }
}

/// What became of a `-cli-zst`.
#[derive(PartialEq, Eq)]
enum Source {
    Installed,
    /// It is gone, and what it held is installed.
    TakenByAnother,
}

/// Opens the blob of `-cli-zst`. Only a regular file: it is read twice, and a pipe could make us wait for ever.
fn open_blob(path: &str) -> Result<File, (String, io::ErrorKind)> {
    let failed = |operation, error: &io::Error| (go::path_error(operation, path, error), error.kind());
    let blob = staging::open_without_waiting(Path::new(path)).map_err(|error| failed("open", &error))?;
    let found = blob.metadata().map_err(|error| failed("stat", &error))?;
    if found.is_dir() {
        return Err(failed("read", &io::Error::from(outpost_sys::Errno::ISDIR)));
    }
    if !found.is_file() {
        return Err((format!("open {path}: not a regular file"), io::ErrorKind::InvalidInput));
    }
    Ok(blob)
}

/// A path made of texts is text.
fn text(path: Vec<u8>) -> String {
    String::from_utf8_lossy(&path).into_owned()
}
