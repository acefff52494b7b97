//! The lifecycle of a sandbox: stop, pause, statistics, kill and clean-up.

use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::time::Duration;

use carrel_agent_client::{ExecEvent, Generation};
use carrel_shim_client::messages::{EndReason, FailureCode, PersistentDisk};
use carrel_shim_client::{OwnedSandbox, OwnerError};
use carrel_tests::{TestSandbox, create, full, home, programs, run, run_within, shell, traces};
use rustix::process::{Pid, PidfdFlags, Signal};

const NOTHING: Vec<String> = Vec::new();

fn kill(pid: u32) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
}

/// Waits until a process that is not a child has exited.
async fn wait_for_exit(pid: u32) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    let Ok(process) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else { return };
    tokio::task::spawn_blocking(move || {
        let mut watched = [rustix::event::PollFd::new(&process, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut watched, None).unwrap();
    })
    .await
    .unwrap();
}

//= carrel.supervisor.stop-asks-waits-insists
//= promises.supervisor.end-reasons-distinguished
//= promises.supervisor.stop
#[test]
fn a_stop_sends_sigterm_waits_and_then_kills() {
    run(async {
        let mut polite = TestSandbox::start().await;
        let client = polite.client().await;
        let mut exec =
            client.exec(shell("trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.01; done")).await.unwrap();
        assert!(matches!(exec.next().await.unwrap(), Some(ExecEvent::Stdout(_))));
        let ended = polite.owned.stop(Duration::from_secs(30)).await.unwrap();
        assert_eq!((ended.reason, ended.code, ended.signal), (EndReason::Stopped, Some(0), None));
        let output = exec.collect().await.unwrap();
        assert_eq!((output.code, output.stdout.as_slice()), (7, &b"bye\n"[..]), "its last output arrives");
        assert_eq!(polite.traces(), NOTHING);

        let mut stubborn = TestSandbox::start().await;
        let client = stubborn.client().await;
        let mut exec = client.exec(shell("trap '' TERM; echo up; while :; do sleep 0.01; done")).await.unwrap();
        assert!(matches!(exec.next().await.unwrap(), Some(ExecEvent::Stdout(_))));
        let ended = stubborn.owned.stop(Duration::from_millis(100)).await.unwrap();
        assert_eq!((ended.reason, ended.signal), (EndReason::Stopped, Some(libc::SIGKILL)));
        assert_eq!(stubborn.traces(), NOTHING);
    });
}

//= carrel.supervisor.stop-asks-waits-insists
//= promises.agent.commands-after-shutdown
//= promises.supervisor.stop
#[test]
fn a_command_has_the_full_grace_period_and_its_last_output_arrives_complete() {
    run(async {
        let mut sandbox = TestSandbox::start().await;
        let script = "trap 'sleep 3; head -c 2000000 /dev/zero; exit 7' TERM; echo up; while :; do sleep 0.01; done";
        // Below generation 10 nothing is acknowledged: much output is in flight when the sandbox ends.
        let mut old = sandbox.client_of(Generation::new(7)).await.exec(shell(script)).await.unwrap();
        assert!(matches!(old.next().await.unwrap(), Some(ExecEvent::Stdout(_))));
        let (reading, ended) = tokio::join!(old.collect(), sandbox.owned.stop(Duration::from_secs(30)));
        let (output, ended) = (reading.unwrap(), ended.unwrap());
        assert_eq!((output.code, output.stdout.len()), (7, 2_000_000));
        assert_eq!((ended.reason, ended.signal), (EndReason::Stopped, None), "{ended:?}");
    });
}

//= carrel.supervisor.pause-resume-statistics
//= promises.supervisor.paused
#[test]
fn a_paused_sandbox_does_not_run_and_can_be_resumed_or_stopped() {
    run(async {
        let mut sandbox = TestSandbox::start().await;
        sandbox.shell("(while :; do echo x >>/tmp/ticks; sleep 0.005; done) >/dev/null 2>&1 &").await;
        sandbox.owned.pause().await.unwrap();
        assert!(sandbox.owned.statistics().await.unwrap().paused);
        let client = sandbox.client().await;
        let answer = client.ping();
        tokio::pin!(answer);
        assert!(within_a_round_trip(answer.as_mut()).await.is_none(), "a frozen agent does not answer");
        sandbox.owned.resume().await.unwrap();
        answer.await.unwrap();
        sandbox.owned.pause().await.unwrap();
        let ended = sandbox.owned.stop(Duration::from_secs(20)).await.unwrap();
        assert_eq!(ended.reason, EndReason::Stopped);
        assert_eq!(sandbox.traces(), NOTHING);
    });
}

/// The outcome of a future, if it is ready within the time of a round trip.
async fn within_a_round_trip<T>(future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(Duration::from_millis(200), future).await.ok()
}

