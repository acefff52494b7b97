//! Operations on directory trees without a shell or tools in the image. Requires an agent of Carrel, generation 11.

use std::collections::VecDeque;

use carrel_protocol::payload::{
    CarrelFsDone, CarrelFsEvents, CarrelFsMatches, CarrelFsRequest, TreeCopy, TreeEvent, TreeGlob, TreeGrep, TreeMatch,
    TreeMove, TreeOp, TreeWatch,
};
use carrel_protocol::{MessageType, Payload};

use crate::cancel::CancelMessage;
use crate::client::AgentClient;
use crate::error::{AgentClientError, FileError};
use crate::inbox::{FrameInbox, UNCREDITED};
use crate::reply::ParsedFrame;
use crate::session::ProtocolSession;

/// Operations on directory trees.
#[derive(Clone, Debug)]
pub struct TreeClient {
    client: AgentClient,
    user: Option<String>,
}

/// The results of an operation on a directory tree. Dropping it cancels the operation.
#[derive(Debug)]
pub struct TreeStream<T> {
    session: ProtocolSession,
    operation: &'static str,
    found: VecDeque<T>,
    done: Option<CarrelFsDone>,
    over: bool,
}

/// A message with a batch of results.
trait TreeBatch: for<'b> Payload<'b> {
    type Item;

    fn items(self) -> Vec<Self::Item>;
}

// === impl AgentClient ===

impl AgentClient {
    /// Operations on directory trees.
    pub fn tree(&self) -> TreeClient {
        TreeClient { client: self.clone(), user: None }
    }
}

// === impl TreeClient ===

impl TreeClient {
    /// The same operations as another user.
    pub fn on_behalf_of(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Reports changes until it is dropped.
    pub async fn watch(&self, watch: TreeWatch) -> Result<TreeStream<TreeEvent>, AgentClientError> {
        self.open(TreeOp::Watch(watch)).await
    }

    /// Finds entries by name.
    pub async fn glob(&self, glob: TreeGlob) -> Result<TreeStream<TreeMatch>, AgentClientError> {
        self.open(TreeOp::Glob(glob)).await
    }

    /// Finds lines by content.
    pub async fn grep(&self, grep: TreeGrep) -> Result<TreeStream<TreeMatch>, AgentClientError> {
        self.open(TreeOp::Grep(grep)).await
    }

    /// Moves a file or a tree; returns the number of files.
    pub async fn rename(&self, rename: TreeMove) -> Result<u64, AgentClientError> {
        self.open(TreeOp::Move(rename)).await?.finish().await
    }

    /// Copies a file or a tree; returns the number of files.
    pub async fn copy(&self, copy: TreeCopy) -> Result<u64, AgentClientError> {
        self.open(TreeOp::Copy(copy)).await?.finish().await
    }

    async fn open<T>(&self, op: TreeOp) -> Result<TreeStream<T>, AgentClientError> {
        let operation = op.tag();
        let request = CarrelFsRequest { op, user: self.user.clone() };
        let session = self.client.open(FrameInbox::new(UNCREDITED), &request, CancelMessage::Tree).await?;
        Ok(TreeStream { session, operation, found: VecDeque::new(), done: None, over: false })
    }
}

// === impl TreeStream ===

impl<T> TreeStream<T> {
    /// The final result: the number of matches, and whether a limit truncated them.
    pub fn outcome(&self) -> Option<&CarrelFsDone> {
        self.done.as_ref()
    }

    async fn next_of<B: TreeBatch<Item = T>>(&mut self) -> Result<Option<T>, AgentClientError> {
        loop {
            if let Some(item) = self.found.pop_front() {
                return Ok(Some(item));
            }
            if self.over {
                return Ok(None);
            }
            let frame = self.session.next().await?;
            self.over = frame.is_terminal();
            let message = ParsedFrame::parse(&frame)?;
            match message.message_type() {
                Some(found) if found == B::TYPE => self.found = message.payload::<B>()?.items().into(),
                Some(MessageType::CarrelFsDone) => self.done = Some(self.succeeded(message.payload()?)?),
                _ if self.over => return Err(message.unexpected("carrel.fs.done")),
                // An additional message of a newer agent.
                _ => {}
            }
        }
    }

    fn succeeded(&self, done: CarrelFsDone) -> Result<CarrelFsDone, AgentClientError> {
        if done.ok {
            return Ok(done);
        }
        let message = done.error.unwrap_or_else(|| "failed without an error message".to_owned());
        Err(FileError { operation: self.operation, message, errno_name: done.errno_name }.into())
    }
}

impl TreeStream<TreeMatch> {
    /// The next entry or line; `None` after the last. Cancel safe.
    pub async fn next(&mut self) -> Result<Option<TreeMatch>, AgentClientError> {
        self.next_of::<CarrelFsMatches>().await
    }

    async fn finish(mut self) -> Result<u64, AgentClientError> {
        while self.next().await?.is_some() {}
        Ok(self.done.map_or(0, |done| done.count))
    }
}

impl TreeStream<TreeEvent> {
    /// The next change. Cancel safe.
    pub async fn next(&mut self) -> Result<Option<TreeEvent>, AgentClientError> {
        self.next_of::<CarrelFsEvents>().await
    }
}

// === impl TreeBatch ===

impl TreeBatch for CarrelFsMatches {
    type Item = TreeMatch;

    fn items(self) -> Vec<TreeMatch> {
        self.matches
    }
}

impl TreeBatch for CarrelFsEvents {
    type Item = TreeEvent;

    fn items(self) -> Vec<TreeEvent> {
        self.events
    }
}
