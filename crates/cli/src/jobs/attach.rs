//! `carrel attach`: attaches to a running job.

use std::sync::Arc;
use std::time::Instant;

use carrel_image::ImageRef;
use carrel_shim_client::messages::{InputWish, JobFollow, JobInfo, JobState};
use carrel_shim_client::{DiscoveredSandbox, SandboxRecord};
use carrel_units::TimeSpan;

use super::report::SessionReport;
use super::select::{PRIMARY, RUN};
use super::session::control::ShimEndpoint;
use super::session::driver::{JobSession, SessionOptions, SessionRole};
use super::session::input::InputEnd;
use super::session::notes::SessionNotes;
use super::session::signals::HandledSignals;
use crate::arguments::AttachArguments;
use crate::failure::Failure;
use crate::find;

/// Shows output of the job and forwards input, until the job exits or the client detaches.
pub(super) async fn drive(
    arguments: &AttachArguments,
    found: Arc<DiscoveredSandbox>,
    notes: SessionNotes,
) -> Result<u8, Failure> {
    let keys = super::keys(&arguments.detach_keys)?;
    let started = Instant::now();
    let mut client = find::connect(&arguments.name, &found).await?;
    let info = find::with_timeout(super::selected(&mut client, &arguments.name, arguments.job.as_deref())).await?;
    let input = input_request(arguments, &info)?;
    let from = |length| Some(if arguments.no_replay { length } else { 0 });
    let follow = JobFollow {
        job: info.job.clone(),
        stdout: from(info.stdout.length),
        stderr: from(info.stderr.length),
        input,
        // A slow viewer misses output; the job does not wait for it.
        hold: false,
    };
    let end_hint = found.record.as_ref().and_then(|record| end_hint(&arguments.name, record, &info));
    let options = SessionOptions {
        role: if arguments.read_only { SessionRole::Viewer } else { SessionRole::Participant },
        job: info.job.clone(),
        endpoint: ShimEndpoint::Discovered(found),
        terminal: info.tty,
        keys,
        input: input != InputWish::None,
        resend: false,
        end: InputEnd::CloseIfUsed,
        timeout: None,
        notes,
    };
    let mut signals = HandledSignals::listen(info.tty && !arguments.read_only)?;
    let session = JobSession::new(client.follow(&follow).await?, options);
    if info.tty && !arguments.read_only && info.state != JobState::Ended {
        session.resize();
    }
    let result = session.drive(&mut signals).await?;
    let limit = info.timeout_ms.map(|millis| TimeSpan(std::time::Duration::from_millis(millis)));
    let (sandbox, job, end_hint) = (&arguments.name, &info.job, end_hint.as_deref());
    SessionReport { sandbox, job, end_hint, notes, limit, took: started.elapsed() }.print(&result)
}

/// What ends a job. A sandbox ends with the command of `carrel run`, and the daemon restarts the command of a persistent one,
/// so those end with their sandbox. None if the sandbox may have no program that sends a signal.
fn end_hint(sandbox: &str, record: &SandboxRecord, info: &JobInfo) -> Option<String> {
    // A service ends with its sandbox.
    if record.create.network_of.is_some() {
        return None;
    }
    if info.job == RUN || info.job.starts_with(PRIMARY) {
        return Some(format!("`carrel stop {sandbox}` stops the sandbox"));
    }
    let program = info.command.first().map(|program| program.rsplit('/').next().unwrap_or_default());
    let has_shell = record.image == ImageRef::Host.to_string() || matches!(program, Some("sh" | "bash"));
    // The job may be of any user, and `kill` is part of every shell.
    let pid = info.pid.filter(|_| has_shell)?;
    let shell = if program == Some("bash") { "bash" } else { "sh" };
    Some(format!("`carrel exec --user 0 {sandbox} -- {shell} -c 'kill {pid}'` terminates it"))
}

/// Whether to request the input of the job. It is a failure if another process holds it.
fn input_request(arguments: &AttachArguments, info: &JobInfo) -> Result<InputWish, Failure> {
    if arguments.read_only || !info.stdin_open || info.state == JobState::Ended {
        return Ok(InputWish::None);
    }
    match &info.input {
        _ if arguments.take_over => Ok(InputWish::Take),
        None => Ok(InputWish::Ask),
        Some(holder) => {
            let command = match holder.command.as_str() {
                "" => String::new(),
                command => format!(" ({command})"),
            };
            let message = format!("process {}{command} holds the input of job {}", holder.pid, info.job);
            Err(Failure::new("input_taken", message)
                .hint("--take-over takes over the input; --read-only attaches without it"))
        }
    }
}

#[cfg(test)]
mod tests {
    use carrel_shim_client::messages::{Fact, FactKind, SharedNetwork};

    use super::*;
    use crate::observed::tests::example;
    use crate::ps;

    fn running(job: &str, command: &[&str]) -> JobInfo {
        let command = command.iter().map(|word| (*word).to_owned()).collect();
        let fact = Fact { job: Some(job.to_owned()), command: Some(command), ..Fact::new(1, FactKind::JobStarted) };
        JobInfo { pid: Some(7), ..ps::past_jobs(&[fact]).remove(0) }
    }

    #[test]
    fn the_hint_of_an_interruption_ends_the_job_or_its_sandbox() {
        let record = |image: &str| SandboxRecord { image: image.to_owned(), ..example().record.unwrap() };
        let hint = |image: &str, job: &str, command: &[&str]| end_hint("web", &record(image), &running(job, command));
        let stop = Some("`carrel stop web` stops the sandbox".to_owned());
        assert_eq!(hint("host", "run", &["sh"]), stop);
        assert_eq!(hint("busybox", "primary.3", &["sh"]), stop, "the daemon restarts it");
        let kill = |shell| Some(format!("`carrel exec --user 0 web -- {shell} -c 'kill 7'` terminates it"));
        assert_eq!(hint("host", "build", &["make"]), kill("sh"));
        assert_eq!(hint("busybox", "build", &["/bin/sh", "-c", "make"]), kill("sh"));
        assert_eq!(hint("busybox", "build", &["bash"]), kill("bash"));
        assert_eq!(hint("distroless", "build", &["/server"]), None, "it may have no shell");
        let mut service = record("host");
        service.create.network_of = Some(SharedNetwork { pid: 1, began: 1 });
        assert_eq!(end_hint("web.db", &service, &running("primary.0", &["db"])), None);
    }
}
