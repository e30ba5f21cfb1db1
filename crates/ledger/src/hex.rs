//! Hexadecimal encoding.

/// Encodes bytes as lower-case hex digits.
pub fn hex(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(bytes)
}
