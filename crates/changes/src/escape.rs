//! Displays untrusted names without control characters.

use std::fmt::{self, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Displays a name with escapes for everything that is not a plain character.
#[derive(Clone, Copy, Debug)]
pub struct EscapedName<'a>(pub &'a [u8]);

/// Displays a sentence with names in it: on one line, with control characters escaped.
#[derive(Clone, Copy, Debug)]
pub struct EscapedLine<'a>(pub &'a str);

/// Displays a number with its noun.
pub(crate) struct CountedNoun(pub(crate) u64, pub(crate) &'static str, pub(crate) &'static str);

// === impl EscapedName ===

impl<'a> EscapedName<'a> {
    /// A path of the host.
    pub fn path(path: &'a Path) -> Self {
        Self(path.as_os_str().as_bytes())
    }
}

impl fmt::Display for EscapedName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for character in chunk.valid().chars() {
                match character {
                    '\\' => f.write_str("\\\\")?,
                    other => plain_or_escaped(f, other)?,
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

// === impl EscapedLine ===

impl fmt::Display for EscapedLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|character| plain_or_escaped(f, character))
    }
}

// === impl CountedNoun ===

impl fmt::Display for CountedNoun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0, if self.0 == 1 { self.1 } else { self.2 })
    }
}

/// The warning about changes that git acts on.
pub(crate) fn caution(changes: u64) -> String {
    format!(
        "{} that git acts on (repositories, hooks, settings and what they name), by which it could be made to run \
         anything here: `carrel apply` refuses them; --skip-refused applies the rest, --allow-git takes them over too",
        CountedNoun(changes, "change", "changes")
    )
}

/// A line of a file for a terminal: tabs stay, other control characters are escaped.
pub(crate) fn line_for_terminal(line: &[u8]) -> String {
    let mut text = String::with_capacity(line.len());
    for chunk in line.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\t' => text.push('\t'),
                // Writing to a string does not fail.
                other => drop(plain_or_escaped(&mut text, other)),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

fn plain_or_escaped(f: &mut impl fmt::Write, character: char) -> fmt::Result {
    match character {
        steering if steering.is_ascii_control() => write!(f, "\\x{:02x}", u32::from(steering)),
        steering if steering.is_control() || reorders(steering) => write!(f, "\\u{{{:x}}}", u32::from(steering)),
        plain => f.write_char(plain),
    }
}

/// Invisible characters that change the order of others.
fn reorders(character: char) -> bool {
    matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A name in a patch, quoted as git does.
pub(crate) fn quoted(prefix: &str, path: &[u8]) -> String {
    let plain = |byte: &u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
    let mut text = String::from(prefix);
    if path.iter().all(plain) {
        text.extend(path.iter().map(|byte| char::from(*byte)));
        return text;
    }
    text.insert(0, '"');
    for byte in path {
        match byte {
            b'\x07' => text.push_str("\\a"),
            b'\x08' => text.push_str("\\b"),
            b'\t' => text.push_str("\\t"),
            b'\n' => text.push_str("\\n"),
            b'\x0b' => text.push_str("\\v"),
            b'\x0c' => text.push_str("\\f"),
            b'\r' => text.push_str("\\r"),
            b'"' | b'\\' => text.extend(['\\', char::from(*byte)]),
            other if plain(other) => text.push(char::from(*other)),
            // Writing to a string does not fail.
            other => drop(write!(text, "\\{other:03o}")),
        }
    }
    text.push('"');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        let shown = |bytes: &[u8]| EscapedName(bytes).to_string();
        assert_eq!(shown("a b/ä.txt".as_bytes()), "a b/ä.txt");
        assert_eq!(shown(b"\x1b[2Jx\n\t\x7f"), "\\x1b[2Jx\\x0a\\x09\\x7f");
        assert_eq!(shown("\u{9b}31m\u{202e}txt.exe".as_bytes()), "\\u{9b}31m\\u{202e}txt.exe");
        assert_eq!(shown(b"\xff\xc3a\\x1b"), "\\xff\\xc3a\\\\x1b");
        assert_eq!(EscapedLine("a\\b \u{1b}[2J\nerror: \u{202e}").to_string(), "a\\b \\x1b[2J\\x0aerror: \\u{202e}");
        assert_eq!(line_for_terminal(b"\ta\\n \x1b[0m\xff"), "\ta\\n \\x1b[0m\\xff");
    }

    //= promises.changes.control-characters-sandbox-reach
    #[test]
    fn escaped_output_never_has_control_characters() {
        bolero::check!().with_type::<Vec<u8>>().for_each(|bytes| {
            assert!(!EscapedName(bytes).to_string().contains(char::is_control));
            assert!(!EscapedLine(&String::from_utf8_lossy(bytes)).to_string().contains(char::is_control));
            assert!(!line_for_terminal(bytes).contains(|c: char| c.is_control() && c != '\t'));
            assert!(quoted("a/", bytes).bytes().all(|byte| (b' '..=b'~').contains(&byte)));
        });
    }

    #[test]
    fn names_are_quoted_as_in_git() {
        assert_eq!(quoted("a/", b"plain name.c"), "a/plain name.c");
        assert_eq!(quoted("a/", "ä\"\\\n\x1b".as_bytes()), r#""a/\303\244\"\\\n\033""#);
    }
}
