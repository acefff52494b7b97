//! One output of a job: its head in a file, its tail in memory, and a marker if something between them is dropped.
//!
//! The file has the bytes as written, up to a limit. After the limit there is a marker and, once the job has ended, the
//! tail. While the job runs, the tail is in memory, available to followers.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{Access, AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::archived::ArchivedStream;

/// The size of the tail in memory if it is nowhere else.
pub(crate) const RING: usize = 128 * 1024;
/// The size of the tail in memory while it is also in the file, for close followers.
const NEWEST: usize = 32 * 1024;

#[derive(Debug)]
pub(crate) struct JobOutputLog {
    name: String,
    /// Open while it is written or read.
    file: Option<File>,
    /// The maximum length of the head.
    limit: u64,
    /// The length of the head.
    head: u64,
    length: u64,
    /// The tail, newest bytes last.
    ring: VecDeque<u8>,
    /// Whether something after the head is dropped, or in memory only.
    cut: bool,
    /// The offset of the tail in the stream and in the file, once the job has ended.
    tail: Option<(u64, u64)>,
    /// The part of the file that counts against the retention limits.
    charged: u64,
}

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputRead {
    /// So many bytes were read.
    Bytes(usize),
    /// Nothing is kept up to this offset.
    Cut(u64),
    /// Nothing was written there yet.
    Nothing,
    /// It exists, but cannot be read now.
    Failed(Errno),
}

// === impl JobOutputLog ===

