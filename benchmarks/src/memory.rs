//! What programs and the host hold in memory.

use std::fs::read_to_string;
use std::time::Duration;

use anyhow::{Context, Result};
use carrel_shim_client::OwnedSandbox;

/// How long nothing happens before memory is looked at: both programs give back what they do not need after a second.
pub(crate) const REST: Duration = Duration::from_secs(2);

/// The memory of its two programs, in MiB; what several processes share is divided among them.
pub(crate) fn pss(sandbox: &OwnedSandbox) -> Result<f64> {
    Ok(pss_of(sandbox.shim_pid())? + pss_of(sandbox.pid())?)
}

/// The same of one process.
pub(crate) fn pss_of(pid: u32) -> Result<f64> {
    Ok(kibibytes(&format!("/proc/{pid}/smaps_rollup"), "Pss:")? / 1024.0)
}

/// All that it has in memory, whoever else has it too.
pub(crate) fn rss_of(pid: u32) -> Result<f64> {
    Ok(kibibytes(&format!("/proc/{pid}/smaps_rollup"), "Rss:")? / 1024.0)
}

/// The memory that the host has left, in MiB.
pub(crate) fn available() -> Result<f64> {
    Ok(kibibytes("/proc/meminfo", "MemAvailable:")? / 1024.0)
}

fn kibibytes(path: &str, key: &str) -> Result<f64> {
    let text = read_to_string(path).with_context(|| path.to_owned())?;
    let field = text.lines().find_map(|line| line.strip_prefix(key)).and_then(|rest| rest.split_whitespace().next());
    Ok(field.with_context(|| format!("{path} has no {key}"))?.parse()?)
}
