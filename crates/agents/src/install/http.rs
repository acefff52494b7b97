//! Requests to a registry: asked again where that may help, and downloads that go on where they were cut.

use std::{
    error::Error,
    fmt,
    sync::OnceLock,
    time::{Duration, Instant},
};

use bytes::Bytes;
use reqwest::{
    Client, Response, StatusCode, Url,
    header::{ACCEPT, AUTHORIZATION, CONTENT_RANGE, ETAG, HeaderValue, IF_RANGE, RANGE},
};
use tokio::{sync::mpsc::Sender, task::spawn_blocking, time::sleep};

use super::{settings::Patience, stream::Piece};

const AGENT: &str = concat!("sandbox-agent/", env!("CARGO_PKG_VERSION"));
/// The most that a description may have.
const LONGEST: usize = 64 * 1024 * 1024;
/// The most that a package may have.
const LARGEST: u64 = 2 * 1024 * 1024 * 1024;
/// The least that has to come in each time of this length.
const LEAST: u64 = 60 * 1024;
const WHILE: Duration = Duration::from_secs(60);
/// How often a download may be cut in all.
const CUTS: u32 = 100;

/// What is asked for.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    /// Where.
    pub(super) url: Url,
    /// Who asks.
    pub(super) login: Option<HeaderValue>,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// It may go right the next time.
    Again(String),
    /// It will not.
    Never(String),
    /// There is no such thing.
    Absent,
    /// Whoever reads what comes has stopped.
    Unread,
}

/// How requests are made.
pub(super) struct Http {
    patience: Patience,
    certificates: Option<Vec<u8>>,
    near: OnceLock<Reach>,
    far: OnceLock<Reach>,
}

/// What asks, and whether it knows whom to trust.
#[derive(Clone)]
struct Reach {
    client: Client,
    trusts: bool,
}

/// How fast something comes.
#[derive(Default)]
struct Pace {
    bytes: u64,
    waited: Duration,
}

/// How far a download is.
#[derive(Default)]
struct Download {
    bytes: u64,
    total: Option<u64>,
    tag: Option<HeaderValue>,
}

// === impl Trouble ===

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Again(why) | Self::Never(why) => f.write_str(why),
            Self::Absent => f.write_str("there is no such thing"),
            Self::Unread => f.write_str("nobody reads it"),
        }
    }
}

// === impl Http ===

impl Http {
    /// With certificates that are trusted beside the system's, in PEM format.
    pub(super) fn new(patience: Patience, certificates: Option<Vec<u8>>) -> Self {
        Self { patience, certificates, near: OnceLock::new(), far: OnceLock::new() }
    }

    /// A short answer, whole.
    pub(super) async fn text(&self, ask: &Ask) -> Result<Vec<u8>, Trouble> {
        let client = self.client(&ask.url).await?;
        let mut failures = 0;
        loop {
            let trouble = match self.whole(&client, ask).await {
                Err(Trouble::Again(why)) => why,
                outcome => return outcome,
            };
            failures += 1;
            self.pause(failures, trouble).await?;
        }
    }

    /// A long answer, piece by piece. Tells how much has come and how much will.
    pub(super) async fn download(
        &self,
        ask: &Ask,
        pieces: Sender<Piece>,
        tell: &(dyn Fn(u64, Option<u64>) + Send + Sync),
    ) -> Result<(), Trouble> {
        let client = self.client(&ask.url).await?;
        let mut download = Download::default();
        let mut failures = 0;
        for _ in 0..CUTS {
            let before = download.bytes;
            let trouble = match self.part(&client, ask, &mut download, &pieces, tell).await {
                Ok(()) => return pieces.send(Piece::End).await.map_err(|_| Trouble::Unread),
                Err(Trouble::Again(why)) => why,
                Err(trouble) => return Err(trouble),
            };
            failures = if download.bytes > before { 1 } else { failures + 1 };
            self.pause(failures, trouble).await?;
        }
        Err(Trouble::Never(format!("the download was cut {CUTS} times")))
    }

