//! `carrel inspect`: details of a sandbox or a job as JSON.

use carrel_shim_client::HostPath;
use carrel_shim_client::messages::{Fact, JobInfo, JobOutcome, JobStream, PeerProcess, PublishedPort};
use serde_json::{Value, json};

use crate::arguments::InspectArguments;
use crate::daemon::render;
use crate::failure::{Failure, Failures};
use crate::jobs::stored_streams;
use crate::observed::ObservedSandbox;
use crate::timestamp::UnixMillis;
use crate::{find, limits, listing};

/// The exit code of a failure.
const FAILED: u8 = 1;

/// Prints details; returns the exit code.
pub(crate) fn inspect(arguments: &InspectArguments, json: bool) -> Result<u8, Failure> {
    let runtime = find::runtime()?;
    let (mut objects, mut failures) = (Vec::new(), Failures::new(json));
    for name in &arguments.names {
        match runtime.block_on(one(name, arguments.job.as_deref())) {
            Ok(value) => objects.push(value),
            Err(failure) => failures.add(failure),
        }
    }
    if !objects.is_empty() {
        let value = match (objects.pop(), arguments.names.len()) {
            (Some(only), 1) => only,
            (last, _) => objects.into_iter().chain(last).collect(),
        };
        // With --json one object per line, otherwise indented for people.
        let text = if json { crate::json::line(&value) } else { crate::json::lines(&value) };
        crate::write_stdout(text.as_bytes())?;
    }
    failures.finish(FAILED)
}

async fn one(name: &str, job: Option<&str>) -> Result<Value, Failure> {
    match job {
        Some(job) => Ok(self::job(&find::job(name, job).await?)),
        None => inspect_sandbox(name).await,
    }
}

/// The details of a sandbox from its shim and from the daemon.
async fn inspect_sandbox(name: &str) -> Result<Value, Failure> {
    let found = find::existing(name)?;
    let response = listing::inspect_persistent(name, found.as_ref()).await?;
    let observed = match &response {
        // Its shim may exit at any moment; the daemon still knows it.
        Some(_) => find::observe(name).await.ok(),
        None => Some(find::observe(name).await?),
    };
    let daemon = response.as_ref().map(render::inspected).unwrap_or_default();
    let handle = response.as_ref().and_then(|response| response.sandbox.as_ref());
    Ok(listing::object(observed.as_ref(), handle, daemon))
}

/// A sandbox as JSON.
pub(crate) fn sandbox(observed: &ObservedSandbox) -> Value {
    let (record, shim) = (observed.record.as_ref(), observed.shim.as_ref());
    let create = record.map(|record| &record.create);
    let status = shim.map(|shim| &shim.status);
    json!({
        "name": observed.name(),
        "state": observed.state().as_str(),
        "pause_reason": observed.pause_reason(),
        "ending": observed.is_ending(),
        "image": record.map(|record| &record.image),
        "agent_socket": record.map(|record| path(&record.agent_socket)),
        "shim_socket": record.map(|record| path(&record.shim_socket)),
        "directory": observed.directory.to_string_lossy(),
        "pid": shim.map(|shim| shim.hello.pid),
        "shim_pid": record.filter(|_| observed.has_shim()).map(|record| record.shim_pid),
        "incarnation": record.map(|record| &record.incarnation),
        "boot_id": record.map(|record| &record.boot_id),
        "owner": record.map(|record| peer(observed, &record.owner)),
        "supervisor": observed.supervisor().map(|found| peer(observed, &found)),
        "created_at": record.map(|record| UnixMillis(record.created_ms).to_string()),
        "release": record.map(|record| &record.release),
        "agent_release": shim.map(|shim| &shim.hello.agent_version),
        "version": record.map(|record| record.version),
        "id_base": record.map(|record| record.id_base),
        "id_count": record.map(|record| record.id_count),
        "cgroup": record.map(|record| &record.cgroup),
        "isolation": create.map(|create| if create.gvisor.is_some() { "gvisor" } else { "namespaces" }),
        "limits": create.map(|create| json!({
            "memory": create.limits.memory,
            "pids": create.limits.pids,
            "cpu_millis": create.limits.cpu_millis,
        })),
        "unenforced_limits": shim.map(|_| limits::names(limits::unenforced(observed))),
        "disk": create.map(|create| create.disk),
        "hostname": create.map(|create| &create.hostname),
        "mounts": create.map(|create| create.mounts.iter().map(|mount| json!({
            "source": path(&mount.source),
            "target": path(&mount.target),
            "writable": mount.writable,
        })).collect::<Vec<_>>()),
        "project": create.and_then(|create| create.project.as_ref()).map(|project| json!({
            "source": path(&project.source),
            "target": path(&project.target),
        })),
        "lasting": record.map(|record| record.lasting),
        "ports": status.map(|status| {
            let object = |port: &PublishedPort| json!({"host": port.host, "inside": port.inside, "protocol": "tcp"});
            status.ports.iter().flatten().map(object).collect::<Vec<_>>()
        }),
        "logs": record.map(|record| path(&record.logs)),
        "jobs": status.map(|status| json!({
            "running": status.running_jobs,
            "ended": status.ended_jobs,
            "pruned": status.pruned_jobs,
        })),
        "sequence": status.map(|status| status.sequence).or_else(|| Some(observed.facts().last()?.sequence)),
        "ended": observed.end().map(end),
        "problem": &observed.problem,
    })
}

