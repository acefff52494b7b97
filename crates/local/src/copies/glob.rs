//! Shell glob patterns: `*`, `?` and `[…]` within a path component, and `**` for any number of components.

use std::iter::Peekable;
use std::str::Chars;

/// A glob pattern for relative paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Glob(Vec<GlobComponent>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum GlobComponent {
    /// `**`: any number of components.
    Any,
    /// Exactly one component.
    Name(Vec<GlobToken>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum GlobToken {
    /// `*`: any number of characters.
    Many,
    /// `?`: any single character.
    One,
    /// A literal character.
    Just(char),
    /// `[…]`: a character in one of the ranges, or in none of them.
    Of { ranges: Vec<(char, char)>, not: bool },
}

// === impl Glob ===

impl Glob {
    pub(crate) fn new(pattern: &str) -> Self {
        Self(pattern.split('/').map(GlobComponent::new).collect())
    }

    /// The same pattern, matching below any directory.
    pub(crate) fn at_any_depth(mut self) -> Self {
        self.0.insert(0, GlobComponent::Any);
        self
    }

    /// Whether the pattern matches the whole path.
    pub(crate) fn matches(&self, path: &str) -> bool {
        let names: Vec<&str> = path.split('/').collect();
        // The path prefixes that the pattern so far can match: every component is visited once per path prefix, which bounds
        // the time.
        let mut reached = vec![false; names.len() + 1];
        reached.splice(0..1, [true]);
        for part in &self.0 {
            reached = match part {
                GlobComponent::Any => reached
                    .iter()
                    .scan(false, |any, here| {
                        *any |= *here;
                        Some(*any)
                    })
                    .collect(),
                GlobComponent::Name(tokens) => {
                    let moved = reached.iter().zip(&names).map(|(here, name)| *here && matches_name(tokens, name));
                    std::iter::once(false).chain(moved).collect()
                }
            };
        }
        reached.last().copied().unwrap_or(false)
    }
}

/// Whether the tokens match a component. Backtracking to the last `*` only is sufficient.
fn matches_name(tokens: &[GlobToken], name: &str) -> bool {
    let chars: Vec<char> = name.chars().collect();
    let (mut token, mut at, mut back) = (0, 0, None);
    loop {
        match (tokens.get(token), chars.get(at)) {
            (Some(GlobToken::Many), _) => {
                back = Some((token + 1, at));
                token += 1;
                continue;
            }
            (Some(one), Some(char)) if one.matches(*char) => {
                (token, at) = (token + 1, at + 1);
                continue;
            }
            (None, None) => return true,
            _ => {}
        }
        match back {
            Some((behind, from)) if from < chars.len() => {
                back = Some((behind, from + 1));
                (token, at) = (behind, from + 1);
            }
            _ => return false,
        }
    }
}

// === impl GlobComponent ===

impl GlobComponent {
    fn new(part: &str) -> Self {
        if part == "**" {
            return Self::Any;
        }
        let (mut tokens, mut chars) = (Vec::new(), part.chars().peekable());
        while let Some(char) = chars.next() {
            tokens.push(match char {
                '*' => GlobToken::Many,
                '?' => GlobToken::One,
                '\\' => GlobToken::Just(chars.next().unwrap_or('\\')),
                '[' => match set(chars.clone()) {
                    Some((set, rest)) => {
                        chars = rest;
                        set
                    }
                    // An unclosed bracket is a literal.
                    None => GlobToken::Just('['),
                },
                char => GlobToken::Just(char),
            });
        }
        Self::Name(tokens)
    }
}

/// Parses a bracket expression; returns it with the remaining characters.
fn set(mut chars: Peekable<Chars<'_>>) -> Option<(GlobToken, Peekable<Chars<'_>>)> {
    let not = chars.next_if(|char| matches!(char, '!' | '^')).is_some();
    let mut ranges = Vec::new();
    loop {
        let from = match chars.next()? {
            ']' if !ranges.is_empty() => return Some((GlobToken::Of { ranges, not }, chars)),
            '\\' => chars.next()?,
            char => char,
        };
        let mut ahead = chars.clone();
        let to = match (ahead.next(), ahead.next()) {
            (Some('-'), Some(to)) if to != ']' => {
                chars = ahead;
                if to == '\\' { chars.next()? } else { to }
            }
            _ => from,
        };
        ranges.push((from, to));
    }
}

// === impl GlobToken ===

impl GlobToken {
    fn matches(&self, char: char) -> bool {
        match self {
            Self::Many | Self::One => true,
            Self::Just(just) => *just == char,
            Self::Of { ranges, not } => ranges.iter().any(|(from, to)| (*from..=*to).contains(&char)) != *not,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_what_a_shell_matches() {
        for (pattern, matching, others) in [
            ("*.log", &["a.log", ".log"][..], &["a.log.gz", "d/a.log", "a"][..]),
            ("d/*", &["d/a", "d/"], &["d", "d/a/b", "e/a"]),
            ("a?c", &["abc", "aäc"], &["ac", "a/c", "abbc"]),
            ("[a-c]x", &["ax", "cx"], &["dx", "x"]),
            ("[!a-c]x", &["dx", "!x"], &["ax"]),
            ("[]]x", &["]x"], &["x"]),
            ("[a", &["[a"], &["a"]),
            ("a\\*", &["a*"], &["ab"]),
            ("**/n", &["n", "a/n", "a/b/n"], &["an", "n/a"]),
            ("a/**", &["a", "a/b", "a/b/c"], &["b", "ab"]),
            ("a/**/b", &["a/b", "a/x/b", "a/x/y/b"], &["a/xb", "b"]),
            ("*a*b*", &["ab", "xaxbx", "aab"], &["ba", "a/b"]),
            ("", &[""], &["a"]),
        ] {
            let glob = Glob::new(pattern);
            matching.iter().for_each(|path| assert!(glob.matches(path), "{pattern} {path}"));
            others.iter().for_each(|path| assert!(!glob.matches(path), "{pattern} {path}"));
        }
        assert!(Glob::new("n").at_any_depth().matches("a/b/n"));
    }

    #[test]
    fn no_pattern_takes_exponential_time() {
        let name = "a".repeat(2000);
        assert!(!Glob::new(&format!("{}b", "a*".repeat(200))).matches(&name));
        assert!(!Glob::new(&"**/a/".repeat(200)).matches(&"a/".repeat(150)));
    }

    #[test]
    fn any_pattern_can_be_matched_against_any_path() {
        bolero::check!().with_type::<(String, String)>().for_each(|(pattern, path)| {
            let _meant = Glob::new(pattern).matches(path);
        });
    }
}
