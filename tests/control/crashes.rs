//! Shims and init processes of sandboxes that are killed, alone and together with the daemon.

use std::os::unix::fs::symlink;
use std::time::Duration;

use carrel_agent_client::AgentClient;
use carrel_api::agbox::v1::{CopySpec, CreateSpec, EventType, ExecState, SandboxEvent, SandboxState, sandbox_event};
use carrel_api::carrel::v1::{OpenDiskRequest, ReadFileRequest};
use carrel_failpoint::Failpoints;
use carrel_shim::Failpoint;
use carrel_tests::{Daemon, DaemonHome, agentd_path, children_of, programs, run, run_within};
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, Signal};
use tonic::{Code, Status};

use crate::cleanup::{check_no_leftovers, stop_and_check};
use crate::client::{Client, host_spec, reason};
use crate::failover::{check_counted, check_history, counter, wait_for_run};

/// Which process is killed.
#[derive(Clone, Copy, Debug)]
enum Victim {
    Shim,
    Init,
}

// === impl Victim ===

impl Victim {
    fn cause(self) -> &'static str {
        match self {
            Self::Shim => "supervisor_lost",
            Self::Init => "guest_exited",
        }
    }
}

const VICTIMS: [Victim; 2] = [Victim::Shim, Victim::Init];

/// A daemon with sandboxes that crash.
struct CrashScenario {
    home: DaemonHome,
    daemon: Daemon,
    client: Client,
}

// === impl CrashScenario ===

impl CrashScenario {
    async fn start() -> Self {
        let home = DaemonHome::new();
        let daemon = home.start().await;
        let client = Client::connect(&daemon).await;
        Self { home, daemon, client }
    }

    /// The pid of the init process of a sandbox, if it has one.
    fn init_pid(&self, sandbox: &str) -> Option<u32> {
        children_of(self.home.record(sandbox)?.shim_pid).first().copied()
    }

    /// Waits until a sandbox has a file. There are no events while the sandbox is being created.
    async fn wait_for_file(&self, sandbox: &str, path: &str) {
        let exists = |init: u32| std::fs::exists(format!("/proc/{init}/root{path}")).unwrap_or(false);
        while !self.init_pid(sandbox).is_some_and(exists) {
            tokio::task::yield_now().await;
        }
    }

    /// Kills a process of a sandbox, and returns when it is dead.
    async fn kill(&self, sandbox: &str, victim: Victim) {
        let handle = match victim {
            Victim::Shim => self.home.record(sandbox).unwrap().shim_handle().unwrap(),
            Victim::Init => {
                let pid = Pid::from_raw(i32::try_from(self.init_pid(sandbox).unwrap()).unwrap()).unwrap();
                rustix::process::pidfd_open(pid, PidfdFlags::empty()).unwrap()
            }
        };
        rustix::process::pidfd_send_signal(&handle, Signal::KILL).unwrap();
        let wait = move || rustix::event::poll(&mut [PollFd::new(&handle, PollFlags::IN)], None).unwrap();
        tokio::task::spawn_blocking(wait).await.unwrap();
    }

    /// Starts a counter, and waits until it runs.
    async fn start_counter(&mut self, sandbox: &str, exec: &str) {
        self.client.exec(sandbox, exec, &counter(exec)).await.unwrap();
        let waited = self.client.run(sandbox, &format!("{exec}-runs"), &wait_for_run(exec)).await;
        assert_eq!(waited.state(), ExecState::Finished);
    }

    /// Checks the histories of these sandboxes, and stops the daemon.
    async fn finish(mut self, sandboxes: &[&str]) {
        for sandbox in sandboxes {
            check_history(&self.client.history(sandbox).await.unwrap());
        }
        stop_and_check(&self.home, self.daemon, &[]).await;
    }
}

