//! HTTP client of the command line.

use std::{io::Write as _, net::IpAddr, time::Duration};

use clap::Args;
use reqwest::{Client, Method, Response, Url};
use serde_json::Value;

use super::{CliError, token::TokenArguments};

#[derive(Args)]
pub(super) struct EndpointArguments {
    /// Server to connect to: http://… or unix:PATH
    #[arg(short, long, default_value = "http://127.0.0.1:2468")]
    endpoint: String,
    #[command(flatten)]
    token: TokenArguments,
}

/// A request to the API.
pub(super) struct ApiRequest {
    method: Method,
    path: Vec<String>,
    query: Vec<(&'static str, String)>,
    body: Option<Value>,
}

// === impl ApiRequest ===

impl ApiRequest {
    /// A path below `/v1`; segments are escaped.
    pub(super) fn new<S: Into<String>>(method: Method, path: impl IntoIterator<Item = S>) -> Self {
        let path = path.into_iter().map(Into::into).collect();
        Self { method, path, query: Vec::new(), body: None }
    }

    pub(super) fn query(mut self, key: &'static str, value: Option<impl ToString>) -> Self {
        self.query.extend(value.map(|value| (key, value.to_string())));
        self
    }

    /// Sets the body; fields without a value are omitted.
    pub(super) fn body(mut self, mut body: Value) -> Self {
        if let Some(fields) = body.as_object_mut() {
            fields.retain(|_, value| !value.is_null());
        }
        self.body = Some(body);
        self
    }
}

// === impl EndpointArguments ===

impl EndpointArguments {
    /// Sends a request and prints the response.
    pub(super) fn send(&self, request: ApiRequest) -> Result<(), CliError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::new)?;
        runtime.block_on(self.send_async(request))
    }

    async fn send_async(&self, request: ApiRequest) -> Result<(), CliError> {
        let mut response = self.build(request)?.send().await.map_err(|error| self.unreachable(&error))?;
        let is_stream = header(&response, "content-type").starts_with("text/event-stream");
        if !response.status().is_success() {
            return Err(problem(response).await);
        }
        let mut out = std::io::stdout().lock();
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.unreachable(&error))? {
            if is_stream {
                // The reader of our output may be gone.
                if out.write_all(&chunk).and_then(|()| out.flush()).is_err() {
                    return Ok(());
                }
            } else {
                body.extend_from_slice(&chunk);
            }
        }
        let text = match serde_json::from_slice::<Value>(&body) {
            Ok(value) => format!("{value:#}\n").into_bytes(),
            Err(_) => body,
        };
        let _closed = out.write_all(&text);
        Ok(())
    }

    fn build(&self, request: ApiRequest) -> Result<reqwest::RequestBuilder, CliError> {
        let token = self.token.get()?;
        let mut builder = Client::builder().connect_timeout(Duration::from_secs(10));
        let base = match self.endpoint.strip_prefix("unix:") {
            Some(path) => {
                builder = builder.unix_socket(path).no_proxy();
                "http://localhost"
            }
            None => &self.endpoint,
        };
        let wrong =
            |error: &dyn std::fmt::Display| CliError::new(format!("invalid endpoint {}: {error}", self.endpoint));
        let mut url = Url::parse(base).map_err(|error| wrong(&error))?;
        url.path_segments_mut().map_err(|()| wrong(&"it has no path"))?.pop_if_empty().push("v1").extend(&request.path);
        if !request.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&request.query);
        }
        // Loopback traffic and the token must not go through a proxy.
        if url.host_str().is_some_and(is_loopback) {
            builder = builder.no_proxy();
        }
        // The TLS provider of the process has to be installed once.
        let _installed_already = rustls::crypto::ring::default_provider().install_default();
        let mut builder = builder.build().map_err(CliError::new)?.request(request.method, url);
        if let Some(token) = token {
            builder = builder.bearer_auth(token);
        }
        if let Some(body) = request.body {
            builder = builder.header("content-type", "application/json").body(body.to_string());
        }
        Ok(builder)
    }

    fn unreachable(&self, error: &reqwest::Error) -> CliError {
        let mut message = error.to_string();
        let mut cause = std::error::Error::source(error);
        while let Some(error) = cause {
            message = format!("{message}: {error}");
            cause = error.source();
        }
        CliError::new(format!("{}: {message}", self.endpoint)).hint("start the server: sandbox-agent server --no-token")
    }
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

fn header<'response>(response: &'response Response, name: &str) -> &'response str {
    response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// The server's error.
async fn problem(mut response: Response) -> CliError {
    let status = response.status();
    let mut body = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        body.extend_from_slice(&chunk);
    }
    match serde_json::from_slice::<Value>(&body) {
        Ok(problem) => CliError::problem(&problem),
        Err(_) => CliError::new(format!("the server responded with {status}")),
    }
}
