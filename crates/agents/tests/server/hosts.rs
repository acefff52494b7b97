//! Host names that a server without a token allows.

use reqwest::Method;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::{TestResponse, TestServer, program, refused, soon};

/// Names that DNS can resolve to 127.0.0.1, and other spellings of it.
const FOREIGN: [&str; 8] = [
    "myhost",
    "myhost:2468",
    "agent.internal",
    "host.docker.internal:2468",
    "evil.example",
    "localhost.evil.example:2468",
    "2130706433",
    "0.0.0.0:2468",
];

async fn listed(server: &TestServer, host: &str) -> TestResponse {
    TestResponse::to(server.request(Method::GET, "/v1/sessions").header("host", host)).await
}

/// Sends a raw request; returns its status.
async fn raw(server: &TestServer, request: &str) -> u16 {
    let mut stream = server.connect().await;
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    soon(stream.read_to_end(&mut answer)).await.unwrap();
    let answer = String::from_utf8(answer).unwrap();
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{answer}"))
}

#[tokio::test]
async fn without_a_token_only_loopback_names_are_allowed() {
    let server = TestServer::start().await;
    for host in ["localhost", "LOCALHOST:1", "agent.localhost:2468", "127.9.9.9", "[::1]:9", "[::ffff:127.0.0.1]"] {
        listed(&server, host).await.is(200);
    }
    for host in FOREIGN {
        let problem = listed(&server, host).await.refuses(403, "permission_denied");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(host) && detail.contains("--allow-host"), "{detail}");
    }
    // A page of such a name is not the server's own either.
    let page = server.request(Method::GET, "/v1/sessions").header("host", "myhost").header("origin", "http://myhost");
    TestResponse::to(page).await.refuses(403, "permission_denied");
    for origin in ["http://localhost", "http://myhost", "http://agent.internal", "null", ""] {
        let page = server.request(Method::GET, "/v1/sessions").header("origin", origin);
        TestResponse::to(page).await.refuses(403, "permission_denied");
    }
    // With a token, the token decides, which no page has.
    let server = TestServer::with(&["--token", "s3cret"]).await;
    for host in FOREIGN {
        let list = server.request(Method::GET, "/v1/sessions").header("host", host).bearer_auth("s3cret");
        TestResponse::to(list).await.is(200);
    }
}

#[tokio::test]
async fn no_form_of_a_request_hides_its_host() {
    let server = TestServer::start().await;
    for (request, status) in [
        ("GET /v1/sessions HTTP/1.1\r\nhost: localhost\r\n", 200),
        ("GET http://localhost/v1/sessions HTTP/1.1\r\nhost: localhost\r\n", 200),
        ("GET /v1/sessions HTTP/1.0\r\nhost: localhost\r\n", 200),
        ("GET /v1/sessions HTTP/1.0\r\n", 403),
        ("GET /v1/sessions HTTP/1.1\r\n", 403),
        ("GET /v1/sessions HTTP/1.1\r\nhost:\r\n", 403),
        ("GET /v1/sessions HTTP/1.1\r\nhost: localhost\r\nhost: myhost\r\n", 403),
        ("GET /v1/sessions HTTP/1.1\r\nhost: myhost\r\nhost: localhost\r\n", 403),
        ("GET http://myhost/v1/sessions HTTP/1.1\r\nhost: localhost\r\n", 403),
        ("GET http://localhost/v1/sessions HTTP/1.1\r\nhost: myhost\r\n", 403),
        ("GET http://localhost@myhost/v1/sessions HTTP/1.1\r\nhost: localhost\r\n", 403),
        (
            "GET /v1/sessions HTTP/1.1\r\nhost: myhost\r\nx-forwarded-host: localhost\r\nforwarded: host=localhost\r\n",
            403,
        ),
        (
            "GET /v1/sessions HTTP/1.1\r\nhost: localhost\r\norigin: http://localhost\r\norigin: http://evil.example\r\n",
            403,
        ),
    ] {
        assert_eq!(raw(&server, &format!("{request}connection: close\r\n\r\n")).await, status, "{request}");
    }
}

#[tokio::test]
async fn the_flag_allows_other_hosts_and_the_servers_own_pages() {
    let server = TestServer::with(&["--no-token", "--allow-host", "agent.internal", "--allow-host", "192.0.2.7"]).await;
    for host in ["agent.internal:2468", "AGENT.internal", "192.0.2.7", "localhost"] {
        listed(&server, host).await.is(200);
    }
    listed(&server, "myhost").await.refuses(403, "permission_denied");
    listed(&server, "other.internal").await.refuses(403, "permission_denied");
    let own = |origin| {
        let request = server.request(Method::GET, "/v1/sessions").header("host", "agent.internal:2468");
        TestResponse::to(request.header("origin", origin))
    };
    own("http://agent.internal:2468").await.is(200);
    own("http://agent.internal:3000").await.refuses(403, "permission_denied");
    for wrong in ["*", "agent:2468", "http://agent", ""] {
        let output = refused(program(&["--port", "0", "--no-token", "--allow-host", wrong])).await;
        assert!(output.contains("--allow-host") && output.contains("hint: "), "{output}");
    }
}

#[tokio::test]
async fn the_host_check_applies_to_every_address_but_not_to_a_socket() {
    // Behind a published port, the host is the loopback name that the client connects to.
    let server = TestServer::with(&["--no-token", "--host", "0.0.0.0"]).await;
    let port = server.base.rsplit(':').next().unwrap().to_owned();
    let list = |host: String| {
        TestResponse::to(server.http.get(format!("http://127.0.0.1:{port}/v1/sessions")).header("host", host))
    };
    list("127.0.0.1:8080".to_owned()).await.is(200);
    list(format!("myhost:{port}")).await.refuses(403, "permission_denied");
    list(format!("0.0.0.0:{port}")).await.refuses(403, "permission_denied");
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let server = TestServer::with(&["--no-token", "--socket", socket.to_str().unwrap()]).await;
    listed(&server, "anything").await.is(200);
}