impl JobOutputLog {
    /// Creates an output with a maximum length of its head. Its file must not exist.
    pub(crate) fn new(directory: &OwnedFd, name: String, limit: u64) -> io::Result<Self> {
        match rustix::fs::accessat(directory, name.as_str(), Access::EXISTS, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(()) => return Err(Errno::EXIST.into()),
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        let ring = VecDeque::new();
        Ok(Self { name, file: None, limit, head: 0, length: 0, ring, cut: false, tail: None, charged: 0 })
    }

    /// The stored form of a finished output.
    pub(crate) fn archived(&self) -> ArchivedStream {
        ArchivedStream {
            head: self.head,
            length: self.length,
            cut: self.cut,
            tail_from: self.tail.map(|(from, _)| from),
            tail_at: self.tail.map(|(_, at)| at),
            charged: self.charged,
        }
    }

    /// A finished output from its stored form.
    pub(crate) fn recalled(name: String, archived: ArchivedStream) -> Self {
        let ArchivedStream { head, length, cut, tail_from, tail_at, charged } = archived;
        let tail = tail_from.zip(tail_at);
        Self { name, file: None, limit: head, head, length, ring: VecDeque::new(), cut, tail, charged }
    }

    /// Creates its file. Without one, output is in memory only, and reported as such.
    pub(crate) fn keep(&mut self, directory: &OwnedFd) {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(directory, self.name.as_str(), flags, Mode::from_raw_mode(0o600));
        self.file = file.ok().map(File::from);
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// How many bytes the job wrote.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// The number of bytes that are no longer kept.
    pub(crate) fn missing(&self) -> u64 {
        self.gap().map_or(0, |(from, to)| to - from)
    }

    /// Its disk usage.
    pub(crate) fn charged(&self) -> u64 {
        self.charged
    }

    /// The first dropped byte, and the first kept one after it.
    pub(crate) fn gap(&self) -> Option<(u64, u64)> {
        let kept = self.tail_start();
        (self.cut && kept > self.head).then_some((self.head, kept))
    }

    /// The first kept byte after the head.
    fn tail_start(&self) -> u64 {
        let ring = self.length - self.ring.len() as u64;
        self.tail.map_or(ring, |(from, _)| from).max(self.head)
    }

    /// Appends output, with a disk budget of `allowed` bytes; from `held` on, it stays in memory for followers that
    /// hold the job.
    pub(crate) fn append(&mut self, data: &[u8], allowed: u64, held: Option<u64>) {
        if !self.cut {
            let room = (self.limit - self.head).min(allowed);
            let (kept, rest) = data.split_at(usize::try_from(room).unwrap_or(usize::MAX).min(data.len()));
            let written = self.file.as_mut().map_or(0, |file| write(file, kept));
            self.head += written as u64;
            self.charged = self.head;
            if written < kept.len() || !rest.is_empty() {
                self.cut = true;
                self.mark(&format!("\n[carrel: cut here: byte {} and what follows is not kept]\n", self.head));
            }
        }
        // Old bytes are dropped first, so that the buffer does not grow unnecessarily.
        self.trim_to(self.newest().saturating_sub(data.len()), held);
        self.length += data.len() as u64;
        self.ring.extend(data);
        self.trim(held);
    }

    /// The size of the tail to keep in memory.
    fn newest(&self) -> usize {
        if self.cut { RING } else { NEWEST }
    }

    /// Drops what need not be in memory.
    pub(crate) fn trim(&mut self, held: Option<u64>) {
        self.trim_to(self.newest(), held);
    }

    fn trim_to(&mut self, newest: usize, held: Option<u64>) {
        let start = self.length - self.ring.len() as u64;
        let surplus = (self.ring.len().saturating_sub(newest)) as u64;
        // What is in the file need not be in memory too.
        let wanted = held.map_or(u64::MAX, |held| held.max(self.head));
        let dropped = surplus.min(wanted.saturating_sub(start));
        self.ring.drain(..usize::try_from(dropped).unwrap_or(0));
    }

    /// How much may be acknowledged to the agent while a holding follower is at `held`.
    pub(crate) fn acknowledgeable(&self, held: u64) -> u64 {
        let limit = if self.cut { self.head } else { self.limit };
        held.saturating_add(RING as u64).max(limit)
    }

    /// The job has ended: the tail is written to the file after the marker.
    pub(crate) fn finish(&mut self, watched: bool) {
        if self.cut && self.tail_start() < self.length {
            // What the file has already is not written twice.
            let start = self.length - self.ring.len() as u64;
            let repeated = self.head.saturating_sub(start).min(self.ring.len() as u64);
            self.ring.drain(..usize::try_from(repeated).unwrap_or(0));
            let from = self.length - self.ring.len() as u64;
            let before = self.charged;
            self.mark(&format!("[carrel: output continues at byte {from}]\n"));
            let at = self.charged;
            let written = self.file.as_mut().map_or(0, |file| write(file, self.ring.make_contiguous()));
            if written == self.ring.len() {
                self.tail = Some((from, at));
                self.charged += written as u64;
            } else {
                // A partial tail is useless: its end could not be determined.
                let _shortened = self.file.as_ref().map(|file| file.set_len(before));
                self.charged = before;
                if watched {
                    // Followers read it from memory until the last of them leaves.
                    return;
                }
            }
        }
        self.ring = VecDeque::new();
        if !watched {
            self.file = None;
        }
    }

    /// Writes a marker after the head; without space the file just ends there.
    fn mark(&mut self, marker: &str) {
        let Some(file) = &mut self.file else { return };
        let written = write(file, marker.as_bytes());
        if written < marker.len() {
            let _shortened = file.set_len(self.charged);
        } else {
            self.charged += marker.len() as u64;
        }
    }

    /// Appends at most `limit` bytes from `offset` on to `out`.
    pub(crate) fn read(&mut self, directory: &OwnedFd, offset: u64, limit: usize, out: &mut Vec<u8>) -> OutputRead {
        if offset >= self.length {
            return OutputRead::Nothing;
        }
        if limit == 0 {
            return OutputRead::Bytes(0);
        }
        let ring = self.length - self.ring.len() as u64;
        if offset >= ring {
            let skip = usize::try_from(offset - ring).unwrap_or(usize::MAX);
            let (front, back) = self.ring.as_slices();
            let (first, second) = match front.get(skip..) {
                Some(first) => (first, back),
                None => (back.get(skip - front.len()..).unwrap_or_default(), &[][..]),
            };
            let first = first.get(..limit).unwrap_or(first);
            out.extend_from_slice(first);
            let second = second.get(..limit - first.len()).unwrap_or(second);
            out.extend_from_slice(second);
            return OutputRead::Bytes(first.len() + second.len());
        }
        let place = match self.tail {
            _ if offset < self.head => Some((offset, self.head)),
            Some((from, at)) if offset >= from => Some((at + (offset - from), self.length - from + at)),
            _ => None,
        };
        let Some((at, end)) = place else { return OutputRead::Cut(self.tail_start()) };
        let length = limit.min(usize::try_from(end - at).unwrap_or(usize::MAX));
        match self.read_file(directory, at, length, out) {
            Ok(count @ 1..) => OutputRead::Bytes(count),
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                OutputRead::Failed(Errno::from_io_error(&error).unwrap_or(Errno::IO))
            }
            // The file was truncated or removed by another process; the tail in memory is still available.
            _ if offset < self.head => OutputRead::Cut(ring.max(offset + 1).min(self.head.max(self.tail_start()))),
            _ => OutputRead::Cut(self.length),
        }
    }

    fn read_file(&mut self, directory: &OwnedFd, at: u64, length: usize, out: &mut Vec<u8>) -> io::Result<usize> {
        let file = match &self.file {
            Some(file) => file,
            None => {
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let file = rustix::fs::openat(directory.as_fd(), self.name.as_str(), flags, Mode::empty())?;
                self.file.insert(file.into())
            }
        };
        let before = out.len();
        out.resize(before + length, 0);
        let read = file.read_at(out.get_mut(before..).unwrap_or_default(), at);
        out.truncate(before + read.as_ref().copied().unwrap_or(0));
        read
    }

    /// Closes the file when it has no more readers.
    pub(crate) fn close(&mut self) {
        self.file = None;
        self.ring = VecDeque::new();
    }

    /// Releases unused memory.
    pub(crate) fn release_memory(&mut self) {
        self.ring.shrink_to_fit();
    }

    /// Removes the file.
    pub(crate) fn remove(&mut self, directory: &OwnedFd) {
        self.file = None;
        // A missing file need not be removed.
        let _gone = rustix::fs::unlinkat(directory, self.name.as_str(), AtFlags::empty());
    }
}

/// Writes as much as possible; the rest is dropped.
fn write(file: &mut File, mut bytes: &[u8]) -> usize {
    let whole = bytes.len();
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(0) => break,
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    whole - bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(limit: u64) -> (tempfile::TempDir, OwnedFd, JobOutputLog) {
        let home = tempfile::tempdir().unwrap();
        let directory: OwnedFd = File::open(home.path()).unwrap().into();
        let mut stream = JobOutputLog::new(&directory, "a.stdout.log".to_owned(), limit).unwrap();
        stream.keep(&directory);
        (home, directory, stream)
    }

    /// Everything that is kept, in chunks, with the gaps between them.
    fn read_all(
        stream: &mut JobOutputLog,
        directory: &OwnedFd,
        from: u64,
        step: usize,
    ) -> Vec<(u64, Result<Vec<u8>, u64>)> {
        let (mut found, mut offset) = (Vec::new(), from);
        loop {
            let mut bytes = Vec::new();
            match stream.read(directory, offset, step, &mut bytes) {
                OutputRead::Bytes(count) => {
                    assert_eq!(count, bytes.len());
                    assert!(count > 0);
                    match found.last_mut() {
                        Some((_, Ok(before))) => Vec::extend_from_slice(before, &bytes),
                        _ => found.push((offset, Ok(bytes))),
                    }
                    offset += count as u64;
                }
                OutputRead::Cut(to) => {
                    assert!(to > offset);
                    found.push((offset, Err(to)));
                    offset = to;
                }
                OutputRead::Nothing => return found,
                OutputRead::Failed(errno) => panic!("{errno}"),
            }
        }
    }

    fn numbered(bytes: std::ops::Range<u64>) -> Vec<u8> {
        bytes.map(|number| (number % 251) as u8).collect()
    }

    #[test]
    fn output_within_the_limit_is_kept_completely_and_the_file_is_verbatim() {
        let (home, directory, mut stream) = stream(1 << 20);
        stream.append(b"out\xff\x00", u64::MAX, None);
        stream.append(b"put", u64::MAX, None);
        stream.finish(false);
        assert_eq!(read_all(&mut stream, &directory, 0, 3), [(0, Ok(b"out\xff\x00put".to_vec()))]);
        assert_eq!(read_all(&mut stream, &directory, 5, 100), [(5, Ok(b"put".to_vec()))]);
        assert_eq!(stream.gap(), None);
        assert_eq!(std::fs::read(home.path().join("a.stdout.log")).unwrap(), b"out\xff\x00put");
    }

    //= promises.jobs.kept-output
    #[test]
    fn head_and_tail_are_kept_with_markers_between_them() {
        let (home, directory, mut stream) = stream(10);
        let all = numbered(0..1_000_000);
        for piece in all.chunks(16 * 1024) {
            stream.append(piece, u64::MAX, None);
        }
        let ring = all.len() - RING;
        let expected = [(0, Ok(all[..10].to_vec())), (10, Err(ring as u64)), (ring as u64, Ok(all[ring..].to_vec()))];
        assert_eq!(read_all(&mut stream, &directory, 0, 70_000), expected);
        stream.finish(false);
        assert_eq!(read_all(&mut stream, &directory, 0, 70_000), expected);
        assert_eq!(stream.gap(), Some((10, ring as u64)));
        let file = std::fs::read(home.path().join("a.stdout.log")).unwrap();
        assert_eq!(file.len() as u64, stream.charged());
        let marks = format!(
            "\n[carrel: cut here: byte 10 and what follows is not kept]\n[carrel: output continues at byte {ring}]\n"
        );
        assert_eq!(&file[..10], &all[..10]);
        assert_eq!(String::from_utf8_lossy(&file[10..10 + marks.len()]), marks);
        assert_eq!(&file[10 + marks.len()..], &all[ring..]);
    }

    #[test]
    fn a_holding_follower_misses_nothing() {
        let (_home, directory, mut stream) = stream(10);
        let all = numbered(0..900_000);
        stream.append(&all[..600_000], u64::MAX, Some(0));
        stream.append(&all[600_000..], u64::MAX, Some(100_000));
        assert_eq!(read_all(&mut stream, &directory, 100_000, 5000), [(100_000, Ok(all[100_000..].to_vec()))]);
        assert_eq!(stream.acknowledgeable(100_000), 100_000 + RING as u64);
        stream.trim(None);
        assert_eq!(stream.gap(), Some((10, (all.len() - RING) as u64)));
    }

    #[test]
    fn output_continues_on_a_full_disk_and_the_gap_is_reported() {
        let (home, directory, mut stream) = stream(1 << 20);
        stream.append(b"0123456789", 4, None);
        stream.append(b"abc", 0, None);
        assert_eq!(read_all(&mut stream, &directory, 0, 100), [(0, Ok(b"0123456789abc".to_vec()))]);
        stream.finish(false);
        let file = std::fs::read_to_string(home.path().join("a.stdout.log")).unwrap();
        assert!(file.starts_with("0123\n[carrel: cut here: byte 4 "), "{file}");
        assert!(file.ends_with("output continues at byte 4]\n456789abc"), "{file}");
        assert_eq!(read_all(&mut stream, &directory, 0, 100), [(0, Ok(b"0123456789abc".to_vec()))]);
    }

    #[test]
    fn reads_always_return_what_was_written() {
        bolero::check!().with_type::<(u16, Vec<(u16, Option<u8>, u8)>)>().for_each(|(limit, steps)| {
            let (_home, directory, mut stream) = stream(u64::from(*limit) * 4);
            let (mut all, mut held) = (Vec::new(), None::<u64>);
            for (length, hold, room) in steps {
                let length = u64::from(*length) % 20_000;
                let start = all.len() as u64;
                let data = numbered(start..start + length);
                all.extend_from_slice(&data);
                // A holder only moves forward; a disk may be full at any time.
                held = hold.map(|part| held.unwrap_or(start).max(start * u64::from(part) / 256)).or(held);
                let allowed = if *room == 0 { 7 } else { u64::MAX };
                stream.append(&data, allowed, held);
                check(&mut stream, &directory, &all, held);
            }
            stream.trim(None);
            stream.finish(false);
            check(&mut stream, &directory, &all, None);
        });
    }

    /// Checks that everything read is right, and that nothing required is missing.
    fn check(stream: &mut JobOutputLog, directory: &OwnedFd, all: &[u8], held: Option<u64>) {
        assert_eq!(stream.length(), all.len() as u64);
        let newest = all.len().saturating_sub(if stream.cut { RING } else { 0 }) as u64;
        for (offset, found) in read_all(stream, directory, 0, 50_000) {
            let from = usize::try_from(offset).unwrap();
            match found {
                Ok(bytes) => assert!(all[from..].starts_with(&bytes)),
                Err(to) => {
                    assert!(to <= newest, "the end is there");
                    assert!(held.is_none_or(|held| to <= held), "what is held is there");
                }
            }
        }
    }

    #[test]
    fn a_file_name_is_used_once_and_without_a_file_the_output_is_in_memory() {
        let (home, directory, mut stream) = stream(1 << 20);
        let taken = JobOutputLog::new(&directory, "a.stdout.log".to_owned(), 10).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AlreadyExists);
        stream.remove(&directory);
        drop(home);
        stream.keep(&directory);
        stream.append(b"words", u64::MAX, None);
        assert_eq!(read_all(&mut stream, &directory, 0, 100), [(0, Ok(b"words".to_vec()))]);
        stream.finish(false);
        assert_eq!(read_all(&mut stream, &directory, 0, 100), [(0, Err(5))]);
    }

    #[test]
    fn a_file_truncated_or_removed_by_another_process_is_a_gap_and_no_end() {
        let (home, directory, mut stream) = stream(1 << 20);
        let all = numbered(0..400_000);
        stream.append(&all, u64::MAX, None);
        stream.finish(false);
        std::fs::write(home.path().join("a.stdout.log"), b"x").unwrap();
        let found = read_all(&mut stream, &directory, 0, 1000);
        assert_eq!(found, [(0, Ok(b"x".to_vec())), (1, Err(400_000))]);
        stream.close();
        stream.remove(&directory);
        assert_eq!(read_all(&mut stream, &directory, 0, 1000), [(0, Err(400_000))]);
    }
}
