//! How fast a file moves in and out, beside `cp` of the same file.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use carrel_agent_client::AgentClient;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::agent::Agent;
use crate::measure::Effort;
use crate::report::Benchmark;
use crate::samples::{Samples, in_turn};
use crate::sandbox::Sandbox;

const MEBIBYTE: usize = 1024 * 1024;

/// A file of a size for which starting `cp` does not matter, and where its copies go.
struct Original {
    directory: TempDir,
    mebibytes: usize,
    rounds: usize,
}

/// A way to move it: a face, a client, and where the file is inside.
struct Way<'a> {
    face: &'static str,
    runtime: &'a Runtime,
    client: &'a AgentClient,
    inside: String,
    aim: &'static str,
    wanted: f64,
}

/// Measures files, to an agent that is alone and into a sandbox.
pub(crate) fn run(effort: &Effort) -> Result<Vec<Benchmark>> {
    let original = Original::new(effort.of(256, 16), effort.of(11, 3))?;
    let agent = Agent::start()?;
    let mut lines = original.both_ways(&Way {
        face: "agent client",
        runtime: &agent.runtime,
        client: &agent.client,
        inside: original.path("inside").to_string_lossy().into_owned(),
        aim: "at least 0.5 of its speed",
        wanted: 0.5,
    })?;
    drop(agent);
    let sandbox = Sandbox::start()?;
    lines.extend(original.both_ways(&Way {
        face: "agent client, relay",
        runtime: &sandbox.runtime,
        client: &sandbox.client,
        inside: "/inside".to_owned(),
        aim: "at least 0.35 of its speed",
        wanted: 0.35,
    })?);
    Ok(lines)
}

// === impl Original ===

impl Original {
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

    fn both_ways(&self, way: &Way<'_>) -> Result<Vec<Benchmark>> {
        let (original, copy, outside) = (self.path("original"), self.path("copy"), self.path("outside"));
        let files = way.client.files();
        let all = |moved: u64| {
            ensure!(moved == (self.mebibytes * MEBIBYTE) as u64, "only {moved} bytes were moved");
            Ok(())
        };
        // Each to a new file, as `cp` below: a file system may flush one that was emptied and filled again.
        let mut upload = || {
            let _none_is_fine = way.runtime.block_on(files.remove(&way.inside));
            all(way.runtime.block_on(files.upload_file(&way.inside, File::open(&original)?))?)
        };
        let [ours, theirs] = in_turn(self.rounds, [&mut upload, &mut || cp(&original, &copy)])?;
        let inward = self.line(way, "in", &ours, &theirs);
        let mut download = || {
            let _none_is_fine = std::fs::remove_file(&outside);
            all(way.runtime.block_on(files.download_file(&way.inside, File::create(&outside)?))?)
        };
        let [ours, theirs] = in_turn(self.rounds, [&mut download, &mut || cp(&original, &copy)])?;
        ensure!(std::fs::read(&original)? == std::fs::read(&outside)?, "the file changed on its way");
        Ok(vec![inward, self.line(way, "out", &ours, &theirs)])
    }

    fn line(&self, way: &Way<'_>, direction: &str, ours: &Samples, cp: &Samples) -> Benchmark {
        let speed = |milliseconds: f64| self.mebibytes as f64 / milliseconds * 1e3;
        let name = format!("file {direction}, {} MiB", self.mebibytes);
        let (ours, cp) = (speed(ours.median()), speed(cp.median()));
        Benchmark::new(name, way.face, ours, "MiB/s")
            .beside("`cp` of the same file", cp)
            .aim(way.aim, ours / cp >= way.wanted)
    }
}

fn cp(from: &Path, to: &Path) -> Result<()> {
    let _none_is_fine = std::fs::remove_file(to);
    ensure!(Command::new("cp").arg(from).arg(to).status()?.success(), "cp failed");
    Ok(())
}
