//! Finds the detach keys in typed input.

use std::str::FromStr;

/// A sequence of keys that detaches from a job; an empty one never does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DetachKeys(Vec<u8>);

/// Text that is not a list of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InvalidDetachKeys(String);

/// Matches typed input against the keys. A possible prefix is held back until it matches or not.
#[derive(Clone, Debug)]
pub(crate) struct DetachKeyMatcher {
    keys: Vec<u8>,
    /// How many of them were typed last, and are held back.
    typed: usize,
}

// === impl DetachKeys ===

impl DetachKeys {
    /// Starts to match.
    pub(crate) fn watch(&self) -> DetachKeyMatcher {
        DetachKeyMatcher { keys: self.0.clone(), typed: 0 }
    }

    pub(crate) fn last(&self) -> Option<u8> {
        self.0.last().copied()
    }

    pub(crate) fn contains(&self, key: u8) -> bool {
        self.0.contains(&key)
    }
}

impl FromStr for DetachKeys {
    type Err = InvalidDetachKeys;

    /// Parses comma-separated keys: characters, optionally with the prefix `ctrl-`.
    fn from_str(text: &str) -> Result<Self, InvalidDetachKeys> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        text.split(',')
            .map(|name| key(name).ok_or_else(|| InvalidDetachKeys(name.to_owned())))
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

/// The byte that a terminal sends for a key.
fn key(name: &str) -> Option<u8> {
    let control = name.get(..5).filter(|prefix| prefix.eq_ignore_ascii_case("ctrl-")).and_then(|_| name.get(5..));
    match (control.unwrap_or(name).as_bytes(), control) {
        // A terminal clears the upper bits of a key that is held down with Ctrl.
        ([letter @ (b'a'..=b'z' | b'A'..=b'Z' | b'@' | b'[' | b'\\' | b']' | b'^' | b'_')], Some(_)) => {
            Some(letter & 0x1f)
        }
        ([letter @ b' '..=b'~'], None) => Some(*letter),
        _ => None,
    }
}

// === impl InvalidDetachKeys ===

impl std::fmt::Display for InvalidDetachKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} is not a key: expected a character, or `ctrl-` and a letter or one of @ [ \\ ] ^ _", self.0)
    }
}

impl std::error::Error for InvalidDetachKeys {}

// === impl DetachKeyMatcher ===

impl DetachKeyMatcher {
    /// Leaves in `typed` what is to be forwarded. Returns whether the keys matched; nothing after them is forwarded.
    pub(crate) fn take(&mut self, typed: &mut Vec<u8>) -> bool {
        if self.keys.is_empty() {
            return false;
        }
        let mut on = Vec::with_capacity(self.typed + typed.len());
        for byte in std::mem::take(typed) {
            let before = self.typed;
            self.typed = self.longest(byte);
            if self.typed == self.keys.len() {
                // Held-back bytes are part of the keys, or precede them.
                on.extend(self.keys.get(..before + 1 - self.typed).unwrap_or_default());
                *typed = on;
                return true;
            }
            // Held-back bytes and this byte, without those that are held back now.
            let free = before + 1 - self.typed;
            on.extend(self.keys.get(..free.min(before)).unwrap_or_default());
            if free > before {
                on.push(byte);
            }
        }
        *typed = on;
        false
    }

    /// The held-back bytes at the end of the input.
    pub(crate) fn remaining(&mut self) -> &[u8] {
        self.keys.get(..std::mem::take(&mut self.typed)).unwrap_or_default()
    }

