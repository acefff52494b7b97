//! The two views of a log. Each numbers its events from 1 without a gap.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Which events of a log are visible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = View)]
pub enum EventView {
    /// The document's six kinds.
    #[default]
    Default,
    /// All of them.
    Full,
}

/// A position in a log, as the id in each view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPosition {
    /// Id in the default view.
    pub default: u64,
    /// Id in the full view.
    pub full: u64,
}

// === impl LogPosition ===

impl LogPosition {
    /// The id in a view.
    pub const fn of(self, view: EventView) -> u64 {
        match view {
            EventView::Default => self.default,
            EventView::Full => self.full,
        }
    }
}
