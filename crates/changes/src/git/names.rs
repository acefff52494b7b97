//! Names that git takes for its own directory on some file system.

/// The entries of a git directory, and what git reads or runs there.
const OWN: [&str; 32] = [
    "HEAD",
    "objects",
    "refs",
    "commondir",
    "gitdir",
    "config",
    "config.worktree",
    "config.lock",
    "hooks",
    "info",
    "index",
    "modules",
    "worktrees",
    "packed-refs",
    "reftable",
    "shallow",
    "branches",
    "remotes",
    "logs",
    "description",
    "lfs",
    "rebase-merge",
    "rebase-apply",
    "sequencer",
    "BISECT_RUN",
    "BISECT_START",
    "FETCH_HEAD",
    "MERGE_HEAD",
    "ORIG_HEAD",
    "common",
    "svn",
    "fsmonitor--daemon",
];

/// Whether a name is `.git` to git, or to a file system with other spellings of the same name.
pub(crate) fn is_git(name: &[u8]) -> bool {
    let observed = strip_ignored_characters(name);
    // The part after a colon names a stream of the file, and dots and spaces at the end are ignored.
    let stem = observed.split(|byte| *byte == b':').next().unwrap_or_default();
    let end = stem.iter().rposition(|byte| !matches!(byte, b'.' | b' ')).map_or(0, |last| last + 1);
    let stem = stem.get(..end).unwrap_or_default();
    stem.eq_ignore_ascii_case(b".git") || stem.eq_ignore_ascii_case(b"git~1")
}

/// Whether a name has a meaning to git in a git directory.
pub(super) fn is_own(name: &[u8]) -> bool {
    OWN.iter().any(|own| name.eq_ignore_ascii_case(own.as_bytes()))
}

/// A name without the characters that HFS+ ignores.
fn strip_ignored_characters(name: &[u8]) -> Vec<u8> {
    let Ok(text) = std::str::from_utf8(name) else { return name.to_vec() };
    let unseen = |character: &char| matches!(character, '\u{200c}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{206a}'..='\u{206f}' | '\u{feff}');
    text.chars().filter(|character| !unseen(character)).collect::<String>().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dot_git_is_recognized_in_every_spelling_of_a_file_system() {
        for name in
            [".git", ".GIT", ".gIt", "git~1", "GIT~1", ".git ", ".git...", ".git. .", ".g\u{200c}it", "\u{feff}.git"]
        {
            assert!(is_git(name.as_bytes()), "{name:?}");
        }
        for name in [".git::$INDEX_ALLOCATION", ".git:x", "git~1:", ".GIT .:a"] {
            assert!(is_git(name.as_bytes()), "{name:?}");
        }
        for name in ["git", ".gitignore", ".github", "a.git", "git~2", ".gi", "", ".", ".git\u{e4}", "..git"] {
            assert!(!is_git(name.as_bytes()), "{name:?}");
        }
        assert!(!is_git(b".git\xff"));
    }
}
