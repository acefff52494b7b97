//! What is sent to an endpoint.

use std::sync::Arc;

use bytes::Bytes;
use oci_client::errors::OciDistributionError;
use oci_client::secrets::RegistryAuth;
use oci_client::{Reference, RegistryOperation};
use reqwest::header::HeaderValue;
use tokio_stream::Stream;

use super::{Endpoint, Tries};
use crate::Name;
use crate::error::RegistryError;
use crate::line::Line;

// === impl Endpoint ===

impl Endpoint {
    /// Has a blob of another repository of the same registry appear in this one; whether it did.
    pub(crate) async fn mount(&self, from: &Name, digest: &str) -> Result<bool, RegistryError> {
        let line = self.ready(digest).await?;
        // A registry may answer by asking for the content. That, and whatever else it says, means: send it.
        Ok(line.sender().await?.mount_blob(&self.reference, from.reference(), digest).await.is_ok())
    }

    /// Sends a blob, once.
    pub(crate) async fn upload(
        &self,
        digest: &str,
        size: u64,
        pieces: impl Stream<Item = Result<Bytes, OciDistributionError>> + Send + 'static,
    ) -> Result<(), RegistryError> {
        let line = self.ready(digest).await?;
        let sent = line.sender().await?.push_blob_stream(&self.reference, pieces, digest, Some(size)).await;
        sent.map(drop).map_err(|error| self.asked(digest).failed(error))
    }

    /// Sends a manifest, to be what the name means.
    pub(crate) async fn send_manifest(&self, media_type: &str, bytes: Bytes) -> Result<(), RegistryError> {
        let mut reference = self.reference.clone();
        if let Some(tag) = self.reference.tag() {
            // Of a name with both the tag is what can be given.
            let (registry, repository) = (reference.registry().to_owned(), reference.repository().to_owned());
            reference = Reference::with_tag(registry, repository, tag.to_owned());
        }
        let what = reference.to_string();
        let content_type = HeaderValue::from_str(media_type);
        let content_type = content_type.map_err(|_| self.asked(&what).nonsense("a media type that is none"))?;
        let mut tries = self.tries();
        loop {
            let sent = async {
                let line = self.ready(&what).await?;
                let sent =
                    line.sender().await?.push_manifest_raw(&reference, bytes.clone(), content_type.clone()).await;
                sent.map_err(|error| self.asked(&what).failed(error))
            };
            match sent.await {
                Ok(_) => return Ok(()),
                Err(error) => self.send_again(&mut tries, error).await?,
            }
        }
    }

    /// After a failure to send: comes back when it is to be tried again.
    pub(crate) async fn send_again(&self, tries: &mut Tries, error: RegistryError) -> Result<(), RegistryError> {
        // What was given to us to show may be too old by now. It is asked for once more.
        if error.refuses() && !tries.renewed {
            tries.renewed = true;
            *self.line.lock().await = None;
            return Ok(());
        }
        self.again(tries, error).await
    }

    /// The connection, with what has to be shown to write. It is looked at before every piece: a token may be too old
    /// before all of a blob is sent.
    pub(crate) async fn ready(&self, what: &str) -> Result<Arc<Line>, RegistryError> {
        if self.reach.is_public() {
            return Err(RegistryError::Setup("nothing is sent in the name of somebody else".into()));
        }
        let line = self.line().await?;
        let asked = self.asked(what);
        let Some(pass) = self.pass(&line, RegistryOperation::Push, asked).await? else { return Ok(line) };
        let sender = line.sender().await?;
        match (pass.token(), self.login.password()) {
            (Some(token), _) => {
                let auth = RegistryAuth::Bearer(token.to_owned());
                let kept = sender.auth(&self.reference, &auth, RegistryOperation::Push).await;
                kept.map_err(|error| asked.failed(error))?;
            }
            (None, Some((user, password))) => {
                let auth = RegistryAuth::Basic(user.to_owned(), password.to_owned());
                sender.store_auth_if_needed(self.reference.resolve_registry(), &auth).await;
            }
            (None, None) => {}
        }
        Ok(line)
    }
}
