//! Transfers of whole files.

use bytes::{Bytes, BytesMut};
use carrel_protocol::payload::FsOpenOptions;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::{File, Files};
use crate::bulk::RECORD_LEN;
use crate::error::AgentClientError;

// === impl Files ===

impl Files {
    /// Reads a whole file into memory.
    pub async fn read_to_end(&self, path: impl Into<String>) -> Result<Vec<u8>, AgentClientError> {
        let mut stream = self.open_to_read(path).await?.read(0, None).await?;
        let mut content = Vec::new();
        while let Some(data) = stream.next().await? {
            content.extend_from_slice(&data);
        }
        Ok(content)
    }

    /// Writes a whole file, which is created or truncated.
    pub async fn write_all(&self, path: impl Into<String>, content: impl Into<Bytes>) -> Result<(), AgentClientError> {
        let file = self.open_to_write(path).await?;
        let mut stream = file.write(0).await?;
        stream.write(content).await?;
        stream.finish().await?;
        file.close().await
    }

    /// Copies a file out of the sandbox; returns the length.
    pub async fn download(
        &self,
        path: impl Into<String>,
        mut to: impl AsyncWrite + Unpin,
    ) -> Result<u64, AgentClientError> {
        let mut stream = self.open_to_read(path).await?.read(0, None).await?;
        let mut len = 0;
        while let Some(data) = stream.next().await? {
            to.write_all(&data).await.map_err(AgentClientError::Local)?;
            len += data.len() as u64;
        }
        to.flush().await.map_err(AgentClientError::Local)?;
        Ok(len)
    }

    /// Copies a file into the sandbox, where it is created or truncated; returns the length.
    pub async fn upload(
        &self,
        path: impl Into<String>,
        mut from: impl AsyncRead + Unpin,
    ) -> Result<u64, AgentClientError> {
        let file = self.open_to_write(path).await?;
        let mut stream = file.write(0).await?;
        let (mut buffer, mut len) = (BytesMut::new(), 0);
        let chunk = 4 * RECORD_LEN as usize;
        loop {
            buffer.reserve(chunk);
            while buffer.len() < chunk && from.read_buf(&mut buffer).await.map_err(AgentClientError::Local)? > 0 {}
            if buffer.is_empty() {
                break;
            }
            len += buffer.len() as u64;
            stream.write(buffer.split().freeze()).await?;
        }
        stream.finish().await?;
        file.close().await?;
        Ok(len)
    }

    pub(super) async fn open_to_read(&self, path: impl Into<String>) -> Result<File, AgentClientError> {
        self.open(path, FsOpenOptions { read: true, ..FsOpenOptions::default() }).await
    }

    pub(super) async fn open_to_write(&self, path: impl Into<String>) -> Result<File, AgentClientError> {
        let options = FsOpenOptions { write: true, create: true, truncate: true, ..FsOpenOptions::default() };
        self.open(path, options).await
    }
}
