//! Everything that is known of a sandbox.

use std::time::Duration;

use carrel_control::provider::{DiskSpace, PauseCause};
use carrel_control::{Caller, Control};
use carrel_shim_client::ShimClient;
use carrel_shim_client::messages::{ShimState, Statistics};
use carrel_store::SandboxState;
use tokio::time::timeout;
use tonic::Status;

use super::reach::{by_supervisor, supervisor};
use crate::carrel::v1::{Condition, GetStatisticsResponse, InspectSandboxResponse, Running, UnenforcedLimit};
use crate::convert;
use crate::status::refused;

/// How long a supervisor may take to say how it is; without it, the rest is told.
const PATIENCE: Duration = Duration::from_secs(2);

/// A sandbox, with what only the daemon knows and what its supervisor says.
pub(super) async fn inspect(control: &Control, caller: &Caller, id: &str) -> Result<InspectSandboxResponse, Status> {
    let sandbox = control.get(caller, id).map_err(refused)?;
    let spec = control.spec(&sandbox).map_err(refused)?;
    let execs = control.active_execs(caller, Some(id)).map_err(refused)?;
    let running = if sandbox.state == SandboxState::Ready { running(control, caller, id).await } else { None };
    let conditions = control.conditions(&sandbox).into_iter();
    Ok(InspectSandboxResponse {
        conditions: conditions.map(|one| Condition { r#type: one.kind.to_owned(), message: one.message }).collect(),
        sandbox: Some(convert::handle(&sandbox, &spec, caller.namespace())),
        desired: convert::desired(sandbox.desired).into(),
        incarnation: sandbox.incarnation.clone(),
        owner: sandbox.owner,
        reason: sandbox.reason.clone(),
        spec: Some(convert::create_spec(&spec)),
        idle_ttl: sandbox.idle_ms.map(|idle| convert::duration(Duration::from_millis(idle))),
        active_at: convert::timestamp_of(sandbox.active_at),
        limits: Some(convert::limits(&spec.limits)),
        running,
        restart: convert::restart(spec.restart).into(),
        execs: execs.iter().map(|(exec, sequence)| convert::status(exec, *sequence, caller.namespace())).collect(),
    })
}

/// What a sandbox uses.
pub(super) async fn statistics(control: &Control, caller: &Caller, id: &str) -> Result<GetStatisticsResponse, Status> {
    let mut supervisor = supervisor(control, caller, id).await?;
    let used = supervisor.statistics().await.map_err(|error| refused(by_supervisor(id, &error)))?;
    let Statistics { memory_bytes, memory_peak, out_of_memory_kills, pids, cpu_nanos, .. } = used;
    let Statistics { clients, bytes_out, bytes_in, paused, .. } = used;
    Ok(GetStatisticsResponse {
        memory_bytes,
        memory_peak,
        out_of_memory_kills,
        pids,
        cpu_nanos,
        clients,
        bytes_out,
        bytes_in,
        paused,
    })
}

/// What runs; only where it is, if its supervisor does not answer.
async fn running(control: &Control, caller: &Caller, id: &str) -> Option<Running> {
    let reach = control.reach(caller, id).ok()?;
    let mut running = Running {
        agent_socket: reach.agent_socket.display().to_string(),
        shim_socket: reach.shim_socket.display().to_string(),
        ..Running::default()
    };
    let asked = async {
        let mut supervisor = ShimClient::connect(&reach.shim_socket).await?;
        let status = supervisor.status().await?;
        Ok::<_, carrel_shim_client::ShimError>((supervisor.hello().clone(), status))
    };
    if let Ok(Ok((hello, status))) = timeout(PATIENCE, asked).await {
        running.paused = status.state == ShimState::Paused;
        let unenforced = status.unenforced.unwrap_or_default().into_iter();
        running.unenforced_limits =
            unenforced.map(|one| UnenforcedLimit { limit: one.limit, reason: one.reason }).collect();
        running.pause_reason = status.pause_reason.map(|reason| reason.as_str().to_owned()).unwrap_or_default();
        describe_pause(&mut running, control.disk_space());
        (running.shim_pid, running.pid) = (hello.shim_pid, hello.pid);
        (running.shim_release, running.agent_version) = (hello.release, hello.agent_version);
    }
    Some(running)
}

/// Says why it is paused for people, with what is free on the host's disk if that is why.
fn describe_pause(running: &mut Running, space: Option<DiskSpace>) {
    let is_for_disk = running.pause_reason == PauseCause::HostDisk.as_str();
    running.pause_message = match (running.paused, space.filter(|_| is_for_disk)) {
        (false, _) => return,
        (true, Some(space)) => {
            (running.host_free, running.host_reserve) = (Some(space.free), Some(space.reserve));
            format!("host disk low: {}", space.pause_summary)
        }
        (true, None) if is_for_disk => "host disk low".to_owned(),
        (true, None) => "by user".to_owned(),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_described_with_the_numbers_of_the_disk() {
        let described = |paused, pause_reason: &str| {
            let (summary, pause_summary) = ("1 free".to_owned(), "1 free, resumes at 3".to_owned());
            let space = DiskSpace { free: 1, reserve: 2, is_low: true, summary, pause_summary };
            let mut running = Running { paused, pause_reason: pause_reason.to_owned(), ..Running::default() };
            describe_pause(&mut running, Some(space));
            (running.pause_message, running.host_free, running.host_reserve)
        };
        let low = "host disk low: 1 free, resumes at 3".to_owned();
        assert_eq!(described(true, "host_disk"), (low, Some(1), Some(2)));
        assert_eq!(described(true, ""), ("by user".to_owned(), None, None));
        assert_eq!(described(false, ""), (String::new(), None, None));
    }
}
