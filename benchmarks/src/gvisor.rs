//! The cost of a new sandbox on gVisor, beside `runsc` itself.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use serde_json::json;
use tempfile::TempDir;

use crate::cold::{find_program, succeed};
use crate::measure::MeasurementEffort;
use crate::report::Benchmark;
use crate::samples::in_turn;
use crate::sandbox::BenchmarkHome;

/// A bundle for `runsc` with a static `true`.
struct RunscBundle {
    directory: TempDir,
}

/// Measures whole commands, from start to exit.
pub(crate) fn run(effort: &MeasurementEffort) -> Result<Vec<Benchmark>> {
    let (home, bundle) = (BenchmarkHome::new()?, RunscBundle::new()?);
    let carrel = |isolation: &str| {
        let mut command = Command::new(home.carrel());
        command.args(["run", "--isolation", isolation, "host", "--", "true"]).env("CARREL_HOME", home.path());
        command
    };
    let (mut ours, mut plain) = (carrel("gvisor"), carrel("namespaces"));
    let mut runsc = Command::new(find_program("runsc")?);
    // The same options as Carrel uses.
    runsc.args(["--network=none", "--ignore-cgroups", "--overlay2=none", "--root"]).arg(bundle.path().join("state"));
    runsc.arg("run").arg("--bundle").arg(bundle.path()).arg(format!("carrel-bench-{}", std::process::id()));

    let rounds = effort.of(51, 3);
    let [ours, plain, runsc] =
        in_turn(rounds, [&mut || succeed(&mut ours), &mut || succeed(&mut plain), &mut || succeed(&mut runsc)])?;
    let line = || Benchmark::new("cold `carrel run --isolation gvisor host -- true`", "CLI", &ours, "ms");
    Ok(vec![
        line()
            .beside("`runsc run` of a static `true`", &runsc)
            .aim("at most 2 times", ours.median() <= 2.0 * runsc.median()),
        line().beside("cold `carrel run host -- true`", &plain),
    ])
}

// === impl RunscBundle ===

impl RunscBundle {
    fn new() -> Result<Self> {
        let bundle = Self { directory: tempfile::tempdir()? };
        let programs = bundle.path().join("rootfs/bin");
        std::fs::create_dir_all(&programs)?;
        std::fs::copy(find_program("busybox")?, programs.join("true"))?;
        let namespaces = ["pid", "network", "ipc", "uts", "mount"].map(|kind| json!({"type": kind}));
        let configuration = json!({
            "ociVersion": "1.0.0",
            "process": {"user": {"uid": 0, "gid": 0}, "args": ["/bin/true"], "cwd": "/", "terminal": false},
            "root": {"path": "rootfs", "readonly": true},
            "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
            "linux": {"namespaces": namespaces},
        });
        std::fs::write(bundle.path().join("config.json"), configuration.to_string())?;
        Ok(bundle)
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }
}
