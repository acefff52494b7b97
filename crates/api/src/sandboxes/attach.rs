//! Following an exec: what it writes, what it is given, how it ends.

mod start;

use bytes::Bytes;
use carrel_control::{Caller, Control, Refusal};
use carrel_shim_client::messages::StreamName;
use carrel_shim_client::{Follow, FollowEvent, JobControl, ShimError};
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

use self::start::{Begun, begin};
use super::reach::by_supervisor;
use super::{PIECE, WAITING, end};
use crate::carrel::v1::attach_exec_request::Message as Asked;
use crate::carrel::v1::attach_exec_response::Message as Told;
use crate::carrel::v1::{
    AttachAccepted, AttachCut, AttachEnd, AttachExecRequest, AttachExecResponse, AttachInputState, AttachOutput,
    AttachRefused, Stream,
};
use crate::convert;
use crate::memory::{ATTACHMENT, CallMemory};
use crate::status::{refused, with_reason};

type Answer = Result<AttachExecResponse, Status>;

/// A client that follows an exec.
struct Attached {
    sandbox: String,
    give: mpsc::Sender<Answer>,
}

/// Follows an exec as the first message says; what is wrong with that is told at once.
pub(super) async fn attach(
    control: &Control,
    caller: &Caller,
    memory: &CallMemory,
    mut asked: Streaming<AttachExecRequest>,
) -> Result<mpsc::Receiver<Answer>, Status> {
    let first = asked.message().await.map_err(with_reason)?;
    let Some(Asked::Start(start)) = first.and_then(|first| first.message) else {
        return Err(refused(Refusal::invalid("start", "the first message says which exec")));
    };
    let permit = memory.take(ATTACHMENT)?;
    let (give, told) = mpsc::channel(WAITING);
    match begin(control, caller, &start).await? {
        Begun::Over(end) => {
            // There is room for it.
            let _told = give.try_send(Ok(message(Told::End(end))));
        }
        Begun::Following { sandbox, follow, first } => {
            let attached = Attached { sandbox, give };
            tokio::spawn(async move {
                let job = follow.control();
                // Whoever ends it first: the exec, the client by what it asks, the client by leaving.
                tokio::select! {
                    () = attached.tell(*follow, first) => {}
                    () = attached.obey(job, asked) => {}
                    () = attached.give.closed() => {}
                }
                drop(permit);
            });
        }
    }
    Ok(told)
}

// === impl Attached ===

impl Attached {
    /// Tells everything that happens, up to the end.
    async fn tell(&self, mut follow: Follow, first: FollowEvent) {
        let mut next = Ok(Some(first));
        loop {
            let event = match next {
                Ok(Some(event)) => event,
                Ok(None) => return,
                Err(error) => return self.fail(&error).await,
            };
            for told in told(event) {
                if self.give.send(Ok(message(told))).await.is_err() {
                    return;
                }
            }
            next = follow.next().await;
        }
    }

    /// Does what the client asks for, one thing after another. Returns when the client breaks the rules or is gone.
    async fn obey(&self, job: JobControl, mut asked: Streaming<AttachExecRequest>) {
        let mut written = 0;
        loop {
            let done = match asked.message().await {
                Ok(Some(AttachExecRequest { message: Some(asked) })) => match asked {
                    Asked::Input(input) if input.data.len() <= PIECE => {
                        let given = job.write(&input.data).await;
                        written += input.data.len() as u64;
                        given.map(|()| Some(Told::Accepted(AttachAccepted { written })))
                    }
                    Asked::Close(_) => job.close().await.map(|()| None),
                    Asked::Signal(signal) => job.signal(signal.signal).await.map(|()| None),
                    Asked::Resize(size) => match convert::size(&size) {
                        Ok((rows, cols)) => job.resize(rows, cols).await.map(|()| None),
                        Err(refusal) => return self.end(refused(refusal)).await,
                    },
                    Asked::Input(_) => {
                        let refusal = Refusal::invalid("data", format!("a piece has at most {PIECE} bytes"));
                        return self.end(refused(refusal)).await;
                    }
                    Asked::Start(_) => return self.end(refused(Refusal::invalid("start", "it has started"))).await,
                },
                Ok(Some(_)) => return self.end(refused(Refusal::invalid("message", "it says nothing"))).await,
                // It has nothing more to say, and listens.
                Ok(None) => return std::future::pending().await,
                Err(status) => return self.end(with_reason(status)).await,
            };
            let told = match done {
                Ok(None) => continue,
                Ok(Some(told)) => told,
                Err(error) if error.code().is_some() => self.not_done(&error),
                // The end is told by whoever reads.
                Err(_) => return std::future::pending().await,
            };
            if self.give.send(Ok(message(told))).await.is_err() {
                return;
            }
        }
    }

    fn not_done(&self, error: &ShimError) -> Told {
        let refusal = by_supervisor(&self.sandbox, error);
        Told::Refused(AttachRefused { reason: refusal.reason.to_owned(), message: refusal.message })
    }

    async fn fail(&self, error: &ShimError) {
        self.end(refused(by_supervisor(&self.sandbox, error))).await;
    }

    async fn end(&self, status: Status) {
        let _gone = self.give.send(Err(status)).await;
    }
}

/// What a client is told for an event: output in pieces.
fn told(event: FollowEvent) -> Vec<Told> {
    match event {
        FollowEvent::Output { stream, offset, data } => {
            let (mut data, mut offset, mut pieces) = (Bytes::from(data), offset, Vec::new());
            while !data.is_empty() {
                let piece = data.split_to(data.len().min(PIECE));
                let length = piece.len() as u64;
                pieces.push(Told::Output(AttachOutput { stream: name(stream), offset, data: piece }));
                offset += length;
            }
            pieces
        }
        FollowEvent::Cut(cut) => vec![Told::Cut(AttachCut { stream: name(cut.stream), from: cut.from, to: cut.to })],
        FollowEvent::Input(input) => {
            vec![Told::Input(AttachInputState { held: input.held, written: input.written })]
        }
        FollowEvent::Ended(info) => vec![Told::End(end::by_supervisor(info))],
    }
}

fn name(stream: StreamName) -> i32 {
    match stream {
        StreamName::Stdout => Stream::Stdout.into(),
        StreamName::Stderr => Stream::Stderr.into(),
    }
}

fn message(told: Told) -> AttachExecResponse {
    AttachExecResponse { message: Some(told) }
}
