//! Extracts a tar archive from standard input into a directory of a sandbox.

use std::fs::File as HostFile;
use std::io::{self, BufRead, BufReader, IsTerminal, Read};
use std::os::fd::AsFd;

use bytes::Bytes;
use carrel_agent_client::protocol::payload::{FsAttributes, FsEntryKind, FsOpenOptions};
use carrel_agent_client::{AgentClientError, File, WriteStream};
use carrel_changes::EscapedName;
use tar::EntryType;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use super::guest::GuestFiles;
use super::report::{CopyReport, OmittedReason};
use super::request::{SandboxPath, join};
use super::{READ_AHEAD, failed, links, sandbox_failure};
use crate::failure::Failure;

/// How many bytes are read at once.
const CHUNK: u64 = 256 * 1024;
/// Magic bytes of compressed archives, and the program that decompresses them.
const COMPRESSED: [(&[u8], &str); 4] =
    [(b"\x1f\x8b", "zcat"), (b"\x28\xb5\x2f\xfd", "zstdcat"), (b"\xfd7zXZ", "xzcat"), (b"BZh", "bzcat")];

/// A message from the thread that reads the archive.
enum TarReaderMessage {
    Entry(ArchiveEntry),
    /// Bytes of the last entry.
    Data(Bytes),
}

struct ArchiveEntry {
    path: Vec<u8>,
    kind: EntryType,
    link_target: Vec<u8>,
    mode: u32,
    modified: i64,
}

/// A file of the sandbox that is being written.
struct OpenGuestFile {
    target: String,
    file: File,
    stream: WriteStream,
    attributes: FsAttributes,
}

/// Extracts standard input into `target`.
pub(super) async fn copy(guest: &GuestFiles, target: &SandboxPath, report: &mut CopyReport) -> Result<(), Failure> {
    let input = io::stdin();
    if input.is_terminal() {
        return Err(failed("`-` reads a tar archive, and standard input is a terminal").hint(format!(
            "tar c FILES | carrel cp - {}:{}",
            guest.sandbox,
            target.path()
        )));
    }
    let input = input.as_fd().try_clone_to_owned().map_err(|error| failed(format!("standard input: {error}")))?;
    let path = target.path();
    match guest.files.lstat(&path).await {
        Ok(found) if found.kind == FsEntryKind::Dir => {}
        Ok(found) if found.kind == FsEntryKind::Symlink => return Err(links::not_followed(&path)),
        Ok(_) => {
            return Err(failed(format!("{path}: not a directory, and `-` reads a tar archive")).hint(format!(
                "for a plain file: carrel exec --interactive {} -- sh -c 'cat >{path}' <FILE",
                guest.sandbox
            )));
        }
        Err(error) if links::is_too_old(&error) => return Err(links::too_old(&guest.sandbox)),
        Err(error) => return Err(sandbox_failure(&path, &error)),
    }
    let (sender, mut parts) = mpsc::channel(READ_AHEAD);
    let reading = spawn_blocking(move || read(input.into(), &sender));
    let written = write(guest, &path, &mut parts, report).await;
    // A read error is the reason why there was nothing more to write.
    parts.close();
    written?;
    reading.await.unwrap_or_else(|error| Err(failed(error)))
}

async fn write(
    guest: &GuestFiles,
    top: &str,
    parts: &mut mpsc::Receiver<TarReaderMessage>,
    report: &mut CopyReport,
) -> Result<(), Failure> {
    let mut open: Option<OpenGuestFile> = None;
    // New files change the modification time of their directory, so attributes are set at the end, the deepest first.
    let mut directories: Vec<(String, FsAttributes)> = Vec::new();
    while let Some(part) = parts.recv().await {
        let entry = match part {
            TarReaderMessage::Data(bytes) => {
                if let Some(file) = &mut open {
                    report.bytes += bytes.len() as u64;
                    file.stream.write(bytes).await.map_err(|error| sandbox_failure(&file.target, &error))?;
                }
                continue;
            }
            TarReaderMessage::Entry(entry) => entry,
        };
        finish(open.take()).await?;
        let shown = EscapedName(&entry.path).to_string();
        let (Ok(names), Ok(link_target)) = (names(&entry.path)?, std::str::from_utf8(&entry.link_target)) else {
            report.omit(shown, OmittedReason::NotUtf8);
            continue;
        };
        let Some((name, above)) = names.split_last() else { continue };
        let mut directory = top.to_owned();
        for above in above {
            directory = join(&directory, above);
            if !directories.iter().any(|(made, _)| *made == directory) {
                let attributes = FsAttributes { mode: Some(0o755), ..FsAttributes::default() };
                let attributes = guest.mkdir(&directory, attributes).await?;
                directories.push((directory.clone(), attributes));
            }
        }
        let target = join(&directory, name);
        let attributes = FsAttributes { mtime: Some(entry.modified), ..FsAttributes::default() };
        match entry.kind {
            EntryType::Directory => {
                let attributes =
                    guest.mkdir(&target, FsAttributes { mode: Some(entry.mode & 0o1777), ..attributes }).await?;
                report.directories += 1;
                // A parent that was created implicitly gets its attributes from its own entry.
                match directories.iter_mut().find(|(made, _)| *made == target) {
                    Some((_, known)) if known.mode.is_some() => {
                        *known = FsAttributes { mode: Some(entry.mode & 0o1777), mtime: attributes.mtime, ..*known };
                    }
                    Some((_, known)) => known.mtime = attributes.mtime,
                    None => directories.push((target, attributes)),
                }
            }
            EntryType::Symlink => {
                guest.symlink(link_target, &target, entry.modified).await?;
                report.links += 1;
            }
            EntryType::Link => {
                let Ok(names) = self::names(&entry.link_target)? else {
                    report.omit(shown, OmittedReason::NotUtf8);
                    continue;
                };
                let source = names.iter().fold(top.to_owned(), |path, name| join(&path, name));
                let attributes = FsAttributes { mode: Some(entry.mode & 0o777), ..attributes };
                report.bytes += duplicate(guest, &source, &target, attributes).await?;
                report.files += 1;
            }
            kind if kind.is_file() || kind.is_gnu_sparse() => {
                let attributes = FsAttributes { mode: Some(entry.mode & 0o777), ..attributes };
                let (file, attributes) = guest.create(&target, attributes).await?;
                let stream = file.write(0).await.map_err(|error| sandbox_failure(&target, &error))?;
                report.files += 1;
                open = Some(OpenGuestFile { target, file, stream, attributes });
            }
            _ => report.omit(shown, OmittedReason::SpecialFile),
        }
    }
    finish(open).await?;
    for (target, attributes) in directories.into_iter().rev() {
        guest.set_attributes(&target, attributes).await?;
    }
    Ok(())
}

