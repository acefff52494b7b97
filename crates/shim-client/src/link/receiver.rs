//! Received bytes that are not yet consumed.

use std::io;
use std::os::fd::OwnedFd;

use carrel_protocol::Frame;
use carrel_protocol::frame::{LENGTH_SIZE, PREFIX_SIZE};

use super::{LinkError, ShimLink, is_disconnected};

/// The initial buffer, enough for most messages.
const ROOM: usize = 4096;
/// The maximum size of an empty buffer: a data message, and some more.
const KEPT: usize = 128 * 1024;

/// A receive buffer: the bytes `start..end` are pending.
#[derive(Debug)]
pub(crate) struct FrameReceiver {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Received descriptors, if they are requested.
    descriptors: Option<Vec<OwnedFd>>,
}

// === impl FrameReceiver ===

impl FrameReceiver {
    pub(crate) fn new() -> Self {
        Self { buffer: vec![0; ROOM], start: 0, end: 0, descriptors: None }
    }

    pub(crate) fn with_descriptors() -> Self {
        Self { descriptors: Some(Vec::new()), ..Self::new() }
    }

    /// The next frame. Cancel safe.
    ///
    /// Flushes the link's queue meanwhile.
    pub(crate) async fn next(&mut self, link: &ShimLink) -> Result<Frame<'_>, LinkError> {
        self.fill(link).await?;
        let waiting = self.buffer.get(self.start..self.end).unwrap_or_default();
        let (frame, _) = Frame::split(waiting)?.ok_or(LinkError::Closed)?;
        self.start += PREFIX_SIZE + frame.body.len();
        Ok(frame)
    }

    /// The descriptor received last.
    pub(crate) fn take_descriptor(&mut self) -> Option<OwnedFd> {
        self.descriptors.as_mut()?.pop()
    }

    /// Reads until a whole frame is buffered.
    async fn fill(&mut self, link: &ShimLink) -> Result<(), LinkError> {
        // A shim that sends without a pause would otherwise starve other tasks of this thread.
        tokio::task::consume_budget().await;
        while Frame::split(self.waiting())?.is_none() {
            let flushed = link.flush()?;
            self.make_room();
            let room = self.buffer.get_mut(self.end..).unwrap_or_default();
            match link.read(room, self.descriptors.as_mut()) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(read) => self.end += read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => link.ready(flushed).await?,
                // It closed without reading everything that was sent to it.
                Err(error) if is_disconnected(&error) => return Err(LinkError::Closed),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn waiting(&self) -> &[u8] {
        self.buffer.get(self.start..self.end).unwrap_or_default()
    }

    /// Makes space to read after an incomplete frame. The buffer grows with the bytes received, not with the declared
    /// length.
    fn make_room(&mut self) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if self.buffer.len() > KEPT {
                self.buffer = vec![0; ROOM];
            }
        }
        let needed = match self.waiting().first_chunk() {
            Some(length) => LENGTH_SIZE.saturating_add(u32::from_be_bytes(*length) as usize),
            None => PREFIX_SIZE,
        };
        if self.start + needed > self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end == self.buffer.len() {
            self.buffer.resize(needed.min(2 * self.end), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::mem::MaybeUninit;
    use std::os::fd::AsFd;

    use carrel_protocol::Flags;
    use carrel_protocol::codec::encode_raw;
    use carrel_protocol::frame::{MAX_BODY, MAX_LENGTH};
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
    use tokio::io::AsyncWriteExt;
    use tokio::net::UnixStream;

    use super::*;

    fn frame(id: u32, length: usize) -> Vec<u8> {
        let mut frame = Vec::new();
        encode_raw(&mut frame, id, Flags::NONE, &vec![7; length]).unwrap();
        frame
    }

    #[tokio::test]
    async fn frames_of_every_size_are_received_and_large_buffers_are_released() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (link, mut receiver) = (ShimLink::new(ours), FrameReceiver::new());
        let lengths = [0, 1, ROOM - 9, ROOM - 8, ROOM, 0, 70_000, 5, KEPT, 3, MAX_BODY, 1, 65_536, 65_536, 2];
        let sending = async {
            for (id, length) in (1..).zip(lengths) {
                theirs.write_all(&frame(id, length)).await.unwrap();
            }
        };
        let reading = async {
            for (id, length) in (1..).zip(lengths) {
                let frame = receiver.next(&link).await.unwrap();
                assert_eq!((frame.id, frame.body.len()), (id, length));
                assert!(frame.body.iter().all(|byte| *byte == 7));
            }
        };
        tokio::join!(sending, reading);
        assert!(receiver.buffer.len() <= KEPT, "{}", receiver.buffer.len());
    }

    #[tokio::test]
    async fn an_attached_descriptor_is_kept_if_requested() {
        for with_descriptors in [true, false] {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let mut receiver = if with_descriptors { FrameReceiver::with_descriptors() } else { FrameReceiver::new() };
            let sent = std::fs::File::open("/dev/null").unwrap();
            let descriptors = [sent.as_fd()];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
            let bytes = frame(5, 100);
            rustix::net::sendmsg(&theirs, &[IoSlice::new(&bytes)], &mut control, SendFlags::empty()).unwrap();
            assert_eq!(receiver.next(&ShimLink::new(ours)).await.unwrap().id, 5);
            let kept = receiver.take_descriptor().map(|kept| rustix::fs::fstat(kept).unwrap().st_rdev);
            assert_eq!(kept, with_descriptors.then(|| rustix::fs::fstat(&sent).unwrap().st_rdev));
            assert!(receiver.take_descriptor().is_none());
        }
    }

    #[tokio::test]
    async fn the_buffer_grows_with_received_bytes_and_not_with_the_declared_length() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (link, mut receiver) = (ShimLink::new(ours), FrameReceiver::new());
        theirs.write_all(&frame(1, MAX_BODY)[..10_000]).await.unwrap();
        drop(theirs);
        assert!(matches!(receiver.next(&link).await, Err(LinkError::Closed)));
        assert!(receiver.buffer.len() <= 20_000, "{}", receiver.buffer.len());
        assert_eq!(receiver.waiting().len(), 10_000);

        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&(MAX_LENGTH + 1).to_be_bytes()).await.unwrap();
        assert!(matches!(FrameReceiver::new().next(&ShimLink::new(ours)).await, Err(LinkError::Broken(_))));
    }
}