/// Checks that a sandbox that crashed while it was ready is stopped with a reason, and can be resumed with its files.
async fn check_resumable(client: &mut Client, sandbox: &str, expected: &str) {
    let stopped = client.wait_for_state(sandbox, SandboxState::Stopped).await.unwrap();
    assert_eq!(stopped.error_code, "CONTAINER_NOT_RUNNING", "{}", stopped.error_message);
    assert!(!stopped.error_message.is_empty());
    let history = client.history(sandbox).await.unwrap();
    let is_stop = |event: &&SandboxEvent| event.event_type() == EventType::SandboxStopRequested;
    let stop = history.iter().position(|event| is_stop(&event)).unwrap();
    for event in [&history[stop], history.last().unwrap()] {
        assert_eq!(cause(event), expected);
    }
    let (last, between) = history[stop + 1..].split_last().unwrap();
    assert_eq!(last.event_type(), EventType::SandboxStopped);
    assert!(between.iter().all(|event| event.event_type() == EventType::ExecFailed), "{between:?}");
    client.resume(sandbox).await.unwrap();
    let ready = client.wait_for_state(sandbox, SandboxState::Ready).await.unwrap();
    assert_eq!(ready.error_code, "");
    let kept = client.run(sandbox, &format!("kept-{sandbox}"), "grep -q written kept").await;
    assert_eq!(kept.state(), ExecState::Finished);
    client.delete_and_wait(sandbox).await;
}

/// The reason of a lifecycle event.
fn cause(event: &SandboxEvent) -> &str {
    match &event.details {
        Some(sandbox_event::Details::SandboxPhase(phase)) => &phase.reason,
        other => panic!("{other:?}"),
    }
}

/// Checks that the creation of a sandbox failed with a message, and that it can be deleted.
async fn check_failed(client: &mut Client, sandbox: &str) {
    let failed = client.wait_for_state(sandbox, SandboxState::Failed).await.unwrap();
    assert_eq!(failed.error_code, "SANDBOX_CREATE_FAILED", "{}", failed.error_message);
    assert!(!failed.error_message.is_empty());
    client.delete_and_wait(sandbox).await;
}

//= promises.control-plane.supervisors-agents-killed
#[test]
fn a_ready_sandbox_that_crashes_is_stopped_and_can_be_resumed_with_its_files() {
    run(async {
        let mut scenario = CrashScenario::start().await;
        for victim in VICTIMS {
            let id = format!("{victim:?}-1");
            scenario.client.create_and_wait(&id, host_spec()).await;
            let written = scenario.client.run(&id, &format!("write-{id}"), "echo written > kept && sync kept").await;
            assert_eq!(written.state(), ExecState::Finished);
            scenario.kill(&id, victim).await;
            check_resumable(&mut scenario.client, &id, victim.cause()).await;
        }
        scenario.finish(&["Shim-1", "Init-1"]).await;
    });
}

/// Reads a file of a sandbox.
async fn read(client: &mut Client, sandbox: &str, path: &str) -> Result<Vec<u8>, Status> {
    let request =
        ReadFileRequest { sandbox_id: sandbox.to_owned(), path: path.to_owned(), ..ReadFileRequest::default() };
    let mut pieces = client.own.read_file(request).await?.into_inner();
    let mut content = Vec::new();
    while let Some(piece) = pieces.message().await? {
        content.extend_from_slice(&piece.data);
    }
    Ok(content)
}

//= promises.control-plane.sandbox-run
#[test]
fn the_files_of_a_crashed_sandbox_can_be_read_before_and_after_it_is_resumed() {
    run(async {
        let mut scenario = CrashScenario::start().await;
        scenario.client.create_and_wait("box-1", host_spec()).await;
        scenario.client.run("box-1", "write-1", "echo written > kept && sync kept").await;
        scenario.kill("box-1", Victim::Shim).await;
        scenario.client.wait_for_state("box-1", SandboxState::Stopped).await.unwrap();
        assert_eq!(read(&mut scenario.client, "box-1", "/workspace/kept").await.unwrap(), b"written\n");
        let absent = read(&mut scenario.client, "box-1", "/workspace/absent").await.unwrap_err();
        assert_eq!(reason(&absent).as_deref(), Some("FILE_NOT_FOUND"));
        assert_eq!(scenario.client.get("box-1").await.unwrap().state(), SandboxState::Stopped);

        let open = OpenDiskRequest { sandbox_id: "box-1".to_owned() };
        let mut opened = scenario.client.own.open_disk(open.clone()).await.unwrap().into_inner();
        let socket = opened.message().await.unwrap().unwrap().agent_socket;
        let agent = AgentClient::connect(socket).await.unwrap();
        assert_eq!(agent.files().read_to_end("/workspace/kept").await.unwrap(), b"written\n");
        scenario.client.resume_and_wait("box-1").await;
        let ended = opened.message().await.unwrap_err();
        assert_eq!((ended.code(), reason(&ended).as_deref()), (Code::Unavailable, Some("SANDBOX_UNREACHABLE")));
        assert!(agent.files().read_to_end("/workspace/kept").await.is_err());

        let mut opened = scenario.client.own.open_disk(open).await.unwrap().into_inner();
        let socket = opened.message().await.unwrap().unwrap().agent_socket;
        let agent = AgentClient::connect(socket).await.unwrap();
        let content = agent.files().read_to_end("/workspace/kept").await.unwrap();
        assert_eq!(content, b"written\n", "a running sandbox is read through its own agent");
        drop((opened, agent));
        scenario.client.delete_and_wait("box-1").await;
        let deleted = read(&mut scenario.client, "box-1", "/workspace/kept").await.unwrap_err();
        assert_eq!(reason(&deleted).as_deref(), Some("SANDBOX_NOT_READY"));
        scenario.finish(&["box-1"]).await;
    });
}

