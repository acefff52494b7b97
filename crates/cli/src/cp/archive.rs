//! Copies files out of a sandbox as a tar archive on standard output.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Read, Write};
use std::os::fd::AsFd;

use bytes::{Buf, Bytes};
use carrel_agent_client::protocol::payload::{FsEntry, FsEntryKind, FsOpenOptions};
use carrel_agent_client::{Directory, Files};
use tar::{Builder, EntryType, Header};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_blocking};

use super::file_name::FileName;
use super::report::{CopyReport, OmittedReason};
use super::request::{SandboxPath, join};
use super::{MAX_DEPTH, READ_AHEAD, SPECIAL_FILE, failed, sandbox_failure};
use crate::failure::Failure;

/// How many entries of a directory are read per request.
const BATCH: u32 = 256;

/// A message to the thread that writes the archive.
enum TarWriterMessage {
    /// An entry; a symbolic link has a target.
    Entry { path: String, header: Box<Header>, link_target: Option<String> },
    /// Bytes of the last entry.
    Data(Bytes),
    /// The archive is complete.
    Finish,
}

/// A tar archive that a thread writes while more data arrives.
struct TarWriter {
    messages: mpsc::Sender<TarWriterMessage>,
    writing: JoinHandle<io::Result<()>>,
}

/// A directory that is being copied.
struct ArchiveDirectory {
    path: String,
    /// Its path in the archive; empty for the top.
    name: String,
    handle: Directory,
    entries: VecDeque<FsEntry>,
}

/// Reads the bytes of one file from the channel.
struct FileReader<'p> {
    messages: &'p mut mpsc::Receiver<TarWriterMessage>,
    chunk: Bytes,
}

/// Writes what is at `source` to standard output.
pub(super) async fn copy(
    files: &Files,
    source: &SandboxPath,
    follow: bool,
    report: &mut CopyReport,
) -> Result<(), Failure> {
    let output = io::stdout();
    if output.is_terminal() {
        return Err(failed("`-` writes a tar archive, and standard output is a terminal")
            .hint("redirect it to a file, or to `tar x`"));
    }
    let path = source.path();
    let found = if follow { files.stat(&path).await } else { files.lstat(&path).await };
    let found = found.map_err(|error| sandbox_failure(&path, &error))?;
    if found.kind == FsEntryKind::Other {
        return Err(failed(format!("{path} in the sandbox: {SPECIAL_FILE}")));
    }
    let output = output.as_fd().try_clone_to_owned().map_err(write_failed)?;
    let mut archive = TarWriter::start(output.into());
    let copied = all(files, source, &found, &mut archive, report).await;
    archive.finish(copied).await
}

async fn all(
    files: &Files,
    source: &SandboxPath,
    found: &FsEntry,
    archive: &mut TarWriter,
    report: &mut CopyReport,
) -> Result<(), Failure> {
    let path = source.path();
    let top = match FileName::new(source.name()) {
        Ok(name) => one(files, path, name.as_str().to_owned(), found, archive, report).await?,
        // What is in a directory, without the directory.
        Err(_) if found.kind == FsEntryKind::Dir => Some(ArchiveDirectory::open(files, path, String::new()).await?),
        Err(bad) => return Err(failed(bad)),
    };
    let mut directories: Vec<ArchiveDirectory> = top.into_iter().collect();
    while let Some(directory) = directories.last_mut() {
        let Some(entry) = directory.next().await? else {
            directories.pop();
            continue;
        };
        let name = FileName::last(&entry.path)
            .map_err(|bad| failed(format!("the sandbox reports an invalid file name: {bad}")))?;
        let path = join(&directory.path, name.as_str());
        let in_archive =
            if directory.name.is_empty() { name.as_str().to_owned() } else { join(&directory.name, name.as_str()) };
        let opened = one(files, path, in_archive, &entry, archive, report).await?;
        if directories.len() >= MAX_DEPTH && opened.is_some() {
            return Err(failed(format!("the tree is deeper than {MAX_DEPTH} directories")));
        }
        directories.extend(opened);
    }
    Ok(())
}

