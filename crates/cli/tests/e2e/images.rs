//! Images: imported, listed, used, saved from sandboxes, and removed.

use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{CommandOutput, RunningCommand, TestEnvironment};

/// A root file system with busybox, and a file that identifies it.
pub(crate) fn root(mark: &str) -> TempDir {
    let root = tempfile::tempdir_in("/var/tmp").unwrap();
    let at = |path: &str| root.path().join(path);
    std::fs::set_permissions(root.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    for directory in ["bin", "etc"] {
        std::fs::create_dir(at(directory)).unwrap();
    }
    std::fs::copy("/bin/busybox", at("bin/busybox")).unwrap();
    for name in ["sh", "id", "cat", "echo", "pwd", "touch", "mkdir", "rm", "ls", "stat", "env", "true"] {
        symlink("busybox", at("bin").join(name)).unwrap();
    }
    std::fs::write(at("etc/passwd"), "root:x:0:0::/root:/bin/sh\nnode:x:1001:1001::/home/node:/bin/sh\n").unwrap();
    std::fs::write(at("mark"), mark).unwrap();
    root
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The output of a successful command.
fn stdout(outcome: &CommandOutput) -> String {
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    String::from_utf8(outcome.stdout.clone()).unwrap()
}

/// The output of a command that reads a line.
fn answered(mut running: RunningCommand, line: &str) -> String {
    running.child.stdin.take().unwrap().write_all(line.as_bytes()).unwrap();
    stdout(&running.finish())
}

impl TestEnvironment {
    /// Imports a directory into the store under a name.
    fn import(&self, flags: &[&str], root: &TempDir, name: &str) -> String {
        let words = ["image", "import"].iter().chain(flags).copied().chain([text(root.path()), name]);
        stdout(&self.carrel(words)).trim().to_owned()
    }

    fn image_names(&self) -> Vec<String> {
        let listed = stdout(&self.carrel(["--json", "image", "ls"]));
        let all = listed.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let names = all.flat_map(|image| image["names"].as_array().unwrap().clone());
        names.map(|name| name.as_str().unwrap().to_owned()).collect()
    }

    fn has_image(&self, name: &str) -> bool {
        self.image_names().iter().any(|known| known.ends_with(name))
    }
}

//= promises.images.image-says-about-commands
#[test]
fn the_configuration_of_an_image_applies_and_can_be_overridden() {
    let (env, root) = (TestEnvironment::new(), root("one"));
    let flags = ["--cmd", "usual words", "--entrypoint", "echo ran:", "--env", "A=of image", "--user", "node"];
    env.import(&[&flags[..], &["--workdir", "/srv/app"]].concat(), &root, "tools:1");
    assert_eq!(stdout(&env.carrel(["run", "tools:1"])), "ran: usual words\n");
    assert_eq!(stdout(&env.carrel(["run", "tools:1", "--", "other"])), "ran: other\n");
    let shell = ["run", "--entrypoint", "sh -c", "tools:1", "--", "echo $A $(id -u):$(id -g) $(pwd) $HOME"];
    assert_eq!(stdout(&env.carrel(shell)), "of image 1001:1001 /srv/app /home/node\n");
    let overruled = ["run", "--env", "A=ours", "--user", "0", "--workdir", "/etc", "--entrypoint", "", "tools:1"];
    let script = ["--", "sh", "-c", "echo $A $(id -u) $(pwd)"];
    assert_eq!(stdout(&env.carrel(overruled.iter().chain(&script))), "ours 0 /etc\n");
    let project = tempfile::tempdir().unwrap();
    let words = ["run", "--project", text(project.path()), "--entrypoint", "", "tools:1", "--", "pwd"];
    assert_eq!(stdout(&env.carrel(words)), "/workspace\n");
}

#[test]
fn a_missing_working_directory_is_created_behind_links_of_the_image() {
    let (env, root) = (TestEnvironment::new(), root("one"));
    for directory in ["run", "var"] {
        std::fs::create_dir(root.path().join(directory)).unwrap();
    }
    std::fs::write(root.path().join("run/there"), "").unwrap();
    symlink("../run", root.path().join("var/run")).unwrap();
    env.import(&["--workdir", "/var/run/app"], &root, "tools:1");
    let look = "pwd -P; ls /var/run; stat -c %N /var/run";
    let expected = "/run/app\napp\nthere\n'/var/run' -> '../run'\n";
    assert_eq!(stdout(&env.carrel(["run", "tools:1", "--", "sh", "-c", look])), expected);
}

#[test]
fn an_image_without_a_default_command_is_reported() {
    let (env, root) = (TestEnvironment::new(), root("one"));
    env.import(&[], &root, "plain:1");
    let outcome = env.carrel(["run", "plain:1"]);
    let words =
        "error: no command given, and the image plain:1 has no default command\nhint: carrel run plain:1 -- CMD\n";
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(125), words));
}

