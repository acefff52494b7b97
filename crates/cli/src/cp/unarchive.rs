//! A tar archive from standard input, into a directory of a sandbox.

use std::fs::File as HostFile;
use std::io::{self, BufRead, BufReader, IsTerminal, Read};
use std::os::fd::AsFd;

use bytes::Bytes;
use carrel_agent_client::protocol::payload::{FsAttributes, FsEntryKind, FsOpenOptions};
use carrel_agent_client::{Error, File, WriteStream};
use carrel_changes::EscapedName;
use tar::EntryType;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use super::guest::GuestFiles;
use super::report::{CopyReport, OmittedReason};
use super::request::{SandboxPath, join};
use super::{AHEAD, failed, inside, links};
use crate::failure::Failure;

/// How many bytes are read at a time.
const CHUNK: u64 = 256 * 1024;
/// What compressed archives begin with, and what makes them plain.
const COMPRESSED: [(&[u8], &str); 4] =
    [(b"\x1f\x8b", "zcat"), (b"\x28\xb5\x2f\xfd", "zstdcat"), (b"\xfd7zXZ", "xzcat"), (b"BZh", "bzcat")];

/// A part of an archive.
enum TarReaderMessage {
    Entry(ArchiveEntry),
    /// Bytes of the file that was named last.
    Data(Bytes),
}

/// An entry of an archive.
struct ArchiveEntry {
    path: Vec<u8>,
    kind: EntryType,
    leads_to: Vec<u8>,
    mode: u32,
    modified: i64,
}

/// A file of the sandbox that is being written.
struct OpenGuestFile {
    target: String,
    file: File,
    stream: WriteStream,
    kept: FsAttributes,
}

/// Unpacks standard input below `target`.
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
        Ok(found) if found.kind == FsEntryKind::Symlink => return Err(links::refused(&path)),
        Ok(_) => {
            return Err(failed(format!("{path}: it is no directory, and `-` reads a tar archive")).hint(format!(
                "for a plain file: carrel exec --interactive {} -- sh -c 'cat >{path}' <FILE",
                guest.sandbox
            )));
        }
        Err(error) if links::is_too_old(&error) => return Err(links::too_old(&guest.sandbox)),
        Err(error) => return Err(inside(&path, &error)),
    }
    let (sender, mut parts) = mpsc::channel(AHEAD);
    let reading = spawn_blocking(move || read(input.into(), &sender));
    let written = write(guest, &path, &mut parts, report).await;
    // What could not be read is why there was nothing more to write.
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
    // What arrives in a directory changes when it was modified: each is settled at the end, the deepest first.
    let mut directories: Vec<(String, FsAttributes)> = Vec::new();
    while let Some(part) = parts.recv().await {
        let entry = match part {
            TarReaderMessage::Data(bytes) => {
                if let Some(file) = &mut open {
                    report.bytes += bytes.len() as u64;
                    file.stream.write(bytes).await.map_err(|error| inside(&file.target, &error))?;
                }
                continue;
            }
            TarReaderMessage::Entry(entry) => entry,
        };
        finish(open.take()).await?;
        let shown = EscapedName(&entry.path).to_string();
        let (Ok(names), Ok(leads_to)) = (names(&entry.path)?, std::str::from_utf8(&entry.leads_to)) else {
            report.leave_out(shown, OmittedReason::NotText);
            continue;
        };
        let Some((name, above)) = names.split_last() else { continue };
        let mut directory = top.to_owned();
        for above in above {
            directory = join(&directory, above);
            if !directories.iter().any(|(made, _)| *made == directory) {
                let kept = FsAttributes { mode: Some(0o755), ..FsAttributes::default() };
                let kept = guest.mkdir(&directory, kept).await?;
                directories.push((directory.clone(), kept));
            }
        }
        let target = join(&directory, name);
        let kept = FsAttributes { mtime: Some(entry.modified), ..FsAttributes::default() };
        match entry.kind {
            EntryType::Directory => {
                let kept = guest.mkdir(&target, FsAttributes { mode: Some(entry.mode & 0o1777), ..kept }).await?;
                report.directories += 1;
                // One that was made for what is in it gets what it is to keep now.
                match directories.iter_mut().find(|(made, _)| *made == target) {
                    Some((_, known)) if known.mode.is_some() => {
                        *known = FsAttributes { mode: Some(entry.mode & 0o1777), mtime: kept.mtime, ..*known };
                    }
                    Some((_, known)) => known.mtime = kept.mtime,
                    None => directories.push((target, kept)),
                }
            }
            EntryType::Symlink => {
                guest.symlink(leads_to, &target, entry.modified).await?;
                report.links += 1;
            }
            EntryType::Link => {
                let Ok(names) = self::names(&entry.leads_to)? else {
                    report.leave_out(shown, OmittedReason::NotText);
                    continue;
                };
                let source = names.iter().fold(top.to_owned(), |path, name| join(&path, name));
                let kept = FsAttributes { mode: Some(entry.mode & 0o777), ..kept };
                report.bytes += duplicate(guest, &source, &target, kept).await?;
                report.files += 1;
            }
            kind if kind.is_file() || kind.is_gnu_sparse() => {
                let kept = FsAttributes { mode: Some(entry.mode & 0o777), ..kept };
                let (file, kept) = guest.create(&target, kept).await?;
                let stream = file.write(0).await.map_err(|error| inside(&target, &error))?;
                report.files += 1;
                open = Some(OpenGuestFile { target, file, stream, kept });
            }
            _ => report.leave_out(shown, OmittedReason::Kind),
        }
    }
    finish(open).await?;
    for (target, kept) in directories.into_iter().rev() {
        guest.settle(&target, kept).await?;
    }
    Ok(())
}

