//! The two views of a log. Each numbers its events from 1 without a gap.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Which events of a log are seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum View {
    /// The document's six kinds.
    #[default]
    Default,
    /// All of them.
    Full,
}

/// A place in a log, in the numbers of each view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// In the default view.
    pub default: u64,
    /// In the full view.
    pub full: u64,
}

// === impl Position ===

impl Position {
    /// The number in a view.
    pub const fn of(self, view: View) -> u64 {
        match view {
            View::Default => self.default,
            View::Full => self.full,
        }
    }
}
