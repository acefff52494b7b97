//! Commands: run once, told truly, ended when they are to end.

use std::time::Duration;

use carrel_control::provider::{ExecOptions, ExecStart, Fact, How, Provider};
use carrel_control::spec::Spec;
use carrel_shim_client::ShimClient;
use carrel_shim_client::messages::JobFollow;
use carrel_store::ExecId;
use carrel_tests::run;

use crate::world::{World, again, command, ended, host, script};

#[test]
fn a_command_that_is_given_twice_runs_once() {
    run(async {
        let world = World::new();
        let place = world.started("demo", &host()).await;
        let exec = script("once", "echo ran >> /workspace/runs");
        for _ in 0..3 {
            assert_eq!(world.ran(&place, &exec).await, How::Exited(0));
        }
        assert_eq!(world.shell(&place, "look", "cat /workspace/runs").await, "ran\n");
        // Ids are used once, so this is the same command, put otherwise by another release: it is not run again.
        world.local.exec(&place, &host(), &script("once", "echo other >> /workspace/runs")).await.unwrap();
        assert_eq!(world.shell(&place, "again", "cat /workspace/runs").await, "ran\n");
    });
}

#[test]
fn how_a_command_ended_is_told() {
    run(async {
        let world = World::new();
        let place = world.started("demo", &host()).await;
        assert_eq!(world.ran(&place, &script("code", "exit 7")).await, How::Exited(7));
        assert_eq!(world.ran(&place, &script("signal", "kill -9 $$")).await, How::Signalled(9));
        let missing = world.ran(&place, &command("missing", &["/no/such/program"])).await;
        assert!(matches!(missing, How::NeverRan(127, _)), "{missing:?}");
        let plain = world.ran(&place, &command("plain", &["/etc/passwd"])).await;
        assert!(matches!(plain, How::NeverRan(126, _)), "{plain:?}");
        let nowhere = ExecStart { cwd: "/no/such/place".to_owned(), ..script("nowhere", "true") };
        assert!(matches!(world.ran(&place, &nowhere).await, How::NeverRan(126, _)));
        let options = ExecOptions { timeout_ms: Some(50), ..ExecOptions::default() };
        let late = ExecStart { options, ..script("late", "sleep 1000") };
        assert_eq!(world.ran(&place, &late).await, How::TimedOut);
    });
}

#[test]
fn an_id_may_be_as_long_as_ids_are() {
    run(async {
        let world = World::new();
        let (sandbox, exec) = ("s".repeat(200), "e".repeat(200));
        let place = world.started(&sandbox, &host()).await;
        assert_eq!(world.shell(&place, &exec, "echo here").await, "here\n");
        world.local.remove(&place).await.unwrap();
    });
}

#[test]
fn a_command_has_its_user_its_home_its_directory_and_its_environment() {
    run(async {
        let world = World::new();
        let place = world.started("demo", &host()).await;
        let env = [("KEY".to_owned(), "a b".to_owned())].into();
        let options = ExecOptions { user: Some("root".to_owned()), ..ExecOptions::default() };
        let exec =
            ExecStart { cwd: "/tmp".to_owned(), env, options, ..script("exec-1", "id -u; pwd; echo $HOME $KEY") };
        assert_eq!(world.ran(&place, &exec).await, How::Exited(0));
        assert_eq!(world.wrote(&place, "exec-1"), "0\n/tmp\n/root a b\n");
        let text = "stat -c '%U %a' /workspace $HOME; touch /workspace/x ~/x && echo may";
        assert_eq!(world.shell(&place, "exec-2", text).await, "agbox 755\nagbox 755\nmay\n");
    });
}

#[test]
fn a_command_that_is_cancelled_is_dead_when_that_returns() {
    run(async {
        let world = World::new();
        let place = world.started("demo", &host()).await;
        let mut facts = world.watch(&place, 0);
        let exec = script("long", "trap '' TERM; echo $$ > /workspace/pid; sleep 1000 & wait; sleep 1000");
        world.local.exec(&place, &host(), &exec).await.unwrap();
        world.shell(&place, "wait", "while ! [ -s /workspace/pid ]; do :; done").await;
        let id = ExecId::new("long").unwrap();
        world.local.cancel(&place, &id).await.unwrap();
        assert_eq!(ended(&mut facts, "long").await, How::Cancelled);
        world.shell(&place, "look", "! kill -0 $(cat /workspace/pid)").await;
        // What has ended, and what never was, is dead too.
        world.local.cancel(&place, &id).await.unwrap();
        world.local.cancel(&place, &ExecId::new("none").unwrap()).await.unwrap();
    });
}

#[test]
fn what_a_sandbox_runs_by_itself_is_told_apart_and_begins_anew() {
    run(async {
        let world = World::new();
        let spec = Spec { command: ["sh", "-c", "echo $KEY; exit 3"].map(str::to_owned).to_vec(), ..host() };
        let spec = Spec { envs: [("KEY".to_owned(), "value".to_owned())].into(), ..spec };
        let mut place = world.started("demo", &spec).await;
        for _ in 0..2 {
            let mut facts = world.watch(&place, 0);
            for attempt in 0..2 {
                for _ in 0..2 {
                    world.local.command(&place, &spec, attempt).await.unwrap();
                }
                loop {
                    match facts.recv().await.unwrap().fact {
                        Fact::CommandEnded { attempt: told, how } => {
                            assert_eq!((told, how), (attempt, How::Exited(3)));
                            break;
                        }
                        fact => assert_eq!(fact, Fact::Other),
                    }
                }
                let log = world.home.path().join(format!("logs/demo/primary.{attempt}.stdout.log"));
                assert_eq!(std::fs::read_to_string(log).unwrap(), "value\n");
            }
            world.local.stop(&place, Duration::ZERO).await.unwrap();
            place = again(&place);
            world.local.start(&place, &spec).await.unwrap();
        }
    });
}

#[test]
fn one_that_is_used_is_told_from_one_that_is_not() {
    run(async {
        let world = World::new();
        let spec = Spec { command: ["sleep", "1000"].map(str::to_owned).to_vec(), ..host() };
        let place = world.started("demo", &spec).await;
        let is_active = async || world.local.is_active(&place).await.unwrap();
        assert!(!is_active().await);
        world.local.command(&place, &spec, 0).await.unwrap();
        assert!(!is_active().await, "what it runs by itself is no use of it");

        let reach = world.local.reach(&place);
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

        world.local.exec(&place, &spec, &script("other", "sleep 1000")).await.unwrap();
        assert!(is_active().await, "a job");
    });
}

#[test]
fn a_sandbox_that_is_paused_does_nothing() {
    run(async {
        let world = World::new();
        let place = world.started("demo", &host()).await;
        let mut facts = world.watch(&place, 0);
        world.local.pause(&place, true).await.unwrap();
        world.local.pause(&place, true).await.unwrap();
        world.local.exec(&place, &host(), &script("held", "true")).await.unwrap();
        let mut shim = ShimClient::connect(&world.local.reach(&place).shim_socket).await.unwrap();
        assert!(shim.statistics().await.unwrap().paused);
        assert_eq!(shim.status().await.unwrap().running_jobs, 1);
        world.local.pause(&place, false).await.unwrap();
        assert_eq!(ended(&mut facts, "held").await, How::Exited(0));
    });
}
