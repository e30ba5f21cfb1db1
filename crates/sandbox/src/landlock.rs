//! Landlock access rights: which ones an ABI version has, and which ones an access needs.

/// File rights, by the ABI version that introduced them.
const EXECUTE: u64 = 1;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
const MAKE_CHAR: u64 = 1 << 6;
const MAKE_BLOCK: u64 = 1 << 11;
const ALL_1: u64 = (1 << 13) - 1;
const REFER: u64 = 1 << 13;
const TRUNCATE: u64 = 1 << 14;
const IOCTL_DEVICE: u64 = 1 << 15;

const TCP: u64 = 0b11;
const SCOPE_ABSTRACT_SOCKETS: u64 = 1;
const SCOPE_SIGNALS: u64 = 1 << 1;

/// Older versions forbid every rename to another directory, even between writable ones.
pub(crate) const VERSION_MIN: u32 = 2;

/// Older versions cannot control truncation, so they are not sufficient alone.
pub(crate) const VERSION_STANDALONE_MIN: u32 = 3;

/// The rights that an ABI version can control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rights {
    pub(crate) files: u64,
    pub(crate) network: u64,
    pub(crate) scopes: u64,
}

impl Rights {
    pub(crate) fn of(version: u32, network: bool) -> Rights {
        let since = |first: u32, rights: u64| if version >= first { rights } else { 0 };
        let files = ALL_1 | since(2, REFER) | since(3, TRUNCATE) | since(5, IOCTL_DEVICE);
        let abstract_sockets = if network { 0 } else { SCOPE_ABSTRACT_SOCKETS };
        Rights {
            files,
            network: if network { 0 } else { since(4, TCP) },
            scopes: since(6, SCOPE_SIGNALS | abstract_sockets),
        }
    }

    /// Reading and executing.
    pub(crate) fn read(self, directory: bool) -> u64 {
        self.files & (EXECUTE | READ_FILE | if directory { READ_DIR } else { 0 })
    }

    /// Everything but creating devices.
    pub(crate) fn write(self, directory: bool) -> u64 {
        let files = EXECUTE | READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEVICE;
        self.files & if directory { !(MAKE_CHAR | MAKE_BLOCK) } else { files }
    }

    /// Using existing devices.
    pub(crate) fn devices(self, directory: bool) -> u64 {
        let directory = if directory { READ_DIR } else { 0 };
        self.files & (READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEVICE | directory)
    }
}
