//! The shim and the agent of the previous release, built from its commit: the current clients work with both.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use carrel_agent_client::{AgentClient, Generation};
use carrel_shim_client::messages::{
    EndReason, FactKind, FailureCode, InputWish, JobCommand, JobFollow, ShimState, StreamName,
};
use carrel_shim_client::{FollowEvent, Liveness};
use carrel_tests::{Agentd, run_within};
use rustix::fs::FlockOperation;

use crate::features::all_features;
use crate::leftovers;
use crate::persistent::{AdoptableSandbox, NAME, job};

/// A first build takes a while.
const BUILD: Duration = Duration::from_secs(600);
/// The programs of a release that are built.
const PROGRAMS: [&str; 2] = ["carrel-shim", "carrel-agentd"];

fn root() -> PathBuf {
    Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").unwrap()).parent().unwrap().to_owned()
}

/// A value of the file that names the previous release.
fn pin(key: &str) -> String {
    let pin = std::fs::read_to_string(root().join("tests/skew/shim/previous.toml")).unwrap();
    let value = pin.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = ")).unwrap_or_default();
    value.trim_matches('"').to_owned()
}

/// The commit of the previous release.
fn pinned() -> String {
    let commit = pin("commit");
    let is_commit = commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(is_commit, "tests/skew/shim/previous.toml names no release: write the commit of the last one there");
    commit
}

/// The generation of the agent of the previous release.
fn generation() -> Generation {
    let number = pin("generation").parse().expect("tests/skew/shim/previous.toml names the generation of the release");
    assert!((Generation::PUBLISHED.get()..=Generation::CURRENT.get()).contains(&number), "{number}");
    Generation::new(number)
}

/// The directory that keeps the built programs of each release.
fn cache() -> PathBuf {
    let given = std::env::var_os("XDG_CACHE_HOME").filter(|cache| !cache.is_empty()).map(PathBuf::from);
    let cache = given.unwrap_or_else(|| Path::new(&std::env::var_os("HOME").unwrap()).join(".cache"));
    cache.join("carrel/previous")
}

/// The directory with the programs of a release, which are built if they are not in the cache.
fn programs_of(commit: &str) -> PathBuf {
    let (cache, kept) = (cache(), cache().join(commit));
    std::fs::create_dir_all(&cache).unwrap();
    let lock = File::create(cache.join("lock")).unwrap();
    rustix::fs::flock(&lock, FlockOperation::LockExclusive).unwrap();
    if !kept.exists() {
        let work = tempfile::tempdir_in(&cache).unwrap();
        let (source, made) = (work.path().join("source"), work.path().join("made"));
        for directory in [&source, &made] {
            std::fs::create_dir(directory).unwrap();
        }
        unpack(commit, &source);
        build(&source, &work.path().join("target"), &made);
        std::fs::rename(&made, &kept).unwrap();
    }
    kept
}

/// Puts the sources of a release into a directory.
fn unpack(commit: &str, directory: &Path) {
    let mut git = Command::new("git");
    git.arg("-C").arg(root()).args(["archive", "--format=tar", commit]).stdout(Stdio::piped());
    let mut git = git.spawn().unwrap();
    let unpacked = Command::new("tar").arg("-xC").arg(directory).stdin(git.stdout.take().unwrap()).status().unwrap();
    assert!(git.wait().unwrap().success() && unpacked.success(), "this repository has no commit {commit}");
}

/// Builds the programs of a release, and installs them in a directory.
fn build(source: &Path, target: &Path, made: &Path) {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.current_dir(source).args([
        "build",
        "--locked",
        "--quiet",
        "-j2",
        "--message-format",
        "json-render-diagnostics",
    ]);
    cargo.args(PROGRAMS.iter().flat_map(|program| ["-p", program, "--bin", program]));
    cargo.arg("--target-dir").arg(target);
    // A fast build is enough. The environment of this test must not influence it.
    cargo.env("CARGO_PROFILE_DEV_DEBUG", "false").env("CARGO_INCREMENTAL", "0").env_remove("RUSTC_BOOTSTRAP");
    let output = cargo.stdin(Stdio::null()).stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "the previous release does not build any more: its compiler says why");
    let messages = output.stdout.split(|byte| *byte == b'\n');
    for message in messages.filter_map(|line| serde_json::from_slice::<serde_json::Value>(line).ok()) {
        if let Some(program) = message["executable"].as_str().map(Path::new) {
            carrel_tests::install(program, &made.join(program.file_name().unwrap()), 0o755, 0);
        }
    }
    for program in PROGRAMS {
        assert!(made.join(program).is_file(), "{program} was not built");
    }
}