async fn finish(open: Option<OpenGuestFile>) -> Result<(), Failure> {
    let Some(OpenGuestFile { target, file, stream, kept }) = open else { return Ok(()) };
    let there = |error: Error| inside(&target, &error);
    stream.finish().await.map_err(there)?;
    file.set_stat(kept).await.map_err(there)
}

/// A hard link becomes a file of its own; returns its length.
async fn duplicate(guest: &GuestFiles, source: &str, target: &str, kept: FsAttributes) -> Result<u64, Failure> {
    let (unread, unwritten) = (|error: Error| inside(source, &error), |error: Error| inside(target, &error));
    let reading = FsOpenOptions { read: true, ..FsOpenOptions::default() };
    let mut from = guest.files.open(source, reading).await.map_err(unread)?.read(0, None).await.map_err(unread)?;
    let (file, kept) = guest.create(target, kept).await?;
    let mut stream = file.write(0).await.map_err(unwritten)?;
    let mut bytes = 0;
    while let Some(chunk) = from.next().await.map_err(unread)? {
        bytes += chunk.len() as u64;
        stream.write(chunk).await.map_err(unwritten)?;
    }
    stream.finish().await.map_err(unwritten)?;
    file.set_stat(kept).await.map_err(unwritten)?;
    Ok(bytes)
}

/// The names of a path in an archive, below the directory that it is unpacked in; not if they are not text.
fn names(path: &[u8]) -> Result<Result<Vec<&str>, std::str::Utf8Error>, Failure> {
    let text = match std::str::from_utf8(path) {
        Ok(text) => text,
        Err(error) => return Ok(Err(error)),
    };
    let names: Vec<&str> = text.split('/').filter(|name| !matches!(*name, "" | ".")).collect();
    if names.contains(&"..") {
        return Err(failed(format!("the archive names {}, which leads out of it", EscapedName(path))));
    }
    Ok(Ok(names))
}

/// Reads an archive to its end.
fn read(from: HostFile, parts: &mpsc::Sender<TarReaderMessage>) -> Result<(), Failure> {
    let unread = |error: io::Error| failed(format!("standard input: {error}"));
    let mut from = BufReader::new(from);
    let begins = from.fill_buf().map_err(unread)?;
    if let Some((_, plain)) = COMPRESSED.into_iter().find(|(magic, _)| begins.starts_with(magic)) {
        return Err(failed("standard input is compressed, and `-` reads a plain tar archive")
            .hint(format!("{plain} FILE | carrel cp - …")));
    }
    let mut archive = tar::Archive::new(&mut from);
    let not_tar = |error: io::Error| {
        failed(format!("standard input is no tar archive, or it is damaged: {error}"))
            .hint("tar c FILES | carrel cp - NAME:DIR; for a plain file give its path instead of `-`")
    };
    for entry in archive.entries().map_err(not_tar)? {
        let mut entry = entry.map_err(not_tar)?;
        let header = entry.header();
        let (kind, mode) = (header.entry_type(), header.mode().map_err(not_tar)?);
        let modified = header.mtime().map_err(not_tar)?.try_into().unwrap_or(i64::MAX);
        let leads_to = entry.link_name_bytes().map(|name| name.into_owned()).unwrap_or_default();
        let path = entry.path_bytes().into_owned();
        // Nobody takes it when the sandbox could not.
        if parts.blocking_send(TarReaderMessage::Entry(ArchiveEntry { path, kind, leads_to, mode, modified })).is_err()
        {
            return Ok(());
        }
        loop {
            let mut chunk = Vec::new();
            (&mut entry).take(CHUNK).read_to_end(&mut chunk).map_err(unread)?;
            if chunk.is_empty() {
                break;
            }
            if parts.blocking_send(TarReaderMessage::Data(chunk.into())).is_err() {
                return Ok(());
            }
        }
    }
    // Whoever writes it may still be writing what fills up its last block.
    io::copy(&mut from, &mut io::sink()).map_err(unread)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_an_archive_stays_below_the_directory() {
        assert_eq!(names(b"./a//b/").unwrap().unwrap(), ["a", "b"]);
        assert_eq!(names(b"/etc/passwd").unwrap().unwrap(), ["etc", "passwd"]);
        assert!(names(b"./").unwrap().unwrap().is_empty());
        assert!(names(b"\xff").unwrap().is_err());
        for path in [&b"../a"[..], b"a/../../b", b".."] {
            assert!(names(path).unwrap_err().message.contains("leads out of it"));
        }
    }
}
