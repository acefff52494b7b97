//! Progress of pulling and saving images: bars on a terminal, lines elsewhere, both on standard error.

use std::io::{IsTerminal, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use carrel_changes::EscapedLine;
use carrel_layers::{Descriptor, LayerOutcome, PullProgress};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use carrel_units::ByteSize;

/// How often bars are drawn per second.
const RATE: u8 = 10;
/// The most layers with a bar each; of more, only the sum is shown.
const MAX_BARS: usize = 24;
/// The length of a short digest.
const SHORT: usize = 12;
const LAYER: &str = "  {prefix}  {bar:28}  {bytes:>11} / {total_bytes:<11}  {msg}";
const SUM: &str = "{prefix}  {bar:28}  {bytes:>11} / {total_bytes:<11}  {binary_bytes_per_sec}  {msg}";

/// Reports the progress of one image.
pub(crate) struct ImageProgress {
    what: String,
    output: ProgressOutput,
    state: Mutex<ProgressState>,
}

/// Where progress is shown.
enum ProgressOutput {
    Bars(MultiProgress),
    Lines,
    Nothing,
}

#[derive(Default)]
struct ProgressState {
    layers: Vec<LayerProgress>,
    sum: Option<ProgressBar>,
}

struct LayerProgress {
    name: String,
    size: u64,
    fetched: u64,
    is_done: bool,
    bar: Option<ProgressBar>,
}

// === impl ImageProgress ===

impl ImageProgress {
    pub(crate) fn new(what: &str, quiet: bool) -> Self {
        let output = if quiet {
            ProgressOutput::Nothing
        } else if std::io::stderr().is_terminal() {
            ProgressOutput::Bars(MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(RATE)))
        } else {
            ProgressOutput::Lines
        };
        Self { what: EscapedLine(what).to_string(), output, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, ProgressState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn line(&self, text: &str) {
        match &self.output {
            ProgressOutput::Nothing => {}
            // Nothing can be reported if standard error is closed.
            ProgressOutput::Lines => drop(writeln!(std::io::stderr(), "{}: {text}", self.what)),
            ProgressOutput::Bars(bars) => drop(bars.println(format!("{}: {text}", self.what))),
        }
    }
}

impl Drop for ImageProgress {
    fn drop(&mut self) {
        let ProgressOutput::Bars(bars) = &self.output else { return };
        // Bars are replaced by one line.
        let _cleared = bars.clear();
        let state = self.lock();
        if !state.layers.is_empty() && state.layers.iter().all(|layer| layer.is_done) {
            let size = ByteSize(state.layers.iter().map(|layer| layer.size).sum());
            let _written = writeln!(std::io::stderr(), "{}: {}, {size}", self.what, layers(state.layers.len()));
        }
    }
}

impl PullProgress for ImageProgress {
    fn begin(&self, layers: &[Descriptor]) {
        let total: u64 = layers.iter().map(|layer| layer.size).sum();
        let mut state = self.lock();
        state.layers = layers.iter().map(LayerProgress::new).collect();
        match &self.output {
            ProgressOutput::Nothing => {}
            ProgressOutput::Lines => self.line(&format!("{}, {}", self::layers(layers.len()), ByteSize(total))),
            ProgressOutput::Bars(bars) => {
                if state.layers.len() <= MAX_BARS {
                    for layer in &mut state.layers {
                        layer.bar = Some(bars.add(bar(layer.size, LAYER, &layer.name)));
                    }
                }
                state.sum = Some(bars.add(bar(total, SUM, &self.what)));
            }
        }
    }

    fn fetched(&self, layer: usize, bytes: u64) {
        let mut state = self.lock();
        let Some(one) = state.layers.get_mut(layer) else { return };
        one.fetched = bytes;
        if let Some(bar) = &one.bar {
            bar.set_position(bytes);
            if bytes >= one.size {
                bar.set_message("unpacking");
            }
        }
        let all = state.layers.iter().map(|layer| layer.fetched).sum();
        if let Some(sum) = &state.sum {
            sum.set_position(all);
        }
    }

    fn layer_done(&self, layer: usize, how: LayerOutcome) {
        let mut state = self.lock();
        let count = state.layers.len();
        let Some(one) = state.layers.get_mut(layer) else { return };
        (one.is_done, one.fetched) = (true, one.size);
        let words = match how {
            LayerOutcome::AlreadyPresent => "is present",
            LayerOutcome::Fetched => "fetched",
        };
        if let Some(bar) = one.bar.take() {
            bar.finish_with_message(words);
        }
        let line = format!("layer {} of {count} {words}, {} ({})", layer + 1, ByteSize(one.size), one.name);
        let done = state.layers.iter().filter(|layer| layer.is_done).count();
        let all = state.layers.iter().map(|layer| layer.fetched).sum();
        if let Some(sum) = &state.sum {
            sum.set_position(all);
            sum.set_message(format!("{done}/{count} layers"));
        }
        if let ProgressOutput::Lines = self.output {
            self.line(&line);
        }
    }

    fn message(&self, text: &str) {
        self.line(&EscapedLine(text).to_string());
    }
}

fn layers(count: usize) -> String {
    if count == 1 { "1 layer".to_owned() } else { format!("{count} layers") }
}

fn bar(length: u64, template: &str, prefix: &str) -> ProgressBar {
    // Hidden until it is added, so that nothing is drawn in the wrong position.
    let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::hidden());
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.set_style(style.progress_chars("=> "));
    bar.set_prefix(prefix.to_owned());
    bar
}

// === impl LayerProgress ===

impl LayerProgress {
    fn new(layer: &Descriptor) -> Self {
        let name = layer.digest.hex().chars().take(SHORT).collect();
        Self { name, size: layer.size, fetched: 0, is_done: false, bar: None }
    }
}
