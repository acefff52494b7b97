//! The disk of a sandbox, open for as long as a client wants.

use carrel_control::{Caller, Control};
use tokio::sync::mpsc;
use tonic::Status;

use super::WAITING;
use super::reach::disk_closed;
use crate::carrel::v1::OpenDiskResponse;
use crate::status::refused;

/// Opens a disk; it is closed when the answers are dropped.
pub(super) async fn open(
    control: &Control,
    caller: &Caller,
    id: String,
) -> Result<mpsc::Receiver<Result<OpenDiskResponse, Status>>, Status> {
    let access = control.read_disk(caller, &id).await.map_err(refused)?;
    let (give, answers) = mpsc::channel(WAITING);
    tokio::spawn(async move {
        let agent_socket = access.agent_socket().display().to_string();
        if give.send(Ok(OpenDiskResponse { agent_socket })).await.is_err() {
            return;
        }
        tokio::select! {
            () = give.closed() => {}
            () = access.ended() => {
                let _left = give.send(Err(refused(disk_closed(&id)))).await;
            }
        }
    });
    Ok(answers)
}
