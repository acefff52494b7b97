//! Shows progress on standard error: a bar on a terminal, lines elsewhere.

use std::io::{IsTerminal, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{InstallPhase, InstallProgress};
use crate::agent::AgentId;

const REDRAWS_PER_SECOND: u8 = 10;
const STYLE: &str = "{prefix}  {bar:28}  {bytes:>11} / {total_bytes:<11}  {binary_bytes_per_sec}  {msg}";
/// A line is printed every so many percent.
const PERCENT_STEP: u64 = 25;

/// Shows the progress of an install.
pub struct InstallProgressBar {
    agent: AgentId,
    bar: Option<ProgressBar>,
    last: Option<(InstallPhase, u64)>,
}

// === impl InstallProgressBar ===

impl InstallProgressBar {
    /// For one agent.
    pub fn new(agent: AgentId) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(REDRAWS_PER_SECOND));
            bar.set_prefix(agent.to_string());
            bar.with_style(ProgressStyle::with_template(STYLE).unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        Self { agent, bar, last: None }
    }

    /// Shows this progress.
    pub fn update(&mut self, progress: InstallProgress) {
        if let Some(bar) = &self.bar {
            if progress.phase == InstallPhase::Downloading {
                bar.set_position(progress.bytes);
                progress.total.into_iter().for_each(|total| bar.set_length(total));
            }
            return bar.set_message(progress.phase.to_string());
        }
        if let Some(line) = self.line(progress) {
            // Standard error may be closed.
            drop(writeln!(std::io::stderr(), "{}: {line}", self.agent));
        }
    }

    /// The next line, if it differs from the last one.
    fn line(&mut self, progress: InstallProgress) -> Option<String> {
        let hundredths = |total: u64| progress.bytes.saturating_mul(100).checked_div(total).unwrap_or_default();
        let percent = progress.total.map(hundredths).unwrap_or_default() / PERCENT_STEP * PERCENT_STEP;
        let is_new = self.last != Some((progress.phase, percent));
        self.last = Some((progress.phase, percent));
        match progress.total.filter(|_| percent > 0) {
            _ if !is_new => None,
            Some(total) => Some(format!("{percent} % of {} MiB", total / 1024 / 1024)),
            None => Some(progress.phase.to_string()),
        }
    }
}

impl Drop for InstallProgressBar {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_lines_are_few_and_never_repeated() {
        let mut bar = InstallProgressBar { agent: AgentId::Claude, bar: None, last: None };
        let total = Some(400 * 1024 * 1024);
        let mut lines = Vec::new();
        lines.extend(bar.line(InstallProgress { phase: InstallPhase::Resolving, ..InstallProgress::default() }));
        for bytes in (0..=400).map(|mebibytes| mebibytes * 1024 * 1024) {
            lines.extend(bar.line(InstallProgress { phase: InstallPhase::Downloading, bytes, total }));
        }
        lines.extend(bar.line(InstallProgress { phase: InstallPhase::Verifying, ..InstallProgress::default() }));
        let downloaded = ["25 % of 400 MiB", "50 % of 400 MiB", "75 % of 400 MiB", "100 % of 400 MiB"];
        assert_eq!(lines, [&["resolving", "downloading"], &downloaded[..], &["verifying"]].concat());
    }
}
