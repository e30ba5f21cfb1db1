//! The environment of a process.

use std::ffi::{CString, OsStr, OsString};
use std::fmt;
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, OnceLock};

/// A whole environment. Clones share the variables and their encoding for the kernel, so a caller that starts many
/// processes keeps one.
#[derive(Clone, Default)]
pub struct Environment(Arc<Variables>);

#[derive(Default)]
struct Variables {
    pairs: Vec<(OsString, OsString)>,
    /// `NAME=value` strings, encoded on first use; `None` if a variable contains a zero byte.
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

    /// Whether a name or a value contains a zero byte, which execve cannot pass.
    pub fn has_zero(&self) -> bool {
        self.entries().is_none()
    }

    pub(crate) fn entries(&self) -> Option<&[CString]> {
        let entry = |(name, value): &(OsString, OsString)| {
            // With capacity for the terminating zero, to avoid a copy.
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
    fn entries_are_name_value_strings() {
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
