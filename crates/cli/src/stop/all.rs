//! `carrel stop --all`: stops all running persistent sandboxes.

use carrel_api::agbox::v1::{ListSandboxesRequest, SandboxHandle, SandboxState, StopSandboxRequest};
use carrel_api::carrel::v1::StopForShutdownRequest;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tonic::Code;

use super::FAILED;
use crate::arguments::StopArguments;
use crate::daemon::{DaemonClient, render, status_failure, wait};
use crate::failure::{Failure, Failures};
use crate::find;

/// Stops all; returns the exit code.
pub(super) fn stop(arguments: &StopArguments, json: bool) -> Result<u8, Failure> {
    let until = Instant::now().checked_add(arguments.timeout);
    let ends = find::runtime()?.block_on(async {
        // No daemon is started while the host shuts down: shims stop their sandboxes themselves then.
        let daemon = if arguments.for_shutdown {
            DaemonClient::connect_to_running().await?
        } else {
            DaemonClient::connect_if_sandboxes_exist().await?
        };
        let Some(mut daemon) = daemon else { return Ok(Vec::new()) };
        let stopping =
            if arguments.for_shutdown { for_shutdown(&mut daemon).await? } else { by_request(&mut daemon).await? };
        let mut ending = JoinSet::new();
        for handle in stopping {
            let (daemon, no_wait) = (daemon.clone(), arguments.no_wait);
            ending.spawn(async move {
                if no_wait { Ok(Some(handle)) } else { wait_until_stopped(daemon, handle, until).await }
            });
        }
        Ok::<_, Failure>(ending.join_all().await)
    });
    let (mut stopped, mut failures) = (Vec::new(), Failures::new(json));
    for end in ends? {
        match end {
            Ok(handle) => stopped.extend(handle),
            Err(failure) => failures.add(failure),
        }
    }
    stopped.sort_by(|one, other| one.sandbox_id.cmp(&other.sandbox_id));
    for handle in stopped {
        let line = format!("{}\n", carrel_changes::EscapedLine(&handle.sandbox_id));
        crate::write_stdout(if json { crate::json::line(&render::handle(&handle)) } else { line }.as_bytes())?;
    }
    failures.finish(FAILED)
}

async fn for_shutdown(daemon: &mut DaemonClient) -> Result<Vec<SandboxHandle>, Failure> {
    let response = daemon.carrel.stop_for_shutdown(StopForShutdownRequest {}).await;
    Ok(response.map_err(|status| status_failure(&status))?.into_inner().sandboxes)
}

async fn by_request(daemon: &mut DaemonClient) -> Result<Vec<SandboxHandle>, Failure> {
    let mut stopping = Vec::new();
    for handle in daemon.list(ListSandboxesRequest::default()).await? {
        if handle.state() != SandboxState::Ready {
            continue;
        }
        let request = StopSandboxRequest { sandbox_id: handle.sandbox_id.clone() };
        match daemon.sandboxes.stop_sandbox(request).await {
            Ok(_) => stopping.push(handle),
            // It has stopped meanwhile.
            Err(status) if matches!(status.code(), Code::FailedPrecondition | Code::NotFound) => {}
            Err(status) => return Err(status_failure(&status)),
        }
    }
    Ok(stopping)
}

/// Waits until a sandbox has stopped.
async fn wait_until_stopped(
    mut daemon: DaemonClient,
    handle: SandboxHandle,
    until: Option<Instant>,
) -> Result<Option<SandboxHandle>, Failure> {
    let id = handle.sandbox_id.clone();
    let waiting = wait::until(&mut daemon, handle, SandboxState::Stopped);
    match until {
        None => waiting.await,
        Some(until) => timeout_at(until, waiting).await.unwrap_or_else(|_| {
            let message = format!("the sandbox {id:?} did not stop in time");
            Err(Failure::new("stop_timed_out", message).hint(format!("carrel events {id}")))
        }),
    }
}
