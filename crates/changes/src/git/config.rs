//! The format of git's configuration, parsed without git: git runs commands of the configuration of a repository that it opens.

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GitSetting {
    /// Section, subsection and name, joined by dots; section and name in lower case.
    pub(super) key: String,
    pub(super) value: Vec<u8>,
}

struct ConfigReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// All settings of a file. Git stops at an invalid line; here it is skipped, so that no setting is missed.
pub(super) fn parse(bytes: &[u8]) -> Vec<GitSetting> {
    let mut reader = ConfigReader { bytes: bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes), at: 0 };
    let (mut section, mut settings) = (String::new(), Vec::new());
    while let Some(byte) = reader.next() {
        match byte {
            b'[' => section = reader.section(),
            b'#' | b';' => reader.skip_line(),
            byte if byte.is_ascii_alphabetic() => {
                let name = reader.name(byte);
                let value = reader.value();
                settings.push(GitSetting { key: format!("{section}.{name}"), value });
            }
            _ => {}
        }
    }
    settings
}

// === impl ConfigReader ===

impl ConfigReader<'_> {
    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn skip_line(&mut self) {
        while self.next().is_some_and(|byte| byte != b'\n') {}
    }

    /// The head of a section, after its bracket: `name`, `name.sub` or `name "Sub"`.
    fn section(&mut self) -> String {
        let mut name = Vec::new();
        while let Some(byte) = self.next() {
            match byte {
                b']' | b'\n' => break,
                b'"' => {
                    name.push(b'.');
                    while let Some(byte) = self.next() {
                        match byte {
                            b'"' | b'\n' => break,
                            b'\\' => name.extend(self.next()),
                            other => name.push(other),
                        }
                    }
                }
                byte if byte.is_ascii_whitespace() => {}
                other => name.push(other.to_ascii_lowercase()),
            }
        }
        String::from_utf8_lossy(&name).into_owned()
    }

    fn name(&mut self, first: u8) -> String {
        let mut name = vec![first.to_ascii_lowercase()];
        while let Some(byte) = self.peek().filter(|byte| byte.is_ascii_alphanumeric() || *byte == b'-') {
            name.push(byte.to_ascii_lowercase());
            self.at += 1;
        }
        String::from_utf8_lossy(&name).into_owned()
    }

    /// The text after a name: a value up to the end of its line, or nothing.
    fn value(&mut self) -> Vec<u8> {
        while self.peek().is_some_and(|byte| matches!(byte, b' ' | b'\t')) {
            self.at += 1;
        }
        if self.peek() != Some(b'=') {
            return Vec::new();
        }
        self.at += 1;
        let (mut value, mut quoted) = (Vec::new(), false);
        while let Some(byte) = self.next() {
            match byte {
                b'\n' => break,
                b'"' => quoted = !quoted,
                b'#' | b';' if !quoted => {
                    self.skip_line();
                    break;
                }
                b'\\' => match self.next() {
                    Some(b'\r') if self.peek() == Some(b'\n') => self.at += 1,
                    Some(b'\n') | None => {}
                    Some(b'n') => value.push(b'\n'),
                    Some(b't') => value.push(b'\t'),
                    Some(b'b') => value.push(8),
                    Some(other) => value.push(other),
                },
                other => value.push(other),
            }
        }
        value.trim_ascii().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<(String, String)> {
        let pair = |setting: GitSetting| (setting.key, String::from_utf8(setting.value).unwrap());
        parse(text.as_bytes()).into_iter().map(pair).collect()
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn settings_are_parsed_as_git_parses_them() {
        let text = "\u{feff}# note\n[Core] hooksPath = a b ; note\n\tfsMonitor = \"x # y\" z\\\n  w\r\n\
                    [filter \"Big\\\"One\"]\nclean=\"c\\t\\\\d\"\nrequired\n[alias.Sub]x=!y\n[a]b=1 [c]\n";
        assert_eq!(
            read(text),
            pairs(&[
                ("core.hookspath", "a b"),
                ("core.fsmonitor", "x # y z  w"),
                ("filter.Big\"One.clean", "c\t\\d"),
                ("filter.Big\"One.required", ""),
                ("alias.sub.x", "!y"),
                ("a.b", "1 [c]"),
            ])
        );
    }

    #[test]
    fn invalid_lines_do_not_hide_later_settings() {
        assert_eq!(read("= x\n]]\n[core\nhooksPath = h\n[\"\n\\"), pairs(&[(".x", ""), ("core.hookspath", "h")]));
        bolero::check!().with_type::<Vec<u8>>().for_each(|bytes| {
            let text = [bytes.as_slice(), b"\n\"\n\n[core]\nhooksPath = h\n"].concat();
            assert!(parse(&text).iter().any(|setting| setting.value.ends_with(b"h")));
        });
    }

    #[test]
    fn the_parser_agrees_with_git_config_list() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config");
        let text = "[core]\n\thooksPath = \"a;b\" # c\n[include]path=../x\n[Filter \"L F\"] clean = q \\\n r\n";
        std::fs::write(&path, text).unwrap();
        let mut git = std::process::Command::new("git");
        let listed = git.args(["config", "-z", "--list", "--no-includes", "--file"]).arg(&path).output().unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        let listed: Vec<_> = listed.split_terminator('\0').filter_map(|pair| pair.split_once('\n')).collect();
        assert_eq!(read(text), pairs(&listed));
    }
}
