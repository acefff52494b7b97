//! Where a download continues, and what a server may answer to that.

use bytes::Bytes;
use reqwest::header::{CONTENT_RANGE, ETAG, HeaderMap, HeaderValue, IF_RANGE, RANGE};
use reqwest::{Response, StatusCode};

/// How far a download is.
#[derive(Clone, Debug, Default)]
pub struct ResumePoint {
    received: u64,
    total: Option<u64>,
    tag: Option<HeaderValue>,
    is_immutable: bool,
}

/// A response that does not continue the download.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResumeError {
    /// The content is another than before.
    #[error("the content changed during the download")]
    Changed,
    /// It is another part than the one that was requested.
    #[error("the server sent another range than was requested")]
    Range,
}

/// The body of a response, without what was received before.
pub(crate) struct ResumedBody {
    response: Response,
    skip: u64,
}

// === impl ResumePoint ===

impl ResumePoint {
    /// After this many bytes of a content with a known size that never changes: its name is its digest.
    pub fn immutable(received: u64, size: u64) -> Self {
        Self { received, total: Some(size), tag: None, is_immutable: true }
    }

    /// The bytes that were received.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// The size of the content, if the server said it.
    pub fn total(&self) -> Option<u64> {
        self.total
    }

    /// The headers of a request for the rest.
    pub fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if let (1.., Ok(range)) = (self.received, HeaderValue::from_str(&format!("bytes={}-", self.received))) {
            headers.insert(RANGE, range);
            headers.extend(self.tag.clone().map(|tag| (IF_RANGE, tag)));
        }
        headers
    }

    pub(crate) fn add(&mut self, bytes: u64) {
        self.received += bytes;
    }

    /// Checks that a successful response continues the download.
    pub(crate) fn open(&mut self, response: Response) -> Result<ResumedBody, ResumeError> {
        if !self.is_immutable {
            self.compare_tag(response.headers())?;
        }
        let length = response.content_length();
        let skip = match response.status() {
            StatusCode::PARTIAL_CONTENT => {
                let range = response.headers().get(CONTENT_RANGE).map(HeaderValue::as_bytes);
                let is_rest = |range: &[u8]| range.starts_with(format!("bytes {}-", self.received).as_bytes());
                // A caller that verifies a digest accepts a server that does not name the range.
                if !range.map_or(self.is_immutable, is_rest) {
                    return Err(ResumeError::Range);
                }
                0
            }
            // A server without range requests starts over.
            _ => self.received,
        };
        if !self.is_immutable {
            self.total = length.map(|length| self.received.saturating_add(length) - skip).or(self.total);
        }
        Ok(ResumedBody { response, skip })
    }

    /// Compares the strong tags of what was received and of what follows.
    fn compare_tag(&mut self, headers: &HeaderMap) -> Result<(), ResumeError> {
        let tag = headers.get(ETAG).filter(|tag| !tag.as_bytes().starts_with(b"W/"));
        match (&self.tag, tag) {
            (Some(ours), Some(theirs)) if self.received > 0 && ours != theirs => return Err(ResumeError::Changed),
            (_, Some(theirs)) => self.tag = Some(theirs.clone()),
            _ => {}
        }
        Ok(())
    }
}

// === impl ResumedBody ===

impl ResumedBody {
    /// The next chunk: its length, and what of it was not received before.
    pub(crate) async fn chunk(&mut self) -> Result<Option<(u64, Bytes)>, reqwest::Error> {
        let Some(mut chunk) = self.response.chunk().await? else { return Ok(None) };
        let length = chunk.len() as u64;
        let known = usize::try_from(self.skip).unwrap_or(usize::MAX).min(chunk.len());
        self.skip -= known as u64;
        Ok(Some((length, chunk.split_off(known))))
    }
}