/// A persistent sandbox that the programs of the previous release run.
fn previous() -> AdoptableSandbox {
    let programs = programs_of(&pinned());
    let sandbox = AdoptableSandbox::with(&programs.join("carrel-agentd"));
    let shim = std::fs::read_link(format!("/proc/{}/exe", sandbox.record.shim_pid)).unwrap();
    assert_eq!(shim, programs.join("carrel-shim").canonicalize().unwrap(), "the shim that was built runs");
    sandbox
}

//= versioning.number-agreed-upon-once.upgraded-host-talks-old
//= versioning.number-agreed-upon-once.old-runtime-never-understand
//= versioning.number-agreed-upon-once.new-feature-fails-rest
//= promises.client.fails-older-agent
#[test]
#[cfg_attr(not(history), ignore = "needs the history of the project")]
fn the_client_works_with_the_agent_of_the_previous_release() {
    run_within(BUILD, async {
        let program = programs_of(&pinned()).join("carrel-agentd");
        let launched = |limit: &[&str]| {
            let mut command = Command::new(&program);
            command.args(limit);
            let agentd = Agentd::launch(command);
            let running = std::fs::read_link(format!("/proc/{}/exe", agentd.pid())).unwrap();
            assert_eq!(running, program.canonicalize().unwrap(), "the agent that was built runs");
            agentd
        };
        let agentd = launched(&[]);
        let client = agentd.client().await;
        let released = generation();
        assert_eq!(client.generation(), released);
        all_features(&client, &agentd.path(""), released).await;
        for older in Generation::all().filter(|older| *older < released) {
            let agentd = launched(&["--max-generation", &older.to_string()]);
            let client = agentd.client().await;
            assert_eq!(client.generation(), older);
            all_features(&client, &agentd.path(""), older).await;
        }
    });
}

//= versioning.number-agreed-upon-once.upgraded-host-talks-old
//= versioning.number-agreed-upon-once.new-feature-fails-rest
#[test]
#[cfg_attr(not(history), ignore = "needs the history of the project")]
fn the_client_works_with_a_sandbox_of_the_previous_release() {
    run_within(BUILD, async {
        let sandbox = previous();
        let client = AgentClient::connect_sandbox(sandbox.home.path(), NAME, Default::default()).await.unwrap();
        // The private generation is not announced through a relay, so trees are refused.
        assert_eq!(client.generation(), Generation::PUBLISHED);
        all_features(&client, "/tmp", Generation::PUBLISHED).await;
    });
}