#[test]
fn a_disk_reader_of_a_stopped_sandbox_exits_with_the_daemon() {
    run(async {
        let home = DaemonHome::new();
        let mut daemon = home.start().await;
        let mut client = Client::connect(&daemon).await;
        client.create_and_wait("box-1", host_spec()).await;
        client.run("box-1", "write-1", "echo written > kept && sync kept").await;
        client.stop_and_wait("box-1").await;
        let mut readers = Vec::new();
        for is_killed in [false, true] {
            let open = OpenDiskRequest { sandbox_id: "box-1".to_owned() };
            let mut opened = client.own.open_disk(open).await.unwrap().into_inner();
            assert!(opened.message().await.unwrap().is_some());
            let reader = home.record("box-1..read").unwrap();
            if is_killed {
                daemon.kill().await;
            } else {
                daemon.stop().await;
            }
            opened.message().await.unwrap_err();
            let shim = reader.shim_handle();
            let wait = move |handle| rustix::event::poll(&mut [PollFd::new(&handle, PollFlags::IN)], None).unwrap();
            if let Some(handle) = shim {
                tokio::task::spawn_blocking(move || wait(handle)).await.unwrap();
            }
            assert!(home.record("box-1..read").is_none());
            readers.push(reader.incarnation);
            daemon = home.start().await;
            client = Client::connect(&daemon).await;
            client.resume_and_wait("box-1").await;
            assert_eq!(client.run("box-1", &format!("look-{is_killed}"), "grep -q written kept").await.exit_code, 0);
            client.stop_and_wait("box-1").await;
        }
        client.delete_and_wait("box-1").await;
        stop_and_check(&home, daemon, &[]).await;
        check_no_leftovers(&home, &readers).await;
    });
}

//= promises.control-plane.disk-missing
#[test]
fn a_sandbox_whose_disk_is_missing_is_not_resumed_with_an_empty_disk() {
    run(async {
        let mut scenario = CrashScenario::start().await;
        scenario.client.create_and_wait("box-1", CreateSpec { disk_limit: String::new(), ..host_spec() }).await;
        scenario.client.run("box-1", "write-1", "echo written > kept").await;
        scenario.client.stop("box-1").await.unwrap();
        scenario.client.wait_for_state("box-1", SandboxState::Stopped).await.unwrap();
        let (disks, away) = (scenario.home.home().join("disks"), scenario.home.path("away"));
        std::fs::rename(&disks, &away).unwrap();
        std::fs::create_dir(&disks).unwrap();
        scenario.client.resume("box-1").await.unwrap();
        let failed = scenario.client.wait_for_state("box-1", SandboxState::Failed).await.unwrap();
        assert_eq!(failed.error_code, "SANDBOX_RESUME_FAILED");
        let unread = read(&mut scenario.client, "box-1", "/workspace/kept").await.unwrap_err();
        assert_eq!((unread.code(), unread.message()), (Code::FailedPrecondition, failed.error_message.as_str()));
        assert!(failed.error_message.contains("the disk of the sandbox is missing"), "{}", failed.error_message);
        assert_eq!(std::fs::read_dir(&disks).unwrap().count(), 0);
        // When the disk is back, the sandbox can be resumed.
        std::fs::remove_dir(&disks).unwrap();
        std::fs::rename(&away, &disks).unwrap();
        scenario.client.resume("box-1").await.unwrap();
        scenario.client.wait_for_state("box-1", SandboxState::Ready).await.unwrap();
        assert_eq!(scenario.client.run("box-1", "look-1", "grep -q written kept").await.exit_code, 0);
        scenario.client.delete_and_wait("box-1").await;
        scenario.finish(&["box-1"]).await;
    });
}

