//! Helpers of these tests: a server for each test, and its client.

use std::{future::Future, process::Stdio, time::Duration};

use reqwest::{
    Method,
    header::{ACCEPT, CONTENT_TYPE, HeaderMap},
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader},
    process::{Child, Command},
};

use crate::sse_reader::SseReader;

/// Watchdog of every test.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(60);

/// A server for one test, which stops with it.
pub(crate) struct TestServer {
    child: Child,
    /// The address that it printed when it was ready.
    pub(crate) address: String,
    pub(crate) base: String,
    pub(crate) http: reqwest::Client,
    pub(crate) home: TempDir,
}

/// A response.
#[derive(Debug)]
pub(crate) struct TestResponse {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

/// Waits with a deadline.
pub(crate) async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(WATCHDOG, what).await.expect("this takes too long")
}

/// The program, without variables of our environment that could affect it.
pub(crate) fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sandbox-agent"));
    command.env_clear().arg("server").args(arguments).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// The output of a server that fails to start.
pub(crate) async fn refused(mut command: Command) -> String {
    let output = soon(command.output()).await.unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && output.status.code().is_some(), "it started, or died: {stderr}");
    stderr
}

// === impl TestServer ===

impl TestServer {
    /// A server without a token.
    pub(crate) async fn start() -> Self {
        Self::with(&["--no-token"]).await
    }

    /// A server with these flags.
    pub(crate) async fn with(flags: &[&str]) -> Self {
        Self::run(program(flags)).await
    }

    /// Starts this command, on a free port unless it listens on a socket.
    pub(crate) async fn run(command: Command) -> Self {
        Self::run_in(tempfile::tempdir().unwrap(), command).await
    }

    /// Starts it with this home, which is also its working directory.
    pub(crate) async fn run_in(home: TempDir, mut command: Command) -> Self {
        let mut child = command.args(["--port", "0"]).env("HOME", home.path()).current_dir(&home).spawn().unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut printed = String::new();
        // There may be warnings before it.
        let address = loop {
            let before = printed.len();
            assert_ne!(soon(errors.read_line(&mut printed)).await.unwrap(), 0, "{printed}");
            if let Some(address) = printed[before..].trim_end().strip_prefix("listening on ") {
                break address.to_owned();
            }
        };
        // The server's output is drained, so that it never blocks.
        tokio::spawn(async move { errors.read_to_end(&mut Vec::new()).await });
        let _installed = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder().no_proxy();
        let (http, base) = match address.strip_prefix("unix:") {
            Some(path) => (http.unix_socket(path), "http://localhost".to_owned()),
            None => (http, address.clone()),
        };
        Self { child, address, base, http: http.build().unwrap(), home }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().unwrap().try_into().unwrap()).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Waits for its exit.
    pub(crate) async fn end(&mut self) -> std::process::ExitStatus {
        soon(self.child.wait()).await.unwrap()
    }

    /// A raw connection.
    pub(crate) async fn connect(&self) -> tokio::net::TcpStream {
        tokio::net::TcpStream::connect(self.base.strip_prefix("http://").unwrap()).await.unwrap()
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.http.request(method, format!("{}{path}", self.base))
    }

    pub(crate) async fn get(&self, path: &str) -> TestResponse {
        TestResponse::to(self.request(Method::GET, path)).await
    }

    pub(crate) async fn delete(&self, path: &str) -> TestResponse {
        TestResponse::to(self.request(Method::DELETE, path)).await
    }

    /// Without a body.
    pub(crate) async fn order(&self, path: &str) -> TestResponse {
        TestResponse::to(self.request(Method::POST, path)).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> TestResponse {
        TestResponse::to(with_json(self.request(Method::POST, path), &body)).await
    }

    pub(crate) async fn patch(&self, path: &str, body: Value) -> TestResponse {
        TestResponse::to(with_json(self.request(Method::PATCH, path), &body)).await
    }

    /// Creates a session with the built-in agent.
    pub(crate) async fn create(&self, id: &str) {
        self.post(&format!("/v1/sessions/{id}"), json!({"agent": "mock"})).await.is(200);
    }

    pub(crate) async fn prompt(&self, id: &str, text: &str) {
        self.post(&format!("/v1/sessions/{id}/messages"), json!({"message": text})).await.is(204);
    }

    /// Sends a prompt and returns its whole turn.
    pub(crate) async fn say(&self, id: &str, text: &str) -> Vec<Value> {
        self.turn(id, text, "").await.rest().await
    }

    /// Sends a prompt and streams its turn.
    pub(crate) async fn turn(&self, id: &str, text: &str, query: &str) -> SseReader {
        let request = self.request(Method::POST, &format!("/v1/sessions/{id}/messages/stream{query}"));
        SseReader::of(with_json(request, &json!({"message": text}))).await
    }

    /// Streams all events of a session, in the full view.
    pub(crate) async fn follow(&self, id: &str) -> SseReader {
        self.stream(id, "?view=full").await
    }

    pub(crate) async fn stream(&self, id: &str, query: &str) -> SseReader {
        let request = self.request(Method::GET, &format!("/v1/sessions/{id}/events/sse{query}"));
        SseReader::of(request.header(ACCEPT, "text/event-stream")).await
    }

    pub(crate) async fn info(&self, id: &str) -> Value {
        self.get(&format!("/v1/sessions/{id}")).await.is(200)
    }

    pub(crate) async fn events(&self, id: &str, query: &str) -> Vec<Value> {
        let list = self.get(&format!("/v1/sessions/{id}/events{query}")).await.is(200);
        list["events"].as_array().unwrap().clone()
    }

    /// Memory use in KiB.
    pub(crate) fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid().as_raw_nonzero())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

// === impl TestResponse ===

impl TestResponse {
    pub(crate) async fn to(request: reqwest::RequestBuilder) -> Self {
        let response = soon(request.send()).await.unwrap();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Self { status, headers, body: soon(response.bytes()).await.unwrap().into() }
    }

    /// Asserts the status, and returns the JSON body.
    #[track_caller]
    pub(crate) fn is(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text());
        if self.body.is_empty() { Value::Null } else { serde_json::from_slice(&self.body).unwrap() }
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// Asserts that it is a problem of this kind.
    #[track_caller]
    pub(crate) fn refuses(&self, status: u16, code: &str) -> Value {
        let problem = self.is(status);
        assert_eq!(self.headers[CONTENT_TYPE], "application/problem+json");
        assert_eq!(problem["type"], format!("urn:sandbox-agent:error:{code}"), "{problem}");
        assert_eq!(problem["status"], status);
        assert_eq!(problem["title"].as_str().unwrap().to_lowercase(), code.replace('_', " "));
        assert!(problem["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{problem}");
        problem
    }
}

pub(crate) fn with_json(request: reqwest::RequestBuilder, body: &Value) -> reqwest::RequestBuilder {
    request.header(CONTENT_TYPE, "application/json").body(body.to_string())
}

/// Texts of the messages of this role, in order.
pub(crate) fn texts(events: &[Value], role: &str) -> Vec<String> {
    let messages = events.iter().map(|event| &event["data"]["message"]).filter(|message| message["role"] == role);
    messages.filter_map(|message| message["parts"][0]["text"].as_str().map(str::to_owned)).collect()
}

/// The kinds of events, in order.
pub(crate) fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["data"].as_object().unwrap().keys().next().unwrap().as_str()).collect()
}

/// Data of the events of this kind, in order.
pub(crate) fn of_kind<'events>(events: &'events [Value], kind: &str) -> Vec<&'events Value> {
    events.iter().filter_map(|event| event["data"].get(kind)).collect()
}
