//! Whole trees of files, without a shell or a tool in the image. Only Carrel's own agents, from generation 11 on.

use std::collections::VecDeque;

use carrel_protocol::payload::{
    CarrelFsDone, CarrelFsEvents, CarrelFsMatches, CarrelFsRequest, TreeCopy, TreeEvent, TreeGlob, TreeGrep, TreeMatch,
    TreeMove, TreeOp, TreeWatch,
};
use carrel_protocol::{MessageType, Payload};

use crate::cancel::Cancel;
use crate::client::AgentClient;
use crate::error::{Error, FileError};
use crate::inbox::{Inbox, UNCREDITED};
use crate::reply::Message;
use crate::session::Session;

/// Operations on trees of files.
#[derive(Clone, Debug)]
pub struct Tree {
    client: AgentClient,
    user: Option<String>,
}

/// What an operation on a tree finds, one after the other. Dropping it stops the operation.
#[derive(Debug)]
pub struct TreeStream<T> {
    session: Session,
    operation: &'static str,
    found: VecDeque<T>,
    done: Option<CarrelFsDone>,
    over: bool,
}

/// A message that carries several of what a stream yields one by one.
trait Batch: for<'b> Payload<'b> {
    type Item;

    fn items(self) -> Vec<Self::Item>;
}

// === impl AgentClient ===

impl AgentClient {
    /// Operations on trees of files.
    pub fn tree(&self) -> Tree {
        Tree { client: self.clone(), user: None }
    }
}

// === impl Tree ===

impl Tree {
    /// The same operations on behalf of a user.
    pub fn on_behalf_of(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Reports changes until it is dropped.
    pub async fn watch(&self, watch: TreeWatch) -> Result<TreeStream<TreeEvent>, Error> {
        self.open(TreeOp::Watch(watch)).await
    }

    /// Finds entries by name.
    pub async fn glob(&self, glob: TreeGlob) -> Result<TreeStream<TreeMatch>, Error> {
        self.open(TreeOp::Glob(glob)).await
    }

    /// Finds lines by content.
    pub async fn grep(&self, grep: TreeGrep) -> Result<TreeStream<TreeMatch>, Error> {
        self.open(TreeOp::Grep(grep)).await
    }

    /// Moves a file or a tree; returns how many files that were.
    pub async fn rename(&self, rename: TreeMove) -> Result<u64, Error> {
        self.open(TreeOp::Move(rename)).await?.finish().await
    }

    /// Copies a file or a tree; returns how many files that were.
    pub async fn copy(&self, copy: TreeCopy) -> Result<u64, Error> {
        self.open(TreeOp::Copy(copy)).await?.finish().await
    }

    async fn open<T>(&self, op: TreeOp) -> Result<TreeStream<T>, Error> {
        let operation = op.tag();
        let request = CarrelFsRequest { op, user: self.user.clone() };
        let session = self.client.open(Inbox::new(UNCREDITED), &request, Cancel::Tree).await?;
        Ok(TreeStream { session, operation, found: VecDeque::new(), done: None, over: false })
    }
}

// === impl TreeStream ===

impl<T> TreeStream<T> {
    /// What the agent said at the end: how many there were, and whether a limit cut them.
    pub fn outcome(&self) -> Option<&CarrelFsDone> {
        self.done.as_ref()
    }

    async fn next_of<B: Batch<Item = T>>(&mut self) -> Result<Option<T>, Error> {
        loop {
            if let Some(item) = self.found.pop_front() {
                return Ok(Some(item));
            }
            if self.over {
                return Ok(None);
            }
            let frame = self.session.next().await?;
            self.over = frame.is_terminal();
            let message = Message::parse(&frame)?;
            match message.message_type() {
                Some(found) if found == B::TYPE => self.found = message.payload::<B>()?.items().into(),
                Some(MessageType::CarrelFsDone) => self.done = Some(self.succeeded(message.payload()?)?),
                _ if self.over => return Err(message.not("carrel.fs.done")),
                // Something that a newer agent adds on the way.
                _ => {}
            }
        }
    }

    fn succeeded(&self, done: CarrelFsDone) -> Result<CarrelFsDone, Error> {
        if done.ok {
            return Ok(done);
        }
        let message = done.error.unwrap_or_else(|| "failed without a reason".to_owned());
        Err(FileError { operation: self.operation, message, errno_name: done.errno_name }.into())
    }
}

impl TreeStream<TreeMatch> {
    /// The next entry or line; `None` after the last. Dropping the future loses none.
    pub async fn next(&mut self) -> Result<Option<TreeMatch>, Error> {
        self.next_of::<CarrelFsMatches>().await
    }

    async fn finish(mut self) -> Result<u64, Error> {
        while self.next().await?.is_some() {}
        Ok(self.done.map_or(0, |done| done.count))
    }
}

impl TreeStream<TreeEvent> {
    /// The next change. Dropping the future loses none.
    pub async fn next(&mut self) -> Result<Option<TreeEvent>, Error> {
        self.next_of::<CarrelFsEvents>().await
    }
}

// === impl Batch ===

impl Batch for CarrelFsMatches {
    type Item = TreeMatch;

    fn items(self) -> Vec<TreeMatch> {
        self.matches
    }
}

impl Batch for CarrelFsEvents {
    type Item = TreeEvent;

    fn items(self) -> Vec<TreeEvent> {
        self.events
    }
}
