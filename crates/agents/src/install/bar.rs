//! How far an install is, for people: a bar on a terminal, lines elsewhere, both on standard error.

use std::io::{IsTerminal, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{Phase, Progress};
use crate::agent::AgentId;

/// How often a bar is drawn, in a second.
const RATE: u8 = 10;
const STYLE: &str = "{prefix}  {bar:28}  {bytes:>11} / {total_bytes:<11}  {binary_bytes_per_sec}  {msg}";
/// A line is written each time so many hundredths have come.
const STEP: u64 = 25;

/// Tells how far an install is.
pub struct Bar {
    agent: AgentId,
    bar: Option<ProgressBar>,
    last: Option<(Phase, u64)>,
}

// === impl Bar ===

impl Bar {
    /// Of one agent.
    pub fn new(agent: AgentId) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(RATE));
            bar.set_prefix(agent.to_string());
            bar.with_style(ProgressStyle::with_template(STYLE).unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        Self { agent, bar, last: None }
    }

    /// This far.
    pub fn tell(&mut self, progress: Progress) {
        if let Some(bar) = &self.bar {
            if progress.phase == Phase::Downloading {
                bar.set_position(progress.bytes);
                progress.total.into_iter().for_each(|total| bar.set_length(total));
            }
            return bar.set_message(progress.phase.to_string());
        }
        if let Some(line) = self.line(progress) {
            // Nobody is left to tell when standard error is gone.
            drop(writeln!(std::io::stderr(), "{}: {line}", self.agent));
        }
    }

    /// What there is to say that was not said before.
    fn line(&mut self, progress: Progress) -> Option<String> {
        let hundredths = |total: u64| progress.bytes.saturating_mul(100).checked_div(total).unwrap_or_default();
        let come = progress.total.map(hundredths).unwrap_or_default() / STEP * STEP;
        let is_new = self.last != Some((progress.phase, come));
        self.last = Some((progress.phase, come));
        match progress.total.filter(|_| come > 0) {
            _ if !is_new => None,
            Some(total) => Some(format!("{come} % of {} MiB", total / 1024 / 1024)),
            None => Some(progress.phase.to_string()),
        }
    }
}

impl Drop for Bar {
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
    fn lines_are_few_and_say_what_is_new() {
        let mut bar = Bar { agent: AgentId::Claude, bar: None, last: None };
        let total = Some(400 * 1024 * 1024);
        let mut lines = Vec::new();
        lines.extend(bar.line(Progress { phase: Phase::Asking, ..Progress::default() }));
        for bytes in (0..=400).map(|mebibytes| mebibytes * 1024 * 1024) {
            lines.extend(bar.line(Progress { phase: Phase::Downloading, bytes, total }));
        }
        lines.extend(bar.line(Progress { phase: Phase::Checking, ..Progress::default() }));
        let downloaded = ["25 % of 400 MiB", "50 % of 400 MiB", "75 % of 400 MiB", "100 % of 400 MiB"];
        assert_eq!(lines, [&["asking", "downloading"], &downloaded[..], &["checking"]].concat());
    }
}
