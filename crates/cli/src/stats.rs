//! `carrel stats`: resource usage of sandboxes.

use std::collections::HashMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use carrel_shim_client::messages::{SandboxLimits, Statistics};
use carrel_shim_client::{DiscoveredSandbox, Liveness};
use carrel_units::ByteSize;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::arguments::StatsArguments;
use crate::failure::Failure;
use crate::find;
use crate::table::TextTable;

/// The exit code of a failure.
const FAILED: u8 = 1;
/// The text of a value that this host does not measure.
const NONE: &str = "-";
/// The text of a value of a shim that does not respond.
const UNKNOWN: &str = "?";
/// Moves to the first line of a terminal and clears the screen.
const CLEAR_SCREEN: &str = "\x1b[H\x1b[J";

/// The resource usage of a sandbox at one time.
#[derive(Clone, Debug)]
struct StatsSample {
    name: String,
    incarnation: String,
    at: Instant,
    limits: SandboxLimits,
    /// The statistics from its shim, or the problem.
    statistics: Result<Statistics, String>,
}

/// CPU time by incarnation, and when it was read.
type CpuReadings = HashMap<String, (Instant, u64)>;

/// Shows statistics; returns the exit code.
pub(crate) fn stats(arguments: &StatsArguments, json: bool) -> Result<u8, Failure> {
    let streams = std::io::stdout().is_terminal() && !arguments.no_stream;
    let shown = find::runtime()?.block_on(show(arguments, streams, json));
    shown.map_err(|failure| failure.exit(FAILED))
}

async fn show(arguments: &StatsArguments, streams: bool, json: bool) -> Result<u8, Failure> {
    let mut before = CpuReadings::new();
    let mut samples = take(&arguments.names).await?;
    // CPU usage needs two samples; on a terminal, the rest is shown after the first.
    let mut complete = streams;
    loop {
        if complete {
            let text = if json { lines(&samples, &before) } else { table(&samples, &before) };
            let clear = if streams && !json { CLEAR_SCREEN } else { "" };
            crate::write_stdout(format!("{clear}{text}").as_bytes())?;
            if !streams {
                return Ok(0);
            }
        }
        before = samples.iter().filter_map(StatsSample::processor).collect();
        tokio::time::sleep(arguments.interval.0).await;
        samples = take(&arguments.names).await?;
        complete = true;
    }
}

/// Samples the named sandboxes, or all running ones.
///
/// Shims are queried concurrently; one that does not respond keeps its row, and does not delay others.
async fn take(names: &[String]) -> Result<Vec<StatsSample>, Failure> {
    let wanted: Vec<(String, DiscoveredSandbox)> = match names {
        [] => {
            let running = find::all()?.into_iter().filter(|found| found.life == Liveness::Running);
            let named = |found: DiscoveredSandbox| Some((found.record.as_ref()?.name.clone(), found));
            let mut wanted: Vec<_> = running.filter_map(named).collect();
            wanted.sort_by(|one, other| one.0.cmp(&other.0));
            wanted
        }
        names => {
            let mut wanted = Vec::new();
            for name in names {
                wanted.push((name.clone(), find::one(name).await?));
            }
            wanted
        }
    };
    let mut taking = JoinSet::new();
    for (position, (name, found)) in wanted.into_iter().enumerate() {
        taking.spawn(async move { (position, sample(name, found).await) });
    }
    let mut taken = taking.join_all().await;
    taken.sort_by_key(|(position, _)| *position);
    let taken = taken.into_iter().map(|(_, sample)| sample);
    // Without names, a sandbox that has just stopped is omitted.
    if names.is_empty() { Ok(taken.filter_map(Result::ok).collect()) } else { taken.collect() }
}

async fn sample(name: String, found: DiscoveredSandbox) -> Result<StatsSample, Failure> {
    let request = async {
        let mut client = find::connect(&name, &found).await?;
        find::with_timeout(async { Ok(client.statistics().await?) }).await
    };
    let statistics = match request.await {
        Ok(statistics) => Ok(statistics),
        Err(failure) => match find::existing(&name) {
            Ok(Some(again)) if again.life == Liveness::Running => Err(failure.message),
            _ => return Err(failure),
        },
    };
    let at = Instant::now();
    let (incarnation, limits) =
        found.record.map(|record| (record.incarnation, record.create.limits)).unwrap_or_default();
    Ok(StatsSample { name, incarnation, at, limits, statistics })
}

fn table(samples: &[StatsSample], before: &CpuReadings) -> String {
    let mut table = TextTable::new(["NAME", "CPU", "MEMORY / LIMIT", "PIDS / LIMIT", "CLIENTS IN", "CLIENTS OUT"]);
    let or_none = |text: Option<String>| text.unwrap_or_else(|| NONE.to_owned());
    for sample in samples {
        let Ok(Statistics { memory_bytes, pids, bytes_in, bytes_out, paused, .. }) = sample.statistics else {
            let unknown = || UNKNOWN.to_owned();
            table.row([sample.name.clone(), unknown(), unknown(), unknown(), unknown(), unknown()]);
            continue;
        };
        let memory = memory_bytes.map(|bytes| ByteSize(bytes).to_string());
        let most = sample.limits.memory.map(|bytes| ByteSize(bytes).to_string());
        let processor = sample.percent(before).map(|percent| format!("{percent:.1} %"));
        table.row([
            sample.name.clone(),
            if paused { "paused".to_owned() } else { or_none(processor) },
            format!("{} / {}", or_none(memory), or_none(most)),
            format!(
                "{} / {}",
                or_none(pids.map(|pids| pids.to_string())),
                or_none(sample.limits.pids.map(|most| most.to_string()))
            ),
            ByteSize(bytes_in).to_string(),
            ByteSize(bytes_out).to_string(),
        ]);
    }
    table.to_string()
}

