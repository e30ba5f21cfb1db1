//! The variables that a process is started with.

use std::ffi::{CString, OsStr, OsString};
use std::fmt;
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, OnceLock};

/// A whole environment. Clones share it and what was once made of it for the kernel, so whoever starts many processes with
/// the same one keeps it.
#[derive(Clone, Default)]
pub struct Environment(Arc<Variables>);

#[derive(Default)]
struct Variables {
    pairs: Vec<(OsString, OsString)>,
    /// As the kernel takes them, once they are needed; none when that cannot be.
    entries: OnceLock<Option<Vec<CString>>>,
}

impl Environment {
    pub fn of_this_process() -> Environment {
        std::env::vars_os().collect()
    }

    /// The value of a variable.
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        self.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_os_str())
    }

    /// Whether there is a zero in some name or value: no program can be given that.
    pub fn has_zero(&self) -> bool {
        self.entries().is_none()
    }

    pub(crate) fn entries(&self) -> Option<&[CString]> {
        let entry = |(name, value): &(OsString, OsString)| {
            // With room for the zero at the end, or it would be copied for that.
            let mut entry = Vec::with_capacity(name.len() + value.len() + 2);
            let parts = [name.as_bytes(), b"=", value.as_bytes()];
            parts.into_iter().for_each(|part| entry.extend_from_slice(part));
            CString::new(entry).ok()
        };
        self.0.entries.get_or_init(|| self.iter().map(entry).collect()).as_deref()
    }
}

impl Deref for Environment {
    type Target = [(OsString, OsString)];

    fn deref(&self) -> &Self::Target {
        &self.0.pairs
    }
}

impl FromIterator<(OsString, OsString)> for Environment {
    fn from_iter<I: IntoIterator<Item = (OsString, OsString)>>(pairs: I) -> Environment {
        Environment(Arc::new(Variables { pairs: pairs.into_iter().collect(), entries: OnceLock::new() }))
    }
}

/// Values may be secret.
impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} variables", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> Environment {
        pairs.iter().map(|(name, value)| (OsString::from(name), OsString::from(value))).collect()
    }

    #[test]
    fn entries_are_what_the_kernel_takes() {
        let two = environment(&[("A", "b"), ("C", "")]);
        assert_eq!(two.entries().unwrap(), [c"A=b".to_owned(), c"C=".to_owned()]);
        assert_eq!(two.get("A"), Some(OsStr::new("b")));
        assert_eq!(two.get("B"), None);
        assert!(!two.has_zero());
        assert!(environment(&[("A", "b\0c")]).has_zero());
        assert!(environment(&[("A\0", "")]).has_zero());
        assert!(!format!("{:?}", environment(&[("TOKEN", "secret")])).contains("secret"));
    }
}
