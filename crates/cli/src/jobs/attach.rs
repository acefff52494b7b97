//! `carrel attach`: attaches to a running job.

use std::sync::Arc;
use std::time::Instant;

use carrel_shim_client::DiscoveredSandbox;
use carrel_shim_client::messages::{InputWish, JobFollow, JobInfo, JobState};
use carrel_units::TimeSpan;

use super::report::SessionReport;
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
    let (sandbox, job, pid) = (&arguments.name, &info.job, info.pid);
    SessionReport { sandbox, job, pid, notes, limit, took: started.elapsed() }.print(&result)
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
            let words = format!("process {}{command} holds the input of job {}", holder.pid, info.job);
            Err(Failure::new("input_taken", words)
                .hint("--take-over takes over the input; --read-only attaches without it"))
        }
    }
}
