//! Finds the start of the last lines of a stream, searching from the end.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use carrel_shim_client::messages::{JobStream, StreamName};
use carrel_shim_client::{ShimClient, ShimError};

/// How many bytes are read at once.
const BLOCK: u64 = 64 * 1024;

/// A backward search for line ends.
#[derive(Clone, Debug)]
struct TailSearch {
    /// How many line ends are still to be found.
    missing: u64,
    length: u64,
    /// Everything from here on has been searched.
    end: u64,
    /// The bytes that were dropped.
    gap: Option<Range<u64>>,
}

/// The offset of the last lines of a stream that a shim stores.
pub(super) async fn of_job(
    client: &mut ShimClient,
    job: &str,
    stream: StreamName,
    output: &JobStream,
    lines: u64,
) -> Result<u64, ShimError> {
    let gap = output.cut_from.zip(output.cut_to).map(|(from, to)| from..to);
    let mut search = TailSearch::new(lines, output.length, gap);
    while let Some(block) = search.next_block() {
        let mut bytes = Vec::new();
        while let Some(offset) = Some(block.start + bytes.len() as u64).filter(|offset| *offset < block.end) {
            let limit = u32::try_from(block.end - offset).unwrap_or(u32::MAX);
            match client.read(job, stream, offset, limit).await {
                Ok(chunk) if chunk.offset == offset && !chunk.data.is_empty() => bytes.extend_from_slice(&chunk.data),
                // The job has overwritten it meanwhile.
                Ok(_) | Err(ShimError::Failed(_)) => return Ok(block.end),
                Err(error) => return Err(error),
            }
        }
        if let Some(beginning) = search.take(block.start, &bytes) {
            return Ok(beginning);
        }
    }
    Ok(search.end)
}

/// The offset of the last lines of a file.
pub(super) fn of_file(file: &File, lines: u64) -> io::Result<u64> {
    let mut search = TailSearch::new(lines, file.metadata()?.len(), None);
    while let Some(block) = search.next_block() {
        let mut bytes = vec![0; usize::try_from(block.end - block.start).unwrap_or_default()];
        match file.read_exact_at(&mut bytes, block.start) {
            // It was trimmed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
            read => read?,
        }
        if let Some(beginning) = search.take(block.start, &bytes) {
            return Ok(beginning);
        }
    }
    Ok(search.end)
}

// === impl TailSearch ===

impl TailSearch {
    fn new(lines: u64, length: u64, gap: Option<Range<u64>>) -> Self {
        Self { missing: lines, length, end: length, gap }
    }

    /// The block to read next; none if the search is over.
    fn next_block(&mut self) -> Option<Range<u64>> {
        if let Some(gap) = self.gap.take_if(|gap| gap.end >= self.end) {
            self.end = self.end.min(gap.start);
        }
        let kept_from = self.gap.as_ref().map_or(0, |gap| gap.end);
        let block = self.end.saturating_sub(BLOCK).max(kept_from)..self.end;
        (self.missing > 0 && !block.is_empty()).then_some(block)
    }

    /// Searches a block that starts at `from`; returns the offset of the lines, if it is found.
    fn take(&mut self, from: u64, bytes: &[u8]) -> Option<u64> {
        self.end = from;
        for (index, _) in bytes.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n') {
            let next = from + index as u64 + 1;
            // The end of the last line does not start another.
            if next == self.length {
                continue;
            }
            self.missing -= 1;
            if self.missing == 0 {
                return Some(next);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail(text: &[u8], lines: u64) -> &[u8] {
        let mut search = TailSearch::new(lines, text.len() as u64, None);
        let bytes =
            |range: &Range<u64>| &text[usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()];
        while let Some(block) = search.next_block() {
            if let Some(beginning) = search.take(block.start, bytes(&block)) {
                return bytes(&(beginning..text.len() as u64));
            }
        }
        bytes(&(search.end..text.len() as u64))
    }

    #[test]
    fn the_last_line_counts_with_and_without_a_newline() {
        assert_eq!(tail(b"a\nb\nc\n", 2), b"b\nc\n");
        assert_eq!(tail(b"a\nb\nc", 2), b"b\nc");
        assert_eq!(tail(b"a\nb\n\n", 2), b"b\n\n", "an empty line is one");
        assert_eq!(tail(b"a\nb\n", 9), b"a\nb\n");
        assert_eq!(tail(b"a\n", 0), b"");
        assert_eq!(tail(b"", 3), b"");
        assert_eq!(tail(b"\n", 1), b"\n");
    }

    #[test]
    fn lines_longer_than_a_block_are_whole() {
        let long = "x".repeat(200_000);
        let text = format!("before\n{long}\n{long}\nlast");
        assert_eq!(tail(text.as_bytes(), 3), format!("{long}\n{long}\nlast").as_bytes());
        let many: String = (0..100_000).map(|number| format!("{number}\n")).collect();
        assert_eq!(tail(many.as_bytes(), 2), b"99998\n99999\n");
        assert_eq!(tail(many.as_bytes(), 50_000).iter().filter(|byte| **byte == b'\n').count(), 50_000);
    }

    #[test]
    fn dropped_bytes_are_skipped() {
        let mut search = TailSearch::new(3, 1 << 40, Some(20..(1 << 40) - 10));
        let tail = search.next_block().unwrap();
        assert_eq!(tail, (1 << 40) - 10..1 << 40);
        assert_eq!(search.take(tail.start, b"more\nlast\n"), None);
        let head = search.next_block().unwrap();
        assert_eq!(head, 0..20);
        assert_eq!(search.take(0, b"first\nsecond\nthird.."), Some(6), "{search:?}");
        let mut at_end = TailSearch::new(1, 100, Some(20..100));
        assert_eq!(at_end.next_block(), Some(0..20));
    }

    #[test]
    fn a_file_is_read_from_its_end() {
        let mut file = tempfile::tempfile().unwrap();
        io::Write::write_all(&mut file, b"a\nb\nc").unwrap();
        assert_eq!(of_file(&file, 1).unwrap(), 4);
        assert_eq!(of_file(&file, 2).unwrap(), 2);
        assert_eq!(of_file(&file, 5).unwrap(), 0);
    }
}
