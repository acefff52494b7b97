//! A sandbox on gVisor: what holds as without it, and what is stricter.
//!
//! Debian has `runsc` for amd64 and arm64, and `./test` installs it there. Its release of 2022 rejects flags that `ls` and
//! `stat` of newer images use: scripts here use neither.

use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, Signal, kill_process, pidfd_open};

use crate::images::root;
use crate::running_sandbox::SharedSandbox;
use crate::support::{CommandOutput, TestEnvironment, only_child, pid};
use crate::terminal::PtySession;

/// The first arguments of every run.
const ON_GVISOR: [&str; 2] = ["--isolation", "gvisor"];
/// The first id of the range for sandboxes.
const FIRST_ID: u32 = 0x4000_0000;

macro_rules! on_gvisor {
    ($($(#[$meta:meta])* fn $name:ident() $body:block)*) => {
        $(
            $(#[$meta])*
            #[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), ignore = "Debian has no runsc for this")]
            #[test]
            fn $name() $body
        )*
    };
}

/// Runs a script in a sandbox on gVisor.
fn shell(env: &TestEnvironment, flags: &[&str], script: &str) -> CommandOutput {
    env.shell(&[&ON_GVISOR[..], flags].concat(), script)
}

fn stdout(outcome: &CommandOutput) -> String {
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    String::from_utf8(outcome.stdout.clone()).unwrap()
}

/// A process and all its descendants, by any of its threads.
fn with_descendants(process: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let children = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let children: Vec<u32> = children.flat_map(|line| numbers(&line)).collect();
    std::iter::once(process).chain(children.into_iter().flat_map(with_descendants)).collect()
}

fn numbers(line: &str) -> Vec<u32> {
    line.split_whitespace().map(|number| number.parse().unwrap()).collect()
}

fn user_of(process: u32) -> u32 {
    Path::new(&format!("/proc/{process}")).metadata().unwrap().uid()
}

on_gvisor! {
    //= promises.command.sandbox-gvisor
    fn what_runs_inside_asks_a_kernel_that_is_not_the_hosts() {
        let env = TestEnvironment::new();
        let host = std::fs::read_to_string("/proc/version").unwrap();
        // The control: without gVisor it is the host's.
        assert_eq!(stdout(&env.shell(&[], "cat /proc/version")), host);
        assert_ne!(stdout(&shell(&env, &[], "cat /proc/version")), host);
        let log = stdout(&shell(&env, &[], "dmesg"));
        assert!(log.contains("gVisor"), "{log}");
        let uptime = |text: String| text.split('.').next().unwrap().parse::<u64>().unwrap();
        let inside = uptime(stdout(&shell(&env, &[], "cat /proc/uptime")));
        assert!(inside < 60, "its kernel has run for {inside} s");
    }

    //= promises.command.sandbox-gvisor
    fn output_input_and_exit_codes_are_the_commands_own() {
        let env = TestEnvironment::new();
        let outcome = shell(&env, &["-e", "A=b"], "echo $A; echo err >&2; exit 7");
        assert_eq!((outcome.code, outcome.stdout.as_slice(), outcome.stderr.as_str()), (Some(7), &b"b\n"[..], "err\n"));
        assert_eq!(shell(&env, &[], "kill -TERM $$").code, Some(143));
        let absent = env.carrel(["run", "--isolation", "gvisor", "host", "--", "/no/such"]);
        assert_eq!(absent.code, Some(127), "{absent:?}");
        assert_eq!(stdout(&shell(&env, &["--user", "1000:1000"], "id -u; id -g")), "1000\n1000\n");
        assert_eq!(stdout(&shell(&env, &["--hostname", "other"], "hostname")), "other\n");
        assert_eq!(shell(&env, &["--timeout", "1s"], "sleep 1000").code, Some(124));
        let much = shell(&env, &[], "head -c 3000000 /dev/zero");
        assert_eq!((much.code, much.stdout.len()), (Some(0), 3_000_000));
    }

    //= promises.command.sandbox-gvisor
    fn jobs_files_and_terminals_are_as_in_any_sandbox() {
        let env = TestEnvironment::new();
        let here = tempfile::tempdir().unwrap();
        let path = |name: &str| here.path().join(name).to_str().unwrap().to_owned();
        let sandbox = SharedSandbox::with(&env, &ON_GVISOR);
        assert_eq!(stdout(&sandbox.exec(&[], "cat /proc/1/comm")), "agentd\n");
        std::fs::write(path("in"), "there and back").unwrap();
        for words in [[path("in"), "box:/root/x".to_owned()], ["box:/root/x".to_owned(), path("out")]] {
            let outcome = env.carrel([&["cp".to_owned()][..], &words].concat());
            assert_eq!(outcome.code, Some(0), "{outcome:?}");
        }
        assert_eq!(std::fs::read_to_string(path("out")).unwrap(), "there and back");
        sandbox.detached(&[], "kept", "echo kept");
        sandbox.until_exited("kept");
        assert_eq!(stdout(&env.carrel(["logs", "box", "kept"])), "kept\n");
        let mut person = PtySession::types_at_shell(&env, &["exec", "-t", "box", "--", "sh"]);
        person.keyboard.write_all(b"stty size; tty; exit 5\n").unwrap();
        person.until("40 120");
        person.until("/dev/pts/0");
        assert_eq!(person.child.wait().unwrap().code(), Some(5));
        let shown: serde_json::Value = serde_json::from_str(&stdout(&env.carrel(["inspect", "box"]))).unwrap();
        assert_eq!(shown["isolation"], "gvisor");
        assert_eq!(env.carrel(["stop", "box"]).code, Some(0));
    }

    //= promises.command.processes-gvisor
    fn its_processes_are_unprivileged_outside_and_hold_nothing_of_the_host() {
        let env = TestEnvironment::new();
        let mut running = env.started(&ON_GVISOR, "echo ready; read line");
        let runtime = only_child(only_child(running.child.id()));
        let all = with_descendants(runtime);
        assert!(all.len() >= 3, "its kernel and its file server are missing: {all:?}");
        for process in &all {
            assert!(user_of(*process) >= FIRST_ID, "process {process} is user {}", user_of(*process));
        }
        // The control: a process of the host is identified correctly.
        assert_eq!(user_of(running.child.id()), 0);
        let own = |kind: &str, process: u32| std::fs::read_link(format!("/proc/{process}/ns/{kind}")).unwrap();
        for kind in ["user", "pid_for_children", "mnt", "net", "ipc", "uts"] {
            assert_ne!(own(kind, runtime), own(kind, std::process::id()), "{kind}");
        }
        let environment = std::fs::read(format!("/proc/{runtime}/environ")).unwrap();
        assert!(environment.is_empty(), "{}", String::from_utf8_lossy(&environment));
        running.child.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert_eq!(running.finish().code, Some(0));
    }

    //= promises.command.processes-gvisor
    fn a_supervisor_that_is_killed_leaves_nothing_of_the_runtime() {
        let env = TestEnvironment::new();
        let running = env.started(&ON_GVISOR, "echo ready; exec sleep 1000");
        let traces = env.traces(&running);
        let shim = only_child(running.child.id());
        let handles: Vec<_> =
            with_descendants(shim).into_iter().map(|it| pidfd_open(pid(it), PidfdFlags::empty()).unwrap()).collect();
        assert!(handles.len() >= 4);
        kill_process(pid(shim), Signal::KILL).unwrap();
        assert_eq!(running.finish().code, Some(125));
        for handle in &handles {
            let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
            let ended = poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(&limit)).unwrap();
            assert_eq!(ended, 1, "a process of the runtime is still there");
        }
        traces.assert_gone();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains("runsc"), "{mounts}");
        assert!(!Path::new("/run/runsc").exists());
    }

    //= promises.command.processes-gvisor
    fn limits_hold_for_the_runtime_and_all_that_runs_in_it() {
        let env = TestEnvironment::new();
        let take = "head -c 150000000 /dev/zero | tail -c 149999999 | wc -c";
        let much = shell(&env, &["--memory", "100M"], take);
        assert_eq!(much.code, Some(137), "{much:?}");
        assert!(much.stderr.starts_with("error: the sandbox ran out of memory (limit 100 MiB)"), "{much:?}");
        // The control: with a higher limit it succeeds.
        assert_eq!(stdout(&shell(&env, &["--memory", "1G"], take)), "149999999\n");

        let many = "for i in $(seq 80); do sleep 1000 & done; echo all";
        let bounded = shell(&env, &["--pids", "100"], many);
        assert_eq!((bounded.code, bounded.stdout.as_slice()), (Some(125), &b""[..]), "{bounded:?}");
        assert!(bounded.stderr.contains("\nhint: raise --pids"), "{bounded:?}");
        assert_eq!(stdout(&shell(&env, &[], many)), "all\n");

        let fill = "head -c 8000000 /dev/zero >/root/x && head -c 8000000 /dev/zero >/tmp/x && echo all";
        let full = shell(&env, &["--disk", "12M"], fill);
        assert!(full.code == Some(1) && full.stderr.contains("No space left on device"), "{full:?}");
        assert_eq!(stdout(&shell(&env, &["--disk", "20M"], fill)), "all\n");
    }

    //= promises.command.gvisor-installed-cannot-start
    fn a_runtime_that_cannot_start_says_why() {
        let env = TestEnvironment::new();
        let outcome = shell(&env, &["--pids", "8"], "true");
        assert_eq!(outcome.code, Some(125), "{outcome:?}");
        assert!(outcome.stderr.contains("\nhint: raise --pids"), "{outcome:?}");
    }

    //= promises.command.sandbox-gvisor
    fn what_was_changed_in_a_project_is_kept_and_the_project_is_not_touched() {
        let env = TestEnvironment::new();
        let project = tempfile::tempdir_in("/var/tmp").unwrap();
        for (name, content) in [("changed", "before\n"), ("deleted", "x\n")] {
            std::fs::write(project.path().join(name), content).unwrap();
        }
        let flags = ["--project", project.path().to_str().unwrap(), "--keep-changes", "one"];
        let outcome = shell(&env, &flags, "pwd; echo after >>changed; rm deleted; mkdir d; echo n >d/new");
        assert_eq!(stdout(&outcome), "/workspace\n");
        assert_eq!(std::fs::read_to_string(project.path().join("changed")).unwrap(), "before\n");
        assert!(project.path().join("deleted").exists());
        assert_eq!(env.carrel(["apply", "one"]).code, Some(0));
        assert_eq!(std::fs::read_to_string(project.path().join("changed")).unwrap(), "before\nafter\n");
        assert_eq!(std::fs::read_to_string(project.path().join("d/new")).unwrap(), "n\n");
        assert!(!project.path().join("deleted").exists());
    }

    //= promises.command.sandbox-gvisor
    fn mounts_are_read_and_written_as_they_were_given() {
        let env = TestEnvironment::new();
        let (given, shown) = (tempfile::tempdir_in("/var/tmp").unwrap(), tempfile::tempdir_in("/var/tmp").unwrap());
        std::fs::set_permissions(shown.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::write(shown.path().join("a"), "a\n").unwrap();
        let mounts =
            [format!("{}:/data/deep:rw", given.path().display()), format!("{}:/srv/shown", shown.path().display())];
        let flags = [&ON_GVISOR[..], &["--mount", &mounts[0], "--mount", &mounts[1]]].concat();
        let script = "echo ready; read line; cat /srv/shown/a /data/deep/z; echo y >/data/deep/y; echo x >/srv/shown/b";
        let mut running = env.started(&flags, script);
        // Writes of the host meanwhile are visible.
        std::fs::write(given.path().join("z"), "z\n").unwrap();
        running.child.stdin.take().unwrap().write_all(b"\n").unwrap();
        let outcome = running.finish();
        assert_eq!(String::from_utf8_lossy(&outcome.stdout), "a\nz\n");
        assert!(outcome.stderr.contains("Read-only file system"), "{outcome:?}");
        assert_eq!(std::fs::read_to_string(given.path().join("y")).unwrap(), "y\n");
        assert_eq!(given.path().join("y").metadata().unwrap().uid(), 0);
        assert!(!shown.path().join("b").exists());
    }

    //= promises.command.sandbox-gvisor
    fn an_image_of_layers_runs_and_is_not_changed() {
        let env = TestEnvironment::new();
        let image = root("layer\n");
        std::os::unix::fs::symlink("/srv", image.path().join("link")).unwrap();
        std::fs::create_dir(image.path().join("srv")).unwrap();
        let words = ["image", "import", image.path().to_str().unwrap(), "layered"];
        assert_eq!(env.carrel(words).code, Some(0));
        let shown = tempfile::tempdir_in("/var/tmp").unwrap();
        std::fs::set_permissions(shown.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::write(shown.path().join("a"), "a\n").unwrap();
        // A link on the path is resolved inside the sandbox.
        let mount = format!("{}:/link/x", shown.path().display());
        let run = |script: &str| {
            let words = ["run", "--isolation", "gvisor", "--mount", &mount, "layered", "--", "sh", "-c", script];
            stdout(&env.carrel(words))
        };
        assert_eq!(run("cat /mark /srv/x/a; echo mine >/mark; rm /bin/id; cat /mark"), "layer\na\nmine\n");
        assert_eq!(run("cat /mark; id -u"), "layer\n0\n");
    }
}

//= promises.command.gvisor-installed-cannot-start
#[test]
fn without_runsc_the_error_names_what_is_missing() {
    let env = TestEnvironment::new();
    let mut command = env.command(["run", "--isolation", "gvisor", "host", "--", "true"]);
    let outcome = crate::support::finish(command.env("PATH", env.runtime()).spawn().unwrap());
    assert_eq!(outcome.code, Some(125));
    assert_eq!(
        outcome.stderr,
        "error: runsc is not installed\n\
         hint: apt-get install runsc, or see https://gvisor.dev/docs/user_guide/install/\n"
    );
}
