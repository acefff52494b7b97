//! Users inside a sandbox, looked up before it starts.

use carrel_image::RootFs;
use carrel_image::accounts::{self, AccountError, MAX_ID};
pub(crate) use carrel_image::accounts::{UidGid, home};

use crate::failure::Failure;

/// The user and group ids of a command, as the agent resolves them; without a user, root of the sandbox.
pub(crate) fn ids(user: Option<&str>, root: &RootFs) -> Result<UidGid, Failure> {
    accounts::ids(user, root).map_err(|error| failed(&error))
}

/// Fails on an id that is out of range. A name may exist only inside, through a mount.
pub(crate) fn check(user: Option<&str>) -> Result<(), Failure> {
    accounts::check(user).map_err(|error| failed(&error))
}

fn failed(error: &AccountError) -> Failure {
    let hint = match error {
        AccountError::OutOfRange { .. } => format!("--user takes numbers from 0 to {MAX_ID}"),
        AccountError::Unknown { .. } | AccountError::TooLong { .. } => "give its numeric id instead".to_owned(),
    };
    Failure::new("unknown_user", error).hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_user_is_reported_with_a_hint() {
        let failure = ids(Some("bob"), &RootFs::default()).unwrap_err();
        assert_eq!((failure.code, failure.message.as_str()), ("unknown_user", "the image has no user \"bob\""));
        assert_eq!(failure.hint.as_deref(), Some("give its numeric id instead"));
        let failure = check(Some("0:70000")).unwrap_err();
        assert_eq!(failure.message, "group 70000 is out of range: the highest ID is 65535");
        assert_eq!(failure.hint.as_deref(), Some("--user takes numbers from 0 to 65535"));
    }
}
