//! Symbolic links of a sandbox: none is followed when copying in, and none that leaves the copy is copied out.

use std::path::Path;

use carrel_agent_client::{AgentClientError, Files};

use super::request::SandboxPath;
use super::{FAILED, failed};
use crate::failure::Failure;

/// The code of the failure at a link that is not followed.
pub(super) const LINK_NOT_FOLLOWED: &str = "link_not_followed";
/// The error of the agent for such a link.
pub(super) const ERRNO: &str = "ELOOP";
/// Why a link that is the source itself is not copied.
pub(super) const SOURCE_IS_LINK: &str = "it is a symbolic link, and its target is not copied with it";
pub(super) const FOLLOW_HINT: &str = "copy its target: carrel cp --follow-link";
/// The hint for skipped links.
pub(super) const OMITTED_HINT: &str = "copy the target of such a link by its own path, or with --follow-link";

/// Whether a link that is `depth` directories below the copied one may point out of it.
///
/// Only a path that climbs first and then descends certainly stays: a name may be another link, behind which `..` is
/// elsewhere.
pub(super) fn leaves_copy(link_target: &str, depth: usize) -> bool {
    let mut climbed = 0;
    let mut descended = false;
    for name in link_target.split('/') {
        match name {
            "" | "." => {}
            ".." if descended => return true,
            ".." => climbed += 1,
            _ => descended = true,
        }
    }
    link_target.starts_with('/') || climbed > depth
}

/// The failure for a link in the destination path.
pub(super) fn not_followed(path: &str) -> Failure {
    let message = format!("{path} in the sandbox: it is a symbolic link, which is not followed");
    Failure::new(LINK_NOT_FOLLOWED, message).exit(FAILED)
}

/// Whether the agent is too old to refuse links.
pub(super) fn is_too_old(error: &AgentClientError) -> bool {
    matches!(error, AgentClientError::FollowsSymlinks)
}

/// The failure for such an agent: it would follow links.
pub(super) fn too_old(sandbox: &str) -> Failure {
    failed("the agent of this sandbox is older than this carrel, and would follow links of the sandbox").hint(format!(
        "restart it, so that it gets the current agent: carrel stop {sandbox} && carrel resume {sandbox}"
    ))
}

/// Adds a hint to a failure at a link: the resolved path.
pub(super) async fn with_hint(
    files: &Files,
    name: &str,
    source: &Path,
    target: &SandboxPath,
    failure: Failure,
) -> Failure {
    if failure.code != LINK_NOT_FOLLOWED {
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
        // The sandbox chose the path, and the hint may be pasted into a shell.
        Some(real) if is_plain(&real) && source.to_str().is_some_and(is_plain) => {
            failure.hint(format!("to copy there: carrel cp {} {name}:{real}", source.display()))
        }
        Some(_) => failure.hint("give a path without symbolic links"),
        None => failure.hint("remove the link first, or copy to another directory"),
    }
}

/// Whether a shell needs no quotes for it.
fn is_plain(path: &str) -> bool {
    path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-+@%,=".contains(&byte)) && !path.starts_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_stays_in_the_copy_if_it_climbs_only_at_its_start_and_no_further_than_its_depth() {
        for (link_target, depth) in [
            ("a", 0),
            ("./a/b", 0),
            ("a/./b/", 0),
            ("../a", 1),
            ("../../a/b", 2),
            (".././../a", 3),
            ("..", 1),
            (".", 0),
        ] {
            assert!(!leaves_copy(link_target, depth), "{link_target} at {depth}");
        }
        for (link_target, depth) in [
            ("/", 0),
            ("/etc/passwd", 9),
            ("//etc", 9),
            ("..", 0),
            ("../a", 0),
            ("../../a", 1),
            ("./..", 0),
            // `a` may be a link to the top.
            ("a/..", 5),
            ("a/../../b", 5),
            ("../a/../b", 5),
        ] {
            assert!(leaves_copy(link_target, depth), "{link_target} at {depth}");
        }
    }

    #[test]
    fn a_path_that_needs_quoting_is_not_put_into_a_hint() {
        assert!(is_plain("/usr/bin/x-1.2_3") && is_plain("./a"));
        for path in ["/a b", "/a;rm", "/$(x)", "/`x`", "/a\nb", "/ä", "-rf", "/a'b", "/a&b", "/~"] {
            assert!(!is_plain(path), "{path}");
        }
    }
}