    async fn whole(&self, client: &Client, ask: &Ask) -> Result<Vec<u8>, Trouble> {
        let mut response = self.send(client, ask, None).await?;
        let mut text = Vec::new();
        let mut pace = Pace::default();
        while let Some(piece) = pace.next(&mut response).await? {
            text.extend_from_slice(&piece);
            if text.len() > LONGEST {
                return Err(Trouble::Never("the answer does not end".to_owned()));
            }
        }
        Ok(text)
    }

    /// What is left of a download, as far as it comes.
    async fn part(
        &self,
        client: &Client,
        ask: &Ask,
        download: &mut Download,
        pieces: &Sender<Piece>,
        tell: &(dyn Fn(u64, Option<u64>) + Send + Sync),
    ) -> Result<(), Trouble> {
        let mut response = self.send(client, ask, Some(download)).await?;
        // A server that does not know parts begins anew; what we have of it is passed over.
        let mut known = download.resumes(&response)?;
        let mut pace = Pace::default();
        while let Some(mut piece) = pace.next(&mut response).await? {
            let passed = usize::try_from(known).unwrap_or(usize::MAX).min(piece.len());
            known -= passed as u64;
            let piece = piece.split_off(passed);
            if piece.is_empty() {
                continue;
            }
            download.bytes += piece.len() as u64;
            if download.bytes > LARGEST {
                return Err(Trouble::Never("the package is larger than any should be".to_owned()));
            }
            pieces.send(Piece::Bytes(piece)).await.map_err(|_| Trouble::Unread)?;
            tell(download.bytes, download.total);
        }
        match download.total {
            Some(total) if download.bytes < total => Err(Trouble::Again("the download was cut".to_owned())),
            _ => Ok(()),
        }
    }

    async fn send(&self, client: &Client, ask: &Ask, download: Option<&Download>) -> Result<Response, Trouble> {
        let mut request = client.get(ask.url.clone());
        match download {
            None => request = request.header(ACCEPT, "application/json"),
            Some(Download { bytes: 0, .. }) => {}
            Some(Download { bytes, tag, .. }) => {
                request = request.header(RANGE, format!("bytes={bytes}-"));
                if let Some(tag) = tag {
                    request = request.header(IF_RANGE, tag.clone());
                }
            }
        }
        if let Some(login) = &ask.login {
            request = request.header(AUTHORIZATION, login.clone());
        }
        let response = request.send().await.map_err(broke)?;
        let status = response.status();
        match status {
            StatusCode::OK | StatusCode::PARTIAL_CONTENT => Ok(response),
            StatusCode::NOT_FOUND | StatusCode::GONE => Err(Trouble::Absent),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Err(Trouble::Never(format!("{status}: does it want another login? Give it in ~/.npmrc")))
            }
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => Err(Trouble::Again(status.to_string())),
            _ if status.is_server_error() => Err(Trouble::Again(status.to_string())),
            _ => Err(Trouble::Never(status.to_string())),
        }
    }

    async fn pause(&self, failures: u32, why: String) -> Result<(), Trouble> {
        if failures >= self.patience.tries {
            return Err(Trouble::Never(why));
        }
        sleep(self.patience.pause.saturating_mul(1 << failures.saturating_sub(1).min(6)).min(Duration::from_secs(10)))
            .await;
        Ok(())
    }

    /// The certificates of the system are many: they are read once.
    async fn client(&self, url: &Url) -> Result<Client, Trouble> {
        // The proxy of the environment cannot reach our loopback.
        let is_near = matches!(url.host_str(), Some("localhost" | "127.0.0.1" | "[::1]"));
        let kept = if is_near { &self.near } else { &self.far };
        let reach = match kept.get() {
            Some(reach) => reach.clone(),
            None => {
                let (patience, certificates) = (self.patience, self.certificates.clone());
                let built = spawn_blocking(move || build(patience, certificates.as_deref(), is_near)).await;
                let built = built.map_err(|error| Trouble::Never(error.to_string()))??;
                kept.get_or_init(|| built).clone()
            }
        };
        if url.scheme() == "https" && !reach.trusts {
            return Err(Trouble::Never(format!("no certificates are known here; {CERTIFICATES}")));
        }
        Ok(reach.client)
    }
}

