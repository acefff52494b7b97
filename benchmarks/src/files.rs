//! The throughput of file transfers, beside `cp` of the same file.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use carrel_agent_client::AgentClient;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::agent::MeasuredAgent;
use crate::measure::MeasurementEffort;
use crate::report::Benchmark;
use crate::samples::{Samples, in_turn};
use crate::sandbox::MeasuredSandbox;

const MEBIBYTE: usize = 1024 * 1024;

/// A file so large that the start of `cp` does not matter, and the targets of its copies.
struct SourceFile {
    directory: TempDir,
    mebibytes: usize,
    rounds: usize,
}

/// A transfer path: a face, a client, and the path of the file inside.
struct TransferPath<'a> {
    face: &'static str,
    runtime: &'a Runtime,
    client: &'a AgentClient,
    inside: String,
    aim: &'static str,
    target: f64,
}

/// Measures transfers to an agent that runs alone and into a sandbox.
pub(crate) fn run(effort: &MeasurementEffort) -> Result<Vec<Benchmark>> {
    let original = SourceFile::new(effort.of(256, 16), effort.of(11, 3))?;
    let agent = MeasuredAgent::start()?;
    let mut lines = original.both_directions(&TransferPath {
        face: "agent client",
        runtime: &agent.runtime,
        client: &agent.client,
        inside: original.path("inside").to_string_lossy().into_owned(),
        aim: "at least 0.5 of its speed",
        target: 0.5,
    })?;
    drop(agent);
    let sandbox = MeasuredSandbox::start()?;
    lines.extend(original.both_directions(&TransferPath {
        face: "agent client, relay",
        runtime: &sandbox.runtime,
        client: &sandbox.client,
        inside: "/inside".to_owned(),
        aim: "at least 0.35 of its speed",
        target: 0.35,
    })?);
    Ok(lines)
}

// === impl SourceFile ===

impl SourceFile {
    fn new(mebibytes: usize, rounds: usize) -> Result<Self> {
        let original = Self { directory: tempfile::tempdir()?, mebibytes, rounds };
        let mut file = File::create(original.path("original"))?;
        for number in 0..mebibytes {
            file.write_all(&vec![u8::try_from(number % 251)?; MEBIBYTE])?;
        }
        Ok(original)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn both_directions(&self, path: &TransferPath<'_>) -> Result<Vec<Benchmark>> {
        let (original, copy, outside) = (self.path("original"), self.path("copy"), self.path("outside"));
        let files = path.client.files();
        let all = |transferred: u64| {
            ensure!(transferred == (self.mebibytes * MEBIBYTE) as u64, "only {transferred} bytes were transferred");
            Ok(())
        };
        // Each to a new file, as with `cp`: a file system may flush one that was truncated and rewritten.
        let mut upload = || {
            let _may_be_missing = path.runtime.block_on(files.remove(&path.inside));
            all(path.runtime.block_on(files.upload_file(&path.inside, File::open(&original)?))?)
        };
        let [ours, theirs] = in_turn(self.rounds, [&mut upload, &mut || cp(&original, &copy)])?;
        let inward = self.line(path, "in", &ours, &theirs);
        let mut download = || {
            let _may_be_missing = std::fs::remove_file(&outside);
            all(path.runtime.block_on(files.download_file(&path.inside, File::create(&outside)?))?)
        };
        let [ours, theirs] = in_turn(self.rounds, [&mut download, &mut || cp(&original, &copy)])?;
        ensure!(std::fs::read(&original)? == std::fs::read(&outside)?, "the file changed during the transfer");
        Ok(vec![inward, self.line(path, "out", &ours, &theirs)])
    }

    fn line(&self, path: &TransferPath<'_>, direction: &str, ours: &Samples, cp: &Samples) -> Benchmark {
        let speed = |milliseconds: f64| self.mebibytes as f64 / milliseconds * 1e3;
        let name = format!("file {direction}, {} MiB", self.mebibytes);
        let (ours, cp) = (speed(ours.median()), speed(cp.median()));
        Benchmark::new(name, path.face, ours, "MiB/s")
            .beside("`cp` of the same file", cp)
            .aim(path.aim, ours / cp >= path.target)
    }
}

fn cp(from: &Path, to: &Path) -> Result<()> {
    let _may_be_missing = std::fs::remove_file(to);
    ensure!(Command::new("cp").arg(from).arg(to).status()?.success(), "cp failed");
    Ok(())
}
