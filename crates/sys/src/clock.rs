//! CLOCK_BOOTTIME: time since boot, including suspend. It cannot be set. [`crate::procfs::boot_id`]
//! identifies the boot.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since boot.
pub fn boot_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let number = |part: i64| u64::try_from(part).unwrap_or_default();
    number(now.tv_sec).saturating_mul(1_000_000_000).saturating_add(number(now.tv_nsec))
}
