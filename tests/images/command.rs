//! The CLI with registries: an image by its name, and one that is saved from a sandbox and pushed.

use std::path::Path;
use std::process::{Command, Stdio};

use carrel_tests::{DockerRegistry, agentd_path};

use super::PullerHome;
use super::fixtures::ImageFixture;

/// Runs `carrel` to its end; returns its stdout and stderr.
fn carrel(home: &Path, arguments: &[&str]) -> (String, String) {
    let program = agentd_path().with_file_name("carrel");
    let mut command = Command::new(program);
    command.args(arguments).env("CARREL_HOME", home).env("XDG_CONFIG_HOME", home).stdin(Stdio::null());
    let output = command.output().unwrap();
    let [stdout, stderr] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(output.status.success(), "{arguments:?}: {stderr}");
    (stdout, stderr)
}

#[test]
fn a_python_image_runs_by_name_and_a_saved_sandbox_runs_elsewhere() {
    let (layout, registry, home) = (ImageFixture::python(), DockerRegistry::open(), PullerHome::new());
    registry.push(layout.path(), layout.tag(), "python:3");
    let (name, own) = (registry.name("python:3"), registry.name("team/tools:1"));
    let python = |home: &Path, image: &str, code: &str| carrel(home, &["run", image, "--", "python3", "-c", code]);

    let (out, progress) =
        python(home.path(), &name, "import os; print(6 * 7, os.getuid(), os.path.exists('/etc/debian_version'))");
    assert_eq!(out, "42 0 True\n");
    assert!(progress.contains(&name), "the pull is reported: {progress}");
    let (_, progress) = python(home.path(), &name, "");
    assert_eq!(progress, "", "the second time it is in the store");

    // A running sandbox is saved as an image.
    let (shared, done) = (home.path().join("shared"), home.path().join("shared/done"));
    std::fs::create_dir(&shared).unwrap();
    let script = "import time, os; open('/srv/word', 'w').write('7'); open('/shared/ready', 'w')
while not os.path.exists('/shared/done'): time.sleep(0.01)";
    let mount = format!("{}:/shared:rw", shared.display());
    let mut sandbox = Command::new(agentd_path().with_file_name("carrel"))
        .args(["run", "--name", "saved", "--mount", &mount, &name, "--", "python3", "-c", script])
        .env("CARREL_HOME", home.path())
        .env("XDG_CONFIG_HOME", home.path())
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !shared.join("ready").exists() {
        assert!(
            sandbox.try_wait().unwrap().is_none() && std::time::Instant::now() < until,
            "the sandbox does not start"
        );
        std::thread::yield_now();
    }
    carrel(home.path(), &["image", "save", "--push", "saved", &own]);
    std::fs::write(done, "").unwrap();
    assert!(sandbox.wait().unwrap().success(), "it continued after the save");

    let elsewhere = PullerHome::new();
    assert_eq!(python(elsewhere.path(), &own, "print(open('/srv/word').read())").0, "7\n");
    let listed = carrel(elsewhere.path(), &["image", "ls", "--json"]).0;
    assert!(listed.contains(&own), "{listed}");
    carrel(elsewhere.path(), &["image", "rm", &own]);
    assert_eq!(elsewhere.stored("layers"), Vec::<String>::new());
}
