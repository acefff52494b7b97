//! Finds entries by name.

use carrel_protocol::payload::{TreeGlob, TreeMatch};
use regex_lite::{Regex, RegexBuilder};

use super::grep::EXPRESSION;
use super::walk::TreeWalk;
use super::{TreeOperation, TreeStep};
use crate::files::{FsError, join};
use crate::session::SessionKey;
use crate::shared_state::SessionIo;

/// Entries per step.
const VISITS: usize = 512;

/// A search by name.
pub(super) struct GlobSearch {
    root: String,
    pattern: GlobPattern,
    walk: TreeWalk,
}

/// A pattern over paths: `*`, `?`, `[…]` and `{a,b}` within a name, `**` across names.
pub(super) struct GlobPattern(Regex);

// === impl GlobSearch ===

impl GlobSearch {
    pub(super) fn start(glob: &TreeGlob) -> Result<Self, FsError> {
        // A pattern with a leading dot in a component also matches hidden names.
        let asks = glob.pattern.starts_with('.') || glob.pattern.contains("/.");
        let walk = TreeWalk::new(&glob.root, glob.hidden || asks).map_err(|errno| FsError::new("glob", errno))?;
        Ok(Self { root: glob.root.clone(), pattern: GlobPattern::new(&glob.pattern)?, walk })
    }
}

impl TreeOperation for GlobSearch {
    fn step(&mut self, _: &mut SessionIo, _: SessionKey, found: &mut Vec<TreeMatch>) -> Result<TreeStep, FsError> {
        for _ in 0..VISITS {
            let Some(visited) = self.walk.next().map_err(|errno| FsError::new("glob", errno))? else {
                return Ok(TreeStep::Done);
            };
            if self.pattern.matches(&visited.path) {
                found.push(TreeMatch { path: join(&self.root, &visited.path), line: None, text: None });
            }
        }
        Ok(TreeStep::More)
    }
}

// === impl GlobPattern ===

impl GlobPattern {
    pub(super) fn new(pattern: &str) -> Result<Self, FsError> {
        let refused = || FsError::other("glob", format!("{pattern:?} is not a valid pattern"));
        let expression = translate(pattern).ok_or_else(refused)?;
        RegexBuilder::new(&expression).size_limit(EXPRESSION).build().map(Self).map_err(|_| refused())
    }

    pub(super) fn matches(&self, path: &str) -> bool {
        self.0.is_match(path)
    }
}

/// The regular expression of a pattern; `None` if a bracket or brace is unclosed.
fn translate(pattern: &str) -> Option<String> {
    let mut expression = String::from("^(?s:");
    let mut rest = pattern.chars().peekable();
    let mut braces = 0;
    let mut at_start = true;
    while let Some(symbol) = rest.next() {
        let name_starts = std::mem::replace(&mut at_start, symbol == '/');
        match symbol {
            '*' if rest.peek() == Some(&'*') => {
                rest.next();
                if name_starts && rest.peek() == Some(&'/') {
                    rest.next();
                    expression.push_str("(?:.*/)?");
                    at_start = true;
                } else {
                    expression.push_str(".*");
                }
            }
            '*' => expression.push_str("[^/]*"),
            '?' => expression.push_str("[^/]"),
            '[' => class(&mut rest, &mut expression)?,
            '{' => {
                braces += 1;
                expression.push_str("(?:");
            }
            '}' if braces > 0 => {
                braces -= 1;
                expression.push(')');
            }
            ',' if braces > 0 => expression.push('|'),
            '\\' => expression.push_str(&regex_lite::escape(&rest.next()?.to_string())),
            other => expression.push_str(&regex_lite::escape(&other.to_string())),
        }
    }
    expression.push_str(")$");
    (braces == 0).then_some(expression)
}

fn class(rest: &mut std::iter::Peekable<std::str::Chars<'_>>, expression: &mut String) -> Option<()> {
    expression.push('[');
    if matches!(rest.peek(), Some('!' | '^')) {
        rest.next();
        expression.push('^');
    }
    let mut first = true;
    loop {
        match rest.next()? {
            ']' if !first => break,
            '-' => expression.push('-'),
            other => expression.push_str(&regex_lite::escape(&other.to_string())),
        }
        first = false;
    }
    expression.push(']');
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, path: &str) -> bool {
        GlobPattern::new(pattern).unwrap().matches(path)
    }

    #[test]
    fn patterns_match_like_shell_globs() {
        for (pattern, path, expected) in [
            ("*.rs", "lib.rs", true),
            ("*.rs", "src/lib.rs", false),
            ("**/*.rs", "lib.rs", true),
            ("**/*.rs", "a/b/lib.rs", true),
            ("src/**", "src/a/b", true),
            ("src/**", "srcs/a", false),
            ("?.{rs,toml}", "a.toml", true),
            ("?.{rs,toml}", "ab.rs", false),
            ("[a-c]1", "b1", true),
            ("[!a-c]1", "b1", false),
            ("[]]", "]", true),
            ("a\\*", "a*", true),
            ("a\\*", "ab", false),
            ("a.b", "axb", false),
            ("a+(b)", "a+(b)", true),
        ] {
            assert_eq!(matches(pattern, path), expected, "{pattern} on {path}");
        }
    }

    #[test]
    fn an_invalid_pattern_is_rejected() {
        for pattern in ["[a", "{a,b", "a\\"] {
            assert!(GlobPattern::new(pattern).is_err(), "{pattern}");
        }
    }

    //= carrel.protocol.property-fuzz-target-decoder
    #[test]
    fn fuzz_patterns_never_panic() {
        bolero::check!().with_type::<(String, String)>().for_each(|(pattern, path)| {
            if let Ok(pattern) = GlobPattern::new(pattern) {
                pattern.matches(path);
            }
        });
    }
}
