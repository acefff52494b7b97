//! How pid 1 protects itself.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use carrel_agent_client::AgentClient;
use carrel_tests::{Guest, agentd_path, command, install, run, shell};
use tempfile::TempDir;

/// A copy of the agent in a directory that every user may enter.
fn installed(mode: u32, owner: u32) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let program = dir.path().join("carrel-agentd");
    install(&agentd_path(), &program, mode, owner);
    (dir, program)
}

async fn boot(program: &Path) -> (Guest, AgentClient) {
    let (guest, channel) = Guest::start(Guest::in_namespaces(program));
    (guest, Guest::connect(channel).await)
}

/// Attacks pid 1 from inside its namespaces, as root with every capability there.
fn attack(guest: &Guest) -> serde_json::Value {
    let probe = concat!(env!("CARGO_MANIFEST_DIR"), "/escapes/probe.py");
    let output = Command::new("nsenter")
        .args(["--target", &guest.init().to_string(), "--user", "--pid", "--mount", "--preserve-credentials"])
        .args(["python3", probe])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

//= promises.agent.attacks-sandbox-root-pid
/// The control: the same attack on a process that does not protect itself.
#[test]
fn every_attack_on_an_unprotected_first_process_succeeds() {
    run(async {
        let mut plain = Guest::in_namespaces(Path::new("cat"));
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let guest = Guest::on(&mut plain, theirs);
        // Waits for `cat` itself: the process before exec is protected because it has just changed its user.
        let is_cat = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "cat\n");
        while !carrel_tests::children_of(guest.pid()).iter().any(is_cat) {
            tokio::task::yield_now().await;
        }
        let outcome = attack(&guest);
        for attempt in ["write_memory", "list_descriptors", "take_descriptor", "trace"] {
            assert_eq!(outcome[attempt], true, "the probe proves nothing: {outcome}");
        }
        drop(ours);
    });
}

//= carrel.agent-itself.pid-1-buries-orphans
//= promises.agent.attacks-sandbox-root-pid
#[test]
fn root_of_a_sandbox_cannot_access_the_memory_or_descriptors_of_the_agent() {
    run(async {
        // Owned by a user that the sandbox does not map, and not readable by anyone else.
        let (_dir, program) = installed(0o711, 54_321);
        let (guest, client) = boot(&program).await;
        let outcome = attack(&guest);
        for attempt in ["write_memory", "list_descriptors", "take_descriptor", "trace"] {
            assert_eq!(outcome[attempt], false, "{outcome}");
        }
        client.ping().await.unwrap();
    });
}

//= carrel.agent-itself.pid-1-buries-orphans
#[test]
fn commands_do_not_inherit_the_channel_of_the_agent() {
    run(async {
        let (_dir, program) = installed(0o711, 54_321);
        let (guest, client) = boot(&program).await;
        // From outside: the null device on 0 to 2, the channel far above.
        let fd = |number: u32| std::fs::read_link(format!("/proc/{}/fd/{number}", guest.init())).unwrap();
        assert!((0..3).all(|number| fd(number) == Path::new("/dev/null")));
        assert!(fd(100).to_str().unwrap().starts_with("socket:"));
        // From a command: no socket.
        let output = client.run(shell("ls -l /proc/self/fd"), "").await.unwrap();
        let listing = String::from_utf8(output.stdout).unwrap();
        assert!(!listing.contains("socket:"), "{listing}");
    });
}

//= carrel.agent-itself.pid-1-buries-orphans
//= promises.agent.signals-inside-namespace-pid
#[test]
fn the_agent_obeys_signals_only_from_outside_its_namespace() {
    run(async {
        let (_dir, program) = installed(0o711, 54_321);
        let (mut guest, client) = boot(&program).await;
        let output = client.run(shell("for s in TERM INT HUP KILL STOP QUIT; do kill -$s 1; done; echo $?"), "").await;
        assert_eq!(output.unwrap().stdout, b"0\n");
        client.ping().await.unwrap();
        // The sender of a queued signal can put a sender pid of 0 into it.
        let forge = concat!(env!("CARGO_MANIFEST_DIR"), "/escapes/forge.py");
        assert_eq!(client.run(command("python3", &[forge]), "").await.unwrap().stdout, b"sent\n");
        client.ping().await.unwrap();
        assert_eq!(client.run(command("true", &[]), "").await.unwrap().code, 0);
        let init = rustix::process::Pid::from_raw(guest.init().try_into().unwrap()).unwrap();
        rustix::process::kill_process(init, rustix::process::Signal::TERM).unwrap();
        assert_eq!(guest.wait(), Some(0));
    });
}

//= carrel.agent-itself.pid-1-buries-orphans
#[test]
fn commands_have_fewer_capabilities_than_the_agent() {
    run(async {
        let (_dir, program) = installed(0o711, 54_321);
        let (guest, client) = boot(&program).await;
        let status = |text: &str, field: &str| {
            let line = text.lines().find(|line| line.starts_with(field)).unwrap().to_owned();
            line.split_whitespace().nth(1).unwrap().to_owned()
        };
        let output = client.run(command("cat", &["/proc/self/status"]), "").await.unwrap();
        let theirs = String::from_utf8(output.stdout).unwrap();
        let own = std::fs::read_to_string(format!("/proc/{}/status", guest.init())).unwrap();
        let set = |text: &str, field: &str| u64::from_str_radix(&status(text, field), 16).unwrap();
        let (sys_ptrace, sys_admin, sys_boot, chown) = (1 << 19, 1 << 21, 1 << 22, 1 << 0);
        assert_eq!(set(&theirs, "CapBnd") & (sys_ptrace | sys_admin | sys_boot), 0);
        assert_eq!(set(&theirs, "CapEff") & chown, chown, "root of the sandbox still owns its files");
        assert_ne!(set(&own, "CapBnd") & sys_ptrace, 0, "the control: the agent has it");
        assert_eq!(status(&theirs, "NoNewPrivs:"), "1");
        assert_eq!(status(&own, "NoNewPrivs:"), "0");
    });
}

#[test]
fn commands_of_a_readable_agent_are_oom_killed_before_it() {
    run(async {
        let (_dir, program) = installed(0o755, 0);
        let (guest, client) = boot(&program).await;
        let output = client.run(command("cat", &["/proc/self/oom_score_adj"]), "").await.unwrap();
        assert_eq!(output.stdout, b"500\n");
        assert_eq!(std::fs::read_to_string(format!("/proc/{}/oom_score_adj", guest.init())).unwrap(), "0\n");
    });
}

//= carrel.agent-itself.pid-1-buries-orphans
//= promises.agent.zombies-after-10-000
#[test]
fn ten_thousand_orphaned_processes_leave_no_zombie() {
    run(async {
        let (_dir, program) = installed(0o711, 54_321);
        let (_guest, client) = boot(&program).await;
        let script = "i=0; while [ $i -lt 10000 ]; do (true &) ; i=$((i+1)); done; echo $i";
        assert_eq!(client.run(shell(script), "").await.unwrap().stdout, b"10000\n");
        // The last of them may still be exiting; then only the agent and this command are left.
        let count = "while :; do z=0; n=0; for p in /proc/[0-9]*; do read -r _ _ s _ < $p/stat || continue; \
                     n=$((n+1)); [ \"$s\" = Z ] && z=$((z+1)); done 2>/dev/null; [ $n -le 2 ] && break; done; echo $z";
        assert_eq!(client.run(shell(count), "").await.unwrap().stdout, b"0\n");
    });
}