//= promises.control-plane.supervisors-agents-killed
#[test]
fn execs_of_a_crashed_sandbox_have_failed_and_their_output_is_kept() {
    run(async {
        let mut scenario = CrashScenario::start().await;
        for victim in VICTIMS {
            let (id, exec) = (format!("{victim:?}-1"), format!("count-{victim:?}"));
            scenario.client.create_and_wait(&id, host_spec()).await;
            scenario.client.run(&id, &format!("write-{id}"), "echo written > kept").await;
            scenario.start_counter(&id, &exec).await;
            scenario.kill(&id, victim).await;
            let failed = scenario.client.wait_for_exec(&exec).await.unwrap();
            assert_eq!((failed.state(), failed.exit_code), (ExecState::Failed, 137), "{}", failed.error);
            check_counted(&scenario.home.exec_stdout(&id, &exec));
            check_resumable(&mut scenario.client, &id, victim.cause()).await;
        }
        scenario.finish(&["Shim-1", "Init-1"]).await;
    });
}

//= promises.control-plane.supervisors-agents-killed
#[test]
fn a_sandbox_that_crashes_while_files_are_copied_into_it_has_failed() {
    run(async {
        let mut scenario = CrashScenario::start().await;
        // Copying this file takes long enough.
        let large = scenario.home.path("large");
        std::fs::File::create(&large).unwrap().set_len(64 << 30).unwrap();
        let copy = CopySpec {
            source: large.display().to_string(),
            target: "/workspace/large".to_owned(),
            exclude_patterns: Vec::new(),
        };
        let spec = CreateSpec { copies: vec![copy], disk_limit: "64g".to_owned(), ..host_spec() };
        for victim in VICTIMS {
            let id = format!("{victim:?}-1");
            scenario.client.create(&id, spec.clone()).await.unwrap();
            scenario.wait_for_file(&id, "/workspace/large").await;
            scenario.kill(&id, victim).await;
            check_failed(&mut scenario.client, &id).await;
        }
        scenario.finish(&["Shim-1", "Init-1"]).await;
    });
}

//= promises.control-plane.supervisors-agents-killed
#[test]
fn a_shim_that_dies_at_any_point_of_a_create_is_reported() {
    run_within(Duration::from_secs(120), async {
        let home = DaemonHome::new();
        let beside = home.path("libexec");
        std::fs::create_dir(&beside).unwrap();
        symlink(agentd_path().with_file_name("carrel-failing-shim"), beside.join("carrel-shim")).unwrap();
        symlink(programs().agentd, beside.join("carrel-agentd")).unwrap();
        for point in Failpoint::ALL.iter().take_while(|point| **point <= Failpoint::OwnerNotified) {
            println!("{point:?}");
            std::fs::write(beside.join("failpoint"), point.name()).unwrap();
            let mut command = home.command();
            let daemon = home.try_start(command.env("CARREL_LIBEXEC", &beside)).await.unwrap();
            let mut client = Client::connect(&daemon).await;
            let id = format!("{point:?}-1");
            client.create(&id, host_spec()).await.unwrap();
            match point {
                // At this point the sandbox has been reported ready.
                Failpoint::OwnerNotified => {
                    client.wait_for_state(&id, SandboxState::Stopped).await.unwrap();
                    client.delete_and_wait(&id).await;
                }
                _ => check_failed(&mut client, &id).await,
            }
            check_history(&client.history(&id).await.unwrap());
            stop_and_check(&home, daemon, &[]).await;
        }
    });
}

