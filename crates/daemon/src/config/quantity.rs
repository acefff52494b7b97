//! Examples of time spans and sizes, for messages about the configuration.

/// Examples of a time span.
pub(super) const DURATION: &str = "such as \"10m\", \"1h30m\" or \"0\"";
/// Examples of a size.
pub(super) const SIZE: &str = "such as 536870912, \"512m\" or \"1.5GiB\"";
