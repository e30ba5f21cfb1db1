//! Random bytes from the kernel.

use crate::Result;

/// `N` cryptographically secure random bytes.
pub fn bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        filled +=
            crate::retry(|| rustix::rand::getrandom(&mut *rest, rustix::rand::GetRandomFlags::empty()))?;
    }
    Ok(bytes)
}
