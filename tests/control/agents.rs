//! The agents server in a sandbox: it runs as a job, and clients connect through a published port.

use std::time::Duration;

use carrel_api::agbox::v1::{CreateSpec, ExecState, MountSpec, PortMapping};
use carrel_tests::{DaemonHome, agentd_path, port, run_within};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::cleanup::stop_and_check;
use crate::client::{Client, host_spec};

const BOX: &str = "published";
const CLOSED: &str = "closed";
const TOKEN: &str = "a-token-of-the-test";

/// Sends a request to a port of the host. Returns the status and the body, or `None` if no server responds.
async fn request(port: u16, token: Option<&str>, method: &str, path: &str, body: &str) -> Option<(u16, String)> {
    let authorization = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: published\r\n{authorization}connection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await.ok()?;
    let (head, body) = response.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

/// Sends a request to the server through the published port.
async fn request_published(port: u16, method: &str, path: &str, body: Option<Value>) -> (u16, String) {
    let body = body.map(|body| body.to_string()).unwrap_or_default();
    request(port, Some(TOKEN), method, path, &body).await.unwrap()
}

/// Starts the server in a sandbox as a job, and waits until it responds there.
async fn serve(client: &mut Client, sandbox: &str, job: &str, port: u16) {
    let serve = format!("exec /opt/agents/sandbox-agent server --port {port} --token {TOKEN} --data-dir /tmp/agents");
    client.exec(sandbox, job, &serve).await.unwrap();
    let list = format!("/opt/agents/sandbox-agent agents list --endpoint http://127.0.0.1:{port} --token {TOKEN}");
    let wait = format!("until {list} >/dev/null 2>&1; do sleep 0.01; done");
    assert_eq!(client.run(sandbox, &format!("{job}-wait"), &wait).await.state(), ExecState::Finished);
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
        let mut client = Client::connect(&daemon).await;
        // A port of the host that no program listens on, so that only a publication can lead to it.
        let (published, inside) = (port(), port());
        let spec = CreateSpec {
            mounts: vec![MountSpec {
                source: tools.display().to_string(),
                target: "/opt/agents".to_owned(),
                writable: false,
            }],
            ports: vec![PortMapping { container_port: inside.into(), host_port: published.into(), protocol: 0 }],
            ..host_spec()
        };
        client.create_and_wait(CLOSED, CreateSpec { ports: Vec::new(), ..spec.clone() }).await;
        client.create_and_wait(BOX, spec).await;
        serve(&mut client, CLOSED, "closed-server", inside).await;
        serve(&mut client, BOX, "server", inside).await;

        // Only the published port is forwarded to the server, and the server requires the token there too.
        let refused = TcpStream::connect(("127.0.0.1", inside)).await.unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
        for token in [None, Some("another-token")] {
            let (status, problem) = request(published, token, "GET", "/v1/sessions", "").await.unwrap();
            assert_eq!(status, 401, "{problem}");
        }
        assert_eq!(
            request_published(published, "GET", "/v1/health", None).await,
            (200, json!({"status": "ok"}).to_string())
        );
        let created = request_published(published, "POST", "/v1/sessions/one", Some(json!({"agent": "mock"}))).await;
        assert_eq!(created, (200, json!({"healthy": true, "agentSessionId": "mock-one"}).to_string()));
        let message = json!({"message": "burst 1000"});
        let (status, stream) =
            request_published(published, "POST", "/v1/sessions/one/messages/stream", Some(message)).await;
        assert_eq!(status, 200);
        for number in 1..=1000 {
            assert!(stream.contains(&format!("\"burst {number}\"")), "{number} is missing");
        }

        // The server ends with its job.
        client.cancel("server").await.unwrap();
        assert_eq!(client.wait_for_exec("server").await.unwrap().state(), ExecState::Cancelled);
        let after = request(published, Some(TOKEN), "GET", "/v1/health", "").await;
        assert!(after.as_ref().is_none_or(|(status, _)| *status != 200), "{after:?}");
        client.cancel("closed-server").await.unwrap();
        client.delete_and_wait(CLOSED).await;
        client.delete_and_wait(BOX).await;
        stop_and_check(&home, daemon, &[published]).await;
    });
}