/// Samples as JSON lines.
fn lines(samples: &[StatsSample], before: &CpuReadings) -> String {
    samples.iter().map(|sample| crate::json::line(&sample.json(before))).collect()
}

// === impl StatsSample ===

impl StatsSample {
    fn processor(&self) -> Option<(String, (Instant, u64))> {
        Some((self.incarnation.clone(), (self.at, self.nanos()?)))
    }

    fn nanos(&self) -> Option<u64> {
        self.statistics.as_ref().ok()?.cpu_nanos
    }

    /// CPU usage since the previous sample, in percent of one CPU.
    fn percent(&self, before: &CpuReadings) -> Option<f64> {
        let (at, nanos) = before.get(&self.incarnation)?;
        let used = Duration::from_nanos(self.nanos()?.saturating_sub(*nanos));
        let passed = self.at.checked_duration_since(*at).filter(|passed| !passed.is_zero())?;
        Some(used.as_secs_f64() / passed.as_secs_f64() * 100.0)
    }

    fn json(&self, before: &CpuReadings) -> Value {
        let statistics = match &self.statistics {
            Ok(statistics) => statistics,
            Err(problem) => return json!({"name": &self.name, "problem": problem}),
        };
        json!({
            "name": &self.name,
            "cpu_percent": self.percent(before).map(|percent| (percent * 100.0).round() / 100.0),
            "cpu_nanos": statistics.cpu_nanos,
            "memory_bytes": statistics.memory_bytes,
            "memory_peak": statistics.memory_peak,
            "memory_limit": self.limits.memory,
            "out_of_memory_kills": statistics.out_of_memory_kills,
            "pids": statistics.pids,
            "pids_limit": self.limits.pids,
            "clients": statistics.clients,
            "bytes_in": statistics.bytes_in,
            "bytes_out": statistics.bytes_out,
            "stray_frames": statistics.stray_frames,
            "paused": statistics.paused,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at: Instant, cpu_nanos: Option<u64>) -> StatsSample {
        let limits = SandboxLimits { memory: Some(64 << 20), pids: None, cpu_millis: None };
        let statistics = Statistics {
            memory_bytes: Some(3 << 19),
            pids: Some(3),
            cpu_nanos,
            bytes_in: 10,
            bytes_out: 2048,
            ..Statistics::default()
        };
        StatsSample { name: "web".to_owned(), incarnation: "00ff".to_owned(), at, limits, statistics: Ok(statistics) }
    }

    #[test]
    fn cpu_usage_is_measured_between_two_samples() {
        let began = Instant::now();
        let before = sample(began, Some(1_000_000_000)).processor().into_iter().collect();
        let later = sample(began + Duration::from_secs(2), Some(4_000_000_000));
        assert_eq!(later.percent(&before), Some(150.0));
        assert_eq!(later.percent(&CpuReadings::new()), None);
        assert_eq!(sample(began, Some(1)).percent(&before), None, "no time has passed");
        assert_eq!(sample(began + Duration::from_secs(1), None).percent(&before), None);
        let text = "NAME  CPU      MEMORY / LIMIT    PIDS / LIMIT  CLIENTS IN  CLIENTS OUT\n\
                    web   150.0 %  1.5 MiB / 64 MiB  3 / -         10 bytes    2 KiB\n";
        assert_eq!(table(std::slice::from_ref(&later), &before), text);
        let json = later.json(&before);
        assert_eq!(
            (json.get("cpu_percent"), json.get("memory_limit")),
            (Some(&json!(150.0)), Some(&json!(67_108_864)))
        );
    }

    #[test]
    fn values_that_this_host_does_not_measure_are_blank() {
        let mut blank = sample(Instant::now(), None);
        let counted = Statistics { bytes_in: 10, bytes_out: 2048, ..Statistics::default() };
        (blank.statistics, blank.limits) = (Ok(counted.clone()), SandboxLimits::default());
        let text = table(&[blank.clone()], &CpuReadings::new());
        assert!(text.ends_with("\nweb   -    - / -           - / -         10 bytes    2 KiB\n"), "{text}");
        blank.statistics = Ok(Statistics { paused: true, ..counted });
        assert!(table(&[blank], &CpuReadings::new()).contains("web   paused"));
    }

    #[test]
    fn a_sandbox_that_does_not_respond_keeps_its_row() {
        let silent = StatsSample { statistics: Err("no response".to_owned()), ..sample(Instant::now(), None) };
        let text = table(std::slice::from_ref(&silent), &CpuReadings::new());
        assert!(text.ends_with("\nweb   ?    ?               ?             ?           ?\n"), "{text}");
        assert_eq!(silent.json(&CpuReadings::new()), json!({"name": "web", "problem": "no response"}));
        assert!(silent.processor().is_none());
    }
}
