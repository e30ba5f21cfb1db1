//! System calls without the C library, for a child that shares its parent's memory: `errno` is thread-local, and that
//! child has the thread-local memory of its parent.

use super::clone::CloneArguments;
use crate::{Errno, Result};
use std::ffi::{c_int, c_long, c_void};

/// Whether there is code for this machine. Elsewhere children are forked, and `errno` is their own copy.
pub(super) const IS_SUPPORTED: bool = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));

/// The least result of a failed call, as the kernel returns it: the negative of the greatest error number.
const LEAST_ERROR: isize = -4095;

/// Makes a system call; an error is its number.
///
/// # Safety
/// As for the call itself: pointers must be valid for what the kernel reads and writes.
pub(super) unsafe fn call(number: c_long, arguments: [usize; 6]) -> std::result::Result<usize, c_int> {
    // SAFETY: the caller's.
    let result = unsafe { machine::call(number, arguments) };
    match result {
        LEAST_ERROR..=-1 => Err(c_int::try_from(-result).unwrap_or(libc::EIO)),
        _ => Ok(result.cast_unsigned()),
    }
}

/// Clones a child that calls `entry` with `argument` on the stack that `arguments` name. Returns in the parent only.
///
/// # Safety
/// With CLONE_VM the child runs concurrently in the same memory: `entry` must not modify memory that the parent uses,
/// and the stack must not be used by another thread.
pub(super) unsafe fn clone3(
    arguments: &CloneArguments,
    entry: extern "C" fn(*const c_void) -> !,
    argument: *const c_void,
) -> Result<i32> {
    // SAFETY: the caller's.
    let result = unsafe { machine::clone3(arguments, entry, argument) };
    match result {
        ..=-1 => Err(Errno::from_raw_os_error(c_int::try_from(-result).unwrap_or(libc::EIO))),
        _ => i32::try_from(result).map_err(|_| Errno::RANGE),
    }
}

#[cfg(target_arch = "x86_64")]
mod machine {
    use super::CloneArguments;
    use std::arch::asm;
    use std::ffi::{c_long, c_void};

    pub(super) unsafe fn call(number: c_long, arguments: [usize; 6]) -> isize {
        let [a, b, c, d, e, f] = arguments;
        let result: isize;
        // SAFETY: the kernel changes rax, rcx and r11 and no other register, and no memory but what the call is for.
        unsafe {
            asm!(
                "syscall",
                inlateout("rax") number as isize => result,
                in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
                lateout("rcx") _, lateout("r11") _,
                options(nostack),
            );
        }
        result
    }

    pub(super) unsafe fn clone3(
        arguments: &CloneArguments,
        entry: extern "C" fn(*const c_void) -> !,
        argument: *const c_void,
    ) -> isize {
        let result: isize;
        // SAFETY: as above for the parent. The child has a new stack, aligned to 16 bytes, and the same registers; it
        // calls `entry`, which does not return.
        unsafe {
            asm!(
                "syscall",
                "test rax, rax",
                "jnz 2f",
                "xor ebp, ebp",
                "mov rdi, r8",
                "call r9",
                "ud2",
                "2:",
                inlateout("rax") libc::SYS_clone3 as isize => result,
                in("rdi") arguments, in("rsi") size_of::<CloneArguments>(),
                in("r8") argument, in("r9") entry,
                lateout("rcx") _, lateout("r11") _,
                options(nostack),
            );
        }
        result
    }
}

#[cfg(target_arch = "aarch64")]
mod machine {
    use super::CloneArguments;
    use std::arch::asm;
    use std::ffi::{c_long, c_void};

    pub(super) unsafe fn call(number: c_long, arguments: [usize; 6]) -> isize {
        let [a, b, c, d, e, f] = arguments;
        let result: isize;
        // SAFETY: the kernel changes x0 and no other register, and no memory but what the call is for.
        unsafe {
            asm!(
                "svc #0",
                in("x8") number,
                inlateout("x0") a => result,
                in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
                options(nostack),
            );
        }
        result
    }

    pub(super) unsafe fn clone3(
        arguments: &CloneArguments,
        entry: extern "C" fn(*const c_void) -> !,
        argument: *const c_void,
    ) -> isize {
        let result: isize;
        // SAFETY: as above for the parent. The child has a new stack, aligned to 16 bytes, and the same registers; it
        // calls `entry`, which does not return.
        unsafe {
            asm!(
                "svc #0",
                "cbnz x0, 2f",
                "mov x29, xzr",
                "mov x30, xzr",
                "mov x0, x2",
                "blr x3",
                "brk #1",
                "2:",
                in("x8") libc::SYS_clone3,
                inlateout("x0") std::ptr::from_ref(arguments) as usize => result,
                in("x1") size_of::<CloneArguments>(),
                in("x2") argument, in("x3") entry,
                options(nostack),
            );
        }
        result
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod machine {
    use super::CloneArguments;
    use std::ffi::{c_long, c_void};

    pub(super) unsafe fn call(number: c_long, arguments: [usize; 6]) -> isize {
        let [a, b, c, d, e, f] = arguments;
        // SAFETY: the caller's.
        let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
        match result {
            -1 => -(crate::signal::last_errno().raw_os_error() as isize),
            result => result as isize,
        }
    }

    pub(super) unsafe fn clone3(
        _arguments: &CloneArguments,
        _entry: extern "C" fn(*const c_void) -> !,
        _argument: *const c_void,
    ) -> isize {
        -(libc::ENOSYS as isize)
    }
}
