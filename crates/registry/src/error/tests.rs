use super::*;

const CONTEXT: RequestContext<'_> =
    RequestContext { registry: "a.example", what: "x:1", known: LoginState::Anonymous, hide_details: false };

#[test]
fn a_status_maps_to_an_error_and_whether_it_is_transient() {
    let answered = |code, body: &str| CONTEXT.status_error(code, body, None);
    let denied = r#"{"errors":[{"code":"DENIED","message":"not for you\u001b[31m"}]}"#;
    assert_eq!(answered(403, denied).to_string(), "a.example denied access to x:1: not for you[31m");
    assert_eq!(answered(404, "").to_string(), "x:1 not found in a.example");
    assert_eq!(
        answered(503, "try later\nand more").to_string(),
        "a.example is temporarily unavailable: try later (503)"
    );
    assert!(answered(503, "").is_transient() && answered(429, "").is_transient() && answered(500, "").is_transient());
    assert!(
        !answered(401, "").is_transient() && !answered(404, "").is_transient() && !answered(400, "").is_transient()
    );
}

#[test]
fn the_retry_delay_of_a_response_is_kept() {
    let requested = Some(Duration::from_secs(7));
    assert_eq!(CONTEXT.status_error(429, "", requested).retry_after(), requested);
    assert_eq!(CONTEXT.status_error(404, "", requested).retry_after(), None);
}

#[test]
fn the_hint_depends_on_whether_there_was_a_login() {
    let without = CONTEXT.status_error(401, "", None).hint().unwrap();
    assert!(without.contains("podman login"), "{without}");
    let with =
        RequestContext { known: LoginState::Authenticated, ..CONTEXT }.status_error(401, "", None).hint().unwrap();
    assert!(with.contains("may have expired"), "{with}");
}

#[test]
fn hidden_details_leave_only_the_status() {
    let hide_details = RequestContext { hide_details: true, ..CONTEXT };
    let denied = r#"{"errors":[{"code":"DENIED","message":"inner words"}]}"#;
    for body in [denied, "inner words"] {
        for code in [400, 401, 403, 404, 429, 500] {
            assert!(!hide_details.status_error(code, body, None).to_string().contains("inner words"), "{code}");
        }
        assert!(CONTEXT.status_error(403, body, None).to_string().contains("inner words"));
    }
}

#[test]
fn a_withheld_login_is_distinguished_from_a_denied_one() {
    let withheld = RequestContext { known: LoginState::Withheld, ..CONTEXT }.status_error(401, "", None);
    assert_eq!(withheld.to_string(), "a.example requires a login for x:1 but does not use TLS");
    assert!(withheld.hint().unwrap().contains("insecure = true"));
}
