//! Converts answers to Claude Code's control responses.

use serde_json::{Map, Value, json};

use super::convert::{ClaudeRequest, ClaudeRequestKind};
use crate::{agent::UserAnswer, schema::PermissionReply};

/// The response to a request; `None` if the answer does not fit it. `mode` is the permission mode after an approved
/// plan.
pub(super) fn response(request: &ClaudeRequest, answer: &UserAnswer, mode: &str) -> Option<Value> {
    Some(match (&request.kind, answer) {
        (ClaudeRequestKind::Permission(_), UserAnswer::Permission(PermissionReply::Once, _)) => {
            allow(&request.input, &[])
        }
        (ClaudeRequestKind::Permission(grants), UserAnswer::Permission(PermissionReply::Always, _)) => {
            allow(&request.input, grants.updates())
        }
        (ClaudeRequestKind::Permission(_), UserAnswer::Permission(PermissionReply::Reject, message)) => {
            deny(message.as_deref().unwrap_or("Permission denied."))
        }
        (ClaudeRequestKind::Questions(questions), UserAnswer::Question(answers)) => {
            allow(&answered(&request.input, questions, answers), &[])
        }
        (ClaudeRequestKind::Questions(_), UserAnswer::QuestionRejected) => deny("The user declined to answer."),
        (ClaudeRequestKind::Plan, UserAnswer::Question(answers)) => match feedback(answers) {
            None => allow(&request.input, &[json!({"type": "setMode", "mode": mode, "destination": "session"})]),
            Some(words) => deny(&words),
        },
        (ClaudeRequestKind::Plan, UserAnswer::QuestionRejected) => deny(REJECTED),
        _ => return None,
    })
}

const REJECTED: &str = "The user rejected the plan.";

fn allow(input: &Value, updates: &[Value]) -> Value {
    let mut allow = json!({"behavior": "allow", "updatedInput": input});
    if !updates.is_empty() {
        allow["updatedPermissions"] = json!(updates);
    }
    allow
}

fn deny(message: &str) -> Value {
    json!({"behavior": "deny", "message": message})
}

/// The tool's input with an answer for each question. Several choices are joined.
fn answered(input: &Value, questions: &[String], answers: &[Vec<String>]) -> Value {
    let answers: Map<_, _> = questions
        .iter()
        .zip(answers)
        .filter(|(_, chosen)| !chosen.is_empty())
        .map(|(question, chosen)| (question.clone(), Value::String(chosen.join(", "))))
        .collect();
    let mut input = input.clone();
    if let Some(input) = input.as_object_mut() {
        input.insert("answers".to_owned(), Value::Object(answers));
    }
    input
}

/// Why a plan is rejected; `None` if it is approved.
fn feedback(answers: &[Vec<String>]) -> Option<String> {
    let chosen: Vec<_> = answers.iter().flatten().map(|answer| answer.trim()).collect();
    let is = |label: &'static str| move |words: &&str| words.eq_ignore_ascii_case(label);
    if !chosen.is_empty() && chosen.iter().all(is("approve")) {
        return None;
    }
    let words: Vec<_> = chosen.into_iter().filter(|words| !is("approve")(words) && !is("reject")(words)).collect();
    Some(if words.is_empty() { REJECTED.to_owned() } else { words.join("\n") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(answers: &[&[&str]]) -> Value {
        let request = ClaudeRequest { kind: ClaudeRequestKind::Plan, input: json!({"plan": "p"}) };
        let answers = answers.iter().map(|chosen| chosen.iter().map(|&chosen| chosen.to_owned()).collect()).collect();
        response(&request, &UserAnswer::Question(answers), "default").unwrap()
    }

    //= agents.human-loop.plan-claude-code-question
    #[test]
    fn only_an_approved_plan_is_carried_out() {
        let mode = json!([{"type": "setMode", "mode": "default", "destination": "session"}]);
        assert_eq!(
            plan(&[&["approve"]]),
            json!({"behavior": "allow", "updatedInput": {"plan": "p"}, "updatedPermissions": mode})
        );
        assert_eq!(plan(&[&["Approve"]])["behavior"], "allow");
        for refused in [&[&["reject"][..]][..], &[], &[&[]], &[&["approve", "but use tabs"]], &[&["reject", "approve"]]]
        {
            assert_eq!(plan(refused)["behavior"], "deny", "{refused:?}");
        }
    }

    #[test]
    fn a_custom_answer_reaches_the_planner() {
        assert_eq!(plan(&[&["reject", "use tabs"]])["message"], "use tabs");
        assert_eq!(plan(&[&["use tabs"]])["message"], "use tabs");
    }

    #[test]
    fn several_choices_are_joined_and_unanswered_questions_omitted() {
        let questions = ["a?", "b?", "c?"].map(str::to_owned);
        let request =
            ClaudeRequest { kind: ClaudeRequestKind::Questions(questions.to_vec()), input: json!({"questions": []}) };
        let answers = vec![vec!["x".to_owned(), "y".to_owned()], vec![], vec!["z".to_owned()]];
        let response = response(&request, &UserAnswer::Question(answers), "default").unwrap();
        assert_eq!(response["updatedInput"], json!({"questions": [], "answers": {"a?": "x, y", "c?": "z"}}));
    }

    #[test]
    fn an_answer_to_another_request_is_ignored() {
        let request = ClaudeRequest { kind: ClaudeRequestKind::Plan, input: json!({}) };
        assert_eq!(response(&request, &UserAnswer::Permission(PermissionReply::Once, None), "default"), None);
    }
}
