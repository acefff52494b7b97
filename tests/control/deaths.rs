//! Supervisors and first processes that are killed, alone and together with the daemon.

use std::os::unix::fs::symlink;
use std::time::Duration;

use carrel_agent_client::AgentClient;
use carrel_api::agbox::v1::{CopySpec, CreateSpec, EventType, ExecState, SandboxEvent, SandboxState, sandbox_event};
use carrel_api::carrel::v1::{OpenDiskRequest, ReadFileRequest};
use carrel_shim::Failpoint;
use carrel_tests::{Daemon, DaemonHome, agentd_path, children_of, programs, run, run_within};
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, Signal};
use tonic::{Code, Status};

use crate::client::{Client, host, reason};
use crate::left::{check, nothing_left};
use crate::life::{check_counted, check_history, counter, seen};

/// Who is killed.
#[derive(Clone, Copy, Debug)]
enum Victim {
    Supervisor,
    FirstProcess,
}

// === impl Victim ===

impl Victim {
    fn cause(self) -> &'static str {
        match self {
            Self::Supervisor => "supervisor_lost",
            Self::FirstProcess => "guest_exited",
        }
    }
}

const VICTIMS: [Victim; 2] = [Victim::Supervisor, Victim::FirstProcess];

/// A daemon with a sandbox that dies.
struct Scene {
    home: DaemonHome,
    daemon: Daemon,
    client: Client,
}

// === impl Scene ===

impl Scene {
    async fn set() -> Self {
        let home = DaemonHome::new();
        let daemon = home.start().await;
        let client = Client::of(&daemon).await;
        Self { home, daemon, client }
    }

    /// The first process of a sandbox, if there is one.
    fn first_process(&self, sandbox: &str) -> Option<u32> {
        children_of(self.home.record(sandbox)?.shim_pid).first().copied()
    }

    /// Waits until a sandbox has a file. Nobody tells while it is being made.
    async fn until_file(&self, sandbox: &str, path: &str) {
        let is_there = |first: u32| std::fs::exists(format!("/proc/{first}/root{path}")).unwrap_or(false);
        while !self.first_process(sandbox).is_some_and(is_there) {
            tokio::task::yield_now().await;
        }
    }

    /// Kills one, and returns when it is dead.
    async fn kill(&self, sandbox: &str, victim: Victim) {
        let handle = match victim {
            Victim::Supervisor => self.home.record(sandbox).unwrap().shim_handle().unwrap(),
            Victim::FirstProcess => {
                let pid = Pid::from_raw(i32::try_from(self.first_process(sandbox).unwrap()).unwrap()).unwrap();
                rustix::process::pidfd_open(pid, PidfdFlags::empty()).unwrap()
            }
        };
        rustix::process::pidfd_send_signal(&handle, Signal::KILL).unwrap();
        let dead = move || rustix::event::poll(&mut [PollFd::new(&handle, PollFlags::IN)], None).unwrap();
        tokio::task::spawn_blocking(dead).await.unwrap();
    }

    /// A counter that counts.
    async fn count(&mut self, sandbox: &str, exec: &str) {
        self.client.exec(sandbox, exec, &counter(exec)).await.unwrap();
        let ended = self.client.run(sandbox, &format!("{exec}-seen"), &seen(exec)).await;
        assert_eq!(ended.state(), ExecState::Finished);
    }

    async fn end(mut self, sandboxes: &[&str]) {
        for sandbox in sandboxes {
            check_history(&self.client.history(sandbox).await.unwrap());
        }
        check(&self.home, self.daemon, &[]).await;
    }
}

/// One that died while it was ready is stopped, says why, and is resumed with what it wrote.
async fn is_resumed(client: &mut Client, sandbox: &str, expected: &str) {
    let stopped = client.until(sandbox, SandboxState::Stopped).await.unwrap();
    assert_eq!(stopped.error_code, "CONTAINER_NOT_RUNNING", "{}", stopped.error_message);
    assert!(!stopped.error_message.is_empty());
    let history = client.history(sandbox).await.unwrap();
    let is_stop = |event: &&SandboxEvent| event.event_type() == EventType::SandboxStopRequested;
    let asked = history.iter().position(|event| is_stop(&event)).unwrap();
    for event in [&history[asked], history.last().unwrap()] {
        assert_eq!(cause(event), expected);
    }
    let (last, told) = history[asked + 1..].split_last().unwrap();
    assert_eq!(last.event_type(), EventType::SandboxStopped);
    assert!(told.iter().all(|event| event.event_type() == EventType::ExecFailed), "{told:?}");
    client.resume(sandbox).await.unwrap();
    let ready = client.until(sandbox, SandboxState::Ready).await.unwrap();
    assert_eq!(ready.error_code, "");
    let kept = client.run(sandbox, &format!("kept-{sandbox}"), "grep -q written kept").await;
    assert_eq!(kept.state(), ExecState::Finished);
    client.gone(sandbox).await;
}

