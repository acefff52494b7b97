//! Asks a server, and prints what it says.

use std::{io::Write as _, net::IpAddr, time::Duration};

use clap::Args;
use reqwest::{Client, Method, Response, Url};
use serde_json::Value;

use super::{Failure, token::TokenArguments};

/// Which server is asked.
#[derive(Args)]
pub(super) struct Endpoint {
    /// The server: http://… or unix:PATH
    #[arg(short, long, default_value = "http://127.0.0.1:2468")]
    endpoint: String,
    #[command(flatten)]
    token: TokenArguments,
}

/// A request.
pub(super) struct Ask {
    method: Method,
    path: Vec<String>,
    query: Vec<(&'static str, String)>,
    body: Option<Value>,
}

// === impl Ask ===

impl Ask {
    /// Of a path below `/v1`, whose pieces may be any text.
    pub(super) fn new<S: Into<String>>(method: Method, path: impl IntoIterator<Item = S>) -> Self {
        let path = path.into_iter().map(Into::into).collect();
        Self { method, path, query: Vec::new(), body: None }
    }

    pub(super) fn query(mut self, key: &'static str, value: Option<impl ToString>) -> Self {
        self.query.extend(value.map(|value| (key, value.to_string())));
        self
    }

    /// What has no value is left out.
    pub(super) fn body(mut self, mut body: Value) -> Self {
        if let Some(fields) = body.as_object_mut() {
            fields.retain(|_, value| !value.is_null());
        }
        self.body = Some(body);
        self
    }
}

// === impl Endpoint ===

impl Endpoint {
    /// Asks, and prints the answer.
    pub(super) fn ask(&self, ask: Ask) -> Result<(), Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::new)?;
        runtime.block_on(self.send(ask))
    }

    async fn send(&self, ask: Ask) -> Result<(), Failure> {
        let mut response = self.request(ask)?.send().await.map_err(|error| self.unreachable(&error))?;
        let streams = header(&response, "content-type").starts_with("text/event-stream");
        if !response.status().is_success() {
            return Err(refusal(response).await);
        }
        let mut out = std::io::stdout().lock();
        let mut whole = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.unreachable(&error))? {
            if streams {
                // Whoever reads this may have had enough.
                if out.write_all(&chunk).and_then(|()| out.flush()).is_err() {
                    return Ok(());
                }
            } else {
                whole.extend_from_slice(&chunk);
            }
        }
        let text = match serde_json::from_slice::<Value>(&whole) {
            Ok(value) => format!("{value:#}\n").into_bytes(),
            Err(_) => whole,
        };
        let _enough = out.write_all(&text);
        Ok(())
    }

    fn request(&self, ask: Ask) -> Result<reqwest::RequestBuilder, Failure> {
        let token = self.token.get()?;
        let mut builder = Client::builder().connect_timeout(Duration::from_secs(10));
        let base = match self.endpoint.strip_prefix("unix:") {
            Some(path) => {
                builder = builder.unix_socket(path).no_proxy();
                "http://localhost"
            }
            None => &self.endpoint,
        };
        let wrong = |error: &dyn std::fmt::Display| Failure::new(format!("{} is no endpoint: {error}", self.endpoint));
        let mut url = Url::parse(base).map_err(|error| wrong(&error))?;
        url.path_segments_mut().map_err(|()| wrong(&"it has no path"))?.pop_if_empty().push("v1").extend(&ask.path);
        if !ask.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&ask.query);
        }
        // What stays on this machine is no proxy's business, and neither is the token.
        if url.host_str().is_some_and(is_here) {
            builder = builder.no_proxy();
        }
        // The one TLS of this program has to be named once, whoever is asked.
        let _named_already = rustls::crypto::ring::default_provider().install_default();
        let mut request = builder.build().map_err(Failure::new)?.request(ask.method, url);
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        if let Some(body) = ask.body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        Ok(request)
    }

    fn unreachable(&self, error: &reqwest::Error) -> Failure {
        let mut words = error.to_string();
        let mut cause = std::error::Error::source(error);
        while let Some(error) = cause {
            words = format!("{words}: {error}");
            cause = error.source();
        }
        Failure::new(format!("{}: {words}", self.endpoint)).hint("is `sandbox-agent server` running there?")
    }
}

fn is_here(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

fn header<'response>(response: &'response Response, name: &str) -> &'response str {
    response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// The server's own words for its refusal.
async fn refusal(mut response: Response) -> Failure {
    let status = response.status();
    let mut body = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        body.extend_from_slice(&chunk);
    }
    match serde_json::from_slice::<Value>(&body) {
        Ok(problem) => Failure::problem(&problem),
        Err(_) => Failure::new(format!("the server answered {status}")),
    }
}
