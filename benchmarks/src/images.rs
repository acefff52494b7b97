//! Images: from a registry or a layout to the exit of a command, beside programs that only unpack; and the cost of layers.

mod peers;
mod registry;
mod test_image;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use self::peers::{EmptyDirectory, Podman};
use self::registry::LoopbackRegistry;
use self::test_image::TestImage;
use crate::measure::MeasurementEffort;
use crate::report::Benchmark;
use crate::samples::{in_turn, since, timed_in_turn};
use crate::sandbox::BenchmarkHome;

const FACE: &str = "CLI";
/// The size of each layer of the large image, and their number.
const LAYER: u64 = 64 << 20;
const LAYERS: usize = 4;
/// The number of layers of the image with many.
const MANY: usize = 30;

/// Measures whole commands with an empty store.
pub(crate) fn run(effort: &MeasurementEffort) -> Result<Vec<Benchmark>> {
    let directory = tempfile::Builder::new().prefix("carrel-bench-").tempdir_in("/var/tmp")?;
    let mut lines = empty_store(effort, directory.path())?;
    lines.push(many_layers(effort, directory.path())?);
    Ok(lines)
}

/// Images that have to be pulled or unpacked.
fn empty_store(effort: &MeasurementEffort, directory: &Path) -> Result<Vec<Benchmark>> {
    let large = TestImage::of_this_host(&directory.join("large"), LAYERS, LAYER)?;
    let registry = LoopbackRegistry::start(&directory.join("registry"))?;
    let name = registry.push(&large, "large")?;
    let layout = large.reference();
    let carrel = |home: &Path, arguments: &[&str]| {
        let mut command = Command::new(self::carrel()?);
        command.args(arguments).env("CARREL_HOME", home);
        timed(&mut command)
    };
    let rounds = effort.of(7, 1);
    let [started, pulled, podman] = timed_in_turn(
        rounds,
        [
            &mut || EmptyDirectory::in_(directory, |empty| carrel(empty, &["run", &name, "--", "/bin/true"])),
            &mut || EmptyDirectory::in_(directory, |empty| carrel(empty, &["image", "pull", &name])),
            &mut || EmptyDirectory::in_(directory, |empty| Podman::new(empty).pull(&name)),
        ],
    )?;
    let [unpacked, umoci] = timed_in_turn(
        rounds,
        [
            &mut || EmptyDirectory::in_(directory, |empty| carrel(empty, &["run", &layout, "--", "/bin/true"])),
            &mut || {
                EmptyDirectory::in_(directory, |empty| {
                    let mut umoci = Command::new("umoci");
                    umoci.args(["unpack", "--image"]).arg(large.image()).arg(empty.join("bundle"));
                    timed(&mut umoci)
                })
            },
        ],
    )?;
    let line = |name: &'static str, ours| Benchmark::new(name, FACE, ours, "ms");
    Ok(vec![
        line("image of 4 layers from a registry, unpacked, to the end of `true` in it", &started)
            .beside("`podman pull` alone", &podman)
            .aim("faster", started.median() < podman.median()),
        line("image of 4 layers from a registry, unpacked", &pulled)
            .beside("`podman pull`", &podman)
            .aim("faster", pulled.median() < podman.median()),
        line("image of 4 layers from a layout, unpacked, to the end of `true` in it", &unpacked)
            .beside("`umoci unpack` alone", &umoci)
            .aim("faster", unpacked.median() < umoci.median()),
    ])
}

/// Images that are already in the store.
fn many_layers(effort: &MeasurementEffort, directory: &Path) -> Result<Benchmark> {
    let home = BenchmarkHome::new()?;
    let mut commands = Vec::new();
    for (name, layers) in [("one", 1), ("many", MANY)] {
        let reference = TestImage::small(&directory.join(name), layers)?.reference();
        let mut command = Command::new(carrel()?);
        command.args(["run", &reference, "--", "/bin/true"]).env("CARREL_HOME", home.path());
        // Unpacked once, before anything is measured.
        timed(&mut command)?;
        commands.push(command);
    }
    let [one, many] = commands.as_mut_slice() else { anyhow::bail!("two commands are expected") };
    let [one, many] = in_turn(effort.of(101, 5), [&mut || timed(one).map(drop), &mut || timed(many).map(drop)])?;
    Ok(Benchmark::new("`carrel run` of an image with 30 layers that is here", FACE, &many, "ms")
        .beside("of one with 1 layer", &one)
        .aim("at most 1.5 times", many.median() <= 1.5 * one.median()))
}

fn carrel() -> Result<std::path::PathBuf> {
    Ok(crate::sandbox::programs()?.shim.with_file_name("carrel"))
}

/// Runs a command that must succeed, and returns the milliseconds that it took.
fn timed(command: &mut Command) -> Result<f64> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let started = Instant::now();
    let output = command.output().with_context(|| format!("cannot start {:?}", command.get_program()))?;
    let elapsed = since(started);
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(elapsed)
}