fn cause(event: &SandboxEvent) -> &str {
    match &event.details {
        Some(sandbox_event::Details::SandboxPhase(phase)) => &phase.reason,
        other => panic!("{other:?}"),
    }
}

/// One that failed says why, and can be deleted.
async fn is_lost(client: &mut Client, sandbox: &str) {
    let lost = client.until(sandbox, SandboxState::Failed).await.unwrap();
    assert_eq!(lost.error_code, "SANDBOX_CREATE_FAILED", "{}", lost.error_message);
    assert!(!lost.error_message.is_empty());
    client.gone(sandbox).await;
}

//= promises.control-plane.supervisors-agents-killed
#[test]
fn one_that_dies_while_it_is_ready_is_stopped_and_resumed_with_what_it_wrote() {
    run(async {
        let mut scene = Scene::set().await;
        for victim in VICTIMS {
            let id = format!("{victim:?}-1");
            scene.client.ready(&id, host()).await;
            let written = scene.client.run(&id, &format!("write-{id}"), "echo written > kept && sync kept").await;
            assert_eq!(written.state(), ExecState::Finished);
            scene.kill(&id, victim).await;
            is_resumed(&mut scene.client, &id, victim.cause()).await;
        }
        scene.end(&["Supervisor-1", "FirstProcess-1"]).await;
    });
}

/// What a file of a sandbox has.
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
fn the_files_of_one_that_died_are_read_until_it_is_resumed() {
    run(async {
        let mut scene = Scene::set().await;
        scene.client.ready("box-1", host()).await;
        scene.client.run("box-1", "write-1", "echo written > kept && sync kept").await;
        scene.kill("box-1", Victim::Supervisor).await;
        scene.client.until("box-1", SandboxState::Stopped).await.unwrap();
        assert_eq!(read(&mut scene.client, "box-1", "/workspace/kept").await.unwrap(), b"written\n");
        let absent = read(&mut scene.client, "box-1", "/workspace/absent").await.unwrap_err();
        assert_eq!(reason(&absent).as_deref(), Some("FILE_NOT_FOUND"));
        assert_eq!(scene.client.get("box-1").await.unwrap().state(), SandboxState::Stopped);

        let open = OpenDiskRequest { sandbox_id: "box-1".to_owned() };
        let mut opened = scene.client.own.open_disk(open.clone()).await.unwrap().into_inner();
        let socket = opened.message().await.unwrap().unwrap().agent_socket;
        let agent = AgentClient::connect(socket).await.unwrap();
        assert_eq!(agent.files().read_to_end("/workspace/kept").await.unwrap(), b"written\n");
        scene.client.resumed("box-1").await;
        let ended = opened.message().await.unwrap_err();
        assert_eq!((ended.code(), reason(&ended).as_deref()), (Code::Unavailable, Some("SANDBOX_UNREACHABLE")));
        assert!(agent.files().read_to_end("/workspace/kept").await.is_err());

        let mut opened = scene.client.own.open_disk(open).await.unwrap().into_inner();
        let socket = opened.message().await.unwrap().unwrap().agent_socket;
        let agent = AgentClient::connect(socket).await.unwrap();
        let content = agent.files().read_to_end("/workspace/kept").await.unwrap();
        assert_eq!(content, b"written\n", "of one that runs it is its own agent");
        drop((opened, agent));
        scene.client.gone("box-1").await;
        let gone = read(&mut scene.client, "box-1", "/workspace/kept").await.unwrap_err();
        assert_eq!(reason(&gone).as_deref(), Some("SANDBOX_NOT_READY"));
        scene.end(&["box-1"]).await;
    });
}

#[test]
fn what_reads_the_disk_of_a_stopped_one_ends_with_the_daemon() {
    run(async {
        let home = DaemonHome::new();
        let mut daemon = home.start().await;
        let mut client = Client::of(&daemon).await;
        client.ready("box-1", host()).await;
        client.run("box-1", "write-1", "echo written > kept && sync kept").await;
        client.stopped("box-1").await;
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
            let ended = reader.shim_handle();
            let wait = move |handle| rustix::event::poll(&mut [PollFd::new(&handle, PollFlags::IN)], None).unwrap();
            if let Some(handle) = ended {
                tokio::task::spawn_blocking(move || wait(handle)).await.unwrap();
            }
            assert!(home.record("box-1..read").is_none());
            readers.push(reader.incarnation);
            daemon = home.start().await;
            client = Client::of(&daemon).await;
            client.resumed("box-1").await;
            assert_eq!(client.run("box-1", &format!("look-{is_killed}"), "grep -q written kept").await.exit_code, 0);
            client.stopped("box-1").await;
        }
        client.gone("box-1").await;
        check(&home, daemon, &[]).await;
        nothing_left(&home, &readers).await;
    });
}

