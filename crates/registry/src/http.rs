//! Requests, one hop at a time: before each it is looked at who is asked, and what is shown there.

use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue, LOCATION};
use reqwest::redirect::Policy;
use reqwest::{Method, Response, Url};
use rustls::pki_types::CertificateDer;

use crate::error::RegistryError;
use crate::line::{AGENT, CONNECT, STALL, is_loopback};
use crate::reach::{NotPublic, Reach, Way};

/// How often one is sent elsewhere.
const HOPS: usize = 10;
/// An answer that is read whole has to be there after this.
const WHOLE: Duration = Duration::from_secs(300);

/// What makes requests.
pub(crate) struct Http {
    open: reqwest::Client,
    guarded: Option<reqwest::Client>,
    reach: Reach,
}

/// What is asked.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: Method,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Option<String>,
    /// Shown to the first who is asked, and to nobody it sends us to.
    pub(crate) shown: Option<HeaderValue>,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    Private(NotPublic),
    Broke(reqwest::Error),
    /// It sends us nowhere.
    Astray(&'static str),
    /// There is too much of it.
    Long(u64),
    /// It takes too long.
    Slow,
}

// === impl Http ===

impl Http {
    pub(crate) fn new(host: &str, trusted: &[CertificateDer<'_>], reach: Reach) -> Result<Self, RegistryError> {
        let failed = |error: reqwest::Error| {
            RegistryError::Setup(format!("{error}: are the certificates of the system installed?"))
        };
        let roots = trusted.iter().map(|trusted| reqwest::Certificate::from_der(trusted));
        let roots = roots.collect::<Result<Vec<_>, _>>().map_err(failed)?;
        let builder = || {
            let builder = reqwest::Client::builder()
                .connect_timeout(CONNECT)
                .read_timeout(STALL)
                .user_agent(AGENT)
                .redirect(Policy::none())
                .tls_certs_merge(roots.clone());
            // The proxy of the environment cannot reach our loopback.
            if is_loopback(host) { builder.no_proxy() } else { builder }
        };
        let guarded = reach.guarded().map(|names| builder().dns_resolver(std::sync::Arc::new(names)).build());
        Ok(Self { open: builder().build().map_err(failed)?, guarded: guarded.transpose().map_err(failed)?, reach })
    }

    /// Whether somebody may be asked, as far as that is known by its name.
    pub(crate) fn client(&self, url: &Url) -> Result<&reqwest::Client, NotPublic> {
        match (self.reach.way(url)?, &self.guarded) {
            (Way::Open, _) => Ok(&self.open),
            (Way::Guarded, Some(guarded)) => Ok(guarded),
            (Way::Guarded, None) => Err(NotPublic(url.host_str().unwrap_or_default().to_owned())),
        }
    }

    /// Asks one host, and nobody it may send us to.
    pub(crate) async fn once(&self, request: &Request) -> Result<Response, Failure> {
        let mut asked = self.client(&request.url)?.request(request.method.clone(), request.url.clone());
        asked = asked.headers(request.headers.clone());
        if let Some(shown) = &request.shown {
            asked = asked.header(AUTHORIZATION, shown.clone());
        }
        if let Some(body) = &request.body {
            asked = asked.body(body.clone());
        }
        Ok(asked.send().await?)
    }

    /// Asks, and goes where one is sent.
    pub(crate) async fn send(&self, request: &Request) -> Result<Response, Failure> {
        let mut request = request.clone();
        for _ in 0..=HOPS {
            let response = self.once(&request).await?;
            let Some(next) = next(&response)? else { return Ok(response) };
            if next.origin() != request.url.origin() {
                request.shown = None;
            }
            request.url = next;
        }
        Err(Failure::Astray("one place after another to ask instead"))
    }
}

/// Where an answer sends us, if it does.
fn next(response: &Response) -> Result<Option<Url>, Failure> {
    let Some(location) = response.headers().get(LOCATION).filter(|_| response.status().is_redirection()) else {
        return Ok(None);
    };
    let next = location.to_str().ok().and_then(|location| response.url().join(location).ok());
    match next.filter(|next| matches!(next.scheme(), "http" | "https") && next.host().is_some()) {
        Some(next) => Ok(Some(next)),
        None => Err(Failure::Astray("a place to ask instead that is none")),
    }
}

/// All of an answer, if it is not too long.
pub(crate) async fn body(mut response: Response, longest: u64) -> Result<Vec<u8>, Failure> {
    let read = async {
        let mut body = Vec::new();
        while let Some(piece) = response.chunk().await? {
            body.extend_from_slice(&piece);
            if body.len() as u64 > longest {
                return Err(Failure::Long(longest));
            }
        }
        Ok(body)
    };
    tokio::time::timeout(WHOLE, read).await.unwrap_or(Err(Failure::Slow))
}

// === impl Request ===

impl Request {
    pub(crate) fn get(url: Url) -> Self {
        Self { method: Method::GET, url, headers: HeaderMap::new(), body: None, shown: None }
    }
}

// === impl Failure ===

impl From<NotPublic> for Failure {
    fn from(refused: NotPublic) -> Self {
        Self::Private(refused)
    }
}

impl From<reqwest::Error> for Failure {
    fn from(error: reqwest::Error) -> Self {
        Self::Broke(error)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;
    use crate::Settings;

    #[test]
    fn a_name_that_leads_back_here_is_found_out_when_it_is_resolved() {
        let _installed = rustls::crypto::ring::default_provider().install_default();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://localhost:{}/", listener.local_addr().unwrap().port());
        let http = Http::new("localhost", &[], Reach::public(&Settings::default())).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        // Without the look at its name, which would refuse it before.
        let guarded = runtime.block_on(async { http.guarded.as_ref().unwrap().get(&url).send().await }).unwrap_err();
        let asked = crate::error::Asked { registry: "a", what: "b", known: crate::error::Known::Nobody, quiet: true };
        let refused = asked.broke(&guarded).to_string();
        assert_eq!(refused, "a is not asked: localhost is not a public address");
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