/// Writes one entry; returns a directory whose contents remain to be copied.
async fn one(
    files: &Files,
    path: String,
    name: String,
    entry: &FsEntry,
    archive: &mut TarWriter,
    report: &mut CopyReport,
) -> Result<Option<ArchiveDirectory>, Failure> {
    // A name that is not UTF-8 arrives with replacement characters, and cannot be requested.
    if path.contains(char::REPLACEMENT_CHARACTER) {
        report.omit(path, OmittedReason::NotUtf8);
        return Ok(None);
    }
    let read_failed = |error| sandbox_failure(&path, &error);
    match entry.kind {
        FsEntryKind::File => {
            let options = FsOpenOptions { read: true, ..FsOpenOptions::default() };
            let file = files.open(path.as_str(), options).await.map_err(read_failed)?;
            // The header has the size, so it is read before the bytes.
            let size = file.stat().await.map_err(read_failed)?.size;
            archive.entry(name, header(entry, EntryType::Regular, 0o777, size), None).await?;
            let mut stream = file.read(0, Some(size)).await.map_err(read_failed)?;
            let mut left = size;
            while left > 0 {
                let chunk = stream.next().await.map_err(read_failed)?;
                let mut chunk =
                    chunk.ok_or_else(|| failed(format!("{path} in the sandbox: it was truncated during the copy")))?;
                chunk.truncate(usize::try_from(left).unwrap_or(usize::MAX));
                left -= chunk.len() as u64;
                archive.send(TarWriterMessage::Data(chunk)).await?;
            }
            report.files += 1;
            report.bytes += size;
        }
        FsEntryKind::Dir => {
            let directory = ArchiveDirectory::open(files, path, name.clone()).await?;
            archive.entry(format!("{name}/"), header(entry, EntryType::Directory, 0o1777, 0), None).await?;
            report.directories += 1;
            return Ok(Some(directory));
        }
        FsEntryKind::Symlink => {
            let link_target = files.read_link(path.as_str()).await.map_err(read_failed)?;
            if link_target.contains(char::REPLACEMENT_CHARACTER) {
                report.omit(path, OmittedReason::NotUtf8);
                return Ok(None);
            }
            archive.entry(name, header(entry, EntryType::Symlink, 0o777, 0), Some(link_target)).await?;
            report.links += 1;
        }
        FsEntryKind::Other => report.omit(path, OmittedReason::SpecialFile),
    }
    Ok(None)
}

fn header(entry: &FsEntry, kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(entry.mode & mode);
    header.set_size(size);
    header.set_uid(entry.uid.into());
    header.set_gid(entry.gid.into());
    header.set_mtime(entry.mtime.or(entry.modified).and_then(|time| time.try_into().ok()).unwrap_or(0));
    header
}

fn write_failed(error: io::Error) -> Failure {
    failed(format!("standard output: {error}"))
}

/// Writes an archive from messages.
fn write(output: File, messages: mpsc::Receiver<TarWriterMessage>) -> io::Result<()> {
    let mut builder = Builder::new(BufWriter::new(output));
    match write_messages(&mut builder, messages) {
        Ok(()) => builder.into_inner()?.flush(),
        Err(error) => {
            // Dropping the builder would terminate the archive as if it were complete.
            std::mem::forget(builder);
            Err(error)
        }
    }
}

fn write_messages(builder: &mut Builder<impl Write>, mut messages: mpsc::Receiver<TarWriterMessage>) -> io::Result<()> {
    loop {
        match messages.blocking_recv() {
            Some(TarWriterMessage::Entry { path, mut header, link_target: Some(link_target) }) => {
                builder.append_link(&mut header, path, link_target)?;
            }
            Some(TarWriterMessage::Entry { path, mut header, link_target: None }) => {
                let size = header.size()?;
                let data = FileReader { messages: &mut messages, chunk: Bytes::new() };
                builder.append_data(&mut header, path, data.take(size))?;
            }
            Some(TarWriterMessage::Data(_)) => {}
            Some(TarWriterMessage::Finish) => return Ok(()),
            // The copy failed.
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

// === impl TarWriter ===

impl TarWriter {
    fn start(output: File) -> Self {
        let (messages, receiver) = mpsc::channel(READ_AHEAD);
        Self { messages, writing: spawn_blocking(move || write(output, receiver)) }
    }

    async fn entry(&self, path: String, header: Header, link_target: Option<String>) -> Result<(), Failure> {
        self.send(TarWriterMessage::Entry { path, header: Box::new(header), link_target }).await
    }

    async fn send(&self, message: TarWriterMessage) -> Result<(), Failure> {
        // The thread reports the error when it is joined.
        self.messages.send(message).await.map_err(|_| write_failed(io::ErrorKind::BrokenPipe.into()))
    }

    /// Waits until everything is written. An error of the output comes first, because others follow from it.
    async fn finish(self, copied: Result<(), Failure>) -> Result<(), Failure> {
        let copied = match copied {
            Ok(()) => self.send(TarWriterMessage::Finish).await,
            Err(failure) => Err(failure),
        };
        drop(self.messages);
        let written = self.writing.await.unwrap_or_else(|error| Err(io::Error::other(error)));
        match (copied, written) {
            (copied, Ok(())) => copied,
            (Err(failure), Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => Err(failure),
            (_, Err(error)) => Err(write_failed(error)),
        }
    }
}

// === impl FileReader ===

impl Read for FileReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.chunk.is_empty() {
            match self.messages.blocking_recv() {
                Some(TarWriterMessage::Data(chunk)) => self.chunk = chunk,
                // The copy failed in the middle of a file.
                _ => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        let length = self.chunk.len().min(buffer.len());
        self.chunk.copy_to_slice(buffer.get_mut(..length).unwrap_or_default());
        Ok(length)
    }
}

// === impl ArchiveDirectory ===

impl ArchiveDirectory {
    async fn open(files: &Files, path: String, name: String) -> Result<Self, Failure> {
        let handle = files.open_dir(&path).await.map_err(|error| sandbox_failure(&path, &error))?;
        Ok(Self { path, name, handle, entries: VecDeque::new() })
    }

    async fn next(&mut self) -> Result<Option<FsEntry>, Failure> {
        if self.entries.is_empty() {
            let read = self.handle.read(Some(BATCH)).await;
            self.entries = read.map_err(|error| sandbox_failure(&self.path, &error))?.into();
        }
        Ok(self.entries.pop_front())
    }
}
