//! Pushes to an endpoint.

use std::sync::Arc;

use bytes::Bytes;
use oci_client::errors::OciDistributionError;
use oci_client::secrets::RegistryAuth;
use oci_client::{Reference, RegistryOperation};
use reqwest::header::HeaderValue;
use tokio_stream::Stream;

use super::{Endpoint, RetryState};
use crate::ImageName;
use crate::error::RegistryError;
use crate::transport::RegistryTransport;

// === impl Endpoint ===

impl Endpoint {
    /// Mounts a blob of another repository of the same registry; `false` if the registry does not.
    pub(crate) async fn mount(&self, from: &ImageName, digest: &str) -> Result<bool, RegistryError> {
        let transport = self.ready(digest).await?;
        // Any answer but success, such as a request for the content, means that it must be uploaded.
        Ok(transport.push_client().await?.mount_blob(&self.reference, from.reference(), digest).await.is_ok())
    }

    /// Uploads a blob in one attempt.
    pub(crate) async fn upload(
        &self,
        digest: &str,
        size: u64,
        chunks: impl Stream<Item = Result<Bytes, OciDistributionError>> + Send + 'static,
    ) -> Result<(), RegistryError> {
        let transport = self.ready(digest).await?;
        let sent = transport.push_client().await?.push_blob_stream(&self.reference, chunks, digest, Some(size)).await;
        sent.map(drop).map_err(|error| self.context(digest).failed(error))
    }

    /// Uploads a manifest under the tag.
    pub(crate) async fn send_manifest(&self, media_type: &str, bytes: Bytes) -> Result<(), RegistryError> {
        let mut reference = self.reference.clone();
        if let Some(tag) = self.reference.tag() {
            // A manifest cannot be pushed to a tag and a digest at once: the tag is used.
            let (registry, repository) = (reference.registry().to_owned(), reference.repository().to_owned());
            reference = Reference::with_tag(registry, repository, tag.to_owned());
        }
        let what = reference.to_string();
        let content_type = HeaderValue::from_str(media_type);
        let content_type = content_type.map_err(|_| self.context(&what).invalid("invalid media type"))?;
        let mut retries = self.retry_state();
        loop {
            let sent = async {
                let transport = self.ready(&what).await?;
                let sent = transport
                    .push_client()
                    .await?
                    .push_manifest_raw(&reference, bytes.clone(), content_type.clone())
                    .await;
                sent.map_err(|error| self.context(&what).failed(error))
            };
            match sent.await {
                Ok(_) => return Ok(()),
                Err(error) => self.wait_to_resend(&mut retries, error).await?,
            }
        }
    }

    /// After a failed push: waits for the next attempt, or returns the error if none is left.
    pub(crate) async fn wait_to_resend(
        &self,
        retries: &mut RetryState,
        error: RegistryError,
    ) -> Result<(), RegistryError> {
        // The token may have expired: connect again, once, for a new one.
        if error.is_unauthorized() && !retries.renewed {
            retries.renewed = true;
            *self.transport.lock().await = None;
            return Ok(());
        }
        self.wait_to_retry(retries, error).await
    }

    /// The transport with authorization to push. Called before every chunk: a token may expire during an upload.
    pub(crate) async fn ready(&self, what: &str) -> Result<Arc<RegistryTransport>, RegistryError> {
        if self.egress.is_public() {
            return Err(RegistryError::Setup("cannot push with public addresses only".into()));
        }
        let transport = self.transport().await?;
        let context = self.context(what);
        let Some(pass) = self.pass(&transport, RegistryOperation::Push, context).await? else { return Ok(transport) };
        let push_client = transport.push_client().await?;
        match (pass.token(), self.login.password()) {
            (Some(token), _) => {
                let auth = RegistryAuth::Bearer(token.to_owned());
                let cached = push_client.auth(&self.reference, &auth, RegistryOperation::Push).await;
                cached.map_err(|error| context.failed(error))?;
            }
            (None, Some((user, password))) => {
                let auth = RegistryAuth::Basic(user.to_owned(), password.to_owned());
                push_client.store_auth_if_needed(self.reference.resolve_registry(), &auth).await;
            }
            (None, None) => {}
        }
        Ok(transport)
    }
}
