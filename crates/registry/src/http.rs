//! HTTP requests, one hop at a time: each redirect is checked against the egress policy and loses the authorization.

use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue, LOCATION};
use reqwest::redirect::Policy;
use reqwest::{Method, Response, Url};
use rustls::pki_types::CertificateDer;

use crate::egress::{EgressPolicy, EgressRoute, NotPublicAddress};
use crate::error::RegistryError;
use crate::transport::{CONNECT_TIMEOUT, READ_TIMEOUT, USER_AGENT, is_loopback};

/// Redirects that are followed.
const MAX_REDIRECTS: usize = 10;
/// Deadline for a body that is read whole.
const BODY_TIMEOUT: Duration = Duration::from_secs(300);

/// Sends requests within an egress policy.
pub(crate) struct HttpClient {
    open: reqwest::Client,
    public_only: Option<reqwest::Client>,
    egress: EgressPolicy,
}

#[derive(Clone, Debug)]
pub(crate) struct HttpRequest {
    pub(crate) method: Method,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Option<String>,
    /// Sent to the first origin only, not after a redirect to another one.
    pub(crate) authorization: Option<HeaderValue>,
}

/// A request without a usable response.
#[derive(Debug)]
pub(crate) enum HttpError {
    NotPublic(NotPublicAddress),
    Client(reqwest::Error),
    /// A redirect that cannot be followed.
    InvalidRedirect(&'static str),
    /// The body is larger than this limit.
    TooLarge(u64),
    /// The body did not arrive within the deadline.
    Timeout,
}

// === impl HttpClient ===

impl HttpClient {
    pub(crate) fn new(host: &str, trusted: &[CertificateDer<'_>], egress: EgressPolicy) -> Result<Self, RegistryError> {
        let failed = |error: reqwest::Error| {
            RegistryError::Setup(format!("{error}: are the system's CA certificates installed?"))
        };
        let roots = trusted.iter().map(|trusted| reqwest::Certificate::from_der(trusted));
        let roots = roots.collect::<Result<Vec<_>, _>>().map_err(failed)?;
        let builder = || {
            let builder = reqwest::Client::builder()
                .connect_timeout(CONNECT_TIMEOUT)
                .read_timeout(READ_TIMEOUT)
                .user_agent(USER_AGENT)
                .redirect(Policy::none())
                .tls_certs_merge(roots.clone());
            // The proxy of the environment cannot reach our loopback.
            if is_loopback(host) { builder.no_proxy() } else { builder }
        };
        let public_only =
            egress.public_resolver().map(|names| builder().dns_resolver(std::sync::Arc::new(names)).build());
        Ok(Self {
            open: builder().build().map_err(failed)?,
            public_only: public_only.transpose().map_err(failed)?,
            egress,
        })
    }

    /// The client to use for a URL; an error if the policy denies its host by name.
    pub(crate) fn client(&self, url: &Url) -> Result<&reqwest::Client, NotPublicAddress> {
        match (self.egress.route(url)?, &self.public_only) {
            (EgressRoute::Unrestricted, _) => Ok(&self.open),
            (EgressRoute::PublicOnly, Some(public_only)) => Ok(public_only),
            (EgressRoute::PublicOnly, None) => Err(NotPublicAddress(url.host_str().unwrap_or_default().to_owned())),
        }
    }

    /// Sends one request and follows no redirect.
    pub(crate) async fn send_once(&self, request: &HttpRequest) -> Result<Response, HttpError> {
        let mut context = self.client(&request.url)?.request(request.method.clone(), request.url.clone());
        context = context.headers(request.headers.clone());
        if let Some(authorization) = &request.authorization {
            context = context.header(AUTHORIZATION, authorization.clone());
        }
        if let Some(body) = &request.body {
            context = context.body(body.clone());
        }
        Ok(context.send().await?)
    }

    /// Sends a request and follows redirects.
    pub(crate) async fn send(&self, request: &HttpRequest) -> Result<Response, HttpError> {
        let mut request = request.clone();
        for _ in 0..=MAX_REDIRECTS {
            let response = self.send_once(&request).await?;
            let Some(next) = next(&response)? else { return Ok(response) };
            if next.origin() != request.url.origin() {
                request.authorization = None;
            }
            request.url = next;
        }
        Err(HttpError::InvalidRedirect("too many redirects"))
    }
}

/// The target of a redirect.
fn next(response: &Response) -> Result<Option<Url>, HttpError> {
    let Some(location) = response.headers().get(LOCATION).filter(|_| response.status().is_redirection()) else {
        return Ok(None);
    };
    let next = location.to_str().ok().and_then(|location| response.url().join(location).ok());
    match next.filter(|next| matches!(next.scheme(), "http" | "https") && next.host().is_some()) {
        Some(next) => Ok(Some(next)),
        None => Err(HttpError::InvalidRedirect("invalid redirect")),
    }
}

/// Reads a whole body up to a limit.
pub(crate) async fn body(mut response: Response, longest: u64) -> Result<Vec<u8>, HttpError> {
    let read = async {
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await? {
            body.extend_from_slice(&chunk);
            if body.len() as u64 > longest {
                return Err(HttpError::TooLarge(longest));
            }
        }
        Ok(body)
    };
    tokio::time::timeout(BODY_TIMEOUT, read).await.unwrap_or(Err(HttpError::Timeout))
}

// === impl HttpRequest ===

impl HttpRequest {
    pub(crate) fn get(url: Url) -> Self {
        Self { method: Method::GET, url, headers: HeaderMap::new(), body: None, authorization: None }
    }
}

// === impl HttpError ===

impl From<NotPublicAddress> for HttpError {
    fn from(refused: NotPublicAddress) -> Self {
        Self::NotPublic(refused)
    }
}

impl From<reqwest::Error> for HttpError {
    fn from(error: reqwest::Error) -> Self {
        Self::Client(error)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;
    use crate::RegistriesConfig;

    #[test]
    fn a_name_that_resolves_to_loopback_is_denied_on_resolution() {
        let _installed = rustls::crypto::ring::default_provider().install_default();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://localhost:{}/", listener.local_addr().unwrap().port());
        let http = HttpClient::new("localhost", &[], EgressPolicy::public(&RegistriesConfig::default())).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        // Bypasses the check by name, which would deny it earlier.
        let public_only =
            runtime.block_on(async { http.public_only.as_ref().unwrap().get(&url).send().await }).unwrap_err();
        let context = crate::error::RequestContext {
            registry: "a",
            what: "b",
            known: crate::error::LoginState::Anonymous,
            hide_details: true,
        };
        let refused = context.client_error(&public_only).to_string();
        assert_eq!(refused, "a was not contacted: localhost is not a public address");
        let answering = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _heard = stream.read(&mut [0; 1024]).unwrap();
            stream.write_all(b"HTTP/1.1 204 -\r\nconnection: close\r\n\r\n").unwrap();
        });
        let answer = runtime.block_on(async { http.open.get(&url).send().await }).unwrap();
        assert_eq!(answer.status(), 204);
        answering.join().unwrap();
    }
}
