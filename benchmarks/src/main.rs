//! Measures what `docs/reference/benchmarks.md` shows, each number next to an anchor in the same run.

mod agent;
mod agents;
mod codec;
mod cold;
mod control;
mod exec;
mod files;
mod gvisor;
mod images;
mod jobs;
mod many_sandboxes;
mod measure;
mod memory;
mod pings;
mod report;
mod samples;
mod sandbox;
mod stop;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use crate::measure::MeasurementEffort;
use crate::report::Benchmark;

/// Measures one part of the product.
type Suite = fn(&MeasurementEffort) -> Result<Vec<Benchmark>>;

/// Every suite, in the order of the table; a new one is one line.
const SUITES: &[(&str, Suite)] = &[
    ("codec", codec::run),
    ("cold", cold::run),
    ("gvisor", gvisor::run),
    ("exec", exec::run),
    ("files", files::run),
    ("pings", pings::run),
    ("jobs", jobs::run),
    ("crowd", many_sandboxes::run),
    ("stop", stop::run),
    ("images", images::run),
    ("control-create", control::create::run),
    ("control-exec", control::exec::run),
    ("control-life", control::life::run),
    ("control-events", control::events::run),
    ("control-syncs", control::syncs::run),
    ("control-many", control::many::run),
    ("control-idle", control::idle::run),
    ("agents-start", agents::start::run),
    ("agents-idle", agents::idle::run),
    ("agents-create", agents::create::run),
    ("agents-first", agents::first::run),
    ("agents-burst", agents::burst::run),
    ("agents-many", agents::many::run),
];

const USAGE: &str = "\
usage: bench [--record PATH] [--quick] [--full] [--idle N] [SUITE…]

  --record PATH  write the numbers to PATH as JSON
  --quick        few rounds: shows that everything runs, the numbers mean little
  --full         measure 1,000 idle sandboxes instead of 100
  --idle N       measure N idle sandboxes
  SUITE          only these suites; `control` is all whose names begin so

usage: bench --play PROGRAM

  Acts as the agent of a measured server";

/// The number of idle sandboxes with `--full`.
const FULL_IDLE: usize = 1000;

struct Arguments {
    record: Option<PathBuf>,
    effort: MeasurementEffort,
    suites: Vec<String>,
}

fn main() -> ExitCode {
    let given: Vec<_> = std::env::args().skip(1).collect();
    let done = match given.as_slice() {
        [option, protocol, ..] if option == agents::scripted_agent::OPTION => agents::scripted_agent::run(protocol),
        _ => run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let Some(arguments) = arguments(std::env::args().skip(1))? else {
        println!("{USAGE}");
        return Ok(());
    };
    let mut benchmarks = Vec::new();
    for (name, suite) in chosen(&arguments.suites)? {
        eprintln!("measuring {name}");
        benchmarks.extend(suite(&arguments.effort).with_context(|| format!("the suite {name}"))?);
    }
    print!("{}", report::table(&benchmarks));
    if let Some(path) = arguments.record {
        std::fs::write(&path, report::json(&benchmarks)).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn arguments(words: impl Iterator<Item = String>) -> Result<Option<Arguments>> {
    let mut words = words;
    let mut arguments = Arguments { record: None, effort: MeasurementEffort::FULL, suites: Vec::new() };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--help" | "-h" => return Ok(None),
            "--quick" => arguments.effort = arguments.effort.quick(),
            "--full" => arguments.effort.idle = FULL_IDLE,
            "--idle" => arguments.effort.idle = words.next().context("--idle needs a number")?.parse()?,
            "--record" => arguments.record = Some(words.next().context("--record needs a path")?.into()),
            option if option.starts_with('-') => bail!("unknown option {option}\n{USAGE}"),
            _ => arguments.suites.push(word),
        }
    }
    Ok(Some(arguments))
}

fn chosen(names: &[String]) -> Result<Vec<(&'static str, Suite)>> {
    let is_of = |suite: &str, name: &str| suite.strip_prefix(name).is_some_and(|r| r.is_empty() || r.starts_with('-'));
    if let Some(unknown) = names.iter().find(|name| !SUITES.iter().any(|(suite, _)| is_of(suite, name))) {
        let known: Vec<_> = SUITES.iter().map(|(name, _)| *name).collect();
        bail!("no suite is named {unknown}; there are: {}", known.join(", "));
    }
    let is_chosen = |suite: &str| names.is_empty() || names.iter().any(|name| is_of(suite, name));
    Ok(SUITES.iter().filter(|(suite, _)| is_chosen(suite)).copied().collect())
}
