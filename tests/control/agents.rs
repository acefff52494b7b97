//! The agents server in a sandbox: it runs as a job, and is reached through a port that the control API publishes.

use std::time::Duration;

use carrel_api::agbox::v1::{CreateSpec, ExecState, MountSpec, PortMapping};
use carrel_tests::{DaemonHome, agentd_path, port, run_within};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::{Client, host};
use crate::left::check;

const BOX: &str = "desk";
const TOKEN: &str = "a-token-of-the-test";

/// Asks the server through the published port, and gives the status and the body.
async fn ask(port: u16, method: &str, path: &str, body: Option<Value>) -> (u16, String) {
    let body = body.map(|body| body.to_string()).unwrap_or_default();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: desk\r\nauthorization: Bearer {TOKEN}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or_else(|| panic!("{answer:?}")), answer.split_once("\r\n\r\n").unwrap().1.to_owned())
}

//= agents.architecture-components.single-daemon-runs-inside
//= agents.compatibility.session-ids-session-id
//= promises.agents-server.sandbox
//= agents.authentication.token-configured-start-operations
#[test]
fn the_agents_server_runs_in_a_sandbox_and_is_reached_through_a_published_port() {
    run_within(Duration::from_secs(120), async {
        let home = DaemonHome::new();
        let tools = home.open_directory("tools");
        std::fs::copy(agentd_path().with_file_name("sandbox-agent"), tools.join("sandbox-agent")).unwrap();
        let daemon = home.start().await;
        let mut client = Client::of(&daemon).await;
        let published = port();
        let spec = CreateSpec {
            mounts: vec![MountSpec {
                source: tools.display().to_string(),
                target: "/opt/agents".to_owned(),
                writable: false,
            }],
            ports: vec![PortMapping { container_port: 2468, host_port: published.into(), protocol: 0 }],
            ..host()
        };
        client.ready(BOX, spec).await;

        let serve = format!("exec /opt/agents/sandbox-agent server --token {TOKEN} --data-dir /tmp/agents");
        client.exec(BOX, "server", &serve).await.unwrap();
        let well =
            format!("until /opt/agents/sandbox-agent agents list --token {TOKEN} >/dev/null 2>&1; do sleep 0.01; done");
        assert_eq!(client.run(BOX, "well", &well).await.state(), ExecState::Finished);

        // Nothing but the port of the sandbox leads to it, and the token is asked for there too.
        assert_eq!(ask(published, "GET", "/v1/health", None).await, (200, json!({"status": "ok"}).to_string()));
        let created = ask(published, "POST", "/v1/sessions/one", Some(json!({"agent": "mock"}))).await;
        assert_eq!(created, (200, json!({"healthy": true, "agentSessionId": "mock-one"}).to_string()));
        let message = json!({"message": "burst 1000"});
        let (status, stream) = ask(published, "POST", "/v1/sessions/one/messages/stream", Some(message)).await;
        assert_eq!(status, 200);
        for number in 1..=1000 {
            assert!(stream.contains(&format!("\"burst {number}\"")), "{number} is missing");
        }

        // The job is the server: it ends with it, and the sandbox with nothing left.
        client.cancel("server").await.unwrap();
        assert_eq!(client.until_ended("server").await.unwrap().state(), ExecState::Cancelled);
        client.gone(BOX).await;
        check(&home, daemon, &[published]).await;
    });
}
