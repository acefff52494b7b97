//! CORS.

use reqwest::Method;

use crate::support::{TestResponse, TestServer, program, refused};

const PAGE: &str = "https://example.org";

/// A preflight request.
async fn preflight(server: &TestServer, page: &str) -> TestResponse {
    let request = server.request(Method::OPTIONS, "/v1/sessions/s");
    let request = request.header("origin", page).header("access-control-request-method", "PATCH");
    TestResponse::to(request.header("access-control-request-headers", "authorization")).await
}

async fn asked_by(server: &TestServer, page: &str) -> TestResponse {
    TestResponse::to(server.request(Method::GET, "/v1/health").header("origin", page)).await
}

//= agents.besides-document.cors-flags-alone
#[tokio::test]
async fn no_origin_is_allowed_by_default() {
    let server = TestServer::start().await;
    let answers = [asked_by(&server, PAGE).await, preflight(&server, PAGE).await];
    answers[1].refuses(403, "permission_denied");
    for answer in answers {
        assert!(answer.headers.keys().all(|name| !name.as_str().starts_with("access-control-")), "{answer:?}");
    }
}

//= agents.besides-document.cors-flags-alone
#[tokio::test]
async fn only_the_named_origins_are_allowed() {
    let flags = ["--no-token", "--cors-allow-origin", PAGE, "--cors-allow-origin", "http://localhost:3000"];
    let server = TestServer::with(&flags).await;
    for page in [PAGE, "http://localhost:3000"] {
        let answer = asked_by(&server, page).await;
        assert_eq!(answer.header("access-control-allow-origin"), Some(page));
        assert_eq!(answer.header("access-control-allow-credentials"), None);
        let answer = preflight(&server, page).await;
        assert_eq!(answer.status, 200);
        // The requested headers: `*` would not cover the authorization header.
        assert_eq!(answer.header("access-control-allow-methods"), Some("PATCH"));
        assert_eq!(answer.header("access-control-allow-headers"), Some("authorization"));
    }
    let answer = asked_by(&server, "https://example.com").await;
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (200, None));
}

#[tokio::test]
async fn only_the_named_methods_and_headers_are_allowed() {
    let flags = ["--no-token", "-O", PAGE, "-M", "GET", "-M", "PATCH", "-A", "authorization", "-A", "x-mine"];
    let answer = preflight(&TestServer::with(&flags).await, PAGE).await;
    assert_eq!(answer.header("access-control-allow-methods"), Some("GET,PATCH"));
    assert_eq!(answer.header("access-control-allow-headers"), Some("authorization,x-mine"));
    // Any flag without an origin allows all origins.
    let answer = preflight(&TestServer::with(&["--no-token", "--cors-allow-method", "PATCH"]).await, PAGE).await;
    assert_eq!(answer.header("access-control-allow-origin"), Some("*"));
    assert_eq!(answer.header("access-control-allow-methods"), Some("PATCH"));
}

#[tokio::test]
async fn with_credentials_no_header_is_a_star() {
    let server = TestServer::with(&["--token", "s3cret", "-O", PAGE, "--cors-allow-credentials"]).await;
    // A preflight request has no token.
    let answer = preflight(&server, PAGE).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("access-control-allow-origin"), Some(PAGE));
    assert_eq!(answer.header("access-control-allow-credentials"), Some("true"));
    assert_eq!(answer.header("access-control-allow-methods"), Some("PATCH"));
    assert_eq!(answer.header("access-control-allow-headers"), Some("authorization"));
    // An allowed page can read an error.
    let refusal = TestResponse::to(server.request(Method::GET, "/v1/sessions").header("origin", PAGE)).await;
    refusal.refuses(401, "token_invalid");
    assert_eq!(refusal.header("access-control-allow-origin"), Some(PAGE));
}

#[tokio::test]
async fn without_a_token_browser_pages_are_rejected() {
    let server = TestServer::start().await;
    server.create("s").await;
    let abort = || server.request(Method::POST, "/v1/sessions/s/abort");
    let host = server.base.strip_prefix("http://").unwrap();
    let requested = async |name: &str, value: &str| TestResponse::to(abort().header(name, value)).await;
    requested("origin", PAGE).await.refuses(403, "permission_denied");
    requested("origin", "null").await.refuses(403, "permission_denied");
    for (name, value) in
        [("origin", server.base.as_str()), ("host", host), ("host", "localhost:1"), ("host", "[::1]:1")]
    {
        requested(name, value).await.is(204);
    }
    let server = TestServer::with(&["--no-token", "-O", PAGE]).await;
    server.create("s").await;
    let abort = server.request(Method::POST, "/v1/sessions/s/abort").header("origin", PAGE);
    TestResponse::to(abort).await.is(204);
    // With a token, the token decides.
    let server = TestServer::with(&["--token", "s3cret"]).await;
    let list = |token: &str| server.request(Method::GET, "/v1/sessions").header("origin", PAGE).bearer_auth(token);
    TestResponse::to(list("wrong")).await.refuses(401, "token_invalid");
    TestResponse::to(list("s3cret")).await.is(200);
}

//= agents.besides-document.cors-flags-alone
#[tokio::test]
async fn invalid_cors_flags_prevent_the_start() {
    for flags in [&["-C"][..], &["-C", "-O", "*"], &["-C", "-O", PAGE, "-O", "*"]] {
        let output = refused(program(&[&["--port", "0", "--no-token"], flags].concat())).await;
        assert!(output.contains("credentials are allowed only to origins that are named"), "{output}");
    }
    for (flag, value, words) in [
        ("-O", "example.org", "is not a valid origin"),
        ("-O", "https://example.org/", "is not a valid origin"),
        ("-O", "https://example.org/page", "is not a valid origin"),
        ("-O", "https://h\u{e9}", "is not a valid origin"),
        ("-M", "G ET", "is not a valid method"),
        ("-A", "a b", "is not a valid header name"),
    ] {
        let output = refused(program(&["--port", "0", "--no-token", flag, value])).await;
        assert!(output.contains(words), "{output}");
    }
}
