//! Pax headers: records of the form `LENGTH KEY=VALUE\n`; values may contain any byte.

use std::collections::BTreeMap;

use rustix::fs::Timespec;

use super::error::EntryRejection;

/// The records of one pax header, or of all global ones so far.
#[derive(Debug, Default)]
pub(super) struct PaxRecords {
    records: BTreeMap<Vec<u8>, Vec<u8>>,
    /// All bytes that were added.
    size: usize,
}

// === impl PaxRecords ===

impl PaxRecords {
    /// Adds the records of a header; later ones win. `limit` bounds the total size.
    pub(super) fn add(&mut self, mut body: &[u8], limit: usize) -> Result<(), EntryRejection> {
        self.size = self.size.saturating_add(body.len());
        if self.size > limit {
            return Err(EntryRejection::Extension);
        }
        while !body.is_empty() {
            let (key, value, rest) = record(body).ok_or(EntryRejection::Extension)?;
            self.records.insert(key.to_vec(), value.to_vec());
            body = rest;
        }
        Ok(())
    }

    /// The value of a key; an empty value deletes it.
    pub(super) fn get(&self, key: &str) -> Option<&[u8]> {
        self.records.get(key.as_bytes()).map(Vec::as_slice).filter(|value| !value.is_empty())
    }

    /// The records with a key prefix, without that prefix.
    pub(super) fn starting_with<'a>(&'a self, start: &'a str) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        self.records
            .range(start.as_bytes().to_vec()..)
            .map_while(move |(key, value)| Some((key.strip_prefix(start.as_bytes())?, value.as_slice())))
    }
}

fn record(body: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = body.iter().take(20).position(|byte| *byte == b' ')?;
    let length = usize::try_from(decimal(body.get(..space)?)?).ok()?;
    let (record, rest) = body.split_at_checked(length)?;
    let record = record.get(space + 1..)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|byte| *byte == b'=')?;
    let (key, value) = record.split_at(equals);
    Some((key, value.get(1..)?, rest))
}

/// A decimal number without sign.
pub(super) fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// A time in seconds, possibly negative and with a fraction.
pub(super) fn time(text: &[u8]) -> Option<Timespec> {
    let (negative, text) = match text.strip_prefix(b"-") {
        Some(text) => (true, text),
        None => (false, text),
    };
    let (whole, fraction) = match text.iter().position(|byte| *byte == b'.') {
        Some(point) => (text.get(..point)?, text.get(point + 1..)?),
        None => (text, &[][..]),
    };
    let seconds = i64::try_from(decimal(whole)?).ok()?;
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    // Nine digits are nanoseconds; further ones are dropped.
    let digits = fraction.iter().copied().chain(std::iter::repeat(b'0')).take(9);
    let nanoseconds = digits.fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0'));
    Some(match (negative, nanoseconds) {
        (false, nanoseconds) => Timespec { tv_sec: seconds, tv_nsec: nanoseconds },
        (true, 0) => Timespec { tv_sec: -seconds, tv_nsec: 0 },
        (true, nanoseconds) => Timespec { tv_sec: -seconds - 1, tv_nsec: 1_000_000_000 - nanoseconds },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_ends_by_its_length_and_not_by_its_content() {
        let mut records = PaxRecords::default();
        records.add(b"16 key=a=b\nc\0d\n9 empty=\n", 100).unwrap_err();
        let mut records = PaxRecords::default();
        records.add(b"15 key=a=b\nc\0d\n9 empty=\n", 100).unwrap();
        assert_eq!(records.get("key"), Some(&b"a=b\nc\0d"[..]));
        assert_eq!(records.get("empty"), None);
        assert_eq!(records.starting_with("ke").collect::<Vec<_>>(), [(&b"y"[..], &b"a=b\nc\0d"[..])]);
    }

    #[test]
    fn damaged_records_are_rejected() {
        for body in [&b"x"[..], b"4 a=", b"5 a=b", b"99 a=b\n", b"6 a=b\n6", b"+6 a=b\n", b"5 ab\n", b"0 a=b\n", b"1 "]
        {
            assert_eq!(PaxRecords::default().add(body, 100), Err(EntryRejection::Extension), "{body:?}");
        }
        assert_eq!(PaxRecords::default().add(b"6 a=b\n", 5), Err(EntryRejection::Extension));
    }

    #[test]
    fn times_have_fractions_and_signs() {
        let time = |text: &str| time(text.as_bytes()).map(|time| (time.tv_sec, time.tv_nsec));
        assert_eq!(time("1.5"), Some((1, 500_000_000)));
        assert_eq!(time("-1.25"), Some((-2, 750_000_000)));
        assert_eq!(time("-3"), Some((-3, 0)));
        assert_eq!(time("1.0000000019"), Some((1, 1)));
        for bad in ["", ".5", "1e3", "1.x", "--1", "99999999999999999999"] {
            assert_eq!(time(bad), None, "{bad}");
        }
    }
}