/// A job as JSON.
pub(crate) fn job(info: &JobInfo) -> Value {
    json!({
        "job": &info.job,
        "state": info.state.as_str(),
        "outcome": info.outcome.as_ref().map(outcome),
        "command": &info.command,
        "user": &info.user,
        "cwd": &info.cwd,
        "tty": info.tty,
        "pid": info.pid,
        "started_at": UnixMillis(info.started_ms).to_string(),
        "ended_at": info.ended_ms.map(|at| UnixMillis(at).to_string()),
        "timeout_ms": info.timeout_ms,
        "stdout": stream(&info.stdout),
        "stderr": stream(&info.stderr),
        "stdin": {
            "bytes": info.stdin_bytes,
            "open": info.stdin_open,
            "holder": info.input.as_ref().map(|holder| json!({"pid": holder.pid, "user": holder.user, "command": &holder.command})),
        },
        "viewers": info.viewers,
    })
}

fn stream(stream: &JobStream) -> Value {
    let cut = stream.cut_from.map(|from| json!({"from": from, "to": stream.cut_to}));
    json!({"path": stream.path.as_ref().map(path), "length": stored_streams::length(stream), "cut": cut})
}

fn outcome(outcome: &JobOutcome) -> Value {
    json!({
        "kind": outcome.kind.as_str(),
        "code": outcome.code,
        "signal": outcome.signal,
        "failure": &outcome.failure,
        "errno_name": &outcome.errno_name,
        "message": &outcome.message,
    })
}

fn end(fact: &Fact) -> Value {
    json!({
        "reason": fact.reason.map_or(fact.kind.as_str(), |reason| reason.as_str()),
        "message": &fact.message,
        "at": UnixMillis(fact.at_ms).to_string(),
        "code": fact.code,
        "signal": fact.signal,
        "out_of_memory_kills": fact.out_of_memory_kills,
    })
}

fn peer(observed: &ObservedSandbox, peer: &PeerProcess) -> Value {
    // A shim that has dropped its privileges cannot read the start time of the next daemon.
    let alive = (peer.began != 0).then(|| observed.is_alive(peer));
    json!({"pid": peer.pid, "user": peer.user, "command": &peer.command, "alive": alive})
}

fn path(path: &HostPath) -> String {
    path.0.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use carrel_shim_client::messages::EndReason;

    use super::*;
    use crate::observed::tests::{dead, ended, example};

    #[test]
    fn a_running_sandbox_is_shown_with_its_sockets() {
        let object = sandbox(&example());
        for (key, value) in [
            ("name", json!("web")),
            ("state", json!("running")),
            ("ending", json!(false)),
            ("image", json!("host")),
            ("agent_socket", json!("/h/run/sandboxes/x/agent.sock")),
            ("shim_socket", json!("/h/run/sandboxes/x/shim.sock")),
            ("pid", json!(42)),
            ("shim_pid", json!(41)),
            ("owner", json!({"pid": u32::MAX, "user": 0, "command": "carrel run host", "alive": false})),
            ("created_at", json!("2024-02-29T12:34:56.007Z")),
            ("limits", json!({"memory": 67_108_864, "pids": 4096, "cpu_millis": null})),
            ("unenforced_limits", json!([])),
            ("jobs", json!({"running": 1, "ended": 2, "pruned": 0})),
            ("sequence", json!(3)),
            ("ended", Value::Null),
            ("problem", Value::Null),
        ] {
            assert_eq!(object.get(key), Some(&value), "{key}");
        }
    }

    #[test]
    fn a_running_sandbox_is_shown_with_its_published_ports() {
        let mut observed = example();
        assert_eq!(sandbox(&observed)["ports"], json!([]));
        observed.shim.as_mut().unwrap().status.ports = Some(vec![PublishedPort { host: 8080, inside: 80 }]);
        assert_eq!(sandbox(&observed)["ports"], json!([{"host": 8080, "inside": 80, "protocol": "tcp"}]));
    }

    #[test]
    fn a_stopped_sandbox_is_shown_with_its_end_and_without_pids() {
        let object = sandbox(&dead(vec![Fact { sequence: 9, ..ended(EndReason::OutOfMemory) }]));
        assert_eq!(object.pointer("/state"), Some(&json!("stopped")));
        assert_eq!(object.pointer("/ended/reason"), Some(&json!("out_of_memory")));
        assert_eq!(object.pointer("/ended/at"), Some(&json!("2024-02-29T12:35:00.000Z")));
        assert_eq!((object.get("pid"), object.get("shim_pid")), (Some(&Value::Null), Some(&Value::Null)));
        assert_eq!(object.get("sequence"), Some(&json!(9)));
    }
}
