//! This process's own memory: what it has of its program.

use crate::fault;
use std::ffi::{CStr, c_int, c_void};

/// Gives back the pages of program and libraries that have been looked at so far. What is still needed comes back from the
/// page cache at its next use; what only the start needed, or what was done since, which is most of it, does not.
pub fn forget_program() {
    if fault::gate().is_ok() {
        // SAFETY: the callback has the signature that is asked for, and the call lasts as long as its iteration.
        unsafe { libc::dl_iterate_phdr(Some(forget_object), std::ptr::null_mut()) };
    }
}

/// Called for each object of this process.
unsafe extern "C" fn forget_object(info: *mut libc::dl_phdr_info, _size: usize, _data: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid description that lives for this call.
    let info = unsafe { &*info };
    let name = match info.dlpi_name.is_null() {
        true => c"",
        // SAFETY: a name that is not null is a C string of the loader's.
        false => unsafe { CStr::from_ptr(info.dlpi_name) },
    };
    // The program itself has none. What has one without a slash is the kernel's, and in no file.
    if info.dlpi_phdr.is_null() || !(name.is_empty() || name.to_bytes().contains(&b'/')) {
        return 0;
    }
    // SAFETY: the loader says where the headers are and how many.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let is_constant = |header: &&libc::Elf64_Phdr| {
        header.p_type == libc::PT_LOAD && header.p_flags & (libc::PF_W | libc::PF_R) == libc::PF_R
    };
    for header in headers.iter().filter(is_constant) {
        forget_segment(info.dlpi_addr.wrapping_add(header.p_vaddr), header.p_filesz);
    }
    0
}

fn forget_segment(begin: u64, bytes: u64) {
    let page = rustix::param::page_size() as u64;
    let (first, last) = (begin & !(page - 1), begin.saturating_add(bytes) & !(page - 1));
    let (Ok(first), Ok(len)) = (usize::try_from(first), usize::try_from(last.saturating_sub(first))) else {
        return;
    };
    // SAFETY: whole pages of a segment that is mapped from a file and that nobody may write: what is dropped is read again
    // from there, as it was. Where it cannot be dropped, nothing happens.
    unsafe { libc::madvise(std::ptr::with_exposed_provenance_mut(first), len, libc::MADV_DONTNEED) };
}