//= carrel.supervisor.pause-resume-statistics
#[test]
fn statistics_count_traffic_and_resources() {
    run(async {
        let mut sandbox = TestSandbox::start().await;
        let client = sandbox.client().await;
        client
            .run(shell("head -c 1000000 /dev/zero; i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"), "")
            .await
            .unwrap();
        let statistics = sandbox.owned.statistics().await.unwrap();
        assert_eq!((statistics.clients, statistics.paused, statistics.stray_frames), (1, false, 0));
        assert!(statistics.bytes_out > 1_000_000 && statistics.bytes_in > 0, "{statistics:?}");
        assert!(statistics.memory_bytes > Some(0) && statistics.pids >= Some(1) && statistics.cpu_nanos > Some(0));
        assert_eq!(statistics.out_of_memory_kills, Some(0));
    });
}

//= carrel.supervisor.after-core-ready-privileges-dropped
//= promises.supervisor.once-sandbox-runs
#[test]
fn a_shim_is_not_root_and_keeps_one_capability() {
    run(async {
        let sandbox = TestSandbox::start().await;
        let status = std::fs::read_to_string(format!("/proc/{}/status", sandbox.owned.shim_pid())).unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        for ids in [field("Uid:"), field("Gid:")] {
            assert!(ids.iter().all(|id| id.parse::<u32>().unwrap() >= carrel_sandbox::SUPERVISORS), "{ids:?}");
        }
        // CAP_KILL is the sixth.
        for set in ["CapPrm:", "CapEff:"] {
            assert_eq!(field(set), ["0000000000000020"]);
        }
        for set in ["CapInh:", "CapBnd:", "CapAmb:"] {
            assert_eq!(field(set), ["0000000000000000"]);
        }
        assert_eq!(
            (field("NoNewPrivs:"), field("Seccomp:"), field("Groups:")),
            (vec!["1".into()], vec!["2".into()], vec![])
        );
        // It owns its own directory and no other.
        let directory = std::fs::metadata(&sandbox.create.directory.0).unwrap();
        assert_eq!(directory.uid().to_string(), field("Uid:")[0]);
        assert_eq!(directory.mode() & 0o777, 0o700);
    });
}

//= carrel.supervisor.death-sandbox-left-swept
//= promises.supervisor.groups-record-another-owner
#[test]
fn a_record_that_names_the_cgroup_of_another_sandbox_kills_no_process() {
    run(async {
        let sandbox = TestSandbox::start().await;
        let sandboxes = sandbox.home.path().join("run/sandboxes");
        let trap = sandboxes.join("trap");
        std::fs::DirBuilder::new().mode(0o700).create(&trap).unwrap();
        std::fs::write(trap.join("lock"), "").unwrap();
        std::fs::write(trap.join("incarnation"), &sandbox.create.incarnation).unwrap();
        // As a compromised shim could create it.
        std::os::unix::fs::chown(&trap, Some(carrel_sandbox::SUPERVISORS + 4000), None).unwrap();
        assert_eq!(carrel_shim::sweep(&sandboxes).unwrap(), 1);
        assert!(!trap.exists());
        assert_eq!(sandbox.shell("echo alive").await, "alive\n");
    });
}

//= carrel.supervisor.end-guest-oom-killed
//= promises.supervisor.end-reasons-distinguished
#[test]
fn an_oom_kill_is_distinguished_from_an_exit() {
    run(async {
        let mut sandbox = TestSandbox::with(|create| create.limits.memory = Some(64 << 20)).await;
        let client = sandbox.client().await;
        let output = client.run(shell("head -c 500m /dev/zero | tail -c 400m | wc -c; exit 3"), "").await.unwrap();
        assert!(output.code != 0 || output.stdout != b"419430400\n", "the limit holds");
        assert!(sandbox.owned.statistics().await.unwrap().out_of_memory_kills > Some(0));
        assert_eq!(
            client.run(shell("echo alive"), "").await.unwrap().stdout,
            b"alive\n",
            "the agent is the last to be OOM-killed"
        );
        // Its first process is killed from outside: that is not reported as an OOM kill.
        let mut other = TestSandbox::start().await;
        kill(other.owned.pid());
        let ended = other.owned.ended().await.unwrap();
        assert_eq!((ended.reason, ended.signal), (EndReason::GuestExit, Some(libc::SIGKILL)));
        assert_eq!(other.traces(), NOTHING);
    });
}

#[test]
fn a_persistent_disk_keeps_its_files_and_a_full_host_pauses_a_sandbox_that_writes() {
    run(async {
        let disks = home();
        let disk = |host_free| Some(PersistentDisk { host_free, ..PersistentDisk::at(disks.path().join("one")) });
        let first = TestSandbox::with(|create| create.kept_disk = disk(1)).await;
        first.shell("echo kept >/root/note; sync").await;
        drop(first);
        let second = TestSandbox::with(|create| create.kept_disk = disk(1)).await;
        assert_eq!(second.shell("cat /root/note").await, "kept\n");
        drop(second);
        // No host has that much free space. An idle sandbox is not paused, one that writes is.
        let mut starved = TestSandbox::with(|create| create.kept_disk = disk(u64::MAX)).await;
        assert_eq!(starved.shell("echo still").await, "still\n");
        assert!(!starved.owned.statistics().await.unwrap().paused);
        let client = starved.client().await;
        let writing = client.exec(shell("while :; do head -c 8m /dev/zero >/root/large; done")).await.unwrap();
        while !starved.owned.statistics().await.unwrap().paused {}
        drop(writing);
        let ended = starved.owned.stop(Duration::from_secs(10)).await.unwrap();
        assert_eq!(ended.reason, EndReason::Stopped);
        assert_eq!(starved.traces(), NOTHING);
    });
}