#[test]
fn images_are_listed_inspected_and_removed() {
    let (env, root) = (TestEnvironment::new(), root("one"));
    let digest = env.import(&["--label", "team=a"], &root, "tools:1");
    assert!(digest.starts_with("sha256:"), "{digest}");
    let listed = stdout(&env.carrel(["image", "ls"]));
    assert!(listed.starts_with("NAME     DIGEST        LAYERS  SIZE"), "{listed}");
    assert!(listed.lines().nth(1).unwrap().starts_with(&format!("tools:1  {}  1", &digest[7..19])), "{listed}");
    let value: Value = serde_json::from_str(&stdout(&env.carrel(["image", "inspect", "tools:1"]))).unwrap();
    assert_eq!((value["digest"].as_str(), value["config"]["labels"]["team"].as_str()), (Some(&*digest), Some("a")));
    let short = &digest[7..19];
    let again: Value = serde_json::from_str(&stdout(&env.carrel(["--json", "image", "inspect", short]))).unwrap();
    assert_eq!(again["digest"], value["digest"]);
    let taken: Value = serde_json::from_str(&stdout(&env.carrel(["--json", "df"]))).unwrap();
    assert_eq!((taken["images"].as_u64(), taken["layers"].as_u64()), (Some(1), Some(1)));
    assert!(taken["unpacked"].as_u64().unwrap() > 0);

    let removed = stdout(&env.carrel(["image", "rm", "tools:1"]));
    assert_eq!(removed, format!("docker.io/library/tools:1\n{digest}\n"));
    let outcome = env.carrel(["image", "rm", "tools:1"]);
    assert_eq!(outcome.code, Some(1));
    assert!(
        outcome.stderr.starts_with("error: no such image: tools:1\nhint: run `carrel image ls`"),
        "{}",
        outcome.stderr
    );
    let taken: Value = serde_json::from_str(&stdout(&env.carrel(["--json", "df"]))).unwrap();
    assert_eq!(
        (taken["images"].as_u64(), taken["unpacked"].as_u64(), taken["blobs"].as_u64()),
        (Some(0), Some(0), Some(0))
    );
}

