//! `files.*`: file metadata, directory listings, file contents, tar extraction. All of it runs on blocking threads.

use super::FilesMethod;
use crate::connection::{PendingRequest, READS_MAX};
use crate::go_compat;
use crate::go_json::write::Object;
use crate::wire::{ExtractTarParams, Failure, Outcome, Params, PathParams, Request};
use outpost_sys::file::{self, Open};
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Upper bound of `files.read`, also for a larger `maxBytes`: the content is in memory several times.
const READ_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// A connection reads files larger than this one at a time.
const LARGE_BYTES: u64 = 1024 * 1024;

/// Starts a method. An error is the immediate reply; otherwise the method replies through `pending`.
pub(crate) fn begin(
    method: FilesMethod,
    request: &Request<'_>,
    pending: PendingRequest,
) -> Result<(), Failure> {
    let path = || PathParams::parse(request).map(|params| params.path.into_owned());
    match method {
        FilesMethod::List => {
            let path = path()?;
            run(pending, move || list(&path));
        }
        FilesMethod::Validate => {
            let path = path()?;
            run(pending, move || Ok(validate(&path)));
        }
        FilesMethod::Stat => {
            let path = path()?;
            run(pending, move || Ok(stat(&path)));
        }
        FilesMethod::Read => {
            let params = PathParams::parse(request)?;
            begin_read(pending, params.path.into_owned(), params.max_bytes);
        }
        FilesMethod::ExtractTar => {
            let params = ExtractTarParams::parse(request)?;
            if params.archive_path.is_empty() || params.dest_dir.is_empty() {
                return Err(Failure::invalid_params("archivePath and destDir are required"));
            }
            let (archive_path, dest_dir) = (params.archive_path.into_owned(), params.dest_dir.into_owned());
            let home = pending.connection.relay.home.clone();
            run(pending, move || Ok(extract_tar(&archive_path, &dest_dir, home.as_deref())));
        }
    }
    Ok(())
}

fn run(pending: PendingRequest, method: impl FnOnce() -> Outcome + Send + 'static) {
    let permits = pending.connection.relay.file_permits.clone();
    pending.run_blocking(permits, method);
}

/// As in Go, a path with a NUL byte fails with EINVAL before any system call.
fn metadata(path: &str) -> io::Result<Metadata> {
    match path.contains('\0') {
        true => Err(outpost_sys::Errno::INVAL.into()),
        false => fs::metadata(path),
    }
}

fn stat(path: &str) -> Vec<u8> {
    let found = metadata(path).ok();
    let mut out = Vec::new();
    Object::begin(&mut out)
        .bool("exists", found.is_some())
        .bool("isDir", found.as_ref().is_some_and(Metadata::is_dir))
        .number("size", found.as_ref().map_or(0, Metadata::len))
        .string("mode", found.map_or(String::new(), |found| go_compat::mode_text(found.mode())))
        .end();
    out
}

fn validate(path: &str) -> Vec<u8> {
    let found = metadata(path).ok();
    let mut out = Vec::new();
    Object::begin(&mut out)
        .bool("valid", found.is_some())
        .bool("isDir", found.as_ref().is_some_and(Metadata::is_dir))
        .string_unless_empty("error", if found.is_some() { "" } else { "Path does not exist" })
        .end();
    out
}

/// "name-sorted", "Hidden entries are omitted", "symlinks are FOLLOWED".
fn list(path: &str) -> Outcome {
    let fail = |error: &io::Error| Failure::internal(go_compat::path_error("open", path, error));
    if path.contains('\0') {
        return Err(fail(&outpost_sys::Errno::INVAL.into()));
    }
    let entries = fs::read_dir(path).map_err(|error| fail(&error))?;
    let mut names = Vec::new();
    for entry in entries {
        let name = entry
            .map_err(|error| Failure::internal(go_compat::path_error("readdirent", path, &error)))?
            .file_name();
        if !name.as_bytes().starts_with(b".") {
            names.push(name);
        }
    }
    names.sort_unstable_by(|a, b| a.as_bytes().cmp(b.as_bytes()));
    let mut out = Vec::new();
    let mut object = Object::begin(&mut out);
    let list = object.key("entries");
    list.push(b'[');
    for (index, name) in names.iter().enumerate() {
        if index > 0 {
            list.push(b',');
        }
        let full = go_compat::join(path.as_bytes(), name.as_bytes());
        let is_dir = fs::metadata(Path::new(path).join(name)).is_ok_and(|found| found.is_dir());
        Object::begin(list).string("name", name.as_bytes()).string("path", &full).bool("isDir", is_dir).end();
    }
    list.push(b']');
    object.end();
    Ok(out)
}

/// Holds read permits of the connection until the reply is sent. A client that does not read its replies thus pins few
/// file contents in memory.
fn begin_read(pending: PendingRequest, path: String, max_bytes: i64) {
    tokio::spawn(async move {
        let connection = pending.connection.clone();
        let size = {
            let path = path.clone();
            tokio::task::spawn_blocking(move || metadata(&path).map_or(0, |found| found.len()))
        };
        let is_large = size.await.unwrap_or(0) > LARGE_BYTES;
        let read_permits = connection.read_permits.acquire_many(if is_large { READS_MAX } else { 1 }).await;
        let file_permit = connection.relay.file_permits.clone().acquire_owned().await;
        let outcome = tokio::task::spawn_blocking(move || read(&path, max_bytes)).await;
        drop(file_permit);
        pending.reply(outcome.unwrap_or_else(|error| Err(Failure::internal(error.to_string())))).await;
        drop(read_permits);
    });
}

fn read(path: &str, max_bytes: i64) -> Outcome {
    let Ok(found) = metadata(path) else { return Ok(read_result(b"", false)) };
    if found.is_dir() {
        return Err(Failure::invalid_params("files.read: path is a directory"));
    }
    if !found.is_file() {
        return Err(Failure::invalid_params("files.read: not a regular file"));
    }
    let allowed = u64::try_from(max_bytes).ok().filter(|max| *max > 0).unwrap_or(u64::MAX);
    let exceeds = || Failure::invalid_params("files.read: file exceeds maxBytes");
    if found.len() > allowed.min(READ_BYTES_MAX) {
        return Err(exceeds());
    }
    // The path may have become a FIFO since the check above: open it without blocking.
    let file = file::open(path, Open::Foreign)
        .map_err(|errno| Failure::internal(go_compat::path_error("open", path, &errno.into())))?;
    // As in the original, `maxBytes` applies to the size from stat. A file in /proc or a growing file can have more content,
    // which only READ_BYTES_MAX limits.
    let mut bytes = Vec::with_capacity(usize::try_from(found.len()).unwrap_or(0));
    match File::from(file).take(READ_BYTES_MAX + 1).read_to_end(&mut bytes) {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
            Err(Failure::internal(go_compat::path_error("read", path, &error)))
        }
        _ if bytes.len() as u64 > READ_BYTES_MAX => Err(exceeds()),
        _ => Ok(read_result(&bytes, true)),
    }
}

fn read_result(bytes: &[u8], exists: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() + 64);
    Object::begin(&mut out).string("content", bytes).bool("exists", exists).end();
    out
}

fn extract_tar(archive_path: &str, dest_dir: &str, home: Option<&Path>) -> Vec<u8> {
    let extracted = crate::extract::extract_tar(archive_path, dest_dir, home);
    let mut out = Vec::new();
    Object::begin(&mut out)
        .bool("success", extracted.error.is_none())
        .number("fileCount", extracted.file_count)
        .string_unless_empty("error", extracted.error.unwrap_or_default())
        .end();
    out
}
