//! The maximum size of an exec request. The store keeps each one as a row for as long as its sandbox.

use crate::control::ExecRequest;
use crate::refusal::Refusal;

/// The maximum size of the command, the environment and the other fields of an exec in total. As in the kernel, each
/// argument counts with its terminating byte.
pub const MAX_EXEC_BYTES: usize = 256 << 10;
/// The maximum size of an exec that is accepted while the host's disk is low: enough for a command that frees space.
pub(crate) const MAX_EXEC_BYTES_ON_LOW_DISK: usize = 4 << 10;

/// Refuses a request that is too large, and names its largest field. Returns the size otherwise.
pub(crate) fn check_size(request: &ExecRequest) -> Result<usize, Refusal> {
    let with_end = |text: &String| text.len() + 1;
    let parts = [
        ("command", request.command.iter().map(with_end).sum()),
        ("env_overrides", request.env.iter().map(|(key, value)| with_end(key) + with_end(value)).sum()),
        ("cwd", request.cwd.len()),
        ("user", request.options.user.as_ref().map_or(0, String::len)),
    ];
    let total: usize = parts.iter().map(|(_, bytes)| bytes).sum();
    match parts.into_iter().max_by_key(|(_, bytes)| *bytes) {
        Some((field, bytes)) if total > MAX_EXEC_BYTES => {
            let message = format!(
                "has {bytes} bytes, and the whole exec {total}, which exceeds the limit of {MAX_EXEC_BYTES}; \
                 pass large input as a file (`carrel cp`) or on standard input"
            );
            Err(Refusal::invalid(field, message))
        }
        _ => Ok(total),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::ExecOptions;

    fn request(command: usize, env: usize) -> ExecRequest {
        let env = [("K".to_owned(), "v".repeat(env - 3))].into();
        ExecRequest { command: vec!["c".repeat(command - 1)], env, ..ExecRequest::default() }
    }

    #[test]
    fn a_request_up_to_the_limit_is_accepted_and_one_byte_more_is_not() {
        assert_eq!(check_size(&request(MAX_EXEC_BYTES - 4, 4)), Ok(MAX_EXEC_BYTES));
        let refusal = check_size(&request(MAX_EXEC_BYTES - 3, 4)).unwrap_err();
        assert_eq!((refusal.reason, refusal.metadata["field"].as_str()), ("INVALID_ARGUMENT", "command"));
        assert!(refusal.message.starts_with("command: has 262141 bytes, and the whole exec 262145"), "{refusal}");
    }

    #[test]
    fn the_largest_field_is_named() {
        let field = |request: &ExecRequest| check_size(request).unwrap_err().metadata["field"].clone();
        assert_eq!(field(&request(10, MAX_EXEC_BYTES)), "env_overrides");
        assert_eq!(field(&ExecRequest { cwd: "/".repeat(MAX_EXEC_BYTES), ..request(9, 9) }), "cwd");
        let user = ExecOptions { user: Some("u".repeat(MAX_EXEC_BYTES)), ..ExecOptions::default() };
        assert_eq!(field(&ExecRequest { options: user, ..request(9, 9) }), "user");
    }
}