#[test]
fn with_pull_never_a_missing_image_is_not_pulled() {
    let env = TestEnvironment::new();
    let outcome = env.carrel(["run", "--pull", "never", "nowhere:1", "--", "true"]);
    let words = "error: image docker.io/library/nowhere:1 is not in the local store\n\
                 hint: run `carrel image pull docker.io/library/nowhere:1`";
    assert!(outcome.code == Some(125) && outcome.stderr.starts_with(words), "{}", outcome.stderr);
    let outcome = env.carrel(["image", "pull", "--pull", "never", "nowhere:1"]);
    assert!(outcome.code == Some(1) && outcome.stderr.starts_with(words), "{}", outcome.stderr);
    let outcome = env.carrel(["run", "No_Name", "--", "true"]);
    assert!(
        outcome.code == Some(125) && outcome.stderr.starts_with("error: \"No_Name\" is not a valid image name"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn a_tar_and_layered_archives_are_images() {
    let (env, root, files) = (TestEnvironment::new(), root("one"), tempfile::tempdir().unwrap());
    let tar = files.path().join("root.tar");
    let made = Command::new("tar").arg("-C").arg(root.path()).arg("-cf").arg(&tar).arg(".").status().unwrap();
    assert!(made.success());
    assert_eq!(stdout(&env.carrel(["run", text(&tar), "--", "cat", "/mark"])), "one");
    assert_eq!(stdout(&env.carrel(["run", &format!("dir:{}", text(root.path())), "--", "cat", "/mark"])), "one");
    stdout(&env.carrel(["image", "import", text(&tar), "from-tar"]));
    assert_eq!(stdout(&env.carrel(["run", "from-tar", "--", "cat", "/mark"])), "one");
    let outcome = env.carrel(["run", &format!("dir:{}", text(&tar)), "--", "true"]);
    assert!(
        outcome.stderr.starts_with(&format!("error: image {} is not a directory", text(&tar))),
        "{}",
        outcome.stderr
    );
    let outcome = env.carrel(["run", &format!("oci-archive:{}", text(&tar)), "--", "true"]);
    assert!(outcome.code == Some(125) && outcome.stderr.contains("is not an OCI layout"), "{}", outcome.stderr);
}

/// An image of one layer, as files in the formats of `docker save` and of a layout.
fn layered(root: &TempDir, at: &Path) {
    use sha2::{Digest, Sha256};
    let hex = |bytes: &[u8]| Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let packed = Command::new("tar").arg("-C").arg(root.path()).args(["-cf", "-", "."]).output().unwrap();
    let layer = packed.stdout;
    let config = format!(
        r#"{{"architecture":"{}","os":"linux","config":{{}},"rootfs":{{"type":"layers","diff_ids":["sha256:{}"]}}}}"#,
        if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
        hex(&layer)
    );
    let described = |media: &str, bytes: &[u8]| {
        format!(
            r#"{{"mediaType":"application/vnd.oci.image.{media}","digest":"sha256:{}","size":{}}}"#,
            hex(bytes),
            bytes.len()
        )
    };
    let manifest = format!(
        r#"{{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{},"layers":[{}]}}"#,
        described("config.v1+json", config.as_bytes()),
        described("layer.v1.tar", &layer)
    );
    let index =
        format!(r#"{{"schemaVersion":2,"manifests":[{}]}}"#, described("manifest.v1+json", manifest.as_bytes()));
    let (docker, layout) = (at.join("docker"), at.join("layout"));
    for directory in [&docker, &layout.join("blobs/sha256")] {
        std::fs::create_dir_all(directory).unwrap();
    }
    std::fs::write(docker.join("layer.tar"), &layer).unwrap();
    std::fs::write(docker.join("config.json"), &config).unwrap();
    let list = r#"[{"Config":"config.json","RepoTags":["x:1"],"Layers":["layer.tar"]}]"#;
    std::fs::write(docker.join("manifest.json"), list).unwrap();
    for bytes in [layer.as_slice(), config.as_bytes(), manifest.as_bytes()] {
        std::fs::write(layout.join("blobs/sha256").join(hex(bytes)), bytes).unwrap();
    }
    std::fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    std::fs::write(layout.join("index.json"), index).unwrap();
}

#[test]
fn an_import_detects_the_format() {
    let (env, root, files) = (TestEnvironment::new(), root("one"), tempfile::tempdir().unwrap());
    layered(&root, files.path());
    std::fs::create_dir(files.path().join("root")).unwrap();
    assert!(
        Command::new("cp")
            .arg("-a")
            .arg(root.path().join("."))
            .arg(files.path().join("root"))
            .status()
            .unwrap()
            .success()
    );
    for kind in ["docker", "layout", "root"] {
        for (flag, suffix) in [("-cf", "tar"), ("-czf", "tar.gz")] {
            let archive = files.path().join(format!("{kind}.{suffix}"));
            let packed =
                Command::new("tar").arg("-C").arg(files.path().join(kind)).arg(flag).arg(&archive).arg(".").status();
            assert!(packed.unwrap().success());
        }
    }
    let import = |source: &str, name: &str| {
        let mut command = env.command(["image", "import", "--quiet", source, name]);
        crate::support::finish(command.current_dir(files.path()).spawn().unwrap())
    };
    let sources = [
        "docker.tar",
        "./docker.tar.gz",
        "layout",
        "./layout.tar",
        "layout.tar.gz",
        "root",
        "root.tar",
        "./root.tar.gz",
    ];
    for (number, source) in sources.into_iter().enumerate() {
        let name = format!("imported:{number}");
        let outcome = import(source, &name);
        assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""), "{source}");
        assert_eq!(stdout(&env.carrel(["run", &name, "--", "cat", "/mark"])), "one", "{source}");
    }
    std::fs::write(files.path().join("page.zip"), b"PK\x03\x04 and more").unwrap();
    let zipped = Command::new("sh").arg("-c").arg("echo text | gzip >text.gz").current_dir(files.path()).status();
    assert!(zipped.unwrap().success());
    for (source, words) in [
        ("./page.zip", "./page.zip is not an image: it is a zip archive\nhint: give the tar"),
        ("docker", "./docker has unpacked output of `docker save`"),
        ("nowhere.tar", "no such file: nowhere.tar\nhint: "),
        ("text.gz", "image ./text.gz: "),
    ] {
        let outcome = import(source, "refused:1");
        assert!(
            outcome.code == Some(1) && outcome.stderr.starts_with(&format!("error: {words}")),
            "{}",
            outcome.stderr
        );
    }
}

//= promises.images.saved-sandbox-pushed-pulled
#[test]
fn an_ephemeral_sandbox_is_saved_while_it_runs() {
    let (env, root) = (TestEnvironment::new(), root("one"));
    env.import(&["--env", "KEPT=yes"], &root, "tools:1");
    let script = "touch /made; mkdir /d; echo new > /d/f; rm /bin/stat; echo ready; read line; echo $line";
    let words = ["run", "--name", "web", "tools:1", "--", "sh", "-c", script];
    let mut running = RunningCommand::new(env.command(words).stdin(Stdio::piped()).spawn().unwrap());
    running.until("ready");

    // An image in use is not removed.
    let outcome = env.carrel(["image", "rm", "tools:1"]);
    assert!(outcome.code == Some(1) && outcome.stderr.contains(" is in use"), "{}", outcome.stderr);
    stdout(&env.carrel(["image", "save", "--cmd", "cat /d/f", "web", "saved:1"]));
    // It continued.
    assert_eq!(answered(running, "continued\n"), "continued\n");

    assert_eq!(stdout(&env.carrel(["run", "saved:1"])), "new\n");
    let look = "echo $KEPT $(cat /mark) /made; ls /bin/stat 2>/dev/null || echo gone";
    assert_eq!(stdout(&env.carrel(["run", "saved:1", "--", "sh", "-c", look])), "yes one /made\ngone\n");
    // The saved layer is on top of the image, whose layers it keeps.
    stdout(&env.carrel(["image", "rm", "tools:1"]));
    assert_eq!(stdout(&env.carrel(["run", "saved:1", "--", "cat", "/mark"])), "one");
}

#[test]
fn a_sandbox_is_resumed_when_image_save_is_killed() {
    let (env, root) = (TestEnvironment::new(), root("one"));
    env.import(&[], &root, "tools:1");
    let words = ["run", "--name", "web", "tools:1", "--", "sh", "-c", "echo ready; read line; echo $line"];
    let mut running = RunningCommand::new(env.command(words).stdin(Stdio::piped()).spawn().unwrap());
    running.until("ready");
    // Until this lock is released nothing is added to the store, and the sandbox stays paused.
    let lock = std::fs::File::open(env.home.path().join("images/lock")).unwrap();
    lock.lock().unwrap();
    let saving = RunningCommand::new(env.command(["image", "save", "web", "saved:1"]).spawn().unwrap());
    let is_paused = || stdout(&env.carrel(["--json", "ps"])).contains("\"paused\"");
    while !is_paused() {
        std::thread::yield_now();
    }
    saving.signal(rustix::process::Signal::KILL);
    assert_eq!(saving.finish().code, None);
    assert_eq!(answered(running, "continued\n"), "continued\n");
    drop(lock);
    assert!(!env.has_image("saved:1"));
}

//= promises.images.persistent-sandbox-image
#[test]
fn a_persistent_sandbox_is_saved_and_keeps_its_image_when_the_name_moves() {
    let (env, first, second) = (TestEnvironment::new(), root("first"), root("second"));
    env.import(&["--user", "root"], &first, "tools:1");
    stdout(&env.carrel(["create", "--id", "desk", "tools:1"]));
    let exec = |script: &str| stdout(&env.carrel(["exec", "desk", "--", "sh", "-c", script]));
    assert_eq!(exec("id -u; cat /mark; echo x > /made; rm /bin/stat"), "0\nfirst");
    stdout(&env.carrel(["image", "save", "desk", "running:1"]));

    // The name moves; the sandbox keeps its image.
    env.import(&[], &second, "tools:1");
    assert_eq!(exec("cat /mark"), "first");
    stdout(&env.carrel(["prune", "--all"]));
    stdout(&env.carrel(["stop", "desk"]));
    stdout(&env.carrel(["image", "save", "desk", "stopped:1"]));
    stdout(&env.carrel(["resume", "desk"]));
    assert_eq!(exec("cat /mark /made"), "firstx\n");

    for saved in ["running:1", "stopped:1"] {
        if saved == "running:1" {
            assert!(!env.has_image(saved), "nothing uses it, and everything unused was removed");
            continue;
        }
        let look = "cat /mark /made; ls /bin/stat 2>/dev/null || echo gone";
        assert_eq!(stdout(&env.carrel(["run", saved, "--", "sh", "-c", look])), "firstx\ngone\n", "{saved}");
    }
    stdout(&env.carrel(["rm", "--force", "desk"]));
    stdout(&env.carrel(["prune", "--all"]));
    let taken: Value = serde_json::from_str(&stdout(&env.carrel(["--json", "df"]))).unwrap();
    assert_eq!((taken["images"].as_u64(), taken["layers"].as_u64()), (Some(0), Some(0)), "{taken}");
}

#[test]
fn only_a_sandbox_on_an_image_of_the_store_is_saved() {
    let (env, root) = (TestEnvironment::new(), root("one"));
    let words = ["run", "--name", "web", text(root.path()), "--", "sh", "-c", "echo ready; read line"];
    let mut running = RunningCommand::new(env.command(words).stdin(Stdio::piped()).spawn().unwrap());
    running.until("ready");
    let outcome = env.carrel(["image", "save", "web", "saved:1"]);
    assert!(outcome.code == Some(1) && outcome.stderr.contains("is not in the store"), "{}", outcome.stderr);
    let outcome = env.carrel(["image", "save", "absent", "saved:1"]);
    assert!(outcome.stderr.starts_with("error: no such sandbox: \"absent\""), "{}", outcome.stderr);
    answered(running, "\n");
}

#[test]
fn an_unreachable_registry_is_reported_and_leaves_no_sandbox() {
    let env = TestEnvironment::new();
    // A port of this host without a listener.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let name = format!("127.0.0.1:{port}/team/tools:1");
    let outcome = env.carrel(["run", &name, "--", "true"]);
    let words = format!("error: image {name}: cannot reach 127.0.0.1:{port}");
    assert!(outcome.code == Some(125) && outcome.stderr.starts_with(&words), "{}", outcome.stderr);
    // The daemon accepts the request and reports the failure: only the daemon pulls the image of a file.
    let file = env.home.path().join("desk.yaml");
    std::fs::write(&file, format!("image: {name}\n")).unwrap();
    let outcome = env.carrel(["create", "--id", "desk", "--file", text(&file)]);
    assert!(outcome.code == Some(1) && outcome.stderr.contains("cannot reach"), "{}", outcome.stderr);
    assert!(stdout(&env.carrel(["get", "desk"])).contains("state     failed\n"));
    stdout(&env.carrel(["rm", "--force", "desk"]));
    let disks = std::fs::read_dir(env.home.path().join("disks")).unwrap().count();
    assert_eq!(disks, 0);
}

#[test]
fn disk_usage_is_shown_and_freed_without_creating_files() {
    let env = TestEnvironment::new();
    let is_empty = || std::fs::read_dir(env.home.path()).unwrap().next().is_none();
    for _ in ["a home that is empty", "no home"] {
        let usage = crate::ps::json(&env, &["--json", "df"]);
        assert_eq!((&usage["images"], &usage["unpacked"]), (&0.into(), &0.into()), "{usage}");
        assert_eq!(crate::ps::text(&env, &["prune", "--all"]), "0 bytes freed\n");
        assert_eq!(crate::ps::text(&env, &["prune"]), "0 bytes freed\n");
        assert!(!env.home.path().exists() || is_empty(), "something was created");
        let _gone = std::fs::remove_dir(env.home.path());
    }
    assert!(!env.home.path().exists());
}
