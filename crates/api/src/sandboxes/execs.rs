//! The execs of a sandbox, as a stream.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use carrel_control::SharePermit;
use carrel_store::{Exec, IdNamespace};
use tokio_stream::Stream;
use tonic::Status;

use crate::carrel::v1::ListExecsResponse;
use crate::convert;
use crate::memory::CallMemory;

/// What an exec takes beside its texts.
const EXEC: u64 = 1024;

/// Execs that are sent one after the other; what they take is charged until the last one is.
#[derive(Debug)]
pub(crate) struct ExecList {
    execs: std::vec::IntoIter<Arc<Exec>>,
    /// Of whoever asks.
    namespace: IdNamespace,
    _permit: SharePermit,
}

// === impl ExecList ===

impl ExecList {
    pub(super) fn new(execs: Vec<Arc<Exec>>, namespace: IdNamespace, memory: &CallMemory) -> Result<Self, Status> {
        let permit = memory.take_message(execs.iter().map(|exec| size(exec)).sum())?;
        Ok(Self { execs: execs.into_iter(), namespace, _permit: permit })
    }
}

impl Stream for ExecList {
    type Item = Result<ListExecsResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let namespace = self.namespace;
        let next = self.execs.next();
        Poll::Ready(next.map(|exec| Ok(ListExecsResponse { exec: Some(convert::record(&exec, namespace)) })))
    }
}

fn size(exec: &Exec) -> u64 {
    let command = exec.command.iter().map(|argument| argument.len() + size_of::<String>());
    let env = exec.env.iter().map(|(name, value)| name.len() + value.len() + 2 * size_of::<String>());
    let texts = exec.options.len() + exec.error_message.len() + exec.cwd.len();
    EXEC + (command.chain(env).sum::<usize>() + texts) as u64
}
