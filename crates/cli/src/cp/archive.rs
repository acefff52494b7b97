//! Out of a sandbox as a tar archive on standard output.

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
use super::{AHEAD, DEEPEST, NO_COPY, failed, inside};
use crate::failure::Failure;

/// How many entries of a directory are asked for at a time.
const BATCH: u32 = 256;

/// A part of an archive.
enum TarWriterMessage {
    /// An entry, with what it leads to if it is a link.
    Entry { path: String, header: Box<Header>, leads_to: Option<String> },
    /// Bytes of the file that was named last.
    Data(Bytes),
    /// The archive is whole.
    End,
}

/// The archive, which a thread writes while more arrives.
struct TarWriter {
    parts: mpsc::Sender<TarWriterMessage>,
    writing: JoinHandle<io::Result<()>>,
}

/// A directory that is being copied.
struct ArchiveDirectory {
    path: String,
    /// Its path in the archive; empty for the top.
    name: String,
    directory: Directory,
    entries: VecDeque<FsEntry>,
}

/// Bytes of one file as they arrive.
struct FileReader<'p> {
    parts: &'p mut mpsc::Receiver<TarWriterMessage>,
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
    let found = found.map_err(|error| inside(&path, &error))?;
    if found.kind == FsEntryKind::Other {
        return Err(failed(format!("{path} in the sandbox: {NO_COPY}")));
    }
    let output = output.as_fd().try_clone_to_owned().map_err(unwritten)?;
    let mut archive = TarWriter::begin(output.into());
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
    let mut levels: Vec<ArchiveDirectory> = top.into_iter().collect();
    while let Some(level) = levels.last_mut() {
        let Some(entry) = level.next().await? else {
            levels.pop();
            continue;
        };
        let name =
            FileName::last(&entry.path).map_err(|bad| failed(format!("the sandbox names a file wrongly: {bad}")))?;
        let path = join(&level.path, name.as_str());
        let in_archive =
            if level.name.is_empty() { name.as_str().to_owned() } else { join(&level.name, name.as_str()) };
        let opened = one(files, path, in_archive, &entry, archive, report).await?;
        if levels.len() >= DEEPEST && opened.is_some() {
            return Err(failed(format!("the tree is deeper than {DEEPEST} directories")));
        }
        levels.extend(opened);
    }
    Ok(())
}