/// Without any certificate it reaches what needs none.
fn build(patience: Patience, certificates: Option<&[u8]>, is_near: bool) -> Result<Reach, Trouble> {
    // A static program has one provider only; that it is installed already is as good.
    let _installed = rustls::crypto::ring::default_provider().install_default();
    let failed = |error: reqwest::Error| Trouble::Never(format!("{}; {CERTIFICATES}", chain(&error)));
    let own = certificates.map(reqwest::Certificate::from_pem_bundle).transpose().map_err(failed)?.unwrap_or_default();
    let builder = || {
        let builder =
            Client::builder().connect_timeout(patience.connect).read_timeout(patience.stall).user_agent(AGENT);
        if is_near { builder.no_proxy() } else { builder }
    };
    match builder().tls_certs_merge(own).build() {
        Ok(client) => Ok(Reach { client, trusts: true }),
        Err(error) => {
            tracing::debug!(%error, "no certificates are known");
            let client = builder().tls_certs_only([]).build().map_err(failed)?;
            Ok(Reach { client, trusts: false })
        }
    }
}

const CERTIFICATES: &str = "are the certificates of the system installed? SSL_CERT_FILE names others";

// === impl Pace ===

impl Pace {
    /// The next piece of an answer that comes fast enough.
    async fn next(&mut self, response: &mut Response) -> Result<Option<Bytes>, Trouble> {
        let since = Instant::now();
        let piece = response.chunk().await.map_err(broke)?;
        if let Some(piece) = &piece {
            self.came(piece.len() as u64, since.elapsed())?;
        }
        Ok(piece)
    }

    fn came(&mut self, bytes: u64, waited: Duration) -> Result<(), Trouble> {
        self.bytes += bytes;
        self.waited += waited;
        if self.waited >= WHILE {
            let Self { bytes, waited } = std::mem::take(self);
            if bytes < LEAST {
                return Err(Trouble::Never(format!("too slow: {bytes} bytes in {} s", waited.as_secs())));
            }
        }
        Ok(())
    }
}

// === impl Download ===

impl Download {
    /// How much of what comes now was here before.
    fn resumes(&mut self, response: &Response) -> Result<u64, Trouble> {
        let tag = response.headers().get(ETAG).filter(|tag| !tag.as_bytes().starts_with(b"W/"));
        if self.bytes > 0 && self.tag.is_some() && tag.is_some() && self.tag.as_ref() != tag {
            return Err(Trouble::Never("it changed while it was downloaded".to_owned()));
        }
        self.tag = tag.cloned().or(self.tag.take());
        let length = response.content_length();
        if response.status() == StatusCode::OK {
            self.total = length.or(self.total);
            return Ok(self.bytes);
        }
        let part = response.headers().get(CONTENT_RANGE).and_then(|part| part.to_str().ok()).unwrap_or_default();
        if self.bytes == 0 || !part.starts_with(&format!("bytes {}-", self.bytes)) {
            return Err(Trouble::Never("the server answers with another part than was asked for".to_owned()));
        }
        self.total = length.map(|length| self.bytes + length).or(self.total);
        Ok(0)
    }
}

fn broke(error: reqwest::Error) -> Trouble {
    let why = chain(&error.without_url());
    // What is not to be trusted now is not the next time.
    if why.contains("certificate") { Trouble::Never(format!("{why}; {CERTIFICATES}")) } else { Trouble::Again(why) }
}

/// What went wrong, down to its reason.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let said = inner.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_too_slowly_is_given_up() {
        let second = Duration::from_secs(1);
        let mut steady = Pace::default();
        assert!((0..600).all(|_| steady.came(1024, second).is_ok()));
        let mut late = Pace::default();
        late.came(10 * LEAST, WHILE).unwrap();
        assert!((0..59).all(|_| late.came(1000, second).is_ok()));
        assert_eq!(late.came(1000, second), Err(Trouble::Never("too slow: 60000 bytes in 60 s".to_owned())));
    }
}
