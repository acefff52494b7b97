//! The cost of a new sandbox for one command, beside other programs that create one.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::measure::MeasurementEffort;
use crate::report::Benchmark;
use crate::samples::in_turn;
use crate::sandbox::BenchmarkHome;

/// A bundle for `runc`: a root with a static `true`, and the configuration that `runc` itself proposes.
struct RuncBundle {
    directory: TempDir,
}

/// Measures whole commands, from start to exit.
pub(crate) fn run(effort: &MeasurementEffort) -> Result<Vec<Benchmark>> {
    let (home, bundle) = (BenchmarkHome::new()?, RuncBundle::new()?);
    let mut carrel = Command::new(home.carrel());
    carrel.args(["run", "host", "--", "true"]).env("CARREL_HOME", home.path());
    let mut bwrap = Command::new("bwrap");
    bwrap.args(["--unshare-all", "--ro-bind", "/", "/", "true"]);
    let mut runc = bundle.runc();
    runc.arg("run").arg("--bundle").arg(bundle.path()).arg(format!("carrel-bench-{}", std::process::id()));

    let rounds = effort.of(201, 5);
    let [ours, bwrap, runc] =
        in_turn(rounds, [&mut || succeed(&mut carrel), &mut || succeed(&mut bwrap), &mut || succeed(&mut runc)])?;
    let line = || Benchmark::new("cold `carrel run host -- true`", "CLI", &ours, "ms");
    Ok(vec![
        line()
            .beside("`bwrap --unshare-all --ro-bind / / true`", &bwrap)
            .aim("at most 3 times", ours.median() <= 3.0 * bwrap.median()),
        line().beside("`runc run` of a static `true`", &runc).aim("faster", ours.median() < runc.median()),
    ])
}

/// Runs a command that must succeed.
pub(crate) fn succeed(command: &mut Command) -> Result<()> {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let status = command.status().with_context(|| format!("cannot start {:?}", command.get_program()))?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}

// === impl RuncBundle ===

impl RuncBundle {
    fn new() -> Result<Self> {
        let bundle = Self { directory: tempfile::tempdir()? };
        let programs = bundle.path().join("rootfs/bin");
        std::fs::create_dir_all(&programs)?;
        std::fs::copy(find_program("busybox")?, programs.join("true"))?;
        succeed(bundle.runc().arg("spec").arg("--bundle").arg(bundle.path()))?;
        let path = bundle.path().join("config.json");
        let mut spec: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
        for (pointer, value) in [("/process/terminal", json!(false)), ("/process/args", json!(["/bin/true"]))] {
            *spec.pointer_mut(pointer).with_context(|| format!("`runc spec` wrote no {pointer}"))? = value;
        }
        std::fs::write(&path, spec.to_string())?;
        Ok(bundle)
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// `runc` with its own state directory.
    fn runc(&self) -> Command {
        let mut command = Command::new("runc");
        command.arg("--root").arg(self.path().join("state"));
        command
    }
}

/// The path of a program.
pub(crate) fn find_program(program: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|directory| directory.join(program)).find(|path| path.is_file());
    found.with_context(|| format!("{program} is not installed; ./bench installs it"))
}
