//! Splits text into words as a shell does, with quotes and backslashes.

/// The words of a text; none if a quote is not closed.
pub(crate) fn split_words(text: &str) -> Option<Vec<String>> {
    let (mut all, mut word, mut letters) = (Vec::new(), None::<String>, text.chars());
    while let Some(letter) = letters.next() {
        match letter {
            letter if letter.is_ascii_whitespace() => all.extend(word.take()),
            '\\' => word.get_or_insert_default().push(letters.next()?),
            quote @ ('\'' | '"') => {
                let word = word.get_or_insert_default();
                loop {
                    match letters.next()? {
                        end if end == quote => break,
                        '\\' if quote == '"' => word.push(letters.next()?),
                        letter => word.push(letter),
                    }
                }
            }
            letter => word.get_or_insert_default().push(letter),
        }
    }
    all.extend(word);
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_as_a_shell_does() {
        let is = |text: &str, expected: &[&str]| assert_eq!(split_words(text).unwrap(), expected, "{text}");
        is("", &[]);
        is("  sh  -c ", &["sh", "-c"]);
        is("sh -c 'echo \"a b\"'", &["sh", "-c", "echo \"a b\""]);
        is(r#"a\ b "c\"d" ''"#, &["a b", "c\"d", ""]);
        for open in ["'a", "\"a", "a\\"] {
            assert_eq!(split_words(open), None);
        }
    }
}
