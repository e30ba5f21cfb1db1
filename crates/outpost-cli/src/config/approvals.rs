//! The `[approvals]` table as settings of the approvals crate.

use super::{Approvals, rules};
use crate::paths::Paths;
use outpost_approvals::Settings;
use outpost_approvals::rules::RuleFiles;

impl Approvals {
    pub fn settings(&self, paths: &Paths) -> Result<Settings, String> {
        Ok(Settings {
            dir: paths.approvals(),
            rules: match paths.is_guard {
                true => RuleFiles::new(paths.guard.rules(), &paths.guard.etc()),
                false => rules(self.rules.clone()),
            },
            viewers: viewers(self.approvers.as_deref().unwrap_or_default())?,
            etc: paths.guard.etc(),
            is_guard: paths.is_guard,
            hook: self.notify.clone(),
        })
    }
}

/// Resolves the users that see every question. Only names are accepted, not uids.
fn viewers(names: &[String]) -> Result<Vec<u32>, String> {
    let find = |name: &String| match outpost_sys::user::by_name(name) {
        Ok(Some(user)) => Ok(user.uid),
        Ok(None) => Err(format!("approvers: this host has no user {name:?}")),
        Err(errno) => Err(format!("approvers: {name:?}: {errno}")),
    };
    names.iter().map(find).collect()
}
