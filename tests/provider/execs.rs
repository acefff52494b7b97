//! Execs: a command runs once, its result is reported, and it can be cancelled.

use std::time::Duration;

use carrel_control::provider::{ExecOptions, ExecStart, Fact, How, Provider};
use carrel_control::spec::Spec;
use carrel_shim_client::ShimClient;
use carrel_shim_client::messages::JobFollow;
use carrel_store::ExecId;
use carrel_tests::run;

use crate::harness::{ProviderHarness, command, host_spec, next_incarnation, script, wait_for_exec};

#[test]
fn a_repeated_exec_runs_its_command_once() {
    run(async {
        let harness = ProviderHarness::new();
        let instance = harness.start("demo", &host_spec()).await;
        let exec = script("once", "echo ran >> /workspace/runs");
        for _ in 0..3 {
            assert_eq!(harness.run_exec(&instance, &exec).await, How::Exited(0));
        }
        assert_eq!(harness.shell(&instance, "look", "cat /workspace/runs").await, "ran\n");
        // Ids are used once, so this is the same exec in the form of another release: it is not run again.
        harness.local.exec(&instance, &host_spec(), &script("once", "echo other >> /workspace/runs")).await.unwrap();
        assert_eq!(harness.shell(&instance, "again", "cat /workspace/runs").await, "ran\n");
    });
}

#[test]
fn the_result_of_a_command_is_reported() {
    run(async {
        let harness = ProviderHarness::new();
        let instance = harness.start("demo", &host_spec()).await;
        assert_eq!(harness.run_exec(&instance, &script("code", "exit 7")).await, How::Exited(7));
        assert_eq!(harness.run_exec(&instance, &script("signal", "kill -9 $$")).await, How::Signalled(9));
        let missing = harness.run_exec(&instance, &command("missing", &["/no/such/program"])).await;
        assert!(matches!(missing, How::NeverRan(127, _)), "{missing:?}");
        let plain = harness.run_exec(&instance, &command("plain", &["/etc/passwd"])).await;
        assert!(matches!(plain, How::NeverRan(126, _)), "{plain:?}");
        let nowhere = ExecStart { cwd: "/no/such/place".to_owned(), ..script("nowhere", "true") };
        assert!(matches!(harness.run_exec(&instance, &nowhere).await, How::NeverRan(126, _)));
        let options = ExecOptions { timeout_ms: Some(50), ..ExecOptions::default() };
        let late = ExecStart { options, ..script("late", "sleep 1000") };
        assert_eq!(harness.run_exec(&instance, &late).await, How::TimedOut);
    });
}

#[test]
fn ids_of_the_maximum_length_work() {
    run(async {
        let harness = ProviderHarness::new();
        let (sandbox, exec) = ("s".repeat(200), "e".repeat(200));
        let instance = harness.start(&sandbox, &host_spec()).await;
        assert_eq!(harness.shell(&instance, &exec, "echo here").await, "here\n");
        harness.local.remove(&instance).await.unwrap();
    });
}

#[test]
fn a_command_runs_with_its_user_home_working_directory_and_environment() {
    run(async {
        let harness = ProviderHarness::new();
        let instance = harness.start("demo", &host_spec()).await;
        let env = [("KEY".to_owned(), "a b".to_owned())].into();
        let options = ExecOptions { user: Some("root".to_owned()), ..ExecOptions::default() };
        let exec =
            ExecStart { cwd: "/tmp".to_owned(), env, options, ..script("exec-1", "id -u; pwd; echo $HOME $KEY") };
        assert_eq!(harness.run_exec(&instance, &exec).await, How::Exited(0));
        assert_eq!(harness.exec_output(&instance, "exec-1"), "0\n/tmp\n/root a b\n");
        let text = "stat -c '%U %a' /workspace $HOME; touch /workspace/x ~/x && echo may";
        assert_eq!(harness.shell(&instance, "exec-2", text).await, "agbox 755\nagbox 755\nmay\n");
    });
}