    /// The length of the longest prefix of the keys that the input ends with, including this byte.
    fn longest(&self, byte: u8) -> usize {
        let held = self.keys.get(..self.typed).unwrap_or_default();
        let fits = |count: &usize| {
            let Some(last) = count.checked_sub(1) else { return true };
            self.keys.get(last) == Some(&byte) && held.ends_with(self.keys.get(..last).unwrap_or_default())
        };
        (0..=self.typed + 1).rev().find(fits).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(text: &str) -> DetachKeys {
        text.parse().unwrap()
    }

    /// What is forwarded of some chunks, and whether the keys matched.
    fn forwarded(keys: &DetachKeys, pieces: &[&[u8]]) -> (Vec<u8>, bool) {
        let (mut watcher, mut on) = (keys.watch(), Vec::new());
        for piece in pieces {
            let mut typed = piece.to_vec();
            let found = watcher.take(&mut typed);
            on.extend(typed);
            if found {
                return (on, true);
            }
        }
        on.extend(watcher.remaining());
        (on, false)
    }

    /// All words of two letters, up to a length.
    fn words(longest: u32) -> impl Iterator<Item = Vec<u8>> {
        (0..=longest).flat_map(|len| {
            (0..1_u32 << len)
                .map(move |bits| (0..len).map(|at| if bits >> at & 1 == 0 { b'a' } else { b'b' }).collect())
        })
    }

    #[test]
    fn keys_are_parsed() {
        assert_eq!(keys("ctrl-p,ctrl-q"), DetachKeys(vec![16, 17]));
        assert_eq!(keys("CTRL-A,d"), DetachKeys(vec![1, b'd']));
        assert_eq!(keys("ctrl-@,ctrl-[,ctrl-\\,ctrl-],ctrl-^,ctrl-_,~"), DetachKeys(vec![0, 27, 28, 29, 30, 31, b'~']));
        assert_eq!(keys(""), DetachKeys::default());
        for text in [",", "a,", "ab", "ctrl-", "ctrl-1", "ctrl-ab", "strg-p", "ä", "ctrl-ä", "\u{1b}", "ctrlé"] {
            assert!(text.parse::<DetachKeys>().is_err(), "{text:?}");
        }
        let message = "ctrl-p,ctrl-9".parse::<DetachKeys>().unwrap_err().to_string();
        assert_eq!(
            message,
            "\"ctrl-9\" is not a key: expected a character, or `ctrl-` and a letter or one of @ [ \\ ] ^ _"
        );
    }

    #[test]
    fn the_keys_may_arrive_in_chunks_and_nothing_after_them_is_forwarded() {
        let keys = keys("ctrl-p,ctrl-q");
        assert_eq!(forwarded(&keys, &[b"ls\r\x10\x11rm\r"]), (b"ls\r".to_vec(), true));
        assert_eq!(forwarded(&keys, &[b"ls\r\x10", b"", b"\x11", b"rm\r"]), (b"ls\r".to_vec(), true));
    }

    #[test]
    fn a_prefix_of_the_keys_that_does_not_match_is_forwarded() {
        let keys = keys("ctrl-p,ctrl-q");
        assert_eq!(forwarded(&keys, &[b"\x10", b"x\x11"]), (b"\x10x\x11".to_vec(), false));
        assert_eq!(forwarded(&keys, &[b"\x10\x10", b"\x11"]), (b"\x10".to_vec(), true));
        assert_eq!(forwarded(&keys, &[b"a\x10"]), (b"a\x10".to_vec(), false), "released at the end of the input");
        let mut watcher = keys.watch();
        let mut typed = b"a\x10".to_vec();
        assert!(!watcher.take(&mut typed));
        assert_eq!(typed, b"a", "held back until then");
    }

    #[test]
    fn without_keys_everything_is_forwarded_at_once() {
        assert_eq!(forwarded(&keys(""), &[b"\x10\x11", b"\x10"]), (b"\x10\x11\x10".to_vec(), false));
    }

    #[test]
    fn the_first_occurrence_of_the_keys_detaches_however_the_input_is_split() {
        for keys in words(4).filter(|keys| !keys.is_empty()).map(DetachKeys) {
            for input in words(8) {
                let position = input.windows(keys.0.len()).position(|window| window == keys.0);
                let expected = (input[..position.unwrap_or(input.len())].to_vec(), position.is_some());
                for split in 0..=input.len() {
                    let (one, other) = input.split_at(split);
                    assert_eq!(forwarded(&keys, &[one, other]), expected, "{keys:?} {input:?} {split}");
                }
            }
        }
    }
}
