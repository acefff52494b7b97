//! Request extractors that reject with problem details.

use axum::{
    body::Bytes,
    extract::{FromRequest, FromRequestParts, Request, rejection::BytesRejection},
    http::{header, request::Parts},
};
use serde::de::DeserializeOwned;

use super::problem::{ApiProblem, ProblemCode};

pub(super) struct JsonBody<T>(pub T);

pub(super) struct OptionalJsonBody<T>(pub T);

/// Query parameters.
pub(super) struct QueryParams<T>(pub T);

/// Path parameters.
pub(super) struct PathParams<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = ApiProblem;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiProblem> {
        let is_json =
            request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).is_some_and(|kind| {
                let essence = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
                essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"))
            });
        if !is_json {
            let detail = "the body has to be JSON, with content-type: application/json";
            return Err(ApiProblem::new(ProblemCode::UnsupportedMediaType, detail));
        }
        parse(&body(request, state).await?).map(Self)
    }
}

impl<T: DeserializeOwned + Default, S: Send + Sync> FromRequest<S> for OptionalJsonBody<T> {
    type Rejection = ApiProblem;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiProblem> {
        let bytes = body(request, state).await?;
        if bytes.iter().all(u8::is_ascii_whitespace) { Ok(Self(T::default())) } else { parse(&bytes).map(Self) }
    }
}

async fn body<S: Send + Sync>(request: Request, state: &S) -> Result<Bytes, ApiProblem> {
    Bytes::from_request(request, state).await.map_err(|error| match error {
        BytesRejection::FailedToBufferBody(error) if error.status().as_u16() == 413 => {
            ApiProblem::new(ProblemCode::PayloadTooLarge, "the body is larger than this server takes")
        }
        error => ApiProblem::invalid(error),
    })
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiProblem> {
    // The parser does not validate UTF-8 in fields that it ignores.
    let text = std::str::from_utf8(bytes).map_err(ApiProblem::invalid)?;
    serde_json::from_str(text).map_err(ApiProblem::invalid)
}

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for QueryParams<T> {
    type Rejection = ApiProblem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiProblem> {
        let query = axum::extract::Query::from_request_parts(parts, state).await;
        query.map(|axum::extract::Query(value)| Self(value)).map_err(|error| ApiProblem::invalid(error.body_text()))
    }
}

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for PathParams<T> {
    type Rejection = ApiProblem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiProblem> {
        let path = axum::extract::Path::from_request_parts(parts, state).await;
        path.map(|axum::extract::Path(value)| Self(value)).map_err(|error| ApiProblem::invalid(error.body_text()))
    }
}