//= promises.supervisor.sandboxes-name-home
#[test]
fn a_name_is_taken_by_one_sandbox_and_free_after_it() {
    run(async {
        let sandbox = TestSandbox::start().await;
        let again = create(sandbox.home.path(), "test");
        let refused = OwnedSandbox::start(&programs(), &again).await.err().unwrap();
        assert!(matches!(refused, OwnerError::Failed(failed) if failed.code == FailureCode::NameTaken));
        let other = OwnedSandbox::start(&programs(), &create(sandbox.home.path(), "other")).await.unwrap();
        let TestSandbox { owned, home, .. } = sandbox;
        drop(owned);
        let next = OwnedSandbox::start(&programs(), &again).await.unwrap();
        drop((next, other, home));
    });
}

//= promises.supervisor.processes-cgroups-directories-sockets
#[test]
fn an_ephemeral_sandbox_ends_with_its_owner() {
    run(async {
        let sandbox = TestSandbox::start().await;
        let (guest, create) = (sandbox.owned.pid(), sandbox.create.clone());
        // Returns when the shim has exited.
        drop(sandbox.owned);
        assert_eq!(traces(&create), NOTHING);
        wait_for_exit(guest).await;
    });
}

//= carrel.supervisor.death-sandbox-left-swept
//= promises.supervisor.left-supervisor-itself-killed
#[test]
fn the_guest_of_a_killed_shim_is_killed_and_the_rest_is_swept() {
    run(async {
        let mut sandbox = TestSandbox::start().await;
        let guest = sandbox.owned.pid();
        kill(sandbox.owned.shim_pid());
        wait_for_exit(guest).await;
        assert!(matches!(sandbox.owned.ended().await, Err(OwnerError::Gone(_))));
        assert_ne!(sandbox.traces(), NOTHING, "the dead shim removed nothing");
        let swept = carrel_shim::sweep(&sandbox.home.path().join("run/sandboxes")).unwrap();
        assert_eq!((swept, sandbox.traces()), (1, NOTHING));
    });
}

//= carrel.supervisor.death-sandbox-left-swept
//= promises.supervisor.sandboxes-name-home
#[test]
fn leftovers_of_a_killed_shim_do_not_block_its_name() {
    run(async {
        let mut sandbox = TestSandbox::start().await;
        kill(sandbox.owned.shim_pid());
        assert!(sandbox.owned.ended().await.is_err());
        let again = create(sandbox.home.path(), "test");
        let mut next = OwnedSandbox::start(&programs(), &again).await.unwrap();
        next.stop(Duration::ZERO).await.unwrap();
        assert_eq!((sandbox.traces(), traces(&again)), (NOTHING, NOTHING));
    });
}

//= carrel.supervisor.nothing-left-behind-after
//= promises.supervisor.left-after-50-cycles
#[test]
fn nothing_is_left_after_many_cycles_with_kills() {
    let cycles = if full() { 500 } else { 50 };
    run_within(Duration::from_secs(600), async move {
        let home = home();
        let ids_before = std::fs::read_dir("/run/carrel/ids").map(Iterator::count).unwrap_or(0);
        for number in 0..cycles {
            let create = create(home.path(), &format!("cycle-{}", number % 3));
            let mut owned = OwnedSandbox::start(&programs(), &create).await.unwrap();
            match number % 5 {
                0 => kill(owned.shim_pid()),
                1 => drop(owned.stop(Duration::ZERO).await.unwrap()),
                2 => kill(owned.pid()),
                3 => {
                    let client = carrel_agent_client::AgentClient::connect(owned.agent_socket()).await.unwrap();
                    assert_eq!(client.run(shell("exit 5"), "").await.unwrap().code, 5);
                }
                _ => {}
            }
            drop(owned);
            carrel_shim::sweep(&home.path().join("run/sandboxes")).unwrap();
            assert_eq!(traces(&create), NOTHING, "cycle {number}");
        }
        let left: Vec<_> = std::fs::read_dir(home.path().join("run/sandboxes")).unwrap().collect();
        assert!(left.is_empty());
        // A range is a lock and can be reused. Its file is kept; there are never more files than ranges in use at once.
        let ids_after = std::fs::read_dir("/run/carrel/ids").map(Iterator::count).unwrap_or(0);
        assert!(ids_after <= ids_before + 16, "{ids_before} to {ids_after}");
    });
}