/// Writes one entry; of a directory, what is in it is left to do.
async fn one(
    files: &Files,
    path: String,
    name: String,
    entry: &FsEntry,
    archive: &mut TarWriter,
    report: &mut CopyReport,
) -> Result<Option<ArchiveDirectory>, Failure> {
    // Of a name that is not text only a likeness arrives, and there is no way to ask for what it stands for.
    if path.contains(char::REPLACEMENT_CHARACTER) {
        report.leave_out(path, OmittedReason::NotText);
        return Ok(None);
    }
    let failed_inside = |error| inside(&path, &error);
    match entry.kind {
        FsEntryKind::File => {
            let options = FsOpenOptions { read: true, ..FsOpenOptions::default() };
            let file = files.open(path.as_str(), options).await.map_err(failed_inside)?;
            // How long it is now, for the archive says that before the bytes.
            let size = file.stat().await.map_err(failed_inside)?.size;
            archive.entry(name, header(entry, EntryType::Regular, 0o777, size), None).await?;
            let mut stream = file.read(0, Some(size)).await.map_err(failed_inside)?;
            let mut left = size;
            while left > 0 {
                let chunk = stream.next().await.map_err(failed_inside)?;
                let mut chunk =
                    chunk.ok_or_else(|| failed(format!("{path} in the sandbox: it was cut short during the copy")))?;
                chunk.truncate(usize::try_from(left).unwrap_or(usize::MAX));
                left -= chunk.len() as u64;
                archive.send(TarWriterMessage::Data(chunk)).await?;
            }
            report.files += 1;
            report.bytes += size;
        }
        FsEntryKind::Dir => {
            let level = ArchiveDirectory::open(files, path, name.clone()).await?;
            archive.entry(format!("{name}/"), header(entry, EntryType::Directory, 0o1777, 0), None).await?;
            report.directories += 1;
            return Ok(Some(level));
        }
        FsEntryKind::Symlink => {
            let leads_to = files.read_link(path.as_str()).await.map_err(failed_inside)?;
            if leads_to.contains(char::REPLACEMENT_CHARACTER) {
                report.leave_out(path, OmittedReason::NotText);
                return Ok(None);
            }
            archive.entry(name, header(entry, EntryType::Symlink, 0o777, 0), Some(leads_to)).await?;
            report.links += 1;
        }
        FsEntryKind::Other => report.leave_out(path, OmittedReason::Kind),
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

fn unwritten(error: io::Error) -> Failure {
    failed(format!("standard output: {error}"))
}

/// Writes an archive of the parts that arrive.
fn write(output: File, parts: mpsc::Receiver<TarWriterMessage>) -> io::Result<()> {
    let mut builder = Builder::new(BufWriter::new(output));
    match write_parts(&mut builder, parts) {
        Ok(()) => builder.into_inner()?.flush(),
        Err(error) => {
            // Dropped, it would end the archive as if it was whole.
            std::mem::forget(builder);
            Err(error)
        }
    }
}

fn write_parts(builder: &mut Builder<impl Write>, mut parts: mpsc::Receiver<TarWriterMessage>) -> io::Result<()> {
    loop {
        match parts.blocking_recv() {
            Some(TarWriterMessage::Entry { path, mut header, leads_to: Some(leads_to) }) => {
                builder.append_link(&mut header, path, leads_to)?;
            }
            Some(TarWriterMessage::Entry { path, mut header, leads_to: None }) => {
                let size = header.size()?;
                let data = FileReader { parts: &mut parts, chunk: Bytes::new() };
                builder.append_data(&mut header, path, data.take(size))?;
            }
            Some(TarWriterMessage::Data(_)) => {}
            Some(TarWriterMessage::End) => return Ok(()),
            // It was given up.
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

// === impl TarWriter ===

impl TarWriter {
    fn begin(output: File) -> Self {
        let (parts, receiver) = mpsc::channel(AHEAD);
        Self { parts, writing: spawn_blocking(move || write(output, receiver)) }
    }

    async fn entry(&self, path: String, header: Header, leads_to: Option<String>) -> Result<(), Failure> {
        self.send(TarWriterMessage::Entry { path, header: Box::new(header), leads_to }).await
    }

    async fn send(&self, part: TarWriterMessage) -> Result<(), Failure> {
        // The thread says why in the end.
        self.parts.send(part).await.map_err(|_| unwritten(io::ErrorKind::BrokenPipe.into()))
    }

    /// Waits until everything is written. What went wrong with the output is told first: the rest follows from it.
    async fn finish(self, copied: Result<(), Failure>) -> Result<(), Failure> {
        let copied = match copied {
            Ok(()) => self.send(TarWriterMessage::End).await,
            Err(failure) => Err(failure),
        };
        drop(self.parts);
        let written = self.writing.await.unwrap_or_else(|error| Err(io::Error::other(error)));
        match (copied, written) {
            (copied, Ok(())) => copied,
            (Err(failure), Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => Err(failure),
            (_, Err(error)) => Err(unwritten(error)),
        }
    }
}

// === impl FileReader ===

impl Read for FileReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.chunk.is_empty() {
            match self.parts.blocking_recv() {
                Some(TarWriterMessage::Data(chunk)) => self.chunk = chunk,
                // It was given up in the middle of a file.
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
        let directory = files.open_dir(&path).await.map_err(|error| inside(&path, &error))?;
        Ok(Self { path, name, directory, entries: VecDeque::new() })
    }

    async fn next(&mut self) -> Result<Option<FsEntry>, Failure> {
        if self.entries.is_empty() {
            let read = self.directory.read(Some(BATCH)).await;
            self.entries = read.map_err(|error| inside(&self.path, &error))?.into();
        }
        Ok(self.entries.pop_front())
    }
}
