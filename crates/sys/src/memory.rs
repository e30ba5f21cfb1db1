//! The text pages of this process.

use crate::fault;
use std::ffi::{CStr, c_int, c_void};

/// Drops the resident text pages of the program and its libraries. Pages that are used again are mapped from the page
/// cache. Most were needed for the start only.
pub fn drop_text_pages() {
    if fault::failpoint().is_ok() {
        // SAFETY: the callback has the required signature and is only called during this call.
        unsafe { libc::dl_iterate_phdr(Some(drop_pages_of_object), std::ptr::null_mut()) };
    }
}

/// The callback for each loaded object.
unsafe extern "C" fn drop_pages_of_object(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    _data: *mut c_void,
) -> c_int {
    // SAFETY: the loader passes a valid description for the duration of this call.
    let info = unsafe { &*info };
    let name = match info.dlpi_name.is_null() {
        true => c"",
        // SAFETY: a name that is not null is a C string of the loader.
        false => unsafe { CStr::from_ptr(info.dlpi_name) },
    };
    // The program itself has an empty name. A name without a slash is the vDSO, which has no file.
    if info.dlpi_phdr.is_null() || !(name.is_empty() || name.to_bytes().contains(&b'/')) {
        return 0;
    }
    // SAFETY: the loader provides the address and the number of the headers.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let is_constant = |header: &&libc::Elf64_Phdr| {
        header.p_type == libc::PT_LOAD && header.p_flags & (libc::PF_W | libc::PF_R) == libc::PF_R
    };
    for header in headers.iter().filter(is_constant) {
        drop_pages_of_segment(info.dlpi_addr.wrapping_add(header.p_vaddr), header.p_filesz);
    }
    0
}

fn drop_pages_of_segment(begin: u64, bytes: u64) {
    let page = rustix::param::page_size() as u64;
    let (first, last) = (begin & !(page - 1), begin.saturating_add(bytes) & !(page - 1));
    let (Ok(first), Ok(len)) = (usize::try_from(first), usize::try_from(last.saturating_sub(first))) else {
        return;
    };
    // SAFETY: whole pages of a segment that is mapped from a file and not writable. The kernel reads dropped pages from
    // the file again, with the same content. A failure changes nothing.
    unsafe { libc::madvise(std::ptr::with_exposed_provenance_mut(first), len, libc::MADV_DONTNEED) };
}
