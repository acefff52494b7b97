//! What a person types: an image by its name in a registry, and one that is made of a sandbox and sent back.

use std::path::Path;
use std::process::{Command, Stdio};

use carrel_tests::{DockerRegistry, agentd_path};

use super::Home;
use super::made::Layout;

/// Runs `carrel` to its end; what it wrote, and what it complained about.
fn carrel(home: &Path, words: &[&str]) -> (String, String) {
    let program = agentd_path().with_file_name("carrel");
    let mut command = Command::new(program);
    command.args(words).env("CARREL_HOME", home).env("XDG_CONFIG_HOME", home).stdin(Stdio::null());
    let output = command.output().unwrap();
    let [out, complained] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(output.status.success(), "{words:?}: {complained}");
    (out, complained)
}

#[test]
fn a_python_image_runs_by_name_and_a_saved_sandbox_runs_elsewhere() {
    let (layout, registry, home) = (Layout::python(), DockerRegistry::open(), Home::new());
    registry.put(layout.path(), layout.tag(), "python:3");
    let (name, own) = (registry.name("python:3"), registry.name("team/tools:1"));
    let python = |home: &Path, image: &str, code: &str| carrel(home, &["run", image, "--", "python3", "-c", code]);

    let (out, progress) =
        python(home.path(), &name, "import os; print(6 * 7, os.getuid(), os.path.exists('/etc/debian_version'))");
    assert_eq!(out, "42 0 True\n");
    assert!(progress.contains(&name), "what is fetched is reported: {progress}");
    let (_, progress) = python(home.path(), &name, "");
    assert_eq!(progress, "", "the second time it is here");

    // A sandbox that is set up becomes an image, while it runs.
    let (place, done) = (home.path().join("place"), home.path().join("place/done"));
    std::fs::create_dir(&place).unwrap();
    let script = "import time, os; open('/srv/word', 'w').write('7'); open('/place/ready', 'w')
while not os.path.exists('/place/done'): time.sleep(0.01)";
    let mount = format!("{}:/place:rw", place.display());
    let mut desk = Command::new(agentd_path().with_file_name("carrel"))
        .args(["run", "--name", "desk", "--mount", &mount, &name, "--", "python3", "-c", script])
        .env("CARREL_HOME", home.path())
        .env("XDG_CONFIG_HOME", home.path())
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !place.join("ready").exists() {
        assert!(desk.try_wait().unwrap().is_none() && std::time::Instant::now() < until, "it does not begin");
        std::thread::yield_now();
    }
    carrel(home.path(), &["image", "save", "--push", "desk", &own]);
    std::fs::write(done, "").unwrap();
    assert!(desk.wait().unwrap().success(), "it went on");

    let elsewhere = Home::new();
    assert_eq!(python(elsewhere.path(), &own, "print(open('/srv/word').read())").0, "7\n");
    let listed = carrel(elsewhere.path(), &["image", "ls", "--json"]).0;
    assert!(listed.contains(&own), "{listed}");
    carrel(elsewhere.path(), &["image", "rm", &own]);
    assert_eq!(elsewhere.kept("layers"), Vec::<String>::new());
}