//= promises.control-plane.disk-missing
#[test]
fn one_whose_disk_is_missing_is_not_resumed_with_an_empty_one() {
    run(async {
        let mut scene = Scene::set().await;
        scene.client.ready("box-1", CreateSpec { disk_limit: String::new(), ..host() }).await;
        scene.client.run("box-1", "write-1", "echo written > kept").await;
        scene.client.stop("box-1").await.unwrap();
        scene.client.until("box-1", SandboxState::Stopped).await.unwrap();
        let (disks, away) = (scene.home.home().join("disks"), scene.home.path("away"));
        std::fs::rename(&disks, &away).unwrap();
        std::fs::create_dir(&disks).unwrap();
        scene.client.resume("box-1").await.unwrap();
        let failed = scene.client.until("box-1", SandboxState::Failed).await.unwrap();
        assert_eq!(failed.error_code, "SANDBOX_RESUME_FAILED");
        let unread = read(&mut scene.client, "box-1", "/workspace/kept").await.unwrap_err();
        assert_eq!((unread.code(), unread.message()), (Code::FailedPrecondition, failed.error_message.as_str()));
        assert!(failed.error_message.contains("the disk of the sandbox is missing"), "{}", failed.error_message);
        assert_eq!(std::fs::read_dir(&disks).unwrap().count(), 0);
        // Once the disk is back, so is the sandbox.
        std::fs::remove_dir(&disks).unwrap();
        std::fs::rename(&away, &disks).unwrap();
        scene.client.resume("box-1").await.unwrap();
        scene.client.until("box-1", SandboxState::Ready).await.unwrap();
        assert_eq!(scene.client.run("box-1", "look-1", "grep -q written kept").await.exit_code, 0);
        scene.client.gone("box-1").await;
        scene.end(&["box-1"]).await;
    });
}

//= promises.control-plane.supervisors-agents-killed
#[test]
fn what_runs_in_one_that_dies_has_ended_and_what_it_wrote_is_there() {
    run(async {
        let mut scene = Scene::set().await;
        for victim in VICTIMS {
            let (id, exec) = (format!("{victim:?}-1"), format!("count-{victim:?}"));
            scene.client.ready(&id, host()).await;
            scene.client.run(&id, &format!("write-{id}"), "echo written > kept").await;
            scene.count(&id, &exec).await;
            scene.kill(&id, victim).await;
            let ended = scene.client.until_ended(&exec).await.unwrap();
            assert_eq!((ended.state(), ended.exit_code), (ExecState::Failed, 137), "{}", ended.error);
            check_counted(&scene.home.wrote(&id, &exec));
            is_resumed(&mut scene.client, &id, victim.cause()).await;
        }
        scene.end(&["Supervisor-1", "FirstProcess-1"]).await;
    });
}

//= promises.control-plane.supervisors-agents-killed
#[test]
fn one_that_dies_while_it_is_filled_was_never_made() {
    run(async {
        let mut scene = Scene::set().await;
        // It takes long enough.
        let large = scene.home.path("large");
        std::fs::File::create(&large).unwrap().set_len(64 << 30).unwrap();
        let copy = CopySpec {
            source: large.display().to_string(),
            target: "/workspace/large".to_owned(),
            exclude_patterns: Vec::new(),
        };
        let spec = CreateSpec { copies: vec![copy], disk_limit: "64g".to_owned(), ..host() };
        for victim in VICTIMS {
            let id = format!("{victim:?}-1");
            scene.client.create(&id, spec.clone()).await.unwrap();
            scene.until_file(&id, "/workspace/large").await;
            scene.kill(&id, victim).await;
            is_lost(&mut scene.client, &id).await;
        }
        scene.end(&["Supervisor-1", "FirstProcess-1"]).await;
    });
}

//= promises.control-plane.supervisors-agents-killed
#[test]
fn wherever_a_supervisor_dies_that_makes_one_that_is_told() {
    run_within(Duration::from_secs(120), async {
        let home = DaemonHome::new();
        let beside = home.path("libexec");
        std::fs::create_dir(&beside).unwrap();
        symlink(agentd_path().with_file_name("carrel-failing-shim"), beside.join("carrel-shim")).unwrap();
        symlink(programs().agentd, beside.join("carrel-agentd")).unwrap();
        for point in Failpoint::ALL.iter().take_while(|point| **point as u8 <= Failpoint::Told as u8) {
            println!("{point:?}");
            std::fs::write(beside.join("failpoint"), format!("{point:?}")).unwrap();
            let mut command = home.command();
            let daemon = home.try_start(command.env("CARREL_LIBEXEC", &beside)).await.unwrap();
            let mut client = Client::of(&daemon).await;
            let id = format!("{point:?}-1");
            client.create(&id, host()).await.unwrap();
            match point {
                // Who dies when all is told was ready for a moment.
                Failpoint::Told => {
                    client.until(&id, SandboxState::Stopped).await.unwrap();
                    client.gone(&id).await;
                }
                _ => is_lost(&mut client, &id).await,
            }
            check_history(&client.history(&id).await.unwrap());
            check(&home, daemon, &[]).await;
        }
    });
}

