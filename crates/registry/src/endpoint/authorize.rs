//! Authorization at an endpoint: negotiated once, and again when a token expires.

use oci_client::RegistryOperation;
use reqwest::{StatusCode, Url};

use super::{Endpoint, MAX_ERROR_BODY, retry_after};
use crate::authorization::{self, AuthChallenge, Authorization};
use crate::credentials::RegistryLogin;
use crate::error::{RegistryError, RequestContext};
use crate::http::{self, HttpRequest};
use crate::transport::RegistryTransport;

// === impl Endpoint ===

impl Endpoint {
    /// The cached authorization; the first call probes the registry for its challenge and follows no redirect.
    pub(super) async fn pass(
        &self,
        transport: &RegistryTransport,
        operation: RegistryOperation,
        context: RequestContext<'_>,
    ) -> Result<Option<Authorization>, RegistryError> {
        let mut cached = cached(transport, operation).lock().await;
        match &*cached {
            Some(Some(pass)) if pass.is_expired() => {}
            Some(known) => return Ok(known.clone()),
            None => {}
        }
        let probe = transport
            .http
            .send_once(&HttpRequest::get(transport.base.clone()))
            .await
            .map_err(|failure| context.http_error(failure))?;
        let pass = match AuthChallenge::of(probe.headers()) {
            Some(challenge) => self.answer(transport, challenge, operation, context).await?,
            None => None,
        };
        *cached = Some(pass.clone());
        Ok(pass)
    }

    /// A new authorization after a 401; `None` if it would be the same.
    pub(super) async fn renewed(
        &self,
        transport: &RegistryTransport,
        used: Option<&Authorization>,
        challenge: AuthChallenge,
        operation: RegistryOperation,
        context: RequestContext<'_>,
    ) -> Result<Option<Authorization>, RegistryError> {
        let mut cached = cached(transport, operation).lock().await;
        let known = cached.clone().flatten();
        if known.as_ref().map(Authorization::header) != used.map(Authorization::header) {
            // Another task renewed it in the meantime.
            return Ok(known);
        }
        let pass = self.answer(transport, challenge, operation, context).await?;
        if pass.as_ref().map(Authorization::header) == used.map(Authorization::header) {
            return Ok(None);
        }
        *cached = Some(pass.clone());
        Ok(pass)
    }

    /// Answers a challenge with the login, if there is one for it.
    async fn answer(
        &self,
        transport: &RegistryTransport,
        challenge: AuthChallenge,
        operation: RegistryOperation,
        context: RequestContext<'_>,
    ) -> Result<Option<Authorization>, RegistryError> {
        let login = if transport.is_plaintext { &RegistryLogin::Anonymous } else { &self.login };
        match challenge {
            AuthChallenge::Basic => {
                Ok(login.password().and_then(|(user, password)| Authorization::password(user, password)))
            }
            AuthChallenge::Bearer { realm, service } => {
                let scope = match operation {
                    RegistryOperation::Pull => format!("repository:{}:pull", self.reference.repository()),
                    RegistryOperation::Push => format!("repository:{}:pull,push", self.reference.repository()),
                };
                let request = authorization::token_request(&realm, service.as_deref(), &scope, login);
                self.token(transport, &realm, &request, context).await.map(Some)
            }
        }
    }

    async fn token(
        &self,
        transport: &RegistryTransport,
        realm: &Url,
        request: &HttpRequest,
        context: RequestContext<'_>,
    ) -> Result<Authorization, RegistryError> {
        if transport.is_downgraded_by(realm) {
            return Err(context.invalid(&format!("token endpoint without TLS: {realm}")));
        }
        let response = transport.http.send_once(request).await.map_err(|failure| context.http_error(failure))?;
        let (status, wait) = (response.status(), retry_after(response.headers()));
        let body = http::body(response, MAX_ERROR_BODY).await.map_err(|failure| context.http_error(failure))?;
        match status {
            StatusCode::OK => {
                Authorization::from_token_response(&body).ok_or_else(|| context.invalid("unusable token"))
            }
            // A 404 of the token endpoint says nothing about the image.
            StatusCode::NOT_FOUND => Err(context.invalid("token endpoint not found")),
            status => Err(context.status_error(status.as_u16(), &String::from_utf8_lossy(&body), wait)),
        }
    }
}

fn cached(
    transport: &RegistryTransport,
    operation: RegistryOperation,
) -> &tokio::sync::Mutex<Option<Option<Authorization>>> {
    let [to_read, to_write] = &transport.authorizations;
    match operation {
        RegistryOperation::Pull => to_read,
        RegistryOperation::Push => to_write,
    }
}
