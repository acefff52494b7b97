//! What an endpoint shows: found out once, and again when it has become old.

use oci_client::RegistryOperation;
use reqwest::{StatusCode, Url};

use super::{Endpoint, LONGEST_COMPLAINT, wait};
use crate::credentials::Login;
use crate::error::{Asked, RegistryError};
use crate::http::{self, Request};
use crate::line::Line;
use crate::pass::{self, Challenge, Pass};

// === impl Endpoint ===

impl Endpoint {
    /// What to show. A registry that was not asked yet what it wants is asked, and whom it would send us to is not.
    pub(super) async fn pass(
        &self,
        line: &Line,
        operation: RegistryOperation,
        asked: Asked<'_>,
    ) -> Result<Option<Pass>, RegistryError> {
        let mut kept = kept(line, operation).lock().await;
        match &*kept {
            Some(Some(pass)) if pass.is_old() => {}
            Some(known) => return Ok(known.clone()),
            None => {}
        }
        let probe = line.http.once(&Request::get(line.base.clone())).await.map_err(|failure| asked.lost(failure))?;
        let pass = match Challenge::of(probe.headers()) {
            Some(challenge) => self.answer(line, challenge, operation, asked).await?,
            None => None,
        };
        *kept = Some(pass.clone());
        Ok(pass)
    }

    /// What to show instead of what was not good enough; nothing, if there is nothing else.
    pub(super) async fn renewed(
        &self,
        line: &Line,
        used: Option<&Pass>,
        challenge: Challenge,
        operation: RegistryOperation,
        asked: Asked<'_>,
    ) -> Result<Option<Pass>, RegistryError> {
        let mut kept = kept(line, operation).lock().await;
        let known = kept.clone().flatten();
        if known.as_ref().map(Pass::header) != used.map(Pass::header) {
            // Somebody else was faster.
            return Ok(known);
        }
        let pass = self.answer(line, challenge, operation, asked).await?;
        if pass.as_ref().map(Pass::header) == used.map(Pass::header) {
            return Ok(None);
        }
        *kept = Some(pass.clone());
        Ok(pass)
    }

    /// Does what a registry wants, as far as there is a login for it.
    async fn answer(
        &self,
        line: &Line,
        challenge: Challenge,
        operation: RegistryOperation,
        asked: Asked<'_>,
    ) -> Result<Option<Pass>, RegistryError> {
        let login = if line.in_clear { &Login::Anonymous } else { &self.login };
        match challenge {
            Challenge::Password => Ok(login.password().and_then(|(user, password)| Pass::password(user, password))),
            Challenge::Token { realm, service } => {
                let scope = match operation {
                    RegistryOperation::Pull => format!("repository:{}:pull", self.reference.repository()),
                    RegistryOperation::Push => format!("repository:{}:pull,push", self.reference.repository()),
                };
                let request = pass::request(&realm, service.as_deref(), &scope, login);
                self.token(line, &realm, &request, asked).await.map(Some)
            }
        }
    }

    async fn token(
        &self,
        line: &Line,
        realm: &Url,
        request: &Request,
        asked: Asked<'_>,
    ) -> Result<Pass, RegistryError> {
        if line.is_weakened_by(realm) {
            return Err(asked.nonsense(&format!("a place for logins that speaks without TLS: {realm}")));
        }
        let response = line.http.once(request).await.map_err(|failure| asked.lost(failure))?;
        let (status, wait) = (response.status(), wait(response.headers()));
        let body = http::body(response, LONGEST_COMPLAINT).await.map_err(|failure| asked.lost(failure))?;
        match status {
            StatusCode::OK => Pass::given(&body).ok_or_else(|| asked.nonsense("a token that is none")),
            // Whoever gives no token has nothing to say about the image.
            StatusCode::NOT_FOUND => Err(asked.nonsense("a place for logins that is none")),
            status => Err(asked.answered(status.as_u16(), &String::from_utf8_lossy(&body), wait)),
        }
    }
}

fn kept(line: &Line, operation: RegistryOperation) -> &tokio::sync::Mutex<Option<Option<Pass>>> {
    let [to_read, to_write] = &line.passes;
    match operation {
        RegistryOperation::Pull => to_read,
        RegistryOperation::Push => to_write,
    }
}
