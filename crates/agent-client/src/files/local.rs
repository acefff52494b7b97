//! Transfers between the sandbox and files of the host: system calls of both sides overlap, and no byte is copied in
//! between.

use std::io::{self, Read, Write};

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::{JoinError, spawn_blocking};

use super::Files;
use crate::bulk::RECORD_LEN;
use crate::error::AgentClientError;

/// The number of chunks buffered between the file and the connection.
const AHEAD: usize = 4;

// === impl Files ===

impl Files {
    /// Copies a file of the host into the sandbox, from its current position; returns the length.
    ///
    /// Faster than [`Self::upload`], which takes any reader. The file is read on a thread for blocking work.
    pub async fn upload_file(&self, path: impl Into<String>, mut from: std::fs::File) -> Result<u64, AgentClientError> {
        let file = self.open_to_write(path).await?;
        let mut stream = file.write(0).await?;
        let (sender, mut chunks) = mpsc::channel(AHEAD);
        let reading = spawn_blocking(move || {
            loop {
                let chunk = read_chunk(&mut from)?;
                // The receiver is gone if the upload failed or was dropped.
                if chunk.is_empty() || sender.blocking_send(chunk).is_err() {
                    return Ok(());
                }
            }
        });
        let mut len = 0;
        while let Some(chunk) = chunks.recv().await {
            len += chunk.len() as u64;
            stream.write(chunk).await?;
        }
        joined(reading.await)?;
        stream.finish().await?;
        file.close().await?;
        Ok(len)
    }

    /// Copies a file out of the sandbox to a file of the host, at its current position; returns the length.
    ///
    /// Faster than [`Self::download`], which takes any writer. The file is written on a thread for blocking work.
    pub async fn download_file(&self, path: impl Into<String>, mut to: std::fs::File) -> Result<u64, AgentClientError> {
        let mut stream = self.open_to_read(path).await?.read(0, None).await?;
        let (chunks, mut receiver) = mpsc::channel::<Bytes>(AHEAD);
        let writing = spawn_blocking(move || {
            while let Some(chunk) = receiver.blocking_recv() {
                to.write_all(&chunk)?;
            }
            Ok(())
        });
        let mut len = 0;
        while let Some(chunk) = stream.next().await? {
            len += chunk.len() as u64;
            if chunks.send(chunk).await.is_err() {
                break;
            }
        }
        drop(chunks);
        joined(writing.await)?;
        Ok(len)
    }
}

fn read_chunk(from: &mut std::fs::File) -> io::Result<Bytes> {
    let mut chunk = Vec::with_capacity(RECORD_LEN as usize);
    from.take(RECORD_LEN.into()).read_to_end(&mut chunk)?;
    Ok(chunk.into())
}

fn joined(result: Result<io::Result<()>, JoinError>) -> Result<(), AgentClientError> {
    result.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(AgentClientError::Local)
}
