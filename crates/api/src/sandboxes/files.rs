//! Files of a sandbox, as streams.

use bytes::Bytes;
use carrel_agent_client::protocol::payload::FsOpenOptions;
use carrel_agent_client::{ReadStream, WriteStream};
use carrel_control::{Caller, Control, Refusal};
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

use super::reach::{agent, by_agent, disk_closed, reader};
use super::{PIECE, WAITING};
use crate::carrel::v1::write_file_request::Message;
use crate::carrel::v1::{ReadFileRequest, ReadFileResponse, WriteFileRequest, WriteFileResponse, WriteStart};
use crate::memory::{CallMemory, TRANSFER};
use crate::request_log::RequestSubject;
use crate::status::{refused, with_reason};

/// The user that execs run as.
const USER: &str = "agbox";
/// What waits here of a file that is read: clients that do not read do not get more of it.
const WINDOW: u32 = 256 * 1024;
/// What a file is that is only read.
const READING: FsOpenOptions = FsOpenOptions {
    read: true,
    write: false,
    append: false,
    create: false,
    truncate: false,
    create_new: false,
    mode: None,
    user: None,
};

type Pieces = mpsc::Receiver<Result<ReadFileResponse, Status>>;

/// Reads a file; what is wrong with it is told at once.
pub(super) async fn read(
    control: &Control,
    caller: &Caller,
    memory: &CallMemory,
    request: ReadFileRequest,
) -> Result<Pieces, Status> {
    let ReadFileRequest { sandbox_id, path, offset, length } = request;
    check(&path)?;
    let permit = memory.take(TRANSFER)?;
    let (agent, access) = reader(control, caller, &sandbox_id).await?;
    let failed = |error| refused(by_agent(&sandbox_id, &path, &error));
    let file = agent.files().open(path.as_str(), READING).await.map_err(failed)?;
    let mut stream = file.read_within(WINDOW, offset, length).await.map_err(failed)?;
    // The first bytes tell whether it can be read at all.
    let first = stream.next().await.map_err(failed)?;
    let (give, pieces) = mpsc::channel(WAITING);
    tokio::spawn(async move {
        let read = pass_on(first, &mut stream, &give);
        let read = tokio::select! {
            read = read => read.map_err(|error| by_agent(&sandbox_id, &path, &error)),
            () = give.closed() => Ok(()),
            // The reader of a client that took nothing: what it gets next is not to look like the end of the file.
            () = access.ended() => Err(disk_closed(&sandbox_id)),
        };
        if let Err(refusal) = read {
            let _gone = give.send(Err(refused(refusal))).await;
        }
        // What is read belongs to a connection, which goes with its client.
        drop((file, agent, access, permit));
    });
    Ok(pieces)
}

async fn pass_on(
    first: Option<Bytes>,
    stream: &mut ReadStream,
    give: &mpsc::Sender<Result<ReadFileResponse, Status>>,
) -> Result<(), carrel_agent_client::AgentClientError> {
    let mut next = first;
    while let Some(mut bytes) = next {
        while !bytes.is_empty() {
            let data = bytes.split_to(bytes.len().min(PIECE));
            if give.send(Ok(ReadFileResponse { data })).await.is_err() {
                return Ok(());
            }
        }
        next = stream.next().await?;
    }
    Ok(())
}

/// Writes a file from what comes in.
pub(super) async fn write(
    control: &Control,
    caller: &Caller,
    memory: &CallMemory,
    subject: &RequestSubject,
    mut pieces: Streaming<WriteFileRequest>,
) -> Result<WriteFileResponse, Status> {
    let first = pieces.message().await.map_err(with_reason)?;
    let Some(Message::Start(start)) = first.and_then(|first| first.message) else {
        return Err(refused(Refusal::invalid("start", "the first message says which file")));
    };
    let WriteStart { sandbox_id, path, mode, user } = start;
    subject.sandbox(caller, &sandbox_id);
    check(&path)?;
    let _permit = memory.take(TRANSFER)?;
    let agent = agent(control, caller, &sandbox_id).await?;
    let failed = |error| refused(by_agent(&sandbox_id, &path, &error));
    let user = if user.is_empty() { USER.to_owned() } else { user };
    let options =
        FsOpenOptions { read: false, write: true, create: true, truncate: true, mode, user: Some(user), ..READING };
    let file = agent.files().open(path.as_str(), options).await.map_err(failed)?;
    let mut stream = file.write(0).await.map_err(failed)?;
    let mut size = 0;
    while let Some(data) = piece(&mut pieces).await? {
        size += data.len() as u64;
        WriteStream::write(&mut stream, data).await.map_err(failed)?;
    }
    stream.finish().await.map_err(failed)?;
    file.close().await.map_err(failed)?;
    Ok(WriteFileResponse { size })
}

async fn piece(pieces: &mut Streaming<WriteFileRequest>) -> Result<Option<Bytes>, Status> {
    match pieces.message().await.map_err(with_reason)? {
        None => Ok(None),
        Some(WriteFileRequest { message: Some(Message::Data(data)) }) if data.len() <= PIECE => Ok(Some(data)),
        Some(_) => Err(refused(Refusal::invalid("data", format!("pieces of at most {PIECE} bytes follow the first")))),
    }
}

fn check(path: &str) -> Result<(), Status> {
    if path.starts_with('/') { Ok(()) } else { Err(refused(Refusal::invalid("path", "it has to be absolute"))) }
}