//= versioning.number-agreed-upon-once.upgraded-host-talks-old
//= promises.adoption.supervisor-previous-release
#[test]
#[cfg_attr(not(history), ignore = "needs the history of the project")]
fn a_shim_of_the_previous_release_is_adopted() {
    run_within(BUILD, async {
        let mut sandbox = previous();
        let mut first = sandbox.adopt().await;
        let waits = JobCommand { stdin: true, ..job("echo up; read -r code; echo err >&2; exit \"$code\"") };
        assert!(first.start("waits", &waits).await.unwrap().created);
        drop(first);
        sandbox.kill_owner();

        let mut client = sandbox.adopt().await;
        assert!((1..=carrel_shim_client::VERSION).contains(&client.version()));
        client.supervise().await.unwrap();
        let refused = sandbox.adopt().await.supervise().await.unwrap_err();
        assert_eq!(refused.code(), Some(FailureCode::Supervised));
        let status = client.status().await.unwrap();
        assert_eq!((status.state, status.running_jobs), (ShimState::Running, 1));
        assert_eq!(status.supervisor.unwrap().pid, std::process::id());

        // Jobs.
        assert!(!client.start("waits", &waits).await.unwrap().created);
        let refused = client.start("waits", &job("another")).await.unwrap_err();
        assert_eq!(refused.code(), Some(FailureCode::JobConflict));
        let follow = JobFollow {
            job: "waits".to_owned(),
            stdout: Some(0),
            stderr: Some(0),
            input: InputWish::Take,
            hold: false,
        };
        let mut follow = sandbox.adopt().await.follow(&follow).await.unwrap();
        let (control, mut output) = (follow.control(), Vec::new());
        let reading = async {
            loop {
                match follow.next().await.unwrap().unwrap() {
                    FollowEvent::Output { data, .. } => output.extend(data),
                    FollowEvent::Ended(info) => return info,
                    FollowEvent::Cut(_) | FollowEvent::Input(_) => {}
                }
            }
        };
        let (info, written) = tokio::join!(reading, control.write(b"6\n"));
        written.unwrap();
        assert_eq!((info.outcome.unwrap().code, output.as_slice()), (Some(6), &b"up\nerr\n"[..]));
        assert_eq!(client.read("waits", StreamName::Stderr, 0, 10).await.unwrap().data, b"err\n");
        client.start("stays", &job("echo up; exec sleep 1000")).await.unwrap();
        assert_eq!(client.jobs().await.unwrap().len(), 2);
        let cancelled = client.cancel("stays", Duration::from_secs(10)).await.unwrap();
        assert_eq!(cancelled.outcome.unwrap().signal, Some(15));

        // Lifecycle.
        client.pause().await.unwrap();
        assert!(client.statistics().await.unwrap().paused);
        assert_eq!(client.status().await.unwrap().state, ShimState::Paused);
        client.resume().await.unwrap();
        let journal = client.journal(1).await.unwrap();
        let mut subscription = sandbox.adopt().await.subscribe(2).await.unwrap();
        assert_eq!(subscription.next().await.unwrap().unwrap()[..], journal[1..]);
        let ended = client.stop(Duration::from_secs(20)).await.unwrap();
        assert_eq!(ended.reason, EndReason::Stopped);

        // Leftovers.
        let found = sandbox.find();
        let Liveness::Dead { facts, rebooted: false } = found.life else { panic!("{:?}", found.life) };
        assert!(found.problem.is_none(), "{:?}", found.problem);
        assert_eq!(facts[..journal.len()], journal);
        let kinds: Vec<_> = facts.iter().map(|fact| fact.kind).collect();
        for kind in [FactKind::Claimed, FactKind::Started, FactKind::Paused, FactKind::Resumed, FactKind::GuestExited] {
            assert!(kinds.contains(&kind), "{kinds:?}");
        }
        assert_eq!(kinds.last(), Some(&FactKind::Ended));
        assert!(carrel_shim::collect(&sandbox.directory()).unwrap());
        assert_eq!(leftovers::of(sandbox.create()), Vec::<String>::new());
    });
}

//= promises.adoption.supervisor-previous-release
#[test]
#[cfg_attr(not(history), ignore = "needs the history of the project")]
fn leftovers_of_a_shim_of_the_previous_release_are_swept() {
    run_within(BUILD, async {
        let mut sandbox = previous();
        sandbox.kill_owner();
        sandbox.adopt().await.pause().await.unwrap();
        sandbox.kill_shim().await;
        assert_eq!(carrel_shim::sweep(&sandbox.sandboxes()).unwrap(), 1);
        assert_eq!(leftovers::of(sandbox.create()), [sandbox.directory().display().to_string()]);
        let Liveness::Dead { facts, .. } = sandbox.find().life else { panic!("{:?}", sandbox.find()) };
        let last = facts.last().unwrap();
        assert_eq!((last.kind, last.reason), (FactKind::Ended, Some(EndReason::SupervisorLost)));
        assert!(carrel_shim::collect(&sandbox.directory()).unwrap());
        assert_eq!(leftovers::of(sandbox.create()), Vec::<String>::new());
    });
}
