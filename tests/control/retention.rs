//! Retention: what a daemon keeps of deleted sandboxes, events, execs and output, and how requests for the rest fail.

use carrel_api::agbox::v1::SandboxEvent;
use carrel_api::carrel::v1::{GetExecOutputRequest, GetExecOutputResponse, PruneLogsRequest};
use carrel_tests::{DaemonHome, run};
use rustix::process::{Signal, pidfd_send_signal};
use tonic::{Code, Streaming};
use tonic_types::StatusExt;

use crate::cleanup::stop_and_check;
use crate::client::{Client, host_spec, reason};

const LIMITS: &str = "[retention]\ndeleted_count = 1\nevents_count = 6\nexecs_count = 2\noutput = \"64k\"\n";
/// The output of an exec that exceeds the limit.
const WRITTEN: u64 = 200_000;

async fn read_to_end(events: &mut Streaming<SandboxEvent>) {
    while events.message().await.unwrap().is_some() {}
}

async fn output(client: &mut Client, exec: &str) -> GetExecOutputResponse {
    let request = GetExecOutputRequest { exec_id: exec.to_owned() };
    client.own.get_exec_output(request).await.unwrap().into_inner()
}

//= control.subscription.anchor-typed-error
//= promises.control-plane.past
#[test]
fn a_daemon_keeps_deleted_sandboxes_events_execs_and_output_up_to_its_limits() {
    run(async {
        let home = DaemonHome::new();
        home.configure("");
        let daemon = home.start().await;
        let mut client = Client::connect(&daemon).await;
        for id in ["old1", "old2"] {
            client.create_and_wait(id, host_spec()).await;
            client.delete_and_wait(id).await;
        }
        let last = client.get("old1").await.unwrap().last_event_sequence;
        let mut pruned = client.subscribe("old1", last).await.unwrap();
        home.configure(LIMITS);
        pidfd_send_signal(daemon.handle(), Signal::HUP).unwrap();
        // A stream ends without an error when its sandbox is pruned.
        read_to_end(&mut pruned).await;
        assert_eq!(client.get("old1").await.unwrap_err().code(), Code::NotFound);
        client.get("old2").await.unwrap();
        assert_eq!(reason(&client.stop("old2").await.unwrap_err()).unwrap(), "SANDBOX_INVALID_STATE");

        client.create_and_wait("box1", host_spec()).await;
        for (exec, script) in [
            ("exec1", "echo text"),
            ("exec2", "echo text"),
            ("exec3", &format!("head -c {WRITTEN} /dev/zero")),
            ("exec4", "echo text"),
        ] {
            assert_eq!(client.run("box1", exec, script).await.exit_code, 0);
        }
        let newest = client.get("box1").await.unwrap().last_event_sequence;
        pidfd_send_signal(daemon.handle(), Signal::HUP).unwrap();
        while client.get_exec("exec1").await.is_ok() {
            tokio::task::yield_now().await;
        }
        assert_eq!(reason(&client.get_exec("exec2").await.unwrap_err()).unwrap(), "EXEC_NOT_FOUND");
        let logs = home.path("home/logs/box1");
        assert!(!logs.join("exec1.stdout.log").exists() && logs.join("exec4.stdout.log").exists());
        let taken = client.exec("box1", "exec1", "true").await.unwrap_err();
        assert_eq!(reason(&taken).unwrap(), "EXEC_ID_ALREADY_EXISTS");

        let expired = client.subscribe("box1", 1).await.unwrap_err();
        assert_eq!(expired.code(), Code::OutOfRange, "{expired}");
        let info = expired.get_details_error_info().unwrap();
        assert_eq!(info.reason, "SANDBOX_EVENT_SEQUENCE_EXPIRED");
        assert_eq!(info.metadata["oldest_sequence"], (newest - 5).to_string());
        let mut all = client.subscribe("box1", 0).await.unwrap();
        assert_eq!(all.message().await.unwrap().unwrap().sequence, newest - 5);

        let stdout = output(&mut client, "exec3").await.stdout.unwrap();
        assert!(stdout.trimmed_bytes > 0 && stdout.bytes < WRITTEN, "{stdout:?}");
        let whole = output(&mut client, "exec4").await.stdout.unwrap();
        assert_eq!((whole.bytes, whole.trimmed_bytes), (5, 0));
        let removed = client.own.prune_logs(PruneLogsRequest { older_than: None }).await.unwrap().into_inner();
        assert!(removed.files >= 1, "{removed:?}");
        let gone = output(&mut client, "exec4").await.stdout.unwrap();
        assert_eq!((gone.bytes, gone.trimmed_bytes), (0, 5));

        client.delete_and_wait("box1").await;
        stop_and_check(&home, daemon, &[]).await;
        // The next daemon knows what was trimmed.
        let daemon = home.start().await;
        let mut client = Client::connect(&daemon).await;
        assert_eq!(client.subscribe("box1", 1).await.unwrap_err().code(), Code::OutOfRange);
        stop_and_check(&home, daemon, &[]).await;
    });
}