async fn finish(open: Option<OpenGuestFile>) -> Result<(), Failure> {
    let Some(OpenGuestFile { target, file, stream, attributes }) = open else { return Ok(()) };
    let write_failed = |error: AgentClientError| sandbox_failure(&target, &error);
    stream.finish().await.map_err(write_failed)?;
    file.set_stat(attributes).await.map_err(write_failed)
}

/// Copies the target of a hard link; returns its length.
async fn duplicate(guest: &GuestFiles, source: &str, target: &str, attributes: FsAttributes) -> Result<u64, Failure> {
    let (read_failed, write_failed) = (
        |error: AgentClientError| sandbox_failure(source, &error),
        |error: AgentClientError| sandbox_failure(target, &error),
    );
    let reading = FsOpenOptions { read: true, ..FsOpenOptions::default() };
    let mut from =
        guest.files.open(source, reading).await.map_err(read_failed)?.read(0, None).await.map_err(read_failed)?;
    let (file, attributes) = guest.create(target, attributes).await?;
    let mut stream = file.write(0).await.map_err(write_failed)?;
    let mut bytes = 0;
    while let Some(chunk) = from.next().await.map_err(read_failed)? {
        bytes += chunk.len() as u64;
        stream.write(chunk).await.map_err(write_failed)?;
    }
    stream.finish().await.map_err(write_failed)?;
    file.set_stat(attributes).await.map_err(write_failed)?;
    Ok(bytes)
}

/// The components of a path in an archive; an error if they are not UTF-8.
fn names(path: &[u8]) -> Result<Result<Vec<&str>, std::str::Utf8Error>, Failure> {
    let text = match std::str::from_utf8(path) {
        Ok(text) => text,
        Err(error) => return Ok(Err(error)),
    };
    let names: Vec<&str> = text.split('/').filter(|name| !matches!(*name, "" | ".")).collect();
    if names.contains(&"..") {
        return Err(failed(format!("the archive has a path that leads out of it: {}", EscapedName(path))));
    }
    Ok(Ok(names))
}

/// Reads an archive to the end.
fn read(from: HostFile, parts: &mpsc::Sender<TarReaderMessage>) -> Result<(), Failure> {
    let read_failed = |error: io::Error| failed(format!("standard input: {error}"));
    let mut from = BufReader::new(from);
    let begins = from.fill_buf().map_err(read_failed)?;
    if let Some((_, plain)) = COMPRESSED.into_iter().find(|(magic, _)| begins.starts_with(magic)) {
        return Err(failed("standard input is compressed, and `-` reads a plain tar archive")
            .hint(format!("{plain} FILE | carrel cp - …")));
    }
    let mut archive = tar::Archive::new(&mut from);
    let not_tar = |error: io::Error| {
        failed(format!("standard input is not a tar archive, or is damaged: {error}"))
            .hint("tar c FILES | carrel cp - NAME:DIR; for a plain file give its path instead of `-`")
    };
    for entry in archive.entries().map_err(not_tar)? {
        let mut entry = entry.map_err(not_tar)?;
        let header = entry.header();
        let (kind, mode) = (header.entry_type(), header.mode().map_err(not_tar)?);
        let modified = header.mtime().map_err(not_tar)?.try_into().unwrap_or(i64::MAX);
        let link_target = entry.link_name_bytes().map(|name| name.into_owned()).unwrap_or_default();
        let path = entry.path_bytes().into_owned();
        // The receiver is closed if the sandbox failed to write.
        if parts
            .blocking_send(TarReaderMessage::Entry(ArchiveEntry { path, kind, link_target, mode, modified }))
            .is_err()
        {
            return Ok(());
        }
        loop {
            let mut chunk = Vec::new();
            (&mut entry).take(CHUNK).read_to_end(&mut chunk).map_err(read_failed)?;
            if chunk.is_empty() {
                break;
            }
            if parts.blocking_send(TarReaderMessage::Data(chunk.into())).is_err() {
                return Ok(());
            }
        }
    }
    // The writer may still be padding the last block.
    io::copy(&mut from, &mut io::sink()).map_err(read_failed)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_in_an_archive_stays_in_the_directory() {
        assert_eq!(names(b"./a//b/").unwrap().unwrap(), ["a", "b"]);
        assert_eq!(names(b"/etc/passwd").unwrap().unwrap(), ["etc", "passwd"]);
        assert!(names(b"./").unwrap().unwrap().is_empty());
        assert!(names(b"\xff").unwrap().is_err());
        for path in [&b"../a"[..], b"a/../../b", b".."] {
            assert!(names(path).unwrap_err().message.contains("leads out of it"));
        }
    }
}
