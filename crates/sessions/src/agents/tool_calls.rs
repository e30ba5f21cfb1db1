//! Maps ids of tool calls to tool names, because results have the id only.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Maximum number of calls that are remembered.
const CALLS_MAX: usize = 64;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct ToolCalls(VecDeque<(String, String)>);

impl ToolCalls {
    pub(super) fn remember(&mut self, id: impl Into<String>, tool: impl Into<String>) {
        self.0.push_back((id.into(), tool.into()));
        self.0.drain(..self.0.len().saturating_sub(CALLS_MAX));
    }

    pub(super) fn tool(&self, id: &str) -> Option<&str> {
        self.0.iter().rev().find(|(call, _)| call == id).map(|(_, tool)| tool.as_str())
    }
}
