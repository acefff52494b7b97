use super::*;

const ASKED: Asked<'_> = Asked { registry: "a.example", what: "x:1", known: Known::Nobody, quiet: false };

#[test]
fn an_answer_says_what_happened_and_whether_to_try_again() {
    let answered = |code, body: &str| ASKED.answered(code, body, None);
    let denied = r#"{"errors":[{"code":"DENIED","message":"not for you\u001b[31m"}]}"#;
    assert_eq!(answered(403, denied).to_string(), "a.example refuses x:1: not for you[31m");
    assert_eq!(answered(404, "").to_string(), "a.example has no x:1");
    assert_eq!(answered(503, "try later\nand more").to_string(), "a.example cannot now: try later (503)");
    assert!(answered(503, "").passes() && answered(429, "").passes() && answered(500, "").passes());
    assert!(!answered(401, "").passes() && !answered(404, "").passes() && !answered(400, "").passes());
}

#[test]
fn what_a_registry_asks_to_wait_is_kept() {
    let asked = Some(Duration::from_secs(7));
    assert_eq!(ASKED.answered(429, "", asked).wait(), asked);
    assert_eq!(ASKED.answered(404, "", asked).wait(), None);
}

#[test]
fn what_one_can_do_depends_on_whether_there_was_a_login() {
    let without = ASKED.answered(401, "", None).hint().unwrap();
    assert!(without.contains("podman login"), "{without}");
    let with = Asked { known: Known::Somebody, ..ASKED }.answered(401, "", None).hint().unwrap();
    assert!(with.contains("may be old"), "{with}");
}

#[test]
fn who_is_kept_from_the_words_of_a_registry_hears_its_numbers() {
    let quiet = Asked { quiet: true, ..ASKED };
    let denied = r#"{"errors":[{"code":"DENIED","message":"inner words"}]}"#;
    for body in [denied, "inner words"] {
        for code in [400, 401, 403, 404, 429, 500] {
            assert!(!quiet.answered(code, body, None).to_string().contains("inner words"), "{code}");
        }
        assert!(ASKED.answered(403, body, None).to_string().contains("inner words"));
    }
}

#[test]
fn a_login_that_was_withheld_is_told_from_one_that_is_refused() {
    let withheld = Asked { known: Known::Withheld, ..ASKED }.answered(401, "", None);
    assert_eq!(withheld.to_string(), "a.example wants a login for x:1, and speaks without TLS");
    assert!(withheld.hint().unwrap().contains("insecure = true"));
}