//= promises.control-plane.supervisors-agents-killed
#[test]
fn a_sandbox_that_crashes_during_a_stop_is_stopped_and_can_be_resumed() {
    run(async {
        let mut scenario = CrashScenario::start().await;
        for victim in VICTIMS {
            let (id, exec) = (format!("{victim:?}-1"), format!("stubborn-{victim:?}"));
            scenario.client.create_and_wait(&id, host_spec()).await;
            let stubborn = "trap '' TERM; echo x > kept; while :; do sleep 0.01; done";
            scenario.client.exec(&id, &exec, stubborn).await.unwrap();
            scenario.client.run(&id, &format!("{exec}-runs"), "while ! [ -s kept ]; do sleep 0.01; done").await;
            scenario.client.stop(&id).await.unwrap();
            scenario.kill(&id, victim).await;
            scenario.client.wait_for_state(&id, SandboxState::Stopped).await.unwrap();
            assert_eq!(scenario.client.wait_for_exec(&exec).await.unwrap().state(), ExecState::Failed);
            scenario.client.resume(&id).await.unwrap();
            scenario.client.wait_for_state(&id, SandboxState::Ready).await.unwrap();
            let kept = scenario.client.run(&id, &format!("{exec}-kept"), "grep -q x kept").await;
            assert_eq!(kept.state(), ExecState::Finished);
            scenario.client.delete_and_wait(&id).await;
        }
        scenario.finish(&["Shim-1", "Init-1"]).await;
    });
}

//= promises.control-plane.supervisors-agents-killed
#[test]
fn a_sandbox_that_crashes_during_its_deletion_is_deleted() {
    run(async {
        let mut scenario = CrashScenario::start().await;
        for victim in VICTIMS {
            let id = format!("{victim:?}-1");
            scenario.client.create_and_wait(&id, host_spec()).await;
            scenario.start_counter(&id, &format!("count-{victim:?}")).await;
            let handle = scenario.home.record(&id).unwrap().shim_handle().unwrap();
            scenario.client.delete(&id).await.unwrap();
            let _may_have_exited = rustix::process::pidfd_send_signal(&handle, Signal::KILL);
            scenario.client.wait_for_state(&id, SandboxState::Deleted).await.unwrap();
        }
        scenario.finish(&["Shim-1", "Init-1"]).await;
    });
}

//= promises.control-plane.supervisors-agents-killed
#[test]
fn after_the_daemon_and_all_shims_die_at_once_the_next_daemon_reports_the_outcome() {
    run(async {
        let mut scenario = CrashScenario::start().await;
        for id in ["works", "stops", "deleted", "rests"] {
            scenario.client.create_and_wait(id, host_spec()).await;
            scenario.client.run(id, &format!("write-{id}"), "echo written > kept").await;
            scenario.start_counter(id, &format!("count-{id}")).await;
        }
        scenario.client.stop("rests").await.unwrap();
        scenario.client.wait_for_state("rests", SandboxState::Stopped).await.unwrap();
        // A request with a response was accepted, however soon the daemon dies.
        let responses = [scenario.client.stop("stops").await, scenario.client.delete("deleted").await];
        assert!(responses.iter().all(Result::<(), Status>::is_ok));
        scenario.daemon.kill().await;
        for id in ["works", "stops", "deleted"] {
            if let Some(handle) = scenario.home.record(id).and_then(|record| record.shim_handle()) {
                let _killed = rustix::process::pidfd_send_signal(&handle, Signal::KILL);
            }
        }
        let daemon = scenario.home.start().await;
        let mut scenario = CrashScenario { client: Client::connect(&daemon).await, daemon, home: scenario.home };
        scenario.client.wait_for_state("stops", SandboxState::Stopped).await.unwrap();
        scenario.client.wait_for_state("deleted", SandboxState::Deleted).await.unwrap();
        assert_eq!(scenario.client.get("rests").await.unwrap().state(), SandboxState::Stopped);
        for id in ["works", "stops", "deleted"] {
            let exec = format!("count-{id}");
            assert_eq!(scenario.client.wait_for_exec(&exec).await.unwrap().state(), ExecState::Failed);
            check_counted(&scenario.home.exec_stdout(id, &exec));
        }
        for id in ["stops", "rests"] {
            scenario.client.resume(id).await.unwrap();
            scenario.client.wait_for_state(id, SandboxState::Ready).await.unwrap();
            assert_eq!(scenario.client.run(id, &format!("look-{id}"), "grep -q count runs").await.exit_code, 0);
            scenario.client.delete_and_wait(id).await;
        }
        check_resumable(&mut scenario.client, "works", "supervisor_lost").await;
        scenario.finish(&["works", "stops", "deleted", "rests"]).await;
    });
}
