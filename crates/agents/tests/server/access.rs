//! Authentication.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use reqwest::{Method, header::AUTHORIZATION};
use serde_json::Value;

use crate::support::{TestResponse, TestServer, program, refused};

//= promises.agents-server.routes-need-token
#[tokio::test]
async fn health_and_the_description_need_no_token() {
    let server = TestServer::with(&["--token", "s3cret"]).await;
    assert_eq!(server.get("/v1/health").await.is(200)["status"], "ok");
    let description = server.get("/openapi.json").await;
    assert_eq!(description.is(200)["openapi"], "3.1.0");
    assert_eq!(server.get("/v1/openapi.json").await.body, description.body);
    let banner = server.get("/").await;
    assert!(banner.status == 200 && banner.text().starts_with("sandbox-agent "), "{}", banner.text());
}

//= agents.authentication.token-configured-start-operations
//= promises.agents-server.routes-need-token
#[tokio::test]
async fn all_other_routes_need_the_token() {
    let server = TestServer::with(&["--token", "s3cret"]).await;
    let description = server.get("/openapi.json").await.is(200);
    let mut tried = 0;
    for (path, operations) in description["paths"].as_object().unwrap() {
        let path = path.replace("{agent}", "nobody").replace("{sessionId}", "nothing");
        let path = path.replace("{questionId}", "1").replace("{permissionId}", "1");
        for method in operations.as_object().unwrap().keys().filter(|_| path != "/v1/health") {
            let method: Method = method.to_uppercase().parse().unwrap();
            let ask = |token: &str| {
                let request = server.request(method.clone(), &path);
                TestResponse::to(if token.is_empty() { request } else { request.header(AUTHORIZATION, token) })
            };
            for wrong in ["", "Bearer wrong", "s3cret", "Bearer s3cret2"] {
                let answer = ask(wrong).await;
                let problem = answer.refuses(401, "token_invalid");
                assert_eq!(problem["detail"], "token invalid", "{method} {path}");
                assert_eq!(problem["details"]["message"], "missing or invalid token");
                assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
            }
            assert_ne!(ask("Bearer s3cret").await.status, 401, "{method} {path}");
            tried += 1;
        }
    }
    assert_eq!(tried, 19);
}

//= agents.authentication.authorization-bearer-token
#[tokio::test]
async fn the_token_is_accepted_as_bearer_token_or_password() {
    let server = TestServer::with(&["--token", "s3cret"]).await;
    let basic = |pair: &str| format!("Basic {}", BASE64_STANDARD.encode(pair));
    let sessions =
        |value: String| TestResponse::to(server.request(Method::GET, "/v1/sessions").header(AUTHORIZATION, value));
    for right in ["Bearer s3cret", "Token s3cret", "bearer s3cret", "token s3cret", "BEARER s3cret"] {
        sessions(right.to_owned()).await.is(200);
    }
    for right in [":s3cret", "any-user:s3cret"] {
        sessions(basic(right)).await.is(200);
    }
    for wrong in ["s3cret", "s3cret:", "s3cret:wrong", "a:b:s3cret"] {
        sessions(basic(wrong)).await.refuses(401, "token_invalid");
    }
    server.get("/v1/sessions?access_token=s3cret").await.refuses(401, "token_invalid");
}

//= promises.agents-server.routes-need-token
#[tokio::test]
async fn without_a_token_or_no_token_the_server_does_not_start() {
    let output = refused(program(&["--port", "0"])).await;
    assert!(output.contains("no token given") && output.contains("hint: pass --token"), "{output}");
    for empty in ["", "a b", "a\nb"] {
        let output = refused(program(&["--port", "0", "--token", empty])).await;
        assert!(output.contains("the token is empty or has characters"), "{output}");
    }
}

//= agents.authentication.token-configured-start-operations
#[tokio::test]
async fn the_token_can_come_from_a_file_or_the_environment() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    std::fs::write(&file, "s3cret\n").unwrap();
    let by_file = TestServer::with(&["--token-file", file.to_str().unwrap()]).await;
    let mut command = program(&[]);
    command.env("SANDBOX_AGENT_TOKEN", "s3cret");
    let by_environment = TestServer::run(command).await;
    for server in [by_file, by_environment] {
        server.get("/v1/sessions").await.refuses(401, "token_invalid");
        let sessions = server.request(Method::GET, "/v1/sessions").header(AUTHORIZATION, "Bearer s3cret");
        assert_eq!(TestResponse::to(sessions).await.is(200)["sessions"], Value::Array(Vec::new()));
    }
    let output = refused(program(&["--port", "0", "--token-file", "/does/not/exist"])).await;
    assert!(output.contains("cannot read /does/not/exist"), "{output}");
}

#[tokio::test]
async fn with_no_token_every_client_has_access() {
    let mut command = program(&["--no-token"]);
    command.env("SANDBOX_AGENT_TOKEN", "s3cret");
    let server = TestServer::run(command).await;
    server.get("/v1/sessions").await.is(200);
    TestResponse::to(server.request(Method::GET, "/v1/sessions").header(AUTHORIZATION, "Bearer any")).await.is(200);
}
