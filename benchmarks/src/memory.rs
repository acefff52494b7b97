//! Memory of programs and of the host.

use std::fs::read_to_string;
use std::time::Duration;

use anyhow::{Context, Result};
use carrel_shim_client::OwnedSandbox;

/// The idle time before memory is measured: both programs release unused memory after a second.
pub(crate) const REST: Duration = Duration::from_secs(2);

/// The PSS of shim and agent, in MiB.
pub(crate) fn pss(sandbox: &OwnedSandbox) -> Result<f64> {
    Ok(pss_of(sandbox.shim_pid())? + pss_of(sandbox.pid())?)
}

/// The PSS of one process.
pub(crate) fn pss_of(pid: u32) -> Result<f64> {
    Ok(kibibytes(&format!("/proc/{pid}/smaps_rollup"), "Pss:")? / 1024.0)
}

/// The RSS of one process.
pub(crate) fn rss_of(pid: u32) -> Result<f64> {
    Ok(kibibytes(&format!("/proc/{pid}/smaps_rollup"), "Rss:")? / 1024.0)
}

/// The available memory of the host, in MiB.
pub(crate) fn available() -> Result<f64> {
    Ok(kibibytes("/proc/meminfo", "MemAvailable:")? / 1024.0)
}

fn kibibytes(path: &str, key: &str) -> Result<f64> {
    let text = read_to_string(path).with_context(|| path.to_owned())?;
    let field = text.lines().find_map(|line| line.strip_prefix(key)).and_then(|rest| rest.split_whitespace().next());
    Ok(field.with_context(|| format!("{path} has no {key}"))?.parse()?)
}