//= promises.control-plane.supervisors-agents-killed
#[test]
fn one_that_dies_while_it_stops_has_stopped_and_can_be_resumed() {
    run(async {
        let mut scene = Scene::set().await;
        for victim in VICTIMS {
            let (id, exec) = (format!("{victim:?}-1"), format!("stays-{victim:?}"));
            scene.client.ready(&id, host()).await;
            let stays = "trap '' TERM; echo x > kept; while :; do sleep 0.01; done";
            scene.client.exec(&id, &exec, stays).await.unwrap();
            scene.client.run(&id, &format!("{exec}-seen"), "while ! [ -s kept ]; do sleep 0.01; done").await;
            scene.client.stop(&id).await.unwrap();
            scene.kill(&id, victim).await;
            scene.client.until(&id, SandboxState::Stopped).await.unwrap();
            assert_eq!(scene.client.until_ended(&exec).await.unwrap().state(), ExecState::Failed);
            scene.client.resume(&id).await.unwrap();
            scene.client.until(&id, SandboxState::Ready).await.unwrap();
            let kept = scene.client.run(&id, &format!("{exec}-kept"), "grep -q x kept").await;
            assert_eq!(kept.state(), ExecState::Finished);
            scene.client.gone(&id).await;
        }
        scene.end(&["Supervisor-1", "FirstProcess-1"]).await;
    });
}

//= promises.control-plane.supervisors-agents-killed
#[test]
fn one_that_dies_while_it_is_deleted_is_gone() {
    run(async {
        let mut scene = Scene::set().await;
        for victim in VICTIMS {
            let id = format!("{victim:?}-1");
            scene.client.ready(&id, host()).await;
            scene.count(&id, &format!("count-{victim:?}")).await;
            let handle = scene.home.record(&id).unwrap().shim_handle().unwrap();
            scene.client.delete(&id).await.unwrap();
            let _gone_already = rustix::process::pidfd_send_signal(&handle, Signal::KILL);
            scene.client.until(&id, SandboxState::Deleted).await.unwrap();
        }
        scene.end(&["Supervisor-1", "FirstProcess-1"]).await;
    });
}

//= promises.control-plane.supervisors-agents-killed
#[test]
fn when_everything_dies_at_once_the_next_daemon_tells_what_became_of_it() {
    run(async {
        let mut scene = Scene::set().await;
        for id in ["works", "stops", "deleted", "rests"] {
            scene.client.ready(id, host()).await;
            scene.client.run(id, &format!("write-{id}"), "echo written > kept").await;
            scene.count(id, &format!("count-{id}")).await;
        }
        scene.client.stop("rests").await.unwrap();
        scene.client.until("rests", SandboxState::Stopped).await.unwrap();
        // What was answered was accepted, however soon the daemon dies.
        let before = [scene.client.stop("stops").await, scene.client.delete("deleted").await];
        assert!(before.iter().all(Result::<(), Status>::is_ok));
        scene.daemon.kill().await;
        for id in ["works", "stops", "deleted"] {
            if let Some(handle) = scene.home.record(id).and_then(|record| record.shim_handle()) {
                let _killed = rustix::process::pidfd_send_signal(&handle, Signal::KILL);
            }
        }
        let daemon = scene.home.start().await;
        let mut scene = Scene { client: Client::of(&daemon).await, daemon, home: scene.home };
        scene.client.until("stops", SandboxState::Stopped).await.unwrap();
        scene.client.until("deleted", SandboxState::Deleted).await.unwrap();
        assert_eq!(scene.client.get("rests").await.unwrap().state(), SandboxState::Stopped);
        for id in ["works", "stops", "deleted"] {
            let exec = format!("count-{id}");
            assert_eq!(scene.client.until_ended(&exec).await.unwrap().state(), ExecState::Failed);
            check_counted(&scene.home.wrote(id, &exec));
        }
        for id in ["stops", "rests"] {
            scene.client.resume(id).await.unwrap();
            scene.client.until(id, SandboxState::Ready).await.unwrap();
            assert_eq!(scene.client.run(id, &format!("look-{id}"), "grep -q count runs").await.exit_code, 0);
            scene.client.gone(id).await;
        }
        is_resumed(&mut scene.client, "works", "supervisor_lost").await;
        scene.end(&["works", "stops", "deleted", "rests"]).await;
    });
}
