//! Splits commands as a shell does. What expansions produce is unknown and left open.

use std::collections::BTreeSet;

/// The nesting limit of commands in commands.
const MAX_DEPTH: usize = 4;

/// The parsed command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ShellScript {
    /// The words of each command, unquoted.
    pub(super) commands: Vec<Vec<Vec<u8>>>,
    /// The functions it defines.
    pub(super) functions: BTreeSet<Vec<u8>>,
}

struct ShellLexer<'a> {
    text: &'a [u8],
    at: usize,
    script: ShellScript,
    words: Vec<Vec<u8>>,
    word: Option<Vec<u8>>,
    depth: usize,
}

// === impl ShellScript ===

impl ShellScript {
    /// Splits a command line. Command substitutions are commands too, and leave a `$` in their place.
    pub(super) fn parse(text: &[u8]) -> Self {
        Self::at_depth(text, 0)
    }

    fn at_depth(text: &[u8], depth: usize) -> Self {
        let mut lexer =
            ShellLexer { text, at: 0, script: Self::default(), words: Vec::new(), word: None, depth: depth + 1 };
        lexer.run();
        lexer.script
    }

    fn take(&mut self, other: Self) {
        self.commands.extend(other.commands);
        self.functions.extend(other.functions);
    }
}

// === impl ShellLexer ===

impl ShellLexer<'_> {
    fn run(&mut self) {
        while let Some(byte) = self.next() {
            match byte {
                b'\'' => {
                    self.word.get_or_insert_default();
                    while let Some(byte) = self.next().filter(|byte| *byte != b'\'') {
                        self.push(byte);
                    }
                }
                b'"' => self.quoted(),
                b'\\' => match self.next() {
                    Some(b'\n') | None => {}
                    Some(other) => self.push(other),
                },
                b'$' | b'`' => self.expanded(byte),
                b'(' if self.peek() == Some(b')') => {
                    self.script.functions.extend(self.word.take());
                    self.end_command();
                }
                b';' | b'&' | b'|' | b'\n' | b'(' | b')' => self.end_command(),
                b'<' | b'>' => self.end_word(),
                byte if byte.is_ascii_whitespace() => self.end_word(),
                other => self.push(other),
            }
        }
        self.end_command();
    }

    fn quoted(&mut self) {
        self.word.get_or_insert_default();
        while let Some(byte) = self.next() {
            match byte {
                b'"' => break,
                b'\\' => match self.next() {
                    Some(b'\n') | None => {}
                    Some(other @ (b'"' | b'\\' | b'$' | b'`')) => self.push(other),
                    Some(other) => {
                        self.push(b'\\');
                        self.push(other);
                    }
                },
                b'$' | b'`' => self.expanded(byte),
                other => self.push(other),
            }
        }
    }

    /// Handles an expansion: a command substitution, or a variable, which is kept as written.
    fn expanded(&mut self, first: u8) {
        self.push(b'$');
        let (start, mut open) = match (first, self.peek()) {
            (b'`', _) => (self.at, 0),
            (_, Some(b'(')) => (self.at + 1, 1),
            _ => return,
        };
        self.at = start;
        while let Some(byte) = self.next() {
            match byte {
                b'`' if first == b'`' => break,
                b'(' if first != b'`' => open += 1,
                b')' if first != b'`' => {
                    open -= 1;
                    if open == 0 {
                        break;
                    }
                }
                _ => {}
            }
        }
        let inner = self.text.get(start..self.at).unwrap_or_default();
        let inner = inner.strip_suffix(if first == b'`' { b"`" } else { b")" }).unwrap_or(inner);
        if self.depth < MAX_DEPTH {
            self.script.take(ShellScript::at_depth(inner, self.depth));
        }
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn push(&mut self, byte: u8) {
        self.word.get_or_insert_default().push(byte);
    }

    fn end_word(&mut self) {
        self.words.extend(self.word.take());
    }

    fn end_command(&mut self) {
        self.end_word();
        let words = std::mem::take(&mut self.words);
        if !words.is_empty() {
            self.script.commands.push(words);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Vec<Vec<String>> {
        let word = |word: &Vec<u8>| String::from_utf8(word.clone()).unwrap();
        ShellScript::parse(text.as_bytes()).commands.iter().map(|words| words.iter().map(word).collect()).collect()
    }

    #[test]
    fn a_command_is_split_as_a_shell_does() {
        for (text, expected) in [
            ("a 'b c' \"d $e\"f", &[&["a", "b c", "d $ef"][..]][..]),
            (r"my\ tools/c.sh too\ls", &[&["my tools/c.sh", "tools"]]),
            ("cd x&&./y;z|w", &[&["cd", "x"], &["./y"], &["z"], &["w"]]),
            ("\"$(git a (b) c)/x\" -v", &[&["git", "a"], &["b"], &["c"], &["$/x", "-v"]]),
            ("`a b`/c", &[&["a", "b"], &["$/c"]]),
            ("a >b", &[&["a", "b"]]),
            ("'' \"", &[&["", ""]]),
        ] {
            assert_eq!(parsed(text), expected, "{text}");
        }
        let script = ShellScript::parse(b"foo() { bar; }; foo");
        assert_eq!(script.functions, BTreeSet::from([b"foo".to_vec()]));
    }

    #[test]
    fn any_input_is_parsed() {
        bolero::check!().with_type::<Vec<u8>>().for_each(|text| drop(ShellScript::parse(text)));
        assert_eq!(parsed(&"$(".repeat(10_000)).len(), 4);
    }
}