#[test]
fn cancel_returns_when_the_command_is_dead() {
    run(async {
        let harness = ProviderHarness::new();
        let instance = harness.start("demo", &host_spec()).await;
        let mut facts = harness.watch(&instance, 0);
        let exec = script("long", "trap '' TERM; echo $$ > /workspace/pid; sleep 1000 & wait; sleep 1000");
        harness.local.exec(&instance, &host_spec(), &exec).await.unwrap();
        harness.shell(&instance, "wait", "while ! [ -s /workspace/pid ]; do :; done").await;
        let id = ExecId::new("long").unwrap();
        harness.local.cancel(&instance, &id).await.unwrap();
        assert_eq!(wait_for_exec(&mut facts, "long").await, How::Cancelled);
        harness.shell(&instance, "look", "! kill -0 $(cat /workspace/pid)").await;
        // Cancelling an exec that has ended, or that never existed, succeeds.
        harness.local.cancel(&instance, &id).await.unwrap();
        harness.local.cancel(&instance, &ExecId::new("none").unwrap()).await.unwrap();
    });
}

#[test]
fn each_attempt_of_the_main_command_is_reported_by_number_and_the_next_incarnation_starts_at_zero() {
    run(async {
        let harness = ProviderHarness::new();
        let spec = Spec { command: ["sh", "-c", "echo $KEY; exit 3"].map(str::to_owned).to_vec(), ..host_spec() };
        let spec = Spec { envs: [("KEY".to_owned(), "value".to_owned())].into(), ..spec };
        let mut instance = harness.start("demo", &spec).await;
        for _ in 0..2 {
            let mut facts = harness.watch(&instance, 0);
            for attempt in 0..2 {
                for _ in 0..2 {
                    harness.local.command(&instance, &spec, attempt).await.unwrap();
                }
                loop {
                    match facts.recv().await.unwrap().fact {
                        Fact::CommandEnded { attempt: reported, how } => {
                            assert_eq!((reported, how), (attempt, How::Exited(3)));
                            break;
                        }
                        fact => assert_eq!(fact, Fact::Other),
                    }
                }
                let log = harness.home.path().join(format!("logs/demo/primary.{attempt}.stdout.log"));
                assert_eq!(std::fs::read_to_string(log).unwrap(), "value\n");
            }
            harness.local.stop(&instance, Duration::ZERO).await.unwrap();
            instance = next_incarnation(&instance);
            harness.local.start(&instance, &spec).await.unwrap();
        }
    });
}

#[test]
fn a_sandbox_is_active_while_a_client_a_viewer_or_an_exec_uses_it() {
    run(async {
        let harness = ProviderHarness::new();
        let spec = Spec { command: ["sleep", "1000"].map(str::to_owned).to_vec(), ..host_spec() };
        let instance = harness.start("demo", &spec).await;
        let is_active = async || harness.local.is_active(&instance).await.unwrap();
        assert!(!is_active().await);
        harness.local.command(&instance, &spec, 0).await.unwrap();
        assert!(!is_active().await, "its main command does not make it active");

        let reach = harness.local.reach(&instance);
        let client = carrel_agent_client::AgentClient::connect(&reach.agent_socket).await.unwrap();
        assert!(is_active().await, "a client of its agent");
        client.close();
        while is_active().await {}

        let job = |job: &str| JobFollow {
            job: job.to_owned(),
            stdout: Some(0),
            stderr: None,
            input: carrel_shim_client::messages::InputWish::None,
            hold: false,
        };
        let shim = ShimClient::connect(&reach.shim_socket).await.unwrap();
        let viewer = shim.follow(&job("primary.0")).await.unwrap();
        while !is_active().await {}
        drop(viewer);
        while is_active().await {}

        harness.local.exec(&instance, &spec, &script("other", "sleep 1000")).await.unwrap();
        assert!(is_active().await, "a job");
    });
}

#[test]
fn an_exec_in_a_paused_sandbox_runs_after_the_resume() {
    run(async {
        let harness = ProviderHarness::new();
        let instance = harness.start("demo", &host_spec()).await;
        let mut facts = harness.watch(&instance, 0);
        harness.local.pause(&instance, true).await.unwrap();
        harness.local.pause(&instance, true).await.unwrap();
        harness.local.exec(&instance, &host_spec(), &script("held", "true")).await.unwrap();
        let mut shim = ShimClient::connect(&harness.local.reach(&instance).shim_socket).await.unwrap();
        assert!(shim.statistics().await.unwrap().paused);
        assert_eq!(shim.status().await.unwrap().running_jobs, 1);
        harness.local.pause(&instance, false).await.unwrap();
        assert_eq!(wait_for_exec(&mut facts, "held").await, How::Exited(0));
    });
}
