//! Symbolic links that a sandbox made: none directs a copy into it, and none that leads elsewhere comes out of it.

use std::path::Path;

use carrel_agent_client::{Error, Files};

use super::request::SandboxPath;
use super::{FAILED, failed};
use crate::failure::Failure;

/// The code of a failure at a link that is not followed.
pub(super) const CODE: &str = "link_not_followed";
/// What an agent says of such a link.
pub(super) const NOT_FOLLOWED: &str = "ELOOP";
/// Why a link that is named itself is not copied.
pub(super) const ALONE: &str = "it is a symbolic link, and what it leads to is not copied with it";
/// What to do about it.
pub(super) const FOLLOW: &str = "copy what it leads to: carrel cp --follow-link";
/// What to do about links that are left out.
pub(super) const LEFT_OUT: &str = "copy what such a link leads to by its own path, or with --follow-link";

/// Whether a link, so many directories below the one that is copied, may lead out of that.
///
/// Only what climbs first and then descends is known to stay: behind a name there may be another link, and `..` is then not
/// where it seems to be.
pub(super) fn leaves(leads_to: &str, depth: usize) -> bool {
    let mut climbed = 0;
    let mut descended = false;
    for name in leads_to.split('/') {
        match name {
            "" | "." => {}
            ".." if descended => return true,
            ".." => climbed += 1,
            _ => descended = true,
        }
    }
    leads_to.starts_with('/') || climbed > depth
}

/// A link stands where something is to go.
pub(super) fn refused(path: &str) -> Failure {
    let words = format!("{path} in the sandbox: it is a symbolic link, which is not followed");
    Failure::new(CODE, words).exit(FAILED)
}

/// Whether an agent does not know how to follow no link.
pub(super) fn is_too_old(error: &Error) -> bool {
    matches!(error, Error::FollowsSymlinks)
}

/// It cannot be asked to follow no link, and is not asked to follow any.
pub(super) fn too_old(sandbox: &str) -> Failure {
    failed("the agent of this sandbox is older than this carrel, and would follow links of the sandbox").hint(format!(
        "restart it, so that it gets the current agent: carrel stop {sandbox} && carrel resume {sandbox}"
    ))
}

/// Adds what to do about a link that was not followed: the path that can be named instead.
pub(super) async fn explained(
    files: &Files,
    name: &str,
    source: &Path,
    target: &SandboxPath,
    failure: Failure,
) -> Failure {
    if failure.code != CODE {
        return failure;
    }
    let path = target.path();
    let real = match files.real_path(&path).await {
        Ok(real) => Some(real),
        Err(_) => {
            files.real_path(target.parent()).await.ok().map(|parent| super::request::join(&parent, target.name()))
        }
    };
    match real.filter(|real| real.trim_end_matches('/') != path.trim_end_matches('/')) {
        // It is the word of the sandbox, and may be pasted into a shell.
        Some(real) if is_plain(&real) && source.to_str().is_some_and(is_plain) => {
            failure.hint(format!("if that is where it is to go: carrel cp {} {name}:{real}", source.display()))
        }
        Some(_) => failure.hint("name a path without symbolic links"),
        None => failure.hint("remove the link first, or copy to another directory"),
    }
}

/// Whether a shell takes it for one word as it is.
fn is_plain(path: &str) -> bool {
    path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-+@%,=".contains(&byte)) && !path.starts_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_stays_if_it_climbs_no_further_than_it_is_deep_and_only_at_its_beginning() {
        for (leads_to, depth) in [
            ("a", 0),
            ("./a/b", 0),
            ("a/./b/", 0),
            ("../a", 1),
            ("../../a/b", 2),
            (".././../a", 3),
            ("..", 1),
            (".", 0),
        ] {
            assert!(!leaves(leads_to, depth), "{leads_to} at {depth}");
        }
        for (leads_to, depth) in [
            ("/", 0),
            ("/etc/passwd", 9),
            ("//etc", 9),
            ("..", 0),
            ("../a", 0),
            ("../../a", 1),
            ("./..", 0),
            // Behind `a` there may be a link to the top.
            ("a/..", 5),
            ("a/../../b", 5),
            ("../a/../b", 5),
        ] {
            assert!(leaves(leads_to, depth), "{leads_to} at {depth}");
        }
    }

    #[test]
    fn what_a_shell_would_take_for_more_than_a_word_is_not_put_into_a_hint() {
        assert!(is_plain("/usr/bin/x-1.2_3") && is_plain("./a"));
        for path in ["/a b", "/a;rm", "/$(x)", "/`x`", "/a\nb", "/ä", "-rf", "/a'b", "/a&b", "/~"] {
            assert!(!is_plain(path), "{path}");
        }
    }
}
